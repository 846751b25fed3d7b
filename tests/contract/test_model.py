"""What every model promises, tried on each backend: one attempt, a closed set of reasons, no wait.

A backend is made from what it shall do, attempt by attempt. The engine of local files is scripted
here; with the extra and a file named by TALLYSTICK_GGUF, the real one is tried as well.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
from tests.model import fake_server as fake
from tests.model.fake_server import KEY, REQUEST, TEXT, FakeServer

from tallystick.core.charge import ModelUsage
from tallystick.core.records import AskModel, ModelFailed, ModelReplied
from tallystick.model.endpoint import Dialect
from tallystick.model.gguf import GgufModel
from tallystick.model.http import HttpModel
from tallystick.model.port import (
    TRANSIENT,
    Model,
    ModelError,
    ModelReason,
    ModelReply,
    ModelRequest,
)
from tallystick.model.recorded import RecordedModel
from tallystick.model.scripted import ScriptedModel, ScriptedReply
from tallystick.testing.models import Answer, ModelDouble

# What an attempt comes to: a reply, a failure that may pass, one that stays, or no end at all.
Attempt = Literal["reply", "passing", "final", "never"]
Make = Callable[..., Model]
# Long enough for a slow machine; what is cancelled or fails must be back well before.
PROMPT_SECONDS = 5.0
SHORT = ModelRequest(messages=REQUEST.messages, tokens_out_max=8, temperature=0.0)


# -- the backends ------------------------------------------------------------------------------


def scripted(cleanup: ExitStack, attempts: tuple[Attempt, ...]) -> Model:
    lines = {
        "reply": ScriptedReply(text=TEXT),
        "passing": ScriptedReply(error="oops", reason="server_error"),
        "final": ScriptedReply(error="the key", reason="auth_failure"),
        "never": ScriptedReply(text=TEXT, delay_ms=3_600_000),
    }
    return ScriptedModel([lines[each] for each in attempts])


def recorded(cleanup: ExitStack, attempts: tuple[Attempt, ...]) -> Model:
    usage = ModelUsage(tokens_in=11, tokens_out=3, reported=True)
    replied = ModelReplied(intent=1, turn=1, text=TEXT, usage=usage)
    failed = ModelFailed(intent=1, turn=1, reason="server_error", message="oops", kind="transient")
    final = ModelFailed(intent=1, turn=1, reason="auth_failure", message="no", kind="terminal")
    came: dict[Attempt, ModelReplied | ModelFailed] = {
        "reply": replied,
        "passing": failed,
        "final": final,
    }
    asked = AskModel(intent=1, turn=1, base=None, added=(), request_sha256="")
    # What never came is not on record.
    exchanges = [(asked, came[each]) for each in attempts if each != "never"]
    return RecordedModel(exchanges, name="recorded:01", recorded_name="m")


def over_http(dialect: Dialect) -> Callable[[ExitStack, tuple[Attempt, ...]], Model]:
    behaviours = {
        "reply": fake.ok(),
        "passing": fake.status(500, "oops"),
        "final": fake.status(401, f"the key {KEY} is wrong"),
        "never": fake.stalled(),
    }

    def make(cleanup: ExitStack, attempts: tuple[Attempt, ...]) -> Model:
        server = cleanup.enter_context(FakeServer())
        server.will(*(behaviours[each] for each in attempts))
        return HttpModel(fake.endpoint(server, dialect))

    return make


class ScriptedEngine:
    """Stands in for the engine of local files. One that never ends stops when it is let go."""

    def __init__(self, attempts: tuple[Attempt, ...]) -> None:
        self._attempts = list(attempts)

    def handle_chat_completions(self, request: bytes, callback: Callable[[bytes], bool], /) -> None:
        attempt = self._attempts.pop(0)
        if attempt == "reply":
            stream = fake.openai_stream(TEXT, finish="stop", usage=fake.OPENAI_USAGE, model="m")
            for _, value in stream:
                if value != "[DONE]" and callback(json.dumps(value).encode()):
                    return
        elif attempt == "never":
            pause = threading.Event()
            while not callback(b'{"object": "chat.completion.chunk", "choices": []}'):
                pause.wait(0.001)
        else:
            code = 500 if attempt == "passing" else 401
            kind = "server_error" if attempt == "passing" else "authentication_error"
            error = {"code": code, "message": "oops", "type": kind}
            callback(json.dumps({"error": error}).encode())


def local_file(cleanup: ExitStack, attempts: tuple[Attempt, ...]) -> Model:
    engine = ScriptedEngine(attempts)
    return GgufModel(Path("some/m.gguf"), load=lambda path, context, threads: engine)


def real_file(cleanup: ExitStack, attempts: tuple[Attempt, ...]) -> Model:
    path = os.environ.get("TALLYSTICK_GGUF")
    if not path or importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("needs the extra gguf, and TALLYSTICK_GGUF to name a model's file")
    if {"passing", "final"} & set(attempts):
        pytest.skip("a real engine does not fail when it is told to")
    return GgufModel.from_file(path, context_tokens=2_048)


def double(cleanup: ExitStack, attempts: tuple[Attempt, ...]) -> Model:
    behaviours: dict[Attempt, Answer] = {
        "reply": "".join(TEXT),
        "passing": ModelError(reason="server_error", message="oops"),
        "final": ModelError(reason="auth_failure", message="no", billed=False),
        "never": None,
    }
    return ModelDouble([behaviours[each] for each in attempts])


BACKENDS: dict[str, Callable[[ExitStack, tuple[Attempt, ...]], Model]] = {
    "double": double,
    "scripted": scripted,
    "recorded": recorded,
    "http, openai": over_http("openai"),
    "http, anthropic": over_http("anthropic"),
    "gguf, scripted engine": local_file,
}


@pytest.fixture(params=[*BACKENDS, pytest.param("gguf, real", marks=pytest.mark.slow)])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes the model that shall do these things, one after the other."""
    backend = BACKENDS.get(request.param, real_file)
    with ExitStack() as cleanup:
        yield lambda *attempts: backend(cleanup, attempts)


