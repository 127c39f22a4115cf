"""Real objects of Kubernetes: a service, and jobs of every operator that the dialect reads."""

SERVICE = "apiVersion: v1\nkind: Service\nmetadata: {name: tensorboard}\nspec: {selector: {app: tb}}\n"

# After examples/tensorflow/dist-mnist/tf_job_mnist.yaml of kubeflow/training-operator.
MNIST = """apiVersion: "kubeflow.org/v1"
kind: TFJob
metadata:
  name: dist-mnist
  namespace: ml
spec:
  runPolicy: {cleanPodPolicy: None}
  tfReplicaSpecs:
    PS:
      replicas: 2
      restartPolicy: Never
      template:
        spec:
          containers:
            - name: tensorflow
              image: kubeflow/tf-dist-mnist-test:latest
              resources: {limits: {nvidia.com/gpu: 1}}
    Worker:
      replicas: 3
      restartPolicy: Never
      template:
        spec:
          containers:
            - name: sidecar
              image: logs
              ports: [{name: tfjob-port, containerPort: 1}]
            - name: tensorflow
              image: kubeflow/tf-dist-mnist-test:latest
              ports: [{name: metrics, containerPort: 9090}, {name: tfjob-port, containerPort: 3333}]
              resources: {limits: {nvidia.com/gpu: "2"}}
    chief: {}
    EVALUATOR:
      replicas: 1
"""

FIRST_TFJOB = """apiVersion: kubeflow.org/v1alpha1
kind: TFJob
metadata: {name: j}
spec:
  replicaSpecs:
    - tfReplicaType: MASTER
    - replicas: 2
      tfReplicaType: WORKER
      tfPort: 2223
      template: {spec: {containers: [{name: tensorflow, resources: {limits: {nvidia.com/gpu: 1}}}]}}
    - replicas: 2
      tfReplicaType: PS
"""

TRAIN_JOB = """apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: llm, namespace: ml}
spec:
  runtimeRef: {name: torch-distributed}
  trainer:
    numNodes: 3
    resourcesPerNode: {limits: {nvidia.com/gpu: 4}}
"""

PYTORCH_JOB = """apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: ddp, namespace: ml}
spec:
  nprocPerNode: "2"
  pytorchReplicaSpecs:
    Worker: {replicas: 2, template: {spec: {containers: [{name: pytorch, resources: {limits: {nvidia.com/gpu: 2}}}]}}}
    Master: {replicas: 1, template: {spec: {containers: [{name: pytorch}]}}}
"""

MPI_JOB = """apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: {name: mpi, namespace: ml}
spec:
  slotsPerWorker: 2
  mpiReplicaSpecs:
    Launcher: {template: {spec: {containers: [{name: l}]}}}
    Worker: {replicas: 2, template: {spec: {containers: [{name: w, resources: {limits: {nvidia.com/gpu: 2}}}]}}}
"""

JOB_SET = """apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: mnist, namespace: ml}
spec:
  network: {subdomain: net}
  replicatedJobs:
  - name: workers
    replicas: 2
    template:
      spec:
        parallelism: 2
        completions: 2
        template: {spec: {containers: [{name: w, resources: {limits: {nvidia.com/gpu: 2}}}]}}
  - name: ps
    template: {spec: {template: {spec: {containers: [{name: p}]}}}}
"""

VOLCANO = """apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: mnist}
spec:
  minAvailable: 3
  schedulerName: volcano
  plugins: {env: [], svc: []}
  tasks:
  - replicas: 1
    name: ps
    template: {spec: {containers: [{name: tensorflow, ports: [{containerPort: 2223, name: tfjob-port}]}]}}
  - replicas: 2
    name: worker
    template: {spec: {containers: [{name: tensorflow, resources: {limits: {nvidia.com/gpu: 1}}}]}}
"""

JAX_JOB = """apiVersion: kubeflow.org/v1
kind: JAXJob
metadata: {name: jax, namespace: ml}
spec:
  jaxReplicaSpecs:
    Worker: {replicas: 2, template: {spec: {containers: [{name: jax, resources: {limits: {nvidia.com/gpu: 4}}}]}}}
"""

GROUP = """apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: llm, namespace: ml}
spec:
  replicas: 1
  leaderWorkerTemplate:
    size: 3
    workerTemplate: {spec: {containers: [{name: w, resources: {limits: {nvidia.com/gpu: 2}}}]}}
"""
