"""One task with at most one device: TensorFlow's default strategy, plain Keras in this process."""

import logging

import tensorflow as tf

from tfdist.cluster import Cluster

_log = logging.getLogger("tfdist")


def create(cluster: Cluster, start_timeout: float) -> tf.distribute.Strategy:
    """Returns TensorFlow's default strategy, which uses the first GPU.

    Warns if the description asks for a GPU and this machine has none, and if TensorFlow sees GPUs that it does not use.
    """
    (task,) = cluster.training_tasks
    gpus = tf.config.get_visible_devices("GPU")
    if task.gpus and not gpus:
        _log.warning("%s asks for a GPU, and TensorFlow finds none on this machine; it trains on the CPU", task.name)
    if len(gpus) > 1:
        unused = ", ".join(f"GPU:{number}" for number in range(1, len(gpus)))
        _log.warning("%s trains on one device and does not use %s; --strategy mirrored uses all", task.name, unused)
    return tf.distribute.get_strategy()
