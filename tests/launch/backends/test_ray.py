"""The back end ray on real clusters of Ray on this machine; the tasks run without TensorFlow, except in the last test."""

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from listening import LISTENS
from processes import MARK, end_processes, processes_of
from support_paths import CHECKOUT, PROGRAMS
from tools import needs
from waits import wait_until
from warm import COMMANDS, WarmPython

from tfdist import ClusterError
from tfdist.launch.backends.ray import placement

pytestmark = [pytest.mark.cluster, needs("ray")]

SERVES = (
    LISTENS
    + """
folder = pathlib.Path(os.environ["TEST_FOLDER"])
(folder / f"pid-{name}").write_text(str(os.getpid()))
"""
)


class RayHere:
    """A cluster of three nodes, and the launcher that uses it."""

    def __init__(self, folder: Path) -> None:
        from ray.cluster_utils import Cluster

        self.folder = folder
        self.mark = uuid.uuid4().hex
        (folder / "quick").mkdir()
        (folder / "work").mkdir()
        (folder / "quick" / "sitecustomize.py").write_text(
            "import sys\n"
            f"import os\nif any('tfdist' in word for word in sys.orig_argv) and not os.path.exists({str(folder / 'slow')!r}):\n"
            f"    sys.path.append({str(PROGRAMS)!r})\n    import quick_launcher\n    quick_launcher.make_quick()\n"
            "    from tfdist.launch.backends.ray import head_watch\n"
            "    head_watch.SILENT_SECONDS = float(os.environ.get('TEST_SILENT', head_watch.SILENT_SECONDS))\n"
        )
        self.environ = {name: value for name, value in os.environ.items() if name not in ("TF_CONFIG", "RAY_ADDRESS")} | {
            "PYTHONPATH": f"{folder / 'quick'}:{CHECKOUT}",
            "TFDIST_STATE_DIR": str(folder / "state"),
            "TEST_FOLDER": str(folder),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",  # A token would be a file in the home folder.
            "RAY_prestart_worker_first_driver": "0",  # A Python for each core, at the start of each job.
            MARK: self.mark,
        }
        of_ray = {name: value for name, value in self.environ.items() if name.startswith("RAY_")}
        self.python = WarmPython(MARK, *COMMANDS, "ray", **of_ray)  # Ray takes seconds to import.
        with self._environment():
            # A node replaces the files that it finds: those of another node on the same machine, which is about to use them.
            self.folders = ({"runtime_env_dir_name": f"runtime_resources-{number}"} for number in itertools.count())
            small = {"object_store_memory": 80 << 20, "include_dashboard": False}
            self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "no_monitor": True, **small})
            self.cluster.add_node(num_cpus=2, num_gpus=1, object_store_memory=80 << 20, **next(self.folders))
        self.add_node()

    @contextlib.contextmanager
    def _environment(self):
        """What is started inside gets the variables of the tests."""
        before = dict(os.environ)
        os.environ.update(self.environ)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)

    def add_node(self):
        with self._environment():
            self.last = self.cluster.add_node(num_cpus=2, object_store_memory=80 << 20, **next(self.folders))

    def start(self, body, *words, arguments=(), description='{"worker": 3}', **more):
        """Starts the launcher; returns its process."""
        for path in self.folder.glob("pid-*"):
            path.unlink()
        (self.folder / "work" / "program.py").write_text(body)
        command = ["-m", "tfdist", "run", "--backend", "ray", "--cluster", description, *words, "program.py", *arguments]
        folder, environ = str(self.folder / "work"), self.environ | {"RAY_ADDRESS": self.cluster.address} | more
        if "TEST_SILENT" not in more:
            return self.python.start_piped(command, folder, environ)
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(
            [sys.executable, *command], cwd=folder, env=environ, text=True, start_new_session=True, **options
        )

    def run(self, *words, timeout=60, **more):
        """Runs the launcher to its end; returns exit code and output."""
        process = self.start(*words, **more)
        output = process.communicate(timeout=timeout)[0]
        return process.returncode, output

    def pids(self, count):
        """Waits until `count` tasks run; returns their process ids by name."""
        deadline = time.monotonic() + 90
        while True:
            texts = {path.name.removeprefix("pid-"): path.read_text() for path in self.folder.glob("pid-*")}
            if len(texts) == count and all(texts.values()):
                return {name: int(text) for name, text in texts.items()}
            assert time.monotonic() < deadline, texts
            time.sleep(0.05)

    def left(self, within):
        """Returns the agents and tasks that are alive after `within` seconds; at once when none are."""
        deadline = time.monotonic() + within
        while True:
            alive = {
                pid: line
                for pid, line in processes_of(self.mark).items()
                if any(word in line for word in ("tfdist", "program.py", "sleep 600", "import os"))
            }
            if not alive or time.monotonic() > deadline:
                return alive
            time.sleep(0.05)


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    before = signal.getsignal(signal.SIGTERM)  # Ray sets its own handler in this process.
    here = RayHere(tmp_path_factory.mktemp("ray"))
    yield here
    here.cluster.shutdown()
    here.python.close()
    end_processes(here.mark)
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(autouse=True)
def gives_the_room_back(here):
    yield
    for pid in here.left(within=0):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def test_arguments_variables_output_and_report_arrive_and_every_task_has_a_port_of_its_own(here):
    odd = "ge heim\n\"$HOME\" 'q' `id` ü \\ %s"
    body = SERVES + (
        "print('got', json.dumps([os.environ['SECRET'], sys.argv[1:]]), flush=True)\n"
        "print('sees', os.environ['CUDA_VISIBLE_DEVICES'], config['cluster'], os.getcwd(), flush=True)\n"
        "if os.environ.get('TFDIST_REPORT'): pathlib.Path(os.environ['TFDIST_REPORT']).write_text('{\"steps\": 5}')\n"
        "while json.loads((folder / 'work' / 'state.json').read_text())['state'] == 'starting': time.sleep(0.05)\n"
    )
    roles = '{"chief": 1, "worker": 2, "ps": 1, "evaluator": 1}'
    words = ("--env", "SECRET", "--summary", "summary.json", "--state_file", "state.json", "--job_dir", str(here.folder))
    code, output = here.run(body, *words, arguments=(odd, "--x="), description=roles, SECRET=odd)
    assert code == 0, output
    got = [line for line in output.splitlines() if " | got " in line]
    assert len(got) == 5 and all(line.endswith(json.dumps([odd, [odd, "--x="]])) for line in got)
    seen = [line for line in output.splitlines() if " | sees " in line]
    assert all(" | sees -1 " in line for line in seen)  # Nobody has reserved the GPU.
    ports = re.findall(r":(\d+)'", seen[0])
    assert len(set(ports)) == len(ports) == 4  # An evaluator listens nowhere.
    assert all(str(here.folder / "work") not in line for line in seen)  # Ray has sent a copy of the folder.
    assert json.loads((here.folder / "work" / "summary.json").read_text())["steps"] == 5
    assert here.left(within=10) == {}


