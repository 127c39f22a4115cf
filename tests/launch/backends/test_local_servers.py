"""The servers of a plain program: what the thread that watches them does with what it hears, without processes."""

import os
from types import SimpleNamespace

import pytest

from tfdist import Task
from tfdist.launch.backends.local import local_servers
from tfdist.launch.jobs.events import Exited, Started
from tfdist.strategies.runtime.peers import note_failures


class Processes:
    """The processes of servers, which have said what `events` holds."""

    def __init__(self, events):
        self.events = events
        self.read_end, self.write_end = os.pipe()
        os.write(self.write_end, b"." * len(events))

    def close(self):
        os.close(self.read_end)
        os.close(self.write_end)

    def fileno(self):
        return self.read_end

    def read(self):
        os.read(self.read_end, 1)
        return self.events.pop(0)


class Ending:
    """An event that is set when the watcher has read everything, and counts how often it was waited for."""

    def __init__(self, processes):
        self.processes = processes
        self.waits = 0

    def is_set(self):
        return not self.processes.events

    def wait(self, seconds):
        self.waits += 1
        return False


class NoRestarts:
    names = frozenset()

    def tick(self):
        pass


@pytest.fixture
def watched(tmp_path):
    def watch(events):
        servers = object.__new__(local_servers._Servers)
        servers._processes = Processes(events)
        servers._ending = Ending(servers._processes)
        servers._restarts = NoRestarts()
        servers._tasks = [Task("ps", index, "localhost", 1) for index in range(30)]
        servers._logs = {task.name: tmp_path / task.name for task in servers._tasks}
        servers._watch()
        servers._processes.close()
        note_failures(servers._tasks, None)
        return servers._ending.waits

    return watch


def test_many_servers_that_start_do_not_delay_the_news_of_one_that_has_failed(watched, caplog):
    events = [Started(f"ps:{index}", 1000 + index) for index in range(30)]
    assert watched([*events, Exited("ps:7", 3)]) == 1
    assert "ps:7 failed: it exited with 3" in caplog.text


def test_a_server_is_started_again_after_a_cleanup_of_temporary_folders(tmp_path):
    """As systemd does with what nobody has changed for ten days."""
    started = []
    servers = object.__new__(local_servers._Servers)
    servers._processes = SimpleNamespace(start=lambda task, output: started.append((task.name, os.fstat(output).st_mode)))
    servers._restarts = SimpleNamespace(exited=started.append)
    servers._logs = {"ps:0": tmp_path / "gone" / "ps-0.log"}
    servers._restart(Task("ps", 0, "localhost", 1))
    assert started == [("ps:0", os.stat(os.devnull).st_mode)]
