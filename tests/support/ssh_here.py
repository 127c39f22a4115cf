"""Starts real ssh servers on this machine, with all their files in a temporary folder; each is a host for the ssh client."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")

_SERVER = """
ListenAddress {address}:{port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile none
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
MaxStartups 100
"""

_CLIENT = """
Host {names}
    HostName {address}
    Port {port}
    User {user}
    IdentityFile {folder}/key
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
    StrictHostKeyChecking yes
"""


def keys(folder: Path) -> None:
    """Makes the keys of the servers and of the user."""
    for name in ("host_key", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True, timeout=30)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)


def add_host(folder: Path, names: str, address: str, port: int) -> None:
    """Adds hosts with this address to the configuration of the client, `folder/config`."""
    user = pwd.getpwuid(os.geteuid()).pw_name
    with open(folder / "config", "a") as file:
        file.write(_CLIENT.format(names=names, address=address, port=port, user=user, folder=folder))
    with open(folder / "known_hosts", "a") as file:
        file.write(f"[{address}]:{port} {(folder / 'host_key.pub').read_text()}")


@contextmanager
def namespace(name: str, number: int) -> Iterator[str]:
    """Makes a network namespace behind a virtual cable (10.NUMBER.7.1 here, interface `v` + the digits of the name, 10.NUMBER.7.2 there); yields the address there."""
    here, there = f"v{name.lstrip('tfd')}", f"w{name.lstrip('tfd')}"
    run(f"ip netns add {name}")
    try:
        run(f"ip link add {here} type veth peer name {there} netns {name}")
        run(f"ip addr add 10.{number}.7.1/24 dev {here}")
        run(f"ip link set {here} up")
        # While the cable is cut, ssh hears so at once, and does not wait for `ConnectTimeout`.
        run(f"ip route add unreachable 10.{number}.7.0/24 metric 4000")
        run(f"ip -n {name} addr add 10.{number}.7.2/24 dev {there}")
        run(f"ip -n {name} link set {there} up")
        run(f"ip -n {name} link set lo up")
        yield f"10.{number}.7.2"
    finally:
        # Sessions whose client is gone outlive their server.
        for pid in subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, timeout=30).stdout.split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        # Left to itself, the cable goes some time after the last process of the namespace.
        for rest in (["link", "delete", here], ["route", "delete", "unreachable", f"10.{number}.7.0/24", "metric", "4000"]):
            subprocess.run(["ip", *rest], check=False, capture_output=True, timeout=30)
        run(f"ip netns delete {name}")


def run(command: str) -> None:
    """Runs a command of words without blanks."""
    subprocess.run(command.split(), check=True, capture_output=True, timeout=30)


@contextmanager
def server(
    folder: Path, address: str, port: int, prefix: tuple[str, ...] = (), variables: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Runs a server until the end of the block.

    Args:
        folder: where `keys` has made the keys.
        address: where it listens.
        port: where it listens.
        prefix: the first words of its command.
        variables: what its sessions find in their environment; no blanks.
    """
    config = folder / f"sshd-{address}-{port}"
    lines = f"SetEnv {' '.join(f'{name}={value}' for name, value in variables.items())}\n" if variables else ""
    config.write_text(_SERVER.format(folder=folder, address=address, port=port) + lines)
    assert SSHD is not None
    with open(folder / f"{config.name}.log", "wb") as log:
        process = subprocess.Popen([*prefix, SSHD, "-D", "-e", "-f", str(config)], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 90
        while True:
            try:
                socket.create_connection((address, port), 1.0).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline, Path(log.name).read_text()
                time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(60)
