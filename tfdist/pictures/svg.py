"""Draws an SVG like SINGA's figure 2, without scripts, external styles or fonts."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tfdist.cluster import Cluster
from tfdist.pictures.canvas import BOLD, LETTER, Canvas, Element
from tfdist.pictures.picture import STATE_COLORS, Block, Cell, Group, picture

_COLORS = {
    "chief": ("#e3f1de", "#4c8a3f"),
    "worker": ("#e1ecfa", "#3f6fae"),
    "ps": ("#fcebd9", "#b8732a"),
    "evaluator": ("#ebe4f5", "#7a58a8"),
}
"""Job -> fill and line color of the boxes."""

_LONGEST = 34
"""Letters of a name or an address that are shown. The tooltip of the box has the rest."""
_GAP, _PAD, _TITLE = 14, 8, 20
_MOST_WIDE = 1080
"""Width of a row of groups in pixels. A wider row is split."""
_BETWEEN = 34
"""Pixels between tasks that exchange gradients with each other."""
_FRAME = 18
"""Pixels between the groups and the frame around them. The chief's arrow ends at the frame."""
_RISE = 34
"""Pixels between a server group and its row of worker groups, with their arrows."""


@dataclass
class _Box:
    """A group with its size. `_place` sets `x` and `y`."""

    group: Group
    columns: int
    between: float
    cell_height: float
    width: float
    height: float
    x: float = 0
    y: float = 0

    @property
    def middle(self) -> float:
        return self.x + self.width / 2

    @property
    def cell_width(self) -> float:
        return (self.width - 2 * _PAD - self.between * (self.columns - 1)) / self.columns


def write(cluster: Cluster, states: Mapping[str, str] | None = None) -> str:
    """Returns the drawing, with the states of tasks if they are given.

    Raises:
        ClusterError: if the cluster cannot run the strategy that it forces.
    """
    return _Drawing(cluster, states).text()


