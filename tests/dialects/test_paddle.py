"""Paddle's flags, variables and launcher: pservers are ps, trainers are workers."""

import pytest

from tfdist import Cluster, ClusterError
from tfdist.dialects import description
from tfdist.dialects.paddle import environment
from tfdist.rank_info import RankInfo, Store

PS_2 = {
    "PADDLE_PSERVERS_IP_PORT_LIST": "10.0.0.1:6000,10.0.0.2:6000",
    "PADDLE_TRAINER_ENDPOINTS": "10.0.0.1:6001,10.0.0.2:6001,10.0.0.2:6002",
    "PADDLE_TRAINERS_NUM": "3",
    "TRAINING_ROLE": "TRAINER",
    "PADDLE_TRAINER_ID": "1",
    "POD_IP": "10.0.0.2",
    "PADDLE_PORT": "6000",
}


def addresses(cluster):
    return [f"{task.name} {task.address}" for task in cluster.tasks]


@pytest.mark.parametrize("spelling", ["num_gradient_servers", "num_of_gradient_servers"])
def test_the_comparison_of_frameworks_command_and_call_are_read_in_either_spelling(spelling):
    server = description(f"./pserver --use_gpu=False --port=7164 --ports_num=1 --{spelling}=2")
    trainer = description({"use_gpu": False, "port": 7164, "ports_num": 1, "is_local": False, spelling: 2})
    for me in (server, trainer):
        assert isinstance(me, RankInfo)
        assert (me.size, me.store) == (2, Store("tcp", "127.0.0.1", 7164))
        assert [f"{task.name} {task.address}" for task in me.servers] == ["ps:0 127.0.0.1:7164"]
    assert (server.task, trainer.task) == (("ps", 0), ("worker", 0))


def test_trainers_meet_at_the_first_pserver_and_run_asynchronously():
    me = description(
        "paddle train --config=trainer_config.py --pservers=10.0.0.1,10.0.0.2 --trainer_id=1 --num_gradient_servers=3 "
        "--trainer_count=2 --local=0 --use_gpu=1 --save_dir=out"
    )
    assert (me.size, me.rank, me.slots, me.gpus, me.store) == (3, 1, 2, 2, Store("tcp", "10.0.0.1", 20134))
    outline = me.outline()
    assert outline.describe() == "3 workers, 2 ps" and outline.task == ("worker", 1)
    assert outline.worker_groups == ((0, 1), (2, 3), (4, 5))


def test_the_mode_sync_makes_one_worker_group():
    outline = description("paddle train --pservers=h --num_gradient_servers=3 --mode=sync").outline()
    assert outline.worker_groups == ((0, 1, 2),)


def test_a_pserver_finds_itself_among_the_pservers():
    me = description("paddle pserver --pservers=192.0.2.77,127.0.0.1 --num_gradient_servers=1")
    assert me.task == ("ps", 1) and me.rank is None
    with pytest.raises(
        ClusterError, match="a pserver is the one on its own machine, and none of them is on this one; set POD_IP"
    ):
        description("paddle pserver --pservers=192.0.2.77,192.0.2.78")


def test_a_trainer_alone_is_one_task():
    cluster = description("paddle train --config=c.py --trainer_count=4")
    assert isinstance(cluster, Cluster)
    assert [(task.name, task.slots) for task in cluster.tasks] == [("worker:0", 4)]


def test_a_call_of_paddle_init_is_read_as_its_arguments():
    text = "paddle.init(\n    use_gpu=False, port=7164, ports_num=1, is_local=False, num_of_gradient_servers=2, trainer_id=1)\n"
    values = {"use_gpu": False, "port": 7164, "ports_num": 1, "is_local": False, "num_gradient_servers": 2, "trainer_id": 1}
    for given in (text, f"arguments = {text}".replace("paddle.init", "dict")):
        read, expected = description(given), description(values)
        assert isinstance(read, RankInfo) and isinstance(expected, RankInfo)
        assert (read.size, read.rank, read.store, read.servers) == (2, 1, expected.store, expected.servers)
    for bad in (
        "paddle.init(2, port=1)",
        "paddle.init(port=os.environ['PORT'])",
        "paddle.init(port=1, **values)",
        "paddle.init(port=1, port=2)",
    ):
        with pytest.raises(ClusterError):
            description(bad)


