"""Keras' optimizers for replicas that update together.

Under TensorFlow's own strategies Keras 3 clips each replica's gradients before they are added up, and it can neither accumulate
gradients nor overwrite weights by their averages (`merge_call` inside `cond`). Inside a step function of tfdist
(`replica_context.current()`), and in `strategy.run` of a data-parallel strategy, gradients are added up first. The rest of the
update is then the same on every replica. Everywhere else Keras' own code runs.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.attributes import replaced
from tfdist.strategies.keras_hooks import losses, metric_updates, step_build, update_kernels, variables
from tfdist.strategies.keras_hooks.build_scope import outside_of_steps, strategy_in_own_loop, strategy_of
from tfdist.strategies.keras_hooks.checks.own_code import is_known
from tfdist.strategies.keras_hooks.interface import hooks_of, is_data_parallel
from tfdist.strategies.keras_hooks.replicas import batch_normalization, batch_sums, decibels, own_values, replica_context
from tfdist.strategies.keras_hooks.replicas.overwritten import is_overwritten, with_largest
from tfdist.strategies.keras_hooks.replicas.reduction import all_reduce_sum
from tfdist.strategies.keras_hooks.replicas.replica_context import Replica
from tfdist.strategies.keras_hooks.replicas.same_rows import (
    DISTINCT,
    OF_EXAMPLES,
    SAME,
    Pieces,
    each_once,
    joined,
    pieces_of,
    with_values,
)
from tfdist.strategies.private_api import ResourceVariable, patches

ELEMENTWISE = frozenset(
    (
        keras.optimizers.SGD,
        keras.optimizers.RMSprop,
        keras.optimizers.Adam,
        keras.optimizers.AdamW,
        keras.optimizers.Adadelta,
        keras.optimizers.Adagrad,
        keras.optimizers.Adamax,
        keras.optimizers.Nadam,
        keras.optimizers.Ftrl,
        keras.optimizers.Lion,
    )
)
"""Optimizers that update each element by itself. Lamb, Muon, Adafactor and unknown optimizers need the whole variable."""


def install() -> None:
    """Makes optimizers, losses and variables of Keras ask for the current replica. Calling it again does nothing."""
    for apply in patches.APPLY.values():
        apply.patch(_apply)
    patches.SCALE_BY_OPTIMIZER.patch(_scale_loss)
    patches.SCALE_BY_FACTOR.patch(_scale_by_factor)
    patches.ALL_REDUCE_GRADIENTS.patch(_all_reduce_gradients)
    losses.install()
    batch_normalization.install()
    batch_sums.install()
    decibels.install()
    metric_updates.install()
    update_kernels.install()
    variables.install()


def _apply(original: Callable[..., Any], optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
    replica = replica_context.current()
    if step_build.is_building():
        return None
    grads, trainable_variables = list(grads), None if trainable_variables is None else list(trainable_variables)
    if replica is not None and replica.recorded is not None:
        pairs = itertools.zip_longest(grads, variables_of(optimizer, trainable_variables))
        recorded = [(None, gradient) for gradient, v in pairs if gradient is not None and not is_overwritten(v)]
        replica.recorded += recorded
        replica.sizes_of_updates.append(len(recorded))
        if replica.unbuilt is not None and not optimizer.built and trainable_variables is not None:
            replica.unbuilt.append((optimizer, trainable_variables))
        return None
    if replica is None and (strategy := _strategy_of_own_loop(optimizer, trainable_variables)) is not None:
        strategy.tfdist_hooks.check_own_loop()
        adopt_optimizer(optimizer, strategy)
        is_in_scope = getattr(optimizer, "_distribution_strategy", None) is strategy
        with strategy.scope() if is_in_scope else contextlib.nullcontext():
            return original(optimizer, grads, trainable_variables)
    if replica is None:
        trainable_variables = built_in_own_loop(optimizer, trainable_variables)
    if replica is None and not _accumulates_by_replica(optimizer) and (own := _replica_of_own_loop()) is not None:
        sums = _summed(optimizer, grads, trainable_variables)
        own.same.update(_ids_of_counters(optimizer))
        with replica_context.entered(own):
            return original(optimizer, sums, trainable_variables)
    if replica is None or replica.reduced or not tf.distribute.get_replica_context():
        return original(optimizer, grads, trainable_variables)
    if replica.unbuilt is not None and not optimizer.built:
        replica.unbuilt.append((optimizer, trainable_variables))
        return None
    if trainable_variables is not None and not optimizer.built and not tf.executing_eagerly():
        # Adafactor makes variables of numbers, which are in the loop of steps otherwise, and not to be had outside of it.
        with tf.init_scope(), keras.name_scope(optimizer.name, caller=optimizer):
            optimizer.build(trainable_variables)
    if replica.postponed is not None:
        if replica.postponed:
            raise ValueError(
                "jit_compile=True compiles the gradients of a step and updates after it, so one step can have one update, "
                "and this train_step applies gradients twice; leave jit_compile at 'auto'"
            )
        replica.postponed.append((functools.partial(_apply, original, optimizer), (optimizer, grads, trainable_variables)))
        replica.before_update = len(tf.compat.v1.get_default_graph().get_operations())
        return None
    if not tf.executing_eagerly() and replica.graph not in (None, graph := tf.compat.v1.get_default_graph()):
        replica.branches.append(graph)
        layout = getattr(hooks_of(replica.strategy), "layout", None)
        if replica.share is not None and (layout is None or len(layout.local) > 1):
            raise ValueError(
                "the step applies gradients in a tf.cond, an `if` on a tensor, or a loop of TensorFlow, where the replicas of "
                "a task or worker group cannot add them up. Update in every step, or have one replica in each"
            )
    replica.same.update(_ids_of_counters(optimizer))
    updates = zip(grads, variables_of(optimizer, trainable_variables), strict=False)
    replica.updated.update(id(variable) for gradient, variable in updates if gradient is not None)  # Keras leaves others out.
    share = None if id(optimizer) in replica.weighted else replica.share
    if replica.agree is not None:
        replica.agree(f"updates with {optimizer.name}")
    own_values.take_means(replica, variables_of(optimizer, trainable_variables))
    pieces = replica.pieces or pieces_of_all(optimizer, grads, trainable_variables)
    weighted = functools.partial(_weighted, share=share, is_real=replica.share > 0 if replica.may_be_empty else None)
    sums = _sums_of(pieces, lambda flat, same: all_reduce_sum([weighted(piece) for piece in flat], same))
    if replica.share is not None:
        sums = with_largest(sums, grads, variables_of(optimizer, trainable_variables))
    with replaced(replica, reduced=True):
        return original(optimizer, sums, trainable_variables)


def adopt_own_updates(optimizers: Iterable[Any]) -> None:
    """Makes optimizers whose class overrides `apply` or `apply_gradients` get sums of gradients over replicas that do the same.

    What they compute with gradients may not be what replicas together compute with those of their shards, as if they clip.
    Those of worker groups get the gradients of a shard: on a ps, code of the user's may change what several groups share.
    """
    for optimizer in optimizers:
        for name, replacement in (("apply", _apply), ("apply_gradients", _apply_pairs)):
            owner = next(each for each in type(optimizer).__mro__ if name in vars(each))
            if not is_known(owner) and not hasattr(vars(owner)[name], "tfdist_original"):
                _adopt_own_update(owner, name, replacement)


def _adopt_own_update(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
    original = vars(owner)[name]

    @functools.wraps(original)
    def apply(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        is_here = is_data_parallel(optimizer._distribution_strategy)
        return replacement(original, optimizer, *args, **kwargs) if is_here else original(optimizer, *args, **kwargs)

    apply.tfdist_original = original  # type: ignore[attr-defined]
    setattr(owner, name, apply)


def _apply_pairs(original: Callable[..., Any], optimizer: Any, grads_and_vars: Any) -> Any:
    def apply(optimizer: Any, grads: Any, trainable_variables: Any) -> Any:
        return original(optimizer, list(zip(grads, trainable_variables, strict=True)))

    pairs = list(grads_and_vars)
    return _apply(apply, optimizer, [gradient for gradient, _ in pairs], [variable for _, variable in pairs])


def variables_of(optimizer: Any, trainable_variables: Any) -> Any:
    """Returns the variables that `optimizer.apply` updates, given those that it got."""
    return trainable_variables or getattr(optimizer, "_trainable_variables", ())


def pieces_of_all(optimizer: Any, gradients: Sequence[Any], variables: Any) -> list[Pieces]:
    """Returns the pieces of each gradient that `optimizer.apply` gets, in the function that computes them."""
    if tf.distribute.get_replica_context().num_replicas_in_sync == 1:
        return [[(gradient, OF_EXAMPLES)] for gradient in gradients]
    tables = itertools.chain(variables_of(optimizer, variables), itertools.repeat(None))
    return [pieces_of(gradient, table) for gradient, table in zip(gradients, tables, strict=False)]


def _sums_of(pieces: list[Pieces], summed: Callable[[list[Any], list[bool]], list[Any]]) -> list[Any]:
    """Returns the sum of each gradient over the replicas.

    Args:
        pieces: the pieces of each gradient.
        summed: returns the sum of each piece. It gets all pieces, and whether the rows of each are the same on all replicas.
    """
    flat = [piece for own in pieces for piece in own]
    sums = iter(summed([piece for piece, _ in flat], [kind == SAME for _, kind in flat]))
    return [joined([each_once(next(sums)) if kind == DISTINCT else next(sums) for _, kind in own]) for own in pieces]


def built_in_own_loop(optimizer: Any, variables: Any) -> Any:
    """Builds an optimizer for a step of the user's own in `strategy.run`, if it is not built; elsewhere it does nothing.

    Args:
        optimizer: the optimizer.
        variables: what `apply` gets.

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


