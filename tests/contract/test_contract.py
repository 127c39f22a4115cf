"""Tests the cells of contract/table.py on real clusters, compared with one process.

One cluster per column runs all cases of contract/cases_*.py, those of some columns a few (`Column.rows`) unless all tests run. It
starts with the first test of the column.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import selection

from contract.comparison import different
from contract.table import COLUMNS, FILES_OF_REFERENCE, PAGE, ROWS, SERVED, SHARDED, page

TESTS = Path(__file__).parent.parent
SECONDS = 1200  # A bound for a column that hangs, on machines several times slower than those it takes 330 s on.

cluster = [pytest.mark.cluster, pytest.mark.timeout(2 * SECONDS + 40)]  # The reference may have to run first.


class Runs:
    """The runs of the columns, at most one of each."""

    def __init__(self, folder, run_python):
        self.folder, self.run_python = folder, run_python
        self.results = {}

    def of(self, column):
        """Returns the results of a column: task -> row -> result."""
        if column.name not in self.results:
            self.start(column)
            self.results[column.name] = {
                task: self.read(column, task, "results.json") for task in (column.chief, *column.others)
            }
        return self.results[column.name]

    def read(self, column, task, name):
        path = self.folder / column.name / task / name
        assert path.exists(), f"{column.name} {task}:\n{self.output(column)[-5000:]}"
        return json.loads(path.read_text())

    def output(self, column):
        return (self.folder / column.name / "output.txt").read_text(errors="replace")

    def start(self, column, *arguments):
        folder = self.folder / column.name
        folder.mkdir(exist_ok=True)
        (folder / "cluster").write_text(column.source)
        command = ["-m", "tfdist.launch", "--cluster", "cluster", *column.flags, "-m", "contract.program", "--", *arguments]
        environment = {"PYTHONPATH": str(TESTS)}
        if not selection.ALL:
            environment["CONTRACT_ROWS"] = " ".join(filter(column.tests, ROWS))
        if column in COLUMNS[1:]:
            self.of(COLUMNS[0])
            environment[FILES_OF_REFERENCE] = str(self.folder / COLUMNS[0].name / "files")
        try:
            self.run_python(folder, *command, timeout=SECONDS, environment=environment)
        except subprocess.TimeoutExpired:
            pass  # `read` reports what is missing.


@pytest.fixture(scope="module")
def runs(tmp_path_factory, run_python):
    return Runs(tmp_path_factory.mktemp("contract"), run_python)


TESTED = [column for column in COLUMNS if selection.ALL or not column.is_for_a_release]
SAVE = [column for column in TESTED if selection.ALL or column.tests("keras_file")]
"""Columns that write files. Each also loads those of one process."""


def columns(of):
    """Returns columns as parameters of tests."""
    return [pytest.param(column, id=column.name, marks=cluster) for column in TESTED if of(column)]


def cells():
    """Returns the cells as parameters of tests."""
    return [
        pytest.param(column, row, id=f"{column.name}-{row.name}", marks=cluster)
        for column in (*COLUMNS, *SHARDED)
        for row in ROWS.values()
        if selection.ALL or column.tests(row.name)
    ]


@pytest.mark.parametrize(("column", "row"), cells())
def test_contract(runs, column, row):
    reference = runs.of(COLUMNS[0])["chief-0"][row.name]
    assert "error" not in reference, reference["trace"]
    for task, results in runs.of(column).items():
        got = results[row.name]
        if column.name in row.refused:
            assert row.refused[column.name] in got.get("error", "no error")
            continue
        assert "error" not in got, f"{task}: {got['trace']}"
        wrong = different(row, column, got, reference)
        assert not wrong, f"{task}: {wrong}"
        for name, value in got.get("chief", {}).items():
            if task == column.chief:
                assert value == reference["chief"][name], f"{task}: {name}"
            else:
                assert not any(value) if isinstance(value, list | tuple) else not value, (
                    f"{task} wrote what only the chief writes: {name}"
                )


@pytest.mark.release  # For each change every column loads the files of one process, and one process those of each column.
@pytest.mark.parametrize("column", columns(lambda column: True))
def test_files_of_every_column_load_in(runs, column):
    for other in TESTED:
        runs.of(other)
    runs.start(column, *(str(runs.folder / other.name / "files") for other in TESTED))
    for task in (column.chief, *column.others):
        loaded = runs.read(column, task, "loaded.json")
        assert len(loaded) == len(TESTED)
        for folder, differences in loaded.items():
            assert sorted(differences) == ["checkpoints", "model.keras", "model.weights.h5"]
            assert max(differences.values()) < 1e-5, (folder, differences)


@pytest.mark.cluster
@pytest.mark.timeout(6 * SECONDS)
def test_files_of_every_column_load_without_tfdist(runs):
    code = (
        "import json, sys\nimport tensorflow as tf\nfrom contract.cases_files import adam, differences\n"
        "from contract.common import regression\n"
        "strategy = tf.distribute.get_strategy()\nmodel = regression(strategy, adam)\n"
        "print(json.dumps([differences(strategy, model, folder) for folder in sys.argv[1:]]))\n"
        "assert not any(name.startswith('tfdist') for name in sys.modules)"
    )
    for column in SAVE:
        runs.of(column)
    folders = [str(runs.folder / column.name / "files") for column in SAVE]
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    got = subprocess.run(
        [sys.executable, "-c", code, *folders], env=environment, capture_output=True, text=True, timeout=SECONDS
    )
    assert got.returncode == 0, got.stderr[-3000:]
    for folder, differences in zip(folders, json.loads(got.stdout.splitlines()[-1]), strict=True):
        assert max(differences.values()) < 1e-5, (folder, differences)


WARNINGS = {
    "model_outside_the_scope": "was made outside the strategy's scope and trains in this process alone",
    "own_loop": "a training loop of your own runs on the chief alone",
    "own_loop_in_the_scope": "a training loop of your own runs on the chief alone",
}


@pytest.mark.parametrize(
    ("column", "row"),
    [
        pytest.param(column, row, id=f"{column.name}-{row}", marks=cluster)
        for column in TESTED
        for row in WARNINGS
        if column.name in SERVED and (selection.ALL or column.tests(row))
    ],
)
def test_what_runs_on_the_chief_alone_causes_a_warning(runs, column, row):
    runs.of(column)
    assert WARNINGS[row] in runs.output(column)


@pytest.mark.parametrize("row", ROWS)
def test_every_row_is_tested_for_each_change_with_replicas_and_with_workers_that_serve_the_chief(row):
    tested = [column.name for column in COLUMNS if column.tests(row)]
    assert "default" in tested and {*tested} & {"mirrored", "multi_worker_mirrored"} and {*tested} & {*SERVED}


def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python tests/contract/table.py"
