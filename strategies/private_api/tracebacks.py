"""Leaves the frames of tfdist out of tracebacks, as Keras leaves out its own: what remains is the user's code."""

import os
import traceback
import types

import keras

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""The folder `strategies`."""


def without_own_frames(error: Exception) -> types.TracebackType | None:
    """Returns the traceback of an error without the frames of tfdist's strategies, but for the one that raised it.

    All of it after `keras.config.disable_traceback_filtering()`.
    """
    if not keras.config.is_traceback_filtering_enabled():
        return error.__traceback__
    frames = list(traceback.walk_tb(error.__traceback__))
    kept = None
    for number in reversed(range(len(frames))):
        frame, line = frames[number]
        if number == len(frames) - 1 or not frame.f_code.co_filename.startswith(_OWN):
            kept = types.TracebackType(kept, frame, frame.f_lasti, line)
    return kept
