"""The desk of a run that is gone on with: recorded calls are served, open ones decided."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from tallystick.core.records import DOUBTED, QueryAsked, QueryFailed, QueryRefused, QueryReplied
from tallystick.model.port import ModelReply
from tallystick.runtime.desk import LiveDesk, Written
from tallystick.runtime.doubts import Decision, Decisions
from tallystick.runtime.queries import QueryDesk, QueryPlace, QueryRequest
from tallystick.runtime.recorded_desk import RecordedDesk
from tallystick.runtime.settled_doubt import settled_doubt
from tallystick.runtime.so_far import spent_by
from tallystick.runtime.teller import Teller, Terms

__all__ = ["ResumingDesk"]


class ResumingDesk:
    """Serves the model calls of programs, before and after the place where the run was cut off."""

    def __init__(
        self,
        *,
        recorded: RecordedDesk,
        live: LiveDesk,
        decisions: Decisions,
        teller: Teller,
        terms_of: Callable[[str], Terms],
    ) -> None:
        self._recorded = recorded
        self._live = live
        self._decisions = decisions
        self._teller = teller
        self._terms_of = terms_of

    @property
    def written(self) -> Written | None:
        return self._live.written

    @written.setter
    def written(self, written: Written | None) -> None:
        self._live.written = self._recorded.written = written

    async def begin(self, requests: Sequence[QueryRequest], *, whole: bool) -> None:
        if self._recorded.refused_whole(requests[0].place):
            await self._recorded.begin(requests, whole=whole)
        if not any(self._recorded.knows(each) for each in requests):
            await self._live.begin(requests, whole=whole)
        # One that was begun is not refused as a whole any more: the rest of it pays by item.

    async def ask(self, request: QueryRequest) -> QueryReplied | QueryFailed | QueryRefused:
        asked, ended = self._recorded.found(request)
        if ended is not None:
            if asked is not None and not isinstance(ended, QueryRefused):
                self._teller.recalled(asked.model, spent_by(ended))
            return await self._recorded.ask(request)
        if asked is None:
            return await self._live.ask(request)
        assert self.written is not None
        await self.written.asked(self._recorded.again(request, asked))
        event = self._doubted(request, asked)
        await self.written.ended(event)
        found = self._decisions.paid[asked.intent, asked.item]
        if isinstance(event, QueryReplied) and isinstance(found, ModelReply):
            # A long one is kept apart, and is not in the event.
            return msgspec.structs.replace(event, text=found.text)
        return event

    def let_go(self, place: QueryPlace) -> None:
        self._live.let_go(place)

    def _doubted(self, request: QueryRequest, asked: QueryAsked) -> QueryReplied | QueryFailed:
        found = self._decisions.paid[asked.intent, asked.item]
        settled, failure = settled_doubt(
            self._teller, self._terms_of(asked.model), asked.reserved, found
        )
        if isinstance(found, ModelReply):
            return self._live.replied(request, found, settled, wall_ms=0)
        return QueryFailed(
            intent=asked.intent,
            item=asked.item,
            attempt=asked.attempt,
            reason=DOUBTED,
            message=failure,
            settled=settled,
            kind="terminal" if found is Decision.ABANDON else "transient",
            billed=found is not Decision.AGAIN,
        )


_: type[QueryDesk] = ResumingDesk
