"""The Keras contract as a table: rows are features of Keras, columns are strategies.

A row is a case of cases_*.py, or a part of one. Every column runs all cases on a real cluster. test_contract.py compares each
cell with the column `default`, which runs in one process. This command writes docs/contract.md:

    python tests/contract/table.py
"""

from dataclasses import dataclass, field
from pathlib import Path

PAGE = Path(__file__).parent.parent.parent / "docs" / "contract.md"

REFERENCE, SYNCHRONOUS, ASYNCHRONOUS = "reference", "synchronous", "asynchronous"

FILES_OF_REFERENCE = "CONTRACT_REFERENCE"
"""The variable with the folder of the files that one process has written, which every other column loads."""

FLOAT = 2e-4
"""Relative tolerance of equal numbers: float32 sums in another order, after some dozens of steps."""


@dataclass(frozen=True)
class Column:
    """A strategy on a cluster.

    Attributes:
        name: the name of the column.
        title: its heading in the documentation.
        source: the description of the cluster, for `--cluster`.
        flags: further flags of the launcher.
        kind: REFERENCE, SYNCHRONOUS or ASYNCHRONOUS.
        late: how many steps may be in flight when a callback sees one.
        lags: whether groups synchronize averages once in a period. Together they are then behind one process that makes as
            many steps. How far depends on their timing.
        chief: the task that writes the files and whose results count.
        others: the other tasks that run the program.
        rows: the rows that are tested for each change; None for all. A release tests all.
        left_out: rows that are not.
    """

    name: str
    title: str
    source: str
    kind: str
    late: int = 0
    lags: bool = False
    chief: str = "chief-0"
    others: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    rows: tuple[str, ...] | None = None
    left_out: tuple[str, ...] = ()

    @property
    def is_for_a_release(self) -> bool:
        """Whether the column is tested with TFDIST_TESTS=all only."""
        return self.rows == ()

    def tests(self, row: str) -> bool:
        """Returns whether a row is tested for each change. With TFDIST_TESTS=all, all are tested."""
        return row not in self.left_out and (self.rows is None or row in self.rows)


def _cloudml(workers: int, servers: int) -> str:
    """Returns a CloudML description, as JSON, which is YAML."""
    return (
        '{"trainingInput": {"scaleTier": "CUSTOM", "masterType": "standard", "workerType": "standard", '
        f'"workerCount": {workers}, "parameterServerType": "standard", "parameterServerCount": {servers}}}}}'
    )


IN_ONE_TASK = (
    *("embedding", "batch_normalization", "synchronized_batch_normalization", "dropout", "recurrent"),
    *("functional", "loss_of_one_number", "loss_in_a_layer", "added_losses", "subclassed", "own_compute_loss"),
    *("custom_train_step", "train_step_from_scratch", "model_without_call", "unseeded_random_operations", "constraints"),
    *("assignments_in_every_batch", "optimizers", "learning_rate_schedule", "clipnorm", "clipvalue", "global_clipnorm", "ema"),
    *("gradient_accumulation", "mixed_precision", "half_precision", "jit_compile", "run_eagerly", "metrics"),
    *("compile_outside_the_scope", "optimizer_outside_the_scope", "model_outside_the_scope", "own_loop"),
    *("own_loop_in_the_scope", "augmentation_in_the_scope", "numpy_arrays", "batches_with_none", "steps_per_execution"),
    *("validation_data", "class_weight", "sample_weight", "reduce_lr_on_plateau", "terminate_on_nan"),
)
"""Rows that the replicas of one task compute by the same code as those of several."""

ON_SERVERS = (
    *("embedding", "batch_normalization", "synchronized_batch_normalization", "dropout", "recurrent"),
    *("functional", "loss_of_one_number", "loss_in_a_layer", "added_losses", "subclassed", "own_compute_loss"),
    *("train_step_from_scratch", "model_without_call", "fewer_examples_than_replicas", "unseeded_random_operations"),
    *("constraints", "assignments_in_every_batch", "clipnorm", "clipvalue", "global_clipnorm", "mixed_precision"),
    *("half_precision", "jit_compile", "run_eagerly", "metrics", "compile_outside_the_scope", "optimizer_outside_the_scope"),
    *("model_outside_the_scope", "own_loop_in_the_scope", "augmentation_in_the_scope", "numpy_arrays", "generator"),
    *("batches_with_none", "validation_split", "validation_data", "class_weight", "sample_weight", "after_an_interrupted_fit"),
    *("progress_bar", "backup_and_restore", "reduce_lr_on_plateau", "terminate_on_nan"),
    *("keras_file", "weights_file", "tensorflow_checkpoint", "exported"),
)
"""Rows that parameter_server and hogwild compute by the same code, or that tests/strategies/hogwild has for hogwild: files,
constraints, values that callbacks assign, interrupted calls, averages of frozen weights."""

