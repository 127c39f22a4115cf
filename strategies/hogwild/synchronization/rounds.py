"""Rounds: which pushes make one step of the outer optimizer, and what a group knows afterwards. Pure functions.

A round of a fragment ends when every group that is expected has pushed, or when a group that has pushed has waited for the
grace time. A push that comes after the end of its round is late: it counts in the next round, so no update is lost.

A late group does not wait for the round that it has pushed to, and the next round waits for it again. So the rounds of all
groups become aligned. A group for which others have waited in vain is absent: no round waits for it until it is in time, or, if
there is one fragment, late by one round. So a group that is much slower than the others, or gone, delays them once.

The functions take and return arrays of numpy or of TensorFlow. The ps runs them in TensorFlow, tests and
benchmarks/quality_simulated.py in numpy.
"""

from types import ModuleType
from typing import Any, NamedTuple

LATE, IN_TIME = 1, 2

MOST_AHEAD = 3
"""A group is this many rounds ahead on a shard at most, see `known`. Larger differences come from shards that began anew."""


class Round(NamedTuple):
    """What a ps knows of the open round of a shard.

    Attributes:
        pushed: for each group IN_TIME if it has pushed to this round, LATE if only to an earlier one that had ended, else 0;
            int32 [groups].
        absent: for each group 1 if no round waits for it, else 0; int32 [groups].
        complete: number of rounds that have ended, int64 scalar.
    """

    pushed: Any
    absent: Any
    complete: Any


def arrive(
    round_: Round, group: Any, wanted: Any, live: Any, arrays: ModuleType | Any, begins: Any = False, fragments: int = 1
) -> tuple[Round, Any, Any]:
    """Notes a push.

    When all groups begin an epoch, a push is in time for the open round, even if its group does not know all that have ended:
    it had nothing to push to them, or was late in the epoch before. Otherwise it would be late in all epochs that follow, and
    the others would wait for it. The others do not wait for an absent group, so its push is late as within an epoch.

    Args:
        round_: the open round.
        group: 1 at the group that pushes and 0 at all others, int32 [groups].
        wanted: number of the round to which the group pushes, one more than it knows to be complete; int64 scalar.
        live: number of groups that train, int32 scalar. If it is above the number of all groups, the push ends no round. If it
            is negative, the push is in no round: the group has made no progress.
        arrays: numpy, or anything else with its `where`, `maximum`, `minimum` and `sum`.
        begins: whether all groups begin an epoch, bool scalar.
        fragments: number of fragments. With several, an absent group that is late by one round stays absent: it pushes another
            fragment next, so the others would wait for it here while it waits for them there.

    Returns:
        The open round after the push, whether the push has ended a round, bool scalar, and the number of the round for whose
        end the group waits, int64 scalar, 0 for none.
    """
    missed = round_.complete - wanted + 1
    is_absent = arrays.sum(round_.absent * group) > 0
    returns = (missed < 2) & (fragments == 1)
    in_time = (missed < 1) | (begins & (returns | ~is_absent))
    awaited = arrays.where(in_time & (live >= 0), round_.complete + 1, 0 * round_.complete)
    group = arrays.where(live < 0, 0 * group, group)
    pushed = arrays.maximum(round_.pushed, arrays.where(in_time, IN_TIME * group, LATE * group))
    absent = arrays.where(in_time | returns, round_.absent * (1 - group), round_.absent)
    ends = _has_all(pushed, absent, live, arrays) & (live <= arrays.sum(1 + 0 * group)) & (live >= 0)
    return *_after(round_, pushed, absent, ends, arrays), awaited


def known(complete: Any, ahead: Any, arrays: ModuleType | Any) -> Any:
    """Returns how many complete rounds a group says that it knows with its next push.

    After a group was absent, its late push can arrive before that of another group on one shard, and after it on a second
    shard. From then on the pushes of the two groups meet in different rounds there. Each group would wait for the other on one
    of the shards, in turn, and a period would take as long as two. So on shards where a group has made more rounds than on
    others, it says that it does not know the last one. Its push there is late, once, and the next one is in the same round as
    on all shards.

    Args:
        complete: complete rounds of each shard that the group knows, int64 [shards].
        ahead: how many more it has made there than on the shard with the fewest, of all blocks that are pushed together; int64
            [shards].
        arrays: see `arrive`.
    """
    return arrays.where((ahead >= 1) & (ahead <= MOST_AHEAD), complete - 1, complete)


def lacks_quorum(pushed: Any, quorum: int, live: Any, arrays: ModuleType | Any) -> Any:
    """Returns whether too few groups have pushed to a round to end it without the others, bool scalar.

    Args:
        pushed: see `Round`.
        quorum: groups that must have pushed, as far as they train.
        live: number of groups that train, int32 scalar.
        arrays: see `arrive`.
    """
    return arrays.sum(arrays.minimum(pushed, 1)) < arrays.minimum(quorum, live)


