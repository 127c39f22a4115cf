"""python -m tfdist.launch without a job: dry runs, help, and every kind of bad input."""

import collections
import json
import math
import os
import re
import shlex
import subprocess
import sys
import threading
import types

import pytest
from cluster_strategies import clusters
from hypothesis import HealthCheck, given, settings

from tfdist.choice import Choice, choose, prepared
from tfdist.cluster import Cluster, Task
from tfdist.dialects import read
from tfdist.launch.backends.interface import Plan
from tfdist.launch.backends.local import backend as local
from tfdist.launch.backends.local import resources
from tfdist.launch.command_line import splitting
from tfdist.launch.commands import dry_run, run_command, run_flags
from tfdist.launch.jobs.job import Job, Program

pytestmark = pytest.mark.slow

CUSTOM = "trainingInput:\n  scaleTier: CUSTOM\n  masterType: standard\n"


@pytest.fixture
def launch(tmp_path, quick_python):
    def run(*arguments, **environment):
        variables = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"} | environment
        return quick_python.run(["-m", "tfdist.launch", *arguments], str(tmp_path), variables)

    return run


def test_a_dry_run_shows_every_task_with_its_tf_config_and_the_rule(launch):
    got = launch("--tier", "STANDARD_1", "--dry_run")
    assert got.returncode == 0
    assert "parameter_server" in got.stdout and "Downpour" in got.stdout
    assert got.stdout.count("TF_CONFIG='") == 8
    assert "ps:2      localhost:27185  (n1-standard-4)" in got.stdout


def test_a_variable_with_a_description_may_name_a_task_unlike_that_of_another_launcher(launch):
    config = '{"cluster": {"worker": ["localhost:29411", "localhost:29412"]}, "task": {"type": "worker", "index": 0}}'
    got = launch("--dry_run", TFDIST_CLUSTER=config)
    assert got.stdout.count("TF_CONFIG='") == 2, got.stderr
    got = launch("--dry_run", TF_CONFIG=config)
    assert got.returncode == 2 and "TF_CONFIG says that this process is worker:0 of a cluster" in got.stderr


def test_a_dry_run_of_many_tasks_does_nothing_for_each_pair_of_them(monkeypatch, capsys):
    cluster = prepared(read({"chief": 1, "worker": 40, "ps": 9, "evaluator": 1}))
    counts = collections.Counter()

    def counted(function):
        def call(*arguments):
            counts[function.__name__] += 1
            return function(*arguments)

        return call

    monkeypatch.setattr(Task, "__eq__", counted(Task.__eq__))
    monkeypatch.setattr(resources, "computes", counted(resources.computes))
    monkeypatch.setattr(Cluster, "cluster_spec", counted(Cluster.cluster_spec))
    plan = local.plan(Job(cluster, choose(cluster), Program("train.py")))
    dry_run.explain(plan)
    assert counts["cluster_spec"] == 1 and counts["computes"] <= 51 and counts["__eq__"] <= 51
    shown = capsys.readouterr().out
    monkeypatch.undo()
    assert [json.loads(text) for text in re.findall(r"TF_CONFIG='(.*)'", shown)] == [
        plan.job.cluster.tf_config(task.job, task.index) for task in plan.job.cluster.tasks
    ]


@settings(max_examples=50, suppress_health_check=[*HealthCheck], deadline=None)
@given(cluster=clusters().filter(lambda cluster: cluster.worker_groups))  # Others are refused before anything is shown.
def test_a_dry_run_shows_tf_config_of_every_cluster_as_its_tasks_get_it(capsys, cluster):
    cluster = cluster.addressed()
    dry_run.explain(Plan(Job(cluster, Choice("hogwild", "of a test"), Program("train.py"))))
    words = [
        line.partition("TF_CONFIG=")[2] for line in capsys.readouterr().out.splitlines() if line.startswith("  TF_CONFIG=")
    ]
    shown = [json.loads("".join(shlex.split(word))) for word in words]
    assert shown == [json.loads(json.dumps(cluster.tf_config(task.job, task.index))) for task in cluster.tasks]


