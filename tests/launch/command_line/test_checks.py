"""Which programs a command line may name."""

import os
import sys

import pytest

from tfdist.launch.command_line.checks import check_program
from tfdist.launch.errors import UsageError
from tfdist.launch.jobs.job import Program


@pytest.fixture(autouse=True)
def packages(tmp_path, monkeypatch):
    """Packages in the current folder, one of which finds its modules elsewhere."""
    files = {
        "usual/__init__.py": "raise AssertionError('the launcher runs no code of the package')",
        "usual/__main__.py": "",
        "usual/train.py": "",
        "usual/inner/__init__.py": "",
        "namespace/train.py": "",
        "moved/__init__.py": "__path__.append('elsewhere')",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("module", ["usual", "usual.__main__", "usual.train", "namespace.train", "moved.train", "json.tool"])
def test_a_module_that_python_would_run_is_accepted(module):
    check_program(Program(module=module))
    assert "usual" not in sys.modules


@pytest.mark.parametrize(
    ("module", "missing"),
    [
        ("unknown.train", "unknown"),
        ("usual.trian", "usual.trian"),
        ("usual.inner", "usual.inner.__main__"),
        ("usual.train.json", "usual.train.json"),
        ("namespace", "namespace.__main__"),
        ("usual..train", "usual."),
        ("__main__", "__main__"),
    ],
)
def test_a_module_that_is_missing_is_named(module, missing):
    with pytest.raises(UsageError, match=f"-m {module}: there is no module {missing} in "):
        check_program(Program(module=module))


def test_a_program_that_may_not_be_read_is_found_before_anything_is_started(tmp_path, monkeypatch):
    script = tmp_path / "train.py"
    script.write_text("")
    check_program(Program(str(script)))
    monkeypatch.setattr(os, "access", lambda path, mode: not (path == str(script) and mode & os.R_OK))  # Root may read all.
    with pytest.raises(UsageError, match=r"train\.py: you may not read this program"):
        check_program(Program(str(script)))
