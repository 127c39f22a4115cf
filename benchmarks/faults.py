"""Makes tasks fail under every strategy, and writes what happens into a table.

    python benchmarks/faults.py --at_once 3                            # everything
    python benchmarks/faults.py --at_once 3 --missing                  # what the table does not have yet
    python benchmarks/faults.py --row "worker killed" --column hogwild

Each cell is a job of its own on this machine: a small model, a step of at least 20 ms, a backup every 50 batches, one restart
of the whole job allowed. The fault comes at step 200 of the training. A cell says with which exit code the job ended, the
longest pause between two steps, how many steps were made twice, and the updates that the model had at the end in per cent of
those of a training without faults (100 % is exact).

The rows with "cut", "never comes up", "new address" and "clock" start the tasks by hand with TF_CONFIG, each in a network
namespace of its own. They need Linux and root; "clock" also a C compiler, for a library that gives a task another clock. A
cell has the exit code of the first task that trains, and if that is not 0 also the tasks that its last lines name, and how long
after the fault the last task has ended. In the row "new address" all tasks of `multi_worker_mirrored` have a backup every 50
batches; one that fails because another is lost is started again on its node, once, as the supervisor of a machine does it.

Results go to `faults.jsonl`, and from there into `faults.md`.
"""

import contextlib
import fcntl
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import cut_links
import networks
from absl import app, flags
from faults_program import BATCHES
from job_processes import Stopped, working_in

FLAGS = flags.FLAGS
flags.DEFINE_multi_string("row", [], "Faults; default: all.")
flags.DEFINE_multi_string("column", [], "Strategies; default: all.")
flags.DEFINE_integer("at_once", 1, "How many cells to run at the same time. The jobs mostly wait.", lower_bound=1)
flags.DEFINE_boolean("missing", False, "Only cells without a result.")
flags.DEFINE_float("minutes", None, "Begin no further cell after so many minutes; default: no limit.")

HERE = Path(__file__).resolve().parent
RESULTS, TABLE = HERE / "faults.jsonl", HERE / "faults.md"
PROGRAM = str(HERE / "faults_program.py")
EPOCHS = 5
LIMIT_SECONDS = 240.0
APART_SECONDS = 4.0
"""Between the starts of two cells: all imports at once would stop the trainings of the others for seconds."""

AT = "step=200"

HOGWILD = ['{"chief": 1, "worker": 3, "ps": 1}', "--strategy", "hogwild", "--sync_period", "4"]
HOGWILD_BY_HAND = {"strategy": "hogwild", "sync_period": 4}
BY_HAND = {
    "multi_worker_mirrored": ({"worker": 3}, {}),
    "parameter_server": ({"chief": 1, "worker": 3, "ps": 1}, {}),
    "parameter_server, groups of 2": ({"chief": 1, "worker": 4, "ps": 1}, {"worker_groups": [[0, 1], [2, 3]]}),
    "hogwild": ({"chief": 1, "worker": 3, "ps": 1}, HOGWILD_BY_HAND),
    "hogwild, waiting (delay 0)": (
        {"chief": 1, "worker": 3, "ps": 1},
        {**HOGWILD_BY_HAND, "synchronization": {"outer": "nesterov", "delay": 0}},
    ),
}
"""The jobs of the rows that `BY_HAND_WORDS` begins: number of tasks, and what TF_CONFIG has under the key `tfdist`."""

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
    "evaluator stopped 60 s": f"evaluator:0,{AT},how=stop:60",
    "launcher killed": "kill launcher",
    "parent of the tasks killed": "kill parent",
    "launcher and parent of the tasks killed": "kill launcher parent",
    "launcher stopped 60 s": "stop launcher",
    "parent of the tasks stopped 60 s": "stop parent",
    "worker stopped 60 s": f"worker:1,{AT},how=stop:60",
    "ps stopped 60 s": f"ps:0,{AT},how=stop:60",
    "chief stopped 60 s": f"CHIEF,{AT},how=stop:60",
    "two workers stopped 60 s": f"worker:1+worker:2,{AT},how=stop:60",
    "disk of the backup full": "disk",
    "backup truncated, then the first task killed": "truncate CHIEF,step=230",
    "worker that never comes up": "absent worker:1",
    "worker killed, back under a new address": "elsewhere worker:1",
    "clock of a worker an hour ahead, of another an hour behind": "clocks worker:1=3600 worker:2=-3600",
    "worker cut 30 s": "cut worker:1 30",
    "worker cut for good": "cut worker:1",
    "two workers cut 30 s": "cut worker:1 worker:2 30",
    "two workers cut for good": "cut worker:1 worker:2",
    "ps cut 30 s": "cut ps:0 30",
    "ps cut for good": "cut ps:0",
    "chief cut 30 s": "cut CHIEF 30",
    "chief cut for good": "cut CHIEF",
    "evaluator cut 30 s": "cut evaluator:0 30",
    "evaluator cut for good": "cut evaluator:0",
}

