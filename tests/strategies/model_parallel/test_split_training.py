"""Models that keras.distribution splits over devices train as on one device: the cases of programs/split_models.py."""

import json

import pytest
import selection
from rounding import equal
from support_paths import PROGRAMS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PROGRAM = str(PROGRAMS / "split_models.py")
FOR_A_RELEASE = (  # What these do is in other cases and meshes, or in test_rules.py, too.
    "every_kernel_by_columns_also_the_last",
    "rmsprop_with_regularized_kernels",
    "gradient_accumulation",
    "steps_per_execution",
    "own_train_step",
    "an_embedding_by_columns",
    "functions_of_tensorflow_by_rows",
    "constraints",
    "run_eagerly",
    "mixed_precision",
    "loss_scaling",
    "adamw_with_decay_clipping_and_averages",
    "an_embedding_by_rows",
    "jit_compile",
    "a_layer_of_sparse_inputs_by_rows",
    "attention_with_a_mask_of_two_axes",
)
ONE_REPLICA = (
    "many_steps_of_adam",
    "clipping_by_the_norm_of_all_gradients",
    "a_gated_subclassed_model",
    "layouts_of_activations",
    "convolutions",
    "a_transformer_with_dropout",
    "experts_and_groups_of_heads",
    "recurrent_layers_by_columns",
    "functions_of_tensors_by_columns",
    "built_in_fit",
    "functions_of_tensorflow_by_columns",
    "a_table_looked_up_by_tensorflow",
    *(FOR_A_RELEASE if selection.ALL else ()),
)
TWO_REPLICAS = (
    "a_pair_of_dense_layers",
    "constraints",
    "adamw_with_decay_clipping_and_averages",
    "an_embedding_by_rows",
    "a_transformer",
    "own_train_step_that_assigns_weights",
    "a_weight_that_begins_by_the_batch",
)
TWO_TASKS = ("many_steps_of_adam", "an_embedding_by_rows")  # Each holds a whole replica.
SPANNING = (  # A replica is in two tasks. The transformer has an embedding by rows.
    "a_pair_of_dense_layers",
    "a_transformer",
    "experts_and_groups_of_heads",
    "own_train_step_that_assigns_weights",
    *(("built_in_fit", "constraints", "recurrent_layers_by_columns") if selection.ALL else ()),
)
RUNS = {"1x4": ONE_REPLICA, "2x2": TWO_REPLICAS, "2x2, two tasks": TWO_TASKS, "2x2, four tasks": SPANNING}


@pytest.fixture(
    scope="module", params=[pytest.param(run, marks=pytest.mark.release) if run == "2x2, two tasks" else run for run in RUNS]
)
def results(request, tmp_path_factory, run_python):
    """(name of the run, what each task has written)"""
    folder = tmp_path_factory.mktemp("split")
    mesh, _, tasks = request.param.partition(", ")
    count = {"": 1, "two tasks": 2, "four tasks": 4}[tasks]
    command = [PROGRAM, mesh, *RUNS[request.param]]
    if tasks:
        (folder / "workers.conf").write_text(f"cluster {{ nworkers_per_group: 4 nworkers_per_procs: {4 // count} }}")
        command = ["-m", "tfdist.launch", "--cluster", "workers.conf", *command]
    run_python(folder, *command, timeout=580)
    files = sorted(folder.glob(f"{mesh}*.json"))
    assert len(files) == count, (folder / "output.txt").read_text()[-5000:]
    found = [json.loads(path.read_text()) for path in files]
    for task in found:
        for case in RUNS[request.param]:
            assert "error" not in task[case], task[case]["error"]
            task[case]["one"] = found[0][case]["one"]
    return request.param, found


@pytest.mark.parametrize("case", dict.fromkeys((*ONE_REPLICA, *TWO_REPLICAS, *TWO_TASKS)))
def test_equals_one_device(results, case):
    run, tasks = results
    if case not in RUNS[run]:
        pytest.skip("runs on another mesh")
    for task in tasks:
        result = task[case]
        rounding = 0.02 if case == "mixed_precision" else 2e-4  # bfloat16 has 8 bits, and partial sums are rounded one by one.
        kinds = ("history", "evaluate", "predict", "called", "weights", "slots", "saliency")
        for what in kinds[: 4 if case == "mixed_precision" else 7]:
            assert equal(result["one"][what], result["split"][what], rounding), what
        assert equal(result["split"]["predict"], result["loaded"], rounding), "loaded"
        assert result["split"]["split"], "nothing is sharded"


