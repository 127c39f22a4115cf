"""What launcher and agents say to each other, and what an agent checks before it starts anything."""

import errno
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from listening import LISTENS
from support_paths import CHECKOUT, PROGRAMS
from waits import wait_until

from tfdist import Cluster, Task
from tfdist.choice import choose
from tfdist.errors import ClusterError
from tfdist.launch.backends import ssh
from tfdist.launch.backends.agents import agent, link
from tfdist.launch.backends.agents.frames import BOOTSTRAP, START, Decoder, encode
from tfdist.launch.backends.agents.link import Link
from tfdist.launch.backends.agents.remote_tasks import RemoteTasks
from tfdist.launch.backends.interface import Plan
from tfdist.launch.jobs.events import Lost, Memory, Ready, Started, Unreachable, Used, as_json
from tfdist.launch.jobs.job import Job, JobFiles, Program
from tfdist.launch.jobs.progress import Progress, read
from tfdist.planner.use import Use
from tfdist.strategies.checkpoint.own_folder import AGENT, OwnFolder
from tfdist.version import __version__

pytestmark = pytest.mark.slow

MESSAGES = [
    ({"output": "worker:0", "last": False}, b"\n{\0\xff" * 7),
    ({"beat": True}, b""),
    ({"output": "ü", "last": True}, b""),
]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_messages_arrive_however_they_are_cut_and_what_a_login_shell_prints_is_skipped(size):
    sent = b"Welcome to h1!\n\0tfdist {}\n" + START + b"".join(encode(message, data) for message, data in MESSAGES)
    decoder = Decoder(START)
    got = [found for start in range(0, len(sent), size) for found in decoder.feed(sent[start : start + size])]
    assert [({name: value for name, value in message.items() if name != "bytes"}, data) for message, data in got] == MESSAGES


def test_an_agent_refuses_a_folder_or_a_program_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ClusterError, match="the working folder /no/folder cannot be used there: No such file"):
        agent._check({"folder": "/no/folder", "program": {"script": None}})
    with pytest.raises(ClusterError, match=r"there is no program train\.py in .* there; copy it, or use a shared folder"):
        agent._check({"folder": str(tmp_path), "program": {"script": "train.py"}})
    agent._check({"folder": str(tmp_path), "program": {"script": None}})
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "project/package").mkdir(parents=True)
    (tmp_path / "project/package/__main__.py").write_text("")
    hello = {"folder": "~/project", "program": {"script": "package"}}
    agent._check(hello)
    assert hello["folder"] == os.getcwd() == str(tmp_path / "project")


def test_a_plan_shows_no_host_for_tasks_without_one():
    cluster = Cluster((Task("worker", 0), Task("worker", 1, "h1")))
    plan = ssh.plan(Job(cluster, choose(cluster), Program()))
    assert [line for word, line in plan.notes if word == "host"] == ["h1: worker:1"] and plan.refusal is not None


def test_an_agent_gives_signs_of_life_while_a_name_server_is_slow(monkeypatch):
    asked, beats = threading.Event(), []
    monkeypatch.setattr(agent.socket, "getaddrinfo", lambda *_: asked.wait(60))
    monkeypatch.setattr(agent, "RESOLVE_SECONDS", 0.5)
    monkeypatch.setattr(agent, "BEAT_SECONDS", 0.1)
    try:
        assert agent._unknown({"h1", "h2"}, lambda: beats.append(1)) == ["h1", "h2"] and len(beats) > 1
    finally:
        asked.set()


def test_a_python_in_the_home_folder_of_a_host_is_found_by_its_shell(monkeypatch):
    job = SimpleNamespace(options={"ssh_python": "~/my env/bin/python"})
    remote = ssh._command("host", job)[-1]
    assert remote.startswith("exec ~/'my env/bin/python' -c ")
    job.options["ssh_python"] = "/opt/~/python"
    assert ssh._command("host", job)[-1].startswith("exec '/opt/~/python' -c ")


@pytest.mark.parametrize(("given", "count"), [({}, 4), ({"ssh_silence": "3"}, 4), ({"ssh_silence": "120"}, 24)])
def test_ssh_gives_a_silent_connection_up_no_earlier_than_the_launcher(given, count):
    words = ssh._command("host", SimpleNamespace(options=given))
    assert f"ServerAliveCountMax={count}" in words and "ServerAliveInterval=5" in words


@pytest.fixture
def open_link(tmp_path, monkeypatch):
    links = []

    def connect(body, silence=60.0):
        command = [sys.executable, "-c", f"import os, sys, time\n{body}"]
        links.append(Link("h1", command, {"silence": silence}, tmp_path / "h1.log"))
        return links[-1]

    yield connect
    for each in links:
        each.close()


