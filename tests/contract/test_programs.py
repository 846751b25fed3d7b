"""What every backend promises of the programs of a run, tried on each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.escape.process.boxes import made_sandbox

from tallystick.core.charge import RunLimits
from tallystick.core.errors import BackendError, StoreError
from tallystick.core.history import History
from tallystick.core.json_text import digest
from tallystick.core.machine.prompt import TEMPLATE
from tallystick.core.records import (
    AttachmentRef,
    FilesKept,
    ProgramFinished,
    Record,
    RunProgram,
    RunStarted,
    SessionGiven,
    SnapshotTaken,
)
from tallystick.runtime.context.attachments import described_bytes
from tallystick.runtime.programs.outcome import finished_of
from tallystick.sandbox.backend import BACKENDS, Backend, Surface, make_backend
from tallystick.sandbox.host import HostFunction, HostTable
from tallystick.sandbox.port import ExecutionContext, ExecutionResult, Keeper, Programs
from tallystick.sandbox.process.sandbox import ProcessSandbox
from tallystick.sandbox.snapshot import Image, SnapshotId, pack_snapshot
from tallystick.sandbox.wasm.sandbox import WasmSandbox

HOST = HostTable([HostFunction(name="echo", function=lambda value: value, local=True)])
SESSION = "S"
# How a program leaves something that another process finds, and how that one reads it.
LEAVES = {"wasm": "left = 41\nNone", "process": "with open('left', 'w') as f: f.write('41')"}
FINDS = {"wasm": "left + 1", "process": "int(open('left').read()) + 1"}


class Kept:
    """Keeps bytes in memory, and can lose them."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    def keep(self, source: bytes, /, *, media_type: str, label: str) -> AttachmentRef:
        ref = described_bytes(source, media_type=media_type, label=label)
        self.held[ref.id] = source
        return ref

    def read(self, ref: AttachmentRef, /) -> bytes:
        if ref.id not in self.held:
            raise StoreError("it is gone")
        return self.held[ref.id]

    def keep_snapshot(self, pieces: Any, /) -> AttachmentRef:
        return self.keep(b"".join(pieces), media_type="application/octet-stream", label="snapshot")

    def read_snapshot(self, ref: AttachmentRef, /) -> AbstractContextManager[Sequence[bytes], None]:
        return nullcontext([self.read(ref)])


_: type[Keeper] = Kept


@pytest.fixture(scope="module")
def process_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessSandbox]:
    made = made_sandbox(tmp_path_factory.mktemp("output"), spares=0)
    yield made
    asyncio.run(made.close())


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, sandbox: WasmSandbox, tmp_path: Path) -> Backend:
    surface = Surface(cache=tmp_path, output=tmp_path)
    given = sandbox if request.param == "wasm" else request.getfixturevalue("process_sandbox")
    return make_backend(request.param, surface, given)


def start_of(backend: Backend, **more: Any) -> RunStarted:
    name, guest, engine = backend.identity
    return RunStarted(
        goal="a goal", model="scripted", limits=RunLimits(), grants=(), contexts=(), functions=(),
        texts=(), seed=7, session_id=SESSION, template=TEMPLATE, guest=guest, engine=engine,
        started_at=0, backend=name, **more,
    )  # fmt: skip


class Run:
    """One process of a run: its programs, and what it has recorded of them."""

    def __init__(self, backend: Backend, kept: Kept, records: Sequence[Record] = ()) -> None:
        self.name = backend.identity.backend
        self._backend = backend
        self._kept = kept
        self.records = list(records)
        self.programs: Programs
        self.after = 0

    async def open(self, **more: Any) -> Run:
        started = self.records[0] if self.records else start_of(self._backend, **more)
        assert isinstance(started, RunStarted)
        history = History(self.records)
        self.programs = await self._backend.open(started, history, self._kept)
        if self.records:
            try:
                self.after = await self.programs.restore(history)
            except BaseException:
                await self.programs.close()
                raise
        else:
            self.records = [started]
        return self

    async def execute(self, source: str, *, timeout_ms: int = 20_000) -> ExecutionResult:
        intent = sum(isinstance(each, RunProgram) for each in self.records) + 1
        program = RunProgram(intent=intent, turn=intent, part=0, sha256=digest(source.encode()))
        self.records.append(program)
        result = await self.programs.execute(
            program,
            source,
            context=ExecutionContext(session_id=SESSION, timeout_ms=timeout_ms),
            host=HOST,
            attempted=lambda attempt: None,
        )
        self.records.append(finished_of(program, result))
        return result

    async def keep(self, *, fuel_saved: int = 0) -> SnapshotTaken | FilesKept | None:
        finished = self.records[-1]
        assert isinstance(finished, ProgramFinished)
        kept = await self.programs.keep(finished, fuel_saved=fuel_saved)
        if kept is not None:
            self.records.append(kept)
        return kept


def played(backend: Backend, scenario: Callable[[Run], Any], kept: Kept | None = None) -> Any:
    """Play a scenario on the programs of a new run."""

    async def play() -> Any:
        run = await Run(backend, Kept() if kept is None else kept).open()
        try:
            return await scenario(run)
        finally:
            await run.programs.close()

    return asyncio.run(play())


def test_programs_are_of_the_backend_that_opened_them(backend: Backend) -> None:
    async def scenario(run: Run) -> None:
        assert run.programs.identity == backend.identity
        assert run.programs.repeatable == backend.repeatable
        assert run.programs.session_id == SESSION

    assert backend.identity.backend in BACKENDS
    assert all(backend.identity)
    played(backend, scenario)