def test_paddle_init_variables_are_the_flags(monkeypatch):
    environ = {
        "PADDLE_INIT_PORT": "7164",
        "PADDLE_INIT_PSERVERS": "10.0.0.1,10.0.0.2",
        "PADDLE_INIT_NUM_GRADIENT_SERVERS": "2",
        "PADDLE_INIT_TRAINER_ID": "1",
        "PADDLE_INIT_USE_GPU": "0",
        "PADDLE_INIT_TRAINER_COUNT": "1",
    }
    assert environment.recognizes(environ) == "PADDLE_INIT_PSERVERS"
    assert environment.from_environ(environ).task == ("worker", 1)
    server = environment.from_environ(
        {**environ, "TRAINING_ROLE": "PSERVER", "POD_IP": "10.0.0.2", "TFDIST_PADDLE_MODE": "sync"}
    )
    assert server.task == ("ps", 1) and server.synchronous
    assert environment.recognizes({"PADDLE_PORT": "1", "PADDLE_TRAINER_ENDPOINTS": " "}) is None


def test_paddle_2_with_servers_gives_every_address():
    cluster = environment.from_environ(PS_2)
    assert isinstance(cluster, Cluster)
    assert addresses(cluster) == [
        "worker:0 10.0.0.1:6001",
        "worker:1 10.0.0.2:6001",
        "worker:2 10.0.0.2:6002",
        "ps:0 10.0.0.1:6000",
        "ps:1 10.0.0.2:6000",
    ]
    assert cluster.task == ("worker", 1) and len(cluster.worker_groups) == 3
    assert environment.from_environ({**PS_2, "TRAINING_ROLE": "PSERVER"}).task == ("ps", 1)
    assert environment.from_environ({**PS_2, "TFDIST_PADDLE_MODE": "sync"}).worker_groups == ((0, 1, 2),)


def test_paddle_2_without_the_trainers_addresses_lets_them_meet():
    me = environment.from_environ({**PS_2, "PADDLE_TRAINER_ENDPOINTS": ""})
    assert isinstance(me, RankInfo)
    assert (me.size, me.rank, me.host, me.store) == (3, 1, "10.0.0.2", Store("tcp", "10.0.0.1", 6000))


def test_the_variables_of_fluid_name_the_hosts_of_pservers_with_one_port():
    fluid = {"PADDLE_PSERVERS": "10.0.0.1,10.0.0.2", "PADDLE_TRAINERS_NUM": "3", "POD_IP": "10.0.0.2"}
    for port, variables in ((6174, {}), (7000, {"PADDLE_PORT": "7000"})):
        me = environment.from_environ({**fluid, **variables, "TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": "1"})
        assert (me.size, me.rank, me.store) == (3, 1, Store("tcp", "10.0.0.1", port))
        assert [task.address for task in me.servers] == [f"10.0.0.1:{port}", f"10.0.0.2:{port}"]
        assert environment.from_environ({**fluid, **variables, "TRAINING_ROLE": "PSERVER"}).task == ("ps", 1)
    with pytest.raises(ClusterError, match=r"POD_IP: .10\.0\.0\.3:6174., with PADDLE_PORT, is none of PADDLE_PSERVERS$"):
        environment.from_environ({**fluid, "POD_IP": "10.0.0.3", "TRAINING_ROLE": "PSERVER"})
    assert environment.from_environ({**fluid, "PADDLE_TRAINING_ROLE": "PSERVER"}).task == ("ps", 1)
    # Its first programs took the older names, and TRAINERS.
    first = {"PADDLE_INIT_PSERVERS": "10.0.0.1,10.0.0.2", "TRAINERS": "3", "PADDLE_INIT_TRAINER_ID": "2"}
    me = environment.from_environ({**first, "TRAINING_ROLE": "TRAINER"})
    assert (me.size, me.rank, me.store) == (3, 2, Store("tcp", "10.0.0.1", 6174))
    assert environment.from_environ({**first, "PADDLE_INIT_PORT": "7164"}).store.port == 7164
    assert environment.from_environ({**first, "PADDLE_INIT_NUM_GRADIENT_SERVERS": "4"}).size == 4


