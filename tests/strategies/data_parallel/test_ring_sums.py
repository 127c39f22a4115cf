"""The instance keys of sums in buckets: TensorFlow keeps 1.5 KB for each new key, so keys are used again."""

import itertools

from tfdist.strategies.private_api.ring_sums import CYCLE, FIRST_KEY, _Keys


def keys_of(kind, number):
    return [kind.get_instance_key(0, "") for _ in range(number)]


def test_a_kind_of_sums_uses_its_keys_again_and_shares_none():
    firsts = itertools.count(FIRST_KEY, CYCLE)
    one, other = _Keys(firsts), _Keys(firsts)
    keys = keys_of(one, 2 * CYCLE)
    assert len(set(keys)) == CYCLE
    assert keys[:CYCLE] == keys[CYCLE:]
    assert not set(keys) & set(keys_of(other, CYCLE))


def test_keys_follow_the_calls_not_what_a_task_has_traced():
    firsts, firsts_elsewhere = itertools.count(FIRST_KEY, CYCLE), itertools.count(FIRST_KEY, CYCLE)
    _traced_only, called = _Keys(firsts), _Keys(firsts)
    assert keys_of(called, 3) == keys_of(_Keys(firsts_elsewhere), 3)
