"""Models behind HTTP: one attempt, in either dialect, over one client with deadlines and bounds.

What is taken from the environment: proxies (HTTPS_PROXY, ALL_PROXY, NO_PROXY) and certificates
(SSL_CERT_FILE, SSL_CERT_DIR), since they are how a user's network is. Through a proxy goes https
alone, in a tunnel that the proxy cannot read; plain http and loopback addresses go there directly,
since a proxy would read key and prompt, or look for the server on its own machine. Not taken:
`.netrc` and cookies, which nobody here has a use for.

Replies are asked for uncompressed, and compressed ones are refused: no bound on bytes read bounds
what they unfold to, and the time a model takes is not in the transfer.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import errno
import functools
import importlib.util
import ipaddress
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote, urlsplit
from weakref import WeakKeyDictionary

import msgspec

from tallystick.core.charge import ModelUsage
from tallystick.model import anthropic, failures, openai
from tallystick.model.dialect import SseDecoder, WireFormat
from tallystick.model.endpoint import Dialect, Endpoint, scrubbed, without_key
from tallystick.model.pacing import Gate
from tallystick.model.port import Heard, Model, ModelError, ModelReply, ModelRequest

if TYPE_CHECKING:
    import httpcore

# Common servers close an idle connection after 5 s; to use one as it closes loses the request.
_IDLE_SECONDS = 4.0
_DRAIN_SECONDS = 0.1
_HEAD_SECONDS = 5.0
_HEADERS = {
    "accept": "*/*",
    "accept-encoding": "identity",
    "connection": "keep-alive",
    "user-agent": "tallystick",
}
_DEFAULT_PORTS = (("http", "80"), ("https", "443"))
_PROXY_SCHEMES = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}


class Answer:
    """A response whose body has not been read. Iterating gives the body as it comes."""

    def __init__(self, response: httpcore.Response) -> None:
        self._response = response
        self._pieces = response.aiter_stream()
        self._bytes_left = 0
        self.status: int = response.status
        self.headers: Mapping[str, str] = _read_headers(response.headers)

    @property
    def compressed(self) -> bool:
        return self.headers.get("content-encoding", "identity").lower() != "identity"

    def pieces(self, *, bytes_max: int) -> Answer:
        """The body, up to so many bytes; more raise `ModelError`."""
        self._bytes_left = bytes_max
        return self

    # Not a generator of its own: one that is left early is closed by nobody in particular.
    def __aiter__(self) -> Answer:
        return self

    async def __anext__(self) -> bytes:
        piece = await anext(self._pieces)
        self._bytes_left -= len(piece)
        if self._bytes_left < 0:
            raise failures.huge("more bytes than anybody reads")
        return piece

    async def body(self, *, bytes_max: int) -> bytes:
        return b"".join([piece async for piece in self.pieces(bytes_max=bytes_max)])

    async def head(self, *, bytes_max: int) -> bytes:
        """The beginning of an error's body, or what came of it: the status says enough."""
        found = bytearray()
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_HEAD_SECONDS):
                async for piece in self._pieces:
                    found += piece
                    if len(found) >= bytes_max:
                        break
        return b"" if self.compressed else bytes(found[:bytes_max])

    async def drain(self) -> None:
        """Read to the end if it is near, so that the connection can be used again.

        The reply is whole already: nothing that happens here can spoil it.
        """
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_DRAIN_SECONDS):
                async for piece in self._pieces:
                    if piece:
                        return

    async def close(self) -> None:
        with contextlib.suppress(Exception):
            if isinstance(self._pieces, AsyncGenerator):
                await self._pieces.aclose()
        with contextlib.suppress(Exception):
            await self._response.aclose()


def _sent_headers(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("ascii"), value.encode("ascii")) for name, value in headers.items()]


def _read_headers(raw: Sequence[tuple[bytes, bytes]]) -> Mapping[str, str]:
    """Headers by their names in lower case. What comes twice is joined, as HTTP has it."""
    headers: dict[str, str] = {}
    for name, value in raw:
        key, said = name.decode("latin-1").lower(), value.decode("utf-8", "replace")
        headers[key] = f"{headers[key]}, {said}" if key in headers else said
    return headers


