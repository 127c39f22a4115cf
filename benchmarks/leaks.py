"""Memory, threads and open files of the chief, a worker and a ps over many short calls of `fit`.

    python benchmarks/leaks.py --markdown benchmarks/leaks.md      # 200 calls each, 10 minutes on an idle machine

Each case is a job of its own, one process per task:

* same: the same model and the same data in every call.
* new: a new model in every call, with a new dataset, which under hogwild is one that the workers read
  (`distribute_datasets_from_function`). The program keeps neither.

The table shows the growth from call `WARM` on, per call; the first calls trace functions and fill pools of memory and threads.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import figures

STRATEGIES = ("parameter_server", "hogwild")
CASES = ("same", "new")
TASKS = ("chief", "worker", "ps")
WARM = 0.25
"""Part of the calls that is left out of the growth."""

VALUES = 512 * 512
"""Weights of a model: 1 MiB, and as much again for the momentum."""


def program(strategy_name: str, case: str, rounds: int) -> None:
    """Runs on every task. The chief prints a line of JSON after each of its calls of `fit`."""
    import tfdist

    strategy = tfdist.strategy(start_timeout=120)
    import gc

    import keras
    import numpy as np
    import tensorflow as tf

    width = int(VALUES**0.5)
    x, y = np.ones((32, width), "float32"), np.ones((32, width), "float32")

    def new_model():
        with strategy.scope():
            model = keras.Sequential([keras.Input((width,)), keras.layers.Dense(width)])
            model.compile(keras.optimizers.SGD(1e-4, momentum=0.9), "mse")
        return model

    def new_data():
        def dataset(_=None):
            return tf.data.Dataset.from_tensors((x[:8], y[:8])).repeat().prefetch(8)

        return strategy.distribute_datasets_from_function(dataset) if strategy_name == "hogwild" else dataset()

    pids = json.loads(Path(os.environ["LEAKS_PIDS"]).read_text())
    model, data = new_model(), new_data()
    for number in range(rounds):
        if case == "new":
            model, data = new_model(), new_data()
        model.fit(data, steps_per_epoch=4, epochs=1, verbose=0)
        if case == "new":
            del model, data
            gc.collect()
        usage = {task: usage_of(pid) for task, pid in pids.items()}
        print(json.dumps({"round": number + 1, "usage": usage}), flush=True)


def usage_of(pid: int) -> dict[str, float]:
    """Returns the resident memory in MB, the threads and the open files of a process."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    memory = int(status["VmRSS"].split()[0]) * 1024 / 1e6
    return {"memory": memory, "threads": int(status["Threads"]), "files": len(os.listdir(f"/proc/{pid}/fd"))}


def run(strategy: str, case: str, rounds: int) -> list[dict[str, dict[str, float]]]:
    """Runs one job and returns the usage of each task after each call of `fit`."""
    pids_path = Path(f"/tmp/leaks-{os.getpid()}.json")
    sockets = [socket.create_server(("localhost", 0)) for _ in TASKS]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    addresses = {task: [f"localhost:{port}"] for task, port in zip(TASKS, ports, strict=True)}
    extension = {"strategy": strategy} | ({"sync_period": 2} if strategy == "hogwild" else {})
    processes = {}
    try:
        for task in TASKS:
            config = {"cluster": addresses, "task": {"type": task, "index": 0}, "tfdist": extension}
            environment = {**os.environ, "TF_CONFIG": json.dumps(config), "LEAKS_PIDS": str(pids_path)}
            command = [sys.executable, __file__, "--program", strategy, case, str(rounds)]
            processes[task] = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        pids_path.write_text(json.dumps({task: process.pid for task, process in processes.items()}))
        assert processes["chief"].stdout is not None
        usage = []
        for line in processes["chief"].stdout:
            usage.append(json.loads(line)["usage"])
            if len(usage) % 10 == 0:
                print(strategy, case, len(usage), usage[-1], file=sys.stderr, flush=True)
        if processes["chief"].wait() != 0:
            sys.exit(f"the chief of {strategy}, {case} failed")
        for process in processes.values():
            process.wait(60)
        return usage
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
        pids_path.unlink(missing_ok=True)


def growth(usage: list[dict[str, dict[str, float]]], task: str, what: str) -> float:
    """Returns the growth per call after the first calls."""
    begin = int(len(usage) * WARM)
    return (usage[-1][task][what] - usage[begin][task][what]) / (len(usage) - 1 - begin)


def main() -> None:
    """Runs the jobs and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200, help="calls of fit in each job; default 200")
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES, choices=STRATEGIES)
    parser.add_argument("--cases", nargs="+", default=CASES, choices=CASES)
    parser.add_argument("--markdown", help="file whose part after `## Figures` gets the table; else it is printed only")
    parser.add_argument("--program", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.program:
        program(*arguments.program[:2], int(arguments.program[2]))
        return
    figures.check(arguments.markdown)
    lines = [
        f"| strategy | case | task | MB after {arguments.rounds} calls | growth per call: memory, kB | threads | files |",
        "|---|---|---|---|---|---|---|",
    ]
    for strategy in arguments.strategies:
        for case in arguments.cases:
            begin = time.monotonic()
            usage = run(strategy, case, arguments.rounds)
            for task in TASKS:
                per_call = [growth(usage, task, what) for what in ("memory", "threads", "files")]
                lines.append(
                    f"| {strategy} | {case} | {task} | {usage[-1][task]['memory']:.0f} | {per_call[0] * 1000:.0f} | "
                    f"{per_call[1]:.2f} | {per_call[2]:.2f} |"
                )
            print(f"{strategy}, {case}: {time.monotonic() - begin:.0f} s", file=sys.stderr)
    figures.put(arguments.markdown, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
