"""Goodput: how much of its speed a training keeps while a random worker is killed again and again.

    python benchmarks/goodput.py                                       # everything: 45 minutes
    python benchmarks/goodput.py --strategy hogwild --every 15 --minutes 30
    python benchmarks/goodput.py --strategy multi_worker_mirrored --workers 2 --every 60 --minutes 30 --alternate

It says every half minute how far it is, and writes the rows of a run when that has ended. Each run begins anew; without faults
it takes as long as `--minutes` says, with faults longer.

Each run is a job of its own on this machine, with 3 workers or as many as `--workers` says. A step takes 0.1 s on its worker,
asleep, as on a device of its own, so that a worker that is away costs its share. Every N seconds a random worker gets SIGKILL
(`--fail_at random`, with a seed). Goodput is the number of different steps per second, from the first step to the last, in per
cent of that without faults: of the runs right before and right after, else of the last one, because machines change with the
hours. They change within minutes, too: with `--alternate`, every second stretch of 2 minutes of one job has faults, and the
others are those without. "Faults took" is the part of the time of restarts and of steps made twice, if all workers make each
step together. Every run is accounted for exactly, or its row says what is missing: each epoch counts each example once, and the
optimizer counts the updates.

Memory, threads, descriptors, listening ports and temporary files are those of the tasks that are never killed, as medians over
an early and a late part of the run. Results go to `goodput.jsonl`, and from there into `goodput.md`.
"""

import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_multi_string("strategy", [], "Strategies; default: all.")
flags.DEFINE_multi_integer("every", [], "Seconds between two faults, 0 for none; default: 0, 60 and 15.")
flags.DEFINE_float("minutes", 4.0, "Length of the training at the speed without faults.")
flags.DEFINE_bool("alternate", False, "Compare stretches of one job with and without faults.")
flags.DEFINE_integer("workers", 3, "Workers of a job.")
flags.DEFINE_integer("seed", 1, "Seed of the faults.")

HERE = Path(__file__).resolve().parent
RESULTS, TABLE = HERE / "goodput.jsonl", HERE / "goodput.md"
STEP_SECONDS, BATCH, EPOCH = 0.1, 8, 120
PAUSE_SECONDS = 0.8
"""A step that takes so long is one after a restart."""

STRETCH_SECONDS = 120
"""Length of a stretch with faults, and of one without."""

SAY_SECONDS = 30.0
NEAR_SECONDS = 3600.0
"""Two runs of one day, one right after the other, begin at most so long after each other."""

EARLY, LATE = (0.25, 0.4), (0.85, 1.0)
SURVIVORS = ("launcher", "parent of the tasks", "chief", "ps")

STRATEGIES = ("hogwild", "parameter_server", "multi_worker_mirrored")


def options(strategy: str, workers: int) -> list[str]:
    """Returns the options of the command that runs a job."""
    if strategy == "multi_worker_mirrored":
        return ["-n", str(workers), "--max_restarts", "1000", "--backup_freq", "10"]
    served = ["--cluster", f'{{"chief": 1, "worker": {workers}, "ps": 1}}', "--task_restarts", "1000"]
    return [*served, "--strategy", "hogwild", "--sync_period", "4"] if strategy == "hogwild" else served