class _Drawing:
    def __init__(self, cluster: Cluster, states: Mapping[str, str] | None) -> None:
        self.picture = picture(cluster, states)
        self.period = cluster.sync_period
        self.canvas = Canvas(self.picture.title, self.picture.caption)

    def text(self) -> str:
        shown, canvas = self.picture, self.canvas
        canvas.write(_GAP, 24, shown.title, 15, bold=True)
        canvas.write(_GAP, 44, shown.caption, 12)
        top, left = 62.0, float(_GAP)
        sides = [_box(group) for group in (shown.chief, shown.evaluators) if group]
        if not sides:
            self._blocks(left, top)
            return canvas.text(_GAP)
        edge = self._sides(sides, left, top)
        if not shown.blocks:  # The view of a task that neither trains nor serves.
            return canvas.text(_GAP)
        right, bottom = self._blocks(edge + _FRAME, top + _FRAME)
        canvas.rectangle(edge, top, right + _FRAME - edge, bottom + _FRAME - top, "none", "#bbbbbb", 8)
        return canvas.text(_GAP)

    def _sides(self, boxes: "list[_Box]", left: float, top: float) -> float:
        """Draws the evaluators below the chief. Returns the left edge of the frame of the groups."""
        y, widest = top, max(box.width for box in boxes)
        for box in boxes:
            box.width = widest
            self._place(box, left, y)
            y += box.height + _RISE
        if self.picture.chief and len(boxes) > 1:
            chief, evaluators = boxes
            self.canvas.line([(chief.middle, chief.y + chief.height), (chief.middle, evaluators.y)], dashed=True)
            self.canvas.write(chief.middle + 6, (chief.y + chief.height + evaluators.y) / 2 + 4, "checkpoints", 10)
        if self.picture.chief is None or not self.picture.blocks:
            return left + widest + 2 * _GAP
        chief, edge = boxes[0], left + widest + 60
        middle = chief.y + chief.height / 2
        self.canvas.line([(left + chief.width, middle), (edge, middle)], dashed=True)
        self.canvas.write((left + chief.width + edge) / 2, middle - 5, "steps", 10, middle=True)
        return edge

    def _blocks(self, left: float, top: float) -> tuple[float, float]:
        """Draws server groups and worker groups. Returns their right and bottom edges."""
        laid = [_laid(block, self.picture.all_reduce) for block in self.picture.blocks]
        has_links = sum(block.server is not None and bool(block.workers) for block in self.picture.blocks) > 1
        gap = 110 if has_links else 2 * _GAP
        x, y, tallest, right = left, top, 0.0, left
        row: list[_Box] = []
        ends: list[_Box] = []
        for server, rows, width, height in laid:
            if row and x + width > left + _MOST_WIDE:
                ends.append(row[0])
                x, y, tallest, row = left, y + tallest + 2 * _GAP, 0.0, []
            tallest = max(tallest, height)
            boxes = self._block(server, rows, x, y, width)
            if has_links and server is not None:
                if row:
                    self._link(row[-1], server)
                row.append(server)
            elif boxes:
                row.append(boxes[0])
            right = max(right, x + width)
            x += width + gap
        ends.append(row[0])
        if has_links and len(ends) > 1:
            self._spine(ends, left - _FRAME / 2)
        return right, y + tallest

    def _block(self, server: "_Box | None", rows: "list[list[_Box]]", x: float, y: float, width: float) -> "list[_Box]":
        placed: list[_Box] = []
        if server is not None:
            self._place(server, x + (width - server.width) / 2, y)
            placed.append(server)
            y += server.height
        for number, row in enumerate(rows):
            y += _RISE if server is not None else (_GAP if number else 0)
            across = x + (2 * _GAP if len(rows) > 1 and server is not None else 0)
            if len(rows) == 1:
                across += (width - sum(box.width for box in row) - _GAP * (len(row) - 1)) / 2
            for box in row:
                self._place(box, across, y)
                across += box.width + _GAP
            y += max(box.height for box in row)
            placed += row
        if server is not None and rows:
            self._arrows(server, rows, x)
        return placed

    def _arrows(self, server: _Box, rows: "list[list[_Box]]", spine: float) -> None:
        """Draws lines from the groups of a row to a line above it, and from the first of these lines to the server group."""
        target = (server.middle, server.y + server.height)
        if len(rows) == 1 and len(rows[0]) == 1:
            self.canvas.line([(server.middle, rows[0][0].y), target])
            return
        lines = [row[0].y - _RISE / 2 for row in rows]
        for row, line in zip(rows, lines, strict=True):
            for box in row:
                self.canvas.line([(box.middle, box.y), (box.middle, line)], head=False)
            ends = [box.middle for box in row]
            ends.append(spine if len(rows) > 1 else server.middle)
            if row is rows[0]:
                ends.append(server.middle)
            self.canvas.line([(min(ends), line), (max(ends), line)], head=False)
        if len(rows) > 1:
            self.canvas.line([(spine, lines[0]), (spine, lines[-1])], head=False)
        self.canvas.line([(server.middle, lines[0]), target])

    def _link(self, one: _Box, other: _Box) -> None:
        y = one.y + min(one.height, other.height) / 2
        self.canvas.line([(one.x + one.width, y), (other.x, y)], both=True)
        every = "every update" if self.period == 1 else f"every {self.period} updates"
        self.canvas.write((one.x + one.width + other.x) / 2, y - 5, every, 10, middle=True)

    def _spine(self, boxes: "list[_Box]", x: float) -> None:
        """Connects the first server groups of the rows."""
        ys = [box.y + box.height / 2 for box in boxes]
        self.canvas.line([(x, ys[0]), (x, ys[-1])], head=False)
        for box, y in zip(boxes, ys, strict=True):
            self.canvas.line([(x, y), (box.x, y)])

    def _place(self, box: _Box, x: float, y: float) -> None:
        box.x, box.y = x, y
        fill, line = _COLORS[box.group.job]
        frame = self.canvas.group(f"{box.group.title}")
        self.canvas.rectangle(x, y, box.width, box.height, fill, line, 6, inside=frame)
        if not box.group.cells:
            self.canvas.write(x + box.width / 2, y + box.height / 2 + 4, box.group.title, 12, middle=True, inside=frame)
            return
        self.canvas.write(x + box.width / 2, y + 15, box.group.title, 12, middle=True, bold=True, inside=frame)
        for position, cell in enumerate(box.group.cells):
            row, column = divmod(position, box.columns)
            left = x + _PAD + column * (box.cell_width + box.between)
            top = y + _TITLE + row * (box.cell_height + _PAD)
            self._cell(frame, cell, left, top, box)
            if box.between > _PAD and column:
                middle = top + box.cell_height / 2
                self.canvas.line([(left - box.between, middle), (left, middle)], both=True)

    def _cell(self, parent: Element, cell: Cell, x: float, y: float, box: _Box) -> None:
        _, line = _COLORS[cell.job]
        element = self.canvas.group(f"{cell.name} {cell.detail}".rstrip(), parent)
        if not cell.is_rest:
            self.canvas.rectangle(
                x, y, box.cell_width, box.cell_height, STATE_COLORS.get(cell.state, "#ffffff"), line, 4, inside=element
            )
        middle = x + box.cell_width / 2
        if cell.detail:
            self.canvas.write(middle, y + 14, _short(cell.name), 12, middle=True, inside=element)
            self.canvas.write(middle, y + 28, _short(cell.detail), 10, middle=True, inside=element)
        else:
            self.canvas.write(middle, y + box.cell_height / 2 + 4, _short(cell.name), 12, middle=True, inside=element)


