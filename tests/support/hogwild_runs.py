"""Runs programs with `hogwild_events.py`, and reads their results."""

import json


def results_of(program, cases, folder, run_python, servers=3):
    """Runs the program once, for all cases in one cluster, and returns its results.

    Args:
        program: the path of the program.
        cases: see `hogwild_events.main`.
        folder: where it runs.
        run_python: the fixture.
        servers: how many ps the cluster has. Without, the workers hold the global parameters.
    """
    (folder / "cases.json").write_text(json.dumps(cases))
    run_python(folder, str(program), "cases.json", "results.json", str(servers), timeout=900)
    assert (folder / "results.json").exists(), (folder / "output.txt").read_text()[-5000:]
    return json.loads((folder / "results.json").read_text())


def numbers_in(value):
    """Returns all numbers in nested dicts and lists."""
    if isinstance(value, dict | list):
        return [number for each in (value.values() if isinstance(value, dict) else value) for number in numbers_in(each)]
    return [value]
