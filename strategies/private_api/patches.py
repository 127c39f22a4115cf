"""The registry of patches: everything of TensorFlow and Keras that tfdist replaces at run time, and why.
Those of what writes and reads files are in file_patches.py.

No file of TensorFlow or Keras is changed. Importing this module checks every entry; patching is up to the modules that the
entries are grouped by. Every replacement gets the function that it replaces as its first argument and calls it for models of
other strategies.
"""

import keras
import tensorflow as tf

from tfdist.strategies.private_api import (
    CompileLoss,
    DistributedVariable,
    FuncGraph,
    KerasVariable,
    LossScaleOptimizer,
    MirroredReplicaContext,
    MultiOptimizer,
    OwnedIterator,
    OwnedMultiDeviceIterator,
    TensorFlowTrainer,
    TFEpochIterator,
    TFOptimizer,
    autograph_loader,
    file_utils,
    keras_distribution,
    keras_global_state,
    keras_loss_module,
    keras_nn,
    keras_numpy,
    keras_random,
    nested_operations,
    restore_captures,
    seed_generator_module,
    tf_constant,
    tf_random_seed,
)
from tfdist.strategies.private_api.eager_context import Context
from tfdist.strategies.private_api.patch_point import AddedMethod, PatchPoint, PublicPatchPoint
from tfdist.strategies.private_api.user_functions import Function

# keras_hooks/trainer.py: Keras' loop asks the strategy. Keras trains in one process only, and fails there in some cases.
MAKE_FUNCTION = PatchPoint(
    TensorFlowTrainer, "_make_function", "self, step_function", "The strategy makes the train and test functions."
)
MAKE_PREDICT_FUNCTION = PatchPoint(
    TensorFlowTrainer, "make_predict_function", "self, force", "The strategy makes the predict function."
)
METRICS_RESULT_OR_LOGS = PatchPoint(TensorFlowTrainer, "_get_metrics_result_or_logs", "self, logs", "Logs are of all calls.")
RESET_METRICS = PatchPoint(TensorFlowTrainer, "reset_metrics", "self", "No execution in flight may add to metrics then.")
SYMBOLIC_BUILD = PatchPoint(
    TensorFlowTrainer, "_maybe_symbolic_build", "self, iterator, data_batch", "Building a model must not take a batch."
)
GRADIENT = PatchPoint(
    tf.GradientTape,
    "gradient",
    "self, target, sources, output_gradients, unconnected_gradients",
    "A step that builds its model has variables without values.",
)
EPOCH_ITERATOR = PatchPoint(
    TFEpochIterator, "__init__", "self, distribute_strategy, args, kwargs", "The strategy decides how batches are distributed."
)
CALLBACK_LIST = PatchPoint(
    keras.callbacks.CallbackList,
    "__init__",
    "self, callbacks, add_history, add_progbar, model, params",
    "Only one of the tasks that train writes files and shows a progress bar.",
)
BEGIN_EPOCH = PatchPoint(
    keras.callbacks.CallbackList, "on_epoch_begin", "self, epoch, logs", "Callbacks may read the logs of each step of an epoch."
)

# checkpoint/data_position.py, checkpoint/job_backup.py
ENUMERATE_EPOCH = PatchPoint(
    TFEpochIterator, "_enumerate_iterator", "self", "A training that continues in an epoch passes over what it has seen."
)
END_EPOCH = PatchPoint(
    keras.callbacks.CallbackList, "on_epoch_end", "self, epoch, logs", "A backup holds what all callbacks know of the epoch."
)
END_TRAIN = PatchPoint(
    keras.callbacks.CallbackList, "on_train_end", "self, logs", "A call that is passed over ends with the logs that it had."
)

# inputs/cache_files.py
CACHE = PatchPoint(tf.data.Dataset, "cache", "self, filename, name", "Tasks on one disk would write the same cache.")

# inputs/iterator_release.py
OWNED_ITERATOR = PatchPoint(
    OwnedIterator, "__init__", "self, dataset, components, element_spec", "No epoch waits until it is freed."
)
MULTI_DEVICE_ITERATOR = PatchPoint(
    OwnedMultiDeviceIterator,
    "__init__",
    "self, dataset, devices, max_buffer_size, prefetch_buffer_size, source_device, components, element_spec",
    "The same for several replicas.",
)

