"""Back ends of other packages: the one in docs/backends.md, announced as an entry point, and bad ones."""

import importlib.metadata
import json
import logging
import os
import re
import shlex
import subprocess
import sys

import pytest
import tomllib
from reserved import free_ports
from support_paths import CHECKOUT, PROGRAMS

from tfdist.launch.backends import registry
from tfdist.launch.backends.interface import Attached, Backend, BackendError
from tfdist.launch.backends.registry import BUILT_IN, GROUP, find, load

PAGE = (CHECKOUT / "docs" / "backends.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^```\w+ title=\"([^\"]+)\"\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))

PROGRAM = """
import json, os, socket, sys, time
config = json.loads(os.environ["TF_CONFIG"])
me = config["task"]
listener = socket.create_server(("", int(config["cluster"]["worker"][me["index"]].rpartition(":")[2])))
print("I am", me["index"], *sys.argv[1:], flush=True)
time.sleep(2)
if me["index"] == 1 and "fail" in sys.argv: sys.exit(7)
if "fail" in sys.argv: time.sleep(600)
"""


@pytest.fixture
def plain(tmp_path):
    """Returns a function that runs tfdist with the back end of the page."""
    info = tmp_path / "site" / "tfdist_plain-1.0.dist-info"
    info.mkdir(parents=True)
    entries = tomllib.loads(FILES["pyproject.toml"])["project"]["entry-points"][GROUP]
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tfdist-plain\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items()))
    (tmp_path / "site" / "tfdist_plain.py").write_text(FILES["tfdist_plain.py"])
    (tmp_path / "program.py").write_text(PROGRAM)
    with_package = os.environ | {"PYTHONPATH": f"{tmp_path / 'site'}:{CHECKOUT}"}

    def run(*words):
        command = [sys.executable, "-m", "tfdist", *words]
        return subprocess.run(command, cwd=tmp_path, env=with_package, capture_output=True, text=True, timeout=60, check=False)

    return run


@pytest.mark.cluster
def test_the_back_end_of_the_page_runs_a_job_and_its_failure_is_found(plain):
    addresses = [f"localhost:{port}" for port in free_ports(2)]
    cluster = ("--backend", "plain", "--cluster", json.dumps({"cluster": {"worker": addresses}}), "program.py")
    got = plain("run", *cluster, "well")
    assert got.returncode == 0, got.stdout + got.stderr
    assert got.stderr == "" and "worker:1 | I am 1 well" in got.stdout and "tfdist: done in" in got.stdout
    got = plain("run", *cluster, "fail")
    assert got.returncode == 7
    assert (
        "tfdist: worker:1 failed first: it exited with 7" in got.stdout
        and "I am 1 fail" in got.stdout.rpartition("last lines")[2]
    )
    assert "Python processes on this machine" not in got.stdout


GOOD = Backend("good", "a title", plan=lambda job: None, runs=Attached(lambda plan, files: None), options={"good_queue": "x"})
FAULTS = [
    ("no back end", "it is a str; expected a tfdist.launch.backends.interface.Backend"),
    (Backend("Bad", "", plan=print, runs=GOOD.runs), "its name is 'Bad'; expected lower-case letters, digits and _"),
    (Backend("local", "", plan=print, runs=GOOD.runs), "the name local is taken; choose another"),
    (Backend("odd", "", plan="x", runs=GOOD.runs), "its plan is a str; expected a function"),
    (
        Backend("half", "", plan=print, runs=object()),
        "its runs is a object without submit, status, logs, cancel; expected an Attached or a Detached",
    ),
    (
        Backend("rude", "", plan=print, runs=GOOD.runs, options={"cluster": "x"}),
        "its option 'cluster' does not begin with rude_",
    ),
]


def test_a_bad_back_end_is_left_out_by_name_and_the_others_work(monkeypatch, caplog):
    values = [*(value for value, _ in FAULTS), GOOD]

    class Entry:
        dist = None

        def __init__(self, number):
            self.name, self.value = f"entry{number}", f"package:B{number}"

        def load(self):
            return values[int(self.name.removeprefix("entry"))]

    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [Entry(number) for number in range(len(values))])
    with caplog.at_level(logging.WARNING, "tfdist"):
        assert load(BUILT_IN) == [GOOD]
    start = "the back end of the entry point entry{0} = package:B{0} (unknown package) is left out: {1}"
    assert [record.getMessage() for record in caplog.records] == [
        start.format(number, fault) for number, (_, fault) in enumerate(FAULTS)
    ]


def test_an_unknown_back_end_is_an_error_with_all_names():
    with pytest.raises(BackendError, match=r"'locl' is not a back end; there are local.*; did you mean local\?"):
        find("locl")
    assert list(registry.backends()) == [backend.name for backend in BUILT_IN]


