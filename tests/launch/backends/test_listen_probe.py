"""A launcher whose tasks have taken all files that it may open (`ulimit -n`) still notices that they listen."""

import contextlib
import os
import resource
import socket

from tfdist.cluster import Task
from tfdist.launch.backends.listening import ListenProbe


@contextlib.contextmanager
def no_more_files():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = []
    with contextlib.suppress(OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(int(name) for name in os.listdir("/proc/self/fd")), before[1]))
        while True:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for descriptor in opened:
            os.close(descriptor)


def test_tasks_are_found_although_no_file_can_be_opened_and_nothing_stays_open():
    before = len(os.listdir("/proc/self/fd"))
    with socket.create_server(("localhost", 0)) as listener:
        tasks = [Task("worker", 0, "localhost", listener.getsockname()[1]), Task("worker", 1, "localhost", 1)]
        probe = ListenProbe(tasks)
        with no_more_files():
            found = probe.events()
        assert [event.task for event in found] == ["worker:0"]
        probe.close()
    assert len(os.listdir("/proc/self/fd")) == before
