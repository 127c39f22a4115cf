"""What a call raises if the job has lost a task, not because of an error of the program."""

import tensorflow as tf

from tfdist.errors import JobLostTaskError


def says_lost_task(error: BaseException) -> bool:
    """Returns whether an error says that the job has lost a task. A program that catches it has not trained to its end."""
    kinds = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.DeadlineExceededError, tf.errors.CancelledError)
    return isinstance(error, (JobLostTaskError, *kinds))
