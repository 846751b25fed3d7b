"""The messages format: what is sent, and what is made of what comes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.model import fake_server as fake

from tallystick.core.charge import ModelUsage
from tallystick.core.machine.prompt import Image, Message
from tallystick.model import anthropic
from tallystick.model.dialect import SseDecoder
from tallystick.model.endpoint import Endpoint, Secret
from tallystick.model.port import ModelError, ModelReply, ModelRequest

CLAUDE = Endpoint(
    provider="anthropic",
    dialect="anthropic",
    base_url="https://api.anthropic.com",
    model="claude-x",
)
PICTURE = Image(media_type="image/png", data=b"\x89PNG")


def said(role: Any, text: str, *images: Image) -> Message:
    return Message(role=role, part="p", text=text, images=images)


def body_of(*messages: Message, **more: Any) -> dict[str, Any]:
    request = ModelRequest(messages=messages, **more)
    made: dict[str, Any] = json.loads(anthropic.wire(CLAUDE, request).body)
    return made


def read(*events: tuple[str, object]) -> ModelReply:
    decoder, reader = SseDecoder(), anthropic.reader(fake.REQUEST)
    for piece in fake.events(events):
        for event in decoder.feed(piece):
            reader.feed(event)
    return reader.finish()


def stream(*texts: str, finish: str = "end_turn", usage: object = None) -> list[tuple[str, object]]:
    usage = fake.ANTHROPIC_USAGE if usage is None else usage
    return list(fake.anthropic_stream(texts, finish=finish, usage=usage, model="claude-1"))


# -- what is sent -------------------------------------------------------------------------------


def test_system_messages_go_apart_and_turns_are_joined() -> None:
    body = body_of(
        said("system", "Be brief."),
        said("user", "One."),
        said("user", "Two."),
        said("assistant", "Three."),
        said("system", "Be kind."),
        said("user", "Four."),
        tokens_out_max=7,
    )

    def text(each: str) -> dict[str, str]:
        return {"type": "text", "text": each}

    assert body == {
        "model": "claude-x",
        "max_tokens": 7,
        "system": "Be brief.\n\nBe kind.",
        "messages": [
            {"role": "user", "content": [text("One."), text("Two.")]},
            {"role": "assistant", "content": [text("Three.")]},
            {"role": "user", "content": [text("Four.")]},
        ],
        "stream": True,
    }


def test_pictures_go_before_the_text_and_an_empty_text_is_left_out() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}
    picture = {"type": "image", "source": source}

    (message,) = body_of(said("user", "Look.", PICTURE), said("user", "", PICTURE))["messages"]

    assert message["content"] == [picture, {"type": "text", "text": "Look."}, picture]


def test_there_is_no_empty_text_in_this_format() -> None:
    (message,) = body_of(said("user", " \n"))["messages"]

    assert message["content"] == [{"type": "text", "text": "(nothing)"}]


@pytest.mark.parametrize(
    ("base_url", "path"),
    [("https://api.anthropic.com", "/v1/messages"), ("https://proxy.example/a/v1", "/messages")],
)
def test_the_version_is_in_the_path_once_and_in_a_header(base_url: str, path: str) -> None:
    where = Endpoint(provider="a", dialect="anthropic", base_url=base_url, model="m")

    wire = anthropic.wire(where, fake.REQUEST)

    assert wire.path == path
    assert wire.headers == {"anthropic-version": "2023-06-01"}


def test_the_key_has_a_header_of_its_own() -> None:
    assert anthropic.authorization(Secret("k1")) == ("x-api-key", "k1")


# -- streams ------------------------------------------------------------------------------------


def test_a_stream_is_put_together() -> None:
    usage = {
        "input_tokens": 5,
        "cache_creation_input_tokens": 100,
        "cache_read_input_tokens": 1_000,
        "output_tokens": 9,
        "service_tier": "standard",
    }
    events = stream("Hel", "lo", usage=usage)

    reply = read(*events)

    assert reply == ModelReply(
        text="Hello",
        usage=ModelUsage(tokens_in=1_105, tokens_out=9, reported=True, raw=usage),
        served_by="claude-1",
        finish="end_turn",
    )


def test_usage_is_what_was_said_first_and_last_put_together() -> None:
    events = stream("a")
    events[-2] = ("message_delta", {"type": "message_delta", "usage": {"output_tokens": 44}})

    usage = read(*events).usage

    assert usage.raw == {"input_tokens": 11, "output_tokens": 44}
    assert (usage.tokens_in, usage.tokens_out) == (11, 44)


@pytest.mark.parametrize(
    ("last", "tokens_in"),
    [
        ({"input_tokens": 1}, 11),
        ({"input_tokens": 0}, 11),
        ({"input_tokens": 1, "cache_read_input_tokens": 9}, 11),
        ({"input_tokens": 12}, 12),
        ({"input_tokens": 2, "cache_read_input_tokens": 9}, 11),
        ({"cache_creation_input_tokens": 30}, 41),
    ],
)
def test_the_count_of_what_was_sent_does_not_shrink_during_a_stream(
    last: dict[str, object], tokens_in: int
) -> None:
    events = stream("a")
    usage = {"output_tokens": 44, **last}
    events[-2] = ("message_delta", {"type": "message_delta", "usage": usage})

    counted = read(*events).usage

    assert (counted.tokens_in, counted.tokens_out, counted.reported) == (tokens_in, 44, True)


@pytest.mark.parametrize("last", [-1, "9", True, 1.5, [1]])
def test_a_count_of_what_was_sent_that_is_none_spoils_the_report(last: object) -> None:
    events = stream("a")
    usage = {"output_tokens": 44, "input_tokens": last}
    events[-2] = ("message_delta", {"type": "message_delta", "usage": usage})

    assert read(*events).usage.reported is False


@pytest.mark.parametrize(
    "last",
    [None, {}, {"output_tokens": None}, {"input_tokens": 11}, "none", [1]],
    ids=["no usage", "empty", "null", "input only", "a word", "a list"],
)
def test_the_output_that_a_stream_reports_at_its_start_is_not_a_report(last: object) -> None:
    events = stream("a")
    events[-2] = ("message_delta", {"type": "message_delta", "usage": last})

    usage = read(*events).usage

    assert usage.reported is False
    assert usage.raw == {"input_tokens": 11, "output_tokens": 1}


def test_the_output_that_a_stream_reports_at_its_start_is_not_a_report_of_a_refusal() -> None:
    events = stream("a")
    stop = {"type": "message_delta", "delta": {"stop_reason": "refusal"}}
    events[-2] = ("message_delta", stop)

    with pytest.raises(ModelError, match="refus") as caught:
        read(*events)

    assert caught.value.usage is None


@pytest.mark.parametrize("kept", range(8))
def test_a_stream_without_its_stop_is_not_a_reply(kept: int) -> None:
    events = stream("Hel", "lo")
    assert events[-1][0] == "message_stop"

    with pytest.raises(ModelError, match="without its end marker") as caught:
        read(*events[:-1][:kept])

    assert caught.value.reason == "network_error"


def test_a_stop_without_a_start_is_not_a_reply() -> None:
    with pytest.raises(ModelError, match="no message"):
        read(("message_stop", {"type": "message_stop"}))


@pytest.mark.parametrize("finish", ["max_tokens", "model_context_window_exceeded"])
def test_a_reply_that_ends_at_a_cap_is_cut(finish: str) -> None:
    assert read(*stream("a", finish=finish)).cut is True


def test_a_refusal_is_a_failure_that_knows_what_it_cost() -> None:
    with pytest.raises(ModelError) as caught:
        read(*stream("a", finish="refusal"))

    assert caught.value.reason == "content_policy"
    assert caught.value.usage is not None
    assert caught.value.usage.tokens_out == 3


@pytest.mark.parametrize(
    "event",
    [
        ("ping", {"type": "ping"}),
        ("", {"type": "something_new", "delta": {"type": "text_delta", "text": "x"}}),
        ("", {}),
        ("content_block_start", {"type": "content_block_start"}),
        ("", {"type": "content_block_delta", "delta": {"type": "thinking_delta", "text": "x"}}),
        ("", {"type": "content_block_delta", "delta": {"type": "input_json_delta"}}),
        ("", {"type": "content_block_delta"}),
        ("", {"type": "message_delta", "delta": None, "usage": None}),
        ("", {"type": "message_start"}),
    ],
)
def test_what_is_none_of_our_business_is_passed_over(event: tuple[str, object]) -> None:
    first, *rest = stream("a", "b")

    assert read(first, event, *rest[:-1], event, rest[-1]).text == "ab"


def test_a_block_may_begin_with_its_text() -> None:
    events = stream("b")
    block = {"type": "text", "text": "a"}
    events[1] = ("", {"type": "content_block_start", "index": 0, "content_block": block})

    assert read(*events).text == "ab"


def test_an_event_may_be_named_by_its_line_alone() -> None:
    bare = [
        (name, {key: each for key, each in value.items() if key != "type"})
        for name, value in stream("a", "b")
        if isinstance(value, dict)
    ]

    assert read(*bare).text == "ab"


def test_an_error_in_a_stream_ends_it() -> None:
    error = {"type": "overloaded_error", "message": "Overloaded"}

    with pytest.raises(ModelError, match="Overloaded") as caught:
        read(*stream("a")[:3], ("error", {"type": "error", "error": error}))

    assert (caught.value.reason, caught.value.status) == ("server_error", 529)


@pytest.mark.parametrize(
    "data", ["{", "7", '{"type": 7}', '{"message": 7}', '{"delta": []}', "[" * 100_000]
)
def test_an_event_that_is_none_breaks_the_stream_and_nothing_else(data: str) -> None:
    with pytest.raises(ModelError) as caught:
        read(*stream("a")[:3], ("", data), *stream("a")[3:])

    assert (caught.value.reason, caught.value.kind) == ("server_error", "transient")


# -- whole replies ------------------------------------------------------------------------------


def whole(**changes: Any) -> ModelReply:
    made = fake.anthropic_body(
        "Hi", finish="end_turn", usage=fake.ANTHROPIC_USAGE, model="claude-1"
    )
    return anthropic.reply(json.dumps(made | changes).encode(), fake.REQUEST)


def test_a_whole_reply_is_read() -> None:
    usage = ModelUsage(tokens_in=11, tokens_out=3, reported=True, raw=fake.ANTHROPIC_USAGE)

    assert whole() == ModelReply(text="Hi", usage=usage, served_by="claude-1", finish="end_turn")


def test_text_is_what_the_text_blocks_say() -> None:
    blocks = [{"type": "thinking", "thinking": "x"}, *({"type": "text", "text": t} for t in "ab")]

    assert whole(content=blocks).text == "ab"


@pytest.mark.parametrize("changes", [{"content": None}, {"content": "Hi"}, {"content": [7]}])
def test_a_whole_reply_without_content_is_none(changes: dict[str, object]) -> None:
    with pytest.raises(ModelError) as caught:
        whole(**changes)

    assert caught.value.reason == "server_error"


def test_an_error_that_comes_with_a_success_is_an_error() -> None:
    with pytest.raises(ModelError, match="gone"):
        whole(type="error", error={"type": "api_error", "message": "gone"})


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {"input_tokens": 5},
        {"input_tokens": 0, "output_tokens": 0},
        {"input_tokens": 5, "output_tokens": 3, "cache_read_input_tokens": -7},
        {"input_tokens": 5, "output_tokens": 3, "cache_read_input_tokens": "7"},
        {"input_tokens": True, "output_tokens": 3},
    ],
)
def test_usage_that_cannot_be_true_is_an_estimate(usage: object) -> None:
    assert whole(usage=usage).usage.reported is False
