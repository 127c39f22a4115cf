"""Every private name of TensorFlow and Keras that tfdist uses, with the reason. No other room imports one.

Another version of TensorFlow or Keras either has the same names, or importing this package raises `UnsupportedVersionError`:
nothing fails later and silently. The package imports nothing else of tfdist. Start with this file, the names. `patches.py`
lists what tfdist replaces at run time, `overrides.py` checks the private methods that our subclasses override, and `checks.py`
has the error and the versions that tfdist has been tested with.
"""

from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.private_api.checks import need, need_function

# Keras' trainer, optimizers, losses, variables.

# The trainer that every Keras model on TensorFlow inherits; keras_hooks/trainer.py makes it ask the model's strategy.
TensorFlowTrainer: Any = need("keras.src.backend.tensorflow.trainer", "TensorFlowTrainer")
TFEpochIterator: Any = need("keras.src.backend.tensorflow.trainer", "TFEpochIterator")
# Makes a step take batches with tf.experimental.Optional values.
need_function(TensorFlowTrainer, "_autoconvert_optionals", "self, step_func", "calls")

# How `fit` splits `validation_split` off its data: the evaluator evaluates the same examples.
train_validation_split: Any = need("keras.src.trainers.data_adapters.array_slicing", "train_validation_split")

TFOptimizer: Any = need("keras.src.backend.tensorflow.optimizer", "TFOptimizer")
MultiOptimizer: Any = need("keras.src.optimizers.multi_optimizer", "MultiOptimizer")
LossScaleOptimizer: Any = keras.optimizers.LossScaleOptimizer
LearningRateSchedule: Any = keras.optimizers.schedules.LearningRateSchedule
keras_loss_module: Any = need("keras.src.losses", "loss")

# Keras' variable on TensorFlow, and whether a call to it is only recorded.
KerasVariable: Any = need("keras.src.backend.tensorflow.core", "Variable")
in_stateless_scope: Any = need("keras.src.backend", "in_stateless_scope")
# Metrics are computed on values that are not those of their variables: coordinator/metric_logs.py sums over groups first.
StatelessScope: Any = keras.StatelessScope

# Where Keras writes a model and its weights, and TensorFlow a checkpoint and a SavedModel. Everything that saves calls these.
saving_lib: Any = need("keras.src.saving.saving_lib")
legacy_h5_format: Any = need("keras.src.legacy.saving.legacy_h5_format")
file_utils: Any = need("keras.src.utils.file_utils")
TrackableSaver: Any = need("tensorflow.python.checkpoint.checkpoint", "TrackableSaver")
checkpoint_management: Any = need("tensorflow.python.checkpoint.checkpoint_management")
saved_model_save: Any = need("tensorflow.python.saved_model.save")
# Whether a SavedModel is being written: variables then stand for the chief's value.
is_saving: Any = need("tensorflow.python.saved_model.save_context", "in_save_context")

# Strategies whose replicas run one step together (data_parallel/): values per replica, and TensorFlow's implementations.
regroup: Any = need("tensorflow.python.distribute.distribute_utils", "regroup")
MirroredExtended: Any = need("tensorflow.python.distribute.mirrored_strategy", "MirroredExtended")
MultiWorkerMirroredExtended: Any = need(
    "tensorflow.python.distribute.collective_all_reduce_strategy", "CollectiveAllReduceExtended"
)
# Where `ReplicaContext.all_reduce` puts sums: keras_hooks/reduction.py adds up without its gradient.
batch_reduce_destination: Any = need("tensorflow.python.distribute.distribute_lib", "_batch_reduce_destination")
# TensorFlow's seed as the user has set it, or None.
global_seed: Any = need("tensorflow.python.eager.context", "global_seed")

# ParameterServerStrategy: where variables live and which devices are replicas.
ParameterServerExtended: Any = need(
    "tensorflow.python.distribute.parameter_server_strategy_v2", "ParameterServerStrategyV2Extended"
)
call_for_each_replica: Any = need("tensorflow.python.distribute.mirrored_run", "call_for_each_replica")
PerReplica: Any = need("tensorflow.python.distribute.values", "PerReplica")
UpdateContext: Any = need("tensorflow.python.distribute.distribute_lib", "UpdateContext")
connect_to_cluster: Any = need("tensorflow.python.eager.remote", "connect_to_cluster")
ClusterDeviceFilters: Any = need("tensorflow.python.training.server_lib", "ClusterDeviceFilters")
set_server_def_retries: Any = need("tensorflow.python.eager.context", "set_server_def_retries")

