"""Jobs of Kubernetes that are groups of pods or the ranks of one: JobSet, LeaderWorkerSet, Volcano, JAXJob, XGBoostJob, PaddleJob."""

import pytest
from kubernetes_samples import GROUP, JAX_JOB, JOB_SET, VOLCANO

import tfdist
from tfdist.errors import ClusterError


def hosts(text: str, job: str = "worker") -> list[str]:
    return [f"{task.host}:{task.port}" for task in tfdist.read(text).job(job)]


def kinds(text: str) -> list[tuple[str, int, int]]:
    return [(task.job, task.slots, task.gpus) for task in tfdist.read(text).tasks]


def refused(text: str) -> str:
    with pytest.raises(ClusterError) as caught:
        tfdist.read(text)
    return str(caught.value)


def ranked(kind: str, field: str, container: str, roles: dict[str, int]) -> str:
    template = f"template: {{spec: {{containers: [{{name: {container}, resources: {{limits: {{nvidia.com/gpu: 2}}}}}}]}}}}"
    return f"apiVersion: kubeflow.org/v1\nkind: {kind}\nmetadata: {{name: j}}\nspec:\n  {field}:\n" + "".join(
        f"    {role}: {{replicas: {count}, {template}}}\n" for role, count in roles.items()
    )


def test_the_groups_of_a_job_set_are_jobs() -> None:
    assert hosts(JOB_SET) == [f"mnist-workers-{job}-{pod}.net.ml.svc:None" for job in range(2) for pod in range(2)]
    assert kinds(JOB_SET) == [("worker", 2, 2)] * 4 + [("ps", 1, 0)]
    alone = JOB_SET.replace("  - name: ps\n    template: {spec: {template: {spec: {containers: [{name: p}]}}}}\n", "")
    assert hosts(alone.replace("  network: {subdomain: net}\n", ""))[0] == "mnist-workers-0-0.mnist.ml.svc:None"
    assert len(kinds(alone.replace("name: workers", "name: anything"))) == 4
    assert len(kinds(alone.replace("parallelism: 2", "parallelism: 8"))) == 4  # No more than there are to complete.
    assert len(kinds(alone.replace("        completions: 2\n", ""))) == 4
    master = alone + "  - name: master\n    template: {spec: {template: {spec: {containers: [{name: p}]}}}}\n"
    assert hosts(master)[0] == "mnist-master-0-0.net.ml.svc:None"


def test_bad_job_sets() -> None:
    assert "replicatedJobs.1: 'driver' is not the name of a job that trains" in refused(
        JOB_SET.replace("name: ps", "name: driver")
    )
    assert "google.com/tpu: the pods ask for TPUs" in refused(JOB_SET.replace("nvidia.com/gpu", "google.com/tpu"))
    assert "more than 100000" in refused(JOB_SET.replace(": 2\n        completions: 2", ": 99999\n        completions: 99999"))
    for fewer in ("", "parallelism: 1\n        "):  # Kubernetes starts the second pod when the first has ended.
        assert "of 2 pods (completions) Kubernetes starts 1 at a time" in refused(
            JOB_SET.replace("parallelism: 2\n        ", fewer)
        )
    assert "replicatedJobs.1: 'name' is not a mapping; expected fields" in refused(
        JOB_SET.partition("  - name: ps")[0] + "  - name\n"
    )


def test_the_container_that_asks_for_gpus_trains() -> None:
    beside = JOB_SET.replace("containers: [{name: ", "containers: [{name: tcpx-daemon}, {name: ")
    assert beside != JOB_SET and kinds(beside) == kinds(JOB_SET)
    assert "google.com/tpu: the pods ask for TPUs" in refused(beside.replace("nvidia.com/gpu", "google.com/tpu"))


