"""Role, rank and size of every kind of task: from TF_CONFIG, from a description in the program, and without either."""

import json
import subprocess
import sys

import pytest

import tfdist
from tfdist import create_strategy, process_cluster
from tfdist.rank_info import RankInfo


@pytest.fixture(autouse=True)
def no_description(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setattr(process_cluster, "_strategy_clusters", [])


@pytest.fixture
def am(monkeypatch):
    """Makes this process a task of a cluster, described as `job=[hosts]`."""

    def become(job, index, extension=None, **jobs):
        cluster = {name: [f"{host}:{2000 + i}" for i, host in enumerate(hosts)] for name, hosts in jobs.items()}
        spread = {name: [a.replace(":2", f":{'cwpe'.index(name[0]) + 2}") for a in where] for name, where in cluster.items()}
        config = {"cluster": spread, "task": {"type": job, "index": index}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(config | ({"tfdist": extension} if extension else {})))

    return become


def all_answers():
    return (tfdist.role(), tfdist.rank(), tfdist.size(), tfdist.local_rank(), tfdist.local_size(), tfdist.is_chief())


def test_without_a_description_this_process_is_a_single_chief():
    assert all_answers() == ("chief", 0, 1, 0, 1, True)


@pytest.mark.parametrize(
    ("job", "index", "expected"),
    [
        ("chief", 0, ("chief", 0, 4, 0, 2, True)),
        ("worker", 0, ("worker", 1, 4, 0, 2, False)),
        ("worker", 1, ("worker", 2, 4, 1, 2, False)),
        ("worker", 2, ("worker", 3, 4, 1, 2, False)),
        ("evaluator", 0, ("evaluator", None, 4, None, 2, False)),
    ],
)
def test_the_chief_has_rank_0_before_the_workers_and_local_ranks_count_per_host(am, job, index, expected):
    am(job, index, chief=["a"], worker=["b", "a", "B"], evaluator=["b"])
    assert all_answers() == expected


def test_without_chief_and_ps_worker_0_is_the_chief_with_the_role_worker(am):
    am("worker", 0, worker=["a", "b"])
    assert all_answers() == ("worker", 0, 2, 0, 1, True)
    am("worker", 1, worker=["a", "b"])
    assert all_answers() == ("worker", 1, 2, 0, 1, False)


@pytest.mark.parametrize(
    ("job", "index", "expected"),
    [
        ("chief", 0, ("chief", 0, 1, 0, 1, True)),
        ("worker", 0, ("worker", None, 1, None, 0, False)),
        ("worker", 2, ("worker", None, 1, None, 1, False)),
        ("ps", 0, ("ps", None, 1, None, 0, False)),
        ("evaluator", 0, ("evaluator", None, 1, None, 0, False)),
    ],
)
def test_under_a_parameter_server_only_the_chief_has_a_rank(am, job, index, expected):
    am(job, index, chief=["a"], worker=["b", "b", "a"], ps=["c"], evaluator=["d"])
    assert all_answers() == expected


def test_without_chief_but_with_ps_worker_0_runs_the_chiefs_program(am):
    am("worker", 0, worker=["a", "b"], ps=["c"])
    assert all_answers() == ("chief", 0, 1, 0, 1, True)
    am("worker", 1, worker=["a", "b"], ps=["c"])
    assert all_answers() == ("worker", None, 1, None, 0, False)


def test_the_size_counts_the_workers_of_one_group():
    def size(**groups):
        fields = " ".join(f"{name}: {value}" for name, value in groups.items())
        text = f"cluster {{ server_worker_separate: true nserver_groups: 1 nservers_per_group: 1 {fields} }}"
        process_cluster.set_current_cluster(tfdist.read(text))
        return tfdist.size()

    assert size(nworker_groups=4, nworkers_per_group=1) == 1
    assert size(nworker_groups=1, nworkers_per_group=4) == 4
    assert size(nworker_groups=2, nworkers_per_group=3) == 3


def test_an_evaluator_outside_the_cluster_has_the_size_of_the_cluster(am):
    am("evaluator", 0, worker=["a", "b", "c"])
    assert all_answers() == ("evaluator", None, 3, None, 0, False)


def test_an_evaluator_that_is_described_alone_has_size_1(am):
    am("evaluator", 0, evaluator=["a"])
    assert all_answers() == ("evaluator", None, 1, None, 0, False)


def test_a_bad_tf_config_is_an_error(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"workers": ["a:1"]}}')
    with pytest.raises(tfdist.ClusterError, match="did you mean worker"):
        tfdist.rank()


def test_the_functions_do_not_import_tensorflow():
    code = "import sys, tfdist; tfdist.rank(), tfdist.size(), tfdist.is_chief(); assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_what_a_program_asks_for_does_not_count_while_it_is_measured(am, monkeypatch):
    am("chief", 0, chief=["a"], worker=["a"], ps=["a"])
    with pytest.raises(tfdist.ClusterError, match="this asks for 1 chief, 4 workers, 3 ps"):
        create_strategy._resolve("STANDARD_1", None, RankInfo.outline)
    monkeypatch.setenv(process_cluster.MEASURED, "1")
    measured = create_strategy._resolve("STANDARD_1", None, RankInfo.outline)
    assert (len(measured.tasks), measured.task) == (3, ("chief", 0))
