"""The devices of one task's replicas."""

import logging

import tensorflow as tf

from tfdist.cluster import Task
from tfdist.errors import ClusterError


def local_devices(task: Task) -> list[str]:
    """Returns the names of as many devices as the task has slots: `GPU:0`, … or `CPU:0`, ….

    The devices are GPUs if the task asks for GPUs and this machine has enough. Otherwise they are logical CPU devices, so that
    the global batch is split as the description says; a warning names the missing GPUs. Call it before TensorFlow's runtime
    starts.

    Raises:
        ClusterError: if TensorFlow has already started with fewer logical CPU devices.
    """
    if task.gpus:
        gpus = tf.config.list_physical_devices("GPU")  # Listing logical ones would start TensorFlow's runtime.
        if len(gpus) >= task.slots:
            return [f"GPU:{number}" for number in range(task.slots)]
        logging.getLogger("tfdist").warning(
            "%s asks for %d GPUs, and TensorFlow finds %d on this machine; its %d replicas share the CPU",
            task.name,
            task.gpus,
            len(gpus),
            task.slots,
        )
    if task.slots > 1:
        _split_cpu(task)
    return [f"CPU:{number}" for number in range(task.slots)]


def _split_cpu(task: Task) -> None:
    cpus = tf.config.list_physical_devices("CPU")
    try:
        tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * task.slots)
    except (RuntimeError, ValueError) as cause:
        if len(tf.config.list_logical_devices("CPU")) < task.slots:
            raise ClusterError(
                f"{task.name} has {task.slots} slots on the CPU, and TensorFlow has already started with fewer; "
                "call tfdist.strategy before anything else uses TensorFlow"
            ) from cause
