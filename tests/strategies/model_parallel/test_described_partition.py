"""Unchanged programs whose models the description of the cluster partitions train as in one process."""

import json

import numpy as np
import pytest
import selection
from rounding import equal
from support_paths import PROGRAMS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PROGRAM = str(PROGRAMS / "unchanged_models.py")
LAYER = 'layer {{ name: "{}" partition_dim: 1 param {{ }} }}'
LAYERS = f"neuralnet {{ {' '.join(LAYER.format(name) for name in ('words', 'up', 'down'))} }}"
SINGA = f"{LAYERS} cluster {{ nworkers_per_group: 4 nworkers_per_procs: 2 }}"
HOGWILD = (
    f"{LAYERS} cluster {{ nworker_groups: 1 nserver_groups: 1 nservers_per_group: 1 server_worker_separate: true "
    "nworkers_per_group: 4 nworkers_per_procs: 4 }"
)
PATTERNS = "--partition=up/.*=columns,down/kernel=rows,embeddings=rows"
FLAGS = {
    "flags, 2 x 2 in one task": (
        "--cluster=cluster { nworkers_per_group: 4 nworkers_per_procs: 4 }",
        PATTERNS,
        "--partition_devices=2",
    ),
    "SINGA, 2 x 2 in two tasks": ("--cluster=job.conf", "--partition_devices=2"),
    "hogwild, 2 x 2 in one worker": ("--cluster=hogwild.conf", "--strategy=hogwild", "--partition_devices=2"),
    "parameter_server, 1 x 2 in two workers": (
        "--cluster=cluster { nworkers_per_group: 2 nserver_groups: 1 nservers_per_group: 2 server_worker_separate: true }",
        PATTERNS,
    ),
}
BY_FLAGS = ["down/kernel", "up/bias", "up/kernel", "words/embeddings"]
BY_SINGA = ["down/bias", *BY_FLAGS]
if not selection.ALL:
    del FLAGS["flags, 2 x 2 in one task"]  # Programs without a launcher are in test_split_training.py.
SHARDED = {run: BY_FLAGS if PATTERNS in flags else BY_SINGA for run, flags in FLAGS.items()}
TASKS = {run: 2 if run == "SINGA, 2 x 2 in two tasks" else 1 for run in FLAGS}  # That run the program.


@pytest.fixture(scope="module")
def runs(tmp_path_factory, run_python):
    """name of the run -> what each task has written; the run of one process has loaded the models of the others."""
    found, folders = {}, []
    for name, flags in FLAGS.items():
        folders.append(tmp_path_factory.mktemp("run"))
        (folders[-1] / "job.conf").write_text(SINGA)
        (folders[-1] / "hogwild.conf").write_text(HOGWILD)
        code = run_python(folders[-1], "-m", "tfdist.launch", *flags, PROGRAM, timeout=280)
        assert code == 0, (folders[-1] / "output.txt").read_text()[-5000:]
        found[name] = [json.loads((folders[-1] / f"{rank}.json").read_text()) for rank in range(TASKS[name])]
    alone = tmp_path_factory.mktemp("alone")
    code = run_python(alone, PROGRAM, *map(str, folders), timeout=200)
    assert code == 0, (alone / "output.txt").read_text()[-5000:]
    found["one process"] = [json.loads((alone / "0.json").read_text())]
    return found


@pytest.mark.parametrize("dtype", ["net", "mixed"])
@pytest.mark.parametrize("run", FLAGS)
def test_many_steps_equal_one_process(runs, run, dtype):
    expected = runs["one process"][0][dtype]
    rounding = 0.05 if dtype == "mixed" else 2e-4  # bfloat16 has 8 bits, and partial sums are rounded one by one.
    for task in runs[run]:
        got = task[dtype]
        assert got["sharded"] == [f"{dtype}/{path}" for path in SHARDED[run]]
        for what in ("history", "evaluate", *(("predict", "weights", "slots") if dtype == "net" else ())):
            assert expected[what] and equal(expected[what], got[what], rounding), what
        assert np.abs(np.subtract(expected["predict"], got["predict"])).mean() < 0.01  # In bfloat16 one may be further off.


def test_the_ps_look_up_the_rows_of_sharded_tables(runs):
    (one,), (got,) = runs["one process"], runs["parameter_server, 1 x 2 in two workers"]
    expected, got = one["tables"], got["tables"]
    assert equal(expected["predict"], got["predict"], 2e-4) and equal(expected["weights"], got["weights"], 2e-4)
    assert got["gathers"] and not got["whole"]


def test_a_sharded_table_that_a_step_reads_whole_is_named(runs):
    ((before, after),) = (task["tables"]["warnings"] for task in runs["parameter_server, 1 x 2 in two workers"])
    assert not before
    assert len(after) == 1 and "words/embeddings is looked up by rows, and a step also reads all of it: its 0.6 MB" in after[0]


@pytest.mark.parametrize("run", FLAGS)
def test_saved_models_load_in_one_process(runs, run):
    by_run = dict(zip(FLAGS, runs["one process"][0]["loaded"].values(), strict=True))
    for dtype, predicted in by_run[run].items():
        assert equal(runs[run][0][dtype]["predict"], predicted, 0.05 if dtype == "mixed" else 1e-5), dtype


@pytest.mark.parametrize("run", FLAGS)
def test_a_device_holds_its_shards_of_weights_and_slots(runs, run):
    (whole,) = runs["one process"][0]["bytes"].values()
    for task in runs[run]:
        devices = sorted(task["bytes"].values())
        # Replicas of one worker of hogwild share its variables, and the variables of parameter_server are on the ps.
        replicas = 2 // TASKS[run] if "--strategy=hogwild" not in FLAGS[run] and "parameter_server" not in run else 1
        assert len(devices) == 2 * replicas
        # The first device of each replica also holds what is not sharded.
        assert sum(devices) == replicas * whole and max(devices) < 0.6 * whole


@pytest.mark.parametrize("run", FLAGS)
def test_what_the_partition_cannot_be_applied_to_is_named(runs, run):
    for task in runs[run]:
        found = task["refused"]
        assert "matches up/" in found["other_layers"] or "matches words/" in found["other_layers"]
        assert "variables of sequential are sequential/other/kernel, sequential/other/bias" in found["other_layers"]
        assert "has no effect on net" in found["outside"] and "inside `with strategy.scope():`" in found["outside"]
        assert "and the program calls keras.distribution.set_distribution" in found["own_distribution"]
        served = "own_loop" in found
        constrains_shards = "MaxNorm needs the whole weight" in found.get("constrained", "")
        assert constrains_shards == run.startswith("hogwild"), found.get("constrained")
        assert served == (run.startswith(("hogwild", "parameter_server")))
        assert (
            not served or "A model that the description of the cluster partitions cannot train otherwise" in found["own_loop"]
        )
