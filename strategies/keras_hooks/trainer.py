"""Makes Keras' trainer ask the strategy of a model for its functions, data and callbacks.

`install()` replaces methods of Keras' trainer (private_api/patches.py) for models made under the scope of a strategy that has
`KerasHooks`. Keras' own code trains every other model.
"""

import contextlib
import inspect
import itertools
import logging
import math
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.inputs.batches import builds_models, with_dimensions_of, without_optionals
from tfdist.strategies.inputs.source import BatchSource
from tfdist.strategies.keras_hooks import build_scope, calls, global_seed, losses, step_build, user_functions
from tfdist.strategies.keras_hooks.callbacks import listed
from tfdist.strategies.keras_hooks.checks.own_code import has_own_step
from tfdist.strategies.keras_hooks.held_optimizers import adopt_optimizer, begin_anew, held_optimizers, with_inner
from tfdist.strategies.keras_hooks.interface import KerasHooks, Logs, Readers, hooks_of
from tfdist.strategies.keras_hooks.optimizer import adopt_own_updates
from tfdist.strategies.keras_hooks.overridden_methods import replace_overridden
from tfdist.strategies.private_api import GeneratorDataAdapter, KerasVariable, is_default, patches, symbolic_builds
from tfdist.strategies.private_api.deferred_restores import held_back

_log = logging.getLogger("tfdist")
_CHOSEN_BY_SHAPES = ("accuracy", "acc", "crossentropy", "ce")  # Names of metrics which Keras chooses by shapes of the targets.


def install() -> None:
    """Replaces the methods. Calling it again does nothing."""
    patches.MAKE_FUNCTION.patch(_make_function)
    patches.MAKE_PREDICT_FUNCTION.patch(_make_predict_function)
    patches.METRICS_RESULT_OR_LOGS.patch(_metrics_result_or_logs)
    patches.RESET_METRICS.patch(_reset_metrics)
    patches.EPOCH_ITERATOR.patch(_init_epoch_iterator)
    patches.SYMBOLIC_BUILD.patch(_symbolic_build)
    patches.CALLBACK_LIST.patch(_init_callback_list)
    build_scope.install()
    global_seed.install()
    user_functions.install()
    step_build.install()
    calls.install()
    patches.BEGIN_EPOCH.patch(_begin_epoch)


def _given_to_compile(model: Any) -> list[Any]:
    """Returns the metrics that `compile` got as objects. Keras lists them only when it has built those that it got by name."""
    if (compiled := getattr(model, "_compile_metrics", None)) is None:
        return []
    given = tf.nest.flatten([compiled._user_metrics, compiled._user_weighted_metrics])
    return [metric for metric in given if isinstance(metric, keras.metrics.Metric)]


def check_optimizer(model: Any, strategy: tf.distribute.Strategy) -> None:
    """Raises ValueError if the optimizer of `model` was made outside the scope of `strategy`."""
    if getattr(model.optimizer, "_distribution_strategy", strategy) is not strategy:
        raise ValueError(
            f"the optimizer of {model.name} was built outside the strategy's scope, and its variables cannot move; make it, "
            "and call compile, inside `with strategy.scope():`"
        )


def _adopt(model: Any) -> None:
    """Moves optimizers, metrics and variables of losses that were made outside of the scope into that of the model.

    As long as nothing has trained with them, they can begin anew there. `check_optimizer` refuses an optimizer that cannot.
    """
    strategy = model._distribute_strategy
    for value in [model.optimizer, *vars(model).values()]:
        if isinstance(value, keras.optimizers.Optimizer):
            adopt_optimizer(value, strategy)
    for metric in [*model.metrics, *_given_to_compile(model)]:
        begin_anew(metric.variables, strategy)
    for loss in tf.nest.flatten(getattr(model, "loss", None)):
        if isinstance(loss, keras.losses.Loss):
            begin_anew([value for value in vars(loss).values() if isinstance(value, KerasVariable)], strategy)


