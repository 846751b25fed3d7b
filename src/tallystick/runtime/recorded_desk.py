"""The desk of a replay: what was asked is compared, and what was answered is served."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tallystick.core.canonical import digest
from tallystick.core.errors import ReplayDiverged
from tallystick.core.records import (
    QueryAsked,
    QueryFailed,
    QueryRefused,
    QueryReplied,
    Record,
)
from tallystick.runtime.desk import Written, asked_of
from tallystick.runtime.queries import (
    WHOLE,
    QueryDesk,
    QueryPlace,
    QueryRequest,
    problem_of_refusal,
)
from tallystick.runtime.shelf import Shelf

__all__ = ["RecordedDesk"]

_Key = tuple[int, int, int]


class RecordedDesk:
    """Serves the model calls of recorded programs."""

    def __init__(self, records: Sequence[Record], shelf: Shelf) -> None:
        self._asked: dict[_Key, QueryAsked] = {}
        self._ended: dict[_Key, QueryReplied | QueryFailed | QueryRefused] = {}
        for record in records:
            if isinstance(record, QueryAsked):
                self._asked[record.intent, record.item, record.attempt] = record
            elif isinstance(record, QueryReplied | QueryFailed | QueryRefused):
                self._ended[record.intent, record.item, record.attempt] = record
        self._shelf = shelf
        self.written: Written | None = None

    def found(
        self, request: QueryRequest
    ) -> tuple[QueryAsked | None, QueryReplied | QueryFailed | QueryRefused | None]:
        """What is recorded of an attempt: that it was begun, and what came of it."""
        key = _key(request)
        return self._asked.get(key), self._ended.get(key)

    def knows(self, request: QueryRequest) -> bool:
        """Whether anything of an item is recorded."""
        return self.found(request) != (None, None)

    def refused_whole(self, place: QueryPlace) -> bool:
        """Whether a batch was refused as a whole."""
        return (place.intent, WHOLE, 0) in self._ended

    async def begin(self, requests: Sequence[QueryRequest], *, whole: bool) -> None:
        refused = self._ended.get((requests[0].place.intent, WHOLE, 0))
        if isinstance(refused, QueryRefused):
            assert self.written is not None
            await self.written.ended(refused)
            raise problem_of_refusal(refused)

    async def ask(self, request: QueryRequest) -> QueryReplied | QueryFailed | QueryRefused:
        assert self.written is not None
        key = _key(request)
        ended = self._ended.get(key)
        if ended is None:
            raise ReplayDiverged(
                index=request.item, field="query", recorded=None, now=f"attempt {request.attempt}"
            )
        asked = self._asked.get(key)
        if asked is not None:
            await self.written.asked(self.again(request, asked))
        await self.written.ended(ended)
        if isinstance(ended, QueryReplied) and ended.text_ref is not None:
            text = self._shelf.read(ended.text_ref).decode("utf-8", "surrogatepass")
            return msgspec.structs.replace(ended, text=text)
        return ended

    def let_go(self, place: QueryPlace) -> None:
        """Nothing is held: nobody is asked."""

    def again(self, request: QueryRequest, asked: QueryAsked) -> QueryAsked:
        """The attempt as it would be written now. What was reserved was the world's word."""
        now = asked_of(
            request,
            asked.model,
            asked.reserved,
            asked.tokens_out_max,
            temperature=asked.temperature,
        )
        if asked.prompt_ref is None:
            return now
        same = digest(now.prompt.encode("utf-8", "surrogatepass")) == asked.prompt_ref.id
        return msgspec.structs.replace(
            now, prompt="" if same else now.prompt, prompt_ref=asked.prompt_ref
        )


def _key(request: QueryRequest) -> _Key:
    return request.place.intent, request.item, request.attempt


_: type[QueryDesk] = RecordedDesk
