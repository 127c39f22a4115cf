"""The main job of the README, on every tier and on SINGA's job files. Where no model trains, the tasks run without TensorFlow."""

import json
import os
import subprocess
import sys
import uuid
from types import SimpleNamespace

import pytest
from listening import ALL_LISTEN, LISTENS
from processes import MARK, Job, end_processes
from support_paths import PROGRAMS

pytestmark = pytest.mark.cluster

QUICK = str(PROGRAMS / "quick_launcher.py")


@pytest.fixture(scope="module")
def standard_1(tmp_path_factory, warm_python):
    """The main job, which has ended: its exit code, its processes that are left, its output and its folder."""
    folder, mark = tmp_path_factory.mktemp("standard"), uuid.uuid4().hex
    # Tasks do not connect to each other through a proxy for the web.
    environ = os.environ | {MARK: mark, "PYTHONUNBUFFERED": "1", "http_proxy": "http://127.0.0.1:9"}
    command = ["-m", "tfdist.launch", "--tier", "STANDARD_1", "--summary", "summary.json", "--", "--epochs=15"]
    with open(folder / "output.txt", "wb") as output:
        job = Job(warm_python.start(command, str(folder), environ, output.fileno()), mark, folder, folder / "output.txt")
    try:
        yield SimpleNamespace(code=job.wait(), left=job.left(), output=job.output, folder=folder)
    finally:
        end_processes(mark)


def test_standard_1_trains_the_digits_and_writes_a_summary(standard_1):
    assert standard_1.code == 0, standard_1.output
    assert standard_1.left == {}
    summary = json.loads((standard_1.folder / "summary.json").read_text())
    assert summary["strategy"] == "parameter_server"
    assert "Downpour" in summary["rule"]
    assert [task["task"] for task in summary["tasks"]] == [
        "chief:0",
        *(f"worker:{i}" for i in range(4)),
        *(f"ps:{i}" for i in range(3)),
    ]
    assert {task["exit_code"] for task in summary["tasks"]} == {0}
    assert summary["steps"] == 15 * 45
    assert summary["examples_per_second"] > 0
    assert summary["metrics"]["accuracy"] >= 0.95
    assert summary["wall_seconds"] > 0
    assert "chief:0  | Epoch 2/15" in standard_1.output
    assert "  strategy  parameter_server: ps with one server group" in standard_1.output


def test_every_task_has_a_log_file(standard_1):
    (folder,) = (standard_1.folder / "tfdist_logs").iterdir()
    logs = ["chief-0.log", *(f"ps-{i}.log" for i in range(3)), *(f"worker-{i}.log" for i in range(4))]
    assert sorted(path.name for path in folder.glob("*-*.log")) == logs
    assert "Epoch 2/15" in (folder / "chief-0.log").read_text()


def test_what_a_task_prints_is_in_its_own_log_file_and_shown_with_its_name(start, script, tmp_path):
    body = 'print("I am", os.environ["TF_CONFIG"][-40:])'
    job = start(QUICK, "-n", "3", "--log_dir", "logs", script(LISTENS, body))
    assert job.wait() == 0, job.output
    for index in range(3):
        text = (tmp_path / "logs" / f"worker-{index}.log").read_text()
        assert text.count("I am") == 1 and f'"type": "worker", "index": {index}' in text
        assert f"worker:{index} | I am" in job.output


@pytest.mark.release
@pytest.mark.timeout(400)
def test_premium_1_runs_31_tasks(start, read_json):
    job = start("-m", "tfdist.launch", "--tier", "PREMIUM_1", "--summary", "summary.json")
    assert job.wait(360) == 0, job.output
    assert job.left() == {}
    summary = read_json("summary.json")
    assert len(summary["tasks"]) == 31
    assert {task["exit_code"] for task in summary["tasks"]} == {0}
    assert summary["steps"] == 30 * 45
    assert summary["metrics"]["accuracy"] >= 0.95


def test_the_example_trains_in_one_process_and_saves_its_model_in_the_job_dir_of_the_launcher(start, read_json, tmp_path):
    flags = ["--tier", "BASIC", "--job_dir", "new/folder", "--summary", "summary.json"]
    job = start("-m", "tfdist.launch", *flags, "--", "--epochs=8")
    assert job.wait() == 0, job.output
    summary = read_json("summary.json")
    assert (summary["strategy"], len(summary["tasks"])) == ("default", 1)
    assert summary["steps"] == 8 * 45
    assert summary["metrics"]["accuracy"] >= 0.95
    assert (tmp_path / "new/folder/digits.keras").exists()
    assert job.left() == {}


REPLICAS = "import tfdist\nprint('replicas', tfdist.strategy().num_replicas_in_sync, flush=True)"


@pytest.mark.parametrize(("tier", "warning"), [("BASIC_GPU", "asks for a GPU"), ("BASIC_TPU", "asks for a Cloud TPU")])
def test_a_tier_of_one_machine_whose_device_is_missing_warns_and_uses_the_cpu(start, script, read_json, tier, warning):
    job = start("-m", "tfdist.launch", "--tier", tier, "--summary", "summary.json", script(REPLICAS))
    assert job.wait() == 0, job.output
    summary = read_json("summary.json")
    assert (summary["strategy"], len(summary["tasks"])) == ("default", 1)
    assert warning in job.output and "replicas 1" in job.output