def test_a_task_that_fails_ends_all_and_is_named_and_a_shared_folder_is_used(here):
    body = SERVES + "if me['index'] == 1: print('my last words', os.getcwd(), flush=True); sys.exit(7)\ntime.sleep(600)"
    words = ("--ray_folder", str(here.folder / "work"), "--ray_placement", "SPREAD")
    code, output = here.run(body, *words, description='{"worker": 2}')
    assert code == 7
    assert "tfdist: worker:1 failed first: it exited with 7" in output
    assert f"my last words {here.folder / 'work'}" in output.rpartition("the last lines of")[2]
    assert here.left(within=10) == {}


GPU_POD = """
apiVersion: kubeflow.org/v1
kind: TFJob
metadata: {name: gpu}
spec:
  tfReplicaSpecs:
    Worker:
      replicas: 1
      template: {spec: {containers: [{name: tensorflow, resources: {limits: {nvidia.com/gpu: 1}}}]}}
"""


def test_a_gpu_is_reserved_and_what_has_no_room_says_for_want_of_what(here):
    (here.folder / "work" / "gpu.yaml").write_text(GPU_POD)
    code, output = here.run(SERVES + "print('sees', os.environ['CUDA_VISIBLE_DEVICES'])", "--local", description="gpu.yaml")
    assert code == 0 and "sees 0" in output, output
    code, output = here.run(SERVES, "--gpus_per_task", "1")
    assert (code, output.count("\n")) == (2, 1) and "the 3 tasks need 3 GPU, and its 3 nodes have 1" in output, output
    assert here.left(within=10) == {}


