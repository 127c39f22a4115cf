"""Horovod and MPI: command lines, host files, ranks, and a real mpirun."""

import dataclasses
import os
import subprocess
import sys

import pytest
from tools import needs

import tfdist
from tfdist import process_cluster
from tfdist.cluster import Cluster, Task
from tfdist.dialects.horovod import environment, write
from tfdist.errors import ClusterError
from tfdist.rank_info import RankInfo


def hosts(source):
    return " ".join(task.host for task in tfdist.read(source).tasks)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("horovodrun -np 4 -H h1:2,h2:2 python train.py", "h1 h1 h2 h2"),
        ("horovodrun --num-proc=3 --hosts h1:1,h2:4 --verbose --gloo python train.py -H x:1 -np 9", "h1 h2 h2"),
        ("horovodrun -np 2 python train.py", "localhost localhost"),
        ("horovodrun -np 2 -H a:4,b:4 python train.py", "a a"),
        ("horovodrun -np 3 -H a:1,b:1,a:1 x", "a a b"),
        ("horovodrun -np 2 --min-np 1 --max-np 4 -H a:2,b:2 x", "a a"),
        ("horovodrun -np 2 --blacklist-cooldown-range 1 5 -H a:1,b:1 x", "a b"),
        ("FOO=1 /usr/bin/horovodrun -np 1 -H a:1 x", "a"),
        ("python3 -m horovod.runner.launch -np 1 -H a:1 x", "a"),
        ("mpirun -np 4 -H a:2,b:2 python train.py", "a a b b"),
        ("mpirun -H a,a,b python train.py", "a a b"),
        ("mpirun -H a:2 --host b,c -H a python train.py", "a a a b c"),
        ("mpirun -np 4 --map-by node -H a:3,b:2 x", "a b a b"),
        ("mpirun -np 4 -bynode --host a:3,b:1 x", "a b a a"),
        ("mpirun --map-by ppr:2:node -H a:8,b:8 x", "a a b b"),
        ("mpirun -N 1 -H a:8,b:8 x", "a b"),
        ("mpirun -pernode -H a:8,b:8 x", "a b"),
        ("mpirun -N 1 -bynode -H a:8,b:8 x", "a b"),
        ("mpirun -N 2 --map-by :OVERSUBSCRIBE -H a:8 x", "a a"),
        ("mpirun -N 1 --map-by ppr:2:node -H a:8 x", "a a"),
        ("mpiexec.hydra -ppn 1 -map-by core -hosts a,b x", "a b"),
        ("mpiexec.hydra -n 3 -ppn 2 -hosts a,b -genv X 1 x", "a a b"),
        ("mpiexec.hydra -n 5 -hosts a,b x", "a b a b a"),
        ("mpiexec -n 4 -hosts a,b x", "a b a b"),
        ("mpiexec.hydra -n 6 -hosts a,c,a x", "a c a a c a"),
        ("mpiexec.hydra -n 4 -hosts a,a,b x", "a a b a"),
        ("mpiexec.hydra -ppn 3 -hosts a:2,b:4,a:1 x", "a a a b b b a a a"),
        ("mpiexec.mpich -n 3 -host a,b x", "a b a"),
        ("/usr/bin/mpirun.openmpi -np 3 -H a:2,b:2 x", "a a b"),
        ("mpirun -np 5 --oversubscribe -H a,b x", "a a a b b"),
        ("mpiexec -n 2 --depth=4 --cpu-bind depth --env A=1 x", "localhost localhost"),
        ("mpirun --allow-run-as-root -np 3 --oversubscribe -H a:1 --mca btl tcp,self -x PATH -bind-to none x", "a a a"),
        ("$ CUDA_VISIBLE_DEVICES=0,1 horovodrun -np 2 -H localhost:2 python train.py", "localhost localhost"),
        # Horovod's own page on mpirun.
        (
            "mpirun -np 4 -H server1:2,server2:2 -bind-to none -map-by slot -x NCCL_DEBUG=INFO -x LD_LIBRARY_PATH -x PATH "
            "-mca pml ob1 -mca btl ^openib -mca btl_tcp_if_exclude lo,docker0 python train.py",
            "server1 server1 server2 server2",
        ),
        ("mpiexec -genv A 1 -genv B 2 -n 2 -ppn 1 -hosts a,b x", "a b"),
        ("mpirun -n 4 -genv I_MPI_DEBUG=5 -ppn 2 -hosts a,b python t.py", "a a b b"),
        ("mpirun -genv I_MPI_DEBUG=5 -env A=B -n 4 -ppn 2 -hosts a,b python t.py", "a a b b"),
        # Open MPI 5.
        ("mpirun --map-by :OVERSUBSCRIBE -np 8 -H a:2,b:2 x", "a a a a b b b b"),
        ("mpirun --map-by slot:OVERSUBSCRIBE -np 5 -H a:2,b:2 x", "a a a b b"),
        ("mpirun --map-by node:PE=2,oversub -np 5 -H a:2,b:2 x", "a b a b a"),
        ("mpirun --map-by ppr:2:node:pe=4 --output tag --display map -H a:8,b:8 x", "a a b b"),
        ("mpirun -np 4 -H a:2,b:2 --rank-by node x", "a b a b"),
        ("mpirun -np 4 -H a:3,b:2 --rank-by NODE x", "a b a a"),
        ("mpirun -np 4 -H a:3,b:2 --map-by node --rank-by slot x", "a a b b"),
        ("mpirun -np 4 -H a:2,b:2 --map-by core --rank-by fill x", "a a b b"),
        ("mpirun -np 3 --mca rmaps_base_mapping_policy node -H a:2,b:2 x", "a b a"),
        ("mpirun -np 3 --prtemca rmaps_default_ranking_policy node -H a:2,b:2 x", "a b a"),
        ("mpirun -np 2 -- python train.py : x", None),
        ("mpirun -np 3 -H [2001:db8::1]:2,[::1] x", "2001:db8::1 2001:db8::1 ::1"),
        ("mpirun \\\n  -np 2 \\\n  -H a:1,b:1 \\\n  python train.py", "a b"),
    ],
)
def test_command_lines(command, expected):
    if expected is None:
        with pytest.raises(ClusterError, match="several programs"):
            tfdist.read(command)
    else:
        assert hosts(command) == expected


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("horovodrun python train.py", "-np: the number of processes is missing"),
        ("mpirun python train.py", "neither processes nor hosts are given"),
        ("horovodrun -np 5 -H a:2,b:2 x", "-np: 5 processes are asked for, but the hosts have 4 slots"),
        ("mpirun -np 5 -H a:2,b:2 x", "5 processes are asked for"),
        ("horovodrun -np 2 -H a:b x", "-H: 'a:b' is not a host and its slots; expected a:2,b:2"),
        ("mpirun -np 2 -H ::1,::2 x", r"-H: '::1' is not a host and its slots; expected a:2,b:2; write IPv6 addresses in brackets"),
        ("horovodrun -np 2 -H a:2,,b:2 x", "-H: '' is not a host"),
        ("horovodrun -np 2 -H a:0 x", "0 slots"),
        ("horovodrun -np 0 x", "'0' is not right; expected a whole number from 1"),
        ("horovodrun -np 9999999 x", "is not right; expected a whole number from 1 to 100000"),
        ("horovodrun -np 2 -H a:99999999,b:2 x", "more than 100000 slots"),
        ("mpirun -H a:2222,b:2222 x", "-H: 'a:2222': 2222 would be the number of processes on a; if it is a port, describe"),
        ("horovodrun -np", "-np: the value of this option is missing"),
        ("horovodrun -np 2 -np 3 x", "this is given twice, as '2' and '3'"),
        ("mpirun -np 2 -x A -n 3 -x B x", "-n: this is given twice, as '2' and '3'"),
        ("horovodrun -np 2 --host a:1 x", "--host: this may be host-discovery-script or hostfile or hosts; write the whole name"),
        ("horovodrun -np 2 -H a:2 --hostfile h x", "hosts are given by -H and by a host file"),
        ("horovodrun -np 2 --hostfile nowhere x", "nowhere: there is no such file"),
        ("horovodrun -np 2 --host-discovery-script ./s.sh x", "--host-discovery-script: tfdist executes nothing"),
        ("horovodrun -np 2 --min-np 3 -H a:4 x", "--min-np: 3 does not go with -np 2"),
        ("horovodrun -np 2 -H 'a:1", "cannot be split into words: no closing quotation"),
        ("mpirun -np 2 --map-by dist:x -H a:2 x", "--map-by: 'dist:x' is a placement of ranks that tfdist does not support"),
        ("mpirun -N 2 --map-by core -H a:4 x", "-N: Open MPI 4 ignores -N 2 beside --map-by core, and starts a process on each slot"),
        ("mpirun -pernode --map-by socket:PE=2 -H a:4 x", "write --map-by ppr:1:node in place of both, or leave out one of them"),
        ("mpirun -N 2 --map-by slot x", "-N: Open MPI 4 ignores -N 2 beside --map-by slot"),
        ("mpirun -np 2 --map-by core:SPAN -H a:2,b:2 x", "--map-by: 'core:span' is a placement of ranks that tfdist does not"),
        ("mpirun -np 2 --map-by :nolocal -H a:2,b:2 x", "--map-by: ':nolocal' is a placement of ranks"),
        ("mpirun -np 2 --map-by pe-list=0,2 -H a:2 x", "--map-by: 'pe-list=0,2' is a placement of ranks"),
        ("mpirun -np 5 --map-by :NOOVERSUBSCRIBE -H a:2,b:2 x", "5 processes are asked for, but the hosts have 4 slots"),
        ("mpirun -np 2 --rank-by span -H a:2,b:2 x", "--rank-by: 'span' is an order of ranks that tfdist does not support"),
        ("mpirun -np 2 --mca rmaps_base_mapping_policy node --map-by slot -H a:2 x", "--map-by: this is given twice"),
        ("mpirun -np 2 -genv I_MPI_DEBUG 5 -hosts a,b x", "-ppn: Intel MPI, whose variables I_MPI_ are given, starts as many"),
        ("mpirun -np 2 --rankfile f -H a:2 x", "--rankfile: ranks are placed by a file"),
    ],
)  # fmt: skip
def test_bad_command_lines(command, message):
    with pytest.raises(ClusterError, match=message) as caught:
        tfdist.read(command)
    assert str(caught.value).isprintable()


