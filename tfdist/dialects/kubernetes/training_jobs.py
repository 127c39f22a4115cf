"""Reads the training jobs of Kubeflow: TFJob, PyTorchJob, MPIJob and Trainer's TrainJob.

Sources: kubeflow/training-operator v1.9 (`pkg/apis/kubeflow.org/v1`, `pkg/controller.v1/tensorflow/tensorflow.go`,
`pkg/webhooks/tensorflow/tfjob_webhook.go`) and 0b807f39 (`pkg/apis/tensorflow/v1alpha1/types.go`); kubeflow/mpi-operator
v2beta1; kubeflow/trainer `pkg/apis/trainer/v1alpha1`.
"""

from collections.abc import Callable

from tfdist.cluster import Cluster, Task
from tfdist.dialects.kubernetes.pods import container, gpus, namespace, object_name, port
from tfdist.dialects.parsing.document import MAX_TASKS, shown
from tfdist.dialects.parsing.node import Node
from tfdist.errors import nearest

TF_JOBS = {"Chief": "chief", "Master": "chief", "Worker": "worker", "PS": "ps", "Evaluator": "evaluator"}
"""Replica type of TFJob -> job in TF_CONFIG. `Master` is the older name of `Chief`."""

TF_PORT, TF_CONTAINER = 2222, "tensorflow"
TF_PORT_NAME = "tfjob-port"
_TORCH_PORT = 23456

# v1 before the training operator, and the betas, had the fields of runPolicy directly in spec.
_POLICY = (
    "runPolicy",
    "cleanPodPolicy",
    "ttlSecondsAfterFinished",
    "activeDeadlineSeconds",
    "backoffLimit",
    "schedulingPolicy",
)
_TF_VERSIONS = ("kubeflow.org/v1", "kubeflow.org/v1beta2", "kubeflow.org/v1beta1", "kubeflow.org/v1alpha2")


FIRST_TF_VERSIONS = ("kubeflow.org/v1alpha1", "tensorflow.org/v1alpha1", "mlkube.io/v1beta1")
"""API versions in which TFJob had a list of replicas. In the last it was `kind: TfJob`."""


def _tfjob(job: Node) -> Cluster:
    if job.child("apiVersion").value in FIRST_TF_VERSIONS:
        return _first_tfjob(job)
    _check_version(job, (*_TF_VERSIONS, *FIRST_TF_VERSIONS))
    spec = _need(job, "spec")
    spec.check_keys(("tfReplicaSpecs", "successPolicy", "enableDynamicWorker", *_POLICY), "TFJob")
    name, space = object_name(job), namespace(job)
    tasks: list[Task] = []
    given: dict[str, str] = {}
    for kind, replicas in _replica_specs(spec, "tfReplicaSpecs", tuple(TF_JOBS)).items():
        role = TF_JOBS[kind]
        pod = container(replicas.get("template"), TF_CONTAINER)
        count, here = _replicas(replicas), port(pod, TF_PORT_NAME, TF_PORT)
        if role in given:
            raise replicas.error(f"both a {given[role]} and a {kind} are given; TFJob takes one of them")
        given[role] = kind
        if role in ("chief", "evaluator") and count > 1:
            raise replicas.error(f"there are {count} replicas of {kind}; TensorFlow allows one {role}")
        width = 0 if role == "ps" else gpus(pod)  # A ps holds one shard, also in a pod with GPUs.
        for index in range(_total(replicas, tasks, count, width)):
            host = f"{name}-{kind.lower()}-{index}.{space}.svc" if name else None
            tasks.append(Task(role, index, host, here if host else None, max(1, width), width))
    return Cluster(tuple(tasks), source=job.source)


