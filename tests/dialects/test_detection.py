"""Which dialect a text is in."""

from pathlib import Path

import pytest

from tfdist.dialects import read
from tfdist.dialects.detection import Detected, Launched, detect
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
def test_other_texts_are_refused_with_what_they_have_and_the_list_of_languages(text: str) -> None:
    with pytest.raises(ClusterError, match="this is no cluster description that tfdist knows: it ") as caught:
        read(text)
    assert "docs/dialects/README.md" in str(caught.value) and "TF_CONFIG, Slurm, " in str(caught.value)


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
    detected = detect(source)
    assert isinstance(detected, Detected) and detected.dialect == dialect


def test_a_command_line_begins_with_its_program() -> None:
    launched = detect("$ X=1 python3 -u -m torch.distributed.run --nnodes 2 \\\n  a.py # all")
    assert isinstance(launched, Launched)
    (launch,) = launched.launches
    assert launch.words == ("torch.distributed.run", "--nnodes", "2", "a.py")
    assert launch.dialect == "pytorch" and launch.variables == {"X": "1"}