def test_a_program_that_is_a_file_is_read_as_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mpirun").write_text("a slots=2\n")
    assert hosts("mpirun") == "a a"


def test_a_command_with_an_option_such_as_cpu_is_no_host_file():
    script = "# a comment\n\nhorovodrun -np 2 bash ./bind.sh --cpu=exclusive --max-slots=1 -- python3 main.py \\\n  --lr 1\n"
    assert hosts(script) == "localhost localhost"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("172.31.32.7 slots=2\n172.31.33.9 slots=1\n", "172.31.32.7 172.31.32.7 172.31.33.9"),
        ("\n# all of them\na slots=1 # fast\n\nb slots=2 max_slots=4\n", "a b b"),
        ("a\tslots = 2\nuser@b slots=1 max-slots=3\n", "a a b"),
        ("a:2\nb:1\n", "a a b"),
        ("a slots=1\nb slots=1\na slots=1\n", "a a b"),
        ("a slots=0\nb slots=1\n", "b"),
        ("a slots=1024\nb:1023\n", " ".join(["a"] * 1024 + ["b"] * 1023)),
    ],
)
def test_host_files(text, expected, tmp_path):
    path = tmp_path / "hostfile"
    path.write_text(text)
    assert hosts(path) == hosts(text) == expected
    assert hosts(f"horovodrun -np 1 --hostfile {path} x") == expected.split()[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a slots=2\nb c\n", ":2: 'c' is not allowed here"),
        ("a slots=2\nb slot=2\n", ":2: 'slot' is not known in a host file; did you mean slots"),
        ("a slots=two\n", ":1: 'two' is not a number of slots"),
        ("a slots=2 b\n", ":1: 'b' is not allowed here"),
        ("a slots=2\n-b slots=1\n", ":2: '-b' is neither a host name nor an address"),
        ("a slots=0\n", "has no slots"),
        ("a slots=999999\n", "more than 100000 slots"),
        ("a:2222\nb:2222\n", r':1: 2222 would be the number of processes on a; .* {"worker": \["a:2222"\]}, .*`a slots=2222`'),
        ("a:2\n[::1]:1024\n", r":2: 1024 would be the number of processes on ::1; .*`\[::1\] slots=1024`"),
    ],
)
def test_bad_host_files(text, message):
    with pytest.raises(ClusterError, match=message):
        tfdist.read(text)


