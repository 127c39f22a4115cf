"""Tells all tasks of a MultiWorkerMirroredStrategy of an error, by the service through which TensorFlow coordinates them.

TensorFlow's Python function for it holds Python's lock while it waits for the first task, which serves the service. Where that
one is cut off, no other thread of the process would run until TCP gives the connection up; in the first task itself, until it
has given up all that are cut off. So this calls the function of TensorFlow's C interface behind it, without the lock.
"""

import ctypes
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_api.checks import need, need_c_function

_MODULE = "tensorflow.python._pywrap_tfe"

_context: Any = need("tensorflow.python.eager.context", "context")
_abort_collectives: Any = need("tensorflow.python.eager.context", "Context", "abort_collective_ops")
need("tensorflow.python.eager.context", "Context", "_handle")
_new_status = need_c_function(_MODULE, "TF_NewStatus", ctypes.c_void_p)
_delete_status = need_c_function(_MODULE, "TF_DeleteStatus", None, ctypes.c_void_p)
_code_of = need_c_function(_MODULE, "TF_GetCode", ctypes.c_int, ctypes.c_void_p)
_message_of = need_c_function(_MODULE, "TF_Message", ctypes.c_char_p, ctypes.c_void_p)
_arguments = (ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_report = need_c_function(_MODULE, "TFE_ReportErrorToCluster", None, *_arguments)

_error_of: Any = need("tensorflow.python.framework.errors_impl", "exception_type_from_error_code")
# Functions of Python's own C interface, as objects of this file: the attributes of those in `ctypes.pythonapi` are everybody's.
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
_count_reference = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_IncRef", ctypes.pythonapi))


def abort_collectives(message: str) -> None:
    """Makes the collectives of this process fail with UnavailableError, now and from now on; then those of all other tasks.

    Those of this process fail at once. The others are told by the first task; where it is cut off that takes minutes.

    Raises:
        tf.errors.OpError: if the others cannot be told, because the task that serves the service is gone, or they know it.
    """
    _abort_collectives(_context(), tf.errors.UNAVAILABLE, message)
    report_error(message)


def report_error(message: str) -> None:
    """Makes the collectives of all other tasks fail with UnavailableError. Returns when they are told.

    Raises:
        tf.errors.OpError: if this process has no coordination service, or knows of an error already.
    """
    context, status = _context(), _new_status()
    try:
        context.ensure_initialized()
        _report(_pointer_of(context._handle, None), tf.errors.UNAVAILABLE, message.encode(), status)
        code, said = _code_of(status), (_message_of(status) or b"").decode(errors="replace")
    finally:
        _delete_status(status)
    if code:
        raise _error_of(code)(None, None, said)


def keep_context() -> None:
    """Leaves TensorFlow's runtime as it is at the end of the process.

    To take it down it would wait for its last heartbeat, and that waits for the first task, which may be cut off.
    """
    context = _context()
    context.ensure_initialized()
    _count_reference(context._handle)  # Nobody counts it off, so the runtime is never deleted.
