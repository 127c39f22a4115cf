"""TensorFlow's implementation of mirrored replicas, with replicas of a step function that meet in collectives only."""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist.strategies.keras_hooks.replica_context import current
from tfdist.strategies.private_api import MirroredExtended
from tfdist.strategies.private_api.overrides import overrides


class DataParallelExtended(MirroredExtended):
    """TensorFlow's extended MirroredStrategy, also a base of that of MultiWorkerMirroredStrategy."""

    _tfdist_tracing = 0

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Surrounds the tracing of one of tfdist's step functions."""
        self._tfdist_tracing += 1
        try:
            yield
        finally:
            self._tfdist_tracing -= 1

    @overrides(MirroredExtended)
    def _use_merge_call(self) -> bool:
        """Returns False in a compiled step: unlike collectives, `merge_call` cannot stand in a `cond`."""
        return super()._use_merge_call() and (tf.executing_eagerly() or not self._tfdist_tracing)

    @overrides(MirroredExtended)
    def _replica_ctx_all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        replica = current()
        if replica is not None and replica.postponed is not None:
            raise ValueError(
                "jit_compile=True does not work if the step itself adds up values over the replicas, as "
                "BatchNormalization(synchronized=True) does: XLA cannot compile that; leave jit_compile at 'auto'"
            )
        return super()._replica_ctx_all_reduce(reduce_op, value, options)