def test_paddle_2_without_servers_trains_together():
    environ = {"PADDLE_TRAINER_ENDPOINTS": "a:1,b:1", "PADDLE_TRAINER_ID": "1", "PADDLE_CURRENT_ENDPOINT": "b:1"}
    cluster = environment.from_environ(environ)
    assert addresses(cluster) == ["worker:0 a:1", "worker:1 b:1"]
    assert cluster.worker_groups == ((0, 1),) and cluster.task == ("worker", 1)


def test_a_number_of_trainers_that_contradicts_their_addresses_is_refused():
    environ = {"PADDLE_TRAINER_ENDPOINTS": "a:1,b:1", "PADDLE_TRAINER_ID": "1"}
    assert environment.from_environ({**environ, "PADDLE_TRAINERS_NUM": "2"}).describe() == "2 workers"
    with pytest.raises(ClusterError, match="PADDLE_TRAINERS_NUM: it is 3, and PADDLE_TRAINER_ENDPOINTS names 2"):
        environment.from_environ({**environ, "PADDLE_TRAINERS_NUM": "3"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"TRAINING_ROLE": ""}, "TRAINING_ROLE: it is missing; expected TRAINER or PSERVER"),
        ({"TRAINING_ROLE": "TRAINR"}, "TRAINING_ROLE: 'TRAINR'; expected TRAINER or PSERVER; did you mean TRAINER"),
        ({"TRAINING_ROLE": "HETER_TRAINER"}, "heterogeneous trainers are not supported"),
        ({"PADDLE_TRAINERS_NUM": "2"}, "PADDLE_TRAINERS_NUM: it is 2, and PADDLE_TRAINER_ENDPOINTS names 3"),
        ({"PADDLE_TRAINER_ID": "3"}, "PADDLE_TRAINER_ID: '3' is not right; expected a whole number from 0 to 2"),
        ({"PADDLE_TRAINER_ID": ""}, "PADDLE_TRAINER_ID: it is missing"),
        (
            {"TRAINING_ROLE": "PSERVER", "PADDLE_PORT": "1"},
            "POD_IP: '10.0.0.2:1', with PADDLE_PORT, is none of PADDLE_PSERVERS",
        ),
        ({"PADDLE_PSERVERS_IP_PORT_LIST": "10.0.0.1"}, "PADDLE_PSERVERS_IP_PORT_LIST: '10.0.0.1' is not an address"),
        ({"PADDLE_PSERVERS_IP_PORT_LIST": "a:1,a:1"}, "PADDLE_PSERVERS_IP_PORT_LIST: a:1 is given twice"),
        ({"PADDLE_PSERVERS_IP_PORT_LIST": "a:1,A:1"}, "PADDLE_PSERVERS_IP_PORT_LIST: A:1 is given twice"),
        ({"TFDIST_PADDLE_MODE": "half"}, "TFDIST_PADDLE_MODE: 'half' is not right; expected sync or async"),
    ],
)
def test_variables_that_cannot_be_are_named(change, message):
    with pytest.raises(ClusterError, match=message):
        environment.from_environ({**PS_2, **change})


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python -m paddle.distributed.launch train.py", ["worker:0 localhost:27182"]),
        ("python -m paddle.distributed.launch --ips=a,b --gpus 0,1 train.py", ["a:6070", "a:6071", "b:6070", "b:6071"]),
        ("CUDA_VISIBLE_DEVICES=2,3 fleetrun --ips=a,b train.py", ["a:6070", "a:6071", "b:6070", "b:6071"]),
        ("env CUDA_VISIBLE_DEVICES=2,3 fleetrun --ips=a --gpus 1 t.py", ["a:6070"]),
        ("fleetrun --servers=a:1,b:2 --workers=a:3,b:4 train.py", ["a:3", "b:4", "a:1", "b:2"]),
        ("fleetrun --servers=a:6170,b:6171 --workers=a,b t.py", ["a:6172", "b:6173", "a:6170", "b:6171"]),
        ("fleetrun --servers=a:1 --workers=a:3,b t.py", ["a:6171", "b:6172", "a:1"]),
        ("fleetrun --server_n=1 --worker_n=2 --run ps train.py", ["localhost:27183", "localhost:27184", "localhost:27182"]),
        ("fleetrun --server_num=1 --worker_num=2 train.py", ["localhost:27183", "localhost:27184", "localhost:27182"]),
    ],
)
def test_the_launchers_command_lines(command, expected):
    assert [address.split()[-1] for address in addresses(description(command).addressed())] == [e.split()[-1] for e in expected]


