"""Where an epoch continues whose batches have another size than before a restart.

Many programs choose the size of a batch by the number of replicas. If such a program is started again on a cluster of another
size, the batches that are done are other examples than as many batches of now.
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
        adapter = iterator.data_adapter
        size = adapter.batch_size
        dataset = getattr(adapter, "_dataset", None)
        if size is None and isinstance(dataset, tf.data.Dataset):
            with contextlib.suppress(tf.errors.OpError, IndexError):  # It has tensors that are no batches.
                size = int(compute_batch_size(dataset))
        count = iterator.steps_per_epoch or adapter.num_batches
        return cls(size if size is not None and size > 0 else None, None if count is None else int(count))

    def differ(self, other: "Batches") -> bool:
        """Returns whether both are known to be of different sizes."""
        pairs = ((self.size, other.size), (self.count, other.count))
        return next((one != another for one, another in pairs if one is not None and another is not None), False)

    def converted(self, done: int, now: "Batches") -> tuple[int, str]:
        """Returns how many batches of `now` have the examples of the first `done` batches, and a sentence about it.

        Args:
            done: how many batches are done.
            now: the batches after the restart, which `differ`.
        """
        if self.size is None or now.size is None:
            assert self.count is not None and now.count is not None
            number = done * now.count // self.count
            return number, (
                f"its epochs have {now.count} batches, and had {self.count} before the restart: this one continues after "
                f"{number}, so that some of its examples may count twice, and others not at all"
            )
        number, twice = divmod(done * self.size, now.size)
        rest = f", so that {twice} of the examples that are done count twice" if twice else ""
        return number, (
            f"its batches have {now.size} examples, and had {self.size} before the restart: the epoch continues after "
            f"{number} of them{rest}"
        )
