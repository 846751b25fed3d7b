"""Keep what a program asked of the host, for the record of the call, without keys.

The record of a call binds its request by a digest. A person who approves a call, or audits it, has
to read it too. So an effect keeps its whole request, and a read a short one.
"""

from __future__ import annotations

from typing import TypedDict

import msgspec
from msgspec import UNSET, UnsetType

from tallystick.core.records import AttachmentRef
from tallystick.model.endpoint import without_known_keys
from tallystick.runtime.context.attachments import RunAttachments

# A longer request of an effect is kept as an attachment.
EFFECT_BYTES_MAX = 4_096
# A longer request of a read is not kept: a replay of its program makes it again.
READ_BYTES_MAX = 1_024
_UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)
_encode = msgspec.json.Encoder().encode


class KeptRequest(TypedDict, total=False):
    """The fields of a record that say what was asked."""

    request: str
    request_ref: AttachmentRef


def keep_effect_request(name: str, request: bytes, run_attachments: RunAttachments) -> KeptRequest:
    """Return the request of an effect for its record; a long one is stored as an attachment.

    Raise `AttachmentError` if it cannot be stored.
    """
    text = readable_request(request)
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) <= EFFECT_BYTES_MAX:
        return {"request": text}
    ref = run_attachments.keep(raw, media_type="application/json", label=f"request of {name}")
    return {"request_ref": ref}


def keep_read_request(request: bytes) -> str | UnsetType:
    """Return the request of a read for its record; UNSET for one of more than 1 KiB."""
    if len(request) > READ_BYTES_MAX:
        return UNSET
    text = readable_request(request)
    return text if len(text.encode("utf-8", "surrogatepass")) <= READ_BYTES_MAX else UNSET


def readable_request(request: bytes) -> str:
    """Return a request as text, with "[key]" in the place of every key that is in use here.

    Bytes that are no UTF-8 become escapes.
    """
    text = without_known_keys(request.decode("utf-8", "backslashreplace"))
    if "\\" not in text:
        return text
    # JSON may write any character as an escape, so a key may hide behind some.
    try:
        asked = msgspec.json.decode(text)
    except _UNREADABLE:
        return text
    hidden = _without_keys(asked)
    return text if hidden == asked else _encode(hidden).decode()


def _without_keys(value: object) -> object:
    match value:
        case str():
            return without_known_keys(value)
        case list():
            return [_without_keys(each) for each in value]
        case dict():
            return {without_known_keys(key): _without_keys(each) for key, each in value.items()}
        case _:
            return value
