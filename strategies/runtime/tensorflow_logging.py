"""What TensorFlow logs: by default errors only."""

import logging
import os


def quiet_tensorflow() -> None:
    """Makes TensorFlow's Python code log errors only, unless TFDIST_VERBOSE is set. It logs much about its strategies."""
    if os.environ.get("TFDIST_VERBOSE"):
        return
    tensorflow_logger = logging.getLogger("tensorflow")
    tensorflow_logger.setLevel(logging.ERROR)
    tensorflow_logger.addFilter(_is_not_raised)
    logging.getLogger("absl").addFilter(_is_not_from_tensorflow)  # Parts of TensorFlow log there, as the program may.


def _is_not_from_tensorflow(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR or f"{os.sep}tensorflow{os.sep}python{os.sep}" not in record.pathname


def _is_not_raised(record: logging.LogRecord) -> bool:
    # The coordinator logs an error of a step twice, with the whole stack, and then raises it.
    return not str(record.msg).startswith((" /job:worker/task:%d encountered", "Start cancelling closures"))
