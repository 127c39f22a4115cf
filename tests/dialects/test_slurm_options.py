"""The options of sbatch and srun: numbers of tasks and GPUs, abbreviations, steps in a script."""

import pytest

import tfdist
from tfdist.dialects import environment
from tfdist.dialects.slurm.options import options, share
from tfdist.errors import ClusterError

HEAD = "#!/bin/bash -l\n"


def script(*lines: str, run: str = "srun python train.py") -> tfdist.Cluster:
    return tfdist.read(HEAD + "".join(f"#SBATCH {line}\n" for line in lines) + run + "\n")


def summary(cluster: tfdist.Cluster) -> tuple[int, int, int]:
    (kind,) = {(task.job, task.slots, task.gpus) for task in cluster.tasks}
    assert kind[0] == "worker"
    return len(cluster.tasks), kind[1], kind[2]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("--nodes=2 --tasks-per-node=128",), (256, 1, 0)),
        (("--nodes=2 --ntasks-per-node 4", "--gres=gpu:4"), (8, 1, 1)),
        (("--nodes=2", "--ntasks-per-node=1", "--gres=gpu:a100:8"), (2, 8, 8)),
        (("-N2 -n4 --gpus-per-node=v100:2",), (4, 1, 1)),
        (("-N2 --gpus-per-node=4",), (2, 4, 4)),
        (("--nodes=2", "--gres=gpu"), (2, 1, 1)),
        (("--nodes=2", "--gres=craynetwork:1,gpu:tesla:2(S:0-1)"), (2, 2, 2)),
        (("--nodes=2", "--gres=craynetwork:1"), (2, 1, 0)),
        (("-n 4", "-G 8"), (4, 2, 2)),
        (("--gpus=8", "--gpus-per-task=2"), (4, 2, 2)),
        (("--gpus=8", "--ntasks-per-gpu=1"), (8, 1, 1)),
        (("--nodes=2", "--gpus-per-node=4", "--ntasks-per-gpu=2"), (16, 1, 1)),
        (("-w n[01-04,07]",), (5, 1, 0)),
        (("--nodelist=a,b,a", "--ntasks-per-node=4", "--gres=gpu:4"), (8, 1, 1)),
        (("-w r[1-2]n[1-3]", "-N 8"), (8, 1, 0)),
        (("-w n[1-4]", "-n 2"), (2, 1, 0)),
        (("-N 2-2", "--ntasks-p=2"), (2, 1, 0)),  # Not unique: it may be --ntasks-per-core.
        (("--partit gpu --nodes 3",), (3, 1, 0)),
        (("--nodes=2", "--ntasks-per-n=4"), (8, 1, 0)),
        (("-n 16", "--gres=gpu:1"), (16, 1, 0)),  # They share it.
        (("--tres-per-task=gres/gpu:2", "-n 2"), (2, 2, 2)),
        (("--tres-per-task=cpu=8,gres/gpu:a100=2", "-n 2"), (2, 2, 2)),
        (("--tres-per-task=gres/gpu=4", "-n 2"), (2, 4, 4)),
        (("--exclusive --ntasks=2 --mem=0 -J name -p gpu",), (2, 1, 0)),
        (("--some-plugin --ntasks=2",), (2, 1, 0)),
        (("--wait --ntasks=2", "-W --gpus-per-task=1"), (2, 1, 1)),
    ],
)
def test_tasks_and_gpus(lines: tuple[str, ...], expected: tuple[int, int, int]) -> None:
    assert summary(script(*lines)) == expected


def test_the_step_counts_that_starts_the_program() -> None:
    lines = ("--nodes=4", "--ntasks-per-node=8")
    assert summary(script(*lines, run="srun --ntasks=4 --gpus-per-task=1 python x.py")) == (4, 1, 1)
    assert summary(script(*lines, run="srun -N1 -n1 hostname\nsrun python x.py")) == (32, 1, 0)
    assert summary(script(*lines, run="srun -ln6 -vvG 6 python x.py")) == (6, 1, 1)
    assert summary(script("-n 6", run="srun --ntasks=$SLURM_NTASKS python x.py")) == (6, 1, 0)
    assert summary(script(*lines, run="srun --ntasks=$SLURM_NNODES python x.py")) == (4, 1, 0)
    with pytest.raises(ClusterError, match="different numbers of tasks in lines 4, 5; keep the one that trains"):
        script(*lines, run="srun -n 4 python a.py\nsrun -n 8 python b.py")
    with pytest.raises(ClusterError, match=r":4: --ntasks: '\$N' has a shell variable"):
        script(*lines, run="srun -n $N python a.py")


