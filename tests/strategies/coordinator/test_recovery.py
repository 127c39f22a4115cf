"""Restarted workers come back to the cluster although others are gone, and calls wait while TensorFlow changes it."""

import contextlib
import errno
import json
import os
import socket
import threading
import time
from types import SimpleNamespace

import pytest
import tensorflow as tf
from reserved import free_port
from support_paths import PROGRAMS
from tensorflow.core.protobuf import tensorflow_server_pb2
from waits import wait_until

from tfdist.cluster import Task
from tfdist.strategies.coordinator.members import call_gate, probe, recovery, server_recovery
from tfdist.strategies.coordinator.members.call_gate import CallGate
from tfdist.strategies.coordinator.members.disconnect import disconnect
from tfdist.strategies.runtime.deadline import Deadline


def test_calls_wait_while_the_gate_is_closed_and_closing_waits_for_calls():
    gate, events = CallGate(), []
    inside, leave = threading.Event(), threading.Event()

    def call(name):
        with gate.call(), gate.call():  # A call within a call does not wait.
            events.append(f"{name} begins")
            inside.set()
            leave.wait(10)
            events.append(f"{name} ends")

    first = threading.Thread(target=call, args=("first",))
    first.start()
    inside.wait(10)
    threading.Timer(0.1, leave.set).start()
    with gate.closed():
        events.append("closed")
        second = threading.Thread(target=call, args=("second",))
        second.start()
        time.sleep(0.1)
        events.append("opens")
    first.join(10)
    second.join(10)
    assert events == ["first begins", "first ends", "closed", "opens", "second begins", "second ends"]


def test_others_pass_while_the_gate_waits_for_the_first_call_of_a_group_which_compiles(monkeypatch):
    monkeypatch.setattr(call_gate, "HOLD_SECONDS", 30.0)
    gate, inside, leave, closed = CallGate(), threading.Event(), threading.Event(), threading.Event()

    def compile_first():
        with gate.call():
            inside.set()
            leave.wait(30)

    def close():
        with gate.closed():
            closed.set()

    threads = [threading.Thread(target=compile_first), threading.Thread(target=close)]
    threads[0].start()
    inside.wait(10)
    threads[1].start()
    time.sleep(0.2)  # Until the gate is to be closed.
    passed = threading.Event()

    def pass_through():
        with gate.call():
            passed.set()

    threads.append(threading.Thread(target=pass_through))
    threads[2].start()
    has_passed = passed.wait(5)
    assert not closed.is_set()
    leave.set()
    for thread in threads:
        thread.join(10)
    assert has_passed and closed.is_set()


def test_no_wait_at_the_gate_is_without_a_limit(monkeypatch):
    monkeypatch.setattr(call_gate, "HOLD_SECONDS", 0.05)
    gate, passed = CallGate(), threading.Event()

    def call():
        with gate.call():
            passed.set()

    with gate.call(), gate.closed(0.05):  # A call to a worker that is stopped never ends.
        thread = threading.Thread(target=call)
        thread.start()
        assert passed.wait(10)  # And so may an update.
    thread.join(10)


@pytest.mark.cluster
def test_no_call_to_a_healthy_worker_fails_while_restarted_ones_are_taken_into_the_cluster(start):
    job = start(str(PROGRAMS / "cluster_updates.py"), "8")
    assert job.wait(200) == 0, job.output
    found = json.loads(job.output.partition("FOUND ")[2].splitlines()[0])
    assert not found["errors"] and found["updates"] > 10 and found["calls"] > found["updates"], found


