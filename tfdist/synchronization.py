"""`Synchronization`: how worker groups under Hogwild keep their local replicas of the parameters together.

Every worker group trains a local replica. After `sync_period` updates it pushes its progress to the global parameters on the ps
tasks and pulls what the other groups have pushed. This module does not import TensorFlow; the computation is in
`tfdist.strategies.hogwild`.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tfdist.errors import Source, nearest
from tfdist.outer_options import OUTER_OPTIMIZERS, ROUNDS

DEFAULT_SYNC_PERIOD = 16
"""Updates of a worker group between two synchronizations, if Hogwild is forced on a description that does not set a period.

With 8 groups (mnist1d, a small network, SGD with momentum), a period of 16 sends a fourteenth of the bytes of synchronous
training and is 0.5 points behind it, each with its own best learning rate; 64 is 2.0 points behind (benchmarks/quality.md).
SINGA's own default for `sync_freq` is 1.
"""

TOPOLOGIES = ("global", "ring", "pair")
COMPRESSIONS = ("float32", "bf16", "int8", "int4")
WEIGHTS = ("groups", "examples")

SERVER_COMPRESSIONS = ("float32", "bf16")
"""The compressions that `parameter_server` has, too."""

_CHOICES: dict[str, tuple[str, ...]] = {
    "outer": tuple(OUTER_OPTIMIZERS),
    "topology": TOPOLOGIES,
    "compression": COMPRESSIONS,
    "weights": WEIGHTS,
}
_RATES = {
    "outer_learning_rate": ("a number above 0", lambda value: value > 0),
    "outer_momentum": ("a number from 0 to below 1", lambda value: 0 <= value < 1),
    "elastic_rate": ("a number above 0 and at most 1", lambda value: 0 < value <= 1),
    "grace": ("a number of sync periods from 0", lambda value: value >= 0),
}
_ADAM = ("adam", "adamw", "adamax", "nadam")
_NUMBERS = {"fragments": (1, 2**16), "delay": (0, 2**16), "quorum": (1, 2**16), "longest_period": (1, 2**30)}
_OF_SOME = ("outer_learning_rate", "outer_momentum", "elastic_rate", *ROUNDS)
"""Options that only some outer optimizers accept."""

_Fault = tuple[str, str]
"""The name of an option, and the end of a sentence that says why it is refused."""


def default_sync_period(strategy: str | None) -> int:
    """Returns the sync period, in updates, of a description that forces `strategy`, or None, and does not give a period."""
    return DEFAULT_SYNC_PERIOD if strategy == "hogwild" else 1


@dataclass(frozen=True)
class Synchronization:
    """Configures how worker groups synchronize their local replicas of the parameters under Hogwild.

    `Cluster.sync_period` sets how often a group synchronizes: every `sync_period` updates it pushes its progress *d*, the
    change of its local replica *w* since the last synchronization, to the global parameters *C*. An outer optimizer changes
    *C*; the group then pulls *C*. Updates that the group makes in the meantime stay in *w* and are part of its next push.

    Example:

    ```python
    diloco = tfdist.Synchronization(outer="nesterov", outer_learning_rate=0.7, outer_momentum=0.9)
    strategy = tfdist.strategy("job.conf", synchronization=diloco)
    ```

    Attributes:
        outer: the outer optimizer, which changes C with the progress d of a group. Default None: see `resolved`.

            - "average": `C += outer_learning_rate * weight * d`, local SGD (arXiv 1805.09767) and FedAvg (arXiv 1602.05629).
              SINGA's Distributed Hogwild (https://singa.apache.org) with an average instead of its sum.
            - "nesterov": one SGD step with Nesterov momentum per round, with the weighted sum of the progress of all groups. A
              round ends when every live group has pushed, or when a group has waited for it for the `grace` time and `quorum`
              groups have pushed. A push that comes later counts in the next round. DiLoCo (arXiv 2311.08105).
            - "delayed_nesterov": applies the progress of each group when it arrives, and the momentum after as many pushes as
              there are live groups (arXiv 2401.09135). The paper continues the training of a trained model. From scratch,
              others found it worse than "nesterov".
            - "elastic": `e = elastic_rate * (w - C); w -= e; C += e`, EASGD (arXiv 1412.6651).
            - "sum": `C += d`, as SINGA was released (apache/singa v0.3, `src/server.cc`). n groups multiply the learning rate
              by n, so tfdist logs a warning.
        outer_learning_rate: learning rate of the outer optimizer ("average", "nesterov", "delayed_nesterov"), above 0. Default
            None: see `outer_rates`.
        outer_momentum: momentum of the outer optimizer ("nesterov", "delayed_nesterov"), from 0 to below 1. Default None: see
            `outer_rates`.
        elastic_rate: moving rate of "elastic", above 0 and at most 1. Default None: 0.9 / number of worker groups, which is the
            paper's beta of 0.9.
        topology: which parameters a group synchronizes with. Default "global".

            - "global": all groups share one set of global parameters on the ps tasks.
            - "ring": each server group has its own parameters and averages them with those of its two neighbors after each push
              (D-PSGD, arXiv 1705.09056).
            - "pair": each server group averages its parameters with those of one other, drawn at random, after each push
              (AD-PSGD, arXiv 1710.06952).

            "ring" and "pair" need at least two server groups and `outer="average"`.
        compression: how float32 parameters are sent, in both directions. "float32" sends all bits, "bf16" half the bytes,
            "int8" about a quarter and "int4" about an eighth; see `tfdist.strategies.hogwild.synchronization.compression`. The
            rounding error is added to the next push (error feedback, arXiv 1901.09847). Default None: the chief measures the
            network between hosts, and chooses (`tfdist.default_compression`); on one host "float32". `parameter_server` takes
            this option, too, with "float32", the default there, and "bf16": parameters and gradients of each step travel
            rounded, without error feedback.
        fragments: number of parts of the parameters, from 1 to 65536. Default 1: a group synchronizes all parameters at once.
            With more, it synchronizes one fragment every `sync_period / fragments` updates, in turn, so that each fragment is
            synchronized every `sync_period` updates (Streaming DiLoCo, arXiv 2501.18512). Must divide the sync period.
        adaptive: whether slower groups synchronize after fewer updates: `floor(speed / highest speed * sync_period)`, at least
            1. All groups then synchronize about equally often (DyLU, arXiv 2401.09135). Default False.
        weights: the weight of a push. Default "groups": 1 / number of live groups. "examples": the share of the group in the
            examples that went into the last pushes of all live groups.
        delay: updates that a group makes between its push and its pull, from 0 to `sync_period / fragments`. The group pulls
            after exactly as many, or at the end of an epoch that has fewer left, and waits there for the reply if it has not
            arrived. The longer the delay, the more time has the network, and the more the replicas drift apart. With 0 the
            group waits for the reply before its next update. Default None: 1 until the groups have measured the time of a
            synchronization and that of an update, then their quotient, rounded up, at most 4, and at most a quarter of the
            updates between two pushes. The chief prints it.
        quorum: groups that must have pushed before a round can end without the others ("nesterov"), from 1. If fewer train, all
            of them. Default None: 1. A round that has no quorum ends after a minute.
        grace: how long a group waits for the others of its round ("nesterov"), in sync periods as they last without waits, from
            0. Default None: 4, or 1 beside a group that is twice as slow. Before its speed is known, a group waits 5 seconds.
        longest_period: the most updates of the sync period, from `sync_period`. If groups would wait for the network longer
            than an eighth of the time of their updates, after the longest delay, the period is doubled until they do not, or
            until it would be longer than this. It is decided once, with the delay, and the chief prints it. Default None: the
            sync period stays, because a longer one costs accuracy.
        average_momentum: whether a synchronization also averages the momentum of the groups' SGD, RMSprop, Lion or Muon
            ("nesterov"), with the same fragments and delay. Each push and reply then has twice the bytes. The momentum of Adam
            and its relatives stays local, and so do buffers that are not built before the first step. Default None: no.

    Raises:
        ClusterError: if a value is not valid for its option. `check` tests whether options fit together and fit a cluster.
    """

    outer: str | None = None
    outer_learning_rate: float | None = None
    outer_momentum: float | None = None
    elastic_rate: float | None = None
    topology: str = "global"
    compression: str | None = None
    fragments: int = 1
    adaptive: bool = False
    weights: str = "groups"
    delay: int | None = None
    quorum: int | None = None
    grace: float | None = None
    longest_period: int | None = None
    average_momentum: bool | None = None

    def __post_init__(self) -> None:
        for entry in dataclasses.fields(self):
            if fault := problem(entry.name, getattr(self, entry.name)):
                raise Source("python", "Synchronization").error(fault, field=entry.name)

    @property
    def compresses(self) -> bool:
        """Whether fewer bytes than those of float32 are asked for."""
        return self.compression not in (None, "float32")

    def non_default(self) -> dict[str, Any]:
        """Returns the options that differ from their defaults, by name."""
        values = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if value != DEFAULTS[name]}

    def resolved(self, groups: int | None = None) -> "Synchronization":
        """Returns the same options with an outer optimizer.

        If `outer` is None it becomes "nesterov" where there are global parameters: it was the best for nearly every inner
        optimizer, period and number of groups tried (benchmarks/quality_simulated.md). It becomes "average" in a ring or in
        pairs. So it does for a single group, which then trains as a single process, unless an option of "nesterov" is given.

        Args:
            groups: number of worker groups; None if it is not known.
        """
        if self.outer is not None:
            return self
        is_alone = groups == 1 and not any(getattr(self, name) is not None for name in _OF_SOME)
        return dataclasses.replace(self, outer="average" if is_alone or self.topology != "global" else "nesterov")

    def outer_rates(self, inner_optimizer: str, groups: int) -> tuple[float, float]:
        """Returns the outer learning rate and the outer momentum.

        Each is the value of its option, or the default of the outer optimizer if the option is None. The defaults depend on
        the inner optimizer, which trains the local replicas, and on the number of worker groups:

        | outer | Adam, AdamW, Adamax, Nadam | all others, 8 groups or more | 4 to 7 groups | 2 and 3 |
        |---|---|---|---|---|
        | "nesterov" | 0.7 and 0.5 | 0.7 and 0.5 | 0.7 and 0.3 | 0.5 and 0.5 |
        | "delayed_nesterov" | 0.7 and 0.5 | 1.0 and 0.3 | 0.5 and 0.5 | 0.5 and 0.5 |
        | "average" | 1.0 and 0.0 | 1.0 and 0.0 | 1.0 and 0.0 | 1.0 and 0.0 |

        With "nesterov" the momentum grows from there while the learning rate of the groups falls, see `farthest`.

        An outer step of rate r and momentum b moves r / (1 - b) times as far as the groups did. SGD with momentum moves far by
        itself: DiLoCo's 0.7 and 0.9 (7 times), found with AdamW, ruin it, and so do 2.5 times with two groups. See
        benchmarks/quality_simulated.md.

        Args:
            inner_optimizer: name of the class of the Keras optimizer, in upper or lower case: "AdamW", "SGD". For a
                LossScaleOptimizer, the name of its inner optimizer; for a MultiOptimizer, that of its optimizers with which the
                outer step is shortest.
            groups: number of worker groups.
        """
        outer = OUTER_OPTIMIZERS[str(self.resolved(groups).outer)]
        of_number = next((rates for number, rates in outer.rates_of_fewer if groups < number), outer.rates)
        rate, momentum = (outer.rates_with_adam if inner_optimizer.lower() in _ADAM else None) or of_number
        return (
            rate if self.outer_learning_rate is None else self.outer_learning_rate,
            momentum if self.outer_momentum is None else self.outer_momentum,
        )

    def farthest(self, inner_optimizer: str, groups: int) -> float | None:
        """Returns how many times as far as the groups an outer step moves at most, if the outer momentum grows.

        With "nesterov" the default outer momentum grows while the learning rate of the groups falls, so that the product of
        learning rate and outer step, `outer_learning_rate / (1 - outer_momentum)`, stays what it was at the highest learning
        rate; at most until the outer step is 3.5, an outer momentum of 0.8. See benchmarks/quality_simulated.md.

        Args:
            inner_optimizer: as for `outer_rates`.
            groups: number of worker groups.

        Returns:
            The factor, or None if the outer momentum stays as it is. It does so if it is given, with other outer optimizers,
            and with fewer than 4 groups unless Adam, AdamW, Adamax or Nadam trains them.
        """
        outer = OUTER_OPTIMIZERS[str(self.resolved(groups).outer)]
        grows = groups >= outer.farthest_from or inner_optimizer.lower() in _ADAM
        return outer.farthest if grows and self.outer_momentum is None else None

    def elastic_rate_of(self, groups: int) -> float:
        """Returns EASGD's moving rate for a number of worker groups: `elastic_rate`, or 0.9 / groups if it is None."""
        return 0.9 / groups if self.elastic_rate is None else self.elastic_rate

    def check(self, sync_period: int, server_groups: int | None, source: Source) -> None:
        """Raises an error if options exclude each other or do not fit the cluster.

        Args:
            sync_period: updates of a worker group between two synchronizations.
            server_groups: number of server groups; None if it is not known.
            source: where the options come from, for the message.

        Raises:
            ClusterError: with the name of the option and the reason.
        """
        options = self.resolved()
        faults = [*_outer_faults(options), *_topology_faults(options, server_groups), *_period_faults(options, sync_period)]
        for name, fault in faults:
            raise source.error(fault, field=name)

    def warnings(self, worker_groups: int) -> list[str]:
        """Returns a sentence for each choice that is allowed but probably a mistake, with so many worker groups."""
        sentences = []
        if self.outer == "sum" and worker_groups > 1:
            sentences.append(
                f"outer sum adds the progress of {worker_groups} worker groups, as SINGA was released: in "
                f"effect {worker_groups} times the learning rate, with which training may "
                "diverge; use outer average, or a smaller rate"
            )
        if self.outer == "elastic" and self.elastic_rate is not None and worker_groups * self.elastic_rate > 1:
            sentences.append(
                f"elastic_rate {self.elastic_rate} times {worker_groups} worker groups is above 1; the global parameters may "
                f"oscillate, {0.9 / worker_groups:.3g} is the usual rate"
            )
        return sentences


