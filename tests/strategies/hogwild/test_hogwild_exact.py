"""Hogwild's exchange computes what the models of periodic synchronization do, in a real cluster, in an order that is known."""

import json
import subprocess
import sys

import numpy as np
import pytest
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
    each_after_the_other,
    elastic_events,
    mixed_events,
    partly,
    random_schedules,
    rounds,
    slice_by_slice,
    torchft_events,
    uneven_events,
    with_a_loss,
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
from support_paths import PROGRAMS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

PROGRAM = PROGRAMS / "hogwild_exact.py"
CLUSTER = "nworker_groups: 3 nserver_groups: 3 nservers_per_group: 1 server_worker_separate: true"
CASES = {
    "data_parallel": None,
    "examples": None,
    "slices_in_turn": None,
    "answers_between_steps": None,
    "rows_looked_up": None,
    "what_steps_wait_for": None,
    "alone_and_late": None,
    "short_epochs": None,
}
"""Name -> what the program is to do, see there."""


def case(name, events, *, values=((0.0, 0.0, 0.0), (0.0, 0.0)), groups=3, **options):
    CASES[name] = {"values": values, "groups": groups, "options": options, "events": events}


case("any delay, average", any_delay())
case("any delay, sum", any_delay(), outer="sum")
# Without momentum and with rate 1 it is an average, in which updates could only get lost.
case("any delay, nesterov", any_delay(), outer="nesterov", outer_learning_rate=1.0, outer_momentum=0.0)
case("any delay, int4", any_delay(), compression="int4")


@pytest.mark.parametrize("number", range(len(DELAYS)), ids=[f"delay {delay}" for delay in DELAYS])
@pytest.mark.parametrize(("name", "weight"), [("average", 1 / 3), ("sum", 1), ("nesterov", 1 / 3), ("int4", 1 / 3)])
def test_no_update_is_lost_however_late_the_answer_comes(results, name, weight, number):
    read = results[f"any delay, {name}"][number]
    np.testing.assert_allclose(read["centre"], [weight * 3 * UPDATES * (number + 1)] * 5, rtol=1e-6)
    np.testing.assert_allclose(read["copies"], [read["centre"]] * 3, rtol=0, atol=0)


@pytest.mark.parametrize("steps_before", range(5))
def test_an_answer_is_taken_over_after_the_step_during_which_it_came(results, steps_before):
    begun = 0.9**4  # After the first period.
    centre = 1 + (begun - 1) / 2 + (0.6**4 - 1) / 2  # With a first period of each group in it.
    wanted = begun
    for step in range(4):
        wanted *= 0.9
        if step == min(steps_before, 3):
            wanted += centre - begun
    assert results["answers_between_steps"][steps_before] == pytest.approx(wanted, abs=1e-6)


def test_local_steps_wait_for_nothing_that_a_ps_does(results):
    for on_ps, waited_for in results["what_steps_wait_for"]:
        assert on_ps > 10
        assert waited_for == []


case("random", random_schedules()[0])


def test_random_schedules_end_as_the_model_without_a_barrier(results):
    for number, (centre, copies) in enumerate(random_schedules()[1]):
        read, collected = results["random"][2 * number : 2 * number + 2]
        np.testing.assert_allclose(read["centre"], centre, rtol=2e-5, atol=2e-5)
        np.testing.assert_allclose(read["copies"], copies, rtol=2e-5, atol=2e-5)
        np.testing.assert_allclose(collected["centre"], centre, rtol=2e-5, atol=2e-5)


# Published values.

TORCHFT = {"values": [[1.0], [1.0]], "groups": 1, "period": 6, "fragments": 2, "outer_learning_rate": 2.0}
case("torchft", torchft_events(0), **TORCHFT)
case("torchft, delay 1", torchft_events(1), **TORCHFT)


def test_torchfts_fixture_without_delay(results):
    """The other five mix copy and centre in a proportion alpha, or drop what was done while the answer was under way."""
    history = [read["copies"][0] for read in results["torchft"]]
    assert {step: history[step][0] for step in TORCHFT_LAYER_0[0, 0.0]} == TORCHFT_LAYER_0[0, 0.0]
    assert {step: history[step][1] for step in TORCHFT_LAYER_1[0, 0.0]} == TORCHFT_LAYER_1[0, 0.0]


