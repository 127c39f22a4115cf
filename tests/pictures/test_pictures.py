"""`--to mermaid`, `--to svg`, `--to tree`: what they show, that it is well-formed, and that the documentation's are up to date."""

import dataclasses
import re
import xml.etree.ElementTree as ET

import pytest
from cluster_strategies import clusters, usual_clusters
from hypothesis import given, settings
from hypothesis import strategies as st
from support_paths import CHECKOUT

from tfdist.choice import choose
from tfdist.cluster import Cluster, Task
from tfdist.dialects import read
from tfdist.errors import ClusterError
from tfdist.partition import Partition
from tfdist.pictures import PICTURES, mermaid, svg, tree
from tfdist.pictures.picture import STATE_COLORS, Picture, picture
from tfdist.synchronization import Synchronization
from tfdist.translate import main

DOCS = CHECKOUT / "docs" / "pictures"
SVG = "{http://www.w3.org/2000/svg}"

FRAMEWORKS = ("sandblaster", "allreduce", "downpour", "hogwild")
"""As in SINGA's documentation."""


def shape(shown: Picture) -> list[tuple[list[str], list[list[str]]]]:
    """The tasks of each server group, and of each worker group that it serves."""
    names = [
        (
            [cell.name for cell in block.server.cells] if block.server else [],
            [[cell.name for cell in group.cells] for group in block.workers],
        )
        for block in shown.blocks
    ]
    return names


@pytest.mark.parametrize(
    ("framework", "expected"),
    [
        ("sandblaster", [(["ps:0", "ps:1"], [["worker:0", "worker:1", "worker:2"]])]),
        ("allreduce", [([], [["worker:0", "worker:1", "worker:2"]])]),
        ("downpour", [(["ps:0", "ps:1"], [["worker:0", "worker:1"], ["worker:2", "worker:3"]])]),
        ("hogwild", [(["ps:0"], [["worker:0"]]), (["ps:1"], [["worker:1"]]), (["ps:2"], [["worker:2"]])]),
    ],
)
def test_the_four_frameworks_look_as_in_singas_figure(framework: str, expected: object) -> None:
    shown = picture(read(DOCS / f"{framework}.conf"))
    assert shape(shown) == expected
    assert (shown.chief is None) == shown.all_reduce == (framework == "allreduce")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_drawings_of_the_documentation_are_what_their_command_prints(
    framework: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["translate", str(DOCS / f"{framework}.conf"), "--to", "svg"]) == 0
    assert (DOCS / f"{framework}.svg").read_text(encoding="utf-8") == capsys.readouterr().out


def test_a_worker_group_goes_to_its_server_group() -> None:
    lines = mermaid.write(read("cluster { nworker_groups: 4 nserver_groups: 2 sync_freq: 8 }")).splitlines()
    arrows = [line.strip() for line in lines if "-->" in line]
    assert arrows == ["w0x0 --> s0", "w0x1 --> s0", "w1x0 --> s1", "w1x1 --> s1", 's0 <-->|"every 8 updates"| s1']


def test_a_chief_that_trains_stands_with_the_workers_and_one_that_does_not_beside_them() -> None:
    tasks = (Task("chief", 0), Task("worker", 0), Task("evaluator", 0))
    together = picture(Cluster(tasks))
    assert (shape(together), together.chief) == ([([], [["chief:0", "worker:0"]])], None)
    served = picture(Cluster((*tasks, Task("ps", 0))))
    assert served.chief is not None and shape(served) == [(["ps:0"], [["worker:0"]])]
    without_ps = picture(Cluster((*tasks, Task("worker", 1)), strategy="hogwild"))
    assert without_ps.chief is not None and shape(without_ps) == [([], [["worker:0"], ["worker:1"]])]
    assert served.evaluators is not None and [cell.name for cell in served.evaluators.cells] == ["evaluator:0"]


def test_a_task_with_workers_of_several_groups_stands_in_each() -> None:
    cluster = Cluster((Task("worker", 0, slots=4), Task("ps", 0)), worker_groups=((0, 1), (2, 3)))
    assert shape(picture(cluster)) == [(["ps:0"], [["worker:0 slots 0, 1"], ["worker:0 slots 2, 3"]])]


def test_tree_by_hosts_where_they_are_given() -> None:
    cluster = read({"cluster": {"worker": ["a:1", "b:1"], "ps": ["a:2"]}, "tfdist": {"slots": {"worker": [[2, 2], [1, 0]]}}})
    assert tree.write(cluster).splitlines()[1:] == [
        "1 chief, 2 workers, 1 ps",
        "├── a",
        "│   ├── chief:0",
        "│   ├── worker:0  port 1, 2 GPUs, worker group 0",
        "│   └── ps:0  port 2",
        "└── b",
        "    └── worker:1  port 1, worker group 1",
    ]


