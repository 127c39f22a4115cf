"""`python -m tfdist.translate`: its output, its exit status, and what it costs."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tfdist.dialects import read
from tfdist.translate import main, outputs

HOGWILD = "cluster { nworker_groups: 3 nserver_groups: 3 sync_freq: 4 }\n"


@pytest.fixture(autouse=True)
def no_tf_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)


@pytest.fixture
def job_conf(tmp_path: Path) -> str:
    path = tmp_path / "job.conf"
    path.write_text(HOGWILD)
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["translate", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.endswith("\n")
    return out


def test_tf_config_of_every_task(capsys: pytest.CaptureFixture[str], job_conf: str) -> None:
    configs = json.loads(run(capsys, job_conf, "--to", "tf_config"))
    # Hogwild's workers only serve, so a chief runs the user's program.
    assert list(configs) == ["chief:0", *(f"worker:{n}" for n in range(3)), *(f"ps:{n}" for n in range(3))]
    assert configs["ps:1"]["task"] == {"type": "ps", "index": 1}
    clusters = {read(config) for config in configs.values()}
    assert len(clusters) == 1
    assert clusters.pop().sync_period == 4


def test_tf_config_of_one_task(capsys: pytest.CaptureFixture[str], job_conf: str) -> None:
    config = json.loads(run(capsys, job_conf, "--task=worker:1"))
    assert config == json.loads(run(capsys, job_conf))["worker:1"]


def test_cluster_spec(capsys: pytest.CaptureFixture[str]) -> None:
    spec = json.loads(run(capsys, "standard-1", "--to", "cluster_spec"))
    assert {job: len(tasks) for job, tasks in spec.items()} == {"chief": 1, "worker": 4, "ps": 3}


def test_host_file(capsys: pytest.CaptureFixture[str], job_conf: str, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("a\nb\nc\n")
    spec = json.loads(run(capsys, job_conf, "--task=ps:0", "--hostfile", str(hosts)))["cluster"]
    assert spec["worker"] == ["a:6723", "b:6723", "c:6723"]
    assert spec["ps"] == ["a:6724", "b:6724", "c:6724"]


def test_singa_and_cloudml(capsys: pytest.CaptureFixture[str], job_conf: str, tmp_path: Path) -> None:
    assert read(run(capsys, job_conf, "--to", "singa")) == read(HOGWILD)
    assert run(capsys, "premium-1", "--to", "cloudml") == "trainingInput:\n  scaleTier: PREMIUM_1\n"
    config = tmp_path / "tf_config.json"
    config.write_text('{"cluster": {"worker": ["a:2222", "b:2222"]}}')
    assert "nworkers_per_group: 2" in run(capsys, str(config), "--to", "singa")


def test_a_command_line_and_standard_input_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    line = "horovodrun -np 3 -H a:2,b:2 python train.py --to x"
    assert run(capsys, line, "--to", "horovod") == "a slots=2\nb slots=1\n"
    assert command("-", "--to", "horovod", text=line).stdout == "a slots=2\nb slots=1\n"


def test_a_note_names_what_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    singa = 'cluster { nworkers_per_group: 2 workspace: "out\\033[31m" }'
    assert main(["translate", singa, "--to", "horovod"]) == 0
    out, err = capsys.readouterr()
    assert out == "localhost slots=2\n"
    assert err == 'tfdist: note: Horovod has no job directory: give your program "out\\u001b[31m" itself.\n'
    addresses = '{"cluster": {"chief": ["a:1"], "worker": ["b:2", "c:3"]}}'
    for to, title in (("slurm", "Slurm"), ("cloudml", "CloudML"), ("vertex", "Vertex AI")):
        assert main(["translate", addresses, "--to", to]) == 0
        assert f"note: {title} chooses the machines and ports: the host a of chief:0 is not" in capsys.readouterr().err
    assert main(["translate", "horovodrun -np 2 -H a:2", "--to", "horovod"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["translate", "cluster { nworker_groups: 2 nserver_groups: 2 }", "--to", "cluster_spec"]) == 0
    assert capsys.readouterr().err.endswith("--to tf_config also has server_groups, separate_servers.\n")
    assert main(["translate", "STANDARD_1", "--to", "cluster_spec"]) == 0
    assert capsys.readouterr().err == ""


def test_the_program_of_the_containers(capsys: pytest.CaptureFixture[str]) -> None:
    program = ("--image", "gcr.io/p/i", "--command", "python train.py --name 'a b'")
    for to in ("kubernetes", "tfjob", "vertex"):
        out = run(capsys, "STANDARD_1", "--to", to, *program)
        assert "gcr.io/p/i" in out
        assert "- 'a b'\n" in out
    assert "name: mine-ps\n  namespace: ml\n" in run(capsys, "premium-1", "--to=kubernetes", "--name=mine", "--namespace=ml")


def test_the_environment_without_a_file(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:1"]}}')
    assert json.loads(run(capsys, "--to", "cluster_spec")) == {"worker": ["a:1", "b:1"]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.conf"], "tfdist: nowhere.conf: there is no such file"),
        (["starndard_1"], "did you mean STANDARD_1?"),
        (["BASIC", "BASIC"], "tfdist: SOURCE: there are 2 files"),
        (["BASIC", "--to", "sing"], "; did you mean singa?"),
        (["BASIC", "--to", "vertex", "--name", "x"], "--name: this flag goes with --to kubernetes, tfjob"),
        (["BASIC", "--image", "x"], "--image: this flag goes with --to vertex, kubernetes, tfjob"),
        (["BASIC", "--to", "tfjob", "--name", "X"], "--name: 'X' is not a name that Kubernetes takes"),
        (["BASIC", "--too", "x"], "Unknown command line flag 'too'"),
        (["BASIC", "--task", "worker"], "'worker' is not a task; expected JOB:INDEX"),
        (["BASIC", "--task", "worker:x"], "is not a task"),
        (["BASIC", "--task", "worker:0"], "there is no task worker:0; this cluster has 1 chief"),
        (["BASIC", "--task", "chief:0", "--to", "singa"], "--task: this flag goes with --to tf_config"),
        (["BASIC", "--to", "singa"], "SINGA has no words for a chief"),
        (["BASIC", "--hostfile", "x"], "a host file goes with a SINGA description"),
        (["BASIC", "--hostfile"], "hostfile"),
        ([], "no cluster is described"),
    ],
)
def test_bad_input_is_one_line_and_exit_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["translate", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("tfdist: ")
    assert message in err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--help", "-h"):
        out = run(capsys, flag)
        assert all(
            word in out
            for word in ("usage:", "--to", "tf_config", "cluster_spec", "singa", "cloudml", "--task", "--hostfile", *outputs())
        )
        assert "PyTorchJob" not in out  # It is read, and never written.


def command(*arguments: str, text: str = "", options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, *options, "-m", "tfdist.translate", *arguments]
    return subprocess.run(program, input=text, capture_output=True, text=True, check=False)


def test_the_command_reads_standard_input() -> None:
    result = command("-", "--to", "cluster_spec", text=HOGWILD)
    assert result.returncode == 0
    assert len(json.loads(result.stdout)["ps"]) == 3
    result = command("-", text="cluster {\n nworker_per_procs: 1 }")
    assert result.returncode == 2
    assert result.stderr == (
        "tfdist: SOURCE:2: cluster.nworker_per_procs: ClusterProto has no such field; did you mean nworkers_per_procs?\n"
    )


def test_a_reader_that_leaves_early_is_no_error() -> None:
    script = f"{sys.executable} -m tfdist.translate PREMIUM_1 | head -c 1; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "{0\n"
    assert result.stderr == ""


def test_an_encoding_that_lacks_the_lines_of_a_tree_is_said() -> None:
    got = {}
    for encoding in ("latin-1", "utf-8"):
        program = [sys.executable, "-m", "tfdist.translate", "STANDARD_1", "--to", "tree"]
        environ = os.environ | {"PYTHONIOENCODING": encoding}
        got[encoding] = subprocess.run(program, env=environ, capture_output=True, encoding="utf-8", check=False)
    refused, tree = got["latin-1"], got["utf-8"]
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == (
        "tfdist: --to: the encoding of standard output (iso8859-1) lacks '\\u251c'; set PYTHONIOENCODING to utf-8\n"
    )
    assert tree.returncode == 0 and "├── chief:0" in tree.stdout


def test_translating_imports_only_what_the_dialect_needs() -> None:
    result = command("-", "--to", "tf_config", text=HOGWILD, options=("-X", "importtime"))
    assert "google.protobuf.text_format" in result.stderr
    assert "tensorflow" not in result.stderr
    assert "yaml" not in result.stderr
    assert "hostlist" not in result.stderr


def test_no_translation_imports_tensorflow_or_the_client_of_a_cluster() -> None:
    script = """
import sys
from tfdist.translate import outputs, translate
for to in outputs():
    for source in ("STANDARD_1", "horovodrun -np 2 -H a:1,b:1 x", "cluster { nworker_groups: 2 nserver_groups: 2 }"):
        try:
            translate(source, to)
        except ValueError:
            pass
print(sorted({name.partition(".")[0] for name in sys.modules}))
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    imported = set(ast.literal_eval(result.stdout))
    assert {"tfdist", "yaml", "google"} <= imported
    assert not imported & {"tensorflow", "keras", "numpy", "ray", "kubernetes", "redis", "torch"}
