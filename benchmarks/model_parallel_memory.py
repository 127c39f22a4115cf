"""Memory of workers with and without a partition, and whether they train under a limit.

    python benchmarks/model_parallel_memory.py

Workers are processes of one device each, under parameter_server. `prlimit` limits the data of each worker (RLIMIT_DATA) to
`--limit` MB more than it has when the training begins. So the limit is real: the operating system refuses what exceeds it.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

GROUP = "cluster {{ nworkers_per_group: {} nserver_groups: 1 nservers_per_group: 1 server_worker_separate: true }}"
ARRANGEMENTS = {
    "1 worker": [f"--cluster={GROUP.format(1)}"],
    "4 workers, sharded": [f"--cluster={GROUP.format(4)}", "--partition=up/.*=columns,down/kernel=rows"],
}
WIDTH, UNITS = 1024, 32768
WEIGHTS_MB = 2 * WIDTH * UNITS * 4 / 2**20


def program(limit_mb: int) -> None:
    """Trains for a few steps, and prints the memory of the workers."""
    import tfdist

    strategy = tfdist.strategy()
    import keras
    import numpy as np
    from keras import layers

    addresses = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]
    workers = [process_at(int(address.rpartition(":")[2])) for address in addresses]
    begun = [status(worker) for worker in workers]
    for worker, before in zip(workers, begun, strict=True):
        if limit_mb:
            most = (before["VmData"] + limit_mb * 1024) * 1024
            resource.prlimit(worker, resource.RLIMIT_DATA, (most, most))
    keras.utils.set_random_seed(0)
    with strategy.scope():
        stack = [layers.Dense(UNITS, "relu", name="up"), layers.Dense(WIDTH, name="down")]
        model = keras.Sequential([keras.Input((WIDTH,)), *stack])
        model.compile(keras.optimizers.SGD(1e-3), "mse")
    x = np.random.default_rng(0).normal(size=(64, WIDTH)).astype("float32")
    history = model.fit(x, x, batch_size=32, epochs=2, shuffle=False, verbose=0).history
    added = []
    for worker, before in zip(workers, begun, strict=True):
        is_there = Path(f"/proc/{worker}").exists()  # The launcher starts another in its place, which has no limit.
        added.append((status(worker)["VmHWM"] - before["VmRSS"]) // 1024 if is_there else "ended by the limit")
    trained = all(isinstance(each, int) for each in added)
    print(json.dumps({"loss": history["loss"] if trained else [], "added_mb": added}))


def process_at(port: int) -> int:
    """Returns the process that listens at a port of this machine."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    inodes = {f"socket:[{each[9]}]" for each in lines if each[1].endswith(f":{port:04X}") and each[3] == "0A"}
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(link.readlink()) in inodes:
                return int(link.parts[2])
        except OSError:
            continue  # Closed meanwhile.
    raise ValueError(f"no process listens at port {port}")


def status(process: int) -> dict[str, int]:
    """Returns the memory of a process in kB, by the names of /proc."""
    return {name: int(size) for name, size in re.findall(r"(Vm\w+):\s+(\d+)", Path(f"/proc/{process}/status").read_text())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=0, help="MB that a worker may add in a second run")
    parser.add_argument("--program", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.program is not None:
        program(arguments.program)
        return
    print(f"kernels of {WEIGHTS_MB:.0f} MB\n")
    print("| workers | limit, MB | most that each worker added, MB | loss of two epochs |\n|---|---|---|---|")
    for name, flags in ARRANGEMENTS.items():
        for limit in (0, arguments.limit)[: 1 + bool(arguments.limit)]:
            with tempfile.TemporaryDirectory() as folder:
                command = [sys.executable, "-m", "tfdist.launch", *flags, str(Path(__file__).resolve())]
                done = subprocess.run(
                    [*command, "--program", str(limit)], cwd=folder, capture_output=True, text=True, timeout=600
                )
            found = re.search(r"\{\"loss.*\}", done.stdout)
            result = json.loads(found[0]) if found else {"added_mb": [f"exit code {done.returncode}"], "loss": []}
            row = f"{', '.join(map(str, result['added_mb']))} | {', '.join(f'{loss:.6f}' for loss in result['loss'])}"
            print(f"| {name} | {limit or 'none'} | {row} |", flush=True)


if __name__ == "__main__":
    main()
