"""The back end ssh: real servers on this machine, each a host; its tasks run without TensorFlow, except in the last test."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from contextlib import ExitStack
from pathlib import Path

import pytest
import ssh_here
from listening import LISTENS
from processes import MARK, left_of, parent_of, processes_of
from reserved import free_network, free_port, free_ports
from support_paths import CHECKOUT, PROGRAMS
from tools import needs
from warm import WarmPython

pytestmark = [pytest.mark.cluster, needs("sshd")]

SERVES = LISTENS + "pathlib.Path(f\"pid-{me['index']}\").write_text(str(os.getpid()))\n"


class Hosts:
    """Hosts `h1` and `h2`, and the launcher that uses them."""

    def __init__(self, folder: Path, python: WarmPython) -> None:
        self.folder, self._python = folder, python
        self.mark = uuid.uuid4().hex
        self.agent = folder / "python"
        self.agent.write_text(f'#!/bin/sh\nPYTHONPATH={CHECKOUT} exec {sys.executable} {PROGRAMS / "quick_agent.py"} "$@"\n')
        self.agent.chmod(0o755)
        ssh_here.keys(folder)
        (folder / "temporary").mkdir()  # Agents that a test kills leave their folder behind.
        self.variables = {MARK: self.mark, "TMPDIR": str(folder / "temporary")}

    def start(
        self, body, *words, arguments=(), cluster="horovodrun -np 4 -H h1:2,h2:2", command=("-m", "tfdist", "run"), **more
    ):
        """Starts the launcher; returns its process."""
        for path in self.folder.glob("pid-*"):
            path.unlink()
        (self.folder / "program.py").write_text(body)
        flags = ["--backend", "ssh", "--ssh_config", str(self.folder / "config"), "--cluster", cluster]
        if "--ssh_python" not in words:
            flags += ["--ssh_python", str(self.agent)]
        environ = (
            os.environ | {"PYTHONPATH": str(CHECKOUT), "TFDIST_STATE_DIR": str(self.folder / "state"), MARK: self.mark} | more
        )
        return self._python.start_piped([*command, *flags, *words, "program.py", *arguments], str(self.folder), environ)

    def run(self, *words, timeout=60, **more):
        """Runs the launcher to its end; returns exit code and output. Nothing of it is left."""
        process = self.start(*words, **more)
        output = process.communicate(timeout=timeout)[0]
        assert self.left(within=10) == {}
        return process.returncode, output

    def tfdist(self, *words):
        """Runs a command; returns what it has printed."""
        environ = os.environ | {"TFDIST_STATE_DIR": str(self.folder / "state")}
        return self._python.run(["-m", "tfdist", *words], str(self.folder), environ, 40).stdout

    def pids(self, count):
        """Waits until `count` tasks run; returns their process ids."""
        deadline = time.monotonic() + 90
        while True:
            texts = [path.read_text() for path in sorted(self.folder.glob("pid-*"))]
            if len(texts) == count and all(texts):
                return [int(text) for text in texts]
            assert time.monotonic() < deadline, texts
            time.sleep(0.05)

    def left(self, within):
        """Returns the processes of launcher, hosts and tasks that are alive after `within` seconds; see `left_of`."""
        return left_of(self.mark, within)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory, quick_python):
    hosts = Hosts(tmp_path_factory.mktemp("ssh"), quick_python)
    port = free_port()
    ssh_here.add_host(hosts.folder, "h1 h2", "127.0.0.1", port)
    with ssh_here.server(hosts.folder, "127.0.0.1", port, variables=hosts.variables):
        yield hosts


@pytest.fixture(autouse=True)
def ends_everything(request):
    yield
    if "hosts" in request.fixturenames:
        for pid in processes_of(request.getfixturevalue("hosts").mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def command_lines():
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes())
        except OSError:
            continue
    return lines


def test_arguments_variables_output_and_report_arrive_and_no_process_list_shows_them(hosts):
    odd = "ge heim\n\"$HOME\" 'q' `id` ü \\ %s"
    body = (
        "import pathlib, signal\nsignal.signal(signal.SIGTERM, lambda *_: pathlib.Path('asked').touch())\n"
        + SERVES
        + "print('got', json.dumps([os.environ['SECRET'], sys.argv[1:]]), os.getppid(), flush=True)\n"
        "while not os.path.exists('go'): time.sleep(0.05)\n"  # All tasks have set the handler then.
        "if report := os.environ['TFDIST_REPORT']:\n"
        "    pathlib.Path(report).write_text('{\"steps\": 5}')\n"
        "    pathlib.Path(report + '.steps').write_text('3')\n"
        "while not os.path.exists('asked'): time.sleep(0.05)\n"
    )
    words = ("--env", "SECRET", "--summary", "summary.json", "--fail_at", "worker:1,step=3,how=term")
    launcher = hosts.start(body, *words, arguments=(odd, "--x="), SECRET=odd)
    hosts.pids(4)
    lines = [line for line in command_lines() if b"ge heim" in line]
    (hosts.folder / "go").touch()
    output = launcher.communicate(timeout=90)[0]
    (hosts.folder / "go").unlink()
    (hosts.folder / "asked").unlink()
    assert launcher.returncode == 0, output
    assert all(b"tfdist\0run" in line for line in lines)  # The user's own command names it; no other does.
    got = [line for line in output.splitlines() if " | got " in line]
    assert len(got) == 4 and all(json.dumps([odd, [odd, "--x="]]) in line for line in got)
    assert len({line.rpartition(" ")[2] for line in got}) == 2  # One fork server for each host.
    assert json.loads((hosts.folder / "summary.json").read_text())["steps"] == 5
    assert hosts.left(within=10) == {}


def test_relative_paths_are_in_the_folder_of_the_tasks(hosts):
    folder = hosts.folder / "there"
    folder.mkdir()
    body = SERVES + "print('backup', os.environ['TFDIST_BACKUP_DIR'], 'evaluator', os.environ['TFDIST_EVALUATOR_DIR'])"
    (folder / "program.py").write_text(body)
    words = ("--ssh_folder", str(folder), "--backup_dir", "b", "--job_dir", "out")
    ports = iter(free_ports(3))
    cluster = {job: [f"{host}:{next(ports)}"] for job, host in (("chief", "h1"), ("worker", "h2"), ("evaluator", "h2"))}
    code, output = hosts.run(body, *words, cluster=json.dumps({"cluster": cluster}))
    assert code == 0, output
    seen = {line for line in output.splitlines() if f" | backup {folder}/b evaluator {folder}/out" in line}
    assert {line.split()[0] for line in seen} >= {"chief:0", "worker:0"}
    shutil.rmtree(folder)


def test_a_task_that_fails_ends_all_and_is_named_with_its_last_lines(hosts):
    body = SERVES + "if me['index'] == 2: print('my last words', flush=True); sys.exit(7)\ntime.sleep(600)"
    code, output = hosts.run(body)
    assert code == 7
    assert "tfdist: worker:2 failed first: it exited with 7" in output
    assert "my last words" in output.rpartition("the last lines of")[2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_remote_tasks_die_with_the_launcher(hosts, number):
    launcher = hosts.start(
        SERVES + "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)\ntime.sleep(600)"
    )
    hosts.pids(4)
    launcher.send_signal(number)
    assert hosts.left(within=10) == {}
    assert launcher.wait(10) == (130 if number == signal.SIGINT else -9)


def test_a_killed_agent_takes_its_tasks_along_and_is_named(hosts):
    launcher = hosts.start(SERVES + "time.sleep(600)")
    pid = hosts.pids(4)[3]
    fork_server = parent_of(pid)
    agent = parent_of(parent_of(fork_server))  # The guard is between the two.
    os.kill(agent, signal.SIGKILL)
    output = launcher.communicate(timeout=90)[0]
    assert launcher.returncode == 137
    assert "worker:2 failed first: it cannot be reached any more: h2: ssh ended with" in output
    assert hosts.left(within=10) == {}


def test_the_tasks_of_a_stopped_agent_end_when_the_launcher_has_given_it_up(hosts):
    launcher = hosts.start(SERVES + "time.sleep(600)", "--ssh_silence", "3")
    agent = parent_of(parent_of(parent_of(hosts.pids(4)[3])))
    os.kill(agent, signal.SIGSTOP)
    output = launcher.communicate(timeout=90)[0]
    assert launcher.returncode == 137
    assert "cannot be reached any more: h2: nothing was heard from there for 3 s" in output
    assert hosts.left(within=10) == {} and not list((hosts.folder / "temporary").glob("tfdist-agent-*"))


def test_much_output_arrives_complete_also_behind_a_slow_reader(hosts):
    lines = 20_000
    body = SERVES + f"for n in range({lines}): print('x' * 90, n)\n"
    launcher = hosts.start(body)
    time.sleep(2)  # Meanwhile nobody reads, and 8 MB are more than pipes and buffers hold.
    output = launcher.communicate(timeout=90)[0]
    assert launcher.returncode == 0
    (folder,) = {path.parent for path in hosts.folder.glob("tfdist_logs/*/worker-0.log") if path.stat().st_size > 1 << 20}
    for index in range(4):
        log = (folder / f"worker-{index}.log").read_text().splitlines()
        assert [line.split()[1] for line in log] == [str(n) for n in range(lines)]
    left_out = sum(int(line.split()[1]) for line in output.splitlines() if "left out here" in line)
    assert output.count("| xxx") + left_out == 4 * lines
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("words", "more", "message"),
    [
        ((), {"cluster": "horovodrun -np 2 -H h1:1,nowhere:1"}, "tfdist: nowhere cannot be used: ssh ended with 255: ssh: "),
        (("--ssh_python", "/no/python"), {}, "cannot be used: ssh ended with 127: "),
        (
            ("--ssh_folder", "/no/folder"),
            {},
            "cannot be used: the working folder /no/folder cannot be used there: No such file",
        ),
    ],
)
def test_a_host_that_cannot_be_used_is_one_line(hosts, words, more, message):
    code, output = hosts.run(SERVES, *words, **more)
    assert code == 1
    (line,) = [line for line in output.splitlines() if "cannot be used" in line]
    assert message in line


def test_a_job_in_the_background_is_followed_and_ended_by_its_handle(hosts):
    launcher = hosts.start(SERVES + "print('ready', flush=True)\ntime.sleep(600)", "--detach")
    handle = launcher.communicate(timeout=90)[0].strip()
    assert launcher.returncode == 0 and handle.startswith("ssh://")
    hosts.pids(4)
    deadline = time.monotonic() + 90
    while f"{handle}  running" not in (status := hosts.tfdist("status", handle)):
        assert time.monotonic() < deadline, status
    assert "worker:3  running  127.0.0.1" in status
    assert hosts.tfdist("logs", handle, "worker:3") == "ready\n"
    assert hosts.tfdist("cancel", handle) == f"{handle}  cancelled\n"
    assert hosts.left(within=10) == {}


def test_a_job_that_is_ended_while_a_host_gives_no_answer_says_how_it_has_ended(hosts):
    places = zip(("chief", "worker", "ps"), ("h1", "h2", "h1"), free_ports(3), strict=True)
    cluster = json.dumps({"cluster": {job: [f"{host}:{port}"] for job, host, port in places}})
    body = SERVES.replace("pid-{me['index']}", "pid-{me['type']}") + "time.sleep(600)"
    handle = hosts.start(body, "--detach", "--grace_period", "0", cluster=cluster).communicate(timeout=90)[0].strip()
    hosts.pids(3)
    os.kill(parent_of(parent_of(parent_of((hosts.folder / "pid-chief").read_text()))), signal.SIGSTOP)  # The agent.
    assert hosts.tfdist("cancel", handle) == f"{handle}  cancelled\n"


@pytest.fixture
def far_hosts(tmp_path, quick_python):
    """Hosts h1 and h2 in network namespaces of their own; the launcher reaches them over a virtual cable."""
    hosts = Hosts(tmp_path, quick_python)
    with ExitStack() as stack:
        for number, name in enumerate(("h1", "h2")):
            address = stack.enter_context(ssh_here.namespace(f"tfd{os.getpid()}{number}", free_network()))
            ssh_here.add_host(tmp_path, name, address, 2222)
            prefix = ("ip", "netns", "exec", f"tfd{os.getpid()}{number}")
            stack.enter_context(ssh_here.server(tmp_path, address, 2222, prefix=prefix, variables=hosts.variables))
        yield hosts
        for pid in processes_of(hosts.mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


@needs("namespaces")
def test_when_the_link_is_cut_the_remote_tasks_end_and_the_host_is_named(far_hosts):
    launcher = far_hosts.start(SERVES + "time.sleep(600)", "--ssh_silence", "4")
    pids = far_hosts.pids(4)
    subprocess.run(["ip", "link", "set", f"v{os.getpid()}1", "down"], check=True)
    output = launcher.communicate(timeout=90)[0]
    assert launcher.returncode == 137
    assert "cannot be reached any more: h2: nothing was heard from there for 4 s" in output
    assert far_hosts.left(within=10) == {}
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@needs("namespaces")
def test_a_host_that_is_off_is_named_and_nothing_runs_on_the_others(far_hosts):
    subprocess.run(["ip", "-n", f"tfd{os.getpid()}1", "link", "set", f"w{os.getpid()}1", "down"], check=True)
    launcher = far_hosts.start(SERVES + "time.sleep(600)")
    output = launcher.communicate(timeout=60)[0]
    (line,) = [line for line in output.splitlines() if "cannot be used" in line]
    assert launcher.returncode == 1 and "h2 cannot be used: ssh ended with 255: " in line
    assert far_hosts.left(within=10) == {} and not list(far_hosts.folder.glob("pid-*"))


TRAINS = """
import keras, numpy as np, tfdist
with tfdist.strategy().scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(np.ones((64, 4)), np.ones((64, 1)), batch_size=16, epochs=2, verbose=2)
"""


def test_a_model_trains_on_two_hosts_and_each_imports_tensorflow_once(hosts):
    code, output = hosts.run(
        TRAINS,
        "--summary",
        "trained.json",
        "--ssh_python",
        sys.executable,
        cluster="horovodrun -np 2 -H h1:1,h2:1",
        timeout=200,
    )
    assert code == 0, output
    summary = json.loads((hosts.folder / "trained.json").read_text())
    assert (summary["strategy"], summary["steps"]) == ("multi_worker_mirrored", 8)
    assert "worker:0 | Epoch 2/2" in output


def wait_for(condition, log):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


@needs("namespaces")
def test_a_job_that_starts_again_waits_for_a_host_that_is_away_and_that_is_one_restart(far_hosts):
    body = SERVES + "while not os.path.exists('go'): time.sleep(0.05)\n"
    launcher = far_hosts.start(body, "--ssh_silence", "3", "--max_restarts", "1", "--detach")
    launcher.communicate(timeout=90)
    far_hosts.pids(4)
    log = next(far_hosts.folder.glob("state/jobs/*/output.log"))
    wait_for(lambda: json.loads((log.parent / "state.json").read_text())["state"] == "running", log)  # All tasks listen.
    subprocess.run(["ip", "link", "set", f"v{os.getpid()}1", "down"], check=True)
    wait_for(lambda: log.read_text().count("h2 cannot be used: ssh ended with 255: ") == 2, log)
    for path in far_hosts.folder.glob("pid-*"):
        path.unlink()
    subprocess.run(["ip", "link", "set", f"v{os.getpid()}1", "up"], check=True)
    far_hosts.pids(4)
    (far_hosts.folder / "go").touch()
    wait_for(lambda: "tfdist: done" in log.read_text(), log)
    assert log.read_text().count("(restart 1 of 1)") == 3  # The end of the first attempt, and two that could not begin.
    assert far_hosts.left(within=10) == {}


@needs("namespaces")
def test_under_hogwild_a_worker_whose_link_was_cut_is_started_again_when_the_link_is_back(far_hosts):
    ports = free_ports(4)
    cluster = {"chief": [f"h1:{ports[0]}"], "worker": [f"h1:{ports[1]}", f"h2:{ports[2]}"], "ps": [f"h1:{ports[3]}"]}
    (far_hosts.folder / "cluster.json").write_text(json.dumps({"cluster": cluster}))
    body = SERVES.replace("pid-{me['index']}", "pid-{me['type']}-{me['index']}") + (
        "if me['type'] == 'chief':\n    while not os.path.exists('go'): time.sleep(0.05)\nelse: time.sleep(600)\n"
    )
    launcher = far_hosts.start(body, "--strategy", "hogwild", "--ssh_silence", "3", "--detach", cluster="cluster.json")
    handle = launcher.communicate(timeout=90)[0].strip()
    far_hosts.pids(4)
    first = (far_hosts.folder / "pid-worker-1").read_text()
    log = next(far_hosts.folder.glob("state/jobs/*/output.log"))
    wait_for(lambda: json.loads((log.parent / "state.json").read_text())["state"] == "running", log)  # All tasks listen.
    subprocess.run(["ip", "link", "set", f"v{os.getpid()}1", "down"], check=True)
    wait_for(lambda: "worker:1 ended early: it cannot be reached any more: h2: nothing was heard" in log.read_text(), log)
    subprocess.run(["ip", "link", "set", f"v{os.getpid()}1", "up"], check=True)
    wait_for(lambda: (far_hosts.folder / "pid-worker-1").read_text() not in ("", first), log)
    assert processes_of(far_hosts.mark).keys() & {int(first)} == set()
    assert handle.startswith("ssh://")
    for pid in processes_of(far_hosts.mark):
        with contextlib.suppress(ProcessLookupError):  # The launcher ends others as soon as one has ended.
            os.kill(pid, signal.SIGTERM)
