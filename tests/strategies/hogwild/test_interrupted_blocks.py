"""Ctrl-C, and the loss of a group, while the global parameters of a model are made, without a cluster."""

import os
import signal
from types import SimpleNamespace

import pytest

from tfdist.strategies.hogwild.replicas import checkpoint_state
from tfdist.strategies.hogwild.replicas.local_replicas import LocalReplicas
from tfdist.strategies.hogwild.synchronization.local_variable import Kind
from tfdist.strategies.runtime import interrupts


def test_all_blocks_have_values_before_the_interrupt(monkeypatch):
    """A block is not new any more once it is known: no later call would initialize it."""
    initialized = []

    def block(name):
        def initialize():
            os.kill(os.getpid(), signal.SIGINT)
            initialized.append(name)

        return SimpleNamespace(kind=Kind.OWN, initialize=initialize)

    monkeypatch.setattr(checkpoint_state, "restore_outer", lambda block: None)
    replicas = LocalReplicas.__new__(LocalReplicas)
    replicas.registry, replicas._uninitialized = SimpleNamespace(register=lambda *_: [block("first"), block("second")]), []
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        interrupts.keep_out_of_tensorflow()
        with pytest.raises(KeyboardInterrupt):
            replicas.register([])
    finally:
        signal.signal(signal.SIGINT, previous)
    assert initialized == ["first", "second"]


def test_what_the_interrupt_has_ended_is_done_with_the_next_blocks(monkeypatch):
    """Values that take long are not waited for after Ctrl-C. The block is known, and has no values."""
    initialized, news = [], [["first", "second"], []]

    def block(name):
        def initialize():
            initialized.append(name)
            if len(initialized) == 1:
                raise KeyboardInterrupt

        return SimpleNamespace(kind=Kind.OWN, initialize=initialize)

    monkeypatch.setattr(checkpoint_state, "restore_outer", lambda block: None)
    replicas = LocalReplicas.__new__(LocalReplicas)
    replicas._uninitialized = []
    replicas.registry = SimpleNamespace(register=lambda *_: [block(name) for name in news.pop(0)])
    with pytest.raises(KeyboardInterrupt):
        replicas.register([])
    replicas.register([])
    assert initialized == ["first", "first", "second"]


def test_the_ps_are_not_told_of_a_lost_group_for_blocks_that_have_no_values_yet():
    """What tells them is traced with the values. Another thread would trace it beside the main one, and fail."""
    told, blocks = [], [SimpleNamespace(kind=Kind.SYNCHRONIZED, rates=(rate, 0.0)) for rate in (1.0, 2.0)]
    replicas = LocalReplicas.__new__(LocalReplicas)
    replicas.blocks, replicas._uninitialized = blocks, blocks[1:]
    replicas._membership = SimpleNamespace(live=frozenset({0}), is_live=lambda owner: False)
    replicas._rates_now = lambda rates: rates
    replicas.functions = SimpleNamespace(change_rounds=lambda change, block, *_: told.append(block))
    replicas._leave_rounds(1)
    assert told == blocks[:1]
