"""`Canvas`: the shapes of an SVG drawing (rectangles, text and arrows on white). Every text is escaped, and printable."""

import math
import xml.etree.ElementTree as ET
from collections.abc import Sequence

from tfdist.messages import printable

Element = ET.Element

LETTER, BOLD = 0.61, 0.68
"""Width of a letter in units of its size, enough for the common sans-serif fonts."""

_INK, _ARROW = "#222222", "#555555"


class Canvas:
    """A drawing that grows with its content. Lengths are pixels from the upper left corner.

    Args:
        title: the title for screen readers.
        description: the description for screen readers.
    """

    def __init__(self, title: str, description: str) -> None:
        self.root = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img", "font-family": "sans-serif"})
        ET.SubElement(self.root, "title").text = printable(title)
        ET.SubElement(self.root, "desc").text = printable(description)
        self._define_arrow()
        self.paper = ET.SubElement(self.root, "rect", fill="#ffffff")
        self.right = self.bottom = 0.0

    def text(self, margin: float) -> str:
        """Returns the drawing as an SVG document, with `margin` pixels to the right of and below its content."""
        width, height = (str(math.ceil(end + margin)) for end in (self.right, self.bottom))
        for element in (self.root, self.paper):
            element.set("width", width)
            element.set("height", height)
        self.root.set("viewBox", f"0 0 {width} {height}")
        ET.indent(self.root)
        return ET.tostring(self.root, encoding="unicode") + "\n"

    def group(self, tooltip: str, inside: Element | None = None) -> Element:
        """Adds and returns a group of elements, which shows `tooltip` under the pointer."""
        element = ET.SubElement(self.root if inside is None else inside, "g")
        ET.SubElement(element, "title").text = printable(tooltip)
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
        """Draws a rectangle with round corners."""
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
        """Draws a line of text that begins at `x`, or is centered there, on the base line `y`."""
        look = {"x": _number(x), "y": _number(y), "font-size": str(size), "fill": _INK}
        if middle:
            look["text-anchor"] = "middle"
        if bold:
            look["font-weight"] = "bold"
        ET.SubElement(self.root if inside is None else inside, "text", look).text = printable(text)
        width = len(text) * size * (BOLD if bold else LETTER)
        self._reach(x + (width / 2 if middle else width), y)

    def line(
        self, points: Sequence[tuple[float, float]], *, head: bool = True, both: bool = False, dashed: bool = False
    ) -> None:
        """Draws a line through points, with an arrow at the last one (`head`) and at the first one (`both`)."""
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
