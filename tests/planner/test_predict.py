"""Predictions: what a resource costs, which one binds, and laws that hold whatever a program costs."""

import dataclasses
import itertools

import pytest
from costs_of import MODEL, measured, run

from tfdist.planner.candidates import Request, candidates, counts
from tfdist.planner.costs import Costs
from tfdist.planner.measurement import Variable
from tfdist.planner.option import Hardware, Option
from tfdist.planner.placement import evenly, whole_and_split
from tfdist.planner.predict import Prediction, combined, predict, simulated
from tfdist.planner.queues import cycle as queued
from tfdist.planner.recommend import ranked, shown
from tfdist.synchronization import Synchronization

FAST, SLOW = 1e12, 1e6


def speed(option, link=FAST, cores=1, **changes):
    return predict(Costs(measured(**changes)), Hardware(link, cores), option).examples_per_second


def binding(option, link=FAST, cores=1, **changes):
    return predict(Costs(measured(**changes)), Hardware(link, cores), option).binding


def test_one_process_is_as_fast_as_it_was_measured():
    assert speed(Option("default", 1)) == pytest.approx(50 / 0.010)


def test_time_for_which_others_had_the_processor_does_not_count():
    busy = (run("default", 1, 0, 0.010, seconds=3.0, waited=1.9), *measured().runs[1:])
    assert speed(Option("default", 1), runs=busy) == pytest.approx(50 / 0.011)


def test_several_cores_share_the_part_of_a_step_that_was_shared_when_it_was_measured():
    runs = (run("default", 1, 0, 0.010, seconds=0.75),)  # Half of it on one core, half on both.
    on_two = Costs(measured(runs=runs, cores=2))
    assert [on_two.wall(0.010, cores) for cores in (1, 2, 4)] == pytest.approx([0.010, 0.0075, 0.00625])


def test_two_points_tell_calls_from_bytes():
    costs = Costs(measured())
    assert [costs.served(ps).server for ps in (1, 2, 8)] == pytest.approx([0.010, 0.006, 0.003])
    assert costs.served(3).worker == pytest.approx(0.010 + 2 * 0.001)
    for period in (4, 16, 64):
        cost = costs.synchronized(period, 1, 1)
        assert (cost.worker, cost.server, cost.chief) == pytest.approx((0.020, 0.012, 0.004 + period * 0.0001))
    assert costs.compute == pytest.approx(0.010)


def test_what_was_not_measured_is_assumed_and_said():
    costs = Costs(measured(runs=measured().runs[:1]))
    for strategy in ("parameter_server", "hogwild", "multi_worker_mirrored"):
        option = Option(strategy, 2, 0 if strategy == "multi_worker_mirrored" else 1, period=16)
        assert predict(costs, Hardware(FAST, 1), option).assumed == (f"{strategy} was not measured",)


def test_the_slow_link_of_the_only_ps_binds_and_a_second_ps_helps():
    one, two = (Option("parameter_server", 8, ps) for ps in (1, 2))
    assert binding(one, SLOW * 10) == "link of ps 0"
    bound = 8 * 50 / (8 * MODEL / (SLOW * 10))
    assert 0.85 * bound < speed(one, SLOW * 10) <= bound
    assert 1.5 < speed(two, SLOW * 10) / speed(one, SLOW * 10) < 2


def test_the_processor_of_the_ps_binds_without_a_slow_link_then_that_of_the_chief():
    assert binding(Option("parameter_server", 8, 1, chief_apart=True)) == "processor of ps 0"
    assert binding(Option("parameter_server", 40, 40, chief_apart=True)) == "chief processor"


def test_a_chief_that_sends_batches_over_a_slow_link_binds():
    option = Option("hogwild", 8, 4, period=64, chief_apart=True)
    assert binding(option, SLOW, batch_bytes=10_000_000) == "link of the chief"
    assert binding(option, SLOW, batch_bytes=0) != "link of the chief"


def test_a_lone_worker_waits_for_every_part_of_its_step():
    option = Option("parameter_server", 1, 1, chief_apart=True)
    assert speed(option) == pytest.approx(50 / (0.020 + 0.010 + 0.002), rel=0.02)
    wire = 2 * MODEL / 1e8
    assert speed(option, 1e8) == pytest.approx(50 / (0.032 + wire), rel=0.02)
    assert binding(option, 1e8) == "worker link"


def test_the_cores_of_a_machine_are_shared_by_its_tasks():
    together = Option("parameter_server", 4, 4, colocated=True)
    apart = Option("parameter_server", 4, 4, chief_apart=True)
    assert binding(together) == "cores that worker 0, ps 0 and the chief share"
    found = predict(Costs(measured()), Hardware(FAST, 1), together)
    assert found.sentence == "cores that worker 0, ps 0 and the chief share bind"
    assert dataclasses.replace(found, binding="link of ps 0").sentence == "link of ps 0 binds"
    assert speed(together) < speed(apart)
    assert (together.machines, apart.machines) == (4, 9)


