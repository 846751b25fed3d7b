"""The recorded world: replies and answers come from the ledger, programs run again.

A program that was ended by time, a cancel or a trap did not end at a repeatable place: it is served
as it was recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec

from tallystick.core.attachment import AttachmentRef
from tallystick.core.canonical import digest
from tallystick.core.errors import ReplayDiverged, SandboxError
from tallystick.core.machine import RunState
from tallystick.core.prompt import Message, request_digest
from tallystick.core.records import (
    LEFT,
    AskModel,
    CallHost,
    HostAnswered,
    ModelFailed,
    ModelReplied,
    ProgramFinished,
    RunProgram,
)
from tallystick.runtime.children import ChildDesk
from tallystick.runtime.desk import WrittenDesk
from tallystick.runtime.finished import finished_of, output_files
from tallystick.runtime.live import program_context
from tallystick.runtime.queries import Queries, QueryPlace
from tallystick.runtime.recording import NothingMore
from tallystick.runtime.run_records import RunRecords
from tallystick.runtime.shelf import Shelf, described_file
from tallystick.runtime.world import Asked, CallRefused, Kept, WaitedTooLong, World
from tallystick.sandbox.host import Answer, Blocking, HostTable, RecordedHost
from tallystick.sandbox.port import Host, HostCall, HostNames
from tallystick.sandbox.wasm.session import WasmSession

__all__ = ["SERVED", "NotedHost", "RecordedWorld", "note_call"]

# Ended from outside, at a place that depends on the machine.
SERVED = frozenset({"wall", "deadline", "cancelled", "trap"})


class RecordedWorld:
    """Serves what was recorded, and runs programs again."""

    def __init__(
        self,
        records: RunRecords,
        session: WasmSession | None,
        *,
        names: HostNames,
        table: HostTable,
        shelf: Shelf,
        desk: WrittenDesk,
        queries: Queries,
        children: ChildDesk,
    ) -> None:
        self._children = children
        self._records = records
        self._table = table
        self._shelf = shelf
        self._desk = desk
        self._queries = queries
        self._session = session
        self._names = names
        self.cancelled = False
        self.programs = 0
        self.served = 0

    @asynccontextmanager
    async def admitted(
        self, intent: AskModel, messages: tuple[Message, ...], *, model: str, wall_ms_left: int
    ) -> AsyncIterator[AskModel]:
        if intent.intent in self._records.refused:
            raise CallRefused(self._records.refused[intent.intent])
        asked = self._records.asked.get(intent.intent)
        if asked is None:
            raise self._ended_here()
        yield asked_again(intent, messages, asked, model=model)

    def left(self, intent: AskModel, *, sent: bool) -> ModelFailed:
        reply = self._records.replies[intent.intent]
        assert isinstance(reply, ModelFailed)
        return reply

    async def ask(
        self, intent: AskModel, messages: tuple[Message, ...], *, wall_ms_left: int
    ) -> ModelReplied | ModelFailed:
        reply = self._records.replies.get(intent.intent)
        if reply is None:
            raise self._ended_here()
        was_left = isinstance(reply, ModelFailed) and reply.reason == LEFT
        if was_left and not self._records.gone_on_after(intent.intent):
            self.cancelled = True
            raise asyncio.CancelledError
        return reply

    async def run(
        self, intent: RunProgram, source: str, asked: Asked, *, state: RunState
    ) -> ProgramFinished:
        recorded = self._records.finished.get(intent.intent)
        if recorded is None:
            self.note_all(intent, asked)
            raise self._ended_here()
        if self._session is None or recorded.stop in SERVED or intent.effect:
            self.served += 1
            self.note_all(intent, asked)
            left = intent.effect and recorded.stop == LEFT
            if left and not self._records.gone_on_after(intent.intent):
                self.cancelled = True
                raise asyncio.CancelledError
            return recorded
        self.programs += 1
        self._shelf.outputs = state.outputs
        self._desk.written = self._children.written = asked.queries
        self._queries.limits = state.started.limits
        host = NotedHost(
            self._records.answers.get(intent.intent, []),
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

    def check_begun(self, intent: RunProgram) -> None:
        if intent.intent not in self._records.programs and self._records.ended is not None:
            raise self._ended_here()

    def left_program(self, intent: RunProgram) -> ProgramFinished:
        return self._records.finished[intent.intent]

    async def kept(self, finished: ProgramFinished, *, state: RunState) -> Kept | None:
        found: Kept | None = self._records.snapshots.get(finished.intent)
        return found or self._records.files.get(finished.intent)

    def serve(self, intent: RunProgram, asked: Asked) -> ProgramFinished:
        """A program as it was recorded, not run."""
        self.served += 1
        self.note_all(intent, asked)
        return self._records.finished[intent.intent]

    def note_all(self, intent: RunProgram, asked: Asked) -> None:
        """Note a program's calls in their order, also those that were never answered."""
        for query in self._records.queries.get(intent.intent, ()):
            asked.queries.now(query)
        for answer in self._records.answers.get(intent.intent, ()):
            self._note(answer, asked)
        unanswered = self._records.unanswered.get(intent.intent, ())
        for call in unanswered:
            note_call(self._records, call, asked)
        if intent.effect:
            # It waited for one call at most: one of models has a number, and no record of its own.
            known = {each.intent for each in self._records.answers.get(intent.intent, ())}
            known |= {each.intent for each in unanswered}
            queries = self._records.queries.get(intent.intent, ())
            for number in sorted({each.intent for each in queries} - known):
                asked.calling(index=0, name=f"call {number}", request_sha256="", effect=False)

    def _ended_here(self) -> BaseException:
        """What ended the run while this was under way; nothing, if the record just stops."""
        ended = self._records.ended
        if ended is None:
            return NothingMore()
        if ended.stop in ("cancelled", "in_doubt"):
            self.cancelled = True
            return asyncio.CancelledError()
        if ended.stop == "deadline":
            return WaitedTooLong(ended.detail)
        return SandboxError(ended.detail)

    def _note(self, answer: HostAnswered, asked: Asked) -> None:
        note_call(self._records, answer, asked)
        asked.answered(answer)


def asked_again(
    intent: AskModel, messages: tuple[Message, ...], asked: AskModel, *, model: str
) -> AskModel:
    """A recorded request as it would be written now.

    What was reserved, and the cap it paid for, was the world's word.
    """
    return msgspec.structs.replace(
        intent,
        reserved=asked.reserved,
        tokens_out_max=asked.tokens_out_max,
        request_sha256=request_digest(
            model,
            messages,
            tokens_out_max=asked.tokens_out_max,
            temperature=intent.temperature,
        ),
    )


def note_call(records: RunRecords, call: HostAnswered | CallHost, asked: Asked) -> int:
    """Note that a recorded call was made, as often as it was begun."""
    begun = records.effects.get(call.intent, 0)
    intent = asked.calling(
        index=call.index,
        name=call.name,
        request_sha256=call.request_sha256,
        effect=begun > 0,
    )
    for _ in range(begun - 1):
        asked.again(intent, index=call.index, name=call.name, request_sha256=call.request_sha256)
    return intent


class NotedHost:
    """Recorded answers by position, each noted as it is served.

    One that was only named is made again from the run's attachments, and compared. `then` serves
    what comes after the last of them.
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
        then: Host | None = None,
    ) -> None:
        self._then = then
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
            if self._then is not None:
                return self._then.serve(call)
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


_: type[World] = RecordedWorld
