"""One process of a job at the rendezvous: prints what came of it as a line of JSON. argv: the membership as JSON, the limit."""

import importlib
import json
import sys
import time

from tfdist import ClusterError, Task
from tfdist.errors import Source
from tfdist.launch.rendezvous import meet
from tfdist.membership import Membership, Store
from tfdist.strategies.startup import StartTimeoutError


def membership(described):
    store, known = described.pop("store"), described.pop("known", [])
    known_task = described.pop("known_task", None)
    return Membership(
        source=Source("test", "the test"),
        store=store and Store(**store),
        known=tuple(Task(*task) for task in known),
        known_task=known_task and tuple(known_task),
        **described,
    )


def main():
    me = membership(json.loads(sys.argv[1]))
    if me.store and me.store.kind == "redis":
        importlib.import_module("redis")
    print("started", flush=True)
    sys.stdin.readline()
    start = time.monotonic()
    try:
        cluster = meet(me, float(sys.argv[2]))
        outcome = {"tasks": [f"{task.name} {task.address}" for task in cluster.tasks], "task": cluster.task}
        outcome["groups"] = cluster.worker_groups
    except (ClusterError, StartTimeoutError) as error:
        outcome = {"error": type(error).__name__, "message": str(error)}
    print(json.dumps({**outcome, "seconds": time.monotonic() - start}), flush=True)
    if "hold" in sys.argv:
        sys.stdin.read()


main()
