"""What a checkpoint of Hogwild holds beside the chief's variables, so that training continues exactly where it stopped.

After a collection all groups continue from the global parameters. Each group still has its own optimizer slots and counters,
its random numbers, and its position in the sync period; the outer optimizer has its momentum. All of it is saved per variable,
so a checkpoint does not depend on the number of ps tasks or on how variables are put into blocks.
"""

import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.strategies.hogwild.synchronization.global_parameters import ParameterBlock
from tfdist.strategies.hogwild.synchronization.local_variable import Kind, LocalVariable, local_variables
from tfdist.strategies.keras_hooks.held_optimizers import held_optimizers
from tfdist.strategies.runtime import chief_device

_log = logging.getLogger("tfdist")


@dataclass
class Period:
    """How far the groups are with one model.

    Attributes:
        since: for each group, its inner steps since its last synchronization.
        turns: for each group, the number of its pushes, without those that are in no round.
    """

    since: list[int]
    turns: list[int]


def state_of(replicas: Any, model: Any) -> dict[str, Any]:
    """Collects the groups, and returns the state of the training of `model`. No execution may be in flight.

    Args:
        replicas: the `LocalReplicas` of the strategy.
        model: the Keras model.

    Returns:
        Numpy arrays by key. In the keys, PART is `model` (its variables), the name of the model's attribute that holds an
        optimizer, or `held_` and a number for optimizers elsewhere, and NUMBER is the position of the variable in it.

        | key | value |
        |---|---|
        | `groups` | number of worker groups, scalar |
        | `PART/variables` | dtype, shape and path of each variable, bytes, [variables] |
        | `own/PART/NUMBER/GROUP` | value in the local replica of a group that has started, shape of the variable |
        | `outer/PART/NUMBER/NAME` | state of the outer optimizer, shape of the variable, or [1] for a scalar |
        | `period/since`, `period/turns` | see `Period`, [groups] |
        | `period/trained`, `period/pushed` | see `PushWeights`, [groups] |
    """
    parts = _parts(model)
    used = dict.fromkeys(v.block for variables in parts.values() for v in variables.values() if v.block is not None)
    vectors = _collected(replicas, used)
    period = replicas.position_of(model)
    state: dict[str, Any] = {
        "groups": np.int64(len(replicas.owners)),
        "period/since": np.int64(period.since),
        "period/turns": np.int64(period.turns),
        "period/trained": np.float64(replicas.weights.trained),
        "period/pushed": np.float64(replicas.weights.pushed),
    }
    for part, variables in parts.items():
        state[f"{part}/variables"] = np.asarray(list(variables), "S")
        for number, variable in enumerate(variables.values()):
            block = variable.block
            values = {name: block.cut(vector, variable) for name, vector in vectors[block].items()} if block else {}
            own, outer = ({}, values) if block and block.kind is Kind.SYNCHRONIZED else (values, {})
            for group, value in (own | variable.restored).items():
                state[f"own/{part}/{number}/{group}"] = value
            scalars = _scalars(block) if block else set()
            for name, value in (outer | variable.restored_outer).items():
                state[f"outer/{part}/{number}/{name}"] = value.reshape(-1)[:1] if name in scalars else value
    return state


def _collected(replicas: Any, blocks: Iterable[ParameterBlock]) -> dict[ParameterBlock, dict[Any, Any]]:
    """Collects the groups, and returns what belongs to these blocks: by group its own values, or by name the outer state."""
    own_blocks = [block for block in blocks if block.kind is not Kind.SYNCHRONIZED]
    vectors: dict[ParameterBlock, dict[Any, Any]] = {}

    def fetch_outer() -> None:
        for block in blocks:
            if block.kind is Kind.SYNCHRONIZED:
                vectors[block] = block.retried(partial(_outer_of, block))

    collected = replicas.collect(
        [block for block in replicas.blocks if block.kind is not Kind.COUNTER],
        fetch_outer,
        {block: replicas.current_owners(block) for block in own_blocks},
    )
    for block in own_blocks:
        by_owner = collected[block]
        vectors[block] = {owner: by_owner[owner] for owner in replicas.current_owners(block) if owner in by_owner}
    return vectors


