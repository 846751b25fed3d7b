"""The keys of the configuration: what each is called and what it may hold.

Rule 1: a value that is not allowed is an error in one line, which names the place, the key and what
is allowed. It is never replaced by a default.
Rule 2: an error repeats a value only where the key cannot hold a secret by mistake, and repeats it
escaped: files come from strangers, and terminals obey control characters.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from tallystick.core.charge import RunLimits, nano_usd
from tallystick.core.errors import InvalidLimit, UsageError
from tallystick.core.strategy import STRATEGIES
from tallystick.model.endpoint import Dialect, Endpoint

Value = bool | int | float | str | tuple[str, ...]

DIALECTS: tuple[Dialect, ...] = get_args(Dialect)
# Models that are no provider's.
FileKind = Literal["gguf", "recorded", "scripted"]
FILE_KINDS: tuple[FileKind, ...] = get_args(FileKind)
# Tables that later versions are to know. Named here so that they are refused by name until then.
UNSUPPORTED = ("commands",)
# Characters of a catalog.
SKILLS_BUDGET = 2_000
ALIAS_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII | re.IGNORECASE)
PROVIDER_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}", re.ASCII)

_TEXT_CHARS_MAX = 500
_SHOWN_CHARS_MAX = 60
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d{1,30}", re.ASCII)
_PLAIN_KEY = re.compile(r"[\w.-]{1,80}", re.ASCII)
# Capitals only. A key pasted in place of its variable's name nearly always has small letters.
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,63}", re.ASCII)
_SECRET = re.compile(r"(key|token|secret|password|bearer|authorization|credentials?)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a key may hold. `accept` gives the value to use, or None for one that is not allowed."""

    what: str
    accept: Callable[[object], Value | None]
    repeatable: bool = True
    parse: Callable[[str], object] = lambda text: text


def _whole(low: int, high: int) -> Kind:
    def accept(value: object) -> int | None:
        if isinstance(value, bool) or not isinstance(value, int):
            return None
        return value if low <= value <= high else None

    return Kind(what=f"a whole number from {low:,} to {high:,}", accept=accept, parse=_parse_whole)


def _number(low: float, high: float) -> Kind:
    def accept(value: object) -> float | None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        # Compared before it is converted: a whole number may be too long for a float.
        return float(value) if low <= value <= high and not math.isnan(value) else None

    what = f"a number from {low:,.15g} to {high:,.15g}"
    return Kind(what=what, accept=accept, parse=_parse_number)


def _is_text(value: object) -> bool:
    return (
        isinstance(value, str)
        and 0 < len(value) <= _TEXT_CHARS_MAX
        and value.isprintable()
        and value == value.strip()
    )


def _accept_text(value: object) -> str | None:
    return value if isinstance(value, str) and _is_text(value) else None


def _accept_texts(value: object) -> tuple[str, ...] | None:
    if not isinstance(value, list | tuple) or not all(_is_text(each) for each in value):
        return None
    return tuple(dict.fromkeys(value))


def _accept_flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _accept_dialect(value: object) -> str | None:
    return value if isinstance(value, str) and value in DIALECTS else None


def _accept_strategy(value: object) -> str | None:
    return value if isinstance(value, str) and value in STRATEGIES else None


def _accept_variable(value: object) -> str | None:
    if not isinstance(value, str):
        return None
    return value if value == "" or _VARIABLE.fullmatch(value) else None


def _accept_url(value: object) -> str | None:
    text = _accept_text(value)
    # Also where they would be part of a path: a password with a slash in it looks like that.
    if text is None or any(each in text for each in "@?#\\"):
        return None
    try:
        return Endpoint(provider="-", dialect="openai", base_url=text, model="-").base_url
    except UsageError:
        return None


