"""What the global parameters cost on ps and workers: the formulae of docs/hogwild.md."""

import math

import pytest
import tensorflow as tf

from tfdist.strategies.hogwild.synchronization.global_parameters import ParameterBlock
from tfdist.strategies.hogwild.synchronization.local_variable import Kind
from tfdist.strategies.hogwild.synchronization.outer_optimizers import OUTER_OPTIMIZERS
from tfdist.synchronization import Synchronization

LEADER = "/job:worker/task:0/device:CPU:0"
GROUPS, VALUES = 4, 300_000


class Variable:
    """What a block needs of a `LocalVariable`."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.dtype, self.shape = tf.float32, tf.TensorShape([VALUES // 2])
        self.replica = self
        self.block = None

    def place(self, leader):
        return leader


def megabytes(variables):
    return sum(math.prod(variable.shape) * variable.dtype.size for variable in variables if hasattr(variable, "shape")) / 1e6


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    ("outer", "copies"), [("average", 1), ("sum", 1), ("elastic", 1), ("nesterov", 3), ("delayed_nesterov", 3)]
)
def test_bytes_on_ps_and_worker(outer, copies, compressed):
    optimizer = OUTER_OPTIMIZERS[outer](Synchronization(outer=outer), GROUPS)
    servers = [["/job:ps/task:0", "/job:ps/task:1"]]
    size = VALUES * 4 / 1e6

    def bytes_of(kind):
        block = ParameterBlock([Variable(kind), Variable(kind)], servers, optimizer, GROUPS, compressed)
        remote = block.remote_variables([LEADER])
        assert set(remote) == {*servers[0], LEADER}
        return sum(megabytes(remote[ps]) for ps in servers[0]), megabytes(remote[LEADER])

    on_ps, on_leader = bytes_of(Kind.SYNCHRONIZED)
    assert on_ps == pytest.approx(size * (copies + (GROUPS if compressed else 0)), rel=1e-3)
    assert on_leader == pytest.approx(3 * size, rel=1e-3)  # Replica and baseline; pulled exists if it is used.
    assert bytes_of(Kind.OWN)[0] == pytest.approx(size, rel=1e-3)
