"""Every name of TensorFlow and Keras that is not public and that this package uses, with the reason.

Tried with TensorFlow 2.21.0 and Keras 3.15.1. Another version either has the same names, or importing this module says what
is missing: nothing fails later and silently.
"""

import inspect
from typing import Any

import keras
import tensorflow as tf

TRIED = {"tensorflow": "2.21.0", "keras": "3.15.1"}


class UnsupportedVersionError(RuntimeError):
    """The installed TensorFlow or Keras lacks a private name that tfdist builds on."""


def _need(module: str, version: str, *path: str) -> Any:
    """Imports `module` and follows `path` in it, or says which version would have it."""
    package = module.partition(".")[0]
    try:
        found: Any = __import__(module, fromlist=["_"])
        for name in path:
            found = getattr(found, name)
    except (ImportError, AttributeError) as cause:
        raise UnsupportedVersionError(
            f"{package} {version} has no {'.'.join((module, *path))}, which tfdist needs; it was tried with {package} "
            f"{TRIED[package]}: pip install '{package}=={TRIED[package]}'"
        ) from cause
    return found


# The trainer that every Keras model on TensorFlow inherits. Its step functions run on the chief only; the hookup in
# keras_hooks/trainer.py lets a strategy give them instead.
TensorFlowTrainer: Any = _need("keras.src.backend.tensorflow.trainer", keras.__version__, "TensorFlowTrainer")
for _name, _arguments in {
    "_make_function": ["self", "step_function"],
    "make_predict_function": ["self", "force"],
    "_get_metrics_result_or_logs": ["self", "logs"],
    "_autoconvert_optionals": ["self", "step_func"],
}.items():
    _method = _need("keras.src.backend.tensorflow.trainer", keras.__version__, "TensorFlowTrainer", _name)
    if list(inspect.signature(_method).parameters) != _arguments:
        raise UnsupportedVersionError(
            f"Keras {keras.__version__} has another TensorFlowTrainer.{_name} than tfdist knows; "
            f"it was tried with Keras {TRIED['keras']}"
        )

# How `fit` parts `validation_split` from its data: the evaluator has to evaluate the same part.
train_validation_split: Any = _need(
    "keras.src.trainers.data_adapters.array_slicing", keras.__version__, "train_validation_split"
)

# A variable with one copy per worker; coordinator/sync_on_read_variable.py adds what Keras' metrics need.
PerWorkerVariable: Any = _need("tensorflow.python.distribute.ps_values", tf.__version__, "PerWorkerVariable")
PerWorkerVariableSpec: Any = _need("tensorflow.python.distribute.ps_values", tf.__version__, "PerWorkerVariableSpec")

# What ParameterServerStrategy makes of a variable on a ps; keras_hooks/trainer.py tells it from other strategies' variables.
CachingVariable: Any = _need("tensorflow.python.distribute.ps_values", tf.__version__, "CachingVariable")

# ParameterServerStrategy's inside: parameter_server/placement.py decides where variables live and which devices are replicas.
ParameterServerExtended: Any = _need(
    "tensorflow.python.distribute.parameter_server_strategy_v2", tf.__version__, "ParameterServerStrategyV2Extended"
)
call_for_each_replica: Any = _need("tensorflow.python.distribute.mirrored_run", tf.__version__, "call_for_each_replica")
PerReplica: Any = _need("tensorflow.python.distribute.values", tf.__version__, "PerReplica")
UpdateContext: Any = _need("tensorflow.python.distribute.distribute_lib", tf.__version__, "UpdateContext")
connect_to_cluster: Any = _need("tensorflow.python.eager.remote", tf.__version__, "connect_to_cluster")
ClusterDeviceFilters: Any = _need("tensorflow.python.training.server_lib", tf.__version__, "ClusterDeviceFilters")
set_server_def_retries: Any = _need("tensorflow.python.eager.context", tf.__version__, "set_server_def_retries")

# The coordinator's reader of the queue of functions: coordinator/worker_groups.py makes one for each group.
CoordinatorWorker: Any = _need("tensorflow.python.distribute.coordinator.cluster_coordinator", tf.__version__, "Worker")
dispatch_context: Any = _need(
    "tensorflow.python.distribute.coordinator.coordinator_context", tf.__version__, "get_current_dispatch_context"
)

