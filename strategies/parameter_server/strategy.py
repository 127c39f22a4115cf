"""`ParameterServer`: the variables live on the ps tasks, and worker groups train them with asynchronous steps.

A step is one function that a worker group runs: it reads the variables, computes gradients and updates the variables. Groups
do not wait for each other (Downpour). The workers of a group compute one step together (Sandblaster, if there is one group).
The chief reads the data and hands out the batches; callbacks, files and the progress bar are on the chief.
"""

from tfdist.cluster import Cluster
from tfdist.step_order import MOST_WORKERS
from tfdist.strategies.coordinator.strategy import CoordinatorStrategy, start
from tfdist.strategies.keras_hooks import user_functions
from tfdist.strategies.model_parallel.worker_mesh import WorkerMesh
from tfdist.strategies.parameter_server import asynchronous_counters, constraints, convolutions, fused_reads, optimizer
from tfdist.strategies.parameter_server.hooks import ParameterServerHooks
from tfdist.strategies.parameter_server.placement import ServerExtended


def create(cluster: Cluster, start_timeout: float) -> "ParameterServer":
    """Waits for the ps and worker tasks, connects to them as the chief, and returns the strategy.

    Raises:
        StartTimeoutError: if tasks are not up after `start_timeout` seconds. The message names them.
    """
    strategy = start(cluster, start_timeout, ParameterServer)
    optimizer.install()
    asynchronous_counters.install()
    constraints.install()
    convolutions.install()
    fused_reads.install()
    user_functions.compile_none(ParameterServerHooks.no_xla)
    return strategy


class ParameterServer(CoordinatorStrategy):
    """`tf.distribute.ParameterServerStrategy` under which Keras 3's own `fit` works, with worker groups.

    Attributes:
        rounded: whether weights and gradients of the steps of `fit` travel as bfloat16. The ps keep and update float32.
        has_order: whether worker groups begin their steps in an order: where there are several, on several machines.
    """

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, ServerExtended)
        self.rounded = cluster.synchronization.compression == "bf16"
        hosts = {task.host for job in ("worker", "ps") for task in cluster.job(job)}
        self.has_order = 1 < len(self.worker_groups) <= MOST_WORKERS and len(hosts) > 1
        if cluster.partition:
            rows = (row for group in self.worker_groups for row in group.rows)
            self.extended.worker_mesh = WorkerMesh(cluster.partition, rows)
        self.tfdist_hooks = ParameterServerHooks(self)