def test_the_launcher_on_several_nodes_meets_at_the_master():
    me = description(
        "python -m paddle.distributed.launch --nnodes 2 --master 10.0.0.1:8090 --rank 1 --nproc_per_node 2 train.py"
    )
    assert (me.size, me.rank, me.local_size, me.store, me.run_id) == (4, 2, 2, Store("tcp", "10.0.0.1", 8090), "default")


@pytest.mark.parametrize("more", ["", "--rank $SLURM_NODEID "])
def test_a_batch_script_leaves_the_ranks_to_paddle(more):
    """Its numbers still describe the workers. They were refused for their addresses."""
    command = f"srun python -m paddle.distributed.launch --nnodes 2 --master $head:8090 {more}--gpus 0,1 train.py"
    cluster = description(f"#!/bin/bash\n#SBATCH -N 2\nhead=$(hostname)\n{command}\n")
    assert [(task.host, task.gpus) for task in cluster.tasks] == [(None, 1)] * 4


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ("python -m paddle.distributed.launch --nnodes 2 train.py", "--master: 2 nodes need a place to meet"),
        (
            "python -m paddle.distributed.launch --nnodes 2 --master etcd://a:1 train.py",
            "--master: 2 nodes need a place to meet",
        ),
        (
            "python -m paddle.distributed.launch --nnodes 2 --master a:1 train.py",
            "--rank: without it Paddle gives out the ranks",
        ),
        ("python -m paddle.distributed.launch --nnodes 2 --master a:1 --rank 2 t.py", "--rank: '2' is not right"),
        ("python -m paddle.distributed.launch --nnodes 1:4 train.py", "--nnodes: '1:4' lets the number of nodes change"),
        ("fleetrun --run_mode ps-heter train.py", "--run_mode: 'ps-heter' is not supported"),
        ("fleetrun --servers=a:1 --workers=a:2 --heter_workers=a:3 t.py", "--heter_workers: heterogeneous trainers are not"),
        ("fleetrun --servers=a:1 train.py", "--trainers: the addresses of all servers and all trainers are needed"),
        ("fleetrun --server_nums=1 train.py", "there is no such option; did you mean server_num"),
        ("fleetrun --ips=a --start_port=65535 --nproc_per_node=2 t.py", "--start_port: 65535 leaves too few ports"),
        ("paddle version", "'version' starts no training; expected paddle train or paddle pserver"),
        ("paddle train --pservers=h --trainer_id=2 --num_gradient_servers=2", "--trainer_id: '2' is not right"),
        ("paddle train --local=1 --num_gradient_servers=2", "--local: a local job has one trainer and no pserver"),
        (
            "paddle train --num_gradient_server=2",
            "--num_gradient_server=2: there is no such option; did you mean num_gradient_s",
        ),
        ({"num_gradient_servers": 2, "num_of_gradient_servers": 2}, "it is given twice; keep num_gradient_servers"),
        (
            {"num_gradient_servers": 2, "trainer_ids": 1},
            "'trainer_ids' is no argument that concerns the cluster; did you mean train",
        ),
    ],
)
def test_descriptions_that_cannot_be_are_refused(described, message):
    with pytest.raises(ClusterError, match=message):
        description(described)