def test_all_steps_that_may_train_agree() -> None:
    """None of them visibly starts Python: those of a script count only if they agree."""

    def steps(*lines: str) -> tfdist.Cluster:
        return script("-N 2", run="\n".join(lines))

    assert len(steps("srun hostname", "srun /bin/mkdir -p x", "srun --ntasks-per-node=8 ./run.sh").tasks) == 16
    assert len(steps("srun -n 1 ls", "srun mkdir x").tasks) == 2
    assert len(steps("srun -n 4 ./a.sh", "srun -n4 ./b.sh").tasks) == 4
    assert len(steps("srun -n 1 ./a.sh", "srun -n 2 ./b.sh", "mpirun -np 8 python train.py").tasks) == 8
    with pytest.raises(ClusterError, match="different numbers of tasks in lines 3, 4; keep the one that trains"):
        steps("srun ./a.sh", "srun --ntasks-per-node=8 ./run.sh")
    with pytest.raises(ClusterError, match=r":4: --ntasks-per-node: '\$GPUS' has a shell variable"):
        steps("srun ./a.sh", "srun --ntasks-per-node=$GPUS ./run.sh")


def test_variables_that_sbatch_sets_are_known_to_every_launcher() -> None:
    lines = ("--nodes=2", "--ntasks-per-node=4", "--gres=gpu:4")
    for run in (
        "srun -n $SLURM_NTASKS python x.py",
        "mpirun -np ${SLURM_NTASKS} python x.py",
        'horovodrun -np "$SLURM_NPROCS" python x.py',
        "N=$((SLURM_NNODES * SLURM_NTASKS_PER_NODE))\nmpirun -np $N python x.py",
    ):
        assert len(script(*lines, run=run).tasks) == 8
    assert len(script("-n 6", run="mpirun -np $SLURM_NTASKS python x.py").tasks) == 6
    assert len(script("--gpus-per-node=4", run="torchrun --nproc-per-node=$SLURM_GPUS_ON_NODE x.py").tasks) == 4
    for own in ("", "export SLURM_NTASKS=$(nproc)\n"):  # It follows from no option, and the script sets it.
        with pytest.raises(ClusterError, match=r"-np: '\$SLURM_NTASKS' has a shell variable"):
            script("-n 2" if own else "--gpus=8", run=f"{own}mpirun -np $SLURM_NTASKS python x.py")


def test_variables_among_the_options_of_a_step() -> None:
    assert len(script("-N 2", run="srun --ntasks=$((SLURM_NNODES * 8)) ./run.sh").tasks) == 16
    assert len(script("-N 2 --ntasks-per-node=2", run="srun -n $(( ${SLURM_NNODES}*$SLURM_NTASKS_PER_NODE )) x").tasks) == 4
    for options_behind in (
        '"${ARGS[@]}" --mpi=pmix --cpus-per-gpu=4 python train.py -n 3',
        "$(which python) -n 3",
        '"${COMMAND[@]}"',
    ):
        assert len(script("-N 2", run=f"srun {options_behind}").tasks) == 2
    for options_behind in ("$OPTIONS --ntasks-per-node=4 python train.py", "$A $B -n 8 python train.py"):
        with pytest.raises(
            ClusterError, match="is a shell variable among the options, and only literals that are set once are expanded"
        ):
            script("-N 2", run=f"srun {options_behind}")
        with pytest.raises(
            ClusterError, match="is a shell variable among the options, and only literals that are set once are expanded"
        ):
            tfdist.read(f"srun {options_behind}")
    with pytest.raises(ClusterError, match="has a shell variable"):
        script("-N 2", run="srun --ntasks=$((NODES * 8)) ./run.sh")


