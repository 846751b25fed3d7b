"""Where children are begun, served from the record, or gone on with."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import msgspec

from tallystick.core.caps import charge_of
from tallystick.core.chain import Head
from tallystick.core.errors import ReplayDiverged
from tallystick.core.records import Caller, ChildBegun, ChildEnded, Record, RunLimits
from tallystick.model.port import Model
from tallystick.runtime.child_slots import ChildSlots
from tallystick.runtime.children import ChildDesk, ChildRequest, request_sha256
from tallystick.runtime.desk import Written
from tallystick.runtime.functions import RunFunction
from tallystick.runtime.run import Run
from tallystick.runtime.shelf import INLINE_BYTES_MAX, Shelf
from tallystick.runtime.teller import Teller
from tallystick.sandbox.identity import new_id

__all__ = ["ChildRunner", "LiveChildDesk", "Parent", "RecordedChildDesk", "ResumingChildDesk"]

_Place = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """What a run hands on to its children."""

    run: str
    teller: Teller
    limits: RunLimits
    grants: Sequence[str]
    seed: int
    temperature: float | None
    functions: Sequence[RunFunction]
    model: Model
    depth: int


class ChildRunner(Protocol):
    """Drives children to their end; the session's part."""

    @property
    def slots(self) -> ChildSlots: ...

    async def begin(
        self, parent: Parent, run: str, request: ChildRequest, caller: Caller, *, wall_ms: int
    ) -> tuple[Run, Head]: ...

    async def resume(
        self, parent: Parent, run: str, request: ChildRequest, caller: Caller, *, wall_ms: int
    ) -> tuple[Run, Head]:
        """Go on with a child that was begun; also if nothing of it was written."""
        ...


class LiveChildDesk:
    """Begins the children of one run. `ends_at` is when the run's time is over."""

    def __init__(self, parent: Parent, runner: ChildRunner, shelf: Shelf) -> None:
        self._parent = parent
        self._runner = runner
        self._slots = runner.slots
        self._shelf = shelf
        self._depth = parent.depth
        self.ends_at = 0.0
        self.written: Written | None = None

    @property
    def depth_left(self) -> int:
        return self._parent.limits.depth - self._depth

    def waiting(self) -> AbstractAsyncContextManager[None]:
        return self._slots.lent(depth=self._depth)

    async def run(self, request: ChildRequest) -> ChildEnded:
        async with self._slots.held(depth=self._depth + 1):
            begun = ChildBegun(
                intent=request.place.intent,
                program=request.place.program,
                item=request.item,
                run=new_id(),
                request_sha256=request_sha256(request),
            )
            assert self.written is not None
            await self.written.begun(begun)
            run, head = await self._runner.begin(
                self._parent,
                begun.run,
                request,
                self._caller(request),
                wall_ms=self._wall_ms_left(),
            )
        return await self._ended(request, run, head)

    async def go_on(self, request: ChildRequest, begun: ChildBegun) -> ChildEnded:
        """Go on with a child that another process began."""
        async with self._slots.held(depth=self._depth + 1):
            run, head = await self._runner.resume(
                self._parent,
                begun.run,
                request,
                self._caller(request),
                wall_ms=self._wall_ms_left(),
            )
        return await self._ended(request, run, head)

    def _wall_ms_left(self) -> int:
        return max(0, round((self.ends_at - time.monotonic()) * 1000))

    def _caller(self, request: ChildRequest) -> Caller:
        return Caller(
            run=self._parent.run,
            intent=request.place.intent,
            item=request.item,
            depth=self._depth + 1,
        )

    async def _ended(self, request: ChildRequest, run: Run, head: Head) -> ChildEnded:
        answer, ref = run.answer or "", None
        if len(answer) > INLINE_BYTES_MAX:
            raw = answer.encode("utf-8", "surrogatepass")
            ref = self._shelf.keep(raw, media_type="text/plain", label="answer of a child")
        ended = ChildEnded(
            intent=request.place.intent,
            item=request.item,
            run=run.run,
            stop=run.stop,
            detail=run.detail,
            answer=answer if ref is None else "",
            answer_ref=ref,
            partial=run.partial,
            charge=run.charge,
            count=head.count,
            hash=head.hash,
        )
        assert self.written is not None
        await self.written.ended(ended)
        return msgspec.structs.replace(ended, answer=answer)


class RecordedChildDesk:
    """Serves the children of a recorded run."""

    def __init__(self, records: Sequence[Record], shelf: Shelf, *, depth_left: int) -> None:
        self.ends_at = 0.0
        self._begun: dict[_Place, ChildBegun] = {}
        self._ended: dict[_Place, ChildEnded] = {}
        for record in records:
            if isinstance(record, ChildBegun):
                self._begun[record.intent, record.item] = record
            elif isinstance(record, ChildEnded):
                self._ended[record.intent, record.item] = record
        self._shelf = shelf
        self._depth_left = depth_left
        self.written: Written | None = None

    @property
    def depth_left(self) -> int:
        return self._depth_left

    def waiting(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def found(self, request: ChildRequest) -> tuple[ChildBegun | None, ChildEnded | None]:
        place = request.place.intent, request.item
        return self._begun.get(place), self._ended.get(place)

    async def run(self, request: ChildRequest) -> ChildEnded:
        begun, ended = self.found(request)
        if begun is None or ended is None:
            raise ReplayDiverged(
                index=request.item, field="child", recorded=None, now=request.prompt[:80]
            )
        await self.note_begun(request, begun)
        assert self.written is not None
        await self.written.ended(ended)
        if ended.answer_ref is not None:
            answer = self._shelf.read(ended.answer_ref).decode("utf-8", "surrogatepass")
            return msgspec.structs.replace(ended, answer=answer)
        return ended

    async def note_begun(self, request: ChildRequest, begun: ChildBegun) -> None:
        """Note that a child was begun, as it would be written now."""
        assert self.written is not None
        now = msgspec.structs.replace(begun, request_sha256=request_sha256(request))
        await self.written.begun(now)


class ResumingChildDesk:
    """Serves recorded children, goes on with one that was cut off, begins others."""

    def __init__(self, recorded: RecordedChildDesk, live: LiveChildDesk, teller: Teller) -> None:
        self._recorded = recorded
        self._live = live
        self._teller = teller

    @property
    def written(self) -> Written | None:
        return self._live.written

    @written.setter
    def written(self, written: Written | None) -> None:
        self._live.written = self._recorded.written = written

    @property
    def ends_at(self) -> float:
        return self._live.ends_at

    @ends_at.setter
    def ends_at(self, ends_at: float) -> None:
        self._live.ends_at = ends_at

    @property
    def depth_left(self) -> int:
        return self._live.depth_left

    def waiting(self) -> AbstractAsyncContextManager[None]:
        return self._live.waiting()

    async def run(self, request: ChildRequest) -> ChildEnded:
        begun, ended = self._recorded.found(request)
        if begun is None:
            return await self._live.run(request)
        if ended is not None:
            self._teller.recalled("", charge_of(ended))
            return await self._recorded.run(request)
        await self._recorded.note_begun(request, begun)
        return await self._live.go_on(request, begun)


_live: type[ChildDesk] = LiveChildDesk
_recorded: type[ChildDesk] = RecordedChildDesk
_resuming: type[ChildDesk] = ResumingChildDesk