# data_parallel/same_order.py
DATASET_STEPS = {
    name: PatchPoint(tf.data.Dataset, name, parameters, "All tasks read the elements of a dataset in the same order.")
    for name, parameters in (
        ("map", "self, map_func, num_parallel_calls, deterministic, synchronous, use_unbounded_threadpool, name"),
        ("interleave", "self, map_func, cycle_length, block_length, num_parallel_calls, deterministic, name"),
        ("batch", "self, batch_size, drop_remainder, num_parallel_calls, deterministic, name"),
    )
}

# keras_hooks/build_scope.py
OPEN_NAME_SCOPE = PatchPoint(
    keras.Layer, "_open_name_scope", "self", "A model that is built outside of the scope creates its variables inside."
)
BUILD_LAYER = PatchPoint(keras.Layer, "_maybe_build", "self, call_spec", "A replica cannot build a layer for all replicas.")
RESET_GRAPH = PublicPatchPoint(
    tf.compat.v1, "reset_default_graph", "", "`clear_session` inside a scope would end a part of it."
)

# keras_hooks/global_seed.py
GLOBAL_SEED_GENERATOR = PatchPoint(
    seed_generator_module, "global_seed_generator", "", "Keras keeps a generator per thread; replicas trace in several."
)
OPERATION_SEEDS = PatchPoint(tf_random_seed, "get_seed", "op_seed", "All tasks have one seed, and would draw the same numbers.")
SET_GLOBAL_ATTRIBUTE = PatchPoint(keras_global_state, "set_global_attribute", "name, value", "`set_random_seed` calls it.")
NEXT_SEED = PatchPoint(
    keras.random.SeedGenerator, "next", "self, ordered", "Replicas have equal states, and would draw the same numbers."
)

# keras_hooks/user_functions.py
CALL_FUNCTION = PatchPoint(
    Function, "__call__", "self, args, kwds", "A function with @tf.function keeps what it was traced to in another step."
)

# keras_hooks/optimizer.py: replicas add up their gradients once, before all other parts of an update.
APPLY = {
    owner: PatchPoint(
        owner, "apply", "self, grads, trainable_variables", "Gradients are added up before they are clipped or accumulated."
    )
    for owner in (TFOptimizer, LossScaleOptimizer, MultiOptimizer)
    if owner is not None
}
SCALE_BY_OPTIMIZER = PatchPoint(LossScaleOptimizer, "scale_loss", "self, loss", "A step would keep the first scale forever.")
SCALE_BY_FACTOR = PatchPoint(TFOptimizer, "scale_loss", "self, loss", "A loss counts by its share before it is scaled.")
APPLY_SCALED = PatchPoint(
    LossScaleOptimizer, "_tf_apply", "self, grads, trainable_variables", "The chief applies gradients where no replicas are."
)
ALL_REDUCE_GRADIENTS = PatchPoint(
    TFOptimizer, "_all_reduce_sum_gradients", "self, grads_and_vars", "Gradients that are added up are not added up again."
)

# keras_hooks/kept_tensors.py
MERGE_CALL = PatchPoint(
    MirroredReplicaContext,
    "_merge_call",
    "self, fn, args, kwargs",
    "A replica reads what it has kept, and not another one.",
)

# keras_hooks/losses.py
SCALE_LOSS = PatchPoint(
    keras_loss_module, "scale_loss_for_distribution", "value", "A replica's loss counts by its share of the examples."
)
UNSCALE_LOSS = PatchPoint(keras_loss_module, "unscale_loss_for_distribution", "value", "The inverse of SCALE_LOSS.")
REDUCE_LOSS = PatchPoint(
    keras_loss_module,
    "reduce_weighted_values",
    "values, sample_weight, mask, reduction, dtype",
    "Means over weights and masks are those of the whole batch; sums count in full.",
)
CALL_LOSS = PatchPoint(
    keras.losses.Loss, "__call__", "self, y_true, y_pred, sample_weight", "A loss that is one number needs the whole batch."
)
COMPILE_LOSS = PatchPoint(CompileLoss, "__call__", "self, y_true, y_pred, sample_weight", "Without a reduction it is a sum.")
AVERAGE_LOSS = PublicPatchPoint(
    tf.nn, "compute_average_loss", "per_example_loss, sample_weight, global_batch_size", "As SCALE_LOSS."
)
REGULARIZATION_LOSS = PublicPatchPoint(tf.nn, "scale_regularization_loss", "regularization_loss", "As SCALE_LOSS.")

