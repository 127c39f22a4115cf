"""TensorFlow 1's flags, Accelerate and DeepSpeed."""

from pathlib import Path

import pytest
from samples import ACCELERATE, TENSORFLOW_1

import tfdist
from tfdist.dialects import description
from tfdist.errors import ClusterError
from tfdist.rank_info import RankInfo, Store


def refused(text: object) -> str:
    with pytest.raises(ClusterError) as caught:
        description(text)
    return str(caught.value)


# TensorFlow 1.


def test_the_flags_of_a_training_program_are_the_cluster() -> None:
    line = "python -u my/train.py --data x --ps_hosts=a:2222 --worker_hosts b:2222,c:2222 --job_name={} --task_index={}"
    cluster = tfdist.read(line.format("worker", 1))
    assert cluster == tfdist.read({"cluster": {"ps": ["a:2222"], "worker": ["b:2222", "c:2222"]}})
    assert cluster.task == ("worker", 1) and tfdist.read(line.format("ps", 0)).task == ("ps", 0)
    assert tfdist.read(f"{line.format('ps', 0)} &\n{line.format('worker', 0)}").task is None
    assert cluster == tfdist.read(TENSORFLOW_1) == tfdist.read("./train --ps-hosts a:2222 --worker-hosts b:2222,c:2222")
    assert tfdist.read(line.format("worker", 0) + " --sync_replicas").worker_groups == ((0, 1),)
    assert tfdist.read("x --worker_hosts=a:1,b:1 --chief_hosts=c:1").describe() == "1 chief, 2 workers"


@pytest.mark.parametrize(
    "task", ["--job_name $1 --task_index $2", "--job_name=worker --task_index=$i", "--task_id=${SLURM_PROCID}"]
)
def test_a_script_may_leave_the_task_to_a_variable(task: str, tmp_path: Path) -> None:
    """It names all hosts, and was refused. A single command line is that of one task."""
    line = f"python train.py --ps_hosts=a:1 --worker_hosts=b:1,c:1 {task}"
    first = line.partition(task)[0] + "--job_name=ps --task_index=0"
    loop = f"{first} &\nfor i in 0 1; do\n  {line} &\ndone\nwait\n"
    (tmp_path / "start.sh").write_text(line)
    for script in (loop, tmp_path / "start.sh"):
        cluster = tfdist.read(script)
        assert cluster.describe() == "2 workers, 1 ps" and cluster.task is None
    assert "has a shell variable" in refused(line)
    assert "describe different clusters" in refused(f"{line}\n{line.replace('c:1', 'd:1')}")
    assert "--job_name: 'sp' has no hosts here" in refused(line.replace(task, "--job_name=sp") + "\n")


def test_gpus_belong_to_a_worker_in_the_benchmark() -> None:
    line = "python {} --num_gpus=4 --ps_hosts=a:1 --worker_hosts=b:1"
    cluster = tfdist.read(line.format("scripts/tf_cnn_benchmarks.py"))
    assert [(task.job, task.slots, task.gpus) for task in cluster.tasks] == [("worker", 4, 4), ("ps", 1, 0)]
    assert cluster.worker_groups == ((0, 1, 2, 3),)
    assert tfdist.read(line.format("train.py")).slots == 1


def test_workers_of_the_benchmark_step_together_unless_it_is_told_not_to() -> None:
    line = "python {} --ps_hosts=a:1 --worker_hosts=b:1,c:1 {}"
    for flags, groups in (
        ("", ((0, 1),)),
        ("--cross_replica_sync=true", ((0, 1),)),
        ("--cross_replica_sync=False", ((0,), (1,))),
        ("--nocross_replica_sync", ((0,), (1,))),
    ):
        assert tfdist.read(line.format("tf_cnn_benchmarks.py", flags)).worker_groups == groups
        assert tfdist.read(line.format("train.py", flags)).worker_groups == ((0,), (1,))
    assert tfdist.read("python tf_cnn_benchmarks.py --worker_hosts=b:1,c:1").worker_groups == ((0, 1),)


def test_bad_flags_of_tensorflow_1() -> None:
    start = "python x.py --worker_hosts=a:1,b:1"
    assert "--worker_hosts: 'a' has no port or is not an address" in refused("python x.py --worker_hosts=a")
    assert "--job_name: 'ps' has no hosts here; the jobs are worker" in refused(f"{start} --job_name=ps")
    assert "--task_index: 2 is too high; there are 2 worker tasks" in refused(f"{start} --job_name=worker --task_index=2")
    assert "--worker_hosts: it names no host" in refused("python x.py --worker_hosts= --job_name=worker")
    for word in ("False", "0"):  # argparse may read it as false, absl reads it as true.
        message = refused(f"{start} --ps_hosts=c:1 --sync_replicas {word} --job_name=worker")
        assert f"--sync_replicas: absl reads it as true, whatever word is behind it; write --sync_replicas={word}" in message
    assert tfdist.read(f"{start} --ps_hosts=c:1 --sync_replicas True").worker_groups == ((0, 1),)
    assert "the chief is given by two flags" in refused(f"{start} --chief_hosts=c:1 --master_hosts=d:1")
    assert "worker_host: there is no such flag; did you mean worker_hosts?" in refused(
        {"ps_hosts": "a:1", "worker_host": "b:1"}
    )


