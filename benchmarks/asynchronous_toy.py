"""DeepMind's toy of asynchronous local SGD, with real processes: four workers of very different speed.

    python benchmarks/asynchronous_toy.py --markdown benchmarks/asynchronous_toy.md

The original (https://github.com/google-deepmind/asyncdiloco, of arXiv 2401.09135) simulates workers that need 0.58, 0.75, 1.51
and 3.33 seconds for a step of AdamW on a mixture of Gaussians, and synchronize every 20 steps. Here they are processes. Their
data make them wait that long, on a clock that runs `--faster` times as fast. Synchronous training is one process with the
batches of all four. Each of its steps lasts as long as the slowest worker's; its time is computed.
"""

import json
import os
import subprocess
import sys
import time

import figures
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_float("faster", 20.0, "Seconds of the workers per real second.", lower_bound=1.0)
flags.DEFINE_list("only", [], "Only the trainings whose size and name contain one of these.")
flags.DEFINE_string("markdown", None, "File whose part after `## Figures` is replaced by the table.")
flags.DEFINE_string("train", None, "Used by the trainings themselves.")

SECONDS = (0.58, 0.75, 1.51, 3.33)
PERIOD, BATCH, FEATURES, CLASSES, RATE, DECAY = 20, 32, 512, 4, 2e-4, 1e-3
SIZES = {"small": (4096, 1, 128, 50), "large": (128_000, 8, 1024, 100)}
"""Examples, clusters per class, hidden units, and rounds of `PERIOD` steps of each worker."""

TRAININGS = {
    "synchronous": None,
    "nesterov, waits": {"outer": "nesterov", "delay": 0},
    "average": {},
    "delayed_nesterov": {"outer": "delayed_nesterov"},
    "delayed_nesterov, adaptive": {"outer": "delayed_nesterov", "adaptive": True},
}
POINTS, EVALUATED, TIMEOUT = 4, 10_000, 900


def examples(size, numbers):
    """Returns the examples of these numbers. The same number always gives the same example."""
    import numpy as np
    import tensorflow as tf

    clusters = SIZES[size][1] * CLASSES
    centers = np.random.default_rng(42).normal(size=(clusters, FEATURES)).astype("float32")
    centers /= np.linalg.norm(centers, axis=1, keepdims=True)
    cluster = tf.cast(numbers // len(SECONDS) % clusters, tf.int32)  # Every worker has examples of all.
    seeds = tf.stack([tf.fill(tf.shape(numbers), tf.constant(7, tf.int64)), numbers], axis=1)
    noise = tf.map_fn(lambda seed: tf.random.stateless_normal([FEATURES], seed), seeds, fn_output_signature=tf.float32)
    return tf.gather(tf.constant(centers), cluster) + 0.5 * noise, cluster // SIZES[size][1]


def batches(size, shard, shards, seconds=0.0, of=BATCH):
    """Returns an endless dataset of batches of this shard, one every `seconds` on the faster clock."""
    import tensorflow as tf
    from tensorflow.python.data.experimental.ops import testing

    mine = tf.data.Dataset.range(shard, SIZES[size][0], shards)
    dataset = mine.shuffle(SIZES[size][0] // shards, seed=shard).repeat().batch(of).map(lambda n: examples(size, n))
    return dataset.apply(testing.sleep(round(seconds * 1e6 / FLAGS.faster))) if seconds else dataset


def network(size):
    import keras

    model = keras.Sequential(
        [keras.Input((FEATURES,)), keras.layers.Dense(SIZES[size][2], activation="relu"), keras.layers.Dense(CLASSES)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(RATE, weight_decay=DECAY), loss, steps_per_execution=PERIOD)
    return model


def strategy_of(name):
    import tfdist
    from tfdist.cluster import Cluster, Task

    tasks = (Task("chief", 0), *(Task("worker", index) for index in range(len(SECONDS))), Task("ps", 0))
    options = tfdist.Synchronization(**TRAININGS[name])
    return tfdist.strategy(Cluster(tasks, strategy="hogwild", sync_period=PERIOD, synchronization=options))


def train(size, name):
    """Trains, and prints as JSON for each quarter: the seconds that the workers needed, loss and accuracy."""
    import keras
    import tensorflow as tf

    rounds, kept = SIZES[size][3], []

    class Keeper(keras.callbacks.Callback):
        """Keeps (steps, time, weights) after the first execution, which is mostly tracing, and after each quarter."""

        def on_train_batch_end(self, batch, logs=None):
            if not kept or batch + 1 >= self.params["steps"] * len(kept) // POINTS:
                kept.append((batch + 1, time.monotonic(), self.model.get_weights()))

    keras.utils.set_random_seed(42)
    if TRAININGS[name] is None:
        model, dataset, total = network(size), batches(size, 0, 1, of=BATCH * len(SECONDS)), rounds * PERIOD
    else:
        strategy = strategy_of(name)
        with strategy.scope():
            model = network(size)
        dataset = strategy.distribute_datasets_from_function(
            lambda context: batches(size, context.input_pipeline_id, len(SECONDS), SECONDS[context.input_pipeline_id])
        )
        total = rounds * PERIOD * len(SECONDS)
    model.fit(dataset, steps_per_epoch=total, verbose=0, callbacks=[Keeper()])
    kept[-1] = (*kept[-1][:2], model.get_weights())  # With the progress of all.
    x, y = examples(size, tf.random.shuffle(tf.range(SIZES[size][0], dtype=tf.int64), seed=1)[:EVALUATED])
    plain, (first, begin, _), found = network(size), kept[0], []
    for steps, at, weights in kept[1:]:
        plain.set_weights(weights)
        outputs = plain(x).numpy()
        loss = float(keras.ops.mean(keras.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True)))
        seconds = (at - begin) * FLAGS.faster * steps / (steps - first)
        if TRAININGS[name] is None:
            seconds = steps * max(SECONDS)
        found.append([seconds, loss, float((outputs.argmax(-1) == y.numpy()).mean())])
    print(json.dumps(found))


def table(size, found):
    count, _, hidden, rounds = SIZES[size]
    slowest = found["synchronous"][-1][0] if "synchronous" in found else None
    lines = [
        f"{size}: {count} examples, {hidden} hidden units, {rounds * PERIOD * len(SECONDS)} steps of all workers",
        "",
        "| | loss at a quarter | half | three quarters | the end | accuracy | seconds of the workers | times sooner |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, points in found.items():
        losses = [f"{loss:.3f}" for _, loss, _ in points]
        seconds, _, accuracy = points[-1]
        sooner = f"{slowest / seconds:.2f}" if slowest else "-"
        lines.append("| " + " | ".join([name, *losses, f"{accuracy:.3f}", f"{seconds:.0f}", sooner]) + " |")
    return "\n".join(lines)


def main(_):
    if FLAGS.train:
        train(*json.loads(FLAGS.train))
        return
    figures.check(FLAGS.markdown)
    texts = []
    for size in SIZES:
        found = {}
        for name in TRAININGS:
            if FLAGS.only and not any(part in f"{size} {name}" for part in FLAGS.only):
                continue
            command = [sys.executable, __file__, "--train", json.dumps([size, name]), "--faster", str(FLAGS.faster)]
            environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_NUM_INTRAOP_THREADS": "1"}
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT, check=True)
            found[name] = json.loads(done.stdout.splitlines()[-1])
            print(f"{size}, {name}: {found[name]}", file=sys.stderr, flush=True)
        texts += [table(size, found)] if found else []
    figures.put(FLAGS.markdown, "\n\n".join(texts) + "\n")


if __name__ == "__main__":
    app.run(main)
