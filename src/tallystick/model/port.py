"""The model port: a request goes in, a reply comes out, or an error with its reason.

A backend makes one attempt and no more: whether it is repeated is the run's decision, since every
attempt is written down and paid for on its own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

import msgspec

from tallystick.core.charge import FailureKind, ModelUsage
from tallystick.core.errors import BackendError
from tallystick.core.machine.prompt import Message

# Why a model gave no reply. The set is closed; transports map what they see into it.
ModelReason = Literal[
    "rate_limit",
    "server_error",
    "network_error",
    "timeout",
    "auth_failure",
    "context_overflow",
    "content_policy",
    "invalid_request",
    "model_unavailable",
    "unknown",
]

# Reasons that may be gone when one asks again. An error may say otherwise of itself.
TRANSIENT: frozenset[ModelReason] = frozenset(
    {"rate_limit", "server_error", "network_error", "timeout"}
)

# Told how many characters of a reply have come so far. What they are is told to nobody before the
# reply is on the ledger.
Heard = Callable[[int], None]


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked. `temperature` None leaves it to the server.

    `key` names the call, and no other: a provider that keeps it can be asked later what came of it.
    """

    messages: tuple[Message, ...]
    tokens_out_max: int = 4_096
    temperature: float | None = None
    key: str = ""


class ModelReply(msgspec.Struct, frozen=True, kw_only=True):
    """What a model answered. `cut` says that it ended at its token cap.

    `served_by` is the model the server says it was, `finish` its own word for why it stopped.
    """

    text: str
    usage: ModelUsage
    cut: bool = False
    served_by: str = ""
    finish: str = ""


def writable(text: str) -> str:
    """A text that can be written down: half of a surrogate pair has no bytes, and is replaced."""
    return text.encode("utf-8", "replace").decode()


def readable(reply: ModelReply) -> ModelReply:
    """A reply as it can be written down, whatever its backend made of what came."""
    return msgspec.structs.replace(
        reply,
        text=writable(reply.text),
        served_by=writable(reply.served_by),
        finish=writable(reply.finish),
    )


class ModelError(BackendError):
    """A model gave no reply.

    `billed` is False only where it is known that the attempt cost nothing: it was never sent, or
    the server refused it before any work. `usage` is what was reported in spite of the failure.
    """

    code = "backend.model"

    def __init__(
        self,
        *,
        reason: ModelReason,
        message: str,
        kind: FailureKind | None = None,
        status: int | None = None,
        retry_after_ms: int | None = None,
        billed: bool = True,
        usage: ModelUsage | None = None,
    ) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason: ModelReason = reason
        self.message = writable(message)
        self.kind: FailureKind = kind or ("transient" if reason in TRANSIENT else "terminal")
        self.status = status
        self.retry_after_ms = retry_after_ms
        self.billed = billed
        self.usage = usage


class Model(Protocol):
    """A backend. `name` is what the run records."""

    @property
    def name(self) -> str: ...

    def admitted(self) -> AbstractAsyncContextManager[None]:
        """Wait until this provider may be asked, and hold the place while inside.

        Entered before the attempt is written down, so that waiting in a queue is never in doubt.
        """
        ...

    async def ask(self, request: ModelRequest, *, heard: Heard) -> ModelReply:
        """Make one attempt. Cancelling it closes the connection."""
        ...

    async def close(self) -> None: ...


def estimated_usage(
    messages: tuple[Message, ...], text: str, *, raw: dict[str, object] | None = None
) -> ModelUsage:
    """Usage nobody reported: a quarter of the bytes, marked as an estimate."""
    sent = sum(len(message.text.encode("utf-8", "replace")) for message in messages)
    received = len(text.encode("utf-8", "replace"))
    return ModelUsage(
        tokens_in=(sent + 3) // 4, tokens_out=(received + 3) // 4, reported=False, raw=raw or {}
    )


def window_of(model: Model) -> int | None:
    """Return how many tokens a model holds, None where it does not say."""
    found = getattr(model, "window", None)
    return found if isinstance(found, int) and not isinstance(found, bool) else None
