"""Real samples of every dialect in every form: texts, command lines and environments.

Tests of several dialects use them, for example those of damaged descriptions.
"""

import json
from typing import Any

import yaml
from kubernetes_samples import (
    FIRST_TFJOB,
    GROUP,
    JAX_JOB,
    JOB_SET,
    MNIST,
    MPI_JOB,
    PYTORCH_JOB,
    SERVICE,
    TRAIN_JOB,
    VOLCANO,
)

from tfdist.dialects import read
from tfdist.dialects.kubernetes import plain_objects

SINGA_JOB = """name: "mlp"
train_steps: 1000
# the cluster { is below }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { backend: "kvfile" path: 'examples/mnist/train_data.bin' } }
  layer < name: "fc1" srclayers: ["data", "label"] param { name: "w1" init { type: kUniform low: -0.05 high: 0.05 } } >
}
updater { type: kSGD learning_rate { type: kStep step_conf { change_freq: 60 gamma: 0.997 } } }
gpu: 0
gpu: 1
cluster {
  nworker_groups: 4
  nserver_groups: 2
  nworkers_per_group: 2
  nservers_per_group: 1
  nworkers_per_procs: 2
  server_worker_separate: true
  workspace: "examples/mnist"
  sync_freq: 8
  start_port: 6723
  share_memory: false
  poll_time: 100
}
"""

SINGA_BARE = "nworker_groups: 3\nnserver_groups: 3\nnworkers_per_group: 1\nnservers_per_group: 1\n"

CLOUDML_YAML = """jobId: mnist_1
labels:
  team: vision
trainingInput:
  scaleTier: CUSTOM
  masterType: n1-highcpu-16
  masterConfig:
    acceleratorConfig: {count: "2", type: NVIDIA_TESLA_T4}
  workerType: n1-highcpu-16
  parameterServerType: n1-highmem-8
  evaluatorType: n1-highcpu-16
  workerCount: 9
  parameterServerCount: "3"
  evaluatorCount: 1
  packageUris: [gs://bucket/trainer.tar.gz]
  args: ["--epochs", "5"]
  jobDir: gs://bucket/out
"""

CLOUDML_JSON = json.dumps({"trainingInput": {"scale_tier": "CUSTOM", "master_type": "standard_gpu", "region": "us-east1"}})

TF_CONFIG = json.dumps(
    {
        "cluster": {
            "chief": ["cmle-training-chief-x-0:2222"],
            "worker": {"0": "10.0.0.1:2222", "1": "[::1]:2223"},
            "ps": ["grpc://a:1", "b:2"],
            "evaluator": [],
        },
        "task": {"type": "worker", "index": "1", "cloud": "x"},
        "environment": "cloud",
        "rpc_layer": "grpc",
        "tfdist": {"slots": {"worker": [[2, 1], [2, 0]]}, "worker_groups": [[0, 3], [2, 1]], "sync_period": 5},
    },
    indent=1,
)

COUNTS = '{"cluster": {"chief": 1, "worker": 4, "ps": 2, "evaluator": 1}, "tfdist": {"sync_period": 4}}'

HOSTFILE = "# all\nworker-0 slots=2\n\nuser@worker-1 slots = 4 max_slots=8 # fast\n10.0.0.3 slots=1\n"

HOSTFILE_MPICH = "a:2\nb.example.org:3\n"

HOROVODRUN = "X=1 horovodrun -np 4 --min-np 2 -H h1:2,h2:2 --verbose python train.py -H x\n"

MPIRUN = (
    "mpirun --allow-run-as-root -np 6 --map-by ppr:2:node --mca btl tcp,self -x PATH \\\n  -H 'a:4,b:2',c python train.py\n"
)

SBATCH = "#!/bin/bash\n#SBATCH --job-name=x\n#SBATCH -N 2 --ntasks-per-node=4 # tasks\n#SBATCH --gpus-per-task a100:1\nsrun python x\n"