def test_a_longer_start_timeout_is_given_to_the_tasks(launch):
    assert "variables TFDIST_START_TIMEOUT" in launch("-n", "2", "--dry_run", "--start_timeout", "900").stdout
    assert "TFDIST_START_TIMEOUT" not in launch("-n", "2", "--dry_run", "--start_timeout", "20").stdout


def test_a_grace_period_without_an_end_is_one_that_timers_take():
    values = {name: run_command.FLAGS[name].value for name in run_command.FLAGS} | {"grace_period": math.inf}
    assert 1e6 < run_flags.settings(types.SimpleNamespace(**values), ["worker:0"]).grace_period < threading.TIMEOUT_MAX


@pytest.fixture
def gpus(tmp_path):
    """Returns variables with which a machine seems to have that many GPUs: an nvidia-smi that lists them."""

    def make(number):
        (tmp_path / "bin").mkdir(exist_ok=True)
        lines = "".join(f"GPU {index}: NVIDIA H100 (UUID: GPU-{index})\n" for index in range(number))
        (tmp_path / "bin/nvidia-smi").write_text(f"#!/bin/sh\ncat <<END\n{lines}END\n")
        (tmp_path / "bin/nvidia-smi").chmod(0o755)
        return {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}

    return make


def seen(text):
    """Returns the value of CUDA_VISIBLE_DEVICES for each task in a dry run; None for a task without one."""
    tasks = [part.split("\n") for part in text.split("\n\n")[1:]]
    values = [re.search(r"CUDA_VISIBLE_DEVICES=(\S+)", "\n".join(lines)) for lines in tasks]
    return {lines[0].split()[0]: value and value[1] for lines, value in zip(tasks, values, strict=True)}


def test_a_dry_run_shows_the_gpus_of_each_task(launch, gpus):
    tier = ("--tier", "STANDARD_1", "--dry_run")
    others = dict.fromkeys(("chief:0", "ps:0", "ps:1", "ps:2"), "-1")
    none = launch(*tier)
    assert "machine   " in none.stdout and "no GPU to use here" in none.stdout
    assert seen(none.stdout) == others | dict.fromkeys((f"worker:{n}" for n in range(4)), None)
    two = launch(*tier, **gpus(2))
    assert seen(two.stdout) == others | {"worker:0": "0", "worker:1": "1", "worker:2": "0", "worker:3": "1"}
    assert "warning   worker:0, worker:1, worker:2, worker:3 share 2 GPUs" in two.stdout
    assert two.stdout.count("TF_FORCE_GPU_ALLOW_GROWTH=true") == 4
    eight = launch(*tier, **gpus(8), CUDA_VISIBLE_DEVICES="7,6,5,4,3")
    assert "GPU 7, 6, 5, 4, 3 to use here" in eight.stdout
    assert seen(eight.stdout) == others | {"worker:0": "7", "worker:1": "6", "worker:2": "5", "worker:3": "4"}
    assert "warning   no task uses GPU 3; " in eight.stdout
    more = launch(*tier, "--gpus_per_task", "2", **gpus(8))
    assert seen(more.stdout) == others | {"worker:0": "0,1", "worker:1": "2,3", "worker:2": "4,5", "worker:3": "6,7"}
    assert more.stdout.count("(2 slots, 2 GPU, ") == 4


def test_a_dry_run_shows_hogwild_and_its_period(launch, tmp_path):
    (tmp_path / "job.conf").write_text("cluster { nworker_groups: 3 nserver_groups: 3 sync_freq: 8 }")
    dry = launch("--cluster", "job.conf", "--dry_run")
    assert dry.returncode == 0
    assert "hogwild" in dry.stdout and "8 updates" in dry.stdout


