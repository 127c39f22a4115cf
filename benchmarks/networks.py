"""Machines in a machine: Linux network namespaces, each with one processor core and one link of a given rate to a switch.

    sudo python benchmarks/networks.py

measures what one TCP connection between two nodes really gets at the rates that the benchmarks use, and that nothing is left.
Every node is a network namespace whose one interface is a veth pair; the other ends are ports of a bridge, in a namespace of
its own, so that the networks of the machine stay as they are. Both ends of a link are shaped by `tc`'s token bucket filter:
the rate holds in each direction by itself, as on a switched network (man tc-tbf). A burst of 640 kbit lets pass the segments of
64 kB that network cards take; for a smaller one the node's processor would cut them.
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RATES = {"no limit": None, "1 Gbit/s": "1gbit", "100 Mbit/s": "100mbit"}
"""Links to compare: name -> rate in the notation of `tc`."""

CGROUPS = Path("/sys/fs/cgroup")
PERIOD_MICROSECONDS = 20_000

CLONE_NEWNET, CLONE_NEWNS = 0x40000000, 0x00020000
"""Linux' numbers for network and mount namespaces (sched.h)."""

NOBODY = "02:00:00:00:00:01"
"""The hardware address of no node."""

MS_BIND, MS_REC, MS_SLAVE = 1 << 12, 1 << 14, 1 << 19
"""How Linux mounts: the same file at another place; and so that what is mounted here is not mounted elsewhere (sys/mount.h)."""


