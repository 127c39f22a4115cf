"""Only the chief writes files, they are complete whenever the process is killed, and a backup resumes at its epoch."""

import json
import subprocess
import sys

import numpy as np
import pytest
from by_hand import configs

pytestmark = pytest.mark.cluster

MODEL = """
import json, os, signal, sys
import keras, numpy as np, tensorflow as tf

X = np.random.default_rng(1).normal(size=(96, 4)).astype("float32")
Y = X[:, :1] - X[:, 1:2]

def made():
    keras.utils.set_random_seed(3)
    norm = keras.layers.BatchNormalization(synchronized=True)  # Over the whole batch, also where replicas share it.
    # No bias before the normalization: its gradient would be rounding errors, which Adam makes steps of full length.
    dense = keras.layers.Dense(6, use_bias=False)
    model = keras.Sequential([keras.Input((4,)), dense, norm, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model
"""


def without_tfdist(folder, code):
    """Runs MODEL and `code` with plain Keras; returns the JSON that it prints."""
    end = "\nassert not any(name.startswith('tfdist') for name in sys.modules)"
    got = subprocess.run([sys.executable, "-c", MODEL + code + end], cwd=folder, capture_output=True, text=True, timeout=200)
    assert got.returncode == 0, got.stderr
    return json.loads(got.stdout.splitlines()[-1])


KILLED = """
import tfdist
from keras.src.saving import saving_lib
from tensorflow.python.lib.io import file_io

@keras.saving.register_keras_serializable()
class Kills(keras.layers.Layer):
    def build(self, shape):
        self.value = self.add_weight(shape=(3,))
    def call(self, x):
        return x + keras.ops.sum(self.value)
    def save_own_variables(self, store):
        super().save_own_variables(store)
        if getattr(self, "kill", False):
            os.kill(os.getpid(), signal.SIGKILL)

SAVES = {
    "a.keras": lambda model: model.save("a.keras"),
    "a.weights.h5": lambda model: model.save_weights("a.weights.h5"),
    "folder": lambda model: model.save("folder", zipped=False),
    "exported": lambda model: model.export("exported", verbose=False),
    "checkpoint": lambda model: tf.train.Checkpoint(model=model).write("checkpoint"),
}

def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

def child(name):
    untouched = saving_lib.save_model
    with tfdist.strategy().scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), Kills(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    assert untouched.__module__ == "keras.src.saving.saving_lib"  # A process without a strategy of ours is left alone.
    SAVES[name](model)
    np.save(name + ".npy", model.predict(X, verbose=0))
    model.set_weights([w + 1 for w in model.get_weights()])
    model.layers[1].kill = name not in ("a.weights.h5", "checkpoint")
    if not model.layers[1].kill:  # Die when it is on the disk and has not yet its name.
        os.fsync = die
    if name == "exported":  # No layer has a word in this: die where the variables are written and the graph is not.
        file_io.atomic_write_string_to_file = die
    SAVES[name](model)

for name in SAVES:
    pid = os.fork()
    if not pid:
        try:
            child(name)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL, name

files = sorted(os.listdir())
print("left by the killed:", [name for name in files if name.endswith(".part")])
model = tfdist.strategy() and keras.saving.load_model("a.keras")
model.save("a.keras")
print("left after the next save:", [name for name in sorted(os.listdir()) if name.endswith(".part")])
"""


