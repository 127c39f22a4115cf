"""What a replica finds in the attributes of layers after another one has run: its own tensors, and everything else as it is."""

import keras
import tensorflow as tf

from tfdist.strategies.keras_hooks import kept_tensors


class Keeps(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.weights_of_own = [self.add_weight(shape=(2,))]
        self.rows, self.by_name, self.calls, self.lazy = [], {}, 0, None

    def keep(self, tensor):
        self.rows.clear()
        self.rows.append(tensor)
        self.by_name["mean"] = self.mean = tensor
        self.calls += 1


def test_attributes_have_the_tensors_of_before():
    layer, own, other = Keeps(), tf.constant(1.0), tf.constant(2.0)
    layer.keep(own)
    weights = list(layer.weights_of_own)
    kept = kept_tensors._attributes(layer)
    layer.keep(other)
    layer.lazy = layer.made = other
    kept_tensors._restore(vars(layer), kept)
    assert layer.mean is own and layer.rows[0] is own and layer.by_name["mean"] is own
    assert layer.lazy is None and not hasattr(layer, "made")
    assert layer.calls == 2  # Numbers of Python are of all replicas.
    assert layer.weights_of_own == weights and layer.trainable_variables == weights


def test_objects_of_the_user_are_looked_into_and_those_of_keras_are_not():
    layer = Keeps()
    layer.loss, layer.own, layer.code = keras.losses.MeanSquaredError(), Own(), Own
    assert list(kept_tensors._owners(layer)) == [layer, layer.own]


class Own:
    pass
