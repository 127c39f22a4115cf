"""A MultiWorkerMirroredStrategy that adds up over a part of its tasks."""

from typing import Any

from tfdist.strategies.private_api.checks import need, need_function

_CollectiveAllReduce: Any = need("tensorflow.python.distribute.cross_device_ops", "CollectiveAllReduce")
need_function(
    _CollectiveAllReduce, "__init__", "self, devices, group_size, options, collective_keys, canonicalize_devices", "calls"
)


def use_workers(extended: Any, workers: int, number: int) -> None:
    """Makes the strategy of one task add up over a part of the tasks, which have one group key.

    Args:
        extended: a `MultiWorkerMirroredExtended` with one device, just initialized.
        workers: the number of tasks of that part.
        number: the number of this task among them.
    """
    extended._num_workers, extended._id_in_cluster = workers, number
    shared = {"group_size": workers, "options": extended._communication_options, "collective_keys": extended._collective_keys}
    extended._cross_device_ops = _CollectiveAllReduce(devices=extended.worker_devices, **shared)
    extended._host_cross_device_ops = _CollectiveAllReduce(devices=[extended._worker_device], **shared)