def test_a_process_killed_in_the_middle_of_a_save_leaves_the_old_file_whole(start, script, tmp_path):
    job = start(script(MODEL + KILLED))
    assert job.wait(120) == 0, job.output
    assert "left by the killed: ['.a.keras.part', '.a.weights.h5.part', '.checkpoint.part', '.exported.part', " in job.output
    assert "left after the next save: ['.a.weights.h5.part', '.checkpoint.part', '.exported.part', " in job.output
    differences = without_tfdist(
        tmp_path,
        """
@keras.saving.register_keras_serializable()
class Kills(keras.layers.Layer):
    def build(self, shape):
        self.value = self.add_weight(shape=(3,))
    def call(self, x):
        return x + keras.ops.sum(self.value)
weights, written = (
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), Kills(), keras.layers.Dense(1)]) for _ in range(2)
)
weights.load_weights("a.weights.h5")
tf.train.Checkpoint(model=written).restore("checkpoint").expect_partial()
exported = tf.saved_model.load("exported")
predictions = {
    "a.keras": keras.saving.load_model("a.keras").predict(X, verbose=0),
    "a.weights.h5": weights.predict(X, verbose=0),
    "folder": keras.saving.load_model("folder").predict(X, verbose=0),
    "exported": exported.serve(X).numpy(),
    "checkpoint": written.predict(X, verbose=0),
}
print(json.dumps({name: float(abs(value - np.load(name + ".npy")).max()) for name, value in predictions.items()}))
""",
    )
    assert differences == pytest.approx(dict.fromkeys(differences, 0.0), abs=1e-5) and len(differences) == 5


def test_a_backup_whose_two_files_differ_resumes_at_the_epoch_of_its_weights(start, script, read_json):
    job = start(
        script(
            MODEL
            + """
import tfdist

class Interrupt(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 3:
            raise KeyboardInterrupt

strategy = tfdist.strategy()
with strategy.scope():
    model = made()
    whole = made()
expected = whole.fit(X, Y, epochs=5, shuffle=False, verbose=0).history
try:
    model.fit(X, Y, epochs=5, shuffle=False, verbose=0, callbacks=[keras.callbacks.BackupAndRestore("backup"), Interrupt()])
except KeyboardInterrupt:
    pass
files = sorted(os.listdir("backup"))
stood = json.load(open("backup/training_metadata.json"))
json.dump({"epoch": 1, "batch": 0}, open("backup/training_metadata.json", "w"))  # As if killed between the two.
with strategy.scope():
    model = made()
got = model.fit(X, Y, epochs=5, shuffle=False, verbose=0, callbacks=[keras.callbacks.BackupAndRestore("backup")]).history
json.dump({"files": files, "stood": stood, "expected": expected["loss"][3:], "got": got["loss"], "left": os.path.exists("backup")}, open("out.json", "w"))
"""
        )
    )
    assert job.wait(200) == 0, job.output
    out = read_json("out.json")
    assert out["files"] == [".latest.weights.h5.earlier", "latest.weights.h5", "training_metadata.json"]
    assert out["stood"] == {"epoch": 3, "batch": 0}
    assert out["got"] == pytest.approx(out["expected"], rel=1e-5)
    assert not out["left"]


RESUMES = """
import tfdist
os.makedirs("of-" + me.get("type", "chief"), exist_ok=True)
os.chdir("of-" + me.get("type", "chief"))  # No task sees the files of another.

class Die(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 3 and me.get("type") == "chief" and not os.path.exists("died"):
            open("died", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)

strategy = tfdist.strategy()
with strategy.scope():
    model = made()
backup = keras.callbacks.BackupAndRestore("backup")
history = model.fit(X, Y, epochs=5, shuffle=False, verbose=0, callbacks=[backup, Die()])
model.save("model.keras")
tf.train.CheckpointManager(tf.train.Checkpoint(model=model), "checkpoints", max_to_keep=1).save()
model.export("exported", verbose=False)
out = {"epochs": history.epoch, "loss": history.history["loss"], "iterations": int(model.optimizer.iterations.numpy())}
json.dump(out | {"prediction": model.predict(X, verbose=0).tolist()}, open("out.json", "w"))
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("servers", "elsewhere"),
    [
        # With one worker parameter_server trains as one process does, bit for bit. test_job_backup.py restarts such jobs, too.
        pytest.param(2, {"worker": [], "ps": []}, id="parameter_server", marks=pytest.mark.release),
        # Here the worker trains too, and restores the only backup, the chief's.
        pytest.param(0, {"worker": ["out.json"]}, id="multi_worker_mirrored"),
    ],
)
def test_a_job_whose_chief_was_killed_goes_on_at_its_epoch_and_all_files_are_the_chiefs(
    start, script, read_json, tmp_path, servers, elsewhere
):
    config = {"scaleTier": "CUSTOM", "masterType": "standard", "workerType": "standard", "workerCount": 1}
    config |= {"parameterServerType": "standard", "parameterServerCount": servers} if servers else {}
    (tmp_path / "cluster.json").write_text(json.dumps({"trainingInput": config}))
    program = script(MODEL + RESUMES)
    first = start("-m", "tfdist.launch", "--cluster", "cluster.json", program)
    assert first.wait(200) != 0
    assert "chief:0" in first.output
    second = start("-m", "tfdist.launch", "--cluster", "cluster.json", program)
    assert second.wait(200) == 0, second.output
    got = read_json("of-chief/out.json")
    alone = without_tfdist(
        tmp_path / "of-chief",
        """
