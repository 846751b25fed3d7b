"""Docstrings say what is done: they open with a verb or a noun, not with a clause."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "tallystick"
CLAUSE = re.compile(r"(What|Whether|Where|Which|That|Who|Whoever|Whose|How|When|If|Why)\b")
# The source of the guest is part of its digest: sessions and snapshots that are kept name it.
MODULES = sorted(
    path for path in PACKAGE.rglob("*.py") if "guest" not in path.relative_to(PACKAGE).parts
)
# Read by models, which have the text of these functions in their prompts.
SHOWN_TO_MODELS = {
    ("memory/calls.py", "score"),
    ("runtime/context/attachments.py", "ls"),
    ("runtime/spend/scopes.py", "remaining"),
}


def docstrings_in(source: str) -> Iterator[tuple[str, str]]:
    """List the name and docstring of a module and of everything in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            said = ast.get_docstring(node)
            if said is not None:
                yield getattr(node, "name", ""), said


@pytest.mark.parametrize("said", ["What it is.", "Whether it is.", "How to do it.", "If it is."])
def test_a_clause_is_found(said: str) -> None:
    assert CLAUSE.match(said)


def test_no_docstring_opens_with_a_clause() -> None:
    found = [
        f"{place}: {name}: {said.splitlines()[0]}"
        for path in MODULES
        for place in [str(path.relative_to(PACKAGE))]
        for name, said in docstrings_in(path.read_text(encoding="utf-8"))
        if CLAUSE.match(said) and (place, name) not in SHOWN_TO_MODELS
    ]

    assert found == []
