"""Slurm: the environment of a step, batch scripts, and a real Slurm."""

import dataclasses
import subprocess
import sys
import time

import environments
import pytest
import slurm_here
from tools import needs

import tfdist
from tfdist.cluster import Cluster, Task
from tfdist.dialects.slurm.environment import from_environ
from tfdist.dialects.slurm.write import write
from tfdist.errors import ClusterError


def step(rank=0, nodes="n1,n2", counts="2,1", **more):
    size = sum(int(count.partition("(")[0]) * int(count.partition("x")[2].rstrip(")") or 1) for count in counts.split(","))
    return environments.slurm(rank, size, nodes, counts) | {f"SLURM_{name}": str(value) for name, value in more.items()}


def addresses(environ):
    return [task.address for task in from_environ(environ).tasks]


def test_the_order_is_that_of_the_ranks_and_not_of_the_names():
    # TensorFlow's resolver gives rank 1 the address of n10 here.
    cluster = from_environ(step(1, "n[1-2],n10", "1(x3)"))
    assert [task.host for task in cluster.tasks] == ["n1", "n2", "n10"]
    assert cluster.task == ("worker", 1)
    assert [task.host for task in from_environ(step(0, "zeta[09-10],alpha", "1(x3)")).tasks] == [
        "zeta09",
        "zeta10",
        "alpha",
    ]


@pytest.mark.parametrize(
    ("counts", "more", "expected"),
    [
        ("2,1", {}, "n1:8888 n1:8889 n2:8888"),
        ("2(x2)", {"DISTRIBUTION": "block:cyclic"}, "n1:8888 n1:8889 n2:8888 n2:8889"),
        ("2,1", {"DISTRIBUTION": "cyclic"}, "n1:8888 n2:8888 n1:8889"),
        ("1,3", {"DISTRIBUTION": "cyclic:block,NoPack"}, "n1:8888 n2:8888 n2:8889 n2:8890"),
        # As a real Slurm 22.05 has it for srun -N2 -n5 -m plane=2.
        ("4,1", {"DISTRIBUTION": "plane", "DIST_PLANESIZE": 2}, "n1:8888 n1:8889 n2:8888 n1:8890 n1:8891"),
    ],
)
def test_layouts(counts, more, expected):
    assert " ".join(addresses(step(counts=counts, **more))) == expected


def test_ports_differ_between_jobs_and_steps_and_stay_below_what_linux_hands_out():
    first = addresses(step())
    assert addresses(step(JOB_ID=1))[0] == addresses(step(STEP_ID=1))[0] == "n1:8952"
    assert addresses(step(JOB_ID=300)) == first
    ports = [int(addresses(step(JOB_ID=job))[0].partition(":")[2]) for job in range(300)]
    assert len(set(ports)) == 300 and max(ports) < 32768 - 64
    # Interactive steps have numbers at the end of the range.
    assert addresses(step(STEP_ID=4294967290))
    assert addresses(step(STEP_RESV_PORTS="12000-12001")) == ["n1:12000", "n1:12001", "n2:12000"]


def test_gpus_are_slots():
    for text in ("2", "a100:2"):
        assert {(task.slots, task.gpus) for task in from_environ(step(GPUS_PER_TASK=text)).tasks} == {(2, 2)}
    assert {(task.slots, task.gpus) for task in from_environ(step(GPUS_PER_TASK=0)).tasks} == {(1, 0)}
    for text in ("gres/gpu:2", "cpu:3,gres/gpu:a100=2", "gres/gpu=2"):  # srun --tres-per-task
        assert {(task.slots, task.gpus) for task in from_environ(step(TRES_PER_TASK=text)).tasks} == {(2, 2)}
    assert {(task.slots, task.gpus) for task in from_environ(step(TRES_PER_TASK="cpu:3")).tasks} == {(1, 0)}


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (step(counts="2,1,1"), "4 tasks on 3 nodes do not go with 2 hosts"),
        (step() | {"SLURM_STEP_NUM_TASKS": "9"}, "3 tasks on 2 nodes do not go with 2 hosts and SLURM_STEP_NUM_TASKS 9"),
        (step(3), "rank 3 of a step of 3 tasks: this step spans the components of a heterogeneous job"),
        (step(DISTRIBUTION="arbitrary"), "'arbitrary' is a placement of ranks that tfdist does not support"),
        (step(2, NODEID=0), "SLURM_NODEID: rank 2 is 0, and would be 1 by the layout"),
        (step(1, LOCALID=0), "SLURM_LOCALID: rank 1 is 0, and would be 1"),
        (step(nodes="n[1-"), "SLURM_STEP_NODELIST: 'n.1-' is not a list of hosts"),
        (step(nodes="n[1-99999999999]"), "is not a list of hosts"),
        (step(nodes="n1[" * 5000), "is not a list of hosts"),
        (step(nodes=""), "'' is neither a host name"),
        (step() | {"SLURM_STEP_TASKS_PER_NODE": "2(x999999999)"}, "is not a list of tasks per node"),
        (step() | {"SLURM_STEP_TASKS_PER_NODE": "0,3"}, "is not a list of tasks per node"),
        (step() | {"SLURM_PROCID": "x"}, "SLURM_PROCID: 'x' is not right; expected a whole number from"),
        (step(GPUS_PER_TASK="a:b"), "SLURM_GPUS_PER_TASK: 'b' is not right; expected a whole number from"),
    ],
)  # fmt: skip
def test_bad_environments(environ, message):
    with pytest.raises(ClusterError, match=message):
        from_environ(environ)


