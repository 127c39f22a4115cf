"""The steps of a `fit` that the probe of `tfdist plan` counts."""

from tfdist.launch.plan.window import Fit

CALLS = [(0.0, 1), (0.7, 65), *((1.6 + 0.85 * n, 129 + 64 * n) for n in range(10))]
"""Reports of calls of 64 steps: one of 0.3 s that is longer than others is no pause beside them."""


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
