"""Programs and commands that try to get out of a box: none does, and nothing of them stays."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.escape.process.boxes import (
    ProcessTestSession,
    living_in,
    made_sandbox,
    opened,
)
from tests.escape.process.case import MIB, Case
from tests.escape.process.programs import CLASSES

from tallystick.sandbox.port import ExecutionResult
from tallystick.sandbox.process.sandbox import ProcessSandbox

NAMED_IN_THE_ISSUE = {
    "fork bombs", "background children", "setuid", "/proc", "mounts", "ptrace", "signals",
    "sockets", "DNS", "metadata addresses", "links out of the overlay", "disk filling",
}  # fmt: skip
# The first of each class is tried by default, the others where there is more time.
_BY_DEFAULT = 1
CASES = [
    pytest.param(
        kind,
        case,
        id=f"{kind}: {case.name}",
        marks=pytest.mark.slow if place >= _BY_DEFAULT else (),
    )
    for kind, cases in CLASSES.items()
    for place, case in enumerate(cases)
]
pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the programs make system calls by x86-64 numbers"
)


@dataclass(frozen=True)
class Outside:
    """What is on the host for programs to find, and what must stay as it is."""

    secret: str
    directory: Path
    port: int
    name: str
    victim: subprocess.Popen[bytes]

    def told(self, text: str) -> str:
        """A program's text with where to look filled in."""
        path = str(self.directory / "host.sock")
        for key, value in (("{port}", str(self.port)), ("{name}", self.name), ("{path}", path)):
            text = text.replace(key, value)
        return text

    def state(self) -> tuple[object, ...]:
        files = {path.name: path.stat().st_mtime_ns for path in self.directory.iterdir()}
        return os.getcwd(), dict(os.environ), files, socket.gethostname(), self.victim.poll()


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessSandbox]:
    # Small, so that what fills or multiplies is soon at its end.
    made = made_sandbox(
        tmp_path_factory.mktemp("output"),
        spares=0,
        disk_bytes=64 * MIB,
        tmp_bytes=32 * MIB,
        inodes_max=2_048,
        processes_max=48,
    )
    yield made
    asyncio.run(made.close())


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    secret = f"canary-{secrets.token_hex(12)}"
    directory = tmp_path_factory.mktemp("host")
    (directory / "secret.txt").write_text(secret, encoding="utf-8")
    with (
        pytest.MonkeyPatch.context() as patch,
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.socket(socket.AF_UNIX) as abstract,
        socket.socket(socket.AF_UNIX) as named,
        subprocess.Popen(["sleep", "600"]) as victim,
    ):
        patch.setenv("TALLYSTICK_CANARY", secret)
        name = f"tally-{secret}"
        abstract.bind(f"\0{name}")
        abstract.listen()
        named.bind(str(directory / "host.sock"))
        named.listen()
        port = listening.getsockname()[1]
        yield Outside(secret, directory, port, name, victim)
        victim.kill()


@pytest.fixture(scope="module")
def neighbour(sandbox: ProcessSandbox) -> Iterator[ProcessTestSession]:
    with opened(sandbox) as session:
        session.value("mine = ['untouched']")
        session.said("echo mine > file")
        yield session


@pytest.fixture(scope="module")
def kind(request: pytest.FixtureRequest) -> str:
    """The class whose programs share a session."""
    return str(request.param)


@pytest.fixture(scope="module")
def session(sandbox: ProcessSandbox, kind: str) -> Iterator[ProcessTestSession]:
    """The session of a class. When it closes, nothing of it may be left."""
    with opened(sandbox) as made:
        yield made
    assert living_in(made.namespace) == [], kind


def run(session: ProcessTestSession, case: Case, text: str) -> ExecutionResult:
    perform = session.run if case.python else session.command
    return perform(text, wall_ms=case.wall_ms, **case.limits)


@pytest.mark.parametrize(("kind", "case"), CASES, indirect=["kind"])
def test_a_hostile_program_harms_nobody_but_itself(
    case: Case,
    session: ProcessTestSession,
    neighbour: ProcessTestSession,
    outside: Outside,
) -> None:
    session.value("kept = 41")
    before = outside.state()

    result = run(session, case, outside.told(case.text))

    printed = result.stdout + result.stderr
    assert result.stop in case.stops, result
    assert "ESCAPED" not in printed, result
    assert outside.secret not in repr(result).replace(outside.name, "")
    assert [part for part in case.shows if part not in printed] == [], result
    assert outside.state() == before
    assert session.value("kept + 1") == "42"
    assert session.said("echo here") == "here\n"


def test_the_neighbour_of_all_these_has_what_it_had(neighbour: ProcessTestSession) -> None:
    assert neighbour.value("mine") == "['untouched']"
    assert neighbour.said("cat file") == "mine\n"


def test_there_are_enough_hostile_programs_of_every_class() -> None:
    names = [parameter.id for parameter in CASES]

    assert CLASSES.keys() >= NAMED_IN_THE_ISSUE
    assert all(len(cases) >= 5 for cases in CLASSES.values())
    assert len(names) == len(set(names)) >= 150


def test_what_a_session_leaves_running_would_be_seen(sandbox: ProcessSandbox) -> None:
    with opened(sandbox) as session:
        session.said("sleep 300 & setsid sleep 300 & echo left")

        assert len(living_in(session.namespace)) >= 4

    assert living_in(session.namespace) == []


_ORDINARY = Path(__file__).with_name("ordinary.py")


@pytest.mark.slow
def test_the_same_programs_fail_in_a_box_of_an_ordinary_user() -> None:
    done = subprocess.run([sys.executable, _ORDINARY], capture_output=True, check=True, text=True)

    user, count, bad, left, tested = json.loads(done.stdout)
    assert user != 0
    assert count >= 150
    assert (bad, left) == ([], [])
    assert [each for each, why in tested if why is not None] == []


def test_an_escape_would_be_seen(sandbox: ProcessSandbox) -> None:
    with opened(sandbox) as session:
        result = session.command("test -e /etc/passwd && echo ESCAPED")

        assert "ESCAPED" in result.stdout
