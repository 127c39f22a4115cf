"""What the back end ray asks for, and what it says where there is no room; without a cluster."""

import pytest

from tfdist import Cluster, ClusterError, read
from tfdist.choice import choose, prepared
from tfdist.cluster import Task
from tfdist.devices import with_gpus_per_task
from tfdist.launch.backends.ray import backend, placement
from tfdist.launch.jobs.job import Job, Program

NODES = [
    {"NodeManagerAddress": f"10.0.0.{n}", "NodeManagerHostname": f"Node{n}", "NodeName": f"10.0.0.{n}", "Resources": total}
    for n, total in enumerate(({"CPU": 2.0}, {"CPU": 4.0, "GPU": 1.0}))
]
for node in NODES:
    node["Resources"][f"node:{node['NodeManagerAddress']}"] = 1.0


def make_job(description, gpus=0, **options):
    cluster = read(description)
    assert isinstance(cluster, Cluster)
    cluster = prepared(cluster)
    cluster = with_gpus_per_task(cluster, choose(cluster).strategy, gpus)
    options = {f"ray_{name}": value for name, value in options.items()}
    return Job(cluster, choose(cluster), Program("train.py"), options=options)


def test_tasks_that_compute_ask_for_gpus_and_every_task_for_a_cpu():
    plan = backend.plan(make_job({"chief": 1, "worker": 2, "ps": 1}, gpus=2, cpus="3"))
    assert plan.notes[:2] == (
        ("bundle", "chief:0, ps:0: 3 CPU for each"),
        ("bundle", "worker:0, worker:1: 3 CPU, 2 GPU for each"),
    )
    assert {task.host for task in plan.job.cluster.tasks} == {"ray"} and len(plan.open_ports) == 4


@pytest.mark.parametrize(
    ("bundles", "strategy", "lack"),
    [
        ([{"CPU": 1}, {"CPU": 4, "GPU": 1}], "PACK", None),
        ([{"CPU": 5}], "PACK", "worker:0 needs 5 CPU on one node, and there are at most 4 CPU"),
        ([{"CPU": 1, "GPU": 2}], "PACK", "worker:0 needs 1 CPU, 2 GPU on one node, and there are at most 4 CPU, 1 GPU"),
        ([{"CPU": 3, "node:10.0.0.0": 0.001}], "PACK", "worker:0 needs 3 CPU on the node a, and there are at most 2 CPU"),
        ([{"CPU": 1, "GPU": 1}] * 2, "PACK", "the 2 tasks need 2 GPU, and its 2 nodes have 1"),
        ([{"CPU": 1}] * 3, "STRICT_SPREAD", "3 tasks need a node each (--ray_placement STRICT_SPREAD), and there are 2"),
    ],
)
def test_what_a_cluster_lacks(bundles, strategy, lack):
    tasks = [Task("worker", index, "a") for index in range(len(bundles))]
    assert placement._lack(tasks, bundles, NODES, strategy) == lack


def test_a_host_of_the_description_is_a_node_by_address_or_name():
    for host in (None, "localhost", "ray"):
        assert placement._on_node(Task("worker", 0, host), NODES) == {}
    for host in ("10.0.0.1", "node1"):
        assert placement._on_node(Task("worker", 0, host), NODES) == {"node:10.0.0.1": 0.001}
    with pytest.raises(ClusterError, match=r"worker:0 is on elsewhere, and .* has the nodes 10\.0\.0\.0, 10\.0\.0\.1"):
        placement._on_node(Task("worker", 0, "elsewhere"), NODES)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("placement", "pack", "--ray_placement: 'pack' is not one of PACK, SPREAD"),
        ("cpus", "0", "--ray_cpus: '0' is not a number above 0"),
        ("cpus", "many", "--ray_cpus: 'many' is not a number above 0"),
        ("wait", "nan", "--ray_wait: 'nan' is not a number above 0"),
    ],
)
def test_bad_options_are_refused(option, value, message):
    with pytest.raises(ClusterError, match=message):
        backend.plan(make_job({"worker": 2}, **{option: value}))


def test_without_the_package_the_plan_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(backend.importlib.util, "find_spec", lambda name: None)
    assert "pip install 'ray>=" in str(backend.plan(make_job({"worker": 2})).refusal)
