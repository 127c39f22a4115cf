"""Tells all tasks of a MultiWorkerMirroredStrategy of an error, by the service through which TensorFlow coordinates them.

TensorFlow's Python function for it holds Python's lock while it waits for the first task, which serves the service. Where that
one is cut off, no other thread of the process would run until TCP gives the connection up; in the first task itself, until it
has given up all that are cut off. So this calls the function of TensorFlow's C interface behind it, without the lock
(c_interface.py).
"""

import ctypes
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_api import c_interface
from tfdist.strategies.private_api.checks import need
from tfdist.strategies.private_api.eager_context import context

_abort_collectives: Any = need("tensorflow.python.eager.context", "Context", "abort_collective_ops")
_report = c_interface.need_context_function("TFE_ReportErrorToCluster", ctypes.c_int, ctypes.c_char_p)
# A function of Python's C interface, as an object of this file: the attributes of those in `ctypes.pythonapi` are everybody's.
_count_reference = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_IncRef", ctypes.pythonapi))


def abort_collectives(message: str) -> None:
    """Makes the collectives of this process fail with UnavailableError, now and from now on; then those of all other tasks.

    Those of this process fail at once. The others are told by the first task; where it is cut off that takes minutes.

    Raises:
        tf.errors.OpError: if the others cannot be told, because the task that serves the service is gone, or they know it.
    """
    _abort_collectives(context(), tf.errors.UNAVAILABLE, message)
    report_error(message)


def report_error(message: str) -> None:
    """Makes the collectives of all other tasks fail with UnavailableError. Returns when they are told.

    Raises:
        tf.errors.OpError: if this process has no coordination service, or knows of an error already.
    """
    c_interface.call(_report, tf.errors.UNAVAILABLE, message.encode())


def keep_context() -> None:
    """Leaves TensorFlow's runtime as it is at the end of the process.

    To take it down it would wait for its last heartbeat, and that waits for the first task, which may be cut off.
    """
    runtime = context()
    runtime.ensure_initialized()
    _count_reference(runtime._handle)  # Nobody counts it off, so the runtime is never deleted.