# What ParameterServerStrategy makes of a variable with several replicas, and the base of all variables.
AggregatingVariable: Any = _need("tensorflow.python.distribute.ps_values", tf.__version__, "AggregatingVariable")
BaseResourceVariable: Any = _need("tensorflow.python.ops.resource_variable_ops", tf.__version__, "BaseResourceVariable")
register_tensor_conversion: Any = _need(
    "tensorflow.python.framework.tensor_conversion_registry", tf.__version__, "register_tensor_conversion_function"
)

# How a read is made known to gradient tapes when its value comes from elsewhere (parameter_server/tensor_fusion.py), as TensorFlow's own
# cached reads do it, and how loops and conditions are told from functions.
record_operation: Any = _need("tensorflow.python.eager.record", tf.__version__, "record_operation")
stop_recording: Any = _need("tensorflow.python.eager.record", tf.__version__, "stop_recording")
variable_accessed: Any = _need("tensorflow.python.ops.resource_variable_ops", tf.__version__, "variable_accessed")
ControlFlowFuncGraph: Any = _need("tensorflow.python.ops.control_flow_v2_func_graphs", tf.__version__, "ControlFlowFuncGraph")

LearningRateSchedule: Any = keras.optimizers.schedules.LearningRateSchedule

# Keras' optimizer on TensorFlow: parameter_server/optimizer.py sends its gradients joined and updates shards where they are.
TFOptimizer: Any = _need("keras.src.backend.tensorflow.optimizer", keras.__version__, "TFOptimizer")
# Metrics are computed on values that are not those of their variables: coordinator/training_loop.py sums over groups first.
StatelessScope: Any = _need("keras.src.backend.common.stateless_scope", keras.__version__, "StatelessScope")

# Keras' variable on TensorFlow, and whether a call to it is only recorded.
KerasVariable: Any = _need("keras.src.backend.tensorflow.core", keras.__version__, "Variable")
in_stateless_scope: Any = _need("keras.src.backend", keras.__version__, "in_stateless_scope")

# What strategies whose replicas step together build on: values per replica, and Keras' places where replicas meet.
regroup: Any = _need("tensorflow.python.distribute.distribute_utils", tf.__version__, "regroup")
MultiOptimizer: Any = _need("keras.src.optimizers.multi_optimizer", keras.__version__, "MultiOptimizer")
LossScaleOptimizer: Any = keras.optimizers.LossScaleOptimizer
keras_loss_module: Any = _need("keras.src.losses", keras.__version__, "loss")
TFEpochIterator: Any = _need("keras.src.backend.tensorflow.trainer", keras.__version__, "TFEpochIterator")
MultiWorkerMirroredExtended: Any = _need(
    "tensorflow.python.distribute.collective_all_reduce_strategy", tf.__version__, "CollectiveAllReduceExtended"
)
for _owner, _name in (
    (TFOptimizer, "_all_reduce_sum_gradients"),
    (KerasVariable, "_direct_assign"),
    (keras_loss_module, "scale_loss_for_distribution"),
    (keras_loss_module, "unscale_loss_for_distribution"),
    (TensorFlowTrainer, "_maybe_symbolic_build"),
    (MultiWorkerMirroredExtended, "_use_merge_call"),
    (MultiWorkerMirroredExtended, "_replica_ctx_all_reduce"),
    (MultiWorkerMirroredExtended, "_initialize_local_devices"),
):
    if not hasattr(_owner, _name):
        raise UnsupportedVersionError(
            f"TensorFlow {tf.__version__} or Keras {keras.__version__} has no {_name}, which tfdist needs; "
            f"it was tried with TensorFlow {TRIED['tensorflow']} and Keras {TRIED['keras']}"
        )

# TensorFlow's seed as the user has set it, or None.
global_seed: Any = _need("tensorflow.python.eager.context", tf.__version__, "global_seed")

# Whether a SavedModel is being written, when variables stand for the chief's copy.
is_saving: Any = _need("tensorflow.python.saved_model.save_context", tf.__version__, "in_save_context")

