"""What binds a running job: what the processes and sockets of this machine say, and a real job of which it is known."""

import dataclasses
import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections import deque
from pathlib import Path

import pytest
from support_paths import PROGRAMS

from tfdist.choice import choose
from tfdist.dialects import read
from tfdist.launch.backends.local import sockets, use_probe
from tfdist.launch.jobs.events import Used
from tfdist.launch.jobs.job import Job, Program
from tfdist.launch.jobs.job_status import JobStatus, State, TaskStatus
from tfdist.launch.jobs.progress import Progress
from tfdist.launch.supervision.binding_now import MOST_SECONDS_WITHOUT, BindingNow
from tfdist.planner.binding import explain
from tfdist.planner.running import Running
from tfdist.planner.use import Use
from tfdist.quota import quota_of

USE = Use(8.0, 0.9, 0.0, 0.95, 2, 0.5, 0.0, 0.0, 0.0)
LAUNCHER = """
from tfdist.launch import commands
from tfdist.launch.backends.local import use_probe

use_probe._machine = lambda: (0.0, 0.0)  # What other programs use of this machine is not known.
use_probe.REPORT_SECONDS, use_probe.WINDOW_SECONDS, use_probe.LEAST_SECONDS = 1.0, 3.0, 1.5
commands.main()
"""
FIT = Progress("fit", 1, 5, 130, 937, 1067, 12.5, parameters=((1000, 4_000_000),))


def test_the_kernel_counts_what_a_connection_carries_and_what_waits(monkeypatch):
    monkeypatch.setattr(sockets, "_to_others", lambda found: [each for _, _, each in found])  # Those of this machine, too.
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        other, _ = server.accept()
        with other:
            one.sendall(b"x" * 1000)
            assert other.recv(1000, socket.MSG_WAITALL)
            mine = sockets.inodes(os.getpid())
            found = {each.inode: each for each in sockets.connections() or () if each.inode in mine}
            if not found:
                pytest.skip("this kernel does not tell")
            received, waits = found[os.fstat(other.fileno()).st_ino], found[os.fstat(one.fileno()).st_ino]
            assert received.received == 1000 and waits.waiting == 0
            one.setblocking(False)
            with pytest.raises(BlockingIOError):
                while True:
                    one.send(b"x" * 100_000)
            time.sleep(0.3)
            later = {each.inode: each for each in sockets.connections()}[waits.inode]
            # What the other end does not read does not wait for the link.
            assert later.waiting > 0 and later.receiver_limited > waits.receiver_limited


def test_connections_within_this_machine_do_not_use_its_link():
    here, there = (bytes([10, 0, 0, last]) + bytes(12) for last in (1, 2))
    mapped = bytes(10) + b"\xff\xff" + bytes([127, 0, 0, 1])
    found = [(here, here, 1), (here, there, 2), (here, bytes([127, 0, 0, 1]) + bytes(12), 3), (mapped, mapped, 4)]
    assert list(sockets._to_others(found)) == [2]


def test_the_probe_tells_a_process_that_computes_from_one_that_sleeps(monkeypatch):
    monkeypatch.setattr(use_probe, "SAMPLE_SECONDS", 0.02)
    monkeypatch.setattr(use_probe, "MOST_COST", 1.0)
    monkeypatch.setattr(use_probe, "LEAST_SECONDS", 0.8)
    monkeypatch.setattr(use_probe, "REPORT_SECONDS", 1.0)
    programs = {"worker:0": "print(flush=True)\nwhile True: pass", "ps:0": "print(flush=True)\nimport time; time.sleep(60)"}
    processes = {name: subprocess.Popen([sys.executable, "-c", text], stdout=-1) for name, text in programs.items()}
    try:
        for process in processes.values():
            process.stdout.readline()
        probe, events, deadline = use_probe.UseProbe(), [], time.monotonic() + 90
        while len(events) < 2:
            assert time.monotonic() < deadline
            events = probe.events({name: process.pid for name, process in processes.items()})
            time.sleep(0.01)
        uses = {event.task: event.use for event in events if isinstance(event, Used)}
        busy, idle = uses["worker:0"], uses["ps:0"]
        assert busy.running > 0.9 and 0.8 < busy.processor + busy.waited < 1.3 and busy.machine > 0
        assert idle.running < 0.3 and idle.processor < 0.1
        assert busy.cores == len(os.sched_getaffinity(0))
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()