def test_torchfts_fixture_with_delay_but_the_step_meanwhile_is_kept(results):
    layers = [Group(1.0), Group(1.0)]
    centres = [Average(1.0, rate=2.0), Average(1.0, rate=2.0)]
    history = [[1.0, 1.0]]
    for step in range(1, 17):
        under_way = [(3 * (layer + 1) - step) % 6 == 0 for layer in (0, 1)]
        for layer in (0, 1):
            if under_way[layer]:
                centres[layer].take(layers[layer].push(), 1.0)
            layers[layer].update(-2.0)
            if under_way[layer]:
                layers[layer].reply(centres[layer].centre)
        history.append([layer.copy for layer in layers])
    reads = results["torchft, delay 1"]
    assert [read["copies"][0] for read in reads] == history
    assert reads[-1]["centre"] == [centre.centre for centre in centres]
    # torchft's first exchange gives the same centre, which it has as its copy: -7. Here one step of -2 goes on from there.
    assert reads[3]["centre"][0] == TORCHFT_LAYER_0[1, 0.0][3] == reads[3]["copies"][0][0] + 2


ELASTIC = {"1 group": (1, 2, 1.0), "2 groups": (2, 1, 0.5)}
for name, (groups, period, rate) in ELASTIC.items():
    case(f"elastic, {name}", elastic_events(groups, period), groups=groups, outer="elastic", elastic_rate=rate)


@pytest.mark.parametrize("name", ELASTIC)
def test_the_values_of_tensorflow_1s_elastic_averaging(results, name):
    expected = contrib_elastic(*ELASTIC[name], steps=6)
    assert expected[1 if name == "1 group" else 0] == (([0.0], 2.0) if name == "1 group" else ([0.5, 0.75], 0.75))
    assert len(results[f"elastic, {name}"]) == 6
    for read, (copies, centre) in zip(results[f"elastic, {name}"], expected, strict=True):
        assert read["copies"] == [[copy] * 5 for copy in copies]
        assert read["centre"] == [centre] * 5


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
        np.testing.assert_allclose(read["centre"], expected, rtol=1e-5, atol=1e-6)
    assert len(reads) == 5


case("uneven, nesterov", uneven_events(), outer="nesterov", **DILOCO)
case("uneven, delayed_nesterov", uneven_events(), outer="delayed_nesterov", **DILOCO)
case("uneven, int8", uneven_events(), outer="delayed_nesterov", compression="int8", **DILOCO)


@pytest.mark.parametrize("name", ["delayed_nesterov", "int8"])
def test_delayed_nesterov_with_uneven_groups(results, name):
    """All values are alike, so that int8 rounds them by float32's own error only."""
    centre, groups = DelayedNesterov(0.0, rate=0.7, beta=0.9, every=3), [Group(0.0) for _ in range(3)]
    for (group, before, meanwhile), read in zip(UNEVEN, results[f"uneven, {name}"], strict=True):
        groups[group].update(before)
        centre.take(groups[group].push())
        groups[group].update(meanwhile)
        groups[group].reply(centre.centre)
        tolerance = {"rtol": 1e-5, "atol": 1e-5} if name == "delayed_nesterov" else {"rtol": 1e-3, "atol": 1e-3}
        np.testing.assert_allclose(read["centre"], [centre.centre] * 5, **tolerance)
        np.testing.assert_allclose(read["copies"], [[each.copy] * 5 for each in groups], **tolerance)


def test_nesterov_by_rounds_with_uneven_groups(results):
    """A copy is the centre as it came last, and what the group has done that this centre did not have."""
    outer, mean = Nesterov(0.0, rate=0.7, beta=0.9), 1 / 3
    open_round = {}  # Group -> its changes in the round that goes on.
    copies, progress = [0.0] * 3, [0] * 3
    for (group, before, meanwhile), read in zip(UNEVEN, results["uneven, nesterov"], strict=True):
        open_round[group] = open_round.get(group, 0) + progress[group] + before
        if len(open_round) == 3:
            outer.take_round([sum(open_round.values())], [mean])
            open_round = {}
        copies[group] = outer.centre + open_round.get(group, 0) + meanwhile
        progress[group] = meanwhile
        np.testing.assert_allclose(read["centre"], [outer.centre] * 5, rtol=1e-5)
        np.testing.assert_allclose(read["copies"], np.repeat([copies], 5, axis=0).T, rtol=1e-5)
    assert outer.momentum != 0


case("partly", partly(), outer="nesterov", outer_learning_rate=1.0, outer_momentum=0.0)


def test_what_is_brought_together_has_the_progress_of_groups_whose_round_is_not_complete(results):
    first, second = results["partly"]
    np.testing.assert_allclose(first["centre"], [11 / 3] * 5, rtol=1e-6)
    np.testing.assert_allclose(second["centre"], [17 / 3] * 5, rtol=1e-6)
    np.testing.assert_allclose(second["copies"], [second["centre"]] * 3)


case("loss, average", with_a_loss())
case("loss, nesterov", with_a_loss(), outer="nesterov", outer_learning_rate=1.0, outer_momentum=0.0)


