"""TensorFlow's ClusterCoordinator: its parts, and what its public methods cannot do."""

from collections.abc import Callable
from typing import Any

from tfdist.strategies.private_api.checks import need, need_attributes, need_function

_MODULE = "tensorflow.python.distribute.coordinator.cluster_coordinator"
_CONTEXT_MODULE = "tensorflow.python.distribute.coordinator.coordinator_context"

# The reader of its queue of functions: coordinator/members/queue_readers.py makes one for each worker group.
CoordinatorWorker: Any = need(_MODULE, "Worker")
need_attributes(CoordinatorWorker, "failure_handler", "_cluster")

# What it does when a call to a worker fails: coordinator/members/recovery.py replaces it.
WorkerPreemptionHandler: Any = need(_MODULE, "WorkerPreemptionHandler")
need_attributes(
    WorkerPreemptionHandler,
    "_server_def",
    "_worker_up_cond",
    "_cluster_due_for_update_or_finish",
    "_should_preemption_thread_run",
    "_error_from_recovery",
)

_Coordinator: Any = need(_MODULE, "ClusterCoordinator")
need_attributes(_Coordinator, "_cluster")
need_function(_Coordinator, "_create_per_worker_variables", "self, fn, args, kwargs", "calls")

_Cluster: Any = need(_MODULE, "Cluster")
need_attributes(_Cluster, "_num_workers", "_transient_timeouts_threshold", "workers", "closure_queue", "failure_handler")
need_function(_Cluster, "schedule", "self, function, args, kwargs", "calls")

_Closure: Any = need(_MODULE, "Closure")
need_attributes(_Closure, "_function")
need_function(_Closure, "__init__", "self, function, cancellation_mgr, args, kwargs", "calls")
need_function(_Closure, "execute_on", "self, worker", "calls")

_ClosureQueue: Any = need(_MODULE, "_CoordinatedClosureQueue")
need_function(_ClosureQueue, "put", "self, closure, tag", "calls")
need_function(_ClosureQueue, "inflight_closure_count", "self", "sets")

_PerWorkerValues: Any = need(_MODULE, "PerWorkerValues")
need_attributes(_PerWorkerValues, "_values")

_RemoteValueImpl: Any = need(_MODULE, "RemoteValueImpl")
need_attributes(_RemoteValueImpl, "_values", "_status_available_event")

dispatch_context: Any = need(_CONTEXT_MODULE, "get_current_dispatch_context")
_maybe_get_remote_value: Any = need(_CONTEXT_MODULE, "maybe_get_remote_value")


def cluster_of(coordinator: Any) -> Any:
    """Returns TensorFlow's `Cluster` object of a ClusterCoordinator."""
    return coordinator._cluster


def schedule_on_coordinator(coordinator: Any, function: Callable[[], Any]) -> None:
    """Schedules a Python function. The public `schedule` takes TensorFlow functions only."""
    coordinator._cluster.schedule(function, args=(), kwargs={})


def function_of(closure: Any) -> Any:
    """Returns the Python function that was scheduled as a closure."""
    return closure._function


def create_per_worker(coordinator: Any, create: Callable[[], Any]) -> tuple[Any, ...]:
    """Makes each queue reader of a coordinator call `create`, now and after each restart of its worker.

    Returns:
        A RemoteValue per reader, for `remote_value`.
    """
    return tuple(coordinator._create_per_worker_variables(create)._values)


def remote_value(value: Any) -> Any:
    """Returns what a RemoteValue stands for. Raises AssertionError if its worker has not created it."""
    return _maybe_get_remote_value(value)


def remote_value_within(value: Any, seconds: float) -> Any:
    """Waits at most `seconds` for a RemoteValue, and returns what it stands for, or None. The public `fetch` has no limit."""
    return value._values if value._status_available_event.wait(seconds) else None


def schedule_for_reader(coordinator: Any, reader: int, function: Callable[[], Any]) -> None:
    """Schedules a Python function for one reader of a coordinator, by its number; another one takes it if that one fails."""
    closure_queue = coordinator._cluster.closure_queue
    closure = _Closure(function, closure_queue._cancellation_mgr, args=(), kwargs={})
    closure.build_output_remote_value()
    closure_queue.put(closure, tag=reader)


def count_if_scheduled_for_reader(reader: Any, closure: Any) -> None:
    """Makes a function of `schedule_for_reader` one like all others. Call it before the reader runs it.

    TensorFlow counts functions in flight without those for one reader, but counts each off that has ended.
    """
    if closure.tag is not None:
        closure.tag = None
        closure_queue = reader._cluster.closure_queue
        with closure_queue._queue_lock:
            closure_queue.inflight_closure_count += 1
