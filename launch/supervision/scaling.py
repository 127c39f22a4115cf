"""`Scaling`: workers join and leave while a job trains. `tfdist scale` asks for it, and the supervisor starts and ends them.

The two meet in the log folder of the job: `workers.json` says how many workers there are and may be, `workers.request` asks for
a number. So it works for jobs in the background and in a terminal, and from another process of the same user only.
"""

import dataclasses
import json
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from tfdist import strategies
from tfdist.cluster import Cluster, Task
from tfdist.json_values import replace_file
from tfdist.launch.errors import UsageError
from tfdist.launch.jobs.job import Job
from tfdist.launch.jobs.restarts import Restarts
from tfdist.launch.supervision.running_tasks import RunningTasks
from tfdist.launch.supervision.status_board import StatusBoard

STATE, REQUEST = "workers.json", "workers.request"

POLL_SECONDS = 0.5

END_SECONDS = 5.0
"""How long a worker may take to end after SIGTERM."""


@dataclass(frozen=True)
class Room:
    """What the launcher says about its workers.

    Attributes:
        now: number of workers that it runs, or restarts.
        most: number of workers for which the job has room.
        refusal: why that cannot change, as a sentence; None if it can.
    """

    now: int
    most: int
    refusal: str | None = None

    @classmethod
    def read(cls, log_dir: Path) -> "Room | None":
        """Returns what the launcher of a job has written; None if there is none."""
        try:
            return cls(**json.loads((log_dir / STATE).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None


def ask(log_dir: Path, number: int) -> None:
    """Asks the launcher of a job for a number of workers. Raises OSError."""
    replace_file(log_dir / REQUEST, number)


def is_asked(log_dir: Path) -> bool:
    """Returns whether the launcher has not taken the last request yet."""
    return (log_dir / REQUEST).exists()


def forget(log_dir: Path) -> None:
    """Removes what the launcher of a job that has ended says about its workers."""
    _remove(log_dir / STATE)
    _remove(log_dir / REQUEST)


def with_room(cluster: Cluster, most: int) -> Cluster:
    """Returns the cluster with room for `most` workers, on the hosts of its own; its training begins with its own.

    Raises:
        UsageError: if it has more already, or worker groups that say nothing about further workers.
    """
    workers = cluster.job("worker")
    if most < len(workers) or not workers:
        raise UsageError(f"--max_workers {most}: the description has {len(workers)} workers already ({cluster.describe()})")
    if cluster.worker_groups != cluster.default_worker_groups:
        raise UsageError("--max_workers: the description has worker groups of its own, to which no worker can be added")
    if most == len(workers):
        return cluster
    added = [dataclasses.replace(workers[index % len(workers)], index=index, port=None) for index in range(len(workers), most)]
    return dataclasses.replace(
        cluster, tasks=(*cluster.tasks, *added), worker_groups=(), min_workers=cluster.min_workers or len(workers)
    )


class Scaling:
    """The workers of a job that come and go.

    Call `tick` several times a second. If the whole job is started again (`is_restart`), workers that had joined stay.

    Attributes:
        idle: names of the workers that do not run because nobody has asked for them, or that were asked to leave.
    """

    def __init__(
        self,
        job: Job,
        log_dir: Path,
        workers: Restarts,
        tasks: RunningTasks,
        board: StatusBoard,
        say: Callable[[str], None],
        *,
        is_restart: bool,
    ) -> None:
        self._log_dir, self._workers, self._tasks, self._board, self._say = log_dir, workers, tasks, board, say
        self._all: tuple[Task, ...] = job.cluster.job("worker")
        self._refusal = _refusal(job)
        begins = len(self._all) - len(job.spare)
        before = Room.read(log_dir) if is_restart else None
        self._wanted = begins if before is None else max(begins, min(before.now, len(self._all)))
        self.idle: set[str] = set()
        self._killed_at: dict[str, float] = {}  # When a worker that was asked to leave is killed.
        self._next = 0.0
        self._is_over = False
        for task in self._all[self._wanted :]:
            self._set_aside(task)
        if not is_restart:  # Else it waits for its answer.
            _remove(log_dir / REQUEST)
        self._publish()

    def tick(self) -> None:
        """Takes a request, and brings the workers closer to what it asks for."""
        now = time.monotonic()
        if self._is_over or now < self._next:
            return
        self._next = now + POLL_SECONDS
        self._take_request()
        for task in self._all[self._wanted :]:
            if task.name not in self.idle:
                self._set_aside(task)
                self._tasks.signal([task.name], signal.SIGTERM)
                if task.name in self._tasks.running:  # Not before its restart: the next process is another one.
                    self._killed_at[task.name] = now + END_SECONDS
        for name, when in list(self._killed_at.items()):
            if now >= when:
                del self._killed_at[name]
                self._tasks.signal([name], signal.SIGKILL)
        for task in self._all[: self._wanted]:
            if task.name in self.idle and task.name not in self._tasks.running:
                self.idle.remove(task.name)
                self._workers.take_back(task.name)
                self._board.restarted(task.name, counts=False)
                if self._tasks.any_started:  # Else it starts with the others, when the back end is ready.
                    self._tasks.start(task)

    def _take_request(self) -> None:
        wanted = self._request()
        if wanted is None:
            return
        if self._refusal is None and 1 <= wanted <= len(self._all):
            self._say(f"{self._wanted} workers become {wanted}, as tfdist scale has asked")
            self._wanted = wanted
            self._publish()
        _remove(self._log_dir / REQUEST)  # After the answer, which is read then.

    def exited(self, name: str) -> None:
        """Notes that a worker that was asked to leave has ended: that is no failure."""
        self._killed_at.pop(name, None)
        self._tasks.exits[name] = 0
        self._board.set_aside(name)

    def stop(self) -> None:
        """Ends it: from now on no worker is started or ended."""
        self._is_over = True

    def _set_aside(self, task: Task) -> None:
        self.idle.add(task.name)
        self._workers.set_aside(task.name)
        self._board.set_aside(task.name)

    def _request(self) -> int | None:
        try:
            number = json.loads((self._log_dir / REQUEST).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return number if isinstance(number, int) else 0

    def _publish(self) -> None:
        try:
            replace_file(self._log_dir / STATE, asdict(Room(self._wanted, len(self._all), self._refusal)))
        except OSError:
            pass  # A full disk does not end the training.


def _refusal(job: Job) -> str | None:
    """Returns why the number of workers of a job cannot change; None if it can."""
    if not job.cluster.job("worker"):
        return "this job has no workers that could join or leave"
    return strategies.fixed_workers(job.cluster, job.choice)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        pass
