"""What a training saves: files that are complete or absent, written by the chief alone, with the state of the strategy.

`atomic_saving.py` makes every save of Keras and TensorFlow go through `atomic_path.py`; `checkpoint_files.py` replaces a
checkpoint of TensorFlow, which has several files, by another. `backup.py` does the same for
`keras.callbacks.BackupAndRestore`, and `strategy_state.py` adds what a strategy needs beside the variables. `job_backup.py` is
tfdist's own backup, from which an unchanged program continues: `backup_file.py` has its file, `data_position.py` finds the
place in the data, and `callback_states.py` and `model_states.py` have what else goes on. The room imports
`keras_hooks`, `inputs`, `runtime` and `private_api`. Start with `atomic_saving.py`.
"""
