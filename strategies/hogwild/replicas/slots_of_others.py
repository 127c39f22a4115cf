"""The optimizer slots of a group whose workers were restarted, or have joined: those of another group that trains.

The slots on the ps are those that the program has loaded or assigned last, or zeros, although the optimizer has counted
thousands of updates. With a second moment of zero, Adam's first updates are several times too large; with a first moment that
is averaged over the groups (`average_momentum`) there is no limit to how large.

The counter of updates (`iterations`) is taken with the slots, because optimizers correct the bias of slots that begin with
zeros. With slots of thousands of updates and a count of zero, updates would be ten times too large (Adamax) or several times
too small (Adam).
"""

import logging
from collections.abc import Iterable, Sequence

import tensorflow as tf

from tfdist.strategies.hogwild.synchronization.global_parameters import ParameterBlock
from tfdist.strategies.hogwild.synchronization.local_variable import Kind, LocalVariable
from tfdist.strategies.hogwild.synchronization.push_pull import SEED_STRIDE
from tfdist.strategies.runtime import chief_device

_log = logging.getLogger("tfdist")


def slots_in(variables: Iterable[LocalVariable], kind: Kind) -> list[LocalVariable]:
    """Returns the optimizer slots of a kind among the variables of a block."""
    return [variable for variable in variables if variable.is_slot and variable.kind is kind]


def take(slots: Sequence[LocalVariable], device: str, others: Iterable[str]) -> bool:
    """Assigns the slots of the first other group that answers to those of a group. Returns whether there is one.

    The other one trains meanwhile: the slots are those of two or three of its updates.
    """
    for other in others:
        try:
            values = [chief_device.fetched(variable.replica.read(variable.place(other))) for variable in slots]
        except tf.errors.OpError as error:  # Its worker is gone, too.
            _log.debug("%s has no optimizer slots: %s", other, error)
            continue
        for variable, value in zip(slots, values, strict=True):
            variable.replica.assign(value, variable.place(device))
        return True
    return False


def move_seeds(seeds: Iterable[LocalVariable], device: str, groups: int) -> None:
    """Gives a group, which has just pulled the seeds that it began with, those of a further group: it has drawn with its own.

    Args:
        seeds: the states of generators.
        device: the leader of the group.
        groups: how many groups have drawn before, those that were lost with their workers among them.
    """
    for variable in seeds:
        place = variable.place(device)
        value = variable.replica.read(place)
        variable.replica.assign(value + tf.cast(groups * SEED_STRIDE % 2**31, value.dtype), place)


def clear(block: ParameterBlock) -> None:
    """Sets slots on the ps, which groups average, to zero."""
    for shards in block.shards:
        for shard, size in zip(shards, block.sizes, strict=True):
            shard.parameters.assign(tf.zeros([size], block.dtype))


def warn(group: int) -> None:
    """Says that no other group has slots."""
    _log.warning(
        "worker group %d was restarted, and no other one has optimizer slots: it begins with those that were loaded or "
        "assigned last, or with none, so its first updates may be too large",
        group,
    )