def missing() -> str | None:
    """Returns a sentence about what this machine lacks, or None."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "network namespaces need Linux and root: run it with sudo, or in a privileged container"
    tools = [tool for tool in ("ip", "tc", "taskset") if not shutil.which(tool)]
    return f"these commands are not installed: {', '.join(tools)} (packages iproute2 and util-linux)" if tools else None


class Network:
    """`count` nodes and the processes in them; closing it ends those processes and takes the network away.

    Use it as a context manager. Node k has the address `address(k)` and runs on core k modulo the number of cores.

    Args:
        count: number of nodes.
        slow_start_after_idle: whether a TCP connection that sent nothing for 0.2 s or more begins slowly again, which is
            Linux's default (man 7 tcp).
    """

    def __init__(self, count: int, slow_start_after_idle: bool = True) -> None:
        self._slow_start_after_idle = slow_start_after_idle
        self.names = [f"tfdist-{os.getpid()}-{node}" for node in range(count)]
        self._switch = f"tfdist-{os.getpid()}-switch"
        self._cores = sorted(os.sched_getaffinity(0))
        self._processes: list[subprocess.Popen] = []

    def __enter__(self) -> "Network":
        if sentence := missing():
            raise SystemExit(sentence)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # So that the network is taken away at once then, too.
        # However this process ends, its end of the pipe closes, and the guard takes everything away.
        command = [sys.executable, __file__, "take_away", self._switch, *self.names]
        self._guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        try:
            _run("ip", "netns", "add", self._switch)
            _run("ip", "-n", self._switch, "link", "add", "name", "bridge", "type", "bridge")
            _run("ip", "-n", self._switch, "link", "set", "bridge", "up")
            for node, name in enumerate(self.names):
                # A program that asks for its own host name gets the address of its node.
                self._hosts(node).parent.mkdir(parents=True)
                self._hosts(node).write_text(self._first_lines(node))
                _run("ip", "netns", "add", name)
                port = ["link", "add", f"port{node}", "type", "veth", "peer", "name", "eth0", "netns", name]
                _run("ip", "-n", self._switch, *port)
                _run("ip", "-n", self._switch, "link", "set", f"port{node}", "master", "bridge", "up")
                _run("ip", "-n", name, "addr", "add", f"{self.address(node)}/24", "dev", "eth0")
                for interface in ("lo", "eth0"):
                    _run("ip", "-n", name, "link", "set", interface, "up")
                setting = f"echo {int(self._slow_start_after_idle)} > /proc/sys/net/ipv4/tcp_slow_start_after_idle"
                _run("ip", "netns", "exec", name, "sh", "-c", setting)
                # As Linux does it where nobody has chosen. BBR, some machines' default, holds on to the rate of earlier turns.
                here, there = ["local", self.address(node), "dev", "lo", "table", "local"], ["10.77.0.0/24", "dev", "eth0"]
                for route in (here, there):
                    _run("ip", "-n", name, "route", "change", *route, "src", self.address(node), "congctl", "cubic")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def address(self, node: int) -> str:
        """Returns the IP address of a node."""
        return f"10.77.0.{node + 1}"

    def shape(self, rate: str | None) -> None:
        """Sets the rate of all links, such as `1gbit`, in each direction; None removes the limit."""
        for node, name in enumerate(self.names):
            # A card makes its own machine wait and loses nothing; a switch has a queue of 50 ms.
            for place, interface, queue in ((name, "eth0", "1s"), (self._switch, f"port{node}", "50ms")):
                discipline = ["noqueue"] if rate is None else ["tbf", "rate", rate, "burst", "640kbit", "latency", queue]
                _run("tc", "-n", place, "qdisc", "replace", "dev", interface, "root", *discipline)

    def sent(self) -> list[int]:
        """Returns the bytes that each node has sent so far, with all headers, as counted by its port of the switch."""
        ports = json.loads(_run("ip", "-n", self._switch, "-s", "-j", "link", "show"))
        received = {port["ifname"]: port["stats64"]["rx"]["bytes"] for port in ports}
        return [received[f"port{node}"] for node in range(len(self.names))]

    def start(self, node: int, command: list[str], log: Path, environment: dict[str, str] | None = None) -> subprocess.Popen:
        """Starts a command on a node. Adds `environment` to that of this process, and appends the output to `log`."""
        core = str(self._cores[node % len(self._cores)])
        with open(log, "ab") as output:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.names[node], "taskset", "-c", core, *command],
                env=os.environ | (environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C reaches this process only, which then ends them.
            )
        self._processes.append(process)
        return process

    def slow(self, process: subprocess.Popen, share: float) -> None:
        """Limits a process to this share of a core's time. Tried with control groups of version 1."""
        first, second = (CGROUPS / "cpu", CGROUPS)
        is_first = (first / "cpu.cfs_quota_us").exists() or (first / "cpu.shares").exists()
        group = (first if is_first else second) / f"{self._switch}-{process.pid}"
        is_new = not group.exists()
        group.mkdir(exist_ok=True)
        quota = int(share * PERIOD_MICROSECONDS)
        if is_first:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
            (group / "cpu.cfs_quota_us").write_text(str(quota if share < 1 else -1))
        else:
            (group / "cpu.max").write_text(f"{quota if share < 1 else 'max'} {PERIOD_MICROSECONDS}")
        if is_new:
            (group / "cgroup.procs").write_text(str(process.pid))

    def name(self, nodes: dict[str, int]) -> None:
        """Gives nodes names that all nodes know. May be called again: a name has another address then, as in a name service."""
        lines = "".join(f"{self.address(node)} {name}\n" for name, node in nodes.items())
        for own in range(len(self.names)):
            self._hosts(own).write_text(self._first_lines(own) + lines)  # In place: processes have this file mounted.

    def enter(self, node: int) -> None:
        """Moves this process, a fork that has started nothing yet, to a node, as `ip netns exec` does."""
        system = ctypes.CDLL(None, use_errno=True)  # Python has `os.setns` and `os.unshare` from 3.12 on.
        with open(f"/run/netns/{self.names[node]}") as namespace:
            hosts = bytes(self._hosts(node))
            if (
                system.setns(namespace.fileno(), CLONE_NEWNET)
                or system.unshare(CLONE_NEWNS)
                or system.mount(b"none", b"/", None, MS_REC | MS_SLAVE, None)
                or system.mount(hosts, b"/etc/hosts", None, MS_BIND, None)
            ):
                raise OSError(ctypes.get_errno(), f"this process cannot enter {namespace.name}")

    def _hosts(self, node: int) -> Path:
        return Path("/etc/netns") / self.names[node] / "hosts"

    def _first_lines(self, node: int) -> str:
        return f"127.0.0.1 localhost\n{self.address(node)} {socket.gethostname()} node{node}\n"

    def cut(self, node: int) -> None:
        """Cuts the link of a node, in the switch: packets from and to it vanish, and nobody is told."""
        (link,) = json.loads(_run("ip", "-n", self.names[node], "-j", "link", "show", "eth0"))
        for other, name in enumerate(self.names):
            if other != node:  # Else Linux would report, after some seconds, that there is no such host.
                entry = [
                    "neigh",
                    "replace",
                    self.address(node),
                    "lladdr",
                    link["address"],
                    "dev",
                    "eth0",
                    "nud",
                    "permanent",
                ]
                _run("ip", "-n", name, *entry)
        _run("ip", "-n", self._switch, "link", "set", f"port{node}", "nomaster")

    def heal(self, node: int) -> None:
        """Connects a node again."""
        _run("ip", "-n", self._switch, "link", "set", f"port{node}", "master", "bridge")

    def cut_between(self, node: int, other: int) -> None:
        """Cuts the link between two nodes only: packets from one to the other vanish."""
        for own, name in ((node, self.address(other)), (other, self.address(node))):
            entry = ["neigh", "replace", name, "lladdr", NOBODY, "dev", "eth0", "nud", "permanent"]
            _run("ip", "-n", self.names[own], *entry)

    def heal_between(self, node: int, other: int) -> None:
        """Connects two nodes again."""
        for own, name in ((node, self.address(other)), (other, self.address(node))):
            _run("ip", "-n", self.names[own], "neigh", "del", name, "dev", "eth0")

    def end(self, processes: list[subprocess.Popen]) -> None:
        """Kills processes and their descendants."""
        for process in processes:
            _kill(-process.pid)
        for process in processes:
            process.wait()
            self._processes.remove(process)

    def close(self) -> None:
        """Kills all processes on the nodes and removes the namespaces, with links and bridge. May be called twice."""
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait(120)
        self.end(list(self._processes))


