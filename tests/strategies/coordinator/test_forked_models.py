"""Programs that fork: the connections to other tasks stay with the chief."""

import pytest
from support_paths import PROGRAMS


@pytest.mark.cluster
@pytest.mark.parametrize("strategy", ["hogwild", "parameter_server"])
def test_a_fork_of_the_chief_that_makes_a_variable_gets_an_error_instead_of_waiting_forever(start, strategy):
    job = start(str(PROGRAMS / "forked_models.py"), strategy)
    assert job.wait(120) == 0, job.output[-3000:]
    assert "a variable cannot be made in process" in job.output and "get_context('spawn')" in job.output
