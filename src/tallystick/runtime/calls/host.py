"""Serve the host calls of a program, from the record or from functions, and record the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from tallystick.core.errors import (
    CallDenied,
    ReplayDiverged,
    SkillToolDenied,
    TallystickError,
    UsageError,
)
from tallystick.core.history import History, Key
from tallystick.core.json_text import digest
from tallystick.core.machine.state import allows
from tallystick.core.records import (
    CallDecided,
    CallHost,
    CallWaiting,
    HostAnswered,
    QueryRecord,
)
from tallystick.core.resume_errors import LeftInDoubt
from tallystick.runtime.calls.approvals import Approvals, Word
from tallystick.runtime.calls.decisions import ABANDONED
from tallystick.runtime.calls.functions import FunctionPolicy, RunFunction, under_key
from tallystick.runtime.calls.requests import KeptRequest, keep_effect_request, keep_read_request
from tallystick.runtime.calls.scope import Call, CallScope
from tallystick.runtime.context.attachments import INLINE_BYTES_MAX, RunAttachments, is_pure
from tallystick.runtime.journal.effects import Decision, Effects, Found
from tallystick.runtime.journal.writer import PendingWrite
from tallystick.runtime.runs.decided import Decided
from tallystick.sandbox.host import Blocking, HostTable, encode_reply, error_reply
from tallystick.sandbox.port import HostCall, HostNames
from tallystick.storage.clock import now_ms

_ERROR_TAG = b"1"
# How often a call that waits for a person looks for the decision, in seconds.
_LOOK_SECONDS = 0.2
# Returns why a program may not make a call now, None if it may.
Refuse = Callable[[Call], TallystickError | None]
# Returns fields of an answer's record, from the notes that were made while it was served.
FieldsOf = Callable[[Sequence[msgspec.Struct]], Mapping[str, Any]]
# Called with an answer that is served from the record.
NoteServed = Callable[[CallScope, HostAnswered], None]
# Called with the model calls and children inside an answer that is served from the record.
CountInside = Callable[[Sequence[QueryRecord]], None]


class HostFunctions:
    """The functions that the programs of a run may call, and the policy of each.

    `refuse` returns why a call may not be made, `fields_of` what is recorded with its answer.
    `note_served_answer` is called with answers that are served from the record, and `count_inside`
    with the model calls and children that such a call made. `approvals` are the calls that need a
    person; without it, no person is asked.
    """

    def __init__(
        self,
        table: HostTable,
        names: HostNames,
        functions: Sequence[RunFunction],
        run_attachments: RunAttachments,
        *,
        refuse: Refuse = lambda call: None,
        fields_of: FieldsOf = lambda notes: {},
        note_served_answer: NoteServed = lambda scope, answer: None,
        count_inside: CountInside = lambda records: None,
        approvals: Approvals | None = None,
    ) -> None:
        self.table = table
        self.names = names
        self.policies: Mapping[str, FunctionPolicy] = {each.name: each.policy for each in functions}
        self._narrowed = {each.name for each in functions if each.narrowed}
        self.run_attachments = run_attachments
        self._refuse = refuse
        self.approvals = approvals or Approvals("", functions, History(), Word())
        self.fields_of = fields_of
        self.note_served_answer = note_served_answer
        self.count_inside = count_inside

    def refusal(self, call: Call) -> TallystickError | None:
        """Return why a call may not be made, None if it may.

        That is `SkillToolDenied` for a tool or a function of attachments that the loaded skills do
        not allow, else what `refuse` returns.
        """
        narrowed = call.name in self._narrowed or call.name.startswith("attachments.")
        if narrowed and not allows(call.scope.tools, call.name):
            return SkillToolDenied(name=call.name)
        return self._refuse(call)


class ProgramHost:
    """The host of one program, for its sandbox. It is called in the thread of the program."""

    def __init__(self, functions: HostFunctions, scope: CallScope, effects: Effects) -> None:
        self._functions = functions
        self._scope = scope
        self._effects = effects

    @property
    def names(self) -> HostNames:
        return self._functions.names

    def serve(self, call: HostCall) -> bytes | Awaitable[bytes]:
        numbered = self._scope.call(call.name, call.request, index=call.index)
        effect = _HostEffect(self._functions, self._scope, call, numbered, self._effects)
        return self._effects.perform_here(effect)


class _HostEffect:
    """One host call of a program, for `Effects.perform_here`."""

    def __init__(
        self,
        functions: HostFunctions,
        scope: CallScope,
        call: HostCall,
        numbered: Call,
        effects: Effects,
    ) -> None:
        self._effects = effects
        self._functions = functions
        self._scope = scope
        self._asked = call
        self._call = numbered
        # Known once `_refused` is.
        self._asks = False

    @cached_property
    def _refused(self) -> TallystickError | None:
        """Return why the call may not be made, None if it may. Note if it needs a person's word.

        Computed only for a new call: one that is on record was allowed then.
        """
        found = self._functions.refusal(self._call)
        if found is None:
            try:
                self._asks = self._functions.approvals.asks(self._call.name, self._call.request)
            except UsageError as error:
                return error
        return found

    @property
    def key(self) -> Key:
        return self._call.key

    @property
    def what(self) -> str:
        return self._call.name

    @property
    def is_effect(self) -> bool:
        """True if the call is recorded before it begins. A call that is refused never begins."""
        policy = self._functions.policies.get(self._call.name)
        return policy == "effect" and self._refused is None

    @property
    def waits_inside(self) -> bool:
        return self._scope.program.effect

    def needs_word(self) -> bool:
        return self._refused is None and self._asks

    def decision(self) -> Decided | None:
        waited = self._effects.history.waiting(self._call.intent) is not None
        return self._functions.approvals.decision_on(self._call.request_sha256, waited=waited)

    def wait(self) -> CallWaiting:
        call = self._call
        known = self._effects.history.waiting(call.intent)
        kept = self._kept if known is None else _kept_in(known)
        return CallWaiting(
            intent=call.intent,
            program=call.program,
            index=call.index,
            turn=self._scope.program.turn,
            name=call.name,
            request_sha256=call.request_sha256,
            **kept,
        )

    async def word(self) -> CallDecided:
        call, look = self._call, self._functions.approvals.look
        while True:
            if self._scope.closed:
                raise asyncio.CancelledError
            decided = look(call.request_sha256)
            if decided is not None:
                break
            await asyncio.sleep(_LOOK_SECONDS)
        noted = CallDecided(
            intent=call.intent,
            program=call.program,
            request_sha256=call.request_sha256,
            decision=decided.decision,
            by=decided.by,
            at=now_ms(),
            because=decided.because,
            all=decided.all,
        )
        self._functions.approvals.note(decided)
        return noted

    def make_denied(self, decided: Decided | CallDecided) -> bytes:
        self._scope.times.begin_live_once()
        error = CallDenied(name=self._call.name, by=decided.by, because=decided.because)
        return self._note_and_return(error_reply(error))

    def begin(self, attempt: int) -> CallHost:
        known = self._effects.history.begun(self.key)
        if attempt <= len(known):
            # What is on record stays: its digest is compared, and says all that its text does.
            begun = known[attempt - 1]
            assert isinstance(begun, CallHost)
            return self._scope.begin_effect(self._call, attempt, _kept_in(begun))
        return self._scope.begin_effect(self._call, attempt, self._kept)

    @cached_property
    def _kept(self) -> KeptRequest:
        """Return what is asked, for the record of an effect. A long request is stored once.

        Raise `AttachmentError` if it cannot be.
        """
        call, files = self._call, self._functions.run_attachments
        return keep_effect_request(call.name, call.request, files)

    def check(self, known: HostAnswered | CallHost | CallWaiting) -> None:
        now: list[tuple[str, object, object]] = [
            ("request", known.request_sha256, self._call.request_sha256)
        ]
        if isinstance(known, HostAnswered):
            now.append(("fuel", known.fuel, self._asked.fuel))
        for field, recorded, made in now:
            if recorded != made:
                raise ReplayDiverged(
                    index=self._call.index, field=field, recorded=recorded, now=made
                )

    def serve(self, answer: HostAnswered) -> bytes | Awaitable[bytes]:
        if answer.reply_sha256 is None:
            inside = self._effects.history.inside_call(answer.intent)
            return self._serve_with(inside, answer) if inside else self._serve_whole(answer)
        return self._then(
            self._functions.table.serve(self._asked, self._call),
            lambda reply: self._compare(answer, reply),
        )

    def make(self) -> bytes | Awaitable[bytes]:
        self._scope.times.begin_live_once()
        if self._refused is not None:
            return self._note_and_return(error_reply(self._refused))
        with under_key(self._call.name_outside, depth=self._scope.depth):
            reply = self._functions.table.serve(self._asked, self._call)
        if isinstance(reply, bytes | Blocking):
            return self._then(reply, self._note_and_return)
        return self._wait_and_note(reply)

    def answer_decided(self, found: Found) -> bytes:
        self._scope.times.begin_live_once()
        if found is Decision.ABANDON:
            return self._note_and_return(
                error_reply(LeftInDoubt(f"{self._call.name}: {ABANDONED}"))
            )
        return self._note_and_return(encode_reply(found))

    # -- inside --------------------------------------------------------------------------------

    def _serve_whole(self, answer: HostAnswered) -> bytes:
        self._note_again(answer)
        if answer.reply_ref is None:
            return answer.reply
        return self._functions.run_attachments.read(answer.reply_ref)

    async def _serve_with(self, inside: Sequence[QueryRecord], answer: HostAnswered) -> bytes:
        """Serve an answer with the model calls and children that its function made.

        The function is not called again, so their records are passed over. Their cost is counted
        on the event loop, as that of every other call.
        """
        self._effects.journal.pass_over_inside(inside)
        self._functions.count_inside(inside)
        return self._serve_whole(answer)

    def _then(
        self, reply: bytes | Awaitable[bytes], then: Callable[[bytes], bytes]
    ) -> bytes | Awaitable[bytes]:
        """Apply `then` to a reply: at once, in the thread that computes it, or after the await."""
        if isinstance(reply, bytes):
            return then(reply)
        if isinstance(reply, Blocking):
            return Blocking(lambda: then(self._under_key(reply)))
        return self._and_then(reply, then)

    async def _and_then(self, reply: Awaitable[bytes], then: Callable[[bytes], bytes]) -> bytes:
        return then(await reply)

    def _under_key(self, work: Blocking) -> bytes:
        with under_key(self._call.name_outside, depth=self._scope.depth):
            return work()

    async def _wait_and_note(self, reply: Awaitable[bytes]) -> bytes:
        with under_key(self._call.name_outside, depth=self._scope.depth):
            told = await reply
        await self._note(told).wait()
        return told

    def _note_and_return(self, reply: bytes) -> bytes:
        """Record the reply and return it. For an effect, wait until the record is committed."""
        self._note(reply).result()
        return reply

    def _compare(self, answer: HostAnswered, reply: bytes) -> bytes:
        now = digest(reply)
        if now != answer.reply_sha256:
            raise ReplayDiverged(
                index=answer.index, field="reply", recorded=answer.reply_sha256, now=now
            )
        self._note_again(answer)
        return reply

    def _note_again(self, answer: HostAnswered) -> None:
        self._scope.note_answer(answer)
        self._functions.note_served_answer(self._scope, answer)

    def _note(self, reply: bytes) -> PendingWrite:
        call = self._call
        ref, reply_sha256 = None, None
        ok = not reply.startswith(_ERROR_TAG)
        if is_pure(call.name, ok=ok):
            reply_sha256 = digest(reply)
        elif len(reply) > INLINE_BYTES_MAX:
            label = f"answer of {call.name}"
            ref = self._functions.run_attachments.keep(reply, label=label)
        return self._scope.note_answer(
            HostAnswered(
                intent=call.intent,
                program=call.program,
                index=call.index,
                name=call.name,
                request_sha256=call.request_sha256,
                fuel=self._asked.fuel,
                reply=reply if ref is None and reply_sha256 is None else b"",
                reply_ref=ref,
                reply_sha256=reply_sha256,
                ok=ok,
                request=self._kept_of_read(),
                **self._functions.fields_of(call.notes),
            )
        )

    def _kept_of_read(self) -> str | msgspec.UnsetType:
        """Return what a read asked, for its answer; UNSET for a pure call or a long request.

        UNSET also for an effect, whose beginning has it. One that is refused never began.
        """
        policy = self._functions.policies.get(self._call.name, "pure")
        if policy == "pure" or self.is_effect:
            return msgspec.UNSET
        return keep_read_request(self._call.request)


def _kept_in(begun: CallHost | CallWaiting) -> KeptRequest:
    kept: KeptRequest = {}
    if begun.request is not msgspec.UNSET:
        kept["request"] = begun.request
    if begun.request_ref is not msgspec.UNSET:
        kept["request_ref"] = begun.request_ref
    return kept
