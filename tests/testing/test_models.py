"""The model double: scripts, usage, failures, hooks, admission and lookup."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tallystick.core.machine.prompt import Message
from tallystick.core.views.open_calls import NOT_RECEIVED, UNKNOWN
from tallystick.model.port import ModelError, ModelReply, ModelRequest, window_of
from tallystick.testing.models import (
    NANO_IN,
    NANO_OUT,
    ModelCall,
    ModelDouble,
    Pauses,
    block,
    by_prompt,
    each_turn,
    first,
    four_bytes,
    programs,
    reported,
    when_set,
)

FAILURE = ModelError(reason="server_error", message="later")


def of_program(prompt: str, key: str = "") -> ModelRequest:
    return ModelRequest(messages=(Message(role="user", part="p", text=prompt),), key=key)


def of_run(*replies: str) -> ModelRequest:
    """A request for the next program of a run that has these replies."""
    said = [Message(role="assistant", part="p", text=each) for each in replies]
    system = Message(role="system", part="p", text="rules")
    return ModelRequest(messages=(system, *said, Message(role="user", part="p", text="go on")))


def ask(model: ModelDouble, request: ModelRequest) -> ModelReply:
    return asyncio.run(model.ask(request))


def texts(model: ModelDouble, *requests: ModelRequest) -> list[str]:
    return [ask(model, each).text for each in requests]


def test_one_answer_is_given_to_each_call() -> None:
    assert texts(ModelDouble("yes"), of_run(), of_program("?")) == ["yes", "yes"]


def test_a_list_is_answered_in_its_order_and_then_fails() -> None:
    model = ModelDouble(["one", FAILURE, "two"])

    assert ask(model, of_run()).text == "one"
    with pytest.raises(ModelError, match="later"):
        ask(model, of_run())
    assert ask(model, of_run()).text == "two"
    with pytest.raises(ModelError, match="no answer after number 3"):
        ask(model, of_run())


def test_a_function_sees_the_call_its_number_and_its_turn() -> None:
    seen: list[ModelCall] = []

    def answer(call: ModelCall) -> str:
        seen.append(call)
        return str(call.number)

    model = ModelDouble(answer)

    assert texts(model, of_run(), of_run("a", "b"), of_program("what?")) == ["0", "1", "2"]
    assert [each.turn for each in seen] == [0, 2, 0]
    assert [each.by_program for each in seen] == [False, False, True]
    assert seen[2].prompt == seen[2].text == "what?"


def test_an_answer_may_be_awaited() -> None:
    async def answer(call: ModelCall) -> str:
        await asyncio.sleep(0)
        return call.prompt

    assert texts(ModelDouble(answer), of_program("later")) == ["later"]


def test_programs_have_a_script_of_their_own() -> None:
    model = ModelDouble(programs("a = 1", "FINAL(a)"), queries=by_prompt(str.upper))

    said = texts(model, of_run(), of_program("x"), of_run("first"))

    assert said == [block("a = 1"), "X", block("FINAL(a)")]
    assert (model.queried, model.turns) == (["x"], 2)


def test_the_first_answers_come_before_another_script() -> None:
    model = ModelDouble(first(["once"], by_prompt(str.upper)))

    assert texts(model, of_program("a"), of_program("b")) == ["once", "B"]


def test_usage_is_a_token_for_four_bytes_and_never_above_the_cap() -> None:
    request = of_program("x" * 40)
    model = ModelDouble("é" * 10)

    used = ask(model, request).usage
    call = ModelCall(ModelRequest(messages=request.messages, tokens_out_max=3), 0)

    assert (used.tokens_in, used.tokens_out, used.reported) == (10, 5, True)
    assert four_bytes(call, "y" * 4_000).tokens_out == 3
    assert model.billed == 10 * NANO_IN + 5 * NANO_OUT


def test_usage_can_be_given_for_all_calls_or_for_turns_alone() -> None:
    every = ModelDouble(usage=reported(7, 8))
    turns = ModelDouble(usage=each_turn(7, 8))

    assert ask(every, of_program("x")).usage == ask(turns, of_run()).usage == reported(7, 8)
    assert ask(turns, of_program("x" * 8)).usage == reported(2, 1)


def test_a_whole_reply_is_given_and_billed_as_it_is() -> None:
    reply = ModelReply(text="cut", usage=reported(1, 1), cut=True)
    model = ModelDouble(reply)

    assert ask(model, of_run()) == reply
    assert model.billed == NANO_IN + NANO_OUT


def test_failures_come_first_and_are_not_billed() -> None:
    model = ModelDouble(failures=[FAILURE, KeyError("broken")])

    for kind in (ModelError, KeyError):
        with pytest.raises(kind):
            ask(model, of_run())
    assert model.billed == 0
    assert ask(model, of_run()).text == "ok"
    assert len(model.asked) == 3


def test_a_call_that_is_never_answered_is_counted_and_can_be_cancelled() -> None:
    model = ModelDouble(None)

    async def scenario() -> None:
        asked = asyncio.ensure_future(model.ask(of_run()))
        assert await asyncio.to_thread(model.wait_until_hung)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked

    asyncio.run(scenario())
    assert not model.wait_until_hung(seconds=0)


def test_a_hook_waits_for_an_event_or_stops_each_call() -> None:
    event, pauses = threading.Event(), Pauses()
    waits, stops = ModelDouble(before=when_set(event)), ModelDouble(before=pauses)

    async def scenario() -> None:
        for model, allow in ((waits, event.set), (stops, pauses.allow)):
            asked = asyncio.ensure_future(model.ask(of_run()))
            assert await asyncio.to_thread(model.begun.wait, 20)
            assert not asked.done()
            allow()
            assert (await asked).text == "ok"

    asyncio.run(scenario())
    assert pauses.wait()


def test_only_so_many_calls_are_admitted_at_once() -> None:
    model = ModelDouble(delay=0.001, places=2)

    async def call() -> None:
        async with model.admitted():
            await model.ask(of_run())

    async def scenario() -> None:
        await asyncio.gather(*(call() for _ in range(6)))

    asyncio.run(scenario())
    assert (model.most_at_once, model.admitted_count, model.waiting) == (2, 6, 0)


def test_a_call_may_wait_for_ever_to_be_admitted() -> None:
    model = ModelDouble()
    model.admit = lambda before: model.hang() if before else None

    async def scenario() -> None:
        async with model.admitted():
            pass
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), model.admitted():
                raise AssertionError

    asyncio.run(scenario())
    assert (model.admitted_count, model.waiting) == (1, 0)


def test_only_a_model_that_was_given_a_lookup_has_one() -> None:
    plain, known = ModelDouble(), ModelDouble()
    known.lookup_reply = lambda key: known.replies.get(key, NOT_RECEIVED)
    reply = ask(known, of_program("x", key="run-1"))

    assert not hasattr(plain, "lookup")
    lookup = known.lookup
    assert asyncio.run(lookup("run-1")) == reply  # type: ignore[operator]
    assert asyncio.run(lookup("run-2")) is NOT_RECEIVED  # type: ignore[operator]
    assert known.looked_up == ["run-1", "run-2"]
    assert NOT_RECEIVED is not UNKNOWN


def test_what_was_asked_is_kept() -> None:
    model = ModelDouble(window=9)
    request = ModelRequest(
        messages=of_run().messages, tokens_out_max=5, temperature=0.5, key="run-3"
    )
    ask(model, request)

    assert (model.asked, model.prompts) == (["go on"], ["rules\n\ngo on"])
    assert (model.keys, model.caps, model.temperatures) == (["run-3"], [5], [0.5])
    assert window_of(model) == 9
    assert window_of(ModelDouble()) is None
