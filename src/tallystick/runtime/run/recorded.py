"""The recorded world: replies and answers come from the ledger, then, if resumed, live.

What the record has is compared and served; what it does not have is done. In between stand the
calls whose outcome nobody knew: `tallystick.runtime.calls.decisions` has decided about each.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

import msgspec

from tallystick.core.charge import Charge, Settled
from tallystick.core.errors import ReplayDiverged, SandboxError
from tallystick.core.history import History, spent_by
from tallystick.core.json_text import digest
from tallystick.core.machine.native import RETRIED
from tallystick.core.machine.prompt import ABANDONED as ABANDONED_STOP
from tallystick.core.machine.prompt import Message, request_digest
from tallystick.core.machine.state import RunState
from tallystick.core.machine.turn import charge_of
from tallystick.core.records import (
    DOUBTED,
    LEFT,
    AskModel,
    AttachmentRef,
    CallHost,
    ChildEnded,
    Continuation,
    HostAnswered,
    ModelFailed,
    ModelReplied,
    ProgramFinished,
    QueryAsked,
    QueryFailed,
    QueryRecord,
    QueryReplied,
    ReceiptIssued,
    Record,
    RunEnded,
    RunProgram,
    SkillUsed,
)
from tallystick.core.resume_errors import LeftInDoubt, ResumeDiverged
from tallystick.model.port import ModelReply
from tallystick.model.price_table import CallTerms
from tallystick.runtime.calls.children import ChildCalls
from tallystick.runtime.calls.decisions import (
    ABANDONED,
    Decision,
    Decisions,
    settled_doubt,
    settled_unsent,
)
from tallystick.runtime.calls.host import RecordingHost
from tallystick.runtime.calls.queries import JournaledCalls, Queries, QueryPlace
from tallystick.runtime.context.attachments import RunAttachments, described_bytes
from tallystick.runtime.journal.journal import (
    Divergence,
    Journal,
    LedgerJournal,
    NothingMore,
    PendingWrite,
    Recording,
)
from tallystick.runtime.journal.world import (
    CallLog,
    CallRefused,
    Kept,
    World,
    finished_of,
    long_answer,
    whole_outputs,
)
from tallystick.runtime.programs.native import CutOff
from tallystick.runtime.run.live import LiveWorld, program_context
from tallystick.runtime.spend.door import ModelDoor, WaitedTooLong
from tallystick.sandbox.host import (
    Answer,
    Blocking,
    HostTable,
    RecordedHost,
    call_digest,
    encoded_reply,
    error_reply,
)
from tallystick.sandbox.output import lost_output
from tallystick.sandbox.port import Host, HostCall, HostNames, Programs, Rerun

# The recorded world: replies and answers come from the ledger, programs run again.
#
# A program that was ended by time, a cancel or a trap did not end at a repeatable place: it is
# served as it was recorded.


# Ended from outside, at a place that depends on the machine.
SERVED = frozenset({"wall", "deadline", "cancelled", "trap"})
_STOPPED = frozenset({"wall", "deadline", "cancelled"})
# More than any processor does. A record of a program that used more in its time was made up, and
# must not keep a machine busy for longer than the limits on it would have.
_FUEL_PER_MS_MAX = 30_000_000
# A program may pass its limit by as long as the process is not let to look at the clock.
_LATE_MS_MAX = 1_000


class RerunStopped(SandboxError):
    """A program that is run again was ended from outside: nothing can be said about its record."""


class RecordedWorld:
    """Serves what was recorded, and runs programs again."""

    def __init__(
        self,
        history: History,
        programs: Programs | None,
        *,
        names: HostNames,
        table: HostTable,
        run_attachments: RunAttachments,
        desk: JournaledCalls,
        queries: Queries,
        children: ChildCalls,
    ) -> None:
        self._children = children
        self._history = history
        self._table = table
        self._run_attachments = run_attachments
        self._desk = desk
        self._queries = queries
        self._programs = programs
        self._names = names
        self.cancelled = False
        # True once the world has ended the run as the record says that it ended from outside.
        self.ended = False
        self.programs = 0
        self.served = 0

    @asynccontextmanager
    async def admitted(
        self, intent: AskModel, messages: tuple[Message, ...], *, model: str, wall_ms_left: int
    ) -> AsyncIterator[AskModel]:
        if intent.intent in self._history.refused:
            raise CallRefused(self._history.refused[intent.intent])
        asked = self._history.asked.get(intent.intent)
        if asked is None:
            raise self._ended_here()
        yield asked_again(intent, messages, asked, model=model)

    def left(self, intent: AskModel, *, sent: bool) -> ModelFailed:
        reply = self._history.replies[intent.intent]
        assert isinstance(reply, ModelFailed)
        return reply

    async def ask(
        self, intent: AskModel, messages: tuple[Message, ...], *, wall_ms_left: int
    ) -> ModelReplied | ModelFailed:
        reply = self._history.replies.get(intent.intent)
        if reply is None:
            raise self._ended_here()
        was_left = isinstance(reply, ModelFailed) and reply.reason == LEFT
        if was_left and not self._history.continued_after(intent.intent):
            self.cancelled = self.ended = True
            raise asyncio.CancelledError
        return reply

    async def run(
        self, intent: RunProgram, source: str, asked: CallLog, *, state: RunState
    ) -> ProgramFinished:
        recorded = self._history.finished.get(intent.intent)
        if recorded is None:
            self.note_all(intent, asked)
            raise self._ended_here()
        programs = self._programs
        if programs is None or not programs.repeatable or recorded.stop in SERVED or intent.effect:
            self.served += 1
            self.note_all(intent, asked)
            left = intent.effect and recorded.stop == LEFT
            if left and not self._history.continued_after(intent.intent):
                self.cancelled = self.ended = True
                raise asyncio.CancelledError
            return recorded
        self.programs += 1
        self._run_attachments.outputs = state.outputs
        self._desk.written = self._children.written = asked.queries
        self._queries.limits = state.started.limits
        host = ReplayingHost(
            self._history.answers.get(intent.intent, []),
            self._names,
            lambda answer: self._note(answer, asked),
            again=self._table,
            read=self._run_attachments.read,
            queries=self._queries,
        )
        context = program_context(intent, state)
        fuel_max = _FUEL_PER_MS_MAX * (context.timeout_ms + _LATE_MS_MAX)
        rerun = Rerun(
            fuel=min(recorded.fuel, fuel_max),
            lost=(lost_output(recorded.stdout), lost_output(recorded.stderr)),
        )
        result = await programs.execute(
            intent,
            source,
            context=msgspec.structs.replace(context, rerun=rerun),
            host=host,
            attempted=asked.attempted,
        )
        if result.stop in _STOPPED:
            raise RerunStopped("its program was stopped")
        outputs = tuple(
            described_bytes(data, media_type="text/plain", label=label)
            for data, label in whole_outputs(intent, result)
        )
        long = long_answer(intent, result)
        ref = None
        if long is not None:
            ref = described_bytes(long[0], media_type="text/plain", label=long[1])
        now = finished_of(intent, result, outputs, ref)
        # The machine goes on with how long it took then, or the caps would fall elsewhere.
        return msgspec.structs.replace(now, wall_ms=recorded.wall_ms)

    def check_begun(self, intent: RunProgram) -> None:
        if intent.intent not in self._history.programs and self._history.end is not None:
            raise self._ended_here()

    def left_program(self, intent: RunProgram) -> ProgramFinished:
        return self._history.finished[intent.intent]

    async def kept(self, finished: ProgramFinished, *, state: RunState) -> Kept | None:
        found: Kept | None = self._history.snapshots.get(finished.intent)
        return found or self._history.files.get(finished.intent)

    def serve(self, intent: RunProgram, asked: CallLog) -> ProgramFinished:
        """A program as it was recorded, not run."""
        self.served += 1
        self.note_all(intent, asked)
        return self._history.finished[intent.intent]

    def note_all(self, intent: RunProgram, asked: CallLog) -> None:
        """Note a program's calls in their order, also those that were never answered."""
        for query in self._history.inside(intent.intent):
            asked.queries.now(query)
        for answer in self._history.answers.get(intent.intent, ()):
            self._note(answer, asked)
        unanswered = self._history.unanswered.get(intent.intent, ())
        for call in unanswered:
            note_call(self._history, call, asked)
        if intent.effect:
            # It waited for one call at most: one of models has a number, and no record of its own.
            known = {each.intent for each in self._history.answers.get(intent.intent, ())}
            known |= {each.intent for each in unanswered}
            queries = self._history.inside(intent.intent)
            for number in sorted({each.intent for each in queries} - known):
                asked.calling(index=0, name=f"call {number}", request_sha256="", effect=False)

    def _ended_here(self) -> BaseException:
        """What ended the run while this was under way; nothing, if the record just stops."""
        ended = self._history.end
        if ended is None:
            return NothingMore()
        self.ended = True
        if ended.stop in ("cancelled", "in_doubt"):
            self.cancelled = True
            return asyncio.CancelledError()
        if ended.stop == "deadline":
            return WaitedTooLong(ended.detail)
        return SandboxError(ended.detail)

    def _note(self, answer: HostAnswered, asked: CallLog) -> None:
        note_call(self._history, answer, asked)
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