def test_lists_of_hosts_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "hostlist", None)
    assert addresses(step())[0] == "n1:8888"
    with pytest.raises(ClusterError, match=r"needs the library python-hostlist: pip install 'python-hostlist>=.*'"):
        from_environ(step(nodes="n[1-2]"))


# Batch scripts.


@pytest.mark.parametrize(
    "source",
    [
        "STANDARD_1",
        "CUSTOM",
        '{"cluster": {"chief": 1, "worker": 2, "evaluator": 1}}',
        "cluster { nworker_groups: 3 nserver_groups: 3 sync_freq: 4 }",
        "cluster { nworkers_per_group: 4 nworkers_per_procs: 2 nworker_groups: 1 nserver_groups: 1 server_worker_separate: true }",
        Cluster((Task("worker", 0, slots=2, gpus=2), Task("worker", 1, slots=2, gpus=1)), job_dir="it's", strategy="x"),
    ],
)
def test_what_is_written_reads_back(source):
    options = {"master_machine_type": "standard_gpu", "worker_machine_type": "standard", "worker_count": 2}
    cluster = tfdist.read(source, overrides=options) if source == "CUSTOM" else tfdist.read(source)
    cluster = dataclasses.replace(
        cluster, tasks=tuple(dataclasses.replace(task, host=None, port=None) for task in cluster.tasks)
    )
    assert tfdist.read(write(cluster)) == cluster


def test_a_batch_script_that_tfdist_did_not_write():
    head = "#!/bin/bash -l\n#SBATCH -J x\n"
    assert tfdist.read(head + "#SBATCH --ntasks=8 --time=1:00\nsrun python train.py\n").describe() == "8 workers"
    assert (
        tfdist.read(head + "#SBATCH -N 2\n#SBATCH --ntasks-per-node 4\n#SBATCH --gpus-per-task=1\nsrun x\n").describe()
        == "8 workers"
    )
    assert tfdist.read(head + "#SBATCH -N 3 # nodes\nsrun x\n").describe() == "3 workers"
    assert tfdist.read(head + "#SBATCH -A group -N4 -n8\nsrun x\n").describe() == "8 workers"
    assert tfdist.read(head + "srun x\n").describe() == "1 worker"
    for step in (
        "timeout 3600 srun -n 2 python t.py",
        "/usr/bin/srun --ntasks=2 t.py",
        "env A=1 srun -n2 python t.py",
        "srun -n2 ./t.sh",
    ):
        assert tfdist.read(head + f"#SBATCH -n 8\n{step}\n").describe() == "2 workers", step
    assert tfdist.read(head + "#SBATCH -n 8\nsrun -n 1 ./stage.sh\nsrun python t.py\n").describe() == "8 workers"
    assert tfdist.read(head + "#SBATCH -n 8\necho srun -n 2 python t.py\nsrun python t.py\n").describe() == "8 workers"
    # As sbatch(1) says: nothing counts behind the first command, and a second # makes a comment.
    assert tfdist.read(head + "##SBATCH -n 4\n\n # comment\n#SBATCH -n 3\nsrun x\n#SBATCH -n 8\n").describe() == "3 workers"
    for bad, message in (
        ("#SBATCH -n x\n", "ntasks: 'x' is not right; expected a whole number from"),
        ("#SBATCH hetjob\n", ":3: heterogeneous jobs are not read"),
        ("#SBATCH packjob\n", ":3: heterogeneous jobs are not read"),
        ("#SBATCH -N 99999 --ntasks-per-node=99999\n", "more than 100000"),
        ("#SBATCH -n '2\n", ":3: this line cannot be split into words"),
        ("export TFDIST_CLUSTER=x\n", "^<text>: TFDIST_CLUSTER: x: there is no such file"),
    ):
        with pytest.raises(ClusterError, match=message):
            tfdist.read(head + bad + "srun x\n")