def test_the_tasks_of_volcano_are_jobs() -> None:
    assert hosts(VOLCANO) == [f"mnist-worker-{index}.mnist.default.svc:2222" for index in range(2)]
    assert hosts(VOLCANO, "ps") == ["mnist-ps-0.mnist.default.svc:2223"]
    assert kinds(VOLCANO) == [("worker", 1, 1)] * 2 + [("ps", 1, 0)]
    mpi = VOLCANO.replace("name: ps", "name: mpimaster").replace("name: worker", "name: mpiworker")
    assert hosts(mpi) == [f"mnist-mpiworker-{index}.mnist.default.svc:2222" for index in range(2)]
    horovod = VOLCANO.replace("name: ps", "name: master").replace("env: []", "ssh: []")
    assert len(kinds(horovod)) == 2  # The master only runs mpirun.
    pytorch = VOLCANO.replace("name: ps", "name: master").replace("env: []", "pytorch: []")
    assert hosts(pytorch)[0] == "mnist-master-0.mnist.default.svc:2223" and len(kinds(pytorch)) == 3
    renamed = VOLCANO.replace("name: ps", "name: Server").replace("name: worker", "name: w")
    plugin = 'tensorflow: ["--ps=Server", "-worker", "w", "--port=2225"]'
    assert hosts(renamed.replace("env: []", plugin)) == [f"mnist-w-{index}.mnist.default.svc:2225" for index in range(2)]
    assert hosts(renamed.replace("env: []", plugin), "ps") == ["mnist-Server-0.mnist.default.svc:2225"]
    usual = VOLCANO.replace("env: []", 'tensorflow: ["--ps=ps", "--worker=worker", "--port=2225"]')  # As in Volcano's guide.
    assert kinds(usual) == kinds(VOLCANO) and hosts(usual, "ps") == ["mnist-ps-0.mnist.default.svc:2225"]
    assert hosts(VOLCANO.replace("env: []", "tensorflow: []"), "ps") == ["mnist-ps-0.mnist.default.svc:2222"]
    assert len(kinds(renamed.replace("env: []", 'mpi: ["--master=Server", "--worker=w"]'))) == 2
    assert "spec.plugins.tensorflow: --port: '99999' is not a port" in refused(
        VOLCANO.replace("env: []", 'tensorflow: ["--port=99999"]')
    )
    assert "'Server' is not the name of a job that trains" in refused(renamed)
    assert "'default-nginx' is not the name of a job that trains" in refused(VOLCANO.replace("name: ps", "name: default-nginx"))


@pytest.mark.parametrize(("gpus", "processes"), [(1, 2), (4, 2), (4, 8)])
def test_mpirun_starts_a_process_for_each_pod_or_gpu_of_volcano(gpus: int, processes: int) -> None:
    job = VOLCANO.replace("name: ps", "name: mpimaster").replace("nvidia.com/gpu: 1", f"nvidia.com/gpu: {gpus}")
    command = "command: [sh, -c, 'H=`cat /etc/volcano/mpiworker.host`; mpiexec --host ${H} -np NUMBER python train.py']"
    job = job.replace("{name: tensorflow, ports", f"{{name: tensorflow, {command}, ports")
    assert len(kinds(job.replace("NUMBER", str(processes)))) == 2
    of_gpus = " with 8 GPUs" if gpus > 1 else ""
    assert f"tasks.0: its command starts 3 processes, and there are 2 pods that train{of_gpus}; let them agree" in refused(
        job.replace("NUMBER", "3")
    )
    assert len(kinds(job.replace("NUMBER", "$N"))) == 2