model = made()
history = model.fit(X, Y, epochs=5, shuffle=False, verbose=0).history
restored = made()
tf.train.Checkpoint(model=restored).restore(tf.train.latest_checkpoint("checkpoints")).expect_partial()
predictions = [m.predict(X, verbose=0).tolist() for m in (model, keras.saving.load_model("model.keras"), restored)]
exported = tf.saved_model.load("exported")
predictions.append(exported.serve(X).numpy().tolist())
print(json.dumps({"loss": history["loss"], "iterations": int(model.optimizer.iterations.numpy()), "predictions": predictions}))
""",
    )
    for task in ("chief", *(job for job, files in elsewhere.items() if files)):
        of_task = read_json(f"of-{task}/out.json")
        assert of_task["epochs"] == [3, 4], task
        assert of_task["loss"] == pytest.approx(alone["loss"][3:], rel=1e-3), task
        assert of_task["iterations"] == alone["iterations"] == 15, task
    for prediction in alone["predictions"]:
        np.testing.assert_allclose(got["prediction"], prediction, atol=1e-3)
    for job, files in elsewhere.items():
        assert sorted(path.name for path in (tmp_path / f"of-{job}").rglob("*") if path.is_file()) == files


ENDS_WITHOUT_SAVING = """
import time, tfdist
with tfdist.strategy().scope():
    import keras
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
if tfdist.is_chief():
    time.sleep(1)
else:
    model.save("model.keras")
    print("the save returned", flush=True)
"""


def test_a_save_returns_if_the_chief_ends_while_it_waits_for_the_chiefs(start, script):
    program = script(ENDS_WITHOUT_SAVING)
    jobs = {task: start(program, environment=env) for task, env in configs(worker=2).items()}
    for task, job in jobs.items():
        assert job.wait() == 0, (task, job.output)
    assert "the save returned" in jobs["worker", 1].output


MAKES_A_FOLDER = """
import time, tfdist
with tfdist.strategy().scope():
    import keras, numpy as np
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
from keras.src.utils import file_utils
exists = file_utils.exists

def seen_by_all(path):  # Each task looks for the folder before another one has made it.
    found = exists(path)
    time.sleep(2 if str(path) == "made" else 0)
    return found

file_utils.exists = seen_by_all
best = keras.callbacks.ModelCheckpoint("made/best.keras")
model.fit(np.ones((16, 4)), np.ones(16), batch_size=8, verbose=0, callbacks=[best])
"""


def test_tasks_that_share_a_folder_make_it_at_the_same_time(start, script, tmp_path):
    job = start("-m", "tfdist.launch", "--cluster", '{"worker": 2}', script(MAKES_A_FOLDER))
    assert job.wait() == 0, job.output
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["best.keras"]
