"""gcloud: the command lines that submit training to AI Platform (earlier ML Engine) and Vertex AI, or train on this machine.

Sources of the flags and defaults: Google Cloud SDK `command_lib/ml_engine/flags.py`, and the reference pages of `gcloud
ai-platform jobs submit training`, `gcloud ai-platform local train` and `gcloud ai custom-jobs create`. What the flags mean is
that of CloudML's and Vertex AI's fields.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

from tfdist.cluster import Cluster, Task
from tfdist.dialects.cloudml.messages import fields, flag, training_fields
from tfdist.dialects.cloudml.training_input import NAME as CLOUDML
from tfdist.dialects.cloudml.training_input import read_fields
from tfdist.dialects.dialect import CommandReader, Dialect
from tfdist.dialects.parsing.command_line import check_variable, names
from tfdist.dialects.parsing.document import Document, check_text, close, read_text, shown
from tfdist.dialects.parsing.load import load
from tfdist.dialects.parsing.node import Node
from tfdist.dialects.parsing.shell import has_variable
from tfdist.dialects.parsing.values import Values
from tfdist.dialects.vertex import custom_job
from tfdist.errors import Source, UnstatedError, nearest

NAME = "gcloud"

_PLATFORM = ("ai-platform", "ml-engine", "ml")
_SUBMIT, _LOCAL, _CREATE = ("jobs", "submit", "training"), ("local", "train"), ("custom-jobs", "create")

_FIELDS = {
    "scale-tier": "scaleTier",
    "master-machine-type": "masterType",
    "worker-machine-type": "workerType",
    "worker-count": "workerCount",
    "parameter-server-machine-type": "parameterServerType",
    "parameter-server-count": "parameterServerCount",
    "evaluator-machine-type": "evaluatorType",
    "evaluator-count": "evaluatorCount",
}
_ACCELERATORS = {
    "master-accelerator": "masterConfig",
    "worker-accelerator": "workerConfig",
    "parameter-server-accelerator": "parameterServerConfig",
}
_GLOBAL = names(
    "access-token-file account billing-project configuration flatten format impersonate-service-account project "
    "trace-token verbosity region"
)
_SWITCHES = names(
    "async stream-logs enable-web-access enable-dashboard-access distributed log-http quiet q user-output-enabled"
)
_VALUED = (
    _GLOBAL
    | _FIELDS.keys()
    | _ACCELERATORS.keys()
    | names(
        "config job-dir labels master-image-uri module-name package-path packages parameter-server-image-uri python-version "
        "runtime-version service-account staging-bucket use-chief-in-tf-config worker-image-uri kms-key kms-keyring "
        "kms-location kms-project network tpu-tf-version start-port worker-pool-spec args command display-name "
        "python-package-uris persistent-resource-id max-trial-count parallel-trial-count"
    )
)

LOCAL_PS, LOCAL_WORKERS = 2, 2
"""Tasks of `local train --distributed` beside the chief, if the flags do not give their number, or give 0."""

_POOL = {
    "machine-type": ("machineSpec", "machineType"),
    "accelerator-type": ("machineSpec", "acceleratorType"),
    "accelerator-count": ("machineSpec", "acceleratorCount"),
    "container-image-uri": ("containerSpec", "imageUri"),
}


_DELIMITER = re.compile(r"\^([^^]+)\^")
"""The beginning of a list whose parts gcloud divides at this text, and not at commas (`gcloud topic escaping`)."""


def parse_command(words: list[str], source: Source) -> Cluster:
    """Reads a command line of gcloud that trains. The arguments behind ` -- ` are those of the program.

    Raises:
        UnstatedError: for other commands of gcloud.
        ClusterError: for bad flags, and for a bad file of `--config`.
    """
    parts = _command_first(words[1:])
    readers: dict[tuple[str, ...], Callable[[list[str], Source], Cluster]] = {_CREATE: _custom_job}
    if parts[:1] and parts[0] in _PLATFORM:
        readers = {_SUBMIT: _training, _LOCAL: _local}
    elif parts[:1] != ["ai"]:
        readers = {}
    for command, read in readers.items():
        if tuple(parts[1 : 1 + len(command)]) == command:
            return read(parts[1 + len(command) :], source)
    stated = [word for word in parts[:4] if re.fullmatch(r"[a-z-]*[a-z]", word)]
    raise UnstatedError(
        *source.error(
            f"'{' '.join(['gcloud', *stated])[:60]}' starts no training that tfdist reads; expected gcloud "
            "ai-platform jobs submit training, gcloud ai-platform local train, or gcloud ai custom-jobs create"
        ).args
    )


def _command_first(words: list[str]) -> list[str]:
    """Returns the words with those of the command first, and without `beta`: `--project=p beta ai custom-jobs create`."""
    command: list[str] = []
    flags: list[str] = []
    position = 0
    while position < len(words) and len(command) < 1 + len(_SUBMIT) and (word := words[position]) != "--":
        is_flag = word.startswith("-")
        count = 2 if is_flag and word.lstrip("-") in _VALUED else 1
        if is_flag or word not in ("alpha", "beta") or command:
            (flags if is_flag else command).extend(words[position : position + count])
        position += count
    return [*command, *flags, *words[position:]]


def _training(words: list[str], source: Source) -> Cluster:
    given = _flags(words, source, positional=1)
    values = Values(source, dict(given), "--")
    document = _config(values)
    training = training_fields(document, Source(CLOUDML, document.name))
    for name, field in _FIELDS.items():
        if values.text(name):
            training[field] = flag(values.text(name), name, source)
    for name, field in _ACCELERATORS.items():
        if values.text(name):
            pool = {**fields(training.get(field)), "acceleratorConfig": _accelerator(values, name)}
            training[field] = flag(pool, name, source)
    if not any(name.endswith(("Tier", "Type", "Count")) for name in training):
        training["scaleTier"] = flag("BASIC", "scale-tier", source)
    folder = dict(given).get("job-dir", "")
    if folder and not has_variable(folder):
        training["jobDir"] = flag(folder, "job-dir", source)
    return read_fields(training, source)


def _accelerator(values: Values, name: str) -> Node:
    """Returns `type=nvidia-tesla-t4,count=2` as AcceleratorConfig."""
    content: dict[str, Node] = {}
    for part in values.text(name).split(","):
        key, equals, text = part.strip().partition("=")
        if not equals or key not in ("type", "count"):
            raise values.error(name, f"{shown(part)} is not right; expected type=nvidia-tesla-t4,count=1")
        content[key] = flag(text.upper().replace("-", "_") if key == "type" else text, name, values.source)
    return flag(content, name, values.source)


def _local(words: list[str], source: Source) -> Cluster:
    values = Values(source, dict(_flags(words, source, positional=0)), "--")
    counts = {"chief": 1}
    if values.flag("distributed"):  # In the order of the ports.
        counts["ps"] = values.number("parameter-server-count", 0) or LOCAL_PS
        counts["worker"] = values.number("worker-count", 0) or LOCAL_WORKERS
        counts["evaluator"] = values.number("evaluator-count", 0)
    names_of_tasks = [(job, index) for job, count in counts.items() for index in range(count)]
    if not values.text("start-port"):
        return Cluster(tuple(Task(*name) for name in names_of_tasks), source=source)
    start = values.port("start-port")
    if start + len(names_of_tasks) > 65536:
        raise values.error("start-port", f"{start} leaves too few ports below 65536 for {len(names_of_tasks)} tasks")
    tasks = (Task(*name, "localhost", start + offset) for offset, name in enumerate(names_of_tasks))
    return Cluster(tuple(tasks), source=source)


def _custom_job(words: list[str], source: Source) -> Cluster:
    given = _flags(words, source, positional=0)
    specs = [text for flag, text in given if flag == "worker-pool-spec"]
    if not specs:
        values = Values(source, dict(given), "--")
        if not values.text("config"):
            raise values.error("worker-pool-spec", "neither this nor --config is given, which describe the machines")
        return dataclasses.replace(custom_job.parse(_config(values)), source=source)
    pools = [_pool(text, source) for text in specs]
    return dataclasses.replace(custom_job.parse(Document(source.name, mapping={"workerPoolSpecs": pools})), source=source)


def _pool(text: str, source: Source) -> dict[str, Any]:
    """Returns a worker pool, `machine-type=n1-standard-8,replica-count=2`, as the field of a custom job."""
    pool: dict[str, Any] = {}
    delimiter = _DELIMITER.match(text)
    for part in text[delimiter.end() :].split(delimiter[1]) if delimiter else text.split(","):
        check_variable(part.strip(), source)
        key, _, content = part.strip().partition("=")
        values = Values(source, {key: content}, "--worker-pool-spec ")
        if key == "replica-count":
            pool["replicaCount"] = values.number(key)
        elif key in _POOL:
            holder, field = _POOL[key]
            value: str | int = content  # Of the image only the name of Google's Reduction Server matters.
            if key == "accelerator-count":
                value = values.number(key)
            elif holder == "machineSpec":
                value = values.text(key).upper().replace("-", "_") if key == "accelerator-type" else values.text(key)
            pool.setdefault(holder, {})[field] = value
        elif meant := close(key.replace("_", "-"), frozenset({*_POOL, "replica-count"}), 0.85):
            raise source.error(f"{shown(key)} is not a field of a pool; did you mean {meant}?", field="--worker-pool-spec")
    return pool


def _config(values: Values) -> Document:
    """Returns the file of `--config`; an empty document if it is not given."""
    name = values.text("config")
    if not name:
        return Document("--config")
    file = Source(NAME, name[:250])
    return load(Document(name, check_text(read_text(name, file), file)), file)


def _flags(words: Sequence[str], source: Source, *, positional: int) -> list[tuple[str, str]]:
    """Returns the flags before ` -- ` by name, in order. `positional` words among them are no flags: the name of the job.

    Raises:
        ClusterError: for an unknown flag, a flag without a value, and a shell variable in the place of a flag.
    """
    pairs: list[tuple[str, str]] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            break
        if not word.startswith("-"):
            positional -= 1
            if positional < 0:
                check_variable(word, source)
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if name in _SWITCHES or name.removeprefix("no-") in _SWITCHES:
            pairs.append((name.removeprefix("no-"), value or str(not name.startswith("no-"))))
        elif name == "flags-file":
            raise source.error("tfdist does not read this file; give its flags here", field="--flags-file")
        elif name not in _VALUED:
            raise source.error(f"there is no such flag{nearest(name, sorted(_VALUED))}", field=shown(word, 40)[1:-1])
        else:
            value = value if equals else next(rest, "")
            if not value:
                raise source.error("this flag has no value", field=f"--{name}")
            pairs.append((name, value))
    return pairs


DIALECT = Dialect(
    name=NAME,
    title="gcloud",
    example="gcloud's command line (gcloud ai-platform jobs submit training NAME --scale-tier=STANDARD_1)",
    command=CommandReader(("gcloud",), parse_command),
)
