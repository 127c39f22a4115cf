import gc
import weakref

import tensorflow as tf

from tfdist.strategies.named_variable import NamedVariable


def test_a_variable_does_not_keep_the_functions_that_used_it():
    variable = NamedVariable("v", tf.float32, [2], "/job:localhost/replica:0/task:0/device:CPU:0")
    variable.assign([1.0, 2.0])

    def add():
        variable.assign_add([1.0, 1.0])

    function = tf.function(add, autograph=False).get_concrete_function()
    function()
    graph = weakref.ref(function.graph)
    del function
    gc.collect()
    assert graph() is None
    assert variable.read().numpy().tolist() == [2.0, 3.0]
