"""What launcher and agent send each other: lines of JSON. A message with `bytes` is followed by that many bytes.

    launcher -> agent   {"cluster": TF_CONFIG}   the addresses, when all agents have said hello
                        {"start": NAME, "env": {...}, "report": BOOL, "terminal": BOOL}
                        {"signal": NUMBER, "tasks": [NAME, ...]}   {"output": BOOL}   whether to send output
                        {"beat": true}   once a second   {"end": true}
    agent -> launcher   {"hello": {...}}   {"ready": true}   {"failed": TEXT}   {"beat": true}
                        {"output": NAME, "last": BOOL, "bytes": N}   {"event": KIND, ...} for `from_json` of jobs/events.py
                        {"report": NAME, "bytes": N}   {"progress": NAME, "bytes": N}   {"steps": NAME, "bytes": N}
                        {"ended": NAME, "bytes": N}

Before them, the launcher sends one line to the first lines of Python on the other side (`BOOTSTRAP`): variables and folders of
modules, which Python needs before it can import the agent, and the job.
"""

import json
from typing import Any

from tfdist.launch.jobs.progress import ENDED_SUFFIX, STEPS_SUFFIX, SUFFIX

START = b"\0tfdist agent\n"
"""What the agent prints first: a login shell may print anything before."""

BEAT_SECONDS = 1.0

SILENCE_SECONDS = 20.0
"""A side that hears nothing from the other for this long takes the connection for lost (for ssh: `--ssh_silence`)."""

STOPPED_SECONDS = 2.0
"""How much longer than the silence after which the launcher takes it for lost an agent may be stopped before it is killed."""

BESIDE_REPORT = {"progress": SUFFIX, "steps": STEPS_SUFFIX, "ended": ENDED_SUFFIX}
"""What a task writes beside its report while it runs, as messages name it, and the ends of the names of the files."""

BOOTSTRAP = (
    "import sys;sys.path=[p for p in sys.path if p];"  # Not the modules in the home folder of the host.
    "sys.excepthook=lambda*e:(sys.__excepthook__(*e),sys.stderr.write('%s: %s; this Python, %s, cannot run tfdist: install it "
    "there, or name another Python (--ssh_python)\\n'%(e[0].__name__,e[1],sys.executable)));"
    "import json,os;f=open(0,'rb',0,closefd=False);h=json.loads(f.readline());"
    "os.environ.update(h['env']);sys.path[:0]=h['path'];from tfdist.launch.backends.agents.agent import main;"
    "sys.excepthook=sys.__excepthook__;main(h)"
)
"""The program that the remote Python gets on its command line. It is the same for every job: no value appears there."""


def encode(message: dict[str, Any], data: bytes = b"") -> bytes:
    """Returns a message, with its bytes, as it is sent."""
    if data:
        message = {**message, "bytes": len(data)}
    return json.dumps(message).encode() + b"\n" + data


class Decoder:
    """Takes what arrives apart into messages."""

    def __init__(self, start: bytes = b"") -> None:
        """Begins; everything before `start` is skipped."""
        self._start = start
        self.skipped = ""  # The last line of it.
        self._buffer = bytearray()
        self._message: dict[str, Any] | None = None  # One that waits for its bytes.

    def feed(self, data: bytes) -> list[tuple[dict[str, Any], bytes]]:
        """Adds what arrived; returns the messages that are complete, each with its bytes."""
        self._buffer += data
        if self._start:
            position = self._buffer.find(self._start)
            if position < 0:
                lines = [line for line in bytes(self._buffer).decode("utf-8", "replace").splitlines() if line.strip()]
                self.skipped = lines[-1].strip() if lines else self.skipped
                del self._buffer[: -len(self._start)]
                return []
            del self._buffer[: position + len(self._start)]
            self._start = b""
        messages: list[tuple[dict[str, Any], bytes]] = []
        while True:
            if self._message is None:
                line, newline, _ = self._buffer.partition(b"\n") if b"\n" in self._buffer else (b"", b"", b"")
                if not newline:
                    return messages
                del self._buffer[: len(line) + 1]
                self._message = json.loads(line)
            size = int(self._message.get("bytes", 0))
            if len(self._buffer) < size:
                return messages
            messages.append((self._message, bytes(self._buffer[:size])))
            del self._buffer[:size]
            self._message = None
