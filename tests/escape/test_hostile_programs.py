"""Programs that try to get out: each fails in the way it says, and nothing else is touched."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from tests.descriptors import new_descriptors, open_descriptors
from tests.escape.case import RAW, Case
from tests.escape.programs import CLASSES
from tests.wasm_session import TestSession, open_session

from tallystick.sandbox.port import ExecutionResult
from tallystick.sandbox.wasm.sandbox import WasmSandbox

NAMED_IN_THE_ISSUE = {
    "host files", "environment", "network", "processes",
    "dunder walks", "frame walks", "format-string walks",
    "import tricks", "raw ABI calls", "patching our own prelude",
    "C-level loops", "ReDoS", "big integers", "memory bombs", "deep recursion", "output floods",
    "except BaseException loops", "clock and randomness probes",
}  # fmt: skip
# The first of each class in the default suite, the others in CI.
_QUICK = 1
CASES = [
    pytest.param(
        case,
        id=f"{kind}: {case.name}",
        marks=() if place < _QUICK else pytest.mark.slow,
    )
    for kind, cases in CLASSES.items()
    for place, case in enumerate(cases)
]


@dataclass(frozen=True)
class Canary:
    """What only the host knows, in each place a program might look."""

    environment: str
    file: str
    memory: str
    home: str
    path: str = ""

    def seen_in(self, text: str) -> list[str]:
        # A host of two letters would be seen everywhere.
        name = [socket.gethostname()] if len(socket.gethostname()) > 5 else []
        known = [self.environment, self.file, self.memory, self.home, *name]
        return [each for each in known if each in text]


@pytest.fixture(scope="module")
def canary(sandbox: WasmSandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Canary]:
    # The sandbox is loaded by then: where its code is kept depends on the home.
    path = tmp_path_factory.mktemp("host") / "secret.txt"
    words = [f"canary-{secrets.token_hex(12)}" for _ in range(4)]
    made = Canary(words[0], words[1], words[2], words[3], str(path))
    path.write_text(made.file, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TALLYSTICK_CANARY", made.environment)
        patch.setenv("HOME", f"/home/{made.home}")
        yield made


@dataclass(frozen=True)
class Neighbour:
    """Another session, opened before, and what it looked like then."""

    session: TestSession
    digest: str


@pytest.fixture(scope="module")
def neighbour(sandbox: WasmSandbox) -> Iterator[Neighbour]:
    with open_session(sandbox, seed=5) as opened:
        opened.value("mine = ['untouched']")
        yield Neighbour(opened, opened.do(opened.session.digest()))


def host_state() -> tuple[object, ...]:
    return os.getcwd(), dict(os.environ), os.getpid()


def shown(result: ExecutionResult) -> str:
    """All a reader of the result sees, but for where the host put the rest of the output."""
    cut = msgspec.structs.replace(result, output_file_path=None, metadata={})
    text = msgspec.json.encode(cut).decode()
    return text.replace(result.output_file_path, "") if result.output_file_path else text


def run(session: TestSession, case: Case) -> ExecutionResult:
    return session.run(
        case.program,
        wall_ms=case.wall_ms,
        fuel=case.fuel,
        max_output_bytes=case.max_output_bytes,
        **case.limits,
    )


@pytest.mark.parametrize("case", CASES)
def test_a_hostile_program_harms_nobody_but_itself(
    case: Case, session: TestSession, neighbour: Neighbour, canary: Canary
) -> None:
    session.value("kept = 41")
    before, descriptors = host_state(), open_descriptors()

    result = run(session, case)

    kind = result.error.kind if result.error else ""
    assert case.anyhow or result.stop in case.stops, result
    assert case.anyhow or kind in (case.kinds or ("",)), result
    assert result.metadata.get("capability") == case.capability or case.capability is None
    assert result.value == case.value or case.value is None, result
    assert [part for part in case.shows if part not in shown(result)] == [], result
    assert -1 <= result.exit_code <= 255
    assert result.charge.fuel <= case.fuel
    assert result.charge.host_calls <= case.limits.get("host_calls", 10_000)
    assert result.charge.output_bytes <= case.limits.get("output_bytes", 16 * 1024 * 1024)
    assert canary.seen_in(shown(result)) == []
    assert host_state() == before
    assert new_descriptors(descriptors) == {}
    assert neighbour.session.do(neighbour.session.session.digest()) == neighbour.digest
    if result.stop != "finished":
        assert session.value("kept + 1") == "42"
    elif case.ruins_itself or case.anyhow:
        after = session.run("1 + 1", wall_ms=300, fuel=case.fuel)
        assert canary.seen_in(shown(after)) == []
    else:
        assert session.value("kept + 1") == "42"


def test_there_are_enough_hostile_programs_of_every_class() -> None:
    names = [parameter.id for parameter in CASES]

    assert CLASSES.keys() >= NAMED_IN_THE_ISSUE
    assert all(len(cases) >= 4 for cases in CLASSES.values())
    assert len(names) == len(set(names)) >= 110


def test_the_neighbour_would_be_seen_to_change(sandbox: WasmSandbox) -> None:
    with open_session(sandbox) as opened:
        before = opened.do(opened.session.digest())
        opened.value("mine = 1")

        assert opened.do(opened.session.digest()) != before


def test_a_canary_would_be_seen_in_a_result() -> None:
    made = Canary("environment-canary", "file-canary", "memory-canary", "home-canary")
    result = ExecutionResult(stdout="there: file-canary")

    assert made.seen_in(shown(result)) == ["file-canary"]


def test_hostile_programs_at_the_same_time_stay_apart(sandbox: WasmSandbox) -> None:
    programs = [
        "while True: pass",
        "x = [0]\nwhile True: x += x",
        "import os; os.abort()",
        "9**9**9",
    ]
    stops: dict[int, str] = {}

    def attack(number: int) -> None:
        with open_session(sandbox, seed=number) as opened:
            opened.value(f"kept = {number}")
            for turn in range(4):
                opened.run(programs[(number + turn) % 4], wall_ms=100, memory_bytes=64 << 20)
            stops[number] = opened.value("kept") or ""

    attackers = [threading.Thread(target=attack, args=(number,)) for number in range(4)]
    for attacker in attackers:
        attacker.start()
    for attacker in attackers:
        attacker.join()

    assert stops == {number: str(number) for number in range(4)}


def test_a_program_that_knows_where_the_secret_is_cannot_read_it(
    session: TestSession, canary: Canary
) -> None:
    assert Path(canary.path).read_text(encoding="utf-8") == canary.file

    result = session.run(
        f"""