DEFAULTS: dict[str, Any] = {entry.name: entry.default for entry in dataclasses.fields(Synchronization)}
"""Default of each option."""


def problem(name: str, value: object) -> str | None:
    """Returns why any `value` is not valid for the option `name`, as the end of a sentence, or None if it is valid."""
    shown = repr(value) if isinstance(value, str | bool | int | float) or value is None else f"a {type(value).__name__}"
    shown = shown if len(shown) <= 60 else f"{shown[:60]}..."
    if name in _CHOICES:
        if value in _CHOICES[name] if isinstance(value, str) else value is None is DEFAULTS[name]:
            return None
        return f"{shown} is not one of {', '.join(_CHOICES[name])}{nearest(value, _CHOICES[name])}"
    if name in _RATES:
        expected, fits = _RATES[name]
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        return None if value is None or (is_number and fits(value)) else f"{shown} is not right; expected {expected}"
    if name in _NUMBERS:
        least, most = _NUMBERS[name]
        is_valid = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        if is_valid or value is None is DEFAULTS[name]:
            return None
        return f"{shown} is not right; expected a whole number from {least} to {most}"
    is_valid = isinstance(value, bool) or value is DEFAULTS[name]
    return None if is_valid else f"{shown} is not right; expected true or false"


_SENDS_PARAMETERS = "sends the parameters themselves, in which rounding would swallow small updates"


