"""What Keras calls as `train_function` and `test_function` under Hogwild: groups train copies of their own, period by period.

A group gets the batches of a whole sync period with one call, fewer in short epochs. Its function begins the exchange with the
centre, makes the local steps while that is under way, and takes the answer over at the end. It tells the logs of each step, so
that Keras' callbacks see them as ever.
"""

import functools
import itertools
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.coordinator import chief_device
from tfdist.strategies.coordinator.batch_packing import can_pack
from tfdist.strategies.coordinator.group_function import GroupFunction, rows_of, tracing_lock
from tfdist.strategies.coordinator.training_loop import TrainingLoop, runs_of_equal_shapes
from tfdist.strategies.coordinator.worker_groups import WorkerGroup
from tfdist.strategies.hogwild.global_parameters import ParameterBlock
from tfdist.strategies.hogwild.local_variable import Kind, LocalVariable
from tfdist.strategies.hogwild.outer_optimizers import Control
from tfdist.strategies.hogwild.push_pull import PushPull
from tfdist.strategies.hogwild.schedules import is_due, steps_per_call
from tfdist.strategies.hogwild.step_counters import counters_of, name_of, numbered, steps_of
from tfdist.strategies.inputs.input_feed import InputFeed
from tfdist.strategies.inputs.worker_input import WorkerBatch, WorkerInput, WorkerInputIterator
from tfdist.strategies.keras_hooks.optimizer import with_inner
from tfdist.strategies.parameter_server.variables import unwrapped

TURN_SECONDS = 10.0
"""So long a step that one group has to do waits for that group, before any other may do it: that one may be gone."""

PAUSE_SECONDS = 0.001
"""Between two times that all groups are asked for such a step: the one that has to do it may be busy with its last one."""


