"""The evaluator: the same program evaluates every checkpoint of the chief, through the launcher and by hand."""

import json
import os
import signal
import time

import pytest
from reserved import free_ports

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]  # An evaluator leaves the processor to all others.

PROGRAM = """
    import time
    import tfdist
    strategy = tfdist.strategy()
    import keras, numpy as np, tensorflow as tf

    class Sees(keras.callbacks.Callback):
        trained = tested = 0
        def on_train_begin(self, logs=None): self.trained += 1
        def on_test_end(self, logs=None): self.tested += 1
        def on_epoch_end(self, epoch, logs=None): time.sleep({seconds})

    with strategy.scope():
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.layers.Dense(4, activation="relu"), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"])
    x = np.random.default_rng(0).normal(size=(96, 4)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    sees = Sees()
    callbacks = [
        sees,
        keras.callbacks.ModelCheckpoint("chief/best.keras", save_best_only=True),
        keras.callbacks.CSVLogger("log.csv"),
    ]
    if tfdist.role() == "evaluator":  # Where the package tensorboard is installed, this is for all roles.
        callbacks.append(keras.callbacks.TensorBoard("board"))
    history = model.fit(x, y, epochs={epochs}, batch_size=16, validation_split=0.25, callbacks=callbacks, verbose=2)
    result = {{
        "history": history.history, "epochs": history.epoch, "evaluate": model.evaluate(x, y, verbose=0, return_dict=True),
        "trained": sees.trained, "tested": sees.tested, "nice": os.nice(0), "chief": tfdist.is_chief(), "rank": tfdist.rank(),
    }}
    if tfdist.rank() == 0 or tfdist.role() == "evaluator":
        pathlib.Path(tfdist.role() + ".json").write_text(json.dumps(result))
"""

SAVES = """
    model.save("final.keras")
    keras.saving.save_model(model, "function.keras")
    tf.train.CheckpointManager(tf.train.Checkpoint(step=tf.Variable(1)), "checkpoints", max_to_keep=1).save()
    tf.saved_model.save(tf.Module(), "saved")
"""

COMPILED_OUTSIDE = PROGRAM.replace("        model.compile(", "    model.compile(")
"""The same with `compile` after the scope."""


@pytest.fixture
def program(script):
    return lambda epochs=5, seconds=0.1, body=PROGRAM: script(body.format(epochs=epochs, seconds=seconds))


def by_hand(evaluator_in_cluster=True, extension=None):
    """TF_CONFIG of a chief and of its evaluator."""
    chief, evaluator = (f"localhost:{port}" for port in free_ports(2))
    cluster = {"chief": [chief]} | ({"evaluator": [evaluator]} if evaluator_in_cluster else {})
    common = {"cluster": cluster} | ({"tfdist": extension} if extension else {})
    return [{"TF_CONFIG": json.dumps(common | {"task": {"type": job, "index": 0}})} for job in ("chief", "evaluator")]


def state(folder, own="evaluator"):
    return json.loads((folder / own / "state.json").read_text())["evaluated"]


def wait_until(condition, job, seconds=400):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline and job.process.poll() is None, job.output
        time.sleep(0.05)


def scalars(folder):
    """(tag, step) -> value of the event files of a folder."""
    import tensorflow as tf

    found = {}
    for path in folder.glob("events.*"):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                assert value.metadata.plugin_data.plugin_name == "scalars"
                found[value.tag, event.step] = float(tf.make_ndarray(value.tensor))
    return found


