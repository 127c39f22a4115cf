"""Reads the `cluster` block of job.conf.

Of the neural network, `net.py` reads how it is partitioned. SINGA's other fields do not concern the cluster. They are ignored,
except those that resemble a field of the cluster block.
"""

import re

from tfdist.cluster import Cluster
from tfdist.dialects.parsing.document import Document, close
from tfdist.dialects.singa.hostfile import read_hostfile
from tfdist.dialects.singa.layout import Layout
from tfdist.dialects.singa.net import read_layouts
from tfdist.dialects.singa.text_proto import CLUSTER_FIELDS, JOB_FIELDS, Entry, entries, messages, parse_strictly
from tfdist.errors import Source, nearest

NAME = "singa"
WORDS = JOB_FIELDS | CLUSTER_FIELDS.keys()
MARKS = frozenset({"cluster", "neuralnet", "train_one_batch", "train_steps", *CLUSTER_FIELDS} - {"workspace"})


def parse(document: Document) -> Cluster:
    """Returns the cluster of job.conf, on the hosts of `document.hostfile` if there is one.

    Raises:
        ClusterError: for a bad file, and for a layout that SINGA would silently cut off.
    """
    layout = read_layout(document.text, Source(NAME, document.name))
    layout.check()
    return layout.cluster(read_hostfile(document.hostfile) if document.hostfile is not None else [])


def read_layout(text: str, source: Source) -> Layout:
    """Returns the layout of job.conf: the whole file, only the cluster block, or only its fields."""
    top = entries(text, source)
    blocks = [entry for entry in top if entry.name == "cluster"]
    names = {entry.name for entry in top}
    if not blocks and any(close(name, CLUSTER_FIELDS) for name in names - JOB_FIELDS):
        inner = top
        keep = inner
    else:
        _check_top(top, blocks, source)
        inner = entries(text, source, *blocks[0].inside)
        keep = [entry for entry in top if entry.name in ("cluster", "name", "gpu")]
    lines: dict[str, int] = {}
    for entry in inner:
        _check_inner(entry, lines, source)
    cluster_type, job_type = messages()
    by_line = {line: f"cluster.{name}" for name, line in lines.items()}
    if not blocks:
        return Layout(source, parse_strictly(text, cluster_type(), source, by_line), lines)
    by_line |= {entry.line: entry.name for entry in keep if entry.name != "cluster"}
    job = parse_strictly(_blanked(text, keep), job_type(), source, by_line)
    layouts = [layout for entry in top if entry.name == "neuralnet" for layout in read_layouts(text, source, entry)]
    return Layout(source, job.cluster, lines, tuple(job.gpu), tuple(layouts))


def _check_top(top: list[Entry], blocks: list[Entry], source: Source) -> None:
    """Raises ClusterError for a missing or second cluster block, and for a field that was probably meant for the cluster."""
    for entry in top:
        if entry.name in JOB_FIELDS:
            continue
        if entry.name in CLUSTER_FIELDS or close(entry.name, CLUSTER_FIELDS):
            inside = close(entry.name, CLUSTER_FIELDS)
            raise source.error(f"{entry.name} is outside the cluster block; move it inside as {inside}", line=entry.line)
        meant = close(entry.name, ("cluster", "gpu"), 0.7)
        if meant:
            raise source.error(f"{entry.name} is not a field; did you mean {meant}?", line=entry.line)
    if not blocks:
        raise source.error("there is no cluster block; add `cluster { ... }`, empty for one worker and one server")
    if len(blocks) > 1:
        raise source.error(f"this is a second cluster block, the first is in line {blocks[0].line}", line=blocks[1].line)
    if not blocks[0].is_block:
        raise source.error("cluster is a block; write `cluster { ... }`", line=blocks[0].line)


def _check_inner(entry: Entry, lines: dict[str, int], source: Source) -> None:
    """Adds the line of a field of the cluster block to `lines`. protobuf refuses the same faults, but without a suggestion."""
    field = f"cluster.{entry.name}"
    if entry.name not in CLUSTER_FIELDS:
        known = ", ".join(CLUSTER_FIELDS)
        hint = nearest(entry.name, CLUSTER_FIELDS, otherwise=f"; the fields are {known}")
        raise source.error(f"ClusterProto has no such field{hint}", field=field[:90], line=entry.line)
    if entry.is_block:
        raise source.error(
            f"this is a block, but one value is expected; write `{entry.name}: ...`", field=field, line=entry.line
        )
    if entry.name in lines:
        raise source.error(f"it is given twice, first in line {lines[entry.name]}; keep one", field=field, line=entry.line)
    lines[entry.name] = entry.line


def _blanked(text: str, keep: list[Entry]) -> str:
    """Returns the text with everything except `keep` replaced by spaces, which preserves lines and columns."""
    parts, position = [], 0
    for entry in keep:
        parts.append(re.sub(r"[^\n]", " ", text[position : entry.start]))
        # protobuf counts lines by \n alone.
        parts.append(text[entry.start : entry.end])
        position = entry.end
    parts.append(re.sub(r"[^\n]", " ", text[position:]))
    return "".join(parts)
