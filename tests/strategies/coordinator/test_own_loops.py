"""What the chief says of loops with `strategy.run`: it runs them alone, unless ClusterCoordinator schedules them."""

from types import SimpleNamespace

import pytest
from support_paths import PROGRAMS

from tfdist.strategies.hogwild.hooks import HogwildHooks
from tfdist.strategies.parameter_server.hooks import ParameterServerHooks


def strategy(scheduled):
    return SimpleNamespace(
        executions=None, open_epochs=None, extended=SimpleNamespace(worker_mesh=None, _being_scheduled=scheduled)
    )


@pytest.mark.parametrize("hooks", [HogwildHooks, ParameterServerHooks])
def test_a_loop_on_the_chief_is_warned_of_once(hooks, caplog):
    hooks = hooks(strategy(scheduled=False))
    for _ in range(2):
        hooks.check_own_loop()
    assert caplog.text.count("a training loop of your own runs on the chief alone") == 1


def test_a_function_that_is_scheduled_runs_on_a_worker_under_parameter_server(caplog):
    ParameterServerHooks(strategy(scheduled=True)).check_own_loop()
    assert not caplog.text


def test_a_function_that_is_scheduled_cannot_train_under_hogwild():
    hooks = HogwildHooks(strategy(scheduled=True))
    with pytest.raises(ValueError, match="ClusterCoordinator schedules cannot train under hogwild"):
        hooks.check_own_loop()
    hooks.check_own_loop()  # The next loop is not scheduled: TensorFlow does not say so after an error.


@pytest.mark.cluster
@pytest.mark.parametrize("strategy", ["hogwild", "parameter_server"])
def test_a_loop_on_the_chief_may_scale_the_loss(start, strategy):
    job = start(str(PROGRAMS / "scaled_loops.py"), strategy)
    assert job.wait(280) == 0 and "fine" in job.output, job.output[-3000:]
