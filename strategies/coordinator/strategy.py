"""The base of the strategies whose chief coordinates worker groups: connects to the cluster and makes the coordinator."""

import copy
import functools
import logging
import os
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from tfdist.cluster import Cluster, Task
from tfdist.strategies.coordinator.calls.backups import Backups
from tfdist.strategies.coordinator.calls.executions import Executions
from tfdist.strategies.coordinator.calls.tracing import tracing_lock
from tfdist.strategies.coordinator.edits import Edits
from tfdist.strategies.coordinator.extended import GroupExtended
from tfdist.strategies.coordinator.members import made_before
from tfdist.strategies.coordinator.members.call_gate import CallGate
from tfdist.strategies.coordinator.members.cut_links import CutLinks
from tfdist.strategies.coordinator.members.group_answers import GroupAnswers
from tfdist.strategies.coordinator.members.membership import Membership
from tfdist.strategies.coordinator.members.probe import PROBE_SECONDS, answering
from tfdist.strategies.coordinator.members.queue_readers import coordinator_of
from tfdist.strategies.coordinator.members.server_watch import ServerWatch
from tfdist.strategies.coordinator.members.worker_groups import WorkerGroup, groups_of, peers
from tfdist.strategies.coordinator.training_loop import OpenEpochs
from tfdist.strategies.keras_hooks import optimizer, trainer
from tfdist.strategies.keras_hooks.interface import KerasHooks
from tfdist.strategies.private_api import ClusterDeviceFilters, connect_to_cluster, late_captures, remote_functions
from tfdist.strategies.private_api.coordinator import cluster_of
from tfdist.strategies.private_api.eager_context import get_server_def, set_server_def_retries, use_own_executor
from tfdist.strategies.runtime import chief_device, server_identity, shutdown
from tfdist.strategies.runtime.connecting import bounded
from tfdist.strategies.runtime.deadline import Deadline
from tfdist.strategies.runtime.lost_timeout import CONNECTION_TIMES, lost_seconds
from tfdist.strategies.runtime.memory import keep_freed_memory
from tfdist.strategies.runtime.own_sockets import keep_connections, ports_of
from tfdist.strategies.runtime.peers import wait_for_tasks
from tfdist.strategies.runtime.program_end import at_program_end

CONNECTION_TRIES = 3
"""How often the chief tries to reach a task that is just being restarted. The value of TensorFlow's ParameterServerStrategy."""

_log = logging.getLogger("tfdist")

AnyStrategy = TypeVar("AnyStrategy", bound="CoordinatorStrategy")


class CoordinatorStrategy(tf.distribute.ParameterServerStrategy):
    """TensorFlow's ParameterServerStrategy with worker groups and with step functions for Keras.

    Args:
        cluster: the prepared and addressed cluster.
        make_extended: makes the strategy's `extended`, of the strategy, the cluster resolver and the worker groups.
        seen_by_ps: the jobs that the ps tasks exchange tensors with, as device filters.
        shares_replicas: whether groups with the same tasks train one local replica.

    Attributes:
        worker_groups: the groups.
        membership: which groups are live.
        call_gate: what every call to a worker passes.
        answers: asks groups for an answer.
        recovery: takes tasks that have been restarted into the cluster again.
        server_watch: asks the ps for an answer.
        executions: what the groups run.
        edits: lets callbacks compute weights from what they read.
        tfdist_hooks: the interface to Keras. Subclasses set it.
    """

    tfdist_hooks: KerasHooks

    def __init__(
        self,
        cluster: Cluster,
        make_extended: Callable[[Any, Any, Sequence[WorkerGroup]], GroupExtended],
        seen_by_ps: Sequence[str] = ("/job:worker", "/job:chief"),
        shares_replicas: bool = False,
    ) -> None:
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster.cluster_spec()), task_type="chief", task_id=0, rpc_layer=cluster.protocol
        )
        # What ParameterServerStrategy.__init__ does, with another `extended` and other device filters.
        self._cluster_resolver = resolver
        if cluster.job("ps"):  # TensorFlow's own check wants one.
            self._verify_args_and_config(resolver)
        self._cluster_coordinator = None
        self._num_workers, self._num_ps = len(cluster.job("worker")), len(cluster.job("ps"))
        absent = _absent(cluster)
        server_def = _connect(cluster, resolver, seen_by_ps, absent)
        self._tfdist_executor = use_own_executor()
        self.worker_groups = groups_of(cluster, {device.name for device in tf.config.list_logical_devices()}, absent)
        tf.distribute.Strategy.__init__(self, make_extended(self, resolver, self.worker_groups))
        self._should_use_with_coordinator = True
        self._canonicalize_devices = False
        self._is_parameter_server_strategy_v2 = True
        self.membership = Membership(self.worker_groups, shares_replicas)
        self.call_gate, workers = CallGate(), cluster.job("worker")
        missing = {task.index for task in absent}
        for group in self.worker_groups:
            if not missing.isdisjoint(group.tasks):
                self.membership.leave(group.number)
        self.membership.when_changed = self._say_who_trains
        servers, seconds = cluster.parameter_tasks, lost_seconds()
        self.server_watch = ServerWatch(servers, workers, seconds)
        coordinator = coordinator_of(
            self, self.worker_groups, workers, self.membership, self.call_gate, server_def, self.server_watch.check
        )
        self.recovery = cluster_of(coordinator).failure_handler
        keep_connections(ports_of(cluster), CONNECTION_TIMES * seconds)
        links = self.recovery.links = CutLinks(self.worker_groups, workers, servers, self.membership)
        self.answers = GroupAnswers(self.worker_groups, workers, self.membership, links, servers)
        self.executions = Executions(coordinator, self.answers, self.membership, self.call_gate, self.server_watch, seconds)
        self.open_epochs = OpenEpochs()
        self.edits = Edits(self.executions, self.open_epochs.have_unread)
        self.server_watch.start()
        self._backups = Backups(self.executions, self.answers, self.membership, seconds)
        self._backups.start()

    @property
    def seconds_traced(self) -> float:
        """How long functions of worker groups have been traced until now."""
        return tracing_lock.seconds_held

    def say_no_more(self) -> None:
        """The program has ended: all workers and ps leave now, and none is missed."""
        self.membership.say_no_more()
        self.server_watch.stop()

    def _say_who_trains(self, owner: int, has_joined: bool) -> None:
        groups = [group for group in self.worker_groups if self.membership.owners[group.number] == owner]
        workers = ", ".join(dict.fromkeys(f"worker:{index}" for group in groups for index in group.tasks))
        verb = f"{'have' if ',' in workers else 'has'} {'joined' if has_joined else 'left'}"
        present = len(self.membership.present)
        _log.warning("%s %s the training: %d of %d worker groups train", workers, verb, present, len(self.worker_groups))


