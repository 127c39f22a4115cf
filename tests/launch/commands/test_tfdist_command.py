"""The command `tfdist`: its verbs, help, what users of other launchers type, and doctor."""

import os
import re
import subprocess
import sys

import pytest
from absl import flags

from tfdist.launch.command_line import splitting
from tfdist.launch.commands import COMMANDS, HELP, doctor, help_topics, run_command
from tfdist.launch.errors import UsageError
from tfdist.launch.jobs.job import Program
from tfdist.version import __version__

pytestmark = pytest.mark.slow


@pytest.fixture
def tfdist(tmp_path, quick_python):
    def run(*words):
        environ = os.environ | {"TFDIST_STATE_DIR": str(tmp_path / "state")}
        return quick_python.run(["-m", "tfdist", *words], str(tmp_path), environ)

    return run


def test_help_and_version_and_the_help_of_every_verb(tfdist):
    assert tfdist("--help").stdout == HELP
    assert tfdist("--version").stdout == f"tfdist {__version__}\n"
    for verb in COMMANDS:
        assert f"tfdist {verb}" in HELP
        got = tfdist(verb, "--help")
        assert (got.returncode, got.stderr) == (0, ""), verb
        assert len(got.stdout.splitlines()) >= 3
        assert "xit code" in got.stdout or verb == "completion"
    assert tfdist().returncode == 2
    assert tfdist("help", "cancel").stdout == tfdist("cancel", "--help").stdout


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["status"], ["translate", "-h"]])
def test_help_and_status_do_not_import_tensorflow(words, tmp_path):
    code = (
        "import sys\nfrom tfdist.launch.commands import main\n"
        "try:\n    main()\nexcept SystemExit as end: assert not end.code\n"
        "assert not {'tensorflow', 'keras', 'numpy'} & sys.modules.keys()\n"
        "assert sys.argv[1:] != ['--help'] or 'tfdist.launch.commands.run_command' not in sys.modules"
    )
    environ = os.environ | {"TFDIST_STATE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code, *words], check=True, env=environ, capture_output=True, timeout=60)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["stauts"],
            "'stauts' is not a command; there are run, plan, translate, status, logs, cancel, scale, doctor, completion; did you mean status?",
        ),
        (["train.py"], "train.py: the command is missing; did you mean tfdist run train.py?"),
        (["--tier"], "--tier: the command is missing; did you mean tfdist run --tier?"),
        (["run", "--teir", "BASIC"], "Did you mean --tier?"),
        (["run", "--wokers", "2"], "Did you mean --worker_count or --worker_machine_type or --workers?"),
        (
            ["run", "--backend", "loca", "-n", "1"],
            "'loca' is not a back end; there are local, ssh, slurm, srun, ray, kubernetes; did you mean local?",
        ),
        (["run", "--ssh_python", "x", "-n", "1"], "--ssh_python goes with --backend ssh, and this is --backend local"),
        (
            ["run", "--backend", "ssh", "-n", "1", "here.py"],
            "worker:0 has no host; --backend ssh needs a description that names",
        ),
        (["run", "-n", "1", "--tier", "BASIC"], "without another description, and --tier describes one; give one of them"),
        (["run", "-n", "1", "--evaluator_count", "1"], "without another description, and --evaluator_count describes one"),
        (
            ["run", "-n", "1", "--hostfile", "here.py"],
            "tfdist: --hostfile: a host file goes with a SINGA description, this one",
        ),
        (["run", "-n", "0"], "workers"),
        (
            ["run", "-n", "1", "--task_restarts", "chief=3", "here.py"],
            "--task_restarts chief=3: tasks that are restarted alone are worker, ps, evaluator",
        ),
        (["run", "-n", "1", "--task_restarts", "worker=-1", "here.py"], "expected a number, or worker=5,evaluator=0"),
        (["run", "-n", "1", "--state_file", "no/where", "here.py"], "--state_file no/where: No such file or directory"),
        (["run", "-n", "1", "--detach", "--state_file", "x", "here.py"], "--state_file goes without --detach"),
        (["completion", "tcsh"], "expected one of bash, zsh, fish"),
        (["status", "--svg", "x.svg"], "expected one HANDLE"),
        (["status", "--json", "--mermaid", "local://1"], "--json and --mermaid are different forms"),
        (["run", "-n", "1", "--env", "=x", "here.py"], "--env: expected NAME=... or NAME"),
        (["status", "--josn"], "Did you mean --json?"),
        (["status", "x"], "'x' is not a handle; expected BACKEND://ID"),
        (["status", "."], "is a folder, not a handle; only jobs in the background"),
        (["logs"], "expected HANDLE or HANDLE TASK"),
        (["cancel"], "expected one HANDLE"),
        (["cancel", "nowhere://1"], "'nowhere' is not a back end"),
        (["doctor", "--fast"], "'--fast' is not a flag of it; there is --quick"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tfdist, tmp_path, words, message):
    (tmp_path / "here.py").write_text("")
    got = tfdist(*words)
    assert (got.returncode, got.stdout) == (2, "")
    assert got.stderr.startswith("tfdist: ") and got.stderr.count("\n") == 1, got.stderr
    assert message in got.stderr


