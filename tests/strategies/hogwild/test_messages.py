"""How many messages a synchronization of hogwild takes, counted in the graphs that TensorFlow writes for debugging."""

import json

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
    environments = configs(chief=1, worker=2, ps=2)
    for (job, index), environment in environments.items():
        tfdist = {"strategy": "hogwild", "sync_period": 4, "synchronization": {"outer": "nesterov"} | options}
        environment["TF_CONFIG"] = json.dumps(json.loads(environment["TF_CONFIG"]) | {"tfdist": tfdist})
        if (job, index) == ("worker", 1):
            environment |= {"TF_DUMP_GRAPH_PREFIX": str(tmp_path / "graphs"), "TF_CPP_VMODULE": "optimization_registry=4"}
    (tmp_path / "graphs").mkdir()
    program = script(PROGRAM)
    jobs = {task: start(program, environment=environment) for task, environment in environments.items()}
    assert jobs["chief", 0].wait(120) == 0, jobs["chief", 0].output
    found = (tmp_path / "graphs").glob("*from_bytes*_partition__job:worker*after_opt_group_post_partitioning*")
    graphs = [text_format.Parse(file.read_text(), graph_pb2.GraphDef()) for file in found]
    messages = {"_Send": [], "_Recv": []}
    for node in max(graphs, key=lambda graph: len(graph.node)).node:
        if node.op in messages:
            other = node.attr["recv_device" if node.op == "_Send" else "send_device"].s.decode()
            messages[node.op].append(other.partition("/task:")[2][0])
    assert sorted(messages["_Send"]) == list("000111")
    assert sorted(messages["_Recv"]) == list("0011")
