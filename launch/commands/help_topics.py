"""The flags of `tfdist run`, grouped by topic for `--help`."""

import textwrap
from typing import Any

from absl import flags

from tfdist.flags import HOGWILD_FLAGS, PARTITION_FLAGS
from tfdist.launch.backends.registry import backends

TOPICS: dict[str, tuple[str, ...]] = {
    "Most used": ("workers", "max_workers", "tier", "cluster", "m", "strategy", "dry_run", "detach"),
    "The cluster": (
        "worker_count",
        "parameter_server_count",
        "evaluator_count",
        "evaluator",
        "hostfile",
        "local",
        *PARTITION_FLAGS,
    ),
    "Machine types (CloudML)": (
        "master_machine_type",
        "worker_machine_type",
        "parameter_server_machine_type",
        "evaluator_machine_type",
    ),
    "Where it runs": ("backend", "gpus_per_task", "env", "defaults"),
    "Output": ("view", "tensorboard", "log_dir", "summary", "state_file", "job_dir", "verbose"),
    "Limits and faults": (
        "start_timeout",
        "stall_timeout",
        "step_timeout",
        "lost_timeout",
        "grace_period",
        "max_restarts",
        "backup_dir",
        "backup_freq",
        "task_restarts",
        "restart_window",
        "rendezvous_timeout",
        "fail_at",
    ),
    "Hogwild": tuple(HOGWILD_FLAGS),
}
"""Names of flags by topic. Each back end with flags of its own is a topic after these; what is left is under "Further"."""

_OF_ABSL = {"log_dir": "Folder for the output of the tasks. Default: a new folder below tfdist_logs/."}
"""Texts for flags that absl defines for its own logs."""

_REPEATED = "; repeat this option"
"""Where absl's addition to the text of a flag with several values begins. Ours says it already."""

_WIDTH = 126


def topics(flag_values: flags.FlagValues) -> dict[str, list[str]]:
    """Returns the names of the launcher's flags by topic."""
    known = {flag.name for flag in flag_values.get_key_flags_for_module("tfdist.launch.commands.run_command")}
    by_topic = {topic: [name for name in names if name in known] for topic, names in TOPICS.items()}
    for backend in backends().values():
        by_topic[f"Back end {backend.name}"] = list(backend.options)
    left = known - {name for names in by_topic.values() for name in names}
    by_topic["Further"] = sorted(left)
    return {topic: names for topic, names in by_topic.items() if names}


def help_text(flag_values: flags.FlagValues) -> str:
    """Returns the list of flags."""
    parts = []
    for topic, names in topics(flag_values).items():
        parts.append(f"{topic}:\n" + "".join(_entry(flag_values[name]) for name in names))
    return "\n".join(parts)


def _entry(flag: "flags.Flag[Any]") -> str:
    short = f"-{flag.short_name}, " if flag.short_name else ""
    dashes = "-" if len(flag.name) == 1 else "--"  # -m, as python has it.
    name = f"{short}--[no]{flag.name}" if flag.boolean else f"{short}{dashes}{flag.name}"
    default = "" if flag.default in (None, False, [], "") or flag.boolean else f" Default: {flag.default}."
    words = _OF_ABSL.get(flag.name, " ".join(flag.help.split()).partition(_REPEATED)[0])
    text = textwrap.fill(words + default, _WIDTH, initial_indent="      ", subsequent_indent="      ")
    return f"  {name}\n{text}\n"