def restore(replicas: Any, model: Any, state: dict[str, Any]) -> None:
    """Restores what `state_of` returned, after the chief's variables have been restored.

    The state of the outer optimizer is restored for any number of ps tasks. The state of the groups is restored if the number
    of groups is the same; otherwise each group starts from the chief's values. State that does not fit the model is left out.
    """
    if not state:
        _log.debug("the file has no state of worker groups; each starts from the chief's values")
        for variable in itertools.chain.from_iterable(variables.values() for variables in _parts(model).values()):
            if variable.kind is Kind.COUNTER and variable.block is not None and id(variable) in variable.block.assigned:
                variable.restored = _for_each(replicas, variable.value_on_chief())  # Its slots have all of these updates.
        return
    fits = int(state["groups"]) == len(replicas.owners)
    if not fits:
        _log.debug(
            "saved with %d worker groups, there are %d now: each starts from the chief's values",
            state["groups"],
            len(replicas.owners),
        )
    else:
        period, weights = replicas.position_of(model), replicas.weights
        period.since[:], period.turns[:] = state["period/since"].tolist(), state["period/turns"].tolist()
        weights.trained[:], weights.pushed[:] = state["period/trained"].tolist(), state["period/pushed"].tolist()
    for part, variables in _parts(model).items():
        numbers = _numbers_in(state.get(f"{part}/variables"), list(variables))
        if numbers is None:
            _log.debug("the file has another %s; its state of worker groups is left out", part)
            continue
        for number, variable in zip(numbers, variables.values(), strict=True):
            own = {int(name): value for name, value in _below(state, f"own/{part}/{number}/") if value.shape == variable.shape}
            if own and not fits:  # What the chief has of the slots is the mean of groups with these counts.
                trained = [int(each) for each in own.values() if variable.kind is Kind.COUNTER and each]
                own = _for_each(replicas, np.int64(np.mean(trained))) if trained else {}
            if own:
                with replicas.assigning(variable):  # Groups first pull the chief's values, then take their own.
                    pass
                variable.restored = own
            outer = dict(_below(state, f"outer/{part}/{number}/"))
            if all(value.shape in ((1,), tuple(variable.shape)) for value in outer.values()):
                variable.restored_outer = outer
    for block in replicas.blocks:
        if any(variable.restored_outer for variable in block.variables):
            block.trained_by = block.inner_optimizer = None  # The momentum is that of the file.
        restore_outer(block)


def _for_each(replicas: Any, value: Any) -> dict[int, Any]:
    """Returns the value for each group."""
    return dict.fromkeys(range(len(replicas.owners)), value)


def assign_restored(block: ParameterBlock, group: int, device: str) -> None:
    """Assigns restored values to the local replica of a group, which has just pulled the chief's values."""
    for variable in block.variables:
        value = variable.restored.pop(group, None)
        if value is not None:
            variable.replica.assign(tf.constant(value, variable.dtype), variable.place(device))


def restore_outer(block: ParameterBlock) -> None:
    """Assigns restored state of the outer optimizer for a block's variables to the ps."""
    if not any(variable.restored_outer for variable in block.variables):
        return
    block.retried(lambda: _restore_outer(block))
    for variable in block.variables:
        variable.restored_outer = {}


def forget_outer(block: ParameterBlock, variables: Sequence[LocalVariable]) -> None:
    """Sets the state of the outer optimizer for some variables of a block to zero: it would move them on.

    No execution may be in flight, and all progress must be collected: a push adds to the state.
    """
    for variable in variables:
        variable.restored_outer = zero_outer(variable)
    restore_outer(block)


def has_momentum(block: ParameterBlock) -> bool:
    """Returns whether the outer optimizer moves the variables of a block on after their last progress."""
    return "momentum" in block.shards[0][0].state


