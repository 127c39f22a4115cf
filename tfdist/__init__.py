"""tfdist trains unchanged Keras 3 code on a cluster described in the language that the user already has.

    import tfdist

    with tfdist.strategy("STANDARD_1").scope():  # or a file, a dict, absl FLAGS, or nothing: the environment
        model = keras.Sequential([...])
        model.compile(...)
    model.fit(...)

Every description becomes a `Cluster` (`cluster`). `dialects` reads and writes descriptions, `pictures` draws clusters, `choice`
selects the strategy, and `create_strategy` creates it for the cluster of the process (`process_cluster`). `flags`, `ranks` and
`translate` use these. Modules here import neither `tfdist.strategies` nor `tfdist.launch`, except `create_strategy` when a
program calls `tfdist.strategy`. Importing this package, reading and translating do not import TensorFlow. Start with
`cluster.py`.
"""

from tfdist.cluster import Cluster as Cluster
from tfdist.cluster import Task as Task
from tfdist.create_strategy import strategy as strategy
from tfdist.dialects import read as read
from tfdist.errors import ClusterError as ClusterError
from tfdist.flags import define_flags as define_flags
from tfdist.partition import Partition as Partition
from tfdist.ranks import cross_rank as cross_rank
from tfdist.ranks import cross_size as cross_size
from tfdist.ranks import is_chief as is_chief
from tfdist.ranks import local_rank as local_rank
from tfdist.ranks import local_size as local_size
from tfdist.ranks import rank as rank
from tfdist.ranks import role as role
from tfdist.ranks import size as size
from tfdist.synchronization import Synchronization as Synchronization
from tfdist.version import __version__ as __version__

__all__ = [
    "Cluster",
    "ClusterError",
    "Partition",
    "Synchronization",
    "Task",
    "cross_rank",
    "cross_size",
    "define_flags",
    "is_chief",
    "local_rank",
    "local_size",
    "rank",
    "read",
    "role",
    "size",
    "strategy",
]
