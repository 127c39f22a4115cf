"""The package as users get it: built, checked, installed as a wheel and as an editable checkout, and not installed at all."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from support_paths import CHECKOUT
from tools import needs

LINKS = {"strategies", "launch", "examples"}
COMMANDS = (
    ["-m", "tfdist.launch", "--tier", "STANDARD_1", "--dry_run"],
    ["-m", "tfdist.translate", "STANDARD_1", "--to", "tf_config"],
)


def run(*command, cwd, python=sys.executable, code=0):
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run([python, *command], cwd=cwd, env=environ, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == code, (command, cwd, result.stdout, result.stderr)
    return result.stdout


def git(*command):
    return subprocess.run(["git", *command], cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="session")
def clone(tmp_path_factory):
    """The files that git has or would take, links as links: what a fresh clone of the next commit holds."""
    folder = tmp_path_factory.mktemp("clone")
    for name in git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0"):
        if name and os.path.lexists(CHECKOUT / name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CHECKOUT / name, folder / name, follow_symlinks=False)
    return folder


@pytest.fixture(scope="session")
def new_python(tmp_path_factory):
    """Returns a function that makes an environment with the dependencies of tfdist, but without tfdist."""

    def make():
        folder = tmp_path_factory.mktemp("environment")
        venv.create(folder)
        (site_packages,) = folder.glob("lib/python*/site-packages")
        (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
        return str(folder / "bin" / "python")

    return make


@pytest.fixture(scope="session")
def distributions(clone, tmp_path_factory):
    """The sdist, the wheel that is built from it, and the wheel that is built from the checkout.

    With the setuptools that is here: the editable install of another test gets the one that pyproject.toml asks for.
    """
    folder = tmp_path_factory.mktemp("distributions")
    build = ["-m", "build", "--quiet", "--no-isolation", "--outdir"]
    run(*build, str(folder), str(clone), cwd=folder)
    run(*build, str(folder / "direct"), "--wheel", str(clone), cwd=folder)
    (sdist,), (wheel,), (direct,) = folder.glob("*.tar.gz"), folder.glob("*.whl"), folder.glob("direct/*.whl")
    return sdist, wheel, direct


def contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}


@needs("git")
def test_git_stores_the_rooms_as_links():
    modes = dict(reversed(line.split()[::3]) for line in git("ls-files", "--stage", "tfdist").splitlines())
    assert {name for name, mode in modes.items() if mode == "120000"} == {f"tfdist/{link}" for link in LINKS}
    assert {path.name for path in (CHECKOUT / "tfdist").iterdir() if path.is_symlink()} == LINKS


@needs("git")
@pytest.mark.cluster
def test_python_started_inside_a_clone_needs_no_install(clone, new_python):
    python = new_python()
    for command in COMMANDS:
        run(*command, cwd=clone, python=python)


@needs("git")
@pytest.mark.cluster
def test_the_editable_install_answers_from_every_folder(clone, new_python, tmp_path):
    python = new_python()
    install = ["install", "--quiet", "--no-deps", "--editable", str(clone)]
    run("-m", "pip", "--python", python, *install, cwd=tmp_path)
    for folder, command in zip((clone, clone / "tfdist", clone / "tests", tmp_path), 2 * COMMANDS, strict=True):
        run(*command, cwd=folder, python=python)
    where = run("-c", "import tfdist.launch, tfdist.strategies; print(tfdist.launch.__file__)", cwd=tmp_path, python=python)
    assert Path(where.strip()).resolve() == (clone / "launch" / "__init__.py").resolve()


@needs("git")
@needs("build")
@pytest.mark.cluster
def test_the_wheel_answers_from_every_folder_without_the_checkout(distributions, new_python, tmp_path):
    python = new_python()
    install = ["install", "--quiet", "--no-deps", "--no-compile", str(distributions[1])]
    run("-m", "pip", "--python", python, *install, cwd=tmp_path)
    assert run(*COMMANDS[0], cwd=tmp_path, python=python).count("TF_CONFIG") == 8
    for folder in (tmp_path, Path("/")):
        code = "import tfdist, tfdist.launch, tfdist.strategies; print(tfdist.__file__, tfdist.launch.__file__)"
        for file in run("-c", code, cwd=folder, python=python).split():
            assert Path(file).is_relative_to(Path(python).parent.parent)


@needs("git")
@needs("build")
@pytest.mark.cluster
def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(distributions, clone):
    sdist, wheel, direct = distributions
    assert contents(wheel) == contents(direct), "the wheel from the sdist differs from the wheel from the checkout"
    rooms = [clone / "tfdist", *(clone / link for link in LINKS)]
    sources = {path.relative_to(clone) for room in rooms for path in room.rglob("*.py")} | {Path("tfdist/py.typed")}
    expected = {str(Path("tfdist", path) if path.parts[0] in LINKS else path) for path in sources}
    assert {name for name in contents(wheel) if ".dist-info/" not in name} == expected
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        assert all(member.isfile() or member.isdir() for member in archive.getmembers()), "an unpacked sdist needs no links"
    assert expected | {"LICENSE", "README.md", "BUILD.md", "CHANGELOG.md", "docs/hogwild.md"} <= names


@needs("git")
@needs("build")
@needs("twine")
@pytest.mark.cluster
def test_an_index_accepts_and_renders_the_distributions(distributions, tmp_path):
    run("-m", "twine", "check", "--strict", *map(str, distributions), cwd=tmp_path)
    metadata = next(text for name, text in contents(distributions[1]).items() if name.endswith("/METADATA")).decode()
    for field in ("License-Expression: Apache-2.0", "License-File: LICENSE", "Author: The tfdist authors"):
        assert field in metadata


def test_the_page_of_a_package_index_has_no_relative_link_and_the_example_of_the_readme():
    page = (CHECKOUT / "docs" / "package_index.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\((?!https?://)", page) == []
    readme = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert example in readme


def test_the_public_names_are_these():
    import tfdist

    ranks = ["cross_rank", "cross_size", "is_chief", "local_rank", "local_size", "rank", "role", "size"]
    assert sorted(tfdist.__all__) == sorted(
        ["Cluster", "ClusterError", "Partition", "Synchronization", "Task", "define_flags", "read", "strategy", *ranks]
    )
    assert all(hasattr(tfdist, name) for name in tfdist.__all__)
