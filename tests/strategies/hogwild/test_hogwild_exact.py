"""In a real cluster and a known order of events, Hogwild computes what the models of periodic synchronization compute."""

import numpy as np
import pytest
import selection
from hogwild_runs import numbers_in, results_of
from hogwild_schedules import (
    DELAYS,
    EMPTY,
    MIXED,
    NUMBERS,
    TARGETS,
    UNEVEN,
    UPDATES,
    any_delay,
    compressed_events,
    elastic_events,
    fragment_by_fragment,
    mixed_events,
    one_after_the_other,
    open_round,
    random_schedules,
    rounds,
    torchft_events,
    uneven_events,
    with_a_lost_group,
)
from periodic_oracles import (
    TORCHFT_LAYER_0,
    TORCHFT_LAYER_1,
    Average,
    DelayedNesterov,
    Group,
    Nesterov,
    contrib_elastic,
    data_parallel,
    local_sgd,
)
from rounds_in_numpy import Fragment, Replica
from support_paths import PROGRAMS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(920)]

PROGRAM = PROGRAMS / "hogwild_exact.py"
CASES = dict.fromkeys(("data_parallel", "replies_between_steps", "rounds_in_threads", "what_steps_wait_for"))
"""The cases for the program, by name. None runs the function of that name."""


def case(name, events, *, values=((0.0, 0.0, 0.0), (0.0, 0.0)), groups=3, for_a_release=False, **options):
    if for_a_release and not selection.ALL:
        return
    CASES[name] = {"values": values, "groups": groups, "options": options, "events": events}


case("any delay, average", any_delay())
case("any delay, sum", any_delay(), outer="sum")
# Without momentum and with rate 1 it is an average, so the sum of all updates is known.
without_momentum = {"outer": "nesterov", "outer_learning_rate": 1.0, "outer_momentum": 0.0}
case("any delay, nesterov", any_delay(), **without_momentum, for_a_release=True)
case("any delay, int4", any_delay(groups=2), groups=2, compression="int4")


@pytest.mark.parametrize("number", range(len(DELAYS)), ids=[f"delay {delay}" for delay in DELAYS])
@pytest.mark.parametrize(
    ("name", "weights"),
    [("average", 1), ("sum", 3), pytest.param("nesterov", 1, marks=pytest.mark.release), ("int4", 1)],
)
def test_no_update_is_lost_for_any_delay_of_the_reply(results, name, weights, number):
    """`weights` is the sum of the weights of all groups."""
    read = results[f"any delay, {name}"][number]
    np.testing.assert_allclose(read["parameters"], [weights * UPDATES * (number + 1)] * 5, rtol=1e-6)
    np.testing.assert_allclose(read["replicas"], [read["parameters"]] * (2 if name == "int4" else 3), rtol=0, atol=0)


@pytest.mark.parametrize("delay", range(5))
def test_a_group_pulls_after_the_delay_and_waits_only_there(results, delay):
    late, waited, early = results["replies_between_steps"][delay]
    assert waited
    replica = baseline = 0.9**4  # After the first period, at whose begin nothing had been pushed.
    parameters = 1 + (0.6**4 - 1) / 2  # After the first push of the other group.
    baseline = 1.0
    for found in (late, early):
        parameters += (replica - baseline) / 2
        at_push, baseline = replica, parameters
        for step in range(4):
            if step == delay:
                replica += parameters - at_push
            replica *= 0.9
        if delay == 4:
            replica += parameters - at_push
        assert found == pytest.approx(replica, abs=1e-6)


def test_inner_steps_wait_for_no_operation_on_a_ps(results):
    for on_ps, waited_for in results["what_steps_wait_for"]:
        assert on_ps > 10
        assert waited_for == []


case("random", random_schedules()[0])