async def ask(model: Model, heard: Callable[[str], None] = lambda text: None) -> ModelReply:
    async with asyncio.timeout(PROMPT_SECONDS * 20), model.admitted():
        return await model.ask(SHORT, heard=heard)


async def failure(model: Model) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await ask(model)
    return caught.value


async def let_go(model: Model) -> None:
    """Ask, and cancel that as soon as it waits for something."""

    async def asking() -> None:
        async with model.admitted():
            await model.ask(SHORT, heard=lambda text: None)

    task = asyncio.ensure_future(asking())
    if not isinstance(model, RecordedModel):  # Which waits for nothing, and could not be cancelled.
        await asyncio.wait([task], timeout=0.02)
        assert not task.done(), "it was not to end"
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=PROMPT_SECONDS)
    assert done, "cancelling it takes too long"
    assert task.cancelled()


def with_closed(model: Model, work: Coroutine[Any, Any, Any]) -> Any:
    """Do the work and close the model, in one loop."""

    async def main() -> Any:
        try:
            return await work
        finally:
            await model.close()

    return asyncio.run(main())


# -- what they promise -------------------------------------------------------------------------


def test_a_name_says_which_model_it_is_and_holds_no_key(make: Make) -> None:
    model = make("reply")

    assert isinstance(model.name, str)
    assert model.name
    assert model.name.isprintable()
    assert KEY not in model.name
    asyncio.run(model.close())


def test_a_reply_has_its_text_and_what_it_used(make: Make) -> None:
    model = make("reply")

    reply = with_closed(model, ask(model))

    assert isinstance(reply, ModelReply)
    assert reply.text
    assert isinstance(reply.usage, ModelUsage)
    assert reply.usage.tokens_in > 0
    assert reply.usage.tokens_out > 0


def test_every_attempt_is_asked_for_and_gets_its_own_reply(make: Make) -> None:
    model = make("reply", "reply")

    async def twice() -> list[ModelReply]:
        return [await ask(model), await ask(model)]

    first, second = with_closed(model, twice())

    assert first.text
    assert second.text


@pytest.mark.parametrize(("attempt", "kind"), [("passing", "transient"), ("final", "terminal")])
def test_a_failure_has_a_reason_of_the_closed_set_and_says_if_it_may_pass(
    make: Make, attempt: Attempt, kind: str
) -> None:
    model = make(attempt)

    error = with_closed(model, failure(model))

    assert error.reason in get_args(ModelReason)
    assert error.kind == kind
    assert (error.reason in TRANSIENT) == (kind == "transient")
    assert error.message
    assert "\n" not in error.message
    assert KEY not in f"{error} {error.message} {error!r}"
    assert error.__cause__ is None or KEY not in repr(error.__cause__)


def test_a_failure_is_one_attempt_and_the_next_may_succeed(make: Make) -> None:
    model = make("passing", "final", "reply")

    async def again() -> tuple[ModelError, ModelError, ModelReply]:
        return await failure(model), await failure(model), await ask(model)

    first, second, reply = with_closed(model, again())

    assert (first.kind, second.kind) == ("transient", "terminal")
    assert reply.text == TEXT


def test_an_attempt_that_is_cancelled_is_back_at_once_and_the_next_works(make: Make) -> None:
    model = make("never", "reply")

    async def again() -> ModelReply:
        await let_go(model)
        return await ask(model)

    assert with_closed(model, again()).text


def test_a_place_is_given_back_after_a_failure_and_after_a_cancel(make: Make) -> None:
    """Were one kept, the next would wait for ever."""
    model = make("final", "never", "final", "never", "reply")

    async def again() -> ModelReply:
        for _ in range(2):
            await failure(model)
            await let_go(model)
        async with asyncio.timeout(PROMPT_SECONDS), model.admitted():
            pass
        return await ask(model)

    assert with_closed(model, again()).text == TEXT


def test_what_is_heard_of_a_reply_is_its_text_or_nothing(make: Make) -> None:
    model = make("reply", "reply")
    told: list[str] = []

    async def listened() -> ModelReply:
        reply = await ask(model, told.append)
        await asyncio.sleep(0)
        return reply

    reply = with_closed(model, listened())

    assert "".join(told) in ("", reply.text)


def test_closing_twice_is_harmless(make: Make) -> None:
    model = make("reply")

    async def main() -> None:
        await ask(model)
        await model.close()
        await model.close()

    asyncio.run(main())


def test_a_model_that_was_never_asked_can_be_closed(make: Make) -> None:
    asyncio.run(make().close())


@pytest.mark.parametrize("backend", ["scripted", "recorded"])
def test_a_script_that_is_over_is_a_failure_like_any_other(backend: str) -> None:
    model = BACKENDS[backend](ExitStack(), ())

    error = asyncio.run(failure(model))

    assert (error.reason, error.kind) == ("unknown", "terminal")
    assert "no reply after number 0" in error.message
