"""Several tasks that all train, without ps: TensorFlow's MultiWorkerMirroredStrategy, with all of Keras 3.

Every chief and worker runs the whole program. Each task has all parameters and computes every step with the others, on its
shard of the batch. Rings of collectives add up the gradients, in buckets (`buckets.py`).
"""

import contextlib
import logging
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.cluster import Cluster, Task
from tfdist.errors import ClusterError
from tfdist.strategies.data_parallel import buckets, random_state, same_order
from tfdist.strategies.data_parallel.arrangement import Arrangement
from tfdist.strategies.data_parallel.devices import local_devices
from tfdist.strategies.data_parallel.extended import DataParallelExtended
from tfdist.strategies.data_parallel.lost_tasks import LostTasks
from tfdist.strategies.data_parallel.same_calls import SameCalls
from tfdist.strategies.data_parallel.task_groups import TaskGroups
from tfdist.strategies.keras_hooks import optimizer, trainer
from tfdist.strategies.keras_hooks.replicas.reduction import sent_as
from tfdist.strategies.keras_hooks.strategy_parts import calls_of
from tfdist.strategies.model_parallel.variables import current_column
from tfdist.strategies.private_api import MultiWorkerMirroredExtended
from tfdist.strategies.private_api.eager_context import configure_coordination, has_started, publish, published
from tfdist.strategies.private_api.overrides import overrides
from tfdist.strategies.private_api.part_of_tasks import use_workers
from tfdist.strategies.private_api.ring_sums import RingSums
from tfdist.strategies.private_api.symbolic_builds import in_symbolic_scope
from tfdist.strategies.runtime.connecting import bounded
from tfdist.strategies.runtime.deadline import Deadline
from tfdist.strategies.runtime.each_other import wait_for_each_other, wait_for_server
from tfdist.strategies.runtime.lost_timeout import CONNECTION_TIMES, lost_seconds
from tfdist.strategies.runtime.own_sockets import keep_connections, ports_of
from tfdist.strategies.runtime.program_end import at_program_end

REFUSAL_SECONDS = 5.0
"""How long the first task waits for the others to learn that their devices differ."""

LEADER_SECONDS = 10.0
"""How long the others wait for the server of the first task before they connect to it. Then TensorFlow itself waits."""

BROADCAST_BYTES = 2**29
"""How much of an initial value travels at once: a message of gRPC, and so TensorFlow's broadcast, ends at 2 GiB."""

CHUNK_BYTES = 2**20
"""Pieces in which a message of a collective holds its numbers. With TensorFlow's 4 KiB much of a sum was allocating them."""

_log = logging.getLogger("tfdist")


def create(cluster: Cluster, start_timeout: float) -> "MultiWorkerMirrored":
    """Waits for the other tasks and returns the strategy.

    TensorFlow would wait for them without a limit, in C++, and not name them. So the tasks find each other first, without it.

    Raises:
        StartTimeoutError: with the names of the tasks that did not start within `start_timeout` seconds.
        ClusterError: if this process is no task of the cluster, its tasks have different numbers of slots, or TensorFlow has
            already started.
    """
    tasks = cluster.training_tasks
    if cluster.task is None:
        raise cluster.source.error(
            f"under multi_worker_mirrored every task trains, and this process is none of {cluster.describe()}; run the program "
            "on every task: `tfdist run` with this description does, or start it with each task's TF_CONFIG"
        )
    if len({task.slots for task in tasks}) > 1:
        widths = ", ".join(f"{task.name} {task.slots}" for task in tasks)
        raise cluster.source.error(
            f"multi_worker_mirrored needs the same number of slots on every task, and the description has {widths}"
        )
    me = cluster.find(*cluster.task)
    if has_started():
        raise ClusterError(
            f"{me.name}: something has used TensorFlow before tfdist.strategy, and multi_worker_mirrored cannot be set up any "
            "more; call tfdist.strategy first, also before imports that compute with TensorFlow"
        )
    wait_for_each_other(me, tasks, start_timeout, _log.warning)
    if me is not tasks[0]:  # The leader of TensorFlow's coordination.
        wait_for_server(me, tasks[0], Deadline.after(LEADER_SECONDS))
    with bounded(start_timeout):
        strategy = MultiWorkerMirrored(cluster, me)
        _check_devices(strategy.devices, cluster, me, start_timeout)
        random_state.share(strategy)
        strategy.extended.has_variables = False  # That of the broadcast is gone.
    at_program_end(strategy.end)
    if len(tasks) > 1:
        same_order.install()
    trainer.install()
    optimizer.install()
    return strategy


