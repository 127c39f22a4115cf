"""Strings of a description stay data in whatever is written: the output has the structure that harmless strings give it."""

import json
import re
import shlex
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.cluster import Cluster, Task, valid_host
from tfdist.dialects import environment, read
from tfdist.dialects.registry import writers
from tfdist.dialects.singa.text_proto import entries
from tfdist.errors import ClusterError, Source
from tfdist.messages import without_secrets
from tfdist.translate import main, outputs

HOSTILE = (
    "a\n---\nkind: Pod\nmetadata: {name: evil}\n#",
    "a\r\nb",
    'a\' "; touch /tmp/evil; echo "',
    "$(touch evil) ${HOME} `touch evil` $$ $(JOB_COMPLETION_INDEX)",
    "\x1b]0;evil\x07\x1b[31m",
    "a\u2028b\u2029c\x85d\x0be\x0c",
    "<script>alert(1)</script>]]><!--&amp;",
    '"]; click t0 "javascript:alert(1)"',
    "\u202egpj.exe\u2066",
    "# comment: {a: [b]} *alias &anchor !!python/object:os.system",
    "n1-standard-4\n  workerCount: '99'",
    "%d%s{0}\\x41\\n\\",
    "yes",
    "1e3",
    "~",
    "x" * 5000,
    "\x00",
    "\ud800",
    "\ufeffa",
    "EOF\n#SBATCH --wrap=evil\n",
)
texts = st.sampled_from(HOSTILE) | st.text(min_size=1, max_size=30) | st.text("\n'\"#$`{}<>&:- \\\x1b", min_size=1, max_size=12)

OPTIONS = {"image": "image", "command": "command"}


def cluster(*, job_dir: str = "out", machine_type: str = "machine", source: str = "file") -> Cluster:
    tasks = [Task("chief", 0, machine_type=machine_type), *(Task("worker", n, machine_type=machine_type) for n in range(2))]
    return Cluster(tuple(tasks), job_dir=job_dir, source=Source("test", source))


def workers(job_dir: str) -> Cluster:
    """For languages without a chief."""
    return Cluster(tuple(Task("worker", n, f"host{n}", 6723) for n in range(2)), job_dir=job_dir)


