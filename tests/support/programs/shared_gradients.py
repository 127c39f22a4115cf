"""Cases of shared_batches.py: steps that change gradients before they apply them."""

import keras
import tensorflow as tf
from keras import layers, ops
from shared_models import case, own


@case
def clips_gradients_when_they_are_large():
    return own("clips_gradients_when_they_are_large", change=lambda gradients: tf.clip_by_global_norm(gradients, 1e6)[0])


@case
def scales_gradients_by_their_norm():
    return own("scales_gradients_by_their_norm", change=lambda g: [v / tf.linalg.global_norm(g) for v in g])


@case
def sharpness_aware():
    def before(model, x, y, z, gradients):
        norm = tf.linalg.global_norm(gradients)
        moves = [0.05 * gradient / norm for gradient in gradients]
        for variable, move in zip(model.net.trainable_variables, moves, strict=True):
            variable.assign_add(move)
        gradients = model.gradients(x, y)[2]
        for variable, move in zip(model.net.trainable_variables, moves, strict=True):
            variable.assign_sub(move)
        return gradients

    return own("sharpness_aware", before=before)


class ClippingEach(keras.Model):
    """Clips the gradients of each example, as private training does."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            losses = ops.mean((self(x, training=True) - y) ** 2, axis=-1)
        each = tape.jacobian(losses, [weight.value for weight in self.trainable_variables])
        clipped = [tf.clip_by_norm(v, 0.1, axes=list(range(1, len(v.shape)))) for v in each]
        self.optimizer.apply([ops.mean(v, axis=0) for v in clipped], self.trainable_variables)
        return {"loss": ops.mean(losses)}


@case
def gradients_of_each_example_that_are_clipped():
    inputs = keras.Input((6,))
    model = ClippingEach(inputs, layers.Dense(4)(inputs), name="gradients_of_each_example_that_are_clipped")
    model.compile(keras.optimizers.SGD(0.01))
    return model
