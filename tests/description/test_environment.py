"""The environment: which launcher counts where several left variables."""

import json

import pytest
from environments import INTERACTIVE_STEP, mpi, slurm, tf_config_of

from tfdist.dialects import environment
from tfdist.errors import ClusterError
from tfdist.rank_info import RankInfo


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


@pytest.mark.parametrize("task", [("chief", 0), ("worker", 2), ("evaluator", 0)])
def test_an_evaluator_is_a_rank_that_tf_config_does_not_list(task):
    cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1", "d:1"]}
    config = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": task[0], "index": task[1]}})}
    rank = {"chief": 0, "worker": 3, "evaluator": 4}[task[0]]
    assert environment.find(config | mpi(rank, size=5, local_size=1)).task == task
    with pytest.raises(ClusterError, match=r"describes 4 tasks.* describes 6 tasks"):
        environment.find(config | mpi(rank, size=6, local_size=1))


def test_with_ps_only_sizes_are_compared_not_ranks():
    config = {"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}, "task": {"type": "ps", "index": 0}}
    both = {"TF_CONFIG": json.dumps(config)}
    assert environment.find(both | mpi(0)).task == ("ps", 0)
    with pytest.raises(ClusterError, match="describes 4 tasks, but OMPI"):
        environment.find(both | mpi(0, size=3, local_size=1))
