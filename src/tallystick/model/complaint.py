"""What a server says of an error: its message, its names for it, and when to ask again.

Errors come in a handful of shapes and in any other; nothing here raises.
"""

from __future__ import annotations

import datetime
import email.utils
import math
import unicodedata
from collections.abc import Mapping

import msgspec

__all__ = ["of_body", "of_value", "one_line", "retry_after_ms"]

_SAID_CHARS_MAX = 300
_RETRY_AFTER_MS_MAX = 3_600_000
_UNSHOWN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def retry_after_ms(headers: Mapping[str, str], *, now: datetime.datetime) -> int | None:
    """How long the server asks to be left alone; at most an hour is believed."""
    told = _number(headers.get("retry-after-ms", ""))
    if told is None:
        stated = headers.get("retry-after", "")
        seconds = _number(stated)
        if seconds is None:
            seconds = _seconds_until(stated, now)
        told = None if seconds is None else seconds * 1000
    return None if told is None else round(min(max(told, 0.0), _RETRY_AFTER_MS_MAX))


def _number(text: str) -> float | None:
    try:
        value = float(text[:40])
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _seconds_until(text: str, now: datetime.datetime) -> float | None:
    try:
        then = email.utils.parsedate_to_datetime(text[:64])
    except (ValueError, IndexError, TypeError, OverflowError):
        return None
    if then.tzinfo is None:
        then = then.replace(tzinfo=datetime.UTC)
    return (then - now).total_seconds()


def of_body(content_type: str, body: bytes) -> tuple[str, str]:
    """The message in an error's body, and the names the error has there."""
    try:
        return of_value(msgspec.json.decode(body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    text = body.decode("utf-8", "replace")
    if "html" in content_type.lower() or text.lstrip()[:1] == "<":
        return "an HTML page", ""
    return _first_line(text), ""


def of_value(value: object) -> tuple[str, str]:
    """Find message and names in `{"error": {...}}`, `{"error": "..."}`, `{"detail": ...}`."""
    names: list[str] = []
    said = ""
    for _ in range(3):
        if isinstance(value, list) and value:
            value = value[0]
        if not isinstance(value, dict):
            break
        names += [str(value[key])[:80] for key in ("type", "code") if key in value]
        said = next(
            (value[key] for key in ("message", "detail") if isinstance(value.get(key), str)), said
        )
        value = value.get("error", value.get("detail"))
    if isinstance(value, str):
        said = said or value
    return _first_line(said), " ".join(names)


def _first_line(text: str) -> str:
    text = text[: 8 * _SAID_CHARS_MAX].strip()
    return one_line(text.partition("\n")[0])[:_SAID_CHARS_MAX]


def one_line(text: str) -> str:
    """A text without line breaks, control and format characters, and lone surrogates."""
    spaced = " ".join(text.split())
    return "".join(each for each in spaced if unicodedata.category(each) not in _UNSHOWN)
