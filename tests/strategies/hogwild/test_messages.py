"""How many messages a synchronization of hogwild takes, counted in the graphs that TensorFlow writes for debugging."""

import pytest
from by_hand import configs
from google.protobuf import text_format
from tensorflow.core.framework import graph_pb2

pytestmark = pytest.mark.cluster

PROGRAM = """
    import tfdist
    strategy = tfdist.strategy()
    import keras, numpy as np

    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(np.ones([64, 3], "float32"), np.ones([64, 2], "float32"), batch_size=4, verbose=0)
"""


@pytest.mark.parametrize("options", [{}, {"compression": "bf16"}], ids=str)
def test_a_synchronization_sends_each_ps_three_messages_and_receives_two(start, script, tmp_path, options):
    """To a ps: the numbers of the chief, the progress, and that the rounds of all ps have ended. Back: the round, the parameters."""
    graphs = tmp_path / "graphs"
    graphs.mkdir()
    hogwild = {"strategy": "hogwild", "sync_period": 4, "synchronization": {"outer": "nesterov"} | options}
    environments = configs(hogwild, chief=1, worker=2, ps=2)
    environments["worker", 1] |= {"TF_DUMP_GRAPH_PREFIX": str(graphs), "TF_CPP_VMODULE": "optimization_registry=4"}
    program = script(PROGRAM)
    jobs = {task: start(program, environment=environment) for task, environment in environments.items()}
    assert jobs["chief", 0].wait(120) == 0, jobs["chief", 0].output
    largest = max(
        graphs.glob("*from_bytes*_partition__job:worker*after_opt_group_post_partitioning*"), key=lambda f: f.stat().st_size
    )
    messages = {"_Send": [], "_Recv": []}
    for node in text_format.Parse(largest.read_text(), graph_pb2.GraphDef()).node:
        if node.op in messages:
            other = node.attr["recv_device" if node.op == "_Send" else "send_device"].s.decode()
            messages[node.op].append(other.partition("/task:")[2][0])
    assert sorted(messages["_Send"]) == list("000111")
    assert sorted(messages["_Recv"]) == list("0011")
