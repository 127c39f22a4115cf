"""Batch scripts of PBS, LSF and Grid Engine: the processes that a launcher in them starts."""

import pytest

import tfdist
from tfdist.errors import ClusterError

CHUNKS = "PBS -l select=2:ncpus=8:mpiprocs=4"
NODES = "PBS -l walltime=1:00:00,nodes=2:ppn=4"


@pytest.mark.parametrize(
    ("directive", "run", "count"),
    [
        (CHUNKS, "mpirun -np 6 python train.py", 6),
        (CHUNKS, "mpirun python train.py", 8),
        ("PBS -lselect=2:mpiprocs=2+1:ncpus=4 -N job", "mpirun python train.py", 5),
        ("PBS -l nodes=a:ppn=2+b:ppn=2", "mpiexec.hydra -f $PBS_NODEFILE python train.py", 4),
        (NODES, "mpirun -np $PBS_NP -machinefile $PBS_NODEFILE python train.py", 8),
        (NODES, "mpirun -np $(wc -l < $PBS_NODEFILE) python train.py", 8),
        (NODES, "NP=`cat ${PBS_NODEFILE} | wc -l`\nmpirun -np $NP python train.py", 8),
        (NODES, "N=$(wc -l $PBS_NODEFILE | awk '{print $1}')\nmpirun -np $((N * 2)) --oversubscribe python train.py", 16),
        (NODES, "mpirun_rsh -ssh -np 6 -hostfile $PBS_NODEFILE MV2_USE_CUDA=1 python train.py", 6),
        (NODES, "mpirun hostname\nmpirun -np 4 python train.py", 4),
        (NODES, "mpirun -np 2 mkdir -p /scratch/a\nmpirun -np 4 python train.py", 4),
        (NODES, "mpirun mkdir -p /scratch/a\nmpirun ./train", 8),
        ("BSUB -nnodes 2", "jsrun -n 2 -r 1 cp data /mnt/bb\njsrun -n 12 -a 1 python train.py", 12),
        (NODES, "torchrun --nproc-per-node 2 train.py", 2),
        ('BSUB -n 8\n#BSUB -R "span[ptile=4]"', "mpirun python train.py", 8),
        ("BSUB -n 8", "mpirun -n $LSB_DJOB_NUMPROC -hostfile $LSB_DJOB_HOSTFILE python train.py", 8),
        ("$ -cwd\n#$ -pe mpi 8", "mpirun -np $NSLOTS -machinefile $TMPDIR/machines python train.py", 8),
        ("$ -pe ompi* 8", "mpirun python train.py", 8),
        ("BSUB -nnodes 2", "N=2\njsrun -n $((N * 6)) -a1 -c7 -bpacked:7 python train.py", 12),
    ],
)
def test_the_processes_of_a_job_have_no_hosts(directive: str, run: str, count: int) -> None:
    """They were read as processes of this machine, or refused."""
    cluster = tfdist.read(f"#!/bin/bash\n#{directive}\n{run}\n")
    assert cluster.describe() == f"{count} workers"
    assert all(task.host is None for task in cluster.tasks)


