"""Variables as on ps tasks, in this process."""

import numpy as np
import tensorflow as tf

from tfdist.strategies.parameter_server.variables import ServerVariable, ShardedVariable

ROWS = np.arange(24, dtype=np.float32).reshape(6, 4)


def on_ps(shards=2, trainable=True):
    """A variable with the value `ROWS` on one ps, or sharded over two."""
    parts = [ServerVariable(tf.Variable(part, trainable=trainable)) for part in np.split(ROWS, shards)]
    return parts[0] if shards == 1 else ShardedVariable(parts, [0, 3, 6], "table:0")
