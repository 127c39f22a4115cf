"""The same random numbers on all tasks that train together.

Every task reads the same data and takes its shard of each batch, therefore all tasks have to shuffle alike. tf.data shuffles by
TensorFlow's global seed, Keras' `PyDataset` by Python's `random`, generators often by numpy, and PyTorch's `DataLoader` by
PyTorch's own state.
"""

import random
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.strategies.private_api.eager_context import global_seed


def share(strategy: tf.distribute.Strategy) -> None:
    """Gives every task the chief's states of random numbers, and a seed of TensorFlow if the user has set none.

    They are those of `random`, of `numpy.random`, and of PyTorch if it is imported.

    Seeds that the user has set, on the chief or on all tasks, stay valid, and so do later ones. Every task has to call it:
    it is a broadcast.
    """
    version, words, gauss_next = random.getstate()
    kind, keys, position, has_gauss, cached_gaussian = np.random.get_state(legacy=True)
    assert isinstance(keys, np.ndarray)
    own_seed = global_seed()
    # Drawn from elsewhere than the shared states: after the user's seeds these give the same numbers as in one process.
    seed = random.SystemRandom().getrandbits(31) if own_seed is None else int(own_seed)
    own = _torch_state()
    numbers = [np.array([seed, position, len(own)]), keys.astype(np.int64), np.array(words, np.int64)]
    received = of_first_task(strategy, np.concatenate(numbers))
    seed, position, size = received[:3]
    keys, words = received[3 : 3 + len(keys)], received[3 + len(keys) :]
    random.setstate((version, tuple(int(word) for word in words), gauss_next))
    np.random.set_state((str(kind), keys.astype(np.uint32), int(position), int(has_gauss), float(cached_gaussian)))
    if own_seed is None:
        tf.random.set_seed(int(seed))
    if size:  # PyTorch is imported in the first task. All take part in the broadcast.
        state = of_first_task(strategy, np.resize(own, int(size)))
        if len(own) == size:
            sys.modules["torch"].set_rng_state(sys.modules["torch"].from_numpy(state.astype(np.uint8)))


def _torch_state() -> Any:
    """Returns the state of PyTorch's random numbers on the CPU, uint8; empty if the program has not imported it."""
    torch: Any = sys.modules.get("torch")
    return torch.get_rng_state().numpy() if hasattr(torch, "get_rng_state") else np.zeros([0], np.uint8)


def of_first_task(strategy: tf.distribute.Strategy, numbers: Any) -> Any:
    """Returns the `numbers` of the first task, as int64, in every task, which all have to call it with as many numbers."""
    with strategy.scope():  # A new variable has the initial value of the first task everywhere.
        return tf.Variable(numbers, dtype=tf.int64, trainable=False).numpy()
