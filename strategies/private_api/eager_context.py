"""The context of TensorFlow's eager runtime: its servers, its coordination service and its executors."""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_api.checks import need, need_attributes

context: Any = need("tensorflow.python.eager.context", "context")
Context: Any = need("tensorflow.python.eager.context", "Context")
need_attributes(Context, "_context_handle")
_new_executor: Any = need("tensorflow.python.eager.executor", "new_executor")
# TensorFlow's seed as the user has set it, or None.
global_seed: Any = need("tensorflow.python.eager.context", "global_seed")
# The cluster to which this process is connected.
get_server_def: Any = need("tensorflow.python.eager.context", "get_server_def")
update_server_def: Any = need("tensorflow.python.eager.context", "update_server_def")
set_server_def_retries: Any = need("tensorflow.python.eager.context", "set_server_def_retries")


def has_started() -> bool:
    """Returns whether TensorFlow's runtime has started: some of its options cannot be set any more."""
    return context()._context_handle is not None


def hidden_devices(kind: str) -> set[str]:
    """Returns the names of the physical devices that the program has hidden with `tf.config.set_visible_devices`."""
    runtime = context()
    found, seen = runtime.list_physical_devices(kind), runtime.get_visible_devices(kind)
    return {device.name for device in found} - {device.name for device in seen}


def publish(key: str, value: str) -> None:
    """Gives `value` to all tasks of a MultiWorkerMirroredStrategy, by the service through which TensorFlow coordinates them."""
    context().set_config_key_value(f"tfdist/{key}", value)


def published(key: str, seconds: float) -> str:
    """Waits for the value that a task has published; raises `tf.errors.OpError` after `seconds`."""
    return str(context().get_config_key_value(f"tfdist/{key}", int(seconds * 1000)))


def unpublish(key: str) -> None:
    """Removes a value that this task has published."""
    context().delete_config_key_value(f"tfdist/{key}")


# Where the module of its protocol buffers is depends on the version.
_coordination_config: Any = need("tensorflow.python.distribute.collective_all_reduce_strategy", "coordination_config_pb2")
_multi_worker_util: Any = need("tensorflow.python.distribute.multi_worker_util")
_configure_coordination: Any = need("tensorflow.python.eager.context", "Context", "configure_coordination_service")


def configure_coordination(cluster_spec: "tf.train.ClusterSpec", heartbeat_seconds: float) -> None:
    """Sets what a MultiWorkerMirroredStrategy would set for its coordination service, and when a task counts as gone.

    Args:
        cluster_spec: the chief and the workers.
        heartbeat_seconds: how long a task may give no sign. TensorFlow's 10 s are too short for a task that is only busy.
    """
    jobs = [job for job in ("chief", "worker") if job in cluster_spec.jobs]
    _configure_coordination(
        context(),
        service_type="standalone",
        service_leader=_multi_worker_util.coordination_leader(cluster_spec),
        heartbeat_timeout_in_ms=int(heartbeat_seconds * 1000),
        coordinated_jobs=[_coordination_config.CoordinatedJob(name=job, num_tasks=cluster_spec.num_tasks(job)) for job in jobs],
    )


def use_own_executor() -> Any:
    """Gives this thread an executor of TensorFlow's runtime; keep the returned object as long as the thread uses it.

    Threads share the default executor. There an operation for a stopped worker stays open, and all threads wait for it.
    """
    executor = _new_executor(enable_async=False)
    context().executor = executor
    return executor


@contextlib.contextmanager
def own_executor() -> Iterator[None]:
    """As `use_own_executor`, for a thread that ends after the block.

    An error of an operation is forgotten at the end. Otherwise TensorFlow would raise it again where it deletes the executor,
    which Python prints as a traceback that nobody can catch.
    """
    executor = use_own_executor()
    try:
        yield
    finally:
        executor.clear_error()
