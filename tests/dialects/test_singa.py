"""SINGA's job.conf and host file: layouts, everything that is refused, and the way back."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.choice import choose
from tfdist.cluster import Cluster, Task
from tfdist.dialects import read
from tfdist.dialects.singa import write
from tfdist.errors import ClusterError


def block(**fields: object) -> str:
    return "cluster {\n" + "".join(f"  {name}: {str(value).lower()}\n" for name, value in fields.items()) + "}\n"


def counts(groups: tuple[int, int], per_group: tuple[int, int], separate: bool) -> str:
    """The block of one of the frameworks of SINGA's documentation."""
    return block(
        nworker_groups=groups[0],
        nserver_groups=groups[1],
        nworkers_per_group=per_group[0],
        nservers_per_group=per_group[1],
        server_worker_separate=separate,
    )


SANDBLASTER = counts((1, 1), (3, 2), True)
ALL_REDUCE = counts((1, 1), (3, 3), False)
DOWNPOUR = counts((2, 1), (2, 2), True)
HOGWILD = counts((3, 3), (1, 1), False)


@pytest.mark.parametrize(
    ("text", "described", "worker_groups", "server_groups", "strategy"),
    [
        pytest.param(SANDBLASTER, "3 workers, 2 ps", ((0, 1, 2),), ((0, 1),), "parameter_server", id="Sandblaster"),
        pytest.param(ALL_REDUCE, "3 workers", ((0, 1, 2),), (), "multi_worker_mirrored", id="AllReduce"),
        pytest.param(DOWNPOUR, "4 workers, 2 ps", ((0, 1), (2, 3)), ((0, 1),), "parameter_server", id="Downpour"),
        pytest.param(HOGWILD, "3 workers, 3 ps", ((0,), (1,), (2,)), ((0,), (1,), (2,)), "hogwild", id="Distributed Hogwild"),
    ],
)
def test_the_four_frameworks_of_the_documentation(
    text: str,
    described: str,
    worker_groups: tuple[tuple[int, ...], ...],
    server_groups: tuple[tuple[int, ...], ...],
    strategy: str,
) -> None:
    cluster = read(text)
    assert cluster.describe() == described
    assert cluster.worker_groups == worker_groups
    assert cluster.server_groups == server_groups
    assert choose(cluster).strategy == strategy


@pytest.mark.parametrize(
    ("text", "placement"),
    [
        # Which tasks each process (each host) has, from the table of the four frameworks.
        (SANDBLASTER, ["worker:0", "worker:1", "worker:2", "ps:0", "ps:1"]),
        (ALL_REDUCE, ["worker:0", "worker:1", "worker:2"]),
        (DOWNPOUR, ["worker:0", "worker:1", "worker:2", "worker:3", "ps:0", "ps:1"]),
        (HOGWILD, ["worker:0 ps:0", "worker:1 ps:1", "worker:2 ps:2"]),
    ],
)
def test_hosts_follow_the_process_numbers(text: str, placement: list[str], tmp_path: Path) -> None:
    hosts = [f"h{n}" for n in range(len(placement))]
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("\n".join(hosts))
    cluster = read(text, hostfile=hostfile)
    assert [" ".join(task.name for task in cluster.tasks if task.host == host) for host in hosts] == placement
    # Ports count up per host, the worker of a process before its server.
    for task in cluster.tasks:
        assert task.port == (
            6724 if placement == ["worker:0 ps:0", "worker:1 ps:1", "worker:2 ps:2"] and task.job == "ps" else 6723
        )


def test_hosts_go_round_and_ports_count_up_per_host(tmp_path: Path) -> None:
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("# our machines\n\nnode1 slots=4\nnode2\n   \n")
    cluster = read(SANDBLASTER.replace("cluster {", "cluster {\n  start_port: 7000"), hostfile=hostfile)
    assert [task.address for task in cluster.tasks] == ["node1:7000", "node2:7000", "node1:7001", "node2:7001", "node1:7002"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"# nothing\n\n", "empty"),
        (b"a\nb:80\n", ":2: 'b:80' is not a host name or an address (ports do not go here)"),
        (b"a/b\n", "is not a host name"),
        (b"\xff\n", "is not UTF-8"),
    ],
)
def test_a_bad_host_file(content: bytes, message: str, tmp_path: Path) -> None:
    hostfile = tmp_path / "hostfile"
    hostfile.write_bytes(content)
    with pytest.raises(ClusterError) as caught:
        read(HOGWILD, hostfile=hostfile)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(hostfile))


