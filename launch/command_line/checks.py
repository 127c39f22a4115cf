"""What is checked before anything is started: program and files of a command line."""

import importlib.util
import math
import os
import shlex
import sys
from collections.abc import Sequence
from importlib.abc import InspectLoader

from absl import flags

from tfdist.errors import nearest
from tfdist.extras import pip_install
from tfdist.launch import standard_streams
from tfdist.launch.command_line import splitting
from tfdist.launch.errors import UsageError
from tfdist.launch.jobs.job import Program


def check_program(program: Program) -> None:
    """Raises UsageError if there is no such script or module, it cannot be read, or the bundled example lacks its images."""
    if program.script is not None:
        if fault := program.fault:
            folder, name = os.path.split(program.script)
            known = [] if os.path.isdir(program.script) else _names_in(folder or ".")
            raise UsageError(f"{program.script}: {fault}{nearest(name, known)}")
        if not os.access(program.script, os.R_OK):
            raise UsageError(f"{program.script}: you may not read this program; change its mode, or ask its owner")
        if program.script.endswith(".ipynb"):
            raise UsageError(
                f"{program.script}: this is a notebook; run it in Jupyter, or write a script of it: jupyter nbconvert --to "
                f"script {shlex.quote(program.script)}"
            )
        return
    assert program.module is not None
    if program.module.endswith(".py") and os.path.isfile(program.module):
        # Python would import the script as the package of a module `py`, so every task would train, and then fail.
        raise UsageError(f"-m {program.module}: this is a script; name it without -m")
    sys.path.insert(0, os.getcwd())
    try:
        missing = _missing_module(program.module)
    finally:
        sys.path.pop(0)
    if missing is not None:
        raise UsageError(f"-m {program.module}: there is no module {missing} in {os.getcwd()} or among the installed packages")
    if program.module == splitting.EXAMPLE and importlib.util.find_spec("sklearn") is None:
        raise UsageError(f"the bundled example needs scikit-learn for its images: {pip_install('examples')}")


def _missing_module(name: str) -> str | None:
    """Returns the first module that `python -m NAME` would not find: NAME, a package around it, or its `__main__`; else None.

    Runs no code of packages, as `importlib.util.find_spec` would. A package that may change its `__path__` is believed.
    """
    module, parts = "", name.split(".")
    path: Sequence[str] | None = None
    while parts:
        module = f"{module}.{parts.pop(0)}".lstrip(".")
        finders = (finder for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec = next((found for finder in finders if (found := finder.find_spec(module, path)) is not None), None)
        if spec is None:
            return module
        path = spec.submodule_search_locations
        if path is None:
            return f"{module}.{parts[0]}" if parts else None
        if isinstance(spec.loader, InspectLoader) and "__path__" in (spec.loader.get_source(module) or ""):
            return None
        parts = parts or ["__main__"]
    return None


def check_folders(values: flags.FlagValues) -> None:
    """Raises UsageError for a file where tasks on this machine, or TensorBoard, would need a folder."""
    for name in ("backup_dir", "job_dir", "tensorboard"):
        path = values[name].value
        if not path or "://" in path or (values["backend"].value != "local" and name != "tensorboard"):
            continue
        there = os.path.abspath(path)
        while not os.path.lexists(there):
            there = os.path.dirname(there)
        if not os.path.isdir(there):
            what = "it" if there == os.path.abspath(path) else there
            raise UsageError(f"--{name} {path}: {what} is not a folder; name a folder")
        if name == "backup_dir" and not os.access(there, os.W_OK | os.X_OK):
            raise UsageError(f"--{name} {path}: {there} cannot be written; name another folder")


def _names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # There is none, or it cannot be read.
        return []


def check_numbers(values: flags.FlagValues) -> None:
    """Raises UsageError for a flag that is "nan": absl takes it for a number within any range."""
    for name in values:
        value = values[name].value
        if isinstance(value, float) and math.isnan(value):
            raise UsageError(f"flag --{name}={value}: expected a number")


def check_summary(path: str | None) -> None:
    """Raises UsageError for a file that cannot be written, before hours of training instead of after them.

    Removes an earlier summary, which must not be taken for that of this job.
    """
    if path is None:
        return
    folder = os.path.dirname(path) or "."
    if not path or os.path.isdir(path) or not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise UsageError(f"--summary {path}: this file cannot be written; name a file in an existing folder")
    if os.path.isfile(path) and not standard_streams.is_one(path):
        os.remove(os.path.realpath(path))  # A link to it stays.


def environment(words: list[str]) -> dict[str, str]:
    """Returns the variables of `--env`: `NAME=VALUE`, or `NAME` for the value that this process has.

    Raises:
        UsageError: if a name is none, or has no value here. The message does not show values.
    """
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or name.strip() != name or "\0" in word:
            raise UsageError("--env: expected NAME=... or NAME, which takes its value here")
        if not equals and name not in os.environ:
            raise UsageError(f"--env {name}: this variable has no value here; set it, or give --env {name}=...")
        found[name] = value if equals else os.environ[name]
    return found
