"""Lists the options that a request leaves open."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tfdist.default_compression import with_default
from tfdist.planner.option import Option
from tfdist.synchronization import DEFAULT_SYNC_PERIOD, Synchronization

PERIODS = (DEFAULT_SYNC_PERIOD, 4 * DEFAULT_SYNC_PERIOD)
"""Sync periods that are compared if the user gives none. A longer one costs accuracy (tfdist.synchronization)."""

MOST_PS = 1000
"""No more ps are compared where the user describes fewer: `--machines` takes no more, and the time grows with their number."""


@dataclass(frozen=True)
class Request:
    """What the user has fixed.

    Attributes:
        workers: number of workers; None for any.
        machines: most machines; None if the number of workers is fixed.
        strategies: the strategies to compare.
        periods: the sync periods to compare.
        synchronization: options of hogwild.
        has_chief: whether the description has a chief with a machine of its own. It trains under `multi_worker_mirrored`.
        adds_chief: whether a language in which the chief has a machine of its own adds one to the workers of the description.
        may_colocate: whether a ps may be on the machine of a worker.
        described: the option of the description as it is; None if it describes none of those that are compared.
    """

    workers: int | None
    machines: int | None
    strategies: frozenset[str]
    periods: tuple[int, ...] = PERIODS
    synchronization: Synchronization = field(default=Synchronization())
    has_chief: bool = False
    adds_chief: bool = False
    may_colocate: bool = True
    described: Option | None = None

    def over(self, bytes_per_second: float) -> "Request":
        """Returns the request with the compression that hogwild chooses on links of this speed, if the user gave none."""
        options, described = with_default(self.synchronization, bytes_per_second), self.described
        if not options.compresses:  # The table shows no "float32" that nobody has asked for.
            return self
        if described is not None and described.strategy == "hogwild":
            described = replace(described, compression=options.compression)
        return replace(self, synchronization=options, described=described)


def counts(most: int) -> list[int]:
    """Returns numbers from 1 to `most`: all up to 12, then in steps of about a quarter."""
    numbers = list(range(1, min(most, 12) + 1))
    while numbers and numbers[-1] < most:
        numbers.append(min(most, max(numbers[-1] + 1, numbers[-1] * 5 // 4)))
    return numbers


def candidates(request: Request) -> list[Option]:
    """Returns the options, each once. There is always one: one process."""
    found = dict.fromkeys([Option("default", 1), *_all(request)])
    if request.described is not None:
        found[request.described] = None
    return [option for option in found if request.machines is None or option.machines <= request.machines]


def _all(request: Request) -> Iterator[Option]:
    most = request.machines or 0
    for workers in [request.workers] if request.workers is not None else counts(most):
        training = workers + request.has_chief
        if "multi_worker_mirrored" in request.strategies and training > 1:
            yield Option("multi_worker_mirrored", training)
        for ps in counts(most or min(2 * workers, MOST_PS)):
            for colocated in (True, False) if request.may_colocate and ps <= workers else (False,):
                yield from _served(request, workers, ps, colocated)


def _served(request: Request, workers: int, ps: int, colocated: bool) -> Iterator[Option]:
    chief_apart = request.has_chief or request.adds_chief
    if "parameter_server" in request.strategies:
        yield Option("parameter_server", workers, ps, colocated, chief_apart=chief_apart)
    if "hogwild" in request.strategies and workers > 1:
        options = request.synchronization
        for period in request.periods:
            if period % options.fragments == 0:
                yield Option(
                    "hogwild",
                    workers,
                    ps,
                    colocated,
                    period,
                    options.delay,
                    options.fragments,
                    options.compression,
                    chief_apart=chief_apart,
                )