def test_tree_by_groups_where_hosts_are_open() -> None:
    text = tree.write(read("cluster { nworker_groups: 2 nserver_groups: 2 sync_freq: 8 }"))
    assert text.splitlines() == [
        "hogwild: several server groups (Distributed Hogwild)",
        "1 chief, 2 workers, 2 ps; sync period 8; servers on the workers' hosts",
        "├── chief:0",
        "├── server group 0",
        "│   ├── ps:0",
        "│   └── worker group 0",
        "│       └── worker:0",
        "└── server group 1",
        "    ├── ps:1",
        "    └── worker group 1",
        "        └── worker:1",
    ]


@pytest.mark.parametrize("to", PICTURES)
def test_up_to_a_hundred_tasks_all_are_shown_and_of_more_the_number(to: str) -> None:
    def jobs(workers: int) -> Cluster:
        return Cluster((Task("chief", 0), *(Task("worker", n) for n in range(workers)), Task("ps", 0)))

    whole = PICTURES[to](jobs(98))
    assert all(re.search(rf"\bworker:{n}\b", whole) for n in range(98))
    large = PICTURES[to](jobs(9_998))
    assert "9991 more worker groups" in large and "worker:9997" in large
    assert len(large) < len(whole)


@pytest.mark.parametrize("to", PICTURES)
def test_large_groups_and_many_server_groups_are_shortened_too(to: str) -> None:
    many = PICTURES[to](read("cluster { nworker_groups: 3000 nserver_groups: 3000 }"))
    assert "2993 more server groups" in many and "ps:2999" in many and len(many) < 20_000
    hosts = PICTURES[to](read("mpirun -np 4000 -H " + ",".join(f"h{n}:2" for n in range(2000)) + " x"))
    assert ("1993 more hosts" if to == "tree" else "3993 more") in hosts and len(hosts) < 20_000


def inside(element: ET.Element) -> bool:
    """Whether everything is on the paper."""
    width, height = float(element.get("width", 0)), float(element.get("height", 0))
    boxes = element.iter(f"{SVG}rect")
    ends = [
        (sum(float(box.get(k, 0)) for k in ("x", "width")), sum(float(box.get(k, 0)) for k in ("y", "height"))) for box in boxes
    ]
    points = [
        tuple(map(float, pair.split(","))) for line in element.iter(f"{SVG}polyline") for pair in line.get("points", "").split()
    ]
    return all(0 <= x <= width and 0 <= y <= height for x, y in (*ends, *points))


@settings(max_examples=100, deadline=None)
@given(st.one_of(usual_clusters(), clusters()))
def test_every_cluster_has_well_formed_pictures_always_the_same(cluster: Cluster) -> None:
    try:
        choose(cluster)
    except ClusterError:  # A strategy or options that this cluster cannot carry have no picture.
        cluster = dataclasses.replace(cluster, strategy=None, synchronization=Synchronization(), partition=Partition())
    names = {task.name for task in picture(cluster).cluster.tasks}
    drawing = svg.write(cluster)
    root = ET.fromstring(drawing)
    assert inside(root)
    texts = {element.text for element in root.iter(f"{SVG}title")}
    assert names <= {str(text).split()[0] for text in texts}
    chart = mermaid.write(cluster)
    ids = re.findall(r"^ *(?:subgraph )?(\w+)\[\".*\"\](?::::\w+)?$", chart, re.MULTILINE)
    assert len(set(ids)) == len(ids)
    arrows = re.findall(r"^ *(\w+) (?:-->|<-->|-\.->)(?:\|\"[^\"]*\"\|)? (\w+)$", chart, re.MULTILINE)
    assert {end for arrow in arrows for end in arrow} <= set(ids)
    known = r"(---|title: .*|flowchart BT|end|classDef .*|(subgraph )?\w+\[\"[^\"]*\"\](:::\w+)?|\w+ (-->|<-->|-\.->).* \w+)"
    assert all(re.fullmatch(known, line.strip()) for line in chart.splitlines())
    lines = tree.write(cluster)
    assert all(any(re.search(rf"\b{name}\b", line) for line in lines.splitlines()) for name in names)
    assert (drawing, chart, lines) == (svg.write(cluster), mermaid.write(cluster), tree.write(cluster))


def test_the_tasks_of_a_running_job_have_the_colors_of_their_states() -> None:
    cluster = read({"chief": 1, "worker": 2, "ps": 1})
    states = {"chief:0": "running", "worker:0": "failed", "worker:1": "running", "ps:0": "starting"}
    chart, drawing = mermaid.write(cluster, states), svg.write(cluster, states)
    assert chart.count(":::running") == 2 and '["worker:0<br/>failed"]:::failed' in chart
    assert [chart.count(f"classDef {state} ") for state in ("running", "failed", "starting", "lost")] == [1, 1, 1, 0]
    colors = [STATE_COLORS[state] for state in ("running", "failed", "starting", "succeeded")]
    assert [drawing.count(color) for color in colors] == [2, 1, 1, 0]
    assert ":::running" not in mermaid.write(cluster) and ">failed<" not in svg.write(cluster)