def train(folder: Path, epochs: int) -> None:
    """The program: notes the moment of each step, and at the end what was counted."""
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    (folder / f"pid-{task['type']}").write_text(str(os.getpid()))

    import tfdist

    strategy = tfdist.strategy()
    import keras
    import numpy as np
    import tensorflow as tf
    from seen import Seen

    notes = task["type"] == "chief" or (task["type"], task["index"]) == ("worker", 0)

    class Busy(keras.layers.Layer):
        """Takes `STEP_SECONDS` without a processor."""

        def call(self, x):
            types = {"output_types": [tf.int64], "output_shapes": [[]]}
            zero, one = tf.constant(0, tf.int64), tf.constant(1, tf.int64)
            with tf.control_dependencies([x]):
                numbers = tf.raw_ops.RangeDataset(start=zero, stop=one, step=one, **types)
                half = tf.constant(int(STEP_SECONDS * 1e6 / 2), tf.int64)  # It sleeps before its element and before its end.
                sleeping = tf.raw_ops.SleepDataset(input_dataset=numbers, sleep_microseconds=half, **types)
                (slept,) = tf.raw_ops.DatasetToSingleElement(dataset=sleeping, **types)
            return x + tf.stop_gradient(tf.cast(slept, x.dtype))

    class Note(keras.callbacks.Callback):
        epoch = 0

        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_train_batch_end(self, batch, logs=None):
            if notes:
                with open(folder / "steps", "a") as file:
                    file.write(f"{time.time()} {self.epoch * EPOCH + batch}\n")

    keras.utils.set_random_seed(1)
    ids = np.arange(EPOCH * BATCH, dtype="float32")
    x = np.random.default_rng(1).random((len(ids), 16), "float32")
    y = np.stack([x.sum(axis=1), ids], axis=1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((16,)), Busy(), keras.layers.Dense(512, "relu"), keras.layers.Dense(1)])
        model.compile("adam", lambda t, p: keras.ops.mean(keras.ops.square(t[:, :1] - p), axis=-1), metrics=[Seen()])
    history = model.fit(x, y, batch_size=BATCH, epochs=epochs, verbose=0, callbacks=[Note()]).history
    if notes:
        exact = [len(ids), float(ids.sum())]
        wrong = [number for number, each in enumerate(zip(history["examples"], history["numbers"], strict=True))
                 if list(each) != exact]  # fmt: skip
        result = {"updates": int(model.optimizer.iterations.numpy()), "epochs": len(history["loss"]), "wrong": wrong}
        (folder / "counts").write_text(json.dumps(result | {"loss": [history["loss"][0], history["loss"][-1]]}))


def usage(pid: int) -> dict[str, float] | None:
    """Returns what a process uses; None if it is gone."""
    try:
        lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        links = [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()]
        rows = [row.split() for name in ("tcp", "tcp6") for row in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]]
        listens = {f"socket:[{row[9]}]" for row in rows if row[3] == "0A"}
    except OSError:
        return None
    return {
        "MB": int(lines["VmRSS"].split()[0]) / 1024,
        "threads": int(lines["Threads"]),
        "descriptors": len(links),
        "ports": len(listens & set(links)),
    }


def survivors(job: int, folder: Path) -> dict[str, int]:
    """Returns the process ids of those that no fault kills, by name."""
    found = {"launcher": job}
    for task in ("chief", "ps"):
        try:
            pid = int((folder / f"pid-{task}").read_text())
            found[task] = pid
            found["parent of the tasks"] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
    return found