def _check_devices(devices: list[str], cluster: Cluster, me: Task, timeout: float) -> None:
    """Raises ClusterError if the tasks do not have the same devices: TensorFlow's collectives would wait forever."""
    names = [task.name for task in cluster.training_tasks]
    publish(f"devices/{me.name}", f"{len(devices)} {devices[0].partition(':')[0]}")
    found = {name: published(f"devices/{name}", timeout) for name in names}
    if len(set(found.values())) > 1:
        try:
            publish(f"refused/{me.name}", "")
            for name in names if me.name == names[0] else []:  # The first task serves the values: it ends last.
                published(f"refused/{name}", REFUSAL_SECONDS)
        except tf.errors.OpError:
            pass  # A task has ended already.
        listed = ", ".join(f"{name} {each}" for name, each in found.items())
        raise cluster.source.error(
            f"multi_worker_mirrored needs the same devices on every task, and they see {listed}; describe equally many slots "
            "and GPUs for every task, or hide GPUs with CUDA_VISIBLE_DEVICES"
        )


class MultiWorkerMirrored(tf.distribute.MultiWorkerMirroredStrategy):
    """`tf.distribute.MultiWorkerMirroredStrategy` with hooks for Keras.

    Attributes:
        devices: the devices of this task's replicas.
        calls: what compares the calls of the tasks; None if there is one task.
    """

    def __init__(self, cluster: Cluster, me: Task) -> None:
        tasks = cluster.training_tasks
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster.cluster_spec()), task_type=me.job, task_id=me.index, rpc_layer=cluster.protocol
        )
        # For what is not summed in buckets: by default TensorFlow packs the tensors of an `all_reduce` into one collective.
        # Measured with 160 small gradients on two processes: 3.4 ms packed, 218 ms one by one (bytes_per_pack=1).
        options = tf.distribute.experimental.CommunicationOptions()
        self.devices = local_devices(me)
        names = [task.name for task in tasks]
        self.calls = SameCalls(me.name, names, LostTasks(me, tasks)) if len(tasks) > 1 else None
        seconds = CONNECTION_TIMES * lost_seconds()  # With once, a task whose link is back would be ended.
        configure_coordination(resolver.cluster_spec(), seconds)
        keep_connections(ports_of(cluster), seconds)
        # As MultiWorkerMirroredStrategy.__init__, with this task's own devices.
        tf.distribute.Strategy.__init__(self, _Extended(self, resolver, options, self.devices))
        worker_devices = self.extended.worker_devices

        def initialize(devices: list[str]) -> None:
            self.extended._tfdist_devices = [self.devices[worker_devices.index(device)] for device in devices]
            self.extended._initialize_strategy(resolver, devices=None)

        self._arrangement = Arrangement(self, worker_devices, initialize, tasks.index(me), len(tasks), cluster.partition)

    def end(self, failed: bool) -> None:
        """Ends what this task tells the others, at the end of its program."""
        if self.calls is not None:
            self.calls.end(failed)
        if self.extended.groups is not None and not failed:
            self.extended.groups.end()

    def scope(self) -> Any:
        """See `tf.distribute.Strategy.scope`. Follows `keras.distribution.set_distribution`."""
        self._arrangement.follow()
        return super().scope()


