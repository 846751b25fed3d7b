"""The keys of the configuration: their names, and the values they allow.

Rule 1: a value that is not allowed is an error in one line, which names the place, the key and the
allowed values. It is never replaced by a default.
Rule 2: an error repeats a value only if the key cannot hold a secret by mistake, and repeats it
escaped: files come from strangers, and terminals obey control characters.
"""

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from tallystick.core.charge import RunLimits, nano_usd
from tallystick.core.errors import UsageError
from tallystick.core.strategy import AskedStrategy
from tallystick.model.endpoint import Dialect, Endpoint

# This module has no `from __future__ import annotations`, which would turn annotations into texts:
# here they declare the keys, and are evaluated.

Value = bool | int | float | str | tuple[str, ...]

# Kinds of models without a provider.
FileKind = Literal["gguf", "recorded", "scripted"]
FILE_KINDS: tuple[FileKind, ...] = get_args(FileKind)
# Tables reserved for later versions, listed here so that they are refused by name until then.
UNSUPPORTED = ("commands",)
# The size of a skills catalog, in characters.
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


# -- kinds of values -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Check:
    """A check beyond the type: its description, and a function that returns the value to use.

    The function is called with a value of the right type, and raises `ValueError` for one that is
    not allowed. If not `repeatable`, a value may be a secret, and errors do not repeat it.
    """

    what: str
    convert: Callable[[Any], Value] = lambda value: value
    repeatable: bool = True


def _line(value: str) -> str:
    if not value.isprintable() or value != value.strip():
        raise ValueError
    return value


def _lines(values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_line(each) for each in values))


def _target(value: str) -> str:
    kind, _, rest = _line(value).partition(":")
    if not kind or not rest:
        raise ValueError
    return value


def _variable(value: str) -> str:
    if value and not _VARIABLE.fullmatch(value):
        raise ValueError
    return value


def _url(value: str) -> str:
    # Refused anywhere in the URL, also in its path: a password with a slash looks like a path.
    if any(each in _line(value) for each in "@?#\\"):
        raise ValueError
    return Endpoint(provider="-", dialect="openai", base_url=value, model="-").base_url


def _dollars(value: float) -> float:
    nano_usd(value)
    return value


_Line = Annotated[str, Meta(min_length=1, max_length=_TEXT_CHARS_MAX)]
_Text = Annotated[_Line, Check("one line of text", _line)]
_Directories = Annotated[
    tuple[_Line, ...], Check("a list of directories, each one line of text", _lines)
]
_Capabilities = Annotated[
    tuple[_Line, ...], Check("a list of capabilities, each one line of text", _lines)
]
# A table of a file, as JSON text, see `tallystick.settings.provider_tables`.
_Table = Annotated[str, Check("a table", lambda value: value, repeatable=False)]
_Usd = Annotated[float, Check("a sum of dollars with at most nine decimals", _dollars)]
_Seconds = Annotated[float, Meta(ge=0.001, le=86_400)]
_Million = Annotated[int, Meta(ge=0, le=1_000_000)]
_Billion = Annotated[int, Meta(ge=0, le=10**9)]
# Marks a limit: a project's file may lower it without trust.
_LIMIT = Meta(extra={"limit": True})


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The kind of values that a key allows, from its declaration."""

    type: Any
    plain: Any
    check: Check
    limit: bool

    @property
    def what(self) -> str:
        """The allowed values, in words."""
        return self.check.what


def _kind(declared: object) -> Kind:
    """Read the declaration of a key: a type, joined with None if the key may be unset."""
    if type(None) in get_args(declared):
        declared = next(each for each in get_args(declared) if each is not type(None))
    plain, *metadata = get_args(declared) if hasattr(declared, "__metadata__") else (declared,)
    bounds = [each for each in metadata if isinstance(each, Meta)]
    checks = [each for each in metadata if isinstance(each, Check)]
    return Kind(
        type=declared,
        plain=plain,
        check=checks[-1] if checks else Check(_describe_allowed(plain, bounds)),
        limit=any((each.extra or {}).get("limit") for each in bounds),
    )


def _describe_allowed(plain: object, bounds: Iterable[Meta]) -> str:
    """Describe the allowed values of a plain type in words."""
    if plain is bool:
        return "true or false"
    if plain not in (int, float):
        return " or ".join(get_args(plain))
    ends = next(each for each in bounds if each.ge is not None)
    if plain is int:
        return f"a whole number from {ends.ge:,} to {ends.le:,}"
    return f"a number from {ends.ge:,.15g} to {ends.le:,.15g}"


# -- the keys --------------------------------------------------------------------------------------


_LIMITS = RunLimits()
_ENDPOINT: Mapping[str, Any] = {field.name: field.default for field in dataclasses.fields(Endpoint)}


class Values(msgspec.Struct, frozen=True, kw_only=True):
    """Every setting, declared once: its kind of values, and its default."""

    model: _Text | None = None
    max_turns: Annotated[_Million, _LIMIT] = _LIMITS.turns
    max_tokens: Annotated[int, Meta(ge=0, le=10**12), _LIMIT] = _LIMITS.tokens
    max_usd: Annotated[_Usd, _LIMIT] | None = None
    total_usd: _Usd | None = None
    allow_unpriced: bool = False
    tokenizer: _Text | None = None
    timeout: Annotated[float, Meta(ge=0, le=10**7), _LIMIT] = _LIMITS.wall_ms / 1000
    max_host_calls: Annotated[_Billion, _LIMIT] = _LIMITS.host_calls
    reply_tokens: Annotated[_Billion, _LIMIT] = _LIMITS.reply_tokens
    retries: Annotated[int, Meta(ge=0, le=100), _LIMIT] = _LIMITS.retries
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    strategy: AskedStrategy | None = None
    compact_at: _Billion | None = None
    clock: _Text = "now"
    timezone: _Text = "UTC"
    grants: _Capabilities = ()
    skills_paths: _Directories = ()
    skills_require_signature: bool = False
    skills_budget: _Million = SKILLS_BUDGET
    memory: _Text | None = None
    session_mb: _Billion = 2_048


class ProviderValues(msgspec.Struct, frozen=True, kw_only=True):
    """Every key of a provider, declared once."""

    dialect: Dialect = "openai"
    base_url: Annotated[
        str, Check("an http or https URL without user, query and fragment", _url, repeatable=False)
    ] = ""
    key_env: Annotated[
        str,
        Check(
            'the name of an environment variable in capitals, or "" for no key',
            _variable,
            repeatable=False,
        ),
    ] = ""
    concurrency: Annotated[int, Meta(ge=1, le=1_024)] = _ENDPOINT["concurrency"]
    connect_seconds: _Seconds = _ENDPOINT["connect_seconds"]
    silence_seconds: _Seconds = _ENDPOINT["silence_seconds"]
    total_seconds: _Seconds = _ENDPOINT["total_seconds"]
    stream: bool = _ENDPOINT["stream"]
    allow_plain_http: bool = _ENDPOINT["allow_plain_http"]
    cache: bool = _ENDPOINT["cache"]
    headers: _Table = ""
    query: _Table = ""
    body: _Table = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A setting, and the places that may set it. `variable` is its name in the environment."""

    name: str
    kind: Kind
    default: Value | None
    variable: str | None
    flag: str

    @property
    def limit(self) -> bool:
        """True if the setting is a limit, which a project may lower without trust."""
        return self.kind.limit


