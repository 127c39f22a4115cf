"""Fragments of the parameters, which groups push in turn."""

import pytest

PROGRAM = """
    import tfdist
    with tfdist.strategy().scope():
        import keras, numpy as np
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
    x = np.random.default_rng(1).normal(size=(72, 4))
    history = model.fit(x, x.sum(1), batch_size=8, epochs=60, verbose=0).history
    print("FOUND", len(history["loss"]), history["loss"][-1] < history["loss"][0], flush=True)
"""


@pytest.mark.cluster
def test_groups_begin_an_epoch_with_the_same_fragment_also_after_one_with_an_odd_number_of_pushes(start, script):
    """They would wait for each other, here without end: one for the first fragment, one for the second."""
    options = ("--strategy", "hogwild", "--sync_period", "2", "--fragments", "2", "--grace", "1e9")
    job = start("-m", "tfdist.launch", "--cluster", '{"chief": 1, "worker": 2, "ps": 1}', *options, script(PROGRAM))
    assert job.wait(60) == 0, job.output
    assert "FOUND 60 True" in job.output
