"""What the simulator is made of: a clock with events, cores and links of machines, and messages between machines."""

import heapq
import itertools
from collections.abc import Callable

Then = Callable[[], None]


class Clock:
    """Runs events in the order of their moments.

    Attributes:
        now: the moment, in seconds.
    """

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


class Served:
    """A unit that serves in the order of arrival: one direction of a link."""

    def __init__(self, name: str) -> None:
        self.name, self.busy, self._free = name, 0.0, 0.0

    def take(self, now: float, seconds: float) -> float:
        """Returns when the service ends of who arrives now."""
        self.busy += seconds
        self._free = max(now, self._free) + seconds
        return self._free

    def used(self) -> float:
        """Returns for how long it was busy, in seconds."""
        return self.busy


class Cores:
    """The cores of a machine, which all who compute share equally. Each of them uses one core at most."""

    def __init__(self, clock: Clock, name: str, count: float) -> None:
        self.name, self.count = name, count
        self._clock, self._order, self._version = clock, itertools.count(), 0
        self._jobs: list[tuple[float, int, Then]] = []
        self._done = self._at = self._busy = 0.0

    def run(self, seconds: float, then: Then) -> None:
        """Computes for that many processor seconds, then calls a function."""
        self._advance()
        heapq.heappush(self._jobs, (self._done + seconds, next(self._order), then))
        self._plan()

    def used(self) -> float:
        """Returns for how long the cores were busy, in seconds of all of them."""
        self._advance()
        return self._busy / self.count

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
    """The cores and the two directions of the link of a machine.

    Args:
        clock: the clock.
        name: its name.
        cores: its cores; or those of another machine, if both are on the same cores.
    """

    def __init__(self, clock: Clock, name: str, cores: "float | Cores") -> None:
        self.cores = cores if isinstance(cores, Cores) else Cores(clock, f"processor of {name}", cores)
        self.up, self.down = Served(f"link of {name}, sent"), Served(f"link of {name}, received")


class Links:
    """Sends messages.

    Args:
        clock: the clock.
        rate: of each link, bytes per second.
        delay: of a message, seconds.
        part: bytes of a part of a message. All parts are about equal, as TCP shares a link.
    """

    def __init__(self, clock: Clock, rate: float, delay: float, part: float) -> None:
        self._clock, self._rate, self._delay, self._part = clock, rate, delay, max(1.0, part)

    def send(self, source: Machine, target: Machine, size: float, then: Then, up: float = 1.0, down: float = 1.0) -> None:
        """Sends bytes in parts, which flow through both links at once. Parts of several messages take turns, as TCP shares.

        Args:
            source: the machine that sends.
            target: the machine that receives.
            size: bytes.
            then: called when all have arrived.
            up: so many such messages leave the machines for which `source` stands, divided by those machines.
            down: the same for `target`.
        """
        clock, delay = self._clock, self._delay
        if source is target or size <= 0:
            clock.after(0.0, then)
            return
        parts = max(1, round(size / self._part))
        seconds = size / parts / self._rate

        def part(left: int) -> None:
            sent = source.up.take(clock.now, seconds * up)
            begin = sent - seconds * up + delay  # The first bytes arrive while the others are sent.

            def arrive() -> None:
                end = max(target.down.take(clock.now, seconds * down), sent + delay)
                if left > 1:  # A full queue at the other end holds the source back.
                    clock.at(max(sent, end - delay), lambda: part(left - 1))
                else:
                    clock.at(end, then)

            clock.at(begin, arrive)

        part(parts)


def after_all(count: int, then: Then) -> Then:
    """Returns a function that calls `then` when it was called so often."""
    left = [count]

    def one() -> None:
        left[0] -= 1
        if not left[0]:
            then()

    return one
