"""Runs programs with `hogwild_events.py` on a cluster, and reads their results."""

import json

CLUSTER = "nworker_groups: 3 nserver_groups: 3 nservers_per_group: 1 server_worker_separate: true"


def results_of(program, cases, folder, run_python):
    """Runs the program once, for all cases in one cluster with three ps, and returns its results."""
    (folder / "job.conf").write_text(f"cluster {{ {CLUSTER} }}")
    # The ps see each other.
    return _found(program, cases, folder, run_python, "--cluster", "job.conf", "--topology", "ring")


def results_without_ps(program, cases, folder, run_python):
    """Does so in a cluster whose workers hold the global parameters."""
    return _found(program, cases, folder, run_python, "--cluster", '{"worker": 3}', "--strategy", "hogwild")


def numbers_in(value):
    """Returns all numbers in nested dicts and lists."""
    if isinstance(value, dict | list):
        return [number for each in (value.values() if isinstance(value, dict) else value) for number in numbers_in(each)]
    return [value]


def _found(program, cases, folder, run_python, *flags):
    (folder / "cases.json").write_text(json.dumps(cases))
    run_python(folder, "-m", "tfdist.launch", *flags, str(program), "--", "cases.json", "results.json", timeout=900)
    assert (folder / "results.json").exists(), (folder / "output.txt").read_text()[-5000:]
    return json.loads((folder / "results.json").read_text())
