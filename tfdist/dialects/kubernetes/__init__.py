"""Kubernetes: manifests of training jobs, and objects that need no operator.

`manifest` finds the training job of a manifest; `training_jobs` reads TFJob and its relatives, `plain_objects` reads and writes
Jobs that carry TF_CONFIG, and `write_tfjob` writes TFJob. `environment` reads the variables of pods that an operator numbers.
`pods` has what readers share, `parts` what writers share. This package imports `parsing`, `writing` and `tf_config`.
Start with `manifest.py`.
"""

from tfdist.dialects.dialect import Dialect, EnvironmentReader, TextReader, Writer
from tfdist.dialects.kubernetes import environment, manifest, plain_objects, write_tfjob
from tfdist.dialects.kubernetes.parts import OPTIONS

DIALECT = Dialect(
    name=manifest.NAME,
    title="Kubernetes",
    example="a Kubernetes manifest (kind: TFJob, TrainJob, PyTorchJob or MPIJob, or Jobs that carry TF_CONFIG)",
    text=TextReader(
        manifest.parse, words=manifest.WORDS, marks=manifest.MARKS, is_mapping=True, looks_like=manifest.looks_like
    ),
    environment=EnvironmentReader(environment.recognizes, environment.from_environ, allocates=True),
    writer=Writer(plain_objects.write, options=OPTIONS, help="objects of Kubernetes that need no operator: a Service and Jobs"),
)

TFJOB = Dialect(
    name="tfjob",
    title="TFJob",
    example="Kubeflow's TFJob, which is read as kubernetes",
    writer=Writer(write_tfjob.write, options=OPTIONS),
)
