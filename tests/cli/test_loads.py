"""What a command imports: who only reads the ledger does not wait for the engine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUN = [
    "run",
    "which are overdue?",
    "-f",
    "examples/books.csv",
    "-m",
    "scripted:examples/overdue.jsonl",
]

# None of these runs a program. `{run}` is a run of the ledger, `{out}` a file that is not there.
READERS = [
    ["--help"],
    ["attach", "ls"],
    ["config"],
    ["diff", "{run}", "{run}"],
    ["export", "{run}", "{out}"],
    ["head", "{run}"],
    ["import", "{export}"],
    ["inspect", "{run}"],
    ["ls"],
    ["ls", "--in-doubt"],
    ["memory", "ls"],
    ["prune", "--keep", "9", "--dry-run"],
    ["prove", "{run}", "1"],
    ["recall", "what?"],
    ["receipt", "{run}"],
    ["resolve", "--help"],
    ["rm", "{run}", "--yes"],
    ["session", "export", "{session}"],
    ["session", "ls"],
    ["session", "show", "{session}"],
    ["skills", "list"],
    ["snapshot", "ls", "{session}"],
    ["verify"],
]
WATCHED = """
import atexit, sys
atexit.register(lambda: print("loaded", *sys.modules, file=sys.stderr))
sys.argv[0] = "tally"
from tallystick.cli.main import main
main()
"""


class World:
    """A data directory with one run, one session and one export, and commands over it."""

    def __init__(self, home: Path) -> None:
        self.environ = {**os.environ, "TALLYSTICK_DATA_DIR": str(home / "data")}
        self.tally("remember", "the ferry leaves at nine")
        self.tally(*RUN)
        self.names = {
            "run": self.tally("ls").stdout.split()[0],
            "session": self.tally("session", "new").stdout.split()[0],
            "export": str(home / "export.tally"),
            "out": str(home / "out.tally"),
        }
        self.tally("export", self.names["run"], self.names["export"])

    def tally(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", WATCHED, *words]
        done = subprocess.run(command, cwd=ROOT, env=self.environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr.partition("loaded ")[0]
        return done


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("loads"))


@pytest.mark.slow
def test_a_run_loads_the_engine(world: World) -> None:
    assert "wasmtime" in world.tally(*RUN).stderr.partition("loaded ")[2].split()


@pytest.mark.slow
def test_a_run_loads_nothing_of_what_it_does_not_use(world: World) -> None:
    loaded = world.tally(*RUN).stderr.partition("loaded ")[2].split()

    unused = ("bridge", "interop", "memory.memory", "sandbox.process", "skills.skills", "upkeep")
    found = [name for name in loaded if name.startswith(tuple(f"tallystick.{x}" for x in unused))]
    assert found == []
    assert not {"httpcore", "yaml", "rich", "numpy", "importlib.metadata"} & set(loaded)


@pytest.mark.slow
def test_help_loads_the_toolkit_and_the_errors_alone(world: World) -> None:
    loaded = world.tally("--help").stderr.partition("loaded ")[2].split()

    ours = {name for name in loaded if name.startswith("tallystick")}
    assert len(ours) < 10
    assert not {"msgspec", "asyncio", "sqlite3"} & set(loaded)


@pytest.mark.slow
def test_naming_the_client_loads_neither_the_engine_nor_what_drives_a_run() -> None:
    named = "import sys, tallystick; tallystick.Agent; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", named], capture_output=True, text=True, check=True)

    loaded = set(done.stdout.split())
    assert "tallystick.agent.agent" in loaded
    assert not {"wasmtime", "httpcore", "tallystick.runtime.run.assembly"} & loaded


@pytest.mark.slow
@pytest.mark.parametrize("words", READERS, ids=" ".join)
def test_a_command_that_runs_no_program_does_not_load_the_engine(
    world: World, words: list[str]
) -> None:
    done = world.tally(*(word.format(**world.names) for word in words))

    loaded = set(done.stderr.partition("loaded ")[2].split())
    assert "tallystick.cli.main" in loaded
    assert not {"wasmtime", "httpcore"} & loaded
