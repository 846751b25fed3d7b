"""The endpoint of a model: its address, dialect, deadlines and key, and the hiding of keys."""

from __future__ import annotations

import base64
import ipaddress
import math
import string
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NoReturn, get_args
from urllib.parse import SplitResult, quote, quote_plus, urlsplit
from weakref import WeakValueDictionary

from tallystick.core.errors import UsageError

# Keys, and how they are kept out of everything that is shown or written.
#
# A server may echo the key it was sent: whole, in part, or in another spelling. So texts from a
# server are scrubbed here, before they leave this package, and not by each caller, who may forget.


REDACTED = "[key]"
# This many consecutive characters of a key are taken for a part of it; fewer for a coincidence.
_PART_CHARS = 8
# Shorter keys are placeholders such as `x`: nothing is secret in them.
_WHOLE_CHARS_MIN = 4
# Replies are paid for, so only a whole and long key is removed from them. Local servers use words
# as keys (`lm-studio`), and replies contain such words.
_REPLY_KEY_CHARS_MIN = 16
_ASCII_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


class Secret:
    """A key. Only `reveal` returns it. It is in no repr, and cannot be pickled.

    Raise `UsageError` if it is empty or has characters that cannot be sent in a header.
    """

    __slots__ = ("__weakref__", "_value")

    def __init__(self, value: str) -> None:
        if not value:
            raise UsageError("the key is empty; set it, or leave it out for a server without keys")
        if not all("!" <= each <= "~" for each in value):
            raise UsageError(
                "the key holds spaces, line breaks or characters outside ASCII, which cannot be "
                "sent; set it to the key alone"
            )
        self._value = value
        _known[id(self)] = self

    def reveal(self) -> str:
        """Return the key itself."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(...)"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a key is not stored")


# Every key of this process that is in use, by the identity of its object: equal ones may end at
# different times.
_known: WeakValueDictionary[int, Secret] = WeakValueDictionary()


def without_known_keys(text: str) -> str:
    """Return a text in which "[key]" replaces every key that this process has in use.

    Each is replaced as a whole, in any of its spellings. A key under 8 characters stays.
    """
    for secret in tuple(_known.values()):
        for spelling in _spellings(secret) if len(secret.reveal()) >= _PART_CHARS else ():
            if spelling in text:
                text = text.replace(spelling, REDACTED)
    return text


def scrub(text: str, secret: Secret | None) -> str:
    """Return a text in which "[key]" replaces the key, and any part of it of 8 characters or more.

    So are its spellings: percent-encoded, base64 at any offset, hex, either case. A key of 4 to 7
    characters is only replaced as a whole and as it is spelled, a shorter one not at all. Without a
    key the text is unchanged.
    """
    if secret is None:
        return text
    key = secret.reveal()
    if len(key) < _PART_CHARS:
        return text.replace(key, REDACTED) if len(key) >= _WHOLE_CHARS_MIN else text
    return _without_parts(text, _parts(secret))


def without_key(text: str, secret: Secret | None) -> str:
    """Return a reply in which "[key]" replaces the whole key, in any of its spellings.

    The case of its letters counts. A part of a key may be a word, and stays. A key under 16
    characters stays too.
    """
    if secret is None or len(secret.reveal()) < _REPLY_KEY_CHARS_MIN:
        return text
    for spelling in _spellings(secret):
        if spelling in text:
            text = text.replace(spelling, REDACTED)
    return text


class KeyFilter:
    """Takes the key out of a text that comes in pieces, as `without_key` does out of a whole one.

    What may be the beginning of a key is held back until more has come.
    """

    def __init__(self, secret: Secret | None) -> None:
        hides = secret is not None and len(secret.reveal()) >= _REPLY_KEY_CHARS_MIN
        self._secret = secret if hides else None
        self._held = ""

    def passed(self, piece: str) -> str:
        """Take a piece, and return what can be shown now; it may be empty."""
        if self._secret is None or not piece:
            return piece
        text = without_key(self._held + piece, self._secret)
        back = max(_begun_at_end(text, each) for each in _spellings(self._secret))
        self._held = text[len(text) - back :]
        return text[: len(text) - back]

    def rest(self) -> str:
        """Return what is still held back: nothing follows it."""
        held, self._held = self._held, ""
        return held


def _begun_at_end(text: str, spelling: str) -> int:
    """Return the length of the longest end of a text with which the spelling of a key begins."""
    longest = min(len(text), len(spelling) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(spelling[:n])), 0)


def _without_parts(text: str, parts: frozenset[str]) -> str:
    lower = text.translate(_ASCII_LOWER)
    kept: list[str] = []
    done = 0
    at, last = 0, len(text) - _PART_CHARS
    while at <= last:
        if lower[at : at + _PART_CHARS] not in parts:
            at += 1
            continue
        end = at + _PART_CHARS
        while end < len(text) and lower[end + 1 - _PART_CHARS : end + 1] in parts:
            end += 1
        kept += (text[done:at], REDACTED)
        done = at = end
    return "".join((*kept, text[done:]))


@lru_cache(maxsize=64)
def _parts(secret: Secret) -> frozenset[str]:
    lowered = [each.translate(_ASCII_LOWER) for each in _spellings(secret)]
    return frozenset(
        each[at : at + _PART_CHARS] for each in lowered for at in range(len(each) - _PART_CHARS + 1)
    )


@lru_cache(maxsize=64)
def _spellings(secret: Secret) -> tuple[str, ...]:
    """Return the key as a server may write it, the longest spelling first."""
    key = secret.reveal()
    found = {key, quote(key, safe=""), quote_plus(key), key.replace("/", "\\/"), key.encode().hex()}
    for offset in range(3):
        # Inside a longer text, the characters at both ends also depend on the neighbouring bytes.
        coded = base64.b64encode(b"\0" * offset + key.encode()).decode()
        inner = coded[(0, 2, 3)[offset] : len(coded) - 4]
        found |= {inner, inner.replace("+", "-").replace("/", "_")}
    return tuple(sorted((each for each in found if len(each) >= _PART_CHARS), key=len)[::-1])


Dialect = Literal["openai", "anthropic"]

_PORTS = {"http": 80, "https": 443}
# Suffixes that do not exist in the public DNS.
_PRIVATE_SUFFIXES = (".local", ".localhost", ".internal", ".lan", ".home.arpa")
_NAME_CHARS_MAX = 200
_CONCURRENCY_MAX = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One model at one address.

    The key is sent to `key_origin` and nowhere else; left out, that is the origin of `base_url`.
    Raise `UsageError` if the two origins differ, if a key would be sent unencrypted to a public
    host without `allow_plain_http`, or if a field is not valid. `silence_seconds` is the longest
    time without a byte, `total_seconds` the limit of the whole attempt.
    """

    provider: str
    dialect: Dialect
    base_url: str
    model: str
    key: Secret | None = None
    key_origin: str | None = None
    connect_seconds: float = 10.0
    silence_seconds: float = 300.0
    total_seconds: float = 600.0
    concurrency: int = 8
    stream: bool = True
    allow_plain_http: bool = False
    # Ask the provider to keep the beginning of prompts, which is cheaper to read again.
    cache: bool = False
    # Added to each request: headers, of which some are keys, and two tables as JSON text.
    headers: tuple[tuple[str, str | Secret], ...] = ()
    query: str = ""
    body: str = ""

    def __post_init__(self) -> None:
        _check_name("provider", self.provider)
        _check_name("model", self.model)
        if self.dialect not in get_args(Dialect):
            known = ", ".join(get_args(Dialect))
            raise UsageError(f"no dialect {self.dialect!r}; there are: {known}")
        for field in ("connect_seconds", "silence_seconds", "total_seconds"):
            _check_seconds(field, getattr(self, field))
        if not 1 <= self.concurrency <= _CONCURRENCY_MAX:
            raise UsageError(f"concurrency: from 1 to {_CONCURRENCY_MAX:,}, not {self.concurrency}")
        object.__setattr__(self, "base_url", _check_url(self.base_url))
        if self.key is not None:
            self._bind_key()

    def _bind_key(self) -> None:
        bound = _origin(_check_url(self.key_origin)) if self.key_origin else self.origin
        if bound != self.origin:
            raise UsageError(
                f"the key of {self.provider} is for {bound} and is not sent to {self.origin}; "
                f"set a key of its own for that address"
            )
        object.__setattr__(self, "key_origin", bound)
        if self.scheme == "http" and not (self.allow_plain_http or self.is_private):
            raise UsageError(
                f"{self.base_url} is not encrypted, and the key would be readable on the way; "
                f"use https, or allow plain http for this provider"
            )

    @property
    def name(self) -> str:
        """The name that a run records, PROVIDER:MODEL."""
        return f"{self.provider}:{self.model}"

    @property
    def origin(self) -> str:
        """Scheme, host and port, the port always written."""
        return _origin(self.base_url)

    @property
    def scheme(self) -> str:
        return self.base_url.partition("://")[0]

    @property
    def host(self) -> str:
        return urlsplit(self.base_url).hostname or ""

    @property
    def address(self) -> str:
        """Host and port, for messages."""
        return self.origin.partition("://")[2]

    @property
    def is_loopback(self) -> bool:
        """True if the host is this machine, by its name or address. No name is resolved."""
        address = _ip(self.host)
        if address is not None:
            return address.is_loopback
        return self.host == "localhost" or self.host.endswith(".localhost")

    @property
    def keeps_connections(self) -> bool:
        """True if a connection is used for a second request.

        On this machine a new one costs next to nothing, and servers such as llama.cpp close a
        connection after they streamed on it. A request that is sent on it then is lost, and may
        have been paid for.
        """
        return not self.is_loopback

    @property
    def is_private(self) -> bool:
        """True if the host can be reached from its own network only: by its address, or its name.

        A name without a dot counts as private, and so do suffixes such as `.local`. No name is
        resolved.
        """
        address = _ip(self.host)
        if address is not None:
            return not address.is_global
        return "." not in self.host or self.host.endswith(_PRIVATE_SUFFIXES)


