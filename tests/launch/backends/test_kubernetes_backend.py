"""The back end kubernetes: what it submits, what it says about pods, and jobs on the stand-in of `kubernetes_here`."""

import json
import os
import re
import subprocess
import sys
import time

import pytest
from kubernetes_here import _status, kubernetes
from processes import MARK
from support_paths import CHECKOUT, KUBERNETES_37
from tools import needs
from waits import wait_until
from warm import COMMANDS, WarmPython

IMAGE = "registry.example.com/mnist:1"
PROGRAM = """
import json, os, pathlib, signal, sys, time
config = json.loads(os.environ["TF_CONFIG"])
me = config["task"]
name = f"{me['type']}:{me['index']}"
print("got", json.dumps([name, os.environ.get("KEY"), sys.argv[1:], os.path.basename(os.getcwd())]), flush=True)
if sys.argv[1] == name: sys.exit(7)
if sys.argv[1].endswith(" restarts") and me["type"] == "worker":
    starts = pathlib.Path(os.environ["TEST_FOLDER"], sys.argv[2] + name + "starts")
    with open(starts, "a") as file: file.write("x")
    if starts.stat().st_size <= int(sys.argv[1].split()[0]): sys.exit(9)
if sys.argv[1] == "hangs": time.sleep(600)
if sys.argv[1] == "waits":
    while not os.path.exists("/".join((os.environ["TEST_FOLDER"], "go"))): time.sleep(0.05)
    print("last words", flush=True)
if sys.argv[1] == "lines":
    for number in range(5_000): print("x" * 60, number)
folder = pathlib.Path("/".join((os.environ["TEST_FOLDER"], sys.argv[2])))
folder.mkdir(exist_ok=True)
(folder / name).touch()
trains = "chief" if "chief" in config["cluster"] else "worker"
if me["type"] != trains:
    while not (folder / f"{trains}:0").exists() and sys.argv[1] != f"{trains}:0": time.sleep(0.05)
"""


class Here:
    def __init__(self, folder, cluster, python):
        self.folder, self.cluster, self._python = folder, cluster, python
        self.environ = {name: value for name, value in os.environ.items() if name not in ("TF_CONFIG",)}
        self.environ |= {"PYTHONPATH": str(CHECKOUT), "KUBECONFIG": str(folder / "kubeconfig")}

    def start(self, *words):
        """Starts a command whose output a test reads as it comes; what it writes to standard error is part of it."""
        return self._python.start_piped(["-m", "tfdist", *words], str(self.folder / "image" / "work"), self.environ)

    def tfdist(self, *words, **more):
        command, environ, folder = ["-m", "tfdist", *words], self.environ | more, self.folder / "image" / "work"
        if "KUBECONFIG" in more:  # The client reads it when it is imported.
            return subprocess.run(
                [sys.executable, *command], env=environ, cwd=folder, capture_output=True, text=True, timeout=60
            )
        return self._python.run(command, str(folder), environ)

    def run(self, *words, description='{"chief": 1, "worker": 2, "ps": 1}', image=IMAGE, **more):
        return self.tfdist(*RUN, "--kubernetes_image", image, "--cluster", description, *words, **more)

    def wait_for(self, handle, text):
        deadline = time.monotonic() + 90
        while text not in (got := self.tfdist("status", handle).stdout):
            assert time.monotonic() < deadline, got
            time.sleep(0.2)
        return got


RUN = ("run", "--backend", "kubernetes", "--kubernetes_folder", "/work", "--kubernetes_python", sys.executable)


@pytest.fixture(scope="module")
def cluster_of_this_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kubernetes")
    (folder / "image" / "work").mkdir(parents=True)
    (folder / "image" / "work" / "program.py").write_text(PROGRAM)
    environ = {"PATH": os.environ["PATH"], "TEST_FOLDER": str(folder)}
    with kubernetes(folder, {IMAGE: folder / "image"}, environ, "tfjobs") as cluster:
        # The client takes a second to import.
        python = WarmPython(MARK, *COMMANDS, "kubernetes", KUBECONFIG=str(folder / "kubeconfig"))
        yield Here(folder, cluster, python)
        python.close()
    assert all(process.wait(5) is not None for process in cluster.processes.values())


@pytest.fixture
def here(cluster_of_this_file):
    yield cluster_of_this_file
    cluster_of_this_file.cluster.clear()


