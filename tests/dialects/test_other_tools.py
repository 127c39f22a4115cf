"""Files of other tools that share words with a language of clusters: none of them becomes a cluster."""

import pytest

import tfdist
from tfdist.errors import ClusterError

NEGATIVES = {
    "a training configuration": '{"num_gpus": 8, "train_batch_size": 16}',
    "one common word": "use_cpu: false\n",
    "the id of a run": "run_id: x\n",
    "ports and devices": '{"redis_host": "h", "redis_port": 6379, "gpus": "0,1"}',
    "a data set in shards": "num_shards: 8\nshuffle: true\n",
    "DeepSpeed": '{"train_batch_size": 8, "zero_optimization": {"stage": 2}, "fp16": {"enabled": true}}',
    "Accelerate for SageMaker": "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: DATA_PARALLEL\nnum_processes: 8\n",
    "Accelerate on TPUs": "compute_environment: LOCAL_MACHINE\ndistributed_type: TPU\nnum_processes: 8\n",
    "PaddleRec": "runner:\n  train_batch_size: 2\n  use_gpu: false\n  epochs: 3\nhyper_parameters:\n  optimizer: {class: Adam}\n",
    "a flag of Paddle alone": "use_gpu: true\nlocal: 1\n",
    "a named cluster": "cluster: {name: production, region: eu}\n",
    "an empty cluster among others": "cluster: {}\nimage: {tag: latest}\n",
    "a task that is no task": "task: {name: detect}\nmodel: yolo\n",
    "a task by name": "task: classification\nepochs: 3\n",
    "an environment": '{"environment": "cloud"}',
    "machine types elsewhere": "args: [a]\nregion: us-east1\nlabels: {a: b}\n",
    "docker compose": "services:\n  worker:\n    image: x\n    deploy: {replicas: 2}\n",
    "an action of GitHub": "name: CI\non: push\njobs:\n  build:\n    runs-on: ubuntu-latest\n    steps: [{run: make}]\n",
    "hosts of Ansible": "all:\n  hosts:\n    a: {}\n    b: {}\n",
    "a Ray cluster": "cluster_name: x\nmax_workers: 2\navailable_node_types: {}\nhead_node_type: head\n",
    "SkyPilot": "resources: {accelerators: A100:8}\nnum_nodes: 2\nrun: |\n  torchrun --nproc_per_node 8 train.py\n",
    "values of a Helm chart": "worker:\n  replicas: 2\n  image: x\n",
    "a package": '{"name": "x", "version": "1.0.0", "scripts": {"test": "jest"}}',
    "INI": "[worker]\nhost = a\nslots = 2\n",
    "TOML": '[cluster]\nname = "x"\nworkers = 4\n',
    "a pod without TF_CONFIG": "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {containers: [{name: c}]}\n",
    "a Volcano job that serves": "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: x}\nspec:\n  tasks:\n"
    "  - {name: nginx, replicas: 6}\n",
    "nginx": "server {\n  listen 80;\n}\n",
    "old SINGA without a space": "nworker_groups:1\nnserver_groups:0\n\nnworker_typo:3\n",
    "Python": "import os\n\n\ndef main():\n    return {'worker': 1}\n",
    "a shell script": "#!/bin/bash\nset -e\npip install deepspeed\necho done\n",
    "a table": "host,gpus\na,2\n",
}


@pytest.mark.parametrize("text", NEGATIVES.values(), ids=NEGATIVES.keys())
def test_a_file_of_another_tool_is_refused(text: str) -> None:
    with pytest.raises(ClusterError) as caught:
        tfdist.read(text)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a training configuration", "it has num_gpus, train_batch_size, and nothing of TF_CONFIG, "),
        ("DeepSpeed", "a DeepSpeed configuration says how to train, not where; give the deepspeed command line"),
        ("Accelerate on TPUs", "TPU uses devices that no strategy of tfdist uses"),
        ("a data set in shards", "num_shards without shard_id, beside 'shuffle', is no description of Caffe2"),
        ("an empty cluster among others", "`cluster` is empty, and 'image' is no key of TF_CONFIG"),
        ("a Volcano job that serves", "'nginx' is not the name of a job that trains; they are chief, worker, ps, evaluator"),
        ("old SINGA without a space", "nworker_typo: ClusterProto has no such field"),
    ],
)
def test_the_message_says_why(name: str, reason: str) -> None:
    with pytest.raises(ClusterError) as caught:
        tfdist.read(NEGATIVES[name])
    assert reason in str(caught.value)


def test_a_compose_file_and_a_job_of_azure_are_named() -> None:
    for text, reason in (
        (NEGATIVES["docker compose"], "a Compose file describes containers"),
        ("command: python t.py\ndistribution: {type: tensorflow, worker_count: 4, parameter_server_count: 2}\n", "Azure ML"),
    ):
        with pytest.raises(ClusterError, match=f"this is no cluster description: .*{reason}"):
            tfdist.read(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "TensorFlow(entry_point='a.py', instance_count=2, instance_type='ml.p3.2xlarge', distribution={'mpi': {}})",
            "estimator",
        ),
        ("distribution = {'parameter_server': {'enabled': True}}", "an estimator's distribution is read by SageMaker"),
        (
            "distribution={'smdistributed': {'dataparallel': {'enabled': True}}}",
            "an estimator's distribution is read by SageMaker",
        ),
        ('{"TrainingJobName": "x", "ResourceConfig": {"InstanceCount": 2}}', "a request to SageMaker names no hosts"),
        ('{"sagemaker_program": "a.py", "sagemaker_mpi_enabled": "true"}', "hyperparameters of SageMaker name no hosts"),
        ("ScalingConfig(num_workers=4, use_gpu=True)", "Ray decides where the workers of a ScalingConfig run"),
    ],
)
def test_what_clouds_take_is_named(text: str, reason: str) -> None:
    """Fields of CloudML were suggested."""
    with pytest.raises(ClusterError, match=f"this is no cluster description: .*{reason}"):
        tfdist.read(text)
