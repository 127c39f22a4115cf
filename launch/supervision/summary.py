"""The summary of a job that has ended: as lines for the terminal, and as JSON for programs."""

import json
import math
from typing import Any

from tfdist.launch import standard_streams
from tfdist.launch.jobs.job import Job, JobFiles
from tfdist.launch.supervision.supervisor import Outcome


def make(job: Job, files: JobFiles, outcome: Outcome, restarts: int = 0, earlier_seconds: float = 0.0) -> dict[str, Any]:
    """Returns the summary of a job, whose last restart of all tasks was `earlier_seconds` after its start.

    Returns:
        A dict for `json.dumps` with the keys `topology`, `strategy`, `rule`, `tasks` (a list), `restarts`, `wall_seconds` (of
        the whole job), `steps` and `examples_per_second` (since the last restart; None where the program did not call `fit`),
        `metrics` (those of the last `evaluate`, and those of the last `fit` that `evaluate` does not have), `history` (the last
        epoch of `fit`), `exit_code`, `failure`, `log_dir`.
    """
    report = outcome.report
    seconds = report.get("fit_seconds", 0.0)
    return {
        "topology": job.cluster.describe(),
        "strategy": job.choice.strategy,
        "rule": job.choice.rule,
        "tasks": [
            {
                "task": task.name,
                "address": task.address,
                "exit_code": outcome.exits.get(task.name),
                "log": str(files.log(task)),
                **({"restarts": outcome.restarts[task.name]} if task.name in outcome.restarts else {}),
            }
            for task in outcome.cluster.tasks
        ],
        "restarts": restarts,
        "wall_seconds": round(earlier_seconds + outcome.seconds, 3),
        "steps": report.get("steps"),
        "examples_per_second": round(report["examples"] / seconds, 1) if seconds and report.get("examples") else None,
        "metrics": report.get("metrics", {}),
        "history": report.get("history", {}),
        "exit_code": outcome.failure.exit_code if outcome.failure else 0,
        "failure": outcome.failure.reason if outcome.failure else None,
        "log_dir": str(files.log_dir),
    }


def lines(summary: dict[str, Any]) -> list[str]:
    """Returns the lines that the terminal shows after success."""
    again = _times(summary["restarts"])
    shown = [
        f"done in {summary['wall_seconds']:.1f} s{f', with {again} of all tasks' if again else ''}",
        f"  topology  {summary['topology']}",
        f"  strategy  {summary['strategy']}: {summary['rule']}",
    ]
    if summary["steps"]:
        speed = f", {summary['examples_per_second']:.0f} examples/s" if summary["examples_per_second"] else ""
        shown.append(f"  steps     {summary['steps']}{' since the last restart' if again else ''}{speed}")
    metrics = [f"{name} {value:.4f}" for name, value in summary["metrics"].items() if isinstance(value, int | float)]
    if metrics:
        shown.append("  metrics   " + ", ".join(metrics))
    shown += [line for task in summary["tasks"] if (line := _line_of(task))]
    shown.append(f"  logs      {summary['log_dir']}")
    return shown


def _line_of(task: dict[str, Any]) -> str | None:
    """Returns the line about an evaluator, or about a task that was restarted; None for other tasks."""
    count = task.get("restarts", 0)
    restarts = _times(count)
    if not task["task"].startswith("evaluator"):
        return f"  restarts  {task['task']}: {restarts}" if restarts else None
    end = "finished" if task["exit_code"] == 0 else f"did not finish, see {task['log']}; its evaluations so far are kept"
    return f"  evaluator {task['task']} {end}{f' ({restarts})' if restarts else ''}"


def _times(restarts: int) -> str:
    return f"{restarts} restart{'s' * (restarts > 1)}" if restarts else ""


def write(summary: dict[str, Any], path: str) -> None:
    """Writes the summary as JSON, which has no NaN: the loss of a training that diverged is null."""
    mode = "a" if standard_streams.is_one(path) else "w"  # What was printed there stays.
    with open(path, mode, encoding="utf-8") as file:
        json.dump(_finite(summary), file, indent=2, allow_nan=False)
        file.write("\n")


def _finite(value: Any) -> Any:
    """Returns a value of JSON with None for each number that is not finite."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
