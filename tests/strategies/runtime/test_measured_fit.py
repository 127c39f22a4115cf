"""What `fit` writes for the planner's probe, and how it is changed for it."""

import json
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.launch.plan import window
from tfdist.planner import placement
from tfdist.planner.costs import COMPRESSED
from tfdist.strategies.hogwild.synchronization.compression import COMPRESSORS
from tfdist.strategies.parameter_server.placement import MIN_SHARD_BYTES
from tfdist.strategies.runtime import measured_fit, run_summary
from tfdist.strategies.runtime.measured_fit import MeasuredFit, batch_of, change


def test_both_sides_agree():
    assert window.SUFFIX == measured_fit.SUFFIX
    assert placement.MIN_SHARD_BYTES == MIN_SHARD_BYTES
    sizes = {name: compressor.size(10**6) / 4e6 for name, compressor in COMPRESSORS.items()}
    assert pytest.approx(sizes, rel=0.01) == COMPRESSED


X, Y = np.zeros([10, 4], "float32"), np.zeros([10], "int64")
RAGGED = tf.ragged.constant([[1, 2, 3], [4], [5, 6]] * 3)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"x": X, "y": Y}, (10, 240)),
        ({"x": X, "y": Y, "batch_size": 4}, (4, 96)),
        ({"x": {"a": X, "b": X}, "y": Y, "batch_size": 5}, (5, 200)),
        ({"x": tf.data.Dataset.from_tensor_slices((X, Y)).batch(3)}, (3, 72)),
        ({"x": tf.data.Dataset.from_tensor_slices((X, Y)).batch(5, drop_remainder=True).repeat()}, (5, 120)),
        ({"x": tf.data.Dataset.from_tensor_slices((["ab" * 50] * 9, Y[:9])).batch(3)}, (3, 3 * (100 + 8))),
        ({"x": np.array(["ab" * 50, "ä"] * 4), "y": Y[:8], "batch_size": 2}, (2, 100 + 2 + 2 * 8)),
        ({"x": np.array([b"ab" * 50, b"c"] * 4, object), "batch_size": 4}, (4, 2 * (100 + 1))),
        ({"x": tf.data.Dataset.from_tensor_slices((RAGGED, Y[:9])).batch(3)}, (3, 6 * 4 + 4 * 8 + 3 * 8)),
        ({"x": tf.data.Dataset.from_tensor_slices((tf.sparse.eye(9), Y[:9])).batch(3)}, (3, 3 * (4 + 2 * 8) + 2 * 8 + 3 * 8)),
        ({"x": RAGGED, "batch_size": 3}, (3, (18 * 4 + 10 * 8) // 3)),
        ({"x": tf.data.Dataset.from_tensor_slices([1.0, 2.0])}, (None, None)),
        ({"x": ((X, Y) for _ in range(3))}, (10, 240)),
        ({"x": (({"a": X[:3], "b": X[:3]}, Y[:3], Y[:3]) for _ in range(3))}, (3, 144)),
        ({"x": (None for _ in range(0))}, (None, None)),
        ({"x": [[1.0, 2.0]] * 4}, (None, None)),
        ({}, (None, None)),
    ],
)
def test_the_size_of_a_batch(arguments, expected):
    assert batch_of(arguments) == expected


def test_a_generator_loses_no_batch():
    arguments = {"x": (X + number for number in range(3))}
    batch_of(arguments)
    assert [each[0, 0] for each in arguments["x"]] == [0, 1, 2]


def test_what_follows_fit_does_not_run_where_its_data_end(monkeypatch):
    """A dataset of which an epoch takes a part does not end; a generator may."""
    monkeypatch.setattr(run_summary, "_is_measured", True)
    monkeypatch.setattr(run_summary, "_path", "")
    monkeypatch.setattr(measured_fit, "ENDLESS_EPOCHS", 3)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(5)
    with pytest.raises(SystemExit) as ended:
        run_summary._fit(keras.Model.fit, model, dataset, steps_per_epoch=2, verbose=0)
    assert ended.value.code == 0 and int(model.optimizer.iterations.numpy()) == 3 * 2
    with pytest.raises(SystemExit):
        run_summary._fit(keras.Model.fit, model, ((X, Y) for _ in range(3)), steps_per_epoch=2, verbose=0)


