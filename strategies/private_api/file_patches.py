"""The registry of patches (see patches.py) of what writes and reads files, for checkpoint/.

Files are whole, written by the chief alone, and hold what a strategy needs beside the variables. (`tf.saved_model.save` cannot
be replaced: `export` imports it anew.)
"""

import keras

from tfdist.strategies.private_api import (
    TrackableSaver,
    checkpoint_management,
    file_utils,
    legacy_h5_format,
    saved_model_save,
    saving_lib,
)
from tfdist.strategies.private_api.patch_point import PatchPoint

SAVE_MODEL = PatchPoint(
    saving_lib, "save_model", "model, filepath, weights_format, zipped", "Keras writes to the final name, on every task."
)
SAVE_WEIGHTS = PatchPoint(saving_lib, "save_weights_only", "model, filepath, max_shard_size, objects_to_skip", "As save_model.")
SAVE_H5 = PatchPoint(legacy_h5_format, "save_model_to_hdf5", "model, filepath, overwrite, include_optimizer", "As save_model.")
H5_STORE = {
    name: PatchPoint(saving_lib.H5IOStore, name, parameters, "As save_model, for files that programs write themselves.")
    for name, parameters in (("__init__", "self, path_or_io, archive, mode"), ("close", "self"))
}
MAKE_FOLDER = PatchPoint(
    file_utils, "makedirs", "path", "ModelCheckpoint makes its folder on every task if there is none, and fails on all but one."
)
SAVE_STATE = PatchPoint(
    saving_lib,
    "_save_state",
    "saveable, weights_store, assets_store, inner_path, visited_saveables",
    "Keras' files hold the state of the strategy too.",
)
LOAD_STATE = PatchPoint(
    saving_lib,
    "_load_state",
    "saveable, weights_store, assets_store, inner_path, skip_mismatch, visited_saveables, failed_saveables, error_msgs",
    "As _save_state.",
)
UNSAVED_ATTRIBUTES = PatchPoint(saving_lib, "get_attr_skipset", "obj_type", "Keras makes an optimizer with each save.")
BACKUP_SAVE = PatchPoint(
    keras.callbacks.BackupAndRestore, "_save_model", "self", "It writes two files, and a task may die between them."
)
BACKUP_LOAD = PatchPoint(keras.callbacks.BackupAndRestore, "_load_model", "self", "As _save_model.")
BACKUP_TRAIN_BEGIN = PatchPoint(
    keras.callbacks.BackupAndRestore, "on_train_begin", "self, logs", "Every task restores the chief's backup."
)
BACKUP_TRAIN_END = PatchPoint(keras.callbacks.BackupAndRestore, "on_train_end", "self, logs", "The chief alone deletes it.")
CHECKPOINT_SAVE = PatchPoint(
    TrackableSaver, "save", "self, file_prefix, checkpoint_number, session, options", "The chief alone keeps the checkpoint."
)
CHECKPOINT_RESTORE = PatchPoint(TrackableSaver, "restore", "self, save_path, options", "A strategy has more to restore.")
CHECKPOINT_TENSORS = PatchPoint(
    TrackableSaver, "_gather_serialized_tensors", "self, object_graph_tensor", "Checkpoints hold the state of the strategy too."
)
CHECKPOINT_STATE = PatchPoint(
    checkpoint_management,
    "update_checkpoint_state_internal",
    "save_dir, model_checkpoint_path, all_model_checkpoint_paths, latest_filename, save_relative_paths, "
    "all_model_checkpoint_timestamps, last_preserved_timestamp",
    "The chief alone writes the file that names the latest checkpoint.",
)
CHECKPOINT_DELETE = PatchPoint(checkpoint_management, "_delete_file_if_exists", "filespec", "The chief alone deletes old ones.")
SAVE_SAVED_MODEL = PatchPoint(
    saved_model_save,
    "save_and_return_nodes",
    "obj, export_dir, signatures, options, experimental_skip_checkpoint",
    "As save_model.",
)
