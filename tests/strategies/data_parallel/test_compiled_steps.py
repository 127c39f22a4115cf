"""Steps of two replicas: how often they are traced, what follows a compiled one, and which updates differ in an eager one."""

import re

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200)]

PROGRAM = """
import logging, sys
import keras, numpy as np, tensorflow as tf, tfdist
from keras import ops

logging.basicConfig(stream=sys.stdout, format="%(message)s")
x = np.ones((8, 3), "float32")
strategy = tfdist.strategy(tfdist.Cluster((tfdist.Task("chief", 0, slots=2),)))


class Step(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.dense = keras.layers.Dense(1)
        self.dense.build((None, 3))
        self.average = self.add_weight(shape=(3, 1), trainable=False, name="average")

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = ops.mean(ops.square(self.dense(data[0]) - data[1]))
        weights = self.dense.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        self.average.assign(self.average + (0.1 * self.dense.kernel if self.name == "averages" else loss))
        return {"loss": loss}


for name in ("averages", "only_updates"):
    with strategy.scope():
        model = Step(name=name)
        model.compile("sgd", jit_compile=True)
    model.fit(x, x[:, :1], batch_size=4, verbose=0)
print("TRAINED")


class Two(keras.Model):
    steps = 0

    def __init__(self):
        super().__init__()
        self.nets = [keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]) for _ in range(2)]
        self.both = [keras.optimizers.Adam() for _ in range(2)]

    def train_step(self, data):
        Two.steps += 1
        for net, optimizer in zip(self.nets, self.both):
            with tf.GradientTape() as tape:
                loss = ops.mean(ops.square(net(data[0]) - data[1]))
            optimizer.apply(tape.gradient(loss, net.trainable_variables), net.trainable_variables)
        return {"loss": loss, "each": data[1][:, 0]}


with strategy.scope():
    model = Two()
    model.compile()
rows = tf.data.Dataset.from_tensor_slices((x, np.arange(8, dtype="float32")[:, None]))
history = model.fit(rows.batch(3, drop_remainder=True), verbose=0).history
print("TRACED", Two.steps, "EACH", *history["each"])


class Counts(keras.layers.Layer):
    calls = 0

    def call(self, x):
        Counts.calls += 1
        return x


with strategy.scope():
    model = keras.Sequential([keras.Input((3,)), Counts(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"], steps_per_execution=2)
    Counts.calls = 0
model.fit(x, x[:, :1], batch_size=4, verbose=0)
print("CALLED", Counts.calls)


class Draws(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.seed, self.total = keras.random.SeedGenerator(1), self.add_weight(shape=(), trainable=False, initializer="zeros")
        self.compiled = tf.function(self.count_and_draw, jit_compile=True)

    def count_and_draw(self, x):
        self.total.assign(self.total + ops.mean(x))
        return x + keras.random.normal((1, 3), seed=self.seed)

    def call(self, x):
        drawn = self.compiled(x)
        tf.print("DREW", drawn[0, 0], output_stream=sys.stdout)
        return drawn


with strategy.scope():
    model = keras.Sequential([keras.Input((3,)), Draws(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(x, x[:, :1], batch_size=4, verbose=0)
print("TOTAL", float(model.layers[0].total))


class WholeBatch(keras.Sequential):
    def train_step(self, data):
        of_batch = tf.function(lambda x, y: self.compute_loss(x, y, self(x)), jit_compile=True)
        return {"loss": of_batch(*data)}


with strategy.scope():
    model = WholeBatch([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", lambda y_true, y_pred: ops.sqrt(ops.mean(ops.square(y_true - y_pred))))
try:
    model.fit(x, x[:, :1], batch_size=4, verbose=0)
except ValueError as error:
    print(error)


class Decides(keras.Sequential):
    def train_step(self, data):
        return super().train_step(data) if float(ops.mean(data[1])) > 0 else {}


with strategy.scope():
    model = Decides([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
try:
    model.fit(x, np.float32([[1], [1], [-1], [-1]] * 2), batch_size=4, shuffle=False, verbose=0)
except RuntimeError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory, run_python):
    folder = tmp_path_factory.mktemp("steps")
    (folder / "program.py").write_text(PROGRAM)
    run_python(folder, "program.py", output="output.txt", timeout=150)
    return (folder / "output.txt").read_text()


def test_optimizers_without_variables_are_found_by_the_trial_of_a_step(output):
    assert "TRACED 3 " in output  # The trial, and both replicas.


def test_a_log_with_a_number_for_each_example_is_their_mean_if_the_size_of_a_batch_is_known(output):
    assert " EACH 4.0\n" in output  # Of the last batch: 3, 4 and 5. One replica has two of them.


def test_metrics_and_losses_are_built_without_calling_a_model_whose_outputs_are_known(output):
    assert "CALLED 3" in output


def test_a_function_that_xla_compiles_draws_and_assigns_on_each_replica(output):
    drawn = re.findall("^DREW (.+)", output, re.MULTILINE)
    assert len(set(drawn)) == len(drawn) == 4  # Two replicas, two steps.
    assert "TOTAL 2.0" in output


def test_a_function_that_xla_compiles_and_needs_the_whole_batch_is_refused(output):
    assert "the function <lambda> has jit_compile=True and computes something of a whole batch" in output


def test_a_step_that_runs_eagerly_and_does_not_update_on_each_replica_is_refused(output):
    assert "with run_eagerly=True a step updates with sgd" in output and "on replica 0 and ends on replica 1; what" in output


def test_it_is_said_that_a_step_that_runs_eagerly_is_not_checked(output):
    assert "(Decides) equals that in one process: its code runs eagerly (run_eagerly=True)" in output


def test_a_step_that_reads_weights_after_its_update_is_named(output):
    assert "TRAINED" in output and "the training of averages differs from that in one process: with jit_compile=True" in output
    assert "only_updates" not in output
