"""A block of parameters on ps tasks that are only named."""

from types import SimpleNamespace

import tensorflow as tf

from tfdist.strategies.hogwild.synchronization.global_parameters import ParameterBlock
from tfdist.strategies.hogwild.synchronization.local_variable import Kind
from tfdist.strategies.named_variable import NamedVariable

GROUPS, WORKER = 3, "/job:worker/task:0/device:CPU:0"


def block_on(servers, optimizer, compressed=False):
    """A block of a variable of 1,000 values, on this many ps."""
    devices = [f"/job:ps/task:{number}/device:CPU:0" for number in range(servers)]
    shape = tf.TensorShape([1000])
    variable = SimpleNamespace(kind=Kind.SYNCHRONIZED, dtype=tf.float32, shape=shape, block=None)
    variable.replica = NamedVariable("v", tf.float32, shape, "")
    variable.place, variable.column = lambda leader=None: leader or WORKER, None
    return ParameterBlock([variable], [devices], optimizer, GROUPS, compressed)
