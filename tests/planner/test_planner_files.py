"""Files and texts of the planner: measurements, prices, links, tables, clusters."""

import dataclasses
import json
import os

import pytest
from absl import flags
from costs_of import measured

from tfdist.choice import choose
from tfdist.dialects import read as read_cluster
from tfdist.dialects.parsing import document
from tfdist.errors import ClusterError
from tfdist.flags import define_flags
from tfdist.partition import Partition
from tfdist.planner import chart, link, measurement, prices, table
from tfdist.planner.costs import Costs
from tfdist.planner.described import cluster_of, option_of, option_with, without_strategy
from tfdist.planner.option import Hardware, Option
from tfdist.planner.predict import predict
from tfdist.planner.prices import Machines
from tfdist.synchronization import Synchronization


def test_a_measurement_survives_its_file(tmp_path):
    measurement.save(measured(), str(tmp_path / "m.json"))
    assert measurement.read(str(tmp_path / "m.json")) == measured()
    measurement.save(measured(epoch=100), str(tmp_path / "m.json"))
    assert measurement.read(str(tmp_path / "m.json")).epoch == 100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 7}, "no measurement of version 1"),
        ({"batch": 0}, "batch is 0, which is too small"),
        ({"batch": None}, "batch is None, and not a number"),
        ({"cores": True}, "cores is True"),
        ({"runs": []}, "no variables, or no run of one process"),
        ({"variables": []}, "no variables"),
        ({"variables": [{"name": "x"}]}, "the field 'shape' is missing"),
        ({"variables": [{"name": "x", "shape": "8", "size": 4, "is_table": False}]}, "shape is '8', and not a list"),
        ({"variables": [{"name": "x", "shape": [-8], "size": 4, "is_table": False}]}, "shape is [-8], and not a list"),
        ({"runs": [7]}, "no measurement"),
        ({"link": -1}, "link is -1"),
    ],
)
def test_a_bad_measurement_is_refused_with_a_sentence(change, message, tmp_path):
    values = json.loads(json.dumps(measured().as_json())) | change
    (tmp_path / "m.json").write_text(json.dumps(values))
    with pytest.raises(ClusterError, match=r"m\.json: ") as error:
        measurement.read(str(tmp_path / "m.json"))
    assert message in str(error.value)


def test_files_that_are_no_measurement(tmp_path, monkeypatch):
    with pytest.raises(ClusterError, match="none: there is no such file"):
        measurement.read(str(tmp_path / "none"))
    os.mkfifo(tmp_path / "pipe")  # Nobody writes into it.
    monkeypatch.setattr(document, "PIPE_SECONDS", 0.2)
    for read in (measurement.read, prices.read):
        with pytest.raises(ClusterError, match="nothing has come through this pipe"):
            read(str(tmp_path / "pipe"))
    (tmp_path / "m.json").write_text("{")
    with pytest.raises(ClusterError, match="this is no JSON"):
        measurement.read(str(tmp_path / "m.json"))


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("1gbit", 125e6),
        ("100Mbit", 12.5e6),
        ("10 gbps", 1.25e9),
        ("125MB", 125e6),
        ("125MBps", 125e6),
        ("1 GB/s", 1e9),
        ("2.5gbit/s", 312.5e6),
    ],
)
def test_rates_of_links(text, rate):
    assert link.bytes_per_second(text) == pytest.approx(rate)


@pytest.mark.parametrize("text", ["", "fast", "0gbit", "-1gbit", "1", "1gbit2", "1e9bit"])
def test_bad_rates(text):
    with pytest.raises(ClusterError, match="is not the rate of a link; expected for example 1gbit"):
        link.bytes_per_second(text)


def test_shown_rates():
    assert [link.shown(rate) for rate in (125e6, 12.5e6, 1e3, 10)] == ["1 Gbit/s", "100 Mbit/s", "8 kbit/s", "80 bit/s"]


