"""Kubernetes: what the manifests of training jobs mean."""

import json

import pytest
import yaml
from kubernetes_samples import FIRST_TFJOB, MNIST, MPI_JOB, PYTORCH_JOB, SERVICE, TRAIN_JOB

from tfdist.cluster import Cluster
from tfdist.dialects import read
from tfdist.errors import ClusterError


def tfjob(specs: str, version: str = "kubeflow.org/v1", **spec: str) -> str:
    more = "".join(f"  {key}: {value}\n" for key, value in spec.items())
    return f"apiVersion: {version}\nkind: TFJob\nmetadata: {{name: j}}\nspec:\n{more}  tfReplicaSpecs: {specs}\n"


def addresses(cluster: Cluster) -> dict[str, str | None]:
    return {task.name: task.address if task.port else task.host for task in cluster.tasks}


def test_a_tfjob_has_the_addresses_that_its_operator_gives() -> None:
    cluster = read(MNIST)
    assert addresses(cluster) == {
        "chief:0": "dist-mnist-chief-0.ml.svc:2222",
        "worker:0": "dist-mnist-worker-0.ml.svc:3333",
        "worker:1": "dist-mnist-worker-1.ml.svc:3333",
        "worker:2": "dist-mnist-worker-2.ml.svc:3333",
        "ps:0": "dist-mnist-ps-0.ml.svc:2222",
        "ps:1": "dist-mnist-ps-1.ml.svc:2222",
        "evaluator:0": "dist-mnist-evaluator-0.ml.svc:2222",
    }
    assert [(task.slots, task.gpus) for task in cluster.tasks] == [(1, 0), (2, 2), (2, 2), (2, 2), (1, 0), (1, 0), (1, 0)]
    # The same as the TF_CONFIG that the operator (v1.9) gives to worker 1, but for the GPUs, which TF_CONFIG does not tell.
    emitted = {
        "cluster": {
            "chief": ["dist-mnist-chief-0.ml.svc:2222"],
            "evaluator": ["dist-mnist-evaluator-0.ml.svc:2222"],
            "ps": ["dist-mnist-ps-0.ml.svc:2222", "dist-mnist-ps-1.ml.svc:2222"],
            "worker": [f"dist-mnist-worker-{n}.ml.svc:3333" for n in range(3)],
        },
        "task": {"type": "worker", "index": 1},
        "environment": "cloud",
    }
    assert addresses(read(emitted)) == addresses(cluster)


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1", "v1alpha2"])
def test_every_version_of_tfjob_is_read(version: str) -> None:
    assert len(read(tfjob("{Worker: {replicas: 2}}", f"kubeflow.org/{version}")).tasks) == 2


@pytest.mark.parametrize("api", ["kubeflow.org/v1alpha1\nkind: TFJob", "mlkube.io/v1beta1\nkind: TfJob"])
def test_the_first_tfjobs_are_read_without_hosts_into_which_the_operator_put_a_random_id(api: str) -> None:
    manifest = FIRST_TFJOB.replace("kubeflow.org/v1alpha1\nkind: TFJob", api)
    cluster = read(manifest)
    assert cluster.describe() == "1 chief, 2 workers, 2 ps"
    assert {(task.job, task.host, task.port, task.gpus) for task in cluster.tasks} == {
        ("chief", None, None, 0),
        ("worker", None, None, 1),
        ("ps", None, None, 0),
    }
    for before, after in (("replicaSpecs", "replica_specs"), ("tfReplicaType", "tf_replica_type"), ("tfPort", "tf_port")):
        manifest = manifest.replace(before, after)
    assert read(manifest) == cluster
    # The defaults: one master.
    assert read(manifest.partition("    - tf_replica_type")[0] + "    - {}\n").describe() == "1 chief"


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        (
            tfjob("{Master: {}, Worker: {}}"),
            {"chief:0": "j-master-0.default.svc:2222", "worker:0": "j-worker-0.default.svc:2222"},
        ),
        (tfjob("{Worker: {replicas: 1}, PS: {replicas: 0}}"), {"worker:0": "j-worker-0.default.svc:2222"}),
        (tfjob("{Worker: {}}", enableDynamicWorker="true", cleanPodPolicy="All"), {"worker:0": "j-worker-0.default.svc:2222"}),
        (tfjob("{Worker: {}}").replace("name: j", "generateName: j-"), {"worker:0": None}),
        (tfjob("{Worker: {}}").replace("name: j", "name: j, namespace: ''"), {"worker:0": "j-worker-0.default.svc:2222"}),
    ],
)
def test_variants_of_tfjob(manifest: str, expected: dict[str, str | None]) -> None:
    found = {task.name: task.address if task.host else None for task in read(manifest).tasks}
    assert found == expected