def _scale_loss(original: Callable[..., Any], optimizer: Any, loss: Any) -> Any:
    if not optimizer.built and tf.inside_function() and strategy_in_own_loop() is not None:
        raise ValueError(
            f"{optimizer.name} is not built, and the function that calls scale_loss would keep its first scale for ever; call "
            "optimizer.build(model.trainable_variables) inside `with strategy.scope():` before the first step"
        )
    return original(optimizer, _by_share(optimizer, loss))


def _scale_by_factor(original: Callable[..., Any], optimizer: Any, loss: Any) -> Any:
    return original(optimizer, loss if optimizer.loss_scale_factor is None else _by_share(optimizer, loss))


def _by_share(optimizer: Any, loss: Any) -> Any:
    """Returns a loss that is to be scaled as the replica's part of the loss of the batch.

    Its gradients then count in full. In float16 those of the mean over a shard would overflow at a smaller scale than those of
    the mean over the batch: by as many times smaller as there are replicas.
    """
    replica = replica_context.with_share()
    if replica is None or replica.recorded is not None:
        return loss
    replica.weighted.update(map(id, with_inner(optimizer)))  # A step may unscale gradients itself, for the inner optimizer.
    loss = tf.convert_to_tensor(loss)
    return loss * tf.cast(replica.share, loss.dtype)


