"""Which GPUs and threads each task of a machine gets, for machines of 0, 1, 2 and 8 GPUs that need not be there."""

import pytest

from tfdist import Cluster, ClusterError, Task, read
from tfdist.choice import choose, prepared
from tfdist.devices import Plan, own_plan, own_threads, plan, threads, visible, with_gpus_per_task
from tfdist.machine import Installed, find_gpus


def gpus(number):
    return tuple(str(index) for index in range(number))


def cluster_of(description):
    return prepared(read(description))


def shares(description, number, **options):
    """Returns the GPUs of each task of a cluster on one machine: a text, with `*` where others share them."""
    cluster = cluster_of(description)
    made = plan(cluster.tasks, choose(cluster).strategy, gpus(number), **options)
    return {name: ",".join(share.gpus) + "*" * share.shared for name, share in made.shares.items()}, ",".join(made.unused)


SYNCHRONOUS = {"worker": 2}
SERVED = {"chief": 1, "worker": 2, "ps": 1}
NONE = {"chief:0": "", "ps:0": ""}


@pytest.mark.parametrize(
    ("description", "number", "expected", "unused"),
    [
        # Every task sees what there is: nothing is set where nothing is there.
        (SYNCHRONOUS, 0, {}, ""),
        (SYNCHRONOUS, 1, {"worker:0": "0*", "worker:1": "0*"}, ""),
        (SYNCHRONOUS, 2, {"worker:0": "0", "worker:1": "1"}, ""),
        (SYNCHRONOUS, 8, {"worker:0": "0,1,2,3", "worker:1": "4,5,6,7"}, ""),
        ({"worker": 3}, 8, {"worker:0": "0,1", "worker:1": "2,3", "worker:2": "4,5"}, "6,7"),
        ({"worker": 3}, 2, {"worker:0": "0*", "worker:1": "1", "worker:2": "0*"}, ""),
        # Under multi_worker_mirrored the chief is a worker; an evaluator computes on the CPU.
        ({"chief": 1, "worker": 1, "evaluator": 1}, 2, {"chief:0": "0", "worker:0": "1", "evaluator:0": ""}, ""),
        # Workers that serve use one GPU for each slot; a chief and a ps none.
        (SERVED, 0, NONE, ""),
        (SERVED, 1, NONE | {"worker:0": "0*", "worker:1": "0*"}, ""),
        (SERVED, 2, NONE | {"worker:0": "0", "worker:1": "1"}, ""),
        (SERVED, 8, NONE | {"worker:0": "0", "worker:1": "1"}, "2,3,4,5,6,7"),
        # One task with one device: TensorFlow's default strategy sees all and uses the first.
        ({"chief": 1}, 2, {}, "1"),
        ({"chief": 1}, 1, {}, ""),
    ],
)
def test_tasks_of_one_machine_get_gpus_of_their_own(description, number, expected, unused):
    assert shares(description, number) == (expected, unused)


@pytest.mark.parametrize(
    ("description", "number", "per_task", "expected", "unused"),
    [
        (SYNCHRONOUS, 8, 1, {"worker:0": "0", "worker:1": "1"}, "2,3,4,5,6,7"),
        (SYNCHRONOUS, 2, 2, {"worker:0": "0,1*", "worker:1": "0,1*"}, ""),
        (SYNCHRONOUS, 2, 0, {"worker:0": "", "worker:1": ""}, "0,1"),
        (SERVED, 8, 2, NONE | {"worker:0": "0,1", "worker:1": "2,3"}, "4,5,6,7"),
        ({"chief": 1}, 2, 0, {"chief:0": ""}, "0,1"),
        ({"chief": 1}, 2, 1, {"chief:0": "0"}, "1"),
    ],
)
def test_the_user_may_give_each_task_another_number(description, number, per_task, expected, unused):
    assert shares(description, number, per_task=per_task) == (expected, unused)


def test_a_description_that_says_gpus_or_slots_decides():
    tasks = (Task("worker", 0, slots=2, gpus=2), Task("worker", 1), Task("worker", 2, slots=3))
    made = plan(tasks, "multi_worker_mirrored", gpus(8))
    assert [share.gpus for share in made.shares.values()] == [("0", "1"), ("2",), ("3", "4", "5")]
    assert made.unused == ("6", "7")


