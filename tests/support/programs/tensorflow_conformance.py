"""Runs TensorFlow's conformance tests for strategies (tensorflow/python/distribute/strategy_test_lib.py) on mirrored."""

import inspect

from tensorflow.python.distribute import strategy_test_lib
from tensorflow.python.eager import test

import tfdist
from tfdist.cluster import Cluster, Task
from tfdist.errors import Source

strategy = tfdist.strategy(Cluster((Task("chief", 0, slots=2),), source=Source("python", "a test")))
WITH_SESSIONS = ("_test_minimize_loss_graph",)  # It needs sessions of TensorFlow 1 with two devices.


class ConformanceTest(strategy_test_lib.TwoDeviceDistributionTestBase, strategy_test_lib.DistributionTestBase):
    pass


def one(name, arguments):
    return lambda self: getattr(self, name)(strategy, **arguments)


for base in ConformanceTest.__bases__:
    for name, method in vars(base).items():
        parameters = list(inspect.signature(method).parameters.values())[2:] if name.startswith("_test_") else []
        if not name.startswith("_test_") or name in WITH_SESSIONS or any(p.default is p.empty for p in parameters):
            continue
        for in_function in (False, True) if any(p.name == "run_in_function" for p in parameters) else (None,):
            arguments = {} if in_function is None else {"run_in_function": in_function}
            setattr(ConformanceTest, f"test{name}{'_in_a_function' if in_function else ''}", one(name, arguments))

if __name__ == "__main__":
    test.main()