class Handler(recovery.Recovery):
    """A `Recovery` without TensorFlow's cluster and thread."""

    def __init__(self, monkeypatch, tasks_of):
        self.answers, self.updates = set(), []
        monkeypatch.setattr(recovery, "answering", lambda tasks, deadline: {t for t in tasks if t.index in self.answers})
        monkeypatch.setattr(recovery, "update_server_def", self.note)
        self._workers = [Task("worker", index, host="w", port=1) for index in range(3)]
        self._tasks_of, self._gate, self._waiting = tasks_of, CallGate(), set()
        self._worker_up_cond = threading.Condition()
        self._cluster_due_for_update_or_finish = threading.Event()
        self._should_preemption_thread_run, self._error_from_recovery = True, None
        self._server_def = tensorflow_server_pb2.ServerDef()
        for job, tasks in (("ps", 1), ("worker", 3)):
            described = self._server_def.cluster.job.add(name=job)
            for index in range(tasks):
                described.tasks[index] = f"{job}{index}:1"

    def note(self, server_def):
        self.updates.append({job.name: sorted(job.tasks) for job in server_def.cluster.job})


def test_the_cluster_is_updated_without_the_workers_that_are_gone(monkeypatch):
    handler = Handler(monkeypatch, {"a": (0,), "b": (1,), "c": (2,)})
    handler._waiting = {"a", "b"}
    handler.answers = {2}
    assert not handler._update() and handler.updates == []  # Both are gone.
    handler.answers = {1, 2}
    assert not handler._update()
    assert handler.updates == [{"ps": [0], "worker": [1, 2]}] and handler._waiting == {"a"}
    handler.answers = {0, 1, 2}
    assert handler._update()
    assert handler.updates[1:] == [{"ps": [0], "worker": [0, 1, 2]}] and handler._waiting == set()


def test_a_group_that_is_back_before_its_thread_waits_goes_on_although_another_group_stays_away(monkeypatch):
    handler, back = Handler(monkeypatch, {"a": (0,), "b": (1,)}), threading.Event()
    handler._waiting, handler.answers = {"a"}, {1, 2}
    handler._cluster_update_lock = threading.Lock()
    handler._worker_up_cond = threading.Condition(handler._cluster_update_lock)
    handler._cluster = SimpleNamespace(
        _record_and_ignore_transient_ps_failure=lambda error: False, _record_and_ignore_transient_timeouts=lambda error: False
    )

    def call():
        with handler.wait_on_failure(lambda error: handler._update(), None, back.set, "b"):  # The other thread was faster.
            raise tf.errors.InvalidArgumentError(None, None, "Resource input tensor contains an invalid device")

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    for _ in range(100):
        if back.wait(0.05):
            break
        handler._update()
    assert back.is_set() and handler._waiting == {"a"} and len(handler.updates) == 1
    thread.join(10)


def test_a_group_of_several_tasks_waits_for_all_of_them(monkeypatch):
    handler = Handler(monkeypatch, {"a": (0, 1), "c": (2,)})
    handler._waiting, handler.answers = {"a"}, {0, 2}
    assert not handler._update()
    handler.answers = {0, 1, 2}
    assert handler._update() and len(handler.updates) == 1


def test_an_error_of_a_ps_reaches_the_groups_and_that_of_a_worker_is_tried_again(monkeypatch):
    handler = Handler(monkeypatch, {"a": (0,)})
    handler._waiting, handler.answers = {"a"}, {0, 1, 2}
    handler._validate_preemption_failure = lambda error: None

    def fails(server_def):
        raise ValueError("gone")

    monkeypatch.setattr(recovery, "update_server_def", fails)
    assert not handler._update() and handler._waiting == {"a"} and handler._error_from_recovery is None
    monkeypatch.setattr(
        recovery.WorkerPreemptionHandler, "_validate_preemption_failure", lambda self, e: (_ for _ in ()).throw(e)
    )
    del handler._validate_preemption_failure
    assert handler._update() and "gone" in str(handler._error_from_recovery)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_ps_that_is_lost_while_a_worker_is_taken_back_is_waited_for_where_it_can_be(monkeypatch, is_lost):
    handler = Handler(monkeypatch, {"a": (0,)})
    handler._waiting, handler.answers = {"a"}, {0, 1, 2}
    handler.servers = object.__new__(server_recovery.ServerRecovery)
    handler.servers.is_due = False
    monkeypatch.setattr(handler.servers, "do_all_answer", lambda: True, raising=False)
    monkeypatch.setattr(handler.servers, "_restarted", lambda: [Task("ps", 0)] if is_lost else [], raising=False)

    def fails(server_def):
        remote = "Additional GRPC error information from remote target /job:ps/replica:0/task:0"
        raise tf.errors.AbortedError(None, None, f"Unable to find a context_id matching the specified one. {remote}")

    monkeypatch.setattr(recovery, "update_server_def", fails)
    assert handler._update() != is_lost
    assert handler.servers.is_due == is_lost and (handler._error_from_recovery is None) == is_lost
    assert handler._waiting == ({"a"} if is_lost else set())


