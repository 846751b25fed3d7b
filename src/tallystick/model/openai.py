"""The chat completions format of OpenAI, as many other servers speak it too. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tallystick.core.json_text import digest
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

_DONE = b"[DONE]"


# -- requests -----------------------------------------------------------------------------------


def wire(endpoint: Endpoint, request: ModelRequest) -> WireRequest:
    """Return the request to send.

    Raise `ModelError` for pictures outside of a user's message.
    """
    said = body(request, model=endpoint.model, cap=_cap_name(endpoint), stream=endpoint.stream)
    if endpoint.cache and endpoint.host == "api.openai.com":
        # Requests with one key go to the server that has the beginning of their prompt.
        said["prompt_cache_key"] = digest(_first_text(request).encode("utf-8", "replace"))[:32]
    return WireRequest(path="/chat/completions", headers={}, body=with_fields(said, endpoint.body))


def _first_text(request: ModelRequest) -> str:
    """Return the first message of a request, which a run does not change."""
    return request.messages[0].text if request.messages else ""


def body(request: ModelRequest, *, model: str, cap: str, stream: bool) -> dict[str, object]:
    """Return the fields of a request. `cap` is the name of the field that limits the reply.

    Raise `ModelError` for pictures outside of a user's message.
    """
    said: dict[str, object] = {
        "model": model,
        "messages": [_message(each) for each in check_messages(request)],
        cap: request.tokens_out_max,
    }
    if request.temperature is not None:
        said["temperature"] = request.temperature
    if stream:
        said["stream"] = True
        said["stream_options"] = {"include_usage": True}
    return said


def authorization(key: Secret) -> tuple[str, str]:
    """Return the name and value of the header with the key."""
    return "authorization", f"Bearer {key.reveal()}"


def listing(endpoint: Endpoint) -> tuple[str, Mapping[str, str]]:
    """Return the path of the list of models, and the headers of a request for it."""
    return "/models", {}


def _cap_name(endpoint: Endpoint) -> str:
    """Return the field that limits the reply.

    OpenAI's newer models refuse `max_tokens`; other servers know no other name.
    """
    return "max_completion_tokens" if endpoint.host == "api.openai.com" else "max_tokens"


def _message(message: Message) -> dict[str, object]:
    if not message.images:
        return {"role": message.role, "content": message.text}
    parts: list[dict[str, object]] = [{"type": "text", "text": message.text}]
    for image in message.images:
        url = f"data:{image.media_type};base64,{base64_of(image)}"
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return {"role": message.role, "content": parts}


# -- replies ------------------------------------------------------------------------------------
#
# Only fields that are read are declared: the decoder skips reasoning, tool calls and anything else.
# `Any` is the type of fields in which a wrong type must not cost the reply.


class _Part(msgspec.Struct):
    type: str = ""
    text: str | None = None


class _Said(msgspec.Struct):
    content: str | list[_Part] | None = None
    refusal: Any = None


class _Choice(msgspec.Struct):
    index: Any = 0
    delta: _Said | None = None
    message: _Said | None = None
    finish_reason: Any = None


class _Completion(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Any = None
    model: Any = None
    error: Any = None


_completion = msgspec.json.Decoder(_Completion)


def reply(data: bytes, request: ModelRequest) -> ModelReply:
    whole = _Reader(request)
    whole.take(decode_reply(data, _completion, _Completion))
    return whole.finish(ended=True)


def reader(request: ModelRequest) -> _Reader:
    return _Reader(request)


class _Reader:
    """Collects a reply: its first choice, and the last report of usage.

    The report must come with the last piece of the reply or after it: some servers count while they
    write, and a count that was followed by more text is too low. Some servers and proxies never
    send `[DONE]`: a finish reason before a clean end is an end too.
    """

    def __init__(self, request: ModelRequest) -> None:
        self._request = request
        self.text = ReplyText()
        self._finish: str | None = None
        self._refusal = False
        self._usage: object = None
        self._counted = False
        self._model: object = None
        self._seen = False
        self.done = False

    def feed(self, event: SseEvent) -> None:
        if self.done:
            return
        if event.data == _DONE:
            self.done = True
        elif event.data:
            self.take(decode_reply(event.data, _completion, _Completion))

    def take(self, completion: _Completion) -> None:
        if completion.error is not None:
            raise failures.of_error_value(completion.error)
        if self._model is None:
            self._model = completion.model
        for choice in completion.choices or ():
            if choice.index in (0, None):
                self._take_choice(choice)
        if completion.usage is not None:
            self._usage = completion.usage
            self._counted = True

    def _take_choice(self, choice: _Choice) -> None:
        self._seen = True
        said = choice.delta or choice.message
        if said is not None:
            if self.text.add(_text(said.content)):
                self._counted = False
            self._refusal = self._refusal or bool(said.refusal)
        if isinstance(choice.finish_reason, str) and choice.finish_reason:
            self._counted = False
            self._finish = choice.finish_reason

    def finish(self, *, ended: bool = False) -> ModelReply:
        if not (ended or self.done or self._finish is not None):
            raise failures.broken_connection("the stream ended without its end marker")
        if not self._seen:
            raise failures.malformed_reply("no choices")
        text = self.text.whole()
        finish = short_name(self._finish)
        usage = usage_of(
            self._usage,
            tokens_in=("prompt_tokens",),
            tokens_out="completion_tokens",
            request=self._request,
            text=text,
            final=self._counted,
        )
        if finish == "content_filter" or (self._refusal and not text):
            raise failures.content_refused(finish or "refusal", usage)
        if finish == "error":
            raise failures.of_error_value({"message": "finish_reason error"})
        return ModelReply(
            text=text,
            usage=usage,
            cut=finish == "length",
            served_by=short_name(self._model),
            finish=finish,
        )


def _text(content: str | list[_Part] | None) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.text or "" for part in content or () if part.type == "text")
