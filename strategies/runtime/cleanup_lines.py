"""Lines of a program that clean up: an exception there would leave a lock held, or a scope entered."""

import ast
import functools
import linecache
from types import FrameType

_LEAVING = ("__exit__", "__del__")


def cleans_up(frame: FrameType) -> bool:
    """Returns whether a frame is in a `finally`, `except`, `__exit__` or `__del__`, or at a `with`, which may just be left."""
    code = frame.f_code
    return code.co_name in _LEAVING or frame.f_lineno in _lines(code.co_filename)


@functools.lru_cache
def _lines(path: str) -> frozenset[int]:
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return frozenset()
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.With | ast.AsyncWith):
            found.update(range(node.lineno, max(node.lineno + 1, node.body[0].lineno)))
        elif isinstance(node, ast.Try):
            cleaning: list[ast.ExceptHandler | ast.stmt] = [*node.handlers, *node.finalbody]
            for statement in cleaning:
                found.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    return frozenset(found)