# The coordinator's reader of its queue of functions: coordinator/worker_groups.py makes one for each worker group.
CoordinatorWorker: Any = need("tensorflow.python.distribute.coordinator.cluster_coordinator", "Worker")
dispatch_context: Any = need("tensorflow.python.distribute.coordinator.coordinator_context", "get_current_dispatch_context")

# Variables: of ParameterServerStrategy on a ps, for one replica and for several; one per worker; the base of all.
CachingVariable: Any = need("tensorflow.python.distribute.ps_values", "CachingVariable")
AggregatingVariable: Any = need("tensorflow.python.distribute.ps_values", "AggregatingVariable")
PerWorkerVariable: Any = need("tensorflow.python.distribute.ps_values", "PerWorkerVariable")
PerWorkerVariableSpec: Any = need("tensorflow.python.distribute.ps_values", "PerWorkerVariableSpec")
BaseResourceVariable: Any = need("tensorflow.python.ops.resource_variable_ops", "BaseResourceVariable")
register_tensor_conversion: Any = need(
    "tensorflow.python.framework.tensor_conversion_registry", "register_tensor_conversion_function"
)

# How gradient tapes learn of a read whose value comes from elsewhere (parameter_server/fused_reads.py), as TensorFlow's own
# cached reads do it, and how loops and conditions differ from functions.
record_operation: Any = need("tensorflow.python.eager.record", "record_operation")
stop_recording: Any = need("tensorflow.python.eager.record", "stop_recording")
variable_accessed: Any = need("tensorflow.python.ops.resource_variable_ops", "variable_accessed")
ControlFlowFuncGraph: Any = need("tensorflow.python.ops.control_flow_v2_func_graphs", "ControlFlowFuncGraph")

# TensorFlow's count of the uses of each function in its runtime; the last use that ends removes it there, by a remote call.
_function_uses: Any = need("tensorflow.python.eager.polymorphic_function.atomic_function", "RUNTIME_FUNCTION_REFS")


def keep_remote_functions() -> None:
    """Leaves functions on their servers at the end of the process: the servers end anyway.

    TensorFlow would try to remove each function from servers that are gone, and print an error for each try.
    """
    for name in _function_uses:
        _function_uses[name] += 1


def wait_until_ready(remote_value: Any, seconds: float) -> bool:
    """Waits at most `seconds` for a `RemoteValue` and returns whether it is ready. The public `fetch` has no time limit."""
    return bool(remote_value._status_available_event.wait(seconds))


_context: Any = need("tensorflow.python.eager.context", "context")
_new_executor: Any = need("tensorflow.python.eager.executor", "new_executor")


def use_own_executor() -> Any:
    """Gives this thread an executor of TensorFlow's runtime; keep the returned object as long as the thread uses it.

    Threads share the default executor. There an operation for a stopped worker stays open, and all threads wait for it.
    """
    executor = _new_executor(enable_async=False)
    _context().executor = executor
    return executor


# In a function TensorFlow runs stateful operations that touch no resource one after the other, those that only name a variable
# too: one that waits for a ps would keep all later ones waiting.
_run_independently: Any = need(
    "tensorflow.python.framework.auto_control_deps", "AutomaticControlDependencies", "run_independently"
)


def run_independently(operation: Any) -> None:
    """Makes `operation` wait for its inputs and control inputs only, and lets no other operation wait for it."""
    manager = getattr(operation.graph, "experimental_acd_manager", None)
    if manager is not None:
        _run_independently(manager, operation)


def outermost_graph() -> Any:
    """Returns the graph of the function that is being traced, not that of a loop or another function in it."""
    graph = tf.compat.v1.get_default_graph()
    while getattr(graph, "outer_graph", None) is not None and graph.outer_graph.building_function:
        graph = graph.outer_graph
    return graph
