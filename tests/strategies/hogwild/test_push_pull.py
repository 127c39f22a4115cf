"""A synchronization as TensorFlow gets it: what waits for what."""

import pytest
import tensorflow as tf
from sharded_block import GROUPS, WORKER, block_on

from tfdist.strategies.hogwild.synchronization.compression import COMPRESSORS
from tfdist.strategies.hogwild.synchronization.control import Control
from tfdist.strategies.hogwild.synchronization.outer_optimizers import OUTER_OPTIMIZERS
from tfdist.strategies.hogwild.synchronization.push_pull import PushPull
from tfdist.strategies.hogwild.synchronization.shard_functions import ShardFunctions
from tfdist.synchronization import Synchronization


def before(operation):
    """This operation, and all that have to end before it begins."""
    found, waiting = {operation}, [operation]
    while waiting:
        each = waiting.pop()
        earlier = {tensor.op for tensor in each.inputs} | set(each.control_inputs)
        waiting += earlier - found
        found |= earlier
    return found


def calls_before_replies(outer, compression, waits):
    """For each reply of three ps: the ps whose call has to end before the reply is sent."""
    optimizer, compressor = OUTER_OPTIMIZERS[outer](Synchronization(outer=outer), GROUPS), COMPRESSORS[compression]
    block, sent = block_on(3, optimizer, bool(compression)), []

    def run(numbers):
        pushed = PushPull(block, 0, Control.of(numbers), ShardFunctions(optimizer), compressor)
        with tf.device(WORKER):
            pushed.push(waits)
        for reply in pushed.replies:
            sent.append(
                max((each for each in before(reply.op) if "/job:ps" in each.device), key=lambda each: len(before(each)))
            )

    tf.function(run, autograph=False).get_concrete_function(Control.SPEC)
    return [sorted({each.device for each in before(reply) if "PartitionedCall" in each.type}) for reply in sent]


@pytest.mark.parametrize("compression", [None, "bf16"])
def test_no_reply_is_sent_before_the_rounds_of_all_ps_have_ended(compression):
    every = [f"/job:ps/task:{number}/device:CPU:0" for number in range(3)]
    assert calls_before_replies("nesterov", compression, waits=True) == [every] * 3


@pytest.mark.parametrize(("outer", "waits"), [("average", True), ("nesterov", False)])
def test_a_reply_is_sent_at_once_where_groups_wait_for_no_round(outer, waits):
    every = [f"/job:ps/task:{number}/device:CPU:0" for number in range(3)]
    assert calls_before_replies(outer, None, waits) == [[each] for each in every]
