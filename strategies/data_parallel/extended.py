"""TensorFlow's implementation of mirrored replicas, with replicas of a step function that meet in collectives only."""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist.strategies.keras_hooks.replicas.replica_context import current, note_read_of_replicas
from tfdist.strategies.model_parallel.described import DescribedLayouts
from tfdist.strategies.model_parallel.layouts import LocalMesh
from tfdist.strategies.model_parallel.split_variable import SplitVariable
from tfdist.strategies.model_parallel.variables import current_column
from tfdist.strategies.private_api import MirroredExtended
from tfdist.strategies.private_api.overrides import overrides
from tfdist.strategies.variable_base import on_shards


class DataParallelExtended(MirroredExtended):
    """TensorFlow's extended MirroredStrategy, also a base of that of MultiWorkerMirroredStrategy.

    Attributes:
        mesh: the devices of each replica of this task, if `keras.distribution` or the description of the cluster gives them;
            None otherwise.
        described: the layouts that the description of the cluster gives; None if it gives none.
        followed: the distribution of `keras.distribution` that gives the mesh; None if none does.
        has_variables: whether a variable was created.
    """

    mesh: LocalMesh | None = None
    described: DescribedLayouts | None = None
    followed: Any = None
    has_variables = False
    _tfdist_tracing = 0

    def of_chief(self, value: tf.Tensor) -> tf.Tensor:
        """Returns the value that a tensor has in the first task, if the replicas span tasks."""
        return value

    def alike(self, value: tf.Tensor) -> tf.Tensor:
        """Returns the value that a tensor has in the first task of the replica: other tasks may have rounded differently."""
        return value

    def check_same(self, nested: Any) -> None:
        """Checks, in a step, that all tasks of a replica have the same nested tensors."""

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Surrounds the tracing of one of tfdist's step functions."""
        self._tfdist_tracing += 1
        try:
            yield
        finally:
            self._tfdist_tracing -= 1

    @property
    @overrides(MirroredExtended)
    def _num_replicas_in_sync(self) -> int:
        note_read_of_replicas()
        return int(super()._num_replicas_in_sync)

    @overrides(MirroredExtended)
    def _use_merge_call(self) -> bool:
        """Returns False in a compiled step: unlike collectives, `merge_call` cannot stand in a `cond`.

        Nor can it in the user's functions if variables are sharded: it knows no `SplitTensor`. Once the gradients are added up
        every replica makes the same update by itself, in a loop of the user's own, too.
        """
        if (replica := current()) is not None and replica.reduced:
            return False
        is_sharded = self.mesh is not None and self.mesh.axis is not None
        return super()._use_merge_call() and (tf.executing_eagerly() or not (self._tfdist_tracing or is_sharded))

    @overrides(MirroredExtended)
    def _replica_ctx_all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        replica = current()
        if replica is not None and replica.recorded is not None:
            raise NotImplementedError("a step that is only tried out cannot add up over the replicas")
        if replica is not None and replica.postponed is not None:
            raise ValueError(
                "jit_compile=True does not work if the step itself adds up values over the replicas, as "
                "BatchNormalization(synchronized=True) does: XLA cannot compile that; leave jit_compile at 'auto'"
            )
        return super()._replica_ctx_all_reduce(reduce_op, value, options)

    # Variables that are sharded over the devices of a replica.

    @overrides(MirroredExtended)
    def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        self.has_variables = True
        column = current_column()
        if column is not None:
            kwargs["colocate_with"] = column
        return super()._create_variable(next_creator, **kwargs)

    @overrides(MirroredExtended)
    def _validate_colocate_with_variable(self, colocate_with_variable: Any) -> None:
        if not isinstance(colocate_with_variable, SplitVariable):
            super()._validate_colocate_with_variable(colocate_with_variable)

    @overrides(MirroredExtended)
    def _update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: Any) -> Any:
        if not isinstance(var, SplitVariable):
            return super()._update(var, fn, args, kwargs, group)
        return on_shards(super()._update, var, fn, args, kwargs, group)

    @overrides(MirroredExtended)
    def _replica_ctx_update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: Any) -> Any:
        if not isinstance(var, SplitVariable) or self._use_merge_call():
            return super()._replica_ctx_update(var, fn, args, kwargs, group)
        return on_shards(super()._replica_ctx_update, var, fn, args, kwargs, group)
