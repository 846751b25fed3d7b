"""What a wire format is made of: requests as bytes, and readers that hostile bytes cannot surprise.

A dialect is a module of plain functions. It knows nothing of connections, keys or clocks.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from tallystick.core.prompt import Image, Message
from tallystick.core.records import ModelUsage
from tallystick.model import failures
from tallystick.model.complaint import one_line
from tallystick.model.endpoint import Endpoint
from tallystick.model.port import ModelError, ModelReply, ModelRequest, estimated_usage
from tallystick.model.secret import Secret
from tallystick.model.sse import SseEvent

__all__ = [
    "Reader",
    "WireFormat",
    "WireRequest",
    "base64_of",
    "checked_messages",
    "decoded",
    "name_of",
    "plain",
    "usage_of",
]

Shape = TypeVar("Shape", bound=msgspec.Struct)

_TOKENS_MAX = 1_000_000_000
# A longer report is not a report of usage.
_USAGE_BYTES_MAX = 16 * 1024
_NAME_CHARS_MAX = 200


class WireRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A POST, without the key."""

    path: str
    headers: Mapping[str, str]
    body: bytes


class Reader(Protocol):
    """Takes the events of a streamed reply one by one."""

    @property
    def chars(self) -> int:
        """How many characters of text have come."""
        ...

    @property
    def done(self) -> bool:
        """Whether the end marker has come."""
        ...

    def feed(self, event: SseEvent) -> None:
        """Take an event. Raises `ModelError` for what is none, or tells of an error."""
        ...

    def finish(self) -> ModelReply:
        """The reply, after a clean end. Raises `ModelError` where the end marker is missing."""
        ...


class WireFormat(Protocol):
    """A dialect."""

    def wire(self, endpoint: Endpoint, request: ModelRequest) -> WireRequest: ...

    def authorization(self, key: Secret) -> tuple[str, str]:
        """The header that carries the key."""
        ...

    def reader(self, request: ModelRequest) -> Reader: ...

    def reply(self, data: bytes, request: ModelRequest) -> ModelReply:
        """Read a reply that came in one piece."""
        ...


def decoded(data: bytes, shape: msgspec.json.Decoder[Shape], type_: type[Shape]) -> Shape:
    """Read JSON of a known shape. Raises `ModelError` for anything else.

    Half of a surrogate pair or a byte that is not UTF-8 spoils one character, not a paid reply:
    what the strict reader refuses is given to a lenient one.
    """
    try:
        return shape.decode(data)
    except msgspec.ValidationError:
        raise failures.malformed("JSON of another shape than a reply's") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    except RecursionError:
        raise failures.malformed("JSON that is nested without end") from None
    try:
        return msgspec.convert(json.loads(data.decode("utf-8", "replace")), type_)
    except (ValueError, RecursionError):
        raise failures.malformed("something that is not JSON") from None


def plain(text: str) -> str:
    """A text that can be written: halves of surrogate pairs are joined, or replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def name_of(value: object) -> str:
    """A short name a server gave, or nothing."""
    return one_line(value)[:_NAME_CHARS_MAX] if isinstance(value, str) else ""


def base64_of(image: Image) -> str:
    return base64.b64encode(image.data).decode("ascii")


def checked_messages(request: ModelRequest) -> tuple[Message, ...]:
    """The messages of a request; neither format has pictures elsewhere than in what a user says."""
    for message in request.messages:
        if message.images and message.role != "user":
            raise ModelError(
                reason="invalid_request",
                message=f"cannot be sent pictures in a {message.role} message; put them into a "
                f"user message",
                billed=False,
            )
    return request.messages


def usage_of(
    raw: object, *, tokens_in: tuple[str, ...], tokens_out: str, request: ModelRequest, text: str
) -> ModelUsage:
    """Usage as reported, or an estimate where the report is none.

    `raw` is kept as it came. A prompt of no tokens and a text of no tokens do not exist: a report
    that says so is as good as none.
    """
    kept = _kept(raw)
    counts = [_count(kept.get(name)) for name in tokens_in]
    sent = None if counts[0] is None else sum(count or 0 for count in counts)
    received = _count(kept.get(tokens_out))
    spoiled = any(
        kept.get(name) is not None and count is None
        for name, count in zip(tokens_in, counts, strict=True)
    )
    if spoiled or not sent or received is None or (text and not received):
        return estimated_usage(request.messages, text, raw=kept)
    return ModelUsage(tokens_in=sent, tokens_out=received, reported=True, raw=kept)


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= _TOKENS_MAX else None


def _kept(raw: object) -> dict[str, Any]:
    """The report, if it can be written down again as it is."""
    if not isinstance(raw, dict):
        return {}
    try:
        encoded = msgspec.json.encode(raw)
        whole = len(encoded) <= _USAGE_BYTES_MAX and msgspec.json.decode(encoded) == raw
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        return {}
    return raw if whole else {}