@pytest.mark.parametrize("outer", ["average", "nesterov"])
def test_of_a_group_that_fails_its_pushed_changes_stay_and_its_weight_goes_to_the_others(results, outer):
    (read,) = results[f"loss, {outer}"]
    if outer == "average":
        np.testing.assert_allclose(read["centre"], [3 / 3 + 4 / 2 + 4 / 2] * 5, rtol=1e-6)
    else:  # Its change and that of the next complete the round of two; the last waits for the other.
        np.testing.assert_allclose(read["centre"], [3 / 3 + 4 / 2] * 5, rtol=1e-6)


# SINGA's sum, and slices.

case("sum", each_after_the_other(), outer="sum")


def test_sum_adds_all_changes_as_they_are(results):
    first, second = results["sum"]
    assert first["centre"] == [7.0] * 5
    assert first["copies"] == [[3.0] * 5, [6.0] * 5, [7.0] * 5]
    assert second["centre"] == [8.0] * 5


case("slices", slice_by_slice(), groups=2, fragments=2, period=2)


def test_a_slice_is_exchanged_in_its_turn_and_leaves_the_other_alone(results):
    first, second, third, last = results["slices"]
    assert first["centre"] == [0.5] * 3 + [0.0] * 2
    assert first["copies"] == [[1.5] * 3 + [2.0] * 2, [0.0] * 5]
    assert second["centre"] == [0.5] * 3 + [1.0] * 2
    assert second["copies"][0] == [2.5] * 3 + [2.0] * 2
    # The second group has pushed nothing, and took the centre of slice 1 only over; the first pushed 2 of slice 0.
    assert third["centre"] == [1.5] * 3 + [1.0] * 2
    assert third["copies"] == [[1.5] * 3 + [2.0] * 2, [3.0] * 3 + [4.0] * 2]
    assert last["centre"] == [3.0] * 5


# Rings and pairs of server groups.

case("ring", mixed_events(), topology="ring", servers=((0,), (1,), (2,)))
case("pair", mixed_events(), topology="pair", servers=((0,), (1,)))


@pytest.mark.parametrize(("topology", "servers"), [("ring", (0, 1, 2)), ("pair", (0, 0, 1))])
def test_server_groups_take_the_mean_with_their_neighbors(results, topology, servers):
    """What one centre gains the others lose, so that the mean of all centres is that of all changes."""
    centres, groups = np.zeros(max(servers) + 1), [Group(0.0) for _ in servers]
    *reads, together = results[topology]
    for (group, before, meanwhile), read in zip(MIXED, reads, strict=True):
        here = servers[group]
        groups[group].update(before)
        centres[here] += groups[group].push() / servers.count(here)
        differences = (centres - centres[here]) / len(centres)  # Of up to three each is a neighbor of each.
        centres -= differences
        centres[here] += differences.sum()
        groups[group].update(meanwhile)
        groups[group].reply(centres[here])
        np.testing.assert_allclose(read["centre"], [centres.mean()] * 5, rtol=1e-6)
        np.testing.assert_allclose(read["copies"], [[each.copy] * 5 for each in groups], rtol=1e-5)
    made = [sum(before + meanwhile for group, before, meanwhile in MIXED if servers[group] == here) for here in set(servers)]
    per_group = [steps / servers.count(here) for here, steps in enumerate(made)]
    np.testing.assert_allclose(together["centre"], [np.mean(per_group)] * 5, rtol=1e-6)
    np.testing.assert_allclose(together["copies"], [together["centre"]] * 3, rtol=0)


# Compression.

for kind in ("bf16", "int8", "int4"):
    case(f"compression {kind}", compressed_events(), values=[[0.0] * 600, [0.0] * 100], compression=kind)


@pytest.mark.parametrize(("kind", "rounding"), [("bf16", 2**-8), ("int8", 1 / 254), ("int4", 1 / 14)])
def test_what_rounding_left_out_follows_with_the_next_exchanges(results, kind, rounding):
    *reads, together = results[f"compression {kind}"]
    expected, largest = NUMBERS.mean(axis=0), np.abs(NUMBERS).max()
    for number, read in enumerate(reads, start=1):
        # Each exchange leaves at most this part of what the one before has left.
        bound = max(largest * rounding**number * 1.01, 2e-6 * largest)
        assert np.abs(read["centre"] - expected).max() <= bound, number
    assert np.abs(reads[0]["centre"] - expected).max() > 1e-4  # It does round.
    # The same for the answers, one exchange later; the centre has moved since, by what the others had still left out.
    assert np.abs(np.array(reads[-1]["copies"]) - reads[-1]["centre"]).max() <= largest * max(2 * rounding**EMPTY, 4e-6)
    # Brought together, nothing is left out, neither on the way there nor on the way back.
    np.testing.assert_allclose(together["centre"], 2 * expected, rtol=1e-5, atol=2e-6 * largest)
    assert together["copies"] == [together["centre"]] * 3


