"""Calls functions of TensorFlow's C interface without Python's lock.

TensorFlow's Python functions for some of them hold that lock while they wait for other tasks. If one of these is stopped or cut
off, no other thread of the process runs: none that would notice it, end its connections, or give it up.
"""

import ctypes
from typing import Any

from tfdist.strategies.private_api.checks import need, need_c_function
from tfdist.strategies.private_api.eager_context import context

_MODULE = "tensorflow.python._pywrap_tfe"
_WORD = ctypes.sizeof(ctypes.c_void_p)
_SIMPLE_LAYOUT = 2

need("tensorflow.python.eager.context", "Context", "_handle")
_new_status = need_c_function(_MODULE, "TF_NewStatus", ctypes.c_void_p)
_delete_status = need_c_function(_MODULE, "TF_DeleteStatus", None, ctypes.c_void_p)
_code_of = need_c_function(_MODULE, "TF_GetCode", ctypes.c_int, ctypes.c_void_p)
_message_of = need_c_function(_MODULE, "TF_Message", ctypes.c_char_p, ctypes.c_void_p)

_error_of: Any = need("tensorflow.python.framework.errors_impl", "exception_type_from_error_code")
# A function of Python's C interface, as an object of this file: the attributes of those in `ctypes.pythonapi` are everybody's.
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))


def need_context_function(name: str, *arguments: Any) -> Any:
    """Returns a C function that gets TensorFlow's runtime, then `arguments`, then a status.

    Raises:
        UnsupportedVersionError: if this version of TensorFlow has none of this name.
    """
    return need_c_function(_MODULE, name, None, ctypes.c_void_p, *arguments, ctypes.c_void_p)


def pointer_in(wrapper: Any) -> int | None:
    """Returns the pointer in an object with which pybind11 wraps one of C; None for an object that does not look so.

    Behind Python's head such an object has that pointer and its holder, and as its last word flags, one of which says that
    there is a single pointer (`struct instance` of pybind11/detail/common.h).
    """
    kind = type(wrapper)
    if type(kind).__name__ != "pybind11_type" or kind.__basicsize__ < object.__basicsize__ + 4 * _WORD:
        return None
    flags = ctypes.c_uint8.from_address(id(wrapper) + kind.__basicsize__ - _WORD).value
    return ctypes.c_void_p.from_address(id(wrapper) + object.__basicsize__).value if flags & _SIMPLE_LAYOUT else None


def call(function: Any, *arguments: Any) -> None:
    """Calls such a function for the runtime of this process. Other threads run meanwhile.

    Raises:
        tf.errors.OpError: if its status says so.
    """
    runtime, status = context(), _new_status()
    try:
        runtime.ensure_initialized()
        function(_pointer_of(runtime._handle, None), *arguments, status)
        code, said = _code_of(status), (_message_of(status) or b"").decode(errors="replace")
    finally:
        _delete_status(status)
    if code:
        raise _error_of(code)(None, None, said)
