"""The devices of a task's replicas where TensorFlow sees 0, 1, 2 or 8 GPUs. No GPU is there: only TensorFlow's answer is replaced."""

import logging
import types

import pytest
import tensorflow as tf

from tfdist import Cluster, ClusterError, Task, read
from tfdist.strategies import default, own_devices
from tfdist.strategies.coordinator.members.worker_groups import groups_of
from tfdist.strategies.data_parallel import devices, multi_worker_mirrored

MANY = Task("worker", 0, slots=4)
SAID = Task("worker", 0, slots=2, gpus=2)


def fake_gpus(number):
    return [tf.config.PhysicalDevice(f"/physical_device:GPU:{index}", "GPU") for index in range(number)]


@pytest.fixture
def sees(monkeypatch):
    """Makes TensorFlow see GPUs; returns those that were made visible since."""
    made = types.SimpleNamespace(visible=None, growth=[], threads={})

    def see(number):
        gpus = fake_gpus(number)
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: gpus if kind == "GPU" else [])
        monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind=None: gpus if made.visible is None else made.visible)
        monkeypatch.setattr(tf.config, "set_visible_devices", lambda own, kind: setattr(made, "visible", own))
        monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda gpu, on: made.growth.append(gpu))
        monkeypatch.setattr(devices, "_split_cpu", lambda task: None)
        threading = types.SimpleNamespace()
        for name in ("intra", "inter"):
            setattr(threading, f"get_{name}_op_parallelism_threads", lambda: 0)
            setattr(threading, f"set_{name}_op_parallelism_threads", lambda n, name=name: made.threads.update({name: n}))
        monkeypatch.setattr(tf.config, "threading", threading)
        return made

    for name in ("CUDA_VISIBLE_DEVICES", "TFDIST_STARTED", *own_devices.THREAD_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    return see


@pytest.mark.parametrize(
    ("task", "number", "expected", "warning"),
    [
        # The description says nothing: what TensorFlow sees, as under TensorFlow's strategies.
        (Task("worker", 0), 0, "CPU:0", ""),
        (Task("worker", 0), 1, "GPU:0", ""),
        (Task("worker", 0), 2, "GPU:0 GPU:1", ""),
        (Task("worker", 0), 8, " ".join(f"GPU:{n}" for n in range(8)), ""),
        # It gives slots, and nothing about GPUs.
        (MANY, 0, "CPU:0 CPU:1 CPU:2 CPU:3", ""),
        (
            MANY,
            2,
            "CPU:0 CPU:1 CPU:2 CPU:3",
            "worker:0 asks for 4 GPUs, and TensorFlow finds 2 on this machine; its 4 replicas",
        ),
        (MANY, 8, "GPU:0 GPU:1 GPU:2 GPU:3", "worker:0 has 4 slots, so that it does not use GPU:4, GPU:5, GPU:6, GPU:7"),
        # It gives GPUs.
        (
            SAID,
            0,
            "CPU:0 CPU:1",
            "worker:0 asks for 2 GPUs, and TensorFlow finds 0 on this machine; its 2 replicas share the CPU",
        ),
        (SAID, 1, "CPU:0 CPU:1", "worker:0 asks for 2 GPUs, and TensorFlow finds 1"),
        (SAID, 2, "GPU:0 GPU:1", ""),
        (SAID, 8, "GPU:0 GPU:1", "does not use GPU:2, GPU:3"),
    ],
)
def test_replicas_take_the_gpus_that_tensorflow_sees(sees, caplog, task, number, expected, warning):
    sees(number)
    assert devices.local_devices(task) == expected.split()
    assert [warning in record.getMessage() for record in caplog.records] == [True] * bool(warning)


def test_the_default_strategy_names_gpus_that_it_does_not_use(sees, caplog):
    sees(2)
    default.create(Cluster((Task("chief", 0),)), 1.0)
    assert "chief:0 trains on one device and does not use GPU:1; --strategy mirrored uses all" in caplog.text


@pytest.mark.parametrize(
    ("slots", "gpus", "number", "expected", "warning"),
    [
        (1, 0, 0, "CPU:0", ""),
        (1, 0, 1, "GPU:0", ""),
        (1, 0, 2, "GPU:0", "worker:0 has 1 slots and uses as many of its 2 GPUs"),
        (2, 0, 2, "GPU:0 GPU:1", ""),
        (2, 2, 1, "CPU:0 CPU:1", "worker:0 asks for 2 GPUs, and TensorFlow finds 1 there; it computes on the CPU"),
        (1, 1, 0, "CPU:0", "worker:0 asks for 1 GPUs, and TensorFlow finds 0 there; it computes on the CPU"),
    ],
)
def test_groups_use_the_gpus_of_their_workers(caplog, slots, gpus, number, expected, warning):
    cluster = Cluster((Task("chief", 0), Task("worker", 0, slots=slots, gpus=gpus), Task("ps", 0)))
    there = {f"/job:worker/replica:0/task:0/device:GPU:{index}" for index in range(number)}
    (group,) = groups_of(cluster, there)
    assert [name.rpartition("device:")[2] for name in group.devices] == expected.split()
    assert [warning in record.getMessage() for record in caplog.records] == [True] * bool(warning)


TWO_HERE = '{"cluster": {"worker": ["a:1", "a:2"]}, "task": {"type": "worker", "index": 1}}'
SERVED = '{"cluster": {"chief": ["a:1"], "ps": ["a:2"], "worker": ["a:3", "a:4"]}, "task": {"type": "worker", "index": 1}}'


@pytest.mark.parametrize(("number", "own", "growth"), [(0, None, 0), (1, "0", 1), (2, "1", 0), (8, "4 5 6 7", 0)])
def test_by_hand_each_task_of_a_machine_takes_its_own_gpus_and_cores(sees, monkeypatch, number, own, growth):
    monkeypatch.setattr(own_devices.machine, "cores", lambda: 8)
    monkeypatch.setattr(own_devices.machine, "is_bound", lambda: False)
    made = sees(number)
    own_devices.take_for_training(read(TWO_HERE), "multi_worker_mirrored")
    visible = None if made.visible is None else " ".join(gpu.name.rpartition(":")[2] for gpu in made.visible)
    assert (visible, len(made.growth), made.threads) == (own, growth, {"intra": 4, "inter": 4})


def test_what_the_user_or_the_launcher_has_set_stays(sees, monkeypatch):
    made = sees(2)
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "7")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    own_devices.take_for_training(read(TWO_HERE), "multi_worker_mirrored")
    assert made.visible is None and "intra" not in made.threads
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("TFDIST_STARTED", "1")
    own_devices.take_for_training(read(TWO_HERE), "multi_worker_mirrored")
    assert made.visible is None
    monkeypatch.delenv("TFDIST_STARTED")
    made.visible = []  # tf.config.set_visible_devices([], "GPU") in the program.
    own_devices.take_for_training(read(TWO_HERE), "multi_worker_mirrored")
    assert made.visible == []