ON_GROUPS = (
    *(
        "evaluate",
        "predict",
        "evaluation_inside_a_fit",
        "error_in_a_step",
        "custom_train_step",
        "learning_rate_schedule",
        "ema",
    ),
    *("gradient_accumulation", "own_loop", "history", "batch_logs", "early_stopping", "model_checkpoint", "tensorboard"),
    *("csv_logger", "learning_rate_scheduler", "lambda_callback"),
)
"""Rows that differ more under hogwild, where groups have their own replicas of the parameters, optimizers and numbers of steps.
What they need of the coordinator, tests/strategies/parameter_server has for parameter_server."""


# fmt: off
COLUMNS = [
    Column("default", "one process", '{"trainingInput": {"scaleTier": "BASIC"}}', REFERENCE),
    Column(
        "mirrored", "mirrored: 1 task of 2 replicas",
        "cluster { nworker_groups: 1 nserver_groups: 1 nworkers_per_group: 2 nworkers_per_procs: 2 server_worker_separate: false }",
        SYNCHRONOUS, chief="worker-0", rows=IN_ONE_TASK,
    ),
    Column(
        "multi_worker_mirrored", "multi_worker_mirrored: 1 chief, 1 worker", '{"trainingInput": {"scaleTier": "CUSTOM", '
        '"masterType": "standard", "workerType": "standard", "workerCount": 1}}', SYNCHRONOUS, others=("worker-0",),
        left_out=IN_ONE_TASK,
    ),
    Column(
        "parameter_server", "parameter_server, asynchronous: 1 chief, 2 workers, 2 ps", _cloudml(2, 2), ASYNCHRONOUS, late=4,
        left_out=ON_GROUPS,
    ),
    Column(
        "sandblaster", "parameter_server, one synchronous group of 2 workers, 2 ps",
        "cluster { nworker_groups: 1 nserver_groups: 1 nworkers_per_group: 2 nservers_per_group: 2 server_worker_separate: true }",
        SYNCHRONOUS, rows=(),  # tests/strategies/parameter_server/test_worker_groups.py has such a group.
    ),
    Column(
        "downpour", "parameter_server, 2 asynchronous groups of 2 workers, 2 ps",
        "cluster { nworker_groups: 2 nserver_groups: 1 nworkers_per_group: 2 nservers_per_group: 2 server_worker_separate: true }",
        ASYNCHRONOUS, late=4, rows=(),  # Groups and asynchronous steps: each of the two columns before has one of them.
    ),
    Column(
        "hogwild", "hogwild: 2 groups of 1 worker, each with a server, sync period of 4 steps",
        "cluster { nworker_groups: 2 nserver_groups: 2 nworkers_per_group: 1 nservers_per_group: 1 server_worker_separate: false "
        "sync_freq: 4 }",
        ASYNCHRONOUS, late=16, lags=True, left_out=ON_SERVERS,  # 2 groups with 2 executions in flight, of 4 steps each.
    ),
]
PARTITIONED = Column(
    "partitioned", "mirrored: 1 replica, every kernel sharded by rows over 2 devices",
    "cluster { nworkers_per_group: 2 nworkers_per_procs: 2 }", SYNCHRONOUS, chief="worker-0",
    flags=("--partition", "kernel=rows", "--partition_devices", "2"), rows=(),  # tests/strategies/model_parallel has sharded models.
)
SPANNING = Column(
    "spanning", "multi_worker_mirrored: 1 replica in 2 tasks, every kernel sharded by rows over them",
    "cluster { nworkers_per_group: 2 nworkers_per_procs: 1 }", SYNCHRONOUS, chief="worker-0", others=("worker-1",),
    flags=("--partition", "kernel=rows", "--partition_tasks", "2"), rows=(),
)
# fmt: on
SHARDED = (PARTITIONED, SPANNING)
"""Columns whose models are sharded. Their files are not loaded in other columns."""

