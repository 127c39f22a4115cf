"""The few shapes of which an SVG drawing is made: rectangles, text and arrows, on white, with every text escaped."""

import math
import xml.etree.ElementTree as ET
from collections.abc import Sequence

Element = ET.Element

LETTER, BOLD = 0.61, 0.68
"""Widths that letters are given, in units of their size: enough for the common sans-serif fonts."""

_INK, _ARROW = "#222222", "#555555"


class Canvas:
    """A drawing that grows with what is drawn. Lengths are pixels, from the upper left corner.

    Args:
        title: what it is called by programs that read it out.
        description: what is said about it there.
    """

    def __init__(self, title: str, description: str) -> None:
        self.root = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img", "font-family": "sans-serif"})
        ET.SubElement(self.root, "title").text = title
        ET.SubElement(self.root, "desc").text = description
        self._define_arrow()
        self.paper = ET.SubElement(self.root, "rect", fill="#ffffff")
        self.right = self.bottom = 0.0

    def text(self, margin: float) -> str:
        """The drawing as a document of its own, with `margin` pixels right of and below the last of it."""
        width, height = (str(math.ceil(end + margin)) for end in (self.right, self.bottom))
        for element in (self.root, self.paper):
            element.set("width", width)
            element.set("height", height)
        self.root.set("viewBox", f"0 0 {width} {height}")
        ET.indent(self.root)
        return ET.tostring(self.root, encoding="unicode") + "\n"

    def group(self, tooltip: str, inside: Element | None = None) -> Element:
        """What belongs together, with a text that is shown when one points at it."""
        element = ET.SubElement(self.root if inside is None else inside, "g")
        ET.SubElement(element, "title").text = tooltip
        return element

    def rectangle(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str,
        stroke: str,
        radius: int,
        *,
        inside: Element | None = None,
    ) -> None:
        """A rectangle with round corners."""
        place = {"x": x, "y": y, "width": width, "height": height, "rx": radius}
        look = {"fill": fill, "stroke": stroke}
        ET.SubElement(self.root if inside is None else inside, "rect", {k: _number(v) for k, v in place.items()} | look)
        self._reach(x + width, y + height)

    def write(
        self,
        x: float,
        y: float,
        text: str,
        size: int,
        *,
        middle: bool = False,
        bold: bool = False,
        inside: Element | None = None,
    ) -> None:
        """A line of text that begins at `x`, or has its middle there, on the base line `y`."""
        look = {"x": _number(x), "y": _number(y), "font-size": str(size), "fill": _INK}
        if middle:
            look["text-anchor"] = "middle"
        if bold:
            look["font-weight"] = "bold"
        ET.SubElement(self.root if inside is None else inside, "text", look).text = text
        width = len(text) * size * (BOLD if bold else LETTER)
        self._reach(x + (width / 2 if middle else width), y)

    def line(
        self, points: Sequence[tuple[float, float]], *, head: bool = True, both: bool = False, dashed: bool = False
    ) -> None:
        """A line through points; an arrow to the last with `head`, and to the first with `both`."""
        look = {"points": " ".join(f"{_number(x)},{_number(y)}" for x, y in points), "fill": "none", "stroke": _ARROW}
        if head or both:
            look["marker-end"] = "url(#arrow)"
        if both:
            look["marker-start"] = "url(#arrow)"
        if dashed:
            look["stroke-dasharray"] = "4 3"
        ET.SubElement(self.root, "polyline", look)

    def _define_arrow(self) -> None:
        sizes = {"viewBox": "0 0 8 8", "refX": "8", "refY": "4", "markerWidth": "7", "markerHeight": "7"}
        kind = {"id": "arrow", "orient": "auto-start-reverse"}
        marker = ET.SubElement(ET.SubElement(self.root, "defs"), "marker", kind | sizes)
        ET.SubElement(marker, "path", d="M0 0 L8 4 L0 8 z", fill=_ARROW)

    def _reach(self, x: float, y: float) -> None:
        self.right, self.bottom = max(self.right, x), max(self.bottom, y)


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
