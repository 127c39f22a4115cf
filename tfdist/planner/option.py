"""`Option`: one way to train. `Hardware`: what it runs on."""

import functools
from dataclasses import dataclass


@dataclass(frozen=True)
class Option:
    """One way to train.

    Attributes:
        strategy: `default` (one process), `mirrored`, `multi_worker_mirrored`, `parameter_server` or `hogwild`.
        workers: number of workers; under `mirrored` the devices of the one worker.
        ps: number of ps.
        colocated: whether ps k runs on the machine of worker k. Otherwise each ps has its own machine.
        period: updates of a worker between two synchronizations (`hogwild`).
        delay: updates of a worker between its push and its pull (`hogwild`); None to let tfdist measure it.
        fragments: parts of the parameters that are synchronized in turn (`hogwild`).
        compression: how parameters are sent (`hogwild`, `parameter_server`); None is float32.
        chief_apart: whether the chief has a machine of its own. Otherwise it is on that of worker 0.
    """

    strategy: str
    workers: int
    ps: int = 0
    colocated: bool = False
    period: int = 1
    delay: int | None = None
    fragments: int = 1
    compression: str | None = None
    chief_apart: bool = False

    @functools.cached_property
    def machines(self) -> int:
        """Number of machines."""
        if self.strategy in ("default", "mirrored"):
            return 1
        apart = self.chief_apart and self.ps > 0
        return max(self.workers, self.ps if self.colocated else 0) + (0 if self.colocated else self.ps) + apart


@dataclass(frozen=True)
class Hardware:
    """What all machines have.

    Attributes:
        link: rate of the link of a machine, in bytes per second and direction.
        cores: cores of a machine; with a quota of processor time that, which may be a part of a core.
        server_cores: cores of a machine with nothing but a ps; None for as many.
    """

    link: float
    cores: float
    server_cores: int | None = None