class _Extended(DataParallelExtended, MultiWorkerMirroredExtended):
    """TensorFlow's implementation with given devices. By default it takes all GPUs of the machine, or one CPU device."""

    def __init__(self, strategy: MultiWorkerMirrored, resolver: Any, options: Any, devices: list[str]) -> None:
        self._tfdist_devices = devices
        self._ring_sums: RingSums | None = None
        self.groups: TaskGroups | None = None
        super().__init__(strategy, cluster_resolver=resolver, communication_options=options)

    @overrides(MultiWorkerMirroredExtended)
    def _initialize_local_devices(self, cluster_resolver: Any, worker_device: str) -> tuple[tuple[str, ...], str]:
        names = tuple(f"{worker_device}/device:{device}" for device in self._tfdist_devices)
        return names, self._tfdist_devices[0].partition(":")[0]

    @overrides(MultiWorkerMirroredExtended)
    def _initialize_multi_worker(self, cluster_resolver: Any) -> None:
        super()._initialize_multi_worker(cluster_resolver)
        mesh = self.mesh
        if mesh is None or mesh.tasks == 1:
            return
        calls = self._container_strategy().calls
        self.groups = TaskGroups(self.worker_devices[0], self._id_in_cluster, self._num_workers, mesh.tasks, calls)
        use_workers(self, self.groups.replicas, self.groups.replica)

    @overrides(MultiWorkerMirroredExtended)
    def _update_config_proto(self, config_proto: Any) -> Any:
        config_proto = super()._update_config_proto(config_proto)
        config_proto.experimental.recv_buf_max_chunk = CHUNK_BYTES
        return config_proto

    @overrides(MultiWorkerMirroredExtended)
    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        if in_symbolic_scope():  # Keras builds a model in a graph that never runs, in which collectives take time to trace.
            return tf.convert_to_tensor(self._local_results(value)[0])
        with self._together():
            return super()._reduce_to(reduce_op, value, destinations, options)

    @overrides(MultiWorkerMirroredExtended)
    def _gather_to_implementation(self, value: Any, destinations: Any, axis: Any, options: Any) -> Any:
        with self._together():
            return super()._gather_to_implementation(value, destinations, axis, options)

    def _together(self) -> contextlib.AbstractContextManager[None]:
        """Surrounds a collective that runs now, such as that of a metric that is read; not one that is traced."""
        calls = calls_of(self._container_strategy())
        return calls.executing() if calls is not None and tf.executing_eagerly() else contextlib.nullcontext()

    def sums_in_buckets(self, values: list[Any]) -> list[Any]:
        """Returns the sum of each dense tensor over all replicas, in a function that a replica traces.

        Collectives without an order were tried on CPUs, with one device per task. Elsewhere there is one for all tensors.
        """
        if self.groups is not None:
            return self.groups.sums(values)
        is_tried = self._tfdist_devices == ["CPU:0"] and self.mesh is None
        if not is_tried or any(value.shape.num_elements() is None for value in values):
            options = tf.distribute.experimental.CommunicationOptions()
            return list(self._replica_ctx_all_reduce(tf.distribute.ReduceOp.SUM, values, options))
        if self._ring_sums is None:
            self._ring_sums = RingSums(self.worker_devices[0], self._num_workers)
        return buckets.sums(values, self._ring_sums.sum)

    @overrides(MultiWorkerMirroredExtended)
    def _get_variable_creator_initial_value(self, replica_id: int, device: str, primary_var: Any, **kwargs: Any) -> Any:
        """Lets a large initial value of the chief travel to the other tasks in pieces."""
        create_initial_value = super()._get_variable_creator_initial_value
        if replica_id:  # It copies the value of the first replica of its task.
            return create_initial_value(replica_id, device, primary_var, **kwargs)

        def received(piece: tf.Tensor) -> tf.Tensor:
            if self.groups is None:
                sent = {**kwargs, "initial_value": piece, "dtype": piece.dtype}
                with self._together():
                    return create_initial_value(replica_id, device, primary_var, **sent)()
            return piece if current_column() is not None else self.groups.of_chief(piece)  # `of_chief` has the whole variable.

        def initial_value() -> tf.Tensor:
            with tf.device(device):
                value = kwargs["initial_value"]
                value = value() if callable(value) else value
                value = tf.convert_to_tensor(getattr(value, "wrapped_value", value), kwargs.get("dtype"))
                sent = tf.cast(value, sent_as(value.dtype))
                return tf.cast(_in_pieces(received, sent), value.dtype)

        return initial_value

    @overrides(DataParallelExtended)
    def of_chief(self, value: tf.Tensor) -> tf.Tensor:
        assert self.groups is not None
        with self._together():
            return _in_pieces(self.groups.of_chief, value)

    @overrides(DataParallelExtended)
    def alike(self, value: tf.Tensor) -> tf.Tensor:
        return value if self.groups is None else self.groups.alike(value)

    @overrides(DataParallelExtended)
    def check_same(self, nested: Any) -> None:
        if self.groups is not None:
            self.groups.check_same(nested)


def _in_pieces(send: Callable[[tf.Tensor], tf.Tensor], value: tf.Tensor) -> tf.Tensor:
    """Returns what `send` returns for a tensor; a large one travels in pieces."""
    if not value.shape.is_fully_defined() or value.shape.num_elements() * value.dtype.size <= BROADCAST_BYTES:
        return send(value)
    length = BROADCAST_BYTES // value.dtype.size
    flat = tf.reshape(value, [-1])
    pieces = [send(flat[begin : begin + length]) for begin in range(0, flat.shape[0], length)]
    return tf.reshape(tf.concat(pieces, 0), value.shape)