def test_ports_are_open_unless_start_port_is_given() -> None:
    assert all(task.port is None for task in read(DOWNPOUR).tasks)
    cluster = read("cluster { nworker_groups: 2 start_port: 6723 }")
    assert [(task.name, task.port) for task in cluster.tasks] == [("worker:0", 6723), ("worker:1", 6725), ("ps:0", 6724)]


def test_a_task_is_a_process_and_its_slots_are_the_executors_in_it() -> None:
    cluster = read(
        block(nworker_groups=2, nworkers_per_group=4, nworkers_per_procs=2, nservers_per_group=6, nservers_per_procs=3)
    )
    assert [(task.name, task.slots) for task in cluster.tasks] == [
        *((f"worker:{n}", 2) for n in range(4)),
        *((f"ps:{n}", 3) for n in range(2)),
    ]
    assert cluster.worker_groups == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert not cluster.separate_servers


def test_several_worker_groups_in_one_process_share_memory() -> None:
    cluster = read(block(nworker_groups=4, nworkers_per_procs=4))
    assert [(task.name, task.slots) for task in cluster.tasks] == [("worker:0", 4), ("ps:0", 1)]
    assert cluster.worker_groups == ((0,), (1,), (2,), (3,))
    assert cluster.share_memory
    assert not read(block(nworker_groups=4, nworkers_per_procs=4, share_memory="false")).share_memory


def test_fields_that_carry_over() -> None:
    cluster = read('cluster { sync_freq: 8 workspace: "/w" share_memory: f poll_time: 5 nworker_groups: 2 nserver_groups: 2 }')
    assert (cluster.sync_period, cluster.job_dir, cluster.share_memory) == (8, "/w", False)


@pytest.mark.parametrize("text", ["cluster { }", "cluster {}", 'cluster { workspace: "w" }', "nworker_groups: 1\n"])
def test_defaults_are_one_worker(text: str) -> None:
    assert read(text).tasks == (Task("worker", 0),)


def test_no_server_groups_means_no_servers() -> None:
    assert read(block(nserver_groups=0, nworkers_per_group=3)).describe() == "3 workers"
    assert read(block(nserver_groups=0, nworkers_per_group=3)) == read(ALL_REDUCE)


def test_gpus_of_the_job_go_to_the_first_workers_of_each_process() -> None:
    cluster = read("gpu: 0 gpu: 1\n" + block(nworkers_per_group=6, nworkers_per_procs=3))
    assert [(task.slots, task.gpus) for task in cluster.tasks] == [(3, 2), (3, 2)]
    assert [task.gpus for task in read("gpu: [0, 1, -1]\n" + block(nworkers_per_group=2)).tasks] == [1, 1]


WHOLE = """name: "mlp"  # cluster {
train_steps: 1000
neuralnet {
  layer { name: "} cluster {" type: kData store_conf { shape: [1, 2] path: 'a' 'b' } }
  layer < name: "fc" low: -0.5e-3 high: 1f >
  [singa.extended] { x: 1 }
}
updater: { type: kSGD; }
unheard_of { nworker_group: 1 }
cluster {
  nworker_groups: 2;
  nservers_per_group: 2,
}
"""


def test_the_rest_of_job_conf_is_skipped() -> None:
    assert read(WHOLE).describe() == "2 workers, 2 ps"