def test_the_training_job_is_found_among_other_objects() -> None:
    expected = read(MNIST)
    documents = f"---\n# only a comment\n---\n{SERVICE}---\n{MNIST}---\n"
    listed = {"apiVersion": "v1", "kind": "List", "items": list(yaml.safe_load_all(SERVICE + "---\n" + MNIST))}
    for source in (documents, listed, json.dumps(listed), yaml.safe_load(MNIST), json.dumps(yaml.safe_load(MNIST))):
        assert read(source) == expected


def shape(cluster: Cluster) -> list[tuple[str, str | None, int, int]]:
    return [(task.name, task.host, task.slots, task.gpus) for task in cluster.tasks]


def test_jobs_of_other_frameworks_are_workers_that_train_alike() -> None:
    assert shape(read(TRAIN_JOB)) == [(f"worker:{n}", f"llm-node-0-{n}.llm.ml.svc", 4, 4) for n in range(3)]
    fewer = TRAIN_JOB.replace("numNodes: 3", "numNodes: 1\n    numProcPerNode: 2")
    assert shape(read(fewer)) == [("worker:0", "llm-node-0-0.llm.ml.svc", 2, 2)]
    # Rank 0 is the master: it comes first, and has no GPUs here.
    assert shape(read(PYTORCH_JOB)) == [
        ("worker:0", "ddp-master-0.ml.svc", 2, 0),
        ("worker:1", "ddp-worker-0.ml.svc", 2, 2),
        ("worker:2", "ddp-worker-1.ml.svc", 2, 2),
    ]
    assert read(PYTORCH_JOB).tasks[0].port == 23456
    workers = [("mpi-worker-0.mpi.ml.svc", 2, 2), ("mpi-worker-1.mpi.ml.svc", 2, 2)]
    assert [entry[1:] for entry in shape(read(MPI_JOB))] == workers
    assert read(MPI_JOB.replace("v2beta1", "v1alpha2").replace("  slotsPer", "  mpiDistribution: OpenMPI\n  slotsPer")) == read(
        MPI_JOB
    )
    joined = MPI_JOB.replace("slotsPerWorker: 2", "slotsPerWorker: 2\n  runLauncherAsWorker: true")
    assert [entry[1:] for entry in shape(read(joined))] == [("mpi-launcher.mpi.ml.svc", 2, 0), *workers]
    assert len(read(MPI_JOB).worker_groups) == 1


@pytest.mark.parametrize(
    ("command", "slots"),
    [
        ("[torchrun, --nproc_per_node=4, t.py]", 4),
        ("[torchrun, --nproc-per-node, '4', t.py, --nproc_per_node=8]", 4),
        ('[bash, -c, "mkdir x; exec torchrun --nnodes=3 --nproc_per_node 4 t.py"]', 4),
        ("[python3, -m, torch.distributed.run, --nproc_per_node=4, -m, package.train]", 4),
        ("[sh, -c, 'python -m torch.distributed.launch --nproc_per_node=4 t.py']", 4),
        ("[torchrun, t.py]", 1),
        ("[torchrun, --nproc_per_node=gpu, t.py]", 1),
        ("[torchrun, --unknown, --nproc_per_node=4, t.py]", 1),
        ("[python, t.py, torchrun, --nproc_per_node=4]", 1),
    ],
)
def test_the_processes_of_torchrun_in_the_pods_of_a_pytorchjob_are_read(command, slots):
    job = PYTORCH_JOB.replace("nvidia.com/gpu", "cpu").replace("name: pytorch", f"command: {command}, name: pytorch")
    assert [task.slots for task in read(job.replace('  nprocPerNode: "2"\n', "")).tasks] == [slots] * 3
    assert [task.slots for task in read(job.replace('"2"', str(slots))).tasks] == [slots] * 3
    if slots == 4:
        with pytest.raises(ClusterError, match="its command starts 4 processes, and nprocPerNode is 2; let them agree"):
            read(job)