class Transport:
    """Sends requests to one endpoint. Opens nothing before the first."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        host, _, port = endpoint.address.rpartition(":")
        usual = (endpoint.scheme, port) in _DEFAULT_PORTS
        self._headers = _sent_headers({"host": host if usual else endpoint.address, **_HEADERS})
        self._urls: dict[str, httpcore.URL] = {}
        silence = endpoint.silence_seconds
        timeouts = {"connect": endpoint.connect_seconds, "read": silence, "write": silence}
        self._extensions = {"timeout": timeouts}
        # Connections belong to the loop they were opened in.
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, httpcore.AsyncConnectionPool] = (
            WeakKeyDictionary()
        )

    @contextlib.asynccontextmanager
    async def post(
        self, path: str, *, headers: Mapping[str, str], body: bytes
    ) -> AsyncIterator[Answer]:
        """Send a request. Leaving early, or being cancelled, closes its connection.

        Whatever goes wrong with the connection, inside too, is raised as a `ModelError`. It does
        not name its cause: that one holds the request with its key, or bytes from the server.
        """
        failure: ModelError
        try:
            pool = self._pool()
            answer = Answer(await pool.handle_async_request(self._request(path, headers, body)))
            try:
                yield answer
            finally:
                await answer.close()
            return
        except (ModelError, asyncio.CancelledError):
            raise
        except Exception as error:
            failure = self._failure(error)
        raise failure

    def _request(self, path: str, headers: Mapping[str, str], body: bytes) -> httpcore.Request:
        import httpcore

        url = self._urls.get(path)
        if url is None:
            url = self._urls[path] = httpcore.URL(f"{self._endpoint.base_url}{path}")
        own = _sent_headers({**headers, "content-length": str(len(body))})
        return httpcore.Request(
            b"POST",
            url,
            headers=[*self._headers, *own],
            content=body,
            extensions=self._extensions,
        )

    async def close(self) -> None:
        """Close what was opened in this loop; of other loops, forget it."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        self._pools.clear()
        if pool is not None:
            await pool.aclose()

    def _pool(self) -> httpcore.AsyncConnectionPool:
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            for closed in [each for each in self._pools if each.is_closed()]:
                del self._pools[closed]
            try:
                pool = self._pools[loop] = self._opened()
            except (ImportError, OSError, ValueError):
                # The error would name the proxy with its password.
                raise failures.not_sent(
                    "network_error",
                    "a proxy or certificate file of the environment cannot be used; check "
                    "HTTPS_PROXY, ALL_PROXY, NO_PROXY, SSL_CERT_FILE and SSL_CERT_DIR",
                    kind="terminal",
                ) from None
        return pool

    def _opened(self) -> httpcore.AsyncConnectionPool:
        endpoint = self._endpoint
        encrypted = endpoint.scheme == "https"
        proxy = proxy_for(endpoint) if encrypted and not endpoint.is_loopback else None
        # Reading the certificates of the world takes longer than a whole turn.
        trusted = _certificates() if encrypted else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # How many connections there are at once is the gate's decision.
        kept = endpoint.concurrency if endpoint.keeps_connections else 0
        return opened_pool(trusted, kept=kept, proxy=proxy)

    def _failure(self, error: Exception) -> ModelError:
        import httpcore

        endpoint = self._endpoint
        match error:
            case httpcore.ConnectTimeout():
                return failures.not_sent(
                    "timeout",
                    f"no connection to {endpoint.address} in {endpoint.connect_seconds:g} s; "
                    f"check the network, or the base URL",
                )
            case httpcore.ConnectError():
                return failures.unreachable(error, address=endpoint.address)
            case httpcore.ProxyError():
                return failures.not_sent(
                    "network_error",
                    f"the proxy of the environment gives no way to {endpoint.address}; check "
                    f"HTTPS_PROXY, or name the host in NO_PROXY",
                )
            case httpcore.TimeoutException():
                return failures.silent(endpoint.silence_seconds)
            case httpcore.NetworkError() | httpcore.ProtocolError() | OSError():
                return failures.cut_off("the connection broke")
            case _:
                raise error


