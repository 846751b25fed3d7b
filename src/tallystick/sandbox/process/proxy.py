"""The HTTP proxy through which a box reaches the hosts that are granted to it, and no others.

It listens on a socket that was made inside the box's own network, where nothing else can be
reached. A name is resolved once, and the connection goes to the address that was checked. An
address that is not public is refused, unless its host and port were granted as private. Each
attempt is passed to `record`, with the reason if it was refused.

Rule: everything that arrives here comes from a program. A request has one spelling and at most 16
KiB of head. A connection carries one request, so that a second cannot name another host.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from tallystick.core.errors import TallystickError, UsageError
from tallystick.sandbox.http_head import MalformedHead, RequestHead, read_request_head

# Public addresses: the only ones that a box may reach, unless a private host is granted.


# IPv6 networks that translate to IPv4 addresses, or were once local. All of them are refused, since
# such an address may lead to one that is not public.
_TRANSLATED = [
    ipaddress.IPv6Network(each)
    for each in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "::/96", "fec0::/10")
]


def is_public(address: str) -> bool:
    """Return True if an IP address is public: not private, local, reserved or multicast.

    Return False for anything that is not an address.
    """
    try:
        # An address with a scope names an interface, so it is local; it is refused below.
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        elif found.scope_id is not None or any(found in network for network in _TRANSLATED):
            return False
    return (
        found.is_global
        and not found.is_multicast
        and not found.is_reserved
        and not found.is_unspecified
        and not found.is_link_local
    )


# The head of a request to the proxy.


_BYTES_MAX = 16_384
_AUTHORITY = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]{1,253})(?::([0-9]{1,5}))?")
_NOT_PASSED_ON = frozenset(
    {b"connection", b"host", b"keep-alive", b"proxy-authorization", b"proxy-connection", b"te",
     b"trailer", b"upgrade"}
)  # fmt: skip
_BODY_BYTES_MAX = 1 << 40


class BadRequest(Exception):
    """The request is not one that the proxy accepts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The target of a request, and the head to send there in place of the program's own.

    For CONNECT nothing is sent. `body_bytes` is the length of the body that may follow.
    """

    method: str
    host: str
    port: int
    forwarded: bytes = b""
    body_bytes: int = 0


def read_head(client: socket.socket) -> tuple[Head, bytes]:
    """Read the head of a request. Return it and the bytes that came after it.

    Raise `BadRequest` if it is malformed, longer than 16 KiB, or does not arrive before the
    socket's timeout. Raise `OSError` if the connection fails.
    """
    data = b""
    while b"\r\n\r\n" not in data:
        if len(data) > _BYTES_MAX:
            raise BadRequest("the head of the request is too long")
        try:
            more = client.recv(4_096)
        except TimeoutError:
            raise BadRequest("the request did not come") from None
        if not more:
            raise BadRequest("the request ended early")
        data += more
    head, _, rest = data.partition(b"\r\n\r\n")
    if len(head) > _BYTES_MAX:
        raise BadRequest("the head of the request is too long")
    return parse_head(head), rest


def parse_head(head: bytes) -> Head:
    """Parse a head: a CONNECT, or a request for a whole http URL. Raise `BadRequest` otherwise.

    The forwarded head names the host again and closes the connection. Headers of the connection and
    of the proxy are left out.
    """
    try:
        request = read_request_head(head)
    except MalformedHead as error:
        raise BadRequest(str(error)) from None
    method, target = request.method, request.target
    if method == "CONNECT":
        host, port = _authority(target, None)
        return Head(method=method, host=host, port=port)
    scheme, slashes, rest = target.partition("://")
    if scheme.lower() != "http" or not slashes:
        raise BadRequest("a proxy is asked for a whole http URL, or with CONNECT")
    where, slash, path = rest.partition("/")
    if "?" in where or "#" in target:
        raise BadRequest("the URL is malformed")
    host, port = _authority(where, 80)
    length = _body_bytes(request)
    kept = b"".join(
        name + b": " + value + b"\r\n"
        for name, value in request.headers
        if name not in _NOT_PASSED_ON
    )
    sent = f"{method} {slash or '/'}{path} HTTP/1.1\r\nhost: {where}\r\nconnection: close\r\n"
    return Head(
        method=method,
        host=host,
        port=port,
        forwarded=sent.encode() + kept + b"\r\n",
        body_bytes=length,
    )


def _body_bytes(request: RequestHead) -> int:
    try:
        length = request.length() or 0
    except MalformedHead:
        length = None
    if request.values(b"transfer-encoding") or length is None or length > _BODY_BYTES_MAX:
        raise BadRequest("the length of the body must be given once, as a number")
    return length


def _authority(text: str, port: int | None) -> tuple[str, int]:
    """Return the host and port of `host:port`; `port` is the default, None if there is none.

    The name is in lower case and without a final dot. Raise `BadRequest` if it is malformed.
    """
    found = _AUTHORITY.fullmatch(text)
    if found is None:
        raise BadRequest("the host is malformed")
    given = found[2]
    if given is None and port is None:
        raise BadRequest("the port is missing")
    number = int(given) if given is not None else int(port or 0)
    if not 0 < number < 65_536:
        raise BadRequest("the port is none")
    host = found[1].lower().removesuffix(".")
    if host.startswith("["):
        try:
            return str(ipaddress.IPv6Address(host[1:-1])), number
        except ValueError:
            raise BadRequest("the address is malformed") from None
    if not host or ".." in host or host.startswith("."):
        raise BadRequest("the host is malformed")
    return host, number


# The proxy: connect to granted hosts, and record each attempt.


PROXY_PORT = 3_128
_CONNECT_SECONDS = 10.0
# Each attempt is recorded, so their number is limited. Beyond it, requests get no answer.
_ATTEMPTS_MAX = 10_000
_IDLE_SECONDS = 120.0
_POLL_SECONDS = 0.2
_CONNECTIONS_MAX = 32
_CHUNK_BYTES = 65_536

Resolve = Callable[[str, int], Sequence[str]]


def resolve_name(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a name from the system's resolver. Raise `OSError` if it fails.

    Raise `UnicodeError` for a name that cannot be encoded.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[4][0]) for address in found]


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt to reach a host, recorded before a connection is made.

    `outcome` is "allowed" or "refused". If an allowed one then fails, it is recorded a second time,
    as "failed". `address` is the one to connect to, None if refused.
    """

    host: str
    port: int
    method: str
    outcome: str
    why: str = ""
    address: str | None = None