def expire(round_: Round, wanted: Any, arrays: ModuleType | Any) -> tuple[Round, Any]:
    """Ends round `wanted`, if it is open, for a group that has waited for the grace time. Groups without a push are absent.

    Args:
        round_: the open round.
        wanted: number of the round, int64 scalar.
        arrays: see `arrive`.

    Returns:
        As `arrive`.
    """
    ends = (wanted > round_.complete) & (arrays.sum(round_.pushed) > 0)
    absent = arrays.where(ends, arrays.maximum(round_.absent, 1 - round_.pushed // IN_TIME), round_.absent)
    return _after(round_, round_.pushed, absent, ends, arrays)


# What the chief tells a ps: functions of the open round, groups, the number of groups that train, and `arrays`.


def leave(round_: Round, lost: Any, live: Any, arrays: ModuleType | Any) -> tuple[Round, Any]:
    """Makes groups absent because they are lost, and ends the round if they were the last ones that were missing.

    When a group is back, no round waits for it before its first push that is in time, or late by one round.

    Args:
        round_: the open round.
        lost: 1 at the groups that are lost and 0 at all others, int32 [groups].
        live: number of groups that train without them, int32 scalar.
        arrays: see `arrive`.
    """
    absent = arrays.maximum(round_.absent, lost)
    ends = _has_all(round_.pushed, absent, live, arrays) & (arrays.sum(round_.pushed // IN_TIME) > 0)
    return _after(round_, round_.pushed, absent, ends, arrays)


def finish(round_: Round, pushing: Any, live: Any, arrays: ModuleType | Any) -> tuple[Round, Any]:
    """Ends the round at the end of an epoch, if every group that still makes a call has pushed to it in time.

    After a late push a group has one push less for the rounds that follow than the others. Without this they would wait, with
    their last pushes of the epoch, for one more of that group.

    Args:
        round_: the open round.
        pushing: 1 at the groups that make their last calls of the epoch and 0 at those that have none left, int32 [groups].
        live: not used.
        arrays: see `arrive`.
    """
    in_time = round_.pushed // IN_TIME
    missing = arrays.sum(pushing * (1 - round_.absent) * (1 - in_time))
    return _after(round_, round_.pushed, round_.absent, (missing < 1) & (arrays.sum(pushing * in_time) > 0), arrays)


def settle(round_: Round, groups: Any, live: Any, arrays: ModuleType | Any) -> tuple[Round, Any]:
    """Ends the open round, if any group has pushed to it, because the chief collects what all groups have. See `expire`."""
    return _after(round_, round_.pushed, round_.absent, arrays.sum(round_.pushed) > 0, arrays)


def _has_all(pushed: Any, absent: Any, live: Any, arrays: ModuleType | Any) -> Any:
    """Returns whether every group that the round waits for has pushed to it in time, bool scalar. See `arrive`."""
    in_time = pushed // IN_TIME
    awaited = arrays.sum(1 + 0 * pushed) - arrays.sum(absent * (1 - in_time))
    return arrays.sum(in_time) >= arrays.minimum(live, awaited)


def _after(round_: Round, pushed: Any, absent: Any, ends: Any, arrays: ModuleType | Any) -> tuple[Round, Any]:
    after = Round(arrays.where(ends, 0 * pushed, pushed), absent, arrays.where(ends, round_.complete + 1, round_.complete))
    return after, ends


def nesterov(total: Any, momentum: Any, rate: Any, beta: Any) -> tuple[Any, Any]:
    """Returns the increment of the global parameters and the new momentum at the end of a round.

    m = beta * m + A; C += rate * (A + beta * m), for the weighted sum A of the pushes: DiLoCo (arXiv 2311.08105).
    """
    momentum = beta * momentum + total
    return rate * (total + beta * momentum), momentum


def baseline(parameters: Any, before: Any, pushed: Any, includes: Any, is_new: Any, arrays: ModuleType | Any) -> Any:
    """Returns the new baseline of a group: the part of its replica that it does not push again.

    A push in a round that has not ended counts as pushed, although the global parameters do not have it yet.

    Args:
        parameters: the global parameters in the reply.
        before: the baseline before.
        pushed: the progress that the ps received.
        includes: whether the round of this push has ended, bool scalar.
        is_new: whether any round has ended since the last reply, bool scalar.
        arrays: see `arrive`.
    """
    known = arrays.where(is_new, parameters, before)
    return arrays.where(includes, parameters, known + pushed)


def offsets(period: int, fragments: int) -> list[int]:
    """Returns the update, in each sync period, before which each fragment is pushed."""
    return [number * period // fragments for number in range(fragments)]
