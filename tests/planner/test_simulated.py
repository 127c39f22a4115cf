"""The simulator against formulas that are exact."""

import pytest
from costs_of import MODEL, measured

from tfdist.planner import events, simulated
from tfdist.planner.costs import HOP_SECONDS, Costs
from tfdist.planner.events import QUEUED, Clock, Links, Machine
from tfdist.planner.option import Hardware, Option
from tfdist.planner.predict import predict, simulate
from tfdist.planner.predict import simulated as predicted
from tfdist.planner.queues import cycle as queued
from tfdist.planner.simulated import Network
from tfdist.planner.simulated_periods import Hogwild
from tfdist.planner.simulated_steps import ParameterServer, without_order
from tfdist.planner.ways import Way, way_of

FREE = Network(1e15, 0.0, 4)
STEP = 0.01


def speed(strategy, workers, ps=1, network=FREE, **changes):
    """Steps per second of all workers."""
    options = {name: changes.pop(name) for name in ("period", "delay", "fragments") if name in changes}
    option = Option(strategy, workers, ps, chief_apart=True, **options)
    return simulate(Way(option, STEP, **({"sent": (1e6,) * ps} | changes)), network).speed


@pytest.mark.parametrize("strategy", ["parameter_server", "hogwild"])
@pytest.mark.parametrize("workers", [1, 2, 100])
def test_workers_that_share_nothing_do_not_slow_each_other(strategy, workers):
    assert speed(strategy, workers, period=4) == pytest.approx(workers / STEP, rel=0.01)


@pytest.fixture
def small_messages_pass(monkeypatch):
    """A small message does not wait for large ones on its machine."""
    monkeypatch.setattr(events, "QUEUED", 0)


@pytest.mark.usefixtures("small_messages_pass")
@pytest.mark.parametrize("workers", [4, 24])
def test_what_all_share_bounds_the_speed_and_the_bound_is_reached(workers):
    narrow, seconds = Network(1e8, 0.0, 4), 1e6 / 1e8  # Each worker needs the link of the ps for as long as for a step.
    # Workers that queue for its two directions: exact for any times of service (BCMP, JACM 1975), if these vary.
    exact = workers / queued(workers, STEP, [seconds, seconds])
    way = Way(Option("parameter_server", workers, 1, chief_apart=True), STEP, sent=(1e6,))
    assert without_order(way, narrow).speed == pytest.approx(exact, rel=0.1)
    assert 0.99 * exact < simulate(way, narrow).speed <= 1.01 / seconds
    assert exact > 0.9 / seconds or workers < 24
    assert speed("parameter_server", workers, ps=4, network=narrow, sent=(0.25e6,) * 4) == pytest.approx(
        min(4 / seconds, workers / (STEP + 2 * seconds)), rel=0.35
    )
    assert speed("parameter_server", workers, server=0.4) == pytest.approx(4 / 0.4, rel=0.05)  # Four cores.
    assert speed("parameter_server", workers, chief=0.05) == pytest.approx(1 / 0.05, rel=0.05)
    long = speed("hogwild", workers, network=narrow, period=4, rounds=False)
    queues = 4 * workers / queued(workers, 4 * STEP, [seconds, seconds])  # And a step of each period hides a part of that.
    assert 0.9 * queues < long <= 1.01 * min(workers / STEP, 4 / seconds)
    batches = speed("hogwild", workers, network=narrow, period=4, batches=4e6)
    # In step: all get their batches, push, compute and pull together.
    assert 4 * workers / (workers * 6 * seconds + 4 * STEP) <= batches <= 4 / (4 * seconds)


def test_a_lone_worker_waits_for_every_part():
    network, seconds = Network(1e8, 0.002, 4), 0.01
    # The call, what the worker asks the ps for, the answer to its push, its end, and how the chief fetches the result.
    messages = 6 * 0.002
    parts = STEP + 0.003 + 0.004 + 0.005 + 2 * (seconds + 0.002) + messages
    assert speed("parameter_server", 1, network=network, worker=0.003, server=0.004, chief=0.005) == pytest.approx(1 / parts)


