"""Groups wait for each other, here without end: so what ends such a wait is not the grace time."""

import json

import pytest

pytestmark = pytest.mark.cluster

PROGRAM = """
    import sys
    import tfdist
    with tfdist.strategy().scope():
        import keras, numpy as np, tensorflow as tf
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
    specs = tf.TensorSpec([None, 4], tf.float64), tf.TensorSpec([None], tf.float64)
    batches = tf.data.Dataset.from_generator(lambda: ((x[i : i + 8], y[i : i + 8]) for i in range(0, 72, 8)), output_signature=specs)
    fits, epochs = {"nothing more": (1, 40), "evaluates": (1, 40)}.get(sys.argv[1], (20, 2))
    losses = []
    for _ in range(fits):
        if sys.argv[1] == "fits one batch":
            model.get_weights()  # So only the group that trains next has progress.
            model.fit(x[:8], y[:8], batch_size=8, verbose=0)
        if sys.argv[1] == "fits two batches":
            model.fit(x[:16], y[:16], batch_size=8, epochs=2, verbose=0)
            model.fit(batches, epochs=3, verbose=0)
        losses += model.fit(x, y, batch_size=8, epochs=epochs, verbose=0, callbacks=[Do()]).history["loss"]
    print("FOUND", losses[-1] < losses[0], flush=True)
"""


@pytest.mark.parametrize(
    ("does", "workers", "period", "fragments", "delay"),
    [
        # An odd number of pushes: the groups would begin the next epoch with different fragments.
        pytest.param("nothing more", 2, 2, 2, 1, marks=pytest.mark.release),
        ("stops", 2, 2, 1, 1),  # The push that one group waits for is not scheduled any more.
        # It is scheduled after the evaluation, which waits for the group.
        pytest.param("evaluates", 2, 2, 1, 1, marks=pytest.mark.release),
        # One group has trained before, so only its first push has progress.
        pytest.param("fits one batch", 2, 2, 2, 1, marks=pytest.mark.release),
        ("fits two batches", 3, 4, 2, 0),  # Some groups have pushed before, to rounds of which the others do not know.
    ],
)
def test_no_group_waits_for_a_push_that_does_not_come(start, script, does, workers, period, fragments, delay):
    options = f"--strategy hogwild --sync_period {period} --fragments {fragments} --delay {delay} --grace 1e9".split()
    cluster = json.dumps({"chief": 1, "worker": workers, "ps": 1})
    job = start("-m", "tfdist.launch", "--cluster", cluster, *options, script(PROGRAM), "--", does)
    assert job.wait(90) == 0, job.output
    assert "FOUND True" in job.output
