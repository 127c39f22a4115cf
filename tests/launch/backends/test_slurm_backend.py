"""The back ends slurm and srun on a real Slurm of this machine; the tasks run without TensorFlow."""

import dataclasses
import os
import re
import shlex
import subprocess
import sys
import time

import pytest
import slurm_here
from listening import LISTENS
from support_paths import CHECKOUT, PROGRAMS
from tools import needs
from waits import wait_until

from tfdist.choice import choose, prepared
from tfdist.dialects import read
from tfdist.launch.backends import slurm
from tfdist.launch.backends.interface import BackendError, NoAnswerError
from tfdist.launch.jobs.job import Job, Program
from tfdist.launch.jobs.job_status import JobStatus, State, TaskStatus
from tfdist.launch.jobs.progress import Progress
from tfdist.launch.supervision.state_file import StateFile

SHOWN = (
    "JobId=7 JobName=tfdist UserId=a b(0) JobState={} Reason={} Dependency=(null) Requeue=1 ExitCode={} RunTime=00:00:01 "
    "NodeList=n[1-2] BatchHost=n1 StdOut=/a folder/tfdist-7.log Power="
)


@pytest.mark.parametrize(
    ("state", "reason", "code", "expected", "exit_code"),
    [
        ("PENDING", "Resources", "0:0", State.QUEUED, None),
        ("RUNNING", "None", "0:0", State.RUNNING, None),
        ("COMPLETED", "None", "0:0", State.SUCCEEDED, 0),
        ("FAILED", "NonZeroExitCode", "3:0", State.FAILED, 3),
        ("FAILED", "NonZeroExitCode", "143:0", State.CANCELLED, 143),
        ("CANCELLED", "None", "0:15", State.CANCELLED, 143),
        ("TIMEOUT", "TimeLimit", "0:0", State.FAILED, 1),
        ("OUT_OF_MEMORY", "OutOfMemory", "0:125", State.FAILED, 253),
        ("NODE_FAIL", "NodeDown", "1:0", State.FAILED, 1),
    ],
)
def test_the_states_of_slurm_in_the_words_of_tfdist(monkeypatch, state, reason, code, expected, exit_code):
    monkeypatch.setattr(slurm, "command_output", lambda *words: SHOWN.format(state, reason, code))
    got = slurm.Batch().status("7")
    assert (got.state, got.exit_code) == (expected, exit_code)
    assert reason in got.reason or reason in ("None", "NonZeroExitCode")
    assert slurm._show("7")["StdOut"] == "/a folder/tfdist-7.log"


@pytest.mark.parametrize(
    ("accounting", "expected"),
    [
        ("FAILED|3:0|n1|None\n", State.FAILED),
        ("CANCELLED by 0|0:15|n1|None\n", State.CANCELLED),
        ("", None),
        (BackendError("no sacct"), None),
    ],
)
def test_a_job_that_the_controller_has_forgotten_is_asked_of_the_accounting(monkeypatch, accounting, expected):
    def command(*words):
        answer = BackendError("scontrol: Invalid job id specified") if words[0] == "scontrol" else accounting
        if isinstance(answer, BackendError):
            raise answer
        return answer

    monkeypatch.setattr(slurm, "command_output", command)
    if expected is not None:
        assert slurm.Batch().status("7").state == expected
        return
    with pytest.raises(BackendError, match="Slurm does not know the job 7"):
        slurm.Batch().status("7")


def test_single_tasks_and_the_grace_period_come_from_the_launcher_in_the_batch_job(monkeypatch, tmp_path):
    shown = "JobId=7 JobState={} Reason=None ExitCode={} NodeList=n1 WorkDir={} StdOut=x"
    state = ["RUNNING"]
    monkeypatch.setattr(slurm, "command_output", lambda *words: shown.format(state[0], "0:0", tmp_path))
    batch = slurm.Batch()
    assert batch.status("7").tasks == () and slurm._grace("7") == 5.0
    tasks = (TaskStatus("worker:0", State.SUCCEEDED, "n1", 0), TaskStatus("worker:1", State.RUNNING, "n1", memory=7))
    running = JobStatus(State.RUNNING, tasks, progress=Progress("fit", 2))
    StateFile(str(tmp_path / "tfdist-7.state.json"), 60.0).changed(running)
    got = batch.status("7")
    assert (got.tasks, got.progress, got.reason, slurm._grace("7")) == (tasks, Progress("fit", 2), "on n1", 60.0)
    state[0] = "TIMEOUT"
    assert [task.state for task in batch.status("7").tasks] == [State.SUCCEEDED, State.LOST]
    (tmp_path / "tfdist-7.state.json").write_text('{"tasks": [7]}')
    assert batch.status("7").tasks == ()


