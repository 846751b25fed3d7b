"""Nothing of the package is called by tests alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tools import unused as looked


@pytest.mark.slow
def test_nothing_of_the_package_is_used_by_tests_alone() -> None:
    # Use it, document it, or remove it with its tests.
    assert [str(each) for each in looked.unused()] == []


# -- the search itself -----------------------------------------------------------------------------


def found_in(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what is unused in a package of one module, of which `main` is a command."""
    monkeypatch.setattr(looked, "_is_root", lambda name: name == "looked_at")
    monkeypatch.setattr(looked, "_outside", lambda: iter(()))
    monkeypatch.setattr(looked, "_documented", frozenset)
    monkeypatch.setattr(looked, "public_modules", list)
    path = tmp_path / "looked_at.py"
    path.write_text(f"{source}\nmain()\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(looked, "_modules", lambda: iter([looked._read(path, "looked_at")]))
    try:
        return [each.name for each in looked.unused()]
    finally:
        sys.modules.pop("looked_at", None)


BOX = "class Box:\n def open(self): ...\n def shut(self): ..."


@pytest.mark.parametrize(
    ("source", "unused"),
    [
        ("def main(): ...\ndef other(): ...", ["other"]),
        ("def main(): other()\ndef other(): ...", []),
        ("def main(): ...\ndef one(): two()\ndef two(): one()", ["one", "two"]),
        ("def main(): ...\nSIZE = 1", ["SIZE"]),
        ("def main(): return SIZE\nSIZE = 1", []),
        ("def main(): ...\nSIZE = 1\nif SIZE: import os", []),
        (f"def main(): Box().open()\n{BOX}", ["Box.shut"]),
        (f"def main(): getattr(Box(), 'open')()\n{BOX}", ["Box.shut"]),
        (f"def main(): print(Box, 'call Box.open()')\n{BOX}", ["Box.shut"]),
        (f"def main(): ...\ndef box(): Box()\n{BOX}", ["Box", "Box.open", "Box.shut", "box"]),
        ("def main(): Box()\nclass Box:\n def __len__(self): return 0", []),
        ("def main(): Box()\nclass Box(dict):\n def items(self): ...", []),
    ],
)
def test_what_nothing_reaches_is_found(
    source: str, unused: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found_in(source, tmp_path, monkeypatch) == unused