def test_prices_by_either_name_of_a_machine(tmp_path):
    (tmp_path / "p.yaml").write_text("n1-standard-4: 0.2\nn1-highcpu-8: 0.3\n")
    found = prices.read(str(tmp_path / "p.yaml"))
    machines = Machines(worker="complex_model_s", ps="standard", chief="n1-standard-4")
    assert found.per_hour(Option("parameter_server", 4, 3, chief_apart=True), machines) == pytest.approx(
        4 * 0.3 + 3 * 0.2 + 0.2
    )
    assert found.per_hour(Option("parameter_server", 4, 3, colocated=True), machines) == pytest.approx(4 * 0.3)
    assert found.per_hour(Option("default", 1), machines) == pytest.approx(0.3)
    described = dataclasses.replace(machines, has_chief=True)
    assert found.per_hour(Option("default", 1), described) == found.per_hour(Option("mirrored", 4), described) == 0.2
    assert found.per_hour(Option("multi_worker_mirrored", 4), described) == pytest.approx(3 * 0.3 + 0.2)
    assert found.per_hour(Option("multi_worker_mirrored", 4), machines) == pytest.approx(4 * 0.3)
    with pytest.raises(ClusterError, match="there is no price of n1-highmem-8"):
        found.per_hour(Option("default", 1), Machines(worker="n1-highmem-8"))


@pytest.mark.parametrize("text", ['{"n1-standard-4": 0.2, "n1-standard-4": 5}', "n1-standard-4: 0.2\nn1-standard-4: 5\n"])
def test_two_prices_of_a_machine(text, tmp_path):
    (tmp_path / "p").write_text(text)
    with pytest.raises(ClusterError, match="the price of n1-standard-4 is given twice; keep one of them"):
        prices.read(str(tmp_path / "p"))


@pytest.mark.parametrize("text", ["[]", "{}", '{"n1-standard-4": "cheap"}', '{"n1-standard-4": -1}', "a: [", '{"a": true}'])
def test_bad_prices(text, tmp_path):
    (tmp_path / "p").write_text(text)
    with pytest.raises(ClusterError, match=r"expected|neither JSON nor YAML"):
        prices.read(str(tmp_path / "p"))


def test_cores_of_machine_types():
    assert [prices.cores(name) for name in ("n1-highcpu-8", "standard", "complex_model_l", "laptop")] == [8, 4, 32, None]
    assert prices.cores("n1-standard-16+2xNVIDIA_TESLA_T4") == 16 and prices.cores("+2xNVIDIA_TESLA_T4") is None


def predictions():
    options = [Option("default", 1), Option("parameter_server", 4, 2), Option("hogwild", 4, 2, True, 16)]
    return [predict(Costs(measured()), Hardware(1e8, 1), option) for option in options]


def test_the_table_marks_the_first_and_has_costs():
    found = predictions()
    lines = table.text(found, None).splitlines()
    assert lines[1].startswith("*  one process ")
    assert "2 beside workers" in lines[3]
    assert len(lines) == 4
    with_costs = table.text(found, lambda option: float(option.machines)).splitlines()
    assert with_costs[0].endswith("per million examples")
    values = table.as_json(measured(), found, lambda option: 3.0)
    assert [each["recommended"] for each in values["options"]] == [True, False, False]
    assert values["options"][1]["cost_per_hour"] == 3.0
    json.dumps(values)


def test_the_option_of_the_description_is_marked_in_the_table_in_json_and_in_the_chart():
    found = predictions()
    mine = found[1].option
    for cost in (None, lambda option: 2.0):
        lines = table.text(found, cost, mine).splitlines()
        assert [line.endswith("  described") for line in lines] == [False, False, True, False]
    assert [each["described"] for each in table.as_json(measured(), found, None, mine)["options"]] == [False, True, False]
    assert chart.write(found, "title", mine).count("parameter_server, 4 workers, 2 ps apart (described)<") == 1


def test_the_chart_is_an_svg_with_a_bar_for_each():
    import xml.etree.ElementTree as ET

    root = ET.fromstring(chart.write(predictions(), "a <title>"))
    bars = [each for each in root.iter("{http://www.w3.org/2000/svg}rect") if each.get("rx")]
    assert len(bars) == 3


JOINING = {"cluster": {"chief": ["a:1"], "worker": ["a:2", "b:1", "c:1"], "ps": ["d:1"]}, "tfdist": {"min_workers": 2}}


@pytest.mark.parametrize(
    "description",
    ["STANDARD_1", "BASIC", {"worker": 4}, {"chief": 1, "worker": 3}, {"worker": 3, "ps": 2}, {"worker": 1}, JOINING],
)
def test_the_option_of_a_description_gives_the_description(description):
    cluster = read_cluster(description)
    option = option_of(cluster)
    assert option is not None
    again = cluster_of(option, cluster, Machines.of(cluster), cluster.synchronization)
    assert again == cluster
    assert option_of(again) == option


