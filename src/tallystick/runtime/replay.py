"""Replay: the driver over a recorded world, compared entry by entry.

No model, no network, no host function. Replies and answers come from the ledger; programs run again
and must print, ask and cost what they did. A program that was ended by time, a cancel or a trap did
not end at a repeatable place: it is served as it was recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec

from tallystick.core.errors import LedgerError, ReplayDiverged, SandboxError
from tallystick.core.machine import RunState
from tallystick.core.prompt import TEMPLATE, Message
from tallystick.core.records import (
    AskModel,
    CallHost,
    HostAnswered,
    ModelFailed,
    ModelReplied,
    ProgramFinished,
    Record,
    RunEnded,
    RunProgram,
    RunStarted,
    encode_record,
)
from tallystick.ledger.verify import BadEntry
from tallystick.runtime.driver import Asked, Driver, WaitedTooLong, World
from tallystick.runtime.live import finished_of, program_context
from tallystick.runtime.pen import Pen
from tallystick.sandbox.host import Answer, HostTable, RecordedHost
from tallystick.sandbox.port import HostCall, HostNames
from tallystick.sandbox.wasm.engine import ENGINE
from tallystick.sandbox.wasm.session import WasmSession

__all__ = ["Divergence", "ReplayReport", "broken_chain", "replay_records", "rerunnable"]

# Ended from outside, at a place that depends on the machine.
_SERVED = frozenset({"wall", "deadline", "cancelled", "trap"})
# How long things took is the world's word; everything else is recomputed.
_UNREPEATABLE = frozenset({"wall_ms"})
_SHOWN_CHARS_MAX = 200


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """The first place where the run is not what it was."""

    seq: int
    field: str
    recorded: object
    now: object


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay found."""

    run: str
    entries: int
    held: bool
    divergence: Divergence | None
    programs: int
    served: int
    note: str | None = None


class _Stop(Exception):
    """The record has nothing more to compare with."""


class _ComparingPen:
    """Compares what would be written with what was."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = records
        self._place = 0
        self.first: Divergence | None = None

    @property
    def place(self) -> int:
        return self._place

    def ride(self, record: Record) -> None:
        if self._place >= len(self._records):
            raise _Stop
        recorded = self._records[self._place]
        if self.first is None:
            self.first = _difference(self._place, recorded, record)
        self._place += 1

    commit = force = ride


class _RecordedWorld:
    """Serves what was recorded, and runs programs again."""

    def __init__(
        self, records: Sequence[Record], session: WasmSession | None, names: HostNames
    ) -> None:
        self._replies = {
            record.intent: record
            for record in records
            if isinstance(record, ModelReplied | ModelFailed)
        }
        self._asked = {record.intent for record in records if isinstance(record, AskModel)}
        self._finished = {
            record.intent: record for record in records if isinstance(record, ProgramFinished)
        }
        self._answers: dict[int, list[HostAnswered]] = {}
        self._effects = {record.intent for record in records if isinstance(record, CallHost)}
        for record in records:
            if isinstance(record, HostAnswered):
                self._answers.setdefault(record.program, []).append(record)
        answered = {record.intent for record in records if isinstance(record, HostAnswered)}
        self._unanswered: dict[int, list[CallHost]] = {}
        for record in records:
            if isinstance(record, CallHost) and record.intent not in answered:
                self._unanswered.setdefault(record.program, []).append(record)
        self._ended = next((each for each in records if isinstance(each, RunEnded)), None)
        self._session = session
        self._names = names
        self.cancelled = False
        self.programs = 0
        self.served = 0

    @asynccontextmanager
    async def admitted(self, intent: AskModel, *, wall_ms_left: int) -> AsyncIterator[None]:
        if intent.intent not in self._asked:
            raise self._ended_here()
        yield

    async def ask(
        self, intent: AskModel, messages: tuple[Message, ...], *, wall_ms_left: int
    ) -> ModelReplied | ModelFailed:
        reply = self._replies.get(intent.intent)
        if reply is None:
            raise self._ended_here()
        return reply

    async def run(
        self, intent: RunProgram, source: str, asked: Asked, *, state: RunState
    ) -> ProgramFinished:
        recorded = self._finished.get(intent.intent)
        answers = self._answers.get(intent.intent, [])
        if recorded is None:
            self._note_all(intent, answers, asked)
            raise self._ended_here()
        if self._session is None or recorded.stop in _SERVED:
            self.served += 1
            self._note_all(intent, answers, asked)
            return recorded
        self.programs += 1
        result = await self._session.execute(
            source,
            context=program_context(intent, state),
            host=_NotedHost(answers, self._names, lambda answer: self._note(answer, asked)),
        )
        now = finished_of(intent, result)
        # The machine goes on with how long it took then, or the caps would fall elsewhere.
        return msgspec.structs.replace(now, wall_ms=recorded.wall_ms)

    def _note_all(self, intent: RunProgram, answers: Sequence[HostAnswered], asked: Asked) -> None:
        """Note a program's calls in their order, also those that were never answered."""
        for answer in answers:
            self._note(answer, asked)
        for call in self._unanswered.get(intent.intent, ()):
            asked.calling(
                index=call.index, name=call.name, request_sha256=call.request_sha256, effect=True
            )

    def _ended_here(self) -> BaseException:
        """What ended the run while this was under way; nothing, if the record just stops."""
        if self._ended is None:
            return _Stop()
        if self._ended.stop in ("cancelled", "in_doubt"):
            self.cancelled = True
            return asyncio.CancelledError()
        if self._ended.stop == "deadline":
            return WaitedTooLong(self._ended.detail)
        return SandboxError(self._ended.detail)

    def _note(self, answer: HostAnswered, asked: Asked) -> None:
        asked.calling(
            index=answer.index,
            name=answer.name,
            request_sha256=answer.request_sha256,
            effect=answer.intent in self._effects,
        )
        asked.answered(answer)


