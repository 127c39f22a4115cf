"""The environment beside a description of the program: which of them counts, and what contradicts."""

import dataclasses
import json
import math
import threading

import pytest
from absl import flags
from environments import INTERACTIVE_STEP, WORKERS, mpi, slurm

import tfdist
from tfdist import create_strategy, process_cluster
from tfdist.cluster import Cluster
from tfdist.dialects import environment
from tfdist.dialects.tf_config.environment import from_environ
from tfdist.errors import ClusterError
from tfdist.rank_info import RankInfo
from tfdist.synchronization import Synchronization


def resolved(cfg=None):
    return process_cluster.resolve_cluster(cfg, RankInfo.outline)


def test_the_tasks_of_a_description_are_assigned_to_the_processes_of_a_step(environ):
    environ(slurm(3))
    cluster = resolved({"chief": 1, "worker": 2, "ps": 1})
    assert [(task.name, task.address) for task in cluster.tasks] == [
        ("chief:0", "n1:8888"),
        ("worker:0", "n1:8889"),
        ("worker:1", "n2:8888"),
        ("ps:0", "n2:8889"),
    ]
    assert cluster.task == ("ps", 0)
    # So is a chief that only the strategy adds.
    assert resolved({"worker": 2, "ps": 1}) == cluster
    # It is on the host of the first process, not on that of worker 0.
    environ({"SLURM_DISTRIBUTION": "cyclic"})
    cluster = resolved({"worker": ["n2:1", "n1:1"], "ps": ["n2:2"]})
    assert [task.host for task in cluster.tasks] == ["n1", "n2", "n1", "n2"] and cluster.job("chief")
    with pytest.raises(ClusterError, match=r"asks for 1 chief, 4 workers, 3 ps, but SLURM_PROCID describes 4 workers"):
        resolved("STANDARD_1")


@pytest.mark.parametrize("worker", [{"worker": WORKERS}, {"chief": ["e:1"], "worker": WORKERS[:2], "ps": ["c:1"]}])
def test_a_description_equal_to_tf_config_keeps_the_task(environ, worker):
    environ({"TF_CONFIG": json.dumps({"cluster": worker, "task": {"type": "worker", "index": 1}})})
    for cfg in (worker, json.dumps({"cluster": worker})):
        assert resolved(cfg) == resolved()
        assert resolved(cfg).task == ("worker", 1)
    environ({environment.CLUSTER_VARIABLE: json.dumps({"cluster": worker})})
    assert resolved().task == ("worker", 1)


def test_a_description_that_names_a_task_is_that_of_all_processes(environ):
    spec = {"chief": ["e:1"], "worker": WORKERS[:2], "ps": ["p:1"]}
    own = {"type": "worker", "index": 1}
    named = {"cluster": spec, "task": {"type": "worker", "index": 0}}
    environ({"TF_CONFIG": json.dumps({"cluster": spec, "task": own})})
    assert resolved(named).task == ("worker", 1)
    flags_of_tf1 = f"x --chief_hosts=e:1 --worker_hosts={','.join(WORKERS[:2])} --ps_hosts=p:1 --job_name=ps --task_index=0"
    assert resolved(flags_of_tf1).task == ("worker", 1)
    # What the launcher was asked for counts, as beside a description without a task.
    asked = {
        "strategy": "hogwild",
        "sync_period": 8,
        "synchronization": {"outer": "elastic"},
        "slots": {"worker": [[2, 2]] * 2},
    }
    environ({"TF_CONFIG": json.dumps({"cluster": spec, "task": own, "tfdist": asked})})
    assert resolved(named) == resolved() == resolved({"cluster": spec})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("nowhere.yaml", "TFDIST_CLUSTER: nowhere.yaml: there is no such file"),
        ('{"worker": 2, "pss": 1}', "TFDIST_CLUSTER: 'pss' is not a job"),
        ("worker: [a:1]\nps: 5", "TFDIST_CLUSTER:2: ps: 5 is not a list"),
        ("STANDRD_1", "TFDIST_CLUSTER: STANDRD_1: this is neither a file nor a scale tier"),
        ("torchrun --nnodes 2 --rdzv_backend c10d x.py", "TFDIST_CLUSTER: torchrun --nnodes 2"),
    ],
)
def test_a_bad_description_in_the_variable_names_it(environ, given, message):
    environ({environment.CLUSTER_VARIABLE: given})
    for ask in (resolved, tfdist.read, tfdist.rank):
        with pytest.raises(ClusterError) as caught:
            ask()
        assert str(caught.value).startswith(message)