def _first_tfjob(job: Node) -> Cluster:
    """Reads TFJob of 2017 and 2018, a list of replicas. Its operator put a random id into host names, so addresses are open."""
    spec = _need(job, "spec")
    spec.check_near(("replicaSpecs", "replica_specs", "terminationPolicy"), "TFJob")
    replica_specs = spec.get("replicaSpecs", "replica_specs")
    if replica_specs is None:
        raise spec.error("the field replicaSpecs is missing")
    tasks: list[Task] = []
    for replicas in replica_specs.entries():
        replicas.check_near(("replicas", "template", "tfPort", "tf_port", "tfReplicaType", "tf_replica_type"), "a replica")
        given = replicas.get("tfReplicaType", "tf_replica_type")
        kind = "MASTER" if given is None else given.text().upper()
        role = {"MASTER": "chief", "WORKER": "worker", "PS": "ps"}.get(kind)
        if given is not None and role is None:
            hint = nearest(kind, ("MASTER", "WORKER", "PS"))
            raise given.error(f"{shown(given.value)} is not a replica type; the types are MASTER, WORKER, PS{hint}")
        if any(task.job == role for task in tasks):
            raise replicas.error(f"{kind} is given twice; keep one of them")
        count = _replicas(replicas)
        if role == "chief" and count > 1:
            raise replicas.error(f"there are {count} replicas of MASTER; TensorFlow allows one chief")
        width = 0 if role == "ps" else gpus(container(replicas.get("template"), TF_CONTAINER))
        for index in range(_total(replicas, tasks, count, width)):
            tasks.append(Task(role or "chief", index, slots=max(1, width), gpus=width))
    return Cluster(tuple(tasks), source=job.source)


def _pytorchjob(job: Node) -> Cluster:
    _check_version(job, ("kubeflow.org/v1", "kubeflow.org/v1beta2", "kubeflow.org/v1beta1"))
    spec = _need(job, "spec")
    spec.check_keys(("pytorchReplicaSpecs", "elasticPolicy", "nprocPerNode", *_POLICY), "PyTorchJob")
    elastic = spec.get("elasticPolicy")
    processes = spec.get("nprocPerNode") or (elastic.get("nProcPerNode") if elastic else None)
    name, space = object_name(job), namespace(job)
    tasks: list[Task] = []
    kinds = _replica_specs(spec, "pytorchReplicaSpecs", ("Master", "Worker"))
    # Rank 0 is the master, worker i has rank i + 1. All of them are workers for TensorFlow.
    for kind in sorted(kinds):
        replicas = kinds[kind]
        count = _replicas(replicas)
        if kind == "Master" and count != 1:
            raise replicas.error(f"there are {count} replicas of Master; PyTorchJob has one")
        pod = container(replicas.get("template"), "pytorch")
        slots, devices = _slots(processes, gpus(pod))
        here = port(pod, "pytorchjob-port", _TORCH_PORT)
        for index in range(_total(replicas, tasks, count, slots)):
            host = f"{name}-{kind.lower()}-{index}.{space}.svc" if name else None
            tasks.append(Task("worker", len(tasks), host, here if host else None, slots, devices))
    return Cluster(tuple(tasks), source=job.source)


def _mpijob(job: Node) -> Cluster:
    _check_version(job, ("kubeflow.org/v2beta1", "kubeflow.org/v1", "kubeflow.org/v1alpha2"))
    spec = _need(job, "spec")
    known = (
        "mpiReplicaSpecs",
        "slotsPerWorker",
        "sshAuthMountPath",
        "launcherCreationPolicy",
        "mpiImplementation",
        "mpiDistribution",
    )
    spec.check_keys((*known, "runLauncherAsWorker", "mainContainer", *_POLICY), "MPIJob")
    kinds = _replica_specs(spec, "mpiReplicaSpecs", ("Launcher", "Worker"))
    per_worker = spec.get("slotsPerWorker")
    slots = per_worker.count(1) if per_worker else 1
    name, space = object_name(job), namespace(job)
    tasks: list[Task] = []
    joins = spec.child("runLauncherAsWorker").value is True
    for kind in sorted(kinds):
        if kind == "Launcher" and not joins:
            continue  # It runs mpirun and no rank.
        replicas = kinds[kind]
        count = _replicas(replicas)
        devices = min(slots, gpus(container(replicas.get("template"), None)))
        for index in range(_total(replicas, tasks, count, slots)):
            pod = f"{name}-launcher" if kind == "Launcher" else f"{name}-worker-{index}"
            # MPI has no ports: mpirun starts its processes over ssh.
            tasks.append(Task("worker", len(tasks), f"{pod}.{name}.{space}.svc" if name else None, None, slots, devices))
    if not tasks:
        raise spec.error("the MPIJob has no Worker replicas, and its launcher runs no rank")
    return Cluster(tuple(tasks), source=job.source)


