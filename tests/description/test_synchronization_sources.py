"""Where options of `Synchronization` are set: flags, TF_CONFIG, descriptions and the program."""

import dataclasses
import json
from types import SimpleNamespace

import pytest
from described_hogwild import PS, TWO_SERVER_GROUPS, from_flags, hogwild, parsed

import tfdist
from tfdist import create_strategy, process_cluster
from tfdist.dialects.registry import writers
from tfdist.errors import ClusterError
from tfdist.flags import cluster_from_flags
from tfdist.synchronization import DEFAULT_SYNC_PERIOD, Synchronization


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)


def test_tf_config_carries_options_to_every_task():
    options = {"outer": "nesterov", "outer_momentum": 0.5, "fragments": 4, "delay": 0}
    cluster = hogwild(synchronization=Synchronization(**options))
    config = cluster.tf_config("ps", 0)
    assert config["tfdist"]["synchronization"] == options
    assert tfdist.read(json.dumps(config)).synchronization == cluster.synchronization
    assert "synchronization" not in hogwild().tf_config("ps", 0)["tfdist"]


@pytest.mark.parametrize("dialect", ["singa", "cloudml"])
def test_dialects_that_cannot_express_options_refuse_to_write_them(dialect):
    description = "STANDARD_1" if dialect == "cloudml" else TWO_SERVER_GROUPS
    cluster = dataclasses.replace(tfdist.read(description), synchronization=Synchronization(outer="sum"))
    with pytest.raises(ClusterError, match=r"has no words for synchronization"):
        writers()[dialect].write(cluster)


def test_each_flag_overrides_its_option_of_the_description(tmp_path):
    described = hogwild(synchronization=Synchronization(outer="nesterov", fragments=2, delay=0))
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(described.tf_config("chief" if described.job("chief") else "worker", 0)))
    assert from_flags("--cluster", str(path)).synchronization == described.synchronization
    arguments = (
        "--sync_period=12",
        "--outer=delayed_nesterov",
        "--outer_momentum=0.4",
        "--synchronization_weights=examples",
        "--delay=2",
    )
    cluster = from_flags("--cluster", str(path), *arguments)
    assert cluster.sync_period == 12
    assert cluster.synchronization == Synchronization(
        "delayed_nesterov", outer_momentum=0.4, fragments=2, weights="examples", delay=2
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--sync_period=4"],
            "--sync_period: it is an option of hogwild, and this cluster means parameter_server: ps with one",
        ),
        (["--delay=2"], "--delay: it is an option of hogwild"),
        (["--strategy=hogwild", "--sync_period=0"], "--sync_period: 0 is not right; expected a whole number from 1"),
        (["--strategy=hogwild", "--outer=easgd"], "--outer: 'easgd' is not one of average"),
        (
            ["--strategy=hogwild", "--synchronization_weights=group"],
            "--synchronization_weights: 'group' is not one of groups, examples; did you mean groups?",
        ),
        (["--strategy=hogwild", "--elastic_rate=-1"], "--elastic_rate: -1.0 is not right"),
    ],
)
def test_errors_name_the_invalid_flag(arguments, message):
    with pytest.raises(ClusterError) as caught:
        from_flags("--tier=STANDARD_1", *arguments)
    assert str(caught.value).startswith(message)


def test_flags_without_a_cluster_are_refused():
    with pytest.raises(ClusterError, match=r"^--adaptive: .*no cluster is described"):
        cluster_from_flags(parsed("--adaptive"))
    assert cluster_from_flags(parsed()) is None


def test_forced_hogwild_has_a_period_of_16_if_the_description_sets_none(monkeypatch, tmp_path):
    assert DEFAULT_SYNC_PERIOD == 16
    assert from_flags("--tier=STANDARD_1").sync_period == 1
    assert from_flags("--tier=STANDARD_1", "--strategy=hogwild").sync_period == 16
    assert from_flags("--tier=STANDARD_1", "--strategy=hogwild", "--sync_period=1").sync_period == 1
    monkeypatch.setenv("TF_CONFIG", json.dumps(PS))
    assert from_flags("--strategy=hogwild").sync_period == 16
    monkeypatch.setenv("TF_CONFIG", json.dumps(PS | {"tfdist": {"sync_period": 4}}))
    assert from_flags("--strategy=hogwild").sync_period == 4
    monkeypatch.setenv("TF_CONFIG", json.dumps(PS | {"tfdist": {"sync_period": 1}}))
    assert from_flags("--strategy=hogwild").sync_period == 1


@pytest.mark.parametrize(("given", "expected"), [({}, 16), ({"sync_period": 4}, 4), ({"sync_period": 1}, 1)])
def test_hogwild_in_tf_config_has_the_same_period(given, expected):
    cluster = tfdist.read(PS | {"tfdist": {"strategy": "hogwild"} | given})
    assert cluster.sync_period == expected
    assert tfdist.read({"cluster": PS["cluster"], "tfdist": cluster.tf_config("ps", 0)["tfdist"]}).sync_period == expected


@pytest.mark.parametrize("period", [1, 4, 16])
def test_tf_config_keeps_the_period_of_a_program(period):
    cluster = hogwild("STANDARD_1", sync_period=period)
    config = cluster.tf_config("worker", 0)
    assert tfdist.read({key: config[key] for key in ("cluster", "tfdist")}).sync_period == period


@pytest.mark.parametrize("groups", ["nserver_groups: 2", "nserver_groups: 1"])
def test_singas_default_period_of_1_stays(tmp_path, groups):
    path = tmp_path / "job.conf"
    path.write_text(f"cluster {{ nworker_groups: 2 server_worker_separate: true {groups} }}")
    assert from_flags("--cluster", str(path), "--strategy=hogwild").sync_period == 1


