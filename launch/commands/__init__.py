"""The command `tfdist`, also `python -m tfdist`: run, plan, translate, status, logs, cancel, scale, doctor, completion.

Each verb imports what it needs when it runs, so that `tfdist --help` answers at once. Start with `run_command.py`.
"""

import errno
import importlib
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from tfdist.errors import nearest
from tfdist.launch import standard_streams
from tfdist.launch.errors import UsageError
from tfdist.messages import print_error
from tfdist.version import __version__

HELP = """tfdist trains Keras 3 programs on a cluster, described in the format that you already have.

usage: tfdist COMMAND ...

  tfdist run -n 4 train.py                     run a program: here 4 workers on this machine
  tfdist run --cluster FILE train.py           on a described cluster; --dry_run only shows what would be started
  tfdist plan train.py --machines 8            measure it, and say which cluster would train it fastest
  tfdist translate FILE --to tf_config         print a description in another language
  tfdist status [HANDLE]                       how a job in the background is doing, or all of them
  tfdist logs [-f] HANDLE [TASK]               its output, or that of one task
  tfdist cancel HANDLE                         end it
  tfdist scale HANDLE worker=4                 change the number of workers while it trains
  tfdist status HANDLE --svg FILE              a picture of it, with the states of its tasks
  tfdist doctor                                versions, devices, ports and tools: what a bug report needs
  tfdist completion bash                       a script that completes commands, flags and handles (zsh, fish)

tfdist COMMAND --help tells more. Exit code 2: a bad command line or description, and nothing was started.
"""


def _main_of(module: str, *first: str) -> Callable[[list[str]], int]:
    """Returns the `main` of a module of tfdist, which gets `first` before the words of the command line."""

    def run(argv: list[str]) -> int:
        code: int = importlib.import_module(f"tfdist.{module}").main([*first, *argv])
        return code

    return run


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "run": _main_of("launch.commands.run_command", "tfdist run"),
    "plan": _main_of("launch.plan.command"),
    "translate": _main_of("translate", "tfdist translate"),
    "status": _main_of("launch.commands.job_commands", "status"),
    "logs": _main_of("launch.commands.job_commands", "logs"),
    "cancel": _main_of("launch.commands.job_commands", "cancel"),
    "scale": _main_of("launch.commands.scale_command"),
    "doctor": _main_of("launch.commands.doctor"),
    "completion": _main_of("launch.commands.completion"),
}


def main() -> NoReturn:
    """Runs the command and exits with its code."""
    sys.exit(run(sys.argv[1:]))


def run(words: list[str]) -> int:
    """Runs the command with these words after `tfdist`; returns its exit code."""
    standard_streams.open_closed()
    try:
        code = _run(words)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # `tfdist status | head`
        _drop_output()
        return 0
    except KeyboardInterrupt:
        return 130
    except _shown() as error:
        print_error(error)
        return 2
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _drop_output()
        where = repr(error.filename) if error.filename else "standard output or a file that this command writes"
        print_error(f"no space is left on the disk of {where}; free some there")
        return 1


def _drop_output() -> None:
    """Lets Python write what is left for standard output, at its exit too, to nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _shown() -> tuple[type[Exception], ...]:
    """Returns the errors that are shown as a line, without a traceback."""
    from absl import flags

    from tfdist.errors import ClusterError
    from tfdist.launch.backends.interface import BackendError

    return UsageError, BackendError, ClusterError, flags.Error


def _run(words: list[str]) -> int:
    if words[:1] == ["help"] and words[1:]:
        words = [*words[1:], "--help"]
    if not words or words[0] in ("--help", "-h", "-help", "help"):
        print(HELP, end="")
        return 0 if words else 2
    if words[0] in ("--version", "-V", "version"):
        print(f"tfdist {__version__}")
        return 0
    command = COMMANDS.get(words[0])
    if command is None:
        raise UsageError(_unknown(words[0]))
    return command(words[1:])


def _unknown(word: str) -> str:
    if word.startswith("-") or word.endswith(".py"):
        return f"{word}: the command is missing; did you mean tfdist run {word}?"
    return f"{word!r} is not a command; there are {', '.join(COMMANDS)}{nearest(word, COMMANDS)}"