def take_away(switch: str, names: list[str]) -> None:
    """Ends all processes on the nodes `names`, and removes whatever `Network` has created and still exists."""
    for name in [*names, switch]:
        if (Path("/run/netns") / name).exists():
            while pids := _run("ip", "netns", "pids", name).split():
                for pid in pids:
                    _kill(int(pid))
                time.sleep(0.1)
            _run("ip", "netns", "del", name)
        shutil.rmtree(Path("/etc/netns") / name, ignore_errors=True)
    with contextlib.suppress(OSError):  # Where there were none before, or others are left.
        Path("/etc/netns").rmdir()
    for group in [*CGROUPS.glob(f"{switch}-*"), *CGROUPS.glob(f"cpu/{switch}-*")]:
        group.rmdir()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise OSError(f"`{' '.join(command)}` failed with exit code {done.returncode}: {done.stderr.strip()}")
    return done.stdout


RECEIVE = """
import socket, sys
with socket.create_server((sys.argv[1], 5001)) as server:
    while True:
        peer, _ = server.accept()
        while data := peer.recv(1 << 20):
            if len(data) == 1:
                peer.sendall(data)
"""
SEND = """
import socket, statistics, sys, time
peer = socket.create_connection((sys.argv[1], 5001), 5)
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
trips = []
for _ in range(50):
    begin = time.monotonic()
    peer.sendall(b"x")
    peer.recv(1)
    trips.append(time.monotonic() - begin)
block, begin = bytes(1 << 16), time.monotonic()
while time.monotonic() < begin + float(sys.argv[2]):
    peer.sendall(block)
print(statistics.median(trips))
"""


def speed(network: Network, seconds: float = 3.0) -> tuple[float, float]:
    """Returns the speed of a TCP connection from node 0 to node 1: Mbit/s on the wire in its second half, round trip in ms."""
    with tempfile.TemporaryDirectory() as folder:
        return _speed(network, Path(folder) / "log", seconds)


def _speed(network: Network, log: Path, seconds: float) -> tuple[float, float]:
    receiver = network.start(1, [sys.executable, "-c", RECEIVE, network.address(1)], Path(os.devnull))
    try:
        time.sleep(0.5)
        sender = network.start(0, [sys.executable, "-c", SEND, network.address(1), str(seconds)], log)
        time.sleep(seconds / 2)
        begin, before = time.monotonic(), network.sent()[0]
        time.sleep(seconds / 2 - 0.2)
        rate = (network.sent()[0] - before) * 8e-6 / (time.monotonic() - begin)
        if sender.wait(30):
            raise OSError(f"nodes cannot reach each other: {log.read_text()}")
        network.end([sender])
    finally:
        network.end([receiver])
    return rate, float(log.read_text()) * 1e3


def main() -> None:
    """Prints the speed of each link."""
    with Network(2) as network:
        print("| link | one TCP connection, Mbit/s | round trip, ms |\n|---|---|---|")
        for name, rate in RATES.items():
            network.shape(rate)
            print("| {} | {:.0f} | {:.2f} |".format(name, *speed(network)), flush=True)
    left = [name for name in os.listdir("/run/netns") if f"-{os.getpid()}-" in name]
    print(f"left over: {left or 'nothing'}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["take_away"]:
        sys.stdin.read()
        take_away(sys.argv[2], sys.argv[3:])
    else:
        main()