@pytest.mark.cluster
@needs("kubernetes")
def test_a_job_is_submitted_followed_and_ends_and_what_the_dry_run_shows_is_submitted(here):
    words = ("--kubernetes_name", "first", "--env", "KEY", "program.py", "ok", "first", "a $(KEY) $$b\n'\"")
    dry = here.run("--dry_run", *words, KEY="ge heim\n7")
    assert dry.returncode == 0 and "ge heim" not in dry.stdout + dry.stderr, dry.stderr
    got = here.run(*words, KEY="ge heim\n7")
    assert got.returncode == 0, got.stdout + got.stderr
    assert "submitted as kubernetes://here/ml/job/first\n" in got.stdout
    assert got.stdout.endswith("tfdist: kubernetes://here/ml/job/first succeeded\n")
    for name in ("chief:0", "worker:0", "worker:1", "ps:0"):
        line = json.dumps([name, "ge heim\n7", ["ok", "first", "a $(KEY) $$b\n'\""], "work"])
        assert f"{name} | got {line}\n" in got.stdout
    import yaml

    shown = list(yaml.safe_load_all(dry.stdout[dry.stdout.index("# The values of --env") :]))
    assert sorted(here.cluster.names()) == sorted(
        [
            "services/first",
            "secrets/first-env",
            *(f"jobs/first-{job}" for job in ("chief", "worker", "ps")),
            *pods(here, "first"),
        ]
    )
    stored = {(entry["kind"], entry["metadata"]["name"]): entry for entry in here.cluster.objects.values() if "kind" in entry}
    for entry in shown:
        there = stored[entry["kind"], entry["metadata"]["name"]]
        if entry["kind"] == "Secret":
            assert there["stringData"] == {"KEY": "ge heim\n7"}
        else:
            assert there["spec"] == entry["spec"]
    assert here.tfdist("logs", "kubernetes://here/ml/job/first", "worker:1").stdout.startswith('got ["worker:1"')
    assert here.tfdist("cancel", "kubernetes://here/ml/job/first").stdout.endswith("has ended already: succeeded\n")
    here.cluster.delete("jobs", "ml", "first-chief")  # As Kubernetes does a day later.
    assert here.cluster.names() == []


@pytest.mark.cluster
@needs("kubernetes_37")
def test_a_job_runs_with_version_37_of_the_client_whose_calls_differ(here):
    later = {"PYTHONPATH": f"{KUBERNETES_37}{os.pathsep}{CHECKOUT}", "KUBECONFIG": here.environ["KUBECONFIG"]}
    got = here.run("--kubernetes_name", "later", "program.py", "ok", "later", **later)
    assert got.returncode == 0 and got.stdout.endswith("tfdist: kubernetes://here/ml/job/later succeeded\n"), got.stderr
    got = here.tfdist("status", "kubernetes://here/ml/job/none", **later)
    assert got.returncode == 2 and got.stderr == here.tfdist("status", "kubernetes://here/ml/job/none").stderr


def pods(here, name):
    return [found for found in here.cluster.names() if found.startswith(f"pods/{name}-")]


