"""Whatever a server says back, and however it spells it, the key is in nothing that comes out."""

from __future__ import annotations

import base64
import json
import string
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.model import fake_server as fake
from tests.model.fake_server import DIALECTS, Behaviour, FakeServer, Seen, Step, endpoint, replied

from tallystick.core.records import ModelFailed, ModelReplied, encode_record
from tallystick.model.endpoint import Dialect, Secret
from tallystick.model.port import ModelError, ModelReply

pytestmark = pytest.mark.slow

PART = 8
# Letter by letter: whole words would be tried from this package's own texts, and met in them.
KEYS = st.lists(
    st.sampled_from(string.ascii_letters + string.digits + "-_./+=%~"), min_size=16, max_size=60
).map("".join)
# Of no character that a key has: what stands around it must stay.
BESIDE = st.text(" \n\u00e4\u4e2d!?", max_size=30)
AROUND = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=30)


@dataclass(frozen=True)
class Echo:
    """What a server says of a key: a spelling of it, or of a part, with something around it."""

    key: str
    said: str


def _base64(key: str, before: str) -> str:
    return base64.b64encode(f"{before}{key}".encode()).decode()


SPELLINGS: dict[str, Callable[[str, int], str]] = {
    "as it is": lambda key, at: key,
    "as a bearer": lambda key, at: f"Bearer {key}",
    "the beginning": lambda key, at: f"{key[: PART + at]}***",
    "the end": lambda key, at: f"***{key[-PART - at :]}",
    "in capitals": lambda key, at: key.upper(),
    "percent-encoded": lambda key, at: quote(key, safe=""),
    "base64": lambda key, at: _base64(key, ""),
    "base64 of more": lambda key, at: _base64(key, "user:" + "x" * (at % 3)) + "tail",
    "hex": lambda key, at: key.encode().hex(),
    "twice": lambda key, at: key + key[at % PART :],
    "with control characters": lambda key, at: "\u200b".join(key),
}


@st.composite
def echoes(draw: st.DrawFn) -> Echo:
    key = draw(KEYS)
    spelled = SPELLINGS[draw(st.sampled_from(sorted(SPELLINGS)))](key, draw(st.integers(0, 7)))
    return Echo(key, f"{draw(AROUND)}{spelled}{draw(AROUND)}")


def _header(text: str) -> str:
    return text.encode("ascii", "ignore").decode().translate({each: None for each in range(32)})


def _raw(status: str, data: bytes, *headers: str) -> Behaviour:
    """Headers as they are, which may be anything."""

    def steps(seen: Seen) -> Iterable[Step]:
        lines = [f"HTTP/1.1 {status}", f"content-length: {len(data)}", *headers, "", ""]
        yield "\r\n".join(lines).encode() + data

    return steps


def _error(said: str) -> bytes:
    return json.dumps({"error": {"message": said, "type": said, "code": said}}).encode()


def _cased(said: str, **more: object) -> bytes:
    """A reply of either format that says it everywhere."""
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "input_tokens": 1, "output_tokens": 1}
    made = {
        "choices": [{"message": {"content": "Hi"}, "finish_reason": said}],
        "type": "message",
        "content": [{"type": "text", "text": "Hi"}],
        "stop_reason": said,
        "model": said,
        "usage": {**usage, said: said, "deep": [{"a": said}]},
    }
    return json.dumps(made | more).encode()