def test_a_missing_program_is_found_before_anything_is_queued(tfdist, tmp_path, monkeypatch):
    for name in ("sbatch", "scontrol", "scancel"):
        (tmp_path / name).write_text("#!/bin/sh\ntouch called\necho 7\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    got = tfdist("run", "--backend", "slurm", "--detach", "--cluster", '{"worker": 2}', "tarin.py")
    assert (got.returncode, got.stdout) == (2, "") and "tarin.py: there is no such program" in got.stderr
    assert not (tmp_path / "called").exists()
    (tmp_path / "tarin.py").write_text("")
    refused = tfdist("run", "--backend", "slurm", "--state_file", "x", "--cluster", '{"worker": 2}', "tarin.py")
    assert (refused.returncode, "--backend slurm keeps the states itself" in refused.stderr) == (2, True)
    assert not (tmp_path / "called").exists()
    assert tfdist("run", "--backend", "slurm", "--detach", "--cluster", '{"worker": 2}', "tarin.py").stdout == "slurm://7\n"
    assert (tmp_path / "called").exists()


def test_defaults_come_from_a_file_of_flags(tfdist, tmp_path):
    (tmp_path / "defaults").write_text("--tier=STANDARD_1\n--strategy=hogwild\n# a comment\n--sync_period=4\n")
    got = tfdist("run", "--flagfile", "defaults", "--sync_period=8", "--dry_run")
    assert got.returncode == 0 and "strategy  hogwild\n" in got.stdout and "period    8 updates" in got.stdout
    missing = tfdist("run", "--flagfile=nowhere", "--dry_run")
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1) and "nowhere" in missing.stderr


def split(*words):
    return splitting.split(["tfdist run", *words], flags.FLAGS)


@pytest.mark.parametrize(
    "words",
    [
        ("-n", "4"),
        ("-n=4",),
        ("--nproc_per_node=4",),
        ("--nproc-per-node", "4"),
        ("-np", "4"),
        ("--num_processes", "4"),
        ("--standalone", "--nnodes=1", "--nproc_per_node=4"),
        ("--nnodes", "1:1", "--nproc-per-node=4"),
        ("--num_machines", "1", "--num-processes=4"),
    ],
)
def test_what_users_of_other_launchers_type_for_one_machine_is_understood(words):
    launcher, program = split(*words, "train.py", "--nnodes", "7")
    assert program == ["train.py", "--nnodes", "7"]
    values = flags.FlagValues()
    flags.DEFINE_integer("workers", None, "", short_name="n", flag_values=values)
    values(launcher)
    assert values.workers == 4


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("--nnodes", "2"), "--nnodes is a flag of another launcher: name the hosts in --cluster"),
        (("--nproc_per_node=gpu",), "use -n 4"),
        (("--master_addr=a",), "leave it out"),
        (("--node-rank", "1"), "starts the tasks of all hosts itself"),
        (("-H", "a:2,b:2"), "name the hosts in --cluster"),
    ],
)
def test_a_flag_of_another_launcher_is_answered_with_the_right_one(words, answer):
    with pytest.raises(UsageError, match="is a flag of another launcher") as error:
        split(*words, "train.py")
    assert answer in str(error.value)


