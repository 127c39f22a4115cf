"""Losses of every form under parameter_server with one group of two replicas in a task, and in one process.

    group_losses.py FOLDER [all]

Losses that do not interact are outputs of one model. Other forms, which pass through the same code as one of these, are tested
under data-parallel strategies. The results go to results.json, with the files of FOLDER loaded on one ps.
`all` are the cases of losses.py, own_losses.py, own_step_metrics.py and sums_and_classes.py.
"""

import contextlib
import json
import sys
from pathlib import Path

import keras
import losses
import numpy as np
import own_losses
import own_step_metrics
import own_sums
import server_groups
import sums_and_classes
import tensorflow as tf
import unlisted_metrics
from keras import ops
from sums_and_classes import Endpoint, Squares

import tfdist

ONE_GROUP = (
    "cluster { nworker_groups: 1 nserver_groups: 1 nworkers_per_group: 2 nworkers_per_procs: 2 nservers_per_group: 1 "
    "server_worker_separate: true }"
)
SIZE = 15  # Of a batch. Two replicas cannot share it evenly, nor the last batch, which has a single example.
X = np.random.default_rng(0).normal(size=(4 * SIZE + 1, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
CLASSES = (X[:, 0] > 0).astype("int64")
WORDS = np.random.default_rng(2).integers(0, 4, size=(len(X), 5))  # 0 is masked.
WEIGHTS = np.random.default_rng(1).uniform(0.5, 2, size=len(X)).astype("float32")
ADDED = {
    "an added sum": lambda z: 0.1 * ops.sum(ops.square(z)),
    "an added mean": lambda z: ops.mean(ops.square(z)),
}
FIT = {"batch_size": SIZE, "epochs": 2, "shuffle": False, "verbose": 0}


def zeros():
    return keras.layers.Dense(1, kernel_initializer="zeros")


def named(outputs):
    return [keras.layers.Identity(name=f"output_{number:02}")(output) for number, output in enumerate(outputs)]


def parts_of(history, layers):
    """Returns the losses and the weights of each part of a model, which is an output, and the losses of all of them."""
    names = [f"output_{number:02}_loss" for number in range(len(layers))]
    found = {part: {"loss": history[name]} for part, name in zip(layers, names, strict=True)}
    for part, trained in layers.items():
        found[part]["weights"] = weights_of(*trained)
    return found | {f"the sum of {len(layers)} losses": history["loss"]}


def weights_of(*layers):
    return [weight.ravel().tolist() for layer in layers for weight in layer.get_weights()]


def in_one_model(scope):
    """Losses of `compile`, and those that layers add, each on an output of its own."""
    with scope():
        x, targets, words = keras.Input((4,)), keras.Input((1,)), keras.Input((5,), dtype="int32")
        layers, outputs, of_outputs = {}, [], []

        def add(part, loss, output, *trained):
            layers[part] = trained
            outputs.append(output)
            of_outputs.append(loss)

        def add_dense(part, loss, hidden, *before):
            dense = zeros()
            add(part, loss, dense(hidden), dense, *before)

        add_dense("a function that returns a mean", losses.mean_of_the_batch, x)
        embedding = keras.layers.Embedding(4, 3, mask_zero=True, embeddings_initializer="ones")
        of_words = keras.layers.Dense(1, kernel_initializer="ones")
        add("a mean over what a mask leaves", "mse", of_words(embedding(words)), of_words, embedding)
        endpoint = zeros()
        add("a loss of Keras in add_loss", "mse", Endpoint()([endpoint(x), targets]), endpoint)
        squares = keras.layers.Dense(3, kernel_initializer=keras.initializers.GlorotUniform(seed=1))
        add_dense("an added loss beside one number for a batch", losses.mean_of_the_batch, Squares()(squares(x)), squares)
        for part, loss in ADDED.items():
            adds = sums_and_classes.Adds(loss)
            add_dense(part, "mse", adds(x), adds)
        maxima = sums_and_classes.Maxima()
        add_dense("variables that gradients overwrite", "mse", maxima(keras.layers.Rescaling(2.0)(x)), maxima)
        model = keras.Model([x, targets, words], named(outputs))
        model.compile(keras.optimizers.SGD(0.01), of_outputs)
    inputs, y = [X, Y, WORDS], [WORDS[:, :, None].astype("float32") if "mask" in part else Y for part in layers]
    return parts_of(model.fit(inputs, y, **FIT).history, layers)


def with_weights(scope):
    """Losses with weights of examples, one of which is one number for a batch, and some that keep variables."""
    with scope():
        inputs, dice = keras.Input((4,)), keras.layers.Dense(1, "sigmoid", kernel_initializer="zeros")
        keeping = {name: sums_and_classes.Adaptive(name == "one number") for name in ("one number", "one for each example")}
        layers = {"one number for a batch with sample weights": (dice,)}
        layers |= {f"a loss that keeps a variable, {name}": (zeros(),) for name in keeping}
        model = keras.Model(inputs, named([layer(inputs) for (layer,) in layers.values()]))
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), [keras.losses.Dice(), *keeping.values()])
    x, y = X[: 4 * SIZE], [each[: 4 * SIZE] for each in ((Y > 0).astype("float32"), Y, Y)]  # Their number is known to the step.
    weights = [WEIGHTS[: 4 * SIZE]] * 3
    found = parts_of(model.fit(x, y, sample_weight=weights, **FIT).history, layers)
    for name, loss in keeping.items():
        assert float(loss.steps) == 8.0, loss.steps
        found[f"a loss that keeps a variable, {name}"]["average"] = float(loss.average)
    return found | {"an evaluation": model.evaluate(x, y, batch_size=SIZE, sample_weight=weights, verbose=0)}


