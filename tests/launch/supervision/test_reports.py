"""What the task that reports writes into files, and what the launcher makes of it."""

import json
import os
import subprocess
import sys

import pytest
from listening import REPORTS
from support_paths import PROGRAMS

from tfdist.launch.command_line import checks
from tfdist.launch.errors import UsageError
from tfdist.launch.jobs import progress
from tfdist.launch.jobs.job_status import JobStatus, State
from tfdist.launch.supervision import log_folder, summary
from tfdist.launch.supervision.state_file import StateFile


def refuse(constant):
    raise ValueError(constant)


def test_the_summary_of_a_training_that_diverged_is_json(tmp_path):
    path = tmp_path / "summary.json"
    values = {
        "metrics": {"loss": float("nan"), "accuracy": 0.5},
        "history": {"loss": float("inf")},
        "tasks": [{"exit_code": 0}],
    }
    summary.write(values, str(path))
    expected = {"metrics": {"loss": None, "accuracy": 0.5}, "history": {"loss": None}, "tasks": [{"exit_code": 0}]}
    assert json.loads(path.read_text(), parse_constant=refuse) == expected


def test_files_that_are_devices_links_or_standard_output_stay(tmp_path):
    kept, link = tmp_path / "kept.json", tmp_path / "link.json"
    link.symlink_to("kept.json")
    kept.write_text("{}")
    StateFile(str(link), 5.0)
    assert json.loads(kept.read_text())["state"] == "starting" and link.is_symlink()
    checks.check_summary(str(link))
    assert not kept.exists() and link.is_symlink()
    os.mkfifo(tmp_path / "pipe")
    os.symlink("/dev/null", tmp_path / "null")
    for name in ("pipe", "null", "."):
        with pytest.raises(UsageError, match="name a regular file"):
            StateFile(str(tmp_path / name), 5.0)
    code = (
        "from tfdist.launch.command_line import checks\nfrom tfdist.launch.supervision import summary\n"
        "print('before', flush=True)\n"
        "checks.check_summary('/dev/fd/1'); summary.write({'exit_code': 0}, '/dev/fd/1')"
    )
    with open(kept, "w") as output:
        subprocess.run([sys.executable, "-c", code], stdout=output, check=True, timeout=60)
    assert kept.read_text().split() == ["before", "{", '"exit_code":', "0", "}"]


def test_a_state_that_cannot_be_written_is_said_once(tmp_path):
    said = []
    writer = StateFile(str(tmp_path / "state.json"), 5.0)
    writer.begins(said.append)
    (tmp_path / "state.json").unlink()
    (tmp_path / "state.json.part").mkdir()
    for _ in range(3):
        writer.changed(JobStatus(State.RUNNING))
    assert said == [f"--state_file {tmp_path}/state.json: Is a directory; the state there may be out of date"]
    (tmp_path / "state.json.part").rmdir()
    writer.changed(JobStatus(State.SUCCEEDED))
    writer.changed(JobStatus(State.CANCELLED))  # A signal after the end.
    assert json.loads((tmp_path / "state.json").read_text())["state"] == "succeeded"


@pytest.mark.parametrize("name", ["report.json", "report.json.progress", "report.json.steps", "report.json.progress.part"])
def test_what_an_earlier_job_has_reported_is_out_of_the_way(tmp_path, name):
    (tmp_path / name).write_text("30")
    said = []
    log_folder.LogFolder(str(tmp_path), said.append).close()
    (moved,) = tmp_path.glob("earlier-*/*")
    assert moved.name == name and not (tmp_path / name).exists() and str(moved.parent) in said[0]


def test_another_attempt_does_not_begin_with_the_steps_of_the_one_before(tmp_path):
    report = tmp_path / "report.json"
    for name in ("report.json", "report.json.progress", "report.json.steps"):
        (tmp_path / name).write_text("30")
    for _ in range(2):
        progress.forget(report)
        assert list(tmp_path.iterdir()) == [report]


@pytest.mark.cluster
def test_a_job_whose_progress_is_gone_is_not_taken_for_one_that_makes_no_step_and_keeps_its_summary(start, script, read_json):
    """As on a machine that empties /dev/shm when its user logs out."""
    body = """
    import shutil, time
    report(step=3, batches=3)
    shutil.rmtree(os.path.dirname(os.environ["TFDIST_REPORT"]))
    time.sleep(6)
    pathlib.Path(os.environ["TFDIST_REPORT"]).write_text('{"steps": 9}')
    """
    quick = str(PROGRAMS / "quick_launcher.py")
    flags = ["--step_timeout", "4", "--summary", "summary.json"]
    job = start(quick, "--tier", "BASIC", *flags, script(REPORTS, body))
    assert job.wait(60) == 0, job.output
    assert read_json("summary.json")["steps"] == 9
    assert job.left() == {}
