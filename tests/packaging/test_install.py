"""The package as it is installed: editable from every folder, and as a copy from every folder but the checkout."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support_paths import CHECKOUT


def run(*command, cwd, **environment):
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, env=os.environ | environment, capture_output=True, text=True, timeout=240
    )


@pytest.mark.parametrize("folder", [CHECKOUT, CHECKOUT / "tfdist", CHECKOUT / "tests", Path("/")])
def test_the_editable_install_answers_from_every_folder(folder):
    for command in (
        ["-m", "tfdist.launch", "--tier", "BASIC", "--dry_run"],
        ["-m", "tfdist.translate", "BASIC", "--to", "cluster_spec"],
    ):
        got = run(*command, cwd=folder)
        assert got.returncode == 0, (folder, got.stderr)


def test_a_copy_holds_the_whole_package(tmp_path):
    got = run("-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path / "copy"), str(CHECKOUT), cwd=tmp_path)
    assert got.returncode == 0, got.stderr
    copy = tmp_path / "copy"
    code = "import tfdist, tfdist.launch, tfdist.strategies; print(tfdist.__file__, tfdist.launch.__file__, tfdist.strategies.__file__)"
    got = run("-c", code, cwd=tmp_path, PYTHONPATH=str(copy))
    assert got.stdout.split() == [
        str(copy / "tfdist" / name) for name in ("__init__.py", "launch/__init__.py", "strategies/__init__.py")
    ]
    for folder, name in (("tfdist", ""), ("strategies", "strategies"), ("launch", "launch"), ("examples", "examples")):
        there = {path.name for path in (copy / "tfdist" / name).glob("*.py")}
        assert {path.name for path in (CHECKOUT / folder).glob("*.py")} <= there
    got = run("-m", "tfdist.launch", "--tier", "STANDARD_1", "--dry_run", cwd=tmp_path, PYTHONPATH=str(copy))
    assert got.returncode == 0 and got.stdout.count("TF_CONFIG") == 8, got.stderr


def test_the_public_names_are_these():
    import tfdist

    ranks = ["cross_rank", "cross_size", "is_chief", "local_rank", "local_size", "rank", "role", "size"]
    assert sorted(tfdist.__all__) == sorted(
        ["Cluster", "ClusterError", "Synchronization", "Task", "define_flags", "read", "strategy", *ranks]
    )
    assert all(hasattr(tfdist, name) for name in tfdist.__all__)


def test_imports_point_one_way():
    """launch -> strategies -> tfdist; only tfdist/create_strategy.py reaches up, when `tfdist.strategy` is called."""
    for folder, above in (("tfdist", ("tfdist.strategies", "tfdist.launch")), ("strategies", ("tfdist.launch",))):
        for path in (CHECKOUT / folder).rglob("*.py"):
            if path.name != "create_strategy.py":
                text = path.read_text()
                assert not any(f"from {name}" in text or f"import {name}" in text for name in above), path
