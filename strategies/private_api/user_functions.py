"""Steps of models as tfdist traces them. Of one with `@tf.function` it traces the Python function, as `@tf.function` would."""

from collections.abc import Callable
from typing import Any

from tfdist.strategies.private_api import autoconvert_optionals
from tfdist.strategies.private_api.checks import need, need_attributes, need_function

# What `@tf.function` does to a Python function before it is traced, by default, and while it is traced.
_Function: Any = need("tensorflow.python.eager.polymorphic_function.polymorphic_function", "Function")
need_attributes(_Function, "_autograph", "_experimental_autograph_options")
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
    step = _python_function(step)
    converted: Callable[..., Any] = autoconvert_optionals(model, step) if autoconvert_optionals else step
    return converted


def _python_function(step: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the Python function of a step with `@tf.function`, which AutoGraph converts; any other step as it is.

    tfdist's function of a step contains it. One in between would be kept for other functions of tfdist, with tensors that only
    the first of them has.
    """
    if not isinstance(step, _Function) or not step._autograph:
        return getattr(step, "python_function", step)
    converted = _with_autograph(step.python_function, step._experimental_autograph_options)

    def with_autograph(data: Any) -> Any:
        with _AutographContext(status=_autograph_enabled):
            return converted(data)

    return with_autograph