def _accumulates_by_replica(optimizer: Any) -> bool:
    """Returns whether each replica accumulates its own gradients in `strategy.run`, as Keras does where it can: eagerly.

    Gradients that are clipped have to be summed before.
    """
    clips = any(getattr(optimizer, name, None) is not None for name in ("clipnorm", "global_clipnorm", "clipvalue"))
    return bool(optimizer.gradient_accumulation_steps) and tf.executing_eagerly() and not clips


def _replica_of_own_loop() -> Replica | None:
    """Returns the replica that runs a step of the user's own in `strategy.run`; else None."""
    if (strategy := strategy_in_own_loop()) is None:
        return None
    layout = getattr(hooks_of(strategy), "layout", None)
    number = tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
    return Replica(strategy, int(number) if layout is None else layout.local_index(), None, reduced=True)


def _summed(optimizer: Any, grads: Any, trainable_variables: Any) -> list[Any]:
    """Returns the sums of gradients over the replicas as Keras computes them, but before it clips or accumulates them."""

    def summed(flat: list[Any], same: list[bool]) -> list[Any]:
        present = [(p.values if is_same else p, None) for p, is_same in zip(flat, same, strict=True) if p is not None]
        sums = iter(optimizer._all_reduce_sum_gradients(present) if present else ())
        totals = [None if piece is None else next(sums)[0] for piece in flat]
        return [with_values(p, total) if is_same else total for p, total, is_same in zip(flat, totals, same, strict=True)]

    return _sums_of(pieces_of_all(optimizer, grads, trainable_variables), summed)