def test_a_job_with_ps_workers_and_evaluator_count(start, program, small_cluster, tmp_path, read_json):
    config = (tmp_path / "small.yaml").read_text() + "  evaluatorType: standard\n  evaluatorCount: 1\n"
    (tmp_path / "with_evaluator.yaml").write_text(config)
    path = program(body=PROGRAM + SAVES)
    job = start("-m", "tfdist.launch", "--cluster", "with_evaluator.yaml", "--job_dir", "job", "--summary", "s.json", path)
    assert job.wait(400) == 0, job.output
    chief, evaluator = read_json("chief.json"), read_json("evaluator.json")

    # It evaluated every epoch of the chief. Its program then went on with the chief's last weights.
    assert evaluator["epochs"] == [0, 1, 2, 3, 4]
    assert set(evaluator["history"]) == {"loss", "mae", "val_loss", "val_mae"}
    for name, values in evaluator["history"].items():
        assert values == pytest.approx(chief["history"][name], rel=1e-5), name
    assert evaluator["evaluate"] == pytest.approx(chief["evaluate"], rel=1e-5)
    assert (evaluator["trained"], evaluator["tested"], evaluator["nice"]) == (0, 5, os.nice(0) + 10)
    assert (evaluator["chief"], evaluator["rank"], chief["chief"], chief["rank"]) == (False, None, True, 0)

    # TensorBoard shows it beside the chief's runs, under the names of Keras.
    curves = scalars(tmp_path / "board" / "evaluator")
    for epoch, loss in enumerate(evaluator["history"]["val_loss"]):
        assert curves["epoch_loss", epoch] == pytest.approx(loss)
    steps = [entry["iterations"] for entry in state(tmp_path / "job")]
    assert sorted(step for tag, step in curves if tag == "evaluation_mae_vs_iterations") == steps
    assert steps[-1] == 5 * 5  # 72 examples in batches of 16

    # The best model is in the evaluator's own folder; only the chief wrote the other files.
    import keras

    best = keras.models.load_model(tmp_path / "job" / "evaluator" / "best.keras")
    import numpy as np

    x = np.random.default_rng(0).normal(size=(96, 4)).astype("float32")
    loss = best.evaluate(x[72:], x[72:].sum(axis=1, keepdims=True), verbose=0)[0]
    assert loss == pytest.approx(min(evaluator["history"]["val_loss"]), rel=1e-5)
    for name in ("final.keras", "function.keras", f"checkpoints{os.sep}ckpt-1", "saved"):
        assert f"evaluator:0 does not write {name}: the chief does" in job.output
        assert list(tmp_path.glob(f"{name}*"))
    assert (tmp_path / "final.keras").exists() and (tmp_path / "log.csv").read_text().count("\n") == 6
    assert json.loads((tmp_path / "job/tfdist_checkpoints/fit_1/fit.json").read_text())["ended"] is True
    assert not list((tmp_path / "job").rglob(".*")), "a file was left half-written"

    tasks = {task["task"]: task for task in read_json("s.json")["tasks"]}
    assert (tasks["evaluator:0"]["exit_code"], tasks["evaluator:0"]["restarts"]) == (0, 0)
    assert job.left() == {}


def test_two_workers_without_ps_and_chief_have_an_evaluator_too(start, program, tmp_path, read_json):
    (tmp_path / "two.json").write_text('{"cluster": {"worker": ["a:1", "b:1"]}}')
    job = start("-m", "tfdist.launch", "--cluster", "two.json", "--local", "--evaluator", "--log_dir", "logs", program())
    assert job.wait(400) == 0, job.output
    worker, evaluator = read_json("worker.json"), read_json("evaluator.json")
    assert evaluator["history"]["val_loss"] == pytest.approx(worker["history"]["val_loss"], rel=1e-4)
    assert [entry["epoch"] for entry in state(tmp_path / "logs")] == [1, 2, 3, 4, 5]


WAITS = PROGRAM.replace("def on_epoch_end(self, epoch, logs=None): time.sleep({seconds})",
    "def on_epoch_begin(self, epoch, logs=None):\n"
    "            while epoch == 2 and tfdist.is_chief() and not os.path.exists('go'): time.sleep(0.05)")  # fmt: skip


def test_an_evaluator_that_is_killed_is_started_again_and_misses_none(start, program, tmp_path, read_json):
    arguments = ["--tier", "BASIC", "--evaluator", "--job_dir", "job", "--summary", "s.json", program(body=WAITS)]
    job = start("-m", "tfdist.launch", *arguments)
    wait_until(lambda: (tmp_path / "job/evaluator/state.json").exists() and len(state(tmp_path / "job")) == 2, job)
    os.kill(job.pid_of("evaluator:0"), signal.SIGKILL)
    said = "evaluator:0 ended early: it was killed by SIGKILL; the training continues, and the task is restarted"
    wait_until(lambda: said in job.output, job)
    (tmp_path / "go").touch()
    assert job.wait(400) == 0, job.output
    assert [entry["epoch"] for entry in state(tmp_path / "job")] == [1, 2, 3, 4, 5]
    chief, evaluator = read_json("chief.json"), read_json("evaluator.json")
    assert evaluator["epochs"] == [0, 1, 2, 3, 4]
    assert evaluator["history"]["val_loss"] == pytest.approx(chief["history"]["val_loss"], rel=1e-5)
    assert evaluator["tested"] == 3
    # Its ModelCheckpoint went on from the best value before the restart.
    best = json.loads((tmp_path / "job/evaluator/state.json").read_text())["best"]["1"]
    assert best["values"] == [min(evaluator["history"]["val_loss"])]
    summary = read_json("s.json")
    assert summary["tasks"][-1]["restarts"] == 1 and summary["exit_code"] == 0
    assert "evaluator:0 finished (1 restart)" in job.output


