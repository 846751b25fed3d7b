"""A conversation: runs in one session, each of which is told what the earlier ones were asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

from tallystick.agent.options import RunOptions

if TYPE_CHECKING:
    from typing import Unpack

    from typing_extensions import TypeForm

    from tallystick.agent.agent import Agent
    from tallystick.runtime.runs.result import Run

T = TypeVar("T")


class Chat:
    """A conversation with an agent. Its programs find the variables that earlier ones left.

    The prompt of each run has the earlier questions with their answers, the last 20 at most. It is
    a session of the ledger, so it outlives this object: `Agent.chat(chat.session)` continues it,
    in another process too if the ledger is a file.
    """

    def __init__(self, agent: Agent, session: str | None, options: Mapping[str, Any]) -> None:
        self._agent = agent
        self._options = options
        self._named = session
        self._session: str | None = None

    @property
    def session(self) -> str:
        """The id of its session. The first use makes or finds it.

        Then it raises what `Sessions.find` does; for a new one, `SessionsFull`.
        """
        if self._session is None:
            sessions = self._agent.sessions
            found = sessions.new().id if self._named is None else sessions.find(self._named)
            self._session = found
        return self._session

    @overload
    def run(self, goal: str, *, answer: None = None, **options: Unpack[RunOptions]) -> Run[str]: ...
    @overload
    def run(self, goal: str, *, answer: TypeForm[T], **options: Unpack[RunOptions]) -> Run[T]: ...
    @overload
    def run(
        self, goal: str, *, answer: Mapping[str, Any], **options: Unpack[RunOptions]
    ) -> Run[Any]: ...
    def run(self, goal: str, *, answer: Any = None, **options: Unpack[RunOptions]) -> Run[Any]:
        """Ask the next question, and return its run. Raise what `Agent.run` raises.

        Raise `SessionBusy` while an earlier question is being answered.
        """
        ended: Run[Any] = self._agent.run(goal, answer=answer, **self._with(options))
        return ended

    @overload
    async def arun(
        self, goal: str, *, answer: None = None, **options: Unpack[RunOptions]
    ) -> Run[str]: ...
    @overload
    async def arun(
        self, goal: str, *, answer: TypeForm[T], **options: Unpack[RunOptions]
    ) -> Run[T]: ...
    @overload
    async def arun(
        self, goal: str, *, answer: Mapping[str, Any], **options: Unpack[RunOptions]
    ) -> Run[Any]: ...
    async def arun(
        self,
        goal: str,
        *,
        answer: Any = None,
        **options: Unpack[RunOptions],
    ) -> Run[Any]:
        """Ask the next question as `run` does, for callers that await."""
        ended: Run[Any] = await self._agent.arun(goal, answer=answer, **self._with(options))
        return ended

    def _with(self, options: Mapping[str, Any]) -> Any:  # noqa: ANN401 (options of a run)
        """Return the options of a run in the session, which is reopened if its time was over.

        `options` replace those of the conversation. Raise what `Sessions.resume` raises.
        """
        self._agent.sessions.resume(self.session)
        return {**self._options, **options, "session": self.session}
