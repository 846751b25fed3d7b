"""A model that replies from a script: for tests and demonstrations, never for answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path

import msgspec

from tallystick.core.charge import ModelUsage
from tallystick.core.errors import UsageError, system_errors
from tallystick.core.machine.prompt import Message
from tallystick.model.port import (
    Heard,
    Model,
    ModelError,
    ModelReason,
    ModelReply,
    ModelRequest,
    estimated_usage,
)

_SCRIPT_BYTES_MAX = 64 * 1024 * 1024


class ScriptedUsage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Token counts that a script reports."""

    tokens_in: int = 0
    tokens_out: int = 0


class ScriptedReply(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of a script."""

    text: str = ""
    usage: ScriptedUsage | None = None
    delay_ms: int = 0
    error: str | None = None
    reason: ModelReason = "unknown"
    retry_after_ms: int | None = None
    cut: bool = False


Script = Sequence[ScriptedReply] | Callable[[int, tuple[Message, ...]], ScriptedReply | str]


class ScriptedModel:
    """Replies by position, or by a function of position and prompt.

    After the last reply of a list, `ask` raises `ModelError`.
    """

    def __init__(self, script: Script, *, name: str = "scripted") -> None:
        self._script = script
        self._name = name
        self._asked = 0

    @classmethod
    def of(cls, *texts: str) -> ScriptedModel:
        """Return a model that gives these replies."""
        return cls([ScriptedReply(text=text) for text in texts])

    @classmethod
    def from_file(cls, path: Path | str) -> ScriptedModel:
        """Read JSON lines, each the fields of a `ScriptedReply`. Empty lines are skipped.

        Raise `UsageError` if the file cannot be read, is longer than 64 MiB, or has another line.
        """
        path = Path(path)
        with system_errors(path, UsageError):
            if path.stat().st_size > _SCRIPT_BYTES_MAX:
                raise UsageError(f"{path} is longer than {_SCRIPT_BYTES_MAX:,} bytes")
            lines = path.read_bytes().splitlines()
        replies = []
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    replies.append(msgspec.json.decode(line, type=ScriptedReply))
                except msgspec.MsgspecError as error:
                    raise UsageError(f"{path}, line {number}: {error}") from error
        return cls(replies, name=f"scripted:{path}")

    @property
    def name(self) -> str:
        return self._name

    def admitted(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def ask(self, request: ModelRequest, *, heard: Heard = lambda text: None) -> ModelReply:
        messages = request.messages
        position, self._asked = self._asked, self._asked + 1
        reply = self._at(position, messages)
        if reply.delay_ms:
            await asyncio.sleep(reply.delay_ms / 1000)
        if reply.error is not None:
            raise ModelError(
                reason=reply.reason, message=reply.error, retry_after_ms=reply.retry_after_ms
            )
        heard(reply.text)
        usage = estimated_usage(messages, reply.text)
        if reply.usage is not None:
            usage = ModelUsage(
                tokens_in=reply.usage.tokens_in,
                tokens_out=reply.usage.tokens_out,
                reported=True,
                raw={"tokens_in": reply.usage.tokens_in, "tokens_out": reply.usage.tokens_out},
            )
        return ModelReply(text=reply.text, usage=usage, cut=reply.cut)

    def skip(self, calls: int) -> None:
        """Continue after this many calls, which were answered before, maybe by another process.

        It never goes back.
        """
        self._asked = max(self._asked, calls)

    async def close(self) -> None:
        """Do nothing: no resource is open."""

    def _at(self, position: int, messages: tuple[Message, ...]) -> ScriptedReply:
        if callable(self._script):
            made = self._script(position, messages)
            return ScriptedReply(text=made) if isinstance(made, str) else made
        if position >= len(self._script):
            raise ModelError(
                reason="unknown",
                message=f"the script has no reply after number {len(self._script)}",
            )
        return self._script[position]


_: type[Model] = ScriptedModel
