"""How many messages a synchronization of hogwild takes, counted in the graphs that TensorFlow writes for debugging."""

import os
import subprocess
import sys

import pytest
from google.protobuf import text_format
from support_paths import PROGRAMS
from tensorflow.core.framework import graph_pb2

pytestmark = pytest.mark.cluster

COMPRESSIONS = ("float32", "bf16")


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    """Returns a folder with the graphs of the tasks, for each compression."""
    folder = tmp_path_factory.mktemp("graphs")
    command = [sys.executable, str(PROGRAMS / "hogwild_messages.py"), str(folder), *COMPRESSIONS]
    environment = os.environ | {"TF_CPP_VMODULE": "optimization_registry=4"}
    with open(folder / "output.txt", "wb") as output:
        code = subprocess.run(command, env=environment, stdout=output, stderr=output, timeout=200).returncode
    assert code == 0, (folder / "output.txt").read_text()[-5000:]
    return folder


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_synchronization_sends_each_ps_three_messages_and_receives_two(graphs, compression):
    """To a ps: the numbers of the chief, the progress, and that the rounds of all ps have ended. Back: the round, the parameters."""
    pattern = "*from_bytes*_partition__job:worker*after_opt_group_post_partitioning*"
    largest = max((graphs / compression).glob(pattern), key=lambda file: file.stat().st_size)
    messages = {"_Send": [], "_Recv": []}
    for node in text_format.Parse(largest.read_text(), graph_pb2.GraphDef()).node:
        if node.op in messages:
            other = node.attr["recv_device" if node.op == "_Send" else "send_device"].s.decode()
            messages[node.op].append(other.partition("/task:")[2][0])
    assert sorted(messages["_Send"]) == list("000111")
    assert sorted(messages["_Recv"]) == list("0011")
