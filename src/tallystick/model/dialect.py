"""The parts of a wire format: requests as bytes, and readers that withstand hostile bytes.

A dialect is a module of plain functions. It knows nothing of connections, keys or clocks.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from tallystick.core.charge import ModelUsage
from tallystick.core.json_text import read_json
from tallystick.core.machine.prompt import Image, Message
from tallystick.model import failures
from tallystick.model.endpoint import Endpoint, Secret
from tallystick.model.failures import one_line
from tallystick.model.port import ModelError, ModelReply, ModelRequest, estimated_usage

# Decoding of server-sent events, from pieces of any size, with a limited length.
#
# Lines end with LF, CR or CRLF. Comments and fields other than `event` and `data` are dropped. An
# event that is cut by the end of the stream is dropped too, as the standard says.


_EVENT_BYTES_MAX = 2 * 1024 * 1024
_LINE_BYTES = 40
_BOM = b"\xef\xbb\xbf"


class SseEvent(NamedTuple):
    """One event. `event` is empty if the server gave it no name."""

    event: bytes
    data: bytes


class SseDecoder:
    """Turns pieces of a stream into events."""

    __slots__ = ("_after_cr", "_data", "_event", "_first", "_partial", "_partial_bytes", "_size")

    def __init__(self) -> None:
        self._partial: list[bytes] = []
        self._partial_bytes = 0
        self._event = b""
        self._data: list[bytes] = []
        self._size = 0
        self._after_cr = False
        self._first = True

    def feed(self, piece: bytes) -> list[SseEvent]:
        """Take the next bytes, return the events that are complete; none for no bytes.

        Raise `ModelError` if an event has more than 2 MiB of data, where each line counts 40 bytes
        more, or if a line that has not ended is longer.
        """
        if self._after_cr and piece:
            # A CR at the end of the last piece ended its line. If an LF follows, it is of that CR.
            self._after_cr = False
            piece = piece.removeprefix(b"\n")
        lines = piece.splitlines(keepends=True)
        if not lines:
            return []
        rest = b""
        if not lines[-1].endswith((b"\n", b"\r")):
            rest = lines.pop()
        self._after_cr = piece.endswith(b"\r")
        events: list[SseEvent] = []
        for line in lines:
            if self._partial:
                line = b"".join((*self._partial, line))
                self._partial.clear()
                self._partial_bytes = 0
            self._take(line.rstrip(b"\r\n"), events)
        if rest:
            self._partial.append(rest)
            self._partial_bytes += len(rest)
            self._check(self._partial_bytes)
        return events

    def _take(self, line: bytes, events: list[SseEvent]) -> None:
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        if not line:
            if self._data:
                events.append(SseEvent(self._event, b"\n".join(self._data)))
            self._event, self._size = b"", 0
            self._data.clear()
            return
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            # Each line counts 40 bytes more: empty lines of data take memory too.
            self._size += len(value) + _LINE_BYTES
            self._check(self._size)
            self._data.append(value)
        elif field == b"event":
            self._event = value

    def _check(self, size: int) -> None:
        if size > _EVENT_BYTES_MAX:
            raise failures.oversized_reply(f"an event of more than {_EVENT_BYTES_MAX:,} bytes")


Shape = TypeVar("Shape", bound=msgspec.Struct)

_TOKENS_MAX = 1_000_000_000
# A longer object is not taken for a report of usage.
_USAGE_BYTES_MAX = 16 * 1024
_NAME_CHARS_MAX = 200


class WireRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A POST request, without the key."""

    path: str
    headers: Mapping[str, str]
    body: bytes


class ReplyText:
    """The text of a reply, as its pieces come."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._chars = 0
        self._taken = 0

    def add(self, piece: str | None) -> bool:
        """Add a piece. Return False if it is empty; raise `ModelError` if the text is too long."""
        if not piece:
            return False
        self._pieces.append(piece)
        self._chars += len(piece)
        if self._chars > failures.TEXT_CHARS_MAX:
            raise failures.oversized_reply(f"more than {failures.TEXT_CHARS_MAX:,} characters")
        return True

    def take_new(self) -> str:
        """Return the pieces that came since the last call, joined."""
        new, self._taken = self._pieces[self._taken :], len(self._pieces)
        return replace_surrogates("".join(new))

    def whole(self) -> str:
        """Return all of it, as it can be encoded."""
        return replace_surrogates("".join(self._pieces))


class Reader(Protocol):
    """Reads the events of a streamed reply one by one."""

    @property
    def text(self) -> ReplyText:
        """The text received so far."""
        ...

    @property
    def done(self) -> bool:
        """True after the end marker."""
        ...

    def feed(self, event: SseEvent) -> None:
        """Take an event; those after the end marker, and of unknown kinds, are ignored.

        Raise `ModelError` if it cannot be read or reports an error, or if the text becomes too
        long.
        """
        ...

    def finish(self) -> ModelReply:
        """Return the reply after a clean end of the stream. Called once.

        Raise `ModelError` if it has no end or no content, or if the provider refused to answer.
        """
        ...


class WireFormat(Protocol):
    """A dialect."""

    def wire(self, endpoint: Endpoint, request: ModelRequest) -> WireRequest:
        """Return the request to send, without the key.

        Raise `ModelError` for pictures outside of a user's message.
        """
        ...

    def authorization(self, key: Secret) -> tuple[str, str]:
        """Return the name and value of the header with the key."""
        ...

    def listing(self, endpoint: Endpoint) -> tuple[str, Mapping[str, str]]:
        """Return the path of the list of models, and the headers of a request for it."""
        ...

    def reader(self, request: ModelRequest) -> Reader:
        """Return a reader for one streamed reply to this request."""
        ...

    def reply(self, data: bytes, request: ModelRequest) -> ModelReply:
        """Return a reply that came in one piece.

        Raise `ModelError` if it cannot be read, reports an error, or is a refusal to answer.
        """
        ...


def decode_reply(data: bytes, shape: msgspec.json.Decoder[Shape], type_: type[Shape]) -> Shape:
    """Decode JSON of a known shape. Raise `ModelError` for anything else.

    A lone surrogate or a byte that is not UTF-8 spoils one character, not a paid reply: data that
    the strict decoder refuses is given to a lenient one.
    """
    try:
        return shape.decode(data)
    except msgspec.ValidationError:
        raise failures.malformed_reply("JSON of another shape than a reply's") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    except RecursionError:
        raise failures.malformed_reply("JSON that is nested too deeply") from None
    try:
        return msgspec.convert(json.loads(data.decode("utf-8", "replace")), type_)
    except (ValueError, RecursionError):
        raise failures.malformed_reply("something that is not JSON") from None


def replace_surrogates(text: str) -> str:
    """Return a text that can be encoded: surrogate pairs are joined, lone ones become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def short_name(value: object) -> str:
    """Return a name that a server gave, in one line; "" if it is no text.

    It is cut at 200 characters.
    """
    return one_line(value)[:_NAME_CHARS_MAX] if isinstance(value, str) else ""


