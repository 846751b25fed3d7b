"""The model port: a request goes in, and a reply comes out, or an error with its reason.

A backend makes one attempt and no more. The run decides whether to repeat it, because every attempt
is recorded and paid for on its own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

import msgspec

from tallystick.core.charge import FailureKind, ModelUsage
from tallystick.core.errors import BackendError
from tallystick.core.machine.prompt import Message

# Reasons why a model gave no reply. The set is closed; transports map every failure to one of them.
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

# Reasons for which another attempt may succeed. An error may set its own `kind` instead.
TRANSIENT: frozenset[ModelReason] = frozenset(
    {"rate_limit", "server_error", "network_error", "timeout"}
)

# Called with the text of a reply as it comes, piece by piece. It is for display alone: what counts
# is the reply, once it is recorded.
Heard = Callable[[str], None]


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request to a model. `temperature` None leaves it to the server.

    `key` is unique to the call: a provider that stores it can be asked later about the call.
    """

    messages: tuple[Message, ...]
    tokens_out_max: int = 4_096
    temperature: float | None = None
    key: str = ""


class ModelReply(msgspec.Struct, frozen=True, kw_only=True):
    """The reply of a model. `cut` is True if it ended at its token limit.

    `served_by` is the name by which the server calls the model, `finish` its own word for why it
    stopped.
    """

    text: str
    usage: ModelUsage
    cut: bool = False
    served_by: str = ""
    finish: str = ""


def writable(text: str) -> str:
    """Return a text that can be stored. A lone surrogate has no UTF-8 bytes, and becomes "?"."""
    return text.encode("utf-8", "replace").decode()


def readable(reply: ModelReply) -> ModelReply:
    """Return a reply whose texts can be stored, whatever its backend received.

    Usage is unchanged.
    """
    return msgspec.structs.replace(
        reply,
        text=writable(reply.text),
        served_by=writable(reply.served_by),
        finish=writable(reply.finish),
    )


class ModelError(BackendError):
    """A model gave no reply.

    `billed` is False only if the attempt is known to have cost nothing: it was never sent, or the
    server refused it before any work. `usage` is what was reported in spite of the failure. A
    `kind` that is left out follows from the reason (`TRANSIENT`).
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
    """A model backend. `name` is what the run records."""

    @property
    def name(self) -> str: ...

    def admitted(self) -> AbstractAsyncContextManager[None]:
        """Wait until this provider may be asked, and keep the admission while inside.

        Entered before the attempt is recorded, so that a run which dies in the queue leaves no call
        in doubt.
        """
        ...

    async def ask(self, request: ModelRequest, *, heard: Heard) -> ModelReply:
        """Make one attempt. Raise `ModelError` without a reply. Cancelling it disconnects.

        `heard` may be called with pieces of the text as they come. Together they are at most the
        text of the reply, and have no key.
        """
        ...

    async def close(self) -> None:
        """Release connections and threads. A later request may open them again."""
        ...


def estimated_usage(
    messages: tuple[Message, ...], text: str, *, raw: dict[str, object] | None = None
) -> ModelUsage:
    """Return an estimate for a call without a usable report: a quarter of the bytes, as tokens.

    It is rounded up. Pictures are not counted. Its `reported` is False; `raw` is the report that
    was not usable.
    """
    sent = sum(len(message.text.encode("utf-8", "replace")) for message in messages)
    received = len(text.encode("utf-8", "replace"))
    return ModelUsage(
        tokens_in=(sent + 3) // 4, tokens_out=(received + 3) // 4, reported=False, raw=raw or {}
    )


def window_of(model: Model) -> int | None:
    """Return how many tokens a model holds; None if it has no whole number as `window`."""
    found = getattr(model, "window", None)
    return found if isinstance(found, int) and not isinstance(found, bool) else None
