"""Models of shared_batches.py whose loss or metric function reads what `call` keeps, or keeps something itself."""

import keras
from keras import ops
from shared_models import case, small


class Keeps(keras.Model):
    """A model that keeps a tensor in its `call`. The loss function of `compile` reads it."""

    def __init__(self, loss, name, metric=ops.sum):
        super().__init__(name=name)
        self.net, self.loss_of, self.metric_of = small(), loss, metric
        self.compile("sgd", self.of_batch, metrics=[self.of_kept])

    def call(self, x):
        self.kept = self.net(x)
        return ops.tanh(self.kept)

    def of_batch(self, y, z):
        return self.loss_of(y, z, self.kept)

    def of_kept(self, y, z):
        return self.metric_of(self.kept)


@case
def a_mean_of_what_call_keeps():
    loss = lambda y, z, kept: ops.mean(ops.square(y - z)) + ops.mean(ops.square(kept))  # noqa: E731
    return Keeps(loss, name="a_mean_of_what_call_keeps")


@case
def a_sum_of_what_call_keeps():
    loss = lambda y, z, kept: ops.mean(ops.square(y - z)) + ops.sum(ops.square(kept))  # noqa: E731
    return Keeps(loss, name="a_sum_of_what_call_keeps")


@case
def a_product_with_what_call_keeps():
    loss = lambda y, z, kept: ops.mean(ops.square(y - z)) * ops.mean(ops.square(kept))  # noqa: E731
    return Keeps(loss, name="a_product_with_what_call_keeps")


@case
def a_metric_of_what_call_keeps():
    loss = lambda y, z, kept: ops.mean(ops.square(y - z))  # noqa: E731
    return Keeps(loss, name="a_metric_of_what_call_keeps", metric=ops.max)


@case
def a_loss_of_one_number_that_adds_up():
    """It is computed on the whole batch, and so is what it assigns."""
    total = keras.Variable(1.0, trainable=False)

    def loss(y, z):
        total.assign(total + ops.sum(ops.square(z)))
        return ops.mean(ops.square(y - z)) / total

    model = small(name="a_loss_of_one_number_that_adds_up")
    model.compile("sgd", loss)
    return model