def _check_name(field: str, value: str) -> None:
    if not value or len(value) > _NAME_CHARS_MAX or not value.isprintable():
        raise UsageError(
            f"{field}: a name of 1 to {_NAME_CHARS_MAX} printable characters, not {value[:80]!r}"
        )


def _check_seconds(field: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"{field}: more than 0 seconds, not {value!r}")


def _check_url(text: str) -> str:
    """Return the URL without a slash at its end. Raise `UsageError` if it cannot be used.

    The error does not show the URL: it may contain a password.
    """
    try:
        parts = urlsplit(text.strip())
        port = parts.port
    except ValueError:
        raise UsageError(
            "the base URL is not a URL; give one such as http://127.0.0.1:8080/v1"
        ) from None
    why = _url_fault(parts)
    if why is None and port == 0:
        why = "has the port 0"
    if why is not None:
        raise UsageError(
            f"the base URL {why}; give scheme, host and path, such as https://api.openai.com/v1"
        )
    # The final dot is removed, as the case was by `urlsplit`: neither changes where a name
    # resolves, so neither may make two origins differ.
    host = (parts.hostname or "").rstrip(".")
    host = f"[{host}]" if ":" in host else host
    place = host if port is None else f"{host}:{port}"
    return f"{parts.scheme}://{place}{parts.path.rstrip('/')}"


def _url_fault(parts: SplitResult) -> str | None:
    """Return why a URL cannot be used; None if it can."""
    if parts.scheme not in _PORTS:
        return "does not begin with http:// or https://"
    host = parts.hostname or ""
    if not host.strip("."):
        return "has no host"
    if not host.isascii() or not host.isprintable() or " " in host or "%" in host:
        return "has a host that is no host name"
    if parts.username is not None or parts.password is not None:
        return "holds a user name or password, which would be shown with it"
    if parts.query or parts.fragment:
        return "has a query or fragment"
    if not (parts.path.isascii() and parts.path.isprintable()):
        return "has a path with characters that are not ASCII"
    return None


@lru_cache(maxsize=256)
def _origin(url: str) -> str:
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}:{parts.port or _PORTS[parts.scheme]}"


@lru_cache(maxsize=256)
def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
