"""The steps of a batch script: which `srun` starts the training, and which only a part of it."""

import pytest

import tfdist
from tfdist.errors import ClusterError


def script(options: str, run: str) -> tfdist.Cluster:
    return tfdist.read(f"#!/bin/bash\n#SBATCH {options}\n{run}\n")


CLEAR = 'srun -N 1 -n 1 python -c "print(1)"\n'


@pytest.mark.parametrize(
    "before", [CLEAR, "srun -N1 -n1 python3 -u -c 'import x'\n", "srun -n1 singularity exec i python -V\n"]
)
@pytest.mark.parametrize("train", ["./train.sh", "python train.py", 'bash -c "train"'])
def test_python_with_a_text_does_not_train(before: str, train: str) -> None:
    """Scripts empty caches so, or write the versions of packages into the log."""
    assert len(script("-N 1 -n 4", f"{before}srun {train}").tasks) == 4


def test_python_with_a_text_trains_if_nothing_else_does() -> None:
    assert len(script("-n 4", 'srun python -c "import train; train.main()"').tasks) == 4


PARTS = (
    "for node in $NODES; do\n  srun -N 1 -n 1 -w $node python train.py --rank $((i++))\ndone",
    "for i in 0 1 2 3; do\n  srun -N1 -n1 --relative=$i ./train.sh\ndone",
    "for i in 0 1 2 3; do\n  srun -n1 python train.py --rank $i &\ndone\nwait",
    'srun -N 1 -n 1 -w "$head" ray start --head --block &\nsrun -N 1 -n 1 -w "$node" ray start --block &\npython train.py',
)


@pytest.mark.parametrize("run", PARTS)
def test_steps_that_each_start_a_part_are_refused(run: str) -> None:
    """They were read as one worker."""
    with pytest.raises(ClusterError, match=r"<text>:\d: the script asks for 4 tasks, and this starts 1 of them, on nodes that"):
        script("-N 4", run)


def test_one_step_with_all_tasks_may_be_in_the_background() -> None:
    """A script that handles signals itself does so."""
    assert len(script("-N 4", "srun python train.py &\nwait $!").tasks) == 4
    assert len(script("-N 4", "srun -w a,b,c,d python train.py").tasks) == 4
    assert len(script("-n 4", "srun -n 2 python train.py").tasks) == 2


def test_a_launcher_in_each_of_several_steps_counts() -> None:
    launcher = "torchrun --nnodes 4 --nproc-per-node 2 --node-rank $i --master-addr $head train.py"
    assert len(script("-N 4", f"for i in 0 1 2 3; do\n  srun -N1 -n1 -w $node {launcher} &\ndone\nwait").tasks) == 8


def test_the_tasks_of_the_job_win_over_the_nodes_of_a_step() -> None:
    """srun takes SLURM_NTASKS, which sbatch sets, like `-n`, and passes over `--ntasks-per-node`: tried with Slurm 22.05."""
    for options in ("-N 2 -n 8", "-N 2 --ntasks-per-node=4"):
        for own in ("--ntasks-per-node=1", "-N 1", "-N 1 --ntasks-per-node 2"):
            assert len(script(options, f"srun {own} python train.py").tasks) == 8
        assert len(script(options, "srun -n 2 --ntasks-per-node=1 python train.py").tasks) == 2
    assert len(script("-N 3", "srun -N 2 python train.py").tasks) == 2
    assert len(script("-N 2", "srun --ntasks-per-node=4 python train.py").tasks) == 8


def test_processors_alone_leave_the_number_of_tasks_to_slurm() -> None:
    """srun(1), `-c`: without `-n` as many tasks as fit. They were taken for one on each node."""
    for options in ("-N 2 --exclusive", "-N 2 -c 8", "-N 2 -c 4 --exclusive"):
        with pytest.raises(ClusterError, match="<text>:3: with --cpus-per-task, and without a number of tasks, srun starts as"):
            script(options, "srun -c 4 python train.py")
    for options in ("-n 2", "-N 2 --ntasks-per-node=1 --exclusive", "-N 2 -c 4"):
        assert len(script(options, "srun -c 4 python train.py").tasks) == 2
    assert len(script("-N 2 -c 8", "srun -c $SLURM_CPUS_PER_TASK python train.py").tasks) == 2
    assert len(script("-N 2", "srun -c 4 torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d train.py").tasks) == 8


FLAGS = "python train.py --ps_hosts=a:2222 --worker_hosts=b:2222,c:2222 --job_name={} --task_index={}"
TASKS = (("ps", 0), ("worker", 0), ("worker", 1))


def test_the_hosts_of_a_program_that_srun_starts_count() -> None:
    """They were left out: a step of one task became one worker."""
    run = "".join(f"srun -N1 -n1 -w n{number} {FLAGS.format(*task)} &\n" for number, task in enumerate(TASKS))
    assert script("-N 3", run).describe() == "2 workers, 1 ps"
    cluster = tfdist.read(f"srun -n 1 -w b {FLAGS.format('worker', 0)}")
    assert [task.host for task in cluster.tasks] == ["b", "c", "a"]
    assert cluster.task == ("worker", 0)
    with pytest.raises(ClusterError, match="--worker_hosts: '\\$WORKERS' has a shell variable"):
        script("-n 3", "srun python train.py --ps_hosts=$PS --worker_hosts=$WORKERS")


JOB = "-N 2 --ntasks-per-node=4"