SBATCH_OF_TFDIST = f"#!/bin/bash\n#SBATCH --ntasks=8\nexport TFDIST_CLUSTER='{COUNTS}'\nsrun python train.py\n"

RESOURCES: dict[str, Any] = {
    "current_group_name": "homogeneousCluster",
    "current_host": "algo-2",
    "current_instance_type": "ml.g4dn.12xlarge",
    "hosts": ["algo-1", "algo-2"],
    "instance_groups": [
        {"instance_group_name": "homogeneousCluster", "instance_type": "ml.g4dn.12xlarge", "hosts": ["algo-2", "algo-1"]}
    ],
    "network_interface_name": "eth0",
}

# After "Distributed training" of Vertex AI's documentation, as gcloud takes it.
VERTEX_CONFIG = """workerPoolSpecs:
  - machineSpec:
      machineType: n1-standard-8
      acceleratorType: NVIDIA_TESLA_T4
      acceleratorCount: 2
    replicaCount: 1
    containerSpec: {imageUri: gcr.io/p/train}
  - machineSpec: {machineType: n1-standard-8, acceleratorType: NVIDIA_TESLA_T4, acceleratorCount: 2}
    replicaCount: "3"
    containerSpec: {imageUri: gcr.io/p/train}
  - machineSpec: {machineType: n1-highmem-8}
    replicaCount: 2
    containerSpec: {imageUri: gcr.io/p/train}
  - machineSpec: {machineType: n1-standard-4}
    replicaCount: 1
    containerSpec: {imageUri: gcr.io/p/train}
baseOutputDirectory: {outputUriPrefix: gs://bucket/out}
"""

VERTEX_HOST = "cmle-training-workerpool{}-1d969d3ba6-{}:2222"


def snake(value: Any) -> Any:
    """Returns the value with the keys of the Python client, in snake case."""
    if isinstance(value, dict):
        return {"".join(f"_{c.lower()}" if c.isupper() else c for c in key): snake(entry) for key, entry in value.items()}
    return [snake(entry) for entry in value] if isinstance(value, list) else value


CLUSTER_SPEC: dict[str, Any] = {
    "cluster": {
        "workerpool0": [VERTEX_HOST.format(0, 0)],
        "workerpool1": [VERTEX_HOST.format(1, 0), VERTEX_HOST.format(1, 1)],
        "workerpool2": [VERTEX_HOST.format(2, 0)],
        "workerpool3": [VERTEX_HOST.format(3, 0)],
    },
    "environment": "cloud",
    "task": {"type": "workerpool1", "index": 1, "trial": "1"},
    "job": json.dumps(snake({"workerPoolSpecs": yaml.safe_load(VERTEX_CONFIG)["workerPoolSpecs"]})),
}

PLAIN_OBJECTS = plain_objects.write(read("cluster { nworker_groups: 2 nserver_groups: 2 sync_freq: 4 }"))

TEXTS: dict[str, tuple[str, ...]] = {
    "singa": (SINGA_JOB, SINGA_BARE),
    "cloudml": (CLOUDML_YAML, CLOUDML_JSON),
    "tf_config": (TF_CONFIG, COUNTS),
    "horovod": (HOSTFILE, HOSTFILE_MPICH),
    "slurm": (SBATCH, SBATCH_OF_TFDIST),
    "kubernetes": (
        *(MNIST, TRAIN_JOB, PYTORCH_JOB, MPI_JOB, FIRST_TFJOB, SERVICE + "---\n" + MNIST, PLAIN_OBJECTS),
        *(JOB_SET, VOLCANO, JAX_JOB, GROUP),
    ),
    "vertex": (VERTEX_CONFIG, json.dumps(CLUSTER_SPEC)),
    "sagemaker": (json.dumps(RESOURCES),),
    "caffe2": (
        "num_shards: 4\nshard_id: 2\nrun_id: r1\nfile_store_path: /shared\nnum_gpus: 2\ngpus: [0, 1]\n",
        '{"num_shards": 2, "shard_id": 1, "redis_host": "h", "redis_port": 1, "redis_password": "x"}',
    ),
    "paddle": (
        '{"use_gpu": false, "port": 7164, "ports_num": 1, "is_local": false, "num_of_gradient_servers": 2, "pservers": ["a", "b"]}',
    ),
}

