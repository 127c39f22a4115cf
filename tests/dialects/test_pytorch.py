"""PyTorch's variables and torchrun's command lines, as they become clusters and memberships."""

import os

import pytest

from tfdist import Cluster, ClusterError, machine
from tfdist.dialects import description, environment, pytorch
from tfdist.rank_info import RankInfo, Store

ENV = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
TORCHRUN = {
    **ENV,
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "TORCHELASTIC_RUN_ID": "job7",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in os.environ:
        if name.startswith("PET_") or name == "CUDA_VISIBLE_DEVICES":
            monkeypatch.delenv(name)


def test_env_variables_are_a_rank_that_meets_the_others_at_the_master():
    me = pytorch.from_environ(ENV)
    assert isinstance(me, RankInfo)
    assert (me.size, me.rank, me.store, me.run_id) == (4, 3, Store("tcp", "node0", 29500), "")
    assert me.task == ("worker", 3)


def test_torchruns_variables_say_more_and_its_agent_has_the_port():
    me = pytorch.from_environ(TORCHRUN)
    assert (me.local_rank, me.local_size, me.run_id) == (1, 2, "job7#2")
    assert me.store == Store("tcp", "node0", 29501, ports=8)
    high = pytorch.from_environ({**TORCHRUN, "MASTER_PORT": "65530"}).store
    assert high.port == 65522 and high.port + high.ports <= 65530


def test_a_pytorchjob_without_torchrun_is_one_rank_per_node_with_slots():
    pod = {**ENV, "RANK": "1", "WORLD_SIZE": "8", "PET_NODE_RANK": "1", "PET_NNODES": "2", "PET_NPROC_PER_NODE": "4"}
    me = pytorch.from_environ(pod)
    assert (me.size, me.rank, me.slots) == (2, 1, 4)
    me = pytorch.from_environ({**pod, "RANK": "5", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"})
    assert (me.size, me.rank, me.slots) == (8, 5, 1)


POD = {"PET_NNODES": "3", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "job-node-0-0.job", "PET_MASTER_PORT": "29400"}


@pytest.mark.parametrize(("processes", "slots"), [("4", 4), ("auto", 1), ("gpu", 1), ("", 1)])
def test_a_trainjob_without_torchrun_is_one_rank_per_node_with_slots(processes, slots):
    me = pytorch.from_environ({**POD, "PET_NPROC_PER_NODE": processes})
    assert (me.size, me.rank, me.slots) == (3, 1, slots)
    assert me.store == Store("tcp", "job-node-0-0.job", 29400)
    assert me.source.name == "PET_MASTER_ADDR"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"PET_NODE_RANK": "3"}, "PET_NODE_RANK: '3' is not right; expected a whole number from 0 to 2"),
        ({"PET_NNODES": "1:4"}, "PET_NNODES: '1:4' is not right"),
        ({"PET_NPROC_PER_NODE": "99999"}, "PET_NPROC_PER_NODE: '99999' is not right; expected a whole number from 1 to 33333"),
        ({"PET_MASTER_ADDR": "a b"}, "PET_MASTER_ADDR: 'a b' is neither a host name nor an address"),
    ],
)
def test_variables_of_a_pod_that_cannot_be_are_named(change, message):
    with pytest.raises(ClusterError, match=f"^{message}"):
        pytorch.from_environ({**POD, **change})


