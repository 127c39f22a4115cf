"""Reads the training jobs of Kubeflow: TFJob, MPIJob and Trainer's TrainJob.

Sources: kubeflow/training-operator v1.9 (`pkg/apis/kubeflow.org/v1`, `pkg/controller.v1/tensorflow/tensorflow.go`,
`pkg/webhooks/tensorflow/tfjob_webhook.go`) and 0b807f39 (`pkg/apis/tensorflow/v1alpha1/types.go`); kubeflow/mpi-operator
v2beta1; kubeflow/trainer `pkg/apis/trainer/v1alpha1` and `manifests/base/runtimes`.
"""

from collections.abc import Callable, Sequence

from tfdist.cluster import Cluster, Task
from tfdist.dialects.kubernetes.fields import (
    POLICY,
    check_version,
    checked_total,
    need,
    replica_count,
    replica_specs,
    slots_of_node,
)
from tfdist.dialects.kubernetes.launcher import check_processes
from tfdist.dialects.kubernetes.pods import container, gpus, namespace, object_name, port
from tfdist.dialects.parsing.document import shown
from tfdist.dialects.parsing.node import Node
from tfdist.errors import nearest

TF_JOBS = {"Chief": "chief", "Master": "chief", "Worker": "worker", "PS": "ps", "Evaluator": "evaluator"}
"""Replica type of TFJob -> job in TF_CONFIG. `Master` is the older name of `Chief`."""

TF_PORT, TF_CONTAINER = 2222, "tensorflow"
TF_PORT_NAME = "tfjob-port"

_TF_VERSIONS = ("kubeflow.org/v1", "kubeflow.org/v1beta2", "kubeflow.org/v1beta1", "kubeflow.org/v1alpha2")


FIRST_TF_VERSIONS = ("kubeflow.org/v1alpha1", "tensorflow.org/v1alpha1", "mlkube.io/v1beta1")
"""API versions in which TFJob had a list of replicas. In the last it was `kind: TfJob`."""

RUNTIMES = ("TrainingRuntime", "ClusterTrainingRuntime")
"""Kinds of the templates that TrainJobs refer to."""

_OF_ONE_NODE = frozenset(f"{name}-distributed" for name in ("torch", "jax", "deepspeed", "mlx", "xgboost", "flux"))
"""Runtimes that Trainer installs. A TrainJob has one node under them, unless it says otherwise."""


def _tfjob(job: Node) -> Cluster:
    if job.child("apiVersion").value in FIRST_TF_VERSIONS:
        return _first_tfjob(job)
    check_version(job, (*_TF_VERSIONS, *FIRST_TF_VERSIONS))
    spec = need(job, "spec")
    spec.check_keys(("tfReplicaSpecs", "successPolicy", "enableDynamicWorker", "onExit", *POLICY), "TFJob")
    name, space = object_name(job), namespace(job)
    tasks: list[Task] = []
    given: dict[str, str] = {}
    for kind, replicas in replica_specs(spec, "tfReplicaSpecs", tuple(TF_JOBS)).items():
        role = TF_JOBS[kind]
        pod = container(replicas.get("template"), TF_CONTAINER)
        count, here = replica_count(replicas), port(pod, TF_PORT_NAME, TF_PORT)
        if role in given:
            raise replicas.error(f"both a {given[role]} and a {kind} are given; TFJob takes one of them")
        given[role] = kind
        if role in ("chief", "evaluator") and count > 1:
            raise replicas.error(f"there are {count} replicas of {kind}; TensorFlow allows one {role}")
        width = 0 if role == "ps" else gpus(pod)  # A ps holds one shard, also in a pod with GPUs.
        for index in range(checked_total(replicas, tasks, count, width)):
            host = f"{name}-{kind.lower()}-{index}.{space}.svc" if name else None
            tasks.append(Task(role, index, host, here if host else None, max(1, width), width))
    return Cluster(tuple(tasks), source=job.source)


