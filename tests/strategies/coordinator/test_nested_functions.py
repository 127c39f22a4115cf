"""Functions with `@tf.function` that call one another: TensorFlow keeps a trace for all callers of a function."""

import pytest
from support_paths import PROGRAMS


@pytest.mark.cluster
@pytest.mark.parametrize("strategy", ["hogwild", "parameter_server"])
def test_a_function_has_the_variables_of_where_it_is_called(start, strategy):
    job = start(str(PROGRAMS / "nested_functions.py"), strategy)
    assert job.wait(280) == 0 and "fine" in job.output, job.output[-3000:]
