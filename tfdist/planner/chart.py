"""The table of predictions as an SVG drawing: a bar for each option."""

from collections.abc import Sequence

from tfdist.pictures.canvas import BOLD, Canvas
from tfdist.planner.option import Option
from tfdist.planner.predict import Prediction
from tfdist.planner.table import name_of

MARGIN, ROW, BAR, SIZE = 12.0, 24.0, 16.0, 12
WIDTH = 320.0
"""Length of the longest bar, in pixels."""

_PLAIN, _CHOSEN, _EDGE = "#c9d8e8", "#7fb77e", "#555555"


def write(predictions: Sequence[Prediction], title: str, described: Option | None = None) -> str:
    """Returns the drawing. The first prediction, the recommended one, has another color. The name of `described` says so."""
    names = [name_of(each.option) + (" (described)" if each.option == described else "") for each in predictions]
    fastest = max(each.examples_per_second for each in predictions)
    speeds = [f"{each.examples_per_second:.0f} examples/s" for each in predictions]
    canvas = Canvas(title, "; ".join(f"{name}: {speed}" for name, speed in zip(names, speeds, strict=True)))
    left = MARGIN + max(map(len, names)) * SIZE * BOLD + MARGIN
    canvas.write(MARGIN, MARGIN + SIZE, title, SIZE, bold=True)
    for number, (name, each) in enumerate(zip(names, predictions, strict=True)):
        top = MARGIN + ROW * (number + 1)
        row = canvas.group(f"{name}: {each.sentence}")
        length = max(1.0, WIDTH * each.examples_per_second / fastest)
        canvas.write(MARGIN, top + SIZE, name, SIZE, bold=number == 0, inside=row)
        canvas.rectangle(left, top, length, BAR, _CHOSEN if number == 0 else _PLAIN, _EDGE, 2, inside=row)
        canvas.write(left + length + 6, top + SIZE, f"{speeds[number]}: {each.binding}", SIZE, inside=row)
    return canvas.text(MARGIN)
