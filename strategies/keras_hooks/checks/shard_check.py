"""Warns of a training step that replicas, each with its shard of a batch, compute differently from one process.

A replica's result is a mean over the examples of its shard. The weighted sum of the replicas' results is that of the whole
batch if every example adds its own part. That fails if examples are compared with each other (contrastive losses), if the step
computes with its gradients, or if it adds up over the batch.

Keras says nothing of a user's own code. So the step is tried out, before the first update, on a few examples of the first
batch. Nothing is updated or assigned. With two parts a and b of these examples, and ab for a batch of both:

* every example adds its own part if step(ab) + step(ba) = step(aa) + step(bb), where all four have the same positions, sizes
  and random numbers. The same is tried with examples that are shortened as by padding;
* the step is a mean if step(aa) = step(a). Of a step that draws random numbers only the norms are compared.

What counts nothing in the first step may count later. `try_again` looks for that.
"""

import contextlib
import dataclasses
import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.strategies.keras_hooks.checks import growth, log_trial, metric_trial, step_warnings, update_sources
from tfdist.strategies.keras_hooks.checks.examples_in_branches import REASON, decides_by_examples
from tfdist.strategies.keras_hooks.checks.outcome import Outcome
from tfdist.strategies.keras_hooks.checks.own_code import (
    has_own_code,
    has_own_loss,
    has_own_prediction,
    has_own_step,
    has_own_test,
    has_own_test_step,
    has_own_updates,
    is_known,
    may_compare,
)
from tfdist.strategies.keras_hooks.checks.step_trial import (
    LEAST_CHANGE,
    LEAST_NORM,
    OUTPUT,
    are_dense,
    assigned_variables,
    changing_operations,
    compared,
    compute_loss,
    compute_outputs,
    count,
    joined,
    large,
    mapped,
    nodes_of,
    parts,
    recorded_outputs,
    released,
    summary,
    variables_of,
    what_changes,
)
from tfdist.strategies.keras_hooks.checks.traced_step import TracedStep
from tfdist.strategies.keras_hooks.replicas import added_losses
from tfdist.strategies.keras_hooks.replicas.added_losses import AddedLosses, sums_among
from tfdist.strategies.keras_hooks.replicas.replica_context import Replica, entered
from tfdist.strategies.private_api.user_functions import without_optionals

_TOLERANCE, _GPU_TOLERANCE, _HALF_TOLERANCE = 0.0005, 0.005, 0.05
"""Differences that are more than rounding, of the norm of what is updated: in float32, on GPUs also as TF32, and in half
precision. Measured on a CPU: 1e-6 and less where examples add up, 0.001 to 2 where they are compared."""

_STILL_PRECISE = 0.1
"""In float32: later updates become small, and rounding errors do not. They have to be so much of the first ones."""

_SUM_GROWTH, _DRAWS, _MORE_DRAWS = 1.2, 8, 64
"""With random numbers: the norm of a mean of twice as many examples is 0.7 to 1 times as large, and 0.7 if all of it is random.
That of a sum is 1.4 to 2 times as large. Both are measured in so many draws, and if that looks like a sum, in more. Measured
with half of 16 units dropped out: 0.90 +- 0.24 in 8 draws, 0.86 +- 0.07 in 64."""

_CLIPS = ("clip_by_global_norm", "clip_by_norm")
"""Names that TensorFlow gives the operations of functions that clip."""

_log = logging.getLogger("tfdist")
_trained: weakref.WeakSet[Any] = weakref.WeakSet()
"""Models whose training was tried out: a second warning would say the same of their outputs."""