class Steps:
    """The moment and the number of each step, of a file that grows. Reads each line once, so as not to slow a long run."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0
        self.all: list[tuple[float, int]] = []
        self.numbers: set[int] = set()

    def read(self) -> None:
        """Reads the lines that are new."""
        if not self._path.exists():
            return
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        for moment, number in map(bytes.split, whole.splitlines()):
            self.all.append((float(moment), int(number)))
            self.numbers.add(int(number))


def part_of_faults(steps: list[tuple[float, int]]) -> float:
    """Returns the part of the time of restarts, and of steps that were made twice, if all workers make each step together."""
    pairs = [(after[0] - before[0], before[1] + 1 - after[1]) for before, after in itertools.pairwise(steps)]
    usual = statistics.mean(seconds for seconds, _ in pairs if seconds < PAUSE_SECONDS)
    pauses = [(seconds - usual, again) for seconds, again in pairs if seconds >= PAUSE_SECONDS]
    return sum(seconds + again * usual for seconds, again in pauses) / (steps[-1][0] - steps[0][0])


def faults_of(every: int) -> range:
    """Returns the moments of the faults in a stretch, seconds after its beginning."""
    return range(every // 2, STRETCH_SECONDS, every)


def alternating(seconds: float, every: int, workers: int, seed: int) -> list[str]:
    """Returns the faults of a job in which every second stretch has some, as values of `--fail_at`."""
    generator = random.Random(seed)
    begins = range(STRETCH_SECONDS, int(seconds), 2 * STRETCH_SECONDS)
    moments = [begin + after for begin in begins for after in faults_of(every)]
    return [f"worker:{generator.randrange(workers)},after={moment}" for moment in moments]


def compared(row: dict[str, Any], steps: list[tuple[float, int]]) -> list[dict[str, Any]]:
    """Returns two rows for a job whose stretches alternate: of those without faults, and of as many with faults."""
    stretches: dict[int, list[tuple[float, int]]] = {}
    for moment, number in steps:
        stretches.setdefault(int((moment - steps[0][0]) / STRETCH_SECONDS), []).append((moment, number))
    pairs = max(stretches) // 2  # The last stretch is not a whole one.
    seen: set[int] = set()
    new = []
    for place in range(2 * pairs):
        numbers = {number for _, number in stretches[place]}
        new.append(len(numbers - seen))
        seen |= numbers
    rows = []
    for with_faults in (0, 1):
        own = range(with_faults, 2 * pairs, 2)
        made, seconds = sum(new[place] for place in own), STRETCH_SECONDS * pairs
        measured: dict[str, Any] = {"seconds": seconds, "steps": made, "expected": made, "updates": made}
        measured |= {"repeated": sum(len(stretches[place]) for place in own) - made, "speed": made / seconds}
        measured |= {"speeds": [new[place] / STRETCH_SECONDS for place in own]}
        took = sum(part_of_faults(stretches[place]) for place in own) / pairs
        others = {"faults_took": took, "faults": pairs * len(faults_of(row["every"]))}
        others = others if with_faults else {"faults_took": 0.0, "faults": 0, "every": 0, "usage": {}}
        rows.append(row | measured | others)
    return rows


def run(strategy: str, workers: int, every: int, minutes: float, seed: int, alternates: bool = False) -> list[dict[str, Any]]:
    """Makes one run; returns the rows of what was measured: one, or two if stretches with and without faults alternate."""
    together = 1 if strategy == "multi_worker_mirrored" else workers  # Steps at the same time.
    epochs = max(2, round(minutes * 60 * together / STEP_SECONDS / EPOCH))
    total = epochs * EPOCH
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "tmp").mkdir()
        environment = os.environ | {"PYTHONPATH": str(HERE.parent), "TMPDIR": str(folder / "tmp")}
        command = [sys.executable, "-m", "tfdist", "run", *options(strategy, workers), "--log_dir", str(folder / "logs")]
        faults = [f"random,every={every},of=worker,seed={seed}"] if every else []
        faults = alternating(4 * minutes * 60, every, workers, seed) if alternates else faults
        command += [word for fault in faults for word in ("--fail_at", fault)]
        with open(folder / "output", "wb") as output:
            job = subprocess.Popen(
                [*command, str(Path(__file__).resolve()), "train", str(folder), str(epochs)],
                cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        samples: list[tuple[float, dict[str, dict[str, float]]]] = []
        steps = Steps(folder / "steps")
        begun, begin = time.time(), time.monotonic()
        said = begin
        limit = begin + minutes * 60 * 4 + 120
        try:
            while job.poll() is None:
                if time.monotonic() > limit:
                    job.terminate()
                time.sleep(2.0)
                steps.read()
                done = len(steps.numbers) / total
                if time.monotonic() > said + SAY_SECONDS:
                    said = time.monotonic()
                    faults = (folder / "output").read_text(errors="replace").count("--fail_at sends")
                    print(f"{strategy}, a fault every {every} s: {done:.0%} of {total} steps and {faults} faults after "
                          f"{said - begin:.0f} s", flush=True)  # fmt: skip
                found = {name: each for name, pid in survivors(job.pid, folder).items() if (each := usage(pid))}
                found["files"] = {"temporary files": sum(len(files) for _, _, files in os.walk(folder / "tmp"))
                                  + len([*Path("/dev/shm").glob("tfdist*")])}  # fmt: skip
                samples.append((done, found))
        finally:
            if job.poll() is None:
                job.terminate()  # It ends all of its tasks.
                job.wait(30)
        text = (folder / "output").read_text(errors="replace")
        if job.returncode:
            print(text[-4000:], file=sys.stderr)
        steps.read()
        counts = json.loads((folder / "counts").read_text()) if (folder / "counts").exists() else {}
    seconds = steps.all[-1][0] - steps.all[0][0] if steps.all else 0.0
    different = len(steps.numbers)
    row = {
        "strategy": strategy, "workers": workers, "every": every, "seed": seed, "begun": begun,
        "exit": job.returncode, "seconds": seconds,
        "faults": text.count("--fail_at sends"), "steps": different, "expected": total, "repeated": len(steps.all) - different,
        "speed": different / seconds if seconds else 0.0,
        "faults_took": part_of_faults(steps.all) if together == 1 and different > 1 else None,
        "usage": parts_of(samples), "cores": os.cpu_count(), **counts,
    }  # fmt: skip
    is_exact = job.returncode == 0 and different == total == counts.get("updates")
    return compared(row, steps.all) if alternates and is_exact else [row]


def parts_of(samples: list[tuple[float, dict[str, dict[str, float]]]]) -> dict[str, dict[str, list[float]]]:
    """Returns for each process, and each thing that it uses, the medians over the early and the late part."""
    parts: dict[str, dict[str, list[float]]] = {}
    for name in {name for _, found in samples for name in found}:
        for what in {what for _, found in samples for what in found.get(name, {})}:
            both = [[found[name][what] for done, found in samples if begin <= done < end and name in found]
                    for begin, end in (EARLY, LATE)]  # fmt: skip
            if all(both):
                parts.setdefault(name, {})[what] = [round(statistics.median(each), 1) for each in both]
    return parts


def grew(uses: dict[str, list[float]]) -> bool:
    """Returns whether a process used more in the late part: 1 MB of memory, or 1 of anything else."""
    return any(late - early >= 1 for early, late in uses.values())


def goodput(rows: list[dict[str, Any]], place: int) -> str:
    """Returns the speed of a row in per cent of that without faults, as a cell of the table."""
    begun = rows[place].get("begun", 0.0)
    near = [row for row in rows[max(place - 1, 0) : place + 2] if abs(row.get("begun", 0.0) - begun) < NEAR_SECONDS]
    around = [row for row in near if not row["every"]]
    speeds = [row["speed"] for row in around or [row for row in rows if not row["every"]][-1:]]
    return f"{100 * rows[place]['speed'] / statistics.mean(speeds):.1f} %" if speeds else "?"


def write_table() -> None:
    """Writes `goodput.md` from the last result of each run."""
    rows: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in map(json.loads, RESULTS.read_text().splitlines()):
        rows.setdefault((row["strategy"], row.get("workers", 3)), []).append(row)
    names = ("strategy", "workers", "a fault every", "seconds", "faults", "steps/s", "goodput", "faults took",
             "steps made twice", "updates", "examples")  # fmt: skip
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    usages = ["| strategy | workers | a fault every | process | MB | threads | descriptors | ports |", "|---" * 8 + "|"]
    for strategy, workers in sorted(rows, key=lambda key: (STRATEGIES.index(key[0]), -key[1])):
        of_kind = rows[strategy, workers]
        for every in (0, 60, 15):
            place = max((number for number, row in enumerate(of_kind) if row["every"] == every), default=None)
            if place is None:
                continue
            each, kind = of_kind[place], f"{strategy} | {workers}"
            is_exact = each.get("wrong") == [] and each["steps"] == each["expected"]
            exact = "exact" if is_exact else f"**wrong in epochs** {each.get('wrong')}"
            more = each.get("updates", 0) - each["steps"]
            end = "" if each["exit"] == 0 else f" **exit code {each['exit']}**"
            fault = f"{every} s" if every else "-"
            took = f"{100 * each['faults_took']:.1f} %" if every and each.get("faults_took") else ""
            lines.append(f"| {kind} | {fault} | {each['seconds']:.0f} | {each['faults']} | {each['speed']:.1f} | "
                         f"{goodput(of_kind, place) if every else '100 %'}{end} | {took} | {each['repeated']} | "
                         f"{each['steps']}{f' {more:+d}' if more else ''} | {exact} |")  # fmt: skip
            for name in SURVIVORS:
                if grew(values := each["usage"].get(name, {})):
                    cells = [" → ".join(f"{value:g}" for value in values.get(what, []))
                             for what in ("MB", "threads", "descriptors", "ports")]  # fmt: skip
                    usages.append(f"| {kind} | {fault} | {name} | {' | '.join(cells)} |")
            if grew(files := each["usage"].get("files", {})):
                counts = " → ".join(f"{value:g}" for value in files["temporary files"])
                usages.append(f"| {kind} | {fault} | temporary files: {counts} | | | | |")
    text = TABLE.read_text()
    begin, end = "<!-- Written by goodput.py -->", "<!-- End of the tables -->"
    head, _, rest = text.partition(begin)
    body = "\n".join(lines) + "\n\nWhat processes that grew use, early → late:\n\n" + "\n".join(usages)
    TABLE.write_text(f"{head}{begin}\n\n{body}\n\n{end}{rest.partition(end)[2]}")


def end(*_):
    """Ends this program once: another SIGTERM would leave the job running."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(143)


def main(arguments):
    signal.signal(signal.SIGTERM, end)
    for strategy in FLAGS.strategy or STRATEGIES:
        for every in FLAGS.every or (0, 60, 15):
            alternates = FLAGS.alternate and every > 0
            rows = run(strategy, FLAGS.workers, every, FLAGS.minutes, FLAGS.seed, alternates)
            lines = "".join(f"{json.dumps(row)}\n" for row in rows)
            print(lines, end="", flush=True)
            with open(RESULTS, "a") as file:
                file.write(lines)
            write_table()


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        train(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        app.run(main)
