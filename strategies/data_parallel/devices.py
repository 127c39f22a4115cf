"""The devices of one task's replicas."""

import logging

import tensorflow as tf

from tfdist.cluster import Task
from tfdist.errors import ClusterError
from tfdist.strategies.private_api.eager_context import hidden_devices

_log = logging.getLogger("tfdist")


def local_devices(task: Task) -> list[str]:
    """Returns the names of the devices of the task's replicas: `GPU:0`, … or `CPU:0`, ….

    These are as many GPUs as the task has slots. Where the description gives neither slots nor GPUs they are all that
    TensorFlow sees, as under TensorFlow's own strategies. With fewer GPUs than slots they are logical CPU devices, so that the
    global batch is split as the description says. A warning names GPUs that are missing or stay unused. Call it before
    TensorFlow's runtime starts.

    Raises:
        ClusterError: if TensorFlow has already started with fewer logical CPU devices.
    """
    hidden = hidden_devices("GPU")
    # Listing logical devices would start TensorFlow's runtime.
    gpus = [gpu for gpu in tf.config.list_physical_devices("GPU") if gpu.name not in hidden]
    slots = len(gpus) if gpus and is_open(task) else task.slots
    if len(gpus) >= slots:
        if len(gpus) > slots:
            unused = ", ".join(f"GPU:{number}" for number in range(slots, len(gpus)))
            _log.warning("%s has %d slots, so that it does not use %s; describe %d slots", task.name, slots, unused, len(gpus))
        return [f"GPU:{number}" for number in range(slots)]
    if task.gpus or gpus:
        _log.warning(
            "%s asks for %d GPUs, and TensorFlow finds %d on this machine; its %d replicas share the CPU",
            task.name,
            task.gpus or task.slots,
            len(gpus),
            task.slots,
        )
    if task.slots > 1:
        _split_cpu(task)
    return [f"CPU:{number}" for number in range(task.slots)]


def is_open(task: Task) -> bool:
    """Returns whether the description leaves open how many devices the task has."""
    return task.slots == 1 and not task.gpus


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
