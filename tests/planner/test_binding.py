"""What binds a running job, from what its tasks use."""

import dataclasses

import pytest

from tfdist.planner.binding import explain
from tfdist.planner.measurement import Variable
from tfdist.planner.running import Running
from tfdist.planner.use import Use

IDLE = Use(8.0, 0.05, 0.0, 0.05, 2, 0.1, 0.0, 0.0, 0.0)
RATE = 12.5e6


def use(running, **changes):
    return dataclasses.replace(IDLE, **({"running": running, "processor": running} | changes))


def linked(running, sending):
    return use(running, sending=sending, sent=sending * RATE, received=sending * RATE)


def job(strategy, uses, **changes):
    """Each task is on a host of its own."""
    return Running(strategy, uses, list(uses), {name: name for name in uses}, **changes)


def served(ps, workers=8, running=0.2, carried=0.98, **changes):
    """`parameter_server` whose workers send what their ps receive."""
    total = sum(each.sent for each in ps)
    worker = use(running, sending=0.9, sent=total / workers, received=total / workers)
    uses = {f"ps:{number}": each for number, each in enumerate(ps)}
    uses |= {f"worker:{number}": worker for number in range(workers)} | {"chief:0": use(0.2)}
    return job("parameter_server", uses, **changes)


def test_the_full_link_of_a_ps_binds_and_more_ps_would_help():
    found = explain(served([linked(0.3, 0.6), linked(0.3, 0.98)]))
    assert (found.resource, found.utilization, found.unknown) == ("link of ps 1", 0.98, ())
    assert found.text.startswith("link of ps 1, busy for 98% of the time (12.2 MB/s sent, 12.2 MB/s received): ")
    one = explain(served([linked(0.3, 0.98)]))
    ps = int(one.better.split()[0])
    # Never faster than as many times the ps, and never than the workers compute.
    assert one.better.endswith(" ps") and 1.5 < one.times <= min(ps, 1 / 0.2)


def test_a_variable_that_one_ps_holds_makes_more_ps_useless():
    alone = [Variable("", (1,), 40_000_000), Variable("", (0,), 40_000)]
    found = explain(served([linked(0.3, 0.98)], variables=alone))
    assert (found.resource, found.better) == ("link of ps 0", None)
    assert "more ps would not help" in found.text
    rows = [Variable("", (1000,), 40_000_000)]
    equal = explain(served([linked(0.3, 0.98)])).times
    assert explain(served([linked(0.3, 0.98)], variables=rows)).times == pytest.approx(equal, rel=0.01)


@pytest.mark.parametrize("strategy", ["parameter_server", "hogwild"])
def test_the_processor_of_a_ps_that_waits_for_a_core_counts_as_busy(strategy):
    slow = use(1.0, processor=0.1, waited=0.9, cores=1, machine=0.6)
    uses = {"ps:0": slow, "worker:0": use(0.2), "worker:1": use(0.3), "chief:0": use(0.1)}
    found = explain(job(strategy, uses))
    assert (found.resource, found.utilization) == ("processor of ps 0", 1.0)
    assert 1.5 < found.times <= min(int(found.better.split()[0]), 1 / 0.3)
    # One thread that always runs is no full machine of 8 cores.
    uses["ps:0"] = use(1.0, processor=1.0, cores=8, machine=0.2)
    assert explain(job(strategy, uses)).resource is None


@pytest.mark.parametrize("strategy", ["parameter_server", "hogwild"])
def test_workers_that_compute_bind_and_more_of_them_help_until_the_ps_is_full(strategy):
    def found(ps):
        return explain(job(strategy, {"ps:0": ps, "worker:0": use(0.95), "worker:1": use(0.93), "chief:0": use(0.1)}))

    first = found(use(0.05))
    assert (first.resource, first.better) == ("worker processor", "4 workers on machines of their own")
    assert 1.8 < first.times <= 2.0
    assert found(use(0.55, cores=1)).times < first.times


def test_the_chief_binds():
    uses = {"ps:0": use(0.2), "worker:0": use(0.4), "worker:1": use(0.4), "chief:0": use(0.97, cores=8)}
    found = explain(job("hogwild", uses))
    assert (found.resource, found.better) == ("chief processor", None)
    uses["chief:0"] = linked(0.3, 0.99)
    assert explain(job("hogwild", uses)).resource == "link of the chief"