JSON = "content-type: application/json"
PLACES: dict[str, Callable[[str], Behaviour]] = {
    "400": lambda said: fake.status(400, said),
    "401 names": lambda said: _raw("401 No", _error(said), JSON),
    "403 text": lambda said: _raw("403 No", said.encode(), "content-type: text/plain"),
    "404 detail": lambda said: _raw("404 No", json.dumps({"detail": said}).encode(), JSON),
    "429": lambda said: _raw("429 No", _error(said), JSON, f"retry-after: {_header(said)}"),
    "500": lambda said: fake.status(500, said),
    "html": lambda said: _raw("502 No", f"<p>{said}".encode(), "content-type: text/html"),
    "phrase": lambda said: _raw(f"500 {_header(said)}", b"", JSON),
    "status line": lambda said: _raw(f"{_header(said)} OK", b""),
    "header": lambda said: _raw("200 OK", _cased("stop"), JSON, f"x-{_header(said)}: 1"),
    "redirect": lambda said: _raw("302 No", b"", f"location: https://{_header(said)}/a"),
    "content type": lambda said: _raw("200 OK", b"x", f"content-type: {_header(said)}/x"),
    "encoding": lambda said: _raw("200 OK", b"x", f"content-encoding: {_header(said)}", JSON),
    "broken JSON": lambda said: _raw("200 OK", said.encode(), JSON),
    "shape": lambda said: _raw("200 OK", json.dumps({"choices": said}).encode(), JSON),
    "error in a success": lambda said: _raw("200 OK", _error(said), JSON),
    "error in a stream": lambda said: fake.in_stream({"type": said, "message": said}),
    "everywhere in a reply": lambda said: _raw("200 OK", _cased(said), JSON),
    "model of a stream": lambda said: fake.ok(model=said, finish=said),
    "usage of a stream": lambda said: fake.ok(usage={said: said}),
}


def shown(where: Callable[[], ModelReply]) -> tuple[str, str]:
    """All that can be seen of an attempt, and the text of its reply."""
    try:
        reply = where()
    except ModelError as error:
        record = ModelFailed(
            intent=1, turn=1, reason=error.reason, message=error.message, usage=error.usage
        )
        seen = [str(error), repr(error), *traceback.format_exception(error)]
        return "\n".join([*seen, encode_record(record).decode()]), ""
    replied = ModelReplied(
        intent=1,
        turn=1,
        text="",
        usage=reply.usage,
        served_by=reply.served_by,
        finish=reply.finish,
    )
    return encode_record(replied).decode(), reply.text


def parts_in(text: str, key: str) -> list[str]:
    """Parts of the key that can be read in a text, in any spelling that is known here."""
    lowered = text.lower()
    spelled = {key, quote(key, safe=""), key.encode().hex(), _base64(key, "")[:-4]}
    return [
        each[at : at + PART]
        for each in spelled
        for at in range(len(each) - PART + 1)
        if each[at : at + PART].lower() in lowered
    ]


@pytest.fixture(scope="module")
def echoing() -> Iterator[FakeServer]:
    with FakeServer() as running:
        yield running


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("place", PLACES)
@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(echo=echoes())
def test_no_part_of_a_key_that_a_server_echoes_is_shown(
    echoing: FakeServer, dialect: Dialect, place: str, echo: Echo
) -> None:
    echoing.always(PLACES[place](echo.said))
    where = endpoint(echoing, dialect, key=Secret(echo.key))

    seen, _ = shown(lambda: replied(where))

    assert echoing.seen[-1].key == echo.key
    assert parts_in(seen, echo.key) == []


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("stream", [True, False])
@settings(max_examples=25)
@given(key=KEYS, before=BESIDE, after=BESIDE)
def test_a_key_in_the_text_of_a_reply_is_taken_out_of_it(
    echoing: FakeServer, dialect: Dialect, stream: bool, key: str, before: str, after: str
) -> None:
    said = f"{before}{key} {quote(key, safe='')}{after}"
    echoing.always(fake.ok(said, usage={}))

    _, text = shown(lambda: replied(endpoint(echoing, dialect, key=Secret(key), stream=stream)))

    assert key not in text
    assert quote(key, safe="") not in text
    assert text.startswith(before)
    assert text.endswith(after)


def test_the_property_would_notice_a_leak(echoing: FakeServer) -> None:
    echoing.always(fake.status(500, f"no {fake.KEY}"))

    seen, _ = shown(lambda: replied(endpoint(echoing, key=Secret("another-key-altogether"))))

    assert parts_in(seen, fake.KEY)