# Settings that are lists have no variable. Each use of the flag adds one element.
_LISTS = {"grants": "--grant", "skills_paths": "--skills"}


def _kinds(of: type[msgspec.Struct]) -> dict[str, Kind]:
    return {name: _kind(each) for name, each in of.__annotations__.items()}


SETTINGS: Mapping[str, Spec] = {
    name: Spec(
        name=name,
        kind=kind,
        default=getattr(Values(), name),
        variable=None if name in _LISTS else f"TALLYSTICK_{name.upper()}",
        flag=_LISTS.get(name, f"--{name.replace('_', '-')}"),
    )
    for name, kind in _kinds(Values).items()
}
PROVIDER_KEYS: Mapping[str, Kind] = _kinds(ProviderValues)
ALIAS = _kind(
    Annotated[
        _Line,
        Check(
            "PROVIDER:MODEL, gguf:PATH, scripted:FILE or recorded:RUN", _target, repeatable=False
        ),
    ]
)


def check_value(kind: Kind, value: object, *, where: str, key: str) -> Value:
    """Return the value to use. Raise `UsageError`, which says in one line what is allowed.

    `where` and `key` are the beginning of that line.
    """
    try:
        return kind.check.convert(msgspec.convert(value, kind.type))
    # Checks may raise `UsageError` themselves, such as the one of dollars.
    except (msgspec.ValidationError, ValueError, UsageError):
        given = f", not {quote(value)}" if kind.check.repeatable else ""
        raise UsageError(f"{where}{key}: must be {kind.what}{given}") from None


def from_text(kind: Kind, text: str, *, variable: str) -> Value:
    """Return the value in an environment variable. Raise `UsageError` if it is not allowed.

    `true` and `false` are read in either case, numbers in decimal only.
    """
    value: object = text
    if kind.plain is bool:
        value = {"true": True, "false": False}.get(text.lower(), text)
    elif kind.plain is int and _WHOLE.fullmatch(text):
        value = int(text)
    elif kind.plain is float and _NUMBER.fullmatch(text):
        value = float(text)
    return check_value(kind, value, where="", key=variable)


def unknown_key(key: str, known: Iterable[str], *, where: str, prefix: str = "") -> UsageError:
    """Return the error for an unknown key, without its value.

    It names the closest known key, or all of them if none is close. `where` is the beginning of the
    message, and `prefix` is put before each key. A name that looks like that of a secret gets other
    advice: to put it into a variable.
    """
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
    """Return a name, path or text of others, fit for one line of a terminal; cut at 500 characters.

    A text that is too long or cannot be printed comes back as its `repr`.
    """
    if _PLAIN_KEY.fullmatch(text) or (text.isprintable() and len(text) <= _TEXT_CHARS_MAX):
        return text
    cut = text if len(text) <= _TEXT_CHARS_MAX else f"{text[:_TEXT_CHARS_MAX]}…"
    return repr(cut)


def quote(value: object) -> str:
    """Return a value that was not allowed, short and escaped, for an error.

    A text is cut at 60 characters. Tables, lists, dates and long numbers are only described.
    """
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
