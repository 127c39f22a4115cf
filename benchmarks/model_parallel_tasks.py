"""A replica in two tasks against two devices of one task and one device: steps per second and bytes on the network.

    python benchmarks/model_parallel_tasks.py

The tasks are on this machine and share its cores: one device can use as many as two tasks. Each arrangement runs in a network
of its own (`unshare -n`, as root), so that the bytes of its loopback are those of its tasks.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import figures
from model_parallel import MODELS, build

HEADS = "(query|key|value)/kernel=1,(query|key|value)/bias=0,attention_output/kernel=0"
PATTERNS = {
    "dense": "up/.*=columns,down/kernel=rows",
    "transformer": f"{HEADS},.*_up/.*=columns,.*_down/kernel=rows",
}
ARRANGEMENTS = {
    "one device": ["--tier", "BASIC"],
    "2 devices of one task": ["--tier", "BASIC", "--partition_devices", "2"],
    "2 tasks of one device": ["-n", "2", "--partition_tasks", "2"],
}
STEPS = 16
"""Of one epoch."""


def bytes_so_far() -> int:
    """Returns how many bytes the loopback of this network has carried."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.strip().startswith("lo:"))


def program(name: str, epochs: int) -> None:
    """Trains, and writes what it took to RANK.json."""
    import time

    import tfdist

    strategy = tfdist.strategy()
    import keras
    import numpy as np

    keras.utils.set_random_seed(1)
    with strategy.scope():
        model, x, y = build(name)
        model.compile("adam", "mse", steps_per_execution=8)
    batch = len(x)
    x, y = (np.concatenate([value] * STEPS) for value in (x, y))
    model.fit(x, y, batch_size=batch, epochs=2, verbose=0)
    began, used, sent = time.perf_counter(), time.process_time(), bytes_so_far()
    model.fit(x, y, batch_size=batch, epochs=epochs, verbose=0)
    steps = STEPS * epochs
    found = {
        "rate": steps / (time.perf_counter() - began),
        "processor": 1000 * (time.process_time() - used) / steps,
        "bytes": (bytes_so_far() - sent) / steps,
    }
    Path(f"{tfdist.rank()}.json").write_text(json.dumps(found))


def measure(name: str, arrangement: str, epochs: int) -> dict[str, float]:
    """Runs one arrangement. Returns its rate and bytes on the chief, and the processor time of all tasks."""
    flags = ARRANGEMENTS[arrangement]
    if arrangement != "one device":
        flags = [*flags, "--partition", PATTERNS[name]]
    command = [sys.executable, "-m", "tfdist.launch", *flags, __file__, "--", "--program", name, "--epochs", str(epochs)]
    own_network = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run([*own_network, *command], cwd=folder, capture_output=True, text=True, timeout=300)
        if run.returncode:
            raise RuntimeError(f"{arrangement} of {name} has failed: {run.stdout[-2000:]} {run.stderr[-2000:]}")
        tasks = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("[0-9].json"))]
    return tasks[0] | {"processor": sum(task["processor"] for task in tasks)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--program", choices=MODELS)
    flags = parser.parse_args()
    if flags.program:
        program(flags.program, flags.epochs)
        return
    print("| model | arrangement | steps/s | processor ms per step | KB per step on the network |\n|---|---|---|---|---|")
    for model in MODELS:
        found: dict[str, list[dict[str, float]]] = {name: [] for name in ARRANGEMENTS}
        for _ in range(flags.rounds):
            for name, runs in found.items():
                runs.append(measure(model, name, flags.epochs))
        for name, runs in found.items():
            spreads = [
                figures.spread([each[key] / unit for each in runs])
                for key, unit in (("rate", 1), ("processor", 1), ("bytes", 1000))
            ]
            print(f"| {model} | {name} | {' | '.join(spreads)} |", flush=True)


if __name__ == "__main__":
    main()