# The way to a server: directly or by a proxy, with the certificates that the environment names.


def proxy_for(endpoint: Endpoint) -> str | None:
    """Return the proxy that the environment names for an https endpoint, None for no proxy.

    HTTPS_PROXY goes before ALL_PROXY. A name in NO_PROXY is good for itself and what is below it,
    one with a dot before it only for what is below; `*` is everything.
    """
    from urllib.request import getproxies

    found = getproxies()
    proxy = found.get("https") or found.get("all")
    if not proxy:
        return None
    host, _, port = endpoint.address.rpartition(":")
    past = (each.strip() for each in found.get("no", "").split(","))
    if any(each == "*" or (each and _is_past(each, host, port)) for each in past):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_past(entry: str, host: str, port: str) -> bool:
    """Whether an entry of NO_PROXY is about this host. A range of addresses is its first one."""
    named = "://" in entry
    parts = urlsplit(entry if named else f"all://{_bracketed(entry)}")
    entry_port = parts.port
    name = (parts.hostname or "").removeprefix("*" if named else "")
    if parts.scheme not in ("all", "https") or not name:
        return False
    if entry_port is not None and str(entry_port) != port:
        return False
    if name.startswith("."):
        return host.endswith(name)
    exact = _is_address(name) or name == "localhost" or (named and not _starred(parts.netloc))
    return _bare(host) == name or (not exact and host.endswith(f".{name}"))


def _starred(netloc: str) -> bool:
    return netloc.rpartition("@")[2].startswith("*")


def _bare(host: str) -> str:
    return host.removeprefix("[").removesuffix("]")


def _bracketed(entry: str) -> str:
    return f"[{entry}]" if entry.count(":") > 1 and not entry.startswith("[") else entry


@functools.lru_cache(maxsize=256)
def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _certificates() -> ssl.SSLContext:
    """The authorities that the environment names, or else those that certifi carries."""
    if file := os.environ.get("SSL_CERT_FILE"):
        return ssl.create_default_context(cafile=file)
    if directory := os.environ.get("SSL_CERT_DIR"):
        return ssl.create_default_context(capath=directory)
    import certifi

    return ssl.create_default_context(cafile=certifi.where())


def opened_pool(
    trusted: ssl.SSLContext, *, kept: int, proxy: str | None = None
) -> httpcore.AsyncConnectionPool:
    """Open a pool that keeps so many idle connections. Raises if the proxy cannot be used."""
    import httpcore

    return httpcore.AsyncConnectionPool(
        ssl_context=trusted,
        proxy=None if proxy is None else _read_proxy(proxy),
        max_connections=None,
        max_keepalive_connections=kept,
        keepalive_expiry=_IDLE_SECONDS,
        network_backend=cast("httpcore.AsyncNetworkBackend", Network()),
    )


def _read_proxy(proxy: str) -> httpcore.Proxy:
    import httpcore

    parts = urlsplit(proxy)
    if parts.scheme not in _PROXY_SCHEMES or not parts.hostname:
        raise ValueError("no proxy that can be used")
    if parts.scheme.startswith("socks") and importlib.util.find_spec("socksio") is None:
        raise ImportError("a SOCKS proxy needs the package socksio")
    port = parts.port or _PROXY_SCHEMES[parts.scheme]
    url = httpcore.URL(
        scheme=parts.scheme.encode("ascii"),
        host=parts.hostname.encode("ascii"),
        port=port,
        target=b"/",
    )
    if parts.username is None:
        return httpcore.Proxy(url)
    return httpcore.Proxy(url, auth=(unquote(parts.username), unquote(parts.password or "")))


# Connections of asyncio for httpcore, in the shape of its network backends. Its own goes through
# anyio, which costs a connection on this machine as much again as everything else of a request.


_READ_AHEAD_BYTES = 256 * 1024
# As long as it takes for one address to look slow, by RFC 8305.
_NEXT_ADDRESS_SECONDS = 0.25


