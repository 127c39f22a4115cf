"""Draws a flowchart of Mermaid, which GitHub, GitLab and most wikis show (https://mermaid.js.org/syntax/flowchart.html)."""

import itertools
import json
import re
from collections.abc import Mapping

from tfdist.cluster import Cluster
from tfdist.messages import printable
from tfdist.pictures.picture import STATE_COLORS, Cell, Group, picture

_SPECIAL = re.compile(r"[\"#&<>`*\\$]")
_COLORS = {"chief": "#d8ead2", "worker": "#dbe8f8", "ps": "#fbe5cf", "evaluator": "#e6dcf2"}


def write(cluster: Cluster, states: Mapping[str, str] | None = None) -> str:
    """Returns the flowchart, with the states of tasks if they are given.

    Raises:
        ClusterError: if the cluster cannot run the strategy that it forces.
    """
    return _Chart(cluster, states).text()


class _Chart:
    """Collects the lines of a flowchart.

    Ids consist of letters and digits; text of the description is only in quoted labels.
    """

    def __init__(self, cluster: Cluster, states: Mapping[str, str] | None) -> None:
        self.picture = picture(cluster, states)
        self.period = cluster.sync_period
        self.lines = ["flowchart BT"]
        self.nodes = 0
        self.states: set[str] = set()

    def text(self) -> str:
        shown = self.picture
        servers: list[str] = []
        arrows: list[str] = []
        for number, block in enumerate(shown.blocks):
            server = self._group(f"s{number}", block.server) if block.server else None
            workers = [self._group(f"w{number}x{index}", group) for index, group in enumerate(block.workers)]
            if server and workers:
                servers.append(server)
                arrows += [f"{worker} --> {server}" for worker in workers]
        every = "every update" if self.period == 1 else f"every {self.period} updates"
        arrows += [f'{one} <-->|"{every}"| {other}' for one, other in itertools.pairwise(servers)]
        chief = self._group("chief", shown.chief) if shown.chief else None
        evaluators = self._group("evaluator", shown.evaluators) if shown.evaluators else None
        if chief and servers:
            arrows += [f"{chief} -.-> w{number}x0" for number, block in enumerate(shown.blocks) if block.workers][:1]
        if chief and evaluators:
            arrows.append(f'{chief} -.->|"checkpoints"| {evaluators}')
        classes = [f"classDef {job} fill:{color},stroke:#555,color:#111" for job, color in _COLORS.items()]
        shown_states = [state for state in STATE_COLORS if state in self.states]
        classes += [f"classDef {state} fill:{STATE_COLORS[state]},stroke:#555,color:#111" for state in shown_states]
        head = f"---\ntitle: {json.dumps(f'{shown.title}; {shown.caption}')}\n---\n"
        return head + "\n  ".join((*self.lines, *arrows, *classes)) + "\n"

    def _group(self, name: str, group: Group) -> str:
        """Adds a box with its tasks, or one node for omitted groups. Returns its id."""
        if not group.cells:
            self.lines.append(f"{name}[{_label(group.title)}]:::{group.job}")
            return name
        is_all_reduce = self.picture.all_reduce and group.job == "worker" and len(group.cells) > 1
        title = f"{group.title}: all-reduce" if is_all_reduce else group.title
        self.lines.append(f"subgraph {name}[{_label(title)}]")
        ids = [self._node(cell) for cell in group.cells]
        if is_all_reduce:
            self.lines += [f"  {one} <--> {other}" for one, other in itertools.pairwise(ids)]
        self.lines.append("end")
        return name

    def _node(self, cell: Cell) -> str:
        name = f"t{self.nodes}"
        self.nodes += 1
        label = _label(cell.name, cell.detail) if cell.detail else _label(cell.name)
        self.lines.append(f"  {name}[{label}]:::{cell.state or cell.job}")
        self.states.add(cell.state)
        return name


def _label(*lines: str) -> str:
    """Returns lines of text in quotes. Characters that HTML or Markdown reads become Mermaid's entities, `#35;`."""
    return '"' + "<br/>".join(_SPECIAL.sub(lambda match: f"#{ord(match[0])};", printable(line)) for line in lines) + '"'
