"""TensorFlow's view of `hogwild`: variables with a local replica in every worker group."""

import contextlib
from typing import Any

import tensorflow as tf

from tfdist.strategies.attributes import replaced
from tfdist.strategies.coordinator.extended import GroupExtended, unwrapped, update_on
from tfdist.strategies.coordinator.sync_on_read_variable import SyncOnReadVariable
from tfdist.strategies.hogwild.synchronization.local_variable import LocalVariable
from tfdist.strategies.model_parallel.split_variable import SplitVariable
from tfdist.strategies.model_parallel.variables import current_column
from tfdist.strategies.private_api.overrides import overrides
from tfdist.strategies.variable_base import on_shards


class HogwildExtended(GroupExtended):
    """`tf.distribute.StrategyExtended` of `hogwild`."""

    _tfdist_home: str | None = None

    def home(self, device: str) -> contextlib.AbstractContextManager[None]:
        """Makes `device` the one that holds the local replica, while a function of a group is traced."""
        return replaced(self, _tfdist_home=device)

    @property
    def is_tracing(self) -> bool:
        """Whether a function of a worker group is being traced."""
        return self._tfdist_tracing is not None

    @property
    def replica_device(self) -> str:
        """The device of the local replica, in the function that is being traced."""
        assert self._tfdist_tracing is not None
        return self._tfdist_home or self._tfdist_tracing[0]

    def place_of(self, column: int | None, leader: str | None = None) -> str:
        """Returns the device that holds a variable of a local replica.

        Args:
            column: its `LocalVariable.column`.
            leader: the first device of the local replica. Default: that of the function that is being traced.
        """
        first = leader or self.replica_device
        return first if column is None else str(self.worker_mesh.row_of(first)[column])

    @overrides(GroupExtended)
    def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        self.check_process()
        if kwargs.get("synchronization") == tf.VariableSynchronization.ON_READ:
            return SyncOnReadVariable(self._container_strategy(), next_creator, **kwargs)
        kwargs.pop("colocate_with", None)
        column = current_column()
        with tf.compat.v1.colocate_with(None, ignore_existing=True):
            variable = LocalVariable(
                self._container_strategy(), next_creator, column=None if column is None else column.number, **kwargs
            )
        return self.shared(variable, kwargs.get("aggregation"))

    @overrides(GroupExtended)
    def _validate_colocate_with_variable(self, colocate_with_variable: Any) -> None:
        if not isinstance(unwrapped(colocate_with_variable), LocalVariable | SplitVariable):
            super()._validate_colocate_with_variable(colocate_with_variable)

    @overrides(GroupExtended)
    def _update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
        if isinstance(var, SplitVariable):
            return on_shards(self._update, var, fn, args, kwargs, group)
        variable = unwrapped(var)
        if not isinstance(variable, LocalVariable):
            return super()._update(var, fn, args, kwargs, group)
        args, kwargs = self._select_single_value(args), self._select_single_value(kwargs)
        result = update_on(self.place_of(variable.column) if self.is_tracing else variable.device, variable, fn, args, kwargs)
        return result if group else tf.nest.map_structure(self._local_results, result)
