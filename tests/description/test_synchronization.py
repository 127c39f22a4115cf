"""Options of `Synchronization`: valid values and valid combinations."""

import dataclasses
import json
import math
import re

import pytest
from described_hogwild import PS, from_flags, hogwild

import tfdist
from tfdist.choice import choose
from tfdist.errors import ClusterError
from tfdist.flags import HOGWILD_FLAGS
from tfdist.synchronization import DEFAULTS, Synchronization


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)


# Values.


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            {"outer": "nestrov"},
            "outer: 'nestrov' is not one of average, nesterov, delayed_nesterov, elastic, sum; did you mean nesterov?",
        ),
        ({"topology": None}, "topology: None is not one of"),
        ({"topology": "star"}, "'star' is not one of global, ring, pair"),
        ({"compression": "int2"}, "did you mean int8?"),
        ({"compression": 8}, "compression: 8 is not one of float32, bf16, int8, int4"),
        ({"weights": "samples"}, "is not one of groups, examples"),
        ({"outer_learning_rate": 0}, "0 is not right; expected a number above 0"),
        ({"outer_learning_rate": math.nan}, "nan is not right"),
        ({"outer_learning_rate": math.inf}, "inf is not right"),
        ({"outer_learning_rate": True}, "True is not right"),
        ({"outer_momentum": 1.0}, "1.0 is not right; expected a number from 0 to below 1"),
        ({"elastic_rate": 1.5}, "expected a number above 0 and at most 1"),
        ({"elastic_rate": "0.1"}, "'0.1' is not right"),
        ({"fragments": 0}, "expected a whole number from 1"),
        ({"fragments": 2.0}, "2.0 is not right"),
        ({"adaptive": 1}, "1 is not right; expected true or false"),
        ({"average_momentum": 1}, "1 is not right; expected true or false"),
        ({"adaptive": []}, "a list is not right; expected true or false"),
        ({"delay": -1}, "-1 is not right; expected a whole number from 0 to 65536"),
        ({"delay": True}, "True is not right; expected a whole number from 0 to 65536"),
        ({"quorum": 0}, "0 is not right; expected a whole number from 1"),
        ({"grace": -0.5}, "-0.5 is not right; expected a number of sync periods from 0"),
        ({"grace": "4"}, "'4' is not right"),
    ],
)
def test_invalid_values_are_refused(option, message):
    with pytest.raises(ClusterError) as caught:
        Synchronization(**option)
    assert message in str(caught.value) and str(caught.value).startswith(f"Synchronization: {next(iter(option))}: ")


def test_non_default_returns_the_options_that_differ_from_their_defaults():
    assert Synchronization().non_default() == {}
    assert Synchronization(outer=None, fragments=4, delay=0).non_default() == {"fragments": 4, "delay": 0}
    assert Synchronization(outer="average", grace=4.0).non_default() == {"outer": "average", "grace": 4.0}
    assert list(DEFAULTS) == [
        {"synchronization_weights": "weights"}.get(name, name) for name in HOGWILD_FLAGS if name != "sync_period"
    ]


def test_the_help_of_every_option_says_its_default():
    assert [name for name, text in HOGWILD_FLAGS.items() if "Default: " not in text] == []


@pytest.mark.parametrize(
    ("options", "inner", "groups", "rates"),
    [
        ({}, "AdamW", 2, (0.7, 0.5)),
        ({}, "AdamW", 1, (1.0, 0.0)),
        ({"topology": "ring"}, "SGD", 8, (1.0, 0.0)),
        ({"outer": "average"}, "AdamW", 2, (1.0, 0.0)),
        ({"outer": "average", "outer_learning_rate": 0.5}, "SGD", 8, (0.5, 0.0)),
        ({"outer": "nesterov"}, "AdamW", 2, (0.7, 0.5)),
        ({"outer": "nesterov"}, "adam", 16, (0.7, 0.5)),
        ({"outer": "nesterov"}, "SGD", 2, (0.5, 0.5)),
        ({"outer": "nesterov"}, "SGD", 3, (0.5, 0.5)),
        ({"outer": "nesterov"}, "SGD", 4, (0.7, 0.3)),
        ({"outer": "nesterov"}, "SGD", 7, (0.7, 0.3)),
        ({"outer": "delayed_nesterov"}, "SGD", 7, (0.5, 0.5)),
        ({"outer": "nesterov"}, "SGD", 8, (0.7, 0.5)),
        ({"outer": "delayed_nesterov"}, "Nadam", 8, (0.7, 0.5)),
        ({"outer": "delayed_nesterov"}, "RMSprop", 8, (1.0, 0.3)),
        ({"outer": "delayed_nesterov"}, "RMSprop", 4, (0.5, 0.5)),
        ({"outer": "delayed_nesterov", "outer_momentum": 0.0}, "AdamW", 4, (0.7, 0.0)),
        ({"outer": "nesterov", "outer_learning_rate": 0.4}, "AdamW", 4, (0.4, 0.5)),
    ],
)
def test_outer_rates_default_by_outer_optimizer_inner_optimizer_and_number_of_groups(options, inner, groups, rates):
    assert Synchronization(**options).outer_rates(inner, groups) == rates


