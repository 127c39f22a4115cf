"""Runs on every task of a column's cluster: runs all cases in the folder of the task and writes results.json there.

With folders as arguments, it loads the files of other columns from them instead, and writes loaded.json.
"""

import importlib
import json
import os
import sys
import time
import traceback

import tfdist

task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {"type": "chief", "index": 0})
own = f"{task['type']}-{task['index']}"
strategy = tfdist.strategy()

for name in (
    "data",
    "models",
    "losses",
    "compile",
    "loops",
    "callbacks",
    "files",
    "errors",
):  # Errors last: some strategies cannot train after one.
    importlib.import_module(f"contract.cases_{name}")
from contract.cases_files import adam, differences  # noqa: E402
from contract.common import CASES, beginning, regression  # noqa: E402
from contract.table import COLUMNS  # noqa: E402

os.makedirs(own, exist_ok=True)
os.chdir(own)
tests_all = os.environ.get("TFDIST_TESTS") == "all"


def run(rows, function):
    begin = time.monotonic()
    beginning.is_compared = tests_all or any(column.lags and column.tests(row) for column in COLUMNS for row in rows)
    try:
        got = function(strategy)
        results = {rows[0]: got} if len(rows) == 1 else got
    except Exception as error:
        results = {row: {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()} for row in rows}
    print(f"{time.monotonic() - begin:5.1f} s {' '.join(rows)}", "error" if "error" in results[rows[0]] else "", flush=True)
    return results


if sys.argv[1:]:
    model = regression(strategy, adam)
    results = {folder: differences(strategy, model, folder) for folder in sys.argv[1:]}
    name = "loaded.json"
else:
    only, results, name = os.environ.get("CONTRACT_ROWS", "").split(), {}, "results.json"
    for rows, function in CASES.items():
        if not only or set(only) & set(rows):
            results.update(run(rows, function))
with open(name, "w") as file:
    json.dump(results, file)
