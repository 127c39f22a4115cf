"""The programs that hogwild.py compares: each trains the same Keras model while it has its turn.

    python benchmarks/peers.py WAY OPTIONS    # one task of one way; hogwild.py starts them

OPTIONS is JSON: `folder`, `name`, `units`, `batch` (of a worker), `steps` (per execution), `workers`, `index`,
`reads_on_workers`. The task that counts appends to `folder/name.INDEX`, after each execution, the time and how many
worker-steps it was; while `folder/turn` does not hold its name, it waits there. TensorFlow is imported late, because Horovod's
is another one, with Keras 2.
"""

import json
import os
import sys
import time
from pathlib import Path


def perceptron(keras, units):
    layers = [keras.layers.Dense(units, activation="relu") for _ in range(2)]
    return keras.Sequential([keras.Input((784,)), *layers, keras.layers.Dense(10)])


def compiled(keras, options, optimizer=None):
    model = perceptron(keras, options["units"])
    optimizer = optimizer or keras.optimizers.SGD(0.01, momentum=0.9)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, steps_per_execution=options["steps"])
    return model


def batches(tf, examples):
    """Returns an endless dataset of one batch: no file, no network, hardly any processor time."""
    import numpy as np

    generator = np.random.default_rng(1)
    x = generator.normal(size=(examples, 784)).astype("float32")
    return tf.data.Dataset.from_tensors((x, generator.integers(0, 10, size=examples))).repeat()


def train(keras, model, dataset, options, index=0, worker_steps=1):
    """Calls `fit` until the process is killed. One step of this task is `worker_steps` of the cluster."""
    folder, name = Path(options["folder"]), options["name"]
    done = os.open(folder / f"{name}.{index}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    class Turns(keras.callbacks.Callback):
        last = -1

        def on_train_batch_end(self, batch, logs=None):
            os.write(done, f"{time.monotonic()} {(batch - self.last) * worker_steps}\n".encode())
            self.last = batch
            while (folder / "turn").read_text() != name:
                time.sleep(0.05)  # Looking more often would take time from those whose turn it is.

    model.fit(dataset, steps_per_epoch=10**6, verbose=0, callbacks=[Turns()])


def alone(options):
    """The limit: a training without communication."""
    import keras
    import tensorflow as tf

    train(keras, compiled(keras, options), batches(tf, options["batch"]), options, options["index"])


def multi_worker_mirrored(options):
    import keras
    import tensorflow as tf

    import tfdist

    strategy = tfdist.strategy()
    with strategy.scope():
        model = compiled(keras, options)
    # Every task reads the same global batches and takes its part. The first says when: the others wait for it in a collective.
    dataset = batches(tf, options["batch"] * options["workers"])
    if strategy.tfdist_hooks.shows_progress:
        train(keras, model, dataset, options, worker_steps=options["workers"])
    model.fit(dataset, steps_per_epoch=10**6, verbose=0)


def served(options):
    """parameter_server and hogwild, as TF_CONFIG specifies."""
    import tfdist

    strategy = tfdist.strategy()  # Serves, but on the chief.
    import keras
    import tensorflow as tf

    with strategy.scope():
        model = compiled(keras, options)
    if options["reads_on_workers"]:
        dataset = strategy.distribute_datasets_from_function(lambda _: batches(tf, options["batch"]))
    else:  # The chief sends every batch, 0.2 MB.
        dataset = batches(tf, options["batch"])
    train(keras, model, dataset, options)


def join_horovod(port: Path, size: int) -> int:
    """Does for a task what horovodrun does, which would want ssh to the other nodes. Rank 0 writes `port`. Returns the rank."""
    rank = int(os.environ["HOROVOD_RANK"])
    if rank == 0:
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.http.http_server import RendezvousServer

        server = RendezvousServer()
        number = server.start()
        hosts = ",".join(f"node{node}:1" for node in range(size))
        server.init(get_host_assignments(parse_hosts(hosts), size))
        port.with_suffix(".number").write_text(str(number))
        port.with_suffix(".number").rename(port)
    while not port.exists():
        time.sleep(0.05)
    os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = port.read_text()
    return rank


def horovod_variables(index: int, size: int, address: str) -> dict[str, str]:
    """Environment variables of a Horovod task with Gloo; `address` is that of the first task."""
    variables = {f"HOROVOD_{name}": str(index) for name in ("RANK", "CROSS_RANK")}
    variables |= {f"HOROVOD_{name}": str(size) for name in ("SIZE", "CROSS_SIZE")}
    variables |= {"HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "1", "HOROVOD_HOSTNAME": f"node{index}"}
    variables |= {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo", "HOROVOD_GLOO_IFACE": "eth0"}
    variables["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = address
    variables["HOROVOD_GLOO_TIMEOUT_SECONDS"] = "3600"  # It counts while the job stands still.
    return variables


def horovod(options):
    """Horovod's own recipe for Keras. It communicates even when idle, so hogwild.py stops it between its turns."""
    rank = join_horovod(Path(options["folder"]) / f"{options['name']}.port", options["workers"])
    import horovod.tensorflow.keras as hvd
    import tensorflow as tf

    hvd.init()
    keras = tf.keras
    model = compiled(keras, options, hvd.DistributedOptimizer(keras.optimizers.SGD(0.01, momentum=0.9)))
    dataset = batches(tf, options["batch"])
    if rank == 0:
        train(keras, model, dataset, options, worker_steps=options["workers"])
    model.fit(dataset, steps_per_epoch=10**6, verbose=0)


if __name__ == "__main__":
    globals()[sys.argv[1]](json.loads(sys.argv[2]))
