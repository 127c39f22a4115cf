"""The program of faults.py: notes the moment of each step in the file `steps` of a folder, and at the end its `updates`."""

import json
import os
import sys
import time
from pathlib import Path

STEP_SECONDS, BATCHES, START_SECONDS = 0.02, 100, 60.0


def main(folder: Path) -> None:
    """Trains."""
    import tfdist

    strategy = tfdist.strategy(start_timeout=START_SECONDS)
    import keras
    import numpy as np

    task = json.loads(os.environ["TF_CONFIG"])["task"]
    notes = task["type"] == "chief" or (task["type"], task["index"]) == ("worker", 0)

    class Note(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(STEP_SECONDS)
            if notes:
                with open(folder / "steps", "a") as file:
                    file.write(f"{time.time()}\n")

    keras.utils.set_random_seed(1)
    x = np.random.default_rng(1).random((BATCHES * 8, 16), "float32")
    with strategy.scope():
        model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    epochs, y = int(os.environ["FAULTS_EPOCHS"]), x.sum(axis=1, keepdims=True)
    model.fit(x, y, batch_size=8, epochs=epochs, verbose=0, callbacks=[Note()])
    if notes and task["type"] != "evaluator":
        (folder / "updates").write_text(str(int(model.optimizer.iterations.numpy())))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
