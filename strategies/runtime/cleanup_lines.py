"""Lines that clean up, where an exception would leave a lock held or a scope entered, and lines that lose an exception."""

import ast
import functools
import linecache
from types import FrameType

_LEAVING = ("__exit__", "__del__")


def cleans_up(frame: FrameType) -> bool:
    """Returns whether a frame is in a `finally`, `except`, `__exit__` or `__del__`, or at a `with`, which may just be left."""
    code = frame.f_code
    return code.co_name in _LEAVING or frame.f_lineno in _lines(code.co_filename)


def loses_exceptions(frame: FrameType) -> bool:
    """Returns whether a frame is in a `try` with an `except:` that raises nothing, as Keras has where it opens files."""
    return frame.f_lineno in _losing_lines(frame.f_code.co_filename)


@functools.lru_cache
def _losing_lines(path: str) -> frozenset[int]:
    numbers: set[int] = set()
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Try) and any(_takes_all(handler) for handler in node.handlers):
            numbers.update(range(node.lineno, (node.body[-1].end_lineno or node.body[-1].lineno) + 1))
    return frozenset(numbers)


def _takes_all(handler: ast.ExceptHandler) -> bool:
    is_any = handler.type is None or (isinstance(handler.type, ast.Name) and handler.type.id == "BaseException")
    return is_any and not isinstance(handler.body[-1], ast.Raise)


def _tree(path: str) -> ast.AST:
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


@functools.lru_cache
def _lines(path: str) -> frozenset[int]:
    numbers: set[int] = set()
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.With | ast.AsyncWith):
            numbers.update(range(node.lineno, max(node.lineno + 1, node.body[0].lineno)))
        elif isinstance(node, ast.Try):
            cleaning: list[ast.ExceptHandler | ast.stmt] = [*node.handlers, *node.finalbody]
            for statement in cleaning:
                numbers.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    return frozenset(numbers)
