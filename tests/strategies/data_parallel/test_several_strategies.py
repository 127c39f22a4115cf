"""A program may call `tfdist.strategy()` again in one task, as a notebook does whose first cell is run again."""

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200)]

PROGRAM = """
import keras, numpy as np, tfdist

x = np.ones((16, 3), "float32")
models = []
for units in (5, 8, 5):
    strategy = tfdist.strategy(tfdist.Cluster((tfdist.Task("chief", 0, slots=2),)))
    with strategy.scope():
        models.append(keras.Sequential([keras.Input((3,)), keras.layers.Dense(units), keras.layers.Dense(1)]))
        models[-1].compile("sgd", "mse")
    for model in models:
        model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0)
print("TRAINED", *[int(model.optimizer.iterations.numpy()) for model in models])
"""


def test_models_of_several_strategies_of_a_task_train(tmp_path, run_python):
    (tmp_path / "program.py").write_text(PROGRAM)
    run_python(tmp_path, "program.py", output="output.txt", timeout=150)
    output = (tmp_path / "output.txt").read_text()
    assert "TRAINED 24 16 8" in output, output[-3000:]