COMMANDS: dict[str, tuple[str, ...]] = {
    "horovod": (HOROVODRUN, MPIRUN),
    "pytorch": (
        "torchrun --nnodes=2 --node_rank 1 --nproc-per-node=4 --master-addr=10.0.0.1 --master_port 1234 -r 3 train.py --x",
        "python -m torch.distributed.run --standalone --nproc-per-node 4 --rdzv-id=7 -m package.train",
    ),
    "caffe2": (
        "python resnet50_trainer.py --train_data null --num_shards 2 --shard_id 1 --run_id r --redis_host h --redis_port 6379 --gpus 0,1",
    ),
    "paddle": (
        "paddle train --pservers=10.0.0.1,10.0.0.2 --trainer_id=1 --num_of_gradient_servers=3 --local=0 --use_gpu=1",
        "./pserver --use_gpu=False --port=7164 --ports_num=1 --num_gradient_servers=2",
        "python -m paddle.distributed.launch --ips=127.0.0.1,b --gpus 0,1 --start_port=6070 train.py",
        "fleetrun --servers=a:1,b:2 --trainers=a:3,b:4 train.py",
        "fleetrun --nnodes 2 --master 10.0.0.1:8090 --rank 1 --nproc_per_node 2 train.py",
    ),
}

_SLURM_HOROVOD_MPI = (
    {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "7",
        "SLURM_STEP_NODELIST": "n[01-02,7],gpu-a[1-2]b[3]",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2),1(x3)",
        "SLURM_PROCID": "3",
        "SLURM_NODEID": "1",
        "SLURM_LOCALID": "1",
        "SLURM_DISTRIBUTION": "plane",
        "SLURM_DIST_PLANESIZE": "2",
        "SLURM_GPUS_PER_TASK": "a100:2",
        "SLURM_STEP_RESV_PORTS": "12000-12003",
    },
    {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "2"},
    {
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    },
    {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "TF_CONFIG": TF_CONFIG},
)


def _variables(text: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in text.split())


ENVIRONMENTS: dict[str, tuple[dict[str, str], ...]] = {
    "slurm": _SLURM_HOROVOD_MPI[:1],
    "horovod": _SLURM_HOROVOD_MPI[1:],
    "tf_config": ({"TF_CONFIG": TF_CONFIG},),
    "kubernetes": (
        {"COORDINATOR_ADDRESS": "j-worker-0", "COORDINATOR_PORT": "6666", "NUM_PROCESSES": "3", "PROCESS_ID": "2"},
        {"JAX_COORDINATOR_ADDRESS": "j-node-0-0.j:6666", "JAX_NUM_PROCESSES": "3", "JAX_PROCESS_ID": "2"},
        {"LWS_LEADER_ADDRESS": "j-0.j.ml", "LWS_GROUP_SIZE": "3", "LWS_WORKER_INDEX": "2"},
    ),
    "vertex": ({"CLUSTER_SPEC": json.dumps(CLUSTER_SPEC)},),
    "sagemaker": (
        {"SM_RESOURCE_CONFIG": json.dumps(RESOURCES)},
        {
            "SM_HOSTS": '["algo-1","algo-2"]',
            "SM_CURRENT_HOST": "algo-2",
            "SM_NUM_GPUS": "4",
            "SM_FRAMEWORK_PARAMS": '{"sagemaker_parameter_server_enabled": true}',
        },
    ),
    "pytorch": tuple(
        map(
            _variables,
            (
                "RANK=3 WORLD_SIZE=4 MASTER_ADDR=node0 MASTER_PORT=29500 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=a",
                "RANK=1 WORLD_SIZE=8 MASTER_ADDR=j-master-0 MASTER_PORT=23456 PET_NODE_RANK=1 PET_NPROC_PER_NODE=4",
            ),
        )
    ),
    "paddle": tuple(
        map(
            _variables,
            (
                "PADDLE_PSERVERS_IP_PORT_LIST=a:1,b:1 PADDLE_TRAINERS_NUM=2 TRAINING_ROLE=PSERVER POD_IP=b PADDLE_PORT=1",
                "PADDLE_PSERVERS_IP_PORT_LIST=a:1 PADDLE_TRAINER_ENDPOINTS=a:2,b:2 PADDLE_TRAINER_ID=1 TRAINING_ROLE=TRAINER",
                "PADDLE_TRAINER_ENDPOINTS=a:1,b:1 PADDLE_TRAINER_ID=1 PADDLE_CURRENT_ENDPOINT=b:1",
                "PADDLE_PSERVERS=a,b PADDLE_PORT=6174 PADDLE_TRAINERS_NUM=2 TRAINING_ROLE=TRAINER PADDLE_TRAINER_ID=1",
                "PADDLE_INIT_PSERVERS=a,b PADDLE_INIT_NUM_GRADIENT_SERVERS=2 PADDLE_INIT_TRAINER_ID=1 PADDLE_INIT_PORT=7164",
            ),
        )
    ),
}

