"""Models behind HTTP: one attempt, in either dialect, over one client with deadlines and bounds.

What is taken from the environment: proxies (HTTPS_PROXY, ALL_PROXY, NO_PROXY) and certificates
(SSL_CERT_FILE, SSL_CERT_DIR), since they are how a user's network is. Through a proxy goes https
alone, in a tunnel that the proxy cannot read; plain http and loopback addresses go there directly,
since a proxy would read key and prompt, or look for the server on its own machine. Not taken:
`.netrc`, which httpx reads only when told to, and cookies, which nobody here has a use for.

Replies are asked for uncompressed, and compressed ones are refused: no bound on bytes read bounds
what they unfold to, and the time a model takes is not in the transfer.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import msgspec

from tallystick.core.charge import ModelUsage
from tallystick.model import anthropic, failures, openai
from tallystick.model.dialect import SseDecoder, WireFormat
from tallystick.model.endpoint import Dialect, Endpoint, scrubbed, without_key
from tallystick.model.pacing import Gate
from tallystick.model.port import Heard, Model, ModelError, ModelReply, ModelRequest

if TYPE_CHECKING:
    import httpx

# Common servers close an idle connection after 5 s; to use one as it closes loses the request.
_IDLE_SECONDS = 4.0
_DRAIN_SECONDS = 0.1
_HEAD_SECONDS = 5.0
_HEADERS = {"accept-encoding": "identity", "user-agent": "tallystick"}


class Answer:
    """A response whose body has not been read. Iterating gives the body as it comes."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._pieces = response.aiter_raw()
        self._bytes_left = 0
        self.status: int = response.status_code
        self.headers: Mapping[str, str] = response.headers

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


class Transport:
    """Sends requests to one endpoint. Opens nothing before the first."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        # Connections belong to the loop they were opened in.
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = (
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
            client = self._client()
            request = client.build_request(
                "POST", f"{self._endpoint.base_url}{path}", headers=headers, content=body
            )
            answer = Answer(await client.send(request, stream=True))
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
        """Close what was opened in this loop; of other loops, forget it."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        self._clients.clear()
        if client is not None:
            await client.aclose()

    def _client(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            for closed in [each for each in self._clients if each.is_closed()]:
                del self._clients[closed]
            try:
                client = self._clients[loop] = self._opened()
            except (ImportError, OSError, ValueError):
                # The error would name the proxy with its password.
                raise failures.not_sent(
                    "network_error",
                    "a proxy or certificate file of the environment cannot be used; check "
                    "HTTPS_PROXY, ALL_PROXY, SSL_CERT_FILE and SSL_CERT_DIR",
                    kind="terminal",
                ) from None
        return client

    def _opened(self) -> httpx.AsyncClient:
        from http.cookiejar import DefaultCookiePolicy

        import httpx

        endpoint = self._endpoint
        encrypted = endpoint.scheme == "https"
        client = httpx.AsyncClient(
            # Reading the certificates of the world takes longer than a whole turn.
            verify=True if encrypted else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            trust_env=encrypted,
            mounts={"https://": None} if endpoint.is_loopback else None,
            follow_redirects=False,
            headers=_HEADERS,
            timeout=httpx.Timeout(
                connect=endpoint.connect_seconds,
                read=endpoint.silence_seconds,
                write=endpoint.silence_seconds,
                pool=None,
            ),
            # How many at once is the gate's decision.
            limits=httpx.Limits(
                max_connections=None,
                max_keepalive_connections=endpoint.concurrency if endpoint.keeps_connections else 0,
                keepalive_expiry=_IDLE_SECONDS,
            ),
        )
        client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        return client

    def _failure(self, error: Exception) -> ModelError:
        import httpx

        endpoint = self._endpoint
        match error:
            case httpx.ConnectTimeout():
                return failures.not_sent(
                    "timeout",
                    f"no connection to {endpoint.address} in {endpoint.connect_seconds:g} s; "
                    f"check the network, or the base URL",
                )
            case httpx.ConnectError():
                return failures.unreachable(error, address=endpoint.address)
            case httpx.ProxyError():
                return failures.not_sent(
                    "network_error",
                    f"the proxy of the environment gives no way to {endpoint.address}; check "
                    f"HTTPS_PROXY, or name the host in NO_PROXY",
                )
            case httpx.TimeoutException():
                return failures.silent(endpoint.silence_seconds)
            case httpx.HTTPError() | OSError():
                return failures.cut_off("the connection broke")
            case _:
                raise error


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