class NetworkGrant(msgspec.Struct, frozen=True, kw_only=True):
    """The hosts that may be reached: `host:port`, or `*.domain:port` for all hosts below a domain.

    Those in `private` may have an address that is not public: for tests, and for services of your
    own. Raises `UsageError` for an entry that is malformed, or private but not allowed.
    """

    allow: frozenset[str]
    private: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for entry in self.allow | self.private:
            host, colon, port = entry.rpartition(":")
            if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65_536:
                raise UsageError(f"network: {entry[:80]!r} is not a host:port")
            if entry != entry.lower() or "/" in entry or "*" in host.removeprefix("*."):
                raise UsageError(
                    f"network: {entry[:80]!r}: a plain name in small letters is needed"
                )
            if entry in self.private and host.startswith("*."):
                raise UsageError(
                    f"network: {entry[:80]!r}: a host that may be private is named in full"
                )
        if self.private - self.allow:
            raise UsageError("network: what is private must also be among what is allowed")

    def allows(self, host: str, port: int) -> bool:
        """Return True if the host is named with this port, or is below a domain that is."""
        parts = host.split(".")
        below = {f"*.{'.'.join(parts[at:])}:{port}" for at in range(1, len(parts))}
        return bool(self.allow & {f"{host}:{port}", *below})

    def allows_private(self, host: str, port: int) -> bool:
        """Return True if this host and port may have an address that is not public."""
        return f"{host}:{port}" in self.private


