"""Every private name of TensorFlow and Keras that tfdist uses, with the reason. No other room imports one.

Another version of TensorFlow or Keras either has the same names, or importing this package raises `UnsupportedVersionError`:
nothing fails later and silently. Names that only later versions have are marked with `since`; no other room asks for versions.
Of tfdist the package imports `versions.py` and the error. Start with this file, the names. `coordinator.py` and
`eager_context.py` have those of TensorFlow's coordinator and runtime. `patches.py` and `file_patches.py` list what tfdist
replaces at run time, `overrides.py` checks the private methods that our subclasses override, and `checks.py` has the checks.
"""

from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.private_api.checks import need, need_attributes, need_function

# Keras' trainer, optimizers, losses, variables.

# The trainer that every Keras model on TensorFlow inherits; keras_hooks/trainer.py makes it ask the model's strategy.
TensorFlowTrainer: Any = need("keras.src.backend.tensorflow.trainer", "TensorFlowTrainer")
TFEpochIterator: Any = need("keras.src.backend.tensorflow.trainer", "TFEpochIterator")
# Makes a step take batches with tf.experimental.Optional values. Before, Keras passed them on as they are.
autoconvert_optionals: Any = need_function(
    TensorFlowTrainer, "_autoconvert_optionals", "self, step_func", "calls", since="3.12"
)
# Calls its attribute for each iteration of a generator: keras_hooks/trainer.py says how far it is read.
GeneratorDataAdapter: Any = need("keras.src.trainers.data_adapters.generator_data_adapter", "GeneratorDataAdapter")
need_attributes(GeneratorDataAdapter, "generator")

# How `fit` splits `validation_split` off its data: the evaluator evaluates the same examples.
train_validation_split: Any = need("keras.src.trainers.data_adapters.array_slicing", "train_validation_split")

TFOptimizer: Any = need("keras.src.backend.tensorflow.optimizer", "TFOptimizer")
MultiOptimizer: Any = need("keras.src.optimizers.multi_optimizer", "MultiOptimizer", since="3.15")
LossScaleOptimizer: Any = keras.optimizers.LossScaleOptimizer
# How it applies gradients where there are no replicas.
apply_scaled: Any = need_function(LossScaleOptimizer, "_common_apply", "self, grads, trainable_variables", "calls")
LearningRateSchedule: Any = keras.optimizers.schedules.LearningRateSchedule
keras_loss_module: Any = need("keras.src.losses", "loss")
DistributedVariable: Any = need("tensorflow.python.distribute.values", "DistributedVariable")
# Such as those of metrics, whose assignment reads them, unless it is told not to (keras_hooks/variables.py).
SyncOnReadVariable: Any = need("tensorflow.python.distribute.values", "SyncOnReadVariable")
need_function(SyncOnReadVariable, "assign", "self, value, use_locking, name, read_value", "calls")
CompileLoss: Any = need("keras.src.trainers.compile_utils", "CompileLoss")
# Where random operations without a seed get theirs.
seed_generator_module: Any = need("keras.src.random", "seed_generator")
# Keras 3.10 writes the name out.
GLOBAL_SEED_GENERATOR: str = getattr(seed_generator_module, "GLOBAL_SEED_GENERATOR", "global_seed_generator")
tf_random_seed: Any = need("tensorflow.python.framework", "random_seed")
# The name of the variable with the state of a tf.random.Generator, which TensorFlow writes out.
GENERATOR_STATE = "StateVar"

# The operations that Keras' layers call on TensorFlow.
keras_numpy: Any = need("keras.src.backend.tensorflow", "numpy")
keras_nn: Any = need("keras.src.backend.tensorflow", "nn")
keras_random: Any = need("keras.src.backend.tensorflow", "random")
# What layers ask for the layout of their outputs.
keras_distribution: Any = need("keras.src.distribution", "distribution_lib")

# Keras' variable on TensorFlow, and whether a call to it is only recorded.
KerasVariable: Any = need("keras.src.backend.tensorflow.core", "Variable")
# Gives a variable of Keras, made outside of the scope, a value in it (keras_hooks/optimizer.py).
need_function(KerasVariable, "_initialize", "self, value", "calls")
in_stateless_scope: Any = need("keras.src.backend", "in_stateless_scope")
# Whether layers and variables are trained (keras_hooks/trained_layers.py).
for _owner in (keras.Layer, need("keras.src.backend.common.variables", "Variable")):
    need_attributes(_owner, "_trainable")