def base64_of(image: Image) -> str:
    return base64.b64encode(image.data).decode("ascii")


def check_messages(request: ModelRequest) -> tuple[Message, ...]:
    """Return the messages of a request.

    Raise `ModelError` for pictures outside of a user's message: neither format has a place for
    them.
    """
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
    raw: object,
    *,
    tokens_in: tuple[str, ...],
    tokens_out: str,
    request: ModelRequest,
    text: str,
    final: bool = True,
) -> ModelUsage:
    """Return usage as reported, or an estimate if the report is not usable.

    `tokens_in` and `tokens_out` are the names of the counts in it. `raw` is kept as it came; one
    that is too large (16 KiB), or that JSON would change, is dropped. A report
    of no input tokens, or of no output tokens for a text, is not usable. Nor is a count that is not
    whole, negative, or above 1,000,000,000. The first name of `tokens_in` has to be there; others
    that are missing count as 0, and the input is their sum. A report that is not `final` came
    before the end of the reply, cannot have counted all of it, and is not usable either.
    """
    kept = _storable_report(raw)
    counts = [_count(kept.get(name)) for name in tokens_in]
    sent = None if counts[0] is None else sum(count or 0 for count in counts)
    received = _count(kept.get(tokens_out))
    spoiled = any(
        kept.get(name) is not None and count is None
        for name, count in zip(tokens_in, counts, strict=True)
    )
    if not final or spoiled or not sent or received is None or (text and not received):
        return estimated_usage(request.messages, text, raw=kept)
    return ModelUsage(tokens_in=sent, tokens_out=received, reported=True, raw=kept)


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= _TOKENS_MAX else None


def _storable_report(raw: object) -> dict[str, Any]:
    """Return the report if it can be stored unchanged, else an empty one."""
    if not isinstance(raw, dict):
        return {}
    try:
        encoded = msgspec.json.encode(raw)
        whole = len(encoded) <= _USAGE_BYTES_MAX and msgspec.json.decode(encoded) == raw
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        return {}
    return raw if whole else {}


# Lists of models, which both dialects write alike.


class _ListedModel(msgspec.Struct):
    id: str


class _ModelList(msgspec.Struct):
    data: list[_ListedModel]


_decode_list = msgspec.json.Decoder(_ModelList).decode


def read_model_names(data: bytes) -> tuple[str, ...]:
    """Return the names in a list of models, in its order and each once.

    Names that are empty, not printable or longer than 200 characters are left out: no model can be
    asked by them. Raise `ModelError` if it is no such list.
    """
    try:
        listed = _decode_list(data).data
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise failures.malformed_reply("something that is no list of models") from None
    names = dict.fromkeys(each.id for each in listed)
    return tuple(
        name for name in names if name and len(name) <= _NAME_CHARS_MAX and name.isprintable()
    )


# What the settings of a provider add to each request, as JSON text.


def table_of(text: str) -> dict[str, object]:
    """Return the table of a setting, which was checked to be one as JSON; {} for ""."""
    found = read_json(text) if text else {}
    assert isinstance(found, dict)
    return found


def with_fields(body: Mapping[str, object], extra: str) -> bytes:
    """Return a body as JSON, with the fields of a provider. The request's own come first."""
    return msgspec.json.encode({**table_of(extra), **body} if extra else body)


def with_query(path: str, extra: str) -> str:
    """Return a path with the query of a provider at its end."""
    if not extra:
        return path
    made = urlencode({name: str(value) for name, value in table_of(extra).items()}, quote_via=quote)
    return f"{path}{'&' if '?' in path else '?'}{made}"
