"""Run before the commands of tests are forked (warm.py): whoever follows a job of Slurm or Kubernetes asks ten times as often."""

from tfdist.launch.backends import slurm
from tfdist.launch.backends.kubernetes import backend
from tfdist.launch.background import submitted

slurm.POLL_SECONDS = backend.POLL_SECONDS = submitted.AGAIN_SECONDS = 0.2
