"""Call models over HTTP: one attempt, in either dialect, with deadlines and limits on size.

Taken from the environment are proxies (HTTPS_PROXY, ALL_PROXY, NO_PROXY) and certificates
(SSL_CERT_FILE, SSL_CERT_DIR), because they describe the user's network. Only https goes through a
proxy, in a tunnel that the proxy cannot read. Plain http and loopback addresses are reached
directly: a proxy would read key and prompt, or look for the server on its own machine. `.netrc` and
cookies are not used.

Replies are requested uncompressed, and compressed ones are refused: a limit on the bytes read is no
limit on their decompressed size, and transfer is a small part of the time a model takes.
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
from tallystick.model.dialect import SseDecoder, WireFormat, read_model_names, with_query
from tallystick.model.endpoint import Dialect, Endpoint, KeyFilter, Secret, scrub, without_key
from tallystick.model.pacing import Gate
from tallystick.model.port import Heard, Model, ModelError, ModelReply, ModelRequest

if TYPE_CHECKING:
    import httpcore

# Common servers close an idle connection after 5 s; a request sent just then would be lost.
_IDLE_SECONDS = 4.0
# Short, because the reply is complete and waits for this.
_DRAIN_SECONDS = 0.1
# The wait for the body of an error, whose status is known already.
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
    """A response whose body has not been read. Iterating gives the body as it arrives."""

    def __init__(self, response: httpcore.Response) -> None:
        self._response = response
        self._pieces = response.aiter_stream()
        self._bytes_left = 0
        self.status: int = response.status
        self.headers: Mapping[str, str] = _read_headers(response.headers)

    @property
    def compressed(self) -> bool:
        """True if the body is compressed."""
        return self.headers.get("content-encoding", "identity").lower() != "identity"

    def pieces(self, *, bytes_max: int) -> Answer:
        """Return this object, to iterate over up to `bytes_max` bytes; more raise `ModelError`.

        The count starts anew with each call.
        """
        self._bytes_left = bytes_max
        return self

    # No generator: one that is left early would be closed whenever it is garbage-collected.
    def __aiter__(self) -> Answer:
        return self

    async def __anext__(self) -> bytes:
        piece = await anext(self._pieces)
        self._bytes_left -= len(piece)
        if self._bytes_left < 0:
            raise failures.oversized_reply("more bytes than anybody reads")
        return piece

    async def body(self, *, bytes_max: int) -> bytes:
        """Return the whole body. Raise `ModelError` if it has more than `bytes_max` bytes."""
        return b"".join([piece async for piece in self.pieces(bytes_max=bytes_max)])

    async def head(self, *, bytes_max: int) -> bytes:
        """Return the first `bytes_max` bytes of an error's body, or what came of it within 5 s.

        Nothing is raised, and a compressed body counts as empty: the status says enough.
        """
        found = bytearray()
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_HEAD_SECONDS):
                async for piece in self._pieces:
                    found += piece
                    if len(found) >= bytes_max:
                        break
        return b"" if self.compressed else bytes(found[:bytes_max])

    async def drain(self) -> None:
        """Wait at most 0.1 s for the end of the body, so that the connection can be used again.

        It stops at the first bytes that come. Nothing is raised: the reply is complete already.
        """
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_DRAIN_SECONDS):
                async for piece in self._pieces:
                    if piece:
                        return

    async def close(self) -> None:
        """Close the response. Nothing is raised."""
        with contextlib.suppress(Exception):
            if isinstance(self._pieces, AsyncGenerator):
                await self._pieces.aclose()
        with contextlib.suppress(Exception):
            await self._response.aclose()


def _sent_headers(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("ascii"), value.encode("ascii")) for name, value in headers.items()]


def _read_headers(raw: Sequence[tuple[bytes, bytes]]) -> Mapping[str, str]:
    """Return headers by their names in lower case. Repeated ones are joined by a comma."""
    headers: dict[str, str] = {}
    for name, value in raw:
        key, said = name.decode("latin-1").lower(), value.decode("utf-8", "replace")
        headers[key] = f"{headers[key]}, {said}" if key in headers else said
    return headers


class Transport:
    """Sends requests to one endpoint. Nothing is opened before the first request."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        host, _, port = endpoint.address.rpartition(":")
        usual = (endpoint.scheme, port) in _DEFAULT_PORTS
        self._headers = _sent_headers({"host": host if usual else endpoint.address, **_HEADERS})
        self._urls: dict[str, httpcore.URL] = {}
        silence = endpoint.silence_seconds
        timeouts = {"connect": endpoint.connect_seconds, "read": silence, "write": silence}
        self._extensions = {"timeout": timeouts}
        # A connection belongs to the event loop it was opened in.
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, httpcore.AsyncConnectionPool] = (
            WeakKeyDictionary()
        )

    def post(
        self, path: str, *, headers: Mapping[str, str], body: bytes
    ) -> AbstractAsyncContextManager[Answer]:
        """Send a body, and give its answer, as `get` does."""
        return self._send(b"POST", path, {**headers, "content-length": str(len(body))}, body)

    def get(self, path: str, *, headers: Mapping[str, str]) -> AbstractAsyncContextManager[Answer]:
        """Ask for what is at a path, and give the answer.

        Leaving early, or being cancelled, closes its connection. `headers` are added to those of
        every request.

        Raise `ModelError` for every failure of the connection, inside the block too. The error has
        no cause: that would refer to the request with its key, or to bytes from the server. An
        error that is not of the connection is raised as it is.
        """
        return self._send(b"GET", path, headers, b"")

    @contextlib.asynccontextmanager
    async def _send(
        self, method: bytes, path: str, headers: Mapping[str, str], body: bytes
    ) -> AsyncIterator[Answer]:
        import httpcore

        failure: ModelError
        try:
            pool = self._pool()
            url = self._urls.get(path)
            if url is None:
                url = self._urls[path] = httpcore.URL(f"{self._endpoint.base_url}{path}")
            request = httpcore.Request(
                method,
                url,
                headers=[*self._headers, *_sent_headers(headers)],
                content=body,
                extensions=self._extensions,
            )
            answer = Answer(await pool.handle_async_request(request))
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

    async def close(self) -> None:
        """Close the connections of this event loop, and forget those of others.

        A later request opens new ones.
        """
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
                pool = self._pools[loop] = self._open_pool()
            except (ImportError, OSError, ValueError):
                # The error would name the proxy with its password.
                raise failures.not_sent(
                    "network_error",
                    "a proxy or certificate file of the environment cannot be used; check "
                    "HTTPS_PROXY, ALL_PROXY, NO_PROXY, SSL_CERT_FILE and SSL_CERT_DIR",
                    kind="terminal",
                ) from None
        return pool

    def _open_pool(self) -> httpcore.AsyncConnectionPool:
        endpoint = self._endpoint
        encrypted = endpoint.scheme == "https"
        proxy = proxy_for(endpoint) if encrypted and not endpoint.is_loopback else None
        # Without TLS an empty context is enough: reading all root certificates takes longer than
        # a whole turn of a run.
        trusted = _certificates() if encrypted else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # The number of parallel connections is limited by the gate, not by the pool.
        kept = endpoint.concurrency if endpoint.keeps_connections else 0
        return open_pool(trusted, kept=kept, proxy=proxy)

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
                return failures.silence_timeout(endpoint.silence_seconds)
            case httpcore.NetworkError() | httpcore.ProtocolError() | OSError():
                return failures.broken_connection("the connection broke")
            case _:
                raise error