@pytest.mark.parametrize(
    "text",
    [
        "cluster < nworker_groups: 2 >",
        "cluster: { nworker_groups: 2 }",
        "cluster: {\n nworker_groups: 2 }",
        "nworker_groups: 2\n",
        "  nworker_groups: 2\n  nserver_groups: 1 # one\n",
        "cluster {\r\n  nworker_groups: 0x2\r\n}\r\n",
        "\ufeffcluster {\n nworker_groups: 2 }",
    ],
)
def test_spellings_of_the_block(text: str) -> None:
    assert read(text).describe() == "2 workers, 1 ps"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cluster {\n\n  nworker_per_procs: 1\n}", ":3: cluster.nworker_per_procs: ClusterProto has no such field; "),
        ("cluster {\n  nworker_per_procs: 1\n}", "did you mean nworkers_per_procs?"),
        ("cluster {\n  nworkers_per_process: 2\n}", "did you mean nworkers_per_procs?"),
        ("cluster {\n  sync_frequency: 2\n}", "did you mean sync_freq?"),
        ("cluster {\n  banana: 2\n}", "the fields are nworker_groups, nserver_groups"),
        ("nworker_groups: 1\nnserver_group: 2\n", "<text>:2: cluster.nserver_group"),
        ("clusters {\n nworker_groups: 1 }", "<text>:1: clusters is not a field; did you mean cluster?"),
        ("gpus: 1\ncluster { nworker_groups: 1 }", "<text>:1: gpus is not a field; did you mean gpu?"),
        ("name: 'x'\ntrain_steps: 5\n", "there is no cluster block"),
        ("cluster { }\ncluster { }", ":2: this is a second cluster block, the first is in line 1"),
        ("cluster { }\nsync_freq: 3\n", ":2: sync_freq is outside the cluster block; move it inside as sync_freq"),
        ("name: 'x'\ncluster: 5\n", ":2: cluster is a block"),
        (
            "cluster {\n nworker_groups: 1\n nworker_groups: 2 }",
            ":3: cluster.nworker_groups: it is given twice, first in",
        ),
        ("cluster {\n nworker_groups: two }", ":2: cluster.nworker_groups: Couldn't parse integer: two"),
        ("cluster {\n nworker_groups: 1.5 }", ":2: cluster.nworker_groups"),
        ("cluster {\n nworker_groups: 3000000000 }", ":2: cluster.nworker_groups: Value out of range"),
        ("cluster {\n share_memory: yes }", 'Expected "true" or "false"'),
        ("cluster {\n workspace: here }", ":2: cluster.workspace"),
        ("cluster {\n workspace { } }", "this is a block, but one value is expected"),
        ("cluster {\n nworker_groups 1 }", ":2: there is no `:` or block after 'nworker_groups'"),
        ("cluster {\n nworker_groups: }", ":2: expected a value for nworker_groups"),
        ("name: 'x'\ncluster {\n nworker_groups: 1\n", ":2: the { here is never closed; a } is missing"),
        ("cluster {\n nworker_groups: 1 >\n", "closes a bracket of another kind"),
        ("cluster { nworker_groups: 1 }\n}\n", ":2: expected the name of a field, found '}'"),
        ('name: "x\ncluster { nworker_groups: 1 }', ":1: there is a string that does not end in its line"),
        ("cluster { nworker_groups: 1 } $\n", "the character '$'"),
        ("gpu: x\ncluster { nworker_groups: 1 }\n", "<text>:1: gpu: Couldn't parse integer"),
    ],
)
def test_text_that_is_refused_and_how(text: str, message: str) -> None:
    with pytest.raises(ClusterError) as caught:
        read(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"nworker_groups": 0}, ":2: cluster.nworker_groups: 0 is outside 1 to 100000"),
        ({"nworkers_per_group": -1}, "-1 is outside 1"),
        ({"nserver_groups": -1}, "-1 is outside 0"),
        ({"nservers_per_group": 0}, "write nserver_groups: 0 for a cluster without servers"),
        ({"nworkers_per_procs": 0}, "cluster.nworkers_per_procs: 0"),
        ({"nservers_per_procs": 0}, "cluster.nservers_per_procs: 0"),
        ({"sync_freq": 0}, "cluster.sync_freq: 0"),
        ({"start_port": 0}, "0 is outside 1 to 65535"),
        ({"start_port": 65536}, "65536 is outside 1 to 65535"),
        ({"start_port": 65535, "nworker_groups": 2}, "too few ports"),
        ({"poll_time": 0}, "cluster.poll_time: 0"),
        ({"nworkers_per_group": 3, "nworkers_per_procs": 2}, "3 workers (in groups of 3) do not fill processes of 2"),
        (
            {"nworker_groups": 2, "nworkers_per_group": 3, "nworkers_per_procs": 2},
            "groups of 3 workers and processes of 2 overlap; choose a nworkers_per_procs that divides 3",
        ),
        ({"nservers_per_group": 3, "nservers_per_procs": 2}, "3 servers (in groups of 3) do not fill processes of 2"),
        ({"nworker_groups": 2, "nserver_groups": 3}, "3 server groups for 2 worker groups"),
        ({"nworker_groups": 3, "nserver_groups": 2}, "3 worker groups cannot be shared equally among 2 server groups"),
        ({"nworker_groups": 2, "nserver_groups": 0}, "2 worker groups without servers would never exchange anything"),
        ({"nworker_groups": 100000}, "100000 workers and 1 servers, more than 100000"),
        ({"nworkers_per_group": 50000, "nworker_groups": 50000}, "2500000000 workers"),
    ],
)
def test_layouts_that_do_not_come_out_even_are_refused(fields: dict[str, int], message: str) -> None:
    with pytest.raises(ClusterError) as caught:
        read(block(**fields))
    assert message in str(caught.value)


