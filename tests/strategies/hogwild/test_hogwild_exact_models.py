"""In a real cluster and a known order of calls, Hogwild trains Keras models as the models of periodic synchronization do."""

import numpy as np
import pytest
from hogwild_runs import results_of
from periodic_oracles import Nesterov
from support_paths import PROGRAMS

from tfdist.strategies.hogwild.synchronization.outer_schedule import momentum_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(920)]

PROGRAM = PROGRAMS / "hogwild_exact_models.py"
CASES = (
    "fragments_in_turn",
    "fewer_blocks_than_fragments",
    "examples",
    "several_periods",
    "averaged_momentum",
    "momentum_follows_schedule",
    "rows_looked_up",
    "short_epochs",
    "late_group",
    "alone_and_late",
    "alone_in_full",
    "frozen_weights_that_a_step_assigns",
)
"""The functions of the program."""


@pytest.mark.parametrize(("delay", "fragments"), [pytest.param(0, 1, marks=pytest.mark.release), (2, 1), (1, 2)])
def test_momentum_buffers_are_averaged_with_the_weights(results, delay, fragments):
    """Local SGD by hand: each weight and its buffer become, `delay` steps after a push, the mean at the push and the steps since."""
    found = results["averaged_momentum"]
    inputs, targets = np.array(found["inputs"]), np.array(found["targets"])
    found = found[f"{delay} {fragments}"]
    weights = [[np.array(w) for w in found["before"]] for _ in range(2)]
    buffers = [[np.zeros_like(w) for w in mine] for mine in weights]

    def means(of, part):
        return np.mean([mine[part] for mine in of], axis=0)

    def synchronize(at_push, part):
        for of, before in ((weights, at_push[0]), (buffers, at_push[1])):
            mean = means(before, part)
            for group in range(2):
                of[group][part] = of[group][part] + mean - before[group][part]

    between = 4 // fragments
    for count in range(5 * 4):
        round_, step = divmod(count, 4)
        if count % between == 0:
            # At the beginning no group has anything to push, so that is no turn of a fragment.
            parts = range(2) if fragments == 1 else [(count // between + 1) % 2]
            at_push = [[list(mine) for mine in of] for of in (weights, buffers)]
        if count % between == delay:
            for part in parts:
                synchronize(at_push, part)
        for group in range(2):
            first, second = weights[group]
            x, y = inputs[round_, group, step], targets[round_, group, step]
            error = 2 * (x @ first @ second - y) / len(x)
            gradients = [x.T @ error @ second.T, (x @ first).T @ error]
            buffers[group] = [0.9 * b - 0.01 * g for b, g in zip(buffers[group], gradients, strict=True)]
            weights[group] = [w + b for w, b in zip(weights[group], buffers[group], strict=True)]
    if delay == between:  # At the end of a period.
        for part in parts:
            synchronize(at_push, part)
    assert found["kinds"] == ["synchronized"] * 2
    for part in range(2):
        np.testing.assert_allclose(found["after"][part], means(weights, part), rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(found["momentum"][part], means(buffers, part), rtol=1e-3, atol=1e-5)
        assert np.abs(found["momentum"][part]).max() > 1e-3
    spread = [np.std([mine[part] for mine in buffers], axis=0).max() for part in range(2)]
    assert max(spread) > 1e-3  # The groups see different batches.


def test_the_outer_momentum_of_a_round_follows_the_learning_rate(results):
    """Each round begins with the push of the round before, which ends it with the momentum for the learning rate of that step."""
    found = results["momentum_follows_schedule"]
    outer, before, momenta = Nesterov(0.0, rate=0.5, beta=0.5), None, []
    for round_, (momentum, parameters) in enumerate(found["history"]):
        first = 12 * round_
        outer.beta = momentum_for(0.5, 0.5, found["learning rates"][first], 3.5)
        assert momentum == pytest.approx(outer.beta)
        if before is not None:
            outer.take_round([before * (group + 1) for group in range(3)], [1 / 3] * 3)
        assert parameters == pytest.approx(outer.parameters, rel=1e-5)
        before = sum(found["learning rates"][first : first + 4])
        momenta.append(momentum)
    assert momenta == sorted(momenta) and momenta[0] == 0.5 and momenta[-1] == pytest.approx(1 - 0.5 / 3.5)


def test_fragments_take_turns_step_by_step(results):
    got = results["fragments_in_turn"]
    # Each call synchronizes the next third beside its step, with the progress of all steps before.
    expected = [[0] * 3, [0, 1, 0], [0, 1, 2], [3, 1, 2], [3, 4, 2], [3, 4, 5], [6, 4, 5]]
    thirds = [[values[0], values[4], values[8]] for values in got["parameters"]]
    assert thirds == expected
    assert got["alone"][:3] == [[7.0] * 4] * 3
    np.testing.assert_allclose(got["together"][:3], [[22.0] * 4] * 3, rtol=1e-6)  # And the mean of 30 steps of two groups.
    # The weight without a gradient stays what it was.
    assert got["alone"][3] == got["together"][3] == [1.0, 1.0]


def test_each_fragment_is_synchronized_once_in_a_period_also_if_there_are_fewer_blocks(results):
    average, nesterov = ([[values[0], values[4]] for values in history] for history in results["fewer_blocks_than_fragments"])
    # Steps 1 to 3 synchronize a block each, the last of which has no gradient, and step 4 none.
    assert average == [[0, 0], *[[0, 1]] * 3, [4, 1], *[[4, 5]] * 2]
    # In rounds the first push, without progress, is no turn of its fragment.
    assert nesterov == [[0, 0], [1, 0], *[[1, 2]] * 3, [5, 2], [5, 6]]


def test_the_progress_of_train_on_batch_counts_in_full_with_all_outer_optimizers(results):
    for outer, difference in results["alone_in_full"].items():
        assert difference < 1e-5, outer


def test_pushes_weigh_by_their_examples(results):
    """Six updates with batches of 2, four with batches of 6. The first push weighs 1/2, as no other group has pushed yet."""
    np.testing.assert_allclose(results["examples"][:3], [[0.5 * 2 + 0.25 * 4 + 0.75 * 4] * 4] * 3, rtol=1e-6)


def test_short_epochs_are_divided_among_all_groups(results):
    got = results["short_epochs"]
    assert got["examples"] == [8.0] * 6
    assert got["evaluations"] == 3
    np.testing.assert_allclose(got["weights"][:3], [[8.0] * 4] * 3, rtol=1e-6)  # The mean of 24 steps of three groups.


def test_epochs_of_unknown_length_are_divided_too_and_the_second_equally(results):
    calls = results["short_epochs"]["unknown length"]
    assert sorted(calls[:6]) == [2, 4, 4, 4, 4, 6] and calls[6:] == [8.0] * 3


@pytest.mark.parametrize("first_push", ["in time", "late"])
def test_at_the_end_of_an_epoch_nobody_waits_for_a_group_that_was_late(results, first_push):
    got = results["late_group"][first_push]
    assert got["absent"] == [0, 0, 0]  # As it would be for others after a grace time.
    np.testing.assert_allclose(got["weights"][:3], [[5 * 12 / 3] * 4] * 3, rtol=1e-6)


def test_train_on_batch_waits_for_the_group_that_trains(results):
    """Losses equal those of plain Keras, for any delay of that group."""
    found = results["alone_and_late"]
    np.testing.assert_allclose(found["late"], found["keras"][:7], rtol=1e-5)


def test_train_on_batch_continues_in_another_group_from_the_progress_of_the_first(results):
    found = results["alone_and_late"]
    np.testing.assert_allclose(found["gone"], found["keras"][8:], rtol=1e-5)


def test_a_group_alone_trains_embeddings_as_plain_keras(results):
    got = results["rows_looked_up"]
    for mine, plain in zip(got["adam alone"], got["adam keras"], strict=True):
        np.testing.assert_allclose(mine, plain, rtol=1e-5, atol=1e-6)


def test_a_call_of_several_periods_synchronizes_in_each_of_them(results):
    for at_once, each_alone in results["several_periods"]:
        *history, collected = at_once
        *expected, expected_at_end = each_alone
        np.testing.assert_allclose(history, expected, rtol=1e-4, atol=1e-4)
        for got, wanted in zip(collected, expected_at_end, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
        assert len(np.unique(history, axis=0)) == len(history)


def test_rows_that_two_groups_have_trained_are_averaged(results):
    got = results["rows_looked_up"]
    for mine, first, second in zip(got["sgd two groups"], *got["sgd keras"], strict=True):
        np.testing.assert_allclose(mine, (np.array(first) + second) / 2, rtol=1e-5, atol=1e-6)
    before, after, ids = np.array(got["sgd before"][0]), np.array(got["sgd two groups"][0]), np.array(got["ids"])
    moved = set(np.flatnonzero(np.any(before != after, axis=1)))
    assert moved == set(ids.flatten()) and len(moved) > 20 and len(moved) < 30
    assert set(ids[0].flatten()) & set(ids[1].flatten())
    assert got["sgd two groups"][-1] == [1.0, 1.0, 1.0]


def test_frozen_weights_that_a_step_assigns_are_synchronized(results):
    assert results["frozen_weights_that_a_step_assigns"] == pytest.approx([0.125, 0.5**3 + 3 * 0.5**4])


@pytest.fixture(scope="module")
def results(tmp_path_factory, run_python):
    return results_of(PROGRAM, dict.fromkeys(CASES), tmp_path_factory.mktemp("exact_models"), run_python)
