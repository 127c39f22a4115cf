"""The gradient of an operation on a shard is computed where the shard is."""

import tensorflow as tf

from tfdist.strategies.model_parallel.split_tensor import SplitTensor

FIRST, *OTHERS = (f"/device:CPU:{number}" for number in range(3))


def test_gradients_are_computed_on_the_devices_of_the_parts():
    @tf.function
    def step(x, *parts):
        split = SplitTensor(parts=parts, axis=1, devices=tuple(OTHERS))
        with tf.device(FIRST), tf.GradientTape() as tape:
            tape.watch(parts)
            loss = tf.add_n(split.each(lambda number, part: tf.reduce_sum(tf.matmul(x, part))))
        with tf.device(FIRST):
            return tape.gradient(loss, parts)

    graph = step.get_concrete_function(*(tf.TensorSpec(shape) for shape in ((2, 3), (3, 4), (3, 4)))).graph
    products = [operation for operation in graph.get_operations() if operation.type == "MatMul"]
    assert sorted(operation.device for operation in products if "gradient_tape" in operation.name) == OTHERS
    assert [operation.device for operation in products if "gradient_tape" not in operation.name] == OTHERS
