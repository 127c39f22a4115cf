"""Whatever happens to a command line, to flags or to variables, reading them gives a Cluster, a Membership or one line of error.

`TFDIST_MUTATIONS` sets how many damaged descriptions are read.
"""

import os
import random

import pytest
from test_mutations import MUTATORS

from tfdist import Cluster, ClusterError
from tfdist.dialects import caffe2, description, paddle, pytorch
from tfdist.errors import Source
from tfdist.membership import Membership

COUNT = int(os.environ.get("TFDIST_MUTATIONS", "6000")) // 2

COMMANDS = (
    (
        pytorch,
        "torchrun --nnodes=2 --node_rank 1 --nproc-per-node=4 --master-addr=10.0.0.1 --master_port 1234 -r 3 train.py --x",
    ),
    (pytorch, "torch.distributed.run --standalone --nproc-per-node 4 --rdzv-id=7 -m package.train"),
    (
        caffe2,
        "resnet50_trainer.py --train_data null --num_shards 2 --shard_id 1 --run_id r --redis_host h --redis_port 6379 --gpus 0,1",
    ),
    (paddle, "paddle train --pservers=10.0.0.1,10.0.0.2 --trainer_id=1 --num_of_gradient_servers=3 --local=0 --use_gpu=1"),
    (paddle, "pserver --use_gpu=False --port=7164 --ports_num=1 --num_gradient_servers=2"),
    (paddle, "paddle.distributed.launch --ips=a,b --gpus 0,1 --start_port=6070 train.py"),
    (paddle, "fleetrun --servers=a:1,b:2 --trainers=a:3,b:4 train.py"),
    (paddle, "fleetrun --nnodes 2 --master 10.0.0.1:8090 --rank 1 --nproc_per_node 2 train.py"),
)
ENVIRONMENTS = (
    (pytorch, "RANK=3 WORLD_SIZE=4 MASTER_ADDR=node0 MASTER_PORT=29500 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=a"),
    (pytorch, "RANK=1 WORLD_SIZE=8 MASTER_ADDR=j-master-0 MASTER_PORT=23456 PET_NODE_RANK=1 PET_NPROC_PER_NODE=4"),
    (paddle, "PADDLE_PSERVERS_IP_PORT_LIST=a:1,b:1 PADDLE_TRAINERS_NUM=2 TRAINING_ROLE=PSERVER POD_IP=b PADDLE_PORT=1"),
    (paddle, "PADDLE_PSERVERS_IP_PORT_LIST=a:1 PADDLE_TRAINER_ENDPOINTS=a:2,b:2 PADDLE_TRAINER_ID=1 TRAINING_ROLE=TRAINER"),
    (paddle, "PADDLE_TRAINER_ENDPOINTS=a:1,b:1 PADDLE_TRAINER_ID=1 PADDLE_CURRENT_ENDPOINT=b:1"),
    (paddle, "PADDLE_INIT_PSERVERS=a,b PADDLE_INIT_NUM_GRADIENT_SERVERS=2 PADDLE_INIT_TRAINER_ID=1 PADDLE_INIT_PORT=7164"),
)
TEXTS = (
    "num_shards: 4\nshard_id: 2\nrun_id: r1\nfile_store_path: /shared\nnum_gpus: 2\ngpus: [0, 1]\n",
    '{"num_shards": 2, "shard_id": 1, "redis_host": "h", "redis_port": 1, "redis_password": "x"}',
    '{"use_gpu": false, "port": 7164, "ports_num": 1, "is_local": false, "num_of_gradient_servers": 2, "pservers": ["a", "b"]}',
)


@pytest.fixture(autouse=True)
def no_nodes_of_this_machine(monkeypatch):
    monkeypatch.delenv("TFDIST_REDIS_PASSWORD", raising=False)


def mutated(text: str, rng: random.Random) -> str:
    content = text.encode()
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        content = rng.choice(MUTATORS)(content, rng) or b" "
    return content.decode("utf-8", "replace")


def check(seed, read) -> bool:
    """Whether it was read; it is refused in one line otherwise."""
    try:
        described = read()
    except ClusterError as error:
        message = str(error)
        assert message and message.isprintable() and len(message) < 1500, f"seed {seed}: {message!r}"
        return False
    except BaseException as error:
        raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
    if isinstance(described, Membership):
        assert 0 <= (described.rank or 0) < described.size
        described = described.outline() if described.size < 1000 else described
    assert isinstance(described, Cluster | Membership)
    return True


@pytest.mark.timeout(600)
def test_damaged_command_lines():
    read = 0
    for seed in range(COUNT):
        rng = random.Random(seed)
        dialect, line = rng.choice(COMMANDS)
        words = [line.split()[0], *mutated(line.partition(" ")[2], rng).split()]
        read += check(seed, lambda: dialect.parse_command(words, Source(dialect.NAME, "the command line")))  # noqa: B023
    assert COUNT * 0.1 < read < COUNT * 0.95


@pytest.mark.timeout(600)
def test_damaged_variables():
    read = 0
    for seed in range(COUNT):
        rng = random.Random(seed)
        dialect, line = rng.choice(ENVIRONMENTS)
        environ = dict(word.partition("=")[::2] for word in mutated(line, rng).split(" "))
        if dialect.recognises(environ):
            read += check(seed, lambda: dialect.from_environ(environ))  # noqa: B023
    assert COUNT * 0.1 < read < COUNT * 0.95


@pytest.mark.timeout(600)
def test_damaged_flags_in_files():
    read = 0
    for seed in range(COUNT):
        rng = random.Random(seed)
        text = mutated(rng.choice(TEXTS), rng)
        read += check(seed, lambda: description(text.encode()))  # noqa: B023
    assert COUNT * 0.1 < read < COUNT * 0.95