def test_training_that_ended_while_the_evaluator_was_away_and_a_second_job_in_the_same_folder(
    start, program, tmp_path, read_json
):
    chief, evaluator = by_hand(extension={"job_dir": "job"})
    path = program(epochs=8, seconds=0)
    job = start(path, environment=chief)
    assert job.wait(400) == 0, job.output
    job = start(path, environment=evaluator)
    assert job.wait(400) == 0, job.output
    assert [entry["epoch"] for entry in state(tmp_path / "job")] == [4, 5, 6, 7, 8]
    assert "deleted before it could be evaluated: the checkpoint after epoch 1, 2, 3" in job.output
    last = read_json("chief.json")
    assert read_json("evaluator.json")["history"]["val_loss"] == pytest.approx(last["history"]["val_loss"][3:], rel=1e-5)
    assert read_json("evaluator.json")["evaluate"] == pytest.approx(last["evaluate"], rel=1e-5)

    # The files are from a training that it has evaluated to the end: it waits for the next one.
    (tmp_path / "evaluator.json").unlink()
    (tmp_path / "pid-evaluator-0").unlink()
    again = start(path, environment=evaluator)
    wait_until((tmp_path / "pid-evaluator-0").exists, again)
    job = start(path, environment=chief)
    assert job.wait(400) == 0, job.output
    assert again.wait(400) == 0, again.output
    epochs = [entry["epoch"] for entry in state(tmp_path / "job")]
    assert epochs[:5] == [4, 5, 6, 7, 8] and epochs[-1] == 8 and len(epochs) >= 10
    assert read_json("evaluator.json")["evaluate"] == pytest.approx(read_json("chief.json")["evaluate"], rel=1e-5)
    assert read_json("evaluator.json")["epochs"] == [epoch - 1 for epoch in epochs[5:]], "the history is that of the second job"


def test_an_evaluator_that_only_its_own_tf_config_names_announces_itself_in_the_folder(start, program, tmp_path, read_json):
    chief, evaluator = (env | {"TFDIST_EVALUATOR_DIR": "job"} for env in by_hand(evaluator_in_cluster=False))
    path = program(body=COMPILED_OUTSIDE)
    waiting = start(path, environment=evaluator)
    wait_until(lambda: (tmp_path / "job/evaluator/state.json").exists(), waiting)
    job = start(path, environment=chief)
    assert job.wait(400) == 0, job.output
    assert waiting.wait(400) == 0, waiting.output
    assert [entry["epoch"] for entry in state(tmp_path / "job")] == [1, 2, 3, 4, 5]
    assert read_json("evaluator.json")["history"]["val_mae"] == pytest.approx(
        read_json("chief.json")["history"]["val_mae"], rel=1e-5
    )


def test_a_chief_with_a_job_dir_and_without_evaluator_writes_nothing_for_one(start, program, tmp_path):
    job = start("-m", "tfdist.launch", "--tier", "BASIC", "--job_dir", "job", program(epochs=1, seconds=0))
    assert job.wait(400) == 0, job.output
    assert not (tmp_path / "job").exists()


FAILING = PROGRAM.replace("history = model.fit", "import tfdist.strategies.evaluator.progress as limits\n"
    "    limits.CHIEF_GONE_SECONDS = 6.0\n    history = model.fit").replace("def on_epoch_end(self, epoch, logs=None): time.sleep({seconds})",
    "def on_epoch_end(self, epoch, logs=None):\n            if epoch == 1: {seconds}")  # fmt: skip


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("raise RuntimeError('no')", "the chief's program failed"),
        ("os.kill(os.getpid(), 9)", "the chief's program has been gone for"),
    ],
    ids=["raises", "killed"],
)
def test_by_hand_the_evaluator_of_a_chief_that_fails_evaluates_what_is_left_and_exits_with_75(
    start, program, tmp_path, end, reason
):
    chief, evaluator = by_hand(extension={"job_dir": "job"})
    path = program(seconds=end, body=FAILING.replace("tfdist.strategy()", "tfdist.strategy(start_timeout=20)"))
    waiting = start(path, environment=evaluator)
    job = start(path, environment=chief)
    assert job.wait(400) != 0
    assert waiting.wait(400) == 75, waiting.output
    assert f"evaluator:0 ends: {reason}" in waiting.output
    assert [entry["epoch"] for entry in state(tmp_path / "job")] == [1]


LOST = (
    PROGRAM.replace(
        "on_epoch_end(self, epoch, logs=None): time.sleep({seconds})",
        "on_epoch_end(self, epoch, logs=None):\n            time.sleep(1)\n"
        "            if epoch == 3 and not os.path.exists('lost'):\n                open('lost', 'w').close()\n"
        "                os.kill(os.getpid(), 9)",
    )
    .replace("        sees,\n", "")
    .replace("keras.callbacks.CSVLogger", "keras.callbacks.BackupAndRestore('backup'), sees, keras.callbacks.CSVLogger")
    .replace("Sequential([", "Sequential([keras.Input((4,)), ")
)