# Runs a function on symbolic tensors (keras_hooks/step_build.py).
compute_output_spec: Any = need_function(
    need("keras.src.backend.tensorflow.core"), "compute_output_spec", "fn, args, kwargs", "calls"
)
# The names of the layers that are being called, which name the variables that they make (keras_hooks/build_scope.py).
keras_global_state: Any = need("keras.src.backend.common", "global_state")
need_function(keras_global_state, "get_global_attribute", "name, default, set_to_default", "calls")
need_function(keras_global_state, "set_global_attribute", "name, value", "calls")
# Metrics are computed on values that are not those of their variables: coordinator/metric_logs.py sums over groups first.
StatelessScope: Any = keras.StatelessScope

# Whether a callback's method is the one of `keras.callbacks.Callback`, which does nothing.
is_default: Any = need("keras.src.utils.python_utils", "is_default")

# Where Keras writes a model and its weights, and TensorFlow a checkpoint and a SavedModel. Everything that saves calls these.
saving_lib: Any = need("keras.src.saving.saving_lib")
need("keras.src.saving.saving_lib", "ShardedH5IOStore")
legacy_h5_format: Any = need("keras.src.legacy.saving.legacy_h5_format")
file_utils: Any = need("keras.src.utils.file_utils")
TrackableSaver: Any = need("tensorflow.python.checkpoint.checkpoint", "TrackableSaver")
checkpoint_management: Any = need("tensorflow.python.checkpoint.checkpoint_management")
saved_model_save: Any = need("tensorflow.python.saved_model.save")
# Binds functions of a SavedModel that is loaded to their variables.
restore_captures: Any = need("tensorflow.core.function.capture.restore_captures")
need(
    "tensorflow.python.eager.polymorphic_function.concrete_function",
    "ConcreteFunction",
    "replace_capture_with_deferred_capture",
)
# Makes modules of the code that AutoGraph generates.
autograph_loader: Any = need("tensorflow.python.autograph.pyct.loader")
# Whether a SavedModel is being written: variables then stand for the chief's value.
is_saving: Any = need("tensorflow.python.saved_model.save_context", "in_save_context")

# Strategies whose replicas run one step together (data_parallel/): values per replica, and TensorFlow's implementations.
regroup: Any = need("tensorflow.python.distribute.distribute_utils", "regroup")
MirroredExtended: Any = need("tensorflow.python.distribute.mirrored_strategy", "MirroredExtended")
need("tensorflow.python.distribute.mirrored_strategy", "MirroredStrategy", "_collective_key_base")
MultiWorkerMirroredExtended: Any = need(
    "tensorflow.python.distribute.collective_all_reduce_strategy", "CollectiveAllReduceExtended"
)
# Where `ReplicaContext.all_reduce` puts sums: keras_hooks/replicas/reduction.py adds up without its gradient.
batch_reduce_destination: Any = need("tensorflow.python.distribute.distribute_lib", "_batch_reduce_destination")

# Constants in eager execution: runtime/chief_device.py.
tf_constant: Any = need("tensorflow.python.framework.constant_op")

# What TensorFlow knows of a type of operation: keras_hooks/checks/shard_check.py tries out steps that change nothing.
_definition_of_operation: Any = need("tensorflow.python.framework.op_def_registry", "get")


def is_stateful_operation(kind: str) -> bool:
    """Returns whether operations of a type have state; False for the name of a traced function."""
    definition = _definition_of_operation(kind)
    return definition is not None and bool(definition.is_stateful)


# Returns the graphs of the branches of a `tf.cond` or `tf.switch_case`, given its operation.
branches_of: Any = need_function(need("tensorflow.python.ops.cond_v2"), "get_func_graphs", "op", "calls")

# The iterator of a dataset: inputs/input_feed.py takes the tensors of an element, and knows their structure already.
# inputs/iterator_release.py frees it.
OwnedIterator: Any = need("tensorflow.python.data.ops.iterator_ops", "OwnedIterator")
need_attributes(OwnedIterator, "_iterator_resource", "_flat_output_types", "_flat_output_shapes")
OwnedMultiDeviceIterator: Any = need("tensorflow.python.data.ops.multi_device_iterator_ops", "OwnedMultiDeviceIterator")
need_attributes(OwnedMultiDeviceIterator, "_multi_device_iterator_resource")


