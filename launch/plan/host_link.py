"""Measures the link between hosts (`--link measured`): one TCP connection from a host to another, over the user's own ssh.

Both ends are Python's standard library, given to the host's `python3` on the command line. Each ends by itself when the other
does not come, and when its connection ends.
"""

import itertools
import shlex
import subprocess
import threading
from collections.abc import Sequence

from tfdist.launch.errors import UsageError
from tfdist.planner.link import GOODPUT

SECONDS = 2.0
"""How long bytes are sent. Those of the first quarter do not count: TCP finds the rate of the link."""

WAIT_SECONDS = 30.0
"""How long either end waits for the other."""

MOST_PAIRS = 4

RECEIVE = """
import socket, sys, time
server = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) if socket.has_dualstack_ipv6() \\
    else socket.create_server(("", 0))
print(server.getsockname()[1], flush=True)
server.settimeout(float(sys.argv[1]))
peer, _ = server.accept()
peer.settimeout(float(sys.argv[1]))
first = begin = time.monotonic()
count = 0
while data := peer.recv(1 << 20):
    now = time.monotonic()
    if now - first > float(sys.argv[2]) / 4:
        count += len(data)
    else:
        begin = now
print(count / max(now - begin, 1e-9), flush=True)
"""
SEND = """
import socket, sys, time
peer = socket.create_connection((sys.argv[3], int(sys.argv[4])), float(sys.argv[1]))
end, block = time.monotonic() + float(sys.argv[2]), bytes(1 << 17)
while time.monotonic() < end:
    peer.sendall(block)
peer.close()
"""


def measured(hosts: Sequence[str], config: str | None = None) -> float:
    """Returns the rate of the slowest link between two hosts or more, in bytes per second, as `--link` would give it.

    `config` is a configuration of ssh; None for the user's.

    Each host sends to the next one, at most `MOST_PAIRS` of them in turn.

    Raises:
        UsageError: if a host cannot be reached, has no `python3`, or cannot reach the next one.
    """
    pairs = list(itertools.pairwise([*hosts, hosts[0]]))[:MOST_PAIRS]
    return min(_one(sender, receiver, config) for sender, receiver in pairs) / GOODPUT


def _one(sender: str, receiver: str, config: str | None) -> float:
    options = [f"{WAIT_SECONDS}", f"{SECONDS}"]
    listening = subprocess.Popen(_command(receiver, RECEIVE, options, config), **_PIPES)  # type: ignore[call-overload]
    latest = threading.Timer(WAIT_SECONDS, listening.kill)  # `readline` has no limit of its own.
    latest.start()
    try:
        port = listening.stdout.readline().strip()
        if not port.isdecimal():
            errors = listening.communicate(timeout=2 * WAIT_SECONDS)[1]
            if not latest.is_alive():
                raise UsageError(f"--link measured: {receiver} did not answer within {WAIT_SECONDS:.0f} s")
            raise UsageError(f"--link measured: {receiver}: {_last(errors)}")
        latest.cancel()
        sending = subprocess.Popen(  # type: ignore[call-overload]
            _command(sender, SEND, [*options, receiver, port], config), **_PIPES
        )
        try:
            errors = sending.communicate(timeout=2 * WAIT_SECONDS)[1]
        finally:
            sending.kill()
            sending.wait()
        if sending.returncode:
            raise UsageError(f"--link measured: {sender} to {receiver}: {_last(errors)}")
        return float(listening.communicate(timeout=WAIT_SECONDS)[0])
    except (subprocess.TimeoutExpired, ValueError):
        raise UsageError(f"--link measured: {sender} and {receiver} did not answer within {WAIT_SECONDS:.0f} s") from None
    finally:
        latest.cancel()
        listening.kill()
        listening.communicate()


_PIPES = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


def _command(host: str, code: str, arguments: Sequence[str], config: str | None) -> list[str]:
    options = [word for option in ("BatchMode=yes", "ConnectTimeout=15") for word in ("-o", option)]
    remote = shlex.join(["exec", "python3", "-c", code, *arguments])
    return ["ssh", *(["-F", config] if config else []), "-T", *options, "--", host, remote]


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it ended without a word"
