"""A group waits for its reply, and takes that of no other push."""

import threading
import time

import tensorflow as tf

from tfdist.strategies.hogwild.synchronization.reply_queue import ReplyQueue


def test_a_group_waits_for_the_reply_to_its_last_push():
    queue = ReplyQueue(tf.float32, 2)

    @tf.function(autograph=False)
    def put(moment, value):
        queue.put(moment, tf.constant(0.5, tf.float64), tf.fill([2], value))
        return moment

    @tf.function(autograph=False)
    def take(moment):
        return queue.take(moment, tf.constant(0))

    put(tf.constant(1.0, tf.float64), tf.constant(7.0))  # Of a call that has failed.
    found = []
    thread = threading.Thread(target=lambda: found.append(take(tf.constant(2.0, tf.float64))))
    thread.start()
    time.sleep(0.2)
    assert not found
    put(tf.constant(2.0, tf.float64), tf.constant(8.0))
    thread.join(10)
    seconds, reply = found[0]
    assert seconds.numpy() == 0.5 and reply.numpy().tolist() == [8.0, 8.0]
    queue.destroy("/device:CPU:0")