SERVED = ("parameter_server", "sandblaster", "downpour", "hogwild")
"""Columns in which the workers serve the chief."""


@dataclass(frozen=True)
class Row:
    """A feature of Keras, and how its numbers compare with those of one process.

    Attributes:
        name: the name of the result that a case returns.
        title: its name in the documentation.
        near: relative tolerance of its floating-point numbers if groups are asynchronous; None if it has no such numbers.
        replicas: the tolerance if the strategy is synchronous.
        refused: the name of a column -> the error in that column.
    """

    name: str
    title: str
    near: float | None = None
    replicas: float = FLOAT
    refused: dict[str, str] = field(default_factory=dict)


NOT_EAGER = (
    "run_eagerly=True cannot work under {}: a worker runs compiled functions only. "
    "Leave run_eagerly out, or debug in one process (--tier BASIC)."
)

CHIEF_READS = (
    "under parameter_server the chief reads the data and hands the batches out, and this is data that workers read; give it "
    "the tf.data.Dataset itself, or choose hogwild, where worker groups read their own."
)


NO_REPLICAS = (
    "a training loop of your own computes or applies gradients outside of strategy.run, where there are no replicas; use fit, or "
    "call the step with strategy.run on batches of strategy.experimental_distribute_dataset, as TensorFlow does"
)
PER_WORKER = "To use this dataset, you need to pass this dataset to ClusterCoordinator.create_per_worker_dataset"


def _refused(on_servers: str, on_hogwild: str) -> dict[str, str]:
    return {name: on_hogwild if name == "hogwild" else on_servers for name in SERVED}


def _sharded(error: str) -> dict[str, str]:
    return dict.fromkeys(("partitioned", "spanning"), error)