def test_a_cluster_keeps_the_workers_with_which_its_training_begins_where_others_may_join():
    joining = read_cluster(JOINING)

    def begins(option):
        return cluster_of(option, joining, Machines(), Synchronization()).min_workers

    assert begins(Option("hogwild", 5, 1, period=16, chief_apart=True)) == 2
    assert begins(Option("parameter_server", 1, 1, chief_apart=True)) == 1
    assert begins(Option("multi_worker_mirrored", 4)) is None


def test_a_partitioned_model_is_no_option_and_keeps_its_partition():
    whole = read_cluster("cluster { nworkers_per_group: 2 nworkers_per_procs: 2 }")
    sharded = dataclasses.replace(whole, partition=Partition((("kernel", -2),), 2))
    assert option_of(whole) is not None and option_of(sharded) is None
    again = cluster_of(Option("mirrored", 2), sharded, Machines(), Synchronization())
    assert again.partition == sharded.partition


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((None, None, Synchronization()), Option("parameter_server", 4, 3, chief_apart=True)),
        (
            (None, None, Synchronization(compression="bf16")),
            Option("parameter_server", 4, 3, compression="bf16", chief_apart=True),
        ),
        ((None, None, Synchronization(compression="int8")), Option("parameter_server", 4, 3, chief_apart=True)),
        (
            ("hogwild", 32, Synchronization(compression="int8", fragments=4)),
            Option("hogwild", 4, 3, False, 32, None, 4, "int8", chief_apart=True),
        ),
        (("hogwild", None, Synchronization()), Option("hogwild", 4, 3, period=16, chief_apart=True)),
        (("hogwild", 15, Synchronization(fragments=4)), None),
        (("multi_worker_mirrored", None, Synchronization()), Option("multi_worker_mirrored", 5)),
    ],
)
def test_the_option_of_a_description_with_the_flags(given, expected):
    assert option_with(read_cluster("STANDARD_1"), *given) == expected


def test_hogwild_without_ps_is_no_option():
    assert option_of(dataclasses.replace(read_cluster({"worker": 4}), strategy="hogwild")) is None


def test_a_cluster_keeps_the_hosts_and_machines_of_the_description():
    cluster = cluster_of(
        Option("hogwild", 6, 2, period=64, chief_apart=True), read_cluster("STANDARD_1"), Machines(), Synchronization()
    )
    assert cluster.describe() == "1 chief, 6 workers, 2 ps"
    assert (cluster.strategy, cluster.sync_period) == ("hogwild", 64)
    assert {task.machine_type for task in cluster.job("worker")[:4]} == {"n1-highcpu-8"}
    hosts = read_cluster({"cluster": {"worker": ["a:1", "b:1"], "ps": ["c:1"]}})
    together = cluster_of(Option("parameter_server", 2, 2, colocated=True), hosts, Machines(), Synchronization())
    assert [task.host for task in together.job("ps")] == ["a", "b"]
    assert option_of(together) == Option("parameter_server", 2, 2, colocated=True)


def test_one_process_has_one_device_also_where_the_description_has_more():
    for described in ("cluster { nworkers_per_group: 4 nworkers_per_procs: 4 }", "srun -n 3 --gpus-per-task=2 python x"):
        cluster = cluster_of(Option("default", 1), read_cluster(described), Machines(), Synchronization())
        assert choose(cluster).strategy == "default"


def test_further_tasks_have_the_devices_of_those_that_are_described():
    described = {"cluster": {"worker": ["a:1", "b:1"]}, "tfdist": {"slots": {"worker": [[2, 2], [2, 2]]}}}
    cluster = cluster_of(Option("hogwild", 3, 1), read_cluster(described), Machines(), Synchronization())
    assert [(task.host, task.slots, task.gpus) for task in cluster.job("worker")] == [("a", 2, 2), ("b", 2, 2), (None, 2, 2)]
    assert [(task.host, task.slots, task.gpus) for task in cluster.job("ps")] == [(None, 1, 0)]


def test_flags_in_place_of_words_that_a_language_lacks_are_read_as_they_are_meant():
    options = Synchronization(adaptive=True, average_momentum=False, weights="examples")
    cluster = dataclasses.replace(read_cluster("STANDARD_1"), strategy="hogwild", sync_period=8, synchronization=options)
    _, text = without_strategy(cluster)
    values = flags.FlagValues()
    define_flags(values)
    assert values(["train.py", *text.split()]) == ["train.py"]
    assert (values.strategy, values.sync_period, values.adaptive, values.average_momentum) == ("hogwild", 8, True, False)
    assert values.synchronization_weights == "examples"
