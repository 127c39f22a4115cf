"""Ten times as many tasks are ten times as much work, in every dialect and every form: counted in calls, which no load changes."""

import cProfile
import functools
import importlib.util
import pstats
from collections.abc import Callable

import pytest
from support_paths import CHECKOUT

_path = CHECKOUT / "benchmarks" / "languages.py"
_spec = importlib.util.spec_from_file_location("languages", _path)
assert _spec is not None and _spec.loader is not None
languages = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(languages)

work = functools.cache(languages.work)  # When a test needs it: each of the processes that run tests reads this file.


def calls(function: Callable[[], object]) -> int:
    profile = cProfile.Profile()
    profile.runcall(function)
    return int(pstats.Stats(profile).total_calls)


@pytest.mark.parametrize("what", languages.work(20))
def test_work_grows_as_the_tasks_do(what: str) -> None:
    work(200)[what]()  # The first time imports what is needed.
    assert calls(work(2000)[what]) < 12 * calls(work(200)[what])


def test_only_plain_kubernetes_objects_cannot_express_ten_thousand_tasks() -> None:
    # Linux passes no more than 128 KiB in one variable.
    few = languages.work(20).keys()
    assert few == work(200).keys() == work(2000).keys()
    assert {what.partition(":")[0] for what in few - languages.work(10_000).keys()} == {"kubernetes"}
