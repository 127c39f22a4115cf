"""`Partition`: the flags, the languages that carry it, and what is refused before anything starts."""

import dataclasses

import pytest
from absl import flags

from tfdist.choice import choose
from tfdist.cluster import Cluster, Task
from tfdist.dialects import read
from tfdist.dialects.registry import writers
from tfdist.dialects.singa import write
from tfdist.errors import ClusterError
from tfdist.flags import cluster_from_flags, define_flags
from tfdist.partition import Partition, parsed_layouts

FOUR = 'cluster { nworkers_per_group: 4 nworkers_per_procs: 4 workspace: "w" }'
SINGA_GROUPS = "cluster { nworker_groups: 2 nserver_groups: 1 nworkers_per_group: 6 nworkers_per_procs: 3 }"
COLUMNS = (("dense.*/kernel", -1),)


def flagged(*words):
    values = flags.FlagValues()
    define_flags(values)
    values(["program", *words])
    return cluster_from_flags(values)


def test_layouts_as_a_user_writes_them():
    text = r"block_[0,1]/kernel=columns, (a|b)/x{1,2}=rows,words/embeddings=0,head/.*=none"
    layouts = (("block_[0,1]/kernel", -1), ("(a|b)/x{1,2}", -2), ("words/embeddings", 0), ("head/.*", None))
    assert parsed_layouts(text) == layouts
    assert parsed_layouts(str(Partition(layouts))) == layouts


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("sequential/dense_1/kernel", 0),
        ("dense/kernel", 0),
        ("dense/kernel_1", None),
        ("pre_dense/kernel", None),
        ("words/embeddings", 1),
        ("embeddings", 1),
        ("my_embeddings", None),
    ],
)
def test_a_pattern_names_the_end_of_a_path_and_the_first_counts(path, number):
    layouts = (("dense.*/kernel", -1), ("embeddings", 0), ("dense_1/kernel", None))
    assert Partition(layouts).find(path) == number


@pytest.mark.parametrize(
    ("words", "slots", "partition"),
    [
        (["--cluster", FOUR, "--partition", "dense.*/kernel=columns"], 4, Partition(COLUMNS)),
        (["--cluster", FOUR, "--partition", "dense.*/kernel=columns", "--partition_devices=2"], 4, Partition(COLUMNS, 2)),
        (["--tier=BASIC", "--partition", "dense.*/kernel=columns", "--partition_devices=3"], 3, Partition(COLUMNS, 3)),
        (
            ["--cluster", "neuralnet { partition_dim: 1 } " + FOUR, "--partition_devices=2"],
            4,
            Partition((("(kernel|bias|embeddings)", -1),), 2),
        ),
    ],
)
def test_flags_give_a_cluster_its_partition(words, slots, partition):
    cluster = flagged(*words)
    assert cluster.partition == partition and cluster.slots == slots
    assert choose(cluster).strategy == "mirrored"
    assert choose(cluster).rule.endswith(f"data parallel); each replica is sharded over {partition.devices or slots} devices")


def test_several_tasks_get_the_devices_of_a_replica_each():
    cluster = flagged("--cluster", '{"worker": 2}', "--partition", "k=0", "--partition_devices=2")
    assert [task.slots for task in cluster.tasks] == [2, 2] and cluster.worker_groups == ((0, 1, 2, 3),)
    assert choose(cluster).strategy == "multi_worker_mirrored"


@pytest.mark.parametrize(
    ("cluster", "words", "devices", "slots"),
    [
        ('{"worker": 2}', ["--partition_tasks=2"], 2, 1),
        ('{"worker": 4}', ["--partition_tasks=2", "--partition_devices=4"], 4, 2),
        ("cluster { nworkers_per_group: 4 nworkers_per_procs: 2 }", ["--partition_tasks=2"], 4, 2),
        ("cluster { nworkers_per_group: 4 nworkers_per_procs: 2 }", ["--partition_devices=4"], 4, 2),
    ],
)
def test_a_replica_has_the_devices_of_several_tasks(cluster, words, devices, slots):
    found = flagged("--cluster", cluster, "--partition", "k=rows", *words)
    assert found.partition.devices == devices and {task.slots for task in found.tasks} == {slots}
    assert choose(found).strategy == "multi_worker_mirrored"


