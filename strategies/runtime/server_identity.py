"""Asks what listens at the address of a ps or worker: an open port may belong to another program.

TensorFlow would wait for that program without a limit. Its servers answer the call `GetStatus` of their worker service
(tensorflow/core/protobuf/worker_service.proto) with the names of their devices, which contain job and task. The call is made by
hand, in HTTP/2 without compression (RFC 9113, RFC 7541 section 6.2.2): TensorFlow's own client has no time limit, and the
package grpc would start a second gRPC runtime in the process.
"""

import re
import struct

from tfdist.cluster import Task
from tfdist.strategies.runtime.deadline import Deadline
from tfdist.strategies.runtime.peers import Missing, not_connected
from tfdist.strategies.runtime.task_address import connect

CONNECT_SECONDS = 1.0

SETTINGS = 4
"""The type of the HTTP/2 frame that either side sends first."""

_DATA, _HEADERS = 0, 1
_END_STREAM, _END_HEADERS = 0x1, 0x4
_EMPTY_MESSAGE = bytes(5)  # As gRPC frames it: not compressed, length 0.
_DEVICE = re.compile(rb"/job:(\w+)/replica:\d+/task:(\d+)/")
_MOST_BYTES = 2**16  # Of an answer: what a sender may send before it is told to go on.


def why_missing(task: Task, deadline: Deadline) -> Missing | None:
    """Returns None if the TensorFlow server of `task` answers at its address."""
    try:
        connection = connect(task, deadline.within(CONNECT_SECONDS))
    except OSError as error:
        return not_connected(error)
    answer = b""
    with connection:
        try:
            connection.sendall(_request(task.address))
            while len(answer) < _MOST_BYTES and not deadline.expired():
                connection.settimeout(max(0.01, deadline.remaining()))
                received = connection.recv(_MOST_BYTES)
                answer += received
                if found := _DEVICE.search(answer):
                    is_task = (found[1].decode(), int(found[2])) == (task.job, task.index)
                    return None if is_task else Missing.OTHER_TASK
                if not received:
                    break
        except OSError:
            pass  # It does not answer, or has ended the connection.
    return Missing.NOT_TENSORFLOW if answer else Missing.MUTE


def hello() -> bytes:
    """Returns the beginning of an HTTP/2 connection (RFC 9113, section 3.4), with empty settings."""
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(SETTINGS, 0, 0, b"")


def _request(authority: str) -> bytes:
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/tensorflow.WorkerService/GetStatus",
        ":authority": authority,
        "content-type": "application/grpc",
        "te": "trailers",
    }
    block = b"".join(b"\0" + _literal(name) + _literal(value) for name, value in headers.items())
    return hello() + _frame(_HEADERS, _END_HEADERS, 1, block) + _frame(_DATA, _END_STREAM, 1, _EMPTY_MESSAGE)


def _literal(text: str) -> bytes:
    encoded = text.encode()[:126]  # Longer ones have another form; only a host name could be that long, and it does not matter.
    return bytes([len(encoded)]) + encoded


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload
