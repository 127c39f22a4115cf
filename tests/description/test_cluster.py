"""`Cluster`: what it refuses, the defaults it fills in, and the addresses it gives."""

from typing import Any

import pytest

from tfdist.cluster import DEFAULT_START_PORT, Cluster, Task
from tfdist.errors import ClusterError, Source, nearest

CHIEF, PS = Task("chief", 0), Task("ps", 0)
WORKERS = (Task("worker", 0), Task("worker", 1))


def test_tasks_are_ordered_by_job_and_index() -> None:
    cluster = Cluster((PS, WORKERS[1], Task("evaluator", 0), CHIEF, WORKERS[0]))
    assert [task.name for task in cluster.tasks] == ["chief:0", "worker:0", "worker:1", "ps:0", "evaluator:0"]
    assert cluster.describe() == "1 chief, 2 workers, 1 ps, 1 evaluator"
    assert cluster.training_tasks == cluster.tasks[:-1]


def test_default_groups() -> None:
    wide = (Task("worker", 0, slots=2), Task("worker", 1))
    assert Cluster(wide).worker_groups == ((0, 1, 2),)
    assert Cluster(wide).server_groups == ()
    assert Cluster((*wide, PS)).worker_groups == ((0, 1), (2,))
    assert Cluster((*wide, PS)).server_groups == ((0,),)
    assert Cluster((CHIEF,)).worker_groups == ()
    assert Cluster(wide).slots == 3
    assert Cluster((Task("chief", 0, slots=4),)).slots == 4


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tasks": ()}, "has no tasks"),
        ({"tasks": (Task("boss", 0),)}, "'boss' is not a job"),
        ({"tasks": (Task("worker", -1),)}, "index -1 of a worker is negative"),
        ({"tasks": (Task("worker", 0), Task("worker", 0))}, "worker:0 is listed twice; list it once"),
        ({"tasks": (Task("worker", 0), Task("worker", 2))}, "the indices of the worker tasks have holes"),
        ({"tasks": (Task("chief", 1),)}, "the indices of the chief tasks have holes"),
        ({"tasks": (CHIEF, Task("chief", 1))}, "there are 2 chiefs"),
        ({"tasks": (PS,)}, "ps tasks but no workers"),
        ({"tasks": (CHIEF, PS)}, "ps tasks but no workers"),
        ({"tasks": (Task("evaluator", 0),)}, "nothing that trains"),
        ({"tasks": (Task("worker", 0, port=0),)}, "port 0 of worker:0"),
        ({"tasks": (Task("worker", 0, port=65536),)}, "port 65536"),
        ({"tasks": (Task("worker", 0, host="a b"),)}, "'a b' of worker:0"),
        ({"tasks": (Task("worker", 0, slots=0),)}, "0 slots"),
        ({"tasks": (Task("worker", 0, gpus=2),)}, "2 GPUs"),
        (
            {"tasks": (Task("worker", 0, "a", 1), Task("worker", 1, "A", 1))},
            "have the same address A:1; give one of them another port",
        ),
        ({"tasks": WORKERS, "sync_period": 0}, "sync period is 0"),
        ({"tasks": WORKERS, "worker_groups": ((0,),)}, "each of the 2 worker ranks exactly once"),
        ({"tasks": WORKERS, "worker_groups": ((0, 1), (1,))}, "exactly once"),
        ({"tasks": WORKERS, "worker_groups": ((0, 1), ())}, "exactly once"),
        ({"tasks": WORKERS, "server_groups": ((0,),)}, "each of the 0 ps ranks"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ClusterError) as caught:
        Cluster(**fields)
    assert message in str(caught.value)


def test_a_partial_view_may_have_holes() -> None:
    cluster = Cluster((Task("worker", 3, "a", 1), Task("ps", 1, "b", 1), Task("evaluator", 2, "c", 1)), partial=True)
    assert cluster.cluster_spec() == {"worker": {"3": "a:1"}, "ps": {"1": "b:1"}}
    assert cluster.tf_config("ps", 1)["tfdist"] == {"partial": True, "evaluators": {"2": "c:1"}}


def test_open_addresses_are_filled_in_gclouds_order() -> None:
    cluster = Cluster((CHIEF, *WORKERS, PS, Task("evaluator", 0))).addressed()
    ports = {task.name: task.port for task in cluster.tasks}
    expected = ["chief:0", "ps:0", "worker:0", "worker:1", "evaluator:0"]
    assert ports == {name: DEFAULT_START_PORT + number for number, name in enumerate(expected)}
    assert {task.host for task in cluster.tasks} == {"localhost"}
    assert cluster.addressed() is cluster


def test_given_ports_are_skipped_and_hosts_ignore_case() -> None:
    tasks = (Task("worker", 0, "A"), Task("worker", 1, "a", 5000), Task("worker", 2, "a"), Task("worker", 3, "b"))
    assert [task.port for task in Cluster(tasks).addressed(5000).tasks] == [5001, 5000, 5002, 5000]
    with pytest.raises(ClusterError, match="worker:1 would get port 65536"):
        Cluster(WORKERS).addressed(65535)


def test_addresses() -> None:
    assert Task("worker", 0, "::1", 5).address == "[::1]:5"
    assert Task("worker", 0, "h", 5).address == "h:5"
    with pytest.raises(ValueError, match="worker:0 has no address yet"):
        _ = Task("worker", 0, "h").address


def test_a_chief_is_added_beside_worker_0() -> None:
    cluster = Cluster((Task("worker", 0, "w", 1), PS)).with_chief()
    assert cluster.job("chief") == (Task("chief", 0, "w"),)
    assert cluster.with_chief() is cluster


def test_equal_means_the_same_wherever_it_came_from() -> None:
    one = Cluster(WORKERS, source=Source("a", "b"), task=("worker", 1))
    assert one == Cluster((Task("worker", 0, machine_type="x"), Task("worker", 1)))
    assert one != Cluster(WORKERS, sync_period=2)
    assert hash(one) == hash(Cluster(WORKERS))


def test_the_error_about_a_missing_task_lists_the_tasks() -> None:
    with pytest.raises(ClusterError, match=r"there is no task ps:0; this cluster has 2 workers"):
        Cluster(WORKERS).tf_config("ps", 0)


def test_messages_are_one_printable_line() -> None:
    error = Source("d", "f").error("bad \n\x1b\ud800 thing", field="a.b", line=3)
    assert str(error) == "f:3: a.b: bad \\n\\x1b\\ud800 thing"
    assert nearest("wroker", ["worker"]) == "; did you mean worker?"
    assert nearest("zzz", ["worker"], otherwise="; none") == "; none"
    assert nearest(10**5000, ["worker"]) == ""