def test_a_program_prints_asks_and_fails_by_its_result(backend: Backend) -> None:
    async def scenario(run: Run) -> None:
        asked = await run.execute("n = echo(20)\nprint(n)\nn + 1")
        failed = await run.execute("n += 1\nraise KeyError('k')")
        later = await run.execute("n")

        assert (asked.stdout, asked.value, asked.stop) == ("20\n", "21", "finished")
        assert [each.name for each in asked.calls] == ["echo"]
        assert failed.error is not None
        assert (failed.error.kind, failed.stop) == ("KeyError", "finished")
        assert later.value == "21"

    played(backend, scenario)


def test_a_program_that_fails_tells_its_line_with_the_values_there(backend: Backend) -> None:
    async def scenario(run: Run) -> None:
        failed = await run.execute(
            "record = {'paid': '3 EUR'}\ntotal = 1.5\ntotal += record['paid']"
        )
        bare = await run.execute("1 / 0")

        assert failed.error is not None
        assert failed.error.line == (
            "total += record['paid']\ntotal is 1.5 (float)\nrecord['paid'] is '3 EUR' (str)"
        )
        assert bare.error is not None
        assert bare.error.line == ""
        recorded = [each for each in run.records if isinstance(each, ProgramFinished)]
        assert [each.failure.line for each in recorded if each.failure is not None] == [
            failed.error.line,
            msgspec.UNSET,
        ]

    played(backend, scenario)


def test_a_program_that_is_ended_from_outside_leaves_what_was_there(backend: Backend) -> None:
    async def scenario(run: Run) -> None:
        await run.execute(f"n = 1\n{LEAVES[run.name]}")
        ended = await run.execute("n = 2\nwhile True: pass", timeout_ms=300)
        later = await run.execute(f"n, {FINDS[run.name]}")

        assert ended.stop == "wall"
        assert ended.error is not None
        assert later.value == "(1, 42)"

    played(backend, scenario)


def test_another_process_stands_after_what_was_kept(backend: Backend) -> None:
    kept = Kept()

    async def first(run: Run) -> list[Record]:
        await run.execute(LEAVES[run.name])
        record = await run.keep()
        assert isinstance(record, SnapshotTaken if backend.repeatable else FilesKept)
        assert (record.intent, record.turn) == (1, 1)
        return run.records

    async def second(records: list[Record]) -> None:
        run = await Run(backend, kept, records).open()
        try:
            assert run.after == 1
            assert (await run.execute(FINDS[run.name])).value == "42"
        finally:
            await run.programs.close()

    asyncio.run(second(played(backend, first, kept)))


def test_what_changed_nothing_is_not_kept_again(backend: Backend) -> None:
    """Of what can be run again, nothing is kept before that would take as long as was said."""

    async def scenario(run: Run) -> None:
        await run.execute(LEAVES[run.name])
        assert await run.keep() is not None
        await run.execute("None")
        assert await run.keep(fuel_saved=1 << 60) is None

    played(backend, scenario)


def test_what_was_kept_and_is_gone_is_never_passed_over(backend: Backend) -> None:
    """Programs are run again from the first, or the run is not opened."""
    kept = Kept()

    async def first(run: Run) -> list[Record]:
        await run.execute(LEAVES[run.name])
        await run.keep()
        return run.records

    async def second(records: list[Record]) -> int:
        run = await Run(backend, kept, records).open()
        await run.programs.close()
        return run.after

    records = played(backend, first, kept)
    kept.held.clear()
    if backend.repeatable:
        assert asyncio.run(second(records)) == 0
    else:
        with pytest.raises(BackendError, match="cannot be read: it is gone"):
            asyncio.run(second(records))


def test_a_session_goes_on_from_the_image_of_a_run(backend: Backend) -> None:
    kept = Kept()

    async def first(run: Run) -> SessionGiven:
        assert await run.programs.image() is None
        await run.execute(f"shown = [1, 2]\n{LEAVES[run.name]}")
        await run.keep()
        image = await run.programs.image()
        assert image is not None
        assert "shown" in image.names
        raw = image.image
        if isinstance(raw, Image):
            named = SnapshotId(id="1", name="run", session_id=SESSION, created_at=0)
            raw = b"".join(pack_snapshot(named, raw))
            assert image.values is not None
            assert msgspec.json.decode(image.values)["values"]["shown"] == [1, 2]
        ref = kept.keep(raw, media_type="application/octet-stream", label="image")
        return SessionGiven(session=SESSION, image=ref)

    async def second(given: SessionGiven) -> None:
        run = await Run(backend, kept).open(session=given)
        try:
            assert await run.programs.image() is None
            found = await run.execute(f"shown, {FINDS[run.name]}")
            assert found.value == "([1, 2], 42)"
        finally:
            await run.programs.close()

    asyncio.run(second(played(backend, first, kept)))


def test_a_program_that_is_cancelled_is_over_and_what_ran_it_can_be_closed(
    backend: Backend,
) -> None:
    async def scenario(run: Run) -> None:
        asked = asyncio.Event()
        loop = asyncio.get_running_loop()

        def ask() -> None:
            loop.call_soon_threadsafe(asked.set)

        table = HostTable([HostFunction(name="ask", function=ask, local=True)])
        source = "ask()\nwhile True: pass"
        program = RunProgram(intent=1, turn=1, part=0, sha256=digest(source.encode()))
        context = ExecutionContext(session_id=SESSION, timeout_ms=60_000)
        task = asyncio.ensure_future(
            run.programs.execute(
                program, source, context=context, host=table, attempted=lambda attempt: None
            )
        )
        await asyncio.wait_for(asked.wait(), 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    played(backend, scenario)


def test_closing_twice_is_harmless(backend: Backend) -> None:
    async def scenario(run: Run) -> None:
        await run.execute("1")
        await run.programs.close()
        await run.programs.close()

    played(backend, scenario)
