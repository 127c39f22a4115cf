"""Groups wait for each other, here without end: so what ends such a wait is not the grace time."""

import pytest

pytestmark = pytest.mark.cluster

PROGRAM = """
    import sys
    import tfdist
    with tfdist.strategy().scope():
        import keras, numpy as np
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
    x = np.random.default_rng(1).normal(size=(72, 4))
    y = x.sum(1)
    class Do(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if sys.argv[1] == "stops" and batch >= 2:
                self.model.stop_training = True
            if sys.argv[1] == "evaluates" and batch % 3 == 1:
                self.model.evaluate(x, y, batch_size=8, verbose=0)
    fits, epochs = (20, 2) if sys.argv[1] == "stops" else (1, 40)
    losses = [model.fit(x, y, batch_size=8, epochs=epochs, verbose=0, callbacks=[Do()]).history["loss"] for _ in range(fits)]
    print("FOUND", losses[-1][-1] < losses[0][0], flush=True)
"""


@pytest.mark.parametrize(
    ("does", "fragments"),
    [
        ("nothing more", "2"),  # An odd number of pushes: the groups would begin the next epoch with different fragments.
        ("stops", "1"),  # The push that one group waits for is not scheduled any more.
        ("evaluates", "1"),  # It is scheduled after the evaluation, which waits for the group.
    ],
)
def test_no_group_waits_for_a_push_that_does_not_come(start, script, does, fragments):
    options = ("--strategy", "hogwild", "--sync_period", "2", "--fragments", fragments, "--grace", "1e9")
    cluster = '{"chief": 1, "worker": 2, "ps": 1}'
    job = start("-m", "tfdist.launch", "--cluster", cluster, *options, script(PROGRAM), "--", does)
    assert job.wait(90) == 0, job.output
    assert "FOUND True" in job.output
