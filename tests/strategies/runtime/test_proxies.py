"""Proxies for the web, which TensorFlow would use between tasks."""

import pytest

from tfdist import Cluster, Task
from tfdist.strategies.runtime import proxies

CLUSTER = Cluster(
    (Task("worker", 0, "a", 1), Task("worker", 1, "::1", 2), Task("worker", 2, "a", 3), Task("evaluator", 0, "b", 4))
)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"http_proxy": "http://proxy:3128"}, "a,::1"),
        ({"https_proxy": "http://proxy:3128", "no_proxy": "localhost,.example.org"}, "localhost,.example.org,a,::1"),
        ({"http_proxy": "http://proxy:3128", "no_proxy": ""}, "a,::1"),
        ({"HTTP_PROXY": "http://proxy:3128"}, None),  # gRPC does not read it.
        ({"http_proxy": ""}, None),
        ({"http_proxy": "http://proxy:3128", "no_grpc_proxy": "a"}, "a"),
        ({"http_proxy": "http://proxy:3128", "grpc_proxy": "http://other:1"}, None),
    ],
)
def test_the_hosts_of_the_tasks_need_no_proxy_for_the_web(given, expected):
    environ = dict(given)
    proxies.leave_out(CLUSTER, environ)
    assert environ == given | ({} if expected is None else {"no_grpc_proxy": expected})