def _trainjob(job: Node) -> Cluster:
    version = _need(job, "apiVersion")
    if version.text().partition("/")[0] not in ("trainer.kubeflow.org", "kubeflow.org"):
        raise version.error(f"{shown(version.value)} is not the API of a TrainJob; expected trainer.kubeflow.org/v1alpha1")
    spec = _need(job, "spec")
    spec.check_near(("trainer", "runtimeRef"), "TrainJob")
    trainer = _need(spec, "trainer")
    trainer.check_near(("numNodes", "numProcPerNode", "resourcesPerNode"), "trainer")
    nodes = trainer.get("numNodes")
    if nodes is None:
        raise trainer.error("numNodes is missing: the default of the runtime is not in this file; give the number of nodes")
    slots, devices = _slots(trainer.get("numProcPerNode"), gpus(trainer, "resourcesPerNode"))
    name, space = object_name(job), namespace(job)
    count = _total(nodes, [], nodes.count(1), slots)
    # Trainer makes a JobSet with one replicated job, `node`, and a headless service with the name of the TrainJob.
    hosts = [f"{name}-node-0-{index}.{name}.{space}.svc" if name else None for index in range(count)]
    return Cluster(
        tuple(Task("worker", index, host, None, slots, devices) for index, host in enumerate(hosts)), source=job.source
    )


READERS: dict[str, Callable[[Node], Cluster]] = {
    "TFJob": _tfjob,
    "TrainJob": _trainjob,
    "PyTorchJob": _pytorchjob,
    "MPIJob": _mpijob,
}
"""Kind of training job -> its reader."""


def _need(node: Node, field: str) -> Node:
    found = node.get(field)
    if found is None:
        raise node.error(f"the field {field} is missing")
    return found


def _check_version(job: Node, versions: tuple[str, ...]) -> None:
    version = _need(job, "apiVersion")
    if version.text() not in versions:
        hint = nearest(version.value, versions, otherwise="")
        kind = job.child("kind").value
        raise version.error(f"{shown(version.value)} is not an API of {kind}; they are {', '.join(versions)}{hint}")


def _replica_specs(spec: Node, field: str, kinds: tuple[str, ...]) -> dict[str, Node]:
    """Returns replica specifications by type. The operators take the types in upper and lower case."""
    specs = _need(spec, field)
    usual = {kind.lower(): kind for kind in kinds}
    found: dict[str, Node] = {}
    for key, value in specs.mapping().items():
        kind = usual.get(key.lower()) if isinstance(key, str) else None
        if kind is None:
            hint = nearest(key, kinds)
            raise specs.error(f"{shown(key)} is not a replica type; the types are {', '.join(kinds)}{hint}")
        if kind in found:
            raise specs.child(key).error(f"{kind} is given twice; keep one of them")
        if value is not None:
            found[kind] = specs.child(key)
            found[kind].check_keys(("replicas", "template", "restartPolicy"), "a replica specification")
    if not found:
        raise specs.error(f"there are no replicas; expected some of {', '.join(kinds)}")
    return found


def _replicas(replicas: Node) -> int:
    count = replicas.get("replicas")
    return 1 if count is None else count.count(0)


def _total(node: Node, tasks: list[Task], count: int, slots: int) -> int:
    """Returns `count` after a check against the limit, before the tasks are made."""
    total = sum(task.slots for task in tasks) + count * max(1, slots)
    if total > MAX_TASKS:
        raise node.error(f"there would be {total} tasks or devices, more than {MAX_TASKS}; are the numbers right?")
    return count


def _slots(processes: Node | None, devices: int) -> tuple[int, int]:
    """Returns slots and GPUs of a node: the given number of processes, else one for each GPU."""
    if processes is None or processes.value in ("gpu", "auto"):
        if processes is not None and not devices:
            raise processes.error(f"{processes.value!r} depends on the machine, and no GPUs are asked for; give a number")
        return max(1, devices), devices
    if processes.value == "cpu":
        raise processes.error("'cpu' depends on the machine; give the number of processes")
    slots = processes.count(1)
    return slots, min(slots, devices)
