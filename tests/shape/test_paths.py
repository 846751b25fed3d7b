"""Paths and dotted names that docs and comments mention exist."""

from __future__ import annotations

import functools
import importlib
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "tallystick"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("bench/**/*.md")])
CODE = sorted(
    path
    for root in ("src", "tests", "bench", "tools")
    for path in (ROOT / root).rglob("*.py")
    if "_image" not in path.parts
)
# Pages that tell of the past name what was there: so do reports that are named after a commit.
PAST = re.compile(r"CHANGELOG\.md|[0-9a-f]{7,40}\.md")
# Made by a build, by a soak or by a reader who follows the page.
MADE = re.compile(r"^(src/tallystick/guest/_image|bench/results/soak\.txt)")
# Paths of a user's project, in examples.
EXAMPLES = {"tools/pdf", "tools/pdf/SKILL.md", "docs/{a,b}/**"}

TOP = "src|tests|bench|tools|docs|examples|requirements|\\.ci"
INSIDE = "|".join(sorted(each.name for each in PACKAGE.iterdir() if each.is_dir()))
FROM_TOP = re.compile(rf"(?<![\w./-])((?:{TOP})/[\w./*{{}},-]*[\w*}}/])")
FROM_PACKAGE = re.compile(rf"(?<![\w./-])((?:{INSIDE})/[\w/]+\.py)\b")
DOTTED = re.compile(r"(?<![\w./:-])(tallystick(?:\.\w+)+)(?![\w:/-])")
TEST_FILE = re.compile(r"(?<![\w./-])(test_\w+\.py)\b")
# A file, a label of a signature, an address: written with dots, and no module.
NOT_MODULES = re.compile(
    r"^tallystick\.(toml|receipt\.v1|memory\.\w+\.v1|dev|example|db|tally|egg)\b"
)


def said(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a page, or the comments and docstrings of a module."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield from enumerate(text.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_docstring = token.type == tokenize.STRING and token.string.lstrip("rR").startswith('"""')
        if token.type == tokenize.COMMENT or is_docstring:
            for offset, line in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, line


@functools.cache
def texts() -> list[tuple[Path, str]]:
    """List every file that people read, with its text."""
    return [
        (path, path.read_text(encoding="utf-8"))
        for path in [*PAGES, *CODE]
        if not PAST.fullmatch(path.name) and path != Path(__file__)
    ]


def missing(pattern: re.Pattern[str], is_there: Callable[[str], bool]) -> list[str]:
    """List the names of this form that are said somewhere, and are not there."""
    found = []
    for path, text in texts():
        # Whole files first: to take the comments out of all modules takes seconds.
        if all(is_there(match[1]) for match in pattern.finditer(text)):
            continue
        found += [
            f"{path.relative_to(ROOT)}:{number}: {match[1]}"
            for number, line in said(path)
            for match in pattern.finditer(line)
            if not is_there(match[1])
        ]
    return found


def alternatives(path: str) -> list[str]:
    """Write out `a{b,c}d`, as a shell would."""
    braces = re.search(r"\{([^{}]*)\}", path)
    if braces is None:
        return [path]
    return [
        each
        for choice in braces[1].split(",")
        for each in alternatives(path[: braces.start()] + choice + path[braces.end() :])
    ]


def exists(path: str, root: Path = ROOT) -> bool:
    return all(
        MADE.match(each) or (root / each).exists() or any(root.glob(each.rstrip("/")))
        for each in alternatives(path.rstrip("."))
    )


@functools.cache
def is_name(dotted: str) -> bool:
    """Say whether it is a module of ours, or something in one."""
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for each in parts[count:]:
            # The fields of a class with slots or annotations alone are its own, too.
            if not hasattr(found, each) and each not in getattr(found, "__annotations__", {}):
                return False
            found = getattr(found, each, None)
        return True
    return False


@pytest.mark.parametrize(("pattern", "root"), [(FROM_TOP, ROOT), (FROM_PACKAGE, PACKAGE)])
def test_every_path_that_is_named_exists(pattern: re.Pattern[str], root: Path) -> None:
    @functools.cache
    def is_there(path: str) -> bool:
        return path in EXAMPLES or exists(path, root) or exists(path)

    assert missing(pattern, is_there) == []


def test_every_test_file_that_is_named_exists() -> None:
    there = {path.name for path in (ROOT / "tests").rglob("test_*.py")}

    assert missing(TEST_FILE, there.__contains__) == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Names that have moved are named too.
def test_every_dotted_name_exists() -> None:
    def is_there(name: str) -> bool:
        return bool(NOT_MODULES.match(name)) or is_name(name)

    assert missing(DOTTED, is_there) == []


def test_what_is_missing_is_found_in_prose_and_not_in_code() -> None:
    assert missing(re.compile(r"(Tallystick: a runtime for agents)"), lambda name: False)
    assert missing(re.compile(r"(@functools\.cache)"), lambda name: False) == []


def test_names_are_looked_for_and_some_are_missing() -> None:
    assert is_name("tallystick.core.errors.UsageError")
    assert not is_name("tallystick.core.errors.Nothing")
    assert not is_name("tallystick.nothing")
    assert exists("tests/{core,shape}/test_*.py")
    assert not exists("tests/{core,nothing}")