def test_a_machine_of_four_gpus_without_gpus_has_four_replicas_on_the_cpu_and_warns(start, script, read_json):
    arguments = ["--tier", "CUSTOM", "--master_machine_type", "complex_model_m_gpu", "--summary", "summary.json"]
    job = start("-m", "tfdist.launch", *arguments, script(REPLICAS))
    assert job.wait() == 0, job.output
    assert read_json("summary.json")["strategy"] == "mirrored" and "replicas 4" in job.output
    assert "asks for 4 GPUs, and TensorFlow finds 0 on this machine; its 4 replicas share the CPU" in job.output


@pytest.mark.release  # test_singa.py reads such files, and STANDARD_1 trains under the strategy that this one means.
def test_a_singa_downpour_job_trains(start, read_json, tmp_path):
    (tmp_path / "job.conf").write_text(
        'name: "digits"\ntrain_steps: 1000\nupdater { type: kSGD learning_rate { type: kFixed base_lr: 0.1 } }\n'
        "cluster {\n  nworker_groups: 3\n  nserver_groups: 1\n  nservers_per_group: 2\n  server_worker_separate: true\n"
        '  workspace: "examples/digits"\n}\n'
    )
    job = start("-m", "tfdist.launch", "--cluster", "job.conf", "--summary", "summary.json", "--", "--epochs=12")
    assert job.wait() == 0, job.output
    summary = read_json("summary.json")
    assert summary["topology"] == "1 chief, 3 workers, 2 ps"
    assert summary["metrics"]["accuracy"] >= 0.9


def test_a_module_runs_with_its_arguments_as_under_python_m(start, tmp_path):
    package = tmp_path / "trainer"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "names.py").write_text("GREETING = 'hello'\n")
    (package / "task.py").write_text(
        "import sys\nfrom trainer.names import GREETING\n"
        "if __name__ == '__main__':\n    print(GREETING, sys.argv[1:], __package__, flush=True)\n"
    )
    job = start(QUICK, "--tier", "BASIC", "-m", "trainer.task", "--", "--my_flag=1", "x")
    assert job.wait() == 0, job.output
    assert "chief:0 | hello ['--my_flag=1', 'x'] trainer" in job.output


def test_a_script_has_its_own_name_folder_and_arguments(start, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "link").mkdir()
    (tmp_path / "sub" / "beside.py").write_text("VALUE = 42\n")
    (tmp_path / "sub" / "train.py").write_text(
        "import os, sys, beside, multiprocessing\n"
        "def double(x): return 2 * x\n"
        "if __name__ == '__main__':\n"
        "    os.chdir('/')\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(beside.VALUE, sys.argv, __file__, sys.path[0], pool.map(double, [4]), flush=True)\n"
        "        print(sys.orig_argv[1:], flush=True)\n"
    )
    (tmp_path / "link" / "train.py").symlink_to("../sub/train.py")
    for script in ("sub/train.py", "link/train.py"):
        command = [sys.executable, script, "--my_flag=1"]
        plain = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True).stdout
        assert plain == f"42 {command[1:]} {tmp_path}/{script} {tmp_path}/sub [8]\n{command[1:]}\n"
        job = start(QUICK, "--tier", "BASIC", script, "--my_flag=1")
        assert job.wait() == 0, job.output
        assert "".join(f"chief:0 | {line}\n" for line in plain.splitlines()) in job.output


def test_the_job_dir_reaches_the_program(start, tmp_path):
    (tmp_path / "train.py").write_text("import tfdist\nprint('folder', tfdist.read().job_dir, flush=True)\n")
    job = start(QUICK, "--tier", "BASIC", "--job_dir", "somewhere", "train.py")
    assert job.wait() == 0, job.output
    assert "folder somewhere" in job.output


def test_local_runs_a_description_of_other_machines_here(start, script, tmp_path):
    (tmp_path / "far.json").write_text('{"cluster": {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}}')
    body = """
    if me["type"] == "chief":
        print("here", flush=True)
        pathlib.Path("end").touch()
    while not os.path.exists("end"): time.sleep(0.05)
    """
    job = start(QUICK, "--cluster", "far.json", "--local", script(LISTENS, ALL_LISTEN, body))
    assert job.wait() == 0, job.output
    assert "chief:0  | here" in job.output


def test_an_idle_task_has_less_than_100_megabytes_of_private_memory(start, script):
    program = script("import tfdist, time\ntfdist.strategy()\nprint('all here', flush=True)\ntime.sleep(600)")
    job = start("-m", "tfdist.launch", "--cluster", '{"chief": 1, "worker": 1, "ps": 1}', program, fresh=True)
    job.wait_for("all here")
    for task in ("ps:0", "worker:0"):
        fields = dict(line.split(":") for line in open(f"/proc/{job.pid_of(task)}/smaps_rollup").read().splitlines()[1:])
        assert sum(int(fields[name].split()[0]) for name in ("Private_Clean", "Private_Dirty")) < 100 * 1024, task