class _NotedHost:
    """Recorded answers by position, each noted as it is served."""

    def __init__(
        self,
        answers: Sequence[HostAnswered],
        names: HostNames,
        note: Callable[[HostAnswered], None],
    ) -> None:
        self._recorded = answers
        self._host = RecordedHost(
            [
                Answer(request_sha256=each.request_sha256, fuel=each.fuel, reply=each.reply)
                for each in answers
            ],
            then=HostTable(),
        )
        self._names = names
        self._note = note

    @property
    def names(self) -> HostNames:
        return self._names

    def serve(self, call: HostCall) -> bytes:
        if call.index >= len(self._recorded):
            raise ReplayDiverged(index=call.index, field="calls", recorded=None, now=call.name)
        reply = self._host.serve(call)
        assert isinstance(reply, bytes)
        self._note(self._recorded[call.index])
        return reply


async def replay_records(
    run: str, records: Sequence[Record], *, session: WasmSession | None, names: HostNames
) -> ReplayReport:
    """Drive the recorded run again. Without a session, programs are served, not run."""
    if not records or not isinstance(records[0], RunStarted):
        raise LedgerError(f"run {run} does not begin with its start")
    world = _RecordedWorld(records, session, names)
    pen = _ComparingPen(records)
    driver = Driver(records[0], world=world, pen=pen)
    divergence: Divergence | None = None
    try:
        await driver.drive()
    except _Stop:
        pass
    except asyncio.CancelledError:
        if not world.cancelled:
            raise
    except ReplayDiverged as error:
        divergence = Divergence(
            seq=pen.place, field=error.field, recorded=error.recorded, now=error.now
        )
    divergence = pen.first or divergence
    ended = any(isinstance(record, RunEnded) for record in records)
    if divergence is None and ended and pen.place != len(records):
        divergence = Divergence(
            seq=pen.place, field="entries", recorded=len(records), now=pen.place
        )
    return ReplayReport(
        run=run,
        entries=len(records),
        held=divergence is None,
        divergence=divergence,
        programs=world.programs,
        served=world.served,
        note=_other_template(records[0]) if divergence is not None else None,
    )


def _other_template(started: RunStarted) -> str | None:
    """Why prompts differ, where that is no fault of the record."""
    if started.template == TEMPLATE:
        return None
    return (
        f"the run was made with the prompts {started.template}; this version writes {TEMPLATE} and "
        "cannot make those again"
    )


def broken_chain(run: str, *, entries: int, bad: BadEntry) -> ReplayReport:
    """The report of a run whose hashes, computed again, are not the recorded ones."""
    divergence = Divergence(seq=bad.seq, field="chain", recorded=bad.why, now=None)
    return ReplayReport(
        run=run, entries=entries, held=False, divergence=divergence, programs=0, served=0
    )


def rerunnable(started: RunStarted, guest: str) -> bool:
    """True if programs of this run mean the same here: same guest, same engine."""
    return started.guest == guest and started.engine == ENGINE


def _difference(seq: int, recorded: Record, now: Record) -> Divergence | None:
    before, after = _fields(recorded), _fields(now)
    for field in sorted(before.keys() | after.keys()):
        if field not in _UNREPEATABLE and before.get(field) != after.get(field):
            return Divergence(
                seq=seq,
                field=field,
                recorded=_shown(before.get(field)),
                now=_shown(after.get(field)),
            )
    return None


def _fields(record: Record) -> dict[str, object]:
    fields: dict[str, object] = msgspec.json.decode(encode_record(record))
    return fields


def _shown(value: object) -> object:
    if isinstance(value, str) and len(value) > _SHOWN_CHARS_MAX:
        return value[:_SHOWN_CHARS_MAX] + "..."
    return value


_pen: type[Pen] = _ComparingPen
_world: type[World] = _RecordedWorld