class InnerSteps(GroupFunction):
    """A step of a model on the groups' own copies.

    Args:
        args: as `GroupStep`'s.
        trains: whether it changes the copies.
        gives_each: whether the function gives what `collect` makes of each step, stacked; else of its only one.
    """

    arguments = (Control.SPEC,)
    no_xla = "XLA cannot compile a step that finds its variables by their names"

    def __init__(self, *args: Any, trains: bool = False, gives_each: bool = False) -> None:
        super().__init__(*args)
        self._trains = trains
        self._gives_each = gives_each
        self._replicas = self._strategy.local_replicas
        self._rates = self._strategy.synchronization.outer_rates(name_of(getattr(self._model, "optimizer", None)))
        self._blocks: dict[ParameterBlock, None] = {}
        self._exchanged: list[ParameterBlock] = []
        self._since = [0] * len(self._strategy.worker_groups)  # Local steps of each group since its last exchange.
        self._turns = [0] * len(self._strategy.worker_groups)
        if trains:  # As long as the model is trained, also from a file.
            period = self._replicas.position_of(self._model)
            self._since, self._turns = period.since, period.turns
        # Copies that several groups train at once do not tell what one has counted.
        self._counters = counters_of(self._model) if trains and not self._strategy.shares_replicas else []
        self._other_counters: dict[int, LocalVariable] = {}

    def prepare(
        self, batches: list[Any], element_spec: Any = None, variant: Any = None, period: int | None = None
    ) -> Callable[..., Any]:
        """As `GroupStep.prepare`; what it returns takes the number of the group, then that of the first step.

        Args:
            batches: as there, or `OnWorker`s, which the group reads itself.
            element_spec: as there.
            variant: not used.
            period: updates between two exchanges, where that is not the strategy's.
        """
        del variant
        self._register_weights()
        data = batches[0].data if isinstance(batches[0], WorkerBatch) else None
        # Whoever has about a period's batches exchanges while it computes them; with fewer, before them, when that is due.
        period = period or self._strategy.steps_per_exchange
        overlaps = self._trains and is_due(len(batches), len(batches), period) and self._strategy.synchronization.overlap
        turns: list[Any] = [(number,) for number in range(len(self._exchanged))] if overlaps else [()]
        if overlaps and self._strategy.synchronization.fragments == 1:
            turns = [tuple(range(len(self._exchanged)))]
        with self._replicas.recording_use() as used:
            without = [()] if overlaps and self._strategy.shares_replicas else []
            calls = [self._call(batches, element_spec, turn, data) for turn in turns + without]
        self._register_weights()  # The first call of a model may have built it.
        self._note(used)
        examples = float(len(batches) * (rows_of(data.example() if data else batches[0]) or 1))

        def run(group: int, step: int) -> Any:
            owner = self._replicas.owners[group]
            exchanges = overlaps and owner == group  # Of the groups that train the same copies, one does.
            try:
                self._replicas.refresh(group, list(self._blocks))
                if self._trains:
                    if not overlaps and owner == group and is_due(self._since[owner], len(batches), period):
                        self._exchange(group)
                    for block in self._blocks:
                        if block in self._exchanged or block.kind is not Kind.EXCHANGED:
                            block.dirty.add(owner)
                if data is not None:
                    data.begin(group, self._replicas.incarnation_of(group), self._strategy.worker_groups[group].devices[0])
                call = calls[-1]
                if exchanges:
                    call = calls[self._turns[group] % len(turns)]
                    self._turns[group] += 1
                    self._replicas.count_push(group)
                if self._trains:
                    self._replicas.count_examples(group, examples)
                self._since[owner] = len(batches) + (0 if exchanges else self._since[owner])
                return call(group, self._replicas.control(group, self._rates, step))
            except Exception:
                self._replicas.mark_lost(owner)
                raise

        return run

    def _call(self, batches: list[Any], element_spec: Any, turn: Any, data: WorkerInput | None) -> Callable[..., Any]:
        if data is None:
            return super().prepare(batches, element_spec, turn)
        functions = [self._trace_on_workers(group, turn, data) for group in self._strategy.worker_groups]
        return lambda group, numbers: functions[group](chief_device.constant(len(batches), tf.int32), numbers)

    def _trace_on_workers(self, group: WorkerGroup, turn: Any, data: WorkerInput) -> Any:
        """The function that reads its batches itself."""
        turn, servers, home = self._variant_of(group, turn)
        devices = group.traced_devices
        key = (turn, servers, home, devices, data)

        def on_worker(count: Any, numbers: Any) -> Any:
            read = data.reader()
            with self._strategy.extended.home(home):
                return self._run_at(turn, servers, devices, lambda _: read(), count, Control.of(numbers))

        if key not in self._functions:
            with tracing_lock, tf.device(group.devices[0]), self._strategy.extended.tracing(devices):
                function = tf.function(on_worker, autograph=False)
                self._functions[key] = function.get_concrete_function(tf.TensorSpec([], tf.int32), *self.arguments)
        return self._functions[key]

    def _exchange(self, group: int) -> None:
        blocks = self._exchanged
        if self._strategy.synchronization.fragments > 1:
            blocks = [blocks[self._turns[group] % len(blocks)]]
        self._turns[group] += 1
        self._since[group] = 0
        for block in blocks:
            self._replicas.synchronize_now(block, group)
            self._replicas.wait_for_round(block, group)

    def _register_weights(self) -> None:
        """Puts the model's weights into the centre. Frozen ones are kept apart and not exchanged, as nothing changes them."""
        if self._exchanged or not self._model.built:
            return
        weights = {id(v): v for v in (unwrapped(weight._value) for weight in self._model.weights)}
        floating = [v for v in weights.values() if isinstance(v, LocalVariable) and v.dtype.is_floating]
        trained = {id(unwrapped(weight._value)) for weight in self._model.trainable_weights}
        active = [v for v in floating if id(v) in trained or not v.trainable]
        self._replicas.register(active, Kind.EXCHANGED, self._strategy.synchronization.fragments)
        self._replicas.register(floating, Kind.EXCHANGED)
        self._exchanged = list(dict.fromkeys(v.block for v in active))
        for block in self._exchanged:
            block.rates = self._rates
        self._note(floating)

    def _note(self, used: list[LocalVariable]) -> None:
        self._replicas.register(used)
        self._blocks.update(dict.fromkeys(v.block for v in used if v.block is not None))
        if self._trains:
            known = {id(v) for v in self._counters}
            self._other_counters.update({id(v): v for v in used if v.kind is Kind.COUNTER and id(v) not in known})

    def counted(self, rows: list[Any]) -> list[tuple[LocalVariable, int]]:
        """How far the steps that gave `rows` have moved the counters of updates; one per step where that is not known."""
        made = [(v, round(sum(row[number - len(self._counters)] for row in rows))) for number, v in enumerate(self._counters)]
        return made + [(v, len(rows)) for v in self._other_counters.values()]

    def _variant_of(self, group: WorkerGroup, variant: Any) -> Any:
        return variant, self._strategy.servers_of(group.number), self._strategy.home_of(group.number)

    def _run(self, variant: Any, devices: tuple[str, ...], data: Any, several: bool, numbers: Any = None) -> Any:
        turn, servers, home = variant
        count = tf.shape(tf.nest.flatten(data)[0])[0] if several else None

        def batch(number: Any) -> Any:
            return tf.nest.map_structure(lambda value: value[number], data) if several else data

        with self._strategy.extended.home(home):
            return self._run_at(turn, servers, devices, batch, count, Control.of(numbers))

    def _run_at(
        self,
        turn: tuple[int, ...],
        servers: int,
        devices: tuple[str, ...],
        batch: Callable[[Any], Any],
        count: Any,
        control: Control,
    ) -> Any:
        """Steps on `batch(number)` for each number below `count`, with the exchanges beside them; one where it is None."""
        exchanges = [self._replicas.push_pull(self._exchanged[number], servers, control) for number in turn]
        for exchange in exchanges:
            exchange.begin()
        if count is not None:
            return self._loop(devices, batch, count, control, exchanges)
        given = self._numbered_step(devices, batch(0), control.step)
        for exchange in exchanges:
            exchange.end()
        return given[None] if self._gives_each else given

    def _loop(
        self,
        devices: tuple[str, ...],
        batch: Callable[[Any], Any],
        count: Any,
        control: Control,
        exchanges: list[PushPull],
    ) -> Any:
        def body(number: Any, taken: list[Any], given: Any) -> Any:
            vector = self._numbered_step(devices, batch(number), control.step + tf.cast(number, tf.int64))
            with tf.control_dependencies([vector]):
                taken = [exchange.take_over_if_there(is_taken) for exchange, is_taken in zip(exchanges, taken, strict=True)]
            return number + 1, taken, given.write(number, vector)

        rows = tf.TensorArray(tf.float64, size=count, infer_shape=False, element_shape=[None])
        with tf.control_dependencies([exchange.announce() for exchange in exchanges]):
            begin = (tf.constant(0), [tf.constant(False)] * len(exchanges), rows)
            _, taken, rows = tf.while_loop(lambda number, *_: number < count, body, begin, parallel_iterations=1)
        for exchange, is_taken in zip(exchanges, taken, strict=True):
            exchange.end(is_taken)
        return rows.stack()

    def _numbered_step(self, devices: tuple[str, ...], batch: Any, number: Any) -> Any:
        own = {id(each) for each in with_inner(getattr(self._model, "optimizer", None))}
        groups = len(self._strategy.worker_groups)

        def number_for(optimizer: Any) -> Any:
            # Others may make more updates than steps, or fewer. What the group has counted is its part.
            return number if id(optimizer) in own else optimizer._iterations * groups

        before = [counter.value() for counter in self._counters]
        with numbered(number_for):
            outputs, shares = self._one_step(devices, batch)
        after = self._by_replica(devices, self._strategy.run(self._after))
        given = self._collect(outputs, after, shares)
        if not before:
            return given
        made = [counter.value() - begun for counter, begun in zip(self._counters, before, strict=True)]
        return tf.concat([given, tf.cast(tf.stack(made), tf.float64)], axis=0)


