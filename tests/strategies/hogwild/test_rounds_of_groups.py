"""Rounds of real groups: those that wait train as synchronous DiLoCo."""

import itertools
import json

import numpy as np
import periodic_oracles as oracles
import pytest
from rounds_in_numpy import Fragment, Replica
from support_paths import PROGRAMS

GIVEN = {
    "groups": 2,
    "period": 4,
    "updates": 8,
    "epochs": 2,
    "rate": 0.05,
    "momentum": 0.5,
    "outer_rate": 0.7,
    "outer_momentum": 0.8,
}


def one_group(x, y, delay, fragments):
    """The weights after training by one group, which all groups with equal batches equal. An epoch ends with a collection."""
    x = np.hstack([x, np.ones((len(x), 1))])
    values, velocity = np.zeros(4), np.zeros(4)
    parts = [slice(0, 4)] if fragments == 1 else [slice(0, 3), slice(3, 4)]  # The kernel, the bias.
    turns, pushed = itertools.cycle(range(fragments)), None
    shared = [Fragment(np.zeros(4)[part], 1, GIVEN["outer_rate"], GIVEN["outer_momentum"]) for part in parts]
    replicas = [Replica(one, 0, values[part]) for one, part in zip(shared, parts, strict=True)]
    for _ in range(GIVEN["epochs"]):
        for step in range(GIVEN["updates"]):
            since = step % (GIVEN["period"] // fragments)
            if since == 0 and step:
                pushed = replicas[next(turns)]
                pushed.push()
            if since == delay and step > delay:
                pushed.pull()
            velocity = GIVEN["momentum"] * velocity - GIVEN["rate"] * 2 / len(y) * x.T @ (x @ values - y)
            values += velocity
        for replica in replicas:
            replica.push()
            replica.start()
    return values


WAYS = [(0, 1), (1, 2)]
"""Delay and number of fragments."""

GENERATOR = np.random.default_rng(3)
X, Y = GENERATOR.normal(size=(16, 3)), GENERATOR.normal(size=16)


@pytest.fixture(scope="module")
def weights(tmp_path_factory, run_python):
    """Returns the weights after the training in each of these ways."""
    folder, options = tmp_path_factory.mktemp("rounds"), GIVEN | {"ways": WAYS, "x": X.tolist(), "y": Y.tolist()}
    code = run_python(folder, str(PROGRAMS / "hogwild_rounds.py"), json.dumps(options), "weights.json", timeout=200)
    assert code == 0, (folder / "output.txt").read_text()[-5000:]
    return dict(zip(WAYS, json.loads((folder / "weights.json").read_text()), strict=True))


@pytest.mark.cluster
@pytest.mark.parametrize(("delay", "fragments"), WAYS)
def test_groups_that_wait_train_as_synchronous_diloco(weights, delay, fragments):
    def gradient(weights, batch):
        return 2 / len(Y) * ones.T @ (ones @ weights - Y)

    expected = one_group(X, Y, delay, fragments)
    if not delay:
        # All batches are equal, so only the number of batches of each group between two rounds matters.
        ones = np.hstack([X, np.ones((len(X), 1))])
        batches = [[None] * GIVEN["groups"]] * (GIVEN["updates"] * GIVEN["epochs"])
        outer = oracles.Nesterov(np.zeros(4), GIVEN["outer_rate"], GIVEN["outer_momentum"])
        diloco = oracles.local_sgd(gradient, np.zeros(4), batches, GIVEN["rate"], GIVEN["period"], GIVEN["momentum"], outer)
        assert expected == pytest.approx(diloco, rel=1e-9)
    assert weights[delay, fragments] == pytest.approx(expected.tolist(), rel=1e-4, abs=1e-5)


@pytest.mark.cluster
@pytest.mark.parametrize(("batches", "epochs", "rounds"), [(20, 90, 44), (60, 30, 59)])
def test_in_short_epochs_all_groups_push_to_the_same_rounds(start, batches, epochs, rounds):
    """A third of 20 batches is 7 or 6. Groups that do not push in the same epochs are a round behind each other: unstable."""
    job = start(str(PROGRAMS / "hogwild_short_epochs.py"), str(batches), str(epochs))
    assert job.wait(200) == 0, job.output
    found = dict(line.split() for line in job.output.splitlines() if line.startswith(("ROUNDS", "EXCESS")))
    # A group that is held up makes no call in an epoch. Another one then makes two, and may push to a round of its own.
    assert rounds <= int(found["ROUNDS"]) < 1.2 * rounds and float(found["EXCESS"]) < 0.01