def _box(group: Group, between: float = _PAD) -> _Box:
    """Returns a group with its tasks side by side, `between` pixels apart; more than five tasks take several rows."""
    count = len(group.cells)
    title = len(group.title) * BOLD * 12 + 3 * _PAD
    if not count:
        return _Box(group, 1, 0, 0, title, 2 * _TITLE)
    columns = count if count <= 5 else min(12, math.ceil(math.sqrt(count * 2)))
    name = max(len(_short(cell.name)) for cell in group.cells) * LETTER * 12
    about = max(len(_short(cell.detail)) for cell in group.cells) * LETTER * 10
    cell_width = max(64.0, name + 12, about + 12)
    cell_height = 36.0 if about else 26.0
    rows = math.ceil(count / columns)
    width = max(title, 2 * _PAD + columns * cell_width + (columns - 1) * between)
    return _Box(group, columns, between, cell_height, width, _TITLE + rows * (cell_height + _PAD))


def _laid(block: Block, all_reduce: bool) -> "tuple[_Box | None, list[list[_Box]], float, float]":
    """Returns the boxes of a block (worker groups in rows, equally wide), its width and its height."""
    server = _box(block.server) if block.server else None
    boxes = [_box(group, _BETWEEN if all_reduce and len(group.cells) > 1 else _PAD) for group in block.workers]
    widest = max((box.width for box in boxes), default=0.0)
    rows: list[list[_Box]] = []
    across = 0.0
    for box in boxes:
        box.width = widest
        if not rows or across + box.width > _MOST_WIDE:
            rows.append([])
            across = 0.0
        rows[-1].append(box)
        across += box.width + _GAP
    width = max((sum(box.width + _GAP for box in row) - _GAP for row in rows), default=0.0)
    if len(rows) > 1 and server is not None:
        width += 2 * _GAP
    height = sum(max(box.height for box in row) for row in rows)
    if server is not None:
        width, height = max(width, server.width), height + server.height + _RISE * len(rows)
    else:
        height += _GAP * max(0, len(rows) - 1)
    return server, rows, width, height


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
