"""Slurm: the environment of a step, and batch scripts.

`environment` reads the variables of a task, `script` a batch script or `srun`, with the options that `options` knows, and
`submit` finds the script of an `sbatch` command line; `write` writes a script. This package imports `parsing` and `writing`.
Start with `environment.py`.
"""

from tfdist.dialects.dialect import CommandReader, Dialect, EnvironmentReader, TextReader, Writer
from tfdist.dialects.slurm import environment, script, submit, write
from tfdist.dialects.writing.unsupported import address_notes

DIALECT = Dialect(
    name=script.NAME,
    title="Slurm",
    example="a Slurm batch script (#SBATCH --ntasks=8 ... srun python train.py)",
    text=TextReader(
        script.parse, looks_like=script.looks_like, is_script=True, refers=script.refers, variables=script.set_by_sbatch
    ),
    command=CommandReader(("srun", submit.NAME), script.parse_command, submits=submit.submitted),
    environment=EnvironmentReader(environment.recognizes, environment.from_environ, allocates=True),
    writer=Writer(write.write, notes=lambda cluster: address_notes(cluster, "Slurm")),
)
