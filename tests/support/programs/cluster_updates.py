"""Calls a worker from several threads while TensorFlow takes another one into the cluster again and again; prints what failed.

Two more servers stand for the restarts of worker:1: the cluster gets the address of one, then that of the other.
"""

import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import tensorflow as tf

import tfdist
from tfdist.cluster import Cluster, Task
from tfdist.strategies.coordinator.members import recovery
from tfdist.strategies.private_api.coordinator import cluster_of
from tfdist.strategies.private_api.eager_context import use_own_executor
from tfdist.strategies.runtime import chief_device

sys.path.append(str(Path(__file__).resolve().parents[1]))
from reserved import free_ports

SECONDS, THREADS = float(sys.argv[1]), 5
SERVER = """
import json, sys, tensorflow as tf
cluster = tf.train.ClusterSpec({job: {int(i): a for i, a in tasks.items()} for job, tasks in json.loads(sys.argv[1]).items()})
tf.distribute.Server(cluster, job_name="worker", task_index=1, protocol="grpc").join()
"""

tasks = (Task("chief", 0), Task("worker", 0), Task("worker", 1), Task("ps", 0))
strategy = tfdist.strategy(Cluster(tasks, strategy="parameter_server"))
handler = cluster_of(strategy.executions._coordinator).failure_handler
with strategy.scope():
    variable = tf.Variable(1.0)
with tf.device("/job:worker/replica:0/task:0"):
    function = tf.function(lambda x: x + variable).get_concrete_function(tf.TensorSpec([]))


def start(port):
    addresses = {
        job.name: {str(index): address for index, address in job.tasks.items()} for job in handler._server_def.cluster.job
    }
    addresses["worker"]["1"] = f"localhost:{port}"
    server = subprocess.Popen([sys.executable, "-c", SERVER, json.dumps(addresses)], stderr=subprocess.DEVNULL)
    while True:
        try:
            socket.create_connection(("localhost", port), 1.0).close()
            return server
        except OSError:
            assert server.poll() is None
            time.sleep(0.1)


ports = free_ports(2)
servers = [start(port) for port in ports]
recovery.answering = lambda tasks, deadline: set(tasks)
over, calls, updates, errors = threading.Event(), [0] * THREADS, 0, []


def call(number):
    executor = use_own_executor()
    while not over.is_set():
        try:
            with strategy.call_gate.call(), tf.device("/job:worker/replica:0/task:0"):
                assert float(function(chief_device.constant(1.0))) == 2.0
            calls[number] += 1
        except Exception as error:
            errors.append(str(error))
            executor.clear_error()


threads = [threading.Thread(target=call, args=(number,)) for number in range(THREADS)]
for thread in threads:
    thread.start()
end = time.monotonic() + SECONDS
while time.monotonic() < end or updates <= 10 or sum(calls) <= updates:  # So many also on a machine that is busy.
    for job in handler._server_def.cluster.job:
        if job.name == "worker":
            job.tasks[1] = f"localhost:{ports[updates % 2]}"
    handler._waiting = {"a group"}
    assert handler._update(), handler._error_from_recovery
    updates += 1
    time.sleep(0.02)  # For calls between two updates.
over.set()
for thread in threads:
    thread.join(30)
for server in servers:
    server.kill()
    server.wait()
print("FOUND " + json.dumps({"calls": sum(calls), "updates": updates, "errors": errors[:3]}), flush=True)