def test_a_ps_that_is_lost_just_after_a_worker_was_taken_back_is_waited_for(monkeypatch):
    handler = Handler(monkeypatch, {"a": (0,)})
    handler._waiting, handler.answers, handler.servers = {"a"}, {0, 1, 2}, SimpleNamespace(is_due=False)

    def update(server_def):  # Meanwhile the thread of another group asks for the ps.
        handler.servers.is_due = True
        handler._cluster_due_for_update_or_finish.set()

    monkeypatch.setattr(recovery, "update_server_def", update)
    assert not handler._update() and handler._waiting == set()
    assert handler._cluster_due_for_update_or_finish.is_set()  # Else the thread that takes the ps back would sleep.


def test_the_error_of_a_resource_of_a_restarted_worker_is_that_of_a_lost_worker(monkeypatch):
    handler = Handler(monkeypatch, {})
    handler._validate_preemption_failure(ValueError("Resource input tensor contains an invalid device. This might happen"))


NOT_SENT = """RecvTensor expects a different device incarnation: 16 vs. 11. Your worker job ("{sender}") was probably restarted.
Additional GRPC error information from remote target {sender} while calling /tensorflow.WorkerService/RecvTensor:
:UNKNOWN:Error received from peer
Additional GRPC error information from remote target {caller}/device:CPU:0 while calling /tensorflow.eager.EagerService/Enqueue:
"""


def test_a_worker_whose_tensor_a_ps_did_not_get_is_lost_and_not_the_ps(monkeypatch):
    """A device of a partitioned replica pushes its shards itself."""
    handler = Handler(monkeypatch, {})
    worker, ps = "/job:worker/replica:0/task:1", "/job:ps/replica:0/task:0"
    handler._validate_preemption_failure(tf.errors.AbortedError(None, None, NOT_SENT.format(sender=worker, caller=ps)))
    for error in (
        tf.errors.AbortedError(None, None, NOT_SENT.format(sender=ps, caller=worker)),
        tf.errors.InvalidArgumentError(None, None, NOT_SENT.format(sender=worker, caller=ps)),
    ):
        with pytest.raises(type(error)):
            handler._validate_preemption_failure(error)


@pytest.mark.parametrize("message", ["Unable to parse request", "another internal error"])
def test_a_call_that_was_damaged_on_its_way_is_made_again(monkeypatch, message):
    handler, again = Handler(monkeypatch, {}), []
    handler._should_preemption_thread_run = True
    handler._cluster = SimpleNamespace(
        _record_and_ignore_transient_ps_failure=lambda error: False, _record_and_ignore_transient_timeouts=lambda error: False
    )
    monkeypatch.setattr(handler, "_validate_preemption_failure", lambda error: (_ for _ in ()).throw(error))
    damaged = message == "Unable to parse request"
    with contextlib.nullcontext() if damaged else pytest.raises(tf.errors.InternalError, match=message):  # noqa: SIM117
        with handler.wait_on_failure(on_transient_failure_fn=lambda: again.append(1), worker_device_name="a"):
            raise tf.errors.InternalError(None, None, f"from worker: {message}")
    assert again == [1] * damaged


