"""Steps per second of `fit` under parameter_server against a hand-written ClusterCoordinator loop, on equal clusters.

    python benchmarks/parameter_server.py [--seconds 8] [--rounds 3]

Each figure is the median of separate jobs (1 chief, 2 workers, 1 or 2 ps); the programs take turns. The hand-written loop is
TensorFlow's own recipe: tf.distribute.ParameterServerStrategy, a dataset on each worker, one `schedule` per step (or per 20
steps), and one metric: the mean loss, which `fit` also computes (the recipe's own metric is accuracy). Its servers are
TensorFlow's, unchanged. `--by_hand_bare` leaves the metric out and lets its servers keep freed memory as tfdist's do. This is
the least work that a loop can do.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_float("seconds", 8.0, "Seconds of each job that count.")
flags.DEFINE_float("warm", 3.0, "Seconds that each job trains before.")
flags.DEFINE_integer("rounds", 3, "Jobs per figure.")
flags.DEFINE_list("models", ["160 small variables", "dense 256", "dense 1024"], "Which models.")
flags.DEFINE_enum("optimizer", "momentum", ["momentum", "adam"], "SGD with momentum, or Adam.")
flags.DEFINE_enum("compression", None, ["bf16"], "How weights and gradients of `fit` travel; float32 if not given.")
flags.DEFINE_list("servers", ["1", "2"], "Numbers of ps.")
flags.DEFINE_list("steps", ["1", "20"], "Steps per execution.")
flags.DEFINE_bool("by_hand_bare", False, "Leave out the loop's metric, and let its servers keep freed memory.")
flags.DEFINE_string("run", None, "Used by the jobs themselves: by_hand or fit, model, steps per execution, file, as JSON.")

BATCH = 64


def model_of(name):
    import keras

    layers = [keras.Input((784,))]
    if name == "160 small variables":
        layers += [keras.layers.Dense(32, activation="relu") for _ in range(79)]
    else:
        layers += [keras.layers.Dense(int(name.split()[1]), activation="relu") for _ in range(2)]
    return keras.Sequential([*layers, keras.layers.Dense(10)])


def data():
    import numpy as np

    generator = np.random.default_rng(1)
    return generator.normal(size=(6400, 784)).astype("float32"), generator.integers(0, 10, size=6400)


def optimizer_of():
    import keras

    return keras.optimizers.Adam(1e-4) if FLAGS.optimizer == "adam" else keras.optimizers.SGD(0.01, momentum=0.9)


def compiled(name, steps):
    import keras

    model = model_of(name)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer_of(), loss, steps_per_execution=steps)
    return model


def by_fit(name, steps, seconds):
    import keras
    import tensorflow as tf

    import tfdist

    class Clock(keras.callbacks.Callback):
        done = 0
        begin = None

        def on_train_batch_end(self, batch, logs=None):
            now = time.monotonic()
            if self.begin is None:
                if now > start + FLAGS.warm:
                    self.begin = now
            else:
                self.done += steps
                if now > self.begin + seconds:
                    self.rate = self.done / (now - self.begin)
                    self.model.stop_training = True

    with tfdist.strategy().scope():
        model = compiled(name, steps)
    dataset = tf.data.Dataset.from_tensor_slices(data()).batch(BATCH).repeat()
    clock = Clock()
    start = time.monotonic()
    model.fit(dataset, steps_per_epoch=10**6, epochs=1, verbose=0, callbacks=[clock])
    return clock.rate


def without_order(name, steps, seconds):
    from tfdist.strategies.parameter_server import strategy

    init = strategy.ParameterServer.__init__

    def init_without_order(self, cluster):
        init(self, cluster)
        self.has_order = False

    strategy.ParameterServer.__init__ = init_without_order
    return by_fit(name, steps, seconds)


def serve_by_hand():
    """Serves with TensorFlow's servers, unchanged; with `--by_hand_bare` they keep freed memory."""
    import tensorflow as tf

    import tfdist

    if not FLAGS.by_hand_bare:
        os.environ["GLIBC_TUNABLES"] = ""  # For `keep_freed_memory`: the user has chosen. glibc has read it long ago.
        make = tf.distribute.Server

        def unchanged(*arguments, config, **options):
            config.ClearField("experimental")
            return make(*arguments, config=config, **options)

        tf.distribute.Server = unchanged
    tfdist.strategy()


