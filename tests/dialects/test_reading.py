"""`read`: what it takes, and hostile input that it refuses."""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.cluster import Cluster, Task
from tfdist.dialects import read
from tfdist.dialects.parsing import document
from tfdist.dialects.parsing.document import MAX_JSON, MAX_TEXT
from tfdist.errors import ClusterError

SINGA = "cluster {\n  nworker_groups: 2\n}\n"
CLOUDML = "trainingInput:\n  scaleTier: STANDARD_1\n"
TF_CONFIG = '{"cluster": {"worker": ["a:1", "b:1"]}}'


@pytest.fixture(autouse=True)
def no_tf_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)


class Spec:
    """Looks like `tf.train.ClusterSpec`."""

    def as_dict(self) -> dict[str, Any]:
        return {"worker": ["a:1", "b:1"], "ps": {3: "c:1"}}


class Resolver:
    """Looks like a `ClusterResolver`."""

    task_type = "worker"
    task_id = 1
    rpc_layer = "grpc+x"

    def cluster_spec(self) -> Any:
        class Whole:
            def as_dict(self) -> dict[str, Any]:
                return {"worker": ["a:1", "b:1"]}

        return Whole()


class Bare(Resolver):
    """Looks like a resolver that knows only the addresses."""

    task_type = None  # type: ignore[assignment]
    task_id = None  # type: ignore[assignment]
    rpc_layer = ""


# What it takes.


def test_objects_that_describe_clusters() -> None:
    cluster = read(Spec())
    assert [task.name for task in cluster.tasks] == ["worker:0", "worker:1", "ps:3"]
    cluster = read(Resolver())
    assert (cluster.task, cluster.protocol, cluster.slots) == (("worker", 1), "grpc+x", 2)
    assert read(Bare()).task is None
    assert read(cluster) is cluster
    assert read({"worker": ["a:1"]}).describe() == "1 worker"


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClusterError, match=r"no cluster is described.*--cluster.*--tier.*TF_CONFIG"):
        read()
    monkeypatch.setenv("TF_CONFIG", TF_CONFIG)
    assert read().slots == 2
    assert read().source.name == "TF_CONFIG"
    with pytest.raises(ClusterError, match="TF_CONFIG: --worker_count: this option changes a CloudML description"):
        read(overrides={"worker_count": 3})
    # A tier on the command line is a complete description.
    assert read(overrides={"tier": "basic"}).describe() == "1 chief"


@pytest.mark.parametrize("source", [3, 4.5, object(), ["a:1"], {"a:1"}, True])
def test_a_wrong_type_is_a_type_error(source: object) -> None:
    with pytest.raises(TypeError, match="a cluster description is"):
        read(source)


def test_the_job_dir_goes_with_every_dialect(tmp_path: Path) -> None:
    for source in (SINGA, CLOUDML, TF_CONFIG, "STANDARD_1", read(SINGA), Spec()):
        assert read(source, overrides={"job_dir": tmp_path, "tier": None}).job_dir == str(tmp_path)
    with pytest.raises(TypeError):
        read(SINGA, overrides={"job_dir": 5})


@pytest.mark.parametrize("source", [SINGA, TF_CONFIG, Cluster((Task("worker", 0),))])
def test_cloudml_flags_with_another_dialect_are_refused(source: Any) -> None:
    with pytest.raises(ClusterError, match="--worker_count: this option changes a CloudML description, this one is"):
        read(source, overrides={"worker_count": 2})


@pytest.mark.parametrize("source", [CLOUDML, TF_CONFIG, "BASIC", Cluster((Task("worker", 0),))])
def test_a_host_file_with_another_dialect_is_refused(source: Any) -> None:
    with pytest.raises(ClusterError, match="--hostfile: a host file goes with a SINGA description, this one is"):
        read(source, hostfile="hosts")


# Paths.


