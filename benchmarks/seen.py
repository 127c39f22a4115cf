"""A metric that counts examples and adds up their numbers, which shows whether a training has seen each of them once."""

import keras


class Seen(keras.metrics.Metric):
    """The count of the examples, and the sum of their numbers, which are the second column of the targets."""

    def __init__(self, name="seen", **kwargs):
        super().__init__(name=name, **kwargs)
        self.sums = self.add_variable(shape=(2,), initializer="zeros", name="sums")

    def update_state(self, y_true, y_pred, sample_weight=None):
        ids = keras.ops.cast(y_true[:, 1], "float32")
        self.sums.assign(self.sums + keras.ops.stack([keras.ops.sum(keras.ops.ones_like(ids)), keras.ops.sum(ids)]))

    def result(self):
        return {"examples": self.sums[0], "numbers": self.sums[1]}
