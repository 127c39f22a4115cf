"""Trains under parameter_server with a task on each node of a network. Cuts the link between a worker and the ps, and heals it;
kills a worker, which comes back on another node under another address; then cuts the link of the ps, and prints how the tasks end.

`cut_ps.py train` is the program of the tasks.
"""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

LOST_SECONDS = 4


def train():
    """The program."""
    import tfdist
    from tfdist.strategies.runtime import server

    server.CHIEF_POLL_SECONDS = 0.5
    strategy = tfdist.strategy()
    import keras
    import numpy as np

    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")

    class Tell(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.1)

        def on_epoch_end(self, epoch, logs=None):
            if (
                epoch % 12 == 0 and epoch
            ):  # After more than two seconds every server has seen the chief, which counts from there.
                print("training runs", flush=True)

    model.fit(np.ones((64, 4)), np.ones((64, 1)), epochs=1000000, verbose=0, callbacks=[Tell()])


def main():
    """Cuts the link."""
    import cut_links
    import networks

    jobs, environment = {"chief": 1, "worker": 2, "ps": 1}, {"TFDIST_LOST_TIMEOUT": str(LOST_SECONDS)}
    command, folder = [__file__, "train"], Path("tasks").resolve()  # In the working folder of the test.
    folder.mkdir()
    with (
        networks.Network(5) as network,
        cut_links.Tasks(network, jobs, {}, folder, command, environment) as tasks,
    ):
        if not tasks.wait(lambda: "training runs" in tasks.said("chief:0"), 90) or tasks.exits:
            sys.exit(f"the training has not begun: {tasks.exits} {tasks.said('chief:0')}")
        tasks.cut_between("worker:0", "ps:0")
        cut = tasks.wait(
            lambda: (
                "the link between worker:0 (worker-0:2222) and ps:0 (ps-0:2222) is cut" in tasks.said("chief:0")
                or bool(tasks.exits)
            ),
            60,
        )
        before = tasks.said("chief:0").count("training runs")
        goes_on = tasks.wait(lambda: tasks.said("chief:0").count("training runs") >= before + 2, 30)
        tasks.heal_between("worker:0", "ps:0")
        is_back = tasks.wait(lambda: "worker:0 has joined" in tasks.said("chief:0") or bool(tasks.exits), 60)
        tasks.kill("worker:1")
        tasks.wait(lambda: "worker:1" in tasks.exits and "worker:1 has left" in tasks.said("chief:0"), 30)
        tasks.start_again("worker:1", 4)
        has_joined = tasks.wait(lambda: "worker:1 has joined" in tasks.said("chief:0") or bool(tasks.exits), 60)
        tasks.cut(["ps:0"])
        tasks.wait(lambda: "chief:0" in tasks.exits, 60)
        tasks.wait(lambda: len(tasks.exits) == len(tasks.names), 30)
        found = {"exits": tasks.exits, "said": tasks.said("chief:0"), "joined": has_joined}
        found |= {"link": [cut, goes_on, is_back]}
        print("FOUND", json.dumps(found), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["train"]:
        train()
    else:
        main()
