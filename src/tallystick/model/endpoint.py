"""Where a model is asked: address, dialect, key and deadlines, checked once."""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass
from typing import Literal, get_args
from urllib.parse import SplitResult, urlsplit

from tallystick.core.errors import UsageError
from tallystick.model.secret import Secret

__all__ = ["Dialect", "Endpoint"]

Dialect = Literal["openai", "anthropic"]

_PORTS = {"http": 80, "https": 443}
# Names that the public DNS does not have.
_PRIVATE_SUFFIXES = (".local", ".localhost", ".internal", ".lan", ".home.arpa")
_NAME_CHARS_MAX = 200
_CONCURRENCY_MAX = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One model at one address.

    The key is sent to `key_origin` and nowhere else; left out, that is the origin of `base_url`.
    An endpoint whose two origins differ cannot be made. `silence_seconds` is how long no byte may
    come, `total_seconds` is for the whole attempt.
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
        object.__setattr__(self, "base_url", _checked_url(self.base_url))
        if self.key is not None:
            self._bind_key()

    def _bind_key(self) -> None:
        bound = _origin(_checked_url(self.key_origin)) if self.key_origin else self.origin
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
        """What a run records."""
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
        address = _ip(self.host)
        if address is not None:
            return address.is_loopback
        return self.host == "localhost" or self.host.endswith(".localhost")

    @property
    def keeps_connections(self) -> bool:
        """Whether a connection is used for a second request.

        On this machine a new one costs next to nothing, and servers such as llama.cpp close one
        they just streamed on: what is sent on it then is lost, and may have been paid for.
        """
        return not self.is_loopback

    @property
    def is_private(self) -> bool:
        """Whether the host can be reached from its own network only."""
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


def _checked_url(text: str) -> str:
    """The URL without a slash at its end. What it holds is not shown: it may be a password."""
    try:
        parts = urlsplit(text.strip())
        port = parts.port
    except ValueError:
        raise UsageError(
            "the base URL is not a URL; give one such as http://127.0.0.1:8080/v1"
        ) from None
    why = _unfit(parts)
    if why is None and port == 0:
        why = "has the port 0"
    if why is not None:
        raise UsageError(
            f"the base URL {why}; give scheme, host and path, such as https://api.openai.com/v1"
        )
    # No name resolves differently by case or by its final dot; comparing origins must not either.
    host = (parts.hostname or "").rstrip(".")
    host = f"[{host}]" if ":" in host else host
    place = host if port is None else f"{host}:{port}"
    return f"{parts.scheme}://{place}{parts.path.rstrip('/')}"


def _unfit(parts: SplitResult) -> str | None:
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


def _origin(url: str) -> str:
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}:{parts.port or _PORTS[parts.scheme]}"


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