def test_random_schedules_end_as_the_model_without_a_barrier(results):
    for number, (parameters, replicas) in enumerate(random_schedules()[1]):
        read, collected = results["random"][2 * number : 2 * number + 2]
        np.testing.assert_allclose(read["parameters"], parameters, rtol=2e-5, atol=2e-5)
        np.testing.assert_allclose(read["replicas"], replicas, rtol=2e-5, atol=2e-5)
        np.testing.assert_allclose(collected["parameters"], parameters, rtol=2e-5, atol=2e-5)


# Published values.

TORCHFT = {"values": [[1.0], [1.0]], "groups": 1, "period": 6, "fragments": 2, "outer_learning_rate": 2.0}
case("torchft", torchft_events(0), **TORCHFT)
case("torchft, delay 1", torchft_events(1), **TORCHFT)


def test_the_fixture_of_torchft_without_delay(results):
    """The other five mix replica and global parameters in a proportion alpha, or drop the steps until the reply."""
    history = [read["replicas"][0] for read in results["torchft"]]
    assert {step: history[step][0] for step in TORCHFT_LAYER_0[0, 0.0]} == TORCHFT_LAYER_0[0, 0.0]
    assert {step: history[step][1] for step in TORCHFT_LAYER_1[0, 0.0]} == TORCHFT_LAYER_1[0, 0.0]


def test_the_fixture_of_torchft_with_delay_except_that_no_step_is_dropped(results):
    layers = [Group(1.0), Group(1.0)]
    outer = [Average(1.0, rate=2.0), Average(1.0, rate=2.0)]
    history = [[1.0, 1.0]]
    for step in range(1, 17):
        in_flight = [(3 * (layer + 1) - step) % 6 == 0 for layer in (0, 1)]
        for layer in (0, 1):
            if in_flight[layer]:
                outer[layer].take(layers[layer].push(), 1.0)
            layers[layer].update(-2.0)
            if in_flight[layer]:
                layers[layer].reply(outer[layer].parameters)
        history.append([layer.replica for layer in layers])
    reads = results["torchft, delay 1"]
    assert [read["replicas"][0] for read in reads] == history
    assert reads[-1]["parameters"] == [layer.parameters for layer in outer]
    # The first synchronization of torchft gives the same global parameters, -7, and drops the step of -2 that is kept here.
    assert reads[3]["parameters"][0] == TORCHFT_LAYER_0[1, 0.0][3] == reads[3]["replicas"][0][0] + 2


ELASTIC = {"1 group": (1, 2, 1.0), "2 groups": (2, 1, 0.5)}
for name, (groups, period, rate) in ELASTIC.items():
    case(f"elastic, {name}", elastic_events(groups, period), groups=groups, outer="elastic", elastic_rate=rate)


@pytest.mark.parametrize("name", ELASTIC)
def test_the_values_of_tensorflow_1s_elastic_averaging(results, name):
    expected = contrib_elastic(*ELASTIC[name], steps=6)
    assert expected[1 if name == "1 group" else 0] == (([0.0], 2.0) if name == "1 group" else ([0.5, 0.75], 0.75))
    assert len(results[f"elastic, {name}"]) == 6
    for read, (replicas, parameters) in zip(results[f"elastic, {name}"], expected, strict=True):
        assert read["replicas"] == [[replica] * 5 for replica in replicas]
        assert read["parameters"] == [parameters] * 5


# Rounds, with and without waiting.

DILOCO = {"outer_learning_rate": 0.7, "outer_momentum": 0.9}
case("rounds, average", rounds(), outer_learning_rate=0.8)
case("rounds, nesterov", rounds(), outer="nesterov", **DILOCO)
case("rounds, delayed_nesterov", rounds(), outer="delayed_nesterov", **DILOCO)