def start(cluster: Cluster, start_timeout: float, make: Callable[[Cluster], AnyStrategy]) -> AnyStrategy:
    """Waits for the ps and worker tasks, connects to them as the chief, and returns the strategy.

    Args:
        cluster: the prepared and addressed cluster.
        start_timeout: how long to wait, in seconds.
        make: makes the strategy, which connects to the cluster.

    Raises:
        StartTimeoutError: if tasks are not up after `start_timeout` seconds. The message names them.
    """
    keep_freed_memory()
    servers = [task for task in cluster.training_tasks if task.job in ("ps", "worker")]
    _log.debug("waiting for %d ps and worker tasks", len(servers))
    is_enough = functools.partial(_is_enough, cluster)
    wait_for_tasks(servers, start_timeout, _log.warning, server_identity.why_missing, is_enough)
    # Before the strategy exists: if connecting fails, the servers still learn that this chief has ended.
    at_program_end(lambda failed: shutdown.notify(servers, shutdown.FAILED if failed else shutdown.FINISHED))
    remote_functions.install()
    late_captures.install()
    chief_device.install()
    made_before.warn_of_lost()
    with bounded(start_timeout):
        strategy = make(cluster)
    at_program_end(lambda failed: strategy.say_no_more())
    at_program_end(lambda failed: remote_functions.keep_all())  # Before the others: exit functions run in reverse order.
    trainer.install()
    optimizer.install()
    return strategy


def _is_enough(cluster: Cluster, missing: Collection[Task]) -> bool:
    """Returns whether the training can begin without these tasks: all ps are there, enough workers, and one whole group."""
    if cluster.min_workers is None or any(task.job != "worker" for task in missing):
        return not missing
    has_group = any(set(tasks).isdisjoint(missing) for tasks in cluster.group_tasks)
    return has_group and len(cluster.job("worker")) - len(missing) >= cluster.min_workers


def _absent(cluster: Cluster) -> list[Task]:
    """Returns the workers that have not started, where the training may begin without them."""
    if cluster.min_workers is None:
        return []
    workers = cluster.job("worker")
    answers = answering(workers, Deadline.after(PROBE_SECONDS))
    return [task for task in workers if task not in answers]


def _connect(cluster: Cluster, resolver: Any, seen_by_ps: Sequence[str], absent: Sequence[Task]) -> Any:
    """Connects to all tasks but those that are absent; returns TensorFlow's description of the whole cluster."""
    # Each task sees only the tasks that it exchanges tensors with: one that is down must not hold up the others.
    filters = ClusterDeviceFilters()
    for index, others in peers(cluster).items():
        group = [f"/job:worker/task:{other}" for other in sorted({index, *others})] if others else []
        if not cluster.job("ps"):  # They hold the parameters.
            group = ["/job:worker"]
        filters.set_device_filters("worker", index, ["/job:ps", "/job:chief", *group])
    for task in cluster.job("ps"):
        filters.set_device_filters("ps", task.index, list(seen_by_ps))
    # As in TensorFlow: one call to a worker at a time, so that its failure has one meaning, and synchronous executors.
    os.environ["TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE"] = "False"
    os.environ["TF_PS_DISABLE_ASYNC_EXECUTOR_GLOBALLY"] = "True"
    set_server_def_retries(CONNECTION_TRIES)
    spec = resolver.cluster_spec().as_dict()
    if absent:
        missing = {task.index for task in absent}
        spec["worker"] = {index: address for index, address in enumerate(spec["worker"]) if index not in missing}
    connect_to_cluster(
        tf.train.ClusterSpec(spec), job_name="chief", protocol=resolver.rpc_layer, cluster_device_filters=filters
    )
    tf.config.list_logical_devices()  # Connects now.
    server_def = copy.deepcopy(get_server_def())
    for job in server_def.cluster.job:
        if job.name == "worker":
            job.tasks.update({task.index: task.address for task in absent})
    return server_def