# keras_hooks/metric_updates.py
UPDATE_MEAN = PatchPoint(
    keras.metrics.Mean, "update_state", "self, values, sample_weight", "The replicas together count a number per batch once."
)
UPDATE_SUM = PatchPoint(keras.metrics.Sum, "update_state", "self, values, sample_weight", "As UPDATE_MEAN.")
UPDATE_METRIC_FUNCTION = PatchPoint(
    keras.metrics.MeanMetricWrapper, "update_state", "self, y_true, y_pred, sample_weight", "One number needs the whole batch."
)

# keras_hooks/replicas/batch_normalization.py
SYNCHRONIZED_MOMENTS = PatchPoint(keras_nn, "_compute_moments_sync", "x, axes, keepdims", "Replicas have shares of a batch.")
MOMENTS = PatchPoint(keras.layers.BatchNormalization, "_moments", "self, inputs, mask", "With a mask Keras adds up nothing.")

# keras_hooks/replicas/decibels.py
DECIBELS = PatchPoint(keras.layers.MelSpectrogram, "_dbscale", "self, inputs", "It takes the maximum of a batch.")

# keras_hooks/replicas/batch_sums.py
ADD_LOSS = PatchPoint(keras.Layer, "add_loss", "self, loss", "Sums over the examples of a replica count in full.")
SUM_ADDED_LOSS = PatchPoint(TensorFlowTrainer, "_aggregate_additional_loss", "self, loss", "Keras' own sums count in full.")

# keras_hooks/variables.py, model_parallel/variables.py
INITIALIZE = PatchPoint(
    KerasVariable,
    "_initialize",
    "self, value",
    "Metrics begin once, not in each replica; a layout map splits variables.",
)
DIRECT_ASSIGN = PatchPoint(
    KerasVariable, "_direct_assign", "self, value", "Records what a step assigns; counters that are equal stay local."
)

NUMBERS = {
    name: AddedMethod(DistributedVariable, name, "Programs show float(model.optimizer.learning_rate).")
    for name in ("__int__", "__float__")
}

