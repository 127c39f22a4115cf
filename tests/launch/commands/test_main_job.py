"""The main job of the README, on every tier and on SINGA's job files."""

import subprocess
import sys

import numpy as np
import pytest
from support_paths import PROGRAMS

pytestmark = pytest.mark.cluster


def test_standard_1_trains_the_digits_and_writes_a_summary(start, read_json):
    job = start("-m", "tfdist.launch", "--tier", "STANDARD_1", "--summary", "summary.json", fresh=True)
    assert job.wait() == 0, job.output
    assert job.left() == {}
    summary = read_json("summary.json")
    assert summary["strategy"] == "parameter_server"
    assert "Downpour" in summary["rule"]
    assert [task["task"] for task in summary["tasks"]] == [
        "chief:0",
        *(f"worker:{i}" for i in range(4)),
        *(f"ps:{i}" for i in range(3)),
    ]
    assert {task["exit_code"] for task in summary["tasks"]} == {0}
    assert summary["steps"] == 30 * 45
    assert summary["examples_per_second"] > 0
    assert summary["metrics"]["accuracy"] >= 0.95
    assert summary["wall_seconds"] > 0
    assert "chief:0  | Epoch 2/30" in job.output
    assert "  strategy  parameter_server: ps with one server group" in job.output


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


@pytest.mark.parametrize(
    ("tier", "warning"), [("BASIC", ""), ("BASIC_GPU", "asks for a GPU"), ("BASIC_TPU", "asks for a Cloud TPU")]
)
def test_a_tier_of_one_machine_trains_in_one_process(start, read_json, tier, warning):
    job = start("-m", "tfdist.launch", "--tier", tier, "--summary", "summary.json", "--", "--epochs=8")
    assert job.wait() == 0, job.output
    summary = read_json("summary.json")
    assert (summary["strategy"], len(summary["tasks"])) == ("default", 1)
    assert summary["steps"] == 8 * 45
    assert summary["metrics"]["accuracy"] >= 0.95
    assert warning in job.output
    assert job.left() == {}


def test_a_machine_of_four_gpus_without_gpus_trains_four_replicas_on_the_cpu_and_warns(start, read_json):
    arguments = ["--tier", "CUSTOM", "--master_machine_type", "complex_model_m_gpu", "--summary", "summary.json"]
    job = start("-m", "tfdist.launch", *arguments, "--", "--epochs=8")
    assert job.wait() == 0, job.output
    summary = read_json("summary.json")
    assert summary["strategy"] == "mirrored"
    assert summary["metrics"]["accuracy"] >= 0.9
    assert "asks for 4 GPUs, and TensorFlow finds 0 on this machine; its 4 replicas share the CPU" in job.output


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
        "import sys, tfdist\nfrom trainer.names import GREETING\n"
        "if __name__ == '__main__':\n    tfdist.strategy()\n    print(GREETING, sys.argv[1:], __package__, flush=True)\n"
    )
    job = start("-m", "tfdist.launch", "--tier", "BASIC", "-m", "trainer.task", "--", "--my_flag=1", "x")
    assert job.wait() == 0, job.output
    assert "chief:0 | hello ['--my_flag=1', 'x'] trainer" in job.output