def note_call(history: History, call: HostAnswered | CallHost, asked: CallLog) -> int:
    """Note that a recorded call was made, as often as it was begun."""
    begun = history.times_begun(call.intent)
    intent = asked.calling(
        index=call.index,
        name=call.name,
        request_sha256=call.request_sha256,
        effect=begun > 0,
    )
    for _ in range(begun - 1):
        asked.again(intent, index=call.index, name=call.name, request_sha256=call.request_sha256)
    return intent


class ReplayingHost:
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


# The world of a run that is gone on with: its record as far as that goes, then the live one.


class ResumingJournal:
    """Compares with the record while it lasts, and then writes behind it.

    The first thing that is written is the continuation: that the run is resumed or forked. A
    difference is raised at once, before anything is written.
    """

    def __init__(
        self, recording: Recording, journal: LedgerJournal, continuation: Continuation, *, run: str
    ) -> None:
        self._recording = recording
        self._journal = journal
        self._continuation = continuation
        self._run = run
        self._guard = threading.RLock()
        self._hear: Callable[[Continuation], None] = lambda continuation: None
        self.live = False

    def append_later(self, record: Record) -> None:
        with self._guard:
            if not self._is_recorded(record):
                self._journal.append_later(record)

    def write(self, records: Sequence[Record], *, forced: bool) -> PendingWrite:
        with self._guard:
            fresh = [record for record in records if not self._is_recorded(record)]
            return self._journal.write(fresh, forced=forced) if fresh else PendingWrite()

    def continuation(self, *, ending: bool) -> tuple[Continuation, RunEnded | None] | None:
        with self._guard:
            if self.live:
                return None
            found = self._recording.continuation(ending=ending)
            if found is not None:
                continuation, ended = found
                if continuation is None:
                    self._begin()
                return continuation or self._continuation, ended
            if not self._recording.exhausted:
                return None
            left = self._recording.left
            if left is not None:
                # Between programs there are no model calls of programs left.
                self._check(Divergence(seq=left[0], field="calls", recorded="made", now=None))
            self._begin()
            return self._continuation, None

    def compare(self, ended: Sequence[Record]) -> None:
        self._check(self._recording.compare_end(ended))

    def is_new(self, record: Record) -> bool:
        """Whether a record that was just made was not there before."""
        return self.live and not self._recording.had_query(record)

    def on_continuation(self, hear: Callable[[Continuation], None]) -> None:
        self._hear = hear

    def _is_recorded(self, record: Record) -> bool:
        """Whether the record has it, and then the same; else the run is gone on with from here."""
        if self.live and not (
            isinstance(record, QueryRecord) and self._recording.has_query(record)
        ):
            return False
        ending = isinstance(record, ReceiptIssued | RunEnded)
        while (passed := self._recording.continuation(ending=ending)) is not None:
            if passed[0] is None:
                break
            self._hear(passed[0])
        known = (
            self._recording.has_query(record)
            if isinstance(record, QueryRecord)
            else not self._recording.exhausted
        )
        if known:
            self._check(self._recording.take(record))
            return True
        if not self._recording.exhausted:
            self._check(
                Divergence(
                    seq=self._recording.seq, field="calls", recorded=None, now="a model call"
                )
            )
        self._begin()
        self._hear(self._continuation)
        return False

    def _begin(self) -> None:
        self.live = True
        self._journal.append_later(self._continuation)

    def _check(self, found: Divergence | None) -> None:
        if found is not None:
            raise ResumeDiverged(
                run=self._run,
                seq=found.seq,
                field=found.field,
                recorded=found.recorded,
                now=found.now,
            )


