"""What the simulator is made of: a clock with events, cores and links of machines, and messages between machines."""

import heapq
import itertools
from collections.abc import Callable

Then = Callable[[], None]

QUEUED = 256 * 1024
"""A small message waits until so many bytes have left its machine, if others are sending: the kernel has taken them before.
Linux takes some segments of up to 64 KiB of each connection (`tcp_small_queue_check` in net/ipv4/tcp_output.c). Measured: a
message of the chief, beside a worker that pushes, waits for 12 ms at 200 Mbit/s and for 36 ms at 60 Mbit/s."""


class Clock:
    """Runs events in the order of their moments, which are seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Then]] = []
        self._order = itertools.count()

    def at(self, moment: float, event: Then) -> None:
        """Calls a function at a moment."""
        heapq.heappush(self._events, (moment, next(self._order), event))

    def after(self, seconds: float, event: Then) -> None:
        """Calls a function some seconds later."""
        self.at(self.now + seconds, event)

    def step(self) -> bool:
        """Runs the next event; returns whether there was one."""
        if not self._events:
            return False
        self.now, _, event = heapq.heappop(self._events)
        event()
        return True


class Shared:
    """What all who use it at a time share equally: the cores of a machine, of which each uses one at most, or one direction of
    a link. `count` is the number of cores, of a processor with a quota a part of one; 1 for a link."""

    def __init__(self, clock: Clock, name: str, count: float) -> None:
        self.name, self.count = name, count
        self._clock, self._order, self._version = clock, itertools.count(), 0
        self._jobs: list[tuple[float, int, Then]] = []
        self._done = self._at = self._busy = 0.0

    def run(self, seconds: float, then: Then) -> None:
        """Serves somebody for that many seconds of one core or of the whole link, then calls a function."""
        self._advance()
        heapq.heappush(self._jobs, (self._done + seconds, next(self._order), then))
        self._plan()

    def used(self) -> float:
        """Returns for how long all of it was busy, in seconds."""
        self._advance()
        return self._busy / self.count

    def last(self) -> float:
        """Returns how much the user who needs most still needs, in seconds; 0 if nobody uses it."""
        self._advance()
        return max((until for until, *_ in self._jobs), default=self._done) - self._done

    def _rate(self) -> float:
        return min(1.0, self.count / len(self._jobs))

    def _advance(self) -> None:
        """Notes what was computed since the last change: `_done` is what each of the jobs has got since the beginning."""
        now = self._clock.now
        if self._jobs and now > self._at:
            self._done += (now - self._at) * self._rate()
            self._busy += (now - self._at) * min(self.count, len(self._jobs))
        self._at = now

    def _plan(self) -> None:
        self._version += 1
        if self._jobs:
            version = self._version
            self._clock.after(max(0.0, self._jobs[0][0] - self._done) / self._rate(), lambda: self._end(version))

    def _end(self, version: int) -> None:
        if version != self._version:
            return  # Somebody has come since.
        self._done += max(0.0, self._jobs[0][0] - self._done) if self._jobs else 0.0
        self._busy += (self._clock.now - self._at) * min(self.count, len(self._jobs))
        self._at = self._clock.now
        ended = []
        while self._jobs and self._jobs[0][0] <= self._done * (1 + 1e-12):
            ended.append(heapq.heappop(self._jobs)[2])
        self._plan()
        for then in ended:
            then()


class Machine:
    """The cores and the two directions of the link of a machine. Two machines may have the same cores."""

    def __init__(self, clock: Clock, name: str, cores: "float | Shared") -> None:
        self.cores = cores if isinstance(cores, Shared) else Shared(clock, f"processor of {name}", cores)
        self.up, self.down = Shared(clock, f"link of {name}, sent", 1), Shared(clock, f"link of {name}, received", 1)


class Links:
    """Sends messages over links of a `rate` in bytes per second. A message takes `delay` seconds beside its bytes."""

    def __init__(self, clock: Clock, rate: float, delay: float) -> None:
        self._clock, self.rate, self._delay = clock, rate, delay

    def send(self, source: Machine, target: Machine, size: float, then: Then, up: float = 1.0, down: float = 1.0) -> None:
        """Sends bytes, which flow through both links at once. Messages share a link equally, as those of TCP do.

        Each link is shared by itself: who waits at one end has its share of the other. So no link carries more than its rate,
        and all bytes of a message have passed both when it arrives.

        Args:
            source: the machine that sends.
            target: the machine that receives.
            size: bytes.
            then: called when all have arrived.
            up: so many such messages leave the machines for which `source` stands, divided by those machines.
            down: the same for `target`.
        """
        if source is target or size <= 0:
            self._clock.after(0.0, then)
            return
        seconds = size / self.rate
        arrived = after_all(2, lambda: self._clock.after(self._delay, then))
        source.up.run(seconds * up, arrived)
        target.down.run(seconds * down, arrived)

    def tell(self, source: Machine, target: Machine, then: Then) -> None:
        """Sends a message of a few bytes, such as a call or its answer, after those that are queued on its machine."""
        queued = min(QUEUED / self.rate, source.up.last())
        self._clock.after(0.0 if source is target else queued + self._delay, then)


def after_all(count: int, then: Then) -> Then:
    """Returns a function that calls `then` when it was called so often."""
    left = [count]

    def one() -> None:
        left[0] -= 1
        if not left[0]:
            then()

    return one
