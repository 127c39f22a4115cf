"""The folder of a background job: who may read it, and whether its supervisor lives."""

import dataclasses
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tfdist.launch.backends.interface import BackendError
from tfdist.launch.background import job_folder
from tfdist.launch.background.background_jobs import BackgroundJobs
from tfdist.launch.background.job_folder import JobFolder, ProcessName
from tfdist.launch.command_line import checks
from tfdist.launch.commands import completion, run
from tfdist.launch.errors import UsageError
from tfdist.launch.jobs.job import Program
from tfdist.launch.jobs.job_status import JobStatus, State, TaskStatus
from tfdist.launch.jobs.progress import Progress


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDIST_STATE_DIR", str(tmp_path))
    return JobFolder.create("local")


FIT = Progress("fit", 2, 5, 130, 937, 1067, 12.5, None, 41.0, {"loss": 0.35}, {"period": 16})
RUNNING = JobStatus(
    State.RUNNING, (TaskStatus("worker:0", State.FAILED, "here", -9, 2, "note", 512_000_000),), "a reason", progress=FIT
)


def supervised_by(folder, **changes):
    """Makes the folder one of another supervisor than this process."""
    values = json.loads((folder.path / "state.json").read_text())
    values["supervisor"].update(changes)
    (folder.path / "state.json").write_text(json.dumps(values))


def test_a_status_is_read_as_it_was_written(folder):
    assert folder.status() == JobStatus(State.STARTING)
    folder.write_status(RUNNING)
    assert folder.status() == RUNNING
    assert JobFolder.open("local", folder.id).status() == RUNNING
    assert not list(folder.path.glob("*.part"))


def test_a_supervisor_whose_number_belongs_to_another_process_now_is_gone(folder):
    folder.write_status(RUNNING)
    supervised_by(folder, start=ProcessName.own().start + 1)
    assert (folder.status().state, folder.status().tasks) == (State.LOST, RUNNING.tasks)


def test_a_job_that_has_ended_is_not_lost_when_its_supervisor_is_gone(folder):
    ended = dataclasses.replace(RUNNING, state=State.SUCCEEDED)
    folder.write_status(ended)
    supervised_by(folder, start=1)
    assert folder.status() == ended


def test_a_supervisor_on_another_machine_is_not_declared_lost(folder):
    folder.write_status(RUNNING)
    supervised_by(folder, place="elsewhere boot namespace", start=1)
    assert folder.status().state == State.RUNNING
    assert folder.status().reason == "as last written by its supervisor on elsewhere; ask there"


def test_a_job_whose_machine_has_been_started_again_is_lost(folder):
    folder.write_status(RUNNING)
    *machine, _, namespace = folder.supervisor.place.split()
    supervised_by(folder, place=" ".join([*machine, "another-boot", namespace]))
    assert not folder.supervisor.is_alive  # Whatever has its number now.
    assert (folder.status().state, folder.status().tasks) == (State.LOST, RUNNING.tasks)
    supervised_by(folder, place=" ".join(["elsewhere", *machine[1:], "another-boot", namespace]))
    assert folder.status().state == State.RUNNING  # Machines may have been made of one image.


def test_a_machine_that_has_another_name_now_is_the_same_machine(folder, monkeypatch):
    folder.write_status(RUNNING)
    monkeypatch.setattr(job_folder.socket, "gethostname", lambda: "renamed")
    assert folder.supervisor.is_here and folder.status() == RUNNING


def test_a_job_whose_launcher_died_before_it_named_a_supervisor_is_lost(folder):
    supervised_by(folder, start=1)
    assert folder.status().state == State.LOST


def test_without_a_home_folder_nothing_is_written_and_the_variable_is_named(tmp_path, monkeypatch, capsys):
    def unknown(uid):
        raise KeyError(uid)

    for name in ("HOME", "XDG_STATE_HOME", "TFDIST_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"HOME is not set .*; set TFDIST_STATE_DIR"):
        JobFolder.create("local")
    assert run(["status"]) == 2
    assert capsys.readouterr().err.count("\n") == 1 and list(tmp_path.iterdir()) == []


@pytest.fixture
def users_folder():
    """A folder of a user who is not root, which this process is in the test."""
    path = Path(tempfile.mkdtemp())
    is_root = os.geteuid() == 0
    try:
        if is_root:
            os.chown(path, 54321, 54321)
            os.seteuid(54321)
        yield path
    finally:
        if is_root:
            os.seteuid(0)
        path.chmod(0o700)
        shutil.rmtree(path)


def test_a_folder_without_permissions_does_not_hide_the_other_jobs(users_folder, monkeypatch, capsys):
    monkeypatch.setenv("TFDIST_STATE_DIR", str(users_folder))
    good, closed = JobFolder.create("local"), JobFolder.create("local")
    closed.path.chmod(0)
    assert run(["status"]) == 0
    shown, errors = capsys.readouterr()
    assert good.id in shown and closed.id not in shown
    assert errors.count("\n") == 1 and closed.id in errors and "Permission denied" in errors
    users_folder.chmod(0)
    for words in ([], [f"local://{good.id}"]):
        assert run(["status", *words]) == 2
        errors = capsys.readouterr().err
        assert errors.count("\n") == 1 and "cannot be read: Permission denied" in errors


def test_a_missing_program_in_a_folder_that_cannot_be_listed_is_one_sentence(users_folder, monkeypatch):
    users_folder.chmod(0o300)
    with pytest.raises(UsageError, match=r"missing\.py: there is no such program$"):
        checks.check_program(Program(str(users_folder / "missing.py")))


def test_a_script_behind_m_is_refused_before_every_task_trains_and_fails(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    with pytest.raises(UsageError, match=r"^-m train\.py: this is a script; name it without -m$"):
        checks.check_program(Program(module="train.py"))


@pytest.fixture
def sleeper(folder):
    """Makes the folder that of another process, which sleeps; returns it."""
    process = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True)\nimport time; time.sleep(600)"], stdout=subprocess.PIPE
    )
    process.stdout.readline()
    folder.write_status(RUNNING)
    supervised_by(folder, pid=process.pid, start=job_folder._start_time(process.pid))
    yield process
    process.kill()
    process.stdout.close()
    process.wait(60)


