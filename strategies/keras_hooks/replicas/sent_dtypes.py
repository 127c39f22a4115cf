"""Dtypes that TensorFlow's collectives refuse, and those in which such values travel."""

from typing import Any

import tensorflow as tf

_SENT_AS = {
    **dict.fromkeys((tf.bfloat16, tf.dtypes.experimental.float8_e4m3fn, tf.dtypes.experimental.float8_e5m2), tf.float32),
    **dict.fromkeys((tf.bool, tf.int8, tf.uint8, tf.int16, tf.uint16), tf.int32),
    **dict.fromkeys((tf.uint32, tf.uint64), tf.int64),
}


def sent_as(dtype: Any) -> Any:
    """Returns a dtype that holds all values of `dtype` and can be broadcast and gathered; `dtype` itself if it can."""
    return _SENT_AS.get(dtype, dtype)