class _Refused(Exception):
    def __init__(self, status: str, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


class Proxy:
    """A server of the connections of one box, in threads, until it is closed.

    `record` is called in one of these threads, before a connection is made. If it raises, there is
    no connection. It is called again if the connection fails. `resolve` is called once for each
    granted request, with the host and the port, and returns addresses. At most 32 connections are
    served at a time; more are closed after 0.2 s.
    """

    def __init__(
        self,
        listening: socket.socket,
        grant: NetworkGrant,
        *,
        record: Callable[[Attempt], None],
        resolve: Resolve = resolve_name,
    ) -> None:
        self._listening = listening
        self._grant = grant
        self._record = record
        self._resolve = resolve
        self._closed = threading.Event()
        self._room = threading.BoundedSemaphore(_CONNECTIONS_MAX)
        self._counting = threading.Lock()
        self._attempts = 0
        self._threads: set[threading.Thread] = set()
        self._main = threading.Thread(target=self._accept, name="tally-proxy", daemon=True)

    @property
    def grant(self) -> NetworkGrant:
        return self._grant

    def start(self) -> None:
        """Start to accept connections, in a thread."""
        self._listening.settimeout(_POLL_SECONDS)
        self._main.start()

    def close(self) -> None:
        """End every connection, and wait up to 10 s for each thread. Closing twice is harmless."""
        self._closed.set()
        for thread in (self._main, *list(self._threads)):
            thread.join(_CONNECT_SECONDS)
        self._listening.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listening.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            if not self._room.acquire(timeout=_POLL_SECONDS):
                client.close()
                continue
            thread = threading.Thread(
                target=self._serve, args=(client,), name="tally-proxy-connection", daemon=True
            )
            self._threads.add(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        try:
            with client:
                client.settimeout(_CONNECT_SECONDS)
                self._answer(client)
        except (OSError, TallystickError):
            # The program closed the connection, or the run has ended. The attempt is recorded, so
            # nothing is lost.
            pass
        finally:
            self._room.release()
            self._threads.discard(threading.current_thread())

    def _answer(self, client: socket.socket) -> None:
        """Serve one request: record the attempt, then connect, or send the reason for a refusal.

        Raise what `record` raises, before a connection is made, and `OSError` if one fails.
        """
        try:
            head, rest = read_head(client)
        except BadRequest as error:
            self._record_attempt(
                Attempt(host="", port=0, method="", outcome="refused", why=str(error))
            )
            _send_refusal(client, "400 Bad Request", str(error))
            return
        asked = Attempt(host=head.host, port=head.port, method=head.method, outcome="refused")
        try:
            address = self._address_of(head)
        except _Refused as error:
            self._record_attempt(msgspec.structs.replace(asked, why=error.why))
            _send_refusal(client, error.status, error.why)
            return
        allowed = msgspec.structs.replace(asked, outcome="allowed", address=address)
        self._record_attempt(allowed)
        try:
            upstream = socket.create_connection((address, head.port), timeout=_CONNECT_SECONDS)
        except OSError as error:
            why = error.strerror or str(error)
            self._record_attempt(msgspec.structs.replace(allowed, outcome="failed", why=why))
            _send_refusal(client, "502 Bad Gateway", why)
            return
        with upstream:
            self._pass_on(client, upstream, head, rest)

    def _record_attempt(self, attempt: Attempt) -> None:
        """Record an attempt. Raise `ConnectionRefusedError` after 10,000 of them.

        Raise what `record` raises.
        """
        with self._counting:
            self._attempts += 1
            if self._attempts > _ATTEMPTS_MAX:
                raise ConnectionRefusedError("too many attempts")
        self._record(attempt)

    def _address_of(self, head: Head) -> str:
        """Return the address to connect to. Raise `_Refused` if the host may not be reached.

        It is an address and not a name: a second resolution could give another, unchecked one.
        """
        if not self._grant.allows(head.host, head.port):
            raise _Refused("403 Forbidden", "the host is not on the list")
        try:
            addresses = self._resolve(head.host, head.port)
        except (OSError, UnicodeError) as error:
            raise _Refused("502 Bad Gateway", f"the name was not found: {error}") from None
        if not addresses:
            raise _Refused("502 Bad Gateway", "the name has no address")
        if not self._grant.allows_private(head.host, head.port):
            # One address that is not public is enough to refuse: the resolver may put it first
            # the next time.
            for address in addresses:
                if not is_public(address):
                    raise _Refused("403 Forbidden", f"{address} is not a public address")
        return addresses[0]

    def _pass_on(
        self, client: socket.socket, upstream: socket.socket, head: Head, rest: bytes
    ) -> None:
        """Start the request at its target, with the bytes that came after its head, and relay.

        Of these, a plain request gets no more than its body. Raise `OSError` if a connection fails.
        """
        if head.method == "CONNECT":
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            upstream.sendall(rest)
            self._relay(client, upstream, up_max=None)
            return
        body = rest[: head.body_bytes]
        upstream.sendall(head.forwarded + body)
        self._relay(client, upstream, up_max=head.body_bytes - len(body))

    def _relay(self, client: socket.socket, upstream: socket.socket, *, up_max: int | None) -> None:
        """Relay bytes both ways, until the target or the proxy closes, or nothing comes for 120 s.

        At most `up_max` bytes go up: the rest of a plain request's body. None is no limit. Raise
        `OSError` if a connection fails.
        """
        open_up = up_max is None or up_max > 0
        until = time.monotonic() + _IDLE_SECONDS
        while not self._closed.is_set() and time.monotonic() < until:
            # Once the body is through, the client is not read any more: more would be a second
            # request, which could name another host.
            ready = _readable([upstream, client] if open_up else [upstream])
            if ready:
                until = time.monotonic() + _IDLE_SECONDS
            if upstream in ready:
                data = upstream.recv(_CHUNK_BYTES)
                if not data:
                    return
                client.sendall(data)
            if client in ready:
                wanted = _CHUNK_BYTES if up_max is None else min(_CHUNK_BYTES, up_max)
                data = client.recv(wanted)
                if data:
                    upstream.sendall(data)
                    up_max = None if up_max is None else up_max - len(data)
                if not data or up_max == 0:
                    open_up = False
                    # Only a tunnel passes on the end of its client. A plain request has a length.
                    with contextlib.suppress(OSError):
                        if up_max is None:
                            upstream.shutdown(socket.SHUT_WR)


def _readable(sockets: Sequence[socket.socket]) -> list[socket.socket]:
    poll = select.poll()
    for each in sockets:
        poll.register(each, select.POLLIN)
    found = {descriptor for descriptor, _ in poll.poll(_POLL_SECONDS * 1000)}
    return [each for each in sockets if each.fileno() in found]


def _send_refusal(client: socket.socket, status: str, why: str) -> None:
    body = f"{why}\n".encode()
    client.sendall(
        f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
        + body
    )
