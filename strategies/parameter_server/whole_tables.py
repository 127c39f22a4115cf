"""Says which tables of embeddings a step reads whole although it looks up rows: all of them then cross the network."""

from typing import Any

from tfdist.strategies.coordinator.calls.tensor_fusion import is_small
from tfdist.strategies.coordinator.extended import unwrapped
from tfdist.strategies.keras_hooks.replicas.warned import warn_once


class TableReads:
    """How one step reads variables on the ps."""

    def __init__(self) -> None:
        self._looked_up: set[int] = set()
        self._whole: set[int] = set()

    def look_up(self, variable: Any) -> None:
        """Notes that rows of a variable are looked up."""
        self._looked_up.add(id(variable))

    def read_whole(self, variable: Any) -> None:
        """Notes that all of a variable is read."""
        self._whole.add(id(variable))

    def warn(self, model: Any) -> None:
        """Warns, once, of each variable of a Keras model that this step has looked up and read whole."""
        # Once: every worker group and every kind of step traces the same reads.
        both = self._looked_up & self._whole
        for variable in model.trainable_variables if both else []:
            value = unwrapped(variable._value)
            held = {id(value), *(id(unwrapped(shard)) for shard in getattr(value, "shards", []))}
            if held & both and not is_small(value.shape, value.dtype):
                warn_once(
                    "%s is looked up by rows, and a step also reads all of it: its %.1f MB cross the network in each step. A "
                    "regularizer of the table, a layer that shares it, and a lookup in a loop, cond or vectorized_map read it "
                    "whole; leave them out if the steps are slow",
                    *(variable.path, value.shape.num_elements() * value.dtype.size / 1e6),
                )