def test_a_script_has_its_own_name_folder_and_arguments(start, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "link").mkdir()
    (tmp_path / "sub" / "beside.py").write_text("VALUE = 42\n")
    (tmp_path / "sub" / "train.py").write_text(
        "import os, sys, beside, multiprocessing\nimport tfdist\n"
        "def double(x): return 2 * x\n"
        "if __name__ == '__main__':\n"
        "    if 'TF_CONFIG' in os.environ: tfdist.strategy()\n"
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
        job = start("-m", "tfdist.launch", "--tier", "BASIC", script, "--my_flag=1")
        assert job.wait() == 0, job.output
        assert "".join(f"chief:0 | {line}\n" for line in plain.splitlines()) in job.output


def test_the_job_dir_reaches_the_program(start, tmp_path):
    (tmp_path / "train.py").write_text("import tfdist\ntfdist.strategy()\nprint('folder', tfdist.read().job_dir, flush=True)\n")
    job = start("-m", "tfdist.launch", "--tier", "BASIC", "--job_dir", "somewhere", "train.py")
    assert job.wait() == 0, job.output
    assert "folder somewhere" in job.output


def test_the_example_saves_its_model_in_the_job_dir_of_the_launcher(start, tmp_path):
    job = start("-m", "tfdist.launch", "--tier", "BASIC", "--job_dir", "new/folder", "--", "--epochs=1")
    assert job.wait() == 0, job.output
    assert (tmp_path / "new/folder/digits.keras").exists()


def test_local_runs_a_description_of_other_machines_here(start, script, tmp_path):
    (tmp_path / "far.json").write_text('{"cluster": {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}}')
    job = start(
        "-m", "tfdist.launch", "--cluster", "far.json", "--local", script("import tfdist\ntfdist.strategy()\nprint('here')")
    )
    assert job.wait() == 0, job.output
    assert "chief:0  | here" in job.output


@pytest.mark.parametrize("tier", ["STANDARD_1"])
def test_every_task_has_a_log_file(start, tmp_path, tier):
    (tmp_path / "train.py").write_text(
        "import os\nprint('I am', os.environ['TF_CONFIG'][-40:])\nimport tfdist\ntfdist.strategy()\n"
    )
    job = start("-m", "tfdist.launch", "--tier", tier, "--log_dir", "logs", "train.py")
    assert job.wait() == 0, job.output
    logs = {path.name: path.read_text() for path in (tmp_path / "logs").glob("*-*.log")}
    assert sorted(logs) == ["chief-0.log", "ps-0.log", "ps-1.log", "ps-2.log", *(f"worker-{i}.log" for i in range(4))]
    assert '"type": "ps", "index": 2' in logs["ps-2.log"]
    assert "worker:3 | I am" in job.output


def test_the_same_training_on_one_worker_and_in_one_process_is_equal(start, read_json, small_cluster, tmp_path):
    program = str(PROGRAMS / "equality.py")
    config = (tmp_path / "small.yaml").read_text().replace("workerCount: 2", "workerCount: 1")
    (tmp_path / "one.yaml").write_text(config)
    jobs = [
        # Tasks do not connect to each other through a proxy for the web.
        start(
            *("-m", "tfdist.launch", "--cluster", "one.yaml", program, "ps.json"),
            environment={"http_proxy": "http://127.0.0.1:9"},
        ),
        start("-m", "tfdist.launch", "--tier", "BASIC", program, "basic.json"),
    ]
    assert [job.wait() for job in jobs] == [0, 0], [job.output for job in jobs]
    on_cluster, in_process = read_json("ps.json"), read_json("basic.json")
    assert on_cluster["iterations"] == in_process["iterations"] == 40
    assert on_cluster["history"].keys() == in_process["history"].keys()
    for name, values in in_process["history"].items():
        assert on_cluster["history"][name] == pytest.approx(values, rel=1e-6), name
    assert on_cluster["evaluate"] == pytest.approx(in_process["evaluate"], rel=1e-6)
    assert np.array(on_cluster["predict"]) == pytest.approx(np.array(in_process["predict"]), rel=1e-6)


def test_an_idle_task_has_less_than_100_megabytes_of_private_memory(start, script, small_cluster):
    job = start(
        "-m",
        "tfdist.launch",
        "--cluster",
        small_cluster,
        script("import tfdist, time\ntfdist.strategy()\nprint('all here', flush=True)\ntime.sleep(600)"),
        fresh=True,
    )
    job.wait_for("all here")
    for task in ("ps:0", "worker:0", "worker:1"):
        fields = dict(line.split(":") for line in open(f"/proc/{job.pid_of(task)}/smaps_rollup").read().splitlines()[1:])
        assert sum(int(fields[name].split()[0]) for name in ("Private_Clean", "Private_Dirty")) < 100 * 1024, task


def test_evaluators_run_the_program_too(start, script, small_cluster, tmp_path):
    config = (tmp_path / "small.yaml").read_text() + "  evaluatorType: standard\n  evaluatorCount: 1\n"
    (tmp_path / "with_evaluator.yaml").write_text(config)
    job = start(
        "-m", "tfdist.launch", "--cluster", "with_evaluator.yaml", script("import tfdist\ntfdist.strategy()\nprint('here')")
    )
    assert job.wait() == 0, job.output
    assert "evaluator:0 | here" in job.output
    assert "chief:0     | here" in job.output