@pytest.mark.parametrize("name", ["average", "nesterov", "delayed_nesterov"])
def test_rounds_of_all_groups_are_local_sgd_and_diloco(results, name):
    reads = results[f"rounds, {name}"]
    for count, read in enumerate(reads, start=1):
        outer = Average(np.zeros(5), 0.8) if name == "average" else Nesterov(np.zeros(5), rate=0.7, beta=0.9)
        expected = local_sgd(lambda w, x: w - x, np.zeros(5), TARGETS[: 4 * count], 0.1, period=4, outer=outer)
        np.testing.assert_allclose(read["parameters"], expected, rtol=1e-5, atol=1e-6)
    assert len(reads) == 5


case("uneven, nesterov", uneven_events(), outer="nesterov", **DILOCO)
case("uneven, delayed_nesterov", uneven_events(), outer="delayed_nesterov", **DILOCO)
case("uneven, int8", uneven_events(), outer="delayed_nesterov", compression="int8", **DILOCO)


@pytest.mark.parametrize("name", ["delayed_nesterov", "int8"])
def test_delayed_nesterov_with_uneven_groups(results, name):
    """All values of a push are equal, so int8 rounds them by float32's own error only."""
    outer, groups = DelayedNesterov(0.0, rate=0.7, beta=0.9, every=3), [Group(0.0) for _ in range(3)]
    for (group, before, meanwhile), read in zip(UNEVEN, results[f"uneven, {name}"], strict=True):
        groups[group].update(before)
        outer.take(groups[group].push())
        groups[group].update(meanwhile)
        groups[group].reply(outer.parameters)
        tolerance = {"rtol": 1e-5, "atol": 1e-5} if name == "delayed_nesterov" else {"rtol": 1e-3, "atol": 1e-3}
        np.testing.assert_allclose(read["parameters"], [outer.parameters] * 5, **tolerance)
        np.testing.assert_allclose(read["replicas"], [[each.replica] * 5 for each in groups], **tolerance)


def test_rounds_of_groups_that_do_not_wait(results):
    """Each group ends its round at once, so the others are late or absent. rounds.py has the rules."""
    outer, values = Fragment(np.zeros(1), 3, 0.7, 0.9), np.zeros((3, 1))
    replicas = [Replica(outer, group, values[group]) for group in range(3)]
    for (group, before, meanwhile), read in zip(UNEVEN, results["uneven, nesterov"], strict=True):
        values[group] += before
        replicas[group].push()
        outer.expire(replicas[group].wanted)
        values[group] += meanwhile
        replicas[group].pull()
        np.testing.assert_allclose(read["parameters"], np.repeat(outer.parameters, 5), rtol=1e-5)
        np.testing.assert_allclose(read["replicas"], np.repeat(values, 5, axis=1), rtol=1e-5)
    assert 1 < outer.round.complete < len(UNEVEN)


def test_groups_wait_for_a_round_after_the_delay_and_not_longer_than_the_grace_time(results):
    found = results["rounds_in_threads"]
    assert found["at the pull"] == [6, 6]
    assert found["global"] == 4
    assert found["after a round"] == [8, 8, 8]
    # The late group has pulled what the two others have in the meantime, and its own push is in the round that is open.
    assert len({number for numbers in found["replies"] for number in numbers}) == 1
    for weight in found["collected"][:3]:
        assert weight == pytest.approx([(16 + 16 + 12) / 3] * 4, rel=1e-6)


case("open round", open_round(), outer="nesterov", outer_learning_rate=1.0, outer_momentum=0.0)


def test_a_collection_has_the_progress_of_groups_whose_round_is_not_complete(results):
    first, second = results["open round"]
    np.testing.assert_allclose(first["parameters"], [11 / 3] * 5, rtol=1e-6)
    np.testing.assert_allclose(second["parameters"], [17 / 3] * 5, rtol=1e-6)
    np.testing.assert_allclose(second["replicas"], [second["parameters"]] * 3)


case("loss, average", with_a_lost_group())
case("loss, nesterov", with_a_lost_group(), outer="nesterov", outer_learning_rate=1.0, outer_momentum=0.0)