# Languages of one launcher each.

ACCELERATE = """compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
machine_rank: 1
main_process_ip: 10.0.0.1
main_process_port: 29501
main_training_function: main
mixed_precision: 'no'
num_machines: 2
num_processes: 8
use_cpu: false
"""

TENSORFLOW_1 = '{"ps_hosts": "a:2222", "worker_hosts": ["b:2222", "c:2222"], "job_name": "worker", "task_index": 1}'

TEXTS |= {
    "accelerate": (ACCELERATE, '{"distributed_type": "NO", "num_processes": 1}'),
    "tf1": (TENSORFLOW_1,),
    "batch": (
        "#!/bin/bash\n#PBS -N x\n#PBS -l select=2:ncpus=8:mpiprocs=4+1:mpiprocs=2,walltime=1:0:0\nmpirun python train.py\n",
        "#!/bin/bash\n#BSUB -n 8\nmpirun -machinefile $LSB_DJOB_HOSTFILE python train.py\n",
        "#!/bin/bash\n#$ -cwd\n#$ -pe mpi 8\nmpirun -bind-to none python train.py\n",
    ),
}

COMMANDS |= {
    "slurm": ("srun -N 2 --ntasks-per-node=4 --gpus-per-task a100:1 python train.py",),
    "accelerate": (
        "accelerate launch --multi_gpu --num_processes 4 --mixed_precision=fp16 train.py --epochs 3",
        "accelerate launch --num_processes=4 --num_machines 2 --machine_rank 1 --main_process_ip h -m package.train",
    ),
    "gcloud": (
        "gcloud ai-platform jobs submit training $JOB --scale-tier=CUSTOM --master-machine-type=n1-standard-8 "
        "--master-accelerator=count=2,type=nvidia-tesla-t4 --worker-machine-type=n1-standard-4 --worker-count=2",
        "gcloud ml-engine local train --distributed --module-name trainer.task -- --epochs 5",
        "gcloud ai custom-jobs create --worker-pool-spec=machine-type=n1-standard-8,replica-count=1 "
        "--worker-pool-spec=machine-type=n1-standard-8,replica-count=2,accelerator-type=NVIDIA_L4,accelerator-count=1",
    ),
    "deepspeed": (
        "deepspeed --num_gpus=4 --master_port 29501 train.py --deepspeed_config ds.json",
        "deepspeed --include localhost:0,2,3 train.py",
    ),
    "tf1": (
        "python train.py --ps_hosts=a:2222,b:2222 --worker_hosts=c:2222,d:2222 --job_name=worker --task_index=1 --sync_replicas",
    ),
}
