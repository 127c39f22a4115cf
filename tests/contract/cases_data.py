"""The data that `fit` takes. An epoch sees each example once."""

import keras
import numpy as np
import tensorflow as tf

from contract.common import IDS, LABELS, NUMBERED, RATE, N, X, Y, case, compiled, counting, error_of, fit, once, plain, trained


@case("numpy_arrays")
def numpy_arrays(strategy):
    model = counting(strategy)
    return once(model, fit(model, X, NUMBERED, batch_size=32, epochs=3), 3)


@case("finite_dataset")
def finite_dataset(strategy):
    model = counting(strategy)
    dataset = tf.data.Dataset.from_tensor_slices((X, NUMBERED)).shuffle(N, seed=1).batch(32)
    return once(model, fit(model, dataset, epochs=3), 3)


def without_steps(result):
    """Removes the steps: for data of unknown size, Keras in one process counts one step more than it makes."""
    del result["exact"]["steps"]
    return result


@case("dataset_of_unknown_size")
def dataset_of_unknown_size(strategy):
    model = counting(strategy)
    dataset = tf.data.Dataset.from_tensor_slices((X, NUMBERED)).filter(lambda x, y: True).batch(32)
    return without_steps(once(model, fit(model, dataset, epochs=2), 2))


@case("uneven_last_batch")
def uneven_last_batch(strategy):
    model = counting(strategy)
    history = fit(model, X[:41], NUMBERED[:41], batch_size=32, epochs=2)
    return once(model, history, 2, ids=IDS[:41])


@case("generator")
def generator(strategy):
    def batches():
        for begin in range(0, N, 50):
            yield X[begin : begin + 50], NUMBERED[begin : begin + 50]

    model = counting(strategy)
    return without_steps(once(model, fit(model, batches(), epochs=1), 1))


@case("py_dataset")
def py_dataset(strategy):
    class Batches(keras.utils.PyDataset):
        """Threads load its batches. It shuffles its examples at the end of an epoch, as in Keras' documentation."""

        def __init__(self):
            super().__init__(workers=2)
            self.order, self.random = np.arange(N), np.random.default_rng(1)

        def __len__(self):
            return 5

        def __getitem__(self, index):
            part = self.order[50 * index : 50 * index + 50]
            return X[part], NUMBERED[part]

        def on_epoch_end(self):
            self.random.shuffle(self.order)

    model = counting(strategy)
    return once(model, fit(model, Batches(), epochs=2), 2)


@case("infinite_dataset")
def infinite_dataset(strategy):
    model = counting(strategy)
    dataset = tf.data.Dataset.from_tensor_slices((X, NUMBERED)).repeat().batch(50)
    return once(model, fit(model, dataset, epochs=3, steps_per_epoch=5), 3)  # 5 steps of 50 are one pass.


@case("data_from_function")
def data_from_function(strategy):
    def batches(_):  # The same for every group.
        return tf.data.Dataset.from_tensors((X[:50], Y[:50])).repeat()

    model = plain(strategy)
    begun = model.evaluate(X[:50], Y[:50], verbose=0, return_dict=True)
    data = strategy.distribute_datasets_from_function(batches)
    history = fit(model, data, epochs=3, steps_per_epoch=12)
    return {"exact": {}, "near": {"loss": history["loss"]}, "before": {"loss": begun["loss"]}}


@case("batches_with_none")
def batches_with_none(strategy):
    def batches():
        for begin in range(0, N, 50):
            yield X[begin : begin + 50], NUMBERED[begin : begin + 50], None

    model = counting(strategy)
    return without_steps(once(model, fit(model, batches(), epochs=1), 1))


@case("empty_dataset")
def empty_dataset(strategy):
    empty = tf.data.Dataset.from_tensor_slices((X[:0], NUMBERED[:0])).batch(32)
    message = error_of(lambda: fit(counting(strategy), empty, epochs=1))
    assert message == "no error" or "the dataset has no batches" in message, message  # Keras itself makes no step and warns.
    return {"exact": {}}


@case("steps_per_execution")
def steps_per_execution(strategy):
    from contract.common import Seen, loss_without_number, two_layers

    model = compiled(
        strategy, two_layers, lambda: keras.optimizers.SGD(RATE), loss_without_number, [Seen], steps_per_execution=3
    )
    return once(model, fit(model, X, NUMBERED, batch_size=32, epochs=2), 2)


@case("validation_split")
def validation_split(strategy):
    from contract.common import check_seen

    model = counting(strategy)
    history = fit(model, X, NUMBERED, validation_split=0.2, batch_size=50, epochs=2)
    check_seen(history, 2, prefix="val_", ids=IDS[200:])
    result = once(model, history, 2, ids=IDS[:200])
    return result | {"near": {"loss": history["loss"], "val_loss": history["val_loss"]}}


@case("validation_data")
def validation_data(strategy):
    from contract.common import check_seen

    model = counting(strategy)
    history = fit(model, X, NUMBERED, validation_data=(X[:60], NUMBERED[:60]), epochs=2)
    check_seen(history, 2, prefix="val_", ids=IDS[:60])
    result = once(model, history, 2)
    return result | {"near": {"loss": history["loss"], "val_loss": history["val_loss"]}}


@case("class_weight", "sample_weight")
def weights(strategy):
    def build():
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = compiled(strategy, build, lambda: keras.optimizers.SGD(RATE), loss, weighted_metrics=["accuracy"])
    start = model.get_weights()
    classes = fit(model, X, LABELS, epochs=2, class_weight={0: 0.25, 1: 2.0})
    model.set_weights(start)
    samples = fit(model, X, LABELS, epochs=2, sample_weight=np.where(IDS % 3 == 0, 2.0, 0.5))
    return {"class_weight": trained(model, classes), "sample_weight": trained(model, samples)}