def can_be_cut(batches: list[Any]) -> bool:
    """Whether some of these batches can go to the function that all of them go to."""
    return isinstance(batches[0], WorkerBatch) or can_pack(tf.nest.flatten(batches[0]))


class InnerTrainingLoop(TrainingLoop):
    """As `KerasSteps`, with up to as many batches to a call as a sync period has steps, and the logs of each of them."""

    def __init__(self, strategy: Any, model: Any, step: Callable[..., Any], in_flight: Any, trains: bool) -> None:
        self._trains = trains
        self._step: InnerSteps
        self._strategy = strategy
        self._replicas = strategy.local_replicas
        self._length = strategy.steps_per_exchange
        self._ready: deque[Any] = deque()  # Logs of executions that Keras has not asked for yet.
        self._steps_done = 0
        self._next_step: int | None = None
        self._adaptive = strategy.synchronization.adaptive
        self._speeds = strategy.speeds
        self._takes_any = False
        super().__init__(strategy, model, step, in_flight)

    def _make_step(self, *args: Any) -> InnerSteps:
        return InnerSteps(*args, trains=self._trains, gives_each=True)

    def __call__(self, iterator: Any) -> Any:
        """See `KerasSteps`: returns logs once per `steps_per_execution` steps that are done."""
        if not isinstance(iterator, InputFeed | WorkerInputIterator):
            return super().__call__(iterator)
        if not self._ready and not len(self._executions):
            iterator.begin_epoch_if_over()
            if self._trains:
                self._replicas.train_alone(False)
        steps = steps_per_call(iterator.owner.batches_per_epoch, len(self._strategy.worker_groups), self._length)
        while not self._ready:
            while len(self._executions) < self._executions.limit:
                batches = iterator.take(steps)
                if not batches:
                    break
                self._schedule(batches, iterator.owner.element_spec)
            done = self._executions.wait_for_any()
            if done is not None:
                self._done(done)
            elif self._steps_done:  # The last execution of an epoch may be shorter.
                self._steps_done = 0
                self._ready.append(self.logs)
            else:
                raise StopIteration
        return self._ready.popleft()

    def _one_batch(self, batch: Any) -> Any:
        """`train_on_batch` and `test_on_batch`. No group trains beside the one that does: it trains as one process would."""
        if not self._trains:
            return super()._one_batch(batch)
        self._replicas.train_alone(True)
        latest = time.monotonic() + TURN_SECONDS
        for number in itertools.count(1):
            self._next_step = None
            self._takes_any = self._replicas.has_lost_alone() or time.monotonic() > latest
            if self._takes_any:
                self._replicas.synchronize_groups()  # Whoever does it goes on from what that one has done.
            execution = self._schedule([batch])
            if self._executions.result_of(execution):
                return self._done(execution)
            if number % len(self._strategy.worker_groups) == 0:
                time.sleep(PAUSE_SECONDS)

    def begin(self) -> None:
        """See `KerasSteps.begin`."""
        super().begin()
        self._ready.clear()
        self._steps_done = 0
        self._next_step = None

    def finish(self) -> Any:
        """See `KerasSteps.finish`."""
        logs = super().finish()
        self._ready.clear()
        self._steps_done = 0
        return logs

    def _schedule(self, batches: list[Any], element_spec: Any = None) -> Any:
        self._replicas.publish()
        if not self._trains:
            self._replicas.synchronize_groups()
        return super()._schedule(batches, element_spec)

    def _calls(self, batches: list[Any], element_spec: Any) -> list[tuple[Callable[[int], Any], int]]:
        if self._next_step is None:
            self._next_step = steps_of(self._model.optimizer) if self._trains else 0
        calls: list[Any] = []
        for run in [batches] if isinstance(batches[0], WorkerBatch) else runs_of_equal_shapes(batches):
            call = self._step.prepare(run, element_spec)
            if self._trains and self._adaptive and len(run) > 1 and can_be_cut(run):
                # Traced here: a group's thread has to be free to make what tracing needs on its worker.
                for piece in (run, run[:1]):
                    self._step.prepare(piece, element_spec, period=1)
                call = functools.partial(self._piece_by_piece, run, element_spec)
            calls.append((functools.partial(call, step=self._next_step), len(run)))
            self._next_step += len(run)
        return calls

    def _piece_by_piece(self, batches: list[Any], element_spec: Any, group: int, step: int) -> Any:
        """Lets the group exchange after as many steps as suit its speed; in its thread."""
        outputs = []
        while batches:
            length = self._speeds.period(group, self._length)
            piece, batches = batches[:length], batches[length:]
            call = self._step.prepare(piece, element_spec, period=length)
            with self._speeds.measured(group, len(piece)):
                outputs.append(tf.nest.map_structure(tf.identity, call(group, step=step)))
            step += len(piece)
        return tf.concat(outputs, axis=0)

    def _run_calls(self, group: int, calls: list[Any]) -> Any:
        """Several groups wait for what is to be done; what they give is empty where another one has to do it."""
        if self._trains and not self._replicas.may_take(group, self._takes_any):
            return []
        return [call(group) for call, _ in calls]

    def _done(self, execution: Any) -> Any:
        rows = [row for stacked in execution.result for row in stacked.numpy()]
        for row in rows:
            self._steps_done += 1
            is_reported = self._steps_done >= self._model.steps_per_execution
            if is_reported or row is rows[-1]:  # A row has all that the group has done up to it.
                self._note(execution.group, row)
            if is_reported:
                self._steps_done = 0
                self._ready.append(self.logs)
        self._replicas.count_updates(self._step.counted(rows))
        return self.logs
