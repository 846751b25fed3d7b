"""Local files: what is said of a wrong one, and how a scripted engine is let go."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.model import fake_server as fake

from tallystick.core.errors import UsageError
from tallystick.model.gguf import Engine, GgufModel
from tallystick.model.port import Heard, ModelError, ModelReply, ModelRequest


class ScriptedEngine:
    """Says chunks, and notes whether it was stopped. `hold` is waited for before the last."""

    def __init__(self, *chunks: object, hold: threading.Event | None = None) -> None:
        self.chunks = chunks
        self.hold = hold
        self.asked: list[dict[str, object]] = []
        self.said = 0

    def handle_chat_completions(self, request: bytes, callback: Callable[[bytes], bool], /) -> None:
        self.asked.append(json.loads(request))
        for number, chunk in enumerate(self.chunks, 1):
            if self.hold is not None and number == len(self.chunks):
                self.hold.wait(5)
            self.said += 1
            if callback(json.dumps(chunk).encode()):
                return


def spoken(text: str) -> list[object]:
    stream = fake.openai_stream(text, finish="stop", usage=fake.OPENAI_USAGE, model="m.gguf")
    return [value for _, value in stream if value != "[DONE]"]


def model_of(engine: Engine, *, total_seconds: float = 60.0) -> GgufModel:
    return GgufModel(
        Path("some/m.gguf"),
        total_seconds=total_seconds,
        load=lambda path, context, threads: engine,
    )


async def ask(model: GgufModel, heard: Heard = lambda text: None) -> ModelReply:
    try:
        async with model.admitted():
            return await model.ask(fake.REQUEST, heard=heard)
    finally:
        await model.close()


# -- files and the extra ------------------------------------------------------------------------


def test_a_missing_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nosuch\.gguf: No such file"):
        GgufModel.from_file(tmp_path / "nosuch.gguf")
    with pytest.raises(UsageError, match="Is a directory"):
        GgufModel.from_file(tmp_path)


@pytest.mark.parametrize("content", [b"", b"GGU", b"GGML\x00\x00", b"<html>", b"gguf"])
def test_another_kind_of_file_is_not_given_to_the_engine(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)

    with pytest.raises(UsageError, match="is not a GGUF file"):
        GgufModel.from_file(path)


def test_without_the_extra_the_error_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(UsageError, match=r"pip install 'tallystick\[gguf\]'"):
        GgufModel.from_file(path)


def test_a_file_the_engine_cannot_load_is_a_model_that_is_not_there() -> None:
    def broken(path: Path, context: int, threads: int) -> Engine:
        raise RuntimeError("Failed to init server,\nplease check")

    async def main() -> None:
        model = GgufModel(Path("m.gguf"), load=broken)
        with pytest.raises(ModelError, match="cannot be loaded") as caught:
            await ask(model)
        assert (caught.value.reason, caught.value.billed) == ("model_unavailable", False)
        assert caught.value.message.startswith("gguf:m.gguf: ")

    asyncio.run(main())


# -- asking -------------------------------------------------------------------------------------


def test_a_reply_is_put_together_and_listened_to() -> None:
    engine, told = ScriptedEngine(*spoken("Hello")), list[str]()

    async def main() -> ModelReply:
        reply = await ask(model_of(engine), told.append)
        await asyncio.sleep(0)
        return reply

    reply = asyncio.run(main())

    assert (reply.text, reply.served_by, reply.finish) == ("Hello", "m.gguf", "stop")
    assert (reply.usage.tokens_in, reply.usage.reported) == (11, True)
    assert told == list("Hello")
    (asked,) = engine.asked
    assert asked["messages"] == [{"role": "user", "content": "Say hello."}]
    assert (asked["max_tokens"], asked["stream"]) == (4_096, True)


def test_the_name_is_the_file_s_and_not_where_it_lies() -> None:
    assert GgufModel(Path("here/there/m.gguf")).name == "gguf:m.gguf"


def test_an_error_of_the_engine_has_its_reason() -> None:
    error = {"code": 400, "message": "too long", "type": "exceed_context_size_error"}

    async def main() -> ModelError:
        with pytest.raises(ModelError) as caught:
            await ask(model_of(ScriptedEngine({"error": error})))
        return caught.value

    assert asyncio.run(main()).reason == "context_overflow"


def test_a_request_the_engine_cannot_read_is_an_invalid_request() -> None:
    class Refusing:
        def handle_chat_completions(self, *given: object) -> None:
            raise ValueError("Expected 'messages' to be an array")

    async def main() -> ModelError:
        with pytest.raises(ModelError, match="Expected 'messages'") as caught:
            await ask(model_of(Refusing()))
        return caught.value

    assert asyncio.run(main()).reason == "invalid_request"


@pytest.mark.parametrize("deadline", ["its own", "another's"])
def test_a_deadline_lets_go_at_once_and_the_engine_stops_when_it_next_speaks(
    deadline: str,
) -> None:
    hold = threading.Event()
    engine = ScriptedEngine(*spoken("Hello"), hold=hold)

    async def main() -> float:
        model = model_of(engine, total_seconds=0.05 if deadline == "its own" else 60.0)
        began = time.monotonic()
        if deadline == "its own":
            with pytest.raises(ModelError, match=r"after 0\.05 s"):
                await model.ask(fake.REQUEST)
        else:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await model.ask(fake.REQUEST)
        took = time.monotonic() - began
        hold.set()
        await model.close()
        return took

    assert asyncio.run(main()) < 2.0
    assert engine.said == len(engine.chunks)


def test_after_a_request_that_was_let_go_the_next_is_served() -> None:
    hold = threading.Event()
    engine = ScriptedEngine(*spoken("Hello"), hold=hold)

    async def main() -> str:
        model = model_of(engine)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await model.ask(fake.REQUEST)
        hold.set()
        return (await ask(model)).text

    assert asyncio.run(main()) == "Hello"


def test_a_closed_model_can_be_asked_again() -> None:
    model = model_of(ScriptedEngine(*spoken("Hi")))

    assert [asyncio.run(ask(model)).text for _ in range(2)] == ["Hi", "Hi"]


@pytest.mark.slow
def test_a_real_file_answers() -> None:
    path = os.environ.get("TALLYSTICK_GGUF")
    if not path or importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("needs the extra gguf, and TALLYSTICK_GGUF to name a model's file")
    model = GgufModel.from_file(path, context_tokens=2_048)
    request = ModelRequest(messages=fake.REQUEST.messages, tokens_out_max=10, temperature=0.0)

    async def main() -> ModelReply:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await model.ask(request)
        reply = await model.ask(request)
        await model.close()
        return reply

    reply = asyncio.run(main())

    assert reply.text
    assert reply.usage.reported
    assert reply.served_by == Path(path).name
