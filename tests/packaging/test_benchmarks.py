"""The programs of benchmarks/ are run by hand: what they take from the package still has to be there."""

import ast
from pathlib import Path

import pytest
from support_paths import CHECKOUT


def defined(path: Path) -> set[str]:
    """Returns the names that a module defines or imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return found


def missing(module: str, name: str) -> bool:
    """Returns whether a module of the package has neither such a name nor a module of that name."""
    folder = CHECKOUT.joinpath(*module.split("."))
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    if not path.exists():
        return True
    return name not in defined(path) and not (folder / name).is_dir() and not (folder / f"{name}.py").exists()


@pytest.mark.parametrize("program", sorted(CHECKOUT.glob("benchmarks/*.py")), ids=lambda path: path.name)
def test_what_a_benchmark_imports_exists(program: Path) -> None:
    imports = [node for node in ast.walk(ast.parse(program.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imports if (node.module or "").partition(".")[0] == "tfdist"]
    assert [
        f"{node.module}.{alias.name}" for node in ours for alias in node.names if missing(node.module or "", alias.name)
    ] == []
