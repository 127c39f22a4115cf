"""Which updates the steps of a group make, counted over all groups, for optimizers that do not make one update in each step."""

import keras
import numpy as np
import pytest

import tfdist
from tfdist.strategies.hogwild.replicas.step_counters import StepCounters, deciding, optimizers_of
from tfdist.strategies.hogwild.synchronization.local_variable import Kind


class Counter:
    """Stands for a counter, with the value on the chief and that of the group."""

    kind = Kind.COUNTER

    def __init__(self, on_chief, own=0):
        self.on_chief, self.own, self.moved = on_chief, own, 0

    def value_on_chief(self):
        return self.on_chief

    def value(self):
        return self.own


def rows(steps, *changes):
    """The results of steps, with the changes of counters at their end."""
    return np.float64([[0.5, *changes]] * steps)


def test_the_count_at_a_step_follows_from_the_updates_of_the_steps_before():
    fast, slow = Counter(10), Counter(100)
    counters = StepCounters([fast, slow], groups=2)
    counters.begin(20)
    assert counters.counts_at(24) == [14, 104]  # One for each step, before anything is known.
    made = dict(counters.changes(np.concatenate([rows(3, 5, 0), rows(1, 5, 2)])))
    assert made == {fast: [5] * 4, slow: [0, 0, 0, 2]}
    assert counters.counts_at(24) == [30, 102]
    assert counters.counts_at(28) == [50, 104]  # Another group makes the steps from 24 on.
    assert counters.counts_at(20) == [30, 102]


def test_steps_of_an_evaluation_have_the_count_of_the_chief():
    counter = Counter(10, own=5)
    counters = StepCounters([counter], measured=False, groups=2, moves=False)
    counters.begin(0)
    assert counters.changes(rows(4)) == [] and counters.counts_at(8) == [10]
    assert counters.numbers([10.0], counters.values(), 3) == {id(counter): 10}


def test_a_call_begins_anew_from_the_chiefs_count():
    counter = Counter(7)
    counters = StepCounters([counter])
    counters.changes(rows(4, 5))
    counters.begin(20)
    assert counters.counts_at(20) == [7]


def test_what_a_callback_assigns_to_a_counter_within_an_epoch_moves_the_numbers_of_the_next_steps():
    main, other = Counter(10), Counter(100)
    counters = StepCounters([main, other], groups=2)
    counters.begin(10)
    assert counters.follow_assignments(main) == 0
    main.moved += 990  # From 10 to 1000, while a call of four steps is in flight.
    assert counters.follow_assignments(main) == 990 and counters.follow_assignments(main) == 0
    assert counters.counts_at(1004) == [1004, 104]
    counters.changes(rows(4, 1, 1))
    assert counters.counts_at(1004) == [1004, 104]
    other.moved -= 100
    assert counters.follow_assignments(main) == 0 and counters.counts_at(1004) == [1004, 4]


@pytest.mark.parametrize("own", [0, 90])  # What a group has counted itself since its worker was restarted does not matter.
def test_a_step_of_a_restarted_group_has_the_number_of_the_cluster(own):
    counter = Counter(100, own)
    counters = StepCounters([counter], groups=2)
    begun = counters.values()
    counter.own += 5
    assert counters.numbers([100.0], begun, 1) == {id(counter): 105}


@pytest.mark.parametrize(("own", "number"), [(108, 113), (0, 105)])
def test_the_only_group_knows_the_updates_that_the_chief_has_not_counted_unless_its_worker_was_restarted(own, number):
    counter = Counter(100, own)
    counters = StepCounters([counter])
    counters.begin(20)
    assert counters.counts_at(24) == [100]
    begun = counters.values()
    counter.own += 5
    assert counters.numbers([100.0], begun, 1) == {id(counter): number}


def test_where_groups_share_replicas_every_step_counts_as_one():
    counter, not_used = Counter(100, 3), Counter(0)
    counters = StepCounters([counter, not_used], measured=False)
    counters.add_others([counter])
    assert counters.values() == [] and counters.known == 2
    assert counters.numbers([100.0, 0.0], [], 3)[id(counter)] == 103
    assert counters.changes(np.float64([[0.5]] * 4)) == [(counter, [1] * 4)]


def test_optimizers_in_lists_and_dicts_and_of_other_models_are_found():
    model = keras.Model()
    other = keras.Sequential([keras.layers.Dense(1)])
    compiled, own, listed, by_name = (keras.optimizers.SGD() for _ in range(4))
    model.compile(compiled)
    other.compile(own)
    model.other, model.listed, model.by_name = other, [listed], {"critic": by_name}
    found = optimizers_of(model)
    assert found[0] is compiled and {id(each) for each in found} == {id(each) for each in (compiled, own, listed, by_name)}
    assert len(found) == 4


class Both(keras.optimizers.Optimizer):
    """Holds other optimizers, as many wrappers do, under a name of its own."""

    def __init__(self, *parts):
        super().__init__(0.0)
        self.parts = list(parts)


def test_optimizers_inside_others_are_found_wherever_these_hold_them():
    one, other, scaled = keras.optimizers.SGD(), keras.optimizers.Adam(), keras.optimizers.Lion()
    inner = Both(one, other)
    model = keras.Model()
    model.compile(Both(inner, keras.optimizers.LossScaleOptimizer(scaled)))
    found = optimizers_of(model)
    assert {id(each) for each in (model.optimizer, inner, one, other, scaled)} < {id(each) for each in found} and len(
        found
    ) == 6


@pytest.mark.parametrize(("number", "decides"), [(3, 1), (1, 0)])
def test_of_several_optimizers_that_with_the_shortest_outer_step_decides_the_outer_rates(number, decides):
    """The outer step for Adam is 3.5 times that of the groups, and SGD would diverge with it."""
    parts = [keras.optimizers.Adam(), keras.optimizers.SGD(), keras.optimizers.Lamb()][:number]
    options = tfdist.Synchronization(outer="nesterov")
    found = deciding(keras.optimizers.LossScaleOptimizer(Both(*parts)), lambda name: options.outer_rates(name, 4))
    assert found is parts[decides]