@pytest.mark.parametrize("outer", ["average", "nesterov"])
def test_the_pushes_of_a_lost_group_stay_and_its_weight_goes_to_the_others(results, outer):
    read, collected = results[f"loss, {outer}"]
    # In rounds, group 2 has ended the first round alone. The pushes of the others are late, and wait for the next round.
    np.testing.assert_allclose(read["parameters"], [3 / 3 + (4 / 2 + 4 / 2 if outer == "average" else 0)] * 5, rtol=1e-6)
    np.testing.assert_allclose(collected["parameters"], [3 / 3 + 4 / 2 + 4 / 2] * 5, rtol=1e-6)


# SINGA's sum, and fragments.

case("sum", one_after_the_other(), outer="sum")


def test_sum_adds_progress_as_it_is(results):
    first, second = results["sum"]
    assert first["parameters"] == [7.0] * 5
    assert first["replicas"] == [[3.0] * 5, [6.0] * 5, [7.0] * 5]
    assert second["parameters"] == [8.0] * 5


case("fragments", fragment_by_fragment(), groups=2, fragments=2, period=2)


def test_synchronizing_a_fragment_leaves_the_other_as_it_is(results):
    first, second, third, last = results["fragments"]
    assert first["parameters"] == [0.5] * 3 + [0.0] * 2
    assert first["replicas"] == [[1.5] * 3 + [2.0] * 2, [0.0] * 5]
    assert second["parameters"] == [0.5] * 3 + [1.0] * 2
    assert second["replicas"][0] == [2.5] * 3 + [2.0] * 2
    # The second group pushed no progress and pulled fragment 1 only; the first pushed 2 steps of fragment 0.
    assert third["parameters"] == [1.5] * 3 + [1.0] * 2
    assert third["replicas"] == [[1.5] * 3 + [2.0] * 2, [3.0] * 3 + [4.0] * 2]
    assert last["parameters"] == [3.0] * 5


# Rings and pairs of server groups.

case("ring", mixed_events(), topology="ring", servers=((0,), (1,), (2,)))
case("pair", mixed_events(), topology="pair", servers=((0,), (1,)))
case("pair of three", mixed_events(), topology="pair", servers=((0,), (1,), (2,)))


@pytest.mark.parametrize(("topology", "servers"), [("ring", (0, 1, 2)), ("pair", (0, 0, 1))])
def test_server_groups_take_the_mean_with_their_neighbors(results, topology, servers):
    """What one server group gains the others lose, so the mean over server groups is the mean of all pushes."""
    parameters, groups = np.zeros(max(servers) + 1), [Group(0.0) for _ in servers]
    *reads, collected = results[topology]
    for (group, before, meanwhile), read in zip(MIXED, reads, strict=True):
        here = servers[group]
        groups[group].update(before)
        parameters[here] += groups[group].push() / servers.count(here)
        differences = (parameters - parameters[here]) / len(parameters)  # Up to three are all neighbors of each other.
        parameters -= differences
        parameters[here] += differences.sum()
        groups[group].update(meanwhile)
        groups[group].reply(parameters[here])
        np.testing.assert_allclose(read["parameters"], [parameters.mean()] * 5, rtol=1e-6)
        np.testing.assert_allclose(read["replicas"], [[each.replica] * 5 for each in groups], rtol=1e-5)
    made = [sum(before + meanwhile for group, before, meanwhile in MIXED if servers[group] == here) for here in set(servers)]
    per_group = [steps / servers.count(here) for here, steps in enumerate(made)]
    np.testing.assert_allclose(collected["parameters"], [np.mean(per_group)] * 5, rtol=1e-6)
    np.testing.assert_allclose(collected["replicas"], [collected["parameters"]] * 3, rtol=0)


