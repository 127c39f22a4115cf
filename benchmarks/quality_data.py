"""What `quality.py` trains on: mnist1d, generated, and the text of Python's own documentation."""

import functools
import os
import tempfile

import numpy as np

GROUPS = 8
FEATURES, HIDDEN, CLASSES = 40, 128, 10
LOCAL_BATCH = 32
STEPS = 3000
"""Of each group; synchronous training makes as many with the batches of all groups."""

_SIZES = {"train": 40_000, "validation": 10_000, "test": 10_000}
_SEEDS = {"train": 42, "validation": 43, "test": 44}


@functools.cache
def mnist1d():
    """{split: (x [examples, 40] float32, y [examples] int64)}; each split is drawn with a seed of its own."""
    file = os.path.join(tempfile.gettempdir(), "tfdist_benchmark_mnist1d.npz")
    if not os.path.exists(file):
        values = {}
        for split, size in _SIZES.items():
            values[f"{split}_x"], values[f"{split}_y"] = _draw(size, _SEEDS[split])
        with tempfile.NamedTemporaryFile(dir=os.path.dirname(file), suffix=".npz", delete=False) as new:
            np.savez(new, **values)
        os.replace(new.name, file)
    with np.load(file) as held:
        return {split: (held[f"{split}_x"], held[f"{split}_y"]) for split in _SIZES}


def _draw(size, seed):
    from mnist1d.data import get_dataset_args, make_dataset

    args = get_dataset_args()
    args.num_samples, args.train_split, args.seed = size, 1.0, seed
    drawn = make_dataset(args)
    return drawn["x"].astype("float32"), drawn["y"].astype("int64")


@functools.cache
def text():
    """{split: characters, uint8 [length]} of `pydoc_data.topics`, and how many there are; of each 20 blocks one is for tests.

    Python's documentation of its language, 465,000 characters in Python 3.11. Blocks have 2,048 characters.
    """
    from pydoc_data import topics

    whole = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    characters, codes = np.unique(np.frombuffer(whole.encode("utf-32-le"), "uint32"), return_inverse=True)
    blocks = codes.astype("uint8")[: len(codes) // 2048 * 2048].reshape(-1, 2048)
    place = np.arange(len(blocks)) % 20
    splits = {"train": place < 18, "validation": place == 18, "test": place == 19}
    return {split: blocks[chosen].reshape(-1) for split, chosen in splits.items()}, len(characters)
