"""Which environment counts where several are there, and what goes together with a description in the program."""

import json

import pytest

import tfdist
from tfdist import roles
from tfdist.cluster import Cluster
from tfdist.dialects import environment, tf_config
from tfdist.errors import ClusterError
from tfdist.membership import Membership

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


SHELL_OF_SBATCH = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_NODELIST": "n[1-2]"}
INTERACTIVE_STEP = slurm(0, size=1, nodes="n1", counts="1")


@pytest.fixture
def environ(monkeypatch):
    """Makes this process one with these variables, and no other launcher's."""
    for name in ("TF_CONFIG", environment.CLUSTER_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(roles, "_described", [])

    def become(*parts):
        for part in parts:
            for name, value in part.items():
                monkeypatch.setenv(name, value)

    return become


def test_nothing_describes_nothing():
    assert environment.find({}) is None
    assert environment.find({"TF_CONFIG": " "}) is None
    assert environment.find({"TF_CONFIG": "{}"}) is None


@pytest.mark.parametrize(
    ("parts", "dialect", "rank"),
    [
        ([tf_config_of(2)], "tf_config", 2),
        ([slurm(3)], "slurm", 3),
        ([mpi(1)], "horovod", 1),
        # Launchers agree: TF_CONFIG has the addresses.
        ([tf_config_of(1), mpi(1)], "tf_config", 1),
        # What runs inside of an allocation counts, whatever the step of its daemons says.
        ([mpi(3), slurm(1, size=2, counts="1(x2)")], "horovod", 3),
        ([tf_config_of(2), slurm(0, size=2, counts="1(x2)")], "tf_config", 2),
        ([mpi(3), SHELL_OF_SBATCH], "horovod", 3),
        # srun --mpi=pmi2 is Slurm, MPICH's own mpiexec is not.
        ([{"PMI_RANK": "3", "PMI_SIZE": "4"}, slurm(3)], "slurm", 3),
        ([{"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, slurm(0)], "horovod", 1),
        # One process alone counts against nothing.
        ([tf_config_of(2), mpi(0, size=1, local_size=1)], "tf_config", 2),
        ([slurm(2), mpi(0, size=1, local_size=1)], "slurm", 2),
        ([mpi(2), tf_config_of(0, workers=1)], "horovod", 2),
        # What is wrong with a scheduler's variables is no matter where a launcher runs inside.
        ([mpi(2), slurm(1) | {"SLURM_STEP_NODELIST": "]"}], "horovod", 2),
    ],
)  # fmt: skip
def test_the_inner_launcher_counts(parts, dialect, rank):
    found = environment.find({name: value for part in parts for name, value in part.items()})
    assert found.source.dialect == dialect
    assert rank == (found.rank if isinstance(found, Membership) else found.task[1])


@pytest.mark.parametrize("parts", [[SHELL_OF_SBATCH], [INTERACTIVE_STEP]])
def test_a_shell_of_slurm_is_no_task_of_a_cluster(parts):
    assert environment.find({name: value for part in parts for name, value in part.items()}) is None


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            [tf_config_of(1), mpi(1, size=2)],
            "environment: TF_CONFIG (tf_config) says that there are 4 tasks, of which this is number 1, but "
            "OMPI_COMM_WORLD_RANK (horovod) says that there are 2 tasks, of which this is number 1; "
            "unset the variables of the one that does not belong to this run",
        ),
        (
            [tf_config_of(1), {"HOROVOD_RANK": "2", "HOROVOD_SIZE": "4"}],
            "environment: TF_CONFIG (tf_config) says that there are 4 tasks, of which this is number 1, but "
            "HOROVOD_RANK (horovod) says that there are 4 tasks, of which this is number 2; "
            "unset the variables of the one that does not belong to this run",
        ),
    ],
)
def test_launchers_that_contradict_each_other_are_named(parts, message):
    with pytest.raises(ClusterError) as caught:
        environment.find({name: value for part in parts for name, value in part.items()})
    assert str(caught.value) == message


def test_with_ps_sizes_are_compared_and_ranks_are_not():
    config = {"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}, "task": {"type": "ps", "index": 0}}
    both = {"TF_CONFIG": json.dumps(config)}
    assert environment.find(both | mpi(0)).task == ("ps", 0)
    with pytest.raises(ClusterError, match="says that there are 4 tasks, but OMPI"):
        environment.find(both | mpi(0, size=3, local_size=1))


# Together with a description.


def here(cfg=None):
    return roles._this_cluster(cfg, Membership.outline)


def test_a_description_deals_jobs_out_to_the_tasks_of_a_step(environ):
    environ(slurm(3))
    cluster = here({"chief": 1, "worker": 2, "ps": 1})
    assert [(task.name, task.address) for task in cluster.tasks] == [
        ("chief:0", "n1:8888"),
        ("worker:0", "n1:8889"),
        ("worker:1", "n2:8888"),
        ("ps:0", "n2:8889"),
    ]
    assert cluster.task == ("ps", 0)
    # A chief that only the strategy asks for gets a place too.
    assert here({"worker": 2, "ps": 1}) == cluster
    with pytest.raises(ClusterError, match=r"asks for 1 chief, 4 workers, 3 ps, but SLURM_PROCID describes 4 workers"):
        here("STANDARD_1")


def test_an_evaluator_gets_a_place(environ):
    environ(slurm(3))
    cluster = here({"worker": 3, "evaluator": 1})
    assert cluster.task == ("evaluator", 0)
    assert cluster.find("evaluator", 0).address == "n2:8889"


def test_a_description_with_hosts_needs_only_the_rank(environ):
    environ(mpi(2))
    cluster = here("mpirun -np 4 -H a:2,b:2 python train.py")
    assert cluster.task == ("worker", 2)
    assert [task.host for task in cluster.tasks] == ["a", "a", "b", "b"]
    with pytest.raises(ClusterError, match="asks for 3 workers, but OMPI_COMM_WORLD_RANK describes 4 workers"):
        here("mpirun -np 3 -H a:2,b:2 python train.py")


def test_in_an_interactive_step_a_description_is_taken_as_it_is(environ):
    environ(INTERACTIVE_STEP)
    assert here("STANDARD_1") == tfdist.read("STANDARD_1")
    assert here().describe() == "1 chief"


def test_ranks_without_hosts_say_what_to_do(environ):
    environ(mpi(2))
    assert (tfdist.rank(), tfdist.size(), tfdist.local_rank(), tfdist.local_size()) == (2, 4, 0, 2)
    for ask in (tfdist.strategy, tfdist.cross_rank):
        with pytest.raises(ClusterError, match="rank 2 of 4, but nothing says where the others are; name the hosts"):
            ask()
    with pytest.raises(ClusterError, match="there are 4 ranks, but not where"):
        tfdist.read()


def test_the_variable_of_a_description(environ):
    environ({environment.CLUSTER_VARIABLE: "PREMIUM_1"})
    assert here() == tfdist.read() == tfdist.read("PREMIUM_1")
    environ(slurm(1), {environment.CLUSTER_VARIABLE: '{"cluster": {"chief": 1, "worker": 3}}'})
    assert here().task == ("worker", 0)
    # What the program says wins.
    assert here({"worker": 4}).task == ("worker", 1)


def test_numbers_of_tasks_are_no_tf_config():
    with pytest.raises(ClusterError, match="2 is not a list"):
        tf_config.from_environ({"TF_CONFIG": '{"cluster": {"worker": 2}}'})
    with pytest.raises(ClusterError, match="2 is not a list"):
        tfdist.read({"worker": 2, "ps": ["a:1"]})
    cluster = tfdist.read({"worker": 2, "ps": 1})
    assert isinstance(cluster, Cluster)
    assert all(task.host is task.port is None for task in cluster.tasks)
    for bad in ({"worker": -1}, {"worker": 10**6}, {"worker": True}, {"worker": 0}):
        with pytest.raises(ClusterError):
            tfdist.read(bad)
