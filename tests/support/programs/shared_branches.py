"""Cases of shared_batches.py: steps that assign variables, also in branches."""

from keras import layers, ops
from shared_models import case, changed_by, cross_entropies, own, similarities


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
    return changed_by("a_weight_that_begins_by_the_batch_in_a_branch", BeginsByTheBatch(name="norm"))


class Centers(layers.Layer):
    """Subtracts a trained weight that it sets to the mean of the batch before."""

    def build(self, shape):
        self.center = self.add_weight(shape=(shape[-1],), initializer="zeros", name="center")

    def call(self, x, training=False):
        if training:
            self.center.assign(ops.mean(x, axis=0))
        return ops.tanh(x - self.center)


class AddsUp(layers.Layer):
    """Adds up something of its inputs in a variable of which TensorFlow takes the sum over the replicas."""

    def __init__(self, reduce):
        super().__init__()
        self.reduce = reduce

    def build(self, shape):
        self.total = self.add_weight(shape=(shape[-1],), trainable=False, aggregation="sum", name="total")

    def call(self, x, training=False):
        if training:
            self.total.assign_add(self.reduce(x, axis=0))
        return x


@case
def a_trained_weight_that_the_step_sets_first():
    return changed_by("a_trained_weight_that_the_step_sets_first", Centers())


@case
def a_sum_over_the_replicas():
    return changed_by("a_sum_over_the_replicas", AddsUp(ops.sum))


@case
def a_mean_in_a_sum_over_the_replicas():
    return changed_by("a_mean_in_a_sum_over_the_replicas", AddsUp(ops.mean))
