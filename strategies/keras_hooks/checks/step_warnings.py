"""What is said of a step that replicas, each with its shard of a batch, may compute differently from one process."""

import logging
from typing import Any

from tfdist.strategies.keras_hooks.replicas.warned import is_first_warning

SUM = (
    "an update depends on the number of examples, as that of a sum does, and every replica has a part of them. "
    "Compute means over the examples"
)
READS_REPLICAS = (
    "it computes with the number of replicas (num_replicas_in_sync). A train_step is that of one process: every "
    "replica's loss counts by its share of the examples already, so do not divide it"
)
NOT_DENSE = "its batches hold values that are not dense tensors with rows, such as ragged or sparse ones, or one number"
TOO_LARGE = "its variables are too large to be fetched from the ps for a trial of its step (%.1f GiB)"
CLIPS = "it clips its gradients, which are those of a shard. Let the optimizer clip (global_clipnorm, clipnorm)"

_log = logging.getLogger("tfdist")


def compares(has_weights: bool) -> str:
    """Returns what is to be said of a step whose examples are compared, given whether they have weights."""
    by_weights = 'A mean by the weights of examples is that of a Keras loss with reduction="mean_with_sample_weight". '
    return (
        "what an example adds to an update depends on the other examples of its batch, or the step computes with its "
        "gradients. Compare examples in a loss function for compile that returns one number, of its arguments alone, outputs "
        f"with a row for each example: it gets the whole batch. {by_weights if has_weights else ''}Let the optimizer clip "
        "(global_clipnorm), or change gradients in its update_step, which gets their sum over the replicas"
    )


def assigns(model: Any, name: str) -> str:
    """Returns what is to be said of a step that assigns this variable of a model what is no mean."""
    if any((each.path, each.aggregation) == (name, "sum") for each in model.variables):
        return (
            f'it assigns {name}, which has aggregation="sum", something that is no sum over the examples, such as a mean '
            "or a number of steps. The sum of what the replicas assign counts"
        )
    return (
        f"it assigns {name} something that is no mean over the examples, such as the examples themselves, their "
        "sum or their number. Every replica has its own, and the mean of these counts, of integers the first"
    )


def assigns_in_branch(name: str) -> str:
    """Returns what is to be said of a step that assigns this variable or not."""
    return (
        f"it assigns {name} in a branch or loop (ops.cond), by the examples of the batch. After each step the replicas have "
        "the mean of what they have assigned"
    )


class StepWarnings:
    """The warnings of a model whose batches so many replicas share; silent unless `logs`."""

    def __init__(self, model: Any, replicas: int, logs: bool) -> None:
        self._model, self._replicas, self._logs = model, replicas, logs

    def differs(self, reason: str) -> None:
        """Says once that the training differs from that in one process, and why."""
        self._say(reason, "the training", "differs", reason)

    def outputs_differ(self, call: str) -> None:
        """Says once that this call gives other outputs than one process."""
        reason = (
            "what the model returns for an example depends on the other examples of its batch. One replica computes it as one "
            "process does"
        )
        self._say("outputs", call, "differs", reason)

    def variable_of_tests(self, call: str, variable: str) -> None:
        """Says once that a metric or layer assigns a variable of TensorFlow in `evaluate` or `predict`."""
        reason = (
            f"a metric or layer assigns the tf.Variable {variable}, of which every replica keeps its own, and the first one's "
            "counts. Make it with add_variable"
        )
        self._say(variable, call, "may differ", reason)

    def _say(self, key: str, call: str, differs: str, reason: str) -> None:
        if self._logs and is_first_warning(self._model, key):
            _log.warning(
                "%s of %s (%s) %s from that in one process, because %d replicas share each batch: %s",
                *(call, self._model.name, type(self._model).__name__, differs, self._replicas, reason),
            )

    def unchecked(self, reason: str) -> None:
        """Says once that the step cannot be tried out, and why."""
        if self._logs and is_first_warning(self._model, reason):
            _log.warning(
                "it was not checked whether the training of %s (%s) equals that in one process: %s. It does if an update is a "
                "mean to which every example of a batch adds its own part, for %d replicas share each batch",
                *(self._model.name, type(self._model).__name__, reason, self._replicas),
            )

    def size_in_step(self, size: int) -> None:
        """Says that the step works with this number of examples and not with fewer."""
        if self._logs:
            _log.warning(
                "the step of %s (%s) works with a batch of %d examples and not with a part of it, and %d replicas share "
                "each batch: it has the size of a batch written in it. Take that from the tensors (ops.shape(x)[0])",
                *(self._model.name, type(self._model).__name__, size, self._replicas),
            )
