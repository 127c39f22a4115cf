"""The table that chooses the strategy, row by row, and what forcing a strategy may and may not do."""

import dataclasses
import json
import re

import pytest

from tfdist import process_cluster, read, strategy
from tfdist.choice import STRATEGIES, choose, prepared
from tfdist.cluster import Cluster, Task
from tfdist.errors import ClusterError
from tfdist.strategies import refusal, tpu_note

SINGA = "cluster {{ nworker_groups: {} nserver_groups: {} nworkers_per_group: {} nservers_per_group: {} server_worker_separate: {} }}"


def singa(*values):
    return SINGA.format(*values)


def custom(**counts):
    counts = {name: value for name, value in counts.items() if value}
    types = {name.replace("Count", "Type"): "standard" for name in counts}
    return {"scaleTier": "CUSTOM", "masterType": "standard", **types, **counts}


def tf_config(**jobs):
    return {"cluster": {job: [f"{job}{i}:2222" for i in range(n)] for job, n in jobs.items()}}


def forced(description, name):
    return dataclasses.replace(read(description), strategy=name)


@pytest.mark.parametrize(
    ("description", "strategy", "known_as"),
    [
        ("BASIC", "default", "single process"),
        ("BASIC_GPU", "default", "single process"),
        (singa(1, 1, 1, 1, "false"), "default", "single process"),
        ({"scaleTier": "CUSTOM", "masterType": "complex_model_m_gpu"}, "mirrored", "data parallel"),
        ("cluster { nworkers_per_group: 2 nworkers_per_procs: 2 }", "mirrored", "data parallel"),
        (singa(1, 1, 3, 3, "false"), "multi_worker_mirrored", "AllReduce"),
        (custom(workerCount=3), "multi_worker_mirrored", "AllReduce"),
        (tf_config(worker=2), "multi_worker_mirrored", "AllReduce"),
        (tf_config(chief=1, worker=1), "multi_worker_mirrored", "AllReduce"),
        (singa(1, 1, 3, 2, "true"), "parameter_server", "Sandblaster"),
        (singa(2, 1, 2, 2, "true"), "parameter_server", "Downpour"),
        (singa(3, 1, 1, 1, "false"), "parameter_server", "Downpour"),
        ("STANDARD_1", "parameter_server", "Downpour"),
        ("PREMIUM_1", "parameter_server", "Downpour"),
        (custom(workerCount=1, parameterServerCount=1), "parameter_server", "Downpour"),
        (tf_config(worker=2, ps=1), "parameter_server", "Downpour"),
        (singa(3, 3, 1, 1, "false"), "hogwild", "Distributed Hogwild"),
        (singa(4, 2, 1, 1, "true"), "hogwild", "Distributed Hogwild"),
    ],
)
def test_each_description_gives_the_strategy_that_it_means(description, strategy, known_as):
    choice = choose(read(description))
    assert (choice.strategy, known_as in choice.rule) == (strategy, True), choice


@pytest.mark.parametrize(
    "description",
    [
        "BASIC",
        "BASIC_GPU",
        "STANDARD_1",
        "PREMIUM_1",
        tf_config(worker=2),
        singa(3, 1, 1, 2, "true"),
        singa(1, 1, 3, 2, "true"),
        singa(2, 1, 2, 2, "true"),
        singa(3, 3, 1, 1, "false"),
    ],
)
def test_what_is_built_is_not_refused(description):
    cluster = read(description)
    assert refusal(cluster, choose(cluster)) is None


def test_multi_worker_mirrored_has_nothing_for_ps_tasks_to_do():
    cluster = forced("STANDARD_1", "multi_worker_mirrored")
    assert re.search(
        "has nothing for ps tasks to do.* describe it without ps, or choose parameter_s", refusal(cluster, choose(cluster))
    )


@pytest.fixture
def environ(monkeypatch):
    """Returns a function that makes a text the TF_CONFIG of this process, and returns its cluster."""
    monkeypatch.setattr(process_cluster, "_strategy_clusters", [])

    def become(text):
        monkeypatch.setenv("TF_CONFIG", text)
        return read()

    return become


