"""An error is reported to all tasks without Python's lock: the report waits for the first task, which may be cut off."""

import sys

import pytest
import tensorflow as tf

from tfdist.errors import UnsupportedVersionError
from tfdist.strategies.private_api import eager_context, error_report
from tfdist.strategies.private_api.checks import need_c_function

FUNCFLAG_PYTHONAPI = 4
"""Of ctypes.h: the function is called with Python's lock."""


def test_other_threads_run_while_an_error_is_reported():
    assert not type(error_report._report)._flags_ & FUNCFLAG_PYTHONAPI


def test_a_process_without_a_coordination_service_says_so():
    with pytest.raises(tf.errors.FailedPreconditionError, match="Coordination service is not enabled"):
        error_report.report_error("no server")


def test_the_runtime_of_a_process_that_has_lost_a_task_is_not_taken_down():
    tf.constant(1)
    handle = eager_context.context()._handle
    before = sys.getrefcount(handle)
    error_report.keep_context()
    assert sys.getrefcount(handle) == before + 1


def test_a_function_that_a_version_does_not_have_is_named():
    with pytest.raises(UnsupportedVersionError, match="has no C function TFE_NoSuchFunction, which tfdist calls"):
        need_c_function("tensorflow.python._pywrap_tfe", "TFE_NoSuchFunction", None)
