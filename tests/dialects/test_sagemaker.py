"""SageMaker: SM_* variables and resourceconfig.json, all workers and ps mode, as its TensorFlow toolkit makes them."""

import json

import pytest
from samples import RESOURCES

from tfdist.cluster import Cluster
from tfdist.dialects import environment, read, sagemaker
from tfdist.errors import ClusterError


# /opt/ml/input/config/resourceconfig.json of a job with two instances.
def environ(**changes: str) -> dict[str, str]:
    variables = {
        "SM_HOSTS": '["algo-1","algo-2"]',
        "SM_CURRENT_HOST": "algo-2",
        "SM_NUM_GPUS": "4",
        "SM_NUM_CPUS": "48",
        "SM_FRAMEWORK_PARAMS": '{"sagemaker_distributed_dataset": 1}',
        "SM_RESOURCE_CONFIG": json.dumps(RESOURCES),
    }
    return variables | changes


def addresses(cluster: Cluster) -> dict[str, str]:
    return {task.name: task.address for task in cluster.tasks}


def test_every_host_is_a_worker() -> None:
    assert sagemaker.recognizes(environ()) == "SM_HOSTS"
    cluster = sagemaker.from_environ(environ())
    assert addresses(cluster) == {"worker:0": "algo-1:8890", "worker:1": "algo-2:8890"}
    assert cluster.task == ("worker", 1)
    assert [(task.slots, task.gpus) for task in cluster.tasks] == [(4, 4), (4, 4)]
    assert len(cluster.worker_groups) == 1


def test_ps_mode_is_that_of_the_toolkit() -> None:
    params = '{"sagemaker_parameter_server_enabled":true}'
    cluster = sagemaker.from_environ(environ(SM_FRAMEWORK_PARAMS=params))
    # What training.py of the toolkit puts into TF_CONFIG.
    emitted = {
        "cluster": {"master": ["algo-1:2222"], "ps": ["algo-1:2223", "algo-2:2223"], "worker": ["algo-2:2222"]},
        "environment": "cloud",
        "task": {"index": 0, "type": "worker"},
    }
    assert addresses(cluster) == addresses(read(emitted))
    assert cluster.task == ("worker", 0)
    assert [task.slots for task in cluster.tasks] == [4, 4, 1, 1]
    first = sagemaker.from_environ(environ(SM_FRAMEWORK_PARAMS=params, SM_CURRENT_HOST="algo-1"))
    assert first.task == ("chief", 0)
    assert first == cluster
    # One host needs no ps.
    alone = environ(SM_FRAMEWORK_PARAMS=params, SM_HOSTS='["algo-1"]', SM_CURRENT_HOST="algo-1")
    assert sagemaker.from_environ(alone).describe() == "1 worker"


def test_the_order_of_the_hosts_is_kept() -> None:
    hosts = ["algo-1", "algo-10", "algo-2"]
    cluster = sagemaker.from_environ(environ(SM_HOSTS=json.dumps(hosts)))
    assert [task.host for task in cluster.tasks] == hosts
    assert cluster.task == ("worker", 2)


def test_a_cluster_of_several_instance_types_is_the_same_for_all_of_them() -> None:
    groups = [
        {"instance_group_name": "gpu", "instance_type": "ml.p3.8xlarge", "hosts": ["algo-1"]},
        {"instance_group_name": "cpu", "instance_type": "ml.c5.9xlarge", "hosts": ["algo-2"]},
    ]
    resources = json.dumps(RESOURCES | {"instance_groups": groups})
    one = sagemaker.from_environ(environ(SM_RESOURCE_CONFIG=resources, SM_NUM_GPUS="4", SM_CURRENT_HOST="algo-1"))
    other = sagemaker.from_environ(environ(SM_RESOURCE_CONFIG=resources, SM_NUM_GPUS="0"))
    assert one == other
    assert [task.slots for task in one.tasks] == [1, 1]


GROUPS = [
    {"instance_group_name": "data", "instance_type": "ml.c5.9xlarge", "hosts": ["algo-1"]},
    {"instance_group_name": "dnn", "instance_type": "ml.p4d.24xlarge", "hosts": ["algo-3", "algo-2"]},
]


def heterogeneous(host: str, gpus: int, groups: str = '["dnn"]', **changes: str) -> Cluster:
    resources = json.dumps(RESOURCES | {"current_host": host, "instance_groups": GROUPS})
    variables = {"SM_HOSTS": '["algo-1","algo-2","algo-3"]', "SM_CURRENT_HOST": host, "SM_NUM_GPUS": str(gpus)}
    return sagemaker.from_environ(
        environ(**variables, SM_RESOURCE_CONFIG=resources, SM_DISTRIBUTION_INSTANCE_GROUPS=groups, **changes)
    )


def test_only_the_instance_groups_of_the_distribution_train() -> None:
    cluster = heterogeneous("algo-3", 8)
    assert addresses(cluster) == {"worker:0": "algo-2:8890", "worker:1": "algo-3:8890"}
    assert cluster.task == ("worker", 1)
    assert [task.slots for task in cluster.tasks] == [8, 8]  # The data group's type does not matter.
    with_ps = heterogeneous("algo-2", 8, SM_FRAMEWORK_PARAMS='{"sagemaker_parameter_server_enabled": true}')
    assert with_ps.find("chief", 0).host == "algo-2" and with_ps.task == ("chief", 0)
    assert with_ps.describe() == "1 chief, 1 worker, 2 ps"


