"""Functions with which worker groups synchronize outside of their training steps."""

import concurrent.futures
import enum
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.coordinator.calls.tracing import tracing_lock
from tfdist.strategies.hogwild.synchronization.compression import COMPRESSORS
from tfdist.strategies.hogwild.synchronization.control import Control
from tfdist.strategies.hogwild.synchronization.global_parameters import ParameterBlock
from tfdist.strategies.hogwild.synchronization.local_variable import Kind
from tfdist.strategies.hogwild.synchronization.outer_optimizers import OuterOptimizer
from tfdist.strategies.hogwild.synchronization.push_pull import PushPull, pull_anew
from tfdist.strategies.hogwild.synchronization.shard_functions import ShardFunctions
from tfdist.strategies.runtime import chief_device

_NO_GROUP = -1


class Task(enum.Enum):
    """What a function does with one block."""

    PULL_ANEW = "pull anew"
    """Assigns the values of the shards to the local replica."""
    SYNCHRONIZE = "synchronize"
    """Pushes the progress and pulls the global parameters."""
    FLUSH = "flush"
    """Pushes all progress without compression. For blocks that keep no progress on the ps, returns the local replica."""


class SynchronizationFunctions:
    """Traces each function once for groups that look alike.

    Args:
        strategy: the Hogwild strategy.
        optimizer: the outer optimizer.
    """

    def __init__(self, strategy: Any, optimizer: OuterOptimizer) -> None:
        self._strategy = strategy
        self._functions: dict[Any, Callable[..., Any]] = {}
        self._on_shards = ShardFunctions(optimizer)

    def push_pull(self, block: ParameterBlock, server_group: int, control: Control) -> PushPull:
        """Returns a synchronization with the options of the strategy, to be traced into a group's function."""
        options = self._strategy.synchronization
        compressor = COMPRESSORS[options.compression if block.compressed else None]
        return PushPull(block, server_group, control, self._on_shards, compressor, options.topology)

    def call(self, task: Task, block: ParameterBlock, group: int, numbers: Any) -> Any:
        """Runs a task on the leader of a group.

        Args:
            task: the task.
            block: the block.
            group: number of the group.
            numbers: the numbers of its `Control`.

        Returns:
            The local replica, [size], where the task returns it, else a scalar.
        """
        strategy, device = self._strategy, self._strategy.worker_groups[group].devices[0]
        home, server_group = strategy.home_of(group), strategy.servers_of(group)
        key = (task, block, home, server_group)
        with tracing_lock:
            if key not in self._functions:

                def run(numbers: Any) -> Any:
                    return self._run(task, block, server_group, Control.of(numbers))

                with tf.device(device), strategy.extended.tracing([home]):
                    function = tf.function(run, autograph=False)
                    self._functions[key] = function.get_concrete_function(Control.SPEC)
            function = self._functions[key]
        with tf.device(device):
            return function(numbers)

    def forget(self, block: ParameterBlock) -> None:
        """Drops the functions for a block."""
        with tracing_lock:
            for key in [key for key in self._functions if block in key]:
                del self._functions[key]

    def _run(self, task: Task, block: ParameterBlock, server_group: int, control: Control) -> Any:
        with block.place():
            return self._run_at(task, block, server_group, control)

    def _run_at(self, task: Task, block: ParameterBlock, server_group: int, control: Control) -> Any:
        if task is Task.PULL_ANEW:
            pull_anew(block, server_group, control.group, len(self._strategy.worker_groups))
        elif block.kind is not Kind.SYNCHRONIZED or (task is Task.FLUSH and block.optimizer.pushes_parameters):
            return block.read_replica()
        else:
            # A flush starts the replica anew, so it would lose the rounding error of a compressor.
            exact = PushPull(block, server_group, control, self._on_shards)
            synchronization = exact if task is Task.FLUSH else self.push_pull(block, server_group, control)
            synchronization.push(waits=task is not Task.FLUSH)
            synchronization.pull()
        return tf.constant(0)

    def prepare_rounds(self, block: ParameterBlock) -> None:
        """Traces what the chief tells the ps about rounds of a block.

        TensorFlow sends each new function to all tasks, and waits for their answers with Python's lock. So it must not be new
        when a worker is stopped.
        """
        with tf.init_scope():
            for change in (self._on_shards.settle, self._on_shards.leave, self._on_shards.finish):
                self._on_all(change, block)

    def complete_round(self, block: ParameterBlock, rates: tuple[float, float]) -> None:
        """Ends the current round with these outer rates, although not all groups have pushed. Does nothing if none has."""
        # In a thread of its own, which traces nothing: `export` reads variables while it traces.
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(self._tell, self._on_shards.settle, block, [_NO_GROUP, 0.0, 1, 0, *rates]).result()

    def leave_rounds(self, block: ParameterBlock, group: int, live: int, rates: tuple[float, float]) -> None:
        """Makes a group absent from the rounds of a block. Call it in a thread that traces nothing.

        Args:
            block: the block.
            group: number of the group, which is lost.
            live: number of groups that train without it.
            rates: outer learning rate and outer momentum, for a round that ends.
        """
        self._tell(self._on_shards.leave, block, [group, 0.0, live, 0, *rates])

    def finish_rounds(self, block: ParameterBlock, pushing: Sequence[int], rates: tuple[float, float]) -> None:
        """Ends the current round at the end of an epoch if nobody can still push to it. Call it as `leave_rounds`.

        Args:
            block: the block.
            pushing: for each group 1 if it still makes a call, else 0.
            rates: as for `leave_rounds`.
        """
        self._tell(self._on_shards.finish, block, [_NO_GROUP, 0.0, 1, 0, *rates], pushing)

    def _tell(self, change: Callable[..., None], block: ParameterBlock, numbers: Sequence[float], *more: Sequence[int]) -> None:
        numbers = chief_device.constant([*numbers, 0.0, 0, 0], tf.float64)
        self._on_all(change, block)(numbers, *(chief_device.constant(each, tf.int32) for each in more))

    def _on_all(self, change: Callable[..., None], block: ParameterBlock) -> Callable[..., Any]:
        """Returns a function that changes all shards of a block. It takes what `change` takes after the shard."""

        def run(*values: Any) -> None:
            for shard in itertools.chain(*block.shards):
                change(shard, *values)

        key = (change, block)
        if key not in self._functions:
            specs = [Control.SPEC]
            if change == self._on_shards.finish:
                specs.append(tf.TensorSpec([len(self._strategy.worker_groups)], tf.int32))
            with tf.device(chief_device.DEVICE):
                self._functions[key] = tf.function(run, autograph=False).get_concrete_function(*specs)
        return self._functions[key]
