"""Bounds what TensorFlow itself waits for without a limit: a task that has answered, and is stopped a moment later."""

import contextlib
import faulthandler
import subprocess
import sys
from collections.abc import Iterator

STACKS_SECONDS = 1.0
"""How much later than the sentence the stacks come, and the end."""

_SENTENCE = (
    "tfdist: TensorFlow has not connected this task to the others within {:.0f} s, although all had answered: one of them is "
    "stopped or cut off, or has ended; this task ends, with its Python stacks"
)

# It ends without a word when the process that waits, or the block, has ended.
_SAY_LATER = "import select, sys\nif not select.select([0], [], [], float(sys.argv[1]))[0]: print(sys.argv[2], file=sys.stderr)"


@contextlib.contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Ends the process with a sentence, a traceback and exit code 1 if the block takes longer than `seconds`.

    While TensorFlow connects to tasks that are gone again, no other Python thread runs; the timer of faulthandler does, which
    prints nothing but stacks. So the sentence comes from a process of its own.
    """
    errors = sys.__stderr__ or 2
    command = [sys.executable, "-I", "-S", "-c", _SAY_LATER, str(seconds), _SENTENCE.format(seconds)]
    try:
        speaker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors)
    except OSError:  # No processes are left, for example.
        speaker = None
    faulthandler.dump_traceback_later(seconds + STACKS_SECONDS, exit=True, file=errors)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        if speaker is not None:
            speaker.kill()
            speaker.communicate()
