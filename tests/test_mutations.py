"""Whatever happens to a description on its way, reading it gives a Cluster or one line of ClusterError.

`TFDIST_MUTATIONS` sets how many damaged descriptions are read.
"""

import json
import os
import random
import re
from collections.abc import Callable

import pytest

from tfdist.cluster import Cluster
from tfdist.dialects import environment, read
from tfdist.dialects.registry import writers
from tfdist.errors import ClusterError
from tfdist.membership import Membership

COUNT = int(os.environ.get("TFDIST_MUTATIONS", "6000"))

SINGA_JOB = """name: "mlp"
train_steps: 1000
# the cluster { is below }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { backend: "kvfile" path: 'examples/mnist/train_data.bin' } }
  layer < name: "fc1" srclayers: ["data", "label"] param { name: "w1" init { type: kUniform low: -0.05 high: 0.05 } } >
}
updater { type: kSGD learning_rate { type: kStep step_conf { change_freq: 60 gamma: 0.997 } } }
gpu: 0
gpu: 1
cluster {
  nworker_groups: 4
  nserver_groups: 2
  nworkers_per_group: 2
  nservers_per_group: 1
  nworkers_per_procs: 2
  server_worker_separate: true
  workspace: "examples/mnist"
  sync_freq: 8
  start_port: 6723
  share_memory: false
  poll_time: 100
}
"""

SINGA_BARE = "nworker_groups: 3\nnserver_groups: 3\nnworkers_per_group: 1\nnservers_per_group: 1\n"

CLOUDML_YAML = """jobId: mnist_1
labels:
  team: vision
trainingInput:
  scaleTier: CUSTOM
  masterType: n1-highcpu-16
  masterConfig:
    acceleratorConfig: {count: "2", type: NVIDIA_TESLA_T4}
  workerType: n1-highcpu-16
  parameterServerType: n1-highmem-8
  evaluatorType: n1-highcpu-16
  workerCount: 9
  parameterServerCount: "3"
  evaluatorCount: 1
  packageUris: [gs://bucket/trainer.tar.gz]
  args: ["--epochs", "5"]
  jobDir: gs://bucket/out
"""

CLOUDML_JSON = json.dumps({"trainingInput": {"scale_tier": "CUSTOM", "master_type": "standard_gpu", "region": "us-east1"}})

TF_CONFIG = json.dumps(
    {
        "cluster": {
            "chief": ["cmle-training-chief-x-0:2222"],
            "worker": {"0": "10.0.0.1:2222", "1": "[::1]:2223"},
            "ps": ["grpc://a:1", "b:2"],
            "evaluator": [],
        },
        "task": {"type": "worker", "index": "1", "cloud": "x"},
        "environment": "cloud",
        "rpc_layer": "grpc",
        "tfdist": {"slots": {"worker": [[2, 1], [2, 0]]}, "worker_groups": [[0, 3], [2, 1]], "sync_period": 5},
    },
    indent=1,
)

COUNTS = '{"cluster": {"chief": 1, "worker": 4, "ps": 2, "evaluator": 1}, "tfdist": {"sync_period": 4}}'

HOSTFILE = "# all\nworker-0 slots=2\n\nuser@worker-1 slots = 4 max_slots=8 # fast\n10.0.0.3 slots=1\n"

HOSTFILE_MPICH = "a:2\nb.example.org:3\n"

HOROVODRUN = "X=1 horovodrun -np 4 --min-np 2 -H h1:2,h2:2 --verbose python train.py -H x\n"

MPIRUN = (
    "mpirun --allow-run-as-root -np 6 --map-by ppr:2:node --mca btl tcp,self -x PATH \\\n  -H 'a:4,b:2',c python train.py\n"
)

SBATCH = "#!/bin/bash\n#SBATCH --job-name=x\n#SBATCH -N 2 --ntasks-per-node=4 # tasks\n#SBATCH --gpus-per-task a100:1\nsrun python x\n"

SBATCH_OF_TFDIST = f"#!/bin/bash\n#SBATCH --ntasks=8\nexport TFDIST_CLUSTER='{COUNTS}'\nsrun python train.py\n"

SAMPLES = (
    *(SINGA_JOB, SINGA_BARE, CLOUDML_YAML, CLOUDML_JSON, TF_CONFIG, COUNTS),
    *(HOSTFILE, HOSTFILE_MPICH, HOROVODRUN, MPIRUN, SBATCH, SBATCH_OF_TFDIST),
)

ENVIRONMENTS: tuple[dict[str, str], ...] = (
    {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "7",
        "SLURM_STEP_NODELIST": "n[01-02,7],gpu-a[1-2]b[3]",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2),1(x3)",
        "SLURM_PROCID": "3",
        "SLURM_NODEID": "1",
        "SLURM_LOCALID": "1",
        "SLURM_DISTRIBUTION": "plane",
        "SLURM_DIST_PLANESIZE": "2",
        "SLURM_GPUS_PER_TASK": "a100:2",
        "SLURM_STEP_RESV_PORTS": "12000-12003",
    },
    {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "2"},
    {
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    },
    {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "TF_CONFIG": TF_CONFIG},
)
"""Each is read by itself, and with variables of the others."""

