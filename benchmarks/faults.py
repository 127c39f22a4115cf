"""Makes tasks fail under every strategy, and writes what happens into a table.

    python benchmarks/faults.py                                        # everything: about 40 minutes
    python benchmarks/faults.py --row "worker killed" --column hogwild

Each cell is a job of its own on this machine: a small model, a step of at least 20 ms, a backup every 50 batches, one restart
of the whole job allowed. The fault comes at step 200 of the training. A cell says with which exit code the job ended, the
longest pause between two steps, how many steps were made twice, and the updates that the model had at the end in per cent of
those of a training without faults (100 % is exact).

Results go to `faults.jsonl`, and from there into `faults.md`.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_multi_string("row", [], "Faults; default: all.")
flags.DEFINE_multi_string("column", [], "Strategies; default: all.")

HERE = Path(__file__).resolve().parent
RESULTS, TABLE = HERE / "faults.jsonl", HERE / "faults.md"
STEP_SECONDS, BATCHES, EPOCHS = 0.02, 100, 5
LIMIT_SECONDS = 240.0
AT = "step=200"

HOGWILD = ['{"chief": 1, "worker": 3, "ps": 1}', "--strategy", "hogwild", "--sync_period", "4"]
COLUMNS = {
    "multi_worker_mirrored": ['{"worker": 3}'],
    "parameter_server": ['{"chief": 1, "worker": 3, "ps": 1}'],
    "parameter_server, groups of 2": [
        "cluster { nworker_groups: 2 nworkers_per_group: 2 nworkers_per_procs: 1 nserver_groups: 1 nservers_per_group: 1 "
        "server_worker_separate: true }"
    ],
    "hogwild": HOGWILD,
    "hogwild, waiting (delay 0)": [*HOGWILD, "--outer", "nesterov", "--delay", "0"],
}
ROWS = {
    "none": None,
    "worker killed": f"worker:1,{AT}",
    "two workers killed": f"worker:1+worker:2,{AT}",
    "ps killed": f"ps:0,{AT}",
    "chief killed": f"CHIEF,{AT}",
    "evaluator killed": f"evaluator:0,{AT}",
    "launcher killed": "launcher",
    "launcher and parent of the tasks killed": "launcher and parent",
    "worker stopped 60 s": f"worker:1,{AT},how=stop:60",
    "ps stopped 60 s": f"ps:0,{AT},how=stop:60",
    "chief stopped 60 s": f"CHIEF,{AT},how=stop:60",
}


def train(folder: Path) -> None:
    """The program: notes each step in the file `steps`, one line with time and epoch."""
    import tfdist

    strategy = tfdist.strategy()
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
    model.fit(x, x.sum(axis=1, keepdims=True), batch_size=8, epochs=epochs(), verbose=0, callbacks=[Note()])
    if notes and task["type"] != "evaluator":
        (folder / "updates").write_text(str(int(model.optimizer.iterations.numpy())))


def epochs() -> int:
    """Returns the number of epochs: with a stop of 60 s there are as many as needed to see the training after it."""
    return int(os.environ.get("FAULTS_EPOCHS", EPOCHS))


def cell(row: str, column: str) -> dict[str, object] | None:
    """Runs one cell; returns what was measured, or None where the fault cannot happen."""
    cluster, *options = COLUMNS[column]
    fault = ROWS[row] or ""
    if "mirrored" in column and ("ps" in row or "chief" in row):
        return None
    fault = fault.replace("CHIEF", "chief:0")
    if "evaluator" in row:
        options.append("--evaluator")
    total = BATCHES * (EPOCHS * 8 if "60 s" in row else EPOCHS)
    environment = os.environ | {"PYTHONPATH": str(HERE.parent), "FAULTS_EPOCHS": str(total // BATCHES)}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        command = [sys.executable, "-m", "tfdist", "run", "--cluster", cluster, *options, "--max_restarts", "1"]
        command += ["--backup_freq", "50", "--log_dir", str(folder / "logs")]
        command += ["--fail_at", fault] if fault and "launcher" not in fault else []
        with open(folder / "output", "wb") as output:
            job = subprocess.Popen(
                [*command, str(Path(__file__).resolve()), "train", str(folder)],
                cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
            try:
                found = _watched(job, folder, fault)
            finally:
                for pid in _session_of(folder):
                    os.kill(pid, signal.SIGKILL)
        text = (folder / "output").read_text(errors="replace")
        steps = [float(line) for line in (folder / "steps").read_text().split()] if (folder / "steps").exists() else []
        updates = int((folder / "updates").read_text()) if (folder / "updates").exists() else None
        found["said"] = [line for line in text.splitlines() if line.startswith("tfdist: ") and "failed" in line][-1:]
        pauses = [after - before for before, after in itertools.pairwise(steps)]
        found |= {"row": row, "column": column, "pause": max(pauses) if pauses else None,
                  "repeated": len(steps) - total, "updates": updates and updates / total}  # fmt: skip
        if found["exit"] not in (0, "left") and "launcher" not in row:
            print(text[-3000:], file=sys.stderr)
        return found


def _watched(job: "subprocess.Popen[bytes]", folder: Path, fault: str) -> dict[str, object]:
    """Waits for the end of a job; kills its launcher if that is the fault."""
    begin = time.monotonic()
    if not fault.startswith("launcher"):
        try:
            code: int | str = job.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            code = f"hangs after {LIMIT_SECONDS:.0f} s"
        return {"exit": code, "seconds": time.monotonic() - begin}
    while not ((folder / "steps").exists() and (folder / "steps").read_text().count("\n") > 200):
        time.sleep(0.1)
    victims = [job.pid]
    if "parent" in fault:
        victims += [pid for pid in _session_of(folder) if b"fork_server" in Path(f"/proc/{pid}/cmdline").read_bytes() and
                    int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) == job.pid]  # fmt: skip
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    job.wait()
    while _session_of(folder) and time.monotonic() < killed + 60:
        time.sleep(0.1)
    return {"exit": "left" if not _session_of(folder) else "processes stay", "seconds": time.monotonic() - killed}


def _session_of(folder: Path) -> list[int]:
    """Returns the processes that work in `folder`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (
                os.readlink(entry / "cwd") == str(folder)
                and entry.joinpath("stat").read_text().rpartition(")")[2].split()[0] != "Z"
            ):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def words(found: dict[str, object] | None) -> str:
    """Returns the text of a cell."""
    if found is None:
        return "-"
    if "launcher" in str(found["row"]):
        return f"{'all ended' if found['exit'] == 'left' else found['exit']} after {found['seconds']:.1f} s"
    if found["exit"] != 0:
        return f"**{found['exit']}** after {found['seconds']:.0f} s"
    share = found["updates"]
    updates = "" if share is None else f", {share:.1%} of the updates".replace("100.0%", "100 %")
    return f"0, pause {found['pause']:.1f} s, {found['repeated']} steps twice{updates}"


def _text(found: dict[str, object] | None, row: str, column: str) -> str:
    if found is None and not ("mirrored" in column and ("ps" in row or "chief" in row)):
        return "not run"
    return words(found)


def write_table() -> None:
    """Writes `faults.md` from the results."""
    results = {(each["row"], each["column"]): each for each in map(json.loads, RESULTS.read_text().splitlines())}
    lines = [f"| fault | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for row in ROWS:
        cells = [_text(results.get((row, column)), row, column) for column in COLUMNS]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    text = TABLE.read_text()
    begin, end = "<!-- Written by faults.py -->", "<!-- End of the table -->"
    head, _, rest = text.partition(begin)
    TABLE.write_text(head + begin + "\n\n" + "\n".join(lines) + "\n\n" + end + rest.partition(end)[2])


def main(arguments):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # So that the job of the cell ends too.
    for row in FLAGS.row or ROWS:
        for column in FLAGS.column or COLUMNS:
            found = cell(row, column)
            if found is None:
                continue
            print(f"{row} | {column} | {words(found)} | {found['said']}", flush=True)
            with open(RESULTS, "a") as file:
                file.write(json.dumps(found) + "\n")
            write_table()


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        train(Path(sys.argv[2]))
    else:
        app.run(main)
