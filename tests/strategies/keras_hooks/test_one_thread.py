"""One thread at a time makes calls of Keras' trainer; tests/support/programs/nested_calls.py makes them on a cluster."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from tfdist.strategies.keras_hooks import calls


def named(name, function):
    function.__name__ = name
    return function


left = []
HOOKS = SimpleNamespace(leave_call=left.append)


def called(name, function=lambda model: None, hooks=HOOKS):
    model = SimpleNamespace(name="model", distribute_strategy=SimpleNamespace(tfdist_hooks=hooks))
    return calls._call(named(name, function), model)


def in_another_thread(*arguments):
    with ThreadPoolExecutor(1, "actor") as pool:
        return pool.submit(called, *arguments).result()


def test_calls_may_nest_in_a_thread_and_follow_each_other_in_several():
    assert called("fit", lambda model: called("evaluate", lambda model: 3)) == 3
    assert in_another_thread("fit", lambda model: 4) == 4


def test_a_call_beside_one_of_another_thread_is_refused_and_the_other_goes_on():
    def fit(model):
        with pytest.raises(
            RuntimeError, match=r"predict of model is called in the thread actor_0 while fit of model runs in Main"
        ):
            in_another_thread("predict")
        return called("predict", lambda model: 5)

    assert called("fit", fit) == 5


def test_a_call_that_has_failed_is_over_and_the_strategy_knows():
    def fail(model):
        raise ValueError

    with pytest.raises(ValueError) as caught:
        called("fit", fail)
    assert left == [caught.value]
    assert in_another_thread("fit", lambda model: 6) == 6


def test_models_of_one_process_may_be_called_in_any_thread():
    assert called("fit", lambda model: in_another_thread("predict", lambda model: 7, None)) == 7
