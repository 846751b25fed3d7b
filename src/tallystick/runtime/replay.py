"""Replay: the driver over a recorded world, compared entry by entry.

No model, no network, no host function. Replies and answers come from the ledger, or are made again
from the run's attachments and compared; programs run again and must print, ask and cost what they
did. A program that was ended by time, a cancel or a trap did
not end at a repeatable place: it is served as it was recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec

from tallystick.core.attachment import AttachmentRef
from tallystick.core.canonical import digest
from tallystick.core.errors import LedgerError, ReplayDiverged, SandboxError
from tallystick.core.machine import RunState
from tallystick.core.prompt import TEMPLATE, Message, request_digest
from tallystick.core.records import (
    LEFT,
    AskModel,
    CallHost,
    HostAnswered,
    ModelFailed,
    ModelRefused,
    ModelReplied,
    ProgramFinished,
    QueryRecord,
    Record,
    RunEnded,
    RunProgram,
    RunStarted,
    tag_of,
)
from tallystick.ledger.verify import BadEntry
from tallystick.runtime.comparing import ComparingPen, Divergence, NothingMore
from tallystick.runtime.driver import Asked, CallRefused, Driver, WaitedTooLong, World
from tallystick.runtime.given import given_again, texts_of
from tallystick.runtime.live import finished_of, output_files, program_context
from tallystick.runtime.names import names_of
from tallystick.runtime.queries import Queries, QueryPlace
from tallystick.runtime.recorded_desk import RecordedDesk
from tallystick.runtime.shelf import Shelf, described_file
from tallystick.sandbox.host import Answer, Blocking, HostTable, RecordedHost
from tallystick.sandbox.port import HostCall, HostNames
from tallystick.sandbox.wasm.engine import ENGINE
from tallystick.sandbox.wasm.session import WasmSession

__all__ = ["Divergence", "ReplayReport", "broken_chain", "replay_records", "rerunnable"]

# Ended from outside, at a place that depends on the machine.
_SERVED = frozenset({"wall", "deadline", "cancelled", "trap"})


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay found."""

    run: str
    entries: int
    held: bool
    divergence: Divergence | None
    programs: int
    served: int
    note: str | None = None


class _RecordedWorld:
    """Serves what was recorded, and runs programs again."""

    def __init__(
        self,
        records: Sequence[Record],
        session: WasmSession | None,
        *,
        names: HostNames,
        table: HostTable,
        shelf: Shelf,
        desk: RecordedDesk,
        queries: Queries,
    ) -> None:
        self._table = table
        self._shelf = shelf
        self._desk = desk
        self._queries = queries
        self._replies = {
            record.intent: record
            for record in records
            if isinstance(record, ModelReplied | ModelFailed)
        }
        self._asked = {record.intent: record for record in records if isinstance(record, AskModel)}
        self._refused = {
            record.intent: record for record in records if isinstance(record, ModelRefused)
        }
        self._model = next(each.model for each in records if isinstance(each, RunStarted))
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
        self._program_queries = _by_program(records)
        self._ended = next((each for each in records if isinstance(each, RunEnded)), None)
        self._session = session
        self._names = names
        self.cancelled = False
        self.programs = 0
        self.served = 0

    @asynccontextmanager
    async def admitted(
        self, intent: AskModel, messages: tuple[Message, ...], *, wall_ms_left: int
    ) -> AsyncIterator[AskModel]:
        if intent.intent in self._refused:
            raise CallRefused(self._refused[intent.intent])
        asked = self._asked.get(intent.intent)
        if asked is None:
            raise self._ended_here()
        # What was reserved, and the cap it paid for, was the world's word.
        yield msgspec.structs.replace(
            intent,
            reserved=asked.reserved,
            tokens_out_max=asked.tokens_out_max,
            request_sha256=request_digest(
                self._model,
                messages,
                tokens_out_max=asked.tokens_out_max,
                temperature=intent.temperature,
            ),
        )

    def left(self, intent: AskModel) -> ModelFailed:
        reply = self._replies[intent.intent]
        assert isinstance(reply, ModelFailed)
        return reply

    async def ask(
        self, intent: AskModel, messages: tuple[Message, ...], *, wall_ms_left: int
    ) -> ModelReplied | ModelFailed:
        reply = self._replies.get(intent.intent)
        if reply is None:
            raise self._ended_here()
        if isinstance(reply, ModelFailed) and reply.reason == LEFT:
            self.cancelled = True
            raise asyncio.CancelledError
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
        self._shelf.outputs = state.outputs
        self._desk.written = asked.queries
        host = _NotedHost(
            answers,
            self._names,
            lambda answer: self._note(answer, asked),
            again=self._table,
            read=self._shelf.read,
            queries=self._queries,
        )
        result = await self._session.execute(
            source, context=program_context(intent, state), host=host
        )
        outputs = tuple(
            described_file(path, media_type="text/plain", label=label)
            for path, label in output_files(intent, result)
        )
        now = finished_of(intent, result, outputs)
        # The machine goes on with how long it took then, or the caps would fall elsewhere.
        return msgspec.structs.replace(now, wall_ms=recorded.wall_ms)

    def _note_all(self, intent: RunProgram, answers: Sequence[HostAnswered], asked: Asked) -> None:
        """Note a program's calls in their order, also those that were never answered."""
        for query in self._program_queries.get(intent.intent, ()):
            asked.queries.now(query)
        for answer in answers:
            self._note(answer, asked)
        for call in self._unanswered.get(intent.intent, ()):
            asked.calling(
                index=call.index, name=call.name, request_sha256=call.request_sha256, effect=True
            )

    def _ended_here(self) -> BaseException:
        """What ended the run while this was under way; nothing, if the record just stops."""
        if self._ended is None:
            return NothingMore()
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