# fmt: off
GROUPS: dict[str, list[Row]] = {
    "Data: every example once per epoch": [
        Row("numpy_arrays", "numpy arrays", near=0.15),
        Row("finite_dataset", "`tf.data`, shuffled", near=0.15),
        Row("dataset_of_unknown_size", "`tf.data` of unknown size", near=0.15),
        Row("uneven_last_batch", "a last batch that the replicas cannot share evenly", near=0.15),
        Row("generator", "generator", near=0.15),
        Row("py_dataset", "`PyDataset`", near=0.15),
        Row("infinite_dataset", "infinite dataset with `steps_per_epoch`", near=0.15),
        Row("data_from_function", "`strategy.distribute_datasets_from_function`", near=0.15, refused=dict.fromkeys(
            ("parameter_server", "sandblaster", "downpour"), CHIEF_READS)),
        Row("batches_with_none", "batches with `None` for the weights", near=0.15),
        Row("empty_dataset", "an empty dataset: no step, or an error that says so"),
        Row("steps_per_execution", "`steps_per_execution`", near=0.15),
        Row("validation_split", "`validation_split`", near=0.15),
        Row("validation_data", "`validation_data`", near=0.15),
        Row("class_weight", "`class_weight`", near=0.15),
        Row("sample_weight", "`sample_weight`, `weighted_metrics`", near=0.15),
    ],
    "Functions of a model": [
        Row("evaluate", "`evaluate`", near=FLOAT),
        Row("predict", "`predict`: arrays, datasets, `steps`, in order", near=FLOAT),
        Row("on_batch", "`train_on_batch`, `test_on_batch`, `predict_on_batch`", near=FLOAT),
        Row("evaluation_inside_a_fit", "`evaluate` in a callback of `fit`", near=FLOAT),
        Row("error_in_a_step", "an error in a step reaches the program, and the next `fit` works"),
        Row("after_an_interrupted_fit", "`fit` after an interrupted `fit`"),
    ],
    "Models": [
        Row("functional", "functional, several inputs and outputs", near=0.15),
        Row("subclassed", "subclassed", near=0.15),
        Row("custom_train_step", "custom `train_step`", near=0.15),
        Row("embedding", "embeddings", near=0.15),
        Row("batch_normalization", "BatchNormalization (each replica normalizes its own part of the batch)", near=0.15, replicas=0.15),
        Row("synchronized_batch_normalization", "BatchNormalization(synchronized=True)", near=0.15),
        Row("dropout", "Dropout (each replica draws its own)", near=0.15, replicas=0.15),
        Row("unseeded_random_operations", "`keras.random` without a seed, as in a VAE (each replica draws its own)"),
        Row("recurrent", "recurrent layers", near=0.15),
        Row("model_without_call", "a model without `call`: a GAN with its own `train_step` and two optimizers", near=0.15, refused=_sharded(
            "its shape (1, 4) cannot be sharded equally over 2 devices along axis 0")),
        Row("fewer_examples_than_replicas", "a batch with fewer examples than there are replicas", near=0.15),
        Row("constraints", "constraints of weights", near=0.15),
        Row("assignments_in_every_batch", "a callback that assigns a weight in every batch"),
    ],
    "Losses; synchronous strategies are compared in weights too": [
        Row("added_losses", "`add_loss`, regularizers", near=0.15),
        Row("loss_of_one_number", "a loss function that returns one number for a batch", near=0.15),
        Row("own_compute_loss", "custom `compute_loss`", near=0.15),
        Row("loss_in_a_layer", "a Keras loss in a layer's `add_loss`", near=0.15),
        Row("train_step_from_scratch", "a Keras loss in a custom `train_step`, without `compute_loss`", near=0.15),
    ],
    "compile": [
        Row("optimizers", "every stock optimizer", near=0.15, refused=_sharded("Adafactor may need all of a variable for its update")),
        Row("learning_rate_schedule", "learning-rate schedules", near=0.15),
        Row("clipnorm", "`clipnorm`", near=0.15),
        Row("clipvalue", "`clipvalue`", near=0.15),
        Row("global_clipnorm", "`global_clipnorm`", near=0.15),
        Row("ema", "`use_ema`, `ema_overwrite_frequency`", near=0.15),
        Row("gradient_accumulation", "`gradient_accumulation_steps`", near=0.15),
        Row("mixed_precision", "mixed precision", near=0.15, replicas=0.02),
        Row("half_precision", "bfloat16 throughout (the dtype policy `bfloat16`), dense and embeddings", near=0.15, replicas=0.02),
        Row("jit_compile", "`jit_compile=True` (parameter_server and hogwild train without XLA, with a warning)", near=0.15),
        Row(
            "run_eagerly", "`run_eagerly=True`", near=0.15,
            refused=_refused(NOT_EAGER.format("parameter_server"), NOT_EAGER.format("hogwild")),
        ),
        Row("metrics", "metrics: accuracy, AUC, one with several values", near=0.15),
        Row("compile_outside_the_scope", "`compile` outside the scope, of a model made inside", near=0.15),
        Row("optimizer_outside_the_scope", "an optimizer built outside the scope: an error that says so"),
        Row("model_outside_the_scope", "a model made outside the scope trains in its process alone, with a warning", near=FLOAT, refused=_sharded(
            "which is made outside the scope of the strategy; make it inside `with strategy.scope():`")),
    ],
    "Loops of your own": [
        Row(
            "own_loop", "`GradientTape` and `optimizer.apply`, also in `tf.function` (on the chief alone, with a warning)", near=FLOAT,
            refused=dict.fromkeys(("mirrored", "multi_worker_mirrored", "partitioned", "spanning"), NO_REPLICAS),
        ),
        Row(
            "own_loop_in_the_scope", "the same inside the scope", near=FLOAT,
            refused=dict.fromkeys(("mirrored", "multi_worker_mirrored", "partitioned", "spanning"), NO_REPLICAS),
        ),
        Row(
            "own_loop_with_strategy_run", "`strategy.run` on a distributed dataset, as in TensorFlow's guide", near=FLOAT,
            refused=dict.fromkeys(SERVED, PER_WORKER),
        ),
        Row("augmentation_in_the_scope", "a random layer made inside the scope and used in `tf.data`", near=FLOAT),
    ],
    "Callbacks": [
        Row("history", "`History`", near=0.15),
        Row("batch_logs", "logs of batches"),
        Row("progress_bar", "progress bar, on the chief only"),
        Row("stop_training", "`stop_training` in the middle of an epoch"),
        Row("early_stopping", "EarlyStopping, `restore_best_weights`", near=0.15),
        Row("model_checkpoint", "ModelCheckpoint, `save_best_only`", near=0.15),
        Row("backup_and_restore", "BackupAndRestore", near=0.15),
        Row("tensorboard", "TensorBoard (the package `tensorboard` has to be installed)"),
        Row("csv_logger", "CSVLogger"),
        Row("learning_rate_scheduler", "LearningRateScheduler", near=FLOAT),
        Row("reduce_lr_on_plateau", "ReduceLROnPlateau", near=FLOAT),
        Row("terminate_on_nan", "TerminateOnNaN"),
        Row("lambda_callback", "LambdaCallback"),
    ],
    "Files": [
        Row("keras_file", "`.keras`: save, load in the scope, train on", near=0.15),
        Row("weights_file", "`save_weights`, `load_weights`", near=FLOAT),
        Row("tensorflow_checkpoint", "`tf.train.Checkpoint`, `CheckpointManager`", near=FLOAT),
        Row("exported", "`export` as a SavedModel", near=FLOAT, refused=_sharded(
            "and a SavedModel cannot hold that; save the model as .keras, load it in a program without a cluster, and export")),
    ],
}
# fmt: on

