"""Runs TensorFlow's tests of faults under ParameterServerStrategy (fault_tolerance_test_base.py) on tfdist's parameter_server.

    python fault_tolerance.py TestFaults.testTwoWorkersPreempted

One test per process: a program has one strategy. Its servers are processes of tfdist, started with TF_CONFIG.
"""

import json
import os
import signal
import socket
import sys
import time
import unittest
from pathlib import Path

from tensorflow.python.distribute.coordinator import cluster_coordinator, fault_tolerance_test_base
from tensorflow.python.training import coordinator as thread_coordinator

import tfdist

sys.path.append(str(Path(__file__).resolve().parents[1]))
from reserved import free_ports


class Servers:
    """Real ps and worker processes: forks of a process that has imported TensorFlow and not initialized it."""

    def __init__(self, workers, ps):
        jobs = {"chief": 1, "worker": workers, "ps": ps}
        ports = free_ports(sum(jobs.values()))
        self.cluster = {job: [f"localhost:{ports.pop()}" for _ in range(count)] for job, count in jobs.items()}
        self._pids = {}
        ours, theirs = socket.socketpair()
        self._nursery = os.fork()
        if self._nursery == 0:
            ours.close()
            self._fork_on_demand(theirs.makefile("rw"))
        theirs.close()
        self._requests = ours.makefile("rw")
        for job in ("worker", "ps"):
            for index in range(jobs[job]):
                self.start_task(job, index)

    def config(self, job, index):
        return json.dumps({"cluster": self.cluster, "task": {"type": job, "index": index}})

    def _fork_on_demand(self, requests):
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        for line in requests:
            pid = os.fork()
            if pid == 0:
                os.environ["TF_CONFIG"] = line.strip()
                tfdist.strategy()  # Serves, and ends this process.
            requests.write(f"{pid}\n")
            requests.flush()
        os._exit(0)

    def start_task(self, job, index):
        self._requests.write(self.config(job, index) + "\n")
        self._requests.flush()
        self._pids[job, index] = int(self._requests.readline())
        host, _, port = self.cluster[job][index].rpartition(":")
        deadline = time.monotonic() + 60
        while True:
            try:
                return socket.create_connection((host, int(port)), 1).close()
            except OSError:
                assert time.monotonic() < deadline, f"{job}:{index} does not listen"
                time.sleep(0.05)

    def kill_task(self, job, index):
        os.kill(self._pids.pop((job, index)), signal.SIGKILL)

    def stop(self):
        for pid in [*self._pids.values(), self._nursery]:
            os.kill(pid, signal.SIGKILL)


class TestFaults(fault_tolerance_test_base.BaseFaultToleranceTest, unittest.TestCase):
    def setUp(self):
        self.num_workers, self.num_ps = 2, 2
        self._cluster = Servers(self.num_workers, self.num_ps)
        self.addCleanup(self._cluster.stop)
        os.environ["TF_CONFIG"] = self._cluster.config("chief", 0)
        self.strategy = tfdist.strategy()
        self.cluster_coord = cluster_coordinator.ClusterCoordinator(self.strategy)
        self.thread_coord = thread_coordinator.Coordinator(clean_stop_exception_types=[])

    def tearDown(self):
        pass  # `stop` is a cleanup.

    def testClusterCoordinatorDestroyed(self):
        self.skipTest("tfdist.strategy() returns the same strategy, with its threads, as long as the program runs")

    def _ensure_threads_closed(self):
        pass  # As above.


if __name__ == "__main__":
    result = unittest.main(exit=False).result
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(not result.wasSuccessful())  # TensorFlow would wait for the servers, which are gone.
