"""A custom training loop with TensorFlow's ClusterCoordinator. Only the line of the strategy is tfdist's."""

import keras
import numpy as np
import tensorflow as tf

import tfdist

strategy = tfdist.strategy()
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    inputs = keras.Input((3,), dtype="int32")
    hidden = keras.layers.Embedding(40000, 8)(inputs)  # Sharded over two ps.
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(keras.layers.Flatten()(hidden)))
    optimizer = keras.optimizers.RMSprop(0.05)
    accuracy = keras.metrics.BinaryAccuracy()
loss_of = keras.losses.BinaryCrossentropy(reduction=None)


def dataset(context):
    generator = np.random.default_rng(context.input_pipeline_id)
    x = generator.integers(0, 40000, size=(320, 3)).astype("int32")
    x[::2, 0] = 7
    y = (x[:, :1] == 7).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(32).repeat()


@tf.function
def on_worker():
    return strategy.distribute_datasets_from_function(dataset)


@tf.function
def step(iterator):
    def on_replica(x, y):
        with tf.GradientTape() as tape:
            prediction = model(x, training=True)
            loss = tf.nn.compute_average_loss(loss_of(y, prediction))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        accuracy.update_state(y, prediction)
        return loss

    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(on_replica, args=next(iterator)), axis=None)


iterator = iter(coordinator.create_per_worker_dataset(on_worker))
for _ in range(3):
    accuracy.reset_state()
    for _ in range(40):
        coordinator.schedule(step, args=(iterator,))
    coordinator.join()
print(f"accuracy {float(accuracy.result()):.2f}, loss {coordinator.schedule(step, args=(iterator,)).fetch():.3f}")
print("iterations", int(optimizer.iterations.numpy()), repr(model.layers[1].embeddings._value)[:17])

with strategy.scope():
    linear = keras.Sequential([keras.layers.Dense(1, kernel_initializer="zeros")])  # Built by its first step.
accumulating = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)  # Made outside of the scope.
tf.random.set_seed(5)  # On all workers alike.


@tf.function
def accumulate():
    def on_replica():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(linear(tf.ones([1, 2])))
        weights = linear.trainable_variables
        accumulating.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return tf.random.normal([])

    return strategy.run(on_replica)


drawn = [coordinator.schedule(accumulate) for _ in range(11)]
coordinator.join()  # A gradient that arrives after an update counts in the next one: nothing may arrive after the last.
drawn.append(coordinator.schedule(accumulate))
coordinator.join()
print("updates", int(accumulating.iterations.numpy()), f"weight {float(linear.get_weights()[0][0, 0]):.2f}")
print("different numbers", len({float(each.fetch()) for each in drawn}))
