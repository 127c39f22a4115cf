"""Cases of states.py: what a step draws at random, integers, and what is 0 in the first batch."""

import keras
from keras import ops
from state_cases import case, trained


class NoisyUpdates(keras.optimizers.SGD):
    """Adds noise to each update, as Langevin dynamics."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.generator = keras.random.SeedGenerator(5)

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate)
        self.assign_add(variable, 0.01 * keras.random.normal(variable.shape, seed=self.generator))


@case
def random_numbers_in_an_update(scope):
    results = {}
    for name, arguments in {"compiled": {}, "eager": {"run_eagerly": True}}.items():
        with scope():
            optimizer = NoisyUpdates(0.02)
        results[name] = trained(scope, lambda: [], optimizer=optimizer, **arguments)
    return results
