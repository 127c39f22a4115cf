"""Starts a real Slurm on this machine: one controller and three nodes, with all files in a temporary folder."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reserved import free_ports

_CONFIG = """
ClusterName=tfdist
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=8
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=8
NodeName=localhost NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[3]} CPUs=8
PartitionName=all Nodes=ALL Default=YES State=UP
"""


@contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """Starts Slurm, and ends it at the end of the block; returns the environment for its commands."""
    (folder / "state").mkdir()
    config = folder / "slurm.conf"
    config.write_text(_CONFIG.format(host=socket.gethostname().partition(".")[0], ports=free_ports(4), folder=folder))
    dropped = ("TF_CONFIG", "TFDIST_CLUSTER")
    environ = {name: value for name, value in os.environ.items() if name not in dropped} | {"SLURM_CONF": str(config)}
    commands = [["slurmctld", "-D", "-i"], *(["slurmd", "-D", "-N", node] for node in ("n1", "n2", "localhost"))]
    processes = []
    try:
        for number, command in enumerate(commands):
            with open(folder / f"output-{number}", "wb") as output:
                processes.append(subprocess.Popen(command, env=environ, stdout=output, stderr=output, stdin=subprocess.DEVNULL))
        deadline = time.monotonic() + 120
        while _idle_nodes(environ) < 3:
            assert time.monotonic() < deadline, (folder / "slurmctld.log").read_text()[-2000:]
            time.sleep(0.2)
        yield environ
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


def _idle_nodes(environ: dict[str, str]) -> int:
    result = subprocess.run(["sinfo", "-h", "-N", "-o", "%t"], env=environ, capture_output=True, text=True, timeout=60)
    return result.stdout.split().count("idle")