def test_the_description_that_a_script_gives_to_its_program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given, expected in (
        ("export TFDIST_CLUSTER=STANDARD_1\nsrun python t.py", "1 chief, 4 workers, 3 ps"),
        ("TFDIST_CLUSTER=STANDARD_1 srun python t.py", "1 chief, 4 workers, 3 ps"),
        ('export TFDIST_CLUSTER="horovodrun -np 4 -H a:2,b:2 t.py"\nsrun python t.py', "4 workers"),
        ("export TFDIST_CLUSTER=job.sh\nsrun python t.py", "2 workers"),  # As without it.
        ("export TFDIST_CLUSTER=\nsrun python t.py", "2 workers"),
    ):
        (tmp_path / "job.sh").write_text(script := f"#!/bin/bash\n#SBATCH -n 2\n{given}\n")
        assert tfdist.read("job.sh").describe() == tfdist.read(script).describe() == expected, given
    (tmp_path / "other.sh").write_text("#!/bin/bash\n#SBATCH -n 2\nexport TFDIST_CLUSTER=job.sh\n")
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#SBATCH -n 2\nexport TFDIST_CLUSTER=other.sh\n")
    with pytest.raises(ClusterError, match="these files refer to each other"):
        tfdist.read("job.sh")


TORCHRUN = """#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2

nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )
nodes_array=($nodes)
head_node=${nodes_array[0]}
head_node_ip=$(srun --nodes=1 --ntasks=1 -w "$head_node" hostname --ip-address)

echo Node IP: $head_node_ip
srun torchrun --nnodes 4 --nproc_per_node 2 --rdzv_id $RANDOM --rdzv_backend c10d --rdzv_endpoint $head_node_ip:29500 train.py
"""
ACCELERATE = """#!/bin/bash
#SBATCH --nodes=4                   # number of nodes
#SBATCH --ntasks-per-node=1         # number of MP tasks
#SBATCH --gres=gpu:4                # number of GPUs per node

source activateEnvironment.sh
export GPUS_PER_NODE=4
head_node_ip=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
export ACCELERATE_DIR="${ACCELERATE_DIR:-/accelerate}"

export LAUNCHER="accelerate launch \\
    --num_processes $((SLURM_NNODES * GPUS_PER_NODE)) \\
    --num_machines $SLURM_NNODES \\
    --rdzv_backend c10d \\
    --main_process_ip $head_node_ip \\
    --main_process_port 29500 \\
    "
export SCRIPT="${ACCELERATE_DIR}/examples/complete_nlp_example.py"
export SCRIPT_ARGS=" \\
    --mixed_precision fp16 \\
    --output_dir ${ACCELERATE_DIR}/examples/output \\
    "
export CMD="$LAUNCHER $SCRIPT $SCRIPT_ARGS"
srun $CMD
"""


def test_scripts_that_find_the_first_node_when_they_run():
    assert tfdist.read(TORCHRUN).describe() == "8 workers"
    static = TORCHRUN.replace("--rdzv_backend c10d --rdzv_endpoint $head_node_ip:29500", "--node_rank $SLURM_NODEID")
    static = static.replace("train.py", "--master_addr $head_node_ip train.py")
    assert tfdist.read(static) == tfdist.read(TORCHRUN) and tfdist.read(static).task is None
    assert tfdist.read(ACCELERATE).describe() == "16 workers"
    twice = TORCHRUN + "srun torchrun --nnodes 4 --nproc_per_node 1 --rdzv_backend c10d other.py\n"
    with pytest.raises(ClusterError, match="'c10d' gives out the ranks of 4 nodes"):
        tfdist.read(twice)
    with pytest.raises(ClusterError, match="has a shell variable"):
        tfdist.read(TORCHRUN.replace("--nnodes 4", "--nnodes $N"))
    fsdp = ACCELERATE.replace(
        "    --num_processes", "    --config_file ${ACCELERATE_DIR}/fsdp_config.yaml \\\n    --num_processes"
    )
    assert tfdist.read(fsdp).describe() == "16 workers"
    counted = TORCHRUN.replace("--nnodes 4", "--nnodes $N").replace(
        "\nnodes=(", '\nN=$(scontrol show hostnames "$SLURM_NODELIST" | wc -l)\nnodes=('
    )
    assert tfdist.read(counted).describe() == "8 workers"
    quoted = TORCHRUN.replace("srun torchrun", "srun bash -c 'torchrun").replace("--nnodes 4", "--nnodes $SLURM_NNODES")
    assert tfdist.read(quoted.replace("train.py", "train.py'")).describe() == "8 workers"