def next_tensors(iterator: Any) -> list[Any]:
    """Returns the tensors of the next element of a dataset's iterator.

    Raises:
        StopIteration: at the end of the dataset.
    """
    types, shapes = iterator._flat_output_types, iterator._flat_output_shapes
    try:
        tensors: list[Any] = tf.raw_ops.IteratorGetNext(
            iterator=iterator._iterator_resource, output_types=types, output_shapes=shapes
        )
    except tf.errors.OutOfRangeError:
        raise StopIteration from None
    return tensors


# How many examples the batches of a dataset have, as far as its transformations show it; -1 if they do not.
compute_batch_size: Any = need("tensorflow.python.data.experimental.ops.distribute", "compute_batch_size")

# What replicas that take turns in threads keep: keras_hooks/kept_tensors.py.
DropoutRNNCell: Any = need("keras.src.layers.rnn.dropout_rnn_cell", "DropoutRNNCell")
MirroredReplicaContext: Any = need("tensorflow.python.distribute.mirrored_run", "_MirroredReplicaContext")

# ParameterServerStrategy: where variables live and which devices are replicas.
ParameterServerExtended: Any = need(
    "tensorflow.python.distribute.parameter_server_strategy_v2", "ParameterServerStrategyV2Extended"
)
need_attributes(ParameterServerExtended, "_being_scheduled")
call_for_each_replica: Any = need("tensorflow.python.distribute.mirrored_run", "call_for_each_replica")
PerReplica: Any = need("tensorflow.python.distribute.values", "PerReplica")
UpdateContext: Any = need("tensorflow.python.distribute.distribute_lib", "UpdateContext")
connect_to_cluster: Any = need("tensorflow.python.eager.remote", "connect_to_cluster")
ClusterDeviceFilters: Any = need("tensorflow.python.training.server_lib", "ClusterDeviceFilters")

# Variables: of ParameterServerStrategy on a ps, for one replica and for several; one per worker; one per replica; the base.
CachingVariable: Any = need("tensorflow.python.distribute.ps_values", "CachingVariable")
AggregatingVariable: Any = need("tensorflow.python.distribute.ps_values", "AggregatingVariable")
PerWorkerVariable: Any = need("tensorflow.python.distribute.ps_values", "PerWorkerVariable")
PerWorkerVariableSpec: Any = need("tensorflow.python.distribute.ps_values", "PerWorkerVariableSpec")
MirroredVariable: Any = need("tensorflow.python.distribute.values", "MirroredVariable")
ResourceVariable: Any = need("tensorflow.python.ops.resource_variable_ops", "ResourceVariable")
BaseResourceVariable: Any = need("tensorflow.python.ops.resource_variable_ops", "BaseResourceVariable")
# How a gradient tape differentiates by a value that consists of several tensors.
CompositeTensorGradient: Any = need("tensorflow.python.framework.composite_tensor_gradient", "CompositeTensorGradient")
# Asked for another way if a function fails: model_parallel/tensorflow_functions.py.
GlobalOpDispatcher: Any = need("tensorflow.python.util.dispatch", "GlobalOpDispatcher")
register_tensor_conversion: Any = need(
    "tensorflow.python.framework.tensor_conversion_registry", "register_tensor_conversion_function"
)

# How gradient tapes learn of a read whose value comes from elsewhere (parameter_server/fused_reads.py), as TensorFlow's own
# cached reads do it, and how loops and conditions differ from functions.
record_operation: Any = need("tensorflow.python.eager.record", "record_operation")
stop_recording: Any = need("tensorflow.python.eager.record", "stop_recording")
variable_accessed: Any = need("tensorflow.python.ops.resource_variable_ops", "variable_accessed")
FuncGraph: Any = need("tensorflow.python.framework.func_graph", "FuncGraph")
ControlFlowFuncGraph: Any = need("tensorflow.python.ops.control_flow_v2_func_graphs", "ControlFlowFuncGraph")
WhileBodyFuncGraph: Any = need("tensorflow.python.ops.control_flow_v2_func_graphs", "WhileBodyFuncGraph")
WhileCondFuncGraph: Any = need("tensorflow.python.ops.control_flow_v2_func_graphs", "WhileCondFuncGraph")
# Which resources an operation, such as a call of a function, reads and which it writes.
read_write_resource_inputs: Any = need("tensorflow.python.framework.auto_control_deps_utils", "get_read_write_resource_inputs")


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