ROWS = {row.name: row for rows in GROUPS.values() for row in rows}


def tolerance(row: Row, column: Column) -> float:
    """Returns the relative tolerance of the floating-point numbers of a cell."""
    if column.kind != ASYNCHRONOUS:
        return row.replicas
    assert row.near is not None, f"{row.name} has numbers that differ between asynchronous runs, and no tolerance for them"
    return row.near


def cell(row: Row, column: Column) -> str:
    """Returns the text of a cell in the documentation."""
    if column.name in row.refused:
        return "refused"
    if column.kind == ASYNCHRONOUS and row.near is not None and row.near != FLOAT:
        return f"within {row.near:.0%}, behind" if column.lags else f"within {row.near:.0%}"
    return f"within {row.replicas:.0%}" if column.kind == SYNCHRONOUS and row.replicas != FLOAT else "equal"


def page() -> str:
    """Returns the text of docs/contract.md."""
    columns = [column for column in [*COLUMNS, *SHARDED] if column.kind != REFERENCE]
    lines = [
        "# What Keras does under each strategy",
        "",
        "Each cell is a test on real processes, compared with the same program in one process.",
        "",
        f"* **equal**: all counts are the same. Losses, metrics and predictions agree to a relative {FLOAT:g}, because sums are",
        "  computed in another order.",
        "* **within**: all counts are the same. Losses and metrics agree to this tolerance. Asynchronous workers never take the same",
        "  steps twice, and a replica that sees its shard of a batch computes other statistics than one that sees the batch.",
        "* **within, behind**: all counts are the same. Losses and metrics of each epoch agree, to this tolerance, with those of one",
        "  process in this epoch or an earlier one, and they move in the same direction. Groups that average their parameters once",
        "  in a sync period are behind one process that makes as many steps.",
        "* **refused**: an error says what to do instead.",
        "",
        "| | " + " | ".join(column.title for column in columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    notes: dict[str, None] = {}
    for title, rows in GROUPS.items():
        lines.append(f"| **{title}** |" + " |" * len(columns))
        for row in rows:
            lines.append(f"| {row.title} | " + " | ".join(cell(row, column) for column in columns) + " |")
            notes.update({message: None for name, message in row.refused.items() if name in {c.name for c in columns}})
    lines += [
        "",
        "Every column but the last two loads the files of every other column, and so does Keras without tfdist. The predictions are",
        "equal. For each change, CI tests every row in a column of mirrored or multi_worker_mirrored, and in one of the others.",
        "`TFDIST_TESTS=all` tests all cells, and all optimizers.",
    ]
    lines += ["", "The errors:", "", *(f"* {message}" for message in notes)]
    lines += [
        "",
        "`python tests/contract/table.py` writes this page. `tests/contract/test_contract.py` tests the cells.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
