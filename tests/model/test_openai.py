"""The chat completions format: what is sent, and what is made of what comes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.model import fake_server as fake

from tallystick.core.charge import ModelUsage
from tallystick.core.machine.prompt import Image, Message
from tallystick.core.records import ModelReplied, encode_record
from tallystick.model import openai
from tallystick.model.dialect import SseDecoder
from tallystick.model.endpoint import Endpoint, Secret
from tallystick.model.port import ModelError, ModelReply, ModelRequest

LOCAL = Endpoint(provider="local", dialect="openai", base_url="http://127.0.0.1:1/v1", model="m")
OPENAI = Endpoint(
    provider="openai", dialect="openai", base_url="https://api.openai.com/v1", model="gpt-x"
)
PICTURE = Image(media_type="image/png", data=b"\x89PNG")


def body_of(endpoint: Endpoint, request: ModelRequest) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(openai.wire(endpoint, request).body)
    return said


def read(*events: tuple[str, object], request: ModelRequest = fake.REQUEST) -> ModelReply:
    """Read a stream to its clean end."""
    decoder, reader = SseDecoder(), openai.reader(request)
    for piece in fake.events(events):
        for event in decoder.feed(piece):
            reader.feed(event)
    return reader.finish()


def delta(text: object, finish: object = None, **more: object) -> tuple[str, object]:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return "", {"choices": [{**choice, **more}]}


DONE = ("", "[DONE]")


# -- what is sent -------------------------------------------------------------------------------


def test_a_request_says_what_is_asked_and_no_more() -> None:
    assert body_of(LOCAL, ModelRequest(messages=fake.REQUEST.messages, tokens_out_max=7)) == {
        "model": "m",
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": 7,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_only_openai_itself_is_told_of_completion_tokens() -> None:
    assert "max_completion_tokens" in body_of(OPENAI, fake.REQUEST)
    assert "max_tokens" not in body_of(OPENAI, fake.REQUEST)
    assert "max_completion_tokens" not in body_of(LOCAL, fake.REQUEST)


def test_temperature_is_sent_when_it_is_set_also_if_it_is_zero() -> None:
    request = ModelRequest(messages=fake.REQUEST.messages, temperature=0.0)

    assert body_of(LOCAL, request)["temperature"] == 0.0
    assert "temperature" not in body_of(LOCAL, fake.REQUEST)


def test_pictures_go_as_data_urls_behind_the_text() -> None:
    said = Message(role="user", part="task", text="Look.", images=(PICTURE, PICTURE))

    content = body_of(LOCAL, ModelRequest(messages=(said,)))["messages"][0]["content"]

    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}}
    assert content == [{"type": "text", "text": "Look."}, picture, picture]


def test_a_picture_in_another_role_is_refused_before_anything_is_sent() -> None:
    said = Message(role="system", part="system", text="Look.", images=(PICTURE,))

    with pytest.raises(ModelError, match="put them into a user message") as caught:
        openai.wire(LOCAL, ModelRequest(messages=(said,)))

    assert caught.value.billed is False


def test_the_key_goes_as_a_bearer() -> None:
    assert openai.authorization(Secret("k1")) == ("authorization", "Bearer k1")


# -- streams ------------------------------------------------------------------------------------


def test_a_stream_is_put_together() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "odd": {"deep": [1, None]}}

    reply = read(
        delta(""),
        delta("Hel"),
        delta("lo"),
        delta(None, "stop"),
        ("", {"choices": [], "usage": usage, "model": "gpt-x-2026"}),
        DONE,
    )

    assert reply == ModelReply(
        text="Hello",
        usage=ModelUsage(tokens_in=9, tokens_out=2, reported=True, raw=usage),
        served_by="gpt-x-2026",
        finish="stop",
    )


def test_a_finish_reason_before_a_clean_end_is_an_end_and_done_without_one_is_too() -> None:
    assert read(delta("a", "stop")).text == "a"
    assert read(delta("a"), DONE).finish == ""


def test_a_stream_without_an_end_marker_is_not_a_reply() -> None:
    with pytest.raises(ModelError, match="without its end marker") as caught:
        read(delta("a"), delta("b"))

    assert (caught.value.reason, caught.value.billed) == ("network_error", True)


def test_a_stream_of_nothing_but_its_end_is_not_a_reply() -> None:
    with pytest.raises(ModelError, match="no choices"):
        read(DONE)


def test_what_comes_after_the_end_is_not_read() -> None:
    assert read(delta("a", "stop"), DONE, ("", "rubbish"), delta("b")).text == "a"


def test_length_is_a_cut_reply() -> None:
    assert read(delta("a"), delta("", "length"), DONE).cut is True


@pytest.mark.parametrize(
    "event",
    [
        ("", {"choices": []}),
        ("", {"choices": None}),
        ("", {}),
        ("", {"object": "something.new", "choices": [{}]}),
        ("", {"choices": [{"index": 1, "delta": {"content": "other"}}]}),
        ("", {"choices": [{"delta": {"reasoning_content": "hmm", "reasoning": "hmm"}}]}),
        ("", {"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]}),
        ("", {"choices": [{"delta": None, "finish_reason": None}]}),
        ("", {"choices": [], "usage": None}),
        ("ping", ""),
    ],
)
def test_what_is_none_of_our_business_is_passed_over(event: tuple[str, object]) -> None:
    assert read(event, delta("a"), event, delta("b", "stop"), event, DONE).text == "ab"


def test_content_may_come_in_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "thinking"}, {"type": "text", "text": None}]

    assert read(delta(parts, "stop")).text == "a"


@pytest.mark.parametrize(
    "data",
    [
        "{",
        "null",
        "7",
        '"text"',
        "[]",
        '{"choices": 7}',
        '{"choices": [7]}',
        '{"choices": [{"delta": "a"}]}',
        '{"choices": [{"delta": {"content": 7}}]}',
        '{"choices": [{"delta": {"content": [7]}}]}',
        "[" * 100_000,
    ],
)
def test_an_event_that_is_none_breaks_the_stream_and_nothing_else(data: str) -> None:
    with pytest.raises(ModelError) as caught:
        read(delta("a"), ("", data), delta("b", "stop"), DONE)

    assert (caught.value.reason, caught.value.kind) == ("server_error", "transient")


def test_half_a_character_spoils_no_reply() -> None:
    """A pair of surrogates cut into two events is joined; a lone half and a bad byte replaced."""
    decoder, reader = SseDecoder(), openai.reader(fake.REQUEST)
    stream = b"".join(
        b'data: {"choices": [{"delta": {"content": "%s"}}]}\n\n' % content
        for content in (b"\\ud83d", b"\\ude00", b"\\ud83d!", b"\xff.")
    )
    for event in decoder.feed(stream + b"data: [DONE]\n\n"):
        reader.feed(event)

    reply = reader.finish()

    assert reply.text == "\N{GRINNING FACE}\N{REPLACEMENT CHARACTER}!\N{REPLACEMENT CHARACTER}."
    encode_record(ModelReplied(intent=1, turn=1, text=reply.text, usage=reply.usage))


def test_an_error_in_a_stream_ends_it() -> None:
    error = {"message": "engine died", "code": 502}

    with pytest.raises(ModelError, match="engine died"):
        read(delta("a"), ("", {"error": error, "choices": [{"finish_reason": "error"}]}))
    with pytest.raises(ModelError, match="finish_reason error"):
        read(delta("a", "error"), DONE)


@pytest.mark.parametrize(
    "events",
    [
        [delta(""), delta("", "content_filter")],
        [("", {"choices": [{"delta": {"refusal": "I can't"}, "finish_reason": "stop"}]})],
    ],
)
def test_a_filtered_reply_is_a_failure_that_knows_what_it_cost(
    events: list[tuple[str, object]],
) -> None:
    with pytest.raises(ModelError) as caught:
        read(*events, ("", {"choices": [], "usage": fake.OPENAI_USAGE}), DONE)

    assert (caught.value.reason, caught.value.kind) == ("content_policy", "terminal")
    assert caught.value.usage is not None
    assert caught.value.usage.tokens_in == 11


# -- whole replies ------------------------------------------------------------------------------


def whole(**changes: Any) -> ModelReply:
    made = fake.openai_body("Hi", finish="stop", usage=fake.OPENAI_USAGE, model="m-1")
    return openai.reply(json.dumps(made | changes).encode(), fake.REQUEST)


def test_a_whole_reply_is_read() -> None:
    usage = ModelUsage(tokens_in=11, tokens_out=3, reported=True, raw=fake.OPENAI_USAGE)

    assert whole() == ModelReply(text="Hi", usage=usage, served_by="m-1", finish="stop")


def test_a_whole_reply_may_have_no_text() -> None:
    message = {"message": {"role": "assistant", "content": None}, "finish_reason": "stop"}

    assert whole(choices=[message]).text == ""


@pytest.mark.parametrize("choices", [[], None, 7, [{"message": 7}]])
def test_a_whole_reply_without_choices_is_none(choices: object) -> None:
    with pytest.raises(ModelError) as caught:
        whole(choices=choices)

    assert caught.value.reason == "server_error"


# -- usage --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        [],
        "many",
        7,
        {"prompt_tokens": 11},
        {"completion_tokens": 3},
        {"prompt_tokens": 0, "completion_tokens": 0},
        {"prompt_tokens": 0, "completion_tokens": 3},
        {"prompt_tokens": 11, "completion_tokens": 0},
        {"prompt_tokens": -1, "completion_tokens": 3},
        {"prompt_tokens": 11, "completion_tokens": -3},
        {"prompt_tokens": 11.5, "completion_tokens": 3},
        {"prompt_tokens": "11", "completion_tokens": "3"},
        {"prompt_tokens": True, "completion_tokens": True},
        {"prompt_tokens": None, "completion_tokens": None},
        {"prompt_tokens": 10**30, "completion_tokens": 3},
        {"prompt_tokens": {"n": 1}, "completion_tokens": [3]},
    ],
)
def test_usage_that_cannot_be_true_is_an_estimate_that_keeps_what_was_said(usage: object) -> None:
    reply = whole(usage=usage)

    assert reply.usage.reported is False
    assert reply.usage.tokens_in > 0
    assert reply.usage.tokens_out > 0
    assert reply.usage.raw == (usage if isinstance(usage, dict) else {})
    encode_record(ModelReplied(intent=1, turn=1, text=reply.text, usage=reply.usage))


@pytest.mark.parametrize("last", [{"content": "b"}, {"content": ""}])
def test_usage_that_a_stream_reports_before_its_end_is_not_a_report(last: object) -> None:
    events = [
        ("", {"choices": [{"index": 0, "delta": {"content": "a"}}], "usage": fake.OPENAI_USAGE}),
        ("", {"choices": [{"index": 0, "delta": last, "finish_reason": "stop"}], "usage": None}),
        DONE,
    ]

    usage = read(*events).usage

    assert usage.reported is False
    assert usage.raw == fake.OPENAI_USAGE


def test_usage_that_comes_with_every_piece_of_a_stream_counts_with_the_last() -> None:
    later = {**fake.OPENAI_USAGE, "completion_tokens": 8}
    events = [
        ("", {"choices": [{"index": 0, "delta": {"content": "a"}}], "usage": fake.OPENAI_USAGE}),
        (
            "",
            {
                "choices": [{"index": 0, "delta": {"content": "b"}, "finish_reason": "stop"}],
                "usage": later,
            },
        ),
        DONE,
    ]

    usage = read(*events).usage

    assert (usage.reported, usage.tokens_out) == (True, 8)


def test_a_report_of_usage_without_end_is_not_kept() -> None:
    reply = whole(usage={**fake.OPENAI_USAGE, "more": "x" * 100_000})

    assert (reply.usage.reported, reply.usage.raw) == (False, {})