@pytest.mark.parametrize(
    ("options", "inner", "groups", "farthest"),
    [
        ({}, "SGD", 4, 3.5),
        ({"outer_learning_rate": 0.5}, "RMSprop", 8, 3.5),
        ({"outer_momentum": 0.5}, "SGD", 8, None),
        ({}, "SGD", 3, None),
        ({}, "AdamW", 8, 3.5),
        ({}, "Adam", 2, 3.5),
        ({"outer_momentum": 0.8}, "Adam", 2, None),
        ({}, "Adam", 1, None),
        ({}, "SGD", 1, None),
        ({"outer": "average"}, "SGD", 8, None),
        ({"outer": "delayed_nesterov"}, "SGD", 8, None),
        ({"topology": "pair"}, "SGD", 8, None),
    ],
)
def test_the_outer_momentum_follows_the_learning_rate_if_it_is_not_given(options, inner, groups, farthest):
    assert Synchronization(**options).farthest(inner, groups) == farthest


@pytest.mark.parametrize(
    ("options", "groups", "outer"),
    [
        ({}, 2, "nesterov"),
        ({}, None, "nesterov"),
        ({}, 1, "average"),
        ({"grace": 2.0}, 1, "nesterov"),
        ({"topology": "ring"}, 4, "average"),
        ({"outer": "elastic"}, 4, "elastic"),
        ({"outer": "average"}, 4, "average"),
    ],
)
def test_the_outer_optimizer_defaults_by_topology_and_number_of_groups(options, groups, outer):
    options = Synchronization(**options)
    assert options.resolved(groups) == dataclasses.replace(options, outer=outer)


def test_the_default_elastic_rate_is_divided_by_the_number_of_groups():
    assert Synchronization(outer="elastic").elastic_rate_of(9) == pytest.approx(0.1)
    assert Synchronization(outer="elastic", elastic_rate=0.25).elastic_rate_of(9) == 0.25


# Combinations.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"elastic_rate": 0.1}, "elastic_rate: it is for outer elastic, and outer is nesterov"),
        ({"outer": "average", "quorum": 2}, "quorum: it is for outer nesterov, and outer is average; average has no rounds"),
        ({"topology": "ring", "grace": 2.0}, "grace: it is for outer nesterov, and outer is average"),
        ({"delay": 5, "fragments": 2}, "delay: 5 updates are more than the 4 between two synchronizations"),
        (
            {"outer": "elastic", "outer_learning_rate": 0.1},
            "outer_learning_rate: it is for outer average, nesterov or delayed_nesterov",
        ),
        ({"outer": "sum", "outer_learning_rate": 0.1}, "sum adds progress as it is"),
        (
            {"outer": "average", "outer_momentum": 0.9},
            "outer_momentum: outer average has no momentum; use outer nesterov or delayed_nesterov",
        ),
        ({"outer": "sum", "outer_momentum": 0.9}, "outer sum has no momentum"),
        ({"outer": "sum", "adaptive": True}, "adaptive: outer sum"),
        ({"outer": "sum", "weights": "examples"}, "outer sum weighs all groups alike"),
        ({"outer": "elastic", "weights": "examples"}, "outer elastic weighs all groups alike"),
        ({"topology": "ring", "weights": "examples"}, "topology ring weighs all groups alike"),
        ({"outer": "elastic", "compression": "int8"}, "compression: outer elastic sends the parameters themselves"),
        ({"topology": "pair", "compression": "bf16"}, "compression: a pair sends the parameters themselves"),
        (
            {"topology": "ring", "outer": "nesterov"},
            "topology: outer nesterov needs global parameters, which a ring does not have",
        ),
        ({"topology": "ring", "outer": "elastic"}, "topology: outer elastic needs global parameters"),
        ({"topology": "pair", "outer_learning_rate": 0.5}, "outer_learning_rate: a pair takes the mean of parameters"),
        ({"fragments": 3}, "fragments: 3 fragments do not divide the sync period of 8"),
        ({"fragments": 16}, "fragments: 16 fragments do not divide the sync period of 8"),
        ({"longest_period": 4}, "longest_period: 4 updates are less than the sync period, 8"),
        ({"longest_period": 16, "delay": 1}, "longest_period: the period follows from measured times"),
        ({"longest_period": 16, "adaptive": True}, "longest_period: adaptive chooses the period of each group"),
        ({"longest_period": 16, "fragments": 8}, "longest_period: groups synchronize with every update"),
        ({"adaptive": True, "fragments": 2}, "adaptive: it changes the period in which fragments take turns"),
    ],
)
def test_options_that_exclude_each_other_are_refused_with_the_reason(options, message):
    cluster = hogwild(synchronization=Synchronization(**options))
    with pytest.raises(ClusterError) as caught:
        choose(cluster)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        *({"outer": outer} for outer in ("average", "nesterov", "delayed_nesterov", "elastic", "sum")),
        *({"outer": outer, "compression": "int4"} for outer in ("average", "nesterov", "delayed_nesterov", "sum")),
        {"topology": "ring"},
        {"quorum": 3, "grace": 0.5, "outer_momentum": 0.4},
        {"topology": "pair", "fragments": 4, "delay": 0},
        {"outer": "nesterov", "outer_learning_rate": 0.7, "outer_momentum": 0.9, "adaptive": True, "weights": "examples"},
        {"average_momentum": True, "compression": "bf16", "fragments": 4},
        {"outer": "elastic", "compression": "float32"},
        {"outer": "elastic", "elastic_rate": 0.1, "fragments": 8},
    ],
    ids=str,
)
def test_options_that_go_together_are_accepted(options):
    assert choose(hogwild(synchronization=Synchronization(**options))).strategy == "hogwild"


