"""TF_CONFIG: its variants, and the way back from `Cluster.tf_config`. `test_tf_config_systems` has what each system writes."""

import json
import string
from typing import Any

import pytest
from cluster_strategies import clusters
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.cluster import Cluster
from tfdist.dialects import read
from tfdist.dialects.tf_config.write import write
from tfdist.errors import ClusterError

A, B, C, D = "a:2222", "b:2222", "c:2222", "d:2222"


def names(cluster: Cluster) -> list[str]:
    return [task.name for task in cluster.tasks]


@pytest.mark.parametrize(
    ("config", "tasks"),
    [
        pytest.param({"cluster": {"worker": {"0": A, "1": B}}, "task": {"type": "worker", "index": 1}}, 2, id="a whole dict"),
        pytest.param({"worker": [A], "ps": []}, 1, id="bare, an empty job"),
        pytest.param({"worker": {0: A, 1: B}}, 2, id="bare, integer indices"),
        pytest.param({"worker": (A, B)}, 2, id="bare, a tuple"),
        pytest.param({"cluster": {"worker": [A], "chief": None}}, 1, id="a job that is null"),
        pytest.param({"cluster": {"worker": [A, B]}, "task": {"type": "worker", "index": "1"}}, 2, id="a text index"),
        pytest.param({"cluster": {"worker": [A]}, "task": {"type": "worker"}}, 1, id="no index means 0"),
        pytest.param({"task": {"type": "worker", "index": 0}}, 1, id="no cluster, a worker"),
        pytest.param({"cluster": {}, "task": {"type": "chief"}}, 1, id="empty cluster, a chief"),
        pytest.param({"cluster": {}, "task": {"type": "evaluator"}}, 1, id="empty cluster, an evaluator"),
        pytest.param({"cluster": {"master": [], "chief": [A]}}, 1, id="an empty master beside a chief"),
        pytest.param({"cluster": {"worker": [A]}, "session_master": "x", "made_up": 1}, 1, id="unknown keys"),
    ],
)
def test_variants_that_are_read(config: dict[str, Any], tasks: int) -> None:
    assert len(read(config).tasks) == tasks


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("h:1", "h", 1),
        ("grpc://h:65535", "h", 65535),
        ("10.0.0.1:80", "10.0.0.1", 80),
        ("[::1]:2222", "::1", 2222),
        ("grpc://[fe80::1%eth0]:2222", "fe80::1%eth0", 2222),
        ("a_b-c.d.svc.cluster.local:2222", "a_b-c.d.svc.cluster.local", 2222),
    ],
)
def test_addresses(address: str, host: str, port: int) -> None:
    task = read({"worker": [address]}).tasks[0]
    assert (task.host, task.port) == (host, port)


def test_the_protocol_is_read() -> None:
    assert read({"cluster": {"worker": [A]}, "rpc_layer": "grpc+verbs"}).protocol == "grpc+verbs"
    assert read({"cluster": {"worker": [A]}, "rpc_layer": None}).protocol == "grpc"


def with_task(job: str, index: Any) -> dict[str, Any]:
    return {"cluster": {"worker": [A, B], "ps": [C]}, "task": {"type": job, "index": index}}