# Keras models, whose steps the groups make one after the other.


@pytest.mark.parametrize(("overlap", "momentum"), [(True, 0.0), (False, 0.9)])
def test_averaging_after_every_update_is_data_parallel_training(results, overlap, momentum):
    given = results["data_parallel"]
    steps = zip(given["inputs"], given["targets"], strict=True)
    batches = [[(np.array(x), np.array(y)) for x, y in zip(*step, strict=True)] for step in steps]

    def gradient(weights, batch):
        inputs, targets = batch
        return 2 * inputs.T @ (inputs @ weights - targets) / len(inputs)

    history = given[f"{overlap} {momentum}"]
    assert len(history) == 10
    for count, (kernel,) in enumerate(history, start=1):
        expected = data_parallel(gradient, np.zeros((4, 1)), batches[:count], 0.05, momentum)
        np.testing.assert_allclose(kernel, expected, rtol=1e-4, atol=1e-6)


def test_slices_take_their_turns_step_by_step(results):
    got = results["slices_in_turn"]
    # With the step of each call goes the exchange of the next third, with all steps before it.
    expected = [[0] * 3, [0, 1, 0], [0, 1, 2], [3, 1, 2], [3, 4, 2], [3, 4, 5], [6, 4, 5]]
    thirds = [[centre[0], centre[4], centre[8]] for centre in got["centres"]]
    assert thirds == expected
    assert got["alone"][:3] == [[7.0] * 4] * 3
    np.testing.assert_allclose(got["together"][:3], [[10.0] * 4] * 3, rtol=1e-6)  # The mean of 30 steps of three groups.
    # The weight without a gradient stays what it was.
    assert got["alone"][3] == got["together"][3] == [1.0, 1.0]


def test_changes_weigh_by_their_examples(results):
    """Six updates with batches of 2, four with batches of 6. The first change weighs a half: nobody else has pushed one yet."""
    np.testing.assert_allclose(results["examples"][:3], [[0.5 * 2 + 0.25 * 4 + 0.75 * 4] * 4] * 3, rtol=1e-6)


def test_in_short_epochs_every_group_gets_its_part(results):
    got = results["short_epochs"]
    assert got["examples"] == [8.0] * 6
    assert got["evaluations"] == 3
    np.testing.assert_allclose(got["weights"][:3], [[8.0] * 4] * 3, rtol=1e-6)  # The mean of 24 steps of three groups.


def test_train_on_batch_waits_for_the_group_that_trains(results):
    """As plain Keras, however late that group comes back for its next step."""
    np.testing.assert_allclose(results["alone_and_late"]["late"], results["alone_and_late"]["keras"], rtol=1e-5)


def test_train_on_batch_goes_on_in_another_group_from_what_the_first_has_done(results):
    np.testing.assert_allclose(results["alone_and_late"]["gone"], results["alone_and_late"]["keras"], rtol=1e-5)


def test_a_group_alone_trains_embeddings_as_plain_keras(results):
    got = results["rows_looked_up"]
    for mine, plain in zip(got["adam alone"], got["adam keras"], strict=True):
        np.testing.assert_allclose(mine, plain, rtol=1e-5, atol=1e-6)


def test_rows_that_two_groups_have_trained_are_averaged(results):
    got = results["rows_looked_up"]
    for mine, first, second in zip(got["sgd two groups"], *got["sgd keras"], strict=True):
        np.testing.assert_allclose(mine, (np.array(first) + second) / 2, rtol=1e-5, atol=1e-6)
    before, after, ids = np.array(got["sgd before"][0]), np.array(got["sgd two groups"][0]), np.array(got["ids"])
    moved = set(np.flatnonzero(np.any(before != after, axis=1)))
    assert moved == set(ids.flatten()) and len(moved) > 20 and len(moved) < 30
    assert set(ids[0].flatten()) & set(ids[1].flatten())
    assert got["sgd two groups"][-1] == [1.0, 1.0, 1.0]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What the program gives, for all cases in one cluster."""
    folder = tmp_path_factory.mktemp("exact")
    (folder / "job.conf").write_text(f"cluster {{ {CLUSTER} }}")
    (folder / "cases.json").write_text(json.dumps(CASES))
    command = [
        sys.executable,
        "-m",
        "tfdist.launch",
        "--cluster",
        "job.conf",
        "--topology",
        "ring",
        str(PROGRAM),
        "--",
    ]  # The ps see each other.
    with open(folder / "output.txt", "wb") as output:
        subprocess.run([*command, "cases.json", "results.json"], cwd=folder, stdout=output, stderr=output, timeout=380)
    assert (folder / "results.json").exists(), (folder / "output.txt").read_text()[-5000:]
    return json.loads((folder / "results.json").read_text())