def test_the_ring_sends_its_bytes_and_divides_the_batch():
    step = 50 / speed(Option("multi_worker_mirrored", 2), 1e7)
    assert step == pytest.approx(MODEL / 1e7, rel=0.05)
    assert binding(Option("multi_worker_mirrored", 2), 1e7) == "worker link"
    assert binding(Option("multi_worker_mirrored", 2)) == "worker processor"
    # A program that makes its batches larger trains with more examples in a step.
    grown = (*measured().runs[:-1], run("multi_worker_mirrored", 2, 0, 0.018, batch=100))
    assert speed(Option("multi_worker_mirrored", 4), runs=grown) > 1.5 * speed(Option("multi_worker_mirrored", 4))


def test_a_longer_period_a_longer_delay_and_compression_help_where_the_link_binds():
    base = Option("hogwild", 4, 2, period=16, chief_apart=True)
    slower = speed(base, SLOW * 20)
    for change in ({"period": 64}, {"delay": 12}, {"compression": "int8"}):
        assert speed(Option(**(vars(base) | change)), SLOW * 20) > slower, change


@pytest.mark.parametrize("strategy", ["parameter_server", "hogwild"])
def test_laws(strategy):
    """More of a resource never makes slower, and no option is faster than all its workers without communication."""
    for workers, ps, colocated, period in itertools.product((1, 2, 5, 40), (1, 2, 7), (False, True), (1, 16)):
        if colocated and ps > workers:
            continue
        option = Option(strategy, workers, ps, colocated, period)
        rates = [speed(option, link) for link in (1e5, 1e7, 1e9, FAST)]
        assert all(faster >= slower * 0.9999 for slower, faster in itertools.pairwise(rates))
        assert speed(option, cores=2) >= speed(option) * 0.999
        assert rates[-1] <= workers * 50 / 0.010 * 1.001
        busy = predict(Costs(measured()), Hardware(1e7, 1), option).busy
        assert all(0 <= part <= 1.0001 for _, part in busy)


def test_the_formula_is_the_larger_of_both_unless_they_are_equal():
    assert combined(1.0, 0.1) == pytest.approx(1.0, rel=1e-4)
    assert combined(0.1, 1.0) == pytest.approx(1.0, rel=1e-4)
    assert combined(1.0, 1.0) == pytest.approx(2**0.2)
    assert combined(0.0, 0.0) == 0.0


def test_the_published_cells_of_other_measurements():
    """An older run of benchmarks/hogwild.py, two workers on one core each, 7.45 MB: from the speed without limit to that of slow links."""
    step, size = 2 / 334, 7_450_000
    runs = (
        run("default", 1, 0, step, seconds=100 * step),
        run("multi_worker_mirrored", 2, 0, 2 / 93.5 - 0.0006, batch=50),
    )
    values = {"variables": (Variable("kernel", (1862, 1000), size),), "runs": runs}
    # The batch of that program is one of each worker, so a step computes all of it.
    for rate, cell in ((1e9, 24.8), (1e8, 3.15)):
        got = 2 * speed(Option("multi_worker_mirrored", 2), 0.95 * rate / 8, **values) / 50
        assert got == pytest.approx(cell, rel=0.15)


def test_placement():
    large, small = Variable("a", (10, 100_000), 4_000_000), Variable("b", (10,), 40)
    assert whole_and_split([large, small], 1) == [4_000_040]
    assert whole_and_split([large, small], 4) == [800_040, 1_200_000, 800_000, 1_200_000]
    assert whole_and_split([Variable("c", (3, 10), 4_000_000)], 4) == [4_000_000, 0, 0, 0]
    assert evenly(10, 3) == [3, 3, 4]


def test_candidates():
    everything = frozenset(["multi_worker_mirrored", "parameter_server", "hogwild"])
    fixed = candidates(Request(8, None, everything, has_chief=True, may_colocate=False))
    assert {option.workers for option in fixed if option.ps} == {8}
    assert Option("multi_worker_mirrored", 9) in fixed
    assert not any(option.colocated for option in fixed)
    bounded = candidates(Request(None, 5, everything))
    assert max(option.machines for option in bounded) == 5
    assert Option("default", 1) in bounded
    assert len(set(bounded)) == len(bounded)
    many = Option("parameter_server", 50_000, 2000)
    huge = candidates(Request(50_000, None, everything, described=many))
    assert {option.ps for option in huge} == {0, *counts(1000), 2000} and len(huge) < 300
    assert counts(3) == [1, 2, 3]
    assert counts(100)[-1] == 100 and len(counts(1000)) < 40


def test_over_slow_links_hogwild_is_predicted_with_the_compression_that_it_chooses():
    described = Option("hogwild", 2, 1, period=16)
    request = Request(2, None, frozenset(["hogwild", "parameter_server"]), described=described)
    slow = candidates(request.over(100e6 / 8))
    assert {each.compression for each in slow if each.strategy == "hogwild"} == {"int8"}
    assert {each.compression for each in slow if each.strategy != "hogwild"} == {None}
    assert candidates(request.over(10e9 / 8)) == candidates(request)
    for given in ("float32", "int8"):
        request = Request(2, None, frozenset(["hogwild"]), synchronization=Synchronization(compression=given))
        assert {each.compression for each in candidates(request.over(1e6)) if each.strategy == "hogwild"} == {given}