def test_ranked_jobs() -> None:
    assert hosts(JAX_JOB) == ["jax-worker-0.ml.svc:6666", "jax-worker-1.ml.svc:6666"]
    assert kinds(JAX_JOB) == [("worker", 4, 4)] * 2
    boost = ranked("XGBoostJob", "xgbReplicaSpecs", "xgboost", {"Worker": 2, "Master": 1})
    assert hosts(boost) == ["j-master-0.default.svc:9999", "j-worker-0.default.svc:9999", "j-worker-1.default.svc:9999"]
    assert len(kinds(ranked("PaddleJob", "paddleReplicaSpecs", "paddle", {"Worker": 2}))) == 2
    paddle = ranked("PaddleJob", "paddleReplicaSpecs", "paddle, ports: [{name: master, containerPort: 37777}]", {"Worker": 1})
    assert hosts(paddle) == ["j-worker-0.default.svc:37777"]
    assert "there are 2 replicas of Master" in refused(boost.replace("Master: {replicas: 1", "Master: {replicas: 2"))
    assert "did you mean xgbReplicaSpecs" in refused(boost.replace("xgbReplicaSpecs", "xgbReplicaSpec"))


def test_the_first_paddle_job() -> None:
    text = "apiVersion: batch.paddlepaddle.org/v1\nkind: PaddleJob\nmetadata: {name: j}\nspec:\n  intranet: Service\n"
    text += "  ps: {replicas: 2, template: {}}\n  worker: {replicas: 3, template: {spec: {containers: [{name: p}]}}}\n"
    assert tfdist.read(text).describe() == "3 workers, 2 ps"
    assert "there is neither worker nor ps" in refused(text.partition("  ps")[0])


def test_the_first_mpi_job_and_a_later_version() -> None:
    head = "apiVersion: kubeflow.org/v1alpha1\nkind: MPIJob\nmetadata: {name: j}\nspec:\n"
    pod = "  template: {spec: {containers: [{name: m, resources: {limits: {nvidia.com/gpu: 4}}}]}}\n"
    assert kinds(f"{head}  replicas: 2\n{pod}") == [("worker", 4, 4)] * 2
    assert kinds(f"{head}  gpus: 16\n  gpusPerNode: 8\n") == [("worker", 8, 8)] * 2
    assert "gpusPerNode is missing, and its default is an option of the operator" in refused(f"{head}  gpus: 16\n")
    new = "apiVersion: kubeflow.org/v2\nkind: MPIJob\nmetadata: {name: j}\nspec: {mpiReplicaSpecs: {Worker: {replicas: 2}}}\n"
    assert tfdist.read(new).describe() == "2 workers"


def test_kinds_that_are_no_training_jobs() -> None:
    for kind, hint in (("RayJob", "this describes a cluster of Ray"), ("ClusterTrainingRuntime", "give such a TrainJob")):
        message = refused(f"apiVersion: a/v1\nkind: {kind}\nmetadata: {{name: j}}\nspec: {{}}\n")
        assert f"there is no training job, only {kind}; " in message and hint in message and "did you mean" not in message


def test_the_pods_of_a_leader_worker_set_are_workers() -> None:
    assert hosts(GROUP) == ["llm-0.llm.ml.svc:None", "llm-0-1.llm.ml.svc:None", "llm-0-2.llm.ml.svc:None"]
    assert kinds(GROUP) == [("worker", 2, 2)] * 3
    unique = GROUP.replace("spec:\n", "spec:\n  networkConfig: {subdomainPolicy: UniquePerReplica}\n", 1)
    assert hosts(unique)[1] == "llm-0-1.llm-0.ml.svc:None"
    leader = GROUP.replace("    size: 3\n", "    size: 3\n    leaderTemplate: {spec: {containers: [{name: l}]}}\n")
    assert kinds(leader) == [("worker", 1, 0), ("worker", 2, 2), ("worker", 2, 2)]
    assert len(kinds(GROUP.replace("    size: 3\n", ""))) == 1
    assert "spec.replicas: there are 2 groups of pods, and each would train a model of its own" in refused(
        GROUP.replace("replicas: 1", "replicas: 2")
    )
    assert "the pods ask for TPUs" in refused(GROUP.replace("nvidia.com/gpu", "google.com/tpu"))
    assert "did you mean leaderWorkerTemplate" in refused(GROUP.replace("leaderWorkerTemplate", "leaderWorkersTemplate"))
