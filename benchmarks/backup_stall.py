"""How long a backup holds the training up: the time of the call on the chief, and what the thread takes beside it.

    python benchmarks/backup_stall.py --strategy parameter_server

The model has 7.45 MB of parameters and as many again of Adam's slots, twice. Medians of 9 backups.
"""

import dataclasses
import json
import os
import statistics
import tempfile
import time

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_enum("strategy", "default", ("default", "parameter_server", "hogwild"), "Strategy; with 2 workers and 1 ps.")
flags.DEFINE_integer("units", 1320, "Units of the model: 7.45 MB of parameters with 1320.")


def main(_):
    folder = tempfile.mkdtemp()
    os.environ["TFDIST_BACKUP_DIR"], os.environ["TFDIST_BACKUP_FREQ"] = folder, "10"
    import tfdist

    if FLAGS.strategy == "default":
        strategy = tfdist.strategy()
    else:
        cluster = tfdist.read({"chief": 1, "worker": 2, "ps": 1})
        strategy = tfdist.strategy(dataclasses.replace(cluster, strategy=FLAGS.strategy))

    import keras
    import numpy as np

    from tfdist.strategies.checkpoint import backup_file, job_backup

    calls, written = [], []

    def timed(name, into):
        original = getattr(job_backup._Backup if name == "_save" else backup_file.BackupFile, name)

        def call(*arguments):
            begin = time.monotonic()
            original(*arguments)
            into.append(time.monotonic() - begin)

        setattr(job_backup._Backup if name == "_save" else backup_file.BackupFile, name, call)

    timed("_save", calls)
    timed("_write", written)
    units = FLAGS.units
    with strategy.scope():
        model = keras.Sequential([keras.Input((units,)), keras.layers.Dense(units), keras.layers.Dense(90)])
        model.compile("adam", "mse")
    x = np.zeros((800, units), "float32")
    model.fit(x, np.zeros((800, 90), "float32"), batch_size=8, epochs=1, verbose=0)
    size = sum(weight.nbytes for weight in model.get_weights()) / 1e6
    print(json.dumps({"strategy": FLAGS.strategy, "MB": round(size, 2), "backups": len(calls),
                      "stall": round(statistics.median(calls), 3), "longest stall": round(max(calls), 3),
                      "thread": round(statistics.median(written), 3)}))  # fmt: skip


if __name__ == "__main__":
    app.run(main)