def test_multi_worker_mirrored_names_the_slowest_worker_the_link_or_the_processor():
    def found(*uses):
        return explain(job("multi_worker_mirrored", {f"worker:{number}": each for number, each in enumerate(uses)}))

    slowest = found(linked(0.5, 0.1), linked(0.95, 0.1), linked(0.5, 0.1))
    assert (slowest.resource, slowest.better) == ("processor of worker 1", "worker 1 as fast as the next slowest")
    assert slowest.times == pytest.approx(0.95 / 0.6)
    link = found(linked(0.2, 0.8), linked(0.2, 0.8))
    assert (link.resource, link.better) == ("worker link", "links of twice the rate")
    assert link.times == pytest.approx(1 / 0.6)
    assert found(linked(0.97, 0.1), linked(0.95, 0.1)).resource == "worker processor"


def test_tasks_of_a_full_machine_share_its_cores():
    full = use(0.9, processor=0.9, machine=0.99)
    uses = {"ps:0": full, "worker:0": full, "chief:0": IDLE}
    here = Running("parameter_server", uses, list(uses), dict.fromkeys(uses, "localhost"))
    assert explain(here).resource == "cores that ps 0, worker 0 and the chief share"
    # Each keeps to a core of its own, and may not use the other's.
    apart = {"ps:0": use(0.1, cores=1, cores_of_all=2), "worker:0": use(0.95, cores=1, cores_of_all=2)}
    assert explain(Running("parameter_server", apart, list(apart), dict.fromkeys(apart, "a"))).resource == "worker processor"
    by_others = {name: use(0.3, machine=1.0) for name in ("worker:0", "worker:1")}
    others = Running("multi_worker_mirrored", by_others, list(by_others), dict.fromkeys(by_others, "a"))
    assert explain(others).text == "cores of a, most of which other programs use, busy for 100% of the time"


def test_what_is_not_known_is_said():
    nothing = explain(Running("parameter_server", {}, ["ps:0", "worker:0"]))
    assert nothing.resource is None and nothing.text.startswith("not known: nobody reports")
    uses = {"ps:0": use(0.1, sending=None, sent=None, received=None), "worker:0": use(0.9)}
    some = Running("parameter_server", uses, [*uses, "worker:1"], {name: name for name in uses})
    assert explain(some).unknown == ("what worker 1 uses", "the link of ps 0")
    assert explain(some).text.endswith("; not known: what worker 1 uses; not known: the link of ps 0")
    waits = explain(job("parameter_server", {"ps:0": use(0.1), "worker:0": use(0.4)}))
    assert waits.resource is None and "no known link is busy for more than 40%" in waits.text


@pytest.mark.parametrize("strategy", ["parameter_server", "hogwild"])
def test_a_ps_of_which_alone_is_known_what_it_uses_binds(strategy):
    tasks = ["chief:0", "worker:0", "ps:0"]
    found = explain(Running(strategy, {"ps:0": linked(0.3, 0.98)}, tasks, dict.fromkeys(tasks, "a")))
    assert (found.resource, found.better, found.unknown) == ("link of ps 0", None, ("what the chief, worker 0 use",))


def test_the_link_of_a_lone_worker_binds_in_both_directions_together():
    """As measured on links of 60 Mbit/s: it sends for half of the time and receives for the rest, and computes little."""
    half = use(0.04, sending=0.48, sent=1.8e6, received=1.8e6)
    worker = use(0.07, sending=0.5, sent=3.6e6, received=3.7e6)
    uses = {"worker:0": worker, "ps:0": half, "ps:1": half, "chief:0": IDLE}
    found = explain(job("parameter_server", uses))
    assert found.resource == "worker link" and found.utilization == pytest.approx(0.93)
    assert found.better == "links of twice the rate" and found.times == pytest.approx(1 / (1 - 0.93 / 2))
    # A worker that computes for the rest, and one that waits for something else, are not held by their links.
    assert explain(job("parameter_server", uses | {"worker:0": linked(0.65, 0.3)})).resource == "worker processor"
    assert explain(job("parameter_server", uses | {"worker:0": linked(0.3, 0.2)})).resource is None
    # It receives nothing that takes long: sending alone is not enough.
    only = use(0.1, sending=0.5, sent=3.6e6, received=1e4)
    assert explain(job("parameter_server", uses | {"worker:0": only})).resource is None
    # A ring sends and receives at the same time, so they do not add up.
    ring = explain(job("multi_worker_mirrored", {"worker:0": linked(0.3, 0.5), "worker:1": linked(0.3, 0.5)}))
    assert ring.resource is None