def with_extension(**extension: Any) -> dict[str, Any]:
    return {"cluster": {"worker": [A, B], "ps": [C]}, "tfdist": extension}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"cluster": {"master": [A], "chief": [B]}}, "cluster.master: both a master and a chief are given"),
        (
            {"cluster": {"workers": [A]}},
            "'workers' is not a job; the jobs are chief, worker, ps, evaluator; did",
        ),
        ({"cluster": {"chief": [A, B]}}, "cluster.chief: there are 2 chief tasks; TensorFlow allows one"),
        ({"cluster": {"worker": [A], "evaluator": [B, C]}}, "there are 2 evaluator tasks"),
        ({"cluster": {"worker": [A, A]}}, "worker:0 and worker:1 have the same address a:2222"),
        ({"cluster": {"ps": [A]}}, "there are ps tasks but no workers"),
        ({"cluster": {"worker": ["a"]}}, "cluster.worker.0: 'a' has no port"),
        ({"cluster": {"worker": ["::1:80"]}}, "write IPv6 addresses in brackets"),
        ({"cluster": {"worker": ["a:0"]}}, "the port of 'a:0' is 0; ports are 1 to 65535"),
        ({"cluster": {"worker": ["a:65536"]}}, "ports are 1 to 65535"),
        ({"cluster": {"worker": ["a:b"]}}, "has no port"),
        ({"cluster": {"worker": ["http://a:1"]}}, "is not an address"),
        ({"cluster": {"worker": ["a b:1"]}}, "does not start with a host name"),
        ({"cluster": {"worker": ["[a]:1"]}}, "does not start with a host name"),
        ({"cluster": {"worker": [None]}}, "None is not an address"),
        ({"cluster": {"worker": [["a:1"]]}}, "is not an address"),
        ({"cluster": {"worker": "a:1"}}, "cluster.worker: 'a:1' is not a list"),
        ({"cluster": {"worker": {"x": A}}}, "'x' is not an index"),
        ({"cluster": {"worker": {"-1": A}}}, "'-1' is not an index"),
        ({"cluster": {"worker": {"1": A, "01": B}}}, "the index 1 is given twice"),
        ({"cluster": [A]}, "is not an object"),
        ({"cluster": {"worker": [A]}, "worker": [B]}, "the job worker is outside `cluster`"),
        ({"clustr": {"worker": [A]}, "task": {}}, "did you mean cluster?"),
        ({"cluster": {"worker": [A]}, "sparseCluster": {"worker": {"0": A}}}, "both cluster and sparseCluster"),
        ({"cluster": {"worker": [A]}, "rpc_layer": 5}, "rpc_layer: 5 is not a protocol"),
        ({"cluster": {}, "task": {"type": "ps", "index": 0}}, "the task is ps:0, but `cluster` has no tasks"),
        ({"cluster": {}, "task": {"type": "worker", "index": 3}}, "the task is worker:3, but `cluster` has no tasks"),
        ({"worker": []}, "the specification has no tasks"),
        ({"cluster": {"worker": []}}, "cluster: no job in it has a task"),
        ({"cluster": {"worker": [], "ps": None}, "task": {"type": "worker", "index": 0}}, "cluster: no job in it has a task"),
        ({"cluster": {"worker": [A, B]}, "task": {"type": "worker"}}, "task.index: there are 2 worker tasks; add the index"),
        ({"evaluator": 1}, "there are evaluators but nothing that trains"),
        ({"worker": 2, "ps": None}, "ps: the number of tasks is missing; write 0 for none"),
        ({"worker": "2"}, "or for all jobs numbers of tasks"),
        ({"cluster": {"evaluator": [A]}}, "there are evaluators but nothing that trains"),
        ({"worker": 2, "ps": "1"}, "ps: '1' is not a number of tasks, as worker has; give numbers for all jobs, or addresses"),
        ({"worker": "2", "ps": 1}, "worker: '2' is not a number of tasks, as ps has"),
        (with_task("worker", 2), "the task is worker:2, but `cluster` has 2 worker tasks"),
        (with_task("chief", 0), "the task is chief:0, but `cluster` has worker, ps"),
        (with_task("wroker", 0), "did you mean worker?"),
        (with_task("worker", -1), "-1 is not an index"),
        (with_task("worker", 1.0), "1.0 is not an index"),
        (with_task("worker", True), "True is not an index"),
        (with_task("worker", "one"), "'one' is not an index"),
        ({"cluster": {"worker": [A]}, "task": {"index": 0}}, "has the index 0 but no type"),
        ({"cluster": {"worker": [A]}, "task": "worker"}, "task: 'worker' is not an object"),
        (with_extension(sync_periods=1), "'sync_periods' is not known here; did you mean sync_period?"),
        (with_extension(sync_period=0), "tfdist.sync_period: 0 is not right; expected a whole number from 1"),
        (with_extension(sync_period=True), "tfdist.sync_period"),
        (with_extension(synchronization=["sum"]), "tfdist.synchronization: ['sum'] is not right; expected options by name"),
        (with_extension(synchronization={"outr": "sum"}), "'outr' is not known here; did you mean outer?"),
        (with_extension(synchronization={"outer": "avrage"}), "tfdist.synchronization.outer: 'avrage' is not one of average, "),
        (with_extension(synchronization={"fragments": True}), "tfdist.synchronization.fragments: True is not right"),
        (with_extension(synchronization={1: 2}), "tfdist.synchronization: the option 1 is not known here"),
        (with_extension(share_memory=1), "expected true or false"),
        (with_extension(job_dir=1), "expected a string"),
        (with_extension(slots={"worker": [[1, 0]]}), "one pair for each of the 2 worker tasks"),
        (with_extension(slots={"worker": [[1, 0], [1]]}), "tfdist.slots"),
        (with_extension(slots={"worker": [[10**12, 0], [1, 0]]}), "more than 100000 slots"),
        (with_extension(slots={"workers": []}), "tfdist.slots"),
        (with_extension(worker_groups=[[0], ["1"]]), "tfdist.worker_groups"),
        (with_extension(worker_groups=[[0]]), "do not hold each of the 2 worker ranks exactly once"),
        (with_extension(worker_groups=5), "tfdist.worker_groups"),
        ({"cluster": {"worker": [A], "evaluator": [B]}, "tfdist": {"evaluators": [C]}}, "keep one of them"),
        ({"cluster": {"worker": [A]}, "tfdist": []}, "tfdist: []"),
    ],
)
def test_what_is_refused_and_how(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ClusterError) as caught:
        read(config)
    assert message in str(caught.value)
    assert str(caught.value).startswith("<dict>")


