"""The environment: which launcher counts where several left variables, and how it merges with the program's description."""

import dataclasses
import json
import math
import threading

import pytest
from absl import flags

import tfdist
from tfdist import create_strategy, process_cluster
from tfdist.cluster import Cluster
from tfdist.dialects import environment
from tfdist.dialects.tf_config.environment import from_environ
from tfdist.errors import ClusterError
from tfdist.rank_info import RankInfo
from tfdist.synchronization import Synchronization

WORKERS = ["a:1", "b:1", "c:1", "d:1"]


def tf_config_of(index, workers=4):
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": WORKERS[:workers]}, "task": {"type": "worker", "index": index}})}


def mpi(rank, size=4, local_size=2):
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    values = (rank, size, rank % local_size, local_size)
    return {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in zip(names, values, strict=True)}


def slurm(rank, size=4, nodes="n1,n2", counts="2(x2)"):
    return {
        "SLURM_JOB_ID": "0",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_TASKS_PER_NODE": counts,
        "SLURM_PROCID": str(rank),
    }


def torchrun(rank, size=4, local_size=2):
    values = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank % local_size, "LOCAL_WORLD_SIZE": local_size}
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"}
    return {name: str(value) for name, value in values.items()} | {"MASTER_ADDR": "n1", "MASTER_PORT": "29400"} | agent


def paddle(rank, trainers=4):
    hosts = ",".join(f"n{index // 2}:{6170 + index % 2}" for index in range(trainers))
    return {"PADDLE_TRAINER_ENDPOINTS": hosts, "PADDLE_TRAINERS_NUM": str(trainers), "PADDLE_TRAINER_ID": str(rank)}


PADDLE_PS = {
    "PADDLE_PSERVERS_IP_PORT_LIST": "n0:6170,n1:6170",
    "PADDLE_TRAINER_ENDPOINTS": "n0:6171,n1:6171",
    "TRAINING_ROLE": "TRAINER",
    "PADDLE_TRAINER_ID": "1",
}

VERTEX_POOLS = {"workerpool0": ["cmle-0:2222"], "workerpool1": ["cmle-1:2222", "cmle-2:2222"]}
VERTEX_SPEC = {
    "CLUSTER_SPEC": json.dumps({"cluster": VERTEX_POOLS, "environment": "cloud", "task": {"type": "workerpool1", "index": 1}})
}
VERTEX_CONFIG = {"chief": ["cmle-0:2222"], "worker": ["cmle-1:2222", "cmle-2:2222"]}
VERTEX = VERTEX_SPEC | {
    "TF_CONFIG": json.dumps({"cluster": VERTEX_CONFIG, "environment": "cloud", "task": {"type": "worker", "index": 1}})
}

SAGEMAKER = {"SM_HOSTS": '["algo-1", "algo-2", "algo-3"]', "SM_CURRENT_HOST": "algo-3", "SM_NUM_GPUS": "0"}
SAGEMAKER_CONFIG = {
    "TF_CONFIG": json.dumps(
        {
            "cluster": {"master": ["algo-1:2222"], "worker": ["algo-2:2222", "algo-3:2222"], "ps": ["algo-1:2223"]},
            "environment": "cloud",
            "task": {"type": "worker", "index": 1},
        }
    )
}

TFJOB = {
    "TF_CONFIG": json.dumps(
        {
            "cluster": {
                "chief": ["mnist-chief-0.kubeflow.svc:2222"],
                "ps": ["mnist-ps-0.kubeflow.svc:2222"],
                "worker": ["mnist-worker-0.kubeflow.svc:2222", "mnist-worker-1.kubeflow.svc:2222"],
            },
            "task": {"type": "worker", "index": 1},
            "environment": "cloud",
        }
    ),
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
}

TRAINER_POD = {
    **{"PET_NNODES": "4", "PET_NODE_RANK": "2", "PET_NPROC_PER_NODE": "2"},
    **{"PET_MASTER_ADDR": "job-node-0-0.job", "PET_MASTER_PORT": "29400", "KUBERNETES_SERVICE_HOST": "10.0.0.1"},
}

SHELL_OF_SBATCH = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_NODELIST": "n[1-2]"}
INTERACTIVE_STEP = slurm(0, size=1, nodes="n1", counts="1")


