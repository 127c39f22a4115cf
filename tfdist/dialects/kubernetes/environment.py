"""The variables of pods that an operator numbers: JAXJob, TrainJob with the policy `jax`, and LeaderWorkerSet.

Sources: kubeflow/training-operator v1.9 `pkg/controller.v1/jax/envvar.go`; kubeflow/trainer
`pkg/runtime/framework/plugins/jax/jax.go`; kubernetes-sigs/lws `api/leaderworkerset/v1/leaderworkerset_types.go`.

Each pod is one rank. The ranks meet at the coordinator or leader, which is rank 0.
"""

from collections.abc import Mapping

from tfdist.dialects.kubernetes.manifest import NAME
from tfdist.dialects.parsing.addresses import launcher_address
from tfdist.dialects.parsing.values import Values
from tfdist.errors import Source
from tfdist.rank_info import RankInfo, Store

GROUP_PORT = 29500
"""Where the pods of a LeaderWorkerSet meet, which has no variable for a port: the usual port of PyTorch."""


_KINDS = (
    ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"),
    ("COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID", "COORDINATOR_PORT"),
    ("LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX"),
)
"""The variables of each kind of pods: address of rank 0, number of ranks, rank of this pod, port where the address has none."""


def recognizes(environ: Mapping[str, str]) -> str | None:
    """Returns the variable with the address of rank 0 if all variables of one kind of pods are set, else None."""
    return next((kind[0] for kind in _KINDS if all(map(environ.get, kind))), None)


def from_environ(environ: Mapping[str, str]) -> RankInfo:
    """Returns the rank of this pod. Raises ClusterError for bad variables."""
    address, count, number, *own_port = next(kind for kind in _KINDS if kind[0] == recognizes(environ))
    values = Values(Source(NAME, address), environ)
    size = values.number(count, least=1)
    if own_port:
        host, port = values.host(address), values.port(own_port[0])
    else:
        usual = GROUP_PORT if address.startswith("LWS") else None
        host, port = launcher_address(values, address, values.text(address), usual)
    return RankInfo(size=size, rank=values.number(number, most=size - 1), source=values.source, store=Store("tcp", host, port))
