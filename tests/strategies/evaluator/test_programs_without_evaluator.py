"""Programs that an evaluator cannot follow, and one that has none."""

import json

import pytest
from reserved import free_ports

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]  # An evaluator leaves the processor to all others.


def test_a_program_that_trains_with_train_on_batch_is_refused_on_the_evaluator(start, script):
    chief, evaluator = (f"localhost:{port}" for port in free_ports(2))
    cluster = {"cluster": {"chief": [chief], "evaluator": [evaluator]}, "tfdist": {"job_dir": "job"}}
    own = {"TF_CONFIG": json.dumps(cluster | {"task": {"type": "evaluator", "index": 0}})}
    body = """
    import tfdist
    with tfdist.strategy().scope():
        import keras, numpy as np
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.train_on_batch(np.ones((4, 1)), np.ones((4, 1)))
    """
    job = start(script(body), environment=own)
    assert job.wait(400) == 1
    assert "evaluator:0 evaluates what `fit` trains, and this program trains with train_on_batch" in job.output


def test_a_plain_program_warns_that_it_starts_no_evaluator(start, script, small_cluster, tmp_path):
    config = (tmp_path / "small.yaml").read_text() + "  evaluatorType: standard\n  evaluatorCount: 1\n"
    (tmp_path / "with_evaluator.yaml").write_text(config)
    body = """
    import tfdist
    tfdist.strategy("with_evaluator.yaml")
    print("here")
    """
    job = start(script(body))
    assert job.wait(400) == 0, job.output
    assert "a plain program starts no evaluator; this one trains without" in job.output and "here" in job.output
    assert job.left(within=10) == {}