# model_parallel/: Keras' operations on tensors and variables whose parts are on several devices.
DISTRIBUTE_TENSOR = {
    owner.__name__: PatchPoint(owner, "distribute_tensor", "tensor, layout", "TensorFlow's backend of Keras has none.")
    for owner in (keras_distribution, keras.distribution)
}
BINARY_OPERATIONS = {
    name: PatchPoint(keras_numpy, name, "x1, x2", "Computes on the parts of a split tensor, and keeps them apart.")
    for name in ("add", "subtract", "multiply", "divide", "true_divide", "maximum", "minimum")
}
UNARY_OPERATIONS = {
    name: PatchPoint(keras_numpy, name, "x", "As BINARY_OPERATIONS.")
    for name in ("square", "absolute", "abs", "sqrt", "negative")
}
SUM = PatchPoint(keras_numpy, "sum", "x, axis, keepdims", "As BINARY_OPERATIONS.")
MATMUL = PatchPoint(keras_numpy, "matmul", "x1, x2", "As BINARY_OPERATIONS.")
EINSUM = PatchPoint(keras_numpy, "einsum", "subscripts, operands, kwargs", "As BINARY_OPERATIONS.")
TAKE = PatchPoint(keras_numpy, "take", "x, indices, axis", "As BINARY_OPERATIONS. And the ps look up rows for sparse tensors.")
TRANSPOSE = PatchPoint(keras_numpy, "transpose", "x, axes", "As BINARY_OPERATIONS.")
RESHAPE = PatchPoint(keras_numpy, "reshape", "x, newshape", "As BINARY_OPERATIONS.")
CONV = PatchPoint(
    keras_nn,
    "conv",
    "inputs, kernel, strides, padding, data_format, dilation_rate",
    "As BINARY_OPERATIONS. And XLA, which computes some, has no access to kernels on a ps.",
)
DEPTHWISE_CONV = PatchPoint(
    keras_nn, "depthwise_conv", "inputs, kernel, strides, padding, data_format, dilation_rate", "As BINARY_OPERATIONS."
)
SEPARABLE_CONV = PatchPoint(
    keras_nn,
    "separable_conv",
    "inputs, depthwise_kernel, pointwise_kernel, strides, padding, data_format, dilation_rate",
    "As BINARY_OPERATIONS.",
)
CONV_TRANSPOSE = PatchPoint(
    keras_nn,
    "conv_transpose",
    "inputs, kernel, strides, padding, output_padding, data_format, dilation_rate",
    "As BINARY_OPERATIONS.",
)
SIGMOID = PatchPoint(keras_nn, "sigmoid", "x", "As BINARY_OPERATIONS.")
SOFTMAX = PatchPoint(keras_nn, "softmax", "x, axis", "As BINARY_OPERATIONS.")
ATTENTION = PatchPoint(
    keras_nn,
    "dot_product_attention",
    "query, key, value, bias, mask, scale, is_causal, flash_attention, attn_logits_soft_cap",
    "As BINARY_OPERATIONS.",
)
DROPOUT = PatchPoint(keras_random, "dropout", "inputs, rate, noise_shape, seed", "As BINARY_OPERATIONS.")
NESTED_OPERATIONS = {
    name: PatchPoint(owner, name, parameters, "It takes a split tensor for several tensors, also as the result of a function.")
    for owner, name, parameters in nested_operations.SIGNATURES
}

# keras_hooks/update_kernels.py
UPDATE_OF_SGD = PatchPoint(
    keras.optimizers.SGD, "update_step", "self, gradient, variable, learning_rate", "One kernel computes the whole update."
)

# parameter_server/fused_adam.py
UPDATE_OF_ADAM = PatchPoint(keras.optimizers.Adam, "update_step", "self, gradient, variable, learning_rate", "XLA compiles it.")

# parameter_server/optimizer.py: updates run on the ps tasks that hold the variables.
UPDATE_STEP = PatchPoint(
    TFOptimizer,
    "_distributed_tf_update_step",
    "self, distribution, grads_and_vars, learning_rate",
    "Gradients travel to each ps in one message; each ps updates its own shards.",
)
ELEMENTWISE = {
    name: PatchPoint(TFOptimizer, name, parameters, "Each ps changes the rows of its own shards.")
    for name, parameters in (
        ("_apply_weight_decay", "self, variables"),
        ("_overwrite_model_variables_with_average_value", "self, trainable_variables"),
        ("_backend_increment_gradient_accumulators", "self, grads, acc_grads"),
    )
}
OWN_WEIGHT_DECAY = {
    owner: PatchPoint(owner, "_apply_weight_decay", "self, variables", "As ELEMENTWISE.")
    for owner in (getattr(keras.optimizers, "Muon", object),)  # Older versions have none, or one without this method.
    if "_apply_weight_decay" in vars(owner)
}

# parameter_server/asynchronous_counters.py
ACCUMULATE = PatchPoint(
    TFOptimizer, "_backend_increment_gradient_accumulators", "self, grads, acc_grads", "Of two additions at once one is lost."
)
RESET_ACCUMULATORS = PatchPoint(
    TFOptimizer, "_backend_reset_gradient_accumulators", "self", "What another group has added meanwhile is kept."
)
FINITE_GRADIENTS = PatchPoint(
    LossScaleOptimizer,
    "_stateful_handle_finite_grads",
    "self, grads, trainable_variables",
    "Of several groups none may see the count at which the loss scale grows.",
)
UPDATE_AVERAGES = PatchPoint(
    TFOptimizer, "_update_model_variables_moving_average", "self, trainable_variables", "Each ps computes those that it holds."
)
ASSIGN_IN_PLACE = {
    name: PatchPoint(KerasVariable, name, "self, value", "Keras reads, adds and writes: of two workers at once one is lost.")
    for name in ("assign_add", "assign_sub")
}
SPARSE_READ = AddedMethod(KerasVariable, "sparse_read", "tf.gather, and so keras.layers.Embedding, looks rows up on the ps.")