@pytest.mark.parametrize(("given", "name"), [('{"worker": 3}', ""), ("torchrun --nproc_per_node 3 x.py", ": torchrun --nproc")])
def test_a_contradiction_names_the_variable_that_asks_for_something_else(environ, given, name):
    config = {"cluster": {"worker": WORKERS[:2]}, "task": {"type": "worker", "index": 0}}
    environ({environment.CLUSTER_VARIABLE: given, "TF_CONFIG": json.dumps(config)})
    with pytest.raises(
        ClusterError, match=f"^TFDIST_CLUSTER{name}.*: this asks for 3 workers, but TF_CONFIG describes 2 workers"
    ):
        resolved()


def test_ranks_with_tf_config_need_no_rendezvous(environ):
    line = "torchrun --nnodes 2 --nproc-per-node 2 --node-rank 0 --master-addr nowhere train.py"  # tfdist run --local
    environ({"TF_CONFIG": json.dumps({"cluster": {"worker": WORKERS}, "task": {"type": "worker", "index": 3}})})
    met = []
    for described in (line, {"num_shards": 4, "shard_id": 0, "file_store_path": "/nowhere", "num_gpus": 2}):
        cluster = process_cluster.resolve_cluster(described, lambda rank_info: met.append(rank_info) or rank_info.outline())
        assert not met and cluster.task == ("worker", 3) and [task.address for task in cluster.tasks] == WORKERS
    assert [task.slots for task in cluster.tasks] == [2] * 4
    with pytest.raises(ClusterError, match="asks for 8 workers, but TF_CONFIG describes 4 workers"):
        resolved(line.replace("--nnodes 2", "--nnodes 4"))


def test_a_task_of_the_launcher_ignores_the_variable(environ):
    config = {"cluster": {"worker": WORKERS[:2]}, "task": {"type": "worker", "index": 1}}
    environ({environment.CLUSTER_VARIABLE: "STANDARD_1", "TF_CONFIG": json.dumps(config)})
    with pytest.raises(ClusterError, match="this asks for 1 chief, 4 workers, 3 ps, but TF_CONFIG describes 2 workers"):
        resolved()
    environ({environment.STARTED_VARIABLE: "1"})
    assert resolved() == tfdist.read() == tfdist.read(config) and resolved().task == ("worker", 1)
    with pytest.raises(ClusterError, match="but the launcher started 2 workers; leave the description out of the program"):
        resolved("STANDARD_1")


@pytest.mark.parametrize("launcher", [mpi, slurm])
def test_the_launcher_gives_the_local_rank_for_a_command_line_that_all_processes_have(environ, launcher):
    line = "torchrun --nnodes 2 --nproc-per-node 2 --node-rank 0 --master-addr a train.py"
    environ(launcher(3), {environment.CLUSTER_VARIABLE: line})
    assert (tfdist.rank(), tfdist.size(), tfdist.local_rank(), tfdist.local_size()) == (3, 4, 1, 2)


def test_a_strategy_that_the_launcher_forces_may_add_a_chief(environ):
    spec = {"chief": ["e:1"], "worker": WORKERS[:2]}
    environ(
        {"TF_CONFIG": json.dumps({"cluster": spec, "task": {"type": "worker", "index": 1}, "tfdist": {"strategy": "hogwild"}})}
    )
    cluster = resolved({"worker": 2})
    assert cluster.task == ("worker", 1) and cluster.worker_groups == ((0,), (1,)) and cluster.strategy == "hogwild"
    options = Synchronization(outer="average")
    assert resolved(dataclasses.replace(tfdist.read({"worker": 2}), synchronization=options)).synchronization == options
    with pytest.raises(ClusterError, match="asks for 3 workers, but TF_CONFIG describes 1 chief, 2 workers"):
        resolved({"worker": 3})


def test_the_launchers_room_for_workers_counts_with_a_description(environ):
    spec = {"chief": ["e:1"], "worker": WORKERS[:3], "ps": ["p:1"]}
    environ({"TF_CONFIG": json.dumps({"cluster": spec, "task": {"type": "chief", "index": 0}, "tfdist": {"min_workers": 2}})})
    assert resolved().min_workers == 2
    assert resolved({"chief": 1, "worker": 3, "ps": 1}) == resolved({"chief": 1, "worker": 2, "ps": 1}) == resolved()
    assert resolved({"worker": 2, "ps": 1}) == resolved()
    with pytest.raises(ClusterError, match="asks for 1 worker, 1 ps, but TF_CONFIG describes 1 chief, 3 workers, 1 ps"):
        resolved({"worker": 1, "ps": 1})