# Where Keras writes a model and its weights, and TensorFlow a checkpoint and a SavedModel; checkpoint/atomic_saving.py makes them atomic.
# Everything that saves goes through these; checkpoint/strategy_state.py adds to it. (`tf.saved_model.save` itself cannot be wrapped:
# exporting a model imports it anew.)
saving_lib: Any = _need("keras.src.saving.saving_lib", keras.__version__)
legacy_h5_format: Any = _need("keras.src.legacy.saving.legacy_h5_format", keras.__version__)
file_utils: Any = _need("keras.src.utils.file_utils", keras.__version__)
TrackableSaver: Any = _need("tensorflow.python.checkpoint.checkpoint", tf.__version__, "TrackableSaver")
checkpoint_management: Any = _need("tensorflow.python.checkpoint.checkpoint_management", tf.__version__)
saved_model_save: Any = _need("tensorflow.python.saved_model.save", tf.__version__)
for _module, _path, _arguments in (
    ("keras.src.saving.saving_lib", ("save_model",), ["model", "filepath", "weights_format", "zipped"]),
    ("keras.src.saving.saving_lib", ("save_weights_only",), ["model", "filepath", "max_shard_size", "objects_to_skip"]),
    (
        "keras.src.saving.saving_lib",
        ("_save_state",),
        ["saveable", "weights_store", "assets_store", "inner_path", "visited_saveables"],
    ),
    (
        "keras.src.saving.saving_lib",
        ("_load_state",),
        [
            "saveable",
            "weights_store",
            "assets_store",
            "inner_path",
            "skip_mismatch",
            "visited_saveables",
            "failed_saveables",
            "error_msgs",
        ],
    ),
    (
        "keras.src.legacy.saving.legacy_h5_format",
        ("save_model_to_hdf5",),
        ["model", "filepath", "overwrite", "include_optimizer"],
    ),
    ("keras.src.callbacks.backup_and_restore", ("BackupAndRestore", "_save_model"), ["self"]),
    ("keras.src.callbacks.backup_and_restore", ("BackupAndRestore", "_load_model"), ["self"]),
    (
        "tensorflow.python.checkpoint.checkpoint",
        ("TrackableSaver", "save"),
        ["self", "file_prefix", "checkpoint_number", "session", "options"],
    ),
    ("tensorflow.python.checkpoint.checkpoint", ("TrackableSaver", "restore"), ["self", "save_path", "options"]),
    (
        "tensorflow.python.checkpoint.checkpoint",
        ("TrackableSaver", "_gather_serialized_tensors"),
        ["self", "object_graph_tensor"],
    ),
    ("tensorflow.python.checkpoint.checkpoint_management", ("_delete_file_if_exists",), ["filespec"]),
    (
        "tensorflow.python.saved_model.save",
        ("save_and_return_nodes",),
        ["obj", "export_dir", "signatures", "options", "experimental_skip_checkpoint"],
    ),
):
    _version = keras.__version__ if _module.startswith("keras") else tf.__version__
    if list(inspect.signature(_need(_module, _version, *_path)).parameters) != _arguments:
        raise UnsupportedVersionError(
            f"{_module.partition('.')[0]} {_version} has another {'.'.join(_path)} than tfdist knows; it was tried with {TRIED}"
        )

# TensorFlow's count of the uses of each function in its runtime; the last use that ends removes it there, by a remote call.
_function_uses: Any = _need(
    "tensorflow.python.eager.polymorphic_function.atomic_function", tf.__version__, "RUNTIME_FUNCTION_REFS"
)


def keep_remote_functions() -> None:
    """Leaves functions where they are at the end of the process: the servers that have them end anyway.

    TensorFlow would try to remove each from servers that are gone, and print an error for each try.
    """
    for name in _function_uses:
        _function_uses[name] += 1


def wait_until_ready(remote_value: Any, seconds: float) -> bool:
    """Waits at most `seconds` for a `RemoteValue`, and says whether it is ready. The public `fetch` has no time limit."""
    return bool(remote_value._status_available_event.wait(seconds))


_context: Any = _need("tensorflow.python.eager.context", tf.__version__, "context")
_new_executor: Any = _need("tensorflow.python.eager.executor", tf.__version__, "new_executor")


def use_own_executor() -> Any:
    """Lets what this thread does wait for nothing that other threads have begun, nor fail with it; keep what it returns.

    Threads share TensorFlow's default executor, in which what is told to a worker that is stopped stays open.
    """
    executor = _new_executor(enable_async=False)
    _context().executor = executor
    return executor


# In a function TensorFlow lets operations that touch no resource but may not be left out run one after the other, those that
# only name a variable too: one that waits for a ps would keep all that are made after it waiting.
_run_independently: Any = _need(
    "tensorflow.python.framework.auto_control_deps", tf.__version__, "AutomaticControlDependencies", "run_independently"
)


def run_independently(operation: Any) -> None:
    """Lets `operation`, which runs in any case, wait for its inputs and control inputs only, and none for it."""
    manager = getattr(operation.graph, "experimental_acd_manager", None)
    if manager is not None:
        _run_independently(manager, operation)