def until_lost(connection):
    deadline = time.monotonic() + 60
    while connection.lost is None:
        assert time.monotonic() < deadline
        connection.tick()
        connection.hear()
        time.sleep(0.02)
    return connection.lost


def test_a_lost_connection_says_why(open_link, monkeypatch):
    assert until_lost(open_link("sys.exit('Permission denied\\x1b[31m (publickey).')")) == (
        f"{sys.executable} ended with 1: Permission denied\\x1b[31m (publickey)."
    )
    assert until_lost(open_link(f"os.write(1, {START!r} + b'garbage\\n'); time.sleep(60)")) == (
        "something else than the agent wrote to the connection"
    )
    speaks_once = f"os.write(1, {START!r} + b'{{\"beat\": true}}\\n'); time.sleep(60)"
    assert until_lost(open_link(speaks_once, silence=0.5)) == "nothing was heard from there for 0 s"
    monkeypatch.setattr(link, "START_SECONDS", 0.5)
    silence = "nothing was heard from there for 0 s, in which no agent has started"
    assert until_lost(open_link("time.sleep(60)")) == silence
    last = f"; the last line that {sys.executable} has shown is: Enter PASSCODE:"
    monkeypatch.setattr(link, "START_SECONDS", 5.0)
    assert until_lost(open_link("print('Welcome\\n\\nEnter PASSCODE: ', flush=True); time.sleep(60)")) == (
        silence.replace("0 s", "5 s") + last
    )
    shown = f"{sys.executable} ended with 0: module: command not found"
    assert until_lost(open_link("print('module: command not found')")) == shown


def test_what_an_agent_has_said_is_the_reason_not_the_line_that_srun_adds(open_link):
    """As where tfdist is not installed on a node."""
    ended = "srun: error: n1: task 0: Exited with exit code 1"
    said = f"sys.exit('srun: a warning\\nModuleNotFoundError: tfdist\\n{ended}')"
    assert until_lost(open_link(said)) == f"{sys.executable} ended with 1: ModuleNotFoundError: tfdist"
    assert until_lost(open_link(f"sys.exit('srun: a warning\\n{ended}')")) == f"{sys.executable} ended with 1: {ended}"


def test_a_message_to_a_host_that_reads_nothing_waits_in_memory(open_link):
    connection = open_link("time.sleep(60)")
    connection.say({"start": "x" * 10_000_000})
    assert connection.lost is None  # It would not be if `say` had waited until the host ended.


def test_a_python_that_lacks_a_package_of_tfdist_is_named():
    line = encode({"env": {}, "path": [str(CHECKOUT)]})
    words = [sys.executable, "-S", "-c", BOOTSTRAP]
    got = subprocess.run(words, input=line, capture_output=True, env={}, timeout=60)
    said = got.stderr.decode().splitlines()
    assert got.returncode == 1 and said[0].startswith("Traceback")
    assert said[-1].startswith(
        f"ModuleNotFoundError: No module named 'absl'; this Python, {sys.executable}, cannot run tfdist: "
    )


def test_an_agent_removes_the_folders_of_agents_that_were_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with OwnFolder(AGENT) as of_another:
        left = Path(of_another.rpartition("-")[0] + "-killed")
        (left / "log").mkdir(parents=True)
        hello = {"env": {}, "path": [str(CHECKOUT)], "silence": 5.0, "folder": "/no/folder", "program": {"script": None}}
        environ = {**os.environ, "TMPDIR": str(tmp_path)}
        got = subprocess.run(
            [sys.executable, "-c", BOOTSTRAP], input=encode(hello), env=environ, capture_output=True, timeout=60
        )
        assert b"the working folder /no/folder cannot be used there" in got.stdout
        assert list(tmp_path.iterdir()) == [Path(of_another)]


def test_the_bootstrap_takes_variables_from_its_first_line_and_not_from_its_command_line(tmp_path):
    (tmp_path / "tfdist/launch/backends/agents").mkdir(parents=True)
    for folder in ("tfdist", "tfdist/launch", "tfdist/launch/backends", "tfdist/launch/backends/agents"):
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "tfdist/launch/backends/agents/agent.py").write_text(
        "import os, sys\ndef main(hello): print(hello['x'], os.environ['SECRET'], sys.stdin.read())"
    )
    line = encode({"env": {"SECRET": "a\nb"}, "path": [str(tmp_path)], "x": 1})
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    (tmp_path / "home").mkdir()
    (tmp_path / "home/json.py").write_text("raise RuntimeError('this is not the library')")
    got = subprocess.run(
        [sys.executable, "-c", BOOTSTRAP],
        input=line + b"rest",
        env=environ,
        cwd=tmp_path / "home",
        capture_output=True,
        timeout=30,
    )
    assert got.stdout == b"1 a\nb rest\n", got.stderr
    assert str(CHECKOUT) not in BOOTSTRAP