def limited(running, quota, used, held=0.9, group="/a", **changes):
    values = {"processor": used * quota, "waited": 3 * running - used * quota, "quota": quota, "quota_used": used}
    return use(running, held=held, quota_group=group, **(values | changes))


def test_workers_at_their_quota_bind_and_not_the_link_on_which_their_data_waits():
    ps = linked(0.1, 0.63)
    uses = {"ps:0": ps, "worker:0": limited(0.76, 0.15, 0.75), "worker:1": limited(0.78, 0.15, 0.72), "chief:0": use(0.1)}
    found = explain(job("parameter_server", uses))
    assert found.text.startswith("worker 0 and worker 1 are at 75% of their processor quotas of 0.15 cores: 2 times the quota")
    # Never faster than as much more processor time, nor than the busiest resource that they share.
    assert 1.4 < found.times <= 1 / 0.63
    assert "sentence" not in found.as_json() and found.as_json()["resource"] == "processor quotas of worker 0 and worker 1"
    # The link is what they wait for if it is busier than they; and a quota that never held them does not count.
    assert explain(job("parameter_server", uses | {"ps:0": linked(0.1, 0.98)})).resource == "link of ps 0"
    free = {name: dataclasses.replace(each, held=0.0) for name, each in uses.items()}
    assert explain(job("parameter_server", free)).resource == "link of ps 0"


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "hogwild"])
def test_one_worker_at_its_quota_holds_those_that_wait_for_it(strategy):
    uses = {"worker:0": linked(0.3, 0.2), "worker:1": limited(1.0, 0.5, 1.0)}
    found = explain(job(strategy, uses))
    assert found.text.startswith("worker 1 is at 100% of its processor quota of 0.5 cores (others wait for it): 2 times the")
    assert found.times == pytest.approx(2.0)
    assert explain(job(strategy, {**uses, "worker:0": linked(0.6, 0.2)})).times == pytest.approx(1 / 0.8)
    # Others do not wait for it, but nothing else binds.
    apart = explain(job("parameter_server", {**uses, "ps:0": linked(0.1, 0.3), "chief:0": use(0.1)}))
    assert apart.resource == "processor quota of worker 1" and apart.times == pytest.approx(1.5)
    busy = explain(job("parameter_server", {**uses, "ps:0": linked(0.1, 0.7), "chief:0": use(0.1)}))
    assert busy.resource == "link of ps 0"


def test_a_quota_of_a_ps_and_one_that_tasks_share():
    uses = {"ps:0": limited(0.99, 0.2, 1.0), "worker:0": use(0.3), "worker:1": use(0.2), "chief:0": use(0.1)}
    found = explain(job("parameter_server", uses))
    assert found.text.startswith("ps 0 is at 100% of its processor quota of 0.2 cores: ") and found.better.endswith(" ps")
    here = {name: limited(0.9, 1, 0.97, cores_of_all=1.0) for name in ("ps:0", "worker:0", "chief:0")}
    shared = explain(Running("parameter_server", here, list(here), dict.fromkeys(here, "a")))
    assert shared.resource == "processor quota that ps 0, worker 0 and the chief share" and shared.better is None
    assert "are at 97% of the processor quota of 1 core that they share (tasks on machines of their own" in shared.text
    # The same path on two hosts is not the same group.
    assert explain(job("hogwild", {"worker:0": limited(1, 1, 1), "worker:1": limited(1, 1, 1)})).resource.startswith(
        "processor quotas of worker 0 and worker 1"
    )


@pytest.mark.parametrize("change", [{"running": None}, {"running": "x"}, {"sent": float("nan")}])
def test_a_use_that_is_none_is_refused(change):
    values = dataclasses.asdict(IDLE)
    assert Use.from_json(values) == IDLE
    bound = limited(0.5, 0.2, 0.9)
    assert Use.from_json(dataclasses.asdict(bound)) == bound and bound.text.startswith(
        "runs for 50% of the time on 0.18 of 0.2 c"
    )
    with pytest.raises((TypeError, ValueError)):
        Use.from_json(values | change)
