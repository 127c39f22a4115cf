"""`jit_compile=True`: XLA compiles a replica's step up to the update, which needs the other replicas."""

import logging
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.attributes import replaced
from tfdist.strategies.inputs.batches import without_optionals
from tfdist.strategies.keras_hooks.gradient_sums import pieces_of_all
from tfdist.strategies.keras_hooks.replicas.own_values import reads
from tfdist.strategies.keras_hooks.replicas.replica_context import Replica, current
from tfdist.strategies.keras_hooks.replicas.same_rows import Pieces, joined
from tfdist.strategies.keras_hooks.replicas.warned import is_first_warning

_log = logging.getLogger("tfdist")


def compiled(model: Any, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns `step`; with `jit_compile=True` a function that computes gradients in XLA and applies them afterwards.

    Args:
        model: the Keras model.
        step: a function of one replica's shard.
    """
    mesh = getattr(model.distribute_strategy.extended, "mesh", None)
    if model.jit_compile is not True or (mesh is not None and mesh.axis is not None):
        return step

    def compiled_step(shard: Any) -> Any:
        replica = current()
        assert replica is not None
        updates: list[Any] = []
        pieces: list[list[Pieces]] = []

        def until_update(shard: Any) -> Any:
            logs = step(shard)
            later = tf.compat.v1.get_default_graph().get_operations()[replica.before_update :]
            if reads(replica, [variable for _, (_, _, variables) in updates for variable in variables or ()], later):
                _warn(model, replica)
            pieces[:] = [pieces_of_all(*update) for _, update in updates]  # Their rows are seen here only.
            return logs, [[piece for own in own_pieces for piece, _ in own if piece is not None] for own_pieces in pieces]

        with replaced(replica, postponed=updates):
            logs, computed = tf.function(until_update, jit_compile=True, autograph=False)(without_optionals(shard))
        for (apply, (_, _, variables)), values, own_pieces in zip(updates, computed, pieces, strict=True):
            found = iter(values)
            replica.pieces = [[(None if p is None else next(found), kind) for p, kind in own] for own in own_pieces]
            apply([joined([piece for piece, _ in own]) for own in replica.pieces], variables)
        replica.pieces = None
        return logs

    return compiled_step


def _warn(model: Any, replica: Replica) -> None:
    is_first = replica.index == 0 and replica.strategy.tfdist_hooks.is_chief
    if is_first and is_first_warning(model, "reads updated weights"):
        _log.warning(
            "the training of %s differs from that in one process: with jit_compile=True the update of several replicas follows "
            "the compiled step, and this step reads weights after its update, as for an average of them. It gets those from "
            "before it. Leave jit_compile at 'auto'",
            model.name,
        )