def _strategy_of_own_loop(optimizer: Any, trainable_variables: Any) -> Any:
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


def _all_reduce_gradients(original: Callable[..., Any], optimizer: Any, grads_and_vars: Any) -> Any:
    pairs, replica = list(grads_and_vars), replica_context.current()
    if replica is not None and replica.reduced:
        return pairs
    if any(isinstance(gradient, tf.experimental.ExtensionType) for gradient, _ in pairs):  # Sharded, in a loop of the user.
        sums = all_reduce_sum([gradient for gradient, _ in pairs])
        return [(total, variable) for total, (_, variable) in zip(sums, pairs, strict=True)]
    return original(optimizer, pairs)


def held_optimizers(model: Any) -> list[Any]:
    """Returns the optimizers of a model: that of `compile`, then those in attributes of the model and its layers, each once.

    Lists, tuples, sets and dicts in these attributes are searched, too. `with_inner` adds the optimizers inside them.
    """
    layers = (model, *model._flatten_layers(include_self=False))
    return _optimizers_in([getattr(model, "optimizer", None), *(value for layer in layers for value in vars(layer).values())])


def _optimizers_in(waiting: list[Any]) -> list[Any]:
    """Returns the optimizers among values, and in lists, tuples, sets and dicts among them, each once."""
    found: dict[int, Any] = {}
    for value in waiting:  # It grows by the contents of containers.
        if id(value) in found:
            continue
        found[id(value)] = value
        if isinstance(value, dict | list | tuple | set):  # `+=` would make a list of its own of TensorFlow's ListWrapper.
            waiting.extend(value.values() if isinstance(value, dict) else value)
    return [value for value in found.values() if isinstance(value, keras.optimizers.Optimizer)]


def with_inner(optimizer: Any) -> list[Any]:
    """Returns an optimizer and the optimizers that it holds, in its attributes too, and those in these; nothing for None."""
    found, waiting = {}, [optimizer]
    for each in waiting:  # It grows by those inside.
        if each is not None and id(each) not in found:
            found[id(each)] = each
            waiting += [getattr(each, "inner_optimizer", None), *getattr(each, "optimizers", [])]
            waiting += _optimizers_in(list(getattr(each, "__dict__", {}).values()))
    return list(found.values())


def adopt_optimizer(optimizer: Any, strategy: tf.distribute.Strategy) -> None:
    """Moves an optimizer that was made outside of any scope, and is not built, into the scope of `strategy`."""
    for each in with_inner(optimizer):
        if hooks_of(getattr(each, "_distribution_strategy", strategy)) is None and not each.built:
            each._distribution_strategy = strategy
            begin_anew(each.variables, strategy)


def begin_anew(variables: list[Any], strategy: tf.distribute.Strategy) -> None:
    """Replaces the values of Keras' variables that were made outside of any scope by variables of `strategy`."""
    with tf.init_scope(), strategy.scope():
        for variable in variables:
            if type(variable._value) is ResourceVariable:  # In a scope it is of a subclass or a wrapper.
                variable._initialize(variable._value.numpy())


def _ids_of_counters(optimizer: Any) -> set[int]:
    """Returns the ids of variables that every replica counts alike. Keras would broadcast the first replica's value."""
    return {id(each._iterations) for each in with_inner(optimizer) if hasattr(each, "_iterations")}


def _weighted(gradient: Any, share: Any, is_real: Any = None) -> Any:
    """Returns a gradient of the mean over a replica's examples as its part of the gradient of the mean over the batch.

    Args:
        gradient: a tensor, IndexedSlices or None.
        share: the replica's part of the examples; None if the gradient counts in full already.
        is_real: whether the replica has examples; None if it surely has.
    """
    if gradient is None or (share is None and is_real is None):
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        values = _weighted(gradient.values, share, is_real)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    gradient = gradient if share is None else gradient * tf.cast(share, gradient.dtype)
    if is_real is None or isinstance(gradient, tf.experimental.ExtensionType):  # A sharded one stays in its parts.
        return gradient
    return tf.where(is_real, gradient, tf.zeros_like(gradient))