class Connection(asyncio.Protocol):
    """One connection. Used by one reader and one writer at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._ended = False
        self._error: Exception | None = None
        self._reading_paused = False
        self._writable = True
        self._changed: asyncio.Event = asyncio.Event()

    # -- called by the loop ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) > _READ_AHEAD_BYTES and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()
        self._changed.set()

    def eof_received(self) -> None:
        self._ended = True
        self._changed.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._ended, self._error = True, error
        self._changed.set()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._changed.set()

    # -- called by httpcore, whose signatures these are ------------------------------------------

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        """Return what has come, at least a byte, or nothing at the end."""
        import httpcore

        while not self._received and not self._ended:
            await self._change(timeout, httpcore.ReadTimeout)
        if not self._received:
            if self._error is not None:
                raise httpcore.ReadError("the connection broke") from self._error
            return b""
        data = bytes(self._received[:max_bytes])
        del self._received[:max_bytes]
        if self._reading_paused and not self._ended and self._transport is not None:
            self._reading_paused = False
            self._transport.resume_reading()
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        import httpcore

        if self._transport is None or self._ended:
            raise httpcore.WriteError("the connection is closed") from self._error
        self._transport.write(buffer)
        while not self._writable and not self._ended:
            await self._change(timeout, httpcore.WriteTimeout)

    async def _change(self, seconds: float | None, late: type[Exception]) -> None:
        self._changed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            raise late from None

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Connection:
        import httpcore

        assert self._transport is not None
        try:
            async with asyncio.timeout(timeout):
                self._transport = await self._loop.start_tls(
                    self._transport,
                    self,
                    ssl_context,
                    server_hostname=server_hostname,
                    ssl_handshake_timeout=timeout,
                )
        except BaseException as error:
            await self.aclose()
            if isinstance(error, TimeoutError):
                raise httpcore.ConnectTimeout from None
            if isinstance(error, OSError):
                raise httpcore.ConnectError from error
            raise
        return self

    async def aclose(self) -> None:
        """Close at once. What is still to be sent is of no use to anybody."""
        if self._transport is not None:
            self._transport.abort()

    def get_extra_info(self, info: str) -> object:
        if info == "is_readable":
            # Asked of an idle connection: it was closed, or says what nobody asked for.
            return self._ended or bool(self._received)
        return None if self._transport is None else self._transport.get_extra_info(info)


class Network:
    """Makes connections."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109
        local_address: str | None = None,
        socket_options: object = None,
    ) -> Connection:
        import httpcore

        loop = asyncio.get_running_loop()
        # Only a name has more than one address.
        delay = None if _is_address(host) else _NEXT_ADDRESS_SECONDS
        try:
            async with asyncio.timeout(timeout):
                _, connection = await loop.create_connection(
                    Connection, host, port, happy_eyeballs_delay=delay
                )
        except TimeoutError:
            raise httpcore.ConnectTimeout from None
        except OSError as error:
            raise httpcore.ConnectError from _refused(error)
        return connection


def _refused(error: OSError) -> OSError:
    """The same error, or the refusal that all addresses of a name have answered with.

    asyncio makes one error of several, without a number and with their texts one after another.
    """
    text = str(error)
    refusals = text.count(f"[Errno {errno.ECONNREFUSED}]")
    if error.errno is None and refusals and refusals == text.count("[Errno "):
        return ConnectionRefusedError(errno.ECONNREFUSED, text)
    return error


# Models behind HTTP: one attempt, in either dialect, streamed or whole.
#
# Everything a server says passes through here on its way out, so here the key is taken out of it.


_DIALECTS: dict[Dialect, WireFormat] = {"openai": openai, "anthropic": anthropic}