class ResumingWorld:
    """Serves what was recorded, decides what was in doubt, and does the rest.

    Programs up to the one that the interpreter was `restored` after are served and not run.
    """

    def __init__(
        self,
        history: History,
        *,
        recorded: RecordedWorld,
        live: LiveWorld,
        decisions: Decisions,
        model_door: ModelDoor,
        terms: CallTerms,
        host_of: Callable[[RunProgram, CallLog, Host], Host],
        cut_off: CutOff,
        restored: int = 0,
    ) -> None:
        self._cut_off = cut_off
        self._history = history
        self._recorded = recorded
        self._live = live
        self._decisions = decisions
        self._model_door = model_door
        self._terms = terms
        self._host_of = host_of
        self._restored = restored
        # What stands for the attempt after a call that was left: its intent, and what was found.
        self._instead: tuple[int, ModelReply | Decision] | None = None

    def admitted(
        self, intent: AskModel, messages: tuple[Message, ...], *, model: str, wall_ms_left: int
    ) -> AbstractAsyncContextManager[AskModel]:
        history = self._history
        known = intent.intent in history.asked or intent.intent in history.refused
        if not known and (found := self._found_left()) is not None:
            self._instead = intent.intent, found
            return nullcontext(intent)
        world: World = self._recorded if known else self._live
        return world.admitted(intent, messages, model=model, wall_ms_left=wall_ms_left)

    async def ask(
        self, intent: AskModel, messages: tuple[Message, ...], *, wall_ms_left: int
    ) -> ModelReplied | ModelFailed:
        asked = self._history.asked.get(intent.intent)
        if self._instead is not None and self._instead[0] == intent.intent:
            return self._instead_of_left(intent, self._instead[1])
        if asked is None:
            return await self._live.ask(intent, messages, wall_ms_left=wall_ms_left)
        reply = self._history.replies.get(intent.intent)
        if reply is None:
            return self._doubted(asked)
        turns = int(isinstance(reply, ModelReplied))
        self._model_door.recalled(
            self._terms.model, spent_by(reply) + Charge(turns=turns, wall_ms=reply.wall_ms)
        )
        return reply

    def left(self, intent: AskModel, *, sent: bool) -> ModelFailed:
        if self._instead is not None and self._instead[0] == intent.intent:
            unsent = self._instead_of_left(intent, Decision.ABANDON)
            assert isinstance(unsent, ModelFailed)
            return msgspec.structs.replace(unsent, reason=LEFT, kind="transient")
        return self._live.left(intent, sent=sent)

    def _found_left(self) -> ModelReply | Decision | None:
        asked = [intent for intent, item in self._decisions.left if item == -1]
        return self._decisions.found_left(asked[0]) if asked else None

    def _instead_of_left(
        self, intent: AskModel, found: ModelReply | Decision
    ) -> ModelReplied | ModelFailed:
        """Return what came of a call that was left, for the attempt after it. Nothing is sent."""
        settled = settled_unsent(self._model_door, self._terms)
        if isinstance(found, ModelReply):
            return _replied(intent, found, settled)
        return ModelFailed(
            intent=intent.intent,
            turn=intent.turn,
            reason=DOUBTED,
            message=ABANDONED,
            kind="terminal",
            billed=False,
            settled=settled,
        )

    async def run(
        self, intent: RunProgram, source: str, asked: CallLog, *, state: RunState
    ) -> ProgramFinished:
        finished = self._history.finished.get(intent.intent)
        if self._cut_off.is_open(intent):
            answers = self._history.answers.get(intent.intent, ())
            self._model_door.recalled(self._terms.model, Charge(host_calls=len(answers)))
            self._recall_calls(intent)
            self._recorded.note_all(intent, asked)
            return self._cut_off.ended(intent, asked)
        if finished is None:
            known = self._history.answers.get(intent.intent)
            return await self._live.run(
                intent,
                source,
                asked,
                state=state,
                rerun=Rerun(fuel=known[-1].fuel, calls=len(known)) if known else None,
                behind=lambda host: self._host_of(
                    intent,
                    asked,
                    _InDoubtHost(
                        host,
                        intent,
                        asked,
                        self._history,
                        self._decisions,
                        begin_live=lambda: self._live.begin_time(state),
                    ),
                ),
            )
        self._model_door.recalled(
            self._terms.model,
            Charge(fuel=finished.fuel, host_calls=finished.host_calls, wall_ms=finished.wall_ms),
        )
        self._recall_scripts(intent)
        if intent.intent <= self._restored or finished.stop in SERVED:
            self._recall_calls(intent)
            return self._recorded.serve(intent, asked)
        return await self._recorded.run(intent, source, asked, state=state)

    def check_begun(self, intent: RunProgram) -> None:
        """Whatever ended it before, it is gone on with."""

    def left_program(self, intent: RunProgram) -> ProgramFinished:
        found = self._history.finished.get(intent.intent)
        return self._live.left_program(intent) if found is None else found

    async def kept(self, finished: ProgramFinished, *, state: RunState) -> Kept | None:
        if finished.intent in self._history.finished or finished.stop in (RETRIED, ABANDONED_STOP):
            return await self._recorded.kept(finished, state=state)
        return await self._live.kept(finished, state=state)

    def _recall_calls(self, program: RunProgram) -> None:
        """Count what the calls of a program cost that is not run again."""
        models: dict[tuple[int, int, int], str] = {}
        for each in self._history.inside(program.intent):
            if isinstance(each, QueryAsked):
                models[each.intent, each.item, each.attempt] = each.model
            elif isinstance(each, QueryReplied | QueryFailed):
                model = models[each.intent, each.item, each.attempt]
                self._model_door.recalled(model, spent_by(each))
            elif isinstance(each, ChildEnded):
                self._model_door.recalled("", charge_of(each))

    def _recall_scripts(self, program: RunProgram) -> None:
        """Count what scripts of skills used: that is in no program's own figures."""
        for each in self._history.answers.get(program.intent, ()):
            if isinstance(each.skill, SkillUsed) and each.skill.fuel:
                used = charge_of(each)
                self._model_door.recalled(
                    "", Charge(fuel=used.fuel, host_calls=used.host_calls - 1)
                )

    def _doubted(self, asked: AskModel) -> ModelReplied | ModelFailed:
        """What is written of the call that the run was cut off in."""
        found = self._decisions.paid[asked.intent, -1]
        settled, failure = settled_doubt(self._model_door, self._terms, asked.reserved, found)
        if isinstance(found, ModelReply):
            return _replied(asked, found, settled)
        return ModelFailed(
            intent=asked.intent,
            turn=asked.turn,
            reason=DOUBTED,
            message=failure,
            kind="terminal" if found is Decision.ABANDON else "transient",
            billed=found is not Decision.AGAIN,
            settled=settled,
        )


