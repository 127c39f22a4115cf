"""What a restart of Hogwild needs beside the variables' values on the chief, to go on as if nothing had been.

Brought together, all groups begin anew from the centre. What is left of each group alone are its optimizer's slots and
counters, its random numbers, and how far it is from its next exchange; and of the outer rule the momentum. All of it is kept by
variable, so that it does not matter how many ps tasks there are and how variables are joined to blocks.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.strategies.coordinator import chief_device
from tfdist.strategies.coordinator.variable_base import unwrapped
from tfdist.strategies.hogwild.global_parameters import ParameterBlock
from tfdist.strategies.hogwild.local_variable import Kind, LocalVariable

OUTER = ("momentum", "sum", "count")
"""What is kept of a rule's `Block.state`. Rounds are complete when the groups are brought together: `pushed` and `round`, which
tell of rounds, begin anew."""

_log = logging.getLogger("tfdist")


@dataclass
class Period:
    """How far the groups are with one model.

    Attributes:
        since: local steps of each group since its last exchange.
        turns: exchanges of each group.
    """

    since: list[int]
    turns: list[int]


def state_of(copies: Any, model: Any) -> dict[str, Any]:
    """What belongs to the training of `model`. Nothing may be under way; brings the groups together.

    Returns:
        numpy arrays. PART is `model` (its variables) or an optimizer's name among the model's attributes, NUMBER that of the
        variable there. `groups` and `PART/variables`: how many there are, scalars. `own/PART/NUMBER/GROUP`: what a group has,
        of the variable's shape and dtype; groups that have not begun are left out. `outer/PART/NUMBER/NAME`: what the outer
        rule keeps beside the centre, of the variable's shape, a count of shape [1]. `period/since`, `period/turns` (see
        `Period`) and `period/trained` and `period/pushed` (see `Copies`): [groups].
    """
    copies.collect([block for block in copies.blocks if block.kind is not Kind.COUNTER])
    period = copies.position_of(model)
    state: dict[str, Any] = {
        "groups": np.int64(len(copies.owners)),
        "period/since": np.int64(period.since),
        "period/turns": np.int64(period.turns),
        "period/trained": np.float64(copies.trained),
        "period/pushed": np.float64(copies.pushed),
    }
    vectors: dict[ParameterBlock, dict[Any, Any]] = {}
    for part, variables in _parts(model).items():
        state[f"{part}/variables"] = np.int64(len(variables))
        for number, variable in enumerate(variables):
            block = variable.block
            if block is not None and block not in vectors:
                vectors[block] = _outer_of(block) if block.kind is Kind.EXCHANGED else copies.replicas_of(block)
            found = {name: block.cut(vector, variable) for name, vector in vectors[block].items()} if block else {}
            own, outer = ({}, found) if block and block.kind is Kind.EXCHANGED else (found, {})
            for group, value in (own | variable.restored).items():
                state[f"own/{part}/{number}/{group}"] = value
            for name, value in (outer | variable.restored_outer).items():
                state[f"outer/{part}/{number}/{name}"] = value.reshape(-1)[:1] if name == "count" else value
    return state


def restore(copies: Any, model: Any, state: dict[str, Any]) -> None:
    """Lets the training of `model` go on from what `state_of` gave, after its variables got their values.

    The outer rule's part whatever the number of ps. The groups' parts where there are as many groups as there were, else
    each begins from the chief's values. What does not fit the model is left out.
    """
    if not state:
        _log.debug("the file has no state of worker groups; each goes on from the chief's values")
        return
    fits = int(state["groups"]) == len(copies.owners)
    if not fits:
        _log.debug(
            "saved with %d worker groups, there are %d now: each goes on from the chief's values",
            state["groups"],
            len(copies.owners),
        )
    else:
        period = copies.position_of(model)
        period.since[:], period.turns[:] = state["period/since"].tolist(), state["period/turns"].tolist()
        copies.trained[:], copies.pushed[:] = state["period/trained"].tolist(), state["period/pushed"].tolist()
    for part, variables in _parts(model).items():
        if state.get(f"{part}/variables") != len(variables):
            _log.debug("the file is of another %s, whose worker groups' state is left out", part)
            continue
        for number, variable in enumerate(variables):
            own = {int(name): value for name, value in _below(state, f"own/{part}/{number}/") if value.shape == variable.shape}
            if own and fits:
                with copies.assigning(variable):  # The groups take over what the chief has, then what is their own.
                    pass
                variable.restored = own
            outer = dict(_below(state, f"outer/{part}/{number}/"))
            if all(name == "count" or value.shape == variable.shape for name, value in outer.items()):
                variable.restored_outer = outer
    for block in copies.blocks:
        restore_outer(block)


def give(block: ParameterBlock, group: int, device: str) -> None:
    """Gives a group, which has just taken over the chief's values, those that were restored for it."""
    for variable in block.variables:
        value = variable.restored.pop(group, None)
        if value is not None:
            variable.copy.assign(tf.constant(value, variable.dtype), device)


def restore_outer(block: ParameterBlock) -> None:
    """Gives the ps what was restored of the outer rule for a block's variables."""
    if not any(variable.restored_outer for variable in block.variables):
        return
    for name, vector in _outer_of(block).items():
        for variable in block.variables:
            if name in variable.restored_outer:
                block.cut(vector, variable)[...] = variable.restored_outer[name]
        for states in block.state:
            begin = 0
            for each, size in zip(states, block.sizes, strict=True):
                part = vector[begin : begin + size]
                each[name].assign(tf.constant(part if each[name].shape.rank else part[0]))
                begin += size
    for variable in block.variables:
        variable.restored_outer = {}


def _outer_of(block: ParameterBlock) -> dict[str, Any]:
    """What the outer rule keeps of the whole block, by name, vectors; numbers of a slice for each of its values."""
    names = [name for name in OUTER if name in block.state[0][0]]
    pairs = list(zip(block.state[0], block.sizes, strict=True))
    return {
        name: np.concatenate(
            [np.broadcast_to(chief_device.fetched(state[name].read()).numpy(), [size]) for state, size in pairs]
        )
        for name in names
    }


def _parts(model: Any) -> dict[str, list[LocalVariable]]:
    """The variables of a model, and of its optimizers, that groups have copies of."""
    own = {name: value for name, value in vars(model).items() if isinstance(value, keras.optimizers.Optimizer)}
    owners = {"model": model, "optimizer": getattr(model, "optimizer", None), **own}
    seen: set[int] = set()
    parts = {}
    for name, owner in owners.items():
        values = [unwrapped(variable._value) for variable in owner.variables] if owner is not None else []
        found = {
            id(v): v for v in values if isinstance(v, LocalVariable) and v.kind is not Kind.FROM_CHIEF and id(v) not in seen
        }
        seen |= set(found)
        parts[name] = list(found.values())
    return parts


def _below(state: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    return ((key.removeprefix(prefix), value) for key, value in state.items() if key.startswith(prefix))