# Replacements. The first parameter is the function that they replace.


def _make_function(original: Callable[..., Any], model: Any, step_function: Callable[..., Any]) -> Any:
    if (hooks := hooks_of(model.distribute_strategy)) is not None:
        if model._distribute_strategy is not None:
            _adopt(model)
        build_scope.check_weights(model, model.distribute_strategy)
        losses.adopt_own_calls(getattr(model, "loss", None))
        replace_overridden(type(model), "reset_metrics", _reset_metrics)  # It need not call Keras' own.
        adopt_own_updates(each for held in held_optimizers(model) for each in with_inner(held))
        global_seed.prepare(model.distribute_strategy)
        return hooks.step_function(model, step_function)
    if model._distribute_strategy is None:
        _log.warning(
            "%s was made outside the strategy's scope and trains in this process alone; make it in "
            "`with tfdist.strategy().scope():`",
            model.name,
        )
    elif not (other := type(model._distribute_strategy)).__module__.startswith("tfdist."):
        _log.warning(
            "%s was made in the scope of another strategy (%s) and trains in this process alone", model.name, other.__name__
        )
    return original(model, step_function)


def _make_predict_function(original: Callable[..., Any], model: Any, force: bool = False) -> None:
    hooks = hooks_of(model.distribute_strategy)
    if hooks is None:
        original(model, force)
    elif model.predict_function is None or force:
        global_seed.prepare(model.distribute_strategy)
        model.predict_function = hooks.predict_function(model)


def _metrics_result_or_logs(original: Callable[..., Any], model: Any, logs: Logs) -> Logs:
    if (hooks := hooks_of(model.distribute_strategy)) is not None:
        of_epoch = hooks.end_epoch(model, logs)
        if of_epoch:
            return {name: _as_number(value) for name, value in of_epoch.items()}
    return original(model, logs)


def _as_number(value: Any) -> Any:
    """Returns a scalar tensor as a number: `evaluate` of Keras 3.12 and earlier returns the logs as they are.

    Of a variable, which a metric may return itself, it is the value of now: Keras would read it after the validation.
    """
    value = tf.convert_to_tensor(value) if isinstance(value, KerasVariable) else value
    is_number = isinstance(value, tf.Tensor) and value.shape.rank == 0 and (value.dtype.is_floating or value.dtype.is_integer)
    return float(value) if is_number else value


def _reset_metrics(original: Callable[..., Any], model: Any) -> None:
    if (hooks := hooks_of(model.distribute_strategy)) is not None:
        hooks.reset_metrics(model)
    original(model)


def _init_epoch_iterator(
    original: Callable[..., Any], iterator: Any, distribute_strategy: Any = None, *args: Any, **kwargs: Any
) -> None:
    hooks = hooks_of(distribute_strategy)
    distributor = distribute_strategy
    if hooks is not None:
        hooks.check_data(kwargs.get("x"))
        kwargs["x"] = hooks.prepared(kwargs.get("x"))
        distributor = SimpleNamespace(experimental_distribute_dataset=hooks.batch_source)  # Keras calls nothing else of it.
    original(iterator, distributor, *args, **kwargs)
    iterator._distribute_strategy = distribute_strategy
    source, call = iterator._distributed_dataset, calls.running()
    if isinstance(source, BatchSource):
        steps, execution = iterator.steps_per_epoch, iterator.steps_per_execution
        source.steps_per_epoch = steps and math.ceil(steps / execution) * execution  # Keras runs whole executions.
        source.batches_per_epoch = iterator.num_batches
        if source.steps_per_epoch and call is not None:
            _read_no_further(iterator.data_adapter, source.steps_per_epoch * call.rounds)
    if hooks is not None and call is not None:
        call.rounds = 1
        hooks.begin_data(call, iterator.num_batches, source)