class HttpModel:
    """A model at an endpoint. Give models of one provider the same gate."""

    def __init__(self, endpoint: Endpoint, gate: Gate | None = None) -> None:
        self._endpoint = endpoint
        self._gate = gate or Gate(concurrency=endpoint.concurrency)
        self._dialect = _DIALECTS[endpoint.dialect]
        self._transport = Transport(endpoint)

    @property
    def name(self) -> str:
        return self._endpoint.name

    @property
    def endpoint(self) -> Endpoint:
        """Where it is asked, and how."""
        return self._endpoint

    def admitted(self) -> AbstractAsyncContextManager[None]:
        return self._gate.admitted()

    async def ask(self, request: ModelRequest, *, heard: Heard = lambda chars: None) -> ModelReply:
        epoch = self._gate.epoch
        try:
            reply = await self._attempt(request, heard)
        except ModelError as error:
            failure = error
        else:
            self._gate.passed(epoch)
            return self._shown(reply)
        if failures.crowded(failure):
            self._gate.refused(epoch, retry_after_ms=failure.retry_after_ms)
        elif failure.status is not None:
            self._gate.passed(epoch)
        raise self._told(failure)

    async def close(self) -> None:
        await self._transport.close()

    async def _attempt(self, request: ModelRequest, heard: Heard) -> ModelReply:
        endpoint = self._endpoint
        wire = self._dialect.wire(endpoint, request)
        headers = {"content-type": "application/json", **wire.headers}
        if request.key:
            headers["x-client-request-id"] = request.key
        if endpoint.key is not None and endpoint.key_origin == endpoint.origin:
            name, value = self._dialect.authorization(endpoint.key)
            headers[name] = value
        try:
            async with (
                asyncio.timeout(endpoint.total_seconds),
                self._transport.post(wire.path, headers=headers, body=wire.body) as answer,
            ):
                return await self._read(answer, request, heard)
        except TimeoutError:
            pass
        raise failures.late(endpoint.total_seconds)

    async def _read(self, answer: Answer, request: ModelRequest, heard: Heard) -> ModelReply:
        if not 200 <= answer.status < 300:
            body = await answer.head(bytes_max=failures.ERROR_BYTES_MAX)
            now = datetime.datetime.now(datetime.UTC)
            raise failures.of_status(answer.status, answer.headers, body, now=now)
        if answer.compressed:
            raise failures.compressed()
        content_type = answer.headers.get("content-type", "")
        kind = content_type.partition(";")[0].strip().lower()
        # What came decides, not what was asked: some servers stream never, some always.
        if kind == "text/event-stream":
            return await self._streamed(answer, request, heard)
        if kind not in ("", "application/json") and not kind.endswith("+json"):
            raise failures.wrong_type(content_type)
        body = await answer.body(bytes_max=failures.BODY_BYTES_MAX)
        if not body.strip():
            raise failures.malformed("an empty body")
        reply = self._dialect.reply(body, request)
        heard(len(reply.text))
        return reply

    async def _streamed(self, answer: Answer, request: ModelRequest, heard: Heard) -> ModelReply:
        decoder, reader = SseDecoder(), self._dialect.reader(request)
        told = 0
        async for piece in answer.pieces(bytes_max=failures.STREAM_BYTES_MAX):
            for event in decoder.feed(piece):
                reader.feed(event)
            if reader.chars != told:
                told = reader.chars
                heard(told)
            if reader.done:
                await answer.drain()
                break
        return reader.finish()

    # -- on the way out -------------------------------------------------------------------------

    def _shown(self, reply: ModelReply) -> ModelReply:
        key = self._endpoint.key
        if key is None:
            return reply
        return msgspec.structs.replace(
            reply,
            text=without_key(reply.text, key),
            usage=self._usage(reply.usage),
            served_by=scrubbed(reply.served_by, key),
            finish=scrubbed(reply.finish, key),
        )

    def _usage(self, usage: ModelUsage) -> ModelUsage:
        """Verbatim, unless the key is in it."""
        text = msgspec.json.encode(usage.raw).decode()
        if scrubbed(text, self._endpoint.key) == text:
            return usage
        return msgspec.structs.replace(usage, raw={})

    def _told(self, error: ModelError) -> ModelError:
        endpoint = self._endpoint
        message = scrubbed(f"{endpoint.name} at {endpoint.address}: {error.message}", endpoint.key)
        usage = None if error.usage is None else self._usage(error.usage)
        return failures.told(error, message=message, usage=usage)


_: type[Model] = HttpModel