@pytest.mark.parametrize(
    ("jobs", "task"),
    [
        ({"worker": {}, "ps": ["b:1"]}, ("ps", 1)),
        ({"worker": {"1": "a:1"}, "ps": ["b:1", "c:1"]}, ("worker", 1)),
        ({"worker": {"0": "a:1"}, "ps": ["b:1"]}, ("worker", 0)),
        ({"worker": {"2": "a:1"}}, ("worker", 2)),
        ({"worker": {}, "ps": []}, ("chief", 0)),
    ],
)
def test_a_view_that_does_not_name_the_other_tasks_is_refused(jobs, task, environ):
    # What TFJob gives its pods with enableDynamicWorker. A ps trained alone, and workers waited for a chief that never came.
    cluster = environ(json.dumps({"cluster": jobs, "task": {"type": task[0], "index": task[1]}}))
    assert "leave out its enableDynamicWorker" in refusal(cluster, choose(cluster))
    with pytest.raises(ClusterError, match=r"this is the view of one task, with .*, and does not name the others"):
        strategy()


def test_a_specification_with_holes_that_names_its_chief_is_not_refused():
    cluster = read({"cluster": {"chief": ["c:1"], "worker": {"0": "a:1", "2": "b:1"}, "ps": ["d:1"]}})
    assert cluster.partial and refusal(cluster, choose(cluster)) is None


@pytest.mark.parametrize("name", STRATEGIES[2:])
def test_a_forced_strategy_wins_over_the_table(name):
    choice = choose(forced("STANDARD_1", name))
    assert (choice.strategy, choice.rule) == (name, f"--strategy {name}")


@pytest.mark.parametrize(
    ("description", "name", "message"),
    [
        ("STANDARD_1", "hogwld", "did you mean hogwild?"),
        ("STANDARD_1", "mirrored", "mirrored trains in one task, and this cluster has 8"),
        ("BASIC", "parameter_server", "has none (1 chief)"),
        (tf_config(worker=2), "parameter_server", "has none (2 workers)"),
        ("BASIC", "hogwild", "has none (1 chief)"),
    ],
)
def test_a_forced_strategy_that_the_cluster_cannot_carry_is_an_error(description, name, message):
    with pytest.raises(ClusterError, match="--strategy") as error:
        choose(forced(description, name))
    assert message in str(error.value)


def test_under_hogwild_without_ps_every_worker_task_is_a_group_and_holds_parameters():
    described = read(tf_config(worker=2))
    assert described.worker_groups == ((0, 1),)
    cluster = prepared(dataclasses.replace(described, strategy="hogwild"))
    assert cluster.worker_groups == ((0,), (1,)) and cluster.server_groups == ()
    assert cluster.parameter_tasks == cluster.job("worker") and cluster.describe() == "1 chief, 2 workers"
    assert read(json.dumps(cluster.tf_config("chief", 0))).worker_groups == cluster.worker_groups
    slots = (Task("worker", 0, slots=2), Task("worker", 1, slots=2))
    assert Cluster(slots, strategy="hogwild").worker_groups == ((0, 1), (2, 3))
    together = Cluster((*slots, Task("ps", 0)), worker_groups=((0, 1, 2, 3),), strategy="hogwild")
    assert together.worker_groups == ((0, 1, 2, 3),) and together.parameter_tasks == together.job("ps")


def test_a_cluster_whose_workers_only_serve_gets_a_chief_beside_worker_0():
    cluster = prepared(read(tf_config(worker=2, ps=1)))
    assert cluster.job("chief")[0].host == cluster.job("worker")[0].host == "worker0"
    assert prepared(read(tf_config(worker=2))).job("chief") == ()
    assert len(prepared(read("STANDARD_1")).job("chief")) == 1


@pytest.mark.parametrize("machine", ["cloud_tpu", "cloud_tpu+8xTPU_V2", "cloud-tpu", "ct5lp-hightpu-4t", "ct6e-standard-4t"])
def test_a_machine_with_tpus_is_named(machine):
    assert tpu_note(Cluster((Task("chief", 0, machine_type=machine),))).startswith("chief:0 asks for a Cloud TPU")
    assert tpu_note(Cluster((Task("chief", 0, machine_type="n1-standard-4"), Task("worker", 0)))) is None