def test_what_an_agent_warns_of_is_shown_with_its_host(tmp_path):
    cluster = Cluster((Task("worker", 0, "Gpu1", 1), Task("worker", 1, "gpu2", 1)))

    def command(host):
        hello = {"version": __version__, "address": f"10.0.0.{host[-1]}", "unknown_hosts": ["Gpu1"], "warnings": ["no GPU 7"]}
        hello["ports"] = {f"worker:{int(host[-1]) - 1}": 4000 + int(host[-1])}
        says = START + encode({"hello": hello}) + encode({"ready": True})
        return [sys.executable, "-c", f"import os, time; os.write(1, {says!r}); time.sleep(60)"]

    plan = Plan(Job(cluster, choose(cluster), Program(script="x.py")))
    tasks = RemoteTasks(plan, JobFiles(tmp_path), command, "/")
    try:
        (ready,) = wait_until(lambda: tasks.poll(0.1))
        assert isinstance(ready, Ready) and ready.warnings == ("Gpu1: no GPU 7", "gpu2: no GPU 7")
        # The first host is known only to the user's ssh, so its tasks get the address at which ssh reached it.
        assert [task.address for task in ready.cluster.tasks] == ["10.0.0.1:4001", "gpu2:4002"]
    finally:
        for link_ in tasks._links.values():
            link_._process.kill()
        tasks.close()


def test_process_id_memory_use_and_progress_of_a_remote_task_arrive_here(tmp_path):
    use = Use(8.0, 0.9, 0.1, 0.95, 2, 0.5, None, 3.0, 4.0)
    sent = [Started("worker:0", 4711), Memory("worker:0", 61_000_000), Used("worker:0", use)]
    cluster = Cluster((Task("worker", 0, "h1", 1),))

    def command(host):
        hello = {"version": __version__, "address": "", "unknown_hosts": [], "warnings": [], "ports": {"worker:0": 4000}}
        says = START + encode({"hello": hello}) + encode({"ready": True})
        says += b"".join(encode(as_json(event)) for event in sent)
        says += encode({"steps": "worker:0"}, b"7") + encode({"progress": "worker:0"}, b'{"phase": "fit", "epoch": 2}')
        # It speaks when it is told to start the task.
        return [
            sys.executable,
            "-c",
            f"import os, time; os.read(0, 1); os.read(0, 9999); os.write(1, {says!r}); time.sleep(60)",
        ]

    tasks = RemoteTasks(Plan(Job(cluster, choose(cluster), Program(script="x.py"))), JobFiles(tmp_path), command, "/")
    try:
        tasks.start(cluster.tasks[0], {}, str(tmp_path / "report.json"), False)
        events = []
        progress = wait_until(lambda: events.extend(tasks.poll(0.1)) or read(tmp_path / "report.json"))
        assert set(sent) <= set(events)
        assert progress == Progress("fit", 2)
        assert (tmp_path / "report.json.steps").read_text() == "7"  # For `--fail_at`.
    finally:
        for link_ in tasks._links.values():
            link_._process.kill()
        tasks.close()


def test_a_task_that_is_started_again_waits_for_its_port_until_the_agent_that_was_lost_has_ended(tmp_path):
    (tmp_path / "x.py").write_text(f"{LISTENS}time.sleep(600)")
    cluster = Cluster((Task("worker", 0, "h1"),)).addressed()
    plan = Plan(Job(cluster, choose(cluster), Program(script="x.py")), open_ports=frozenset({"worker:0"}))
    # As behind ssh, the launcher is not the parent of the agent.
    words = [
        "sh",
        "-c",
        f'exec 3<&0; "$@" <&3 & echo $! > {tmp_path}/pid; wait',
        "sh",
        sys.executable,
        str(PROGRAMS / "quick_agent.py"),
    ]
    tasks = RemoteTasks(plan, JobFiles(tmp_path), lambda host: [*words, "-c", BOOTSTRAP], str(tmp_path), silence=3.0)

    def wait_for(kind):
        deadline, events = time.monotonic() + 90, []
        while not any(isinstance(event, kind) for event in events):
            assert time.monotonic() < deadline, events
            events += [event for event in tasks.poll(0.1) if not isinstance(event, Memory | Used)]
        return events

    try:
        wait_for(Ready)
        tasks.start(cluster.tasks[0], {}, None, False)
        wait_for(Started)
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGSTOP)  # It ends 2 s after the launcher has given it up.
        wait_for(Unreachable)
        tasks.start(cluster.tasks[0], {}, None, False)
        assert not any(isinstance(event, Unreachable) for event in wait_for(Started))
    finally:
        tasks.close()