def test_a_dry_run_says_where_the_devices_of_a_partitioned_model_are(launch):
    shards = ("--partition", "up/.*=columns,down/kernel=rows", "--partition_devices", "2", "--dry_run")
    served = launch("--cluster", '{"ps": 1, "worker": 2}', *shards)
    assert "(over 2 devices of a task)" in served.stdout, served.stderr
    spanning = launch("-n", "2", *shards, "--partition_tasks", "2")
    assert "(over 2 devices of 2 tasks)" in spanning.stdout, spanning.stderr


def test_a_dry_run_explains_a_cluster_that_cannot_be_trained_and_a_real_run_refuses_it(launch, tmp_path):
    dry = launch("--tier=STANDARD_1", "--strategy=multi_worker_mirrored", "--dry_run")
    assert dry.returncode == 0
    assert "cannot be started" in dry.stdout and "nothing for ps tasks to do" in dry.stdout
    real = launch("--tier=STANDARD_1", "--strategy=multi_worker_mirrored")
    assert real.returncode == 2
    assert "nothing for ps tasks to do" in real.stderr
    assert not (tmp_path / "tfdist_logs").exists()


def test_a_dry_run_shows_hogwilds_options_and_gives_them_to_every_task(launch):
    got = launch("--tier=STANDARD_1", "--strategy=hogwild", "--outer=sum", "--delay=0", "--dry-run")
    assert got.returncode == 0, got.stderr
    assert "period    16 updates between synchronizations\noptions   outer sum, delay 0\nwarning   outer sum adds" in got.stdout
    assert got.stdout.count('"sync_period": 16, "strategy": "hogwild", "synchronization": {"outer": "sum", "delay": 0}') == 8