# Ranks.

HOROVOD_TABLE = {
    # test_get_host_assignments, _elastic and _heterogeneous of horovod/horovod v0.28.1 test/single/test_run.py:
    # local_rank, local_size, cross_rank, cross_size by rank.
    ("worker-0:2,worker-1:2", 4): [(0, 2, 0, 2), (1, 2, 0, 2), (0, 2, 1, 2), (1, 2, 1, 2)],
    ("worker-0:2,worker-1:2", 2): [(0, 2, 0, 1), (1, 2, 0, 1)],
    ("worker-0:1,worker-1:2", 3): [(0, 1, 0, 2), (0, 2, 1, 2), (1, 2, 0, 1)],
    # What get_host_assignments of v0.28.1 returned.
    ("a:1,b:3,c:2", 6): [(0, 1, 0, 3), (0, 3, 1, 3), (1, 3, 0, 2), (2, 3, 0, 1), (0, 2, 2, 3), (1, 2, 1, 2)],
}


@pytest.mark.parametrize(("listed", "size"), HOROVOD_TABLE)
def test_ranks_are_those_of_horovod(listed, size, monkeypatch):
    cluster = tfdist.read(f"horovodrun -np {size} -H {listed} x")
    for rank, expected in enumerate(HOROVOD_TABLE[listed, size]):
        monkeypatch.setattr(process_cluster, "_strategy_clusters", [dataclasses.replace(cluster, task=("worker", rank))])
        assert (tfdist.rank(), tfdist.size()) == (rank, size)
        assert (tfdist.local_rank(), tfdist.local_size(), tfdist.cross_rank(), tfdist.cross_size()) == expected


