"""Checks that the installed TensorFlow and Keras have the private names that tfdist builds on."""

import ctypes
import dis
import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

from tfdist.errors import UnsupportedVersionError
from tfdist.strategies import versions


def need(module: str, *path: str, since: str | None = None) -> Any:
    """Imports `module` and returns the attribute at `path` in it.

    Args:
        module: the full name of a module.
        path: names of attributes.
        since: the first minor version of the package that has it. In an older one the result is None.

    Raises:
        UnsupportedVersionError: if the module or the attribute does not exist.
    """
    if _is_before(module, since):
        return None
    try:
        member: Any = importlib.import_module(module)
        for name in path:
            member = _member(member, name)
    except (ImportError, AttributeError) as cause:
        raise _unsupported(module, f"has no {'.'.join((module, *path))}, which tfdist needs") from cause
    return member


def _member(owner: Any, name: str) -> Any:
    """Returns what `from owner import name` does: after Ctrl-C in `import keras`, packages may lack their modules."""
    try:
        return getattr(owner, name)
    except AttributeError:
        full_name = f"{getattr(owner, '__name__', '')}.{name}"
        if full_name not in sys.modules:
            raise
        return sys.modules[full_name]


def need_function(owner: Any, name: str, parameters: str | None, use: str, *, since: str | None = None) -> Any:
    """Returns the plain function, method or property getter `name` of `owner`.

    Args:
        owner: a class or a module.
        name: the attribute; a class may inherit it.
        parameters: the names of its parameters, separated by commas, `self` included; None for any.
        use: what tfdist does with it, for the error message: "replaces", "overrides".
        since: the first minor version of the package that has it. In an older one the result is None.

    Raises:
        UnsupportedVersionError: if `owner` has no such function, or one with other parameters.
    """
    if _is_before(getattr(owner, "__module__", owner.__name__), since):
        return None
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


def need_c_function(module: str, name: str, result: Any, *arguments: Any) -> Any:
    """Returns a function of TensorFlow's C interface (tensorflow/c). A call of it releases Python's lock meanwhile.

    Args:
        module: the full name of an extension module that is linked with the function.
        name: the function.
        result: the type of its result, of `ctypes`; None for void.
        arguments: the types of its arguments.

    Raises:
        UnsupportedVersionError: if there is no such function.
    """
    try:
        function = getattr(ctypes.CDLL(need(module, "__file__")), name)
    except (OSError, AttributeError) as cause:
        raise _unsupported(module, f"has no C function {name}, which tfdist calls") from cause
    function.restype, function.argtypes = result, arguments
    return function


def plain_function(attribute: Any) -> Callable[..., Any] | None:
    """Returns the function inside a property, classmethod or staticmethod; None for an attribute that is no function."""
    function = getattr(attribute, "fget", None) or getattr(attribute, "__func__", attribute)
    return function if callable(function) else None


def parameters_of(function: Callable[..., Any]) -> str:
    """Returns the names of the parameters of `function`, separated by commas."""
    return ", ".join(inspect.signature(function).parameters)


def _is_before(module: str, since: str | None) -> bool:
    return since is not None and versions.minor(versions.INSTALLED[_package(module)]) < versions.minor(since)


def _unsupported(module: str, fault: str) -> UnsupportedVersionError:
    return versions.unsupported(_package(module), fault)


def _package(module: str) -> str:
    return module.partition(".")[0]