def _first_tfjob(job: Node) -> Cluster:
    """Reads TFJob of 2017 and 2018, a list of replicas. Its operator put a random id into host names, so addresses are open."""
    spec = need(job, "spec")
    spec.check_near(("replicaSpecs", "replica_specs", "terminationPolicy"), "TFJob")
    listed = spec.get("replicaSpecs", "replica_specs")
    if listed is None:
        raise spec.error("the field replicaSpecs is missing")
    tasks: list[Task] = []
    for replicas in listed.entries():
        replicas.check_near(
            ("replicas", "template", "tfPort", "tf_port", "TfPort", "tfReplicaType", "tf_replica_type"), "a replica"
        )
        given = replicas.get("tfReplicaType", "tf_replica_type")
        kind = "MASTER" if given is None else given.text().upper()
        role = {"MASTER": "chief", "WORKER": "worker", "PS": "ps"}.get(kind)
        if given is not None and role is None:
            hint = nearest(kind, ("MASTER", "WORKER", "PS"))
            raise given.error(f"{shown(given.value)} is not a replica type; the types are MASTER, WORKER, PS{hint}")
        if any(task.job == role for task in tasks):
            raise replicas.error(f"{kind} is given twice; keep one of them")
        count = replica_count(replicas)
        if role == "chief" and count > 1:
            raise replicas.error(f"there are {count} replicas of MASTER; TensorFlow allows one chief")
        width = 0 if role == "ps" else gpus(container(replicas.get("template"), TF_CONTAINER))
        for index in range(checked_total(replicas, tasks, count, width)):
            tasks.append(Task(role or "chief", index, slots=max(1, width), gpus=width))
    return Cluster(tuple(tasks), source=job.source)


def _mpijob(job: Node) -> Cluster:
    if job.child("apiVersion").value == "kubeflow.org/v1alpha1":
        return _first_mpijob(job)
    check_version(
        job, ("kubeflow.org/v2beta1", "kubeflow.org/v2", "kubeflow.org/v1", "kubeflow.org/v1alpha2", "kubeflow.org/v1alpha1")
    )
    spec = need(job, "spec")
    known = (
        "mpiReplicaSpecs",
        "slotsPerWorker",
        "sshAuthMountPath",
        "launcherCreationPolicy",
        "mpiImplementation",
        "mpiDistribution",
    )
    spec.check_keys((*known, "runLauncherAsWorker", "mainContainer", *POLICY), "MPIJob")
    kinds = replica_specs(spec, "mpiReplicaSpecs", ("Launcher", "Worker"))
    per_worker = spec.get("slotsPerWorker")
    slots = per_worker.count(1) if per_worker else 1
    name, space = object_name(job), namespace(job)
    tasks: list[Task] = []
    joins = spec.child("runLauncherAsWorker").value is True
    for kind in sorted(kinds):
        if kind == "Launcher" and not joins:
            continue  # It runs mpirun and no rank.
        replicas = kinds[kind]
        count = replica_count(replicas)
        devices = min(slots, gpus(container(replicas.get("template"), None)))
        for index in range(checked_total(replicas, tasks, count, slots)):
            pod = f"{name}-launcher" if kind == "Launcher" else f"{name}-worker-{index}"
            # MPI has no ports: mpirun starts its processes over ssh.
            tasks.append(Task("worker", len(tasks), f"{pod}.{name}.{space}.svc" if name else None, None, slots, devices))
    if not tasks:
        raise spec.error("the MPIJob has no Worker replicas, and its launcher runs no rank")
    if launcher := kinds.get("Launcher"):
        total = sum(task.slots for task in tasks)
        check_processes(launcher, [total], len(tasks), f"the pods have {total} slots (slotsPerWorker times replicas)")
    return Cluster(tuple(tasks), source=job.source)


