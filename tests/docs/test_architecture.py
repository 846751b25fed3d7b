"""The page on the architecture agrees with the code: its paths, its layers, the stages of a run."""

import importlib
import json
import operator
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from tallystick.agent.agent import Agent
from tallystick.cli.main import cli
from tallystick.core.charge import RunLimits
from tallystick.ledger.memory import MemoryLedger
from tallystick.model.scripted import ScriptedModel
from tallystick.sandbox.wasm.sandbox import WasmSandbox

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "tallystick"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")

STAGES_MAX = 11
# A file or a folder in backticks, in the package or from the root of the repository.
PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]*|[\w-]+\.(?:py|toml|md))`")


class Stage(NamedTuple):
    """One row of the table of stages: its file, and the function by which a run enters it."""

    name: str
    file: str
    function: str


def section(heading: str) -> str:
    return PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


STAGES = [
    Stage(*found.groups())
    for found in re.finditer(r"^\| (\w+) \| `([\w/]+\.py)` \| `([\w.]+)` \|", PAGE, re.M)
]


@contextmanager
def entered() -> Iterator[list[tuple[str, str]]]:
    """Gather the functions of the package that are entered inside, each once, in order.

    Profiled, not counted by a patch of each: so a stage that is passed in another thread, or that
    somebody renames, is seen as it is.
    """
    found: dict[tuple[str, str], None] = {}
    inside = str(PACKAGE) + "/"

    def look(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(inside):
            found.setdefault((code.co_filename.removeprefix(inside), code.co_qualname))

    gathered: list[tuple[str, str]] = []
    before = sys.getprofile()
    threading.setprofile(look)
    sys.setprofile(look)
    try:
        yield gathered
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
        gathered.extend(found)


def passed(functions: list[tuple[str, str]]) -> list[str]:
    """Return the names of the stages that were entered, in the order in which they were."""
    names = {(stage.file, stage.function): stage.name for stage in STAGES}
    return [names[each] for each in functions if each in names]


def model() -> ScriptedModel:
    return ScriptedModel.of("```python\nprint(1)\n```", "```python\nFINAL(2)\n```")


def names_after(what: str) -> list[str]:
    """Return the stages that the row of a command names, in its order."""
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `tally {what}` |"))
    return [each.strip() for each in row.split("|")[3].split(",")]


def test_every_path_on_the_page_exists() -> None:
    named = {match[1] for match in PATH.finditer(PAGE)}
    # `wasm/` and `run/` stand in the row of the folder that they are in.
    places = (ROOT, PACKAGE, PACKAGE / "sandbox", PACKAGE / "runtime")

    assert len(named) > 40
    assert [each for each in sorted(named) if not any((at / each).exists() for at in places)] == []


def test_every_folder_of_the_package_is_in_the_table_of_layers() -> None:
    folders = {f"`{each.parent.name}/`" for each in PACKAGE.glob("*/__init__.py")}
    rooms = {f"`{each.parent.name}/`" for each in (PACKAGE / "runtime").glob("*/__init__.py")}
    rows = re.findall(r"^\| (`[\w.]+/?`) \|", section("Layers"), re.M)

    modules = {"`client.py`", "`lazy_names.py`", "`stores.py`"}
    assert folders | rooms | modules == set(rows)


def test_a_run_has_at_most_eleven_stages_each_one_file() -> None:
    files = [stage.file for stage in STAGES]

    assert 5 <= len(files) <= STAGES_MAX
    assert len(set(files)) == len(files)


@pytest.mark.parametrize("stage", STAGES, ids=[stage.name for stage in STAGES])
def test_the_function_by_which_a_stage_is_entered_is_in_its_file(stage: Stage) -> None:
    module = importlib.import_module("tallystick." + stage.file[:-3].replace("/", "."))
    found = operator.attrgetter(stage.function)(module)
    # A command is wrapped by the toolkit.
    code = getattr(found, "callback", found).__code__

    assert code.co_qualname == stage.function
    assert Path(code.co_filename) == PACKAGE / stage.file


def test_the_stages_are_those_that_a_traced_run_passes_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALLYSTICK_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    replies = ["```python\nprint(1)\n```", "```python\nFINAL(2)\n```"]
    lines = "\n".join(json.dumps({"text": each}) for each in replies)
    (tmp_path / "replies.jsonl").write_text(lines, encoding="utf-8")
    (tmp_path / "data.txt").write_text("one\n", encoding="utf-8")
    words = ["run", "what is it?", "-f", "data.txt", "-m", "scripted:replies.jsonl", "--quiet"]

    with entered() as functions:
        done = CliRunner().invoke(cli, words, standalone_mode=False)

    assert done.stdout == "2\n"
    assert passed(functions) == [stage.name for stage in STAGES]


@pytest.mark.parametrize("what", ["replay", "resume", "fork"])
def test_what_else_runs_a_record_passes_the_stages_that_the_page_says(
    what: str, sandbox: WasmSandbox
) -> None:
    acts: dict[str, Callable[[Agent, str], object]] = {
        "replay": lambda session, run: session.replay(run),
        "resume": lambda session, run: session.resume(run, limits=RunLimits()),
        "fork": lambda session, run: session.fork(run, turn=1, limits=RunLimits()),
    }
    ledger = MemoryLedger()
    with Agent(model(), sandbox=sandbox, ledger=ledger, config=None) as session:
        run = session.run("what is it?", limits=RunLimits(turns=1), strategy="code").run

    # Another client: its loop starts inside, and its thread is looked at too.
    with (
        entered() as functions,
        Agent(model(), sandbox=sandbox, ledger=ledger, config=None) as session,
    ):
        acts[what](session, run)

    assert f"runtime/run/{what}.py" in {file for file, _ in functions}
    assert passed(functions) == names_after(what)
