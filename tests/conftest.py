"""Fixtures that start real commands, and end all their processes after the test."""

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import MARK, Job, end_processes
from warm import COMMANDS, WarmPython

pytest_plugins = ("tools", "rendezvous_here", "environments", "selection")

BEFORE_IMPORT = ("TF_", "PYTHON", "LD_", "MALLOC_", "OMP_", "CUDA_", "KERAS_", "XLA_")
"""Beginnings of environment variables that Python, its libraries or the C library read at their start."""

LAUNCHER = Path(__file__).parent / "launch"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the files that take longest first, so that no worker of pytest-xdist is alone with one at the end.

    Those with the longest time limits take longest, then those with the most tests of clusters. Tests of the launcher mostly wait,
    and most others compute: files of the two take turns, so that the processors are busy all the time.
    """

    weights: dict[Path, tuple[float, int]] = {}
    for item in items:
        limit, count = weights.setdefault(item.path, (0, 0))
        if item.get_closest_marker("cluster") is not None:
            mark = item.get_closest_marker("timeout")
            weights[item.path] = (max(limit, mark.args[0] if mark else 0), count + 1)
    longest_first = sorted(weights, key=lambda path: weights[path], reverse=True)
    waits = [path for path in longest_first if LAUNCHER in path.parents]
    computes = [path for path in longest_first if LAUNCHER not in path.parents]
    turns = itertools.chain.from_iterable(itertools.zip_longest(computes, waits))
    place = {path: number for number, path in enumerate(turns)}
    items.sort(key=lambda item: place[item.path])


@pytest.fixture(scope="session")
def warm_python() -> Iterator[WarmPython]:
    """Python with TensorFlow imported."""
    python = WarmPython(MARK)
    yield python
    python.close()


@pytest.fixture(scope="session")
def quick_python() -> Iterator[WarmPython]:
    """Python with what the commands of tfdist import: without TensorFlow."""
    python = WarmPython(MARK, *COMMANDS)
    yield python
    python.close()


@pytest.fixture(scope="session")
def run_python(warm_python: WarmPython) -> Callable[..., int]:
    """Runs a Python command in a folder and ends all its processes; for clusters that several tests share.

    `run_python(folder, *command, timeout=seconds, output="output.txt", environment={})` returns the exit code. What the command
    writes is added to the file `output` in the folder.

    Raises:
        subprocess.TimeoutExpired: if it takes longer than `timeout`.
    """

    def run(
        folder: Path, *command: str, timeout: float, output: str = "output.txt", environment: dict[str, str] | None = None
    ) -> int:
        mark = uuid.uuid4().hex
        variables = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
        temporary = tempfile.mkdtemp(prefix="test-")
        variables.update({MARK: mark, "PYTHONUNBUFFERED": "1", "TMPDIR": temporary}, **(environment or {}))
        with open(folder / output, "ab") as file:
            process = warm_python.start(command, str(folder), variables, file.fileno())
        try:
            return process.wait(timeout)
        finally:
            end_processes(mark)
            process.wait(60)
            shutil.rmtree(temporary, ignore_errors=True)

    return run


@pytest.fixture
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Job]]:
    """Starts a Python command in a temporary folder, with extra variables; ends all its processes after the test.

    `start(*command, environment={}, fresh=False)`: a fresh process imports all that it needs. Others are forks of one that has
    imported TensorFlow already, unless the variables have an effect on the import; those of the quick launcher are forks of one
    without it. Killed as they are after a test, they leave their temporary folders behind: these are in one that is removed. Its
    path is short, as those of sockets have to be.
    """
    jobs: list[Job] = []
    temporary = tempfile.mkdtemp(prefix="test-")

    def start_job(*command: str, environment: dict[str, str] | None = None, fresh: bool = False) -> Job:
        mark = uuid.uuid4().hex
        variables = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
        variables.update({MARK: mark, "PYTHONUNBUFFERED": "1", "TMPDIR": temporary}, **(environment or {}))
        path = tmp_path / f"output-{len(jobs)}.txt"
        with open(path, "wb") as output:
            process: Any
            if fresh or any(name.startswith(BEFORE_IMPORT) and name != "TF_CONFIG" for name in environment or ()):
                process = subprocess.Popen(
                    [sys.executable, *command],
                    cwd=tmp_path,
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            else:
                is_quick = any("quick_launcher.py" in word for word in command)
                python = request.getfixturevalue("quick_python" if is_quick else "warm_python")
                process = python.start(command, str(tmp_path), variables, output.fileno())
        jobs.append(Job(process, mark, tmp_path, path))
        return jobs[-1]

    yield start_job
    for job in jobs:
        end_processes(job.mark)
        job.process.wait(60)
    for job in jobs:
        job.left(within=5.0)
    shutil.rmtree(temporary, ignore_errors=True)


@pytest.fixture
def small_cluster(tmp_path: Path) -> str:
    """Returns the path of a CloudML config of 1 chief, 2 workers and 1 ps."""
    path = tmp_path / "small.yaml"
    path.write_text(
        "trainingInput:\n  scaleTier: CUSTOM\n  masterType: standard\n  workerType: standard\n  workerCount: 2\n"
        "  parameterServerType: standard\n  parameterServerCount: 1\n"
    )
    return str(path)


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., str]:
    """Writes a program of some parts that first writes the process id of its task into `pid-JOB-INDEX`; returns its path."""

    def write(*parts: str) -> str:
        head = """
            import json, os, pathlib
            me = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {})
            pathlib.Path(f"pid-{me.get('type')}-{me.get('index')}").write_text(str(os.getpid()))
        """
        path = tmp_path / "program.py"
        path.write_text("".join(map(textwrap.dedent, (head, *parts))))
        return str(path)

    return write


@pytest.fixture
def read_json(tmp_path: Path) -> Callable[[str], Any]:
    """Reads a JSON file in the folder of the test."""
    return lambda name: json.loads((tmp_path / name).read_text())