def test_a_task_with_the_flags_of_the_launcher_keeps_the_launchers_period(monkeypatch):
    cluster = from_flags("--tier=STANDARD_1", "--strategy=hogwild", "--sync_period=1")
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster.tf_config("worker", 1)))
    assert from_flags("--strategy=hogwild").sync_period == 1


@pytest.fixture
def chosen(monkeypatch):
    """Returns the options for which `tfdist.strategy` chooses a strategy; starts nothing."""

    def call(*arguments, **keywords):
        clusters = []

        class Enough(Exception):
            pass

        def choose_and_stop(cluster):
            clusters.append(cluster)
            raise Enough

        monkeypatch.setattr(create_strategy, "choose", choose_and_stop)
        monkeypatch.setattr(process_cluster, "_strategy_clusters", [])
        monkeypatch.setattr(process_cluster, "prepared", lambda cluster: cluster)
        with pytest.raises(Enough):
            tfdist.strategy(*arguments, **keywords)
        return SimpleNamespace(period=clusters[0].sync_period, options=clusters[0].synchronization)

    return call


def test_flags_and_tf_config_override_the_options_of_the_program(chosen, monkeypatch, tmp_path):
    mine, theirs = Synchronization(outer="elastic"), Synchronization(outer="sum")
    assert chosen("STANDARD_1", synchronization=mine).options == mine
    assert chosen(hogwild(synchronization=theirs), synchronization=mine).options == mine
    flagged = parsed("--tier=STANDARD_1", "--strategy=hogwild", "--outer=sum")
    assert chosen(flagged, synchronization=mine).options == theirs
    assert chosen(parsed("--tier=STANDARD_1"), synchronization=mine).options == mine
    launched = hogwild("STANDARD_1", sync_period=32, synchronization=theirs)
    monkeypatch.setenv("TF_CONFIG", json.dumps(launched.tf_config("worker", 0)))
    for description in (None, "STANDARD_1", hogwild("STANDARD_1", sync_period=4)):
        assert chosen(description, synchronization=mine).options == theirs
        assert chosen(description).period == 32
        further = chosen(description, synchronization=Synchronization(outer="elastic", grace=2.0)).options
        assert further == Synchronization(outer="sum", grace=2.0)  # Each option by itself.
    # The launcher's arguments after the program come last, so they win.
    program = chosen(parsed("--sync_period=8", "--outer=nesterov"))
    assert (program.period, program.options.outer) == (8, "nesterov")


def test_a_period_of_1_that_the_launcher_is_given_wins_like_any_other(chosen, monkeypatch):
    mine = hogwild("STANDARD_1", sync_period=4)
    for given, expected in ((["--sync_period=1"], 1), (["--outer=sum"], 16)):
        cluster = from_flags("--tier=STANDARD_1", "--strategy=hogwild", *given)
        again = tfdist.read({key: value for key, value in cluster.tf_config("chief", 0).items() if key != "task"})
        assert again.sync_period == cluster.sync_period  # An agent on another host reads it, and writes it for the tasks.
        monkeypatch.setenv("TF_CONFIG", json.dumps(again.tf_config("worker", 0)))
        assert chosen(mine).period == expected
    monkeypatch.setenv("TF_CONFIG", json.dumps(hogwild("STANDARD_1", sync_period=16).tf_config("worker", 0)))
    assert chosen(mine).period == 4  # Nobody has given one.


def test_options_that_the_launcher_is_given_win_also_where_they_are_the_defaults(chosen, monkeypatch):
    mine = Synchronization(fragments=4, weights="examples", grace=2.0)
    cluster = from_flags("--tier=STANDARD_1", "--strategy=hogwild", "--fragments=1", "--synchronization_weights=groups")
    again = tfdist.read({key: value for key, value in cluster.tf_config("chief", 0).items() if key != "task"})
    monkeypatch.setenv("TF_CONFIG", json.dumps(again.tf_config("worker", 0)))
    for description in (None, "STANDARD_1", parsed("--tier=STANDARD_1")):
        assert chosen(description, synchronization=mine).options == Synchronization(grace=2.0)
    assert chosen(hogwild("STANDARD_1", synchronization=mine)).options == Synchronization(grace=2.0)
    monkeypatch.setenv("TF_CONFIG", json.dumps(hogwild("STANDARD_1").tf_config("worker", 0)))
    flagged = chosen(parsed("--fragments=1"), synchronization=mine).options  # Flags of the program.
    assert (flagged.fragments, flagged.weights) == (1, "examples")


def test_a_description_in_the_program_counts_if_tf_config_has_no_options(chosen, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", json.dumps(tfdist.read("STANDARD_1").tf_config("worker", 0)))
    found = chosen(hogwild("STANDARD_1", sync_period=4, synchronization=Synchronization(outer="nesterov")))
    assert (found.period, found.options.outer) == (4, "nesterov")


@pytest.mark.parametrize("strategy", ["mirrored", "parameter_server", "hogwld"])
def test_the_place_of_a_bad_strategy_is_the_flag(strategy):
    """Not the description, which is good: a text of `-n 2` was the place."""
    with pytest.raises(ClusterError, match=r"^--strategy: "):
        from_flags("--cluster", '{"worker": 2}', f"--strategy={strategy}")


def test_options_as_a_dict_are_refused_with_what_is_expected():
    with pytest.raises(TypeError, match=r"^synchronization is a tfdist\.Synchronization\(\.\.\.\), not a dict$"):
        tfdist.strategy(PS, synchronization={"outer": "nesterov"})
