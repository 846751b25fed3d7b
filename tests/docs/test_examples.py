"""Every example in the README and the docs runs and prints what it says."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tallystick.settings.paths import cache_directory

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```(console|python)\n(.*?)^```(?:\n+```text\n(.*?)^```)?", re.S | re.M)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(kind: str) -> list[tuple[str, str, str]]:
    return [
        (f"{name_of(page)}:{number}", match[2], match[3] or "")
        for page in PAGES
        for number, match in enumerate(_BLOCK.finditer(page.read_text(encoding="utf-8")))
        if match[1] == kind
    ]


def environment(directory: Path) -> dict[str, str]:
    return {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(directory),
        "TALLYSTICK_CACHE_DIR": str(cache_directory()),
        "TALLYSTICK_DATA_DIR": str(directory / "data"),
        "TALLYSTICK_CLOCK": "fixed",
    }


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One home for each page: a later example may look at what an earlier one left."""
    return {name_of(page): tmp_path_factory.mktemp("home") for page in PAGES}


@pytest.fixture
def home(where: str, homes: dict[str, Path]) -> Path:
    return homes[where.partition(":")[0]]


def of_its_page(where: str, *rest: str) -> Any:
    """Name the example, and have all of its page run in one process (`--dist loadgroup`)."""
    group = pytest.mark.xdist_group(where.partition(":")[0])
    return pytest.param(where, *rest, id=where, marks=group)


def matches(shown: str, printed: str) -> bool:
    """`...` in the page stands for anything on that line."""
    pattern = re.escape(shown.rstrip("\n")).replace(re.escape("..."), "[^\n]*")
    return re.fullmatch(pattern, printed.rstrip("\n")) is not None


CONSOLE = [
    of_its_page(f"{where} {command}", command, output)
    for where, text, _ in blocks("console")
    for command, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n?)*)", text, re.M)
]


@pytest.mark.slow
@pytest.mark.parametrize(("where", "command", "output"), CONSOLE)
def test_a_command_prints_what_the_page_says(
    where: str, command: str, output: str, home: Path
) -> None:
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=environment(home), timeout=60,
        capture_output=True, text=True,
    )  # fmt: skip

    assert matches(output, done.stdout), f"printed:\n{done.stdout}\n{done.stderr}"


PYTHON = [of_its_page(*each) for each in blocks("python")]


@pytest.mark.slow
@pytest.mark.parametrize(("where", "code", "output"), PYTHON)
def test_a_python_example_prints_what_the_page_says(
    where: str, code: str, output: str, home: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment(home), timeout=120,
        capture_output=True, text=True,
    )  # fmt: skip

    assert matches(output, done.stdout), f"printed:\n{done.stdout}\n{done.stderr}"


def test_the_pages_have_examples() -> None:
    assert len(CONSOLE) >= 3
    assert PYTHON


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8"))

    assert [target for target in targets if not (page.parent / target).exists()] == []
