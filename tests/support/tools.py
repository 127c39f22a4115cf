"""A pytest plugin: tests that need a program or package that `.[test]` does not bring say so with `needs(tool)`.

Where the tool is missing such a test is skipped. With `TFDIST_REQUIRE_TOOLS=redis,slurm` (or `all`) it fails instead, if its
tool is in that list: a machine that should have a tool then cannot lose it, and with it the tests, without a word.
"""

import importlib.machinery
import os
import shutil
import sys
from collections.abc import Sequence

import pytest
from support_paths import CHECKOUT, KUBERNETES_37, ORBAX

VARIABLE = "TFDIST_REQUIRE_TOOLS"
TOOLS: dict[str, tuple[Sequence[str], Sequence[str], str]] = {
    "redis": (["redis-server"], ["redis"], "apt-get install redis-server, pip install redis"),
    "slurm": (["slurmctld", "slurmd", "srun", "sbatch"], ["hostlist"], "apt-get install slurm-wlm"),
    "mpirun": (["mpirun"], [], "apt-get install openmpi-bin"),
    "sshd": (["sshd", "ssh", "ssh-keygen"], [], "apt-get install openssh-server openssh-client"),
    "namespaces": (["ip"], [], "apt-get install iproute2"),
    "torchrun": ([], ["torch"], "pip install torch"),
    "ray": ([], ["ray"], "pip install -e '.[ray]'"),
    "orbax": ([], ["orbax", "jax"], "pip install orbax-checkpoint"),
    "kubernetes": ([], ["kubernetes", "kubernetes_validate"], "pip install -e '.[test]'"),
    "kubernetes_37": ([], ["kubernetes_37"], "pip install --no-deps --target .venv/kubernetes_37 kubernetes==37.0.2"),
    "zsh": (["zsh"], [], "apt-get install zsh"),
    "fish": (["fish"], [], "apt-get install fish"),
    "git": (["git"], [], "apt-get install git"),
    "build": ([], ["build"], "pip install -e '.[test]'"),
    "twine": ([], ["twine"], "pip install -e '.[lint]'"),
}
"""Tool -> its programs, its packages of Python, and what installs them."""


def missing(tool: str) -> str | None:
    """Returns what a tool lacks on this machine, in a sentence, or None."""
    programs, packages, install = TOOLS[tool]
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    found: dict[str, object] = {program: shutil.which(program, path=path) for program in programs}
    folders = [*sys.path, str(ORBAX), str(KUBERNETES_37.parent)]
    found |= {package: importlib.machinery.PathFinder.find_spec(package, folders) for package in packages}
    for name, where in found.items():
        if where is None:
            return f"{name} is not installed ({install})"
    if tool == "slurm" and os.geteuid() != 0:
        return "slurmd runs as root only"
    if tool == "namespaces" and os.geteuid() != 0:
        return "only root makes network namespaces"
    if tool == "git" and not (CHECKOUT / ".git").exists():
        return f"{CHECKOUT} is not a clone of the repository"
    return None


def required() -> set[str]:
    """Returns the tools whose tests must not be skipped.

    Raises:
        pytest.UsageError: when the variable names a tool that is not here.
    """
    names = {name.strip() for name in os.environ.get(VARIABLE, "").split(",")} - {""}
    if names - TOOLS.keys() - {"all"}:
        raise pytest.UsageError(f"{VARIABLE}: {', '.join(sorted(names - TOOLS.keys()))}: expected all, or {', '.join(TOOLS)}")
    return set(TOOLS) if "all" in names else names


def needs(tool: str) -> pytest.MarkDecorator:
    """Marks a test that needs a tool of `TOOLS`."""
    assert tool in TOOLS
    return pytest.mark.needs_tool(tool)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"needs_tool(name): is skipped without this tool, or fails, as {VARIABLE} says")
    required()


@pytest.hookimpl(tryfirst=True)  # Before fixtures start the tool.
def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs_tool"):
        (tool,) = marker.args
        reason = missing(tool)
        if reason and tool in required():
            pytest.fail(f"{reason}, and {VARIABLE} names {tool}", pytrace=False)
        if reason:
            pytest.skip(reason)


if __name__ == "__main__":  # For .ci/tools.
    reasons = {tool: missing(tool) for tool in TOOLS}
    for tool, reason in reasons.items():
        if reason:
            print(f"tests of {tool} are skipped: {reason}", file=sys.stderr)
    print(",".join(tool for tool, reason in reasons.items() if not reason))