# The way to a server: directly or through a proxy, with the certificates that the environment
# names.


def proxy_for(endpoint: Endpoint) -> str | None:
    """Return the proxy that the environment names for an https endpoint; None for no proxy.

    HTTPS_PROXY has priority over ALL_PROXY. A name in NO_PROXY covers itself and its subdomains;
    one that begins with a dot covers only subdomains; `*` covers everything. Raise `ValueError` if
    an entry cannot be read.
    """
    from urllib.request import getproxies

    found = getproxies()
    proxy = found.get("https") or found.get("all")
    if not proxy:
        return None
    host, _, port = endpoint.address.rpartition(":")
    past = (each.strip() for each in found.get("no", "").split(","))
    if any(each == "*" or (each and _bypasses_proxy(each, host, port)) for each in past):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _bypasses_proxy(entry: str, host: str, port: str) -> bool:
    """Return True if an entry of NO_PROXY covers this host.

    An address range is read as its first address. Raise `ValueError` for a port that is none.
    """
    named = "://" in entry
    parts = urlsplit(entry if named else f"all://{_add_brackets(entry)}")
    entry_port = parts.port
    name = (parts.hostname or "").removeprefix("*" if named else "")
    if parts.scheme not in ("all", "https") or not name:
        return False
    if entry_port is not None and str(entry_port) != port:
        return False
    if name.startswith("."):
        return host.endswith(name)
    exact = _is_address(name) or name == "localhost" or (named and not _has_star(parts.netloc))
    return _without_brackets(host) == name or (not exact and host.endswith(f".{name}"))


