"""Operations of TensorFlow with functions or nested tensors among their arguments, for `patches.NESTED_OPERATIONS`."""

from typing import Any

import tensorflow as tf

from tfdist.strategies.private_api.checks import need

_FOLD = "fn, elems, initializer, parallel_iterations, back_prop, swap_memory"
custom_gradient: Any = need("tensorflow.python.ops.custom_gradient")

SIGNATURES: tuple[tuple[Any, str, str], ...] = (
    (need("tensorflow.python.ops.cond"), "cond", "pred, true_fn, false_fn, strict, name, fn1, fn2"),
    (
        need("tensorflow.python.ops.while_loop"),
        "while_loop",
        "cond, body, loop_vars, shape_invariants, parallel_iterations, back_prop, swap_memory, name, maximum_iterations, "
        "return_same_structure",
    ),
    (  # A loop of Python that AutoGraph converts: its state has the variables that it changes.
        need("tensorflow.python.autograph.operators.control_flow"),
        "_tf_while_stmt",
        "test, body, get_state, set_state, symbol_names, opts",
    ),
    (custom_gradient, "_eager_mode_decorator", "f, args, kwargs"),
    (custom_gradient, "_graph_mode_decorator", "f, args, kwargs"),
    (need("tensorflow.python.ops.script_ops"), "_wrap_for_composites", "func, inp, Tout"),
    (tf, "recompute_grad", "f"),
    (tf, "switch_case", "branch_index, branch_fns, default, name"),
    (tf, "vectorized_map", "fn, elems, fallback_to_while_loop, warn"),
    (tf, "map_fn", "fn, elems, dtype, parallel_iterations, back_prop, swap_memory, infer_shape, name, fn_output_signature"),
    (tf, "scan", f"{_FOLD}, infer_shape, reverse, name"),
    (tf, "foldl", f"{_FOLD}, name"),
    (tf, "foldr", f"{_FOLD}, name"),
)
"""The owner, the name and the parameters of each."""