@pytest.mark.parametrize(
    ("described", "slots", "groups"),
    [
        # The launcher's --gpus_per_task or --partition_devices: (2, 2) for each worker.
        ({"chief": 1, "worker": 2, "ps": 1}, [(2, 2), (2, 2)], ((0, 1), (2, 3))),
        # Both say it.
        (
            {"cluster": {"chief": 1, "worker": 2, "ps": 1}, "tfdist": {"slots": {"worker": [[4, 4], [1, 0]]}}},
            [(2, 2), (2, 2)],
            ((0, 1), (2, 3)),
        ),
    ],
)
def test_slots_that_the_launcher_gives_count_with_a_description(environ, described, slots, groups):
    config = {"cluster": {"chief": ["e:1"], "worker": WORKERS[:2], "ps": ["p:1"]}, "task": {"type": "chief", "index": 0}}
    environ({"TF_CONFIG": json.dumps(config | {"tfdist": {"slots": {"worker": [[2, 2], [2, 2]]}}})})
    cluster = resolved(described)
    assert [(task.slots, task.gpus) for task in cluster.job("worker")] == slots and cluster.worker_groups == groups
    together = {"cluster": described.get("cluster", described), "tfdist": {"worker_groups": [[0, 1]]}}
    with pytest.raises(ClusterError, match="this puts the slots of its worker tasks into groups, and TF_CONFIG gives them"):
        resolved(together)
    extension = {"slots": {"worker": [[2, 2], [2, 2]], "ps": [[2, 0]]}, "worker_groups": [[0, 1, 2, 3]]}
    environ({"TF_CONFIG": json.dumps(config | {"tfdist": extension})})
    assert resolved(together).worker_groups == ((0, 1, 2, 3),)
    environ({"TF_CONFIG": json.dumps(config)})  # A scheduler says nothing of them.
    assert [(task.slots, task.gpus) for task in resolved(described).tasks] == [
        (task.slots, task.gpus) for task in tfdist.read(described).tasks
    ]


def test_slots_that_the_launcher_gives_the_workers_leave_groups_of_servers_alone(environ):
    hogwild = "cluster { nworker_groups: 2 nserver_groups: 2 }"
    config = {"cluster": {"chief": ["e:1"], "worker": WORKERS[:2], "ps": ["p:1", "q:1"]}, "task": {"type": "chief", "index": 0}}
    extension = {"slots": {"worker": [[2, 0], [2, 0]]}, "server_groups": [[0], [1]]}  # tfdist run --partition_devices 2
    environ({"TF_CONFIG": json.dumps(config | {"tfdist": extension})})
    cluster = resolved(hogwild)
    assert (cluster.worker_groups, cluster.server_groups) == (((0, 1), (2, 3)), ((0,), (1,)))


def test_the_launchers_job_dir_counts_with_a_description(environ):
    config = {"cluster": {"chief": ["e:1"]}, "task": {"type": "chief", "index": 0}}
    described = {"scaleTier": "BASIC", "jobDir": "described"}
    environ({"TF_CONFIG": json.dumps(config)})
    assert resolved(described).job_dir == "described"
    environ({"TF_CONFIG": json.dumps(config | {"tfdist": {"job_dir": "given"}})})  # tfdist run --job_dir given
    assert resolved(described).job_dir == "given"
    assert resolved(dataclasses.replace(resolved(), job_dir="changed")).job_dir == "changed"  # A flag of the program.


def test_groups_that_the_launcher_gives_count_with_a_description_that_gives_none(environ):
    config = {"cluster": {"worker": WORKERS, "ps": ["p:1", "q:1"]}, "task": {"type": "worker", "index": 0}}
    extension = {"worker_groups": [[0, 2], [1, 3]], "server_groups": [[0], [1]], "share_memory": False, "sync_period": 8}
    environ({"TF_CONFIG": json.dumps(config | {"tfdist": extension})})
    assert resolved({"worker": 4, "ps": 2}) == resolved() and len(resolved().server_groups) == 2
    own = "cluster { nworkers_per_group: 4 nservers_per_group: 2 server_worker_separate: true }"
    assert (resolved(own).worker_groups, resolved(own).server_groups) == (((0, 1, 2, 3),), ((0, 1),))
    # So do the slots of the ps in them. One group of servers would be parameter_server.
    extension |= {"slots": {"ps": [[2, 0], [2, 0]]}, "server_groups": [[0, 1], [2, 3]]}
    environ({"TF_CONFIG": json.dumps(config | {"tfdist": extension})})
    assert resolved({"worker": 4, "ps": 2}) == resolved() and len(resolved().server_groups) == 2


