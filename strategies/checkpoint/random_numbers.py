"""The generators of random numbers with which a program, and Keras, shuffle data on the chief."""

import random
import sys
from typing import Any

import numpy as np


def state() -> Any:
    """Returns the states by which Keras' `PyDataset`, generators and PyTorch's `DataLoader` shuffle, for JSON.

    They are those of `random`, `numpy.random` and, if the program has imported it, PyTorch.
    """
    kind, keys, *rest = np.random.get_state(legacy=True)
    states = [random.getstate(), [kind, np.asarray(keys).tolist(), *rest]]
    torch: Any = sys.modules.get("torch")
    return [*states, torch.get_rng_state().tolist()] if hasattr(torch, "get_rng_state") else states


def set_state(saved: Any) -> None:
    """Sets what `state` returned. None in the place of a state leaves that one as it is."""
    of_python, of_numpy, *of_torch = saved
    if of_python is not None:
        version, words, gauss_next = of_python
        random.setstate((version, tuple(words), gauss_next))
    if of_numpy is not None:
        kind, keys, *rest = of_numpy
        np.random.set_state((kind, np.array(keys, np.uint32), *rest))
    torch: Any = sys.modules.get("torch")
    if of_torch and of_torch[0] is not None and hasattr(torch, "set_rng_state"):
        torch.set_rng_state(torch.from_numpy(np.array(of_torch[0], np.uint8)))


def drawn(before: Any) -> list[bool]:
    """Returns from which generators somebody has drawn since `state` returned `before`."""
    return [now != then for now, then in zip(state(), before, strict=False)]
