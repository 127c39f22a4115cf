"""How long a job pauses when all tasks are started again (`--max_restarts`): their parent kept, against a new one.

    python benchmarks/restart_pause.py --runs 5 --markdown benchmarks/restart_pause.md

The parent of the tasks has imported TensorFlow, and the tasks are forks of it. The launcher keeps it for the next attempt. A
new one imports TensorFlow again, in a new interpreter. Both sides run the same job in turn, on this machine: two tasks of
`multi_worker_mirrored`, one of which gets SIGKILL at step 30. The pause is that between the last step before the fault and the
first one after it.
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import figures
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("runs", 5, "Runs of each side.", lower_bound=1)
flags.DEFINE_string("markdown", None, "File for the table; else it is printed.")

PROGRAM = """
import json, os, pathlib, time
task = json.loads(os.environ["TF_CONFIG"])["task"]
import tfdist
strategy = tfdist.strategy()
import keras, numpy as np
keras.utils.set_random_seed(1)
with strategy.scope():
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
class Note(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.05)
        if task["index"] == 0:
            with open("steps", "a") as file:
                file.write(f"{time.time()}\\n")
model.fit(np.ones((400, 64)), np.ones((400, 1)), batch_size=8, epochs=2, verbose=0, callbacks=[Note()])
"""

SIDES = {
    "parent kept": "import sys; from tfdist.launch.commands import run; sys.exit(run(['run', *sys.argv[1:]]))",
    "new parent": "from tfdist.launch.backends.local.backend import BACKEND; object.__setattr__(BACKEND.runs, 'keep', None); "
    "import sys; from tfdist.launch.commands import run; sys.exit(run(['run', *sys.argv[1:]]))",
}
"""How the launcher is started."""


def pause(side: str) -> float:
    """Runs a job; returns its pause in seconds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "program.py").write_text(PROGRAM)
        command = [sys.executable, "-c", SIDES[side], "-n", "2", "--max_restarts", "1", "--backup_freq", "10"]
        command += ["--fail_at", "worker:1,step=30", "program.py"]
        job = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
        said = job.stdout + job.stderr
        if job.returncode or said.count("all tasks are started again") != 1:
            raise SystemExit(f"exit code {job.returncode}\n{said[-3000:]}")
        steps = [float(line) for line in (folder / "steps").read_text().split()]
        return max(after - before for before, after in itertools.pairwise(steps[20:]))


def main(_: list[str]) -> None:
    """Runs both sides in turn."""
    found: dict[str, list[float]] = {side: [] for side in SIDES}
    for _ in range(FLAGS.runs):
        for side, pauses in found.items():
            pauses.append(pause(side))
            print(json.dumps({"side": side, "seconds": round(pauses[-1], 2), "load": os.getloadavg()[0]}), flush=True)
    rows = [f"| {side} | {figures.spread(each)} |" for side, each in found.items()]
    saved = [new - kept for kept, new in zip(*found.values(), strict=True)]
    rows.append(f"| saved | {figures.spread(saved)} |")
    text = "\n".join(
        ["# The pause of a restart of all tasks", "", "| parent of the tasks | pause, s |", "|---|---|", *rows, ""]
    )
    text += f"\nMedian (least to most) of {FLAGS.runs} runs of each, in turn; {os.cpu_count()} cores, load "
    text += f"{os.getloadavg()[0]:.0f} at the end. `python benchmarks/restart_pause.py`.\n"
    if FLAGS.markdown:
        Path(FLAGS.markdown).write_text(text)
    print(text)


if __name__ == "__main__":
    app.run(main)