def test_an_evaluator_is_assigned_to_a_process(environ):
    environ(slurm(3))
    cluster = resolved({"worker": 3, "evaluator": 1})
    assert cluster.task == ("evaluator", 0)
    assert cluster.find("evaluator", 0).address == "n2:8889"


def test_a_description_with_hosts_takes_only_the_rank_from_the_environment(environ):
    environ(mpi(2))
    cluster = resolved("mpirun -np 4 -H a:2,b:2 python train.py")
    assert cluster.task == ("worker", 2)
    assert [task.host for task in cluster.tasks] == ["a", "a", "b", "b"]
    with pytest.raises(ClusterError, match="asks for 3 workers, but OMPI_COMM_WORLD_RANK describes 4 workers"):
        resolved("mpirun -np 3 -H a:2,b:2 python train.py")


def test_in_an_interactive_step_a_description_stays_as_it_is(environ):
    environ(INTERACTIVE_STEP)
    assert resolved("STANDARD_1") == tfdist.read("STANDARD_1")
    assert resolved().describe() == "1 chief"


def test_ranks_without_hosts_are_an_error_that_asks_for_hosts(environ):
    environ(mpi(2))
    assert (tfdist.rank(), tfdist.size(), tfdist.local_rank(), tfdist.local_size()) == (2, 4, 0, 2)
    for ask in (tfdist.strategy, tfdist.cross_rank):
        with pytest.raises(ClusterError, match="rank 2 of 4, but nothing says where the others are; name the hosts"):
            ask()
    with pytest.raises(ClusterError, match="describes 4 ranks without addresses; name the hosts"):
        tfdist.read()


def test_a_variable_may_hold_the_description(environ):
    environ({environment.CLUSTER_VARIABLE: "PREMIUM_1"})
    assert resolved() == tfdist.read() == tfdist.read("PREMIUM_1")
    environ(slurm(1), {environment.CLUSTER_VARIABLE: '{"cluster": {"chief": 1, "worker": 3}}'})
    assert resolved().task == ("worker", 0)
    # The description in the program overrides it.
    assert resolved({"worker": 4}).task == ("worker", 1)


def test_a_wait_without_an_end_is_one_that_timers_take(environ, monkeypatch):
    environ()
    waits = []
    monkeypatch.setattr(create_strategy, "_create", lambda cluster, choice, timeout: waits.append(timeout))
    for start_timeout in (math.inf, 1e30, 7.5):
        create_strategy.strategy({"worker": 1}, start_timeout=start_timeout)
    monkeypatch.setattr(create_strategy, "rendezvous", lambda rank_info, timeout: waits.append(timeout) or rank_info.outline())
    create_strategy.strategy("torchrun --nnodes 2 --master-addr a train.py", rendezvous_timeout=math.inf)
    assert waits[2] == 7.5 and all(0 < wait < threading.TIMEOUT_MAX for wait in waits)


def test_tasks_wait_as_long_as_their_launcher(environ, monkeypatch):
    waits = []
    monkeypatch.setattr(create_strategy, "_create", lambda cluster, choice, timeout: waits.append(timeout))
    program = flags.FlagValues()
    tfdist.define_flags(program)
    program(["train.py"])
    for value in ("", "20", "900.0", "none", "nan"):
        environ({create_strategy.START_VARIABLE: value})
        create_strategy.strategy({"worker": 1})
        create_strategy.strategy(program)
    assert waits == [300, 300, 300, 300, 900, 900, 300, 300, 300, 300]
    environ({create_strategy.START_VARIABLE: "900"})
    create_strategy.strategy({"worker": 1}, start_timeout=5.0)
    program.start_timeout = 6.0
    create_strategy.strategy(program)
    assert waits[-2:] == [5, 6]


def test_task_counts_are_a_description_but_no_tf_config():
    with pytest.raises(ClusterError, match="2 is not a list"):
        from_environ({"TF_CONFIG": '{"cluster": {"worker": 2}}'})
    with pytest.raises(ClusterError, match="2 is not a list"):
        tfdist.read({"worker": 2, "ps": ["a:1"]})
    cluster = tfdist.read({"worker": 2, "ps": 1})
    assert isinstance(cluster, Cluster)
    assert all(task.host is task.port is None for task in cluster.tasks)
    for bad in ({"worker": -1}, {"worker": 10**6}, {"worker": True}, {"worker": 0}):
        with pytest.raises(ClusterError):
            tfdist.read(bad)
