"""Why a task was killed: whether the kernel has counted or logged a kill for lack of memory."""

import pytest

from tfdist.launch.backends.local.memory_kills import MemoryKills, count, explanation
from tfdist.launch.jobs.events import Exited

LOG = "3,91,7,-;Memory cgroup out of memory: Killed process 4711 (python) total-vm:3kB\n"


@pytest.mark.parametrize(
    ("cgroup", "file", "expected"),
    [
        ("0::/job_1/step_0\n", "sys/fs/cgroup/job_1/step_0/memory.events", 3),
        ("0::/job_1\n", "sys/fs/cgroup/memory.events", 3),  # In a container, mounted as the root.
        ("5:cpu:/\n4:memory,hugetlb:/job_1\n0::/\n", "sys/fs/cgroup/memory/job_1/memory.oom_control", 3),
        ("4:memory:/job_1\n", "sys/fs/cgroup/memory/memory.oom_control", 3),
        ("4:memory:/job_1\n", "sys/fs/cgroup/other", None),
        (None, "sys/fs/cgroup/memory.events", None),
    ],
)
def test_the_kills_of_a_control_group_are_counted_in_both_versions_of_cgroups(tmp_path, cgroup, file, expected):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/vmstat").write_text("pgfault 8\noom_kill 5\n")
    if cgroup is not None:
        (tmp_path / "proc/self/cgroup").write_text(cgroup)
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text("low 0\noom 9\noom_kill 3\noom_group_kill 0\n")
    assert count(tmp_path) == MemoryKills(group=expected, machine=5)


def test_nothing_is_counted_where_nothing_can_be_read(tmp_path):
    assert count(tmp_path) == MemoryKills(None, None)


@pytest.mark.parametrize(
    ("before", "now", "log", "expected"),
    [
        ((0, 0), (0, 0), None, ""),
        ((0, 0), (0, 0), LOG, ""),  # An older process of this number.
        ((None, 0), (None, 1), LOG, "because memory ran out (the kernel's log names it)"),
        ((0, 0), (1, 1), None, "because the memory of its control group ran out"),
        ((0, 0), (0, 1), LOG.replace("4711", "47110"), "probably because memory ran out: the kernel has killed a process"),
        ((None, None), (None, None), None, "by a user, or probably by the kernel because memory ran out"),
        ((0, None), (1, None), None, "because the memory of its control group ran out"),
    ],
)
def test_the_reason_of_a_kill(before, now, log, expected):
    text = explanation(4711, MemoryKills(*before), MemoryKills(*now), log)
    assert text.startswith(expected) and bool(text) == bool(expected)
    assert Exited("ps:0", -9, text).cause == "it was killed by SIGKILL" + (f", {text}" if text else "")