def _read_no_further(adapter: Any, batches: int) -> None:
    """Takes no more from a generator than a call, or a validation of `fit`, uses.

    Keras reads ahead, as far as it has time, and drops the rest. So each task would get other batches the next time.
    """
    if isinstance(adapter, GeneratorDataAdapter):
        whole = adapter.generator
        adapter.generator = lambda: itertools.islice(whole(), batches)


def _symbolic_build(original: Callable[..., Any], model: Any, iterator: Any = None, data_batch: Any = None) -> None:
    hooks = hooks_of(model._distribute_strategy)
    if hooks is not None:
        _adopt(model)
        build_scope.check_weights(model, model.distribute_strategy)  # Before the optimizer makes slots for them.
    has_call = has_own_call(model)
    if hooks is not None and iterator is not None:
        iterator, data_batch = None, None if _is_complete(model, has_call) else _example_batch(hooks, iterator)
        if has_own_step(model) and not step_build.has_built(model) and not _has_all_variables(model):
            step_build.build(model, data_batch)
    if hooks is not None and not model.built and not has_call:
        mark_as_built(model)
    try:
        with contextlib.ExitStack() as stack:
            if hooks is not None:
                if not model.built:
                    stack.enter_context(held_back(model, model.distribute_strategy.scope))
                    stack.enter_context(build_scope.symbolic_build(model.distribute_strategy))
                stack.enter_context(symbolic_builds.known_outputs(model))
                inputs = keras.utils.unpack_x_y_sample_weight(data_batch)[0]
                stack.enter_context(symbolic_builds.composite_inputs(model, inputs))
                stack.enter_context(_unbuilt_metrics(model, data_batch))
                stack.enter_context(_quiet(model))
            original(model, iterator, data_batch)
    except (ValueError, RuntimeError):
        if hooks is None or not _calls_itself(model):
            raise
        if model.optimizer is not None:
            with model.distribute_strategy.scope():
                model.optimizer.build(model.trainable_variables)


@contextlib.contextmanager
def _quiet(model: Any) -> Iterator[None]:
    """Leaves out Keras' warnings about a model whose call does not take its batches: its own `train_step` may do."""
    with warnings.catch_warnings():
        if has_own_step(model):
            for message in ("(?s).* looks like it has unbuilt state", "The structure of `inputs` doesn't match"):
                warnings.filterwarnings("ignore", message=message)
        yield


@contextlib.contextmanager
def _unbuilt_metrics(model: Any, batch: Any) -> Iterator[None]:
    """Leaves the metrics of `compile` unbuilt if an own `train_step` may give them other tensors than its batches end with.

    Keras would choose what "accuracy" means for those, such as images, or classes that the step makes probabilities of (MixUp).
    The step builds them as in one process.
    """
    metrics = model._compile_metrics
    if not has_own_step(model) or metrics is None or metrics.built:
        yield
        return
    targets = batch[1] if isinstance(batch, tuple) and len(batch) > 1 else None
    is_for_one_output = not any(map(tf.nest.is_nested, metrics._user_metrics or ()))
    of_user = tf.nest.flatten([metrics._user_metrics, metrics._user_weighted_metrics])
    by_shapes = any(str(each).lower() in _CHOSEN_BY_SHAPES for each in of_user)
    if not by_shapes and not (is_for_one_output and len(tf.nest.flatten(targets)) > 1):
        yield
        return
    vars(model)["_compile_metrics"] = None  # Not an assignment, which Keras would track.
    try:
        yield
    finally:
        vars(model)["_compile_metrics"] = metrics


def _is_complete(model: Any, has_call: bool) -> bool:
    """Returns whether Keras needs no batch to build a model, its metrics and its loss: it has built them."""
    compiled = [part for part in (model._compile_metrics, model._compile_loss) if part is not None]
    is_built = all(layer.built for layer in model._flatten_layers()) if has_call else _has_all_variables(model)
    return is_built and all(part.built for part in compiled)