def _outer_faults(options: Synchronization) -> Iterator[_Fault]:
    outer = OUTER_OPTIMIZERS[str(options.outer)]
    for name in _OF_SOME:
        if getattr(options, name) is not None and name not in outer.options:
            yield name, _not_accepted(options, name)
    if options.weights != "groups" and not (outer.weighs_groups and options.topology == "global"):
        option = f"outer {options.outer}" if options.topology == "global" else f"topology {options.topology}"
        yield "weights", f"{option} weighs all groups alike; leave weights at groups"
    if options.adaptive and not outer.allows_adaptive:
        yield "adaptive", f"outer {options.outer} is SINGA's as released, with one period for all; use outer average"
    if options.compresses and outer.pushes_parameters:
        others = _or(name for name, other in OUTER_OPTIMIZERS.items() if not other.pushes_parameters)
        yield "compression", f"outer {options.outer} {_SENDS_PARAMETERS}; use outer {others}, or leave it out"


def _not_accepted(options: Synchronization, name: str) -> str:
    accepting = _or(outer for outer, other in OUTER_OPTIMIZERS.items() if name in other.options)
    if name == "outer_momentum":
        return f"outer {options.outer} has no momentum; use outer {accepting}, or leave it out"
    instead = "leave it out" if name == "elastic_rate" else f"{options.outer} has no rounds; use outer {accepting}"
    if name == "outer_learning_rate":
        instead = f"{options.outer} adds progress as it is; use outer average"
        if "elastic_rate" in OUTER_OPTIMIZERS[str(options.outer)].options:
            instead = "give elastic_rate"
    return f"it is for outer {accepting}, and outer is {options.outer}; {instead}"


