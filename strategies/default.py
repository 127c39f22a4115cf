"""One task with at most one device: TensorFlow's default strategy, plain Keras in this process."""

import logging

import tensorflow as tf

from tfdist.cluster import Cluster

_log = logging.getLogger("tfdist")


def create(cluster: Cluster, start_timeout: float) -> tf.distribute.Strategy:
    """Returns TensorFlow's default strategy. Warns if the description asks for a GPU and this machine has none."""
    del start_timeout
    (task,) = cluster.training_tasks
    if task.gpus and not tf.config.list_physical_devices("GPU"):
        _log.warning("%s asks for a GPU, and TensorFlow finds none on this machine; it trains on the CPU", task.name)
    return tf.distribute.get_strategy()