def test_pairs_at_random_keep_the_mean_of_all_pushes(results):
    *reads, collected = results["pair of three"]
    total, late = 0.0, {group: 0 for group, _, _ in MIXED}
    for (group, before, meanwhile), read in zip(MIXED, reads, strict=True):
        total += before + late[group]
        late[group] = meanwhile  # Steps until the reply are part of the next push.
        np.testing.assert_allclose(read["parameters"], [total / 3] * 5, rtol=1e-6)
    np.testing.assert_allclose(collected["parameters"], [(total + sum(late.values())) / 3] * 5, rtol=1e-6)
    np.testing.assert_allclose(collected["replicas"], [collected["parameters"]] * 3, rtol=0)


# Compression.

for kind in ("bf16", "int8", "int4"):
    options = {"values": [[0.0] * 600, [0.0] * 100], "groups": 2, "shard_bytes": 700, "compression": kind}
    case(f"compression {kind}", compressed_events(), **options, for_a_release=kind == "int4")


@pytest.mark.parametrize(
    ("kind", "rounding"), [("bf16", 2**-8), ("int8", 1 / 254), pytest.param("int4", 1 / 14, marks=pytest.mark.release)]
)
def test_rounding_errors_are_part_of_the_next_pushes(results, kind, rounding):
    *reads, collected = results[f"compression {kind}"]
    expected, largest = NUMBERS.mean(axis=0), np.abs(NUMBERS).max()
    for number, read in enumerate(reads, start=1):
        # Each synchronization leaves at most this fraction of the rounding error of the one before.
        bound = max(largest * rounding**number * 1.01, 2e-6 * largest)
        assert np.abs(read["parameters"] - expected).max() <= bound, number
    assert np.abs(reads[0]["parameters"] - expected).max() > 1e-4  # It does round.
    # The same holds for replies, one synchronization later. The rounding errors of others have moved the parameters since.
    assert np.abs(np.array(reads[-1]["replicas"]) - reads[-1]["parameters"]).max() <= largest * max(2 * rounding**EMPTY, 4e-6)
    # A collection has no rounding error in either direction.
    np.testing.assert_allclose(collected["parameters"], 2 * expected, rtol=1e-5, atol=2e-6 * largest)
    assert collected["replicas"] == [collected["parameters"]] * 2


@pytest.mark.parametrize(("delay", "momentum"), [(1, 0.0), (0, 0.9)])
def test_averaging_after_every_update_is_data_parallel_training(results, delay, momentum):
    data = results["data_parallel"]
    steps = zip(data["inputs"], data["targets"], strict=True)
    batches = [[(np.array(x), np.array(y)) for x, y in zip(*step, strict=True)] for step in steps]

    def gradient(weights, batch):
        inputs, targets = batch
        return 2 * inputs.T @ (inputs @ weights - targets) / len(inputs)

    history = data[f"{delay} {momentum}"]
    assert len(history) == 10
    for count, (kernel,) in enumerate(history, start=1):
        expected = data_parallel(gradient, np.zeros((4, 1)), batches[:count], 0.05, momentum)
        np.testing.assert_allclose(kernel, expected, rtol=1e-4, atol=1e-6)


# Global parameters on the workers.

WITHOUT_PS = ("data_parallel", "rounds, average", "rounds, nesterov", "uneven, int8", "fragments", "what_steps_wait_for")


@pytest.mark.release
@pytest.mark.parametrize("name", WITHOUT_PS)
def test_where_the_global_parameters_are_changes_nothing(results, without_ps, name):
    """But rounding: TensorFlow optimizes the operations of a task together."""
    without, expected = numbers_in(without_ps[name]), numbers_in(results[name])
    assert len(without) > 5
    np.testing.assert_allclose(without, expected, rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def results(tmp_path_factory, run_python):
    return results_of(PROGRAM, CASES, tmp_path_factory.mktemp("exact"), run_python)


@pytest.fixture(scope="module")
def without_ps(tmp_path_factory, run_python):
    cases = {name: CASES[name] for name in WITHOUT_PS}
    return results_of(PROGRAM, cases, tmp_path_factory.mktemp("exact_without_ps"), run_python, servers=0)
