"""What keras.distribution says about devices and variables."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.partition import Partition
from tfdist.strategies.model_parallel import variables
from tfdist.strategies.model_parallel.described import DescribedLayouts
from tfdist.strategies.model_parallel.layouts import LocalMesh, local_mesh, sharded_axis, warn_of_no_shards

FOUR = ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]


def model_parallel(shape, names=("batch", "model"), batch="batch"):
    count = 1
    for size in shape:
        count *= size
    mesh = keras.distribution.DeviceMesh(shape, names, [f"cpu:{number}" for number in range(count)])
    return keras.distribution.ModelParallel(layout_map=keras.distribution.LayoutMap(mesh), batch_dim_name=batch)


def with_own_shards(distribution):
    """The program shards the data."""
    distribution.auto_shard_dataset = False
    return distribution


@pytest.mark.parametrize(
    "shape, names, rows",
    [
        ((1, 4), ("batch", "model"), (("CPU:0", "CPU:1", "CPU:2", "CPU:3"),)),
        ((2, 2), ("batch", "model"), (("CPU:0", "CPU:1"), ("CPU:2", "CPU:3"))),
        ((2, 2), ("model", "batch"), (("CPU:0", "CPU:1"), ("CPU:2", "CPU:3"))),
        ((2, 1, 2), ("batch", "unused", "model"), (("CPU:0", "CPU:1"), ("CPU:2", "CPU:3"))),
    ],
)
def test_a_mesh_gives_each_replica_its_devices(shape, names, rows):
    assert local_mesh(model_parallel(shape, names), FOUR) == LocalMesh(rows, "model")


def test_data_parallel_gives_each_replica_one_device():
    assert local_mesh(keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"]), FOUR[:2]) == LocalMesh(
        (("CPU:0",), ("CPU:1",)), None
    )


def test_each_of_two_tasks_gets_its_rows():
    assert local_mesh(model_parallel((2, 2)), FOUR[:2], tasks=2).replicas == (("CPU:0", "CPU:1"),)
    assert local_mesh(model_parallel((4, 2)), FOUR, tasks=2).replicas == (("CPU:0", "CPU:1"), ("CPU:2", "CPU:3"))


def test_a_replica_has_the_devices_of_several_tasks():
    mesh = local_mesh(model_parallel((2, 4)), FOUR[:2], tasks=4, task=3)
    assert mesh == LocalMesh((("CPU:0", "CPU:1"),), "model", tasks=2, position=1)
    assert (mesh.count, mesh.others, mesh.own) == (4, 2, range(2, 4))


@pytest.mark.parametrize(
    "distribution, tasks, message",
    [
        (model_parallel((1, 2)), 1, "the shape (1, 2), and 1 tasks have 4 devices each"),
        (model_parallel((2, 6)), 3, "a replica has 6 devices, and a task has 4"),
        (model_parallel((1, 2, 2), ("batch", "rows", "columns")), 1, "2 axes (rows, columns)"),
        (model_parallel((2, 2), ("data", "model"), "batch"), 1, "none is the distribution's batch_dim_name 'batch'"),
        (with_own_shards(model_parallel((2, 4))), 2, "every task would train on a part of its part"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(distribution, tasks, message):
    with pytest.raises(ValueError) as error:
        local_mesh(distribution, FOUR, tasks)
    assert message in str(error.value)


def axis_of(layout, shape):
    distribution = model_parallel((2, 2))
    distribution._layout_map["dense/kernel"] = layout
    return sharded_axis(distribution._layout_map["dense/kernel"], "dense/kernel", shape, local_mesh(distribution, FOUR))


@pytest.mark.parametrize(
    "layout, shape, axis",
    [
        ((None, "model"), (3, 4), 1),
        (("model", None), (4, 3), 0),
        ((None, None), (3, 3), None),
        (("model",), (2,), 0),
        ((None, "model"), (3, 4, 5), 1),  # As JAX, where the last axes need no name.
        ((), (3,), None),
    ],
)
def test_a_layout_names_the_axis_that_is_split(layout, shape, axis):
    assert axis_of(layout, shape) == axis


@pytest.mark.parametrize(
    "layout, shape, message",
    [
        ((None, "model"), (4, 3), "cannot be sharded equally over 2 devices along axis 1"),
        ((None, None, "model"), (4, 4), "of 3 axes, and its shape is (4, 4)"),
        (("model", "model"), (4, 4), "names the axis 'model' twice"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused_by_name(layout, shape, message):
    with pytest.raises(ValueError, match="dense/kernel") as error:
        axis_of(layout, shape)
    assert message in str(error.value)


def test_an_output_of_unknown_length_stays_whole():
    """That of texts of all lengths, for example, where a layout shards the positions."""
    mesh = LocalMesh((("CPU:0", "CPU:1"),), "model")
    layout = keras.distribution.TensorLayout((None, "model", None), model_parallel((1, 2)).device_mesh)
    assert sharded_axis(layout, "an output of a layer", (None, None, 8), mesh) is None
    assert sharded_axis(layout, "an output of a layer", (None, 6, 8), mesh) == 1


def test_each_of_several_outputs_of_a_layer_is_split(monkeypatch):
    variables.install()
    monkeypatch.setattr(tf.distribute.get_strategy().extended, "mesh", LocalMesh((("CPU:0", "CPU:0"),), "model"), raising=False)
    layout = keras.distribution.TensorLayout((None, "model"), model_parallel((1, 2)).device_mesh)
    outputs = keras.distribution.distribute_tensor((tf.ones((4, 8)), {"scores": tf.ones((4, 2)), "none": None}), layout)
    assert [getattr(each, "axis", None) for each in tf.nest.flatten(outputs)] == [1, None, 1]


def test_the_axis_of_the_batch_is_left_out_with_a_warning(caplog):
    assert axis_of(("model", "batch"), (4, 3)) == 0
    assert "dense/kernel" in caplog.text and "'batch' is the axis of the batch" in caplog.text


def test_data_outside_of_the_scope_stay_as_they_are():
    """Keras Hub's `generate` distributes its inputs there, and Keras' TensorFlow backend cannot."""
    variables.install()
    data = tf.ones((4, 2))
    assert (
        keras.distribution.distribute_tensor(
            data, keras.distribution.TensorLayout(("batch", None), model_parallel((2, 2)).device_mesh)
        )
        is data
    )


def test_a_layout_map_that_shards_nothing_causes_one_warning(caplog):
    distribution, mesh = model_parallel((1, 4)), local_mesh(model_parallel((1, 4)), FOUR)
    distribution._layout_map["up/kernel"] = (None, "model")
    distribution._layout_map[".*gamma"] = (None,)
    for path in ("net/up/kernel", "net/norm/gamma", "up/kernel"):  # The last one is sharded.
        for _ in range(2):
            variable = keras.Variable(np.ones((4, 8)))
            variable._path = path
            warn_of_no_shards(path.replace("/", "_"), [variable], distribution, mesh)
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "the layout map shards no variable of net_up_kernel along 'model'",
        "the layout map shards no variable of net_norm_gamma along 'model'",
    ]
    assert "has to match a whole path, such as net/up/kernel" in caplog.text


def test_a_model_whose_sharded_weights_are_frozen_causes_no_warning(caplog):
    """With LoRA only small matrices are trained, which no pattern of the layout map matches."""
    distribution, mesh = model_parallel((1, 4)), local_mesh(model_parallel((1, 4)), FOUR)
    frozen, added = (
        keras.Variable(np.ones((4, 8)), trainable=False, name="kernel"),
        keras.Variable(np.ones((4, 2)), name="lora_a"),
    )
    warn_of_no_shards("all_whole", [frozen, added], distribution, mesh)
    assert len(caplog.records) == 1 and "such as lora_a" in caplog.text
    frozen._layout = keras.distribution.TensorLayout((None, "model"), distribution.device_mesh)
    warn_of_no_shards("frozen", [frozen, added], distribution, mesh)
    assert len(caplog.records) == 1


def described(*layouts, devices=None, of=FOUR, tasks=1):
    return DescribedLayouts(Partition(layouts, devices), [f"/job:worker/task:0/device:{name}" for name in of], tasks)


@pytest.mark.parametrize(
    "devices, of, tasks, replicas",
    [
        (None, FOUR, 1, (tuple(FOUR),)),
        (2, FOUR, 1, (("CPU:0", "CPU:1"), ("CPU:2", "CPU:3"))),
        (2, FOUR[:2], 3, (("CPU:0", "CPU:1"),)),
    ],
)
def test_a_partition_of_a_description_makes_the_mesh(devices, of, tasks, replicas):
    assert local_mesh(described(("k", 0), devices=devices, of=of, tasks=tasks), of, tasks) == LocalMesh(replicas, "model")


def test_a_partition_gives_variables_their_layouts():
    with keras.name_scope("up"):
        kernel, bias = (keras.Variable(np.ones(shape), name=name) for name, shape in (("kernel", (4, 8)), ("bias", (8,))))
    assert kernel.path == "up/kernel"
    layouts = described(("up/.*", -1), ("down/kernel", -2), ("(gone|lost)/kernel", None), ("kernel", 0))
    assert layouts.get_variable_layout(kernel).axes == (None, "model")
    assert layouts.get_variable_layout(bias).axes == ("model",)
    with pytest.raises(ValueError) as error:
        layouts.check_matched("mlp", [kernel, bias])
    assert "matches down/kernel, (gone|lost)/kernel, kernel of the partition" in str(error.value)
    assert "variables of mlp are up/kernel, up/bias" in str(error.value)
    rows = described(("up/.*", -2), ("nothing", None))
    assert rows.get_variable_layout(kernel).axes == ("model", None)
    with pytest.raises(ValueError, match=r"the partition up/\.\*=rows names up/bias, and its shape \(8,\) has no such axis"):
        rows.get_variable_layout(bias)
