"""`EventFile`: scalars and texts for TensorBoard, written with parts of TensorBoard's package that do not import TensorFlow."""

import os
import socket
import time
from collections.abc import Mapping

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.record_writer import RecordWriter

_TEXT = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))


class EventFile:
    """A new file of events in a folder, which is made if it does not exist."""

    def __init__(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)
        # By this name TensorBoard finds it.
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        self._records = RecordWriter(open(os.path.join(folder, name), "wb"))  # noqa: SIM115 - `close` closes it.
        self._write(Event(file_version="brain.Event:2"))

    def add(self, scalars: Mapping[str, float], texts: Mapping[str, str], step: int) -> None:
        """Writes numbers, and texts as Markdown, by their names, at a step."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        for name, text in texts.items():
            tensor = TensorProto(dtype=DT_STRING, tensor_shape={"dim": [{"size": 1}]}, string_val=[text.encode()])
            values.append(Summary.Value(tag=name, tensor=tensor, metadata=_TEXT))
        self._write(Event(step=step, summary=Summary(value=values)))

    def close(self) -> None:
        """Closes the file."""
        self._records.close()

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        self._records.write(event.SerializeToString())
        self._records.flush()