def test_a_missing_file_names_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.conf").write_text(SINGA)
    with pytest.raises(ClusterError, match=re.escape(f"did you mean {tmp_path / 'job.conf'}?")):
        read(tmp_path / "jb.conf")
    with pytest.raises(ClusterError, match=re.escape(f"the folder {tmp_path / 'no'} does not exist either")):
        read(str(tmp_path / "no" / "job.conf"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ClusterError, match=r"did you mean job\.conf\?"):
        read("job.cnf")
    with pytest.raises(ClusterError, match=r"neither a file nor a scale tier; did you mean STANDARD_1\?"):
        read("starndard_1")
    with pytest.raises(ClusterError, match=r"zzz: there is no such file$"):
        read("zzz")
    with pytest.raises(
        ClusterError, match=r"this is neither a file nor a command line that tfdist reads; those of srun, sbatch, horovodrun, "
    ):
        read("flux run --num_processes 2 train.py")


def test_what_is_no_readable_file(tmp_path: Path) -> None:
    for path in (str(tmp_path), "a\0b", "\ud800", "x" * 5000, "x/" * 5000):
        with pytest.raises(ClusterError) as caught:
            read(path)
        assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the description is empty"),
        (b" \n\t\n", "the description is empty"),
        (b"# only\n  # comments\n", "the description is empty"),
        (b"\xef\xbb\xbf", "the description is empty"),
        (b"cluster {\n\0}", ":2: there is a NUL character"),
        (b"cluster {\n\xff}", ":2: byte 10 is not UTF-8"),
        ("cluster {}".encode("utf-16"), "is not UTF-8"),
        (b"\x7fELF\x02\x01\x01\x00\x00", "there is a NUL character"),
        (b"cluster {}\n" + b"#" * MAX_TEXT, "larger than 1 MiB"),
        (b"{" + b" " * MAX_JSON, "larger than 16 MiB"),
    ],
)
def test_files_that_are_no_text(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    for source in (path, content):
        with pytest.raises(ClusterError) as caught:
            read(source)
        assert message in str(caught.value)


def test_a_large_tf_config_is_read() -> None:
    workers = ", ".join(f'"10.{n >> 16}.{n >> 8 & 255}.{n & 255}:2222"' for n in range(70_000))
    text = f'{{"cluster": {{"worker": [{workers}]}}}}'
    assert len(text) > MAX_TEXT
    assert read(text).slots == 70_000


# Bombs.

NESTED = 200_000


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param('{"cluster": ' + "[" * NESTED, "nested too deeply", id="JSON lists"),
        pytest.param('{"cluster": ' * NESTED, "nested too deeply", id="JSON objects"),
        pytest.param("cluster: " + "[" * NESTED + "\n", "nested too deeply", id="YAML lists"),
        pytest.param("cluster: " + "{a: " * NESTED + "\n", "nested too deeply|cannot|found", id="YAML mappings"),
        pytest.param("cluster:\n" + "- " * NESTED + "\n", "nested too deeply", id="YAML block lists"),
        pytest.param("a: &a [x]\nb: &b [*a, *a]\nscaleTier: [*b, *b]\n", "the alias .a is not allowed", id="YAML aliases"),
        pytest.param("trainingInput: &a\n  scaleTier: *a\n", "the alias .a is not allowed", id="YAML cycle"),
        pytest.param("trainingInput:\n  <<: {scaleTier: BASIC}\n", "TrainingInput has no such field", id="YAML merge"),
        pytest.param("trainingInput: !!python/object/apply:os.system [ls]\n", "the tag .* is not allowed", id="YAML object"),
        pytest.param("trainingInput: !x {}\n", "the tag .* is not allowed", id="YAML tag"),
        pytest.param("scaleTier: BASIC\n---\nscaleTier: BASIC\n", "this is not YAML", id="two YAML documents"),
        pytest.param("? [a]\n: 1\nscaleTier: BASIC\n", "a key of a mapping is a list", id="YAML key"),
        pytest.param("%YAML 9.9\n---\nscaleTier: BASIC\n", "this is not YAML", id="YAML version"),
        pytest.param('scaleTier: "\\UFFFFFFFF"\n', "this is not YAML", id="YAML escape"),
        pytest.param("scaleTier: \x07\n", "is not allowed in YAML", id="YAML control character"),
        pytest.param("cluster " + "{ a " * NESTED, "never closed", id="proto blocks"),
        pytest.param("cluster { nworker_groups: 1 }\nx " + "{ y " * NESTED, "never closed", id="proto blocks outside"),
        pytest.param("cluster { nworker_groups: " + "9" * 100_000 + " }", "cluster.nworker_groups", id="proto number"),
        pytest.param("gpu: " + "0x" + "f" * 100_000 + "\ncluster { nworker_groups: 1 }", "gpu", id="proto hex number"),
        pytest.param('{"cluster": ' + "9" * 100_000 + "}", "thousands of digits", id="JSON number"),
        pytest.param('{"cluster": 1e999}', "not an object", id="JSON infinity"),
        pytest.param('{"cluster": NaN}', "NaN is not JSON", id="JSON NaN"),
        pytest.param('{"cluster": {}, "cluster": {}}', "the key 'cluster' is given twice", id="JSON duplicate"),
        pytest.param('{"cluster": {"worker": ["a:1"] "ps": []}}', ":1: this is not JSON .column 32.", id="JSON comma"),
        pytest.param('{"cluster": \n\n{"worker": [}}', ":3: this is not JSON", id="JSON line"),
        pytest.param("cluster:\n  worker: .nan\n", "nan is not a list", id="YAML NaN"),
        pytest.param('{"cluster": {"worker": ["\\u001b[31m:1"]}}', "x1b", id="escape sequences"),
    ],
)
def test_hostile_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(ClusterError, match=message) as caught:
        read(text)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 800