def test_the_cheapest_of_equally_fast_ones_is_recommended():
    costs, hardware = Costs(measured()), Hardware(FAST, 1)
    options = candidates(Request(2, None, frozenset(["parameter_server"]), may_colocate=False))
    found = ranked([predict(costs, hardware, option) for option in options])
    fastest = max(each.examples_per_second for each in found)
    assert found[0].examples_per_second >= 0.95 * fastest
    close = [each for each in found if each.examples_per_second >= 0.95 * fastest]
    assert found[0].option.machines == min(each.option.machines for each in close)
    expensive = ranked(found, lambda each: -each.option.machines)
    assert expensive[0].option.machines == max(each.option.machines for each in close)
    strategies = {each.option.strategy for each in shown(found, 1)}
    assert strategies == {"default", "parameter_server"}


def test_what_the_user_describes_is_shown_though_it_is_in_vain_and_slow():
    costs, hardware = Costs(measured()), Hardware(SLOW, 1)
    described = Option("parameter_server", 2, 4)
    options = candidates(Request(2, None, frozenset(["parameter_server"]), may_colocate=False, described=described))
    found = ranked([predict(costs, hardware, option) for option in options])
    without, with_it = shown(found, 1), shown(found, 1, described=described)
    assert described not in [each.option for each in without]
    assert [each.option for each in with_it if each not in without] == [described]
    assert with_it[0] is found[0] and [found.index(each) for each in with_it] == sorted(found.index(each) for each in with_it)


def test_the_recommended_one_is_shown_though_fewer_ps_are_nearly_as_fast():
    """Two ps are 5.2 % slower than the fastest, and three 4.8 %: only these are close."""

    def as_fast(speed, workers, ps):
        return Prediction(Option("parameter_server", workers, ps, colocated=True), speed, "", ())

    found = ranked([as_fast(100.0, 8, 3), as_fast(95.2, 4, 3), as_fast(94.8, 4, 2)])
    assert found[0].option.workers == 4 and found[0].option.ps == 3
    assert shown(found, 5)[0] is found[0]


def test_queues_against_known_results():
    assert queued(1, 1.0, [2.0, 3.0]) == pytest.approx(6.0)
    assert queued(2, 0.0, [1.0, 1.0]) == pytest.approx(3.0)  # Two of two equal stations: each is busy for 2/3 of the time.
    assert queued(5, 1.0, []) == 1.0
    assert queued(100, 1.0, [0.5, 0.1]) == pytest.approx(50.0, rel=1e-3)  # Nothing is faster than the busiest allows.
    assert queued(3, 0.0, [0.0]) == 0.0
    # A machine's repairman (M/M/1 with 3 sources): X = 3 / (alone + R), by the balance equations.
    rate, states = 0.5, [1.0]
    for waiting in range(3):
        states.append(states[-1] * (3 - waiting) * rate)
    assert 3 / queued(3, 2.0, [1.0]) == pytest.approx(1 - states[0] / sum(states))


def test_of_tables_only_the_rows_travel_that_steps_read():
    variables = (Variable("table", (100_000, 20), 8_000_000, True), Variable("kernel", (1000, 250), 1_000_000))
    runs = [dataclasses.replace(each, moved=2 * 1_080_000.0 * (each.ps == 1)) for each in measured().runs]
    whole, rows = Costs(measured(variables=variables)), Costs(measured(variables=variables, runs=tuple(runs)))
    assert (whole.table_part, rows.table_part) == (1.0, pytest.approx(0.01))
    assert whole_and_split(variables, 2, rows.table_part) == [540_000, 540_000]
    hardware, served = Hardware(1e7, 4), Option("parameter_server", 3, 2)
    for predicted in (predict, simulated):
        found = [predicted(costs, hardware, served).examples_per_second for costs in (whole, rows)]
        assert found[1] > 3 * found[0]


@pytest.mark.parametrize(("batch", "four"), [(50, 1_080_000), (100, 1_160_000)])
def test_workers_that_add_up_gradients_send_each_other_the_rows_of_their_batch(batch, four):
    variables = (Variable("table", (100_000, 20), 8_000_000, True), Variable("kernel", (1000, 250), 1_000_000))
    *others, run = measured().runs
    # Each of two workers sends its gradient of the kernel, and its rows, and receives as much.
    whole, rows = (
        Costs(measured(variables=variables, runs=(*others, dataclasses.replace(run, batch=batch, moved=moved))))
        for moved in (0.0, 4 * 1_080_000.0)
    )
    assert (whole.summed_bytes(2), rows.summed_bytes(2), rows.summed_bytes(4)) == (9_000_000, 1_080_000, four)
    hardware, reduced = Hardware(1e7, 4), Option("multi_worker_mirrored", 2)
    for predicted in (predict, simulated):
        found = [predicted(costs, hardware, reduced).examples_per_second for costs in (whole, rows)]
        assert found[1] > 3 * found[0]
        # hogwild sends all parameters.
        found = [predicted(costs, hardware, Option("hogwild", 3, 2, period=16)).examples_per_second for costs in (whole, rows)]
        assert found[1] == found[0]
