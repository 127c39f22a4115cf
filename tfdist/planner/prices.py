"""Prices of machines: a file with a price per hour for each machine type, by the names that CloudML and Compute Engine use."""

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfdist.cluster import Cluster
from tfdist.dialects.cloudml.machines import machine
from tfdist.dialects.parsing.document import read_text
from tfdist.errors import Source, nearest
from tfdist.planner.option import Option

DEFAULT_MACHINE = "n1-standard-4"
"""The machine of a task whose description names none, as in CloudML's scale tier BASIC."""


@dataclass(frozen=True)
class Machines:
    """The machine types of the tasks.

    Attributes:
        worker: of workers, and of a single process.
        ps: of ps with machines of their own.
        chief: of a chief with a machine of its own.
        has_chief: whether there is one. It then is the single process, and trains with the workers where no ps serve.
        assumed: whose type is `DEFAULT_MACHINE` because the description names none: "workers", "ps".
    """

    worker: str = DEFAULT_MACHINE
    ps: str = DEFAULT_MACHINE
    chief: str = DEFAULT_MACHINE
    has_chief: bool = False
    assumed: tuple[str, ...] = ()

    @classmethod
    def of(cls, cluster: Cluster | None) -> "Machines":
        """Returns those of a cluster; defaults for what it leaves open."""
        types = {} if cluster is None else {task.job: task.machine_type for task in cluster.tasks if task.machine_type}
        worker, ps = types.get("worker") or types.get("chief"), types.get("ps")
        has_chief = cluster is not None and bool(cluster.job("chief"))
        assumed = tuple(name for name, known in (("workers", worker), ("ps", ps)) if known is None)
        worker, ps = worker or DEFAULT_MACHINE, ps or DEFAULT_MACHINE
        return cls(worker, ps, types.get("chief") or worker, has_chief, assumed)


def cores(name: str) -> int | None:
    """Returns the virtual processors of a machine type, the last number of its name; None if that does not say it."""
    name = name.partition("+")[0]  # Behind it are accelerators.
    known = machine(name)
    number = ((known.equivalent if known else "") or name).rpartition("-")[2]
    return int(number) if known is not None and number.isascii() and number.isdecimal() else None


class Prices:
    """Prices per hour by machine type."""

    def __init__(self, values: Mapping[str, float], source: str) -> None:
        self._values = dict(values)
        self._source = source

    def per_hour(self, option: Option, machines: Machines) -> float:
        """Returns what an option costs for an hour. Raises ClusterError if a price is missing."""
        chiefs = int(option.chief_apart if option.ps else machines.has_chief)
        workers = option.workers if option.ps else option.machines - chiefs
        total = workers * self._of(machines.worker) if workers else 0.0
        if not option.colocated and option.ps:
            total += option.ps * self._of(machines.ps)
        if chiefs:
            total += self._of(machines.chief)
        return total

    def _of(self, name: str) -> float:
        known = machine(name)
        for machine_type in (name, known.equivalent if known else ""):
            if machine_type in self._values:
                return self._values[machine_type]
        raise Source("planner", self._source).error(f"there is no price of {name}{nearest(name, self._values)}")


def read(path: str) -> Prices:
    """Returns the prices in a file: JSON or YAML, machine type -> price per hour. Raises ClusterError for others."""
    source = Source("planner", path)
    error = source.error
    text = read_text(path, source)
    try:
        pairs = json.loads(text, object_pairs_hook=_Pairs)
    except ValueError:
        pairs = _yaml(text, path)
    values = dict(pairs) if isinstance(pairs, _Pairs) else {}
    if isinstance(pairs, _Pairs) and len(values) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise error(f"the price of {twice} is given twice; keep one of them")
    if not values:
        raise error('this is no list of prices; expected for example {"n1-standard-4": 0.19, "n1-highcpu-8": 0.2836}')
    for name, price in values.items():
        if isinstance(price, bool) or not isinstance(price, int | float) or not math.isfinite(price) or price < 0:
            raise error(f"the price of {name} is {price!r}; expected a number, the price of an hour")
    return Prices({str(name): float(price) for name, price in values.items()}, path)


class _Pairs(list[tuple[Any, Any]]):
    """The names and values of a mapping. A dict would keep the last of two prices."""


def _yaml(text: str, path: str) -> object:
    import yaml

    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        return _Pairs(loader.construct_pairs(node)) if isinstance(node, yaml.MappingNode) else None
    except yaml.YAMLError:
        raise Source("planner", path).error("this is neither JSON nor YAML") from None