def test_hostile_dicts_are_refused() -> None:
    loop: dict[str, Any] = {}
    loop["cluster"] = loop
    wide: Any = "x"
    for _ in range(100):
        wide = {"cluster": wide, "trainingInput": wide}

    class Rude:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    sources: list[dict[Any, Any]] = [
        loop,
        wide,
        {"cluster": Rude()},
        {"cluster": {"worker": [Rude()]}},
        {"cluster": {Rude(): []}},
        {"scaleTier": Rude()},
        {"scaleTier": "CUSTOM", "masterType": "standard", "workerType": "standard", "workerCount": Rude()},
        {"cluster": {"worker": ["a:1"]}, "task": {"type": Rude(), "index": Rude()}},
        {"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 10**5000}},
        {"cluster": {"worker": ["a:1"]}, "tfdist": {Rude(): 1}},
        {"cluster": {"worker": ["a:1"]}, "tfdist": {"sync_period": 10**5000}},
        {"cluster": {"worker": ["a:1"]}, "tfdist": {"slots": {"worker": [[1, 10**5000]]}}},
        {"cluster": {"worker": {10**5000: "a:1"}}},
        {Rude(): 1},
    ]
    for source in sources:
        with pytest.raises(ClusterError) as caught:
            read(source)
        assert str(caught.value).isprintable()


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["a:1", "BASIC", "CUSTOM"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["cluster", "task", "worker", "type", "index", "tfdist", "slots", "scaleTier", "masterConfig"])
            | st.integers(),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(["cluster", "task", "worker", "tfdist", "trainingInput", "scaleTier", "x"]), _values))
def test_any_dict_is_read_or_refused(source: dict[Any, Any]) -> None:
    try:
        assert isinstance(read(source), Cluster)
    except ClusterError as error:
        assert str(error).isprintable()


@settings(max_examples=300, deadline=None)
@given(st.text(), st.sampled_from(["", "\ncluster {", "\ntrainingInput: ", '{"cluster": ']))
def test_any_text_is_read_or_refused(text: str, mark: str) -> None:
    try:
        assert isinstance(read(mark + text), Cluster)
    except ClusterError as error:
        assert str(error).isprintable()


# Cost.


def test_reading_tf_config_imports_neither_tensorflow_nor_yaml_nor_protobuf() -> None:
    program = (
        "import sys; from tfdist.dialects import read; read({'worker': ['a:1']}); "
        "print([m for m in ('tensorflow', 'yaml', 'google.protobuf', 'numpy') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_a_program_in_place_of_a_description(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    for text in (
        "import keras\nmodel.fit({'a': x})\n",
        "from sagemaker import TensorFlow\nTensorFlow(\n  a={'b': {'c': 1}},\n)\n",
    ):
        program.write_text(text)
        with pytest.raises(ClusterError, match=r"train\.py: this is a Python program, not the description of a cluster"):
            read(program)
    program.write_text("TF_CONFIG = {'cluster': {'worker': ['a:1']}}\n")
    assert read(program).describe() == "1 worker"


def test_a_link_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "job.conf").symlink_to("gone.conf")
    with pytest.raises(ClusterError, match=r"job\.conf: this is a link to 'gone\.conf', which does not exist$"):
        read(tmp_path / "job.conf")


def test_hosts_without_numbers(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("# ours\nnode1\n\n10.0.0.2\n")
    with pytest.raises(ClusterError, match=r"these are names of hosts without a number of processes; .*`node1 slots=1`"):
        read(tmp_path / "hosts")
    (tmp_path / "nodes").write_text("node1\nnode1\nnode2\nnode2\n")  # $PBS_NODEFILE
    assert [task.host for task in read(tmp_path / "nodes").tasks] == ["node1", "node1", "node2", "node2"]
    for text in ("1\n2\n", "1\n1\n", "is this\none?\n"):
        with pytest.raises(ClusterError, match="this is no cluster description that tfdist knows"):
            read(text)


def test_a_pipe_in_place_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "PIPE_SECONDS", 0.5)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(
        ClusterError, match=r"pipe: nothing has come through this pipe for 0\.5 s; write into it, or give a file"
    ):
        read(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(SINGA,))
    writer.start()
    assert read(pipe).describe() == read(SINGA).describe()
    writer.join()