QUEUE = """
import json, os, pathlib
from dataclasses import replace
from tfdist.launch.backends.interface import Backend, BackendError, LogLine, Plan
from tfdist.launch.jobs.job_status import JobStatus, State, TaskStatus

FOLDER = pathlib.Path(__file__).parent

def plan(job):
    request = "queue " + job.options.get("queue_name", "all") + " " + " ".join(task.name for task in job.cluster.tasks)
    return Plan(replace(job, cluster=job.cluster.addressed()), request=request)

class Queue:
    def submit(self, plan):
        (FOLDER / "17").write_text(plan.request)
        return "17"

    def status(self, job_id):
        if not (FOLDER / job_id).exists():
            raise BackendError(f"the queue has no job {job_id}")
        return JobStatus(State.FAILED, (TaskStatus("worker:0", State.FAILED, "node7", exit_code=3),), "node7 burns", 3)

    def logs(self, job_id, task, follow):
        yield LogLine("", (FOLDER / job_id).read_text())
        yield LogLine("worker:0", f"task={task} follow={follow}")

    def cancel(self, job_id):
        raise BackendError("the queue does not answer")

BACKEND = Backend("queue", "a queue", plan=plan, runs=Queue(), options={"queue_name": "Which queue."})
"""


@pytest.mark.cluster
def test_a_detached_back_end_answers_all_verbs_and_gets_what_the_dry_run_shows(plain, tmp_path):
    site = tmp_path / "site"
    (site / "tfdist_plain-1.0.dist-info" / "entry_points.txt").write_text(f"[{GROUP}]\nqueue = tfdist_queue:BACKEND\n")
    (site / "tfdist_queue.py").write_text(QUEUE)
    words = ("run", "--backend", "queue", "--queue_name", "fast", "-n", "1", "program.py")
    dry = plain(*words[:1], "--dry_run", *words[1:])
    assert dry.returncode == 0 and not (site / "17").exists()
    job = plain(*words)
    assert (job.returncode, job.stderr) == (3, "")
    assert job.stdout.splitlines() == [
        "tfdist: 1 worker, submitted as queue://17",
        "queue fast worker:0",
        "worker:0 | task=None follow=True",
        "tfdist: queue://17 failed: node7 burns",
    ]
    assert dry.stdout.splitlines()[-1] == (site / "17").read_text()
    assert plain(*words[:1], "--detach", *words[1:]).stdout == "queue://17\n"
    status = plain("status", "queue://17")
    assert status.returncode == 1
    assert status.stdout == "queue://17  failed: node7 burns\n  worker:0  failed  node7  exit code 3\n"
    assert plain("logs", "queue://17", "worker:0").stdout.splitlines()[1] == "task=worker:0 follow=False"
    for command, message in (
        (("status", "queue://18"), "the queue has no job 18"),
        (("logs",), "expected HANDLE or HANDLE TASK"),
    ):
        got = plain(*command)
        assert (got.returncode, got.stderr.count("\n")) == (2, 1) and message in got.stderr
    assert "--queue_name goes with --backend queue" in plain("run", "--queue_name", "fast", "-n", "1", "program.py").stderr


@pytest.mark.cluster
def test_a_local_task_gets_exactly_what_the_dry_run_shows(start, script, tmp_path, quick_python):
    addresses = [f"localhost:{port}" for port in free_ports(2)]
    cluster = json.dumps({"cluster": {"worker": addresses}})
    body = """
    import sys, time
    pathlib.Path(f"got-{me['index']}").write_text(json.dumps([dict(os.environ), sys.argv[1:]]))
    time.sleep(1)
    """
    flags = ("--cluster", cluster, "--env", "KEY=secret 7")
    command = ["-m", "tfdist", "run", *flags, "--dry_run", program := script(body), "a b"]
    dry = quick_python.run(command, str(tmp_path), {name: value for name, value in os.environ.items() if name != "TF_CONFIG"})
    assert dry.returncode == 0
    job = start(str(PROGRAMS / "quick_launcher.py"), *flags, program, "a b")
    assert job.wait(60) == 0, job.output
    assert "variables KEY " in dry.stdout and "secret 7" not in dry.stdout + dry.stderr + job.output
    assert f"program   {shlex.join([program, 'a b'])} " in dry.stdout
    shown = dict(re.findall(r"^worker:(\d) .*\n((?:  .*\n)+)", dry.stdout, re.MULTILINE))
    for index in ("0", "1"):
        environment, arguments = json.loads((tmp_path / f"got-{index}").read_text())
        variables = dict(word.split("=", 1) for word in shlex.split(shown[index]))
        assert variables and variables.items() <= environment.items()
        assert (environment["KEY"], arguments) == ("secret 7", ["a b"])
