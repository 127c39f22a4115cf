"""Adds `with strategy.scope():` around what makes and compiles models in the source of a program, and changes nothing else.

A statement goes into the scope if it makes something of Keras (a layer, a model, an optimizer, a metric, a class or function of
the program that does) or compiles, and neither trains nor evaluates. In a function that does both, and in loops, the same rule
applies to the statements inside. Classes stay as they are.
"""

import ast
from collections.abc import Iterable, Iterator

NAME = "TFDIST_STRATEGY"
"""The name that the changed program uses for the strategy."""

TRAINING = {"fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch"}
MAKING = {"Sequential", "Model", "Input", "clone_model", "load_model", "compile"}
MODULES = {"layers", "optimizers", "losses", "metrics", "applications", "models"}
BASES = {"Model", "Layer", "Sequential", "Loss", "Metric", "Optimizer"}


def scoped(source: str) -> ast.Module:
    """Returns the program with the scope added."""
    tree = ast.parse(source)
    tree.body = _Program(tree).with_scopes(tree.body)
    return ast.fix_missing_locations(tree)


def _dotted(node: ast.AST) -> list[str]:
    """Returns the names of `a.b.c`, the last first; empty for another expression."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [*names, node.id] if isinstance(node, ast.Name) else names


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    """Yields the calls in a statement, but for those that happen later, in functions, lambdas and classes."""
    nodes = [node]
    for each in nodes:
        if not isinstance(each, (ast.Lambda, ast.FunctionDef, ast.ClassDef)):
            nodes.extend(ast.iter_child_nodes(each))
            if isinstance(each, ast.Call):
                yield each


class _Program:
    def __init__(self, tree: ast.Module) -> None:
        self._functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        self._classes: set[str] = set()
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and any(self._is_of_keras(_dotted(base)) for base in node.bases):
                self._classes.add(node.name)
        self._imported = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "keras"
            for alias in node.names
            if alias.name[0].isupper()
        }
        self._made: set[str] = set()
        """Names that statements in a scope have assigned. Calling one of them, a layer, may make variables."""

    def _is_of_keras(self, base: list[str]) -> bool:
        return bool(base) and (base[0] in BASES | self._classes or "layers" in base)

    def _kinds(self, node: ast.AST) -> tuple[bool, bool]:
        """Returns whether a statement makes something, and whether it trains."""
        makes = trains = False
        for call in _calls(node):
            names = _dotted(call.func)
            if not names:
                continue
            last, before = names[0], set(names[1:])
            if last in TRAINING and isinstance(call.func, ast.Attribute):
                trains = True
            elif not before and last in self._functions:
                kinds = [self._kinds(each) for each in self._functions.pop(last).body]  # Popped against recursion.
                makes = makes or any(kind[0] for kind in kinds)
                trains = trains or any(kind[1] for kind in kinds)
            elif before:
                makes = makes or last in MAKING or (last[0].isupper() and bool(before & MODULES))
            else:
                makes = makes or last in self._classes | self._imported | self._made
        return makes, trains

    def _kinds_of(self, node: ast.AST) -> tuple[bool, bool]:
        functions = dict(self._functions)
        try:
            return self._kinds(node)
        finally:
            self._functions = functions

    def with_scopes(self, statements: Iterable[ast.stmt]) -> list[ast.stmt]:
        """Returns the statements, those that make something in blocks `with strategy.scope():`."""
        result: list[ast.stmt] = []
        block: ast.With | None = None
        for statement in statements:
            if isinstance(statement, ast.FunctionDef):
                inside = [self._kinds_of(each) for each in statement.body]
                if any(makes for makes, _ in inside) and any(trains for _, trains in inside):
                    statement.body = self.with_scopes(statement.body)
            makes, trains = self._kinds_of(statement)
            if not makes or trains:
                if makes:
                    for name in ("body", "orelse"):
                        setattr(statement, name, self.with_scopes(getattr(statement, name, [])))
                result.append(statement)
                block = None
                continue
            if block is None:
                item = ast.withitem(ast.parse(f"{NAME}.scope()", mode="eval").body)
                block = ast.With(items=[item], body=[])
                result.append(block)
            block.body.append(statement)
            if isinstance(statement, ast.Assign):
                self._made |= {name.id for each in statement.targets for name in ast.walk(each) if isinstance(name, ast.Name)}
        return result
