"""Finds the training job of a manifest and reads it.

A manifest may contain several objects (YAML documents, or `kind: List`). The kind identifies the one that trains:
`training_jobs` reads TFJob and its relatives, `plain_objects` Jobs and other pods that carry TF_CONFIG.
"""

import re
from collections.abc import Mapping
from typing import Any

from tfdist.cluster import Cluster
from tfdist.dialects.kubernetes import job_sets, ranked_jobs, training_jobs
from tfdist.dialects.kubernetes.plain_objects import CARRIERS, carries_tf_config, read_objects
from tfdist.dialects.parsing.document import Document, shown
from tfdist.dialects.parsing.node import Node, root
from tfdist.errors import nearest

NAME = "kubernetes"
READERS = {**training_jobs.READERS, **ranked_jobs.READERS, **job_sets.READERS}
"""Kind of training job -> its reader."""

WORDS = frozenset(
    {
        *("apiVersion", "kind", "metadata", "spec", "items", "status"),
        *("namespace", "annotations", "selector", "template", "containers", "replicas"),
        *("restartPolicy", "tfReplicaSpecs", "pytorchReplicaSpecs", "mpiReplicaSpecs", "runPolicy", "successPolicy"),
        *("cleanPodPolicy", "enableDynamicWorker", "slotsPerWorker", "nprocPerNode", "runtimeRef", "trainer"),
        *("numNodes", "numProcPerNode", "completions", "parallelism", "completionMode", "clusterIP"),
    }
)

MARKS = frozenset({"kind", "tfReplicaSpecs", "pytorchReplicaSpecs", "mpiReplicaSpecs", "jaxReplicaSpecs", "replicatedJobs"})
"""Names by which an object without its `apiVersion` is known."""

_OTHERS = {
    **dict.fromkeys(
        ("RayJob", "RayCluster", "RayService"), "; this describes a cluster of Ray, which decides itself where tasks run"
    ),
    **dict.fromkeys(training_jobs.RUNTIMES, "; this is a template for the jobs of its users, give such a TrainJob"),
}
"""Kinds that people take for training jobs, and what to tell them."""

_FORM = (re.compile(r"^['\"]?apiVersion['\"]?[ ]*:", re.MULTILINE), re.compile(r"^['\"]?kind['\"]?[ ]*:", re.MULTILINE))


def looks_like(content: "str | Mapping[Any, Any]") -> bool:
    """Returns whether this is an object of Kubernetes: it has an `apiVersion` and a `kind`."""
    if isinstance(content, str):
        return all(mark.search(content) for mark in _FORM)
    return "apiVersion" in content and "kind" in content


def parse(document: Document) -> Cluster:
    """Returns the cluster of the one training job of a manifest, or of the pods that together carry one TF_CONFIG.

    Raises ClusterError if the manifest has no training job or several, or the job is bad.
    """
    objects = list(_objects(root(document, NAME)))
    kinds = [_kind(entry) for entry in objects]
    jobs = [(entry, kind) for entry, kind in zip(objects, kinds, strict=True) if kind in READERS]
    if len(jobs) > 1:
        names = " and ".join(f"{kind} {_name(entry)}" for entry, kind in jobs[:2])
        raise jobs[1][0].error(f"there are {len(jobs)} training jobs, {names}; give a file with one of them")
    if jobs:
        job, kind = jobs[0]
        if kind == "TrainJob":
            return training_jobs.trainjob(
                job, [entry for entry in objects if entry.child("kind").value in training_jobs.RUNTIMES]
            )
        return READERS[kind](job)
    carriers = [entry for entry, kind in zip(objects, kinds, strict=True) if kind in CARRIERS and carries_tf_config(entry)]
    if carriers:
        return read_objects(carriers)
    known = (*READERS, *CARRIERS)
    have = ", ".join(dict.fromkeys(shown(kind)[1:-1] for kind in kinds[:5])) or "nothing"
    hint = next((_OTHERS[kind] for kind in kinds if kind in _OTHERS), "")
    hint = hint or next((hint for hint in (nearest(kind, known) for kind in kinds if kind not in known) if hint), "")
    raise (objects or [root(document, NAME)])[0].error(
        f"there is no training job, only {have}; tfdist reads {', '.join(READERS)}, and Jobs, StatefulSets and other pods "
        f"whose containers have TF_CONFIG in their env{hint}"
    )


def _objects(top: Node) -> "list[Node]":
    if top.get("items") is None:
        return [top]
    return [entry for entry in top.child("items").entries() if entry.value is not None]


def _kind(entry: Node) -> str:
    kind = entry.get("kind")
    if kind is None:
        raise entry.error("the object has no kind; expected one such as `kind: TFJob`")
    is_first = kind.value == "TfJob" and entry.child("apiVersion").value in training_jobs.FIRST_TF_VERSIONS
    if kind.value == "Job" and str(entry.child("apiVersion").value).startswith("batch.volcano.sh/"):
        return job_sets.VOLCANO
    return "TFJob" if is_first else kind.text()


def _name(entry: Node) -> str:
    metadata = entry.child("metadata").value
    return shown(metadata.get("name")) if isinstance(metadata, dict) else "without a name"
