"""Where an epoch continues whose batches have another size than before a restart.

Many programs choose the size of a batch by the number of replicas, or divide the data by the number of tasks. If such a program
is started again on a cluster of another size, the batches that are done are other examples than as many batches of now.
"""

import contextlib
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_api import compute_batch_size


@dataclass(frozen=True)
class Batches:
    """The batches of an epoch.

    Attributes:
        size: how many examples one has; None if that is unknown.
        count: how many there are; None if that is unknown before the first epoch.
    """

    size: int | None = None
    count: int | None = None

    @classmethod
    def of(cls, iterator: Any) -> "Batches":
        """Returns the batches of an iterator of Keras, without reading them."""
        adapter, size = iterator.data_adapter, None
        dataset = getattr(adapter, "_dataset", None)
        with contextlib.suppress(tf.errors.OpError, IndexError, AttributeError):  # They begin with a scalar, or None.
            size = adapter.batch_size
            if size is None and isinstance(dataset, tf.data.Dataset):
                size = int(compute_batch_size(dataset))
        count = iterator.steps_per_epoch or adapter.num_batches
        return cls(size if size is not None and size > 0 else None, None if count is None else int(count))

    def differ(self, other: "Batches") -> bool:
        """Returns whether sizes or counts are known to differ."""
        pairs = ((self.size, other.size), (self.count, other.count))
        return any(None not in pair and pair[0] != pair[1] for pair in pairs)

    def converted(self, done: int, now: "Batches") -> tuple[int, str]:
        """Returns after how many batches an epoch goes on, and a sentence about it.

        Args:
            done: how many batches were done before the restart.
            now: the batches after the restart, which `differ`.
        """
        if self.size is not None and now.size is not None and self._has_as_many_examples(now):
            number, twice = divmod(done * self.size, now.size)
            rest = f", so that {twice} of the examples that are done count twice" if twice else ""
            return number, (
                f"its batches have {now.size} examples, and had {self.size} before the restart: the epoch continues after "
                f"{number} of them{rest}"
            )
        number = done if self.count is None or now.count is None else done * now.count // self.count
        return number, (
            f"its epochs have {now._described()}, and had {self._described()} before the restart: this one continues after "
            f"{number}, so that some of its examples may count twice, and others not at all"
        )

    def _described(self) -> str:
        size = "" if self.size is None else f" of {self.size}"
        return f"{self.count or 'an unknown number of'} batches{size}"

    def _has_as_many_examples(self, other: "Batches") -> bool:
        """Returns whether epochs may have the same examples; the last batch of each may have fewer than the others."""
        if self.size is None or other.size is None or self.count is None or other.count is None:
            return True
        return abs(self.size * self.count - other.size * other.count) < max(self.size, other.size)
