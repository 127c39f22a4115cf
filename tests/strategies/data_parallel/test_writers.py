"""Files of callbacks come from the chief alone, and a callback that does more than write runs on every task."""

import json
import os

import keras
import pytest
import tools
from support_paths import CHECKOUT, ORBAX

from tfdist.strategies.data_parallel import writers

TWO_WORKERS = "cluster { nworker_groups: 1 nworkers_per_group: 2 nworkers_per_procs: 1 }"


class Logger(keras.callbacks.CSVLogger):
    """May do more than write."""


class Board(keras.callbacks.TensorBoard):
    """May do more than write."""


def test_only_keras_own_writers_are_left_out():
    other = keras.callbacks.Callback()
    mine = [Logger("log.csv"), Board("board/")]
    own = [keras.callbacks.CSVLogger("log.csv"), keras.callbacks.TensorBoard("board"), keras.callbacks.RemoteMonitor()]
    callbacks = [own[0], other, *mine, *own[1:]]
    assert writers.without_files(callbacks) == [other, *mine]


def test_what_a_subclass_writes_is_thrown_away_with_it():
    logger, board = Logger("logs/log.csv"), Board("board/")
    writers.without_files([logger, board])
    paths = [logger.filename, board.log_dir]
    assert [os.path.basename(path) for path in paths] == ["log.csv", "board"]
    folders = [os.path.dirname(path) for path in paths]
    assert all(os.path.isdir(folder) and folder != "logs" for folder in folders)
    writers.without_files([logger, board])  # In the next fit.
    assert [logger.filename, board.log_dir] == paths
    del logger, board
    assert not any(map(os.path.exists, folders))


@pytest.mark.cluster
@pytest.mark.timeout(240)
def test_subclasses_of_writers_run_on_every_task(start, script, tmp_path):
    (tmp_path / "two.conf").write_text(TWO_WORKERS)
    job = start(
        *("-m", "tfdist.launch", "--cluster", "two.conf"),
        script("""
            import tfdist
            strategy = tfdist.strategy()
            import keras, numpy as np
            x = np.linspace(-1, 1, 64, dtype="float32").reshape(16, 4)
            with strategy.scope():
                model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="ones")])
                model.compile(keras.optimizers.SGD(0.1), "mse")
            class Schedule(keras.callbacks.CSVLogger):
                def on_epoch_begin(self, epoch, logs=None):
                    self.model.optimizer.learning_rate = 0.1 / (1 + 9 * epoch)
                    self.outputs = self.model.predict(x, verbose=0)
            schedule = Schedule("log.csv")
            model.fit(x, x[:, :1], epochs=3, verbose=0, shuffle=False, callbacks=[schedule])
            results = {"rate": float(model.optimizer.learning_rate.numpy()), "weights": model.get_weights()[0].tolist(),
                       "outputs": schedule.outputs.tolist(), "path": schedule.filename}
            pathlib.Path(f"results-{me['index']}.json").write_text(json.dumps(results))
        """),
    )
    assert job.wait() == 0, job.output
    first, second = (json.loads((tmp_path / f"results-{index}.json").read_text()) for index in range(2))
    assert first.pop("path") == "log.csv" and second.pop("path") != "log.csv"
    assert first == second and first["rate"] == pytest.approx(0.1 / 19)
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 1 + 3


@pytest.mark.cluster
@pytest.mark.timeout(240)
@tools.needs("orbax")
def test_checkpoints_of_orbax_come_from_the_chief_and_are_there_for_every_task_after_fit(start, script, tmp_path):
    (tmp_path / "two.conf").write_text(TWO_WORKERS)
    job = start(
        *("-m", "tfdist.launch", "--cluster", "two.conf"),
        script("""
            import tfdist
            strategy = tfdist.strategy()
            import keras, numpy as np
            x = np.linspace(-1, 1, 64, dtype="float32").reshape(16, 4)
            with strategy.scope():
                model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1), keras.layers.BatchNormalization()])
                model.compile("adam", "mse")
            folder = pathlib.Path("saved").absolute()
            for number in (1, 2):
                saved = keras.callbacks.OrbaxCheckpoint(folder / str(number), max_to_keep=2)
                model.fit(x, x[:, :1], epochs=3, verbose=0, callbacks=[saved])
                assert sorted(each.name for each in (folder / str(number)).iterdir()) == ["1", "2"]
            weights, steps = model.get_weights(), int(model.optimizer.iterations.numpy())
            model.set_weights([np.zeros_like(each) for each in weights])
            model.optimizer.iterations.assign(0)
            model.load_weights(folder / "2")
            for one, other in zip(weights, model.get_weights(), strict=True):
                assert (one == other).all()
            assert model.optimizer.iterations.numpy() == steps == 6
            print("loaded", flush=True)
        """),
        environment={"PYTHONPATH": f"{CHECKOUT}:{ORBAX}"},
    )
    assert job.wait() == 0, job.output
    assert job.output.count("| loaded") == 2