def zero_outer(variable: LocalVariable) -> dict[str, Any]:
    """Returns state of the outer optimizer that does not move a variable, as `LocalVariable.restored_outer`."""
    names = _saved_names(variable.block) - _scalars(variable.block)
    return {name: np.zeros(variable.shape, variable.dtype.as_numpy_dtype) for name in names}


def _restore_outer(block: ParameterBlock) -> None:
    scalars = _scalars(block)
    for name, vector in _outer_of(block).items():
        for variable in block.variables:
            if name in variable.restored_outer:
                block.cut(vector, variable)[...] = variable.restored_outer[name]
        for shards in block.shards:
            for shard, part in zip(shards, block.parts, strict=True):
                shard.state[name].assign(tf.constant(vector[part.start] if name in scalars else vector[part]))


def _scalars(block: ParameterBlock) -> set[str]:
    """Returns the names of the outer optimizer's state that has one number per shard."""
    return {name for name, variable in block.shards[0][0].state.items() if variable.shape.rank == 0}


def _saved_names(block: ParameterBlock) -> set[str]:
    """Returns the names of the outer optimizer's state that is saved."""
    return set(block.shards[0][0].state) - set(block.optimizer.not_saved)


def _outer_of(block: ParameterBlock) -> dict[str, Any]:
    """Returns the saved state of the outer optimizer, as vectors of the whole block by name. Repeats numbers of a shard."""
    shards = list(zip(block.shards[0], block.sizes, strict=True))
    return {
        name: np.concatenate(
            [np.broadcast_to(chief_device.fetched(shard.state[name].read()).numpy(), [size]) for shard, size in shards]
        )
        for name in _saved_names(block)
    }


def _parts(model: Any) -> dict[str, dict[str, LocalVariable]]:
    """Returns the variables with local replicas of the model and of its optimizers, without those that come before.

    Returns:
        By part and label: dtype, shape, path.
    """
    own = {name: value for name, value in vars(model).items() if isinstance(value, keras.optimizers.Optimizer)}
    # Those in lists, dicts and layers. The names of the others are those of files that were saved before these had one.
    named = {id(value) for value in (getattr(model, "optimizer", None), *own.values())}
    held = {f"held_{number}": each for number, each in enumerate(held_optimizers(model)) if id(each) not in named}
    owners = {"model": model, "optimizer": getattr(model, "optimizer", None), **own, **held}
    listed: set[int] = set()
    parts: dict[str, dict[str, LocalVariable]] = {}
    for name, owner in owners.items():
        parts[name] = {}
        for each in owner.variables if owner is not None else ():
            for shard, v in enumerate(local_variables(each._value)):
                if v.kind is not Kind.FROM_CHIEF and id(v) not in listed:
                    listed.add(id(v))
                    label = f"{v.dtype.name} {list(v.shape)}: {each.path}/{shard}"
                    while label in parts[name]:
                        label += "'"  # Layers may have the same name.
                    parts[name][label] = v
    return parts


def _numbers_in(saved: Any, labels: list[str]) -> list[int] | None:
    """Returns the position in a file of each variable with these labels.

    Variables match by path: a loaded model may list its variables in another order, as one with a quantized layer does. If the
    paths differ, variables match by position, provided that all dtypes and shapes are equal.

    Args:
        saved: the labels of the file, bytes, [variables]. Older files have none, or a number.
        labels: those of the variables.

    Returns:
        None if the file has other variables.
    """
    if np.ndim(saved) != 1:
        return None
    before = [label.decode() for label in saved]
    if sorted(before) == sorted(labels):
        return [before.index(label) for label in labels]
    forms = [[label.split(": ")[0] for label in each] for each in (before, labels)]
    return list(range(len(labels))) if forms[0] == forms[1] else None


def _below(state: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    return ((key.removeprefix(prefix), value) for key, value in state.items() if key.startswith(prefix))
