"""Gives a ps that has been restarted its shards of the global parameters back, from what the worker groups hold of them.

A group's baseline is the global parameters as it has last pulled them, with what it has pushed since. So the shards come back
with all progress that groups know to be part of them. If none has pulled them since the chief collected or assigned them, they
come back from the chief. All groups then pull anew, so that they continue from the same parameters on all ps: each loses what
it has not pushed yet, at most the updates of one sync period.
"""

import itertools
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.cluster import Task
from tfdist.strategies.hogwild.replicas import checkpoint_state
from tfdist.strategies.hogwild.replicas.collector import ANSWER_SECONDS, SLOWEST_BYTES_PER_SECOND
from tfdist.strategies.hogwild.synchronization.global_parameters import ParameterBlock
from tfdist.strategies.hogwild.synchronization.local_variable import Kind
from tfdist.strategies.hogwild.synchronization.shard import Shard
from tfdist.strategies.private_api.eager_context import own_executor
from tfdist.strategies.runtime import chief_device
from tfdist.strategies.runtime.deadline import Deadline
from tfdist.strategies.runtime.peers import in_parallel, waiting_for
from tfdist.strategies.runtime.task_address import device_of

_log = logging.getLogger("tfdist")


class _Known:
    """What a group knows of the shards of a block.

    Attributes:
        values: the parameters, numpy [size].
        rounds: for each shard the number of complete rounds in `values`, numpy [shards]; zeros without rounds.
    """

    def __init__(self, block: ParameterBlock, device: str) -> None:
        if block.optimizer.pushes_parameters:
            parts = [chief_device.fetched(variable.replica.read(device)) for variable in block.variables]
            self.values = np.concatenate([part.numpy().reshape(-1) for part in parts])
        else:
            is_compressed = block.shards[0][0].acknowledged is not None and block.dtype == tf.float32
            source = block.pulled if is_compressed else block.baseline
            self.values = chief_device.fetched(source.read(device)).numpy()
        self.rounds = np.zeros(len(block.sizes), np.int64)
        if block.optimizer.in_rounds:
            self.rounds = chief_device.fetched(block.last_rounds.read(device)).numpy()


def restore(strategy: Any, lost: Sequence[Task]) -> None:
    """Gives these ps their shards of all blocks back."""
    devices = {device_of(task) for task in lost}
    groups: set[int] = set()
    alone = False  # Whether shards come back from the chief's values alone.
    for block in list(strategy.local_replicas.blocks):
        if block.values is None or not any(shard.device in devices for shard in itertools.chain(*block.shards)):
            continue
        asked = strategy.local_replicas.have_pulled(block) if block.kind is Kind.SYNCHRONIZED else []
        known = _ask(strategy, block, asked)
        groups |= known.keys()
        alone |= bool(asked) and not known
        for server_group, shards in enumerate(block.shards):
            own = {group: each for group, each in known.items() if strategy.servers_of(group) == server_group} or known
            for number, (shard, part) in enumerate(zip(shards, block.parts, strict=True)):
                if shard.device in devices:
                    _restore_shard(block, shard, number, part, list(own.values()))
        if block.kind is Kind.SYNCHRONIZED:
            block.generation += 1  # All groups pull anew.
    for group in strategy.worker_groups:
        if any(task.job == "worker" and task.index in group.tasks for task in lost):
            strategy.membership.restart(group.number)  # Its local replica is lost, too.
    _warn(strategy, lost, len(groups), alone)


def _restore_shard(block: ParameterBlock, shard: Shard, number: int, part: slice, known: list[_Known]) -> None:
    shard.initialize()
    if not known:
        shard.parameters.assign(tf.constant(block.values[part]))
        return
    latest = max(each.rounds[number] for each in known)
    newest = [each.values[part] for each in known if each.rounds[number] == latest]
    mean = np.mean(newest, axis=0, dtype=np.float64).astype(newest[0].dtype)
    shard.parameters.assign(tf.constant(mean))
    if "round" in shard.state:
        shard.state["round"].assign(latest)


def _ask(strategy: Any, block: ParameterBlock, groups: Sequence[int]) -> dict[int, _Known]:
    """Returns what those of these groups know of a block that answer, by group."""
    found: dict[int, _Known] = {}

    @own_executor()
    def ask(group: int) -> None:
        try:
            found[group] = _Known(block, block.variables[0].place(strategy.worker_groups[group].devices[0]))
        except tf.errors.OpError as error:  # Its worker has been restarted, too.
            _log.debug("group %d has no parameters: %s", group, error)

    seconds = ANSWER_SECONDS + block.size * block.dtype.size * len(groups) / SLOWEST_BYTES_PER_SECOND
    in_parallel(ask, groups, Deadline.after(seconds))
    return dict(found)


def _warn(strategy: Any, lost: Sequence[Task], groups: int, alone: bool) -> None:
    period = strategy.steps_per_synchronization * strategy.synchronization.fragments
    who = "1 worker group has" if groups == 1 else f"{groups} worker groups have"
    source = f"what {who} pulled last, and at most one sync period of each ({period} updates) is lost"
    if alone:
        source = "what the chief has read last, because no worker group has it: all updates since then are lost there"
    elif not groups:
        source = "the chief, and no update is lost"
    has_momentum = any(map(checkpoint_state.has_momentum, strategy.local_replicas.blocks))
    momentum = "; the momentum of the outer optimizer begins at zero there" if has_momentum else ""
    _log.warning(
        "%s %s restarted: %s part of the global parameters comes back from %s%s",
        *(waiting_for(lost), "was" if len(lost) == 1 else "were", "its" if len(lost) == 1 else "their", source, momentum),
    )
