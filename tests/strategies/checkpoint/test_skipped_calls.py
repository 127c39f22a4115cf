"""Programs that themselves skip what they have finished, and are started again with a backup: each call gets its own backup.

The processes run here one after the other, with an exception in place of the kill.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from backup_processes import KillAt, Killed

from tfdist.strategies.checkpoint import backup_file, fit_start, job_backup
from tfdist.strategies.checkpoint.fit_start import FitStart

pytestmark = pytest.mark.slow

X = np.random.default_rng(1).random((60, 3), "float32")
Y = X.sum(axis=1, keepdims=True)


def values(model):
    return [weight.tolist() for weight in model.get_weights()]


def dense(rate=0.1):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, name="base"), keras.layers.Dense(1, name="head")])
    model.compile(keras.optimizers.SGD(rate), "mse")
    return model


def folds(results, killed_in, killed_at, skips=True):
    """Cross-validation that keeps the result of each fold. All folds have equal numbers of examples."""
    for fold in range(4):
        if skips and fold in results:
            continue
        left = np.arange(60) % 4 != fold
        model = dense()
        history = model.fit(X[left], Y[left], epochs=3, verbose=0, callbacks=[KillAt(killed_at if fold == killed_in else 99)])
        results[fold] = history.epoch, values(model)
    return results


@pytest.mark.parametrize("killed_at", [0, 2])
def test_a_fold_does_not_get_the_weights_of_another(process, caplog, killed_at):
    whole = process(folds, {}, None, None)
    results = {}
    assert process(folds, results, 2, killed_at) is None
    found = process(folds, results, None, None)
    assert found.keys() == whole.keys()
    for fold in (0, 1):
        assert found[fold] == whole[fold]
    assert all(epochs == [0, 1, 2] for epochs, _ in found.values())
    assert len({str(weights) for _, weights in found.values()}) == 4
    if killed_at:
        assert "is taken for fit 1 in the backup" in caplog.text and "continues after 2 epochs" in caplog.text
    else:  # It had saved nothing.
        assert "its data are others), which was finished: it begins anew" in caplog.text


@pytest.mark.parametrize("removals", [1, 2, 3])
def test_a_program_that_is_killed_while_it_removes_its_backup_makes_its_last_calls_again(process, monkeypatch, removals):
    """The folds have the same data. So a fold whose backup was gone would get that of a later one."""
    removed, remove, listed = [], job_backup.os.remove, job_backup.glob.glob

    def ensemble():
        for member in range(2):
            keras.utils.set_random_seed(member)
            model = dense()
            model.fit(X, Y, epochs=2, verbose=0)
            yield values(model)

    def killed(path):
        if len(removed) == removals:
            raise Killed
        removed.append(path)
        remove(path)

    whole = process(lambda: list(ensemble()))
    with monkeypatch.context() as patched:
        patched.setattr(job_backup.os, "remove", killed)
        patched.setattr(job_backup.glob, "glob", lambda pattern: sorted(listed(pattern)))
        with pytest.raises(Killed):
            process(lambda: list(ensemble()))
    assert len(removed) == removals
    assert process(lambda: list(ensemble())) == whole


def phases(kept, killed_in, killed_at):
    """Trains the head of a model, then all of it; keeps the model after the first phase."""
    model = dense()
    if "weights" in kept:
        model.set_weights(kept["weights"])
    else:
        model.get_layer("base").trainable = False
        model.compile(keras.optimizers.SGD(0.1), "mse")
        model.fit(X, Y, epochs=3, verbose=0, callbacks=[KillAt(killed_at if killed_in == 1 else 99)])
        kept["weights"] = model.get_weights()
    model.get_layer("base").trainable = True
    model.compile(keras.optimizers.SGD(0.01), "mse")
    history = model.fit(X, Y, epochs=3, verbose=0, callbacks=[KillAt(killed_at if killed_in == 2 else 99)])
    return history.history, values(model)


@pytest.mark.parametrize("killed_at", [0, 2])
def test_the_second_phase_is_not_taken_for_the_first_one(process, caplog, killed_at):
    (whole, _), kept = process(phases, {}, None, None), {}
    assert process(phases, kept, 2, killed_at) is None
    history, weights = process(phases, kept, None, None)
    assert len(history["loss"]) == 3 and history["loss"][:killed_at] == whole["loss"][:killed_at]
    assert weights[0] != kept["weights"][0].tolist()
    text = "is taken for fit 2 in the backup" if killed_at else "trainable was 2 and is 4, learning_rate was 0.1"
    assert text in caplog.text


def test_a_program_that_makes_all_calls_again_continues_although_it_sets_no_seed(process, caplog):
    def program(killed_at):
        keras.utils.set_random_seed(int(np.frombuffer(np.random.bytes(2), "uint16")[0]) + killed_at)
        left = np.random.permutation(60)[:40]
        model = dense()
        return model.fit(X[left], Y[left], epochs=3, verbose=0, callbacks=[KillAt(killed_at)]).epoch

    assert process(program, 2) is None
    assert process(program, 99) == [0, 1, 2]
    assert "its data are others), which was not finished: it continues" in caplog.text
    assert "continues after 2 epochs" in caplog.text


def starts(*each):
    return [FitStart(3, 0, **facts) for facts in each]


@pytest.mark.parametrize(
    ("start", "backups", "found"),
    [
        ({"data": "a"}, {1: [{"data": "a"}]}, (1, 0)),
        ({"data": "a"}, {}, (1, 0)),
        ({"data": "c"}, {1: [{"data": "a"}], 2: [{"data": "b"}], 3: [{"data": "c"}]}, (3, 0)),
        ({"data": "d"}, {1: [{"data": "a"}], 2: [{"data": "b"}]}, (1, 0)),
        ({"data": "a", "random": "r"}, {1: [{"data": "a"}, {"data": "a", "random": "r"}]}, (1, 1)),
        ({"random": "r"}, {1: [{"random": "q"}], 2: [{"random": "r"}]}, (1, 0)),  # It may be by chance.
        ({"data": "a", "iterations": 30}, {1: [{"data": "a", "iterations": each} for each in (0, 10, 20, 30)]}, (1, 3)),
        ({"data": "a", "iterations": 35}, {1: [{"data": "a", "iterations": each} for each in (0, 10, 20, 30)]}, (1, 0)),
        ({"learning_rate": 0.1}, {1: [{"learning_rate": 0.2}], 2: [{"learning_rate": 0.1}]}, (2, 0)),
        ({"data": "a", "trainable": 4}, {1: [{"data": "a", "trainable": 2}, {"data": "a", "trainable": 4}]}, (1, 1)),
    ],
)
def test_a_call_is_the_one_that_it_is_like_if_that_is_hardly_by_chance(start, backups, found):
    (first,) = starts(start)
    assert fit_start.find(first, 1, {number: starts(*each) for number, each in backups.items()}) == found


def test_data_are_compared_by_their_contents_where_reading_them_changes_nothing():
    def digest(x, y=None, sample_weight=None):
        return fit_start.of(dense(), {"epochs": 1, "initial_epoch": 0, "x": x, "y": y, "sample_weight": sample_weight}).data

    same = [X, X.copy(), tf.constant(X)]
    assert len({digest(each) for each in same}) == 1 and digest(X) is not None
    others = [X[1:], X[::-1], X + 1, X.astype("float64"), [X, X], {"a": X}, {"b": X}, np.array(["a"], object), [1, 2]]
    assert len({digest(each) for each in (X, *others)}) == len(others) + 1 and digest(X, Y) != digest(X)
    assert digest(tf.data.Dataset.from_tensors(X)) is None and digest([[1], [2, 3]]) is None
    large = np.zeros((5, fit_start.MOST_BYTES), "uint8")
    assert digest(large) != digest(large[:4])


@pytest.mark.parametrize("is_endless", [False, True])
def test_a_call_gets_its_part_of_data_that_calls_before_it_had_too(process, is_endless):
    def program(killed_at=99):
        data, model = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(60), dense()
        data, steps = (data.repeat().batch(8), 11) if is_endless else (data.batch(8), None)
        options = tf.data.Options()
        options.autotune.enabled = False  # Else it may have read on into another repetition when a call ends.
        data = data.with_options(options)
        histories = [model.fit(data, epochs=3, steps_per_epoch=steps, verbose=0).history]
        for at in (99, killed_at):
            again = model.fit(data, epochs=3, steps_per_epoch=steps, verbose=0, callbacks=[KillAt(at)])
            histories.append(again.history)
        return histories, values(model)

    whole = process(program)
    assert process(lambda: program(killed_at=1)) is None
    assert process(program) == whole


def test_a_loop_of_fits_is_said_to_be_finished_in_one_line(process, monkeypatch, caplog):
    monkeypatch.setattr(backup_file, "KEEP", 1)

    def loop(killed_in):
        net = dense()
        for number in range(6):
            net.fit(X, Y, epochs=1, verbose=0, callbacks=[KillAt(0 if number == killed_in else 99)])
        return values(net)

    end = process(loop, 99)
    assert process(loop, 5) is None and process(loop, 99) == end
    said = [text for text in caplog.messages if text.startswith(("fit", "the backup has"))]
    assert len(said) == 2 and said[0].startswith("fits 1 to 5 of ") and "no weights of" in said[1], said
