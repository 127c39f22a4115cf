"""The variables of pods that an operator numbers: JAXJob, TrainJob with the policy `jax`, and LeaderWorkerSet.

Sources: kubeflow/training-operator v1.9 `pkg/controller.v1/jax/envvar.go`; kubeflow/trainer
`pkg/runtime/framework/plugins/jax/jax.go`; kubernetes-sigs/lws `api/leaderworkerset/v1/leaderworkerset_types.go`.

Each pod is one rank. The ranks meet at the coordinator or leader, which is rank 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tfdist.dialects.kubernetes.manifest import NAME
from tfdist.dialects.parsing.addresses import launcher_address
from tfdist.dialects.parsing.values import Values
from tfdist.errors import Source
from tfdist.rank_info import RankInfo, Store

GROUP_PORT = 29500
"""Where the pods of a LeaderWorkerSet meet, which has no variable for a port: the usual port of PyTorch."""


@dataclass(frozen=True)
class _Variables:
    """The variables of one kind of pods.

    Attributes:
        address: of rank 0.
        size: number of ranks.
        rank: of this pod.
        port: of rank 0, where `address` has none.
        usual: the port where no variable has it.
    """

    address: str
    size: str
    rank: str
    port: str = ""
    usual: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return self.address, self.size, self.rank, *([self.port] if self.port else [])


_KINDS = (
    _Variables("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"),
    _Variables("COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID", "COORDINATOR_PORT"),
    _Variables("LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX", usual=GROUP_PORT),
)


def recognizes(environ: Mapping[str, str]) -> str | None:
    """Returns the variable with the address of rank 0 if all variables of one kind of pods are set, else None."""
    return next((kind.address for kind in _KINDS if all(map(environ.get, kind.names))), None)


def from_environ(environ: Mapping[str, str]) -> RankInfo:
    """Returns the rank of this pod. Raises ClusterError for bad variables."""
    address = recognizes(environ)
    kind = next(kind for kind in _KINDS if kind.address == address)
    values = Values(Source(NAME, kind.address), environ)
    size = values.number(kind.size, least=1)
    if kind.port:
        host, port = values.host(kind.address), values.port(kind.port)
    else:
        host, port = launcher_address(values, kind.address, values.text(kind.address), kind.usual)
    return RankInfo(
        size=size,
        rank=values.number(kind.rank, most=size - 1),
        source=values.source,
        store=Store("tcp", host, port),
    )