BY_HAND_WORDS = ("cut", "absent", "elsewhere", "clocks")
"""How the faults begin whose tasks are started by hand."""


def can_happen(row: str, column: str) -> bool:
    """Returns whether a strategy has the task that fails."""
    return "mirrored" not in column or not row.startswith("ps ")


def cell(row: str, column: str) -> dict[str, object]:
    """Runs one cell; returns what was measured."""
    cluster, *options = COLUMNS[column]
    fault = ROWS[row] or ""
    fault = fault.replace("CHIEF", "worker:0" if "mirrored" in column else "chief:0")
    on_disk, fault = (fault.split(" ")[0], fault.partition(" ")[2]) if "backup" in row else ("", fault)
    if "evaluator" in row:
        options.append("--evaluator")
    by_signal = fault.startswith(("kill ", "stop "))
    # The others train while a task is stopped.
    goes_on = fault.startswith(("stop", "evaluator")) or ("worker" in row and "mirrored" not in column)
    total = BATCHES * EPOCHS * ((8 if goes_on and "mirrored" not in column else 4 if goes_on else 2) if "60 s" in row else 1)
    environment = os.environ | {"PYTHONPATH": str(HERE.parent), "FAULTS_EPOCHS": str(total // BATCHES)}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        command = [sys.executable, "-m", "tfdist", "run", "--cluster", cluster, *options, "--max_restarts", "1"]
        command += ["--backup_freq", "50", "--log_dir", str(folder / "logs")]
        command += ["--fail_at", fault] if fault and not by_signal else []
        command += ["--backup_dir", str(folder / "backup")] if on_disk else []
        with open(folder / "output", "wb") as output, _small_disk(folder / "backup", on_disk):
            job = subprocess.Popen(
                [*command, PROGRAM, str(folder)],
                cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
            try:
                if on_disk:
                    _damage(on_disk, job, folder)
                with Stopped(lambda: working_in(folder) if "how=stop" in fault else []) as stop:
                    found = _watched(job, folder, fault)
            finally:
                for pid in working_in(folder):
                    os.kill(pid, signal.SIGKILL)
        text = (folder / "output").read_text(errors="replace")
        found["said"] = [line for line in text.splitlines() if line.startswith("tfdist: ") and "failed" in line][-1:]
        found["said"] += [line for line in text.splitlines() if on_disk and "backup" in line][1:3]
        found |= _found(folder, row, column, total) | ({"stopped": stop.seconds} if stop.seconds else {})
        if found["exit"] not in (0, -signal.SIGKILL):
            print(text[-3000:], file=sys.stderr)
        return found


@contextlib.contextmanager
def _small_disk(folder: Path, on_disk: str) -> Iterator[None]:
    """Makes `folder` a disk of its own, of 1 MB, if that is the fault."""
    if on_disk != "disk":
        yield
        return
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def _damage(on_disk: str, job: "subprocess.Popen[bytes]", folder: Path) -> None:
    """Fills the disk of the backup, or truncates the newest file of it, after step 200."""
    while not _steps(folder, 205) and job.poll() is None:
        time.sleep(0.05)
    backup = folder / "backup"
    if on_disk == "disk":
        with contextlib.suppress(OSError), open(backup / "other", "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    else:
        newest = max(backup.rglob("*.h5"), key=lambda path: path.stat().st_mtime)
        os.truncate(newest, newest.stat().st_size // 2)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def by_hand_cell(row: str, column: str) -> dict[str, object]:
    """Runs a cell whose tasks are started by hand, on a node each."""
    jobs, options = BY_HAND[column]
    first = next(iter(jobs)) + ":0"
    what, *words = ROWS[row].replace("CHIEF", first).split()
    seconds = float(words.pop()) if words[-1].isdigit() else None
    absent = words if what == "absent" else []
    clocks = {name: int(ahead) for name, ahead in (word.split("=") for word in words)} if what == "clocks" else {}
    if "evaluator" in row:
        jobs = {**jobs, "evaluator": 1}
    goes_on = ("worker" in row and seconds is not None) or what == "elsewhere" or "evaluator" in row
    total = BATCHES * EPOCHS * (4 if goes_on and "mirrored" not in column else 2)
    with _folder() as folder, networks.Network(sum(jobs.values()) + (what == "elsewhere")) as network:
        environment = {"FAULTS_EPOCHS": str(total // BATCHES), "TFDIST_EVALUATOR_DIR": str(folder / "evaluation")}
        restarts = what == "elsewhere" and "mirrored" in column  # All tasks train: the others cannot go on without one.
        if restarts:
            environment |= {"TFDIST_BACKUP_DIR": str(folder / "backup"), "TFDIST_BACKUP_FREQ": "50"}
        command = [PROGRAM, str(folder)]
        with cut_links.Tasks(network, jobs, options, folder, command, environment, absent, clocks) as tasks:
            everything = set(tasks.names) - set(absent)
            if not absent and (not tasks.wait(lambda: _steps(folder, 200) or bool(tasks.exits), LIMIT_SECONDS) or tasks.exits):
                raise SystemExit(f"the training has not begun: {tasks.exits}\n{tasks.said(first)[-3000:]}")
            if what == "elsewhere":
                tasks.kill(words[0])
                tasks.wait(lambda: words[0] in tasks.exits, 10)
                tasks.start_again(words[0], len(tasks.names))
            elif what == "cut":
                tasks.cut(words)
            begin, ends = time.monotonic(), {}
            lost: dict[str, list[str]] = {}

            def over() -> bool:
                for name in [name for name, code in tasks.exits.items() if restarts and code and name not in lost]:
                    lost[name] = tasks.named(name)
                    tasks.start_again(name)
                ends.update({name: time.monotonic() - begin for name in tasks.exits if name not in ends})
                return tasks.exits.keys() >= everything

            if seconds is None or not tasks.wait(over, seconds):
                if seconds is not None:
                    tasks.heal(words)
                tasks.wait(over, LIMIT_SECONDS)
            code = tasks.exits.get(first, f"hangs after {LIMIT_SECONDS:.0f} s")
            said = {name: tasks.said(name)[-3000:] for name in tasks.names}
            for name in everything - tasks.exits.keys() | {first} if code else everything - tasks.exits.keys():
                print(f"--- {name}\n{said[name]}", file=sys.stderr)
            found = _found(folder, row, column, total)
            last = max(ends.values(), default=None) if tasks.exits.keys() >= everything else None
            if what == "elsewhere" and not restarts:
                found["joined"] = f"{words[0]} has joined the training" in tasks.said(first)
            if restarts:
                found["lost"] = lost  # Who has ended with a failure, and whom it named.
            return found | {"exit": code, "named": tasks.named(first), "seconds": last, "said": [],
                            "exits": tasks.exits, "ends": ends}  # fmt: skip


def _steps(folder: Path, least: int) -> bool:
    return (folder / "steps").exists() and (folder / "steps").read_text().count("\n") > least


def _found(folder: Path, row: str, column: str, total: int) -> dict[str, object]:
    """Returns what the program of a cell has noted."""
    steps = [float(line) for line in (folder / "steps").read_text().split()] if (folder / "steps").exists() else []
    updates = int((folder / "updates").read_text()) if (folder / "updates").exists() else None
    # Only what begins with the fault: not the time to compile.
    pauses = [(after - before, before - steps[min(200, len(steps) - 1)]) for before, after in itertools.pairwise(steps[190:])]
    longest, begins = max(pauses, default=(None, None))  # `begins` is in seconds after step 200.
    return {"row": row, "column": column, "pause": longest, "load": os.getloadavg()[0], "begins": begins,
            "repeated": len(steps) - total, "updates": updates and updates / total}  # fmt: skip


def _watched(job: "subprocess.Popen[bytes]", folder: Path, fault: str) -> dict[str, object]:
    """Waits for the end of a job; kills or stops its launcher or the parent of its tasks if that is the fault."""
    begin = time.monotonic()
    if fault.startswith(("kill ", "stop ")):
        while not _steps(folder, 200):
            time.sleep(0.1)
        victims = [job.pid] if "launcher" in fault else []
        victims += [pid for pid in working_in(folder) if b"fork_server" in Path(f"/proc/{pid}/cmdline").read_bytes() and
                    int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) == job.pid
                    ] if "parent" in fault else []  # fmt: skip
        for pid in victims:
            os.kill(pid, signal.SIGKILL if fault.startswith("kill") else signal.SIGSTOP)
        begin = time.monotonic()
        if fault.startswith("stop"):
            time.sleep(60)
            for pid in victims:
                os.kill(pid, signal.SIGCONT)
    try:
        code: int | str = job.wait(LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        code = f"hangs after {LIMIT_SECONDS:.0f} s"
    ended = time.monotonic()
    while working_in(folder) and time.monotonic() < ended + 60:
        time.sleep(0.1)
    return {"exit": code, "seconds": time.monotonic() - begin, "left": len(working_in(folder))}


def words(found: dict[str, object]) -> str:
    """Returns the text of a cell."""
    if found.get("left"):
        return f"{found['exit']}, **{found['left']} processes stay**"
    if found["exit"] in ("left", -signal.SIGKILL):  # The launcher's.
        return f"all ended after {found['seconds']:.1f} s"
    if found["exit"] != 0 and "seconds" in found and "named" in found:
        named = f", names {', '.join(found['named'])}" if found["named"] else ""
        end = "**not all end**" if found["seconds"] is None else f"all ended after {found['seconds']:.0f} s"
        return f"{found['exit']}{named}; {end}"
    if found["exit"] != 0:
        return f"**{found['exit']}** after {found['seconds']:.0f} s"
    joined = {None: "", True: ", it trains again", False: ", **it does not train again**"}[found.get("joined")]
    share = found["updates"]
    updates = "" if share is None else f", {'100 %' if share == 1 else f'{share:.2%}'} of the updates"
    stop = f" (stopped for {found['stopped']:.1f} s)" if "stopped" in found else ""
    return f"0, pause {found['pause']:.1f} s{stop}, {found['repeated']} steps twice{updates}{joined}"


def _text(found: dict[str, object] | None, row: str, column: str) -> str:
    if not can_happen(row, column):
        return "-"
    return "not run" if found is None else words(found)


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


def run_cell(row: str, column: str) -> None:
    """Runs a cell, and adds what was measured to the table."""
    by_hand = str(ROWS[row]).startswith(BY_HAND_WORDS)
    if (by_hand or row == "disk of the backup full") and (sentence := networks.missing()):
        print(f"{row} | {column} | skipped: {sentence}", flush=True)
        return
    found = by_hand_cell(row, column) if by_hand else cell(row, column)
    print(f"{row} | {column} | {words(found)} | {found['said']}", flush=True)
    with open(RESULTS, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # Another cell may end at the same time.
        file.write(json.dumps(found) + "\n")
        file.flush()
        write_table()


def run_cells(cells: list[tuple[str, str]], at_once: int, minutes: float | None) -> None:
    """Runs each cell in a process of its own, some at the same time."""
    latest = time.monotonic() + (minutes or float("inf")) * 60
    running: list[subprocess.Popen[bytes]] = []
    try:
        while running or (cells and time.monotonic() < latest):
            if cells and len(running) < at_once and time.monotonic() < latest:
                row, column = cells.pop(0)
                running.append(subprocess.Popen([sys.executable, __file__, "--row", row, "--column", column]))
                time.sleep(APART_SECONDS)
            time.sleep(0.2)
            running = [each for each in running if each.poll() is None]
    finally:
        for each in running:
            each.terminate()
        for each in running:
            each.wait()
    if cells:
        print(f"{len(cells)} cells are left: {'; '.join(map(' | '.join, cells))}", flush=True)


def main(arguments):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # So that the job of the cell ends too.
    known = {(each["row"], each["column"]) for each in map(json.loads, RESULTS.read_text().splitlines())}
    cells = [
        (row, column)
        for row in FLAGS.row or ROWS
        for column in FLAGS.column or COLUMNS
        if can_happen(row, column) and not (FLAGS.missing and (row, column) in known)
    ]
    if len(cells) == 1:
        run_cell(*cells[0])
    else:
        run_cells(cells, FLAGS.at_once, FLAGS.minutes)


if __name__ == "__main__":
    app.run(main)