def test_a_chief_of_workers_that_serve_takes_no_gpu(sees):
    made = sees(2)
    own_devices.take_for_training(read(SERVED), "parameter_server")
    assert made.visible == []


def test_a_task_that_serves_takes_its_gpus_through_its_environment(monkeypatch):
    monkeypatch.setattr(own_devices.machine, "installed", lambda: own_devices.machine.Installed(("0", "1")))
    environ = {}
    monkeypatch.setattr(own_devices.os, "environ", environ)
    own_devices.take_for_serving(read(SERVED), "parameter_server")
    assert environ["CUDA_VISIBLE_DEVICES"] == "1"
    environ.clear()
    own_devices.take_for_serving(read(SERVED.replace('"worker", "index": 1', '"ps", "index": 0')), "parameter_server")
    assert environ["CUDA_VISIBLE_DEVICES"] == "-1"


def test_gpus_that_the_program_has_hidden_are_not_used(monkeypatch, sees, caplog):
    caplog.set_level(logging.WARNING)
    sees(2)
    monkeypatch.setattr(devices, "hidden_devices", lambda kind: {"/physical_device:GPU:0", "/physical_device:GPU:1"})
    assert devices.local_devices(Task("worker", 0)) == ["CPU:0"]


def test_multi_worker_mirrored_says_that_tensorflow_was_used_before_it():
    tf.constant(0)
    cluster = Cluster((Task("worker", 0, "here", 1), Task("worker", 1, "there", 1)), task=("worker", 1))
    with pytest.raises(ClusterError, match=r"^worker:1: something has used TensorFlow before"):
        multi_worker_mirrored.create(cluster, start_timeout=60)
