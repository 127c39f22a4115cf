"""Trains under hogwild with a task on each node of a network of 50 Mbit/s, and prints what the chief says.

`slow_network.py train` is the program of the tasks.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))


def train():
    """The program."""
    import tfdist

    strategy = tfdist.strategy()
    import keras
    import numpy as np

    with strategy.scope():
        model = keras.Sequential([keras.Input((256,)), keras.layers.Dense(64)])
        model.compile("sgd", "mse")
    x = np.random.default_rng(1).normal(size=(640, 256)).astype("float32")
    losses = model.fit(x, x[:, :64], batch_size=16, epochs=2, verbose=0).history["loss"]
    print(f"TRAINED as {strategy.synchronization.compression}, learns: {losses[1] < losses[0]}", flush=True)


def main():
    """Makes the network."""
    import cut_links
    import networks

    folder = Path("tasks").resolve()  # In the working folder of the test.
    folder.mkdir()
    with networks.Network(4) as network:
        network.shape("50mbit")
        options = {"strategy": "hogwild"}
        with cut_links.Tasks(network, {"chief": 1, "worker": 2, "ps": 1}, options, folder, [__file__, "train"]) as tasks:
            tasks.wait(lambda: "chief:0" in tasks.exits, 90)
            print(tasks.said("chief:0"))


if __name__ == "__main__":
    train() if sys.argv[1:] == ["train"] else main()
