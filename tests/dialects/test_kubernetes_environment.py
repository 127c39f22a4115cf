"""The variables of pods: JAXJob, TrainJob with the policy jax, LeaderWorkerSet."""

import pytest

from tfdist.dialects import environment
from tfdist.errors import ClusterError
from tfdist.rank_info import RankInfo, Store

JAX_JOB = {"COORDINATOR_ADDRESS": "j-worker-0", "COORDINATOR_PORT": "6666", "NUM_PROCESSES": "3", "PROCESS_ID": "2"}
TRAIN_JOB = {"JAX_COORDINATOR_ADDRESS": "j-node-0-0.j:6666", "JAX_NUM_PROCESSES": "3", "JAX_PROCESS_ID": "2"}
GROUP = {"LWS_LEADER_ADDRESS": "j-0.j.ml", "LWS_GROUP_SIZE": "3", "LWS_WORKER_INDEX": "2"}
TF_CONFIG = '{"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": "worker", "index": 0}}'


@pytest.mark.parametrize(
    ("variables", "host", "port"),
    [(JAX_JOB, "j-worker-0", 6666), (TRAIN_JOB, "j-node-0-0.j", 6666), (GROUP, "j-0.j.ml", 29500)],
)
def test_each_pod_is_a_rank(variables: dict[str, str], host: str, port: int) -> None:
    found = environment.find(variables)
    assert isinstance(found, RankInfo)
    assert (found.size, found.rank, found.store) == (3, 2, Store("tcp", host, port))
    alone = variables | {name: "1" for name in ("NUM_PROCESSES", "JAX_NUM_PROCESSES", "LWS_GROUP_SIZE") if name in variables}
    alone |= {name: "0" for name in ("PROCESS_ID", "JAX_PROCESS_ID", "LWS_WORKER_INDEX") if name in variables}
    assert environment.find(alone) is None
    for name in variables:  # Names such as PROCESS_ID are those of many programs.
        assert environment.find({key: value for key, value in variables.items() if key != name}) is None


def test_a_launcher_inside_a_pod_counts() -> None:
    found = environment.find(JAX_JOB | {"TF_CONFIG": TF_CONFIG})
    assert not isinstance(found, RankInfo) and found is not None and found.describe() == "1 chief, 1 worker"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (JAX_JOB | {"PROCESS_ID": "3"}, "PROCESS_ID: '3' is not right; expected a whole number from 0 to 2"),
        (JAX_JOB | {"COORDINATOR_PORT": "0"}, "COORDINATOR_PORT: '0' is not right"),
        (TRAIN_JOB | {"JAX_COORDINATOR_ADDRESS": "j"}, "JAX_COORDINATOR_ADDRESS: 'j' is not an address; expected host:port"),
        (GROUP | {"LWS_GROUP_SIZE": "x"}, "LWS_GROUP_SIZE: 'x' is not right"),
    ],
)
def test_bad_variables(change: dict[str, str], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        environment.find(change)