def shape(value: Any) -> Any:
    """The keys, lengths and kinds of a value. Texts that are JSON objects have their own."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape(inner) for inner in value]
    if isinstance(value, str) and value.startswith('{"cluster"'):
        return shape(json.loads(value.replace("$(JOB_COMPLETION_INDEX)", "0", 1)))
    return type(value).__name__


def of_yaml(text: str) -> Any:
    return [shape(document) for document in yaml.safe_load_all(text)], text.count("\n#"), text.startswith("#")


def of_script(text: str) -> Any:
    exports = [line for line in text.splitlines() if line.startswith("export ")]
    (words,) = map(shlex.split, exports)
    assert len(words) == 2
    return [line for line in text.splitlines() if line not in exports], shape(words[1].partition("=")[2])


def of_svg(text: str) -> Any:
    def tags(element: ET.Element) -> Any:
        return element.tag, sorted(element.attrib), [tags(inner) for inner in element]

    return tags(ET.fromstring(text))


SHAPES: dict[str, Callable[[str], Any]] = {
    "tf_config": lambda text: shape(json.loads(text)),
    "cluster_spec": lambda text: shape(json.loads(text)),
    "slurm": of_script,
    "horovod": lambda text: [re.fullmatch(r"host\d slots=1", line) is not None for line in text.splitlines()],
    "cloudml": of_yaml,
    "vertex": of_yaml,
    "kubernetes": of_yaml,
    "tfjob": of_yaml,
    "singa": lambda text: [
        (entry.name, [inner.name for inner in entries(text, Source("", ""), *entry.inside)])
        for entry in entries(text, Source("", ""))
    ],
    "mermaid": lambda text: [re.sub(r'"[^"\n]*"', '""', line) for line in text.splitlines()],
    "svg": of_svg,
    "tree": lambda text: [line[:4] for line in text.splitlines()],
}
"""Output -> its structure, without the content of its strings."""


def test_every_output_is_here() -> None:
    assert SHAPES.keys() == outputs().keys()


def same_structure(to: str, make: Callable[[str], str], least_written: int = 30) -> None:
    """Every hostile string gives the structure of a harmless one, in printable lines, or is refused in one."""
    expected = SHAPES[to](make("harmless"))
    count = {"written": 0, "refused": 0}

    @settings(max_examples=80, deadline=None, derandomize=True, database=None)
    @given(texts)
    def check(hostile: str) -> None:
        try:
            text = make(hostile)
        except ClusterError as error:
            count["refused"] += 1
            assert str(error).isprintable()
            return
        count["written"] += 1
        assert all(line.isprintable() for line in text.split("\n"))
        assert SHAPES[to](text) == expected

    check()
    for hostile in HOSTILE:
        check.hypothesis.inner_test(hostile)
    assert count["written"] >= least_written


@pytest.mark.parametrize("to", SHAPES)
def test_a_hostile_job_directory_stays_a_value(to: str) -> None:
    make = workers if to in ("singa", "horovod") else lambda job_dir: cluster(job_dir=job_dir, machine_type="n1-standard-4")
    same_structure(to, lambda hostile: outputs()[to](make(hostile)))


def test_a_shell_runs_no_string_of_a_batch_script(tmp_path: Path) -> None:
    for hostile in (*HOSTILE, f"'; touch {tmp_path}/evil; '", f"$(touch {tmp_path}/evil)", f"'\"`touch {tmp_path}/evil`"):
        script = writers()["slurm"].write(cluster(job_dir=hostile))
        stub = 'srun() { printf %s "$TFDIST_CLUSTER"; }\n'
        run = subprocess.run(["bash", "-c", stub + script], capture_output=True, text=True, check=True, cwd=tmp_path)
        assert json.loads(run.stdout)["tfdist"]["job_dir"] == hostile and not run.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("to", [to for to in SHAPES if to not in ("singa", "horovod")])
def test_a_hostile_source_is_not_written(to: str) -> None:
    for hostile in HOSTILE:
        made = cluster(machine_type="n1-standard-4", source=hostile)
        assert made.source.name.isprintable()
        assert outputs()[to](made) == outputs()[to](cluster(machine_type="n1-standard-4"))


@pytest.mark.parametrize("to", ["cloudml", "vertex"])
def test_a_hostile_machine_type_is_refused(to: str) -> None:
    for hostile in HOSTILE[:12]:
        for machine in (hostile, f"n1-standard-4+1xNVIDIA_TESLA_T4{hostile}", f"+{hostile}x{hostile}"):
            with pytest.raises(ClusterError) as caught:
                outputs()[to](cluster(machine_type=machine))
            assert str(caught.value).isprintable() and len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("to", "option"), [(to, option) for to in ("kubernetes", "tfjob", "vertex") for option in writers()[to].options]
)
def test_a_hostile_option_stays_a_value_or_is_refused(to: str, option: str) -> None:
    made = cluster(machine_type="n1-standard-4")
    for hostile in HOSTILE:
        given_options = OPTIONS | {option: [hostile, hostile] if option == "command" else hostile}
        harmless = OPTIONS | {option: ["a", "b"] if option == "command" else "harmless"}
        try:
            text = writers()[to].write(made, **given_options)
        except ClusterError as error:
            assert str(error).isprintable()
            assert option != "command" or hostile in ("\x00", "\ud800")
            continue
        assert all(line.isprintable() for line in text.split("\n"))
        assert SHAPES[to](text) == SHAPES[to](writers()[to].write(made, **harmless))
        if option == "command":
            assert json.dumps([hostile, hostile]) in json.dumps(list(yaml.safe_load_all(text)))


@pytest.mark.parametrize("to", ["kubernetes", "tfjob", "mermaid", "svg", "tree", "tf_config", "cluster_spec"])
def test_a_hostile_host_would_stay_a_value(to: str) -> None:
    """`Cluster` refuses such a host; the outputs do not rely on it."""

    def make(host: str) -> str:
        made = Cluster(tuple(Task("worker", n, f"host{n}", 2222) for n in range(2)))
        object.__setattr__(made.tasks[1], "host", host.replace(":", "") or "a")
        return outputs()[to](made)

    same_structure(to, make, least_written=5)


@pytest.mark.parametrize("hostile", [text for text in HOSTILE if text not in ("yes", "1e3")])
def test_hostile_hosts_and_zones_are_refused(hostile: str) -> None:
    for host in (hostile, f"a{hostile}", f"::1%{hostile}", f"fe80::1%eth0{hostile}", f"a.{hostile}.b"):
        assert not valid_host(host)
        with pytest.raises(ClusterError) as caught:
            Cluster((Task("worker", 0, host, 1),))
        assert str(caught.value).isprintable() and len(str(caught.value)) < 2000
    with pytest.raises(ClusterError) as caught:
        read({"cluster": {"worker": [f"[::1%{hostile}]:2222", "b:2222"]}})
    assert str(caught.value).isprintable()


@given(st.text("a-_.1%:", max_size=12) | st.integers(60, 66).map(lambda length: "a" * length))
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
def test_every_valid_host_can_be_looked_up(host: str) -> None:
    if valid_host(host):
        assert len(host.encode("idna")) == len(host) and host.isprintable()


def test_hosts_and_zones_that_people_have_are_valid() -> None:
    for host in (
        "localhost",
        "a",
        "node-1.example.com.",
        "my_host",
        "1.2.3.4",
        "::1",
        "fe80::1%eth0.100",
        "fe80::1%3",
        "a" * 63,
    ):
        assert valid_host(host)
    bad = ("", "a..b", ".a", "-a", "a:1", "a/b", "é", "a" * 64, f"{'a' * 64}.b", "a" * 254, "a\n")
    for host in (*bad, "::1%", "::1%a%b", "::1%a/b", "::1% ", "::g", ":::"):
        assert not valid_host(host)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("REDISCLI_AUTH=hunter2 horovodrun: -np: it is missing", "REDISCLI_AUTH=*** horovodrun: -np: it is missing"),
        ("a=hunter2 b='hunter2 x' torchrun x", "a=*** b=*** torchrun x"),
        ("A='hunter2 wit", "A=***"),
        ("'AUTH=hunter2' is given twice", "'AUTH=***' is given twice"),
        ("'PASS=\\'hunter2 b\\' foo' is", "'PASS=***' is"),
        ("mpirun -x pw=hunter2 --np=4 -H a:2", "mpirun -x pw=*** --np=4 -H a:2"),
        ("env x=hunter2 torchrun --nnodes=2", "env x=*** torchrun --nnodes=2"),
        ("train.py --redis_password hunter2 --x 1", "train.py --redis_password *** --x 1"),
        ("--redis_password=hunter2", "--redis_password=***"),
        ("redis_password: 'hunter2' is not", "redis_password: *** is not"),
        ('{"redis_password": "hunter2", "x": 1}', '{"redis_password": ***, "x": 1}'),
        ("'{\\'token\\': \\'hunter2\\', 1}'", "'{\\'token\\': ***, 1}'"),
        ("A=\\hunter2\\", "A=***"),
        ("--api-key hunter2", "--api-key ***"),
        ("'redis://:hunter2@h:1/0' is neither", "'redis://***@h:1/0' is neither"),
        ("'redis://me:hunter2... is neither", "'redis://***@ is neither"),
    ],
)
def test_messages_show_no_secrets(text: str, shown: str) -> None:
    assert without_secrets(text) == shown
    assert without_secrets(shown) == shown


@pytest.mark.timeout(120)  # One second if each character is looked at a few times; hours if it is for each other one.
def test_a_long_hostile_message_is_read_once() -> None:
    for part in ("a-", 'a=\\"', "://", "token: ", "a=b ", "-x ", "'", "A=", "A='\\", "http://a:b"):
        without_secrets(part * 100_000 + "\\")


def test_messages_keep_what_is_no_secret() -> None:
    for text in (
        "expected a line such as `a slots=2`",
        "http://host:8080/x is not tcp://a:1, b",
        "local://20261124-235230-e9d5ce: 4 workers are not possible",
        "refuses this password; give it as redis_password or in TFDIST_REDIS_PASSWORD",
        "--redis_password: everybody on the machine can read a command line",
        "give TF_CONFIG='{...}' or NAME=... without the quotes",
        "tokens: expected a list; author: it is missing; --rdzv-conf=is_host=true",
    ):
        assert without_secrets(text) == text


@pytest.mark.parametrize(
    "command",
    [
        "REDISCLI_AUTH=hunter2 horovodrun --bogus x",
        "REDISCLI_AUTH=hunter2 horovodrun",
        "REDISCLI_AUTH='hunter2 horovodrun -np 4",
        "mpirun -x TOKEN=hunter2 -np x",
        "redis_pw=hunter2 torchrun --nnodes=x",
        "redis_pw=hunter2 no-such-program -x",
        '{"num_shards": 2, "shard_id": 0, "redis_host": "redis://:hunter2@h:1"}',
    ],
)
def test_errors_about_commands_show_no_secrets(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["translate", command, "--to", "tf_config"]) == 2
    assert "hunter2" not in capsys.readouterr().err


@pytest.mark.parametrize("host", ["a..b", "x" * 64, f"{'x' * 64}.example.com", "::1%\n", "a\x1b[31m"])
def test_a_host_that_no_resolver_takes_is_an_error_of_its_variable(host: str) -> None:
    variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "29500"}
    with pytest.raises(ClusterError, match=r"^MASTER_ADDR: .* is neither a host name nor an address$"):
        environment.find({**variables, "MASTER_ADDR": host})


def test_bad_flags_are_printable(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["translate", "BASIC", "--to", "x\x1b[31m"]) == 2
    assert main(["translate", "--no_such\x1b[31m=1"]) == 2
    assert "\x1b" not in capsys.readouterr().err
