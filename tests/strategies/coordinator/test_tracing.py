"""The lock under which functions of worker groups are traced, and its clock."""

from types import SimpleNamespace

from tfdist.strategies.coordinator.calls.tracing import TracingLock


def test_the_clock_stands_still_while_a_function_is_traced():
    time = SimpleNamespace(now=5.0)
    lock = TracingLock(lambda: time.now)
    begin = lock.now()
    time.now += 1.0
    with lock, lock:
        time.now += 3.0
        assert lock.now() - begin == 1.0 and lock.seconds_held == 3.0
    time.now += 0.5
    assert lock.now() - begin == 1.5 and lock.seconds_held == 3.0