def _first_mpijob(job: Node) -> Cluster:
    """Reads MPIJob of 2018, which gives the number of worker pods, or of all GPUs."""
    spec = need(job, "spec")
    pod, name, space = container(spec.get("template"), None), object_name(job), namespace(job)
    given, per_worker = spec.get("replicas"), spec.get("slotsPerWorker")
    width = gpus(pod)
    if given is not None:
        count = given.count(1)
    else:
        units, per_node = spec.get("gpus", "processingUnits"), spec.get("gpusPerNode", "processingUnitsPerNode")
        if units is None:
            raise spec.error("there is neither replicas nor gpus, which give the number of workers")
        if per_node is None:
            raise units.error("gpusPerNode is missing, and its default is an option of the operator; add it, or give replicas")
        width = min(units.count(1), per_node.count(1))
        count = units.count(1) // width
        if count * width != units.value:
            raise units.error(f"it is no multiple of gpusPerNode, {width}")
    slots = per_worker.count(1) if per_worker else max(1, width)
    checked_total(spec, [], count, slots)
    hosts = [f"{name}-worker-{index}.{name}.{space}.svc" if name else None for index in range(count)]
    return Cluster(
        tuple(Task("worker", index, host, None, slots, min(slots, width)) for index, host in enumerate(hosts)),
        source=job.source,
    )


def trainjob(job: Node, runtimes: Sequence[Node] = ()) -> Cluster:
    """Reads a TrainJob. Its runtime, if it is among `runtimes`, those of the same file, gives what the job leaves open.

    Raises:
        ClusterError: for bad fields, and if only a runtime elsewhere says how many nodes there are.
    """
    version = need(job, "apiVersion")
    if version.text().partition("/")[0] not in ("trainer.kubeflow.org", "kubeflow.org"):
        raise version.error(f"{shown(version.value)} is not the API of a TrainJob; expected trainer.kubeflow.org/v1alpha1")
    spec = need(job, "spec")
    spec.check_near(("trainer", "runtimeRef"), "TrainJob")
    trainer = spec.get("trainer")
    if trainer is not None:
        trainer.check_near(("numNodes", "numProcPerNode", "resourcesPerNode"), "trainer")
    nodes, processes = _of_runtime(spec, runtimes)
    given = spec.find("trainer", "numNodes")
    nodes = nodes if given is None else given.count(1)
    if nodes is None:
        raise (trainer or spec).error(
            "the trainer's numNodes is missing, and no runtime in this file says it; give the number of nodes"
        )
    slots, devices = slots_of_node(spec.find("trainer", "numProcPerNode") or processes, gpus(trainer, "resourcesPerNode"))
    name, space = object_name(job), namespace(job)
    count = checked_total(given or spec, [], nodes, slots)
    # Trainer makes a JobSet with one replicated job, `node`, and a headless service with the name of the TrainJob.
    hosts = [f"{name}-node-0-{index}.{name}.{space}.svc" if name else None for index in range(count)]
    return Cluster(
        tuple(Task("worker", index, host, None, slots, devices) for index, host in enumerate(hosts)), source=job.source
    )


def _of_runtime(spec: Node, runtimes: Sequence[Node]) -> tuple[int | None, Node | None]:
    """Returns the nodes of a TrainJob and the processes of each node, as its runtime says; None for what it leaves open."""
    reference = spec.get("runtimeRef")
    name = reference.child("name").value if reference is not None else None
    for runtime in runtimes:
        metadata = runtime.get("metadata")
        if name is None or metadata is None or metadata.child("name").value != name:
            continue
        policy = runtime.find("spec", "mlPolicy")
        if policy is None:
            return 1, None
        source = next((found for kind in ("torch", "mpi", "flux") if (found := policy.get(kind)) is not None), None)
        if source is not None and source.get("elasticPolicy") is not None:
            return None, None  # The number of nodes changes while it runs.
        nodes = policy.get("numNodes")
        processes = source.get("numProcPerNode") if source is not None else None
        if processes is not None and processes.value in ("auto", "cpu", "gpu"):
            processes = None  # One for each GPU that the job asks for.
        return 1 if nodes is None else nodes.count(1), processes
    return 1 if name in _OF_ONE_NODE else None, None


READERS: dict[str, Callable[[Node], Cluster]] = {"TFJob": _tfjob, "TrainJob": trainjob, "MPIJob": _mpijob}
"""Kind of training job -> its reader."""
