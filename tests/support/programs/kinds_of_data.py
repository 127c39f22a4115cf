"""Passes kinds of data to Keras that iterate in their own way.

kinds_of_data.py DESCRIPTION [not:CASE ...]: writes the results to kinds_of_data.json. DESCRIPTION is a number of local
replicas, or that of a cluster, as JSON.
"""

import functools
import itertools
import json
import sys
import traceback

import keras
import numpy as np
import tensorflow as tf
from cases import NamedCases

import tfdist
from tfdist.cluster import Cluster, Task
from tfdist.errors import Source

case = CASES = NamedCases()
BATCHES, SIZE = 8, 8
N = BATCHES * SIZE
X = np.linspace(-1, 1, 4 * N, dtype="float32").reshape(N, 4)
Y = X.sum(axis=1, keepdims=True) + 1  # The models of `regression` have a loss of 1.


class Batches(keras.utils.PyDataset):
    """Each example once, in a new order in each epoch, as in Keras' documentation."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.order = np.arange(N)
        self.random = np.random.default_rng(7)

    def __len__(self):
        return BATCHES

    def __getitem__(self, index):
        ids = self.order[SIZE * index : SIZE * (index + 1)]
        return self.inputs(index), np.eye(N, dtype="float32")[ids]

    def inputs(self, index):
        return np.zeros((SIZE, 4), "float32")

    def on_epoch_end(self):
        self.random.shuffle(self.order)


class TextsOfTwoLengths(Batches):
    def inputs(self, index):
        return np.zeros((SIZE, 3 + index % 2, 4), "float32")


class Seen(keras.metrics.Metric):
    """Counts how often it sees each example."""

    def __init__(self):
        super().__init__(name="seen")
        self.seen = self.add_variable((N,), "zeros", name="seen")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.seen.assign_add(tf.reduce_sum(tf.cast(y_true, "float32"), axis=0))

    def result(self):
        return tf.identity(self.seen)


@functools.cache  # A model serves all cases with its kind of data: each method of it is traced once.
def counting(scope, *first):
    with scope():
        model = keras.Sequential([*[layer() for layer in first], keras.layers.Dense(N)])
        model.compile(keras.optimizers.SGD(0.0), "mse", metrics=[Seen()])
    return model


@functools.cache
def regression(scope):
    with scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(0.0), "mse")
    return model


def counts(values):
    """Returns, for each epoch, the examples that it has not seen, those that it has seen more than once, and their number."""
    return [[int((seen == 0).sum()), int((seen > 1).sum()), int(seen.sum())] for seen in map(np.asarray, values)]


def every_call(model, kind, **arguments):
    record = model.fit(kind(**arguments), epochs=2, verbose=0, shuffle=False, validation_data=kind(**arguments)).history
    evaluated = model.evaluate(kind(**arguments), verbose=0, return_dict=True)["seen"]
    predicted = model.predict(kind(**arguments), verbose=0)
    return [*counts([*record["seen"], *record["val_seen"], evaluated]), list(predicted.shape)]


@case
def evaluation_before_training(scope):
    model = counting(scope)  # Which is built by this.
    return counts([model.evaluate(Batches(workers=4), verbose=0, return_dict=True)["seen"] for _ in range(2)])


@case
def a_dataset_that_shuffles_at_the_end_of_an_epoch(scope):
    return every_call(counting(scope), Batches)


@case
def threads_that_load(scope):
    return every_call(counting(scope), Batches, workers=4, max_queue_size=4)


@case
def processes_that_load(scope):
    data = Batches(workers=2, use_multiprocessing=True, max_queue_size=4)
    return counts(counting(scope).fit(data, epochs=2, verbose=0, shuffle=False).history["seen"])


@case
def inputs_of_two_shapes(scope):
    return every_call(counting(scope, keras.layers.GlobalAveragePooling1D), TextsOfTwoLengths)


@case
def inputs_of_two_shapes_that_threads_load(scope):
    return every_call(counting(scope, keras.layers.GlobalAveragePooling1D), TextsOfTwoLengths, workers=4)


@case
def some_batches_in_an_epoch(scope):
    data = Batches(workers=4, max_queue_size=4)
    return counts(counting(scope).fit(data, epochs=4, steps_per_epoch=3, verbose=0, shuffle=False).history["seen"])


@case
def a_generator_that_runs_dry(scope):
    batches = ((X[begin : begin + SIZE], Y[begin : begin + SIZE]) for begin in range(0, N, SIZE))
    record = regression(scope).fit(batches, steps_per_epoch=BATCHES, epochs=2, verbose=0).history
    return {name: np.round(values, 5).tolist() for name, values in record.items()}


@case
def generators_that_are_read_on(scope):
    """In validations, of which Keras begins each with the first two batches again, and by several calls."""

    def batches():
        for number in itertools.count():  # Is the loss of the batch.
            yield np.zeros((SIZE, 4), "float32"), np.full((SIZE, 1), number**0.5, "float32")

    model = regression(scope)
    losses = model.fit(X, Y, epochs=3, verbose=0, validation_data=batches(), validation_steps=3).history["val_loss"]
    evaluated, trained = batches(), batches()
    losses += [model.evaluate(evaluated, steps=4, verbose=0) for _ in range(2)]
    for _ in range(2):
        losses += model.fit(trained, steps_per_epoch=3, epochs=2, verbose=0).history["loss"]
    return np.round(losses, 5).tolist()


@case
def validation_data_that_run_dry(scope):
    batches = iter([(X[:24], Y[:24]), (X[24:48], Y[24:48])])  # Keras takes each once.
    signature = (tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1]))
    dataset = tf.data.Dataset.from_generator(lambda: batches, output_signature=signature)
    record = regression(scope).fit(X, Y, validation_data=dataset, epochs=2, verbose=0).history
    return {name: np.round(values, 5).tolist() for name, values in record.items()}


@case
def evaluations_without_batches(scope):
    empty = tf.data.Dataset.from_tensor_slices((X, Y)).filter(lambda x, y: False).batch(SIZE)
    model = regression(scope)
    record = model.fit(X, Y, validation_data=empty, epochs=2, verbose=0).history
    return [len(record), np.round(record["loss"], 5).tolist(), model.evaluate(empty, verbose=0)]


@case
def examples_without_values(scope):
    """TensorFlow ends the process when it adds up empty tensors, as this loss of the whole batch does."""

    class Total(keras.losses.Loss):
        def __call__(self, y, z, sample_weight=None):
            return keras.ops.sum(z)

    with scope():
        model = keras.Sequential([keras.layers.Dense(3)])
        model.compile("sgd", Total())
    x = np.zeros((SIZE, 0, 4), "float32")
    record = model.fit(((x, x) for _ in range(BATCHES)), steps_per_epoch=BATCHES, verbose=0).history
    return [record["loss"], model.predict(x, verbose=0).shape]


@case
def sparse_batches(scope):
    with scope():
        model = keras.Sequential([keras.Input((4,), sparse=True), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(0.0), "mse")
    batch, zeros = tf.sparse.from_dense(X[:8]), np.zeros((8, 1), "float32")
    outputs = np.asarray(model.predict_on_batch(batch)).ravel()
    losses = [model.test_on_batch(batch, zeros), model.train_on_batch(batch, zeros)]
    return [outputs.tolist(), np.ravel(losses).tolist()]


@case
def ragged_batches(scope):
    """One that `call` takes, of a model that is not built, and one that a `train_step` without `call` takes."""

    def sums(x):
        return tf.math.unsorted_segment_sum(x.values, x.value_rowids(), x.nrows())[:, None]  # No dense tensor has these.

    class Sums(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1, kernel_initializer="ones")

        def call(self, x):
            return self.dense(sums(x))

    class OwnStep(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1, kernel_initializer="ones")

        def train_step(self, data):
            x, _ = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self.dense(sums(x)) ** 2)
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return {"error": loss}

    with scope():
        models = Sums(), OwnStep()
        for model in models:
            model.compile(keras.optimizers.SGD(0.0), "mse")
    batch, zeros = tf.ragged.constant([[1.0, 2.0], [3.0], [4.0, 5.0, 6.0]]), np.zeros((3, 1), "float32")
    losses = [np.ravel(models[0].train_on_batch(batch, zeros)).tolist()]
    losses.append(models[1].fit(tf.data.Dataset.from_tensor_slices((batch, zeros)).batch(3), verbose=0).history["error"])
    return [np.asarray(models[0].predict_on_batch(batch)).ravel().tolist(), *losses]


@case
def outputs_of_two_rows_for_an_example(scope):
    with scope():
        x = keras.Input((4,))
        model = keras.Model(x, [keras.ops.reshape(x, (-1, 2)), keras.ops.sum(x, axis=1)])
    pairs, sums = model.predict(X, batch_size=9, verbose=0)  # The last batch has one example.
    on_batch, _ = model.predict_on_batch(X[:1])
    return [np.asarray(values).tolist() for values in (pairs, sums, on_batch)]


@case
def batches_of_two_sizes(scope):
    class Both(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1, kernel_initializer="ones")
            self.build((None, 4))

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            few, many = data
            return {"rows": tf.cast(tf.shape(few)[0] + tf.shape(many)[0], "float32")}

    few, many = (tf.data.Dataset.from_tensor_slices(each) for each in (X, np.concatenate([X] * 3)))
    messages = []
    for remainder in (False, True):
        with scope():
            model = Both()
            model.compile(keras.optimizers.SGD(0.0))
        both = tf.data.Dataset.zip((few.batch(8, drop_remainder=remainder), many.batch(24, drop_remainder=remainder)))
        try:
            messages.append(model.fit(both, verbose=0).history["rows"])
        except Exception as error:
            messages.append(str(error))
    return messages


@case
def data_that_a_group_lacks(scope):
    def of_group(context):  # As files of which there are fewer than groups.
        data = tf.data.Dataset.from_tensor_slices((X, Y))
        lacks = context.input_pipeline_id == context.num_input_pipelines - 1
        return (data.take(0) if lacks else data).repeat().batch(SIZE)

    try:
        data = scope.__self__.distribute_datasets_from_function(of_group)
        return regression.__wrapped__(scope).fit(data, steps_per_epoch=BATCHES, verbose=0).history
    except ValueError as error:
        return [str(error)]


class OwnStep(keras.Sequential):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


@case
def a_checkpoint_that_is_restored_before_the_first_batch_builds_the_model(scope):
    saved = regression(scope)
    saved.fit(X, Y, batch_size=SIZE, verbose=0)
    before, steps = saved.get_weights(), int(saved.optimizer.iterations)
    saved.set_weights([weight * 2 + 1 for weight in before])
    tf.train.Checkpoint(model=saved).write("before_build")
    results = [saved.evaluate(X, Y, verbose=0)]
    saved.set_weights(before)
    for kind in (keras.Sequential, OwnStep):
        with scope():
            model = kind([keras.layers.Dense(1)])
            model.compile(keras.optimizers.SGD(0.0), "mse")
        tf.train.Checkpoint(model=model).read("before_build")
        model.fit(X, Y, batch_size=SIZE, verbose=0)
        results += [model.evaluate(X, Y, verbose=0), int(model.optimizer.iterations) - steps]
    with scope():
        model = keras.Sequential([keras.layers.Dense(1)])
    tf.train.Checkpoint(model=model).read("before_build")
    return [*results, float(np.mean((model.predict(X, verbose=0) - Y) ** 2))]


def main():
    description, *left_out = sys.argv[1:]
    if description.isdigit():
        task = Task("chief", 0, slots=int(description))
        strategy = tfdist.strategy(Cluster((task,), source=Source("python", "a test")))
    else:
        strategy = tfdist.strategy(json.loads(description))
    results = {}
    for name, function in CASES.items():
        if f"not:{name}" in left_out:
            continue
        try:
            results[name] = function(strategy.scope)
        except Exception:
            results[name] = traceback.format_exc()
    with open("kinds_of_data.json", "w") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main()
