"""Measurements for the tests of the planner."""

from tfdist.planner.measurement import Measurement, Run, Variable

MODEL = 8_000_000
"""Bytes of the model: one variable that can be split, and one that cannot."""


def run(strategy, workers, ps, worker, server=0.0, chief=0.0, period=1, **other):
    values = {"steps": 100, "seconds": 1.0, "batch": 50} | other
    return Run(strategy, workers, ps, worker=worker, server=server, chief=chief, period=period, **values)


def measured(**changes):
    """Returns a measurement: a step of 10 ms, a ps that needs 2 ms for its call and 8 ms for the bytes of a step."""
    runs = (
        run("default", 1, 0, 0.010),
        run("parameter_server", 1, 1, 0.020, 0.010, 0.002),
        run("parameter_server", 1, 2, 0.021, 0.006, 0.0025),
        run("hogwild", 1, 1, 0.010 + 0.020 / 4, 0.012 / 4, 0.004 / 4 + 0.0001, 4),
        run("hogwild", 1, 1, 0.010 + 0.020 / 64, 0.012 / 64, 0.004 / 64 + 0.0001, 64),
        run("multi_worker_mirrored", 2, 0, 0.014),
    )
    variables = (Variable("kernel", (1000, 1500), 6_000_000), Variable("table", (1, 500_000), 2_000_000))
    values = {"program": "train.py", "cores": 1, "batch": 50, "batch_bytes": 100_000, "variables": variables, "runs": runs}
    return Measurement(**(values | changes))
