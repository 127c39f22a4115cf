"""What `tfdist` writes, as TensorFlow itself reads it. Slow: imports TensorFlow."""

import json

import pytest

from tfdist.dialects import read

SPARSE = {"cluster": {"worker": {"1": "a:1"}, "ps": ["b:1", "c:1"]}, "task": {"type": "worker", "index": 1}}


@pytest.mark.cluster
@pytest.mark.parametrize("source", ["STANDARD_1", "cluster { nworker_groups: 3 nserver_groups: 3 }", SPARSE])
def test_tensorflow_reads_the_same(source: object, monkeypatch: pytest.MonkeyPatch) -> None:
    import tensorflow as tf

    cluster = read(source)
    spec = tf.train.ClusterSpec(cluster.cluster_spec())
    assert read(spec) == read({"cluster": cluster.cluster_spec()})
    for task in cluster.tasks:
        monkeypatch.setenv("TF_CONFIG", json.dumps(cluster.tf_config(task.job, task.index)))
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        assert resolver.cluster_spec() == spec
        assert (resolver.task_type, resolver.task_id) == (task.job, task.index)
        again = read(resolver)
        assert again.task == (task.job, task.index)
        assert [entry.address for entry in again.tasks] == [entry.address for entry in cluster.addressed().training_tasks]
        assert read() == cluster.addressed()
