"""Define `Session`, the name that `Agent` had in release 0.1, with its old arguments.

It goes with the next release. `docs/moved.md` says what became of each name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tallystick.agent.agent import Agent

if TYPE_CHECKING:
    from tallystick.runtime.calls.functions import RunFunction
    from tallystick.runtime.runs.result import Run


class Session(Agent):
    """An agent with the arguments of release 0.1: `functions` for tools, `schema` for the answer.

    All others are those of `Agent`.
    """

    def __init__(self, *, functions: Sequence[RunFunction] = (), **options: Any) -> None:  # noqa: ANN401
        super().__init__(tools=functions, **options)

    def run(
        self,
        goal: str,
        *,
        schema: Mapping[str, Any] | None = None,
        **options: Any,  # noqa: ANN401 (those of `Agent.run`)
    ) -> Run[Any]:
        """Run a goal as `Agent.run` does. `schema` is the JSON Schema of the answer."""
        ended: Run[Any] = super().run(goal, **{"answer": schema, **options})
        return ended

    async def arun(
        self,
        goal: str,
        *,
        schema: Mapping[str, Any] | None = None,
        **options: Any,  # noqa: ANN401 (those of `Agent.arun`)
    ) -> Run[Any]:
        """Run a goal as `Agent.arun` does. `schema` is the JSON Schema of the answer."""
        ended: Run[Any] = await super().arun(goal, **{"answer": schema, **options})
        return ended
