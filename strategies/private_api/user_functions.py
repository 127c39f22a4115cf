"""Functions of the user with `@tf.function`, of which tfdist traces the Python function, as `@tf.function` would."""

from collections.abc import Callable
from typing import Any

from tfdist.strategies.private_api import autoconvert_optionals
from tfdist.strategies.private_api.checks import need, need_attributes, need_function

# What `@tf.function` does to a Python function before it is traced, by default, and while it is traced.
Function: Any = need("tensorflow.python.eager.polymorphic_function.polymorphic_function", "Function")
need_attributes(Function, "_autograph", "_experimental_autograph_options", "_jit_compile")
need_function(Function, "_clone", "self, python_function", "calls")
_with_autograph: Any = need_function(
    need("tensorflow.python.eager.polymorphic_function.autograph_util"),
    "py_func_from_autograph",
    "python_func, autograph_options",
    "calls",
)
_AutographContext: Any = need("tensorflow.python.autograph.core.ag_ctx", "ControlStatusCtx")
_autograph_enabled: Any = need("tensorflow.python.autograph.core.ag_ctx", "Status", "ENABLED")


def without_optionals(model: Any, step: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `step` of `model` with the treatment of `tf.experimental.Optional` that this version of Keras has."""
    step = python_function(step)
    converted: Callable[..., Any] = autoconvert_optionals(model, step) if autoconvert_optionals else step
    return converted


def python_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the Python function of one with `@tf.function`, which AutoGraph converts; any other function as it is."""
    if not isinstance(function, Function) or not function._autograph:
        return getattr(function, "python_function", function)
    converted = _with_autograph(function.python_function, function._experimental_autograph_options)

    def with_autograph(*args: Any, **kwargs: Any) -> Any:
        with _AutographContext(status=_autograph_enabled):
            return converted(*args, **kwargs)

    return with_autograph


def is_compiled(function: Any) -> bool:
    """Returns whether XLA compiles a function with `@tf.function`."""
    return bool(function._jit_compile)


def leave_out_xla(function: Any) -> None:
    """Lets TensorFlow trace a function with `jit_compile=True` as one without it."""
    function._jit_compile = None


def copied(function: Any) -> Any:
    """Returns a function with `@tf.function` that is the same, and has no traces yet."""
    return function._clone(None)