def _replied(asked: AskModel, found: ModelReply, settled: Settled) -> ModelReplied:
    """Return a reply that was found by asking for it."""
    return ModelReplied(
        intent=asked.intent,
        turn=asked.turn,
        text=found.text,
        usage=found.usage,
        cut=found.cut,
        served_by=found.served_by,
        finish=found.finish,
        settled=settled,
    )


def _nothing_to_begin() -> None:
    """Do nothing: the program has begun to be live."""


class _InDoubtHost:
    """In front of the live host: the one effect that the program was cut off in.

    `begin_live` is called before the first call that is not on the record.
    """

    def __init__(
        self,
        host: RecordingHost,
        program: RunProgram,
        asked: CallLog,
        history: History,
        decisions: Decisions,
        begin_live: Callable[[], None],
    ) -> None:
        self._host = host
        self._asked = asked
        self._history = history
        self._decisions = decisions
        self._begin_live = begin_live
        self._open = {each.index: each for each in history.unanswered.get(program.intent, ())}

    @property
    def names(self) -> HostNames:
        return self._host.names

    def serve(self, call: HostCall) -> bytes | Awaitable[bytes]:
        self._begin_live()
        self._begin_live = _nothing_to_begin
        open_call = self._open.get(call.index)
        if open_call is None:
            return self._host.serve(call)
        sha256 = call_digest(call.request)
        if sha256 != open_call.request_sha256:
            raise ReplayDiverged(
                index=call.index, field="request", recorded=open_call.request_sha256, now=sha256
            )
        return self._decided(call, open_call, sha256)

    def _decided(self, call: HostCall, begun: CallHost, sha256: str) -> bytes | Awaitable[bytes]:
        intent = note_call(self._history, begun, self._asked)
        found = self._decisions.effects[intent]
        if found is Decision.ABANDON:
            said = LeftInDoubt(f"{call.name}: {ABANDONED}")
            return self._host.told(call, intent, error_reply(said))
        if isinstance(found, Decision):
            self._asked.again(intent, index=call.index, name=call.name, request_sha256=sha256)
            return self._host.serve_begun(call, intent)
        return self._host.told(call, intent, encoded_reply(found))


_journal: type[Journal] = ResumingJournal
_world: type[World] = ResumingWorld
