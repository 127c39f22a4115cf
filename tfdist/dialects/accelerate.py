"""Hugging Face Accelerate: its configuration file, and the command lines of `accelerate launch`.

Sources of the rules: huggingface/accelerate 1.x `src/accelerate/commands/launch.py` and `commands/config/config_args.py`.

`num_processes` counts the processes of all machines. All of them step together: process r is `worker:r`. On several machines
they meet at `main_process_ip`; with a host file for `mpirun` or DeepSpeed, Accelerate starts all of them on its hosts.
"""

import os
from collections.abc import Mapping
from typing import Any

from tfdist.cluster import Cluster, Task
from tfdist.dialects import deepspeed
from tfdist.dialects.dialect import CommandReader, Dialect, TextReader
from tfdist.dialects.horovod.hosts import merged, parse_hostfile
from tfdist.dialects.parsing.command_line import check_count, check_places, names, options
from tfdist.dialects.parsing.document import Document, check_text, read_text, shown
from tfdist.dialects.parsing.load import load
from tfdist.dialects.parsing.shell import has_variable
from tfdist.dialects.parsing.values import Values, scalar_text
from tfdist.errors import Source, nearest
from tfdist.rank_info import RankInfo, Store

NAME = "accelerate"

_READ = names(
    "compute_environment distributed_type num_processes num_machines machine_rank main_process_ip main_process_port "
    "use_cpu rdzv_backend mpirun_hostfile deepspeed_hostfile deepspeed_multinode_launcher deepspeed_inclusion_filter "
    "deepspeed_exclusion_filter"
)
WORDS = _READ | names(
    "mixed_precision main_training_function downcast_bf16 same_network gpu_ids debug fsdp_config deepspeed_config"
)
MARKS = names("compute_environment distributed_type main_process_ip main_training_function machine_rank")

_VALUED = names(
    "config_file mixed_precision num_processes num_machines num_cpu_threads_per_process dynamo_backend dynamo_mode "
    "gpu_ids machine_rank main_process_ip main_process_port tee log_dir role rdzv_backend rdzv_conf max_restarts "
    "monitor_interval vm env main_training_function deepspeed_config_file zero_stage "
    "offload_optimizer_device offload_param_device offload_optimizer_nvme_path offload_param_nvme_path "
    "gradient_accumulation_steps gradient_clipping zero3_init_flag zero3_save_16bit_model deepspeed_hostfile "
    "deepspeed_exclusion_filter deepspeed_inclusion_filter deepspeed_multinode_launcher deepspeed_moe_layer_cls_names "
    "mpirun_hostfile mpirun_ccl fp8_backend fp8_margin fp8_interval fp8_format fp8_amax_history_len "
    "fp8_amax_compute_algo fp8_override_linear_precision fp8_opt_level aws_access_key_id aws_secret_access_key"
)
_PREFIXES = ("fsdp_", "megatron_lm_", "parallelism_config_", "fp8_")
_SWITCHES = names(
    "quiet cpu multi_gpu tpu use_deepspeed use_fsdp use_megatron_lm use_parallelism_config use_mps_device use_xpu ipex "
    "same_network module no_python debug downcast_bf16 tpu_cluster no_tpu_cluster tpu_use_sudo enable_cpu_affinity "
    "dynamo_use_fullgraph dynamo_use_dynamic dynamo_use_regional_compilation fp8_use_autocast_during_eval"
)

_ONE, _GPUS, _CPUS = ("NO",), ("MULTI_GPU", "FSDP", "DEEPSPEED", "MEGATRON_LM", "TP"), ("MULTI_CPU",)
_OTHERS = ("MULTI_NPU", "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA", "MULTI_XPU", "MULTI_HPU", "TPU", "XLA", "MULTI_NEURON")
_PORT = 29500
_LAUNCH = "accelerate launch --config_file FILE --num_processes N"


def looks_like(content: "str | Mapping[Any, Any]") -> bool:
    """Returns whether this is a configuration file of Accelerate."""
    return not isinstance(content, str) and {"distributed_type", "num_processes"} <= content.keys()