class OwnStep(keras.Model):
    """Its batches are pairs of a clean batch with numbers and a noisy one with classes, which Keras takes for the targets.

    Its losses are those of TensorFlow's loops for several replicas. It returns what it computes from metrics under names that
    they do not have, and once under the name of one, as a root. It resets its metrics itself, without Keras' own method.
    """

    def __init__(self):
        super().__init__()
        self.student = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        self.of_batch, self.of_size = (keras.layers.Dense(1, kernel_regularizer=keras.regularizers.L2(0.1)) for _ in range(2))
        for layer in (self.of_batch, self.of_size):
            layer.build((None, 4))
        self.total, self.rmse = keras.metrics.Mean(name="total_loss"), keras.metrics.Mean(name="rmse")

    @property
    def metrics(self):
        return [*super().metrics, self.total]  # Which Keras lists, too.

    def reset_metrics(self):
        for metric in self.metrics:
            metric.reset_state()

    def call(self, x):
        return self.student(x)

    def logs_of(self, data, training):
        (x, y), (noisy, classes) = data
        guess = self(noisy, training=training)
        for metric in super().metrics:
            if metric.name not in ("loss", "total_loss", "rmse"):
                metric.update_state(classes, guess)
        errors, others = (tf.square(layer(x) - y)[:, 0] for layer in (self.of_batch, self.of_size))
        for metric in (self.total, self.rmse):
            metric.update_state(errors)
        error = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(classes, guess, from_logits=True))
        scaled = tf.nn.compute_average_loss(errors) + tf.nn.compute_average_loss(others, global_batch_size=SIZE)
        scaled += tf.nn.scale_regularization_loss(tf.add_n(self.losses))
        results, total = {metric.name: metric.result() for metric in self.metrics}, self.total.result()
        more = {"loss": total, "rmse": tf.sqrt(self.rmse.result()), "more": {"perplexity": tf.exp(total)}}
        return error + scaled, {"error": error, "own": scaled, **results, **more}

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss, logs = self.logs_of(data, training=True)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return logs

    def test_step(self, data):
        return self.logs_of(data, training=False)[1]


def of_an_own_step(scope):
    with scope():
        model = OwnStep()
        model.compile(keras.optimizers.SGD(0.02), metrics=["accuracy"])
    clean, noisy = (tf.data.Dataset.from_tensor_slices((X, each)).batch(SIZE) for each in (Y, CLASSES))
    batches = tf.data.Dataset.zip((clean, noisy))
    history = model.fit(batches, epochs=2, verbose=0, validation_data=batches.skip(2)).history

    def logs(*names):
        return {prefix + name: history[prefix + name] for prefix in ("", "val_") for name in names}

    scaled = weights_of(model.of_batch, model.of_size)
    numbers = [float(model.optimizer.learning_rate), int(model.optimizer.iterations)]
    return {
        "metrics of an own step whose batches are pairs": logs("accuracy", "error") | {"weights": weights_of(model.student)},
        "losses that TensorFlow scales": logs("own") | {"weights": scaled, "numbers": numbers},
        "logs that a step computes from metrics": logs("loss", "rmse", "total_loss", "perplexity"),
    }


