"""Runs the right column of the table in docs/from_horovod.md as one program: from_horovod.py PAGE RESULT_FOLDER."""

import json
import re
import sys
from pathlib import Path

ROW = re.compile(r"^\| `(?P<horovod>[^`]+)` \| (?:`(?P<tfdist>[^`]+)` )?\|$", re.MULTILINE)


def lines(page):
    """Returns (Horovod, tfdist) of every row of the first table; tfdist is None where the line is deleted."""
    table = Path(page).read_text().partition("The command line")[0]
    rows = [match.groups() for match in ROW.finditer(table)]
    assert len(rows) == sum(line.startswith("| ") for line in table.splitlines()) - 1, (
        "a row does not have the form of the others"
    )
    return rows


def main(page, folder):
    import keras
    import numpy as np
    import tensorflow as tf

    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    y = x.sum(axis=1, keepdims=True)

    def make_model():
        keras.utils.set_random_seed(0)
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])

    names = {"tf": tf, "keras": keras, "make_model": make_model, "B": 8, "learning_rate": 0.01, "epochs": 3, "warmup": 2}
    names |= {"make_dataset": lambda: tf.data.Dataset.from_tensor_slices((x, y)), "value": 3.0}
    results = {}
    for horovod, line in lines(page):
        if line is None:
            continue
        try:
            results[horovod] = eval(line, names)
        except SyntaxError:
            exec(line, names)
    tfdist, history = names["tfdist"], names["history"].history
    weights = [weight.tolist() for weight in names["model"].get_weights()]
    result = {
        "values": results,
        "loss": history["loss"],
        "learning_rate": history["learning_rate"],
        "mean": float(names["mean"]),
        "total": float(names["total"]),
        "parts": names["parts"].numpy().tolist(),
        "steps": int(names["model"].optimizer.iterations.numpy()),
        "weights": weights,
    }
    Path(folder, f"rank-{tfdist.rank()}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