@pytest.fixture
def control_group():
    """A real control group that may use 0.1 of a core; or a sentence about why there is none."""
    places = [place for place in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/cpu")) if (place / "cgroup.procs").exists()]
    if os.geteuid() != 0 or not places:
        yield "limiting processor time needs root and control groups"
        return
    group = places[0] / f"tfdist-test-{uuid.uuid4().hex}"
    try:
        group.mkdir()
    except OSError as error:
        yield f"no control group can be made here: {error.strerror}"
        return
    try:
        limits = {"cpu.max": "10000 100000"} if (group / "cpu.max").exists() else {"cpu.cfs_period_us": "100000"}
        limits |= {} if "cpu.max" in limits else {"cpu.cfs_quota_us": "10000"}
        if all((group / name).exists() for name in limits):
            for name, value in limits.items():
                (group / name).write_text(value)
            yield group
        else:
            yield "the control groups of this machine do not limit processor time"
    finally:
        deadline = time.monotonic() + 5
        while (group / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        group.rmdir()


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_process_that_a_real_quota_holds_is_at_its_quota(monkeypatch, control_group, is_alone):
    """Also where another program of its control group uses the time up, and the task hardly runs."""
    if isinstance(control_group, str):
        pytest.skip(control_group)
    for name, value in {"SAMPLE_SECONDS": 0.02, "MOST_COST": 1.0, "LEAST_SECONDS": 0.8, "REPORT_SECONDS": 0.9}.items():
        monkeypatch.setattr(use_probe, name, value)
    busy, idle = "print(flush=True)\nwhile True: pass", "print(flush=True)\nimport time\nwhile True: time.sleep(0.05)"
    programs = [busy] if is_alone else [idle, busy]
    processes = [subprocess.Popen([sys.executable, "-c", program], stdout=-1) for program in programs]
    try:
        for process in processes:
            process.stdout.readline()
            (control_group / "cgroup.procs").write_text(str(process.pid))
        probe, events, deadline = use_probe.UseProbe(), [], time.monotonic() + 90
        while not events or events[0].use.quota_used is None or events[0].use.held < 0.8:
            assert time.monotonic() < deadline, events
            events = probe.events({"worker:1": processes[0].pid})
            time.sleep(0.01)
        use = events[0].use
        assert use.quota == pytest.approx(0.1) and use.quota_group == str(control_group)
        assert 0.5 < use.quota_used < 1.5 and use.capacity == pytest.approx(0.1)
        found = explain(Running("multi_worker_mirrored", {"worker:0": USE, "worker:1": use}, ["worker:0", "worker:1"]))
        assert "worker 1 is at " in found.text and "of its processor quota of 0.1 cores" in found.text
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_a_time_without_figures_of_sockets_has_none():
    samples = deque(
        use_probe._Sample(number * 0.5, number * 0.25, 0.0, number, 2 * number, number % 2 == 0) for number in range(9)
    )
    assert use_probe.use_of(samples, 2) == Use(4.0, 0.5, 0.0, 0.5, 2, 0.5)
    missed = deque(use_probe._Sample(number * 0.5, number * 0.25, 0.0, number, 2 * number, False) for number in range(9))
    assert use_probe.use_of(missed, 2).running == 0.25  # It ran for that part of the time at least.
    assert use_probe.use_of(deque(list(samples)[:4]), 2) is None
    for sample in samples:
        sample.is_sending, sample.sent = sample.at > 2, int(sample.at * 100)
    assert use_probe.use_of(samples, 2).sending == 0.5 and use_probe.use_of(samples, 2).sent == 100


def test_tasks_that_keep_to_different_cores_do_not_share_them(monkeypatch):
    affinity = {1: {0}, 2: {1}, 3: {1, 2}}
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: affinity[pid])
    monkeypatch.setattr(use_probe, "processor", lambda pid: now[0] * 0.9)
    monkeypatch.setattr(use_probe, "_machine", lambda: (0.0, 0.0))
    now = [100.0]
    probe = use_probe.UseProbe(lambda: now[0])
    while not (events := probe.events({"ps:0": 1, "worker:0": 2, "worker:1": 3})) or now[0] < 110:
        now[0] += 1.0
    assert [(event.use.cores, event.use.cores_of_all) for event in events] == [(1, 3), (1, 3), (2, 3)]


def test_nothing_binds_before_all_figures_are_from_the_training():
    cluster = read({"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}})
    now = [100.0]
    found = BindingNow(Job(cluster, choose(cluster), Program(script="x.py")), lambda: now[0])
    uses = {"worker:1": dataclasses.replace(USE, quota=4.0, quota_used=0.5, held=0.0, quota_group="/sys/fs/cgroup/x")}
    tasks = [TaskStatus(task.name, State.RUNNING, task.host, use=uses.get(task.name, USE)) for task in cluster.tasks]
    assert found.of(tasks, None) is None
    assert found.of(tasks, FIT) is None
    now[0] += 8.1
    binding = found.of(tasks, FIT)
    assert binding["resource"] == "chief processor" and binding["text"].startswith("chief processor, busy for 90% of the time")
    status = JobStatus(State.RUNNING, tuple(tasks), progress=FIT, binding=binding)
    assert JobStatus.from_json(json.loads(json.dumps(status.as_json()))) == status
    assert found.of(tasks, Progress()) is None
    silent = [TaskStatus(task.name, State.RUNNING, task.host) for task in cluster.tasks]
    assert found.of(silent, FIT) is None
    now[0] += MOST_SECONDS_WITHOUT
    assert found.of(silent, FIT)["text"].startswith("not known: nobody reports")


def test_what_binds_is_written_for_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.compat.proto.event_pb2 import Event

    from tfdist.launch.supervision.tensorboard_events import EventFile

    file = EventFile(str(tmp_path / "tfdist"))
    file.add({"tfdist/binding_utilization": 0.5}, {"tfdist/binds": "link of ps 1"}, 7)
    file.close()
    (path,) = (tmp_path / "tfdist").iterdir()
    data, events = path.read_bytes(), []
    while data:  # Length, its checksum, the event, its checksum.
        length = int.from_bytes(data[:8], "little")
        events.append(Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    assert events[0].file_version == "brain.Event:2" and events[1].step == 7
    utilization, text = events[1].summary.value
    assert (utilization.tag, utilization.simple_value) == ("tfdist/binding_utilization", 0.5)
    assert (text.tag, list(text.tensor.string_val)) == ("tfdist/binds", [b"link of ps 1"])


@pytest.mark.cluster
def test_status_names_the_ps_and_then_the_worker_that_binds_a_real_job(tmp_path):
    """One ps has little of a core and many parameters; then the steps of the only worker are long and its parameters few."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("it needs a core for the ps and another for the others")
    if (quota := quota_of()) is not None:
        pytest.skip(f"{quota.folder} limits all tasks together, also the program that takes the core of the ps")
    state = tmp_path / "state.json"
    cluster = '{"chief": 1, "worker": 1, "ps": 1}'
    command = [sys.executable, "-c", LAUNCHER, "run", "--cluster", cluster, "--strategy", "parameter_server"]
    process = subprocess.Popen(
        [*command, "--state_file", str(state), str(PROGRAMS / "bound.py")], cwd=tmp_path, stdout=-1, stderr=subprocess.STDOUT
    )

    def wait_for(resource, needs="resource"):
        deadline, seen = time.monotonic() + 240, []
        while time.monotonic() < deadline and process.poll() is None:
            binding = json.loads(state.read_text())["binding"] if state.exists() else None
            if binding is not None:
                seen.append(binding)
                if binding["resource"] == resource and binding[needs]:
                    return binding
            time.sleep(0.2)
        raise AssertionError([each["text"] for each in seen[-3:]] or process.communicate(timeout=1))

    try:
        # The first figures may be those of a worker that still starts: more ps would not help it.
        ps = wait_for("processor of ps 0", needs="better")
        assert ps["utilization"] > 0.6 and ps["better"].endswith(" ps") and ps["times"] > 1.1 and not ps["unknown"]
        (tmp_path / "go_on").touch()
        assert wait_for("worker processor")["utilization"] > 0.6
        (tmp_path / "end").touch()
        assert process.wait(90) == 0
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=30)
