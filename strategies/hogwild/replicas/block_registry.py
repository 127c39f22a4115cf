"""Records which variables the functions of groups use, and puts them into blocks."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfdist.strategies.attributes import replaced
from tfdist.strategies.hogwild.synchronization.global_parameters import ParameterBlock
from tfdist.strategies.hogwild.synchronization.local_variable import Kind, LocalVariable
from tfdist.strategies.keras_hooks.replicas import replica_context


@dataclass
class Use:
    """The variables that functions use.

    Attributes:
        variables: all of them, by id.
        assigned: those that the functions assign, by id.
        given: those of them that the step itself assigns, not an optimizer, by id.
    """

    variables: dict[int, LocalVariable] = field(default_factory=dict)
    assigned: dict[int, LocalVariable] = field(default_factory=dict)
    given: dict[int, LocalVariable] = field(default_factory=dict)


class BlockRegistry:
    """All blocks of a strategy.

    Args:
        make_block: makes a block of variables of one dtype and kind.

    Attributes:
        blocks: the blocks, in the order in which they were registered.
    """

    def __init__(self, make_block: Callable[[list[LocalVariable]], ParameterBlock]) -> None:
        self._make_block = make_block
        self._use = Use()
        self.blocks: list[ParameterBlock] = []

    def record_use(self, variable: LocalVariable, assigns: bool = False) -> None:
        """Records that the function that is being traced uses `variable`, and whether it assigns it."""
        self._use.variables[id(variable)] = variable
        if assigns:
            self._use.assigned[id(variable)] = variable
            replica = replica_context.current()
            if replica is None or not replica.reduced:
                self._use.given[id(variable)] = variable

    def recording_use(self, use: Use) -> contextlib.AbstractContextManager[None]:
        """Records the variables that functions use, in `use`."""
        return replaced(self, _use=use)

    def register(
        self, variables: Sequence[LocalVariable], kind: Kind | None = None, fragments: int = 1
    ) -> list[ParameterBlock]:
        """Puts variables that are in no block into blocks, by kind, dtype, device and sign, and returns the new blocks.

        Args:
            variables: the variables.
            kind: their new kind; None keeps the kind of each.
            fragments: number of blocks, of about equal size, for the variables of one kind and dtype.
        """
        by_type: dict[tuple[Kind, Any, int | None, bool], list[LocalVariable]] = {}
        for variable in variables:
            if variable.block is None and variable.kind is not Kind.FROM_CHIEF:
                variable.kind = kind or variable.kind
                like = (variable.kind, variable.dtype, variable.column, variable.is_nonnegative)
                by_type.setdefault(like, []).append(variable)
        new = [self._make_block(part) for members in by_type.values() for part in _divided(members, fragments)]
        self.blocks.extend(new)
        return new


def _divided(variables: list[LocalVariable], parts: int) -> list[list[LocalVariable]]:
    """Divides variables into at most `parts` lists of neighbors, with about the same number of values each."""
    sizes = [variable.shape.num_elements() for variable in variables]
    total, done = sum(sizes) or 1, 0
    lists: dict[int, list[LocalVariable]] = {}
    for variable, size in zip(variables, sizes, strict=True):
        lists.setdefault(min(parts - 1, (done + size // 2) * parts // total), []).append(variable)
        done += size
    return [members for members in lists.values() if members]
