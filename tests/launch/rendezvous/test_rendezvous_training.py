"""Programs described by PyTorch's or Paddle's variables alone: the ranks exchange addresses, then train together."""

import pytest
from reserved import free_port
from tools import needs

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

TRAINS = """
    import tfdist
    with tfdist.strategy().scope():
        import keras, numpy as np
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(np.ones((64, 4)), np.ones((64, 1)), batch_size=32, epochs=2, verbose=0)
    loss = round(float(model.evaluate(np.ones((64, 4)), np.ones((64, 1)), verbose=0)), 6)
    # In one write: the ranks share a file.
    print(f"rank {tfdist.rank()} of {tfdist.size()} {type(tfdist.strategy()).__name__} loss {loss}\\n", end="", flush=True)
"""


def test_two_processes_with_pytorchs_variables_train_together(start, script):
    program = script(TRAINS)
    master = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    jobs = [start(program, environment={**master, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)]
    losses = set()
    for rank, job in enumerate(jobs):
        assert job.wait() == 0, job.output
        assert f"rank {rank} of 2 MultiWorkerMirrored loss " in job.output
        losses.add(job.output.rpartition("loss ")[2].strip())
    assert len(losses) == 1


@needs("torchrun")
def test_ranks_that_a_real_torchrun_restarts_meet_again(start, script):
    """Ranks that have met train, see above."""
    fails_once = """
    import os, sys, tfdist
    assert tfdist.cross_size() == 1  # A rendezvous.
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0": sys.exit(tfdist.rank())
    from tfdist import create_strategy, process_cluster
    addresses = [task.address for task in process_cluster.current_cluster(create_strategy.rendezvous).tasks]
    print(f"rank {tfdist.rank()} of {tfdist.size()} of {addresses}\\n", end="", flush=True)
    """
    program = script(fails_once)
    job = start("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1", program, fresh=True)
    assert job.wait() == 0, job.output
    ranks = sorted(line.partition(" of [")[::2] for line in job.output.splitlines() if line.startswith("rank "))
    assert [who for who, _ in ranks] == ["rank 0 of 2", "rank 1 of 2"], job.output
    assert ranks[0][1] == ranks[1][1] and ranks[0][1].count(":") == 2


def test_trainers_without_addresses_train_with_the_pserver_that_served_their_store(start, script):
    program = script(TRAINS)
    paddle = {"PADDLE_PSERVERS_IP_PORT_LIST": f"127.0.0.1:{free_port()}", "PADDLE_TRAINERS_NUM": "2", "POD_IP": "127.0.0.1"}
    port = paddle["PADDLE_PSERVERS_IP_PORT_LIST"].rpartition(":")[2]
    server = start(program, environment={**paddle, "TRAINING_ROLE": "PSERVER", "PADDLE_PORT": port})
    trainers = [
        start(program, environment={**paddle, "TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": str(i)}) for i in range(2)
    ]
    assert trainers[0].wait(200) == 0, trainers[0].output + server.output
    assert "rank 0 of 1 ParameterServer loss " in trainers[0].output
    assert trainers[1].wait(60) == 0, trainers[1].output
    assert server.wait(60) == 0, server.output
