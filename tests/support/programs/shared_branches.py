"""Cases of shared_batches.py: steps that assign variables in branches."""

import keras
from keras import layers, ops
from shared_models import case, cross_entropies, own, similarities


def assigned_in_branch(name, condition, **kwargs):
    """A model that assigns a variable in a branch."""

    def assign(self, x, y, z, gradients):
        ops.cond(condition(self, x), lambda: (self.mean.assign(self.mean + 1), 0)[1], lambda: 0)

    return own(name, before=assign, **kwargs)


@case
def a_contrastive_step_that_assigns_in_a_branch():
    name = "a_contrastive_step_that_assigns_in_a_branch"
    return assigned_in_branch(
        name, lambda self, x: self.seen > 3, loss=lambda model, x, y, z: ops.mean(cross_entropies(similarities(z)))
    )


@case
def a_mean_that_assigns_in_a_branch():
    return assigned_in_branch("a_mean_that_assigns_in_a_branch", lambda self, x: self.seen > 3)


@case
def an_assignment_in_a_branch_by_the_batch():
    return assigned_in_branch("an_assignment_in_a_branch_by_the_batch", lambda self, x: ops.mean(x) > 0)


class BeginsByTheBatch(layers.Layer):
    """Begins with the deviations of its first batch, as ActNorm."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")
        self.has_begun = self.add_weight(shape=(), initializer="zeros", trainable=False, name="has_begun")

    def call(self, x, training=False):
        def begin():
            self.scale.assign(1 / (ops.std(x, axis=0) + 1))
            self.has_begun.assign(1.0)
            return 0

        if training:
            ops.cond(self.has_begun > 0, lambda: 0, begin)
        return x * self.scale


@case
def a_weight_that_begins_by_the_batch_in_a_branch():
    net = [keras.Input((6,)), layers.Dense(4), BeginsByTheBatch(name="norm"), layers.Dense(1)]
    model = keras.Sequential(net, name="a_weight_that_begins_by_the_batch_in_a_branch")
    model.compile("sgd", "mse")
    return model
