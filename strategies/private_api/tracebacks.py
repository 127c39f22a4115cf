"""Leaves the frames of tfdist out of tracebacks, as Keras leaves out its own: what remains is the user's code."""

import os
import traceback
import types

import keras

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""The folder `strategies`."""


def leave_out_own_frames(error: Exception) -> None:
    """Removes the frames of tfdist's strategies from the traceback of an error, but for the one that raised it.

    Does nothing after `keras.config.disable_traceback_filtering()`.
    """
    if not keras.config.is_traceback_filtering_enabled():
        return
    frames = list(traceback.walk_tb(error.__traceback__))
    kept = None
    for number in reversed(range(len(frames))):
        frame, line = frames[number]
        if number == len(frames) - 1 or not frame.f_code.co_filename.startswith(_OWN):
            kept = types.TracebackType(kept, frame, frame.f_lasti, line)
    error.__traceback__ = kept
