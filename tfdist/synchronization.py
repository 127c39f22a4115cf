"""`Synchronization`: how worker groups under Hogwild bring their copies of the parameters together.

Every worker group trains a copy of its own. After `sync_period` updates it pushes, without waiting for the others, the change
since its last exchange; the options here say what becomes of it. Knows nothing of TensorFlow.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfdist.errors import Source, nearest

if TYPE_CHECKING:
    from tfdist.cluster import Cluster

DEFAULT_SYNC_PERIOD = 16
"""Updates between two exchanges where Hogwild is forced on a description that has no word for it.

In simulations of 8 groups (mnist1d, a small network, SGD with momentum), exchanging every 16 updates came out as good as
synchronous training with the same learning rate, and sent a fourteenth of the bytes; every 64, half a point behind. Against
synchronous training with the best learning rate of its own it lost about two points. SINGA's own `sync_freq` is 1 unless the
file says otherwise.
"""

OUTERS = ("average", "nesterov", "delayed_nesterov", "elastic", "sum")
TOPOLOGIES = ("centre", "ring", "pair")
COMPRESSIONS = ("bf16", "int8", "int4")
WEIGHTS = ("groups", "examples")

_CHOICES = {"outer": OUTERS, "topology": TOPOLOGIES, "compression": COMPRESSIONS, "weights": WEIGHTS}
_RATES = {
    "outer_learning_rate": ("a number above 0", lambda value: value > 0),
    "outer_momentum": ("a number from 0 to below 1", lambda value: 0 <= value < 1),
    "elastic_rate": ("a number above 0 and at most 1", lambda value: 0 < value <= 1),
}
_WITH_DELTAS = ("average", "nesterov", "delayed_nesterov", "sum")
_WITH_RATE = ("average", "nesterov", "delayed_nesterov")
_WITH_MOMENTUM = ("nesterov", "delayed_nesterov")

_ADAM = ("adam", "adamw", "adamax", "nadam")
_MAX_SLICES = 2**16


@dataclass(frozen=True)
class Synchronization:
    """The options of an exchange. `Cluster.sync_period` says how often there is one.

    Attributes:
        outer: what the centre C does with the change d of a group.
            "average" (default): C += weight * d, as in local SGD (arXiv 1805.09767) and FedAvg; SINGA's exchange
            (https://singa.apache.org, Distributed Hogwild) with an average in place of its sum.
            "nesterov": one step of SGD with Nesterov momentum with the mean over one change of each live group, as in DiLoCo
            (arXiv 2311.08105).
            "delayed_nesterov": each change moves C as it comes, and the momentum is updated once for as many changes as there
            are live groups (arXiv 2401.09135). The paper warm-starts from a trained model; from
            scratch others saw it do worse than nesterov.
            "elastic": EASGD (arXiv 1412.6651): e = elastic_rate * (copy - C); copy -= e; C += e.
            "sum": C += d, as SINGA released it (apache/singa v0.3, src/server.cc). The learning rate is in effect multiplied by
            the number of groups; it warns.
        outer_learning_rate: the rate with which C takes changes (average, nesterov, delayed_nesterov), above 0; None for
            the rule's default, see `outer_rates`.
        outer_momentum: 0 to below 1 (nesterov, delayed_nesterov); None for the rule's default, see `outer_rates`.
        elastic_rate: EASGD's moving rate, above 0 and at most 1 (elastic); None for 0.9 / number of groups (the paper's beta
            of 0.9).
        topology: who exchanges with whom. "centre" (default): each group with the shared parameters on the ps tasks. "ring":
            a group takes the mean of its own copy and those of its two neighbors (D-PSGD, arXiv 1705.09056). "pair": two
            groups take the mean of their copies (AD-PSGD, arXiv 1710.06952).
        compression: how changes are sent, see `tfdist.strategies.hogwild.compression`: None (default) float32, "bf16" half the bytes,
            "int8" about a quarter, "int4" about an eighth. What rounding leaves out is sent with the next change.
        slices: one of this many parts of the parameters is exchanged at a time, each every `sync_period` updates, one
            part after the other every sync_period / slices updates (Streaming DiLoCo, arXiv 2501.18512); 1 (default) is all at
            once. Divides the sync period.
        adaptive: whether slower groups exchange after fewer updates, floor(speed / highest speed * sync_period) and at least
            1, so that all exchange about equally often (DyLU, arXiv 2401.09135). Default False.
        weights: "groups" (default): a change weighs 1 / number of live groups. "examples": by the examples that went into it.
        overlap: whether a group goes on with its next updates while its exchange is under way (default). What it does
            meanwhile is kept and sent with its next change. Without, it waits for the answer; with nesterov also for the other
            groups of its round, at most a few times as long as its last period took (`tfdist.strategies.hogwild.rounds`).

    Raises:
        ClusterError: for a value that no option has. Which options go together, and with which cluster, is for `check`.
    """

    outer: str = "average"
    outer_learning_rate: float | None = None
    outer_momentum: float | None = None
    elastic_rate: float | None = None
    topology: str = "centre"
    compression: str | None = None
    slices: int = 1
    adaptive: bool = False
    weights: str = "groups"
    overlap: bool = True

    def __post_init__(self) -> None:
        for entry in dataclasses.fields(self):
            if fault := problem(entry.name, getattr(self, entry.name)):
                raise Source("python", "Synchronization").error(fault, field=entry.name)

    def given(self) -> dict[str, Any]:
        """The options that differ from their defaults, by name."""
        values = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if value != DEFAULTS[name]}

    def outer_rates(self, inner_optimizer: str) -> tuple[float, float]:
        """The outer learning rate and momentum: what is given, else the defaults of the rule.

        The defaults of nesterov and delayed_nesterov depend on the optimizer that trains the copies: 0.7 and 0.9 for Adam,
        AdamW, Adamax and Nadam (DiLoCo, tried there with AdamW). For all others 1.0 and 0.6 for nesterov, 1.0 and 0.3 for
        delayed_nesterov: those that were good and stable at periods of 16 and of 64 in benchmarks/quality.md, with SGD and
        momentum. With it 0.7 and 0.9 were unstable at short periods (65 % in place of 85 % at a period of 4, nesterov) and
        collapsed (delayed_nesterov), in the experiments that `DEFAULT_SYNC_PERIOD` quotes. For average they are 1.0 and 0.0.

        Args:
            inner_optimizer: the name of the Keras optimizer's class, in any case: "AdamW", "SGD". Of a LossScaleOptimizer, that
                of the optimizer in it.
        """
        rate, momentum = 1.0, 0.0
        if self.outer in _WITH_MOMENTUM:
            others = (1.0, 0.6) if self.outer == "nesterov" else (1.0, 0.3)
            rate, momentum = (0.7, 0.9) if inner_optimizer.lower() in _ADAM else others
        return (
            rate if self.outer_learning_rate is None else self.outer_learning_rate,
            momentum if self.outer_momentum is None else self.outer_momentum,
        )

    def elastic_rate_of(self, groups: int) -> float:
        """EASGD's moving rate for this many worker groups: `elastic_rate`, else 0.9 / groups."""
        return 0.9 / groups if self.elastic_rate is None else self.elastic_rate

    def check(self, cluster: "Cluster") -> None:
        """Raises ClusterError where options exclude each other or do not fit the cluster; the message says why."""
        for name, fault in (*self._of_the_rule(), *self._of_the_topology(cluster), *self._of_the_period(cluster)):
            raise cluster.source.error(fault, field=name)

    def warnings(self, cluster: "Cluster") -> list[str]:
        """What is allowed but probably not wanted, a sentence each."""
        groups = len(cluster.worker_groups)
        told = []
        if self.outer == "sum" and groups > 1:
            told.append(
                f"outer sum adds the changes of {groups} worker groups, as SINGA released it: in effect {groups} times the "
                "learning rate, with which training may diverge; use outer average, or a smaller rate"
            )
        if self.outer == "elastic" and groups * self.elastic_rate_of(groups) > 1:
            told.append(
                f"elastic_rate {self.elastic_rate} times {groups} worker groups is above 1; the centre may oscillate, "
                f"{0.9 / groups:.3g} is the usual rate"
            )
        return told

    def _of_the_rule(self) -> list[tuple[str, str]]:
        faults = []
        if self.elastic_rate is not None and self.outer != "elastic":
            faults.append(("elastic_rate", f"it is for outer elastic, and outer is {self.outer}; leave it out"))
        if self.outer_learning_rate is not None and self.outer not in _WITH_RATE:
            instead = "give elastic_rate" if self.outer == "elastic" else "sum adds changes as they are; use outer average"
            faults.append(("outer_learning_rate", f"it is for outer {_or(_WITH_RATE)}, and outer is {self.outer}; {instead}"))
        if self.outer_momentum is not None and self.outer not in _WITH_MOMENTUM:
            faults.append(
                ("outer_momentum", f"outer {self.outer} has no momentum; use outer {_or(_WITH_MOMENTUM)}, or leave it out")
            )
        if self.weights != "groups" and (self.outer in ("elastic", "sum") or self.topology != "centre"):
            rule = f"outer {self.outer}" if self.topology == "centre" else f"topology {self.topology}"
            faults.append(("weights", f"{rule} weighs all groups alike; leave weights at groups"))
        if self.outer == "sum" and self.adaptive:
            faults.append(("adaptive", "outer sum is SINGA's exchange as released, of one period for all; use outer average"))
        if self.compression is not None and self.outer not in _WITH_DELTAS:
            faults.append(
                (
                    "compression",
                    "outer elastic sends the parameters themselves, in which rounding would swallow small updates; "
                    f"use outer {_or(_WITH_DELTAS)}, or leave it out",
                )
            )
        return faults

    def _of_the_topology(self, cluster: "Cluster") -> list[tuple[str, str]]:
        if self.topology == "centre":
            return []
        faults = []
        if self.outer != "average":
            faults.append(
                ("topology", f"outer {self.outer} needs the centre, which a {self.topology} does not have; use topology centre")
            )
        if self.compression is not None:
            faults.append(
                (
                    "compression",
                    f"a {self.topology} sends the parameters themselves, in which rounding would swallow small updates; "
                    "use topology centre, or leave it out",
                )
            )
        if self.outer_learning_rate is not None:
            faults.append(("outer_learning_rate", f"a {self.topology} takes the mean of copies as it is; leave it out"))
        groups = len(cluster.server_groups)
        if groups < 2 and not cluster.partial:
            faults.append(
                (
                    "topology",
                    f"a {self.topology} is between server groups, and this cluster has {groups}; describe several "
                    "(SINGA's nserver_groups), or use topology centre",
                )
            )
        return faults

    def _of_the_period(self, cluster: "Cluster") -> list[tuple[str, str]]:
        period = cluster.sync_period
        faults = []
        if self.slices > period or period % self.slices:
            faults.append(
                (
                    "slices",
                    f"{self.slices} slices do not divide the sync period of {period}: one is exchanged every "
                    "sync_period / slices updates",
                )
            )
        if self.adaptive and self.slices > 1:
            faults.append(
                ("adaptive", "it changes the period in which slices take their turns; use slices 1, or leave adaptive out")
            )
        if self.adaptive and period == 1:
            faults.append(("adaptive", "it shortens the sync period, and 1 cannot be shortened; choose a longer sync period"))
        return faults


DEFAULTS: dict[str, Any] = {entry.name: entry.default for entry in dataclasses.fields(Synchronization)}
"""Option -> default."""


def problem(name: str, value: object) -> str | None:
    """What is wrong with `value` for the option `name`, as the end of a sentence; None where it is a value of that option.

    Args:
        name: a field of `Synchronization`.
        value: anything.
    """
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
    if name == "slices":
        fits_slices = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MAX_SLICES
        return None if fits_slices else f"{shown} is not right; expected a whole number from 1 to {_MAX_SLICES}"
    return None if isinstance(value, bool) else f"{shown} is not right; expected true or false"


def _or(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