@pytest.mark.parametrize(
    ("directive", "run", "message"),
    [
        (CHUNKS, "python train.py", "<text>: the scheduler runs this script once, on the first node, and no launcher"),
        ("BSUB -n 8", "pbsdsh python train.py", "no launcher that tfdist reads starts a number of processes in it"),
        ("BSUB -n 4,8", "mpirun python train.py", "the script does not say how many processes mpirun starts"),
        ("$ -pe mpi 4-8", "mpirun python train.py", "the script does not say how many processes mpirun starts"),
        ("PBS -l walltime=1:00:00", "mpirun python train.py", "the script does not say how many processes mpirun starts"),
        ("PBS -l select=$N", "mpirun python train.py", "-l select: '\\$N' has a shell variable"),
        ("PBS -l nodes=2:ppn=x", "mpirun python train.py", "-l ppn: 'x' is not right; expected a whole number"),
        (CHUNKS, "mpirun -ppn 2 python train.py", "<text>:3: -N: 2 processes start on each node, and no nodes are named"),
        (CHUNKS, "mpirun python a.py\nmpirun -np 2 python b.py", "the commands in lines 3, 4 describe different clusters"),
        (
            CHUNKS,
            "mpirun -np 4 env A=1 ./train\nmpirun -np 2 ./train",
            "the commands in lines 3, 4 describe different clusters",
        ),
        (CHUNKS, "mpirun -np 4 ./cp\nmpirun -np 2 ./train cp", "the commands in lines 3, 4 describe different clusters"),
        ("BSUB -J 'a", "mpirun python train.py", "<text>:2: this line cannot be split into words: no closing quotation"),
    ],
)
def test_what_a_script_leaves_open_is_refused(directive: str, run: str, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        tfdist.read(f"#!/bin/bash\n#{directive}\n{run}\n")


def test_hosts_and_descriptions_in_a_script_count() -> None:
    script = "#PBS -l select=2:mpiprocs=2\n"
    assert [task.host for task in tfdist.read(f"{script}mpirun -H a:2,b:2 python train.py").tasks] == ["a", "a", "b", "b"]
    assert len(tfdist.read(f"{script}export TFDIST_CLUSTER=STANDARD_1\nmpirun python train.py").tasks) == 8


def test_a_script_that_writes_a_batch_script_is_none() -> None:
    script = "#!/bin/bash\ncat > job <<EOF\n#PBS -l select=4\nmpirun python train.py\nEOF\nmpirun -np 2 python train.py\n"
    assert [task.host for task in tfdist.read(script).tasks] == ["localhost"] * 2


@pytest.mark.parametrize(
    ("command", "count", "gpus"),
    [
        ("jsrun -n 12 -r 6 -a 1 -g 1 -c 7 -d packed python train.py", 12, 1),
        ('jsrun --nrs=2 --tasks_per_rs 6 --gpu_per_rs 6 --smpiargs="-gpu" python train.py', 12, 1),
        ("jsrun -n2 -a4 -g6 python train.py", 8, 0),  # They share GPUs.
        ("jsrun --nrs 2 --rs_per_host 1 --tasks_per_rs 4 --cpu_per_rs ALL_CPUS -g ALL_GPUS python train.py", 8, 0),
        ("jsrun -p 8 -n 2 -g 8 python train.py", 8, 2),
        ("aprun -n 16 -N 4 -cc depth -d 16 -j1 -e A=1 python train.py -n 3", 16, 0),
        ("aprun -b python train.py", 1, 0),
        ("ibrun -np 4 tacc_affinity python train.py", 4, 0),
    ],
)
def test_launchers_of_some_machines(command: str, count: int, gpus: int) -> None:
    tasks = tfdist.read(command).tasks
    assert len(tasks) == count
    assert {(task.host, task.slots, task.gpus) for task in tasks} == {(None, max(1, gpus), gpus)}


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("jsrun -r 6 -g1 python train.py", "--nrs: jsrun takes all nodes of its job without a number; write -n 8"),
        ("jsrun -n ALL_HOSTS -a 6 python train.py", "--nrs: 'ALL_HOSTS' is not right; expected a whole number"),
        ("jsrun -n 2 --gpus_per_rs 3 python train.py", "--gpus_per_rs: there is no such option; did you mean gpu_per_rs"),
        ("jsrun -n $N python train.py", "--nrs: '\\$N' has a shell variable"),
        ("jsrun -n 2 torchrun train.py", "this launcher starts torchrun on every task"),
        ("mpirun_rsh -np 2 a b ./train", "-hostfile: mpirun_rsh takes the hosts before its program; name them in a file"),
        ("aprun -n 2 ./a : -n 4 ./b", "the command line starts several programs"),
        ("aprun -B python train.py", "-B: the number of processes is that of the job; write -n 8"),
        ("ibrun python train.py", "-n: the number of processes is that of the job; write -n 8, or give the batch script"),
        ("ibrun -o 2 python train.py", "-n: the number of processes is that of the job; write -n 8, or give the batch script"),
    ],
)
def test_what_these_launchers_leave_open_is_refused(command: str, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        tfdist.read(command)


def test_ibrun_starts_the_tasks_of_a_slurm_job_or_a_number() -> None:
    """A number was passed over."""
    script = "#!/bin/bash\n#SBATCH -N 2 -n 8\n"
    assert len(tfdist.read(f"{script}ibrun python train.py").tasks) == 8
    assert len(tfdist.read(f"{script}ibrun -n 4 python train.py").tasks) == 4