@pytest.mark.parametrize(
    "words",
    [
        ("--slurm_options", "--gpus-per-node=4 --mail-type=END"),
        ("--slurm-options", "--nnodes=2"),
        ("--slurm_options", "--standalone"),
        ("--env", "--a-b=c"),
    ],
)
def test_the_values_of_flags_stay_as_they_are(words):
    launcher, program = split(*words, "--worker-count", "2", "train.py")
    assert launcher == ["tfdist run", words[0].replace("slurm-", "slurm_"), words[1], "--worker_count", "2"]
    assert program == ["train.py"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--", "train.py", "--epochs=5"), Program("train.py", args=["--epochs=5"])),
        (("--", "train.py", "--", "-v"), Program("train.py", args=["-v"])),
        (("--", "--epochs=5", "train.py"), Program(module=splitting.EXAMPLE, args=["--epochs=5", "train.py"])),
        (("--",), Program(module=splitting.EXAMPLE)),
        (("train.py", "--", "--epochs=5"), Program("train.py", args=["--epochs=5"])),
    ],
)
def test_a_program_may_follow_the_separator(words, expected):
    _, program = split("-n", "4", *words)
    assert splitting.program(program, None) == expected


def test_words_after_a_module_and_a_separator_are_its_arguments():
    _, program = split("-n", "4", "-m", "package.module", "--", "train.py")
    assert splitting.program(program, "package.module") == Program(module="package.module", args=["train.py"])


@pytest.mark.parametrize("module", ["tfdist", "tfdist.launch"])
def test_a_closed_standard_output_is_no_error(tmp_path, module):
    verb = "run" if module == "tfdist" else ""
    for words in (f"{verb} -n 2 --dry_run", "status") if verb else ("-n 2 --dry_run",):
        command = f"{sys.executable} -m {module} {words} >&-"
        environ = os.environ | {"TFDIST_STATE_DIR": str(tmp_path)}
        got = subprocess.run(command, shell=True, stderr=subprocess.PIPE, cwd=tmp_path, env=environ, timeout=60)
        assert (got.returncode, got.stderr) == (0, b"")


@pytest.mark.parametrize("words", [["--help"], ["translate", "STANDARD_1", "--to", "tf_config"]])
def test_a_full_disk_behind_standard_output_is_one_line(words):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "tfdist", *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    where = "standard output or a file that this command writes"
    assert done.stderr == f"tfdist: no space is left on the disk of {where}; free some there\n"


def test_every_flag_of_run_is_under_one_topic():
    topics = help_topics.topics(flags.FLAGS)
    names = [name for topic in topics.values() for name in topic]
    assert sorted(names) == sorted({flag.name for flag in flags.FLAGS.get_key_flags_for_module(run_command.__name__)})
    assert set(topics) <= {*help_topics.TOPICS, *(f"Back end {name}" for name in ("ssh", "slurm", "ray", "kubernetes"))}


def test_the_help_of_run_gives_real_defaults_and_says_nothing_twice():
    text = " ".join(help_topics.help_text(flags.FLAGS).split())
    assert "--log_dir Folder for the output of the tasks. Default: a new folder below tfdist_logs/. --" in text
    assert "Default: ." not in text
    assert " -m Python module" in text and "--m " not in text
    assert text.count("Can be given several times. ") == 2 and "repeat this option" not in text


@pytest.mark.parametrize(("setting", "said"), [("1", "begin slowly; for ps on links of 100 Mbit/s"), ("0", "keep their rate")])
def test_doctor_says_what_linux_does_with_idle_connections(monkeypatch, tmp_path, capsys, setting, said):
    monkeypatch.setattr(doctor, "IDLE_CONNECTIONS", tmp_path / "setting")
    (tmp_path / "setting").write_text(f"{setting}\n")
    doctor.main(["--quick"])
    assert re.search(f"^idle connections +{said}", capsys.readouterr().out, re.MULTILINE)


def test_doctor_says_what_is_there_and_no_values_of_variables(tfdist, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["secret-host:1"]}, "task": {"type": "worker", "index": 0}}')
    got = tfdist("doctor", "--quick")
    assert got.returncode == 0, got.stderr
    words = [line.split()[0] for line in got.stdout.splitlines()]
    assert {"tfdist", "python", "tensorflow", "keras", "machine", "GPUs", "limits", "ports", "tools", "launcher"} <= set(words)
    # No cluster is asked: the tools alone do not mean that there is one.
    assert re.search("^backend ssh +(installed, not tried|cannot be used here: no ssh)$", got.stdout, re.MULTILINE)
    assert re.search("^backend local +can be used$", got.stdout, re.MULTILINE) and "TF_CONFIG (tf_config)" in got.stdout
    assert "secret-host" not in got.stdout
    assert re.match(rf"tfdist +{re.escape(__version__)} in .*{os.sep}tfdist\n", got.stdout)  # Where it is, not its launcher.