@pytest.mark.parametrize(
    ("words", "devices", "slots", "groups"),
    [
        (["--cluster", '{"ps": 1, "worker": 2}', "--partition_devices=2"], 2, [2, 2], ((0, 1), (2, 3))),
        (["--cluster", SINGA_GROUPS], 6, [3] * 4, (tuple(range(6)), tuple(range(6, 12)))),
        (["--cluster", SINGA_GROUPS, "--partition_devices=2"], 2, [3] * 4, (tuple(range(6)), tuple(range(6, 12)))),
    ],
)
@pytest.mark.parametrize("strategy", ["hogwild", "parameter_server"])
def test_with_ps_the_workers_of_a_group_make_up_replicas(words, devices, slots, groups, strategy):
    cluster = flagged(*words, "--partition", "k=rows", "--strategy", strategy)
    assert (cluster.replica_slots, cluster.worker_groups) == (devices, groups)
    assert [task.slots for task in cluster.job("worker")] == slots and all(task.slots == 1 for task in cluster.job("ps"))
    assert choose(cluster).strategy == strategy
    assert choose(cluster).rule == f"--strategy {strategy}; each replica is sharded over {devices} devices"


@pytest.mark.parametrize("described", ['{"chief": 1, "worker": 2}', '{"chief": 1, "worker": 2, "ps": 1}'])
def test_a_chief_that_only_coordinates_keeps_its_slot(described):
    cluster = flagged("--cluster", described, "--partition", "k=rows", "--partition_devices=2", "--strategy=hogwild")
    assert [task.slots for task in (*cluster.job("chief"), *cluster.job("worker"))] == [1, 2, 2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tier=BASIC", "--partition", "kernel"], "--partition: 'kernel' has no axis; expected a pattern"),
        (
            ["--tier=BASIC", "--partition", "kernel=colums"],
            "'colums' is not an axis; expected columns, rows, none or the number of an axis; did you mean columns?",
        ),
        (["--tier=BASIC", "--partition", "kernel=99"], "'99' is not an axis"),
        (["--tier=BASIC", "--partition", "(=rows"], "'(' is not a regular expression"),
        (["--tier=BASIC", "--partition", "=rows"], "'' is not a pattern"),
        (["--tier=BASIC", "--partition", ""], "'' has no axis"),
        (["--tier=BASIC", "--partition", "k=rows", "--partition_devices=1"], "--partition_devices: '1' is not right"),
        (["--tier=BASIC", "--partition_devices=2"], "--partition_devices: it goes with --partition"),
        (["--cluster", '{"worker": 2}', "--partition_tasks=2"], "--partition_tasks: it goes with --partition"),
        (["--partition", "k=rows"], "--partition: no cluster is described"),
        (
            ["--tier=BASIC", "--partition", "k=rows"],
            "partition: a replica has 2 devices, and chief:0 has 1 of the devices of 1 tasks",
        ),
        (
            ["--cluster", FOUR, "--partition", "k=rows", "--partition_devices=3"],
            "has 3 devices, and worker:0 has 4",
        ),
        (
            ["--cluster", '{"worker": 3}', "--partition", "k=rows", "--partition_tasks=2"],
            "--partition_tasks: 2 is not right; expected a number that divides the 3 tasks that train",
        ),
        (
            ["--cluster", '{"worker": 2}', "--partition", "k=rows", "--partition_tasks=2", "--partition_devices=3"],
            "--partition_tasks: a replica of 3 devices cannot have those of 2 tasks, which have 1 slots each",
        ),
        (
            ["--cluster", '{"worker": 2, "ps": 1}', "--partition", "k=rows", "--partition_tasks=2"],
            "--partition_tasks: with ps and under hogwild the devices of a replica are those of a worker group",
        ),
        (
            ["--cluster", '{"worker": 2}', "--evaluator", "--partition", "k=rows", "--partition_tasks=2"],
            "partition: the chief writes the evaluator's checkpoints alone",
        ),
        (
            ["--tier=STANDARD_1", "--partition", "k=rows"],
            "has 2 devices, all of one worker group, and worker group 0 has 1 workers",
        ),
        (
            ["--cluster", SINGA_GROUPS, "--strategy=hogwild", "--partition", "k=rows", "--partition_devices=4"],
            "has 4 devices, all of one worker group, and worker group 0 has 6 workers",
        ),
        (
            ["--cluster", SINGA_GROUPS, "--strategy=hogwild", "--partition", "k=rows", "--sync_period=4", "--fragments=2"],
            "fragments: a partitioned model is synchronized as a whole",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(words, message, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(ClusterError) as caught:
        choose(flagged(*words))
    assert message in str(caught.value) and str(caught.value).isprintable()


def test_a_number_of_devices_without_variables_is_refused():
    with pytest.raises(ClusterError, match="a number of devices, but no layouts; name the variables to shard"):
        Partition(devices=2)


LAYER = 'layer {{ name: "{}" type: kInnerProduct {} param {{ name: "w" }} }}'
NET = " ".join(
    [
        'layer { name: "data" partition_dim: 1 }',
        LAYER.format("conv1", "partition_dim: 0"),
        LAYER.format("fc.1", "partition_dim: 1"),
        LAYER.format("fc2", ""),
        LAYER.format("none", "partition_dim: -1"),
    ]
)


@pytest.mark.parametrize(
    ("net", "layouts"),
    [
        ("", ()),
        ("partition_dim: 0", ()),
        ("partition_dim: 1", (("(kernel|bias|embeddings)", -1),)),
        (NET, ((r"fc\.1/(kernel|bias|embeddings)", -1),)),
        (NET + " partition_dim: 1", ((r"fc\.1/(kernel|bias|embeddings)", -1), ("fc2/(kernel|bias|embeddings)", -1))),
        ("# partition_dim: 1\n layer { name: 'a' param {} }", ()),
    ],
)
def test_singa_says_it_with_partition_dim(net, layouts):
    cluster = read(f"neuralnet {{ {net} }} {FOUR}")
    assert cluster.partition == (Partition(layouts, 4) if layouts else Partition())
    assert read(write.write(cluster)) == cluster
    alone = read(f"neuralnet {{ {net} }} cluster {{ nworkers_per_group: 1 }}")
    assert alone.partition == Partition()


@pytest.mark.parametrize(
    ("net", "message"),
    [
        ("partition_dim: 2", "neuralnet.partition_dim: '2' is no dimension; expected 0 for the batch, 1 for the features"),
        ("\nlayer { name: 'a'\n partition_dim: x param {} }", "<text>:3: neuralnet.layer.partition_dim: 'x' is no dimension"),
        ("partition_dim: 1 partition_dim: 0", "it is given twice"),
        ("layer: [{ partition_dim: 1 }]", "layer is a block"),
        (LAYER.format("a", "partition_dim: 1") + LAYER.format("a", ""), "the layer 'a' has another partition_dim above"),
    ],
)
def test_singa_would_not_take_it(net, message):
    with pytest.raises(ClusterError) as caught:
        read(f"neuralnet {{ {net} }} {FOUR}")
    assert message in str(caught.value)


PARTITIONED = Cluster((Task("worker", 0, slots=4),), partition=Partition((*COLUMNS, ("head/.*", None), ("x", 3)), 2))


def test_tf_config_carries_it():
    config = PARTITIONED.tf_config("worker", 0)
    assert config["tfdist"]["partition"] == {
        "layouts": [["dense.*/kernel", "columns"], ["head/.*", "none"], ["x", "3"]],
        "devices": 2,
    }
    assert read(config) == PARTITIONED.addressed()


@pytest.mark.parametrize(
    "value",
    [
        *([], 1, {}, {"layouts": []}, {"layouts": [["k"]]}, {"layouts": [["k", "colums"]]}, {"layouts": [["(", "rows"]]}),
        *({"layouts": [[1, "rows"]]}, {"layouts": [["k", "rows"]], "devices": 1}, {"layout": [["k", "rows"]]}),
        *({"layouts": [["k", -1]]}, {"layouts": [["k", "rows"]], "devices": True}),
    ],
)
def test_a_bad_partition_in_tf_config_is_refused(value):
    with pytest.raises(ClusterError, match=r"tfdist\.partition"):
        read({"cluster": {"worker": ["a:1"]}, "tfdist": {"partition": value}})


@pytest.mark.parametrize("dialect", [name for name in writers() if name != "tf_config"])
def test_a_language_carries_it_or_says_that_it_has_no_words(dialect):
    tasks = (Task("chief", 0),) if dialect in ("cloudml", "vertex", "tfjob") else (Task("worker", 0), Task("worker", 1))
    cluster = Cluster(tasks, partition=Partition(COLUMNS, 2))
    assert writers()[dialect].write(dataclasses.replace(cluster, partition=Partition()))
    if dialect in ("slurm", "kubernetes"):  # They contain TF_CONFIG.
        assert read(writers()[dialect].write(cluster)).partition == cluster.partition
        return
    with pytest.raises(ClusterError, match=r"no words for .*partition"):
        writers()[dialect].write(cluster)


@pytest.mark.parametrize(
    "fields", [{"layouts": (("(", 0),)}, {"layouts": (("k", 9),)}, {"devices": 2}, {"layouts": COLUMNS, "devices": 1}]
)
def test_a_partition_checks_itself(fields):
    with pytest.raises(ClusterError):
        Partition(**fields)