def _topology_faults(options: Synchronization, server_groups: int | None) -> Iterator[_Fault]:
    topology = options.topology
    if topology == "global":
        return
    if options.outer != "average":
        yield (
            "topology",
            f"outer {options.outer} needs global parameters, which a {topology} does not have; use topology global",
        )
    if options.compresses:
        yield "compression", f"a {topology} {_SENDS_PARAMETERS}; use topology global, or leave it out"
    if options.outer_learning_rate is not None:
        yield "outer_learning_rate", f"a {topology} takes the mean of parameters as it is; leave it out"
    if server_groups is not None and server_groups < 2:
        yield (
            "topology",
            f"a {topology} is between server groups, and this cluster has {server_groups}; describe several (SINGA's "
            "nserver_groups), or use topology global",
        )


def _period_faults(options: Synchronization, period: int) -> Iterator[_Fault]:
    between = period // options.fragments
    if options.fragments > period or period % options.fragments:
        yield (
            "fragments",
            f"{options.fragments} fragments do not divide the sync period of {period}: one is synchronized every "
            "sync_period / fragments updates",
        )
    elif options.delay is not None and options.delay > between:
        yield (
            "delay",
            f"{options.delay} updates are more than the {between} between two synchronizations (sync_period / fragments)",
        )
    if options.longest_period is not None:
        if options.longest_period < period:
            yield "longest_period", f"{options.longest_period} updates are less than the sync period, {period}"
        elif options.delay is not None:
            yield "longest_period", "the period follows from measured times, and a given delay is not measured; give one"
        elif between == 1:
            yield (
                "longest_period",
                "groups synchronize with every update, so they cannot tell how long an update takes without; "
                "choose a longer sync period, at least two updates for each fragment",
            )
        elif options.adaptive:
            yield "longest_period", "adaptive chooses the period of each group; give one of the two"
    if options.adaptive and options.fragments > 1:
        yield "adaptive", "it changes the period in which fragments take turns; use fragments 1, or leave adaptive out"
    if options.adaptive and period == 1:
        yield "adaptive", "it shortens the sync period, and 1 cannot be shortened; choose a longer sync period"


def _or(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last