# hogwild/replicas/step_counters.py
LEARNING_RATE = PatchPoint(TFOptimizer, "_get_current_learning_rate", "self", "Schedules follow the steps of all groups.")

# hogwild/synchronization/custom_gradients.py
VARIABLE_BY_NAME = PatchPoint(nested_operations.custom_gradient, "get_variable_by_name", "var_name", "Replicas have none.")

# hogwild/synchronization/loaded_functions.py
RESTORE_CAPTURES = PatchPoint(restore_captures, "restore_captures", "concrete_function, inputs", "Groups have replicas.")

# private_api/remote_functions.py
REMOTE_FUNCTIONS = {
    name: PatchPoint(Context, name, f"self, {parameter}", "Other threads run while it waits for other tasks.")
    for name, parameter in (("add_c_function", "c_func"), ("add_function_def", "fdef"), ("remove_function", "name"))
}

# private_api/late_captures.py
CAPTURE_AT_CALL = PatchPoint(
    FuncGraph, "capture_call_time_value", "self, closure, spec, key, default_value, placeholder", "Loops lose it."
)

# runtime/chief_device.py
EAGER_CONSTANT = PatchPoint(tf_constant, "convert_to_eager_tensor", "value, ctx, dtype", "Other threads run while it is sent.")

# runtime/generated_code.py
LOAD_GENERATED = PatchPoint(autograph_loader, "load_source", "source, delete_on_exit", "A killed task leaves generated files.")

# runtime/downloads.py
GET_FILE = {
    name: PatchPoint(file_utils, name, parameters, "A task must not take what another one has downloaded or extracted in part.")
    for name, parameters in (
        ("urlretrieve", "url, filename, reporthook, data"),
        ("extract_archive", "file_path, path, archive_format"),
    )
}

# evaluator/, checkpoint/, runtime/run_summary.py
FIT = PatchPoint(
    TensorFlowTrainer,
    "fit",
    "self, x, y, batch_size, epochs, verbose, callbacks, validation_split, validation_data, shuffle, class_weight, "
    "sample_weight, initial_epoch, steps_per_epoch, validation_steps, validation_batch_size, validation_freq",
    "The evaluator evaluates, the chief writes checkpoints and backups, and the launcher's summary counts steps.",
)
EVALUATE = PatchPoint(
    TensorFlowTrainer,
    "evaluate",
    "self, x, y, batch_size, verbose, sample_weight, steps, callbacks, return_dict, kwargs",
    "The launcher's summary shows the metrics.",
)
STRATEGY_EXTENDED = PatchPoint(tf.distribute.StrategyExtended, "__init__", "self, container_strategy", "A task has one.")
PREDICT = PatchPoint(TensorFlowTrainer, "predict", "self, x, batch_size, verbose, steps, callbacks", "Calls may differ.")
PREDICT_ON_BATCH = PatchPoint(TensorFlowTrainer, "predict_on_batch", "self, x", "Two threads may not call it at a time.")
TRAIN_ON_BATCH = PatchPoint(
    TensorFlowTrainer, "train_on_batch", "self, x, y, sample_weight, class_weight, return_dict", "The evaluator does not train."
)
TEST_ON_BATCH = PatchPoint(
    TensorFlowTrainer, "test_on_batch", "self, x, y, sample_weight, return_dict", "It resets the metrics of a `fit` around it."
)
SAVE_METHODS = {
    name: PatchPoint(keras.Model, name, parameters, "The evaluator does not write files that are the chief's.")
    for name, parameters in (
        ("save", "self, filepath, overwrite, zipped, kwargs"),
        ("save_weights", "self, filepath, overwrite, max_shard_size"),
        ("export", "self, filepath, format, verbose, input_signature, kwargs"),
    )
}