def _accept_usd(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        nano_usd(value)
    except InvalidLimit:
        return None
    return float(value)


def _parse_whole(text: str) -> object:
    return int(text) if _WHOLE.fullmatch(text) else text


def _parse_flag(text: str) -> object:
    return {"true": True, "false": False}.get(text.lower(), text)


def _parse_number(text: str) -> object:
    return float(text) if _NUMBER.fullmatch(text) else text


_TEXT = Kind(what="one line of text", accept=_accept_text)
_FLAG = Kind(what="true or false", accept=_accept_flag, parse=_parse_flag)
_STRATEGY = Kind(what=" or ".join(STRATEGIES), accept=_accept_strategy)
_SECONDS = _number(0.001, 86_400)
_USD = Kind(
    what="a sum of dollars with at most nine decimals", accept=_accept_usd, parse=_parse_number
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A setting. Of a `limit`, less is always safe; `variable` sets it in the environment."""

    name: str
    kind: Kind
    default: Value | None = None
    limit: bool = False
    variable: str | None = None
    flag: str


# Lists have no variable of their own; each flag names one of them.
_LISTS = {"grants": "--grant", "skills_paths": "--skills"}


def _spec(name: str, kind: Kind, default: Value | None = None, *, limit: bool = False) -> Spec:
    return Spec(
        name=name,
        kind=kind,
        default=default,
        limit=limit,
        variable=None if name in _LISTS else f"TALLYSTICK_{name.upper()}",
        flag=_LISTS.get(name, f"--{name.replace('_', '-')}"),
    )


_LIMITS = RunLimits()
SETTINGS: Mapping[str, Spec] = {
    each.name: each
    for each in (
        _spec("model", _TEXT),
        _spec("max_turns", _whole(0, 1_000_000), _LIMITS.turns, limit=True),
        _spec("max_tokens", _whole(0, 10**12), _LIMITS.tokens, limit=True),
        _spec("max_usd", _USD, limit=True),
        _spec("total_usd", _USD),
        _spec("allow_unpriced", _FLAG, default=False),
        _spec("tokenizer", _TEXT),
        _spec("timeout", _number(0, 10**7), _LIMITS.wall_ms / 1000, limit=True),
        _spec("max_host_calls", _whole(0, 10**9), _LIMITS.host_calls, limit=True),
        _spec("reply_tokens", _whole(0, 10**9), _LIMITS.reply_tokens, limit=True),
        _spec("retries", _whole(0, 100), _LIMITS.retries, limit=True),
        _spec("temperature", _number(0, 2)),
        _spec("strategy", _STRATEGY),
        _spec("compact_at", _whole(0, 10**9)),
        _spec("clock", _TEXT, "now"),
        _spec("timezone", _TEXT, "UTC"),
        _spec(
            "grants",
            Kind(what="a list of capabilities, each one line of text", accept=_accept_texts),
        ),
        _spec(
            "skills_paths",
            Kind(what="a list of directories, each one line of text", accept=_accept_texts),
        ),
        _spec("skills_require_signature", _FLAG, default=False),
        _spec("skills_budget", _whole(0, 1_000_000), SKILLS_BUDGET),
        _spec("memory", _TEXT),
    )
}

ALIAS = Kind(
    what="PROVIDER:MODEL, gguf:PATH, scripted:FILE or recorded:RUN",
    accept=lambda value: value if isinstance(value, str) and _is_target(value) else None,
    repeatable=False,
)

PROVIDER_KEYS: Mapping[str, Kind] = {
    "dialect": Kind(what=" or ".join(DIALECTS), accept=_accept_dialect),
    "base_url": Kind(
        what="an http or https URL without user, query and fragment",
        accept=_accept_url,
        repeatable=False,
    ),
    "key_env": Kind(
        what='the name of an environment variable in capitals, or "" for no key',
        accept=_accept_variable,
        repeatable=False,
    ),
    "concurrency": _whole(1, 1_024),
    "connect_seconds": _SECONDS,
    "silence_seconds": _SECONDS,
    "total_seconds": _SECONDS,
    "stream": _FLAG,
    "allow_plain_http": _FLAG,
}


def _is_target(value: str) -> bool:
    kind, _, rest = value.partition(":")
    return _is_text(value) and bool(kind) and bool(rest)


def accepted(kind: Kind, value: object, *, where: str, key: str) -> Value:
    """The value, or one line that says what was wrong and what is allowed."""
    found = kind.accept(value)
    if found is None:
        given = f", not {quoted(value)}" if kind.repeatable else ""
        raise UsageError(f"{where}{key}: must be {kind.what}{given}")
    return found


def from_text(kind: Kind, text: str, *, variable: str) -> Value:
    """A value as an environment variable gives it."""
    return accepted(kind, kind.parse(text), where="", key=variable)


def unknown_key(key: str, known: Iterable[str], *, where: str, prefix: str = "") -> UsageError:
    """Say that there is no such key, and which is the closest. The value is not repeated."""
    names = sorted(known)
    close = difflib.get_close_matches(key[:80], names, n=1, cutoff=0.85)
    if _SECRET.search(key.lower()) and not close:
        return UsageError(
            f"{where}{one_line(prefix + key)}: a key does not belong in a file; put it in an "
            f"environment variable and name that in providers.NAME.key_env"
        )
    close = close or difflib.get_close_matches(key[:80], names, n=1)
    hint = f"did you mean {prefix}{close[0]}?" if close else f"known are {', '.join(names)}"
    return UsageError(f"{where}{one_line(prefix + key)} is not a setting; {hint}")


def one_line(text: str) -> str:
    """A name, path or text that others chose, fit for one line of a terminal."""
    if _PLAIN_KEY.fullmatch(text) or (text.isprintable() and len(text) <= _TEXT_CHARS_MAX):
        return text
    cut = text if len(text) <= _TEXT_CHARS_MAX else f"{text[:_TEXT_CHARS_MAX]}…"
    return repr(cut)


def quoted(value: object) -> str:
    """A value that was not allowed, short and escaped."""
    match value:
        case str():
            cut = value if len(value) <= _SHOWN_CHARS_MAX else f"{value[:_SHOWN_CHARS_MAX]}…"
            return repr(cut)
        case bool():
            return "true" if value else "false"
        case int():
            # A number from hexadecimal may be longer than Python will write in decimal.
            return f"{value:,}" if value.bit_length() <= 64 else "a number that long"
        case float():
            return f"{value:,.15g}"
        case dict():
            return "a table"
        case list() | tuple():
            return "what this list holds"
        case _:
            return "a date or time"
