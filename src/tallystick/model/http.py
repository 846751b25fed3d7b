"""Models behind HTTP: one attempt, in either dialect, streamed or whole.

Everything a server says passes through here on its way out, so here the key is taken out of it.
"""

from __future__ import annotations

import asyncio
import datetime
from contextlib import AbstractAsyncContextManager

import msgspec

from tallystick.core.records import ModelUsage
from tallystick.model import anthropic, failures, openai
from tallystick.model.dialect import WireFormat
from tallystick.model.endpoint import Dialect, Endpoint
from tallystick.model.pacing import Gate
from tallystick.model.port import Heard, Model, ModelError, ModelReply, ModelRequest
from tallystick.model.secret import scrubbed, without_key
from tallystick.model.sse import SseDecoder
from tallystick.model.transport import Answer, Transport

__all__ = ["HttpModel"]

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