@pytest.mark.parametrize("arguments", [["--tier", "STANDARD_1", "--dry_run"], ["--help"], ["--tier", "NONE"]])
def test_dry_run_help_and_errors_do_not_import_tensorflow(arguments, tmp_path):
    code = (
        "import sys\n"
        "from tfdist.launch.commands import run\n"
        "try: run(['run', *sys.argv[1:]])\nexcept SystemExit: pass\n"
        "assert not {'tensorflow', 'keras', 'numpy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, cwd=tmp_path, capture_output=True, timeout=60)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no cluster is described"),
        (["--teir", "BASIC"], "Did you mean --tier? An argument of your program goes after it: train.py --teir"),
        (["--epochs", "3"], "flag 'epochs'. An argument of your program goes after it: train.py --epochs"),
        (["--tier", "STANDRD_1"], "did you mean STANDARD_1?"),
        (["--tier", "STANDARD_1", "--worker_count", "3"], "STANDARD_1"),
        (["--tier", "CUSTOM"], "masterType"),
        (["--cluster", "missing.conf"], "missing.conf"),
        (["--cluster", "custom.yaml", "--worker_count", "-1"], "-1"),
        (["--cluster", "custom.yaml", "--worker_count", "two"], "two"),
        (["-n", "two"], "'two' is not a whole number"),
        (["-n", "100001"], "100001 is not an integer in the range [1, 100000]"),
        (["--tier", "STANDARD_1", "--max_workers", "9" * 20, "--dry_run"], "is not an integer in the range [1, 100000]"),
        (["-n", "2", "--gpus_per_task", "9" * 20, "--dry_run"], "is not an integer in the range [0, 1024]"),
        (["-n", "2", "--backup_dir", "b", "--backup_freq", "x", "--dry_run"], "--backup_freq x: expected epoch, or a number"),
        (["-n", "2", "--summary=", "train.py"], "--summary : this file cannot be written"),
        (["--cluster", '{"worker": 100001}'], "worker: 100001 is not a number of tasks; expected a whole number from 0 to"),
        (["-n", "2", "--step_timeout", "soon"], "'soon' is not a number"),
        (["--cluster", "custom.yaml", "--strategy", "hogwild"], "has none"),
        (["--cluster", "custom.yaml", "--strategy", "miror"], "did you mean mirrored?"),
        (["--tier", "STANDARD_1", "--outer", "nesterov"], "--outer: it is an option of hogwild"),
        (
            ["--tier", "STANDARD_1", "--strategy", "hogwild", "--fragments", "3"],
            "fragments: 3 fragments do not divide the sync period of 16",
        ),
        (["--tier", "STANDARD_1", "--strategy", "hogwild", "--fragments", "half"], "half"),
        (["--cluster", "empty.yaml"], "empty"),
        (["--cluster", "binary"], "binary"),
        (["--cluster", "typo.conf"], "did you mean nworkers_per_procs?"),
        (["--cluster", "far.json"], "--local"),
        (["--tier", "BASIC", "trian.py"], "did you mean train.py?"),
        (["--tier", "BASIC", "-m", "no.such.module"], "no.such.module"),
        (["-n", "2", "-m", "package"], "-m package: there is no module package.__main__ in "),
        (["-n", "2", "-m", "package.trian"], "-m package.trian: there is no module package.trian in "),
        (["--hostfile", "hosts"], "for workers on them give --cluster 'horovodrun -np 4 --hostfile FILE'"),
        (["-n", "2", "--hostfile", "hosts"], "describe workers on these hosts: 'horovodrun -np 4 --hostfile FILE'"),
        (["--cluster", "a:2,b:2"], "a:2,b:2: this is neither a file nor a description; for hosts write 'horovodrun"),
        (["--cluster", "custom.yaml", "--cluster=far.json"], "--cluster is given twice; give one description"),
        (["--cluster", '{"ps": 2}'], "tfdist: --cluster: there are ps tasks but no workers"),
        (["--cluster", "tab.yaml"], "tab.yaml:2: this is not YAML: while scanning"),
        (["--cluster", "tab.yaml"], "this line has a tab: YAML indents with spaces"),
        (["-n", "4", "--backend", "ssh", "train.py"], "tfdist: -n 4: worker:0 has no host; --backend ssh needs"),
        (["-n", "2", "book.ipynb"], "book.ipynb: this is a notebook; run it in Jupyter, or write a script of it"),
        (["STANDARD_1"], "did you mean --tier STANDARD_1?"),
        (["train.py", "--tier", "BASIC"], "flags of this command go before it"),
        (["train.py", "-n", "4"], "-n follows the program and belongs to it"),
        (["-n", "2", "-", "--seed=1"], "-: every task runs the program, and only one could read it from standard input"),
        (["-n", "2", "folder"], "folder: this is a folder without a __main__.py; name a program"),
        (["--tier", "BASIC", "--nodry_run=3"], "nodry_run"),
        (["--tier", "BASIC", "--summary", "no/such/folder/s.json"], "--summary no/such/folder/s.json"),
        (["-n", "2", "--backup_dir", "binary", "train.py"], "--backup_dir binary: it is not a folder; name a folder"),
        (["-n", "2", "--job_dir", "binary/run", "train.py"], "/binary is not a folder; name a folder"),
        (["-n", "2", "--tensorboard", "binary", "train.py"], "--tensorboard binary: it is not a folder"),
        (["-n", "2", "--flagfile", "binary", "train.py"], "--flagfile: this file is not text in UTF-8"),
        (["-n", "2", "--flagfile", "gone", "train.py"], "--flagfile: Unable to open flagfile: [Errno 2]"),
        (["--tier", "BASIC", "--start_timeout", "-1"], "start_timeout"),
        (["--tier", "BASIC", "--grace_period", "nan"], "flag --grace_period=nan: expected a number"),
        (["--tier", "STANDARD_1", "--dry_run", "--fail_at", "worker:9,step=1"], "there is no task worker:9; did you mean"),
        (["--tier", "STANDARD_1", "--dry_run", "--task_restarts", "chief=1"], "--task_restarts chief=1"),
        (["--tier", "BASIC", "--gpus_per_task", "-1"], "gpus_per_task"),
        (["--tier", "BASIC", "--gpus_per_task", "9"], "--gpus_per_task 9: this process sees 0 GPUs on this machine"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2_and_nothing_is_started(launch, tmp_path, arguments, message):
    (tmp_path / "custom.yaml").write_text(CUSTOM)
    (tmp_path / "empty.yaml").write_text("")
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    (tmp_path / "typo.conf").write_text("cluster {\n  nworker_per_procs: 2\n}\n")
    (tmp_path / "far.json").write_text('{"cluster": {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}}')
    (tmp_path / "tab.yaml").write_text("trainingInput:\n\tscaleTier: CUSTOM\n")
    (tmp_path / "train.py").write_text("")
    (tmp_path / "book.ipynb").write_text("{}")
    (tmp_path / "folder").mkdir()
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("raise SystemExit('nobody runs this to find out')")
    got = launch(*arguments)
    assert got.returncode == 2
    assert got.stderr.startswith("tfdist: ") and got.stderr.count("\n") == 1, got.stderr
    assert message in got.stderr
    assert got.stdout == ""
    assert not (tmp_path / "tfdist_logs").exists()


@pytest.mark.parametrize(
    ("words", "is_named"),
    [
        (["--strategy=hogwild"], True),
        (["--dry-run"], True),
        (["--tier", "BASIC"], True),
        (["-n", "4"], True),
        (["--", "--strategy=hogwild"], False),
        (["--seed=1"], False),
        (["-1"], False),
    ],
)
def test_a_flag_after_the_program_is_named_because_the_program_gets_it(launch, tmp_path, words, is_named):
    (tmp_path / "train.py").write_text("")
    got = launch("--tier", "STANDARD_1", "--dry_run", "train.py", *words)
    assert got.returncode == 0 and "parameter_server" in got.stdout
    assert (f"tfdist: {words[0]} follows the program, so the program gets it" in got.stderr) == is_named


def test_an_error_in_a_file_names_file_and_line(launch, tmp_path):
    (tmp_path / "typo.conf").write_text("name: 'x'\ncluster {\n  nworker_groups: 1\n  nworker_per_procs: 2\n}\n")
    assert launch("--cluster", "typo.conf").stderr.startswith("tfdist: typo.conf:4: ")


@pytest.mark.parametrize(
    "arguments", [["--tier", "STANDARD_1"], ["--tier", "BASIC"], ["--cluster", "job.conf"], ["--cluster", "tf.json"]]
)
def test_the_flag_evaluator_adds_one_to_any_description_without_one(launch, tmp_path, arguments):
    (tmp_path / "job.conf").write_text("cluster { nworker_groups: 3 nserver_groups: 1 server_worker_separate: true }")
    (tmp_path / "tf.json").write_text('{"cluster": {"worker": ["a:1", "b:1"], "evaluator": ["c:1"]}}')
    got = launch(*arguments, "--evaluator", "--dry_run")
    assert got.returncode == 0, got.stderr
    assert "1 evaluator" in got.stdout.splitlines()[0]
    assert got.stdout.count('"task": {"type": "evaluator", "index": 0}') == 1


def test_flags_are_split_from_the_program_however_they_are_spelled():
    for words, expected in (
        (["-n4", "train.py"], ["--workers=4"]),
        (["-v", "-n", "2", "train.py"], ["--verbose", "-n", "2"]),
        (["-v", "1", "train.py"], ["-v", "1"]),  # That of absl.
        (["--no-defaults", "--no_dry-run", "train.py"], ["--nodefaults", "--nodry_run"]),
        (["--worker-count", "2", "--env", "--no-a=b-c", "train.py"], ["--worker_count", "2", "--env", "--no-a=b-c"]),
        (["--no-such-flag", "train.py"], ["--no_such_flag"]),
    ):
        assert splitting.split(["tfdist", *words], run_command.FLAGS) == (["tfdist", *expected], ["train.py"])
    module = ["-m", "package", "-v"]
    assert splitting.split(["tfdist", *module], run_command.FLAGS) == (["tfdist", "-m", "package"], ["-v"])


def test_a_reader_that_closes_the_pipe_is_no_error(tmp_path):
    got = subprocess.run(
        f"{sys.executable} -m tfdist.launch --tier PREMIUM_1 --dry_run | head -1",
        shell=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert (got.stdout[:8], got.stderr) == ("topology", "")
