"""Models that keras.distribution splits over devices train as on one device: the cases of programs/split_models.py."""

import functools
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
    "weights_that_more_than_the_optimizer_assigns",
    "run_eagerly",
    "mixed_precision",
    "loss_scaling",
    "adamw_with_decay_clipping_and_averages",
    "an_embedding_by_rows",
    "jit_compile",
    "a_layer_of_sparse_inputs_by_rows",
    "attention_with_a_mask_of_two_axes",
)
PARTS = {  # Cases of programs/split_cases.py in which models are trained side by side, and these models.
    "blocks": ("a_pair_of_dense_layers", "a_transformer", "experts_and_groups_of_heads"),
    "layers_of_texts": ("a_transformer_with_dropout", "experts_and_groups_of_heads", "a_table_looked_up_by_tensorflow"),
    "layers_by_columns": ("functions_of_tensorflow", "functions_of_tensors", "recurrent_layers", "layouts_of_activations"),
    "products_and_convolutions": ("a_gated_subclassed_model", "convolutions"),
    "weights_that_more_than_the_optimizer_assigns": ("constraints", "a_weight_that_begins_by_the_batch"),
}
RUNS = {
    "1x4": ("many_steps_of_a_subclass_of_adam", "layers_of_texts", *(FOR_A_RELEASE if selection.ALL else ())),
    "1x2": (
        "built_in_fit_with_clipping_by_the_norm_of_all_gradients",
        "layers_by_columns",
        "products_and_convolutions",
    ),
    "2x2": (
        *(("blocks",) if selection.ALL else ()),  # Four tasks have them for each change.
        "weights_that_more_than_the_optimizer_assigns",
        "adamw_with_decay_clipping_and_averages",
        "an_embedding_by_rows",
        "own_train_step_that_assigns_weights",
    ),
    "2x2, two tasks": ("many_steps_of_a_subclass_of_adam", "an_embedding_by_rows"),  # Each holds a whole replica.
    "2x2, four tasks": (  # A replica is in two tasks. The transformer has an embedding by rows.
        "blocks",
        "own_train_step_that_assigns_weights",
        *(
            ("built_in_fit_with_clipping_by_the_norm_of_all_gradients", "constraints", "recurrent_layers")
            if selection.ALL
            else ()
        ),
    ),
}
TESTED = [run for run in RUNS if selection.ALL or run != "2x2, two tasks"]


@pytest.fixture(scope="module")
def run(tmp_path_factory, run_python):
    """Returns a function that runs a mesh, once, and returns what each task has written; the output if one has not."""

    @functools.cache
    def run(name):
        folder = tmp_path_factory.mktemp("split")
        mesh, _, tasks = name.partition(", ")
        count = {"": 1, "two tasks": 2, "four tasks": 4}[tasks]
        cases = RUNS[name] if name in RUNS else dict.fromkeys(case for run in TESTED for case in RUNS[run])
        command = [PROGRAM, mesh, *cases]
        if tasks:
            (folder / "workers.conf").write_text(f"cluster {{ nworkers_per_group: 4 nworkers_per_procs: {4 // count} }}")
            command = ["-m", "tfdist.launch", "--cluster", "workers.conf", *command]
        run_python(folder, *command, timeout=580)
        tasks = [json.loads(path.read_text()) for path in sorted(folder.glob(f"{mesh}*.json"))]
        return tasks if len(tasks) == count else (folder / "output.txt").read_text()[-5000:]

    return run


@pytest.fixture
def results(run, request):
    """(name of the run, what each task has written, what one device gives)"""
    name = request.param
    alone, tasks = run("one"), run(name)
    assert isinstance(alone, list) and isinstance(tasks, list), (alone, tasks)
    (one,) = alone
    for case in RUNS[name]:
        for task in (one, *tasks):
            assert "error" not in task[case], task[case]["error"]
    return name, tasks, one


def of_runs(*names):
    return pytest.mark.parametrize("results", names, indirect=True)


def of_part(values, part):
    """Returns what of the values by name belongs to one of the models side by side: the names contain its name."""
    return {name: value for name, value in values.items() if part in name}


@pytest.mark.parametrize(
    ("results", "case", "part"),
    [
        pytest.param(run, case, part, id=f"{run}-{part or case}")
        for run in TESTED
        for case in RUNS[run]
        for part in PARTS.get(case, ("",))
    ],
    indirect=["results"],
)
def test_equals_one_device(results, case, part):
    _, tasks, alone = results
    one = alone[case]
    for task in tasks:
        split = task[case]
        rounding = 0.02 if case == "mixed_precision" else 2e-4  # bfloat16 has 8 bits, and partial sums are rounded one by one.
        assert equal(of_part(one["history"], part), of_part(split["history"], part), rounding)
        exact = case != "mixed_precision"
        for what in (*(("evaluate", "predict") if "evaluate" in one else ()), *(("saliency",) if exact else ())):
            assert equal(one[what], split[what], rounding), what
        called = (one["called"][part], split["called"][part]) if part else (one["called"], split["called"])
        assert equal(*called, rounding)
        for what in ("weights", "slots") if exact else ():
            assert equal(*(list(of_part(each[what], part).values()) for each in (one, split)), rounding), what
        assert any(part in path for path in split["split"]), "nothing is sharded"
    assert tasks[0][case]["loaded"] == list(tasks[0][case]["weights"].values())


@of_runs(*TESTED)
def test_each_device_holds_its_part(results):
    run, tasks, one = results
    case = RUNS[run][0]
    (whole,) = one[case]["bytes"].values()
    for task in tasks:
        held = task[case]["bytes"]
        parts = 4 if run == "1x4" else 2
        assert task[case]["split"] and len(held) == {"1x2": 2, "2x2, two tasks": 2, "2x2, four tasks": 1}.get(run, 4)
        if len(held) < parts:  # What is not split, every task holds, with its part.
            (most,) = held.values()
            assert whole / parts < most < 0.7 * whole
            continue
        replicas = len(held) // parts
        # Of what is not split, the first device of each replica holds all.
        least, most = min(held.values()), max(held.values())
        assert sum(held.values()) == replicas * (least * parts + (most - least)) and least < whole / parts
        assert least * parts + (most - least) == whole


@of_runs("2x2, four tasks")
def test_all_tasks_of_a_replica_have_the_same_numbers(results):
    run, tasks, _ = results
    for case in RUNS[run]:
        for task in tasks:
            for what in ("history", "weights"):
                assert task[case][what] == tasks[0][case][what]


@of_runs("2x2, four tasks")
def test_a_block_of_a_transformer_adds_up_activations_twice_and_gradients_twice(results):
    activations, positions = [None, 6, 16], [6, 16]  # Examples, words, channels.
    _, tasks, _ = results
    for task in tasks:
        sums = task["blocks"]["sums"]
        assert sums.count(activations) == (2 + 2) + (1 + 1)  # And a layer of attention to groups of heads.
        assert sums.count(positions) == 1
        # Rows of tables, experts, examples and metrics, and buckets of gradients.
        assert len(sums) - sums.count(activations) <= 21, sums


@of_runs("2x2, four tasks")
def test_what_a_replica_in_several_tasks_cannot_do_is_refused(results):
    _, tasks, _ = results
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
