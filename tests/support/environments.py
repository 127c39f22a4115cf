"""A pytest plugin for the tests of environments: variables that launchers set, and a fixture that sets them here."""

import json

import pytest

from tfdist import process_cluster
from tfdist.dialects import environment

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