@pytest.mark.cluster
@needs("kubernetes")
def test_what_others_have_labeled_with_the_name_of_a_job_is_not_taken_for_a_part_of_it(here):
    """As charts of Helm label what belongs to a release."""
    for plural, kind, name in (("jobs", "Job", "a-cleanup"), ("pods", "Pod", "a-server")):
        metadata = {"name": name, "uid": name, "namespace": "ml", "creationTimestamp": "9999"}
        metadata["labels"] = {"app.kubernetes.io/instance": "shared"}
        spec = {"completions": 1, "containers": [{"name": "c", "image": "i"}]}
        entry = {"kind": kind, "metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}
        here.cluster.objects[plural, "ml", name] = entry
    handle = here.run("--kubernetes_name", "shared", "--detach", "program.py", "hangs", "shared").stdout.strip()
    here.wait_for(handle, f"{handle}  running")
    assert here.tfdist("cancel", handle).stdout == f"{handle}  cancelled\n"
    assert here.cluster.names() == ["jobs/a-cleanup", "pods/a-server"]


@pytest.mark.cluster
@needs("kubernetes")
def test_the_task_that_fails_first_is_named_and_gives_the_exit_code(here):
    got = here.run("--kubernetes_name", "bad", "program.py", "chief:0", "bad")
    assert got.returncode == 7, got.stdout + got.stderr
    assert got.stdout.endswith("tfdist: kubernetes://here/ml/job/bad failed: chief:0 failed first: it exited with 7\n")
    assert here.tfdist("status", "kubernetes://here/ml/job/bad").returncode == 1


@pytest.mark.cluster
@needs("kubernetes")
def test_each_worker_is_started_again_as_often_as_the_page_says_whatever_the_others_do(here):
    cluster = '{"chief": 1, "worker": 3, "ps": 1}'
    got = here.run("--kubernetes_name", "again", "program.py", "2 restarts", "again", description=cluster)
    assert got.returncode == 0, got.stdout + got.stderr
    for index in range(3):
        assert got.stdout.count(f'worker:{index} | got ["worker:{index}"') == 3
    status = here.tfdist("status", "kubernetes://here/ml/job/again").stdout
    assert len(re.findall(r"worker:\d +succeeded .*2 restarts", status)) == 3, status


@pytest.mark.cluster
@needs("kubernetes")
def test_a_job_is_asked_and_cancelled_from_elsewhere_and_nothing_is_left(here):
    got = here.run("--detach", "--kubernetes_name", "long", "--env", "KEY=x", "program.py", "hangs", "long")
    handle = got.stdout.strip()
    assert handle == "kubernetes://here/ml/job/long", got.stderr
    status = here.wait_for(handle, f"{handle}  running\n")
    assert re.search(r"worker:1 +running +node-1", status)
    follower = here.start("logs", "-f", handle, "ps:0")
    assert json.loads(follower.stdout.readline().decode().removeprefix("got "))[0] == "ps:0"
    processes = list(here.cluster.processes.values())
    assert here.tfdist("cancel", handle).stdout == f"{handle}  cancelled\n"
    assert follower.communicate(timeout=90)[0] == "tfdist: the job is gone: somebody has cancelled it\n"
    assert here.cluster.names() == [] and all(process.wait(10) == -15 for process in processes)
    again = here.tfdist("status", handle)
    assert (again.returncode, again.stderr) == (2, "tfdist: Kubernetes has no job long in the namespace ml (any more)\n")


@pytest.mark.cluster
@needs("kubernetes")
def test_what_pods_wait_for_is_said_in_plain_words(here):
    got = here.run("--detach", "--kubernetes_name", "image", "program.py", "ok", "image", image="nowhere/no:1")
    status = here.wait_for("kubernetes://here/ml/job/image", "cannot be pulled")
    assert "starting" not in status.splitlines()[0] and got.returncode == 0
    assert (
        'queued: chief:0: its image nowhere/no:1 cannot be pulled: Back-off pulling image "nowhere/no:1": not found' in status
    )
    assert here.tfdist("cancel", "kubernetes://here/ml/job/image").stdout.endswith("cancelled\n")
    here.run("--detach", "--kubernetes_name", "gpu", "--gpus_per_task", "1", "program.py", "hangs", "gpu")
    status = here.wait_for("kubernetes://here/ml/job/gpu", "waits for a node")
    assert "worker:0: waits for a node: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu." in status
    assert here.tfdist("cancel", "kubernetes://here/ml/job/gpu").stdout.endswith("cancelled\n")
    assert here.cluster.names() == []


@pytest.mark.cluster
@needs("kubernetes")
def test_much_output_arrives_complete_and_in_order(here):
    got = here.run("--kubernetes_name", "much", "program.py", "lines", "much", description='{"worker": 2}')
    assert got.returncode == 0, got.stderr
    for index in range(2):
        numbers = re.findall(rf"^worker:{index} \| x+ (\d+)$", got.stdout, re.MULTILINE)
        assert list(map(int, numbers)) == list(range(5_000))


@pytest.mark.cluster
@needs("kubernetes")
def test_who_follows_a_job_waits_for_a_server_that_is_busy_and_gives_its_end_and_all_output(here):
    words = ("--kubernetes_name", "busy", "program.py", "waits", "busy")
    follower = here.start(*RUN, "--kubernetes_image", IMAGE, "--cluster", '{"worker": 1}', *words)
    shown = iter(follower.stdout.readline, b"")
    assert any(b"| got " in line for line in shown)
    here.cluster.is_busy = True
    message = b"tfdist: Kubernetes: the server is currently unable to handle the request; the job may go on meanwhile"
    assert any(line.startswith(message) for line in shown)
    (here.folder / "go").touch()
    wait_until(lambda: here.cluster.has_ended("busy"))
    here.cluster.is_busy = False
    output, _ = follower.communicate(timeout=90)
    assert follower.returncode == 0
    assert "tfdist: there are answers again\n" in output and "worker:0 | last words\n" in output
    assert output.endswith("busy succeeded\n")
    assert all(line.startswith(("tfdist: ", "worker:0 | ")) for line in output.splitlines()), output


@pytest.mark.cluster
@needs("kubernetes")
def test_who_begins_to_follow_a_job_waits_for_a_server_that_is_busy(here):
    words = ("--detach", "--kubernetes_name", "begin", "program.py", "ok", "begin")
    handle = here.run(*words, description='{"worker": 1}').stdout.strip()
    here.cluster.is_busy = True
    follower = here.start("logs", "-f", handle)
    message = b"tfdist: Kubernetes: the server is currently unable to handle the request; the job may go on meanwhile"
    assert follower.stdout.readline().startswith(message)
    here.cluster.is_busy = False
    output, _ = follower.communicate(timeout=90)
    assert follower.returncode == 0
    assert "tfdist: there are answers again\n" in output and "worker:0 | got " in output
    assert all(line.startswith(("tfdist: ", "worker:0 | ")) for line in output.splitlines()), output


@pytest.mark.cluster
@needs("kubernetes")
def test_no_cluster_no_such_context_and_no_such_backup_are_one_line(here):
    for words, more, message in (
        (("--kubernetes_context", "other"), {}, "the kubeconfig has no context 'other'; it has here"),
        (
            ("--kubernetes_kind", "trainjob", "--kubernetes_runtime", "r"),
            {},
            "this cluster has no TrainJob; install Kubeflow's Tr",
        ),
        ((), {"KUBECONFIG": "/nowhere"}, "there is no cluster to use"),
        (("--backup_dir", "gs://bucket/b"), {}, "--backup_dir gs://bucket/b: a backup needs a folder on a file system"),
        (("--backup_dir", "b", "--backup_freq", "0"), {}, "--backup_freq 0: expected epoch, or a number of batches above 0"),
    ):
        run = [word for word in RUN if word not in ("--kubernetes_folder", "/work")]
        words = (*run, "--kubernetes_image", IMAGE, "-n", "2", "--env", "KEY=x", *words, "program.py", "ok", "x")
        got = here.tfdist(*words, **more)
        assert (got.returncode, got.stderr.count("\n")) == (2, 1), got.stderr
        assert message in got.stderr and here.cluster.names() == []


@pytest.mark.cluster
@needs("kubernetes")
def test_what_was_created_before_an_error_is_deleted(here):
    words = ("--kubernetes_name", "half", "--detach", "program.py", "hangs", "half")
    assert here.run(*words).returncode == 0
    before = sorted(name for name in here.cluster.names() if not name.startswith("pods/"))
    with here.cluster.lock:  # What is left lets a second job fail half-way.
        for name in ("services/half", "jobs/half-chief"):
            plural, _, key = name.partition("/")
            here.cluster.objects.pop((plural, "ml", key))
    got = here.run(*words)
    assert got.returncode == 2 and 'jobs "half-worker" already exists' in got.stderr
    assert sorted(name for name in here.cluster.names() if not name.startswith("pods/")) == [
        name for name in before if name not in ("services/half", "jobs/half-chief")
    ]


@pytest.mark.cluster
@needs("kubernetes")
def test_what_was_created_without_an_answer_is_deleted_unless_it_may_be_that_of_another_job(here, monkeypatch):
    create = here.cluster.create

    def loses_its_answer(handler, plural, space, body):
        if plural != "jobs":
            return create(handler, plural, space, body)
        body["metadata"]["uid"] = "1"
        here.cluster.objects[plural, space, body["metadata"]["name"]] = body
        return _status(handler, 504, "the request has timed out")

    monkeypatch.setattr(here.cluster, "create", loses_its_answer)
    got = here.run("--detach", "program.py", "ok", "x")
    assert (got.returncode, got.stdout) == (2, "") and "timed out" in got.stderr
    assert here.cluster.names() == []
    got = here.run("--detach", "--kubernetes_name", "given", "program.py", "ok", "x")
    assert got.returncode == 2 and here.cluster.names() == ["jobs/given-chief"]
