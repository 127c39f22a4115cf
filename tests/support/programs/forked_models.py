"""Makes a variable in a fork of the chief, and prints the error. `STRATEGY`: argument 1."""

import multiprocessing
import sys

import own_cluster
import tensorflow as tf

import tfdist

own_cluster.serve({"strategy": sys.argv[1]}, worker=1, ps=1)


def make_variable():
    tf.Variable(1.0)


if __name__ == "__main__":
    with tfdist.strategy().scope():
        tf.Variable(1.0)
        with multiprocessing.get_context("fork").Pool(1) as pool:
            try:
                pool.apply_async(make_variable).get(60)
            except RuntimeError as error:
                print(error)