def test_each_device_holds_its_part(results):
    run, tasks = results
    case = next(iter(RUNS[run]))
    for task in tasks:
        (whole,) = task[case]["one"]["bytes"].values()
        held = task[case]["split"]["bytes"]
        parts = 4 if run == "1x4" else 2
        assert task[case]["split"]["split"] and len(held) == {"2x2, two tasks": 2, "2x2, four tasks": 1}.get(run, 4)
        if len(held) < parts:  # What is not split, every task holds, with its part.
            (most,) = held.values()
            assert whole / parts < most < 0.7 * whole
            continue
        replicas = len(held) // parts
        # Of what is not split, the first device of each replica holds all.
        least, most = min(held.values()), max(held.values())
        assert sum(held.values()) == replicas * (least * parts + (most - least)) and least < whole / parts
        assert least * parts + (most - least) == whole


def test_all_tasks_of_a_replica_have_the_same_numbers(results):
    run, tasks = results
    for case in RUNS[run]:
        for task in tasks:
            for what in ("history", "evaluate", "weights"):
                assert task[case]["split"][what] == tasks[0][case]["split"][what]


def test_a_block_of_a_transformer_adds_up_activations_twice_and_gradients_twice(results):
    run, tasks = results
    if run != "2x2, four tasks":
        pytest.skip("a replica is in one task")
    blocks, activations, positions = 2, [None, 6, 16], [6, 16]  # Examples, words, channels.
    for task in tasks:
        sums = task["a_transformer"]["split"]["sums"]
        assert sums.count(activations) == blocks * (2 + 2)
        assert sums.count(positions) == 1
        assert len(sums) <= blocks * (2 + 2) + 1 + 12, (
            sums
        )  # Rows of the table, examples and metrics, and buckets of gradients.


def test_what_a_replica_in_several_tasks_cannot_do_is_refused(results):
    run, tasks = results
    if run != "2x2, four tasks":
        pytest.skip("a replica is in one task")
    assert all(
        "TensorBoard(histogram_freq=1) reads all weights on the chief" in task["refused"]["histograms"] for task in tasks
    )
    found = [task["refused"].get("reads", "") for task in tasks]
    assert "worker:0 reads " in found[0] and "which is sharded over tasks, and worker:1 calls fit; all tasks of a" in found[0]
    assert not any(found[1:])
    found = [task["refused"].get("calls", "") for task in tasks]
    assert "that a call of the model computes, which is sharded over tasks, and worker:1 calls fit" in found[0]
    assert not any(found[1:])
    assert any("the tasks of one replica have got different examples" in task["refused"]["other_examples"] for task in tasks)


def test_what_cannot_be_sharded_is_refused_by_name_and_an_own_loop_trains(tmp_path, run_python):
    assert run_python(tmp_path, PROGRAM, "refused", timeout=300) == 0, (tmp_path / "output.txt").read_text()[-5000:]
    found = json.loads((tmp_path / "refused.json").read_text())
    sharded, alone = found.pop("own_loop")
    assert sharded == pytest.approx(alone, rel=1e-5) and len(set(alone)) == 5
    expected = {
        "an_optimizer_that_needs_whole_variables": "Lamb may need all of a variable",
        "an_operation_without_a_rule": "own/kernel is sharded over 4 devices, and this step reads it as a whole",
        "a_dimension_that_four_devices_cannot_share": "head/kernel the layout (None, 'model'), and its shape (12, 10)",
        "export": "a SavedModel cannot hold that",
        "a_model_outside_the_scope": "keras.distribution has no effect on",
        "a_distribution_set_in_the_scope": "keras.distribution has no effect on sequential",
        "another_mesh": "variables on another arrangement",
    }
    assert found.keys() == expected.keys()
    for name, text in expected.items():
        assert text in found[name], name


@pytest.mark.parametrize("description", ['"BASIC"', '{"chief": 1, "worker": 1, "ps": 1}'])
def test_strategies_that_do_not_follow_keras_distribution_say_so(description, tmp_path, run_python):
    program = f"""
import tfdist
strategy = tfdist.strategy({description})
import keras, numpy as np
mesh = keras.distribution.DeviceMesh((1, 1), ("batch", "model"), ["cpu:0"])
keras.distribution.set_distribution(keras.distribution.ModelParallel(layout_map=keras.distribution.LayoutMap(mesh)))
with strategy.scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(np.ones((4, 2)), np.ones((4, 1)))
"""
    (tmp_path / "program.py").write_text(program)
    assert run_python(tmp_path, "program.py", timeout=200)
    assert "ValueError: keras.distribution has no effect on sequential" in (tmp_path / "output.txt").read_text()