def test_a_task_whose_room_is_on_another_node_when_it_is_started_again_is_refused(tmp_path):
    (tmp_path / "x.py").write_text(f"{LISTENS}time.sleep(600)")
    cluster = Cluster((Task("worker", 0, "192.0.2.1", 1),))  # Not an address of this machine, where the second agent runs.
    agent_command = [sys.executable, str(PROGRAMS / "quick_agent.py"), "-c", BOOTSTRAP]
    hello = {"version": __version__, "address": "", "unknown_hosts": [], "warnings": [], "ports": {"worker:0": 4000}}
    says = START + encode({"hello": hello}) + encode({"ready": True})
    commands = iter(
        [[sys.executable, "-c", f"import os; os.write(1, {says!r}); os.read(0, 1); os.read(0, 99999)"], agent_command]
    )
    plan, hosts = Plan(Job(cluster, choose(cluster), Program(script="x.py"))), {"worker:0": list(cluster.tasks)}
    tasks = RemoteTasks(plan, JobFiles(tmp_path), lambda name: next(commands), str(tmp_path), hosts=hosts)
    try:
        tasks.start(cluster.tasks[0], {}, None, False)
        causes, deadline = [], time.monotonic() + 40
        while len(causes) < 2:
            assert time.monotonic() < deadline, causes
            lost = [event.cause for event in tasks.poll(0.1) if isinstance(event, Unreachable)]
            causes += lost
            if len(causes) == 1 and lost:
                tasks.start(cluster.tasks[0], {}, None, False)
        assert causes[1].endswith("worker:0 belongs to the node 192.0.2.1, and its room is on another one now")
    finally:
        tasks.close()


def test_a_host_that_cannot_be_connected_to_for_want_of_files_is_a_task_that_cannot_be_started(tmp_path):
    cluster = Cluster((Task("worker", 0, "h1", 1), Task("worker", 1, "h2", 2)))
    started = []

    def popen(command, **more):
        if len(started) == limit:
            raise OSError(errno.EMFILE, "Too many open files")
        started.append(subprocess.Popen(command, **more))
        return started[-1]

    def begin():
        plan = Plan(Job(cluster, choose(cluster), Program(script="x.py")))
        return RemoteTasks(plan, JobFiles(tmp_path), lambda host: ["sleep", "60"], "/", popen=popen)

    limit = 1
    with pytest.raises(OSError, match="Too many open files"):
        begin()
    assert started.pop().returncode is not None  # It is not left.
    limit = 2
    tasks = begin()
    tasks._drop("h1")  # As after a lost connection.
    tasks.start(cluster.tasks[0], {}, None, False)
    assert [(event.task, event.note) for event in tasks.poll(0.0)] == [("worker:0", "[Errno 24] Too many open files")]
    tasks._drop("h2")
    tasks.close()


def test_a_host_whose_tensorflow_is_refused_does_not_look_like_one_that_may_be_used_later(tmp_path):
    cluster = Cluster((Task("worker", 0, "h1", 1),))
    says = START + encode(as_json(Lost("TensorFlow 1.15 is too old", refused=True)))
    command = [sys.executable, "-c", f"import os, time; os.write(1, {says!r}); time.sleep(60)"]
    plan = Plan(Job(cluster, choose(cluster), Program(script="x.py")))
    tasks = RemoteTasks(plan, JobFiles(tmp_path), lambda host: command, "/")
    assert wait_until(lambda: tasks.poll(0.1)) == [Lost("h1 cannot be used: TensorFlow 1.15 is too old", refused=True)]
    tasks.close()


def test_a_task_that_waits_for_the_agent_of_its_host_is_not_started_after_a_signal_that_ends_it(tmp_path):
    """As a worker that `tfdist scale` has made leave while its host was tried again: nobody would have ended it."""
    cluster, said = Cluster((Task("worker", 0, "h1", 1), Task("worker", 1, "h1", 2))), []
    tasks = RemoteTasks(
        Plan(Job(cluster, choose(cluster), Program(script="x.py"))), JobFiles(tmp_path), lambda host: ["sleep", "60"], "/"
    )
    try:
        for task in cluster.tasks:
            tasks.start(task, {}, None, False)
        tasks.signal(["worker:0", "worker:1"], signal.SIGUSR1)
        assert tasks.poll(0.0) == []
        tasks.signal(["worker:1"], signal.SIGTERM)
        assert [(event.task, event.code) for event in tasks.poll(0.0)] == [("worker:1", -signal.SIGTERM)]
        tasks._links["h1"].say = said.append
        ports = {"worker:0": 1, "worker:1": 2}
        hello = {"version": __version__, "address": "", "unknown_hosts": [], "warnings": [], "ports": ports}
        tasks._handle("h1", {"hello": hello}, b"")
        tasks._handle("h1", {"ready": True}, b"")
        assert [message["start"] for message in said if "start" in message] == ["worker:0"]
    finally:
        tasks._drop("h1")
        tasks.close()