class ShardCheck:
    """The check of one model. It is made once.

    Args:
        model: the Keras model.
        step: its `train_step`, `test_step` or `predict_step`.
        strategy: the strategy.
        replicas: how many replicas share a batch.
        as_replica: returns a context in which the step is traced as that of one replica of this process.
        of_chief: takes numbers and returns those of the first task; all tasks call it.
        warns: whether this task finds out what is to be said. All have to try the step out: a collective may be traced.
        logs: whether it says that.
    """

    def __init__(
        self,
        model: Any,
        step: Callable[[Any], Any],
        strategy: Any,
        replicas: int,
        as_replica: Callable[[], contextlib.AbstractContextManager[Any]],
        of_chief: Callable[[Any], Any] = lambda numbers: numbers,
        warns: bool = True,
        logs: bool = True,
    ) -> None:
        self._model, self._strategy, self._replicas = model, strategy, replicas
        self._warns, self._logs = warns, logs
        self._warnings = step_warnings.StepWarnings(model, replicas, logs)
        self._trains, self._predicts = step == model.train_step, step == model.predict_step
        self._call = "predict" if self._predicts else "evaluate"
        self._step = without_optionals(model, step)
        self._as_replica, self._of_chief = as_replica, of_chief
        has_own = has_own_code if self._trains else has_own_prediction if self._predicts else has_own_test
        # Whether the outputs are tried out.
        returns = not self._trains and (self._predicts or not has_own_test_step(model))
        self._returns = returns and model not in _trained and may_compare(model)
        self._is_own_test = has_own(model)
        is_own = self._is_own_test or self._returns
        self.is_open = is_own and not model.run_eagerly  # Code that runs eagerly counts its own calls, also a trial.
        """Whether the check is still to be made."""
        if is_own and model.run_eagerly:
            self._warnings.unchecked("its code runs eagerly (run_eagerly=True)")
        self.unbuilt: Sequence[tuple[Any, Any]] = ()
        """The updates of optimizers that have no variables yet, as (optimizer, variables), once the step was traced."""
        # Whether the gradients are needed. Else the outputs and the loss tell enough.
        self._is_whole = not self._trains or has_own_step(model) or has_own_updates(model) or has_own_loss(model)
        self._has_weights = False
        self._traced: TracedStep | None = None
        self._largest = 0.0  # Of the norms of the updates in the first trial.
        self._later: tuple[TracedStep, Any, float] | None = None  # For more trials: the step, parts of a batch, and that norm.
        self._calls = 0  # Of `try_again`.

    def run(self, examples: Any, size: int) -> None:
        """Tries the step out, and logs a warning that names the model if replicas compute another update than one process.

        A step that changes anything but Keras variables, or whose random numbers differ from call to call, cannot be tried out,
        and a warning says so; nor can one whose batches are not dense tensors. Batches of one example are skipped.

        Args:
            examples: examples of the first batch, nested tensors.
            size: how many examples the whole batch has.
        """
        self.is_open = False
        if self._trains:
            _trained.add(self._model)
        self._has_weights = isinstance(examples, tuple) and len(examples) == 3
        halves = parts(examples)
        if self._trains and self._warns and not are_dense(examples):
            self._warnings.unchecked(step_warnings.NOT_DENSE)
        outcome = self._outcome(halves, size)
        if self._trains and any(not is_known(type(layer)) for layer in self._model._flatten_layers()):
            outcome = self._with_sums_in_full(outcome, halves, size)
        if self._warns and outcome.reason is not None:
            self._warnings.differs(outcome.reason) if self._trains else self._warnings.outputs_differ(self._call)
        elif self._warns and outcome.integer is not None:
            self._warnings.differs(step_warnings.assigns(self._model, outcome.integer))
        outcome.metrics.apply(self._of_chief, self._logs)
        step, self._traced = self._traced, None  # Graphs of branches are as large as that of the step.
        if step is not None and self._trains and outcome.is_known:
            is_weighted = metric_trial.reads_another(step.function, self._model, self._strategy)
            self._later = (dataclasses.replace(step, branches=()), halves, self._largest) if is_weighted else None
        if self._predicts:
            return
        log_trial.count_in_full(self._model, self._trains, log_trial.agreed(outcome.sum_logs, self._of_chief))
        if self._warns and self._logs:
            log_trial.warn(self._model, outcome.other_logs, self._replicas)

    def try_again(self) -> None:
        """Tries the step out again at the first call, the second, the 4th and so on, if it reads a number that is no metric's.

        Such a number may be the weight of a loss that compares examples, which grows from 0. All tasks call this as often.
        """
        self._calls += 1
        if self._later is None or self._calls & (self._calls - 1):
            return
        step, (first, second), largest = self._later
        try:
            differences, norms, _ = compared(step.function, first, second, self._has_weights)
        except Exception as error:  # As in `_outcome`.
            _log.debug("the step of %s was not tried out again: %r", self._model.name, error)
            self._later = None
            return
        is_precise = self._tolerance == _TOLERANCE
        if norms[: len(step.names)].max(initial=0) < (_STILL_PRECISE if is_precise else 1.0) * largest:
            return
        if self._warns and self._large(step, differences, norms):
            self._warnings.differs(step_warnings.compares(self._has_weights))

    def _with_sums_in_full(self, outcome: Outcome, halves: Any, size: int) -> Outcome:
        """Lets sums that layers add as losses count in full, if the step is a mean apart from them.

        A `train_step` may do something else than add them up. So it is tried out again. All tasks call this.

        Returns:
            What is known of the step then.
        """
        added = AddedLosses(self._model, self._of_chief)
        is_wanted = outcome.reason is not None or not has_own_step(self._model)
        known = outcome
        if sums := added.agreed(outcome.sums if is_wanted else ()):
            with_means = self._outcome(halves, size, as_means=sums)
            if sums := added.agreed(sums if with_means.is_known and with_means.reason is None else ()):
                known = with_means
        if outcome.is_known:
            added.add_in_full(sums)
        return known

    def _outcome(self, halves: Any, size: int, as_means: frozenset[int] = frozenset()) -> Outcome:
        """Tries the step out.

        Args:
            halves: two parts of a batch; None if there are none.
            size: how many examples the whole batch has.
            as_means: the ids of layers whose added losses are divided by the number of examples.
        """
        try:
            if halves is not None and (outcome := self._try_out(halves[0], halves[1], as_means)) is not None:
                return outcome
        except Exception as error:  # The real step shows the user's errors; an answer here is only wanted if there is one.
            _log.debug("the step of %s was not tried out on parts of a batch: %r", self._model.name, error)
            if self._traced is not None and self._warns and _works_with(self._traced, halves[0], size):
                self._warnings.size_in_step(size)
        return Outcome(metric_trial.Judgement(self._model, self._replicas))

    def _try_out(self, first: Any, second: Any, as_means: frozenset[int]) -> Outcome | None:
        """Returns what is known of the step; None if nothing is."""
        step = self._traced = self._trace(first, as_means)
        if not self._is_whole and not all(is_known(type(layer)) for layer in step.adding):
            # At the start such a loss, as that of a router, may be alike for all examples. Its gradients are not.
            self._is_whole = True
            step = self._traced = self._trace(first, as_means)
        self.unbuilt, function = step.unbuilt, step.function
        nodes, updates = nodes_of(function), len(step.names)
        if changes := changing_operations(nodes):
            if self._trains and self._warns and not as_means:
                self._warnings.unchecked(what_changes(function, changes, updates))
            elif self._warns and not self._trains and (names := assigned_variables(function)):
                self._warnings.variable_of_tests(self._call, names[0])
            return None
        differences, norms, aa = compared(function, first, second, self._has_weights)
        self._largest = norms[:updates].max(initial=0)
        a = [value.numpy() for value in function(first, tf.constant(0))]
        is_random = any("Random" in node.op for node in nodes)
        outcome = Outcome(metric_trial.Judgement(self._model, self._replicas), is_known=True)
        if self._trains and self._warns and updates:
            if self._large(step, differences, norms):
                outcome.reason = step_warnings.compares(self._has_weights)
            elif is_random:  # The numbers for 4 and for 8 examples differ.
                outcome.reason = _why_it_grows(step, joined(first, second), nodes)
            else:
                changed = self._large(step, aa[0] - a[0], (aa[1] + a[1]) / 2)
                outcome.reason = self._why_no_mean(step, changed, nodes)
            outcome.reason = outcome.reason or step.shown
            arguments = sum(leaf is not None for leaf in tf.nest.flatten(first))
            if outcome.reason is None and not as_means and decides_by_examples(function, arguments, step.branches):
                self._warnings.unchecked(REASON)
            elif outcome.reason is None and not as_means and step.unseen is not None:
                self._warnings.unchecked(step_warnings.assigns_in_branch(step.unseen))
        elif self._warns and updates and self._large(step, differences, norms):
            outcome.reason = step_warnings.compares(self._has_weights)
        outcome.integer = step.integer
        if len(norms) > updates:
            self._judge_others(outcome, step, joined(first, first), differences, norms, is_random)
        return outcome

    @property
    def _tolerance(self) -> float:
        is_half = "16" in keras.backend.standardize_dtype(self._model.compute_dtype)
        return _HALF_TOLERANCE if is_half else _GPU_TOLERANCE if tf.config.list_logical_devices("GPU") else _TOLERANCE

    def _large(self, step: TracedStep, differences: np.ndarray, norms: np.ndarray) -> list[int]:
        """Returns the numbers of the updates that differ. See `large`."""
        updates = len(step.names)
        least = np.array([LEAST_NORM if name in (None, OUTPUT) else LEAST_CHANGE for name in step.names])
        return large(differences[:updates], norms[:updates], self._tolerance, least)

    def _judge_others(
        self, outcome: Outcome, step: TracedStep, batch: Any, differences: Any, norms: Any, is_random: bool
    ) -> None:
        """Judges what the step gives besides its updates: what it adds to metrics, losses that layers add, and logs."""
        updates, end, tolerance = len(step.names), len(norms), self._tolerance
        tried = step.growth(batch, range(_DRAWS if is_random else 1), slice(updates, end))
        pairs = zip(tried, step.growths, strict=True)  # With random numbers a growth that is measured is not exact.
        times = [known if one is None or (is_random and known) else one for one, known in pairs]
        compares = [bool(large(differences[[place]], norms[[place]], tolerance)) for place in range(updates, end)]
        counted, told = len(step.counted), outcome.reason is not None
        added = counted + len(step.adding)
        outcome.sums = sums_among(step.adding, times[counted:added], compares[counted:added])
        if not is_random:  # A sum grows to twice as much, a mean not at all.
            odd = (g is not None and min(abs(g - 1), abs(g - 2)) > 2 * tolerance for g in times)
            compares = [one or other for one, other in zip(compares, odd, strict=True)]
        outcome.sum_logs = log_trial.sums_among(step.log_names, times[added:], compares[added:])
        named = zip(step.log_names, compares[added:], strict=True)
        outcome.other_logs = [name for name, depends in named if depends and not told]
        compares = [depends and not told for depends in compares[:counted]]
        outcome.metrics.look_at(step.counted, step.settled, compares, times[:counted])

    def _why_no_mean(self, step: TracedStep, places: Sequence[int], nodes: Sequence[Any]) -> str | None:
        """Returns why a step differs that updates or assigns at these places what is no mean; None if it does not."""
        names = [step.names[place] for place in places]
        if assigned := [name for name in names if name not in (None, OUTPUT)]:
            return step_warnings.assigns(self._model, assigned[0])
        return step_warnings.SUM if None in names else _other_reason(step, nodes)

    def _trace(self, example: Any, as_means: frozenset[int]) -> TracedStep:
        """Returns the step, traced for batches of any number of such examples."""
        step = TracedStep()

        def trial(batch: Any, draw: Any) -> tuple[tf.Tensor, tf.Tensor]:
            recorded: list[tuple[str | None, Any]] = []
            state = Replica(
                self._strategy, 0, tf.constant(1.0), recorded=recorded, draw=draw, examples=count(batch), as_means=as_means
            )
            state.graph, state.unbuilt, state.batch = tf.compat.v1.get_default_graph(), [], batch
            with self._as_replica(), entered(state), variables_of(self._strategy), released(state):
                updates, logs = self._results(batch, recorded)
                counted = metric_trial.changes(state)
                added = added_losses.recorded(state) if self._trains else []
                others = [*(value for _, value in (*counted, *added)), *logs.values()]
                step.names, step.sizes = [name for name, _ in updates], state.sizes_of_updates
                step.counted, step.settled = [variable for variable, _ in counted], state.settled
                step.adding, step.log_names = [layer for layer, _ in added], list(logs)
                step.growths = [growth.growth_of(value) for value in others]
                step.shown = update_sources.what_shows(updates, self._model)
                step.integer = next(iter(state.integers), None) if self._trains else None
                step.unseen = next(iter(state.unseen), None)
                step.reads_replicas, step.branches, step.unbuilt = state.reads_replicas, state.branches, state.unbuilt or ()
                projections, norms = summary([*(value for _, value in updates), *others])
                alike = getattr(self._strategy.extended, "alike", tf.identity)
                return alike(projections), alike(norms)

        signature = mapped(lambda v: tf.TensorSpec([None, *v.shape[1:]], v.dtype), example)
        step.function = tf.function(trial, autograph=False).get_concrete_function(signature, tf.TensorSpec([], tf.int32))
        return step

    def _results(
        self, batch: Any, recorded: list[tuple[str | None, Any]]
    ) -> tuple[list[tuple[str | None, Any]], dict[str, Any]]:
        """Calls the step. Returns its updates or outputs as `Replica.recorded` has them, and its logs that are one number.

        Args:
            batch: the batch.
            recorded: that list of the current replica.
        """
        if self._trains:
            logs = self._step(batch) if self._is_whole else compute_loss(self._model, batch, recorded)
            return recorded, log_trial.numbers(logs)
        result = self._step(batch) if self._is_own_test or self._predicts else None
        if self._predicts:
            return recorded_outputs(result) if self._returns else [], {}
        return compute_outputs(self._model, batch) if self._returns else [], log_trial.numbers(result)