@pytest.mark.parametrize(
    ("command", "count"),
    [
        ('[mpirun, -np, "4", python, t.py, -n, "3"]', 4),
        ('[bash, -c], args: ["mkdir x; time mpirun --allow-run-as-root -np 4 -x A python t.py -n 3"]', 4),
        ('[bash, -c, "mpirun -np 2 mkdir x; mpirun -np 4 python t.py"]', 4),
        ("[mpirun, -np, $(COUNT), python, t.py]", None),
        ("[bash, -c, 'mpirun -np 2 python t.py', x, 'y']", 2),
        ('[mpiexec], args: [-n, "3", python, t.py]', 3),
        ('[sh, -c, "horovodrun -np 8 python t.py"]', 8),
        ("[mpirun, -npernode, '1', python, t.py]", 2),
        ("[mpirun, --map-by, 'ppr:2:node', python, t.py]", 4),
        ("[mpirun, -N, $(COUNT), python, t.py]", None),
        ("[mpirun, -N, '1', -H, $(HOSTS), python, t.py]", None),
    ],
)
def test_the_launcher_of_an_mpijob_starts_as_many_processes_as_there_are_slots(command: str, count: int | None) -> None:
    """Another number was passed over."""
    manifest = MPI_JOB.replace("{name: l}", f"{{name: l, command: {command}}}")
    if count in (4, None):
        assert read(manifest) == read(MPI_JOB)
        return
    message = f"Launcher: its command starts {count} processes, and the pods have 4 slots \\(slotsPerWorker times replicas"
    with pytest.raises(ClusterError, match=message):
        read(manifest)


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (
            f"{MNIST}---\n{MNIST}",
            f"<text>:{MNIST.count(chr(10)) + 2}: items.1: there are 2 training jobs, TFJob 'dist-mnist' and TFJob 'dist-mnist'",
        ),
        (SERVICE, "<text>:1: there is no training job, only Service; tfdist reads TFJob, TrainJob, MPIJob, PyTorchJob"),
        (MNIST.replace("TFJob", "TfJob"), "only TfJob"),
        (MNIST.replace("TFJob", "TfJob"), "did you mean TFJob?"),
        (
            MNIST.replace("tfReplicaSpecs", "tfReplicaSpec"),
            "<text>:8: spec.tfReplicaSpec: TFJob has no such field; did you mean",
        ),
        (
            MNIST.replace("    Worker:", "    Wroker:"),
            "'Wroker' is not a replica type; the types are Chief, Master, Worker, PS, E",
        ),
        (MNIST.replace("    Worker:", "    Wroker:"), "did you mean Worker?"),
        (
            MNIST.replace("replicas: 3", "replica: 3"),
            "tfReplicaSpecs.Worker.replica: a replica specification has no such field",
        ),
        (MNIST.replace("replicas: 3", "replicas: -3"), "<text>:19: spec.tfReplicaSpecs.Worker.replicas: -3 is not a count"),
        (MNIST.replace("replicas: 3", "replicas: 3.5"), "3.5 is not a count; expected a whole number from 0 to 100000"),
        (MNIST.replace("replicas: 3", "replicas: 60000"), "there would be 120002 tasks or devices, more than 100000"),
        (MNIST.replace("chief: {}", "chief: {}\n    Chief: {}"), "Chief is given twice"),
        (MNIST.replace("chief: {}", "Chief: {}\n    Master: {}"), "both a Chief and a Master are given"),
        (MNIST.replace("chief: {}", "Chief: {replicas: 2}"), "there are 2 replicas of Chief; TensorFlow allows one chief"),
        (MNIST.replace("name: tensorflow", "name: tf"), "there is no container named tensorflow"),
        (MNIST.replace("kubeflow.org/v1", "kubeflow.org/v2"), "'kubeflow.org/v2' is not an API of TFJob"),
        (
            MNIST.replace("name: dist-mnist", "name: Dist_Mnist"),
            "<text>:4: metadata.name: 'Dist_Mnist' is not a name that Kubern",
        ),
        (MNIST.replace("namespace: ml", "namespace: 'm l'"), "metadata.namespace: 'm l' is not a name"),
        (MNIST.replace("  name: dist-mnist\n", ""), "the object has no metadata.name"),
        (MNIST.replace("containerPort: 3333", "containerPort: 0"), "0 is not a count; expected a whole number from 1 to 65535"),
        (MNIST.replace("replicas: 2", "replicas: &a 2").replace("replicas: 3", "replicas: *a"), "the alias *a is not allowed"),
        (tfjob("{}"), "there are no replicas"),
        (tfjob("{PS: {}}"), "there are ps tasks but no workers"),
        (tfjob("[]"), "spec.tfReplicaSpecs: [] is not a mapping"),
        (tfjob("{Evaluator: {}}"), "there are evaluators but nothing that trains"),
        ("apiVersion: v1\nkind: 5\n", "5 is not a text"),
        ("apiVersion: v1\nkind: List\nitems: []\n", "there is no training job, only nothing"),
        (TRAIN_JOB.replace("numNodes", "numNode"), "trainer has no such field; did you mean numNodes?"),
        (TRAIN_JOB.replace("numNodes: 3", "numNodes: 0"), "0 is not a count; expected a whole number from 1"),
        (PYTORCH_JOB.replace('"2"', "cpu"), "spec.nprocPerNode: 'cpu' depends on the machine; give the number of processes"),
        (PYTORCH_JOB.replace('"2"', "gpu"), "'gpu' depends on the machine, and no GPUs are asked for"),
        (
            PYTORCH_JOB.replace("Master: {replicas: 1", "Master: {replicas: 2"),
            "there are 2 replicas of Master; PyTorchJob has one",
        ),
        (MPI_JOB.replace("    Worker", "    Wrker"), "'Wrker' is not a replica type"),
        (FIRST_TFJOB.replace(": PS", ": PSS"), ":12: spec.replicaSpecs.2.tfReplicaType: 'PSS' is not a replica type"),
        (FIRST_TFJOB.replace(": PS", ": WORKER"), "WORKER is given twice"),
        (FIRST_TFJOB.replace("tfPort", "tf_Port"), "a replica has no such field; did you mean tfPort"),
        (FIRST_TFJOB.replace("replicaSpecs", "tfReplicaSpecs"), "TFJob has no such field; did you mean replicaSpecs"),
        (FIRST_TFJOB.replace("replicas: 2", "replicas: 60000"), "there would be 120001 tasks or devices"),
    ],
)
def test_what_is_refused_and_how(manifest: str, message: str) -> None:
    with pytest.raises(ClusterError) as caught:
        read(manifest)
    assert message in str(caught.value)


