"""The environment of a rank of horovodrun, Open MPI or MPICH. Source: horovod/horovod v0.28.1 `common/common.h`."""

import os
import tempfile
from collections.abc import Mapping

from tfdist.dialects.horovod.hosts import NAME
from tfdist.dialects.parsing.values import Values
from tfdist.errors import Source
from tfdist.rank_info import RankInfo, Store

_SYSTEMS = (
    ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
"""Variables of rank, size, local rank and local size, in Horovod's order (horovod/common/gloo/gloo_context.cc)."""


def recognizes(environ: Mapping[str, str]) -> str | None:
    """Returns the variable of rank or size of horovodrun, Open MPI or MPICH; None if no such variable is set.

    `srun --mpi=pmi2` sets PMI_RANK too. Without MPICH's own variables it is Slurm's, which also knows the hosts.
    """
    for rank, size, local_rank, _ in _SYSTEMS:
        if rank == "PMI_RANK" and "SLURM_STEP_ID" in environ and local_rank not in environ:
            continue
        for name in (rank, size):
            if environ.get(name, "").strip():
                return name
    return None


_RUN_IDS = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "HOROVOD_GLOO_RENDEZVOUS_PORT", "PMI_PORT")
"""Variables that are equal on all ranks of a run and differ between simultaneous runs on a host."""


def from_environ(environ: Mapping[str, str]) -> RankInfo:
    """Reads rank and size. Ranks that share one host meet in its temporary folder; others have no store.

    HOROVOD_GLOO_RENDEZVOUS_ADDR does not help: Horovod's server stops as soon as its own ranks have met.

    Raises:
        ClusterError: for a missing or bad variable.
    """
    found = recognizes(environ)
    rank_name, size_name, local_rank_name, local_size_name = next(names for names in _SYSTEMS if found in names[:2])
    source = Source(NAME, rank_name)
    for name, other in ((rank_name, size_name), (size_name, rank_name)):
        if not environ.get(name, "").strip():
            raise Source(NAME, name).error(f"it is not set, but {other} is; a launcher sets both (Horovod, too, wants both)")
    values = Values(source, environ)
    size = values.number(size_name, least=1)
    rank = values.number(rank_name, most=size - 1)
    local_rank = local_size = None
    if local_rank_name in environ and local_size_name in environ:
        local_size = values.number(local_size_name, least=1, most=size)
        local_rank = values.number(local_rank_name, most=local_size - 1)
    if local_size != size:
        return RankInfo(size, rank, source, local_rank=local_rank, local_size=local_size)
    run = next((f"{name}-{environ[name]}" for name in _RUN_IDS if environ.get(name)), "")
    store, run_id = Store("file", path=tempfile.gettempdir()), f"mpi-{os.getuid()}-{run[:100]}"
    return RankInfo(size, rank, source, store, run_id, local_rank=local_rank, local_size=local_size, host="localhost")
