"""Dialects of other packages: the one in docs/dialects/README.md, and bad ones, installed as pip leaves them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support_paths import CHECKOUT

from tfdist.dialects.entry_points import _RESERVED, GROUP, load
from tfdist.dialects.registry import BUILT_IN
from tfdist.translate import OTHER_OUTPUTS

pytestmark = pytest.mark.slow

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGE = (CHECKOUT / "docs" / "dialects" / "README.md").read_text()
FILES = dict(re.findall(r"^```\w+ title=\"([^\"]+)\"\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
TABLE = "host,gpus\nnode1,2\nnode2,2\n"


def install(folder: Path, name: str, modules: dict[str, str], entry_points: dict[str, str]) -> str:
    """Writes what pip installs of a distribution into a folder; returns the folder."""
    entries = "".join(f"{key} = {value}\n" for key, value in entry_points.items())
    info = f"{name}-1.0.dist-info"
    files = {
        **modules,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/entry_points.txt": f"[{GROUP}]\n{entries}",
    }
    target = folder / "installed"
    (target / info).mkdir(parents=True)
    for file, content in files.items():
        (target / file).write_text(content)
    return str(target)


def translate(packages: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"PYTHONPATH": f"{packages}:{CHECKOUT}"}
    command = [sys.executable, "-m", "tfdist.translate", *arguments]
    return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder in which the package of the documentation is installed."""
    project = tomllib.loads(FILES["pyproject.toml"])["project"]
    modules = {"machines_csv.py": FILES["machines_csv.py"]}
    return install(tmp_path_factory.mktemp("package"), "machines_csv", modules, project["entry-points"][GROUP])


def test_a_package_adds_a_language_that_is_read_and_written(packages: str, tmp_path: Path) -> None:
    (tmp_path / "machines.csv").write_text(TABLE)
    result = translate(packages, "machines.csv", "--to", "tf_config", "--task", "worker:1", cwd=tmp_path)
    assert result.stderr == ""
    config = json.loads(result.stdout)
    assert config["cluster"] == {"worker": ["node1:27182", "node2:27182"]}
    assert config["tfdist"]["slots"] == {"worker": [[2, 2], [2, 2]]}
    assert translate(packages, "machines.csv", "--to", "machines_csv", cwd=tmp_path).stdout == TABLE
    assert re.search(
        r"--to machines_csv +a table of machines \(host,gpus\)\n", translate(packages, "--help", cwd=tmp_path).stdout
    )


def test_its_errors_are_one_line_and_it_is_among_the_known_languages(packages: str, tmp_path: Path) -> None:
    (tmp_path / "machines.csv").write_text(TABLE.replace("node2,2", "node2"))
    result = translate(packages, "machines.csv", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "tfdist: machines.csv:3: '' is not a number of GPUs; expected host,gpus\n"
    (tmp_path / "machines.csv").write_text("gpus,host\n")
    result = translate(packages, "STANDARD_1", "--to", "machines_csv", cwd=tmp_path)
    assert result.stderr == "tfdist: STANDARD_1: a table of machines has workers with hosts, and chief:0 is none\n"
    assert ", machines.csv; docs/dialects" in translate(packages, "machines.csv", cwd=tmp_path).stderr


BAD = """
from tfdist.dialects import CommandReader, Dialect, EnvironmentReader, TextReader, Writer

def fail(*arguments):
    raise KeyError("x")

def dialect(name, **parts):
    return Dialect(name, title=name, example=name, **parts)

text = "no dialect"
taken = dialect("singa")
spaced = dialect("a b")
program = dialect("mine", command=CommandReader(("mpirun",), fail))
words = dialect("listed", text=TextReader(fail, words=["a"]))
wrong_part = dialect("swapped", text=CommandReader(("x",), fail))
picture = dialect("svg", writer=Writer(fail))
flag = dialect("flag", writer=Writer(fail, options={"to": "x"}))
raises = dialect("raises", text=TextReader(fail, looks_like=fail, from_object=fail), environment=EnvironmentReader(fail, fail))
"""

FAULTS = {
    "bad:missing": "AttributeError: module 'bad' has no attribute 'missing'",
    "absent:DIALECT": "ModuleNotFoundError: No module named 'absent'",
    "bad:text": "it is a str; expected a tfdist.dialects.Dialect",
    "bad:taken": "the name singa belongs to the dialect singa; choose another",
    "bad:spaced": "its name is 'a b'; expected lower-case letters, digits and _",
    "bad:program": "the program mpirun belongs to the dialect horovod; choose another",
    "bad:words": "its words are a list; expected a frozenset",
    "bad:picture": "the name svg is reserved; choose another",
    "bad:flag": "the option to is reserved; choose another",
    "bad:wrong_part": "its text is a CommandReader; expected a TextReader",
}


def test_a_bad_dialect_is_left_out_by_name_and_the_others_work(tmp_path: Path) -> None:
    entry_points = {f"entry{number}": value for number, value in enumerate((*FAULTS, "bad:raises"))}
    packages = install(tmp_path, "bad", {"bad.py": BAD}, entry_points)
    (tmp_path / "cluster.json").write_text('{"cluster": {"worker": ["a:1", "b:1"]}}')
    result = translate(packages, "cluster.json", "--to", "horovod", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, "a slots=1\nb slots=1\n")
    for (name, value), fault in zip(entry_points.items(), FAULTS.values(), strict=False):
        assert f"the dialect of the entry point {name} = {value} (bad) is left out: {fault}\n" in result.stderr
    # Recognizers that raise break neither other texts nor the environment, which every process reads.
    (tmp_path / "job.conf").write_text("cluster { nworkers_per_group: 2 }\n")
    for arguments, code, expected in ((["job.conf", "--to", "tree"], 0, "2 workers"), ([], 2, "no cluster is described")):
        result = translate(packages, *arguments, cwd=tmp_path)
        assert result.returncode == code and expected in result.stdout + result.stderr
        assert "entry point entry10 = bad:raises (bad) recognizes nothing: KeyError: 'x'\n" in result.stderr


def test_without_packages_there_are_the_built_in_dialects_whose_names_differ() -> None:
    assert load(BUILT_IN) == []
    names = [dialect.name for dialect in BUILT_IN]
    assert len(set(names)) == len(names)
    programs = [program for dialect in BUILT_IN if dialect.command for program in dialect.command.programs]
    assert len(set(programs)) == len(programs)
    assert OTHER_OUTPUTS.keys() == _RESERVED["name"]
