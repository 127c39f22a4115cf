"""TensorFlow's view of `hogwild`: variables with a local replica in every worker group."""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist.strategies.coordinator.extended import GroupExtended, unwrapped, update_on
from tfdist.strategies.coordinator.sync_on_read_variable import SyncOnReadVariable
from tfdist.strategies.hogwild.local_variable import LocalVariable
from tfdist.strategies.private_api.overrides import overrides


class HogwildExtended(GroupExtended):
    """`tf.distribute.StrategyExtended` of `hogwild`."""

    _tfdist_home: str | None = None

    @contextlib.contextmanager
    def home(self, device: str) -> Iterator[None]:
        """Makes `device` the one that holds the local replica, while a function of a group is traced."""
        outer, self._tfdist_home = self._tfdist_home, device
        try:
            yield
        finally:
            self._tfdist_home = outer

    @property
    def is_tracing(self) -> bool:
        """Whether a function of a worker group is being traced."""
        return self._tfdist_tracing is not None

    @property
    def replica_device(self) -> str:
        """The device of the local replica, in the function that is being traced."""
        assert self._tfdist_tracing is not None
        return self._tfdist_home or self._tfdist_tracing[0]

    @overrides(GroupExtended)
    def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        if kwargs.get("synchronization") == tf.VariableSynchronization.ON_READ:
            return SyncOnReadVariable(self._container_strategy(), next_creator, **kwargs)
        kwargs.pop("colocate_with", None)
        with tf.compat.v1.colocate_with(None, ignore_existing=True):
            variable = LocalVariable(self._container_strategy(), next_creator, **kwargs)
        return self.shared(variable, kwargs.get("aggregation"))

    @overrides(GroupExtended)
    def _validate_colocate_with_variable(self, colocate_with_variable: Any) -> None:
        if not isinstance(unwrapped(colocate_with_variable), LocalVariable):
            super()._validate_colocate_with_variable(colocate_with_variable)

    @overrides(GroupExtended)
    def _update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
        variable = unwrapped(var)
        if not isinstance(variable, LocalVariable):
            return super()._update(var, fn, args, kwargs, group)
        args, kwargs = self._select_single_value(args), self._select_single_value(kwargs)
        result = update_on(self.replica_device if self.is_tracing else variable.device, variable, fn, args, kwargs)
        return result if group else tf.nest.map_structure(self._local_results, result)
