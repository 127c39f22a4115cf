"""Slices, scattered updates and `gather_nd` of a variable whose rows are sharded over ps tasks.

TensorFlow's own methods use the handle of a variable, and that is the first shard: rows of others would be lost.
"""

from functools import partialmethod
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_api.overrides import overrides
from tfdist.strategies.variable_base import InShards, VariableBase


class RowAccess(InShards):
    """What `ShardedVariable` computes by row numbers. Subclasses implement `_write` and `sparse_read`."""

    def sparse_read(self, indices: Any, name: Any = None) -> Any:
        """Looks rows up, as `tf.Variable.sparse_read`."""
        raise NotImplementedError

    def gather_nd(self, indices: Any, name: Any = None) -> Any:
        """Looks up elements or slices by their indices, as `tf.gather_nd`. Only the rows that hold them travel."""
        indices = tf.convert_to_tensor(indices)
        if self._here is not None or not indices.shape[-1]:
            return tf.gather_nd(tf.identity(self.value()), indices, name=name)
        rows = self.sparse_read(indices[..., 0])
        if indices.shape[-1] == 1:
            return rows
        flat = tf.reshape(rows, tf.concat([[-1], tf.constant(self._shape[1:].as_list(), tf.int32)], axis=0))
        inner = tf.reshape(indices[..., 1:], [-1, indices.shape[-1] - 1])
        numbers = tf.range(tf.shape(inner, out_type=inner.dtype)[0])[:, tf.newaxis]
        found = tf.gather_nd(flat, tf.concat([numbers, inner], axis=1), name=name)
        return tf.reshape(found, tf.concat([tf.shape(indices)[:-1], tf.shape(found)[1:]], axis=0))

    @overrides(VariableBase)
    def _strided_slice_assign(
        self,
        begin: Any,
        end: Any,
        strides: Any,
        value: Any,
        name: Any,
        begin_mask: Any,
        end_mask: Any,
        ellipsis_mask: Any,
        new_axis_mask: Any,
        shrink_axis_mask: Any,
    ) -> Any:
        """Assigns `variable[slice]`. Whole rows travel alone; of any other slice, the rows are read and written back."""
        value = tf.convert_to_tensor(value, self.dtype)
        begin, end, strides = map(tf.convert_to_tensor, (begin, end, strides))
        dimensions = begin.shape[0]
        if self._here is None and ellipsis_mask == 1 and dimensions == 1:  # v[...]
            return self._write("assign", tf.broadcast_to(value, self._shape))
        if self._here is not None or (ellipsis_mask | new_axis_mask) & 1:
            raise NotImplementedError(
                f"{self._name} is sharded by rows over {len(self.shards)} {self.where}, and a slice of it that is "
                "assigned has to begin with a number or a slice of rows; write the rows first, as in v[:, ..., 0].assign(value)"
            )
        one_row = shrink_axis_mask & 1
        masks = {"begin_mask": begin_mask & 1, "end_mask": end_mask & 1, "shrink_axis_mask": one_row}
        numbers = tf.range(tf.constant(self._shape[0], begin.dtype))
        rows = tf.reshape(tf.strided_slice(numbers, begin[:1], end[:1], strides[:1], **masks), [-1])
        if dimensions == 1:
            shape = tf.concat([tf.shape(rows), tf.constant(self._shape[1:].as_list(), tf.int32)], axis=0)
            changed = tf.broadcast_to(value, shape)
        else:
            changed = tf.raw_ops.TensorStridedSliceUpdate(
                input=self.sparse_read(rows),
                begin=begin,
                end=end,
                strides=tf.concat([tf.ones([1], strides.dtype), strides[1:]], axis=0),
                value=value[tf.newaxis] if one_row and value.shape.rank else value,
                begin_mask=begin_mask | 1,
                end_mask=end_mask | 1,
                ellipsis_mask=ellipsis_mask,
                new_axis_mask=new_axis_mask,
                shrink_axis_mask=shrink_axis_mask & ~1,
            )
        return self._write("scatter_update", tf.IndexedSlices(changed, rows))

    # Each shard changes the rows that it holds.

    def _scatter(self, method: str, sparse_delta: tf.IndexedSlices, use_locking: Any = False, name: Any = None) -> Any:
        if not isinstance(sparse_delta, tf.IndexedSlices):
            raise TypeError(f"{method} of {self._name} takes tf.IndexedSlices, and not {type(sparse_delta).__name__}")
        values, indices = tf.convert_to_tensor(sparse_delta.values, self.dtype), tf.convert_to_tensor(sparse_delta.indices)
        expected = indices.shape.concatenate(self._shape[1:])
        if values.shape.rank == 0:  # One number for all rows, which TensorFlow allows.
            shape = tf.concat([tf.shape(indices), tf.constant(self._shape[1:].as_list(), tf.int32)], axis=0)
            values = tf.broadcast_to(values, shape)
        elif self._here is None and not values.shape.is_compatible_with(expected):
            raise ValueError(
                f"{method} of {self._name}: the slices have the shape {values.shape}, and their indices ask for {expected}"
            )
        rows = tf.reshape(indices, [-1])  # A batch of slices may have several dimensions.
        values = tf.reshape(values, tf.concat([tf.shape(rows), tf.shape(values)[indices.shape.rank :]], axis=0))
        return self._write(method, tf.IndexedSlices(values, rows))

    def _scatter_nd(self, method: str, indices: Any, updates: Any, name: Any = None) -> Any:
        indices = tf.convert_to_tensor(indices)
        if indices.shape[-1] != 1:
            raise NotImplementedError(
                f"a scattered update of single elements of {self._name} cannot work: it is sharded by rows over "
                f"{len(self.shards)} {self.where}; update whole rows, or assign a slice, as in v[row, column].assign(value)"
            )
        return self._scatter(method, tf.IndexedSlices(updates, indices[..., 0]))


# As the methods of `tf.Variable` with these names; those with `nd` take whole rows.
for _method in ("add", "sub", "update", "max", "min", "mul", "div"):
    setattr(RowAccess, f"scatter_{_method}", partialmethod(RowAccess._scatter, f"scatter_{_method}"))
for _method in ("add", "sub", "update", "max", "min"):
    setattr(RowAccess, f"scatter_nd_{_method}", partialmethod(RowAccess._scatter_nd, f"scatter_{_method}"))
