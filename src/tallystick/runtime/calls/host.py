"""The host of a live program: serves its calls from a table and has each one written down."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING

from tallystick.core.json_text import digest
from tallystick.core.machine.state import allows
from tallystick.core.records import HostAnswered
from tallystick.core.views.open_calls import call_key
from tallystick.runtime.calls.functions import FunctionPolicy, under_key
from tallystick.runtime.calls.queries import Queries, QueryPlace
from tallystick.runtime.context.attachments import INLINE_BYTES_MAX, RunAttachments, is_pure
from tallystick.runtime.journal.journal import PendingWrite
from tallystick.runtime.journal.world import CallLog
from tallystick.sandbox.host import Blocking, HostTable, call_digest, error_reply
from tallystick.sandbox.port import HostCall, HostNames
from tallystick.skills.errors import SkillToolDenied
from tallystick.skills.runs import SCRIPTED

if TYPE_CHECKING:
    from tallystick.memory.runs import MemoryCalls
    from tallystick.skills.runs import SkillCalls


_ERROR_TAG = b"1"
# What each skill that was loaded allows.
Tools = tuple[tuple[str, ...], ...]


class RecordingHost:
    """Serves the calls of one program."""

    def __init__(
        self,
        table: HostTable,
        names: HostNames,
        policies: Mapping[str, FunctionPolicy],
        asked: CallLog,
        run_attachments: RunAttachments,
        queries: Queries,
        *,
        run: str,
        program: int,
        desk: SkillCalls | None = None,
        memory: MemoryCalls | None = None,
        tools: Tools = (),
    ) -> None:
        self._desk = desk
        self._memory = memory
        self._tools = tools
        self._run = run
        self._run_attachments = run_attachments
        self._queries = queries
        self._table = table
        self._names = names
        self._policies = policies
        self._asked = asked
        self._program = program

    @property
    def names(self) -> HostNames:
        return self._names

    def serve(self, call: HostCall) -> bytes | Awaitable[bytes]:
        sha256 = call_digest(call.request)
        # What is denied is not begun.
        effect = self._policies.get(call.name) == "effect" and self._allowed(call.name)
        intent = self._asked.calling(
            index=call.index, name=call.name, request_sha256=sha256, effect=effect
        )
        return self.serve_begun(call, intent)

    def serve_begun(self, call: HostCall, intent: int) -> bytes | Awaitable[bytes]:
        """Serve a call that is noted as begun, also once more: its key stays the same."""
        self._queries.place = QueryPlace(intent=intent, program=self._program, tools=self._tools)
        if not self._allowed(call.name):
            return self.told(call, intent, error_reply(SkillToolDenied(name=call.name)))
        if self._desk is not None:
            self._desk.calls_made = call.index + 1
        key = call_key(self._run, intent)
        with under_key(key):
            reply = self._table.serve(call)
        if isinstance(reply, bytes):
            return self.told(call, intent, reply)
        if isinstance(reply, Blocking):
            return Blocking(lambda: self.told(call, intent, _with_key(key, reply)))
        return self._awaited(call, intent, reply, key)

    def _allowed(self, name: str) -> bool:
        """Whether the skills that were loaded leave a function to programs."""
        narrowed = name in self._policies or name.startswith("attachments.")
        return not narrowed or name in SCRIPTED or allows(self._tools, name)

    async def _awaited(
        self, call: HostCall, intent: int, reply: Awaitable[bytes], key: str
    ) -> bytes:
        with under_key(key):
            told = await reply
        await self._noted(call, intent, told).done()
        return told

    def told(self, call: HostCall, intent: int, reply: bytes) -> bytes:
        """The reply, noted. Waits until that of an effect is committed."""
        self._noted(call, intent, reply).result()
        return reply

    def _noted(self, call: HostCall, intent: int, reply: bytes) -> PendingWrite:
        ref, reply_sha256 = None, None
        ok = not reply.startswith(_ERROR_TAG)
        if is_pure(call.name, ok=ok):
            reply_sha256 = digest(reply)
        elif len(reply) > INLINE_BYTES_MAX:
            ref = self._run_attachments.keep(reply, label=f"answer of {call.name}")
        return self._asked.answered(
            HostAnswered(
                intent=intent,
                program=self._program,
                index=call.index,
                name=call.name,
                request_sha256=call_digest(call.request),
                fuel=call.fuel,
                reply=reply if ref is None and reply_sha256 is None else b"",
                reply_ref=ref,
                reply_sha256=reply_sha256,
                ok=ok,
                skill=None if self._desk is None else self._desk.touched(),
                memory=None if self._memory is None else self._memory.touched(),
            )
        )


def _with_key(key: str, work: Blocking) -> bytes:
    with under_key(key):
        return work()