def positions_in_a_sequence(scope):
    """Tables whose rows are those of the positions in a sequence, on all replicas the same, beside rows of the examples."""
    parts = {"two tables": (False, 4), "one table": (True, 4), "sequences of several lengths": (True, None)}
    with scope():
        inputs, outputs, layers = [], [], {}
        for part, (has_one_table, length) in parts.items():
            inputs.append(keras.Input((length,)))
            positions = sums_and_classes.Positions(has_one_table)
            hidden = ops.tanh(positions(ops.cast(ops.clip(inputs[-1] + 2, 0, 4), "int32")))
            dense = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=2))
            outputs.append(dense(keras.layers.GlobalAveragePooling1D()(hidden)))
            layers[part] = positions, dense
        model = keras.Model(inputs, named(outputs))
        model.compile(keras.optimizers.Adam(0.05), ["mse"] * len(parts))

    def batches():
        for first, length in ((0, 4), (13, 3), (26, 2)):
            x, y = X[first : first + 13], Y[first : first + 13]
            yield (x, x, x[:, :length]), (y, y, y)

    whole, part = tf.TensorSpec([None, 4]), tf.TensorSpec([None, None])
    signature = ((whole, whole, part), (tf.TensorSpec([None, 1]),) * 3)
    # Keras would call its step once too often, which counts steps, if it did not know their number.
    known = tf.data.experimental.assert_cardinality(3)
    lengths = tf.data.Dataset.from_generator(batches, output_signature=signature).apply(known)
    found = parts_of(model.fit(lengths, epochs=2, verbose=0).history, layers)
    return {f"positions, {part}": values for part, values in found.items()}


def two_updates_in_a_step(scope):
    return {"two updates in a step": sums_and_classes.two_updates_of_a_loss_of_sequences_in_a_step(scope)}


def metrics_and_predictions(scope):
    cases = (
        own_losses.a_loss_and_a_metric_that_read_what_call_keeps,
        own_losses.what_call_keeps_until_replicas_have_added_up,
        own_losses.masks_of_a_recurrent_layer,
        unlisted_metrics.metrics_that_a_model_does_not_list,
        unlisted_metrics.metrics_that_keras_does_not_reset,
        unlisted_metrics.a_metric_that_predict_alone_updates,
        unlisted_metrics.a_metric_outside_of_the_scope_beside_one_by_name,
        own_sums.numbers_of_a_batch_that_predict_returns,
        own_sums.predictions_of_other_forms_than_dense_tensors,
        unlisted_metrics.sparse_batches_with_fewer_examples_than_replicas,
    )
    return {case.__name__.replace("_", " "): case(scope) for case in cases}


CASES = (in_one_model, with_weights, of_an_own_step, positions_in_a_sequence, two_updates_in_a_step, metrics_and_predictions)
REFUSED = (sums_and_classes.a_loss_that_keeps_a_variable,)  # Assigned in a branch, which workers of a group cannot combine.
OF_ALL = (*losses.CASES, *own_losses.CASES, *own_step_metrics.CASES, *sums_and_classes.CASES)
ALL = [case for case in OF_ALL if case not in REFUSED]


def main():
    strategy, results = tfdist.strategy(ONE_GROUP), {}
    for case in ALL if sys.argv[2:] == ["all"] else CASES:
        both = []
        for scope in (strategy.scope, contextlib.nullcontext):
            keras.utils.set_random_seed(1)
            both.append(case(scope))
        group, alone = both if case in CASES else ({case.__name__: found} for found in both)
        assert group.keys() == alone.keys()
        results |= {part: {"group": group[part], "alone": alone[part]} for part in group}
        print(case.__name__, "done", flush=True)
    loaded = server_groups.load(strategy.scope, Path(sys.argv[1]))
    with open("results.json", "w") as file:
        json.dump({"losses": results, "loaded": loaded}, file)


if __name__ == "__main__":
    main()
