"""The summary of a finished job: for people, and as JSON for programs."""

import json
from pathlib import Path
from typing import Any

from tfdist.choice import Choice
from tfdist.cluster import Cluster
from tfdist.launch.supervisor import Outcome


def make(cluster: Cluster, choice: Choice, outcome: Outcome, log_dir: Path) -> dict[str, Any]:
    """Everything that is known about a job that has ended.

    Returns:
        A dict that `json.dumps` takes, with the keys `topology`, `strategy`, `rule`, `tasks` (a list), `wall_seconds`, `steps`
        and `examples_per_second` (None where the program did not call `fit`), `metrics` (those of the last `evaluate`, and of
        the last `fit` what `evaluate` does not have), `history` (the last epoch of `fit`), `exit_code`, `failure`, `log_dir`.
    """
    report = _read_report(log_dir / "report.json")
    seconds = report.get("fit_seconds", 0.0)
    return {
        "topology": cluster.describe(),
        "strategy": choice.strategy,
        "rule": choice.rule,
        "tasks": [
            {
                "task": task.name,
                "address": task.address,
                "exit_code": outcome.exits.get(task.name),
                "log": str(log_dir / task.log_name),
                **({"restarts": outcome.restarts[task.name]} if task.name in outcome.restarts else {}),
            }
            for task in cluster.tasks
        ],
        "wall_seconds": round(outcome.seconds, 3),
        "steps": report.get("steps"),
        "examples_per_second": round(report["examples"] / seconds, 1) if seconds and report.get("examples") else None,
        "metrics": report.get("metrics", {}),
        "history": report.get("history", {}),
        "exit_code": outcome.failure.exit_code if outcome.failure else 0,
        "failure": outcome.failure.reason if outcome.failure else None,
        "log_dir": str(log_dir),
    }


def lines(summary: dict[str, Any]) -> list[str]:
    """The summary of a job that succeeded, for the terminal."""
    told = [
        f"done in {summary['wall_seconds']:.1f} s",
        f"  topology  {summary['topology']}",
        f"  strategy  {summary['strategy']}: {summary['rule']}",
    ]
    if summary["steps"]:
        speed = f", {summary['examples_per_second']:.0f} examples/s" if summary["examples_per_second"] else ""
        told.append(f"  steps     {summary['steps']}{speed}")
    metrics = [f"{name} {value:.4f}" for name, value in summary["metrics"].items() if isinstance(value, int | float)]
    if metrics:
        told.append("  metrics   " + ", ".join(metrics))
    told += [line for task in summary["tasks"] if (line := _line_of(task))]
    told.append(f"  logs      {summary['log_dir']}")
    return told


def _line_of(task: dict[str, Any]) -> str | None:
    """What there is to tell of a task that may have been started again."""
    count = task.get("restarts", 0)
    again = f"started again {count} time{'s' * (count > 1)}" if count else ""
    if not task["task"].startswith("evaluator"):
        return f"  again     {task['task']} was {again}" if again else None
    ended = "finished" if task["exit_code"] == 0 else "did not finish; what it has evaluated is kept"
    return f"  evaluator {task['task']} {ended}{', ' + again if again else ''}"


def write(summary: dict[str, Any], path: str) -> None:
    """Writes the summary as JSON."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(summary, file, indent=2)
        file.write("\n")


def _read_report(path: Path) -> dict[str, Any]:
    try:
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return report
