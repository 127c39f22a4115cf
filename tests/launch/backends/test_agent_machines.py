"""Machines that a description names twice: an agent for each name divides the same GPUs."""

import pytest

from tfdist import Cluster, Task
from tfdist.choice import choose
from tfdist.launch.backends.agents import agent
from tfdist.launch.backends.agents.remote_tasks import RemoteTasks
from tfdist.launch.backends.interface import Plan
from tfdist.launch.jobs.job import Job, JobFiles, Program
from tfdist.version import __version__

NAMES = ("h1", "h1.org", "h2")


@pytest.mark.slow
@pytest.mark.parametrize(("machines", "warns"), [(("a", "a", "b"), True), (("a", "b", "c"), False), (("", "", ""), False)])
def test_a_machine_with_gpus_that_has_two_names_is_warned_of(tmp_path, machines, warns):
    cluster = Cluster(tuple(Task("worker", index, name, index + 1) for index, name in enumerate(NAMES)))
    plan = Plan(Job(cluster, choose(cluster), Program(script="x.py")))
    tasks = RemoteTasks(plan, JobFiles(tmp_path), lambda host: ["sleep", "60"], "/")
    try:
        for index, (name, machine) in enumerate(zip(NAMES, machines, strict=True)):
            hello = {"version": __version__, "address": "", "unknown_hosts": [], "warnings": [], "machine": machine}
            tasks._handle(name, {"hello": {**hello, "ports": {f"worker:{index}": index + 1}}}, b"")
        for name in NAMES:
            tasks._handle(name, {"ready": True}, b"")
        (ready,) = tasks.poll(0.0)
        said = "h1 and h1.org are one machine, and the tasks of each name get all its GPUs; give all of them one name"
        assert ready.warnings == ((said,) if warns else ())
    finally:
        for name in NAMES:
            tasks._drop(name)
        tasks.close()


def test_a_machine_is_told_from_others_only_if_it_has_gpus_to_share(monkeypatch):
    monkeypatch.setattr(agent.machine, "installed", lambda: agent.machine.Installed(("0",)))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert agent._machine() == agent._machine() != ""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert agent._machine() == ""
