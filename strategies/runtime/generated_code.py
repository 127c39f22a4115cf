"""The code that AutoGraph generates from the user's functions: in memory, not in files.

TensorFlow writes each function into a file in the temporary folder, which it removes when Python ends, and Python adds a
compiled file, which nobody removes. A task that is killed leaves both. The files are only there for those who show the code:
tracebacks, debuggers and `inspect`. They also take it from the loader of a module.
"""

import importlib.abc
import importlib.util
import itertools
import linecache
import sys
from collections.abc import Callable
from typing import Any

from tfdist.strategies.private_api import patches

_numbers = itertools.count(1)


def install() -> None:
    """Keeps generated code in memory from now on. Calling it again does nothing."""
    patches.LOAD_GENERATED.patch(_load)


class _Loader(importlib.abc.ExecutionLoader):
    """Makes a module of a source in memory."""

    def __init__(self, source: str) -> None:
        self._source = source

    def get_source(self, fullname: str) -> str:
        """Returns the source."""
        return self._source

    def get_filename(self, fullname: str) -> str:
        """Returns the name that stands for a file."""
        return f"{fullname}.py"


def _load(original: Callable[..., Any], source: str, delete_on_exit: bool) -> Any:
    """Replaces TensorFlow's function; returns the module and the name of its file, as that does."""
    if not delete_on_exit:  # Somebody wants the file.
        return original(source, delete_on_exit)
    loader, name = _Loader(source), f"__autograph_generated_file{next(_numbers)}"
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    sys.modules[name] = module
    linecache.lazycache(loader.get_filename(name), vars(module))  # For those who know only the name of the file.
    return module, loader.get_filename(name)