def by_hand(name, steps, seconds):
    import keras
    import tensorflow as tf

    if json.loads(os.environ["TF_CONFIG"])["task"]["type"] != "chief":
        serve_by_hand()
    from tfdist.dialects import from_environment
    from tfdist.strategies.runtime import shutdown
    from tfdist.strategies.runtime.peers import wait_for_tasks

    cluster = from_environment()
    servers = [*cluster.job("ps"), *cluster.job("worker")]
    wait_for_tasks(servers, 60, print)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = model_of(name)
        optimizer = optimizer_of()
        optimizer.build(model.trainable_variables)
        mean_loss = keras.metrics.Mean()
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def dataset():
        return tf.data.Dataset.from_tensor_slices(data()).batch(BATCH).repeat().prefetch(tf.data.AUTOTUNE)

    def step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        if not FLAGS.by_hand_bare:
            mean_loss.update_state(loss)
        return loss

    @tf.function
    def train(iterator):
        for _ in tf.range(steps - 1):
            strategy.run(step, args=(next(iterator),))
        return strategy.run(step, args=(next(iterator),))

    iterator = iter(coordinator.create_per_worker_dataset(dataset))
    count = len(cluster.job("worker")) * max(1, 20 // steps)
    begin, done = None, 0
    start = time.monotonic()
    while True:
        for _ in range(count):
            coordinator.schedule(train, args=(iterator,))
        coordinator.join()
        now = time.monotonic()
        if begin is None:
            begin = now if now > start + FLAGS.warm else None
        else:
            done += count * steps
            if now > begin + seconds:
                break
    shutdown.notify(servers, shutdown.FINISHED)
    return done / (now - begin)


def job(way, name, steps, servers):
    with tempfile.TemporaryDirectory() as folder:
        result = os.path.join(folder, "rate.json")
        what = json.dumps([way, name, steps, result])
        with open(os.path.join(folder, "log"), "wb") as log:
            machines = {"master": 1, "worker": 2, "parameter_server": servers}
            command = [sys.executable, "-m", "tfdist.launch", "--tier=CUSTOM"]
            command += [f"--{job}_machine_type=standard" for job in machines]
            command += [f"--worker_count={machines['worker']}", f"--parameter_server_count={servers}"]
            if FLAGS.compression and way == "fit":
                command += [f"--compression={FLAGS.compression}"]
            command += [__file__, "--", "--run", what, f"--seconds={FLAGS.seconds}", f"--optimizer={FLAGS.optimizer}"]
            command += [f"--by_hand_bare={FLAGS.by_hand_bare}"]
            subprocess.run(command, check=True, timeout=300, cwd=folder, stdout=log, stderr=log)
        with open(result) as file:
            return json.load(file)


def main(_):
    if FLAGS.run:
        way, name, steps, result = json.loads(FLAGS.run)
        rate = {"fit": by_fit, "fit without order": without_order, "by hand": by_hand}[way](name, steps, FLAGS.seconds)
        with open(result, "w") as file:
            json.dump(rate, file)
        return
    print("| model | ps | steps per execution | by hand | fit | fit / by hand |")
    print("|---|---|---|---|---|---|", flush=True)
    for name in FLAGS.models:
        for servers in map(int, FLAGS.servers):
            for steps in map(int, FLAGS.steps):
                rates = {"by hand": [], "fit": []}
                for _ in range(FLAGS.rounds):
                    for way, found in rates.items():
                        found.append(job(way, name, steps, servers))
                hand, fit = (statistics.median(rates[way]) for way in rates)
                print(f"| {name} | {servers} | {steps} | {hand:.0f} | {fit:.0f} | {fit / hand:.2f} |", flush=True)


if __name__ == "__main__":
    app.run(main)