import _io, codecs, fileinput, io, linecache, os, pathlib, posix, shutil, sqlite3, tokenize
path = {canary.path!r}
ways = [
    lambda: open(path).read(), lambda: io.open(path).read(), lambda: _io.open(path).read(),
    lambda: _io.FileIO(path).read(), lambda: _io.open_code(path).read(),
    lambda: posix.read(posix.open(path, 0), 99), lambda: os.stat(path), lambda: posix.stat(path),
    lambda: pathlib.Path(path).read_text(), lambda: linecache.getlines(path)[0],
    lambda: codecs.open(path).read(), lambda: list(fileinput.input(path)),
    lambda: shutil.copy(path, 'x'), lambda: tokenize.open(path).read(),
    lambda: sqlite3.connect(path).execute('select 1').fetchone(),
]
got = []
for way in ways:
    try:
        got.append(way())
    except Exception:
        pass
got
"""
    )

    assert result.value == "[]", result
    assert canary.seen_in(shown(result)) == []


def test_the_whole_of_a_guests_memory_holds_nothing_of_the_host(
    session: TestSession, canary: Canary
) -> None:
    size = session.run("planted = 'planted-' + 'here'").charge.memory_bytes

    result = session.run(f"{RAW}host.stdio(1, 0, {size})", output_bytes=size)

    assert result.stop == "finished"
    assert result.output_file_path is not None
    dumped = Path(result.output_file_path).read_bytes()
    assert len(dumped) == size
    assert b"planted-here" in dumped
    assert canary.seen_in(dumped.decode("latin-1")) == []
    assert str(Path(canary.path).parent).encode() not in dumped
