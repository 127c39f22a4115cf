"""TF_CONFIG for tasks that a test starts by hand."""

import json

from reserved import free_ports


def configs(options=None, **jobs):
    """Returns (job, index) -> variables, for the given number of tasks of each job. `options` are those of tfdist."""
    own = {"tfdist": options} if options else {}
    ports = iter(free_ports(sum(jobs.values())))
    cluster = {job: [f"localhost:{next(ports)}" for _ in range(count)] for job, count in jobs.items()}
    return {
        (job, index): {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": job, "index": index}} | own)}
        for job, count in jobs.items()
        for index in range(count)
    }
