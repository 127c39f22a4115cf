"""Updates that a training loop of the user's own applies: in `strategy.run`, or outside of it."""

import contextlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.keras_hooks.build_scope import outside_of_steps, strategy_in_own_loop, strategy_of
from tfdist.strategies.keras_hooks.gradient_sums import pieces_of_all, sums_of
from tfdist.strategies.keras_hooks.held_optimizers import adopt_optimizer, ids_of_counters, variables_of
from tfdist.strategies.keras_hooks.interface import hooks_of, is_data_parallel, layout_of
from tfdist.strategies.keras_hooks.replicas import replica_context
from tfdist.strategies.keras_hooks.replicas.replica_context import Replica
from tfdist.strategies.keras_hooks.replicas.same_rows import with_values


def apply(original: Callable[..., Any], optimizer: Any, grads: list[Any], trainable_variables: list[Any] | None) -> Any:
    """Applies gradients outside of `fit`. `original` is Keras' `apply`, which gets the other arguments."""
    if (strategy := _strategy_outside_of_run(optimizer, trainable_variables)) is not None:
        strategy.tfdist_hooks.check_own_loop()
        adopt_optimizer(optimizer, strategy)
        is_in_scope = getattr(optimizer, "_distribution_strategy", None) is strategy
        with strategy.scope() if is_in_scope else contextlib.nullcontext():
            return original(optimizer, grads, trainable_variables)
    trainable_variables = built_in_own_loop(optimizer, trainable_variables)
    own = None if _accumulates_by_replica(optimizer) else _replica_in_run()
    if own is None:
        return original(optimizer, grads, trainable_variables)
    sums = _summed(optimizer, grads, trainable_variables)
    own.same.update(ids_of_counters(optimizer))
    with replica_context.entered(own):
        return original(optimizer, sums, trainable_variables)


def built_in_own_loop(optimizer: Any, variables: Any) -> Any:
    """Builds an optimizer for a step of the user's own in `strategy.run`, if it is not built; elsewhere it does nothing.

    Returns:
        The variables.

    Raises:
        ValueError: if a variable, or the optimizer with its variables, was made outside of the scope of the strategy.
    """
    strategy = None if variables is None else strategy_in_own_loop()
    if strategy is None:
        return variables
    if not is_data_parallel(strategy):  # The chief is no replica: it has the update alone, or a worker runs the function.
        strategy.tfdist_hooks.check_own_loop()
    variables = list(variables)
    for variable in variables:
        if strategy_of(getattr(variable, "_value", variable)) is not strategy:
            raise ValueError(
                f"{getattr(variable, 'path', variable.name)} was made outside the strategy's scope, and strategy.run cannot "
                "train it; make the model inside `with strategy.scope():`"
            )
    if hooks_of(getattr(optimizer, "_distribution_strategy", strategy)) is None and optimizer.built:
        raise ValueError(
            f"the optimizer {optimizer.name} was built outside the strategy's scope, and its variables cannot move; make it "
            "inside `with strategy.scope():`"
        )

    def build() -> None:
        adopt_optimizer(optimizer, strategy)
        optimizer.build(variables)

    if not optimizer.built:
        outside_of_steps(strategy, build)
    return variables


def _strategy_outside_of_run(optimizer: Any, trainable_variables: Any) -> Any:
    """Returns the strategy whose variables a loop updates outside of `strategy.run`; None in it, and for other strategies.

    Raises:
        ValueError: if the optimizer is of a strategy of tfdist and a variable is not.
    """
    own = getattr(optimizer, "_distribution_strategy", None)
    strategies = [own]
    for variable in variables_of(optimizer, trainable_variables):
        value = getattr(variable, "_value", variable)
        strategies.append(strategy_of(value))
        if hooks_of(own) is not None and strategies[-1] is not own:
            raise ValueError(
                f"the optimizer {optimizer.name} was made inside the strategy's scope and {variable.name} outside; make the "
                "model, too, inside `with strategy.scope():`"
            )
    strategy = next((each for each in strategies if hooks_of(each) is not None), None)
    context = tf.distribute.get_replica_context()
    return None if context is not None and context.strategy is strategy else strategy


def _accumulates_by_replica(optimizer: Any) -> bool:
    """Returns whether each replica accumulates its own gradients in `strategy.run`, as Keras does where it can: eagerly.

    Gradients that are clipped have to be summed before.
    """
    clips = any(getattr(optimizer, name, None) is not None for name in ("clipnorm", "global_clipnorm", "clipvalue"))
    return bool(optimizer.gradient_accumulation_steps) and tf.executing_eagerly() and not clips


def _replica_in_run() -> Replica | None:
    """Returns the replica that runs a step of the user's own in `strategy.run`; else None."""
    if (strategy := strategy_in_own_loop()) is None:
        return None
    layout = layout_of(strategy)
    number = tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
    return Replica(strategy, int(number) if layout is None else layout.local_index(), None, reduced=True)


def _summed(optimizer: Any, grads: Any, trainable_variables: Any) -> list[Any]:
    """Returns the sums of gradients over the replicas as Keras computes them, but before it clips or accumulates them."""

    def summed(flat: list[Any], same: list[bool]) -> list[Any]:
        present = [(p.values if is_same else p, None) for p, is_same in zip(flat, same, strict=True) if p is not None]
        sums = iter(optimizer._all_reduce_sum_gradients(present) if present else ())
        totals = [None if piece is None else next(sums)[0] for piece in flat]
        return [with_values(p, total) if is_same else total for p, total, is_same in zip(flat, totals, same, strict=True)]

    return sums_of(pieces_of_all(optimizer, grads, trainable_variables), summed)