LATE = "Additional GRPC error information from remote target /job:worker/task:0 while calling"


@pytest.mark.parametrize(
    ("message", "answers", "is_lost"),
    [
        (LATE, {0}, False),  # The call may have begun before the ps was back.
        (LATE, {1}, True),
        (f"Unable to find a context_id matching the specified one. {LATE}", {0}, True),  # The worker is back already.
        (f"{LATE}: GRPC error information from remote target /job:ps/task:0", {1}, False),
    ],
)
def test_soon_after_a_ps_is_back_a_worker_that_is_lost_is_noticed_at_once(monkeypatch, message, answers, is_lost):
    handler, again, lost = Handler(monkeypatch, {"a": (0,)}), [], []
    handler.answers = answers
    handler.servers = SimpleNamespace(wait_if_lost=lambda error: True)
    handler._cluster = SimpleNamespace(
        closure_queue=SimpleNamespace(_cancellation_mgr=SimpleNamespace(is_cancelled=False)),
        _record_and_ignore_transient_ps_failure=lambda error: False,
        _record_and_ignore_transient_timeouts=lambda error: False,
    )

    def lose(error):
        lost.append(error)
        raise KeyboardInterrupt  # Instead of waiting for the worker.

    with contextlib.suppress(KeyboardInterrupt), handler.wait_on_failure(lose, lambda: again.append(1), None, "a"):
        raise tf.errors.UnavailableError(None, None, message)
    assert (len(lost), len(again)) == (is_lost, not is_lost)


@pytest.fixture
def listener():
    with socket.create_server(("localhost", free_port())) as listener:
        yield listener


def test_a_task_answers_if_it_sends_what_http_2_servers_send_first(listener):
    task = Task("worker", 0, host="localhost", port=listener.getsockname()[1])

    def serve(answer):
        connection, _ = listener.accept()
        with connection:
            connection.sendall(answer)
            connection.recv(1000)

    for answer, expected in ((bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]), {task}), (b"HTTP/1.1 400 Bad Request\r\n", set())):
        thread = threading.Thread(target=serve, args=(answer,))
        thread.start()
        assert probe.answering([task], Deadline.after(10.0)) == expected
        thread.join(10)
    assert probe.answering([task], Deadline.after(0.2)) == set()  # The kernel accepts for a process that is stopped.
    listener.close()
    assert probe.answering([task], Deadline.after(1.0)) == set()


def test_connections_to_a_task_are_shut_down_and_no_others(listener):
    with socket.create_server(("localhost", 0)) as other:
        here, there = (socket.create_connection(each.getsockname()) for each in (other, listener))
        with here, there, listener.accept()[0] as accepted, other.accept()[0] as kept:
            descriptors = len(os.listdir("/proc/self/fd"))
            assert disconnect(Task("worker", 0, host="localhost", port=listener.getsockname()[1])) == 1
            accepted.settimeout(10)
            assert accepted.recv(1) == b""
            here.sendall(b"1")
            assert kept.recv(1) == b"1"
            wait_until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)  # Other threads may open some for a moment.


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_connection_to_a_task_that_is_being_made_is_ended(host):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.ExitStack() as opened:
        try:
            full = opened.enter_context(socket.create_server((host, 0), family=family, backlog=0))
        except OSError:
            pytest.skip(f"this machine has no address {host}")
        callers = [opened.enter_context(socket.socket(family)) for _ in range(4)]
        for caller in callers:  # One is taken. The others wait, as for a machine that does not answer.
            caller.setblocking(False)
            assert caller.connect_ex(full.getsockname()) == errno.EINPROGRESS
        assert disconnect(Task("worker", 0, host=host, port=full.getsockname()[1])) == len(callers)
        for caller in callers[1:]:
            with pytest.raises(ConnectionResetError):
                caller.recv(1)
