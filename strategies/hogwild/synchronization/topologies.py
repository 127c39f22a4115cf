"""Topologies: which server groups average their parameters where each server group has its own.

After a group has pushed to its server group, that server group averages with partners. What one gains another loses, in atomic
additions, so the mean over all server groups stays the mean of all pushes.

To add a topology, write a function from a server group to its partners, add a line to `TOPOLOGIES`, and add its name to
`tfdist.synchronization.TOPOLOGIES`.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.named_variable import NamedVariable

Partners = tuple[int, ...]

_seeds = random.Random()
"""Not those of the module: a program that sets a seed gets the same numbers as in one process."""


def none(server_group: int, count: int) -> list[Partners]:
    """Returns no partners: all groups share the global parameters."""
    return [()]


def ring(server_group: int, count: int) -> list[Partners]:
    """Returns the two neighbors in a ring. C = (C_before + C + C_after) / 3, D-PSGD (arXiv 1705.09056)."""
    return [tuple(dict.fromkeys(((server_group - 1) % count, (server_group + 1) % count)))]


def pair(server_group: int, count: int) -> list[Partners]:
    """Returns each other server group as a choice. Both become their mean, AD-PSGD (arXiv 1710.06952)."""
    return [(other,) for other in range(count) if other != server_group]


TOPOLOGIES: dict[str, Callable[[int, int], list[Partners]]] = {"global": none, "ring": ring, "pair": pair}
"""Functions from the number of a server group and the number of all to choices of partners. One choice is drawn at random."""


def average(topology: str, parameters: Sequence[NamedVariable], server_group: int) -> None:
    """Averages the parameters of a server group with those of its partners, inside a `tf.function`.

    Args:
        topology: a name in `TOPOLOGIES`.
        parameters: the same shard of the parameters in each server group.
        server_group: the number of the server group.
    """
    choices = TOPOLOGIES[topology](server_group, len(parameters))

    def with_partners(partners: Partners) -> Any:
        _average_with(parameters[server_group], [parameters[partner] for partner in partners])
        return tf.constant(0)

    if len(choices) > 1:
        chosen = tf.random.uniform([], 0, len(choices), tf.int32, seed=_seeds.randrange(2**31))
        tf.switch_case(chosen, [lambda partners=partners: with_partners(partners) for partners in choices])
    elif choices[0]:
        with_partners(choices[0])


def _average_with(here: NamedVariable, partners: list[NamedVariable]) -> None:
    share = tf.constant(1 / (len(partners) + 1), here.dtype)
    with tf.device(here.device):
        value = here.read()  # Read before all additions, so that all partners have the same weight.
        changes = [share * (tf.identity(partner.read()) - value) for partner in partners]
        here.assign_add(tf.add_n(changes))
    for partner, change in zip(partners, changes, strict=True):
        partner.assign_add(-change)
