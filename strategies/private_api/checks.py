"""Checks that the installed TensorFlow and Keras have the private names that tfdist builds on."""

import dis
import importlib
import inspect
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

TRIED = {"tensorflow": "2.21.0", "keras": "3.15.1"}
"""The versions with which tfdist has been tested."""

INSTALLED = {"tensorflow": tf.__version__, "keras": keras.__version__}


class UnsupportedVersionError(RuntimeError):
    """The installed TensorFlow or Keras lacks a private name that tfdist builds on, or has another under this name."""


def need(module: str, *path: str) -> Any:
    """Imports `module` and returns the attribute at `path` in it.

    Raises:
        UnsupportedVersionError: if the module or the attribute does not exist.
    """
    try:
        found: Any = importlib.import_module(module)
        for name in path:
            found = getattr(found, name)
    except (ImportError, AttributeError) as cause:
        raise _unsupported(module, f"has no {'.'.join((module, *path))}, which tfdist needs") from cause
    return found


def need_function(owner: Any, name: str, parameters: str | None, use: str) -> Any:
    """Returns the plain function, method or property getter `name` of `owner`.

    Args:
        owner: a class or a module.
        name: the attribute; a class may inherit it.
        parameters: the names of its parameters, separated by commas, `self` included; None for any.
        use: what tfdist does with it, for the error message: "replaces", "overrides".

    Raises:
        UnsupportedVersionError: if `owner` has no such function, or one with other parameters.
    """
    full_name = f"{getattr(owner, '__qualname__', owner.__name__)}.{name}"
    module = getattr(owner, "__module__", owner.__name__)
    found = plain_function(inspect.getattr_static(owner, name, None))
    if found is None:
        raise _unsupported(module, f"has no {full_name}, which tfdist {use}")
    present = parameters_of(found)
    if parameters is not None and present != parameters:
        raise _unsupported(module, f"has {full_name}({present}), and tfdist {use} {full_name}({parameters})")
    return getattr(owner, name)


def need_attributes(owner: Any, *names: str) -> None:
    """Checks that the objects of class `owner` have attributes of these names: that its `__init__` assigns them.

    Raises:
        UnsupportedVersionError: if it does not assign one of them.
    """
    initialize = plain_function(inspect.getattr_static(owner, "__init__"))
    code = getattr(initialize, "__code__", None)
    assigned = {step.argval for step in dis.get_instructions(code) if step.opname == "STORE_ATTR"} if code else set()
    for name in names:
        if name not in assigned:
            raise _unsupported(owner.__module__, f"has no {owner.__qualname__}.{name}, which tfdist needs")


def plain_function(attribute: Any) -> Callable[..., Any] | None:
    """Returns the function inside a property, classmethod or staticmethod; None for an attribute that is no function."""
    function = getattr(attribute, "fget", None) or getattr(attribute, "__func__", attribute)
    return function if callable(function) else None


def parameters_of(function: Callable[..., Any]) -> str:
    """Returns the names of the parameters of `function`, separated by commas."""
    return ", ".join(inspect.signature(function).parameters)


def _unsupported(module: str, found: str) -> UnsupportedVersionError:
    package = module.partition(".")[0]
    tried = TRIED.get(package, "another version")
    return UnsupportedVersionError(
        f"{package} {INSTALLED.get(package, '')} {found}; tfdist has been tested with {package} {tried}: "
        f"pip install '{package}=={tried}'"
    )
