"""Time to read, check and write 10,000 tasks in every dialect that can express them, and of `tfdist.translate` as a command.

    python benchmarks/languages.py --markdown benchmarks/languages.md

Medians of runs, in seconds of a processor, which other programs on the machine hardly change. The command is started anew each
time, beside a Python that does nothing. The limits are those of the project: 2 s for a cluster, 0.3 s for the command.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from absl import app, flags

from tfdist.cluster import Cluster, Task
from tfdist.dialects import description, environment, read
from tfdist.dialects.registry import writers
from tfdist.errors import ClusterError
from tfdist.pictures import PICTURES

FLAGS = flags.FLAGS
flags.DEFINE_integer("tasks", 10_000, "Tasks of the cluster.", lower_bound=10)
flags.DEFINE_integer("runs", 3, "Runs of each.", lower_bound=1)
flags.DEFINE_string("markdown", None, "File for the table; else it is printed.")

LIMIT, COMMAND_LIMIT = 2.0, 0.3


def environments(count: int) -> dict[str, dict[str, str]]:
    """Returns the environment of a process of a job of `count` tasks, for each dialect."""
    hosts = [f"node-{n}" for n in range(count)]
    addresses = ",".join(f"{host}:2222" for host in hosts)
    rank = str(count - 1)
    return {
        "tf_config": {
            "TF_CONFIG": json.dumps({"cluster": {"worker": addresses.split(",")}, "task": {"type": "worker", "index": 1}})
        },
        "vertex": {"CLUSTER_SPEC": json.dumps({"cluster": {"workerpool0": ["c:1"], "workerpool1": addresses.split(",")[1:]}})},
        "sagemaker": {"SM_HOSTS": json.dumps(hosts), "SM_CURRENT_HOST": hosts[-1]},
        "slurm": {
            "SLURM_PROCID": rank,
            "SLURM_STEP_NUM_TASKS": str(count),
            "SLURM_STEP_NODELIST": f"node-[0-{count - 1}]",
            "SLURM_STEP_TASKS_PER_NODE": f"1(x{count})",
        },
        "horovod": {"HOROVOD_RANK": rank, "HOROVOD_SIZE": str(count), "HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "1"},
        "pytorch": {"RANK": rank, "WORLD_SIZE": str(count), "MASTER_ADDR": "node-0", "MASTER_PORT": "29500"},
        "paddle": {
            "PADDLE_TRAINER_ENDPOINTS": addresses,
            "PADDLE_TRAINER_ID": rank,
            "PADDLE_CURRENT_ENDPOINT": f"{hosts[-1]}:2222",
        },
    }


def commands(count: int) -> dict[str, str]:
    """Returns command lines that start `count` tasks."""
    hosts = [f"node-{n}" for n in range(count)]
    return {
        "horovod": f"horovodrun -np {count} -H {','.join(f'{host}:1' for host in hosts)} python train.py",
        "pytorch": f"torchrun --nnodes {count // 4} --node-rank 1 --nproc-per-node 4 --master-addr node-0 train.py",
        "caffe2": f"python resnet50_trainer.py --num_shards {count} --shard_id 1 --run_id r --redis_host h",
        "paddle": f"paddle train --pservers={','.join(hosts[: count // 2])} --num_gradient_servers={count // 2} --trainer_id=1",
    }


def cluster(dialect: str, count: int) -> Cluster:
    """Returns a cluster of `count` tasks that the dialect can express."""
    if dialect == "singa":
        half = count // 2
        return read(f"cluster {{ nworker_groups: {half} nserver_groups: {half} sync_freq: 8 start_port: 7000 }}")
    if dialect == "horovod":
        return Cluster(tuple(Task("worker", n, f"node-{n}") for n in range(count)))
    return Cluster(
        (
            Task("chief", 0),
            *(Task("worker", n) for n in range(count * 9 // 10)),
            *(Task("ps", n) for n in range(count // 10 - 1)),
        )
    )


def written(dialect: str, described: Cluster) -> str:
    """Returns the text in the dialect. For TF_CONFIG it is that of one task, because each names all tasks."""
    if dialect == "tf_config":
        return json.dumps(described.tf_config("worker", 0))
    return writers()[dialect].write(described)


def median(function: Callable[[], object], children: bool = False) -> float:
    """Returns the processor time of the function, or of the processes that it starts, in seconds."""

    def now() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN if children else resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    times = []
    for _ in range(FLAGS.runs):
        start = now()
        function()
        times.append(now() - start)
    return statistics.median(times)


def work(count: int) -> "dict[str, Callable[[], object]]":
    """Returns the operations on `count` tasks by name, without those that a dialect refuses."""
    result: dict[str, Callable[[], object]] = {}
    for dialect in writers():
        described = cluster(dialect, count)
        try:
            text = written(dialect, described)
        except ClusterError:
            continue
        result[f"{dialect}: written"] = partial(written, dialect, described)
        result[f"{dialect}: read"] = partial(read, text.encode())
    for dialect, line in commands(count).items():
        result[f"{dialect}: command line read"] = partial(description, line)
    for dialect, environ in environments(count).items():
        result[f"{dialect}: environment read"] = partial(environment.find, environ)
    for name, draw in PICTURES.items():
        result[f"{name}: drawn"] = partial(draw, cluster("tf_config", count))
    return result


def rows(count: int) -> "list[tuple[str, str, str]]":
    """Returns each operation, its seconds, and their share of the limit."""
    seconds = {what: median(function) for what, function in work(count).items()}
    return [(what, f"{taken:.2f}", f"{taken / LIMIT:.0%}") for what, taken in seconds.items()]


def command(*arguments: str) -> float:
    """Returns the seconds of a command, which must succeed."""
    return median(lambda: subprocess.run([sys.executable, *arguments], check=True, capture_output=True), children=True)


def command_rows() -> "list[tuple[str, str, str]]":
    bare = command("-c", "pass")
    result = [("python -c pass", f"{bare:.2f}", f"{bare / COMMAND_LIMIT:.0%}")]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "job.conf")
        path.write_text("cluster { nworker_groups: 3 nserver_groups: 3 sync_freq: 8 }")
        for source, to in (
            (str(path), "tf_config"),
            (str(path), "svg"),
            ("STANDARD_1", "cluster_spec"),
            ("STANDARD_1", "tfjob"),
        ):
            seconds = command("-m", "tfdist.translate", source, "--to", to)
            result.append(
                (f"translate {os.path.basename(source)} --to {to}", f"{seconds:.2f}", f"{seconds / COMMAND_LIMIT:.0%}")
            )
    return result


def main(_: "list[str]") -> None:
    lines = ["# Reading and writing descriptions", ""]
    lines += [f"| {FLAGS.tasks} tasks | seconds | of {LIMIT:g} s |", "|---|---|---|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows(FLAGS.tasks)]
    lines += ["", f"| command | seconds | of {COMMAND_LIMIT:g} s |", "|---|---|---|"]
    lines += ["| " + " | ".join(row) + " |" for row in command_rows()]
    text = "\n".join(lines) + "\n"
    if FLAGS.markdown:
        Path(FLAGS.markdown).write_text(text)
    print(text, end="")


if __name__ == "__main__":
    app.run(main)
