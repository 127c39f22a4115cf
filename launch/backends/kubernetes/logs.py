"""`PodLogs`: the output of the pods of a job, once or as it comes."""

import itertools
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from tfdist.launch.backends.interface import BackendError, LogLine, NoAnswerError
from tfdist.launch.backends.kubernetes.server import Server
from tfdist.launch.backends.kubernetes.state import container_of, task_of
from tfdist.launch.backends.outage import Outage

AGAIN_SECONDS = 1.0
"""Delay before a stream that has ended is asked again."""

LINES = 10_000
"""Lines that wait for a slow reader. Then the streams wait."""


class PodLogs:
    """The streams of the pods of a job, each read by a thread."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._lines: queue.Queue[LogLine] = queue.Queue(LINES)
        self._streams: dict[str, threading.Thread] = {}
        self._finished: set[str] = set()  # Pods that print nothing more.
        self._closed = threading.Event()

    def follow(self, pods: "list[Mapping[str, Any]]") -> None:
        """Takes note of the pods that there are, and starts a stream for each that has run."""
        for pod in pods:
            name = pod["metadata"]["name"]
            if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
                self._finished.add(name)
            has_run = any(
                each.get("state", {}).keys() & {"running", "terminated"} or each.get("lastState")
                for each in pod.get("status", {}).get("containerStatuses", ())
            )
            if has_run and name not in self._streams:
                arguments = (name, task_of(pod), container_of(pod))
                self._streams[name] = threading.Thread(target=self._read, args=arguments, daemon=True)
                self._streams[name].start()

    def lines(self, seconds: float) -> Iterator[LogLine]:
        """Yields what comes within some seconds."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                yield self._lines.get(timeout=left)
            except queue.Empty:
                return

    def rest(self, pods: "list[Mapping[str, Any]]") -> Iterator[LogLine]:
        """Yields what is left when all pods have ended, and ends."""
        self._finished |= {pod["metadata"]["name"] for pod in pods} | self._streams.keys()
        while any(thread.is_alive() for thread in self._streams.values()) or not self._lines.empty():
            yield from self.lines(0.1)
        self._closed.set()

    def close(self) -> None:
        """Ends the streams, soon."""
        self._closed.set()

    def _read(self, pod: str, task: str, container: str) -> None:
        last, outage = "", Outage()  # The time of the last line.
        while not self._closed.is_set():
            was_finished = pod in self._finished  # Before the read, which then gets everything.
            known = _order(last)  # A stream that is asked again begins some lines before.
            try:
                for line in whole_lines(self._server.log(pod, container, follow=True, since=last)):
                    stamp, _, text = line.partition(" ")
                    if _order(stamp) > known:
                        last = stamp
                        self._put(LogLine(task, text))
                outage.answered()
            except NoAnswerError as error:
                try:
                    outage.without_answer(error)
                except NoAnswerError:
                    return
                was_finished = False  # What is left of it comes with a later answer.
            except BackendError:
                if was_finished:
                    return  # The pod is gone.
            if was_finished:
                return
            self._closed.wait(AGAIN_SECONDS)

    def _put(self, line: LogLine) -> None:
        while not self._closed.is_set():
            try:
                self._lines.put(line, timeout=0.5)
                return
            except queue.Full:
                continue


def _order(stamp: str) -> tuple[str, str]:
    """Returns what orders the times of lines, `2026-01-01T00:00:00.123456789Z`: the fraction may lack its last zeros."""
    seconds, _, rest = stamp.partition(".")
    return seconds[:19], "".join(itertools.takewhile(str.isdecimal, rest)).ljust(9, "0")


def whole_lines(pieces: Iterator[bytes]) -> Iterator[str]:
    """Yields lines, without their ends, of bytes that were cut anywhere."""
    buffered = b""
    for piece in pieces:
        *lines, buffered = (buffered + piece).split(b"\n")
        yield from (line.decode("utf-8", "replace") for line in lines)
    if buffered:
        yield buffered.decode("utf-8", "replace")
