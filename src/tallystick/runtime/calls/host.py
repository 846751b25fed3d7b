"""The host of a program: serves its calls, each from the record or from a table, and notes them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from tallystick.core.errors import ReplayDiverged, SkillToolDenied, TallystickError
from tallystick.core.history import Key
from tallystick.core.json_text import digest
from tallystick.core.machine.state import allows
from tallystick.core.records import CallHost, HostAnswered
from tallystick.core.resume_errors import LeftInDoubt
from tallystick.runtime.calls.decisions import ABANDONED
from tallystick.runtime.calls.functions import FunctionPolicy, RunFunction, under_key
from tallystick.runtime.calls.scope import Call, CallScope
from tallystick.runtime.context.attachments import INLINE_BYTES_MAX, RunAttachments, is_pure
from tallystick.runtime.journal.effects import Decision, Effects, Found
from tallystick.runtime.journal.writer import PendingWrite
from tallystick.sandbox.host import Blocking, HostTable, encoded_reply, error_reply
from tallystick.sandbox.port import HostCall, HostNames

_ERROR_TAG = b"1"
# Says why a program may not call a function now, None if it may.
Refuse = Callable[[Call], TallystickError | None]
# Gives the fields of an answer's record for what serving it has touched.
FieldsOf = Callable[[Sequence[msgspec.Struct]], Mapping[str, Any]]
# Hears of an answer that is served from the record.
Recalled = Callable[[CallScope, HostAnswered], None]


class HostFunctions:
    """What the programs of a run may call, and what is to be known of each function.

    `refuse` says why a call may not be made, `fields_of` what its answer notes, and `recalled`
    hears of answers that are served.
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
        recalled: Recalled = lambda scope, answer: None,
    ) -> None:
        self.table = table
        self.names = names
        self.policies: Mapping[str, FunctionPolicy] = {each.name: each.policy for each in functions}
        self._narrowed = {each.name for each in functions if each.narrowed}
        self.run_attachments = run_attachments
        self._refuse = refuse
        self.fields_of = fields_of
        self.recalled = recalled

    def refusal(self, call: Call) -> TallystickError | None:
        """Return why a call may not be made, None if it may."""
        narrowed = call.name in self._narrowed or call.name.startswith("attachments.")
        if narrowed and not allows(call.scope.tools, call.name):
            return SkillToolDenied(name=call.name)
        return self._refuse(call)


class ProgramHost:
    """Serves the calls of one program. Called in the program's thread."""

    def __init__(self, functions: HostFunctions, scope: CallScope, effects: Effects) -> None:
        self._functions = functions
        self._scope = scope
        self._effects = effects

    @property
    def names(self) -> HostNames:
        return self._functions.names

    def serve(self, call: HostCall) -> bytes | Awaitable[bytes]:
        numbered = self._scope.call(call.name, call.request, index=call.index)
        return self._effects.perform_here(_Served(self._functions, self._scope, call, numbered))


class _Served:
    """One host call, as an effect or as a read."""

    def __init__(
        self, functions: HostFunctions, scope: CallScope, call: HostCall, numbered: Call
    ) -> None:
        self._functions = functions
        self._scope = scope
        self._asked = call
        self._call = numbered

    @cached_property
    def _refused(self) -> TallystickError | None:
        """Why the call may not be made. Looked at only for one that is new."""
        return self._functions.refusal(self._call)

    @property
    def key(self) -> Key:
        return self._call.key

    @property
    def what(self) -> str:
        return self._call.name

    @property
    def is_effect(self) -> bool:
        """True for one that is on disk before it begins. What is denied is not begun."""
        policy = self._functions.policies.get(self._call.name)
        return policy == "effect" and self._refused is None

    def begin(self, attempt: int) -> CallHost:
        return self._scope.begun(self._call, attempt)

    def check(self, known: HostAnswered | CallHost) -> None:
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

    def answered_again(self, answer: HostAnswered) -> bytes | Awaitable[bytes]:
        if answer.reply_sha256 is None:
            self._note_again(answer)
            if answer.reply_ref is None:
                return answer.reply
            return self._functions.run_attachments.read(answer.reply_ref)
        return self._then(
            self._functions.table.serve(self._asked, self._call),
            lambda reply: self._compared(answer, reply),
        )

    def make(self) -> bytes | Awaitable[bytes]:
        self._scope.times.begin_live_once()
        if self._refused is not None:
            return self._told(error_reply(self._refused))
        with under_key(self._call.name_outside):
            reply = self._functions.table.serve(self._asked, self._call)
        if isinstance(reply, bytes | Blocking):
            return self._then(reply, self._told)
        return self._awaited(reply)

    def told(self, found: Found) -> bytes:
        self._scope.times.begin_live_once()
        if found is Decision.ABANDON:
            return self._told(error_reply(LeftInDoubt(f"{self._call.name}: {ABANDONED}")))
        return self._told(encoded_reply(found))

    # -- inside --------------------------------------------------------------------------------

    def _then(
        self, reply: bytes | Awaitable[bytes], then: Callable[[bytes], bytes]
    ) -> bytes | Awaitable[bytes]:
        """Return what `then` makes of a reply, wherever that is made."""
        if isinstance(reply, bytes):
            return then(reply)
        if isinstance(reply, Blocking):
            return Blocking(lambda: then(self._under_key(reply)))
        return self._and_then(reply, then)

    async def _and_then(self, reply: Awaitable[bytes], then: Callable[[bytes], bytes]) -> bytes:
        return then(await reply)

    def _under_key(self, work: Blocking) -> bytes:
        with under_key(self._call.name_outside):
            return work()

    async def _awaited(self, reply: Awaitable[bytes]) -> bytes:
        with under_key(self._call.name_outside):
            told = await reply
        await self._noted(told).done()
        return told

    def _told(self, reply: bytes) -> bytes:
        """Return the reply, noted. Waits until that of an effect is committed."""
        self._noted(reply).result()
        return reply

    def _compared(self, answer: HostAnswered, reply: bytes) -> bytes:
        now = digest(reply)
        if now != answer.reply_sha256:
            raise ReplayDiverged(
                index=answer.index, field="reply", recorded=answer.reply_sha256, now=now
            )
        self._note_again(answer)
        return reply

    def _note_again(self, answer: HostAnswered) -> None:
        self._scope.answered(answer)
        self._functions.recalled(self._scope, answer)

    def _noted(self, reply: bytes) -> PendingWrite:
        call = self._call
        ref, reply_sha256 = None, None
        ok = not reply.startswith(_ERROR_TAG)
        if is_pure(call.name, ok=ok):
            reply_sha256 = digest(reply)
        elif len(reply) > INLINE_BYTES_MAX:
            label = f"answer of {call.name}"
            ref = self._functions.run_attachments.keep(reply, label=label)
        return self._scope.answered(
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
                **self._functions.fields_of(call.notes),
            )
        )
