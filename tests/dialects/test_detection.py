"""Which dialect a text is in."""

from pathlib import Path

import pytest

from tfdist.dialects import read
from tfdist.dialects.detection import detect, detect_command
from tfdist.dialects.registry import dialects
from tfdist.errors import ClusterError

SINGA = "cluster {\n  nworker_groups: 2\n}\n"
CLOUDML = "trainingInput:\n  scaleTier: STANDARD_1\n"
TF_CONFIG = '{"cluster": {"worker": ["a:1", "b:1"]}}'


@pytest.mark.parametrize(
    ("text", "dialect"),
    [
        (SINGA, "singa"),
        ("nworker_groups: 1\n", "singa"),
        ("nworker_group: 1\nnserver_groups: 2\n", None),
        ("name: 'x'\ncluster { }", "singa"),
        ("cluster: { nworker_groups: 1 }\n", "singa"),
        (CLOUDML, "cloudml"),
        ("training_input:\n  scale_tier: BASIC\n", "cloudml"),
        ("# a comment: cluster {\nscaleTier: BASIC\n", "cloudml"),
        ("---\ntrainingInput: {scaleTier: BASIC}\n", "cloudml"),
        ('{"trainingInput": {"scaleTier": "BASIC"}}', "cloudml"),
        ('"trainingInput": {"scaleTier": "BASIC"}\n', "cloudml"),
        (TF_CONFIG, "tf_config"),
        ('\ufeff\n {"worker": ["a:1"]}', "tf_config"),
        ("cluster:\n  worker: ['a:1']\n", "tf_config"),
        ("worker:\n- a:1\n- b:1\n", "tf_config"),
        ('{"task": {"type": "worker", "index": 0}}', "tf_config"),
    ],
)
def test_the_words_identify_the_dialect(text: str, dialect: str | None, tmp_path: Path) -> None:
    # The name says nothing: the content decides.
    path = tmp_path / "cluster.txt"
    path.write_text(text, encoding="utf-8")
    if dialect is None:
        with pytest.raises(ClusterError, match="did you mean nworker_groups"):
            read(path)
    else:
        assert read(path).source.dialect == dialect
        assert read(str(path)).source.name == str(path)
        assert read(text) == read(text.encode()) == read(path)


@pytest.mark.parametrize(
    "text",
    [
        "hello: world\n",
        "int main() {\n  return 0;\n}\n",
        "[1, 2]\n",
        "just words\nand more\n",
        '{"a": 1}',
        "{}",
        "server {\n  listen 80;\n}\n",
        "\n---\n",
    ],
)
def test_other_texts_are_refused_with_the_list_of_dialects(text: str) -> None:
    with pytest.raises(ClusterError) as caught:
        read(text)
    message = str(caught.value)
    assert all(dialect.example in message for dialect in dialects().values())


@pytest.mark.parametrize(
    ("source", "dialect"),
    [
        ("standard-1", "cloudml"),
        ("cluster: {}\n", "tf_config"),
        ("cluster { }\n", "singa"),
        ("#!/bin/bash\n#SBATCH -n 2\na:2\n", "slurm"),
        ("# hosts\na:2\n", "horovod"),
        ('{"cluster": {"workerpool0": ["a:1"]}}', "vertex"),
        ("kind: TFJob\napiVersion: kubeflow.org/v1\n", "kubernetes"),
        ({"num_shards": 2}, "caffe2"),
    ],
)
def test_a_preset_and_a_form_are_recognized_before_words_and_the_earlier_dialect_wins_ties(
    source: object, dialect: str
) -> None:
    assert detect(source).dialect == dialect


def test_a_command_line_begins_with_its_program() -> None:
    words, source = detect_command("$ X=1 python3 -u -m torch.distributed.run --nnodes 2 \\\n  a.py # all") or ([], None)
    assert words == ["torch.distributed.run", "--nnodes", "2", "a.py"]
    assert source is not None and source.dialect == "command"
    for other in ("python train.py", "cluster { }", {"worker": []}, None):
        assert detect_command(other) is None