def test_a_host_outside_the_instance_groups_that_train_is_on_its_own() -> None:
    alone = heterogeneous("algo-1", 0)
    assert addresses(alone) == {"worker:0": "algo-1:8890"} and alone.task == ("worker", 0)
    resources = json.dumps(RESOURCES | {"current_host": "algo-1", "instance_groups": GROUPS})
    assert environment.find({"SM_RESOURCE_CONFIG": resources, "SM_DISTRIBUTION_INSTANCE_GROUPS": '["dnn"]'}) is None


def test_without_instance_groups_of_a_distribution_all_hosts_train() -> None:
    for groups in ("[]", "", '["other"]', '["data", "dnn"]'):
        assert heterogeneous("algo-1", 0, groups).describe() == "3 workers"


def test_the_resource_configuration_alone() -> None:
    for source in (RESOURCES, json.dumps(RESOURCES)):
        cluster = read(source)
        assert addresses(cluster) == {"worker:0": "algo-1:8890", "worker:1": "algo-2:8890"}
        assert cluster.task == ("worker", 1)
    only = {"SM_RESOURCE_CONFIG": json.dumps(RESOURCES)}
    assert sagemaker.recognizes(only) == "SM_RESOURCE_CONFIG"
    assert sagemaker.from_environ(only) == read(RESOURCES)


def test_the_toolkit_s_tf_config_counts_more_than_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environ().items():
        monkeypatch.setenv(name, value)
    assert read().source.name == "SM_HOSTS"
    toolkit = {"cluster": {"master": ["algo-1:2222"], "ps": ["algo-1:2223", "algo-2:2223"], "worker": ["algo-2:2222"]}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(toolkit | {"task": {"index": 0, "type": "worker"}, "environment": "cloud"}))
    assert read().describe() == "1 chief, 1 worker, 2 ps"


@pytest.mark.parametrize(
    "variables", [{}, {"SM_HOSTS": "", "SM_CURRENT_HOST": "a"}, {"SM_HOSTS": '["a"]'}, {"SM_RESOURCE_CONFIG": " "}]
)
def test_what_is_no_environment_of_sagemaker(variables: dict[str, str]) -> None:
    assert sagemaker.recognizes(variables) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"SM_HOSTS": "algo-1,algo-2"},
            'SM_HOSTS: \'algo-1,algo-2\' is not a list of hosts in JSON; expected ["algo-1", "algo-2"]',
        ),
        ({"SM_HOSTS": '["algo-1",'}, "SM_HOSTS:1: this is not JSON"),
        ({"SM_HOSTS": "[]"}, "SM_HOSTS: hosts: the list of hosts is empty"),
        ({"SM_HOSTS": "[5]"}, "SM_HOSTS: hosts.0: 5 is not a text"),
        ({"SM_HOSTS": '["a b"]', "SM_CURRENT_HOST": "a b"}, "'a b' is neither a host name nor an address"),
        ({"SM_HOSTS": '["algo-2", "algo-2"]'}, "worker:0 and worker:1 have the same address"),
        ({"SM_CURRENT_HOST": "algo-3"}, "current_host: 'algo-3' is not one of the 2 hosts"),
        ({"SM_NUM_GPUS": "four"}, "SM_NUM_GPUS: SM_NUM_GPUS: 'four' is not a count"),
        ({"SM_FRAMEWORK_PARAMS": "true"}, "SM_FRAMEWORK_PARAMS: the variable does not hold a JSON object"),
        ({"SM_RESOURCE_CONFIG": '{"instance_groups": 5}'}, "instance_groups: 5 is not a list"),
        (
            {"SM_DISTRIBUTION_INSTANCE_GROUPS": "dnn"},
            'SM_DISTRIBUTION_INSTANCE_GROUPS: \'dnn\' is not a list of instance groups in JSON; expected ["group-1", "group-2"]',
        ),
    ],
)
def test_what_is_refused_and_how(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ClusterError) as caught:
        sagemaker.from_environ(environ(**changes))
    assert message in str(caught.value)


def test_a_resource_configuration_without_hosts_is_refused() -> None:
    with pytest.raises(ClusterError, match="the list of hosts is missing"):
        sagemaker.from_environ({"SM_RESOURCE_CONFIG": '{"current_host": "algo-1"}'})
    with pytest.raises(ClusterError, match="no such field; did you mean hosts"):
        read({"current_host": "algo-1", "host": ["algo-1"], "network_interface_name": "eth0"})


def test_a_script_that_sets_the_variables_describes_the_cluster() -> None:
    script = """#!/bin/bash
export SM_HOSTS='["algo-1", "algo-2"]'
export SM_CURRENT_HOST=algo-1
python train.py
"""
    assert read(script).cluster_spec() == {"worker": ["algo-1:8890", "algo-2:8890"]}
    of_launcher = script.replace("python", 'export TF_CONFIG=\'{"cluster": {"worker": ["a:1"]}}\'\npython')
    assert read(of_launcher).cluster_spec() == {"worker": ["a:1"]}  # As in an environment with both.
