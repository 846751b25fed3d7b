"""The model port: a prompt goes in, a reply comes out, or an error with its reason."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from tallystick.core.errors import BackendError
from tallystick.core.prompt import Message
from tallystick.core.records import ModelUsage

__all__ = ["Model", "ModelError", "ModelReason", "ModelReply", "estimated_usage"]

# Why a model gave no reply. The set is closed; transports map what they see into it.
ModelReason = Literal[
    "rate_limit",
    "context_overflow",
    "auth",
    "not_found",
    "invalid_request",
    "timeout",
    "connection",
    "server",
    "cut_stream",
    "script",
    "unknown",
]


class ModelReply(msgspec.Struct, frozen=True, kw_only=True):
    """What a model answered. `cut` says that it ended at its token cap."""

    text: str
    usage: ModelUsage
    cut: bool = False


class ModelError(BackendError):
    """A model gave no reply."""

    code = "backend.model"

    def __init__(self, *, reason: ModelReason, message: str, transient: bool = False) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message
        self.transient = transient


class Model(Protocol):
    """A backend. `name` is what the run records."""

    @property
    def name(self) -> str: ...

    async def ask(self, messages: tuple[Message, ...]) -> ModelReply: ...

    async def close(self) -> None: ...


def estimated_usage(messages: tuple[Message, ...], text: str) -> ModelUsage:
    """Usage nobody reported: a quarter of the bytes, marked as an estimate."""
    sent = sum(len(message.text.encode("utf-8", "replace")) for message in messages)
    received = len(text.encode("utf-8", "replace"))
    return ModelUsage(
        tokens_in=(sent + 3) // 4, tokens_out=(received + 3) // 4, reported=False, raw={}
    )
