"""Versions of TensorFlow and Keras that tfdist does not work with, and newer ones than it has been tested with."""

import os
import sys

import pytest

import tfdist
from tfdist.errors import UnsupportedVersionError
from tfdist.launch.backends.local.run_program import execute
from tfdist.launch.jobs.job import Program
from tfdist.strategies import keras_backend, versions

pytestmark = pytest.mark.slow


@pytest.fixture
def pretend(tmp_path):
    """Returns a function that makes an installed package look like another version; returns a folder for PYTHONPATH."""

    def make(empty=False, **packages):
        folder = tmp_path / "pretended"
        for package, version in packages.items():
            information = folder / f"{package}-{version}.dist-info"
            information.mkdir(parents=True)
            (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
            if empty:
                (folder / package).mkdir()
                (folder / package / "__init__.py").touch()
        return str(folder)

    return make


@pytest.fixture
def launched(start, script):
    """Returns a function that launches a job with a folder in PYTHONPATH; it returns the Job, which has ended."""

    def launch(folder, tier):
        program = script("import tfdist\ntfdist.strategy()\nprint('the program goes on')\n")
        job = start("-m", "tfdist.launch", "--tier", tier, program, environment={"PYTHONPATH": with_checkout(folder)})
        job.code = job.wait()
        return job

    return launch


def with_checkout(folder):
    """Returns a PYTHONPATH of `folder` and what the tests run with."""
    return os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))


@pytest.mark.parametrize(("package", "version"), [("tensorflow", "2.17.1"), ("keras", "3.9.2"), ("keras", "2.15.0")])
def test_what_is_too_old_is_refused(monkeypatch, package, version):
    monkeypatch.setitem(versions.INSTALLED, package, version)
    with pytest.raises(
        UnsupportedVersionError, match=f"^{package} {version} is too old; .*: pip install '{package}>=[^\\n]*'$"
    ):
        versions.check()


@pytest.mark.parametrize("tensorflow", ["2.18.0", "2.18.0rc1", "2.21.3", "2.22.0.dev20270101", "3.0"])
def test_what_is_not_too_old_is_not_refused(monkeypatch, tensorflow):
    monkeypatch.setitem(versions.INSTALLED, "tensorflow", tensorflow)
    versions.check()
    assert bool(versions.newer_than_tested()) == (tensorflow > "2.22")


@pytest.mark.parametrize(
    ("packages", "empty", "message"),
    [
        ({"keras": "2.15.0"}, False, "keras 2.15.0 is too old; "),
        ({"tensorflow": "2.22.0", "keras": "3.16.0"}, True, "keras 3.16.0 has no keras.src."),
    ],
)
def test_the_launcher_says_so_in_one_sentence(launched, pretend, packages, empty, message):
    job = launched(pretend(empty, **packages), "STANDARD_1")
    assert job.code == 2
    *_, last = lines = job.output.splitlines()
    assert last.startswith(f"tfdist: {message}") and last.endswith("pip install 'keras>=3.10,<3.16'")
    assert len(lines) == 3  # The cluster and its strategy, the folder of the logs.
    assert job.left(5) == {}


def test_so_does_a_forked_task(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr("sys.argv", [])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    (tmp_path / "program.py").write_text(
        "from tfdist.errors import UnsupportedVersionError\nraise UnsupportedVersionError('keras 3.16.0 has no Trainer')\n"
    )
    with pytest.raises(SystemExit) as end:
        execute(Program(script=str(tmp_path / "program.py")))
    assert end.value.code == 2
    assert capsys.readouterr().err == "tfdist: keras 3.16.0 has no Trainer\n"


@pytest.mark.cluster
def test_a_newer_version_with_all_names_trains_after_a_warning(launched, pretend):
    job = launched(pretend(tensorflow="2.99.0"), "BASIC")
    assert job.code == 0, job.output
    (warning,) = (line for line in job.output.splitlines() if "2.99.0" in line)
    assert "tensorflow 2.99.0 has all names that tfdist needs, but is newer than the versions" in warning
    assert "the program goes on" in job.output


@pytest.mark.parametrize("backend", ["torch", "jax", "tensorflow"])
def test_a_backend_that_does_not_ask_strategies_is_refused(monkeypatch, backend):
    monkeypatch.delitem(sys.modules, "keras", raising=False)  # Not imported yet: nothing but the variable says it.
    monkeypatch.setenv("KERAS_BACKEND", backend)
    keras_backend.check("default")
    if backend == "tensorflow":
        keras_backend.check("mirrored")
    else:
        with pytest.raises(UnsupportedVersionError, match=f"^Keras uses its backend {backend} .* does not ask mirrored: "):
            tfdist.strategy("cluster { nworkers_per_group: 2 nworkers_per_procs: 2 }")


def test_the_launcher_refuses_another_backend_before_anything_starts(start, script):
    program = script("print('the program runs')\n")
    job = start("-m", "tfdist.launch", "--tier", "STANDARD_1", "--env", "KERAS_BACKEND=jax", program)
    assert job.wait() == 2
    (line,) = job.output.splitlines()
    assert line.startswith("tfdist: Keras uses its backend jax ") and line.endswith("set KERAS_BACKEND to tensorflow")
