"""`Shard`: a part of a block of parameters on one ps, with the state of the outer optimizer for it."""

import contextlib
import copy
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.coordinator.critical_section import critical_section
from tfdist.strategies.hogwild.synchronization import rounds
from tfdist.strategies.hogwild.synchronization.compression import Compressor, Message
from tfdist.strategies.hogwild.synchronization.control import Control
from tfdist.strategies.hogwild.synchronization.outer_optimizers import ARRAYS, OuterOptimizer, Scaled, Update
from tfdist.strategies.hogwild.synchronization.waiting import wait_while
from tfdist.strategies.named_variable import GivenVariable, NamedVariable
from tfdist.strategies.private_api import run_independently

QUORUM_SECONDS = 60.0
"""A round without a quorum ends after this time: training itself fails after as long without any complete group."""


class Shard:
    """A part of a block on one ps, with the state of the outer optimizer for it.

    Args:
        dtype: dtype of the values.
        size: number of values n.
        device: device of the ps.
        optimizer: the outer optimizer. None for values that are not synchronized.
        compressed_for: number of groups that receive compressed replies.

    Attributes:
        optimizer: as given.
        parameters: the values, [n].
        state: variables of the outer optimizer, by name.
        lock: name of the lock that updates hold; None if they need none.
        acknowledged: for each group the parameters as it has decoded them, [groups, n]; None without compression.
    """

    def __init__(
        self, dtype: tf.DType, size: int, device: str, optimizer: OuterOptimizer | None = None, compressed_for: int = 0
    ) -> None:
        self.optimizer, self._size = optimizer, size
        self.device = device
        self.parameters = NamedVariable("parameters", dtype, [size], device)
        initial = self._initial_state()
        self.state = {name: NamedVariable(name, value.dtype, value.shape, device) for name, value in initial.items()}
        reads = optimizer is not None and optimizer.reads_parameters
        self.lock: Any = f"{self.parameters.name}/lock" if self.state or reads else None
        self.acknowledged = NamedVariable("acknowledged", dtype, [compressed_for, size], device) if compressed_for else None

    def _initial_state(self) -> dict[str, Any]:
        return self.optimizer.init(self.parameters.shape, self.parameters.dtype) if self.optimizer else {}

    def initialize(self) -> None:
        """Assigns the initial values of everything but the parameters."""
        for name, value in self._initial_state().items():
            self.state[name].assign(value)
        if self.acknowledged is not None:
            self.acknowledged.assign(tf.zeros(self.acknowledged.shape, self.acknowledged.dtype))

    def resources(self) -> list[Any]:
        """Returns the variables and the lock as resources, for `given`. Use it in a function."""
        acknowledged = [] if self.acknowledged is None else [self.acknowledged]
        handles = [variable.handle() for variable in (self.parameters, *self.state.values(), *acknowledged)]
        if self.lock:
            with tf.device(self.device):
                handles.append(tf.raw_ops.MutexV2(shared_name=self.lock))
            run_independently(handles[-1].op)
        return handles

    def given(self, resources: Sequence[Any]) -> "Shard":
        """Returns a shard like this one, in a function that gets the `resources` of any such shard as arguments."""
        other, handles = copy.copy(self), iter(resources)

        def variable(own: NamedVariable) -> Any:
            return GivenVariable(next(handles), own.dtype)

        other.device = ""  # The operations run where the function does.
        other.parameters = variable(self.parameters)
        other.state = {name: variable(own) for name, own in self.state.items()}
        other.acknowledged = None if self.acknowledged is None else variable(self.acknowledged)
        other.lock = next(handles, None)
        return other

    def apply(self, push: Any, control: Control, replies: bool = True) -> tuple[Any, Any, Any]:
        """Updates the shard with what a group pushed, [n]. Runs on the ps, inside a `tf.function`.

        Returns:
            The reply to the group, [n], or None without `replies`; `Update.round`, zeros where the outer optimizer returns
            none; and `Update.awaited`.
        """
        optimizer, parameters = self.optimizer, self.parameters
        assert optimizer is not None
        with self._locked(push, *([] if control.replica is None else [control.replica])):
            value = parameters.read() if optimizer.reads_parameters else None
            update = optimizer.update(value, _Values(self.state), push, control)
            self._write(update, control)
            reply = parameters.read() if replies and update.reply is None else update.reply
        return reply, tf.zeros([2], tf.int64) if update.round is None else update.round, update.awaited

    def await_round(self, round_: Any, awaited: Any, control: Control) -> tuple[Any, Any]:
        """Waits, after `apply`, until the round of the push has ended, and ends it after the grace time. Runs on the ps.

        A late push does not wait, see rounds.py.

        Returns:
            The global parameters, [n]; and int64 [2]: the number of complete rounds, and 1 if they include the push, else 0.
        """
        optimizer, complete = self.optimizer, self.state["round"]
        assert optimizer is not None
        before = round_[0] - round_[1]
        waited = wait_while(lambda: complete.read_now() < awaited, control.grace, [round_])
        if optimizer.quorum > 1:
            pushed = self.state["pushed"]

            def is_short() -> Any:
                is_open = complete.read_now() < awaited
                return is_open & rounds.lacks_quorum(pushed.read_now(), optimizer.quorum, tf.abs(control.live), ARRAYS)

            waited = wait_while(is_short, QUORUM_SECONDS, [waited])

        def expire() -> Any:
            self._write(optimizer.expire(_Values(self.state), awaited, control), control)
            return True

        with self._locked(waited):
            expired = tf.cond(complete.read() < awaited, expire, lambda: False)
            with tf.control_dependencies([expired]):
                reply, now = self.parameters.read(), complete.read()
        return reply, tf.stack([now, tf.cast(now > before, tf.int64)])

    def change_round(self, change: Callable[..., Any], control: Control, groups: Any) -> None:
        """Changes the open round as the chief says. See `OuterOptimizer.change_round`. Runs on the ps."""
        assert self.optimizer is not None
        with self._locked():
            self._write(self.optimizer.change_round(_Values(self.state), change, groups, control), control)

    def news(self, parameters: Any, compressor: Compressor, group: Any) -> Message:
        """Encodes what a group does not have of the parameters. The rounding error stays for the next reply. Runs on the ps."""
        assert self.acknowledged is not None
        handle = self.acknowledged.handle()
        row = tf.raw_ops.ResourceGather(resource=handle, indices=group, dtype=parameters.dtype)
        row = tf.ensure_shape(row, [self._size])
        message = compressor.encode(tf.ensure_shape(parameters, row.shape) - row)
        row += compressor.decode(message, self._size)
        tf.raw_ops.ResourceScatterUpdate(resource=handle, indices=group[None], updates=row[None])
        return message

    def _locked(self, *arrived: Any) -> contextlib.AbstractContextManager[None]:
        if self.lock is None:
            return contextlib.nullcontext()
        return critical_section(self.lock, self.device, arrived, independent=True)

    def _write(self, update: Update, control: Control) -> None:
        for name, new in update.state.items():
            if isinstance(new, Scaled):
                self.state[name].add(*new)
            else:
                self.state[name].assign(new)
        if isinstance(update.increment, Scaled):
            self.parameters.add(*update.increment)
        elif update.increment is not None:
            self.parameters.assign_add(update.increment)
        optimizer = self.optimizer
        if optimizer is None or not optimizer.in_rounds:
            return

        def end() -> bool:
            optimizer.end_round(self.parameters, self.state, control)
            return True

        with tf.control_dependencies([tf.cond(update.round[1] > 0, end, lambda: False)]):
            self.state["round"].read()  # A critical section ends when its last read has.


class _Values(dict[str, Any]):
    """Values of variables, by name. Each is read when it is first used: a variable that is not read is changed in place."""

    def __init__(self, variables: dict[str, NamedVariable]) -> None:
        super().__init__()
        self._variables = variables

    def __missing__(self, name: str) -> Any:
        self[name] = self._variables[name].read()
        return self[name]
