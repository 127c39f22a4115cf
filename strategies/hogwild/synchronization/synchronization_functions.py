"""Functions with which worker groups synchronize outside of their training steps."""

import enum
import itertools
from collections.abc import Callable, Collection
from typing import Any

import tensorflow as tf

from tfdist.strategies.coordinator.calls.tracing import tracing_lock
from tfdist.strategies.hogwild.synchronization import rounds
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
    """Traces each function once for groups that look alike."""

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
            if task is Task.PULL_ANEW:
                pull_anew(block, server_group, control.group)
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
            for change in (rounds.settle, rounds.leave, rounds.finish):
                self._on_all(change, block)

    def change_rounds(
        self,
        change: Callable[..., Any],
        block: ParameterBlock,
        rates: tuple[float, float],
        groups: Collection[int] = (),
        live: int = 1,
    ) -> None:
        """Tells the ps of groups, for the open rounds of a block. Call it in a thread that traces nothing.

        Args:
            change: `rounds.settle`, `rounds.leave` or `rounds.finish`.
            block: the block.
            rates: outer learning rate and outer momentum, for a round that ends.
            groups: numbers of the groups.
            live: number of groups that train.
        """
        numbers = chief_device.constant([_NO_GROUP, 0.0, live, 0, *rates, 0.0, 0, 0], tf.float64)
        chosen = [int(group in groups) for group in range(len(self._strategy.worker_groups))]
        self._on_all(change, block)(numbers, chief_device.constant(chosen, tf.int32))

    def _on_all(self, change: Callable[..., Any], block: ParameterBlock) -> Callable[..., Any]:
        """Returns a function of the numbers of a `Control`, and of groups, that changes the open rounds of all shards."""

        def run(numbers: Any, groups: Any) -> None:
            for shard in itertools.chain(*block.shards):
                self._on_shards.change_round(change, shard, numbers, groups)

        key = (change, block)
        if key not in self._functions:
            groups = tf.TensorSpec([len(self._strategy.worker_groups)], tf.int32)
            with tf.device(chief_device.DEVICE):
                self._functions[key] = tf.function(run, autograph=False).get_concrete_function(Control.SPEC, groups)
        return self._functions[key]