# The real one.


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    with slurm_here.slurm(tmp_path_factory.mktemp("slurm")) as environ:
        yield environ


def run(environ, *command, folder, timeout=60):
    result = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=timeout, cwd=folder)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


WHERE = """
import os, sys, tfdist
cluster = tfdist.read()
task = cluster.find(*cluster.task)
right = (task.host, task.index) == (os.environ["SLURMD_NODENAME"], int(os.environ["SLURM_PROCID"]))
sys.stdout.write(f"{tfdist.rank()} {task.host} {tfdist.local_rank()} {len({t.address for t in cluster.tasks})} {right}\\n")
"""


@needs("slurm")
@pytest.mark.cluster
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["-n3"], "0 n1 0, 1 n1 1, 2 n2 0"),
        (["-n3", "-m", "cyclic"], "0 n1 0, 1 n2 0, 2 n1 1"),
        (["-n5", "-m", "plane=2"], "0 n1 0, 1 n1 1, 2 n2 0, 3 n1 2, 4 n1 3"),
        (["-n4", "--ntasks-per-node=2", "--mpi=pmi2"], "0 n1 0, 1 n1 1, 2 n2 0, 3 n2 1"),
    ],
)
def test_a_real_step_tells_every_task_where_it_is(real, options, expected, tmp_path):
    output = run(real, "srun", "-N2", "-w", "n1,n2", *options, sys.executable, "-c", WHERE, folder=tmp_path)
    lines = sorted(output.splitlines())
    size = len(lines)
    assert lines == [f"{entry} {size} True" for entry in expected.split(", ")]


PROGRAM = """
import sys, numpy as np, tfdist
strategy = tfdist.strategy()
import keras
with strategy.scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile("sgd", "mse")
x = np.arange(64, dtype="float32").reshape(32, 2) / 64
history = model.fit(x, x.sum(1, keepdims=True) * 2, epochs=3, batch_size=4, shuffle=False, verbose=0)
losses = history.history["loss"]
sys.stdout.write(f"{tfdist.role()} {losses[-1] < losses[0]}\\n")
"""


def run_batch_script(real, program, tmp_path):
    """Runs a program with the batch script that `write` makes for a chief, a worker and a ps; returns its output."""
    script, path, output = tmp_path / "job.sh", tmp_path / "program.py", tmp_path / "output"
    path.write_text(program)
    script.write_text(write(tfdist.read({"chief": 1, "worker": 1, "ps": 1})).replace("python ", f"{sys.executable} "))
    options = ("--parsable", "-w", "localhost", "-o", str(output))
    job = run(real, "sbatch", *options, str(script), str(path), folder=tmp_path).strip()
    latest = time.monotonic() + 400
    while run(real, "squeue", "-h", "-j", job, folder=tmp_path).strip():  # `sbatch --wait` asks every half minute only.
        assert time.monotonic() < latest, output.read_text()
        time.sleep(0.5)
    return sorted(line for line in output.read_text().splitlines() if line.startswith(("chief", "worker", "ps")))


ROLES = """
import sys, tfdist
from tfdist import choice
from tfdist.process_cluster import current_cluster
cluster = current_cluster().addressed()  # That of the script, with the hosts and the task of the step.
addresses = [task.address for task in cluster.tasks]
sys.stdout.write(f"{tfdist.role()} {tfdist.rank()} {choice.choose(cluster).strategy} {len(set(addresses))} {addresses}\\n")
"""


@needs("slurm")
@pytest.mark.cluster
def test_the_batch_script_gives_each_task_its_role_and_all_the_same_addresses(real, tmp_path):
    told = [line.partition(" [") for line in run_batch_script(real, ROLES, tmp_path)]
    assert [head for head, *_ in told] == [
        "chief 0 parameter_server 3",
        "ps None parameter_server 3",
        "worker None parameter_server 3",
    ]
    assert len({addresses for *_, addresses in told}) == 1


@needs("slurm")
@pytest.mark.cluster
@pytest.mark.release  # test_by_hand.py trains with tasks that nothing but their environment describes.
def test_the_batch_script_trains_with_a_parameter_server(real, tmp_path):
    assert run_batch_script(real, PROGRAM, tmp_path) == ["chief True"]
