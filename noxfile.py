"""Sessions of nox: the package with other versions of Python, TensorFlow and Keras.

    nox                               # all combinations of tests/matrix/combinations.py, then the table in BUILD.md
    nox -t short                      # the oldest of all
    nox -s "matrix(3.12-2.19-3.13)"   # one: Python, TensorFlow, Keras
    nox -s table                      # the results that are there
    nox -s audit                      # what tfdist depends on, against the databases of known vulnerabilities

Each combination gets an environment of its own in .nox/, of about 2 GB; `-R` uses those of the run before. nox skips a Python
that it does not find in PATH or pyenv; `--error-on-missing-interpreters` makes that a failure.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nox

sys.path.insert(0, str(Path(__file__).parent / "tests"))

from matrix.combinations import COMBINATIONS, RESULTS, TESTS, Combination

nox.needs_version = ">=2025.2"
if shutil.which("pyenv"):  # Its `python3.10` runs only if this variable, or a file, selects a 3.10.
    pyenv = subprocess.run(["pyenv", "versions", "--bare"], capture_output=True, text=True, check=True)
    os.environ.setdefault("PYENV_VERSION", ":".join(pyenv.stdout.split()))
PARAMETERS = [nox.param(each.python, each, id=each.name, tags=["short"] if each.short else []) for each in COMBINATIONS]


@nox.session
@nox.parametrize("python,combination", PARAMETERS)
def matrix(session: nox.Session, combination: Combination) -> None:
    """Installs the package with a combination of versions, runs the tests for it and writes down the result."""
    folder = Path(session.create_tmp())
    constraints, report = folder / "constraints.txt", folder / "report"
    constraints.write_text(combination.constraints(), encoding="utf-8")
    (result := session.cache_dir / f"{combination.name}.json").unlink(missing_ok=True)
    report.unlink(missing_ok=True)
    if combination.refused:
        session.install("--constraint", str(constraints), "tensorflow", "keras", "absl-py", "protobuf", "PyYAML")
        session.install("--no-deps", "--ignore-requires-python", "--editable", ".")
        program = folder / "program.py"
        program.write_text("import tfdist\n\ntfdist.strategy()\n", encoding="utf-8")
        launch = ("python", "-m", "tfdist.launch", "--log_dir", str(folder / "logs"), "--tier", "STANDARD_1", str(program))
        with report.open("w", encoding="utf-8") as output:
            session.run(*launch, stdout=output, stderr=subprocess.STDOUT, success_codes=[2])
    else:
        session.install("--constraint", str(constraints), "--editable", ".[test]")
        one = ("--numprocesses", "0")  # Each of several would import TensorFlow, twice.
        session.run("python", "-m", "pytest", *one, f"--junitxml={report}", *TESTS, *session.posargs, success_codes=[0, 1])
    session.run("python", "tests/matrix/record.py", combination.name, str(report), str(result))


@nox.session(venv_backend="none")
def table(session: nox.Session) -> None:
    """Stores the results and writes the table of them into BUILD.md."""
    RESULTS.mkdir(exist_ok=True)
    for combination in COMBINATIONS:
        if (result := session.cache_dir / f"{combination.name}.json").exists():
            shutil.copy(result, combination.result)
    session.run(sys.executable, "tests/matrix/table.py")


@nox.session(default=False)
def audit(session: nox.Session) -> None:
    """Asks the Python Packaging Advisory Database, by PyPI, and OSV about the dependencies. Needs the internet."""
    session.install(".[ray,kubernetes,redis]", "pip-audit")
    session.run("pip-audit", "--local", "--vulnerability-service", "osv", "--aliases")
