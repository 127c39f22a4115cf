"""What a training saves: files that are complete or absent, written by the chief alone, with the state of the strategy.

`atomic_saving.py` makes every save of Keras and TensorFlow go through `atomic_path.py`. `backup.py` does the same for
`keras.callbacks.BackupAndRestore`, and `strategy_state.py` adds what a strategy needs beside the variables. The room imports
`private_api`, and from `coordinator` the name of the chief's device. Start with `atomic_saving.py`.
"""