@given(
    st.integers(1, 4),
    st.integers(0, 4),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(1, 6),
    st.booleans(),
)
@settings(max_examples=400, deadline=None)
def test_the_layout_is_that_of_singas_formulas(W: int, S: int, wg: int, sg: int, wp: int, sp: int, separate: bool) -> None:
    """Against the arithmetic of src/utils/cluster.cc, one executor at a time."""
    text = block(
        nworker_groups=W,
        nserver_groups=S,
        nworkers_per_group=wg,
        nservers_per_group=sg,
        nworkers_per_procs=wp,
        nservers_per_procs=sp,
        server_worker_separate=separate,
        start_port=5000,
    )
    even = W * wg % wp == 0 and (wg % wp == 0 or wp % wg == 0)
    even = even and (S == 0 or (S * sg % sp == 0 and (sg % sp == 0 or sp % sg == 0)))
    possible = even and (W == 1 if S == 0 else W >= S and W % S == 0)
    if not possible:
        with pytest.raises(ClusterError):
            read(text)
        return
    cluster = read(text)
    procs = [(g * wg + i) // wp for g in range(W) for i in range(wg)]
    assert [task.slots for task in cluster.job("worker")] == [procs.count(p) for p in sorted(set(procs))]
    assert cluster.worker_groups == tuple(tuple(g * wg + i for i in range(wg)) for g in range(W))
    if S == 0 or (W == S == 1 and not separate):
        assert cluster.job("ps") == ()
    else:
        offset = procs[-1] + 1 if separate else 0
        homes = [(g * sg + i) // sp + offset for g in range(S) for i in range(sg)]
        assert [task.slots for task in cluster.job("ps")] == [homes.count(p) for p in sorted(set(homes))]
        assert cluster.server_groups == tuple(tuple(g * sg + i for i in range(sg)) for g in range(S))
    assert len({task.port for task in cluster.tasks}) == len(cluster.tasks)
    assert read(write.write(cluster)) == cluster


@pytest.mark.parametrize(
    "text", [SANDBLASTER, ALL_REDUCE, DOWNPOUR, HOGWILD, WHOLE, "cluster {}", 'cluster { workspace: "a\\n\\"\\303\\251" }']
)
def test_what_is_written_reads_back(text: str, tmp_path: Path) -> None:
    cluster = read(text)
    assert read(write.write(cluster)) == cluster
    with pytest.raises(ClusterError, match="hosts are open"):
        write.write_hostfile(cluster)
    hostfile = tmp_path / "hosts"
    hostfile.write_text("a\nb\n")
    placed = read(text, hostfile=hostfile)
    hostfile.write_text(write.write_hostfile(placed))
    assert read(write.write(placed), hostfile=hostfile) == placed


def test_only_what_differs_from_the_defaults_is_written() -> None:
    assert write.write(read(ALL_REDUCE)) == (
        "cluster {\n  nworker_groups: 1\n  nserver_groups: 1\n  nworkers_per_group: 3\n  nservers_per_group: 3\n}\n"
    )


WORKERS = (Task("worker", 0), Task("worker", 1))


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        (Cluster((Task("chief", 0), *WORKERS)), "SINGA has no words for a chief"),
        (Cluster((*WORKERS, Task("evaluator", 0))), "SINGA has no words for a evaluator"),
        (Cluster(WORKERS, partial=True), "a part of a cluster"),
        (Cluster((Task("worker", 0), Task("worker", 1, slots=2))), "worker tasks of different sizes"),
        (
            Cluster((*WORKERS, Task("worker", 2), Task("ps", 0)), worker_groups=((0, 1), (2,))),
            "worker groups of different sizes",
        ),
        (Cluster((*WORKERS, Task("ps", 0)), worker_groups=((1,), (0,))), "not runs of consecutive workers"),
        (Cluster((*WORKERS, Task("ps", 0)), worker_groups=((0, 1),), separate_servers=False), "AllReduce"),
        (Cluster(WORKERS, strategy="multi_worker_mirrored"), "strategy 'multi_worker_mirrored'"),
        (Cluster(WORKERS, protocol="grpc+verbs"), "protocol 'grpc+verbs'"),
        (Cluster((Task("worker", 0, "a", 1), Task("worker", 1, "b", 9))), "addresses that differ from its layout"),
    ],
)
def test_what_singa_cannot_say_is_refused(cluster: Cluster, message: str) -> None:
    with pytest.raises(ClusterError) as caught:
        write.write(cluster)
    assert message in str(caught.value)
