"""What is traced for a model is freed with it, whatever its replicas have computed together."""

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200)]

PROGRAM = """
import gc
import keras, numpy as np, tfdist
from keras import ops

x = np.ones((16, 3), "float32")
strategy = tfdist.strategy(tfdist.Cluster((tfdist.Task("chief", 0, slots=2),)))


def dice(y, p):
    return 1 - ops.sum(y * p) / (ops.sum(y) + ops.sum(p))


with strategy.scope():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, "sigmoid")])
    model.compile("sgd", dice)
model.fit(x, x[:, :1], batch_size=4, verbose=0)
gc.collect()
names = {each.name for each in gc.get_objects() if type(each).__name__ == "FuncGraph"}
print("STEPS", "<lambda>" in names, "TRIALS", "trial" in names)
del model
keras.utils.clear_session()
gc.collect()
names = [each.name for each in gc.get_objects() if type(each).__name__ == "FuncGraph"]
print("LEFT", [name for name in names if not name.startswith("Dataset")])  # A thread frees those of datasets.
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory, run_python):
    folder = tmp_path_factory.mktemp("freed")
    (folder / "program.py").write_text(PROGRAM)
    run_python(folder, "program.py", output="output.txt", timeout=150)
    return (folder / "output.txt").read_text()


def test_the_graph_of_a_trial_is_freed_before(output):
    assert "STEPS True TRIALS False" in output, output[-3000:]


def test_the_steps_of_a_model_with_a_loss_over_the_whole_batch_are_freed(output):
    assert "LEFT ['_projected']" in output, output[-3000:]  # It is traced once for all trials of the process.
