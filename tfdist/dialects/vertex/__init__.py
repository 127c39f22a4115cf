"""Vertex AI: workerPoolSpecs of a custom job, and the variable CLUSTER_SPEC.

`custom_job` reads a job, `cluster_spec` the variable, both with the `pools`; `write` writes a CustomJobSpec. This package
imports `parsing`, `writing`, and Google's machine types from `cloudml`. Start with `pools.py`.
"""

from tfdist.dialects.dialect import Dialect, EnvironmentReader, TextReader, Writer
from tfdist.dialects.vertex import cluster_spec, custom_job, write
from tfdist.dialects.vertex.pools import NAME
from tfdist.dialects.writing.containers import IMAGE_OPTIONS
from tfdist.dialects.writing.unsupported import address_notes

DIALECT = Dialect(
    name=NAME,
    title="Vertex AI",
    example="Vertex AI's custom job (workerPoolSpecs: [{machineSpec: ..., replicaCount: 1}, ...]) or CLUSTER_SPEC",
    text=TextReader(
        custom_job.parse,
        words=custom_job.WORDS,
        marks=custom_job.MARKS,
        is_mapping=True,
        looks_like=custom_job.looks_like,
        from_object=custom_job.from_object,
    ),
    environment=EnvironmentReader(cluster_spec.recognizes, cluster_spec.from_environ, allocates=True),
    writer=Writer(
        write.write,
        options=IMAGE_OPTIONS,
        help="the specification of Vertex AI's custom job (workerPoolSpecs: ...)",
        notes=lambda cluster: address_notes(cluster, "Vertex AI"),
    ),
)
