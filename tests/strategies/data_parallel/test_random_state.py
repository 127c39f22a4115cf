"""The random states that every task takes over from the first one."""

import random
from types import SimpleNamespace

import numpy as np
import pytest

from tfdist.strategies.data_parallel import random_state


class Tensor:
    """A tensor of PyTorch, as far as this needs one."""

    def __init__(self, values):
        self.values = np.asarray(values)

    def numpy(self):
        return self.values


@pytest.fixture
def share(monkeypatch):
    """A function that shares the states of a task that is the first, or follows it: it returns the task's state of PyTorch."""
    sent = []

    def share(is_first, state):
        found = [state]
        torch = SimpleNamespace(
            get_rng_state=lambda: Tensor(state), set_rng_state=lambda given: found.append(given.numpy()), from_numpy=Tensor
        )
        modules = {"torch": torch} if state is not None else {"torch": None}
        for name, module in modules.items():
            monkeypatch.setitem(random_state.sys.modules, name, module)

        def of_first_task(strategy, numbers):
            if is_first:
                sent.append(np.array(numbers))
                return sent[-1]
            assert np.shape(numbers) == np.shape(sent[0])  # A broadcast needs that.
            return sent.pop(0)

        monkeypatch.setattr(random_state, "of_first_task", of_first_task)
        random_state.share(None)
        return found[-1]

    monkeypatch.setattr(random_state.tf.random, "set_seed", lambda seed: None)
    yield share
    assert sent == []


@pytest.mark.parametrize("other", [np.array([7, 8, 9], np.uint8), None], ids=["imported", "not imported"])
def test_pytorch_shuffles_as_in_the_first_task(share, other):
    share(True, np.array([1, 2, 255], np.uint8))
    state = share(False, other)
    assert state is None if other is None else (state.dtype, state.tolist()) == (np.uint8, [1, 2, 255])


def test_a_first_task_without_pytorch_leaves_the_others_theirs(share):
    random.seed(3)
    share(True, None)
    expected = random.random(), np.random.random()
    random.seed(4)
    assert share(False, np.array([7, 8], np.uint8)).tolist() == [7, 8]
    assert random.random() == expected[0]
