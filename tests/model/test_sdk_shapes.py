"""The official clients agree: their types take our requests, and they understand our fake server.

So what the tests here are run against is true to the formats, and so is what is sent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
from tests.model import fake_server as fake
from tests.model.fake_server import KEY, TEXT, FakeServer

from tallystick.core.charge import ModelUsage
from tallystick.core.machine.prompt import Image, Message
from tallystick.model import anthropic as anthropic_format
from tallystick.model import openai as openai_format
from tallystick.model.dialect import SseEvent, WireFormat
from tallystick.model.endpoint import Dialect, Endpoint
from tallystick.model.port import ModelRequest

pytestmark = pytest.mark.slow

PICTURE = Image(media_type="image/png", data=b"\x89PNG\r\n")
FORMATS: dict[Dialect, WireFormat] = {"openai": openai_format, "anthropic": anthropic_format}
DIALECTS: list[tuple[Dialect, bool]] = [
    ("openai", True), ("openai", False), ("anthropic", True), ("anthropic", False)
]  # fmt: skip


def message(role: Any, text: str, *images: Image) -> Message:
    return Message(role=role, part="p", text=text, images=images)


REQUESTS = {
    "a question": (message("user", "Why?"),),
    "a run": (
        message("system", "You solve tasks."),
        message("user", "Task: count."),
        message("assistant", "```repl\n1\n```"),
        message("user", "Value: 1"),
    ),
    "two in a row": (message("user", "One."), message("user", "Two.")),
    "pictures": (message("system", "Look."), message("user", "What?", PICTURE, PICTURE)),
    "a picture alone": (message("user", "", PICTURE),),
}


@pytest.fixture(autouse=True)
def clients() -> None:
    """Skip without the clients.

    They are imported inside tests, not when those are collected: that takes seconds, and the
    default suite runs none of them.
    """
    for name in ("anthropic", "openai", "pydantic"):
        pytest.importorskip(name)


@cache
def params(dialect: Dialect, stream: bool) -> Any:
    """The type's validator. It has to outlive the lazy iterables it gives."""
    import pydantic

    if dialect == "openai":
        from openai.types.chat import completion_create_params as chat

        streaming: Any = chat.CompletionCreateParamsStreaming
        whole: Any = chat.CompletionCreateParamsNonStreaming
    else:
        from anthropic.types import message_create_params as messages

        streaming = messages.MessageCreateParamsStreaming
        whole = messages.MessageCreateParamsNonStreaming
    return pydantic.TypeAdapter(streaming if stream else whole)


def materialized(value: Any) -> Any:
    """Iterables are checked only when they are gone through: go through all of them."""
    if isinstance(value, str | bytes | int | float | None):
        return value
    if isinstance(value, Mapping):
        return {name: materialized(each) for name, each in value.items()}
    return [materialized(each) for each in value]


def at(dialect: Dialect, *, host: str = "127.0.0.1", stream: bool = True) -> Endpoint:
    url = f"https://{host}/v1"
    return Endpoint(provider="p", dialect=dialect, base_url=url, model="m-1", stream=stream)


# -- our requests in their types ----------------------------------------------------------------


@pytest.mark.parametrize("host", ["api.openai.com", "127.0.0.1"])
@pytest.mark.parametrize("temperature", [None, 0.0])
@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize(("dialect", "stream"), DIALECTS)
def test_the_clients_types_take_our_requests_whole(
    dialect: Dialect, stream: bool, name: str, temperature: float | None, host: str
) -> None:
    request = ModelRequest(messages=REQUESTS[name], temperature=temperature)
    body = json.loads(FORMATS[dialect].wire(at(dialect, host=host, stream=stream), request).body)

    taken = params(dialect, stream).validate_python(body)

    # What a type does not know, it drops. The Anthropic client of the API's newest version has no
    # temperature any more; the version that we speak has, for the models that take one.
    unknown = {"temperature"} if dialect == "anthropic" else set()
    assert materialized(taken) == {
        name: value for name, value in body.items() if name not in unknown
    }


@pytest.mark.parametrize(
    "spoil",
    [
        lambda body: body["messages"][0].update(role="robot"),
        lambda body: body["messages"][0]["content"][-1].update(type="painting"),
        lambda body: body["messages"][0].update(content=7),
        lambda body: body.pop("messages"),
    ],
)
@pytest.mark.parametrize("dialect", FORMATS)
def test_the_check_would_notice_a_wrong_request(dialect: Dialect, spoil: Any) -> None:
    request = ModelRequest(messages=(message("user", "What?", PICTURE),))
    body = json.loads(FORMATS[dialect].wire(at(dialect), request).body)
    spoil(body)

    from pydantic import ValidationError

    with pytest.raises(ValidationError):
        materialized(params(dialect, True).validate_python(body))


# -- the official clients at our server ---------------------------------------------------------


def openai_client(server: FakeServer) -> Any:
    import openai

    return openai.OpenAI(base_url=server.url, api_key=KEY, max_retries=0, timeout=10)


def anthropic_client(server: FakeServer) -> Any:
    import anthropic

    url = server.url.removesuffix("/v1")
    return anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0, timeout=10)