def _by_program(records: Sequence[Record]) -> dict[int, list[QueryRecord]]:
    """The model calls of each program, in the order they were written."""
    found: dict[int, list[QueryRecord]] = {}
    running = 0
    for record in records:
        if isinstance(record, RunProgram):
            running = record.intent
        elif isinstance(record, QueryRecord):
            found.setdefault(running, []).append(record)
    return found


class _NotedHost:
    """Recorded answers by position, each noted as it is served.

    One that was only named is made again from the run's attachments, and compared.
    """

    def __init__(
        self,
        answers: Sequence[HostAnswered],
        names: HostNames,
        note: Callable[[HostAnswered], None],
        *,
        again: HostTable,
        read: Callable[[AttachmentRef], bytes],
        queries: Queries,
    ) -> None:
        self._queries = queries
        self._recorded = answers
        self._host = RecordedHost(
            [
                Answer(request_sha256=each.request_sha256, fuel=each.fuel, reply=each.reply)
                for each in answers
            ],
            then=again,
        )
        self._names = names
        self._note = note
        self._again = again
        self._read = read

    @property
    def names(self) -> HostNames:
        return self._names

    def serve(self, call: HostCall) -> bytes | Awaitable[bytes]:
        if call.index >= len(self._recorded):
            raise ReplayDiverged(index=call.index, field="calls", recorded=None, now=call.name)
        reply = self._host.serve(call)
        assert isinstance(reply, bytes)
        answer = self._recorded[call.index]
        if answer.reply_sha256 is None:
            self._note(answer)
            return reply if answer.reply_ref is None else self._read(answer.reply_ref)
        self._queries.place = QueryPlace(intent=answer.intent, program=answer.program)
        made = self._again.serve(call)
        if isinstance(made, bytes):
            return self._compared(answer, made)
        if isinstance(made, Blocking):
            return Blocking(lambda: self._compared(answer, made()))
        return self._awaited(answer, made)

    async def _awaited(self, answer: HostAnswered, made: Awaitable[bytes]) -> bytes:
        return self._compared(answer, await made)

    def _compared(self, answer: HostAnswered, reply: bytes) -> bytes:
        now = digest(reply)
        if now != answer.reply_sha256:
            raise ReplayDiverged(
                index=answer.index, field="reply", recorded=answer.reply_sha256, now=now
            )
        self._note(answer)
        return reply


async def replay_records(
    run: str, records: Sequence[Record], *, session: WasmSession | None, shelf: Shelf
) -> ReplayReport:
    """Drive the recorded run again. Without a session, programs are served, not run."""
    if not records or not isinstance(records[0], RunStarted):
        raise LedgerError(f"run {run} does not begin with its start")
    started = records[0]
    given = given_again(started, shelf)
    desk = RecordedDesk(records, shelf)
    queries = Queries(desk, limits=started.limits)
    world = _RecordedWorld(
        records,
        session,
        desk=desk,
        queries=queries,
        names=names_of(started, given.values),
        table=HostTable(
            [*shelf.functions(), *queries.functions()],
            texts=given.texts,
            granted=frozenset(started.grants),
            find_text=shelf.find_text,
        ),
        shelf=shelf,
    )
    pen = ComparingPen(records)
    driver = Driver(started, world=world, pen=pen, texts=texts_of(given.values))
    divergence: Divergence | None = None
    try:
        await driver.drive()
    except NothingMore:
        pass
    except asyncio.CancelledError:
        if not world.cancelled:
            raise
    except ReplayDiverged as error:
        divergence = Divergence(
            seq=pen.seq, field=error.field, recorded=error.recorded, now=error.now
        )
    divergence = pen.first or divergence
    ended = any(isinstance(record, RunEnded) for record in records)
    if divergence is None and ended and pen.left is not None:
        seq, record = pen.left
        divergence = Divergence(seq=seq, field="entries", recorded=tag_of(record), now=None)
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


_world: type[World] = _RecordedWorld