def parse(document: Document) -> Cluster | RankInfo:
    """Reads a configuration file. Fields about training are ignored. Raises ClusterError for bad values."""
    source = Source(NAME, document.name)
    return _read(Values(source, _texts(document, source), ""))


def parse_command(words: list[str], source: Source) -> Cluster | RankInfo:
    """Reads `accelerate launch ...`, with the file that `--config_file` names. Raises ClusterError for a bad one."""
    if words[0] == "accelerate":
        if words[1:2] != ["launch"]:
            raise source.error(f"{shown(' '.join(words[:2]))} starts no training; expected accelerate launch")
        words = words[1:]
    known = _VALUED | frozenset(_plain(word) for word in words if _plain(word).startswith(_PREFIXES)) - _SWITCHES
    given = options(words[1:], source, known, _SWITCHES, letters={"m": "module", "q": "quiet", "t": "tee"})
    texts: dict[str, str] = {}
    # Where a variable names the file, it is on another machine: both numbers have to be in the command line.
    has_numbers = {"num_processes", "num_machines"} <= given.texts.keys()
    if given.texts.get("config_file") and not (has_numbers and has_variable(given.texts["config_file"])):
        name = given.text("config_file")
        file = Source(NAME, name[:250])
        content = Document(name, check_text(read_text(name, file), file))
        texts = _texts(load(content, file), file)
    texts |= {name: text for name, text in given.texts.items() if name in _READ}
    if given.flag("cpu"):
        texts["use_cpu"] = "true"
    if given.flag("tpu"):
        texts["distributed_type"] = "TPU"
    if "distributed_type" not in texts:
        is_gpu = any(map(given.flag, ("multi_gpu", "use_fsdp", "use_megatron_lm")))
        kind = "DEEPSPEED" if given.flag("use_deepspeed") else "MULTI_GPU" if is_gpu else "MULTI_CPU"
        texts["distributed_type"] = kind  # Which devices there are, only the machine knows.
    if "num_processes" not in texts and not given.texts.get("config_file"):
        raise source.error(
            "the number of processes is that of a configuration on the machine; give it, or the file with --config_file",
            field="--num_processes",
        )
    return _read(Values(source, texts, "--"))


def _plain(word: str) -> str:
    return word.lstrip("-").partition("=")[0].replace("-", "_") if word.startswith("--") else ""


def _texts(document: Document, source: Source) -> dict[str, str]:
    """Returns the fields of a configuration file that concern the cluster."""
    fields: dict[tuple[str, ...], Any] = {(key,): value for key, value in document.mapping.items()}
    for name in ("mpirun_config", "deepspeed_config"):
        if isinstance(block := document.mapping.get(name), Mapping):
            fields |= {(name, key): value for key, value in block.items()}
    items = [(path, value) for path, value in fields.items() if path[-1] in _READ and value is not None]
    return {path[-1]: scalar_text(value, source, ".".join(path), document.lines.get(path)) for path, value in items}


def _read(values: Values) -> Cluster | RankInfo:
    if values.text("compute_environment", "LOCAL_MACHINE") != "LOCAL_MACHINE":
        raise values.error(
            "compute_environment",
            f"{shown(values.text('compute_environment'))} starts a job elsewhere; give a description of that job instead",
        )
    kind = _kind(values)
    machines = values.number("num_machines", 1, least=1)
    size = _size(values, kind, machines)
    gpus = int(kind in _GPUS and not values.flag("use_cpu"))
    if machines == 1:
        return Cluster(tuple(Task("worker", rank, gpus=gpus) for rank in range(size)), source=values.source)
    if values.text("mpirun_hostfile") and not gpus:  # Accelerate uses it for processors only.
        return _under_mpirun(values, size, machines)
    is_started = kind == "DEEPSPEED" and gpus
    if is_started and values.text("deepspeed_multinode_launcher", "pdsh") not in ("standard", "nossh"):
        file = values.texts.get("deepspeed_hostfile", "")
        if os.path.exists(file):
            return _under_deepspeed(values, file, size, machines)
    if not values.texts.get("main_process_ip"):
        raise values.error("main_process_ip", f"{machines} machines need a place to meet; give the address of the first")
    per_machine = size // machines
    check_places(
        values, ("main_process_ip", "main_process_port", "machine_rank"), RankInfo(size, 0, values.source, gpus=gpus).outline()
    )
    return RankInfo(
        size=size,
        rank=values.number("machine_rank", 0, most=machines - 1) * per_machine,
        source=values.source,
        store=Store("tcp", values.host("main_process_ip"), values.port("main_process_port", _PORT)),
        local_rank=0,
        local_size=per_machine,
        gpus=gpus,
    )