def test_a_ring_needs_several_server_groups():
    with pytest.raises(ClusterError, match="a ring is between server groups, and this cluster has 1"):
        choose(hogwild("STANDARD_1", synchronization=Synchronization(topology="ring")))
    view = {"cluster": {"worker": {"3": "a:1"}, "ps": ["b:1"]}, "task": {"type": "worker", "index": 3}}
    choose(hogwild(view, synchronization=Synchronization(topology="ring")))  # A partial view does not show all server groups.


def test_a_period_of_one_update_cannot_be_shortened():
    with pytest.raises(ClusterError, match="1 cannot be shortened"):
        choose(hogwild(sync_period=1, synchronization=Synchronization(adaptive=True)))


def test_other_strategies_refuse_the_options():
    cluster = dataclasses.replace(tfdist.read(PS), synchronization=Synchronization(outer="nesterov"))
    with pytest.raises(
        ClusterError, match=r"^<dict>: outer: it is an option of hogwild, and this cluster means parameter_server: "
    ):
        choose(cluster)


def test_parameter_server_takes_bf16_and_says_so():
    for cluster in (
        from_flags("--tier", "STANDARD_1", "--compression=bf16"),
        dataclasses.replace(tfdist.read(PS), synchronization=Synchronization(compression="bf16")),
    ):
        again = tfdist.read(json.dumps(cluster.tf_config("worker", 0)))
        assert again.synchronization == Synchronization(compression="bf16")
        choice = choose(again)
        assert choice.strategy == "parameter_server"
        assert choice.rule.endswith("; parameters and gradients travel as bf16")
    assert choose(from_flags("--tier", "STANDARD_1", "--compression=float32")) == choose(from_flags("--tier", "STANDARD_1"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--compression=int8"], "--compression: parameter_server sends float32 or bf16, because nothing makes up for the "),
        (["--compression=bf8"], "--compression: 'bf8' is not one of float32, bf16, int8, int4"),
        (["--compression=bf16", "--delay=2"], "--delay: it is an option of hogwild, and this cluster means parameter_server"),
        (["--compression=bf16", "--strategy=multi_worker_mirrored"], "--compression: it is an option of hogwild"),
    ],
)
def test_compressions_that_other_strategies_do_not_have_are_refused(arguments, message):
    with pytest.raises(ClusterError, match=re.escape(message)):
        choose(from_flags("--tier", "STANDARD_1", *arguments))


def test_compression_of_a_partitioned_model_is_refused_under_parameter_server(tmp_path):
    (tmp_path / "job.conf").write_text("cluster { nworkers_per_group: 2 nservers_per_group: 1 server_worker_separate: true }")
    arguments = ("--cluster", str(tmp_path / "job.conf"), "--partition=dense/kernel=columns")
    assert choose(from_flags(*arguments)).strategy == "parameter_server"
    with pytest.raises(ClusterError, match="compression: the shards of a partitioned model travel as float32"):
        choose(from_flags(*arguments, "--compression=bf16"))


def test_options_that_are_probably_mistakes_are_warned_about():
    assert Synchronization().warnings(worker_groups=4) == []
    assert [Synchronization(outer="elastic").warnings(groups) for groups in (0, 4)] == [[], []]  # A view may show no worker.
    (warning,) = Synchronization(outer="sum").warnings(worker_groups=4)
    assert "4 times the learning rate" in warning
    (warning,) = Synchronization(outer="elastic", elastic_rate=0.5).warnings(worker_groups=4)
    assert "0.5 times 4 worker groups is above 1" in warning and "0.225" in warning
    assert Synchronization(outer="sum").warnings(worker_groups=1) == []