def test_a_message_waits_for_what_its_machine_has_queued():
    clock, arrived = Clock(), {}
    links, one, other = Links(clock, 1e6, 0.5), Machine(clock, "one", 1), Machine(clock, "other", 1)

    def tell(moment):
        clock.at(moment, lambda: links.tell(one, other, lambda: arrived.setdefault(moment, clock.now - moment)))

    clock.at(1.0, lambda: links.send(one, other, 2 * QUEUED, lambda: None))
    for moment in (0.5, 1.0, 1.0 + 1.75 * QUEUED / 1e6, 9.0):
        tell(moment)
    while clock.step():
        pass
    assert list(arrived.values()) == pytest.approx([0.5, 0.5 + QUEUED / 1e6, 0.5 + 0.25 * QUEUED / 1e6, 0.5])


def test_the_slowest_of_exponential_steps_is_the_harmonic_number(monkeypatch):
    monkeypatch.setattr(simulated, "CYCLES", 150)
    for workers in (2, 8):
        slowest = STEP * sum(1 / number for number in range(1, workers + 1))
        together = speed("parameter_server", workers, is_synchronous=True, spread=1.0)
        assert together == pytest.approx(workers / slowest, rel=0.15)
        assert speed("multi_worker_mirrored", workers, ps=0, sent=(0.0,), spread=1.0) < 1.15 / slowest
    assert speed("parameter_server", 8, spread=1.0) == pytest.approx(8 / STEP, rel=0.15)


def test_a_ring_sends_its_bytes_at_any_length():
    for workers in (2, 8, 1000):
        wire = 2 * (workers - 1) * (1e6 / workers / 1e8 + 0.001 + HOP_SECONDS)
        got = speed("multi_worker_mirrored", workers, ps=0, sent=(1e6,), network=Network(1e8, 0.001, 4))
        assert got == pytest.approx(1 / (STEP + wire))


def test_a_delay_hides_a_synchronization_that_is_not_longer():
    narrow = Network(1e8, 0.0, 4)  # Push and reply of two workers take 40 ms in all, as long as four steps.
    waits = speed("hogwild", 2, network=narrow, period=16, delay=1)
    hidden = speed("hogwild", 2, network=narrow, period=16, delay=8)
    assert waits < 0.9 * hidden
    assert hidden == pytest.approx(2 / STEP, rel=0.02)
    in_fragments = speed("hogwild", 2, network=narrow, period=16, delay=2, fragments=4)
    assert in_fragments == pytest.approx(2 / STEP, rel=0.05)


def test_no_ps_replies_to_a_period_before_all_of_them_have_the_pushes_of_all_groups():
    events = []

    class Recorded(Hogwild):
        def push(self, worker, number, size, then):
            super().push(worker, number, size, lambda: (events.append("push"), then()))

        def reply(self, number, worker, size, then):
            events.append("reply")
            super().reply(number, worker, size, then)

    option = Option("hogwild", 2, 2, colocated=True, period=40)
    # The chief's work lets worker 1 begin later, so that its push to ps 0 is the last one.
    way = Way(option, STEP, chief=0.1, sent=(0.9e6, 0.9e6), batches=3e5)
    hogwild = Recorded(way, Network(7e6, 1e-4, 1))
    hogwild.run(hogwild.begin)
    rounds = [events[begin : begin + 8] for begin in range(0, len(events) - 8, 8)]
    assert len(rounds) > 5
    assert all(each == ["push"] * 4 + ["reply"] * 4 for each in rounds[1:])  # The first one pulls only.


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "parameter_server", "hogwild"])
@pytest.mark.parametrize("rate", [1e7, 1e9])
def test_it_agrees_with_the_formulas_of_the_planner_where_both_know_everything(strategy, rate):
    costs = Costs(measured(batch_bytes=0))
    for workers, ps in ((8, 2), (16, 8)):
        ps = 0 if strategy == "multi_worker_mirrored" else ps
        option = Option(strategy, workers, ps, period=16, chief_apart=True)
        formula = predict(costs, Hardware(rate, 1), option).examples_per_second
        assert simulate(way_of(costs, option), Network(rate, 0.0, 1)).speed == pytest.approx(formula, rel=0.35), (
            workers,
            ps,
            MODEL,
        )


