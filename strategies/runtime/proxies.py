"""Connects tasks with each other directly, whatever proxy the environment names for the web.

gRPC sends every connection to the proxy of `https_proxy` or `http_proxy`, also one to this machine, if `no_proxy` does not name
its host (grpc `doc/environment_variables.md`). Such a proxy does not reach the tasks: TensorFlow would wait for them forever.
"""

import os
from collections.abc import MutableMapping

from tfdist.cluster import Cluster

FOR_GRPC = ("grpc_proxy", "no_grpc_proxy")
"""Variables that gRPC alone reads, before those for the web. Whoever sets them means TensorFlow."""

FOR_THE_WEB = ("https_proxy", "http_proxy")


def leave_out(cluster: Cluster, environ: MutableMapping[str, str] = os.environ) -> None:
    """Makes TensorFlow connect to the hosts of `cluster` without a proxy for the web. Call it before TensorFlow connects.

    Args:
        cluster: the cluster, with addresses.
        environ: the variables of this process, which change.
    """
    if any(name in environ for name in FOR_GRPC) or not any(environ.get(name) for name in FOR_THE_WEB):
        return
    hosts = dict.fromkeys(task.host for task in cluster.training_tasks if task.host)
    others = environ.get("no_proxy", "").strip()  # gRPC does not read it any more where there is the other one.
    environ["no_grpc_proxy"] = ",".join([*([others] if others else []), *hosts])
