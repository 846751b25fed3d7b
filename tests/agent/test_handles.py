"""Runs that go on while their caller does something else: handles, and streams of events."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from typing import Any

import pytest

from tallystick import Agent, UsageError, follow
from tallystick.agent.handle import Handle
from tallystick.interop.trajectory_events import QueryComplete, SessionStart
from tallystick.ledger import MemoryLedger
from tallystick.model import ScriptedModel
from tallystick.runtime.calls.deltas import TextDelta
from tallystick.testing.models import block
from tallystick.testing.sandbox import PlainSandbox


class Paused:
    """A model that replies when it is let."""

    def __init__(self, *programs: str) -> None:
        self.go = threading.Event()
        self.asked = threading.Event()
        self._programs = list(programs)

    def __call__(self, messages: list[dict[str, str]]) -> str:
        self.asked.set()
        assert self.go.wait(30)
        return block(self._programs.pop(0))


def agent_of(model: Any) -> Agent:
    sandbox: Any = PlainSandbox()
    return Agent(model, ledger=MemoryLedger(), sandbox=sandbox, config=None)


def scripted(*programs: str) -> ScriptedModel:
    return ScriptedModel.of(*map(block, programs))


def test_a_handle_waits_follows_and_returns_the_result() -> None:
    model = Paused("FINAL([1])")
    with agent_of(model) as agent:
        handle = agent.start("x", answer=list[int], strategy="code")
        assert model.asked.wait(30)
        assert not handle.done
        assert not handle.wait(0.01)
        with pytest.raises(TimeoutError, match=f"run {handle.id} is still running after"):
            handle.result(0.01)
        model.go.set()

        assert handle.result(30).value == [1]
        assert handle.wait(0)
        events = list(handle.events())
        later = list(handle.events(after=2))

    assert isinstance(events[0], SessionStart)
    assert isinstance(events[-1], QueryComplete)
    assert later == events[2:]


def test_a_run_that_has_hardly_begun_can_be_stopped() -> None:
    model = Paused("FINAL('late')")
    with agent_of(model) as agent:
        handle = agent.start("x", strategy="code")
        handle.stop()
        model.go.set()

        assert handle.result(30).stop == "cancelled"


def test_a_timeout_inside_of_a_run_is_not_taken_for_one_of_the_wait() -> None:
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    future.set_exception(TimeoutError("the disk does not answer"))
    engine: Any = None
    handle = Handle[str](None, engine, "0199", future, lambda run: run)

    with pytest.raises(TimeoutError, match="the disk does not answer"):
        handle.result()


def test_a_run_that_is_stopped_is_cancelled_on_record_and_resumed() -> None:
    model = Paused("FINAL('late')", "FINAL('resumed')")
    with agent_of(model) as agent:
        handle = agent.start("x", strategy="code")
        assert model.asked.wait(30)

        handle.stop(by="ann")

        run = handle.result(30)
        assert run.stop == "cancelled"
        handle.stop()
        model.go.set()
        assert agent.resume(run, in_doubt="retry").answered


def test_a_request_that_is_wrong_is_refused_by_start_itself() -> None:
    with agent_of(scripted()) as agent:
        options: Any = {"max_usd": 0.5}
        with pytest.raises(UsageError, match="is a float"):
            agent.start("x", **options)
        with pytest.raises(UsageError, match="is a float"):
            agent.stream("x", **options)


def test_a_stream_has_the_events_that_follow_has_and_then_the_result() -> None:
    with agent_of(scripted("print(1)", "FINAL(2)")) as agent:
        stream = agent.stream("x", answer=int, strategy="code")
        with pytest.raises(UsageError, match="the run has not ended"):
            _ = stream.run
        seen = list(stream)

        ledger: Any = agent.ledger
        assert seen == list(follow(stream.run.id, ledger=ledger))
        assert stream.run.value == 2
        with pytest.raises(UsageError, match="it is iterated over once"):
            list(stream)


def test_deltas_come_without_a_number_and_only_if_asked_for() -> None:
    with agent_of(scripted("FINAL(2)")) as agent:
        seen = list(agent.stream("x", deltas=True, strategy="code"))

    numbered = [each.number for each in seen if not isinstance(each, TextDelta)]
    assert numbered == list(range(1, len(numbered) + 1))


def test_leaving_a_loop_early_stops_the_run_on_record() -> None:
    model = Paused("FINAL(1)")
    with agent_of(model) as agent:
        stream = agent.stream("x", strategy="code")
        for _ in stream:
            break
        run = stream.handle.result(30)
        model.go.set()

    assert run.stop == "cancelled"


def test_a_stream_is_awaited_and_its_async_tools_run_on_the_loop_of_the_caller() -> None:
    seen: list[Any] = []

    async def look(key: str) -> str:
        """Look."""
        seen.append(asyncio.get_running_loop())
        return key

    async def main() -> None:
        sandbox: Any = PlainSandbox()
        model = scripted("FINAL(look('a'))", "FINAL(look('b'))")
        async with Agent(
            model, tools=[look], ledger=MemoryLedger(), sandbox=sandbox, config=None
        ) as agent:
            stream = agent.stream("x")
            events = [event async for event in stream]
            handle = await agent.astart("x")
            assert (stream.run.value, (await handle).value) == ("a", "b")
            assert isinstance(events[-1], QueryComplete)
        assert seen == [asyncio.get_running_loop()] * 2

    asyncio.run(main())


def test_leaving_an_async_loop_early_stops_the_run_on_record() -> None:
    model = Paused("FINAL(1)")

    async def main() -> str:
        async with agent_of(model) as agent:
            stream = agent.stream("x", strategy="code")
            events = aiter(stream)
            await anext(events)
            await events.aclose()  # type: ignore[attr-defined]
            run = await stream.handle.aresult()
            model.go.set()
            return run.stop

    assert asyncio.run(main()) == "cancelled"


def test_an_error_of_a_callback_ends_the_run_and_is_raised() -> None:
    def watch(run: str, record: object) -> None:
        raise RuntimeError("my own fault")

    with agent_of(scripted("FINAL(1)")) as agent:
        with pytest.raises(RuntimeError, match="my own fault"):
            agent.run("x", watch=watch, strategy="code")
        with pytest.raises(RuntimeError, match="my own fault"):
            agent.start("x", watch=watch, strategy="code").result(30)