def test_an_empty_variable_in_the_environment_is_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", "  "):
        monkeypatch.setenv("TF_CONFIG", value)
        with pytest.raises(ClusterError, match=r"^environment: no cluster is described"):
            read()
    monkeypatch.setenv("TF_CONFIG", "{}")
    assert names(read()) == ["chief:0"]
    monkeypatch.setenv("TF_CONFIG", json.dumps({"worker": [A]}))
    with pytest.raises(ClusterError, match="the job worker is outside `cluster`"):
        read()
    monkeypatch.setenv("TF_CONFIG", "cluster")
    with pytest.raises(ClusterError, match="does not hold a JSON object"):
        read()


def test_yaml_gives_the_line_of_a_fault() -> None:
    with pytest.raises(ClusterError, match=r"^<text>:3: cluster\.ps: 5 is not a list"):
        read("cluster:\n  worker: ['a:1']\n  ps: 5\n")


# The way back.


@settings(max_examples=300, deadline=None)
@given(clusters(), st.integers(0, 99))
def test_reading_what_a_cluster_writes_gives_the_cluster(cluster: Cluster, number: int) -> None:
    task = cluster.tasks[number % len(cluster.tasks)]
    config = cluster.tf_config(task.job, task.index)
    for again in (read(config), read(json.dumps(config))):
        assert again == cluster.addressed()
        assert again.task == (task.job, task.index)
        # Once read, it writes the same again.
        assert again.tf_config(task.job, task.index) == config


@settings(max_examples=100, deadline=None)
@given(st.text(string.printable), st.booleans())
def test_any_text_as_an_address_is_read_or_refused(address: str, bare: bool) -> None:
    spec = {"worker": [address]}
    try:
        assert len(read(spec if bare else {"cluster": spec}).tasks) == 1
    except ClusterError as error:
        assert str(error).isprintable()


def test_the_written_file_has_every_task() -> None:
    written = json.loads(write(read("STANDARD_1")))
    assert list(written) == ["chief:0", *(f"worker:{n}" for n in range(4)), *(f"ps:{n}" for n in range(3))]
    assert written["ps:2"]["task"] == {"type": "ps", "index": 2}


def test_ten_thousand_tasks_are_read_and_their_tf_config_refused_all_at_once() -> None:
    spec = {
        "chief": ["c:1"],
        "worker": [f"w{n}.example.org:2222" for n in range(9_500)],
        "ps": [f"p{n}.example.org:2222" for n in range(499)],
    }
    text = json.dumps({"cluster": spec, "task": {"type": "worker", "index": 9_499}})
    cluster = read(text)
    config = cluster.tf_config("worker", 77)
    with pytest.raises(ClusterError, match=r"each of the 10000 tasks names them all, in \d+ bytes; print that of one"):
        write(cluster)
    assert config["cluster"] == spec
    # Of a thousand tasks each has its own, though all but `task` is the same text.
    smaller = read({"worker": spec["worker"][:1000]})
    written = json.loads(write(smaller))
    assert written["worker:998"] == smaller.tf_config("worker", 998)
    assert len(written) == 1000


def test_tf_config_of_all_tasks_is_one_cluster():
    config = {"cluster": {"worker": ["a:1", "b:1"]}}
    both = {f"worker:{index}": {**config, "task": {"type": "worker", "index": index}} for index in range(2)}
    assert read(both) == read(config) and read(json.dumps(both)).task is None
    both["worker:1"]["cluster"] = {"worker": ["a:1", "c:1"]}
    with pytest.raises(ClusterError, match="worker:0 and worker:1 describe different clusters; give TF_CONFIG of one of them"):
        read(both)
    with pytest.raises(ClusterError, match="'worker:0' is not a job"):
        read({"worker:0": ["a:1"]})