@pytest.fixture
def environ(monkeypatch):
    """Gives this process these variables, and none of another launcher."""
    for name in ("TF_CONFIG", environment.CLUSTER_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(process_cluster, "_strategy_clusters", [])

    def become(*parts):
        for part in parts:
            for name, value in part.items():
                monkeypatch.setenv(name, value)

    return become


def test_an_empty_environment_describes_nothing():
    assert environment.find({}) is None
    assert environment.find({"TF_CONFIG": " "}) is None
    assert environment.find({"TF_CONFIG": "{}"}) is None


@pytest.mark.parametrize(
    ("parts", "dialect", "rank"),
    [
        ([tf_config_of(2)], "tf_config", 2),
        ([slurm(3)], "slurm", 3),
        ([mpi(1)], "horovod", 1),
        # Two launchers that agree: TF_CONFIG has the addresses.
        ([tf_config_of(1), mpi(1)], "tf_config", 1),
        # The launcher inside an allocation counts, whatever the variables of the allocation's step say.
        ([mpi(3), slurm(1, size=2, counts="1(x2)")], "horovod", 3),
        ([tf_config_of(2), slurm(0, size=2, counts="1(x2)")], "tf_config", 2),
        ([mpi(3), SHELL_OF_SBATCH], "horovod", 3),
        # srun --mpi=pmi2 is Slurm, MPICH's own mpiexec is not.
        ([{"PMI_RANK": "3", "PMI_SIZE": "4"}, slurm(3)], "slurm", 3),
        ([{"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, slurm(0)], "horovod", 1),
        ([torchrun(3), slurm(1, size=2, counts="1(x2)")], "pytorch", 3),
        ([torchrun(1), SHELL_OF_SBATCH], "pytorch", 1),
        # A master without a rank, exported by a job script or left in its shell by `torchrun`, describes nothing.
        ([{"MASTER_ADDR": "n1", "MASTER_PORT": "29400"}, slurm(2)], "slurm", 2),
        ([{"MASTER_ADDR": "n1", "MASTER_PORT": "29400"}, mpi(2)], "horovod", 2),
        # Nor does one with WORLD_SIZE: the programs of such scripts take the rank from srun or mpirun.
        ([{"MASTER_ADDR": "n1", "MASTER_PORT": "29400", "WORLD_SIZE": "4"}, slurm(2)], "slurm", 2),
        ([{"MASTER_ADDR": "n1", "MASTER_PORT": "29400", "WORLD_SIZE": "4"}, mpi(2)], "horovod", 2),
        ([{"MASTER_ADDR": "n1", "WORLD_SIZE": "4"}, slurm(3), {"PMI_RANK": "3", "PMI_SIZE": "4"}], "slurm", 3),
        # torchrun's options for all nodes, in a pod of Kubeflow's Trainer.
        ([TRAINER_POD], "pytorch", 2),
        ([TRAINER_POD, tf_config_of(2)], "tf_config", 2),
        ([TRAINER_POD, torchrun(3)], "pytorch", 3),
        # A wrapper that turns mpirun's variables into PyTorch's: these have a store, mpirun's have none.
        ([torchrun(3), mpi(3)], "pytorch", 3),
        # Clouds that repeat TF_CONFIG in other variables.
        ([VERTEX], "tf_config", 1),
        ([VERTEX_SPEC], "vertex", 1),
        ([VERTEX, {"RANK": "2", "WORLD_SIZE": "3", "MASTER_ADDR": "cmle-0", "MASTER_PORT": "3333"}], "tf_config", 1),
        ([SAGEMAKER, SAGEMAKER_CONFIG], "tf_config", 1),
        ([SAGEMAKER], "sagemaker", 2),
        ([SAGEMAKER, mpi(4, size=6)], "horovod", 4),
        ([SAGEMAKER, torchrun(4, size=6)], "pytorch", 4),
        # Paddle under mpirun, which starts pservers and trainers alike.
        ([paddle(3), mpi(3)], "paddle", 3),
        ([PADDLE_PS, mpi(3)], "paddle", 1),
        # On one host mpirun's ranks could meet, too, but Paddle's variables give addresses, at least those of the pservers.
        ([PADDLE_PS, mpi(3, local_size=4)], "paddle", 1),
        ([PADDLE_PS | {"PADDLE_TRAINER_ENDPOINTS": "", "PADDLE_TRAINERS_NUM": "2"}, mpi(3, local_size=4)], "paddle", 1),
        ([TFJOB, SHELL_OF_SBATCH], "tf_config", 1),
        ([TFJOB, INTERACTIVE_STEP], "tf_config", 1),
        # An environment of one process contradicts no other.
        ([tf_config_of(2), mpi(0, size=1, local_size=1)], "tf_config", 2),
        ([slurm(2), mpi(0, size=1, local_size=1)], "slurm", 2),
        ([mpi(2), tf_config_of(0, workers=1)], "horovod", 2),
        # Bad variables of a scheduler do not matter where a launcher runs inside.
        ([mpi(2), slurm(1) | {"SLURM_STEP_NODELIST": "]"}], "horovod", 2),
    ],
)  # fmt: skip
def test_the_inner_launcher_counts(parts, dialect, rank):
    found = environment.find({name: value for part in parts for name, value in part.items()})
    assert found.source.dialect == dialect
    assert rank == (found.rank if isinstance(found, RankInfo) else found.task[1])


@pytest.mark.parametrize("parts", [[SHELL_OF_SBATCH], [INTERACTIVE_STEP]])
def test_an_interactive_shell_of_slurm_describes_nothing(parts):
    assert environment.find({name: value for part in parts for name, value in part.items()}) is None


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            [tf_config_of(1), mpi(1, size=2)],
            "environment: TF_CONFIG (tf_config) describes 4 tasks, this one as number 1, but "
            "OMPI_COMM_WORLD_RANK (horovod) describes 2 tasks, this one as number 1; "
            "unset the variables of the one that does not belong to this run",
        ),
        (
            [tf_config_of(1), {"HOROVOD_RANK": "2", "HOROVOD_SIZE": "4"}],
            "environment: TF_CONFIG (tf_config) describes 4 tasks, this one as number 1, but "
            "HOROVOD_RANK (horovod) describes 4 tasks, this one as number 2; "
            "unset the variables of the one that does not belong to this run",
        ),
        (
            [tf_config_of(1), torchrun(2)],
            "environment: TF_CONFIG (tf_config) describes 4 tasks, this one as number 1, but "
            "MASTER_ADDR (pytorch) describes 4 tasks, this one as number 2; "
            "unset the variables of the one that does not belong to this run",
        ),
        (
            [mpi(1), torchrun(1, size=2), slurm(0)],
            "environment: MASTER_ADDR (pytorch) describes 2 tasks, this one as number 1, but "
            "OMPI_COMM_WORLD_RANK (horovod) describes 4 tasks, this one as number 1; "
            "unset the variables of the one that does not belong to this run",
        ),
        (
            [PADDLE_PS, mpi(1, size=2)],
            "environment: PADDLE_PSERVERS_IP_PORT_LIST (paddle) describes 4 tasks, but "
            "OMPI_COMM_WORLD_RANK (horovod) describes 2 tasks, this one as number 1; "
            "unset the variables of the one that does not belong to this run",
        ),
        (
            [VERTEX, {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "cmle-0", "MASTER_PORT": "3333"}],
            "environment: TF_CONFIG (tf_config) describes 3 tasks, this one as number 2, but "
            "MASTER_ADDR (pytorch) describes 3 tasks, this one as number 1; "
            "unset the variables of the one that does not belong to this run",
        ),
        (
            [SAGEMAKER, SAGEMAKER_CONFIG, mpi(0, size=3, local_size=1)],
            "environment: TF_CONFIG (tf_config) describes 4 tasks, but "
            "OMPI_COMM_WORLD_RANK (horovod) describes 3 tasks, this one as number 0; "
            "unset the variables of the one that does not belong to this run",
        ),
        (
            [TFJOB, paddle(1, trainers=2), SHELL_OF_SBATCH],
            "environment: TF_CONFIG (tf_config) describes 4 tasks, but "
            "PADDLE_TRAINER_ENDPOINTS (paddle) describes 2 tasks, this one as number 1; "
            "unset the variables of the one that does not belong to this run",
        ),
    ],
)
def test_launchers_that_contradict_each_other_are_named(parts, message):
    with pytest.raises(ClusterError) as caught:
        environment.find({name: value for part in parts for name, value in part.items()})
    assert str(caught.value) == message


def test_with_ps_only_sizes_are_compared_not_ranks():
    config = {"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}, "task": {"type": "ps", "index": 0}}
    both = {"TF_CONFIG": json.dumps(config)}
    assert environment.find(both | mpi(0)).task == ("ps", 0)
    with pytest.raises(ClusterError, match="describes 4 tasks, but OMPI"):
        environment.find(both | mpi(0, size=3, local_size=1))


# The environment and a description.


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
    with pytest.raises(ClusterError, match="the program asks for 1 chief, 4 workers, 3 ps, but TF_CONFIG describes 2 workers"):
        resolved()
    environ({environment.STARTED_VARIABLE: "1"})
    assert resolved() == tfdist.read() == tfdist.read(config) and resolved().task == ("worker", 1)


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
    with pytest.raises(
        ClusterError, match="the program puts the slots of its worker tasks into groups, and TF_CONFIG gives them"
    ):
        resolved(together)
    extension = {"slots": {"worker": [[2, 2], [2, 2]], "ps": [[2, 0]]}, "worker_groups": [[0, 1, 2, 3]]}
    environ({"TF_CONFIG": json.dumps(config | {"tfdist": extension})})
    assert resolved(together).worker_groups == ((0, 1, 2, 3),)
    environ({"TF_CONFIG": json.dumps(config)})  # A scheduler says nothing of them.
    assert [(task.slots, task.gpus) for task in resolved(described).tasks] == [
        (task.slots, task.gpus) for task in tfdist.read(described).tasks
    ]


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