def test_a_task_without_rank_has_no_cross_rank(monkeypatch):
    cluster = tfdist.read({"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]})
    monkeypatch.setattr(process_cluster, "_strategy_clusters", [dataclasses.replace(cluster, task=("ps", 0))])
    assert (tfdist.cross_rank(), tfdist.cross_size()) == (None, 0)


# The environment.


@pytest.mark.parametrize("system", environment._SYSTEMS)
def test_environments(system):
    rank, size, local_rank, local_size = system
    member = environment.from_environ({rank: "3", size: "4", local_rank: "1", local_size: "2"})
    assert isinstance(member, RankInfo)
    assert (member.rank, member.size, member.local_rank, member.local_size, member.store) == (3, 4, 1, 2, None)
    # All on one host: they can meet there.
    variables = {rank: "1", size: "2", local_rank: "1", local_size: "2"}
    here = [environment.from_environ(variables | {"PMIX_NAMESPACE": run}) for run in ("7", "8")]
    assert {(member.host, member.store.kind, member.rank) for member in here} == {("localhost", "file", 1)}
    assert here[0].run_id != here[1].run_id


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"HOROVOD_RANK": "1"}, "HOROVOD_SIZE: it is not set, but HOROVOD_RANK is"),
        ({"PMI_SIZE": "2"}, "PMI_RANK: it is not set, but PMI_SIZE is"),
        ({"HOROVOD_RANK": "2", "HOROVOD_SIZE": "2"}, "HOROVOD_RANK: '2' is not right; expected a whole number from 0 to 1"),
        ({"HOROVOD_RANK": "x", "HOROVOD_SIZE": "2"}, "'x' is not right; expected a whole number from"),
        ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "9" * 5000}, "is not right; expected a whole number from 1 to 100000"),
    ],
)
def test_bad_environments(environ, message):
    assert environment.recognizes(environ)
    with pytest.raises(ClusterError, match=message):
        environment.from_environ(environ)


def test_settings_of_horovod_are_no_environment():
    assert environment.recognizes({"HOROVOD_FUSION_THRESHOLD": "1", "OMPI_MCA_btl": "tcp"}) is None


# Writing.


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("STANDARD_1", "Horovod has no words for a chief; rank 0 is the chief"),
        ('{"worker": ["a:1", "b:1", "a:2"]}', "Horovod needs consecutive ranks on a host"),
        ("cluster { nworkers_per_group: 2 nworkers_per_procs: 2 server_worker_separate: false }", "one process for each slot"),
        (Cluster((Task("worker", 0),), strategy="mirrored"), "no words for strategy other than the usual"),
    ],
)
def test_what_horovod_has_no_words_for(source, message):
    with pytest.raises(ClusterError, match=message):
        write.write(tfdist.read(source))


# The real one.


def mpirun(tmp_path, program, size):
    path = tmp_path / "program.py"
    path.write_text(program)
    clean = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(size), sys.executable, str(path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, env=clean, cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]
    return sorted(line for line in result.stdout.split("\n") if line.startswith("rank"))