@pytest.mark.parametrize(
    ("run", "count"),
    [
        ("mpirun -npernode 1 python train.py", 2),
        ("mpirun -N 2 ./train", 4),
        ("mpirun --map-by ppr:3:node python train.py", 6),
        ("mpirun -npernode 4 python train.py", 8),
        ("mpirun -n 8 python prepare.py\nmpirun python train.py", 8),
        ("mpirun -N 1 bash -c 'echo $(hostname)'\nmpirun -n 16 -N 8 ./train", 16),
        ("mpirun -N 1 bash -c 'echo $(hostname)'\nsrun ./train", 8),
        ("mpirun.openmpi -np 4 python train.py", 4),
        ("mpiexec.mpich -ppn 2 python train.py", 4),
        ("mpirun -np 4 -hostfile $PWD/hosts.$SLURM_JOB_ID python train.py", 4),
        ("horovodrun -np 4 -H $HOSTS python train.py", 4),
    ],
)
def test_mpirun_asks_slurm_for_the_nodes(run: str, count: int) -> None:
    """Processes of each node were passed over, and the tasks of the job counted."""
    assert script(JOB, run).describe() == f"{count} workers"


@pytest.mark.parametrize("first", ["-n 1", "-npernode 1"])
def test_mpirun_with_another_number_than_slurms(first: str) -> None:
    """The one without a number trained, and was passed over."""
    with pytest.raises(ClusterError, match="the commands in lines 3, 4 describe different clusters; give only one of them"):
        script(JOB, f"mpirun {first} python prepare.py\nmpirun python train.py")


def test_processes_of_each_node_without_nodes() -> None:
    with pytest.raises(ClusterError, match="-N: 2 processes start on each node, and no nodes are named; write -np 8 too"):
        tfdist.read("mpirun -npernode 2 python train.py")
    assert len(tfdist.read("mpirun -npernode 2 -H a,b python train.py").tasks) == 4
    with pytest.raises(ClusterError, match="-N: 2 processes start on each node, and no nodes are named"):
        script("-n 8", "mpirun -npernode 2 python train.py")  # It was read as 8 workers.


def test_processes_of_each_socket() -> None:
    """They were passed over, and the ranks filled the first host."""
    with pytest.raises(ClusterError, match="--map-by: 'ppr:1:socket' is a placement of ranks that tfdist does not support"):
        tfdist.read("mpirun -np 4 -npersocket 1 -H a:8,b:8 python train.py")
    with pytest.raises(ClusterError, match="'ppr:1:socket' is a placement of ranks"):
        script(JOB, "mpirun -npersocket 1 python train.py")  # As many as the nodes have sockets.


@pytest.mark.parametrize("option", ["-H $HOSTS", "-hostfile $FILE"])
def test_hosts_that_the_script_finds_when_it_runs(option: str) -> None:
    assert all(task.host is None for task in script(JOB, f"mpirun -np 4 {option} python train.py").tasks)
    for line in (f"mpirun -np 4 {option} python train.py", f"mpirun {option} python train.py"):
        with pytest.raises(ClusterError, match="has a shell variable"):
            tfdist.read(line)
    with pytest.raises(ClusterError, match="has a shell variable"):
        script(JOB, f"mpirun {option} python train.py")


CONFIG = '{{"cluster": {{"worker": ["n0:2222", "n1:2222"]}}, "task": {{"type": "worker", "index": {}}}}}'
SETS = (
    "export TF_CONFIG='{0}'\nsrun python train.py",
    "export TF_CONFIG='{0}'\npython train.py",
    "TF_CONFIG='{0}' srun -N1 -n1 -w n0 python train.py &\nTF_CONFIG='{1}' srun -N1 -n1 -w n1 python train.py",
    "srun -N1 -n1 -r0 env TF_CONFIG='{0}' python train.py &\nsrun -N1 -n1 -r1 env TF_CONFIG='{1}' python train.py",
)


@pytest.mark.parametrize("run", SETS)
def test_tf_config_counts_more_than_the_steps_as_in_the_program(run: str) -> None:
    """It was passed over."""
    cluster = script("-N 1" if "python train.py &" not in run else "-N 2", run.format(CONFIG.format(0), CONFIG.format(1)))
    assert [(task.host, task.port) for task in cluster.tasks] == [("n0", 2222), ("n1", 2222)] and cluster.task is None


def test_tf_config_of_a_variable_leaves_the_tasks_to_slurm() -> None:
    config = CONFIG.format(0).replace('"', '\\"').replace(": 0", ": $SLURM_PROCID")
    assert script("-N 3", f'export TF_CONFIG="{config}"\nsrun python train.py').describe() == "3 workers"
    assert tfdist.read(f"TF_CONFIG='{CONFIG.format(1)}' srun -n 1 python train.py").task == ("worker", 1)


@pytest.mark.parametrize("show", ["echo $RUN", 'printf "%s" "$RUN"'])
def test_a_launcher_in_a_variable_beside_another_launcher(show: str) -> None:
    """The one in the variable trained, and the other counted."""
    unknown = 'if [ $1 ]; then\n  RUN="mpirun -np $1"\nfi\n'
    with pytest.raises(ClusterError, match="<text>:2: mpirun is put into a variable, and this one is not expanded"):
        tfdist.read(f"{unknown}$RUN python train.py\nmpirun -np 1 python clear.py")
    assert len(tfdist.read(f"{unknown}{show}\nmpirun -np 2 python train.py").tasks) == 2
    assert len(tfdist.read('RUN="mpirun -np 2"\n$RUN python train.py').tasks) == 2
