"""Write a host call of a program as the Python that it was: `pay("INV-101", amount=12.5)`."""

from __future__ import annotations

import msgspec

from tallystick.core.records import AttachmentRef, CallHost, CallWaiting, HostAnswered
from tallystick.core.views.open_calls import OpenIntent

_UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)
_decode = msgspec.json.Decoder(tuple[str, list[object], dict[str, object]]).decode
_encode = msgspec.json.Encoder().encode


def call_text(name: str, request: str) -> str:
    """Return a call as Python, by its recorded request. One that is no call is shown as it is.

    The text may have line breaks and any character: the caller makes it safe to be shown.
    """
    try:
        _, args, kwargs = _decode(request)
    except _UNREADABLE:
        return f"{name}: {request}"
    said = [_literal(each) for each in args]
    said += [f"{key}={_literal(each)}" for key, each in kwargs.items()]
    return f"{name}({', '.join(said)})"


def recorded_call_text(record: CallHost | HostAnswered | CallWaiting) -> str:
    """Return a recorded call as Python. Without its request, that is its name.

    For a long request of an effect, which is kept apart, that is its size.
    """
    request = record.request if isinstance(record.request, str) else ""
    ref = None if isinstance(record, HostAnswered) else record.request_ref
    return _said(record.name, request, ref if isinstance(ref, AttachmentRef) else None)


def open_call_text(call: OpenIntent) -> str:
    """Return a call without an outcome as `recorded_call_text` does."""
    return _said(call.what, call.request, call.request_ref)


def _said(name: str, request: str, ref: AttachmentRef | None) -> str:
    if ref is not None:
        return f"{name}({ref.byte_len:,} bytes, kept as {ref.id[:12]})"
    return call_text(name, request) if request else name


def _literal(value: object) -> str:
    match value:
        case bool() | None:
            return repr(value)
        case str():
            return _encode(value).decode()
        case dict():
            coded = value.get("$bytes")
            if len(value) == 1 and isinstance(coded, str):
                return f"<{len(coded) * 3 // 4 - coded[-2:].count('='):,} bytes>"
            inside = (f"{_encode(key).decode()}: {_literal(each)}" for key, each in value.items())
            return f"{{{', '.join(inside)}}}"
        case list():
            return f"[{', '.join(map(_literal, value))}]"
        case _:
            return repr(value)
