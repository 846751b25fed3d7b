"""The messages format of Anthropic. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tallystick.core.machine.prompt import Message
from tallystick.model import failures
from tallystick.model.dialect import (
    ReplyText,
    SseEvent,
    WireRequest,
    base64_of,
    check_messages,
    decode_reply,
    short_name,
    usage_of,
    with_fields,
)
from tallystick.model.endpoint import Endpoint, Secret
from tallystick.model.port import ModelReply, ModelRequest

# Not the newest version. Every server of this format knows it, and it still accepts a temperature
# for models that do. Apart from that, the requests made here are valid in version 2026-10-21 too.
_VERSION = "2023-06-01"
_KEPT = {"cache_control": {"type": "ephemeral"}}
# The format does not allow an empty text.
_NOTHING = "(nothing)"
_CUT = frozenset({"max_tokens", "model_context_window_exceeded"})
_TOKENS_IN = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


# -- requests -----------------------------------------------------------------------------------


def wire(endpoint: Endpoint, request: ModelRequest) -> WireRequest:
    """Return the request to send.

    Raise `ModelError` for pictures outside of a user's message.
    """
    messages = check_messages(request)
    body: dict[str, object] = {
        "model": endpoint.model,
        "max_tokens": request.tokens_out_max,
        "messages": _turns(messages),
    }
    system = "\n\n".join(each.text for each in messages if each.role == "system" and each.text)
    if system:
        body["system"] = system
    if endpoint.cache:
        _mark_for_cache(body)
    if request.temperature is not None:
        body["temperature"] = request.temperature
    if endpoint.stream:
        body["stream"] = True
    return WireRequest(
        path=_path("messages", endpoint),
        headers={"anthropic-version": _VERSION},
        body=with_fields(body, endpoint.body),
    )


def _mark_for_cache(body: dict[str, Any]) -> None:
    """Mark the ends of the two parts that the next request repeats: the system, and all turns.

    A part that is too short to be kept is sent as usual, and costs the same.
    """
    if "system" in body:
        body["system"] = [{"type": "text", "text": body["system"], **_KEPT}]
    if body["messages"]:
        body["messages"][-1]["content"][-1].update(_KEPT)


def authorization(key: Secret) -> tuple[str, str]:
    """Return the name and value of the header with the key."""
    return "x-api-key", key.reveal()


def listing(endpoint: Endpoint) -> tuple[str, Mapping[str, str]]:
    """Return the path of the list of models, and the headers of a request for it."""
    return _path("models?limit=1000", endpoint), {"anthropic-version": _VERSION}


def _path(name: str, endpoint: Endpoint) -> str:
    return f"/{name}" if endpoint.base_url.endswith("/v1") else f"/v1/{name}"


def _turns(messages: tuple[Message, ...]) -> list[dict[str, object]]:
    """Return messages as turns: consecutive ones of one role become one with several blocks.

    System messages are left out: they have a field of their own.
    """
    turns: list[tuple[str, list[dict[str, object]]]] = []
    for message in messages:
        if message.role == "system":
            continue
        if not turns or turns[-1][0] != message.role:
            turns.append((message.role, []))
        turns[-1][1].extend(_blocks(message))
    return [{"role": role, "content": blocks} for role, blocks in turns]


def _blocks(message: Message) -> list[dict[str, object]]:
    blocks: list[dict[str, object]] = [
        {
            "type": "image",
            "source": {"type": "base64", "media_type": image.media_type, "data": base64_of(image)},
        }
        for image in message.images
    ]
    if message.text.strip() or not blocks:
        blocks.append({"type": "text", "text": message.text if message.text.strip() else _NOTHING})
    return blocks


# -- replies ------------------------------------------------------------------------------------


class _Block(msgspec.Struct):
    type: str = ""
    text: str | None = None


class _Delta(msgspec.Struct):
    type: str = ""
    text: str | None = None
    stop_reason: Any = None


class _Reply(msgspec.Struct):
    type: str = ""
    content: list[_Block] | None = None
    model: Any = None
    stop_reason: Any = None
    usage: Any = None
    error: Any = None


class _Event(msgspec.Struct):
    type: str = ""
    message: _Reply | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: Any = None
    error: Any = None


_event = msgspec.json.Decoder(_Event)
_reply = msgspec.json.Decoder(_Reply)


def reply(data: bytes, request: ModelRequest) -> ModelReply:
    whole = decode_reply(data, _reply, _Reply)
    if whole.error is not None or whole.type == "error":
        raise failures.of_error_value(whole.error)
    if whole.content is None:
        raise failures.malformed_reply("no content")
    found = _Reader(request)
    found.begin(whole, final=True)
    return found.finish()


def reader(request: ModelRequest) -> _Reader:
    return _Reader(request)


class _Reader:
    """Collects a reply. Only `message_stop` ends it."""

    def __init__(self, request: ModelRequest) -> None:
        self._request = request
        self.text = ReplyText()
        self._finish: str | None = None
        self._usage: dict[str, Any] = {}
        # True if the count of output tokens covers the whole reply.
        self._counted = False
        self._model: object = None
        self._begun = False
        self.done = False

    def feed(self, event: SseEvent) -> None:
        if self.done or not event.data:
            return
        found = decode_reply(event.data, _event, _Event)
        # The type is in the data. An event without one goes by the name on its own line.
        match found.type or event.event.decode("utf-8", "replace"):
            case "content_block_delta" if found.delta is not None:
                # Other deltas are thinking and tool calls, which are no part of the reply.
                if found.delta.type == "text_delta":
                    self.text.add(found.delta.text)
            case "content_block_start" if found.content_block is not None:
                self._take_block(found.content_block)
            case "message_start" if found.message is not None:
                self.begin(found.message)
            case "message_delta":
                self._keep_usage(found.usage, final=True)
                self._keep_finish(found.delta.stop_reason if found.delta is not None else None)
            case "message_stop":
                self.done = True
            case "error":
                raise failures.of_error_value(found.error)
            case _:
                # `ping`, and kinds that later versions add: they must not end a paid reply.
                pass

    def begin(self, message: _Reply, *, final: bool = False) -> None:
        """Take a message: the start of a stream, or a whole reply if `final`."""
        self._begun = True
        self.done = final
        self._model = message.model
        # The start of a stream counts a token or two of output. If no later event counted again,
        # trusting that count would charge a long reply as one token.
        self._keep_usage(message.usage, final=final)
        self._keep_finish(message.stop_reason)
        for block in message.content or ():
            self._take_block(block)

    def _take_block(self, block: _Block) -> None:
        if block.type == "text":
            self.text.add(block.text)

    def _keep_usage(self, usage: object, *, final: bool) -> None:
        """Keep counts. Later ones cover everything so far, and replace earlier ones.

        The input cannot shrink while it is answered: of two counts of the input, the larger is
        kept. `final` is True for a report that covers the whole output.
        """
        if isinstance(usage, dict):
            said = {name: each for name, each in usage.items() if each is not None}
            before, after = _input_of(self._usage), _input_of(self._usage | said)
            if before is not None and after is not None and after < before:
                said = {name: each for name, each in said.items() if name not in _TOKENS_IN}
            self._usage |= said
            if usage.get("output_tokens") is not None:
                self._counted = final

    def _keep_finish(self, reason: object) -> None:
        if isinstance(reason, str) and reason:
            self._finish = reason

    def finish(self) -> ModelReply:
        if not self.done:
            raise failures.broken_connection("the stream ended without its end marker")
        if not self._begun:
            raise failures.malformed_reply("no message")
        text = self.text.whole()
        finish = short_name(self._finish)
        usage = usage_of(
            self._usage,
            tokens_in=_TOKENS_IN,
            tokens_out="output_tokens",
            request=self._request,
            text=text,
            final=self._counted,
        )
        if finish == "refusal":
            raise failures.content_refused(finish, usage)
        return ModelReply(
            text=text,
            usage=usage,
            cut=finish in _CUT,
            served_by=short_name(self._model),
            finish=finish,
        )


def _input_of(usage: dict[str, Any]) -> int | None:
    """Return the input tokens that a report counts; None if one of its counts is not valid.

    A count that is missing is 0.
    """
    total = 0
    for name in _TOKENS_IN:
        count = usage.get(name, 0)
        if type(count) is not int or count < 0:
            return None
        total += count
    return total
