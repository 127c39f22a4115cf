"""Steps per second, processor time and bytes per device of sharded models, against one device with as many cores.

    python benchmarks/model_parallel.py --markdown benchmarks/model_parallel.md

The devices are logical CPU devices of one process, which share all cores: one device can use as many cores as four. So the
figures show what sharding costs, not what it gains. Each arrangement runs in a process of its own, `--rounds` times in turn.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import figures

ARRANGEMENTS = {
    "one device": None,
    "2 devices, sharded": (1, 2),
    "4 devices, sharded": (1, 4),
    "2 replicas of 2 devices": (2, 2),
    "4 replicas": (4, 1),
}
LAYOUTS = {
    ".*(query|key|value)/kernel": (None, "model", None),
    ".*(query|key|value)/bias": ("model", None),
    ".*attention_output/kernel": ("model", None, None),
    ".*up/kernel": (None, "model"),
    ".*up/bias": ("model",),
    ".*down/kernel": ("model", None),
}
MODELS = ("dense", "transformer")


def build(name: str) -> tuple[Any, Any, Any]:
    """Returns a model that is not compiled, and the inputs and targets of one batch."""
    import keras
    import numpy as np
    from keras import layers

    if name == "dense":
        stack = [layers.Dense(2048, "relu", name="up"), layers.Dense(512, name="down")]
        return keras.Sequential([keras.Input((512,)), *stack]), np.ones((64, 512), "float32"), np.ones((64, 512), "float32")
    inputs = x = keras.Input((64, 128))
    for number in range(2):
        normal = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, 32, name=f"attention_{number}")(normal, normal)
        hidden = layers.Dense(512, "gelu", name=f"{number}_up")(layers.LayerNormalization()(x))
        x = x + layers.Dense(128, name=f"{number}_down")(hidden)
    return keras.Model(inputs, x), np.ones((16, 64, 128), "float32"), np.ones((16, 64, 128), "float32")


def program(model_name: str, arrangement: str, seconds: float) -> None:
    """Trains for some seconds, and prints steps per second and the bytes on each device."""
    import contextlib
    import time

    import tfdist

    shape = ARRANGEMENTS[arrangement]
    count = 1 if shape is None else shape[0] * shape[1]
    several = f"cluster {{ nworkers_per_group: {count} nworkers_per_procs: {count} }}"
    strategy = tfdist.strategy(several if count > 1 else "BASIC")
    import keras
    import numpy as np

    if shape is not None:
        mesh = keras.distribution.DeviceMesh(shape, ("batch", "model"), keras.distribution.list_devices())
        layout_map = keras.distribution.LayoutMap(mesh)
        for pattern, axes in LAYOUTS.items():
            layout_map[pattern] = axes
        keras.distribution.set_distribution(keras.distribution.ModelParallel(layout_map=layout_map, batch_dim_name="batch"))

    with strategy.scope() if count > 1 else contextlib.nullcontext():
        model, x, y = build(model_name)
        model.compile("adam", "mse", steps_per_execution=8)
    x, y = (np.concatenate([value] * 16) for value in (x, y))
    batch = len(x) // 16

    def fit(epochs: int) -> None:
        model.fit(x, y, batch_size=batch, epochs=epochs, verbose=0)

    fit(1)
    epochs, began, used = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        fit(2)
        epochs += 2
    rate, used = 16 * epochs / (time.perf_counter() - began), time.process_time() - used
    held: dict[str, int] = {}
    for variable in [*model.weights, *model.optimizer.variables]:
        for part in getattr(variable._value, "shards", [variable._value]):
            for local in getattr(part, "values", [part]):
                held[local.device] = held.get(local.device, 0) + int(np.prod(local.shape)) * local.dtype.size
    print(json.dumps({"rate": rate, "processor": 1000 * used / (16 * epochs), "bytes": sorted(held.values())}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--program", nargs=2)
    flags = parser.parse_args()
    if flags.program:
        program(*flags.program, flags.seconds)
        return
    command = f"python benchmarks/model_parallel.py --rounds {flags.rounds} --seconds {flags.seconds:g}"
    lines = [
        "# Models sharded over devices",
        "",
        f"`{command}`, on 2 cores, without a GPU: medians (minimum to maximum).",
        "Logical CPU devices share the cores, so that sharding can only cost. Processor time is that of all threads,",
        "and can be compared if the machine is busy, too. The last column is what a device holds.",
        "",
        "| model | arrangement | steps/s | processor ms per step | of one device | weights and slots of one device, MB |",
        "|---|---|---|---|---|---|",
    ]
    for model in MODELS:
        found: dict[str, list[dict]] = {name: [] for name in ARRANGEMENTS}
        for _ in range(flags.rounds):
            for name in ARRANGEMENTS:
                command = [sys.executable, __file__, "--seconds", str(flags.seconds), "--program", model, name]
                run = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
                found[name].append(json.loads(run.stdout.splitlines()[-1]))
        alone = statistics.median(each["processor"] for each in found["one device"])
        for name, runs in found.items():
            rates, times = [each["rate"] for each in runs], [each["processor"] for each in runs]
            least, most = runs[0]["bytes"][0], runs[0]["bytes"][-1]
            held = f"{least / 1e6:.2f}" if least == most else f"{least / 1e6:.2f} to {most / 1e6:.2f}"
            spread = " | ".join(figures.spread(each) for each in (rates, times))
            lines.append(f"| {model} | {name} | {spread} | {statistics.median(times) / alone:.2f} | {held} |")
            print(lines[-1], flush=True)
    if flags.markdown:
        flags.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
