"""The simulator against formulas that are exact."""

import pytest
from costs_of import MODEL, measured

from tfdist.planner import simulated
from tfdist.planner.costs import Costs
from tfdist.planner.option import Hardware, Option
from tfdist.planner.predict import predict
from tfdist.planner.simulated import Network
from tfdist.planner.simulated_periods import simulate
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


@pytest.mark.parametrize("workers", [4, 24])
def test_what_all_share_bounds_the_speed_and_the_bound_is_reached(workers):
    narrow, seconds = Network(1e8, 0.0, 4), 1e6 / 1e8  # Each worker needs the link of the ps for as long as for a step.
    assert speed("parameter_server", workers, network=narrow) == pytest.approx(1 / seconds, rel=0.1)
    assert speed("parameter_server", workers, ps=4, network=narrow, sent=(0.25e6,) * 4) == pytest.approx(
        min(4 / seconds, workers / (STEP + 2 * seconds)), rel=0.35
    )
    assert speed("parameter_server", workers, server=0.4) == pytest.approx(4 / 0.4, rel=0.05)  # Four cores.
    assert speed("parameter_server", workers, chief=0.05) == pytest.approx(1 / 0.05, rel=0.05)
    long = speed("hogwild", workers, network=narrow, period=4, rounds=False)
    assert long == pytest.approx(min(workers / STEP, 4 / seconds), rel=0.1 if workers > 4 else 0.35)
    batches = speed("hogwild", workers, network=narrow, period=4, batches=4e6)
    assert batches == pytest.approx(4 / (4 * seconds), rel=0.4)


def test_a_lone_worker_waits_for_every_part():
    network, seconds = Network(1e8, 0.002, 4), 0.01
    parts = STEP + 0.003 + 0.004 + 0.005 + 2 * (seconds + 0.002)
    assert speed("parameter_server", 1, network=network, worker=0.003, server=0.004, chief=0.005) == pytest.approx(1 / parts)


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
        wire = 2 * (workers - 1) * (1e6 / workers / 1e8 + 0.001 + simulated.HOP_SECONDS)
        got = speed("multi_worker_mirrored", workers, ps=0, sent=(1e6,), network=Network(1e8, 0.001, 4))
        assert got == pytest.approx(1 / (STEP + wire))


def test_a_delay_hides_an_exchange_that_is_not_longer():
    narrow = Network(1e8, 0.0, 4)  # Push and reply of two workers take 40 ms in all, as long as four steps.
    waits = speed("hogwild", 2, network=narrow, period=16, delay=1)
    hidden = speed("hogwild", 2, network=narrow, period=16, delay=8)
    assert waits < 0.9 * hidden
    assert hidden == pytest.approx(2 / STEP, rel=0.02)
    in_fragments = speed("hogwild", 2, network=narrow, period=16, delay=2, fragments=4)
    assert in_fragments == pytest.approx(2 / STEP, rel=0.05)


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