def test_flags_of_a_program_that_resemble_those_of_tensorflow_1() -> None:
    line = "python {} --ps_hosts=a:1 --worker_hosts=b:1,c:1 --task_index=0 {}"
    for program, more in (
        ("train.py", "--num_cpus=4"),  # Like num_gpus, which says nothing about the cluster here.
        ("train.py", "--num_gpu 1"),
        ("tf_cnn_benchmarks.py", "--num_cpus=4 --num_gpus=2"),
        ("train.py", "--job_names=a --job_name=worker"),
    ):
        assert len(tfdist.read(line.format(program, more)).job("worker")) == 2
    message = refused(line.format("tf_cnn_benchmarks.py", "--num_gpu=2"))
    assert (
        "--num_gpu=2: there is no such option; did you mean num_gpus? If it is one of the program itself, leave it out"
        in message
    )
    assert "did you mean ps_hosts?" in refused("python train.py --ps_host=a:1 --worker_hosts=b:1")


# Accelerate.


def test_a_configuration_of_accelerate() -> None:
    ranks = description(ACCELERATE)
    assert isinstance(ranks, RankInfo)
    assert (ranks.size, ranks.rank, ranks.local_size, ranks.gpus) == (8, 4, 4, 1)
    assert ranks.store == Store("tcp", "10.0.0.1", 29501)
    local = ACCELERATE.replace("num_machines: 2", "num_machines: 1")
    cluster = tfdist.read(local)
    assert [(task.job, task.slots, task.gpus) for task in cluster.tasks] == [("worker", 1, 1)] * 8
    assert {task.gpus for task in tfdist.read(local.replace("use_cpu: false", "use_cpu: true")).tasks} == {0}
    assert tfdist.read({"distributed_type": "NO", "num_processes": 1}).describe() == "1 worker"
    assert tfdist.read("distributed_type: no\nnum_processes: 1\n").describe() == "1 worker"


def test_a_command_line_of_accelerate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(ACCELERATE)
    for name in ("accelerate launch", "accelerate-launch"):
        assert tfdist.read(f"{name} --multi_gpu --num_processes 4 -m a.b").slots == 4
    assert {task.gpus for task in tfdist.read("accelerate launch --cpu --num_processes 4 a.py").tasks} == {0}
    ranks = description("accelerate launch --config_file c.yaml --machine_rank 0 train.py --num_processes 3")
    assert isinstance(ranks, RankInfo) and (ranks.size, ranks.rank) == (8, 0)
    for option in ("--downcast_bf16", "-q", "-t 3", "--fp8_enable_fsdp_float8_all_gather true"):
        assert len(tfdist.read(f"accelerate launch {option} --num_processes 3 a.py --lr 1").tasks) == 3
    assert tfdist.read("accelerate launch --num_processes=2 --fsdp_offload_params true --use_fsdp a.py").slots == 2


def test_accelerate_starts_mpirun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hosts").write_text("a slots=9\nb\nc\n", encoding="utf-8")
    text = ACCELERATE.replace("MULTI_GPU", "MULTI_CPU") + "mpirun_config:\n  mpirun_hostfile: hosts\n"
    cluster = tfdist.read(text)
    assert [task.host for task in cluster.tasks] == ["a"] * 4 + ["b"] * 4 and cluster.task is None
    line = "accelerate launch --cpu --num_machines {0} --num_processes {0} --mpirun_hostfile hosts a.py"
    assert [task.host for task in tfdist.read(line.format(2)).tasks] == ["a", "b"]
    assert "--num_machines: 4 machines are asked for, and 'hosts' names 3" in refused(line.format(4))
    assert "nowhere: there is no such file" in refused(line.replace("hosts", "nowhere").format(4))