def test_the_openai_client_reads_our_server(server: FakeServer) -> None:
    asked: Any = {"model": "m-1", "messages": [{"role": "user", "content": "Hi"}]}
    with openai_client(server) as client:
        whole = client.chat.completions.create(**asked)
        options = {"include_usage": True}
        chunks = list(client.chat.completions.create(**asked, stream=True, stream_options=options))

    assert whole.choices[0].message.content == TEXT
    assert whole.usage.prompt_tokens == 11
    said = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert "".join(each or "" for each in said) == TEXT
    assert chunks[-1].usage.completion_tokens == 3
    for each in (whole, *chunks):
        type(each).model_validate_json(each.model_dump_json(), strict=True)
    assert [seen.path for seen in server.seen] == ["/v1/chat/completions"] * 2


def test_the_anthropic_client_reads_our_server(server: FakeServer) -> None:
    asked: Any = {
        "model": "m-1",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "Hi"}],
    }
    with anthropic_client(server) as client:
        whole = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            events = list(stream)
            last = stream.get_final_message()

    assert whole.content[0].text == last.content[0].text == TEXT
    assert (whole.usage.input_tokens, last.usage.output_tokens) == (11, 3)
    assert last.stop_reason == "end_turn"
    assert {"message_start", "content_block_delta", "message_stop"} <= {
        event.type for event in events
    }
    assert [seen.path for seen in server.seen] == ["/v1/messages"] * 2


@pytest.mark.parametrize(
    ("status", "name"),
    [
        (400, "BadRequestError"),
        (401, "AuthenticationError"),
        (403, "PermissionDeniedError"),
        (404, "NotFoundError"),
        (409, "ConflictError"),
        (429, "RateLimitError"),
        (500, "InternalServerError"),
    ],
)
def test_the_clients_know_our_errors_by_name(server: FakeServer, status: int, name: str) -> None:
    server.always(fake.status(status, "the message"))
    import anthropic
    import openai

    messages: Any = [{"role": "user", "content": "Hi"}]

    with openai_client(server) as client, pytest.raises(getattr(openai, name)) as theirs:
        client.chat.completions.create(model="m", messages=messages)
    with anthropic_client(server) as client, pytest.raises(getattr(anthropic, name)) as others:
        client.messages.create(model="m", max_tokens=9, messages=messages)

    assert "the message" in str(theirs.value)
    assert "the message" in str(others.value)


# -- what their types write, our readers read ---------------------------------------------------


def test_what_the_openai_types_write_is_read() -> None:
    from openai.types import CompletionUsage
    from openai.types.chat import ChatCompletion
    from openai.types.chat.chat_completion_message import ChatCompletionMessage

    usage = CompletionUsage(prompt_tokens=5, completion_tokens=2, total_tokens=7)
    said = ChatCompletionMessage(role="assistant", content="Hello")
    choice: Any = {"index": 0, "message": said, "finish_reason": "length"}
    written = ChatCompletion(
        id="1", object="chat.completion", created=1, model="m-2", choices=[choice], usage=usage
    ).model_dump_json()

    reply = openai_format.reply(written.encode(), fake.REQUEST)

    assert (reply.text, reply.cut, reply.served_by) == ("Hello", True, "m-2")
    assert (reply.usage.tokens_in, reply.usage.tokens_out) == (5, 2)
    assert reply.usage.raw == json.loads(usage.model_dump_json())


def test_what_the_openai_chunk_types_write_is_read() -> None:
    from openai.types.chat import ChatCompletionChunk

    reader = openai_format.reader(fake.REQUEST)
    events = list(
        fake.openai_stream(["Hel", "lo"], finish="stop", usage=fake.OPENAI_USAGE, model="m-2")
    )
    for _, value in events[:-1]:
        chunk = ChatCompletionChunk.model_validate(value).model_dump_json()
        reader.feed(SseEvent(b"", chunk.encode()))

    reply = reader.finish()

    assert (reply.text, reply.usage.tokens_in, reply.finish) == ("Hello", 11, "stop")


def test_what_the_anthropic_types_write_is_read() -> None:
    from anthropic.types import Message as AnthropicMessage
    from anthropic.types import TextBlock, Usage

    written = AnthropicMessage(
        id="1",
        type="message",
        role="assistant",
        model="m-2",
        content=[TextBlock(type="text", text="Hello")],
        stop_reason="max_tokens",
        usage=Usage(input_tokens=5, output_tokens=2, cache_read_input_tokens=100),
    ).model_dump_json()

    reply = anthropic_format.reply(written.encode(), fake.REQUEST)

    assert (reply.text, reply.cut, reply.served_by) == ("Hello", True, "m-2")
    assert (reply.usage.tokens_in, reply.usage.tokens_out) == (105, 2)


def test_what_the_anthropic_event_types_write_is_read() -> None:
    from anthropic.types import RawMessageStreamEvent
    from pydantic import TypeAdapter

    adapter: Any = TypeAdapter(RawMessageStreamEvent)
    reader = anthropic_format.reader(fake.REQUEST)
    for name, value in fake.anthropic_stream(
        ["Hel", "lo"], finish="end_turn", usage=fake.ANTHROPIC_USAGE, model="m-2"
    ):
        if name != "ping":
            reader.feed(SseEvent(b"", adapter.dump_json(adapter.validate_python(value))))

    reply = reader.finish()

    assert reply.text == "Hello"
    assert isinstance(reply.usage, ModelUsage)
    assert (reply.usage.tokens_in, reply.usage.tokens_out) == (11, 3)
    assert reply.usage.reported
