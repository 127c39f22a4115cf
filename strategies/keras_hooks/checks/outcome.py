"""What a trial of a step (shard_check.py) tells."""

from collections.abc import Collection
from dataclasses import dataclass, field

from tfdist.strategies.keras_hooks.checks import metric_trial


@dataclass
class Outcome:
    """What a trial tells.

    Attributes:
        metrics: what is to be said of the metrics.
        is_known: whether the step was tried out.
        reason: why replicas compute another update than one process; None if they do not, or on a task that does not log it.
        integer: the name of a variable of integers or truth values that depends on the examples; None if there is none.
        sums: the ids of layers that add sums over the examples as losses.
        sum_logs: the names of logs that are sums over the examples.
        other_logs: the names of logs that depend on which examples are together in a batch.
    """

    metrics: metric_trial.Judgement
    is_known: bool = False
    reason: str | None = None
    integer: str | None = None
    sums: set[int] = field(default_factory=set)
    sum_logs: Collection[str] = ()
    other_logs: Collection[str] = ()