def test_nothing_is_written_or_ended_by_callbacks_of_the_user(tmp_path):
    kept = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1)
    left_out = [keras.callbacks.ModelCheckpoint(str(tmp_path / "m.keras")), keras.callbacks.EarlyStopping()]
    if hasattr(keras.callbacks, "OrbaxCheckpoint"):  # It needs another package, and Keras 3.12 and earlier have none.
        left_out.append(keras.callbacks.OrbaxCheckpoint.__new__(keras.callbacks.OrbaxCheckpoint))
    for given in ([kept, *left_out], (kept, *left_out)):
        arguments = {"x": X, "epochs": 2, "validation_split": 0.1, "validation_data": (X, Y), "callbacks": given}
        change(arguments)
        assert arguments == {"x": X, "epochs": measured_fit.ENDLESS_EPOCHS, "callbacks": [kept]}
    single = {"callbacks": left_out[0]}
    change(single)
    assert single["callbacks"] == []
    nested = {"callbacks": [[kept], left_out]}  # Keras takes that.
    change(nested)
    assert nested["callbacks"] == [kept]
    whole = keras.callbacks.CallbackList([kept, *left_out])
    change({"callbacks": whole})
    assert [type(each) for each in whole.callbacks if each in (kept, *left_out)] == [type(kept)]


def test_callbacks_that_expect_an_end_or_a_validation_do_not_end_the_measured_fit(caplog):
    """A list with a rate for each epoch, results of a validation, and a time after which a program stops."""
    rates = keras.callbacks.LearningRateScheduler([0.1, 0.2].__getitem__)
    reads = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs["val_loss"])
    ends = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: setattr(model, "stop_training", True),
        on_epoch_end=lambda epoch, logs: setattr(model, "stop_training", True),
    )
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    arguments = {"x": X, "y": Y, "validation_data": (X, Y), "callbacks": [rates, reads, ends], "verbose": 0, "batch_size": 5}
    change(arguments)
    arguments |= {"epochs": 4, "callbacks": [*arguments["callbacks"], measured_fit.Endless()]}
    assert len(model.fit(**arguments).epoch) == 4
    assert int(model.optimizer.iterations.numpy()) == 8
    warned = [record.getMessage() for record in caplog.records if record.name == "tfdist"]  # TensorFlow warns of retracing.
    assert len(warned) == 2 and "the callback LearningRateScheduler fails in the measured fit" in warned[1]
    assert "LambdaCallback fails in the measured fit, which goes on: KeyError('val_loss')" in warned[0]


def test_steps_and_variables(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Embedding(7, 2), keras.layers.Flatten(), keras.layers.Dense(5)])
    clock = SimpleNamespace(now=0.0)
    callback = MeasuredFit(str(tmp_path / "report.json"), {"x": X, "y": Y}, lambda: clock.now)
    callback.set_model(model)
    callback.set_params({"steps": 10})
    for epoch in range(2):
        callback.on_epoch_begin(epoch)
        for batch in (4, 9):  # Five steps of an execution at once.
            clock.now += 1.0
            callback.on_train_batch_end(batch)
    fit = window.read(tmp_path / "report.json")
    assert list(fit.steps) == [(1.0, 5), (2.0, 10), (3.0, 15), (4.0, 20)] and list(fit.traced) == [0.0] * 4
    assert (fit.batch, fit.batch_bytes, fit.epoch) == (10, 240, 10)
    assert [(v.shape, v.size, v.is_table) for v in fit.variables] == [
        ((7, 2), 56, True),
        ((6, 5), 120, False),
        ((5,), 20, False),
    ]
    assert window.read(tmp_path / "none") is None
    (tmp_path / f"torn{window.SUFFIX}").write_text(json.dumps({"batch": 1})[:-1])
    assert window.read(tmp_path / "torn") is None


def test_it_writes_how_long_functions_of_groups_were_traced(tmp_path):
    strategy = SimpleNamespace(seconds_traced=0.5)
    callback = MeasuredFit(str(tmp_path / "report.json"), {"x": X, "y": Y})
    callback.set_model(SimpleNamespace(distribute_strategy=strategy, trainable_variables=[], _flatten_layers=lambda: []))
    callback.on_train_batch_end(0)
    assert list(window.read(tmp_path / "report.json").traced) == [0.5]


def test_a_full_disk_does_not_end_a_training_whose_steps_are_counted(monkeypatch, tmp_path):
    """The file is for `--fail_at`."""
    monkeypatch.setattr(run_summary, "_path", str(tmp_path / "no folder" / "report"))
    run_summary._note_step()