def test_a_ring_on_one_machine_needs_its_cores_for_each_worker():
    way = Way(Option("multi_worker_mirrored", 8), STEP, 0.004, sent=(1e6,), is_one_machine=True)
    hops = 14 * HOP_SECONDS
    assert simulate(way, Network(1e12, 0.0, 2)).speed == pytest.approx(1 / (8 * (STEP + 0.004) / 2 + hops), rel=0.05)


@pytest.mark.usefixtures("small_messages_pass")
def test_workers_without_order_keep_that_in_which_they_began():
    """Two that begin together pull together and push together; in turns they are twice as fast."""
    way, network = Way(Option("parameter_server", 2, 1, chief_apart=True), 1e-6, sent=(1e6,)), Network(1e8, 0.0, 4)
    speeds = []
    for part in (0.0, 0.25, 1 / 3):  # Of the time of three transfers.
        served = ParameterServer(way, network)
        speeds.append(served.run(lambda worker, served=served, part=part: served.begin(worker, part * worker)).speed)
    assert speeds == pytest.approx([50, 80, 100], rel=0.02)
    assert 55 < without_order(way, network).speed < 85


@pytest.mark.parametrize(("sender", "messages"), [("server", 1), ("worker", 3)])
def test_a_step_waits_for_what_its_ps_and_its_worker_have_queued_for_others(sender, messages):
    network, seconds = Network(1e8, 0.0, 4), 1e6 / 1e8
    served = ParameterServer(Way(Option("parameter_server", 1, 1, chief_apart=True), STEP, sent=(1e6,)), network)
    machine = served.servers[0] if sender == "server" else served.workers[0]
    served.links.send(machine, Machine(served.clock, "another", 1), 1e9, lambda: None)  # Until the end.
    # The ps: its answer to a push. The worker: its request, and two messages to the chief. One of two transfers shares a link.
    parts = STEP + 3 * seconds + messages * QUEUED / 1e8
    assert served.run(lambda worker: served.begin(worker, 0.0)).speed == pytest.approx(1 / parts)


def test_a_quota_makes_processors_slower_and_links_not():
    def found(strategy, cores, rate=1e12):
        return simulated_speed(Option(strategy, 2, 0 if strategy == "multi_worker_mirrored" else 1, period=16), cores, rate)

    for strategy in ("parameter_server", "multi_worker_mirrored", "hogwild"):
        assert found(strategy, 0.25) == pytest.approx(found(strategy, 1) / 4, rel=0.1)
        assert found(strategy, 0.5, 1e5) == pytest.approx(found(strategy, 1, 1e5), rel=0.1)
    whole, half = (predict(Costs(measured()), Hardware(1e9, cores), Option("default", 1)) for cores in (1, 0.5))
    assert half.examples_per_second == pytest.approx(whole.examples_per_second / 2)


def simulated_speed(option, cores, rate):
    return predicted(Costs(measured()), Hardware(rate, cores), option).examples_per_second


def test_bf16_halves_what_parameter_server_sends():
    costs = Costs(measured(batch_bytes=0))
    plain, half = (Option("parameter_server", 2, 1, compression=name, chief_apart=True) for name in (None, "bf16"))
    slow = Hardware(1e6, 1)
    assert predicted(costs, slow, half).examples_per_second == pytest.approx(
        2 * predicted(costs, slow, plain).examples_per_second, rel=0.05
    )


@pytest.mark.parametrize(
    ("workers", "ps", "colocated"),
    [(2, 1, False), (3, 1, False), (2, 2, True), (3, 3, True)],
)
def test_an_order_fills_both_directions_of_the_busiest_link(workers, ps, colocated):
    narrow, option = Network(1e7, 0.0, 4), Option("parameter_server", workers, ps, colocated=colocated, chief_apart=True)
    way = Way(option, STEP, sent=(1e6 / ps,) * ps)
    # While each worker makes a step: bytes that leave one machine.
    leave = 2 * (workers - 1) / workers * 1e6 if colocated else workers * 1e6 / ps
    bound = workers * 1e7 / leave
    assert 0.85 * bound < simulate(way, narrow).speed <= 1.01 * bound
