"""The host of a live program: serves its calls from a table and has each one written down."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

from tallystick.core.canonical import digest
from tallystick.core.records import HostAnswered
from tallystick.runtime.driver import Asked
from tallystick.runtime.functions import FunctionPolicy
from tallystick.runtime.queries import Queries, QueryPlace
from tallystick.runtime.shelf import INLINE_BYTES_MAX, Shelf, is_pure
from tallystick.sandbox.host import Blocking, HostTable, request_digest
from tallystick.sandbox.port import HostCall, HostNames

__all__ = ["WrittenHost"]

_ERROR_TAG = b"1"


class WrittenHost:
    """Serves the calls of one program."""

    def __init__(
        self,
        table: HostTable,
        names: HostNames,
        policies: Mapping[str, FunctionPolicy],
        asked: Asked,
        shelf: Shelf,
        queries: Queries,
        *,
        program: int,
    ) -> None:
        self._shelf = shelf
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
        sha256 = request_digest(call.request)
        effect = self._policies.get(call.name) == "effect"
        intent = self._asked.calling(
            index=call.index, name=call.name, request_sha256=sha256, effect=effect
        )
        self._queries.place = QueryPlace(intent=intent, program=self._program)
        reply = self._table.serve(call)
        if isinstance(reply, bytes):
            return self._noted(call, intent, sha256, reply)
        if isinstance(reply, Blocking):
            return Blocking(lambda: self._noted(call, intent, sha256, reply()))
        return self._awaited(call, intent, sha256, reply)

    async def _awaited(
        self, call: HostCall, intent: int, sha256: str, reply: Awaitable[bytes]
    ) -> bytes:
        return self._noted(call, intent, sha256, await reply)

    def _noted(self, call: HostCall, intent: int, sha256: str, reply: bytes) -> bytes:
        ref, reply_sha256 = None, None
        ok = not reply.startswith(_ERROR_TAG)
        if is_pure(call.name, ok=ok):
            reply_sha256 = digest(reply)
        elif len(reply) > INLINE_BYTES_MAX:
            ref = self._shelf.keep(reply, label=f"answer of {call.name}")
        self._asked.answered(
            HostAnswered(
                intent=intent,
                program=self._program,
                index=call.index,
                name=call.name,
                request_sha256=sha256,
                fuel=call.fuel,
                reply=reply if ref is None and reply_sha256 is None else b"",
                reply_ref=ref,
                reply_sha256=reply_sha256,
                ok=ok,
            )
        )
        return reply