def _kind(values: Values) -> str:
    """Returns `distributed_type`, one of `_ONE`, `_GPUS` and `_CPUS`."""
    kind = values.text("distributed_type", "NO").upper()
    kind = "NO" if kind == "FALSE" else kind  # `no` without quotes is YAML's false.
    if kind in _OTHERS:
        raise values.error(
            "distributed_type", f"{kind} uses devices that no strategy of tfdist uses; expected {', '.join(_GPUS)}"
        )
    known = (*_ONE, *_GPUS, *_CPUS)
    if kind not in known:
        raise values.error("distributed_type", f"{shown(kind)} is not one of {', '.join(known)}{nearest(kind, known)}")
    return kind


def _size(values: Values, kind: str, machines: int) -> int:
    """Returns the number of processes of all machines, a multiple of their number."""
    if kind not in _ONE and not values.text("num_processes"):
        # Accelerate calls this -1: "if we use SLURM and the user manually passes it in".
        raise values.error(
            "num_processes", f"it is missing, and only distributed_type NO has one process; write it, or give it with {_LAUNCH}"
        )
    size = values.number("num_processes", 1, least=1)
    check_count(values, "num_processes", size)
    if kind in _ONE and size > 1:
        raise values.error(
            "num_processes", f"it is {size}, and distributed_type NO has one process; choose MULTI_GPU or MULTI_CPU"
        )
    if size % machines:
        raise values.error(
            "num_processes", f"{size} is no multiple of num_machines, {machines}; it counts those of all machines"
        )
    return size


def _under_mpirun(values: Values, size: int, machines: int) -> Cluster:
    """Returns the ranks that Accelerate starts with mpirun, as many on each of the first hosts of the file."""
    name = values.text("mpirun_hostfile")
    file = Source(NAME, name[:250])
    hosts = [host for host, _ in merged(parse_hostfile(read_text(name, file), file))][:machines]
    if len(hosts) < machines:
        raise values.error("num_machines", f"{machines} machines are asked for, and {shown(name)} names {len(hosts)}")
    per_machine = size // machines
    return Cluster(tuple(Task("worker", rank, hosts[rank // per_machine]) for rank in range(size)), source=values.source)


def _under_deepspeed(values: Values, file: str, size: int, machines: int) -> Cluster:
    """Returns the ranks that Accelerate starts with DeepSpeed's launcher, which gets these options."""
    words = ["deepspeed", f"--hostfile={file}"]
    filters = {"exclude": values.text("deepspeed_exclusion_filter"), "include": values.text("deepspeed_inclusion_filter")}
    chosen = next(((name, text) for name, text in filters.items() if text), ("num_gpus", str(size // machines)))
    cluster = deepspeed.parse_command([*words, f"--{chosen[0]}={chosen[1]}"], values.source, {})
    if len(cluster.tasks) != size:
        raise values.error(
            "num_processes",
            f"it is {size}, and DeepSpeed starts {len(cluster.tasks)} on the hosts of {shown(file)}; let them agree",
        )
    return cluster


DIALECT = Dialect(
    name=NAME,
    title="Accelerate",
    example="Accelerate's configuration or command line (accelerate launch --multi_gpu --num_processes 4 train.py)",
    text=TextReader(parse, words=WORDS, marks=MARKS, is_mapping=True, looks_like=looks_like),
    command=CommandReader(("accelerate", "accelerate-launch", "accelerate.commands.launch"), parse_command),
)
