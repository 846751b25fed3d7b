"""The public modules of the package, found in the code: a package with a contract is one.

A package right below `tallystick` is public if its `__init__` has an `__all__`. So `make reference`
and the tests of the tree know a new one without being told.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "tallystick"


def public_modules() -> list[str]:
    """List the names of the public modules, `tallystick` first."""
    found = []
    for path in [PACKAGE / "__init__.py", *PACKAGE.glob("*/__init__.py")]:
        assigned = [each for each in _tree(path).body if isinstance(each, ast.Assign)]
        names = [each.targets[0] for each in assigned]
        if any(isinstance(each, ast.Name) and each.id == "__all__" for each in names):
            place = path.parent.relative_to(PACKAGE.parent)
            found.append(".".join(place.parts))
    return sorted(found)


def public_names(module: str) -> list[str]:
    """List the names in the contract of a public module."""
    names: list[str] = importlib.import_module(module).__all__
    return names


def declared_names(module: str) -> set[str]:
    """Return the names that a public module imports for type checkers, without moved ones."""
    path = PACKAGE.joinpath(*module.split(".")[1:], "__init__.py")
    return {
        name.name
        for block in _tree(path).body
        if isinstance(block, ast.If)
        for each in block.body
        if isinstance(each, ast.ImportFrom)
        for name in each.names
        if name.asname is None
    }


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