@pytest.mark.parametrize("error", [AttributeError(), OSError(38, "Function not implemented"), PermissionError(1, "no")])
def test_a_job_is_ended_where_the_system_gives_no_descriptors_of_processes(folder, sleeper, monkeypatch, error):
    def refuse(pid):
        raise error

    monkeypatch.setattr(os, "pidfd_open", refuse)
    supervised_by(folder, start=1)
    BackgroundJobs("local").cancel(folder.id)
    assert sleeper.poll() is None  # The number belongs to another process now.
    supervised_by(folder, start=job_folder._start_time(sleeper.pid))
    BackgroundJobs("local").cancel(folder.id)
    assert sleeper.wait(10) == -15


@pytest.mark.parametrize("job_id", ["..", "../jobs", "", "20200101-000000-abcdef", "a/b"])
def test_ids_that_name_no_job_are_refused(folder, job_id):
    with pytest.raises(BackendError, match="there is no job local://"):
        JobFolder.open("local", job_id)


def test_a_job_of_another_back_end_or_user_is_refused(folder, monkeypatch):
    with pytest.raises(BackendError, match="is a job of the back end local, not of ssh"):
        JobFolder.open("ssh", folder.id)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(BackendError, match="belongs to another user"):
        JobFolder.open("local", folder.id)
    assert list(JobFolder.all()) == []


def test_a_damaged_file_is_an_error_with_its_path(folder):
    (folder.path / "state.json").write_text("{")
    with pytest.raises(BackendError, match=r"state\.json cannot be read"):
        folder.status()


def test_the_table_leaves_out_folders_that_cannot_be_read_with_a_line_about_each(folder, capsys):
    empty, unknown, other, nameless = (JobFolder.create("local") for _ in range(4))
    folder.write_status(RUNNING)
    (empty.path / "job.json").write_text("")  # As a full disk, or a machine that lost its power, leaves it.
    (unknown.path / "state.json").write_text('{"state": "sleeping"}')
    (other.path / "state.json").write_text('{"supervisor": 7}')
    (nameless.path / "job.json").write_text('{"backend": "local", "created": "never"}')
    assert run(["status"]) == 0
    shown, errors = capsys.readouterr()
    assert sorted(re.findall(r"^local://(\S+)", shown, re.MULTILINE)) == sorted([folder.id, nameless.id])
    lines = errors.splitlines()
    assert len(lines) == 3 and all(line.startswith("tfdist: ") for line in lines)
    for each, words in (
        (empty, "job.json cannot be read: "),
        (unknown, "'sleeping' is not a valid State"),
        (other, "state.json"),
    ):
        assert any(each.id in line and words in line for line in lines), errors
    completion.main(["handles"])
    assert empty.id not in (got := capsys.readouterr()).out and folder.id in got.out and not got.err


def test_the_table_reads_what_was_started_once(folder, monkeypatch, capsys):
    names = []
    read = JobFolder._read
    monkeypatch.setattr(JobFolder, "_read", lambda self, name: names.append(name) or read(self, name))
    assert run(["status"]) == 0 and folder.id in capsys.readouterr().out
    assert names.count("job.json") == 1


@pytest.mark.parametrize(("state", "time_left"), [(State.RUNNING, True), (State.CANCELLED, False), (State.FAILED, False)])
def test_a_job_that_has_ended_has_no_time_left(folder, capsys, state, time_left):
    folder.write_status(dataclasses.replace(RUNNING, state=state))
    run(["status", f"local://{folder.id}"])
    got = capsys.readouterr().out
    assert "epoch 2/5, step 130/937" in got and ("0:00:41 left" in got) is time_left


def test_only_folders_of_jobs_that_ended_long_ago_are_removed(folder, monkeypatch):
    running, lately = JobFolder.create("local"), JobFolder.create("local")
    for each, state in ((folder, State.FAILED), (running, State.RUNNING), (lately, State.FAILED)):
        each.write_status(JobStatus(state))
    monkeypatch.setattr(job_folder, "KEEP_SECONDS", 1000.0)
    for each in (folder, running):
        for path in (each.output, each.path):
            os.utime(path, (time.time() - 2000,) * 2)
    assert {each.id for each, _ in JobFolder.all()} == {running.id, lately.id}
    assert not folder.path.exists()
