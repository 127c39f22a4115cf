"""`sbatch` command lines: the script that they submit, and whose options count."""

import pytest

import tfdist
from tfdist.errors import ClusterError

SCRIPT = """#!/bin/bash
#SBATCH --nodes=4
#SBATCH --gres=gpu:2 # Of each node.

srun python train.py
"""


@pytest.fixture(autouse=True)
def script(tmp_path, monkeypatch):
    """A batch script, `job.sh`, in the working folder; returns its path."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.sh").write_text(SCRIPT)
    return tmp_path / "job.sh"


def tasks(description):
    """Number of workers, and GPUs of each."""
    cluster = tfdist.read(description)
    assert all(task.job == "worker" for task in cluster.tasks)
    (gpus,) = {task.gpus for task in cluster.tasks}
    return len(cluster.tasks), gpus


@pytest.mark.parametrize(
    "command, expected",
    [
        ("sbatch job.sh", (4, 2)),
        ("sbatch -N 2 job.sh --epochs 3 -n 7", (2, 2)),
        ("sbatch --nodes=3 --ntasks-per-node 2 -J 'a name' job.sh", (6, 1)),
        ("sbatch -N2 --wrap 'srun -n 8 python train.py'", (8, 0)),
        ('sbatch --job-name=dist --nodes=2 --ntasks-per-node=4 --gres=gpu:4 --wrap="srun python train.py --epochs 3"', (8, 1)),
        ("sbatch --wrap 'python train.py'", (1, 0)),
        (
            "sbatch -N 4 --wrap 'srun torchrun --nnodes 4 --nproc-per-node 3 --rdzv_endpoint h:1 --node-rank 0 train.py'",
            (12, 0),
        ),
    ],
)
def test_options_of_the_command_win_over_those_of_the_script(command, expected, tmp_path):
    (tmp_path / "submit.sh").write_text(f"#!/bin/bash\nmkdir -p logs\n{command}\n")
    for description in (command, "submit.sh"):
        assert tasks(description) == expected


def test_a_fault_is_reported_in_the_line_of_the_script(script):
    script.write_text(SCRIPT + "srun -n 3 python train.py\n")
    with pytest.raises(ClusterError, match=r"^job\.sh: srun starts programs on different numbers of tasks in lines 5, 6;"):
        tfdist.read("sbatch --partition long job.sh")
    script.write_text("#!/bin/bash\n\npython train.py\n")
    with pytest.raises(ClusterError, match=r"^job\.sh:3: this starts one process, and the script asks for 2 tasks"):
        tfdist.read("sbatch -n 2 job.sh")


@pytest.mark.parametrize(
    "command, message",
    [
        ("sbatch -N 2 gone.sh", r"^gone\.sh: there is no such file"),
        ("sbatch -N 2 $SCRIPT", "'\\$SCRIPT' is a shell variable"),
        ("sbatch -N two job.sh", "two"),
        ("sbatch --nodes 2", "from its standard input here; save it as a file"),
        ("sbatch -N 2 job.sh\nsbatch -N 3 job.sh\n", "sbatch submits a batch script, and other commands describe a cluster"),
    ],
)
def test_what_is_refused(command, message):
    with pytest.raises(ClusterError, match=message):
        tfdist.read(command)