def test_accelerate_starts_deepspeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hosts were passed over, so that no other back end could start the tasks."""
    monkeypatch.chdir(tmp_path)
    Path("hosts").write_text("a slots=8\nb slots=8\n", encoding="utf-8")
    text = ACCELERATE.replace("MULTI_GPU", "DEEPSPEED") + "deepspeed_config:\n  deepspeed_hostfile: {0}\n  zero_stage: 3\n"
    for launcher in ("", "  deepspeed_multinode_launcher: openmpi\n"):
        tasks = tfdist.read(text.format("hosts") + launcher).tasks
        assert [(task.host, task.gpus) for task in tasks] == [("a", 1)] * 4 + [("b", 1)] * 4
    for other in (text.format("hosts") + "  deepspeed_multinode_launcher: standard\n", text.format("nowhere")):
        assert isinstance(description(other), RankInfo)  # Started by hand on each machine.
    line = "accelerate launch --use_deepspeed --num_machines 2 --num_processes {} --deepspeed_hostfile hosts {} a.py"
    assert [task.host for task in tfdist.read(line.format(2, "")).tasks] == ["a", "b"]
    given = "--deepspeed_inclusion_filter a@b:0,1"
    assert len(tfdist.read(line.format(10, given)).tasks) == 10
    assert "--num_processes: it is 8, and DeepSpeed starts 10 on the hosts of 'hosts'; let them agree" in refused(
        line.format(8, given)
    )


def test_bad_descriptions_of_accelerate() -> None:
    assert "--num_processes: the number of processes is that of a configuration" in refused("accelerate launch a.py")
    assert "starts no training; expected accelerate launch" in refused("accelerate config --x")
    assert "it is 8, and distributed_type NO has one process" in refused(ACCELERATE.replace("MULTI_GPU", "'NO'"))
    without = ACCELERATE.replace("num_processes: 8\n", "")
    assert "num_processes: it is missing, and only distributed_type NO has one process" in refused(without)
    assert tfdist.read("distributed_type: 'NO'\nmain_training_function: main\n").describe() == "1 worker"
    assert "7 is no multiple of num_machines, 2" in refused(ACCELERATE.replace("num_processes: 8", "num_processes: 7"))
    assert "2 machines need a place to meet" in refused(ACCELERATE.replace("main_process_ip: 10.0.0.1\n", ""))
    assert "'AMAZON_SAGEMAKER' starts a job elsewhere" in refused(ACCELERATE.replace("LOCAL_MACHINE", "AMAZON_SAGEMAKER"))
    assert "'MULTI_GPUS' is not one of NO, MULTI_GPU, " in refused(ACCELERATE.replace("MULTI_GPU", "MULTI_GPUS"))
    assert "nope.yaml: there is no such file" in refused("accelerate launch --config_file nope.yaml a.py")


# DeepSpeed.


def test_a_command_line_of_deepspeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    Path("hosts").write_text("# mine\na slots=4\nb slots=2\n")

    def hosts(options: str) -> list[str | None]:
        cluster = tfdist.read(f"deepspeed {options} train.py --deepspeed_config ds.json")
        assert {(task.job, task.slots, task.gpus) for task in cluster.tasks} == {("worker", 1, 1)}
        return [task.host for task in cluster.tasks]

    assert hosts("--hostfile hosts") == hosts("-H hosts") == ["a"] * 4 + ["b"] * 2
    assert hosts("--hostfile=hosts --num_nodes 1") == ["a"] * 4
    assert hosts("--hostfile=hosts --num_gpus 2") == ["a", "a", "b", "b"]
    assert hosts("--hostfile=hosts --include b@a:1,3") == ["a", "a", "b", "b"]
    assert hosts("--hostfile=hosts --exclude a@b:0") == ["b"]
    assert hosts("--hostf=hosts --num_g 2") == ["a", "a", "b", "b"]  # argparse takes unique beginnings.
    assert hosts("--num_gpus=3") == hosts("--include localhost:0,1,3") == [None] * 3
    assert len(tfdist.read("CUDA_VISIBLE_DEVICES=0,1 deepspeed x.py").tasks) == 2


def test_bad_command_lines_of_deepspeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    Path("hosts").write_text("a slots=4\nb slots=2\n")
    for options, message in (
        ("", "--num_gpus: DeepSpeed takes all GPUs of the machine, and this one has none that tfdist knows"),
        ("--num_nodes 2 --num_gpus 8", "--num_nodes: 2 nodes are asked for, and 1 are named; name them with --hostfile"),
        ("--hostfile nope", "--hostfile: there is no file 'nope'"),
        ("--hostfile hosts --num_gpus 4", "4 GPUs are asked for, and b has 2 slots"),
        ("--hostfile hosts --include c", "--include: 'c' is none of the hosts a, b"),
        ("--hostfile hosts --include b:2", "--include: b has no GPU 2; it has 2"),
        ("--hostfile hosts --exclude a@b", "--exclude: it leaves no GPU"),
        ("--hostfile hosts --include a --exclude b", "takes --include or --exclude, not both"),
        ("--elastic_training --num_gpus 2", "multi_worker_mirrored keeps its tasks"),
        ("--num_gpsu 2", "there is no such option; did you mean num_gpus?"),
    ):
        assert message in refused(f"deepspeed {options} train.py")
