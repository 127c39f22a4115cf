"""Runs other people's Keras programs under a strategy, with only its scope added, and compares them with one process.

    python -m tfdist.launch --tier BASIC benchmarks/programs.py -- --out=one.jsonl a.py b.py
    python -m tfdist.launch --cluster cluster.conf benchmarks/programs.py -- --out=ours.jsonl a.py b.py
    python benchmarks/programs.py --compare one.jsonl ours.jsonl

scoped.py adds the scope. `fit`, `evaluate` and `predict` of Keras are recorded: batches that callbacks saw,
`optimizer.iterations`, history, results, weights. `fit` runs at most two epochs. The programs run one after the other, each
after `keras.utils.set_random_seed(1)`.
"""

import contextlib
import json
import os
import sys
import traceback
from pathlib import Path

EPOCHS = 2


def record(calls):
    """Makes Keras' `fit`, `evaluate` and `predict` append what they did to `calls`."""
    import keras
    import numpy as np

    class Batches(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.epochs = []

        def on_epoch_begin(self, epoch, logs=None):
            self.epochs.append(0)

        def on_train_batch_end(self, batch, logs=None):
            self.epochs[-1] = batch + 1

    trainer = keras.src.backend.tensorflow.trainer.TensorFlowTrainer
    originals = trainer.fit, trainer.evaluate, trainer.predict

    def numbers(values):
        return [float(np.mean(np.asarray(value, "float64"))) for value in values]

    def fit(model, *args, **kwargs):
        batches, callbacks = Batches(), kwargs.get("callbacks") or []
        if "epochs" in kwargs:
            kwargs["epochs"] = min(kwargs["epochs"], EPOCHS)
        kwargs["callbacks"] = [*(callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]), batches]
        history = originals[0](model, *args, **{**kwargs, "verbose": 0})
        weights = [np.abs(np.asarray(each, "float64")).sum() for each in model.get_weights()]
        iterations = getattr(model.optimizer, "iterations", None)
        calls.append(
            {
                "call": "fit",
                "exact": [batches.epochs, None if iterations is None else int(iterations), sorted(history.history)],
                "near": [*(number for values in history.history.values() for number in numbers(values)), float(sum(weights))],
            }
        )
        return history

    def evaluate(model, *args, **kwargs):
        result = originals[1](model, *args, **{**kwargs, "verbose": 0})
        values = result.values() if isinstance(result, dict) else result if isinstance(result, list) else [result]
        calls.append({"call": "evaluate", "exact": [len(values)], "near": numbers(values)})
        return result

    def predict(model, *args, **kwargs):
        result = originals[2](model, *args, **{**kwargs, "verbose": 0})
        values = keras.tree.flatten(result)
        calls.append({"call": "predict", "exact": [list(np.shape(each)) for each in values], "near": numbers(values)})
        return result

    trainer.fit, trainer.evaluate, trainer.predict = fit, evaluate, predict


def run(paths, out):
    import tfdist

    strategy = tfdist.strategy()
    import keras
    from scoped import NAME, scoped

    if json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0):
        out = os.devnull  # The first task writes.
    calls = []
    record(calls)
    with open(out, "w") as file:
        for path in paths:
            calls.clear()
            error = None
            keras.utils.clear_session(free_memory=False)
            keras.utils.set_random_seed(1)
            with contextlib.redirect_stdout(sys.stderr):
                try:
                    exec(compile(scoped(Path(path).read_text()), path, "exec"), {"__name__": "__main__", NAME: strategy})
                except Exception as raised:
                    traceback.print_exc()
                    error = f"{type(raised).__name__}: {raised}"
            print(f"{path}: {len(calls)} calls, {error or 'no error'}", flush=True)
            file.write(json.dumps({"program": path, "error": error, "calls": calls}) + "\n")


def difference(one, ours):
    """Returns how a program differed: in the first count that did, else by the largest relative difference of its numbers."""
    if ours["error"]:
        return f"fails: {ours['error'].splitlines()[0]}"
    if [each["call"] for each in one["calls"]] != [each["call"] for each in ours["calls"]]:
        return f"{len(ours['calls'])} calls, not {len(one['calls'])}"
    largest = 0.0
    for number, (a, b) in enumerate(zip(one["calls"], ours["calls"], strict=True)):
        if a["exact"] != b["exact"]:
            return f"{a['call']}, call {number}: {b['exact']}, not {a['exact']}"
        pairs = zip(a["near"], b["near"], strict=True)
        largest = max([largest, *(abs(x - y) / max(abs(x), abs(y), 1e-6) for x, y in pairs)])
    return f"counts equal, largest relative difference {largest:.1g}"


def compare(one, ours):
    by_name = {each["program"]: each for each in map(json.loads, Path(ours).read_text().splitlines())}
    for program in map(json.loads, Path(one).read_text().splitlines()):
        print(f"{program['program']}: {difference(program, by_name[program['program']])}")


if __name__ == "__main__":
    if sys.argv[1] == "--compare":
        compare(*sys.argv[2:])
    else:
        run(sys.argv[2:], sys.argv[1].removeprefix("--out="))
