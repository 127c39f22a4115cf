"""Forms that the real readers take: host files, Paddle's older options, Google's single values; and messages that name the reason."""

import pytest

import tfdist
from tfdist.dialects import environment
from tfdist.errors import ClusterError
from tfdist.rank_info import RankInfo

OPEN_MPI = """# This is an example hostfile.
#
# The following node is a single processor machine:
foo.example.com

# a dual-processor machine
bar.example.com slots=2
# over-subscribing is disallowed
yow.example.com slots=4 max-slots=4
"""


def refused(text: object) -> str:
    with pytest.raises(ClusterError) as caught:
        tfdist.read(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (OPEN_MPI, [("foo.example.com", 1), ("bar.example.com", 2), ("yow.example.com", 4)]),
        ("node1 cpu=4\nnode2 cpu=2\n", [("node1", 4), ("node2", 2)]),
        ("a count=2 user=me\n", [("a", 2)]),
        ("a:2\nb\n", [("a", 2), ("b", 1)]),
    ],
)
def test_host_files(text: str, expected: list[tuple[str, int]]) -> None:
    hosts = [task.host for task in tfdist.read(text).tasks]
    assert hosts == [host for host, slots in expected for _ in range(slots)]


def test_hosts_without_slots_do_not_make_a_text_a_host_file() -> None:
    assert "these are names of hosts without a number of processes" in refused("a\nb\n")
    assert "this is no cluster description" in refused("These are words\nfoo slots=2\n")


def test_a_command_line_with_an_object_is_no_yaml() -> None:
    for line in (
        'nerdctl run -e TF_CONFIG=\'{"cluster": {"worker": ["a:1"]}}\' image',
        "python x.py --spec='{\"worker\": []}'",
    ):
        assert "this is neither a description nor a command line that tfdist reads; those of srun" in refused(line)
    assert tfdist.read("--- {worker: ['a:1', 'b:1']}\n").describe() == "2 workers"


def test_older_options_of_paddle() -> None:
    launch = "python -m paddle.distributed.launch "
    assert [task.gpus for task in tfdist.read(launch + "--selected_gpus=0,1,2 x.py").tasks] == [1, 1, 1]
    cluster = tfdist.read(
        launch + "--cluster_node_ips=a,b --node_ip=a --started_port 6170 --selected_gpus 0,1 --use_paddlecloud x.py"
    )
    assert [task.address for task in cluster.tasks] == ["a:6170", "a:6171", "b:6170", "b:6171"]
    ps = tfdist.read('fleetrun --servers="a:6000" --workers="a,b" x.py')
    assert [task.address for task in ps.job("worker")] == ["a:6171", "b:6172"]
    assert "--workers: 'a:x' is not an address" in refused("fleetrun --servers=a:1 --workers=a:x x.py")
    assert "--trainers: 'a:x' is not an address" in refused("fleetrun --servers=a:1 --trainers=a:x x.py")


def test_a_single_worker_pool_needs_no_list() -> None:
    text = "workerPoolSpecs:\n  machineSpec: {machineType: n1-standard-4}\n  replicaCount: 1\n"
    assert tfdist.read(text).describe() == "1 chief"
    assert "the first worker pool has 2 replicas" in refused(text.replace("replicaCount: 1", "replicaCount: 2"))


def test_the_variables_of_mvapich2() -> None:
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    values = ("3", "4", "1", "2")
    ranks = environment.find({f"MV2_COMM_WORLD_{name}": value for name, value in zip(names, values, strict=True)})
    assert isinstance(ranks, RankInfo) and (ranks.rank, ranks.size, ranks.local_rank, ranks.local_size) == (3, 4, 1, 2)


def test_a_missing_variable_is_named_once() -> None:
    with pytest.raises(ClusterError, match=r"^OMPI_COMM_WORLD_RANK: it is not set, but OMPI_COMM_WORLD_SIZE is"):
        environment.find({"OMPI_COMM_WORLD_SIZE": "2"})


def test_a_file_of_tuning_parameters_says_what_else_to_give() -> None:
    text = "trainingInput:\n  hyperparameters: {goal: MAXIMIZE, maxTrials: 4}\n"
    assert "scaleTier is required; choose one of BASIC, " in refused(text) and "here or with --tier" in refused(text)
    assert tfdist.read(text, overrides={"tier": "BASIC"}).describe() == "1 chief"


def test_a_distant_file_is_no_suggestion(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").mkdir()
    assert refused("mpirun -np 2 --hostfile hosts python x.py").endswith("hosts: there is no such file")