def _example_batch(hooks: KerasHooks, iterator: Any) -> Any:
    """Returns what `KerasHooks.example_batch` does, without beginning an epoch of a `PyDataset`.

    Keras ends that epoch before it begins the first. Then the dataset shuffles its examples, and its workers stop. A batch that
    is read ahead would be of the wrong order, or never come.
    """
    source, dataset = iterator._distributed_dataset, getattr(iterator.data_adapter, "py_dataset", None)
    if dataset is None or not isinstance(source, BatchSource):
        return hooks.example_batch(source)
    spec = without_optionals(source.element_spec)
    return spec if builds_models(spec) else with_dimensions_of(spec, dataset[0])


def _calls_itself(model: Any) -> bool:
    """Returns whether a model has its own `train_step` and all its variables: its batches need not be what the model takes.

    Keras marks a model as built whose call has failed, so each of its layers counts.
    """
    is_built = (model.built or is_default(model.build)) and _has_all_variables(model)
    if has_own_step(model) and (is_built or step_build.has_built(model)):
        model.built = True
        return True
    return False


def _has_all_variables(model: Any) -> bool:
    return all([_is_built(layer) for layer in model._flatten_layers(include_self=False)])


def has_own_call(model: Any) -> bool:
    """Returns whether a model has a method `call`, which a GAN with its own `train_step` may lack."""
    return type(model).call not in (keras.Model.call, keras.Layer.call)


def mark_as_built(model: Any) -> None:
    """Marks a model without `call`, such as a GAN with its own `train_step`, as built if all of its layers are.

    Keras builds models by calling them, and in one process does so within the first step.

    Raises:
        ValueError: if a layer of the model is not built.
    """
    unbuilt = [layer.name for layer in model._flatten_layers(include_self=False) if not _is_built(layer)]
    if unbuilt and not step_build.has_built(model):
        raise ValueError(
            f"the model {model.name} has no call() method, and its layer {unbuilt[0]} is not built, so its variables are "
            "unknown; give the layer's model an Input, or call it on a batch before fit"
        )
    model.built = True


def _is_built(layer: Any) -> bool:
    """Returns whether a layer is built. One without a `build`, whose own layers are built, becomes so, as if it were called."""
    if not layer.built and is_default(layer.build) and all([_is_built(each) for each in layer._layers]):
        layer.built = True
    return bool(layer.built)


def _init_callback_list(original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    bound = inspect.signature(original).bind(*args, **kwargs)
    arguments = bound.arguments
    strategy = getattr(arguments.get("model"), "distribute_strategy", None)
    if (hooks := hooks_of(strategy)) is not None:
        arguments["callbacks"] = hooks.callbacks(listed(arguments.get("callbacks")))
        if not hooks.shows_progress:
            arguments["add_progbar"] = False
    original(*bound.args, **bound.kwargs)


def _begin_epoch(original: Callable[..., Any], callbacks: Any, epoch: int, logs: Logs = None) -> None:
    original(callbacks, epoch, logs)
    if (hooks := hooks_of(getattr(callbacks.model, "distribute_strategy", None))) is not None:
        hooks.begin_epoch(callbacks.model, max(map(_reader, callbacks.callbacks), default=Readers.NOBODY))


def _reader(callback: Any) -> Readers:
    """Returns how soon a callback needs the logs of each batch of `fit`, and the model as it is after that batch.

    Those of tfdist that only count batches need neither. They have an attribute `tfdist_reads_batches`, which is False.
    """
    if not getattr(callback, "tfdist_reads_batches", True):
        return Readers.NOBODY
    if type(callback) is keras.callbacks.ProgbarLogger:
        return Readers.PROGRESS_BAR if callback.verbose == 1 else Readers.NOBODY
    methods = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
    return Readers.NOBODY if all(is_default(getattr(callback, name)) for name in methods) else Readers.CALLBACKS
