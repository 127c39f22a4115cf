"""Which blocks of weights the calls of a group synchronize."""

from types import SimpleNamespace

import numpy as np
import pytest

from tfdist.strategies.hogwild import group_calls, model_blocks, training_loop
from tfdist.strategies.hogwild.replicas.block_registry import BlockRegistry, Use
from tfdist.strategies.hogwild.replicas.momentum_buffers import AVERAGE
from tfdist.strategies.hogwild.replicas.step_counters import StepCounters
from tfdist.strategies.hogwild.synchronization.local_variable import Kind


class Block:
    def __init__(self, kind):
        self.kind = kind


@pytest.fixture
def model(monkeypatch):
    """The blocks of a model with one trained block, two frozen ones and one that is not synchronized, and each by its name."""
    monkeypatch.setattr(model_blocks, "local_variables", lambda value: [value])
    kinds = {"trained": Kind.SYNCHRONIZED, "frozen": Kind.SYNCHRONIZED, "average": Kind.SYNCHRONIZED, "own": Kind.OWN}
    blocks = {name: Block(kind) for name, kind in kinds.items()}
    weights = {name: SimpleNamespace(block=block, is_assigned=False) for name, block in blocks.items()}
    made = object.__new__(model_blocks.ModelBlocks)
    momentum = blocks["momentum"] = Block(Kind.SYNCHRONIZED)
    made._strategy, made._assigned = SimpleNamespace(), {}
    made._trains, made._averaged, made._parameters = True, [momentum], [blocks["trained"]]
    made._model = SimpleNamespace(weights=[SimpleNamespace(_value=weight) for weight in weights.values()], built=True)
    made.synchronized = [blocks["trained"], momentum]
    return made, blocks, weights


def test_frozen_weights_are_not_synchronized_as_long_as_no_step_assigns_them(model):
    made, blocks, weights = model
    weights["trained"].is_assigned = weights["own"].is_assigned = True
    assert not made.synchronize_assigned()
    assert made.synchronized == [blocks["trained"], blocks["momentum"]]


def test_of_frozen_weights_that_a_step_assigns_groups_take_the_mean(model):
    made, blocks, weights = model
    weights["trained"].is_assigned = weights["average"].is_assigned = True
    assert made.synchronize_assigned()
    assert made.synchronized == [blocks["trained"], blocks["momentum"], blocks["average"]]
    assert blocks["average"].rates == AVERAGE
    assert set(made._strategy.synchronized_blocks) == set(made.synchronized)  # What the live view counts.
    assert not made.synchronize_assigned()


def test_of_what_a_step_assigns_beside_weights_groups_take_the_mean_if_another_function_only_reads_it(model):
    """As of a `tf.Variable` of a model that `predict` was called for before `fit`."""
    made, blocks, _ = model
    made._assigned = {blocks["frozen"]: None, blocks["own"]: None}
    assert made.synchronize_assigned()
    assert made.synchronized == [blocks["trained"], blocks["momentum"], blocks["frozen"]]


def test_outer_rates_follow_the_updates_of_the_optimizer_where_a_step_makes_none(model, monkeypatch):
    """As in a step that accumulates the gradients of four batches: the number of a step is four times that of the update."""
    made, blocks, _ = model
    counter = SimpleNamespace(kind=Kind.COUNTER, moved=0, value_on_chief=lambda: 100)
    monkeypatch.setattr(model_blocks, "counter_of", lambda optimizer: counter)
    made._counters, made._rates = StepCounters([counter], groups=8), SimpleNamespace(at=lambda update: (update, 0.5))
    made._counters.begin(100)
    assert made.rates_at(104) == (104, 0.5)  # One in each step, before anything is known.
    made._counters.changes(np.float64([[0.0], [0.0], [0.0], [1.0]]))
    assert made.rates_at(120) == blocks["trained"].rates == (105, 0.5)


@pytest.mark.parametrize("keeps", [True, False])
def test_what_a_group_keeps_that_trains_alone_is_collected_once_in_a_period(keeps):
    """Else all steps of `train_on_batch` since the last evaluation would be lost with its worker."""
    made, collected = [], []
    steps = object.__new__(training_loop.Steps)
    steps._kept_steps, steps._calls = 0, SimpleNamespace(delay=SimpleNamespace(between=3))
    chief = SimpleNamespace(synchronize_groups=lambda: collected.append(len(made)))
    steps._replicas = SimpleNamespace(keeps_progress=keeps, chief=chief)
    while len(made) < 8:
        made.append(None)
        steps._collect_kept()
    assert collected == ([3, 6] if keeps else [])


def test_after_ctrl_c_the_variables_of_a_function_that_is_traced_are_still_known():
    """Else no group would pull them, and the first step of the next `fit` would find them without values."""
    registry, variable, traced, added = BlockRegistry(list), SimpleNamespace(block=None), [], []

    def trace(*_):
        if not traced:  # The function is kept, and not traced again.
            registry.record_use(variable)
        traced.append(None)

    def add(variables):
        added.append(variables)
        if len(added) == 1:
            raise KeyboardInterrupt  # As at the end of `LocalReplicas.register`.

    made = object.__new__(group_calls.GroupCalls)
    made._replicas = SimpleNamespace(registry=registry, outer_optimizer=None)
    made._strategy, made._use, made._traced = SimpleNamespace(shares_replicas=False), Use(), trace
    blocks = made.blocks = object.__new__(model_blocks.ModelBlocks)
    blocks._replicas, blocks._model = made._replicas, SimpleNamespace(built=False)
    blocks._assigned, blocks._trained, blocks._parameters = {}, set(), []
    blocks.register_weights, blocks._add = lambda: None, add
    batches = [SimpleNamespace(values=None)]
    with pytest.raises(KeyboardInterrupt):
        made._trace(batches, None, False, 0)
    made._trace(batches, None, False, 0)
    assert added == [[variable], [variable]]