def test_a_second_document_of_something_else_is_still_refused() -> None:
    with pytest.raises(ClusterError, match=r"^<text>:3: .*a second document begins; only Kubernetes objects"):
        read("trainingInput:\n  scaleTier: BASIC\n---\nkind: TFJob\n")


RUNTIME = """---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata: {name: %s}
spec: {mlPolicy: {%s}}
"""


def test_a_runtime_says_what_a_train_job_leaves_open() -> None:
    job = TRAIN_JOB.replace("    numNodes: 3\n", "")
    name = yaml.safe_load(job)["spec"]["runtimeRef"]["name"]
    assert name == "torch-distributed" and read(job).describe() == "1 worker"  # As Trainer installs this one.
    assert len(read(job + RUNTIME % (name, "numNodes: 2, torch: {numProcPerNode: auto}")).tasks) == 2
    four = read(job.partition("  trainer:")[0] + RUNTIME % (name, "numNodes: 2, mpi: {numProcPerNode: 4}"))
    assert [task.slots for task in four.tasks] == [4, 4]
    own = job.replace(name, "ours")
    assert read(own + RUNTIME % ("ours", "torch: {}")).describe() == "1 worker"
    for given in (
        own,
        own + RUNTIME % ("other", "numNodes: 2"),
        own + RUNTIME % ("ours", "torch: {elasticPolicy: {minNodes: 1}}"),
    ):
        with pytest.raises(ClusterError, match="the trainer's numNodes is missing, and no runtime in this file says it"):
            read(given)