def test_the_signal_before_the_time_limit_leaves_the_grace_period():
    cluster = prepared(read({"worker": 2}))
    for flags, expected in (((), "B:TERM@30"), (("--grace_period=90.5",), "B:TERM@116")):
        job = Job(cluster, choose(cluster), Program("x.py"), flags=flags)
        assert f"#SBATCH --signal={expected}\n" in slurm.plan(job).request


def test_a_job_that_may_be_started_again_has_a_backup_that_a_requeue_finds(monkeypatch, tmp_path):
    monkeypatch.delenv("TFDIST_BACKUP_DIR", raising=False)
    (tmp_path / "tfdist").write_text(
        '#!/bin/sh\ntest -e tfdist-7.backup && echo continues; mkdir -p tfdist-7.backup\necho "$@"\n'
    )
    (tmp_path / "tfdist").chmod(0o755)
    (tmp_path / "tfdist-7.backup").mkdir()  # Of a job of an earlier cluster.
    cluster = prepared(read({"worker": 2}))

    def run(*flags, count, **more):
        job = Job(dataclasses.replace(cluster, **more), choose(cluster), Program("x.py"), flags=flags)
        script = slurm.plan(job).request.replace(sys.executable, str(tmp_path / "tfdist"))
        environ = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": count}
        return subprocess.run(
            ["bash", "-c", script], env=environ, cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    first, second = run("--max_restarts=2", count=""), run("--max_restarts=2", count="1")
    assert "--backup_dir=tfdist-7.backup x.py" in first and "continues" not in first and second == f"continues\n{first}"
    for flags, more in (((), {}), (("--max_restarts=2", "--backup_dir=b"), {}), (("--max_restarts=2",), {"job_dir": "out"})):
        assert "tfdist-7.backup" not in run(*flags, count="1", **more).replace("continues", "")


def test_options_of_the_user_come_last_in_the_script_and_nothing_overrides_them(monkeypatch):
    got = []
    monkeypatch.setattr(slurm, "command_output", lambda *words, text, environ: got.append((words, text, environ)) or "7\n")
    monkeypatch.setenv("SBATCH_EXPORT", "NONE")
    cluster = prepared(read({"worker": 2}))
    options = {"slurm_options": "--gpus-per-node=4 --export=ALL,NAME=value"}
    slurm.Batch().submit(slurm.plan(Job(cluster, choose(cluster), Program("x.py"), options=options)))
    ((words, text, environ),) = got
    lines = [line for line in text.splitlines() if line.startswith("#SBATCH ")]
    assert lines[-2:] == ["#SBATCH --gpus-per-node=4", "#SBATCH --export=ALL,NAME=value"] and "#SBATCH --export=ALL" in lines
    assert words == ("sbatch", "--parsable") and "SBATCH_EXPORT" not in environ


def test_a_flag_that_is_given_twice_is_two_flags_in_the_script(tmp_path):
    cluster = '{"chief": 1,\n "worker": 2, "ps": 1}'
    faults = ["--fail_at=worker:1,step=30", "--fail_at=random,every=15,of=worker"]
    words = ["run", "--backend", "slurm", "--dry_run", "--cluster", cluster, *faults, "--backup_dir", "kept", "x.py"]
    got = subprocess.run([sys.executable, "-m", "tfdist", *words], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert got.returncode == 0, got.stderr
    run = shlex.split(got.stdout[got.stdout.index("exec ") :])
    assert {f"--cluster={cluster}", *faults, "--backup_dir=kept"} <= set(run), run


def test_who_follows_a_job_waits_for_a_controller_that_gives_no_answer(monkeypatch, tmp_path):
    (tmp_path / "log").write_text("worker:0 | a\n")
    error = "slurm_load_jobs error: Unable to contact slurm controller"
    answers = [error, error, "RUNNING", "RUNNING", error, "RUNNING", "COMPLETED"]

    def command(*words):
        answer = answers.pop(0)
        if "error" in answer:
            raise BackendError(f"scontrol: {answer}")
        return f"JobId=7 JobState={answer} Reason=None ExitCode=0:0 NodeList=n1 WorkDir={tmp_path} StdOut={tmp_path / 'log'}"

    monkeypatch.setattr(slurm, "command_output", command)
    monkeypatch.setattr(slurm, "POLL_SECONDS", 0.0)
    lines = [line.text for line in slurm.Batch().logs("7", None, follow=True)]
    assert lines[2] == "a" and not answers
    assert all("Unable to contact slurm controller; the job may go on" in lines[number] for number in (0, 3))
    assert all(lines[number] == "tfdist: there are answers again" for number in (1, 4)) and len(lines) == 5
    answers.append(error)
    with pytest.raises(NoAnswerError, match="Unable to contact"):
        next(slurm.Batch().logs("7", None, follow=False))
    with pytest.raises(BackendError, match="is not installed here"):  # Not something to wait for.
        monkeypatch.undo()
        monkeypatch.setenv("PATH", "")
        next(slurm.Batch().logs("7", None, follow=True))


@pytest.mark.parametrize("job_id", ["", "7;x", "--all", "1 2"])
def test_ids_that_are_no_number_are_refused(job_id):
    with pytest.raises(BackendError, match="is not a job id of Slurm"):
        slurm.Batch().status(job_id)


PROGRAM = f"""{LISTENS}
print("node", os.environ["SLURMD_NODENAME"], os.environ["KEY"], sys.argv[1:], flush=True)
if sys.argv[1] == "stay": time.sleep(600)
time.sleep(3)
if me["index"] == 1: sys.exit(int(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, quick_python):
    """Returns a function that runs tfdist on a machine of a Slurm cluster."""
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "quick").mkdir()
    (folder / "quick" / "sitecustomize.py").write_text(
        f"import sys\nsys.path.append({str(PROGRAMS)!r})\nimport quick_launcher\nquick_launcher.make_quick()\n"
    )
    (folder / "program.py").write_text(PROGRAM)
    with slurm_here.slurm(folder) as environ:
        environ |= {"PYTHONPATH": f"{folder / 'quick'}:{CHECKOUT}", "KEY": "geheim 7"}

        def run(*words):
            return quick_python.run(["-m", "tfdist", *words], str(folder), environ, 120)

        run.folder, run.environ = folder, environ
        yield run
        subprocess.run(["scancel", "--full", "--user=root"], env=environ, check=False)


BATCH = (
    "run",
    "--backend",
    "slurm",
    "--cluster",
    '{"worker": 3}',
    "--slurm_nodes",
    "2",
    "--slurm_options=--nodelist=n1,n2",
    "--env",
    "KEY",
)


@pytest.mark.cluster
@needs("slurm")
def test_a_batch_job_runs_what_the_dry_run_shows_and_its_exit_code_and_output_come_back(cluster):
    dry = cluster(*BATCH, "--dry_run", "program.py", "0", "a b")
    assert "#SBATCH --nodes=2\n" in dry.stdout and dry.stdout.endswith("program.py -- 0 'a b'\n") and "geheim" not in dry.stdout
    good = cluster(*BATCH, "program.py", "0", "a b")
    assert good.returncode == 0, good.stdout + good.stderr
    nodes = [re.search(rf"worker:{index} \| node (\w+) geheim 7 \['0', 'a b'\]", good.stdout)[1] for index in range(3)]
    assert nodes == ["n1", "n1", "n2"]
    bad = cluster(*BATCH, "program.py", "7")
    assert bad.returncode == 7
    assert (
        "tfdist: worker:1 failed first: it exited with 7" in bad.stdout
        and "failed: Slurm says FAILED, exit code 7" in bad.stdout
    )


@pytest.mark.cluster
@needs("slurm")
def test_a_batch_job_is_asked_and_ended_from_elsewhere_also_one_that_waits(cluster):
    handle = cluster(*BATCH, "--detach", "program.py", "stay").stdout.strip()
    assert re.fullmatch(r"slurm://\d+", handle)
    waiting = cluster(*BATCH, "--slurm_options=--nodelist=n1,n2 --exclusive", "--detach", "program.py", "stay").stdout.strip()
    deadline = time.monotonic() + 120
    while "worker:2 | node n2" not in (logs := cluster("logs", handle).stdout):
        assert time.monotonic() < deadline, logs
        time.sleep(0.5)
    assert cluster("logs", handle, "worker:1").stdout == "node n1 geheim 7 ['stay']\n"
    running = [[f"worker:{index}", "running"] for index in range(3)]
    while True:  # The launcher finds out that a task listens some time after the task has printed its line.
        first, *tasks = (status := cluster("status", handle).stdout).splitlines()
        assert first == f"{handle}  running: on n[1-2]"
        if [line.split()[:2] for line in tasks] == running:
            break
        assert time.monotonic() < deadline, status
        time.sleep(0.5)
    assert cluster("status", waiting).stdout.startswith(f"{waiting}  queued: Slurm says PENDING, ")
    assert cluster("cancel", waiting).stdout == f"{waiting}  cancelled\n"
    assert cluster("cancel", handle).stdout == f"{handle}  cancelled\n"
    assert cluster("status", handle).returncode == 1
    assert "tfdist: ended by SIGTERM" in cluster("logs", "-f", handle).stdout
    assert not any("geheim" in line for line in _environments_of("program.py"))


SAVES = """
def save(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(1)
    for pid in pids: os.kill(pid, 0)
    print("saved with the others", flush=True)
    os._exit(143)
if me["type"] == "chief":
    signal.signal(signal.SIGTERM, save)
    signal.signal(signal.SIGUSR1, lambda *_: print("heard of the time limit", flush=True))
    files = [pathlib.Path(f"pid-{name}") for name in ("worker-0", "worker-1", "ps-0")]
    while not all(file.exists() and file.read_text() for file in files): time.sleep(0.05)
    pids = [int(file.read_text()) for file in files]
    print("ready", flush=True)
else:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    pathlib.Path(f"pid-{name}").write_text(str(os.getpid()))
time.sleep(600)
"""


@pytest.mark.cluster
@needs("slurm")
def test_when_slurm_ends_a_job_its_chief_saves_before_the_others_end(cluster):
    (cluster.folder / "saves.py").write_text(LISTENS + SAVES)
    words = [word if word != '{"worker": 3}' else '{"chief": 1, "worker": 2, "ps": 1}' for word in BATCH]
    handle = cluster(*words, "--detach", "saves.py").stdout.strip()
    wait_until(lambda: "| ready" in cluster("logs", handle).stdout)
    # A signal for the program gets to all processes of its steps, too.
    subprocess.run(["scancel", "--signal=USR1", handle.rpartition("/")[2]], env=cluster.environ, check=True, timeout=60)
    wait_until(lambda: "| heard of the time limit" in cluster("logs", handle).stdout)
    # As an administrator or a preemption ends it: SIGTERM to all of its processes at once.
    subprocess.run(["scancel", handle.rpartition("/")[2]], env=cluster.environ, check=True, timeout=60)
    logs = cluster("logs", "-f", handle).stdout
    assert "| saved with the others" in logs and "tfdist: ended by SIGTERM" in logs


def _environments_of(name):
    """Returns command lines of processes that still run this program."""
    got = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in got.splitlines() if name in line and "stay" in line]


@pytest.mark.cluster
@needs("slurm")
def test_srun_outside_an_allocation_and_bad_options_are_one_line(cluster):
    for words, message in (
        (("run", "--backend", "srun", "-n", "2", "program.py"), "--backend srun: it runs inside an allocation of Slurm"),
        ((*BATCH[:-4], "--slurm_options", "partition", "program.py"), "expected options of sbatch"),
        ((*BATCH, "--slurm_options=--partition=no", "program.py"), "sbatch: error: invalid partition specified: no"),
        (("status", "slurm://999"), "Slurm does not know the job 999"),
    ):
        got = cluster(*words)
        assert (got.returncode, got.stderr.count("\n")) == (2, 1), got.stderr
        assert message in got.stderr


def test_the_output_of_a_batch_job_that_was_cut_is_followed_from_its_beginning(tmp_path, monkeypatch):
    """As by a program that rotates logs, or by --open-mode=truncate after a requeue."""
    log = tmp_path / "tfdist-7.log"
    log.write_text("worker:0 | one\nworker:0 | two\n")
    states = iter((State.RUNNING, State.SUCCEEDED))

    def status(batch, job_id):
        state = next(states)
        if state == State.SUCCEEDED:
            log.write_text("worker:0 | three\n")
        return JobStatus(state)

    monkeypatch.setattr(slurm, "_show", lambda job_id: {"StdOut": str(log)})
    monkeypatch.setattr(slurm, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(slurm.Batch, "status", status)
    assert [line.text for line in slurm.Batch().logs("7", None, follow=True)] == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({}, "the job 7 is no batch job"),
        ({"StdOut": "."}, ". cannot be read: Is a directory"),
        ({"StdOut": "/dev/null/log"}, "/dev/null/log cannot be read: Not a directory"),
    ],
)
def test_output_that_is_not_there_or_cannot_be_read_is_named(monkeypatch, found, said):
    """As that of a job of another user."""
    monkeypatch.setattr(slurm, "_show", lambda job_id: {"JobState": "RUNNING", **found})
    with pytest.raises(BackendError, match=f"^{re.escape(said)}"):
        list(slurm.Batch().logs("7", None, follow=False))


def test_what_slurm_says_and_gets_need_not_be_utf_8():
    """As the working folder of a job on a cluster with older names."""
    assert os.fsencode(slurm.command_output("printf", r"WorkDir=/caf\351")) == b"WorkDir=/caf\xe9"
    assert (
        os.fsencode(slurm.command_output("cat", text=os.fsdecode(b"#SBATCH --chdir=/caf\xe9"))) == b"#SBATCH --chdir=/caf\xe9"
    )