def test_nodes_are_counted_in_a_list_of_them() -> None:
    """Slurm takes their number without `--nodes`. A list was passed over, and five nodes became one worker."""
    assert (
        len(script("-w n[1-4]", run="srun torchrun --nnodes=$SLURM_NNODES --nproc-per-node=2 --rdzv-backend=c10d x").tasks) == 8
    )
    assert len(tfdist.read("srun -w n[1-3] python x.py").tasks) == 3
    for nodes, message in (
        ("./hosts", "this file has the nodes; give their number, --nodes=4, too"),
        ("n[1-4", "'n\\[1-4' is not a list of nodes"),
        ("n[a]", "'a' is not a range of nodes; expected n\\[01-04,07\\]"),
        ("n[1-999999999]", "'1-999999999' are more than 100000 nodes"),
        ("n[1-1000][1-1000]", "names more than 100000 nodes"),
    ):
        with pytest.raises(ClusterError, match=message):
            script(f"-w {nodes}")
    with pytest.raises(ClusterError, match="--ntasks: the number of tasks is missing"):
        tfdist.read("srun -w $NODE python x.py")


@pytest.mark.parametrize("before", ["--wait 60", "-W 60", "--treewidth 32", "--accel-bind gn", "--bcast", "--x11", "-b now"])
def test_what_takes_a_value_after_srun(before: str) -> None:
    """A value that was taken for the program hid the options behind it, and so did an option that was taken for a value."""
    assert len(script("-n 2", run=f"srun {before} -n 8 python train.py").tasks) == 8


def test_a_batch_script_without_its_first_line() -> None:
    with pytest.raises(
        ClusterError, match="the first line of a batch script is missing; sbatch asks for one such as #!/bin/bash"
    ):
        tfdist.read("#SBATCH --nodes=2\n#SBATCH --gres=gpu:2\nsrun python train.py\n")