@pytest.mark.parametrize(
    ("environ", "variable"),
    [
        (ENV, "MASTER_ADDR"),
        ({"MASTER_PORT": "1", "RANK": "0"}, "MASTER_PORT"),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "1"}, None),
        ({"RANK": "0", "WORLD_SIZE": "2"}, None),
        ({"MASTER_ADDR": "a", "WORLD_SIZE": "2"}, "MASTER_ADDR"),
        ({"MASTER_ADDR": "a", "WORLD_SIZE": "2", "SLURM_PROCID": "0"}, "MASTER_ADDR"),  # The shell of sbatch has no step.
        ({"MASTER_ADDR": "a", "WORLD_SIZE": "2", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}, None),
        ({"MASTER_ADDR": "a", "WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}, None),
        ({"MASTER_ADDR": "a", "WORLD_SIZE": "2", "PMI_RANK": "0"}, None),
        (ENV | {"OMPI_COMM_WORLD_RANK": "0"}, "MASTER_ADDR"),
        (POD, "PET_MASTER_ADDR"),
        (POD | {"PET_NODE_RANK": ""}, None),
        (POD | {"OMPI_COMM_WORLD_RANK": "0"}, None),
        ({}, None),
    ],
)
def test_which_variables_give_it_away(environ, variable):
    assert pytorch.recognizes(environ) == variable


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"MASTER_PORT": ""}, "MASTER_PORT: the variable is not set, and others of PyTorch's env:// are"),
        ({"RANK": "4"}, "RANK: 4 is too high for 4 processes; .* WORLD_SIZE counts processes, not nodes"),
        ({"RANK": "-1"}, "RANK: '-1' is not right; expected a whole number from 0"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE: '0' is not right; expected a whole number from 1"),
        ({"WORLD_SIZE": "9" * 5000}, "WORLD_SIZE: '9+\\.\\.\\. is not right"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT: '65536' is not right; expected a whole number from 1 to 65535"),
        ({"MASTER_ADDR": "a b"}, "MASTER_ADDR: 'a b' is neither a host name nor an address"),
        ({"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "2"}, "LOCAL_RANK: '2' is not right; expected a whole number from 0 to 1"),
        ({"RANK": "0", "LOCAL_RANK": "1"}, "LOCAL_RANK: 1 is higher than RANK, 0"),
        ({"PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "3"}, "WORLD_SIZE: 4 is no multiple of PET_NPROC_PER_NODE, 3"),
    ],
)
def test_variables_that_cannot_be_are_named(change, message):
    with pytest.raises(ClusterError, match=f"^{message}"):
        pytorch.from_environ({**ENV, **change})


@pytest.mark.parametrize(
    ("command", "workers"),
    [
        ("torchrun train.py", 1),
        ("torchrun --standalone --nnodes=3 --nproc-per-node=4 train.py --nnodes 9", 4),
        ("torchrun --nproc_per_node 2 --nproc-per-node 3 -m package.train", 3),
        ("torchrun -r 3 -t3 --rdzv-backend=c10d --rdzv-endpoint=localhost:0 --nnodes=1 --nproc-per-node=2 train.py", 2),
        ("python -m torch.distributed.run --nnodes 1:1 --nproc-per-node 5 train.py", 5),
        ("OMP_NUM_THREADS=1 python3.11 -m torch.distributed.launch --use-env --nproc_per_node=2 train.py", 2),
        ("torchrun --nproc-per-node cpu train.py", os.cpu_count()),
        ("torchrun --nproc-per 2 --nnode=1 --rdzv_b c10d --stand --mod package.train --nnodes 9", 2),
        ("torchrun --nproc=3 train.py", 3),
    ],
)
def test_a_command_line_for_one_host_is_a_cluster_of_workers_here(command, workers):
    cluster = description(command)
    assert isinstance(cluster, Cluster)
    assert [task.name for task in cluster.tasks] == [f"worker:{rank}" for rank in range(workers)]
    assert cluster.worker_groups == (tuple(range(workers)),)


def test_a_command_line_for_several_hosts_is_the_first_rank_of_this_node():
    me = description(
        "torchrun --nnodes=3 --node_rank 2 --nproc-per-node=4 --master-addr=[::1] --rdzv-id=7 --local-addr b train.py"
    )
    assert (me.size, me.rank, me.local_size, me.run_id, me.host) == (12, 8, 4, "7", "b")
    assert me.store == Store("tcp", "::1", 29500)
    me = description("torchrun --nnodes 2 --rdzv-endpoint=node0:1234 train.py")
    assert me.store == Store("tcp", "node0", 1234)
    # A page of Hugging Face on DeepSpeed has this line.
    me = description(
        "torchrun --nproc_per_node=8 --nnode=2 --node_rank=1 --master_addr=node0 --master_port=1234 train.py --deepspeed x"
    )
    assert (me.size, me.rank) == (16, 8)
    assert me.store == Store("tcp", "node0", 1234)


def test_pet_variables_count_below_the_command_line(monkeypatch):
    monkeypatch.setenv("PET_NPROC_PER_NODE", "3")
    monkeypatch.setenv("PET_STANDALONE", "1")
    assert len(description("torchrun --nnodes 2 train.py").tasks) == 3
    assert len(description("torchrun --nproc-per-node=2 train.py").tasks) == 2


def test_gpus_are_counted_where_they_are_asked_for(monkeypatch):
    monkeypatch.setattr(machine, "installed", lambda: machine.Installed(("0", "1", "2")))
    assert len(description("torchrun --nproc-per-node gpu train.py").tasks) == 3
    assert len(description("torchrun --nproc-per-node auto train.py").tasks) == 3
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    assert len(description("torchrun --nproc-per-node gpu train.py").tasks) == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,10,0")  # For CUDA an id that does not exist ends the list.
    assert len(description("torchrun --nproc-per-node gpu train.py").tasks) == 1
    # A command may list GPUs of another machine.
    for count in ("gpu", "auto"):
        assert len(description(f"CUDA_VISIBLE_DEVICES=4,5 torchrun --nproc-per-node {count} train.py").tasks) == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ClusterError, match="gpu asks for one process per GPU, and this machine has none"):
        description("torchrun --nproc-per-node gpu train.py")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("torchrun --nproc-per-noed 2 t.py", "--nproc-per-noed: there is no such option; did you mean nproc_per_node"),
        (
            "torchrun --rdzv 2 t.py",
            "--rdzv: this may be rdzv_backend or rdzv_conf or rdzv_endpoint or rdzv_id; write the whole",
        ),
        ("torchrun -nnode 2 t.py", "-nnode: there is no such option"),
        ("torchrun --nnodes", "--nnodes: this option has no value"),
        ("torchrun --nnodes 1:4 t.py", "--nnodes: '1:4' lets the number of nodes change"),
        ("torchrun --nnodes 4:1 t.py", "--nnodes: '4:1' lets the number of nodes change"),
        ("torchrun --nnodes two t.py", "--nnodes: 'two' is not right; expected a whole number from 1"),
        ("torchrun --nnodes 2 --node-rank 2 t.py", "--node_rank: '2' is not right; expected a whole number from 0 to 1"),
        ("torchrun --nnodes 2 --rdzv-backend c10d t.py", "--rdzv_backend: 'c10d' gives out the ranks of 2 nodes only when it"),
        ("torchrun --nnodes 2 --master-port 0 t.py", "--master_port: '0' is not right"),
        ("torchrun --nnodes 2 --rdzv-endpoint a:b t.py", "--rdzv_endpoint: 'a:b' is not an address; expected host:port"),
        ("torchrun --nproc-per-node xpu t.py", "--nproc_per_node: xpu counts Intel's devices"),
        ("torchrun --nnodes 1000 --nproc-per-node 1000 t.py", "--nnodes: that makes 1000000 processes"),
        ("torchrun --standalone=perhaps t.py", "--standalone: 'perhaps' is not right; expected true or false"),
    ],
)
def test_options_that_cannot_be_are_named(command, message):
    with pytest.raises(ClusterError, match=message):
        description(command)


def test_a_task_that_tfdist_starts_within_such_an_environment_has_its_tf_config_alone():
    config = '{"cluster": {"chief": ["a:1"], "worker": ["a:2"], "ps": ["a:3"]}, "task": {"type": "worker", "index": 0}}'
    ranks = {**ENV, "WORLD_SIZE": "8"}
    with pytest.raises(ClusterError, match="unset the variables of the one that does not belong to this run"):
        environment.find({**ranks, "TF_CONFIG": config})
    assert environment.find({**ranks, "TF_CONFIG": config, "TFDIST_STARTED": "1"}).task == ("worker", 0)