def _works_with(step: TracedStep, part: Any, size: int) -> bool:
    """Returns whether a step that has failed on a few examples works with as many as a batch has."""
    rows = next(int(leaf.shape[0]) for leaf in tf.nest.flatten(part) if leaf is not None)
    try:
        step.function(mapped(lambda v: tf.concat([v] * -(-size // rows), axis=0)[:size], part), tf.constant(0))
    except Exception:
        return False
    return True


def _why_it_grows(step: TracedStep, batch: Any, nodes: Sequence[Any]) -> str | None:
    """Returns why a step with random numbers differs whose updates grow with the batch; None if it does not."""
    draws = (range(_DRAWS), range(_DRAWS, _DRAWS + _MORE_DRAWS))
    gradients = [index for index, name in enumerate(step.names) if name is None]
    for update in np.split(gradients, np.cumsum(step.sizes)[:-1]):  # One of a GAN's may be a sum, the other a mean.
        places = update.astype(int)
        if all((step.growth(batch, each, places, whole=True)[0] or 1.0) > _SUM_GROWTH for each in draws):
            return step_warnings.SUM
    return _other_reason(step, nodes)


def _other_reason(step: TracedStep, nodes: Sequence[Any]) -> str | None:
    if step.reads_replicas:
        return step_warnings.READS_REPLICAS
    clips = (node for node in nodes if any(name in node.name for name in _CLIPS))
    return step_warnings.CLIPS if any(_is_of_batch(step.function.graph, node) for node in clips) else None


def _is_of_batch(graph: Any, node: Any) -> bool:
    """Returns whether an operation of a traced step may compute numbers of the whole batch, which have a known shape."""
    try:
        operation = graph.get_operation_by_name(node.name)
    except KeyError:  # Of another function.
        return True
    are_of_batch = (output.dtype.is_floating and output.shape.is_fully_defined() for output in operation.outputs)
    return node.op != "Const" and all(are_of_batch)