_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")
_HOSTILE = [
    "{",
    "}",
    "[",
    "]",
    "<",
    ">",
    ":",
    ",",
    '"',
    "'",
    "#",
    "&a",
    "*a",
    "!!int",
    "---",
    "\n",
    "\t",
    "\\",
    "\0",
    "é",
    "\u2028",
]
_NUMBERS = ["0", "-1", "1", "3", "7", "65536", "2147483648", "99999", "100000", "1e9", "0x10", "007", "4.5", "9" * 5000, "true"]


def _flip_bytes(content: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def _cut(content: bytes, rng: random.Random) -> bytes:
    first, last = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    return content[:first] + content[last:] if rng.random() < 0.5 else content[first:last]


def _on_tokens(change: Callable[[list[str], random.Random], None]) -> Callable[[bytes, random.Random], bytes]:
    def mutate(content: bytes, rng: random.Random) -> bytes:
        tokens = _TOKEN.findall(content.decode("utf-8", "replace")) or [" "]
        for _ in range(rng.randint(1, 3)):
            change(tokens, rng)
        return "".join(tokens).encode("utf-8", "replace")

    return mutate


def _delete(tokens: list[str], rng: random.Random) -> None:
    tokens[rng.randrange(len(tokens))] = ""


def _duplicate(tokens: list[str], rng: random.Random) -> None:
    first = rng.randrange(len(tokens))
    last = first + rng.randint(1, 8)
    tokens[first:first] = tokens[first:last] * rng.randint(1, 3)


def _swap(tokens: list[str], rng: random.Random) -> None:
    one, other = rng.randrange(len(tokens)), rng.randrange(len(tokens))
    tokens[one], tokens[other] = tokens[other], tokens[one]


def _insert(tokens: list[str], rng: random.Random) -> None:
    tokens.insert(rng.randrange(len(tokens)), rng.choice(_HOSTILE) * rng.choice((1, 1, 1, 2, 2000)))


def _number(tokens: list[str], rng: random.Random) -> None:
    places = [place for place, token in enumerate(tokens) if token.isdecimal()]
    if places:
        tokens[rng.choice(places)] = rng.choice(_NUMBERS)


def _typo(tokens: list[str], rng: random.Random) -> None:
    places = [place for place, token in enumerate(tokens) if len(token) > 3 and token[0].isalpha()]
    if places:
        place = rng.choice(places)
        word, at = tokens[place], rng.randrange(1, len(tokens[place]) - 1)
        tokens[place] = rng.choice((word[:at] + word[at + 1 :], word[:at] + word[at] + word[at:], word.upper(), word + "s"))


MUTATORS = (_flip_bytes, _cut, *map(_on_tokens, (_delete, _duplicate, _swap, _insert, _number, _typo)))


def mutated(seed: int) -> bytes:
    """The damaged description of one number."""
    rng = random.Random(seed)
    content = rng.choice(SAMPLES).encode()
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        content = rng.choice(MUTATORS)(content, rng) or b" "
    return content


def mutated_environment(seed: int) -> dict[str, str]:
    """The damaged variables of one number."""
    rng = random.Random(seed)
    environ = dict(rng.choice(ENVIRONMENTS))
    if rng.random() < 0.2:
        environ |= rng.choice(ENVIRONMENTS)
    for name in rng.sample(sorted(environ), min(len(environ), rng.choice((1, 1, 2)))):
        if rng.random() < 0.2:
            del environ[name]
        else:
            value = rng.choice(MUTATORS)(environ[name].encode(), rng) if environ[name] else b""
            environ[name] = value.decode("utf-8", "surrogateescape").replace("\0", "")
    return environ


def test_the_samples_themselves_are_read() -> None:
    for sample in SAMPLES:
        assert isinstance(read(sample), Cluster)
    for environ in ENVIRONMENTS:
        assert environment.find({name: value for name, value in environ.items() if name != "TF_CONFIG"}) is not None


def test_a_damaged_environment_is_read_or_refused_in_one_line() -> None:
    refused = 0
    count = min(COUNT, 20000)
    for seed in range(count):
        try:
            found = environment.find(mutated_environment(seed))
        except ClusterError as error:
            refused += 1
            assert str(error).isprintable() and len(str(error)) < 1500, f"seed {seed}: {error}"
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        else:
            assert found is None or isinstance(found, Cluster | Membership)
    assert count * 0.2 < refused < count


@pytest.mark.timeout(600)
def test_a_damaged_description_is_read_or_refused_in_one_line() -> None:
    refused = 0
    for seed in range(COUNT):
        content = mutated(seed)
        try:
            cluster = read(content)
        except ClusterError as error:
            refused += 1
            message = str(error)
            assert message and "\n" not in message and message.isprintable(), f"seed {seed}: {message!r}"
            assert len(message) < 1500, f"seed {seed}: a message of {len(message)} characters"
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        else:
            assert isinstance(cluster, Cluster)
    assert COUNT * 0.3 < refused < COUNT


def test_what_is_read_from_a_damaged_description_can_be_written_or_is_refused() -> None:
    for seed in range(min(COUNT, 600)):
        try:
            cluster = read(mutated(seed))
        except ClusterError:
            continue
        for dialect in writers().values():
            if len(cluster.tasks) < 100:
                try:
                    assert isinstance(dialect.write(cluster), str)
                except ClusterError as error:
                    assert str(error).isprintable()


def test_what_came_from_json_gives_the_same_result_as_a_dict() -> None:
    for seed in range(min(COUNT, 3000)):
        content = mutated(seed)
        try:
            value = json.loads(content)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            try:
                assert isinstance(read(value), Cluster)
            except ClusterError as error:
                assert str(error).isprintable()