def test_the_variables_of_a_share_and_the_warnings():
    made = plan(cluster_of(SERVED).tasks, "parameter_server", ("3",), variable="HIP_VISIBLE_DEVICES")
    worker, ps = Task("worker", 1), Task("ps", 0)
    assert made.environment(worker) == {"HIP_VISIBLE_DEVICES": "3", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    assert made.environment(ps) == {"HIP_VISIBLE_DEVICES": "-1"}
    assert made.warnings() == ["worker:0, worker:1 share 1 GPUs, whose memory each takes as it needs it"]
    assert Plan("CUDA_VISIBLE_DEVICES", (), {}).environment(worker) == {}
    assert "no task uses GPU 1; " in plan((worker,), "default", gpus(2)).warnings()[0]


@pytest.mark.parametrize(
    ("number", "value", "expected"),
    [
        (2, None, "0,1"),
        (2, "", ""),
        (2, "-1", ""),
        (8, "3,1", "3,1"),
        (8, " 3, 1 ", "3,1"),
        (2, "0,2,1", "0"),  # CUDA ends the list at the first GPU that is not there.
        (2, "0,0", "0"),
        (2, "GPU-1a2b,MIG-3c", "GPU-1a2b,MIG-3c"),
        (0, "0,1", ""),
        (0, "GPU-1a2b", ""),
        (2, "all", ""),
    ],
)
def test_what_a_process_sees_by_cudas_rules(number, value, expected):
    environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    assert ",".join(visible(Installed(gpus(number)), environ)) == expected


def test_what_a_process_sees_on_amd():
    installed = Installed(gpus(4), "HIP_VISIBLE_DEVICES")
    assert visible(installed, {"HIP_VISIBLE_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "0"}) == ("2",)
    assert visible(installed, {"CUDA_VISIBLE_DEVICES": "0"}) == ("0",)
    assert visible(installed, {"ROCR_VISIBLE_DEVICES": "2,3"}) == ("0", "1")


BY_HAND = '{"cluster": {"worker": ["a:1", "a:2", "b:1"]}, "task": {"type": "worker", "index": %d}}'
PS_BY_HAND = '{"cluster": {"chief": ["a:1"], "ps": ["a:2"], "worker": ["a:3"], "evaluator": ["a:4"]}}'


def own(description, name, number, environ, installed=None):
    """Returns the GPUs that a task takes for itself; None where it keeps what it sees."""
    cluster = cluster_of(description)
    task = next(task for task in cluster.tasks if task.name == name)
    there = Installed(gpus(number if installed is None else installed))
    made = own_plan(cluster, task, choose(cluster).strategy, gpus(number), there, environ)
    return None if made is None else ",".join(made.shares[name].gpus) if name in made.shares else "all"


TORCHRUN, SLURM = {"LOCAL_RANK": "1"}, {"SLURM_LOCALID": "1"}


@pytest.mark.parametrize(
    ("name", "number", "environ", "installed", "expected"),
    [
        ("worker:0", 0, {}, 0, "all"),
        ("worker:1", 1, {}, 1, "0"),
        ("worker:0", 2, {}, 2, "0"),
        ("worker:1", 2, {}, 2, "1"),
        ("worker:1", 8, {}, 8, "4,5,6,7"),
        ("worker:2", 8, {}, 8, None),  # Alone on its machine.
        # By hand the variable is the user's, and chosen for this task.
        ("worker:1", 2, {"CUDA_VISIBLE_DEVICES": "2,3"}, 4, None),
        # Under torchrun, mpirun and srun all tasks of a machine have the same one.
        ("worker:1", 2, TORCHRUN | {"CUDA_VISIBLE_DEVICES": "2,3"}, 4, "1"),
        ("worker:1", 2, SLURM | {"CUDA_VISIBLE_DEVICES": "0,1"}, 2, "1"),
        # Unless the launcher has restricted it.
        ("worker:1", 1, TORCHRUN | {"CUDA_VISIBLE_DEVICES": "3"}, 4, None),
        ("worker:1", 2, SLURM | {"CUDA_VISIBLE_DEVICES": "2,3", "SLURM_GPUS_PER_TASK": "2"}, 4, None),
        ("worker:1", 1, SLURM | {"SLURM_GPU_BIND": "single:1"}, 1, None),
        ("worker:1", 1, SLURM | {"SLURM_TRES_PER_TASK": "cpu:4,gres/gpu:1"}, 1, None),
        ("worker:1", 2, SLURM | {"SLURM_TRES_PER_TASK": "cpu:4"}, 2, "1"),
        ("worker:1", 2, SLURM | {"SLURM_GPU_BIND": "none"}, 2, "1"),
    ],
)
def test_by_hand_and_under_other_launchers_the_place_on_the_machine_decides(name, number, environ, installed, expected):
    assert own(BY_HAND % 0, name, number, environ, installed) == expected


@pytest.mark.parametrize(("name", "expected"), [("chief:0", ""), ("ps:0", ""), ("evaluator:0", ""), ("worker:0", None)])
def test_by_hand_only_workers_of_a_chief_take_gpus(name, expected):
    assert own(PS_BY_HAND, name, 2, {}) == expected


def test_one_flag_gives_every_task_gpus_and_as_many_slots():
    changed = with_gpus_per_task(cluster_of(SYNCHRONOUS), "multi_worker_mirrored", 4)
    assert [(task.slots, task.gpus) for task in changed.tasks] == [(4, 4), (4, 4)]
    served = with_gpus_per_task(cluster_of(SERVED), "parameter_server", 2)
    assert [(task.name, task.slots, task.gpus) for task in served.tasks] == [
        ("chief:0", 1, 0),
        ("worker:0", 2, 2),
        ("worker:1", 2, 2),
        ("ps:0", 1, 0),
    ]
    assert served.worker_groups == ((0, 1), (2, 3))
    one = with_gpus_per_task(Cluster((Task("chief", 0),)), "default", 2)
    assert choose(one).strategy == "mirrored"
    none = with_gpus_per_task(Cluster((Task("chief", 0, slots=2, gpus=2),)), "mirrored", 0)
    assert (none.tasks[0].slots, none.tasks[0].gpus) == (2, 0)
    grouped = Cluster((Task("worker", 0), Task("worker", 1), Task("ps", 0)), worker_groups=((0, 1),))
    with pytest.raises(ClusterError, match="puts slots into worker groups"):
        with_gpus_per_task(grouped, "parameter_server", 2)
    assert with_gpus_per_task(grouped, "parameter_server", 1).worker_groups == ((0, 1),)


def test_threads_are_divided_by_the_tasks_that_compute():
    assert threads(8, 3) == {"TF_NUM_INTRAOP_THREADS": "2", "TF_NUM_INTEROP_THREADS": "2"}
    assert threads(2, 8)["TF_NUM_INTRAOP_THREADS"] == "1"
    cluster = cluster_of(BY_HAND % 0)
    first, _, alone = cluster.tasks
    assert own_threads(cluster, first, "multi_worker_mirrored", 8, False)["TF_NUM_INTRAOP_THREADS"] == "4"
    assert own_threads(cluster, alone, "multi_worker_mirrored", 8, False) == {}
    assert own_threads(cluster, first, "multi_worker_mirrored", 8, True) == {}  # Bound by its launcher.


NVIDIA = "GPU 0: NVIDIA A100 (UUID: GPU-1)\nGPU 1: NVIDIA A100 (UUID: GPU-2)\n"
MIG = NVIDIA.replace("\nGPU 1", "\n  MIG 3g.20gb Device 0: (UUID: MIG-a/1)\n  MIG 3g.20gb Device 1: (UUID: MIG-b/2)\nGPU 1")


@pytest.mark.parametrize(
    ("smi", "nvidia", "amd", "expected"),
    [
        (NVIDIA, 8, 0, Installed(("0", "1"))),  # A container may use fewer than the driver has.
        (MIG, 0, 0, Installed(("MIG-a/1", "MIG-b/2", "1"))),
        (None, 2, 0, Installed(("0", "1"))),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver\n", 0, 0, Installed()),
        (None, 0, 2, Installed(("0", "1"), "HIP_VISIBLE_DEVICES")),
        (None, 0, 0, Installed()),
    ],
)
def test_gpus_are_found_without_tensorflow(tmp_path, smi, nvidia, amd, expected):
    for number in range(nvidia):
        (tmp_path / f"proc/driver/nvidia/gpus/0000:0{number}:00.0").mkdir(parents=True)
    for number in range(amd + 1):
        node = tmp_path / f"sys/class/kfd/kfd/topology/nodes/{number}"
        node.mkdir(parents=True)
        (node / "properties").write_text(f"cpu_cores_count 8\nsimd_count {256 * (number > 0)}\n")
    assert find_gpus(tmp_path, lambda: smi) == expected