def test_no_cluster_and_one_that_never_answers_are_refused(monkeypatch):
    with pytest.raises(ClusterError, match=r"the cluster of Ray at 127\.0\.0\.1:1 cannot be used: .*refused"):
        placement.Placement("127.0.0.1:1", ".", None, 1)
    monkeypatch.setattr(placement, "INIT_SECONDS", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"ray://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ClusterError, match=r"^--ray_folder: Ray's client cannot be relied on to send"):
            placement.Placement(address, ".", None, 1)
        with pytest.raises(ClusterError, match=f"at {address} cannot be used: it did not answer within 2 s"):
            placement.Placement(address, ".", "/shared", 1)
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_a_job_waits_for_room_that_another_uses_and_both_are_ended(here):
    first = here.start(SERVES + "time.sleep(600)", "--detach", "--ray_cpus", "2")
    handle = first.communicate(timeout=60)[0].strip()
    assert re.fullmatch(r"ray://\S+", handle)
    here.pids(3)
    code, output = here.run(SERVES, "--ray_wait", "2")
    assert code == 2 and "other jobs use it; free are 0 CPU, 1 GPU; waited 2 s (--ray_wait)" in output, output

    def tfdist(*words):
        return here.python.run(["-m", "tfdist", *words], str(here.folder), here.environ)

    assert tfdist("status", handle).stdout.startswith(f"{handle}  running")
    assert tfdist("logs", handle).stdout.count(" on ") >= 3  # Which node each task has.
    assert tfdist("cancel", handle).stdout == f"{handle}  cancelled\n"
    assert here.left(within=10) == {}


def test_a_worker_of_hogwild_is_restarted_alone_and_all_tasks_die_with_a_killed_launcher(here):
    body = SERVES + "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)\ntime.sleep(600)"
    words = ("--strategy", "hogwild", "--state_file", "hogwild.json")
    launcher = here.start(body, *words, description='{"chief": 1, "worker": 1, "ps": 1}')
    first = here.pids(3)
    wait_until(lambda: json.loads((here.folder / "work" / "hogwild.json").read_text())["state"] == "running")
    os.kill(first["worker-0"], signal.SIGKILL)
    wait_until(lambda: here.pids(3)["worker-0"] != first["worker-0"])
    assert here.pids(3)["chief-0"] == first["chief-0"]
    launcher.kill()
    output = launcher.communicate(timeout=60)[0]
    assert "worker:0 ended early: it was killed by SIGKILL; the training waits for it, and the task is restarted" in output
    assert here.left(within=15) == {}


def test_a_head_that_gives_no_answer_ends_the_job_before_ray_ends_the_launcher(here):
    launcher = here.start(SERVES + "time.sleep(600)", "--summary", "lost.json", description='{"worker": 1}', TEST_SILENT="4")
    here.pids(1)
    head = here.cluster.head_node.all_processes["gcs_server"][0].process
    head.send_signal(signal.SIGSTOP)
    try:
        output = launcher.communicate(timeout=60)[0]
    finally:
        head.send_signal(signal.SIGCONT)
    assert launcher.returncode == 1
    assert "tfdist: the head of the cluster of Ray (its GCS) has given no answer for 4 s" in output
    assert json.loads((here.folder / "work" / "lost.json").read_text())["exit_code"] == 1
    assert here.left(within=10) == {}


@pytest.mark.release  # test_ssh.py trains under agents, which are the same, and the other tests here place tasks.
def test_chief_worker_and_ps_train_on_three_nodes(here):
    body = """
import keras
import numpy as np
import tfdist
with tfdist.strategy().scope():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x = np.ones((32, 2), "float32")
model.fit(x, x[:, :1], epochs=2, batch_size=8, verbose=2)
"""
    (here.folder / "slow").touch()  # With TensorFlow.
    words = ("--ray_placement", "STRICT_SPREAD", "--summary", "trained.json")
    code, output = here.run(body, *words, description='{"chief": 1, "worker": 1, "ps": 1}', timeout=200)
    (here.folder / "slow").unlink()
    assert code == 0, output
    summary = json.loads((here.folder / "work" / "trained.json").read_text())
    assert (summary["strategy"], summary["steps"]) == ("parameter_server", 8)
    assert "chief:0  | Epoch 2/2" in output


def test_a_task_of_a_lost_node_is_named(here):
    launcher = here.start(SERVES + "time.sleep(600)", "--ray_placement", "STRICT_SPREAD")
    pids = here.pids(3)
    here.cluster.remove_node(here.last, allow_graceful=False)
    output = launcher.communicate(timeout=60)[0]
    assert launcher.returncode == 137, output
    assert re.search(
        r"worker:\d failed first: it cannot be reached any more: \S+: the actor ended with 1: the node \S+ (is gone|cannot be)",
        output,
    )
    assert here.left(within=10) == {}, pids


def test_a_job_that_is_started_again_waits_for_a_node_in_place_of_a_lost_one(here):
    count = 1 + len(here.cluster.worker_nodes)
    body = SERVES + f"while not os.path.exists({str(here.folder / 'again')!r}): time.sleep(0.1)\ntime.sleep(2)"
    workers = {"description": f'{{"worker": {count}}}'}
    launcher = here.start(body, "--ray_placement", "STRICT_SPREAD", "--max_restarts", "1", **workers)
    here.pids(count)
    here.cluster.remove_node(next(iter(here.cluster.worker_nodes)), allow_graceful=False)
    lines = map(bytes.decode, launcher.stdout)
    said = next(line for line in lines if "for room on the cluster of Ray" in line or "has no room" in line)
    assert said.startswith("tfdist: waiting 10 s for room"), said
    (here.folder / "again").touch()
    here.add_node()
    output = launcher.communicate(timeout=120)[0]
    assert launcher.returncode == 0, output
