"""Run one goal with an agent of its own, in one line: `tallystick.run` and `tallystick.arun`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

from tallystick.agent.agent import Agent
from tallystick.agent.handle import Stream
from tallystick.agent.options import RunOptions, check_options, shows

if TYPE_CHECKING:
    from typing import Unpack

    from typing_extensions import TypeForm

    from tallystick.ledger.port import Ledger
    from tallystick.memory.memory import Memory
    from tallystick.runtime.runs.result import Run

T = TypeVar("T")


class QuickOptions(RunOptions, total=False):
    """The options of one run with an agent of its own: those of a run, and some of an agent.

    - `tools`: functions that programs may call
    - `memory`: a memory, or the name of one
    - `ledger`: where the run is recorded; without it, that is the user's ledger
    """

    tools: Iterable[object] | None
    memory: Memory | str | None
    ledger: Ledger | str | os.PathLike[str] | None


@overload
def run(goal: str, *, answer: None = None, **options: Unpack[QuickOptions]) -> Run[str]: ...
@overload
def run(goal: str, *, answer: TypeForm[T], **options: Unpack[QuickOptions]) -> Run[T]: ...
@overload
def run(goal: str, *, answer: Mapping[str, Any], **options: Unpack[QuickOptions]) -> Run[Any]: ...
@shows(QuickOptions)
def run(goal: str, *, answer: Any = None, **options: Unpack[QuickOptions]) -> Run[Any]:
    """Run a goal to its end with an agent of its own, and return the result.

    `answer` and the options are those of `Agent.run`, with `tools`, `memory` and `ledger` of the
    agent. Several runs are cheaper with one `Agent`, and share its budget.
    """
    agent, given = _agent_of(options, of="run")
    with agent:
        ended: Run[Any] = agent.run(goal, answer=answer, **given)
    return ended


@overload
async def arun(goal: str, *, answer: None = None, **options: Unpack[QuickOptions]) -> Run[str]: ...
@overload
async def arun(goal: str, *, answer: TypeForm[T], **options: Unpack[QuickOptions]) -> Run[T]: ...
@overload
async def arun(
    goal: str, *, answer: Mapping[str, Any], **options: Unpack[QuickOptions]
) -> Run[Any]: ...
@shows(QuickOptions)
async def arun(goal: str, *, answer: Any = None, **options: Unpack[QuickOptions]) -> Run[Any]:
    """Run a goal as `run` does, for callers that await. Async tools run on their loop."""
    agent, given = _agent_of(options, of="arun")
    async with agent:
        ended: Run[Any] = await agent.arun(goal, answer=answer, **given)
    return ended


@overload
def stream(
    goal: str, *, answer: None = None, deltas: bool = False, **options: Unpack[QuickOptions]
) -> Stream[str]: ...
@overload
def stream(
    goal: str, *, answer: TypeForm[T], deltas: bool = False, **options: Unpack[QuickOptions]
) -> Stream[T]: ...
@overload
def stream(
    goal: str, *, answer: Mapping[str, Any], deltas: bool = False, **options: Unpack[QuickOptions]
) -> Stream[Any]: ...
@shows(QuickOptions)
def stream(
    goal: str, *, answer: Any = None, deltas: bool = False, **options: Unpack[QuickOptions]
) -> Stream[Any]:
    """Return the events of a new run, with an agent of its own, as `Agent.stream` does."""
    # The stream holds the agent, which is closed with it.
    agent, given = _agent_of(options, of="stream")
    made: Stream[Any] = agent.stream(goal, answer=answer, deltas=deltas, **given)
    return made


def _agent_of(options: Mapping[str, Any], *, of: str) -> tuple[Agent, Any]:
    given = check_options(options, QuickOptions, of=of)
    agent = Agent(
        given.pop("model", None),
        tools=given.pop("tools", ()),
        memory=given.pop("memory", None),
        ledger=given.pop("ledger", None),
    )
    return agent, given