@pytest.mark.parametrize(
    ("options", "run", "count"),
    [
        ("--gres=gpu:8", "deepspeed train.py", 8),
        ("--gres=gpu:8", "export CUDA_VISIBLE_DEVICES=0,1\ndeepspeed train.py", 2),
        ("--gres=gpu:8", "deepspeed --include localhost:0,3,4 train.py", 3),
        ("-N 1 --gpus-per-node=4", "torchrun --standalone --nproc_per_node=gpu train.py", 4),
        ("-N 2 --gpus-per-node=4", "srun torchrun --nnodes=2 --nproc_per_node=auto --rdzv_backend=c10d train.py", 8),
    ],
)
def test_a_launcher_in_a_script_sees_the_gpus_of_its_nodes(
    options: str, run: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the machine on which the script is read do not count."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "1")
    assert len(script(options, run=run).tasks) == count


@pytest.mark.parametrize("begin", ["sbatch <<EOF", "cat > job.sh << 'EOF'", "sbatch -p gpu <<-EOF | tee id"])
def test_a_batch_script_in_a_here_document(begin: str) -> None:
    inner = f"{begin}\n{HEAD}#SBATCH --nodes=4\nsrun python train.py\nEOF\n"
    with pytest.raises(ClusterError, match=":2: the batch script is in the here-document that begins here; save that as"):
        tfdist.read(HEAD + inner)
    assert len(script("--nodes=2", run=f"srun python a.py\n{inner}").tasks) == 2


def test_a_program_without_srun_runs_once() -> None:
    assert summary(script("--gres=gpu:4", run="python x.py")) == (1, 4, 4)
    with pytest.raises(ClusterError, match=r":3: this starts one process, and the script asks for 8 tasks; write srun"):
        script("-n 8", run="python x.py")


def test_another_launcher_in_the_script_counts() -> None:
    lines = ("--nodes=2", "--ntasks-per-node=4")
    assert summary(script(*lines, run="mpirun python x.py")) == (8, 1, 0)  # Open MPI asks Slurm.
    assert summary(script(*lines, run="mpirun -np 4 python x.py")) == (4, 1, 0)
    for run, host in (("mpirun -np 8 python x.py", None), ("mpirun -np 2 -H localhost:2 python x.py", "localhost")):
        assert {task.host for task in script(*lines, run=run).tasks} == {host}
    assert [task.host for task in script(*lines, run="mpirun -np 2 -H a,b python x.py").tasks] == ["a", "b"]
    run = "srun torchrun --nnodes=2 --nproc-per-node=4 --node-rank=0 --master-addr=a x.py"
    cluster = script("--nodes=2", run=run)
    assert summary(cluster) == (8, 1, 0) and cluster.task is None
    for run, message in (
        ("srun torchrun --nproc-per-node=4 x.py", "srun starts torchrun on each of 2 tasks"),
        ("srun torchrun --nnodes=$NODES x.py", "--nnodes: '$NODES' has a shell variable"),
        ('L="torchrun --nnodes $N"\nsrun bash -c "$L x.py"', "--nnodes: '$N' has a shell variable"),
        ('L="torchrun --nnodes $(nproc)"\nsrun bash -c "$L x.py"', "--nnodes: '$(nproc)' has a shell variable"),
        ('L="torchrun --nnodes ${1:-2}"\nsrun bash -c "$L x.py"', "torchrun is put into a variable"),
    ):
        with pytest.raises(ClusterError) as caught:
            script("--nodes=2", run=run)
        assert message in str(caught.value)


def test_a_number_of_nodes_that_slurm_chooses_is_refused() -> None:
    with pytest.raises(ClusterError, match="ntasks-per-gpu: the number of GPUs is missing, which Slurm chooses then; write"):
        tfdist.read("srun -N 1 --ntasks-per-gpu=2 python train.py")
    with pytest.raises(ClusterError, match="nodes: '2-4' lets Slurm choose the number of nodes; give one number"):
        script("--nodes=2-4")


def test_a_command_line_of_srun() -> None:
    assert summary(tfdist.read("srun -N 2 --ntasks-per-node=4 --gpus-per-node=4 python x.py")) == (8, 1, 1)
    assert options(["-n4", "-ll", "-l", "--mpi=pmix", "-t", "10", "prog", "-n5"]) == (
        {"ntasks": "4", "mpi": "pmix", "time": "10"},
        6,
    )
    assert [share(*pair) for pair in ((8, 4), (4, 8), (6, 4), (0, 2), (2, 0))] == [2, 0, 0, 0, 0]


@pytest.mark.parametrize(
    "command",
    [
        "srun -N 1 -n 4 : -N 1 -n 2 python x.py",
        "srun -n 4 python x.py : -n 2 python y.py",
        "srun --het-group=0,1 -n 4 python x.py",
        "srun --het-group 0-2 -n 4 python x.py",
        "srun --pack-group=0,1 -n 4 python x.py",
        "srun -n 4 : -n 2 torchrun x.py",
    ],
)
def test_a_step_on_several_components_is_refused(command: str) -> None:
    message = (
        "starts a step on several components of a heterogeneous job, which tfdist does not read; start it in one component"
    )
    for source in (command, f"{HEAD}#SBATCH -n 4\n{command}\n"):
        with pytest.raises(ClusterError, match=message):
            tfdist.read(source)


def test_a_step_on_one_component_is_read() -> None:
    assert summary(tfdist.read("srun --het-group=1 -n 4 python x.py")) == (4, 1, 0)
    assert summary(tfdist.read("srun --pack-group 1 -n 4 python x.py")) == (4, 1, 0)


def test_the_values_of_long_options_are_not_taken_for_the_program() -> None:
    for option in ("--core-spec 1", "--gpus-per-socket 1", "--task-prolog p.sh", "--wait-all-nodes 1"):
        assert len(tfdist.read(f"srun {option} -n 4 python x.py").tasks) == 4


STEP = {
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "a,b",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_PROCID": "1",
}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (4, 1, 0)),
        ({"SLURM_GPUS_ON_NODE": "4"}, (4, 2, 2)),
        ({"SLURM_GPUS_ON_NODE": "2", "SLURM_GPUS_PER_TASK": "3"}, (4, 3, 3)),
        ({"SLURM_GPUS_PER_NODE": "a100:2", "SLURM_GPUS_ON_NODE": "2"}, (4, 1, 1)),
        ({"SLURM_GPUS_ON_NODE": "1"}, (4, 1, 0)),
        ({"SLURM_GPUS_ON_NODE": "4", "SLURM_GPUS": "6"}, (4, 1, 0)),  # The other node has two.
    ],
)
def test_the_gpus_of_a_node_are_shared_by_its_tasks(variables: dict[str, str], expected: tuple[int, int, int]) -> None:
    cluster = environment.find(STEP | variables)
    assert isinstance(cluster, tfdist.Cluster) and summary(cluster) == expected


def test_one_machine_with_several_gpus_is_described_by_its_system() -> None:
    single = {"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"}
    cluster = environment.find(single | {"SM_NUM_GPUS": "4"})
    assert isinstance(cluster, tfdist.Cluster) and summary(cluster) == (1, 4, 4)
    assert environment.find(single | {"SM_NUM_GPUS": "1"}) is None
