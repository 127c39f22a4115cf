"""What keras.distribution says about devices and variables."""

import keras
import pytest

from tfdist.strategies.model_parallel.layouts import Partition, partition, split_axis

FOUR = ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]


def model_parallel(shape, names=("batch", "model"), batch="batch"):
    count = 1
    for size in shape:
        count *= size
    mesh = keras.distribution.DeviceMesh(shape, names, [f"cpu:{number}" for number in range(count)])
    return keras.distribution.ModelParallel(layout_map=keras.distribution.LayoutMap(mesh), batch_dim_name=batch)


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
    assert partition(model_parallel(shape, names), FOUR) == Partition(rows, "model")


def test_data_parallel_gives_each_replica_one_device():
    assert partition(keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"]), FOUR[:2]) == Partition(
        (("CPU:0",), ("CPU:1",)), None
    )


def test_each_of_two_tasks_gets_its_rows():
    assert partition(model_parallel((2, 2)), FOUR[:2], tasks=2).rows == (("CPU:0", "CPU:1"),)
    assert partition(model_parallel((4, 2)), FOUR, tasks=2).rows == (("CPU:0", "CPU:1"), ("CPU:2", "CPU:3"))


@pytest.mark.parametrize(
    "distribution, tasks, message",
    [
        (model_parallel((1, 2)), 1, "the shape (1, 2), and 1 tasks have 4 devices each"),
        (model_parallel((1, 8)), 2, "a replica has 8 devices, and a task has 4"),
        (model_parallel((1, 2, 2), ("batch", "rows", "columns")), 1, "2 axes (rows, columns)"),
        (model_parallel((2, 2), ("data", "model"), "batch"), 1, "none is the distribution's batch_dim_name 'batch'"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(distribution, tasks, message):
    with pytest.raises(ValueError) as error:
        partition(distribution, FOUR, tasks)
    assert message in str(error.value)


def axis_of(layout, shape, mesh=(2, 2)):
    distribution = model_parallel(mesh)
    distribution._layout_map["dense/kernel"] = layout
    return split_axis(distribution._layout_map["dense/kernel"], "dense/kernel", shape, partition(distribution, FOUR))


@pytest.mark.parametrize(
    "layout, shape, axis",
    [((None, "model"), (3, 4), 1), (("model", None), (4, 3), 0), ((None, None), (3, 3), None), (("model",), (2,), 0)],
)
def test_a_layout_names_the_axis_that_is_split(layout, shape, axis):
    assert axis_of(layout, shape) == axis


@pytest.mark.parametrize(
    "layout, shape, message",
    [
        ((None, "model"), (4, 3), "cannot be split into 2 equal parts along axis 1"),
        ((None, "batch"), (4, 4), "'batch' is the axis of the batch"),
        ((None, None, "model"), (4, 4), "of 3 axes, and its shape is (4, 4)"),
        (("model", "model"), (4, 4), "names the axis 'model' twice"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused_by_name(layout, shape, message):
    with pytest.raises(ValueError, match="dense/kernel") as error:
        axis_of(layout, shape)
    assert message in str(error.value)
