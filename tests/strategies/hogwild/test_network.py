"""The chief measures the network between hosts, and chooses how parameters are sent over it."""

import threading
from types import SimpleNamespace

import pytest
import tensorflow as tf

from tfdist.cluster import Cluster, Task
from tfdist.default_compression import compression_for
from tfdist.strategies.hogwild.timing import network
from tfdist.strategies.hogwild.timing.network import LARGE, PAIRS, choose_compression, pairs, slowest
from tfdist.strategies.runtime.deadline import Deadline
from tfdist.synchronization import Synchronization


def tasks(job, *hosts):
    return [Task(job, index, host) for index, host in enumerate(hosts)]


def over(rates):
    """A network that carries so many bytes per second into each worker, with 2 ms for every transfer."""
    return lambda sender, receiver: lambda size: 0.002 + size / rates[receiver.index]


def test_only_slow_networks_are_worth_the_processor_time_of_compression():
    assert [compression_for(bits / 8) for bits in (1e7, 1e8, 1e9, 1e10)] == ["int8", "int8", "bf16", "float32"]


def test_only_tasks_on_different_hosts_are_measured():
    assert pairs(tasks("worker", "a", "a"), tasks("ps", "a")) == []
    both = tasks("worker", "a", "b")
    assert [(server.name, worker.name) for server, worker in pairs(both, tasks("ps", "a", "b"))] == [
        ("ps:1", "worker:0"),
        ("ps:0", "worker:1"),
    ]
    assert [(server.name, worker.name) for server, worker in pairs(both, both)] == [
        ("worker:1", "worker:0"),
        ("worker:0", "worker:1"),
    ]


@pytest.mark.parametrize("count", [1, 4, 5, 9, 100])
def test_of_many_workers_a_few_are_measured(count):
    found = pairs(tasks("worker", *map(str, range(count))), tasks("ps", "p"))
    assert 0 < len(found) <= PAIRS


def test_the_slowest_pair_counts():
    measured = pairs(tasks("worker", "a", "b", "c"), tasks("ps", "p"))
    (sender, receiver), speed = slowest(measured, over([1e9, 1e7, 1e8]), Deadline.after(10))
    assert (sender.name, receiver.name) == ("ps:0", "worker:1")
    assert speed == pytest.approx(1e7, rel=0.01)


def test_a_network_that_carries_nearly_nothing_is_slow_and_holds_nobody_up():
    healed = threading.Event()
    measured = pairs(tasks("worker", "a"), tasks("ps", "p"))
    _, speed = slowest(measured, lambda *pair: lambda size: float(healed.wait()), Deadline.after(0.1))
    assert speed == LARGE / network.LIMIT_SECONDS
    healed.set()


def test_a_task_that_is_gone_is_left_out():
    def transfer(sender, receiver):
        def send(size):
            if receiver.index == 0:
                raise tf.errors.UnavailableError(None, None, "gone")
            return size / 1e8

        return send

    measured = pairs(tasks("worker", "a", "b"), tasks("ps", "p"))
    assert slowest(measured, transfer, Deadline.after(10))[0][1].name == "worker:1"
    assert slowest(measured[:1], transfer, Deadline.after(10)) is None


@pytest.mark.parametrize(
    ("options", "rate", "compression"),
    [
        ({}, 1e7, "int8"),
        ({}, 1e8, "bf16"),
        ({}, 1e10, "float32"),
        ({"compression": "float32"}, 1e7, "float32"),
        ({"compression": "bf16"}, 1e10, "bf16"),
        ({"outer": "elastic"}, 1e7, None),
        ({"topology": "ring"}, 1e7, None),
    ],
)
def test_the_choice_leaves_alone_what_the_user_gave_and_what_cannot_be_compressed(
    options, rate, compression, monkeypatch, capsys
):
    monkeypatch.setattr(network, "_transfer", over([rate, rate]))
    cluster = Cluster((*tasks("worker", "a", "b"), *tasks("ps", "p")))
    groups = [SimpleNamespace(tasks=(0,)), SimpleNamespace(tasks=(1,))]
    membership = SimpleNamespace(live_groups=[0, 1])
    strategy = SimpleNamespace(
        synchronization=Synchronization(**options).resolved(2), worker_groups=groups, membership=membership
    )
    choose_compression(strategy, cluster)
    assert strategy.synchronization.compression == compression
    said = (
        f"hogwild: the network carries {8 * rate / 1e6:.0f} Mbit/s from ps:0 to worker:0, so parameters travel as {compression}"
    )
    assert capsys.readouterr().err == ("" if options or rate == 1e10 else f"{said} (--compression)\n")


def test_compression_that_nobody_asked_for_takes_a_limited_part_of_the_memory(capsys):
    assert network.affords(2 * 2**30, 2) and capsys.readouterr().err == ""
    assert not network.affords(3 * 2**30, 2)
    assert (
        "the parameters travel as float32, because compression would take 1.5 GiB more of each task" in capsys.readouterr().err
    )