def test_a_chief_that_is_lost_and_started_again_keeps_its_evaluator(start, program, tmp_path, read_json):
    chief, evaluator = by_hand(extension={"job_dir": "job"})
    path = program(body=LOST)
    waiting = start(path, environment=evaluator)
    assert start(path, environment=chief).wait(400) == -9
    job = start(path, environment=chief)
    assert job.wait(400) == 0, job.output
    assert waiting.wait(400) == 0, waiting.output
    assert [entry["epoch"] for entry in state(tmp_path / "job")] == [1, 2, 3, 5]  # Epoch 4 was in the backup, not handed on.
    assert len({entry["run"] for entry in state(tmp_path / "job")}) == 2
    assert read_json("evaluator.json")["epochs"] == [0, 1, 2, 4]
    assert read_json("evaluator.json")["evaluate"] == pytest.approx(read_json("chief.json")["evaluate"], rel=1e-5)


def test_without_a_folder_the_evaluator_says_what_is_missing_and_the_chief_trains(start, program):
    chief, evaluator = by_hand()
    path = program(epochs=1, seconds=0)
    waiting = start(path, environment=evaluator)
    assert waiting.wait(400) == 1
    assert "the chief and the evaluator share a folder, and the description names none; set job_dir on both" in waiting.output
    job = start(path, environment=chief)
    assert job.wait(400) == 0, job.output
    assert "the training goes on without its evaluator: TF_CONFIG: the chief and the evaluator share a folder" in job.output


def test_several_fits_early_stopping_and_unscoped_models_stay_in_step(start, program, tmp_path, read_json):
    body = """
    import tfdist
    strategy = tfdist.strategy()
    import keras, numpy as np
    def make(seed):
        keras.utils.set_random_seed(seed)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05), "mse")
        return model
    with strategy.scope():
        model = make(0)
    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    losses = []
    stop = keras.callbacks.EarlyStopping(min_delta=100, patience=1, restore_best_weights=True)
    losses += model.fit(x, y, epochs=5, validation_data=(x, y), callbacks=[stop], verbose=0).history["val_loss"]
    first = model.get_weights()[0].tolist()
    make(1).fit(x, y, epochs=1, validation_data=(x, y), verbose=0)
    model.fit(x, y, epochs=1, verbose=0)
    second = model.get_weights()[0].tolist()
    losses += model.fit(x, y, epochs=1, validation_data=(x, y), verbose=0).history["val_loss"]
    result = {"losses": losses, "first": first, "second": second, "weights": model.get_weights()[0].tolist()}
    pathlib.Path(tfdist.role() + ".json").write_text(json.dumps(result))
    """
    job = start("-m", "tfdist.launch", "--tier", "BASIC", "--evaluator", script_of(program, body))
    assert job.wait(400) == 0, job.output
    chief, evaluator = read_json("chief.json"), read_json("evaluator.json")
    # Five checkpoints in all, the number that is kept: none is deleted, whatever the delay of the evaluator.
    assert len(chief["losses"]) == 3 and evaluator["losses"] == pytest.approx(chief["losses"], rel=1e-5)
    for name in ("first", "second", "weights"):
        assert evaluator[name] == chief[name], name
    assert "fit has no validation data, so nothing is evaluated" in job.output


def test_averaged_weights_are_evaluated_and_a_call_without_any_weights_leaves_a_model_that_works(start, program, read_json):
    body = """
    import tfdist
    strategy = tfdist.strategy()
    import keras, numpy as np, time
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.9), "mse")  # Outside of the scope.
    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    while tfdist.role() == "evaluator" and not pathlib.Path("chief.json").exists():
        time.sleep(0.1)
    for _ in range(6):  # One more than are kept.
        model.fit(x, y, verbose=0)
        model.evaluate(x, y, verbose=0)
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    losses = model.fit(x, y, epochs=3, validation_data=(x, y), callbacks=[swap], verbose=0).history["val_loss"]
    pathlib.Path(tfdist.role() + ".json").write_text(json.dumps(losses))
    """
    job = start("-m", "tfdist.launch", "--tier", "BASIC", "--evaluator", script_of(program, body))
    assert job.wait(400) == 0, job.output
    assert "there are no weights of the end of fit number 1; the model keeps its own" in job.output
    assert len(read_json("chief.json")) == 3 and read_json("evaluator.json") == pytest.approx(read_json("chief.json"), rel=1e-5)


def script_of(program, body):
    return program(body=body.replace("{", "{{").replace("}", "}}"))
