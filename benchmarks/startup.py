"""Time from the command to the first training step and to the end, and memory per task: launcher against separate processes.

    python benchmarks/startup.py --runs 3 --markdown benchmarks/startup.md

Both sides run the same program on the same tasks with the same TF_CONFIG and thread settings, in turn, on this machine.
"Separate" starts `python program.py` once per task, as a shell script would.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import figures
from absl import app, flags

import tfdist
from tfdist.choice import choose, prepared
from tfdist.launch.backends.local.backend import plan
from tfdist.launch.backends.local.ports import HeldPorts
from tfdist.launch.jobs.job import Job, Program

FLAGS = flags.FLAGS
flags.DEFINE_list("tiers", ["STANDARD_1", "PREMIUM_1"], "CloudML tiers to start.")
flags.DEFINE_integer("runs", 3, "Runs of each side.", lower_bound=1)
flags.DEFINE_string("markdown", None, "File for the table; else it is printed.")

PROGRAM = """
import json, os, pathlib, time
task = json.loads(os.environ["TF_CONFIG"])["task"]
pathlib.Path(f"pid-{task['type']}-{task['index']}").write_text(str(os.getpid()))
import tfdist
strategy = tfdist.strategy()
import keras, numpy as np
with strategy.scope():
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
class First(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 0:
            pathlib.Path("first").write_text(str(time.time()))
    def on_train_end(self, logs=None):
        pathlib.Path("trained").touch()
        while not os.path.exists("measured"):  # memory is read while every task is up
            time.sleep(0.01)
model.fit(np.random.rand(1024, 64), np.random.randint(0, 10, 1024), verbose=0, callbacks=[First()])
"""


def memory_megabytes(pid: int) -> tuple[float, float]:
    """Private and proportional memory of a process in MB, as the kernel counts them."""
    fields = dict(line.split(":") for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    private = sum(float(fields[name].split()[0]) for name in ("Private_Clean", "Private_Dirty"))
    return private / 1024, float(fields["Pss"].split()[0]) / 1024


def measure(folder: Path, start) -> dict[str, float]:
    """Runs one job: `start()` returns its processes, the last one ends when the job has ended."""
    begin = time.time()
    processes = start()
    try:
        _wait_for(folder / "trained", processes)
        idle = [memory_megabytes(int(path.read_text())) for path in folder.glob("pid-ps-*")]
        (folder / "measured").touch()
        for process in processes:
            process.wait(120)
        end = time.time()
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert all(process.returncode == 0 for process in processes), [process.returncode for process in processes]
    return {
        "first step, s": float((folder / "first").read_text()) - begin,
        "end, s": end - begin,
        "private memory of a ps, MB": max(private for private, _ in idle),
        "proportional memory of a ps, MB": max(proportional for _, proportional in idle),
    }


def _wait_for(path: Path, processes: list[subprocess.Popen]) -> None:
    deadline = time.monotonic() + 300
    while not path.exists():
        failed = [process.returncode for process in processes if process.poll() not in (None, 0)]
        assert not failed and time.monotonic() < deadline, f"{path.name} does not come; exit codes {failed}"
        time.sleep(0.01)


def launcher(tier: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "program.py").write_text(PROGRAM)
        command = [sys.executable, "-m", "tfdist.launch", "--tier", tier, "program.py"]
        return measure(folder, lambda: [_popen(command, folder, dict(os.environ))])


def separate(tier: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "program.py").write_text(PROGRAM)
        ports = HeldPorts()
        cluster = prepared(tfdist.read(tier))
        cluster = ports.hold(cluster, {task.name for task in cluster.tasks})
        planned = plan(Job(cluster, choose(cluster), Program(script="program.py"), folder=name)).environment
        environments = [
            os.environ
            | dict(planned.get(task.name, {}))
            | {"TF_CONFIG": json.dumps(cluster.tf_config(task.job, task.index))}
            | {"TF_GRPC_REUSE_PORT": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
            for task in cluster.tasks
        ]
        try:
            return measure(folder, lambda: [_popen([sys.executable, "program.py"], folder, env) for env in environments])
        finally:
            ports.close()


def _popen(command: list[str], folder: Path, environment: dict[str, str]) -> subprocess.Popen:
    with open(folder / "output.txt", "ab") as output:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True)


def table(results: dict[str, dict[str, list[dict[str, float]]]]) -> str:
    lines = ["# Start-up: the launcher against separate processes", ""]
    lines += ["| tasks | figure | launcher | separate processes | separate / launcher |", "|---|---|---|---|---|"]
    for tier, sides in results.items():
        count = len(prepared(tfdist.read(tier)).tasks)
        for figure in sides["launcher"][0]:
            ours, theirs = ([run[figure] for run in sides[side]] for side in ("launcher", "separate"))
            ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
            lines.append(
                f"| {count} | {figure} | {figures.spread(ours)} | {figures.spread(theirs)} | {figures.spread(ratios)} |"
            )
    return "\n".join(lines) + "\n"


def main(_: list[str]) -> None:
    results: dict[str, dict[str, list[dict[str, float]]]] = {}
    for tier in FLAGS.tiers:
        results[tier] = {"launcher": [], "separate": []}
        for _ in range(FLAGS.runs):
            for side, run in (("launcher", launcher), ("separate", separate)):
                results[tier][side].append(run(tier))
                print(tier, side, json.dumps(results[tier][side][-1]), flush=True)
    text = table(results)
    if FLAGS.markdown:
        Path(FLAGS.markdown).write_text(text)
    print(text)


if __name__ == "__main__":
    app.run(main)
