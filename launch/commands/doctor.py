"""`tfdist doctor`: prints what a bug report needs, and what is missing on this machine."""

import importlib.metadata
import importlib.util
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
from pathlib import Path

from tfdist import machine
from tfdist.cluster import DEFAULT_START_PORT
from tfdist.devices import visible
from tfdist.dialects.registry import environment_readers
from tfdist.launch.backends.local.ports import is_free
from tfdist.launch.backends.registry import backends
from tfdist.launch.background.job_folder import root
from tfdist.launch.errors import UsageError
from tfdist.version import __version__

USAGE = """usage: tfdist doctor [--quick]

Prints versions, devices, ports and tools of this machine: what a bug report needs. It shows no values of environment variables.

  --quick   do not import TensorFlow

Exit code: 0; 1 if something is missing that every job needs.
"""

IDLE_CONNECTIONS = Path("/proc/sys/net/ipv4/tcp_slow_start_after_idle")
PACKAGES = ("tensorflow", "keras", "numpy", "protobuf", "absl-py", "h5py", "PyYAML")
TENSORFLOW_SECONDS = 120.0

_DEVICES = (
    "import json, time; t = time.monotonic(); import tensorflow as tf; "
    "print(json.dumps([[d.device_type, d.name] for d in tf.config.list_physical_devices()]), time.monotonic() - t)"
)


def main(argv: list[str]) -> int:
    """Runs the command; returns its exit code."""
    if {"--help", "-h"} & set(argv):
        print(USAGE, end="")
        return 0
    if unknown := [word for word in argv if word != "--quick"]:
        raise UsageError(f"tfdist doctor: {unknown[0]!r} is not a flag of it; there is --quick")
    faults: list[str] = []
    lines = [*_versions(faults), *_machine(), *_ports(), *_idle_connections(), *_tools(), *_surroundings()]
    if "--quick" not in argv:
        lines += _tensorflow(faults)
    width = max(len(word) for word, _ in lines)
    for word, text in lines:
        print(f"{word:<{width}}  {text}", flush=True)
    for fault in faults:
        print(f"{'missing':<{width}}  {fault}")
    return 1 if faults else 0


def _versions(faults: list[str]) -> list[tuple[str, str]]:
    lines = [
        ("tfdist", f"{__version__} in {os.path.dirname(os.path.realpath(machine.__file__))}"),
        ("python", f"{platform.python_version()} in {sys.executable}"),
        ("system", f"{platform.platform()}"),
    ]
    for name in PACKAGES:
        try:
            lines.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            lines.append((name, "not installed"))
            faults.append(f"{name}: pip install {name}")
    return lines


def _machine() -> list[tuple[str, str]]:
    installed = machine.installed()
    gpus = visible(installed, os.environ)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    return [
        ("machine", f"{machine.cores()} cores, {memory:.1f} GB of memory"),
        ("GPUs", f"{', '.join(gpus) or 'none'} to use, {', '.join(installed.gpus) or 'none'} installed"),
        ("limits", f"{files} open files, {'any number of' if processes < 0 else processes} processes"),
    ]


def _ports() -> list[tuple[str, str]]:
    taken = [port for port in range(DEFAULT_START_PORT, DEFAULT_START_PORT + 16) if not is_free(port)]
    which = f"taken: {', '.join(map(str, taken))}; others are used instead" if taken else "free"
    return [("ports", f"{DEFAULT_START_PORT} to {DEFAULT_START_PORT + 15} {which}")]


def _idle_connections() -> list[tuple[str, str]]:
    """Says what Linux does with connections that were idle, because steps of `parameter_server` leave them so."""
    try:
        begins_slowly = IDLE_CONNECTIONS.read_text().strip() != "0"
    except OSError:
        return []
    advice = "begin slowly; for ps on links of 100 Mbit/s or less: sysctl -w net.ipv4.tcp_slow_start_after_idle=0"
    return [("idle connections", advice if begins_slowly else "keep their rate")]


def _tools() -> list[tuple[str, str]]:
    lines = []
    for backend in backends().values():
        missing = [tool for tool in backend.tools if shutil.which(tool) is None]
        missing += [f"package {name}" for name in backend.packages if importlib.util.find_spec(name) is None]
        there = "installed, not tried" if backend.tools or backend.packages else "can be used"
        text = f"cannot be used here: no {', '.join(missing)}" if missing else there
        lines.append((f"backend {backend.name}", text))
    view = "can be shown" if importlib.util.find_spec("rich") else "cannot be shown: pip install rich"
    lines.append(("live view", view))
    found = [tool for tool in ("nvidia-smi", "sbatch", "srun", "kubectl", "mpirun", "py-spy") if shutil.which(tool)]
    lines.append(("tools", ", ".join(found) or "none of nvidia-smi, sbatch, srun, kubectl, mpirun, py-spy"))
    return lines


def _surroundings() -> list[tuple[str, str]]:
    found = [
        f"{variable} ({name})" for name, reader in environment_readers().items() if (variable := reader.recognizes(os.environ))
    ]
    lines = [("launcher", f"this shell has the variables of {', '.join(found)}" if found else "none started this shell")]
    lines.append(("job folders", _job_folders()))
    free = shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else None
    lines.append(("/dev/shm", "absent" if free is None else f"{free / 2**20:.0f} MB free"))
    return lines


def _job_folders() -> str:
    try:
        base = root()
    except UsageError as error:
        return str(error)
    folder = next(path for path in (base, *base.parents) if os.path.exists(path))
    can_write = os.access(folder, os.W_OK)
    return f"{base}{'' if can_write else f', but {folder} cannot be written: --detach needs TFDIST_STATE_DIR'}"


def _tensorflow(faults: list[str]) -> list[tuple[str, str]]:
    """Imports TensorFlow in a process of its own, which may crash or hang."""
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3"} | dict(os.environ)
    try:
        got = subprocess.run(
            [sys.executable, "-c", _DEVICES],
            env=environment,
            capture_output=True,
            text=True,
            timeout=TENSORFLOW_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        faults.append(f"TensorFlow: the import takes more than {TENSORFLOW_SECONDS:.0f} s")
        return []
    if got.returncode != 0:
        last = got.stderr.strip().splitlines()[-1:] or [f"it ended with {got.returncode}"]
        faults.append(f"TensorFlow cannot be imported: {last[0]}")
        return []
    devices, _, seconds = got.stdout.strip().splitlines()[-1].rpartition(" ")
    names = ", ".join(name for _, name in json.loads(devices))
    return [("TensorFlow", f"imports in {float(seconds):.1f} s and sees {names}")]
