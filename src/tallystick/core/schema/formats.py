"""Check the formats of text that a schema may ask for: dates, times, addresses and others.

A format that is not listed here is refused when the schema is given. A date with a time may have
an offset from UTC or none, as in Python. All patterns here are fixed, and take linear time.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import ipaddress
import re
from collections.abc import Callable

_CHARS_MAX = 10_000_000
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_CLOCK = r"\d{2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?(?:[zZ]|[+-]\d{2}:?\d{2})?"
_TIME = re.compile(_CLOCK)
_DATE_TIME = re.compile(rf"\d{{4}}-\d{{2}}-\d{{2}}[tT ]{_CLOCK}")
_DURATION = re.compile(
    r"[+-]?P(?=[\dT])(?:\d+Y)?(?:\d+M)?(?:\d+W)?(?:\d+D)?"
    r"(?:T(?=\d)(?:\d+H)?(?:\d+M)?(?:\d+(?:\.\d+)?S)?)?"
)
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_DECIMAL = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,4})?")
_EMAIL = re.compile(r"[^\s@<>\"(),:;\[\]\\]{1,64}@[^\s@.]+(?:\.[^\s@.]+)+")
_URI = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:[^\s<>\"{}|\\^`]+")
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_HOST = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*")


def has_format(name: str, text: str) -> bool:
    """Return True if a text has a format, which must be one of `FORMATS`."""
    return len(text) <= _CHARS_MAX and _CHECKS[name](text)


def _matches(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda text: pattern.fullmatch(text) is not None


def _parses(parse: Callable[[str], object], pattern: re.Pattern[str]) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        if pattern.fullmatch(text) is None:
            return False
        try:
            parse(text)
        except ValueError:
            return False
        return True

    return check


_ANY = re.compile(r"\S+")


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def without_nanoseconds(text: str) -> str:
    """Return a time as Python reads it: in capitals, with at most six digits after the second."""
    return re.sub(r"(\.\d{6})\d+", r"\1", text.upper())


def _date_time(text: str) -> object:
    return datetime.datetime.fromisoformat(without_nanoseconds(text))


def _time(text: str) -> object:
    return datetime.time.fromisoformat(without_nanoseconds(text))


def _anything(text: str) -> bool:
    return True


_CHECKS: dict[str, Callable[[str], bool]] = {
    "date": _parses(datetime.date.fromisoformat, _DATE),
    "date-time": _parses(_date_time, _DATE_TIME),
    "time": _parses(_time, _TIME),
    "duration": _matches(_DURATION),
    "uuid": _matches(_UUID),
    "decimal": _matches(_DECIMAL),
    "email": _matches(_EMAIL),
    "uri": _matches(_URI),
    "hostname": _matches(_HOST),
    "ipv4": _parses(ipaddress.IPv4Address, _ANY),
    "ipv6": _parses(ipaddress.IPv6Address, _ANY),
    "byte": _is_base64,
    # These say what a text is for, and allow every text.
    "path": _anything,
    "file-path": _anything,
    "directory-path": _anything,
    "password": _anything,
    "binary": _anything,
}
FORMATS = tuple(sorted(_CHECKS))