def _has_star(netloc: str) -> bool:
    return netloc.rpartition("@")[2].startswith("*")


def _without_brackets(host: str) -> str:
    return host.removeprefix("[").removesuffix("]")


def _add_brackets(entry: str) -> str:
    return f"[{entry}]" if entry.count(":") > 1 and not entry.startswith("[") else entry


@functools.lru_cache(maxsize=256)
def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _certificates() -> ssl.SSLContext:
    """Return a context that trusts the authorities of the environment, or else those of certifi.

    SSL_CERT_FILE has priority over SSL_CERT_DIR. Raise `OSError` if the file cannot be read.
    """
    if file := os.environ.get("SSL_CERT_FILE"):
        return ssl.create_default_context(cafile=file)
    if directory := os.environ.get("SSL_CERT_DIR"):
        return ssl.create_default_context(capath=directory)
    import certifi

    return ssl.create_default_context(cafile=certifi.where())


def open_pool(
    trusted: ssl.SSLContext, *, kept: int, proxy: str | None = None
) -> httpcore.AsyncConnectionPool:
    """Open a pool that keeps at most `kept` idle connections.

    Raise `ValueError` if the proxy cannot be used, and `ImportError` if it needs `socksio`.
    """
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


# Connections of asyncio, as a network backend of httpcore. Its own backend uses anyio, which takes
# as long for a connection on this machine as all other parts of a request together.


_READ_AHEAD_BYTES = 256 * 1024
# The delay after which RFC 8305 recommends to try the next address in parallel.
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
        """Return what has arrived: 1 to `max_bytes` bytes, or nothing at the end.

        Raise `httpcore.ReadTimeout` after `timeout` seconds without a byte, and
        `httpcore.ReadError` if the connection broke.
        """
        import httpcore

        while not self._received and not self._ended:
            await self._wait_for_change(timeout, httpcore.ReadTimeout)
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
        """Send bytes. Wait while the buffer of the connection is full.

        Raise `httpcore.WriteTimeout` after `timeout` seconds of waiting, and `httpcore.WriteError`
        if the connection is closed before. If it closes while this waits, nothing is raised;
        reading shows it.
        """
        import httpcore

        if self._transport is None or self._ended:
            raise httpcore.WriteError("the connection is closed") from self._error
        self._transport.write(buffer)
        while not self._writable and not self._ended:
            await self._wait_for_change(timeout, httpcore.WriteTimeout)

    async def _wait_for_change(self, seconds: float | None, late: type[Exception]) -> None:
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
        """Encrypt the connection, and return it.

        After any error it is closed. Raise `httpcore.ConnectTimeout` after `timeout` seconds, and
        `httpcore.ConnectError` if the handshake fails.
        """
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
        """Close at once. Bytes that are not yet sent are dropped: no reply would be read."""
        if self._transport is not None:
            self._transport.abort()

    def get_extra_info(self, info: str) -> object:
        """Return what asyncio knows of the connection under this name; None if it knows nothing.

        `is_readable` is answered here: True if it was closed, or has bytes that were not read.
        """
        if info == "is_readable":
            # httpcore asks this of idle connections. One that was closed, or has unexpected bytes,
            # is readable, and is not used again.
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
    ) -> httpcore.AsyncNetworkStream:
        """Connect. Raise `httpcore.ConnectTimeout` or `httpcore.ConnectError` if it fails.

        `local_address` and `socket_options` are part of httpcore's interface, and ignored.
        """
        import httpcore

        loop = asyncio.get_running_loop()
        # Only a host name can have several addresses to try.
        delay = None if _is_address(host) else _NEXT_ADDRESS_SECONDS
        try:
            async with asyncio.timeout(timeout):
                _, connection = await loop.create_connection(
                    Connection, host, port, happy_eyeballs_delay=delay
                )
        except TimeoutError:
            raise httpcore.ConnectTimeout from None
        except OSError as error:
            raise httpcore.ConnectError from _merge_refusals(error)
        return cast("httpcore.AsyncNetworkStream", connection)


