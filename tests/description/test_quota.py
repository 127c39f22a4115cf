"""Quotas of processor time, in folders that look like those of Linux."""

import pytest

from tfdist.machine import capacity, cores
from tfdist.quota import Spent, quota_of, spent

V2, V1 = "sys/fs/cgroup", "sys/fs/cgroup/cpu,cpuacct"


def made(root, cgroup, files):
    if cgroup is not None:
        files = files | {"proc/7/cgroup": cgroup, "proc/self/cgroup": cgroup}
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("cgroup", "files", "folder", "expected"),
    [
        pytest.param("0::/a/b", {f"{V2}/a/b/cpu.max": "50000 100000"}, f"{V2}/a/b", 0.5, id="its own group"),
        pytest.param(
            "0::/a/b/c",
            {f"{V2}/a/b/c/cpu.max": "max 100000", f"{V2}/a/b/cpu.max": "30000 20000", f"{V2}/a/cpu.max": "200000 100000"},
            f"{V2}/a/b",
            1.5,
            id="the smallest of all parents",
        ),
        pytest.param("0::/", {f"{V2}/cpu.max": "150000 100000"}, V2, 1.5, id="the namespace of a container"),
        pytest.param("0::/docker/abc", {f"{V2}/cpu.max": "25000 100000"}, V2, 0.25, id="its outer path in a container"),
        pytest.param("0::/../x", {f"{V2}/cpu.max": "25000 100000"}, V2, 0.25, id="outside of this namespace"),
        pytest.param(
            "4:memory:/m\n3:cpu,cpuacct:/a/b\n0::/",
            {f"{V1}/a/b/cpu.cfs_quota_us": "-1", f"{V1}/a/b/cpu.cfs_period_us": "100000"}
            | {f"{V1}/a/cpu.cfs_quota_us": "10000", f"{V1}/a/cpu.cfs_period_us": "20000"},
            f"{V1}/a",
            0.5,
            id="version 1",
        ),
        pytest.param("0::/a", {f"{V2}/a/cpu.max": "max 100000"}, None, None, id="no limit"),
        pytest.param("0::/a", {f"{V2}/a/cpu.max": "x"}, None, None, id="no number"),
        pytest.param("0::/a\nnonsense", {}, None, None, id="no files"),
        pytest.param(None, {}, None, None, id="no process"),
    ],
)
def test_the_smallest_limit_of_a_process_counts(tmp_path, cgroup, files, folder, expected):
    found = quota_of(7, made(tmp_path, cgroup, files))
    assert (found and found.cores, found and found.folder) == (expected, folder and tmp_path / folder)


def test_the_period_of_a_limit_is_in_seconds(tmp_path):
    root = made(tmp_path, "0::/a", {f"{V2}/a/cpu.max": "30000 20000"})
    assert quota_of(7, root).period == pytest.approx(0.02)


def test_a_part_of_a_core_counts_as_that_and_as_one_thread(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)))
    root = made(tmp_path, "0::/a", {f"{V2}/a/cpu.max": "50000 100000"})
    assert (capacity(root), cores(root)) == (0.5, 1)
    made(root, "0::/a", {f"{V2}/a/cpu.max": "900000 100000"})
    assert (capacity(root), cores(root)) == (4, 4)


def test_what_a_group_has_used(tmp_path):
    made(tmp_path, None, {"a/cpu.stat": "usage_usec 2500000\nnr_periods 40\nnr_throttled 30\nthrottled_usec 5"})
    assert spent(tmp_path / "a") == Spent(40, 30, 2.5)
    made(tmp_path, None, {"b/cpu.stat": "nr_periods 4\nnr_throttled 3\nthrottled_time 5", "b/cpuacct.usage": "1500000000"})
    assert spent(tmp_path / "b") == Spent(4, 3, 1.5)
    (tmp_path / "b/cpuacct.usage").unlink()
    assert spent(tmp_path / "b") == Spent(4, 3)
    assert spent(tmp_path) is None