@needs("mpirun")
@pytest.mark.cluster
def test_a_real_mpirun_tells_every_process_its_rank_and_the_ranks_meet(tmp_path):
    program = """
import sys, tfdist
from tfdist import create_strategy, process_cluster
own = [tfdist.rank(), tfdist.size(), tfdist.local_rank(), tfdist.local_size()]
addresses = {task.address for task in process_cluster.current_cluster(create_strategy.rendezvous).tasks}
numbers = [*own, tfdist.cross_rank(), tfdist.cross_size(), len(addresses)]
sys.stdout.write(" ".join(["rank", *map(str, numbers)]) + "\\n")
"""
    assert mpirun(tmp_path, program, 3) == ["rank 0 3 0 3 0 1 3", "rank 1 3 1 3 0 1 3", "rank 2 3 2 3 0 1 3"]


@needs("mpirun")
@pytest.mark.cluster
@pytest.mark.release  # Ranks that have met train in test_rendezvous_training.py.
def test_a_program_trains_under_mpirun_without_any_description(tmp_path):
    program = """
import sys, numpy as np, tfdist
strategy = tfdist.strategy()
import keras
with strategy.scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile("sgd", "mse")
x = np.arange(16, dtype="float32").reshape(8, 2) / 16
model.fit(x, x.sum(1, keepdims=True) * 2, epochs=2, batch_size=4, shuffle=False, verbose=0)
weights = float(np.sum(model.get_weights()[0]))
sys.stdout.write(f"rank {tfdist.rank()} {tfdist.cross_rank()} {tfdist.cross_size()} {strategy.num_replicas_in_sync} {weights}\\n")
"""
    first, second = mpirun(tmp_path, program, 2)
    assert (first[:13], second[:13]) == ("rank 0 0 1 2 ", "rank 1 0 1 2 ")
    assert first[13:] == second[13:] != "2.0"


def test_host_files_with_ipv6_addresses(tmp_path):
    lines = "[2001:db8::1]:2\nuser@[::2] slots=1\n2001:db8::3 slots=1  # bare\n[fe80::1%eth0]\n"
    expected = "2001:db8::1 2001:db8::1 ::2 2001:db8::3 fe80::1%eth0"
    (tmp_path / "hosts").write_text(lines)
    assert hosts(lines) == hosts(str(tmp_path / "hosts")) == hosts(f"mpiexec.hydra -f {tmp_path / 'hosts'} x") == expected
    assert hosts("2001:db8::1:4 slots=2\n") == "2001:db8::1:4 2001:db8::1:4"
    for line, message in (
        ("2001:db8::1:4", r"may be an address, or 2001:db8::1 with 4 slots; write \[2001:db8::1\]:4 or 2001:db8::1:4 slots=1"),
        ("2001:db8::1::2 slots=2", r"is neither a host name nor an address; write IPv6 addresses in brackets, \[::1\]:2"),
        ("[a] slots=2", "is neither a host name nor an address"),
    ):
        (tmp_path / "hosts").write_text(f"{line}\n")
        with pytest.raises(ClusterError, match=message):
            tfdist.read(f"mpirun --hostfile {tmp_path / 'hosts'} x")


@pytest.mark.parametrize(
    ("options", "lines", "expected"),
    [
        ("-np 2", "a\nb\n", None),
        ("", "a slots=2\nb\n", None),
        ("-np 3", "a slots=2\nb\n", "a a b"),
        ("-np 4 --oversubscribe", "a slots=2\nb\n", None),
        ("", "a\na\nb\n", None),
        ("", "a\nb\na\nb\n", "a a b b"),
        ("", "a max_slots=3\nb slots=1\n", None),
        ("-N 1", "a\nb\n", "a b"),
        ("-np 2 --map-by node", "a\nb\n", "a b"),
    ],
)
def test_open_mpi_counts_the_cores_of_a_host_without_slots(tmp_path, options, lines, expected) -> None:
    (tmp_path / "hosts").write_text(lines)
    command = f"mpirun {options} --hostfile {tmp_path / 'hosts'} x"
    if expected is not None:
        assert hosts(command) == expected
    else:
        with pytest.raises(
            ClusterError, match=r"hosts: [ab] has no number of slots, and Open MPI starts as many ranks on it as"
        ):
            tfdist.read(command)


def test_horovodrun_takes_any_unique_beginning_of_a_name() -> None:
    assert tfdist.read("horovodrun --num-p 4 --slots 2 --verb python x.py").describe() == "4 workers"
    with pytest.raises(ClusterError, match="'--num-p' is not a known option of mpirun"):
        tfdist.read("mpirun --num-p 4 python x.py")