def _merge_refusals(error: OSError) -> OSError:
    """Return the same error, or a refusal if every address of a name refused the connection.

    asyncio merges the errors of several addresses into one that has no number, only their texts.
    """
    text = str(error)
    refusals = text.count(f"[Errno {errno.ECONNREFUSED}]")
    if error.errno is None and refusals and refusals == text.count("[Errno "):
        return ConnectionRefusedError(errno.ECONNREFUSED, text)
    return error


_DIALECTS: dict[Dialect, WireFormat] = {"openai": openai, "anthropic": anthropic}
_STREAM = "text/event-stream"


def _kind(answer: Answer) -> str:
    """Return the media type of an answer in lower case; empty if it names none."""
    return answer.headers.get("content-type", "").partition(";")[0].strip().lower()


class HttpModel:
    """A model at an endpoint. Models of one provider should share one gate.

    All that a server sends passes through here, and the key is removed from it here.
    """

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
        """The address, and the settings of its requests."""
        return self._endpoint

    def admitted(self) -> AbstractAsyncContextManager[None]:
        return self._gate.admitted()

    async def ask(self, request: ModelRequest, *, heard: Heard = lambda text: None) -> ModelReply:
        """Make one attempt. Raise `ModelError`, without a cause, if there is no reply.

        An answer widens the gate, also one with an error status; an overload pauses all requests.
        A failure without a status does neither. The key is removed from the reply and the error.
        """
        epoch = self._gate.epoch
        try:
            reply = await self._attempt(request, heard)
        except ModelError as error:
            failure = error
        else:
            self._gate.note_answer(epoch)
            return self._without_key(reply)
        if failures.is_overload(failure):
            self._gate.pause(epoch, retry_after_ms=failure.retry_after_ms)
        elif failure.status is not None:
            self._gate.note_answer(epoch)
        raise self._describe(failure, asked=self._endpoint.name)

    async def models(self) -> tuple[str, ...]:
        """Ask the endpoint which models it has, and return their names in its order.

        Nothing is paid for. Names that a model cannot have here are left out. The gate is passed
        by. Raise `ModelError`, without a cause, if there is no such list.
        """
        endpoint = self._endpoint
        path, headers = self._dialect.listing(endpoint)
        path = with_query(path, endpoint.query)
        try:
            async with (
                asyncio.timeout(endpoint.total_seconds),
                self._transport.get(path, headers=self._with_key(headers)) as answer,
            ):
                body = await self._read_body(answer, bytes_max=failures.BODY_BYTES_MAX)
                return read_model_names(body)
        except TimeoutError:
            failure = failures.total_timeout(endpoint.total_seconds)
        except ModelError as error:
            failure = error
        raise self._describe(failure, asked=endpoint.provider)

    async def close(self) -> None:
        """Close the connections of this event loop. A later request opens new ones."""
        await self._transport.close()

    def _with_key(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return headers with those of the settings, and the key if it is for this address."""
        endpoint = self._endpoint
        given = {
            name: value.reveal() if isinstance(value, Secret) else value
            for name, value in endpoint.headers
        }
        headers = {**given, **headers}
        if endpoint.key is None or endpoint.key_origin != endpoint.origin:
            return dict(headers)
        name, value = self._dialect.authorization(endpoint.key)
        return {**headers, name: value}

    async def _attempt(self, request: ModelRequest, heard: Heard) -> ModelReply:
        endpoint = self._endpoint
        wire = self._dialect.wire(endpoint, request)
        path = with_query(wire.path, endpoint.query)
        headers = self._with_key({"content-type": "application/json", **wire.headers})
        if request.key:
            headers["x-client-request-id"] = request.key
        try:
            async with (
                asyncio.timeout(endpoint.total_seconds),
                self._transport.post(path, headers=headers, body=wire.body) as answer,
            ):
                return await self._read(answer, request, heard)
        except TimeoutError:
            pass
        raise failures.total_timeout(endpoint.total_seconds)

    async def _read(self, answer: Answer, request: ModelRequest, heard: Heard) -> ModelReply:
        # The reply decides, not the request: some servers never stream, some always.
        if 200 <= answer.status < 300 and not answer.compressed and _kind(answer) == _STREAM:
            return await self._read_stream(answer, request, heard)
        body = await self._read_body(answer, bytes_max=failures.BODY_BYTES_MAX)
        reply = self._dialect.reply(body, request)
        heard(without_key(reply.text, self._endpoint.key))
        return reply

    async def _read_body(self, answer: Answer, *, bytes_max: int) -> bytes:
        """Return the JSON of an answer that came in one piece.

        Raise `ModelError` for a status other than success, and for a body that is empty,
        compressed, too long or of another type.
        """
        if not 200 <= answer.status < 300:
            said = await answer.head(bytes_max=failures.ERROR_BYTES_MAX)
            now = datetime.datetime.now(datetime.UTC)
            raise failures.of_status(answer.status, answer.headers, said, now=now)
        if answer.compressed:
            raise failures.compressed_body()
        kind = _kind(answer)
        if kind not in ("", "application/json") and not kind.endswith("+json"):
            raise failures.wrong_content_type(answer.headers.get("content-type", ""))
        body = await answer.body(bytes_max=bytes_max)
        if not body.strip():
            raise failures.malformed_reply("an empty body")
        return body

    async def _read_stream(self, answer: Answer, request: ModelRequest, heard: Heard) -> ModelReply:
        decoder, reader = SseDecoder(), self._dialect.reader(request)
        shown = KeyFilter(self._endpoint.key)
        async for piece in answer.pieces(bytes_max=failures.STREAM_BYTES_MAX):
            for event in decoder.feed(piece):
                reader.feed(event)
            if said := shown.passed(reader.text.take_new()):
                heard(said)
            if reader.done:
                await answer.drain()
                break
        if said := shown.rest():
            heard(said)
        return reader.finish()

    # -- removal of the key ---------------------------------------------------------------------

    def _without_key(self, reply: ModelReply) -> ModelReply:
        key = self._endpoint.key
        if key is None:
            return reply
        return msgspec.structs.replace(
            reply,
            text=without_key(reply.text, key),
            usage=self._usage(reply.usage),
            served_by=scrub(reply.served_by, key),
            finish=scrub(reply.finish, key),
        )

    def _usage(self, usage: ModelUsage) -> ModelUsage:
        """Return usage unchanged, or without its `raw` report if the key is in that."""
        text = msgspec.json.encode(usage.raw).decode()
        if scrub(text, self._endpoint.key) == text:
            return usage
        return msgspec.structs.replace(usage, raw={})

    def _describe(self, error: ModelError, *, asked: str) -> ModelError:
        endpoint = self._endpoint
        message = scrub(f"{asked} at {endpoint.address}: {error.message}", endpoint.key)
        usage = None if error.usage is None else self._usage(error.usage)
        return failures.with_message(error, message=message, usage=usage)


_: type[Model] = HttpModel
