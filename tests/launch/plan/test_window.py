"""The steps of a `fit` that the probe of `tfdist plan` counts."""

from pathlib import Path

import pytest

from tfdist.launch.errors import UsageError
from tfdist.launch.jobs.events import Exited
from tfdist.launch.jobs.job import Program
from tfdist.launch.plan import configurations, probe
from tfdist.launch.plan.configurations import Configuration
from tfdist.launch.plan.processor_time import ProcessorTime, Sample
from tfdist.launch.plan.window import Fit, run_of
from tfdist.planner.measurement import Variable
from tfdist.synchronization import Synchronization

CALLS = [(0.0, 1), (0.7, 65), *((1.6 + 0.85 * n, 129 + 64 * n) for n in range(10))]
"""Reports of calls of 64 steps: one of 0.3 s that is longer than others is no pause beside them."""


def test_the_costs_of_a_step_come_from_the_steps_that_count():
    """Ten steps per second; the worker uses 0.02 s for each after a slow start, and waits as long."""
    processor = ProcessorTime()
    samples = [Sample(t / 10, 5.0 + 0.02 * t, 0.02 * t) for t in range(100)]
    processor.samples = {"worker:0": samples, "ps:0": samples, "chief:0": samples}
    steps = [(0.0, 1), *((t / 10, 1 + t) for t in range(1, 80))]
    fit = Fit(50, 100, (), steps)
    found = run_of(Configuration("parameter_server", 1, 1), fit, processor)
    assert found is not None
    assert (found.worker, found.server, found.chief) == pytest.approx((0.02, 0.02, 0.02))
    assert found.seconds / found.steps == pytest.approx(0.1)
    assert found.waited == pytest.approx(found.seconds * 0.2)
    assert fit.window()[0][0] == pytest.approx(1.5)
    assert run_of(Configuration("default"), Fit(50, 100, (), steps[:3]), processor) is None
    # A function is traced in the middle: what comes after it is longer, and counts.
    paused = [*((t / 10, t) for t in range(1, 30)), *((t / 10, t - 40) for t in range(70, 110))]
    assert Fit(50, 100, (), paused).window() == ((7.0, 30), (10.9, 69))
    slow = [(2.0 * t, t) for t in range(1, 8)]  # Steps of two seconds are no pauses.
    assert Fit(50, 100, (), slow).window() == ((4.0, 2), (14.0, 7))
    assert run_of(Configuration("default"), Fit(None, None, (), steps), processor) is None


def test_steps_beside_which_a_function_was_traced_do_not_count():
    assert Fit(50, 100, (), CALLS).window() == (CALLS[2], CALLS[-1])
    traced = [2.0, 2.0, 2.0, 2.0, 2.0, *[2.9] * 7]  # Between the reports 4 and 5, while the worker has calls from before.
    assert Fit(50, 100, (), CALLS, None, traced).window() == (CALLS[7], CALLS[-1])
    assert Fit(50, 100, (), CALLS[:9], None, traced[:9]).window() is None  # Two before, one after it.
    late = [2.0] * 9 + [2.9] * 3
    assert Fit(50, 100, (), CALLS, None, late).window() == (CALLS[2], CALLS[8])
    short = [2.0 + 0.001 * n for n in range(12)]  # The lock is also taken to look for a function.
    assert Fit(50, 100, (), CALLS, None, short).window() == (CALLS[2], CALLS[-1])


def test_a_program_that_traces_again_and_again_is_measured_with_that():
    reports = [(0.5 * n, n) for n in range(40)]
    traced = [0.2 * n for n in range(40)]
    assert Fit(50, 100, (), reports[:20], None, traced[:20]).window() is None
    assert Fit(50, 100, (), reports, None, traced).window() == (reports[3], reports[-1])


def test_a_program_that_ends_early_is_not_one_that_is_slow():
    early, here = probe.Probe(Program(script="train.py"), configurations.ALL, 1, Synchronization()), Path("none")
    some, unknown = Fit(50, 100, (), [(0.0, 1)]), Fit(None, None, (), [(0.0, 1)])
    assert "the program made no step of fit within 60 s; try more (--seconds)" in early._too_few(
        here, configurations.ALL[0], None
    )
    early._ended["worker:0"] = Exited("worker:0", 1)
    reason = "the program has ended without a step of fit under tfdist.strategy(), which is what is measured (it exited with 1)"
    assert reason in early._too_few(here, configurations.ALL[0], None)
    assert "has ended after too few steps of fit (it exited with 1)" in early._too_few(here, configurations.ALL[0], some)
    assert "gives fit data of unknown batch size" in early._too_few(here, configurations.ALL[0], unknown)


def test_the_last_lines_of_a_program_that_failed_are_shown(tmp_path):
    said = []
    failed = probe.Probe(Program(script="train.py"), configurations.ALL, 1, Synchronization(), say=said.append)
    failed._ended["worker:0"] = Exited("worker:0", 1)
    (tmp_path / "worker:0.log").write_text("ValueError: \x1b[1mInput 0\x1b[0m is wrong\n  * mask=None\n")
    assert failed._too_few(tmp_path, configurations.ALL[0], None).endswith("(it exited with 1)")
    assert said == ["the last lines of the program:", "  ValueError: Input 0 is wrong", "    * mask=None"]


def test_why_a_later_configuration_is_not_measured_is_said(tmp_path, monkeypatch):
    said, variables = [], (Variable("kernel", (1000, 2000), 8_000_000),)
    begun = probe.Probe(Program(script="train.py"), configurations.ALL[:2], 1, Synchronization(), say=said.append)
    whole = Fit(50, 100, variables, [(float(second), second) for second in range(9)])
    fits = {configurations.ALL[0]: whole, configurations.ALL[1]: Fit(50, 100, variables, [(0.0, 1)])}
    monkeypatch.setattr(begun, "_ready", lambda runner: configurations.everyone().addressed())

    def one(runner, folder, configuration, cluster, seconds):
        (folder / f"{configuration.reporter}.log").write_text("a warning of the program\n")
        return fits[configuration], ProcessorTime()

    monkeypatch.setattr(begun, "_one", one)
    assert len(begun._measure(None, tmp_path).runs) == 1
    reason = "the program made too few steps of fit within 60 s; try more (--seconds); its last line: a warning of the program"
    assert said[-1] == f"not measured: {configurations.ALL[1].title}: {reason}"


def test_a_model_without_variables_that_train_is_not_measured(tmp_path, monkeypatch):
    begun = probe.Probe(Program(script="train.py"), configurations.ALL[:1], 1, Synchronization())
    processor = ProcessorTime()
    fit = Fit(50, 100, (), [(float(second), second) for second in range(9)])
    monkeypatch.setattr(begun, "_ready", lambda runner: configurations.everyone().addressed())
    monkeypatch.setattr(begun, "_one", lambda *arguments: (fit, processor))
    with pytest.raises(UsageError, match="nothing was measured: the model that the program fits has no variables that train"):
        begun._measure(None, tmp_path)
