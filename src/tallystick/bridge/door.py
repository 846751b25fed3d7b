"""The door behind the bridge: a question from outside becomes a model call of the run.

It is asked as the run's `Queries` ask, at the run's own desk: reserved before it is written,
written before it is sent, settled and recorded as any `llm_query`. What the door cannot do as asked
it refuses by name.

Each call needs a place in the record: `WrittenCalls` makes each a host call of the program, of its
own.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tallystick.bridge.protocol import BridgeAnswer, BridgeLeft, BridgeQuery, BridgeRefused
from tallystick.bridge.server import Bridge, environment_of
from tallystick.bridge.sockets import CLIENT
from tallystick.bridge.tokens import TokenScope
from tallystick.core.budget.amount import Amount
from tallystick.core.charge import RunLimits
from tallystick.core.errors import LedgerError, ReplayDiverged, UsageError
from tallystick.core.records import HostAnswered, QueryFailed, QueryRefused, QueryReplied
from tallystick.core.resume_errors import ResumeRefused, RunInDoubt
from tallystick.runtime.calls.queries import (
    ITEMS_MAX,
    Queries,
    QueryCalls,
    QueryPlace,
    QueryProblem,
    QueryRequest,
)
from tallystick.runtime.context.attachments import INLINE_BYTES_MAX, RunAttachments
from tallystick.runtime.journal.world import CallLog
from tallystick.runtime.spend.scopes import RunScopes
from tallystick.sandbox.host import call_digest, encoded_reply, error_reply
from tallystick.storage.clock import new_id

_NAME = "llm_query"
# The record itself failed, or is another: that is not the program's to handle.
_NOT_THE_PROGRAMS = (LedgerError, ReplayDiverged, ResumeRefused, RunInDoubt)
_KINDS = {
    "InDoubt": "ExecutionFailed",
    "ModelError": "LlmCallFailed",
    "UnknownModel": "ConfigError",
}
_DIMENSIONS = {"wall_ms": "TimeBudgetExceeded", "depth": "RecursionDepthExceeded"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeCall:
    """Where one question stands in the record: a host call, its number and its request."""

    place: QueryPlace
    index: int
    request: bytes


class WrittenCalls:
    """Makes each question a host call of its own, noted in the run as `llm_query`.

    `spend` hears of each, since no sandbox counts it.
    """

    def __init__(
        self,
        asked: CallLog,
        run_attachments: RunAttachments,
        *,
        program: int,
        spend: Callable[[Amount], None] = lambda amount: None,
    ) -> None:
        self._asked = asked
        self._run_attachments = run_attachments
        self._program = program
        self._indexes = itertools.count()
        self._spend = spend

    def begin(self, request: bytes) -> BridgeCall:
        index = next(self._indexes)
        intent = self._asked.calling(
            index=index, name=_NAME, request_sha256=call_digest(request), effect=False
        )
        place = QueryPlace(intent=intent, program=self._program)
        return BridgeCall(place=place, index=index, request=request)

    async def end(self, call: BridgeCall, reply: bytes) -> None:
        ref = None
        if len(reply) > INLINE_BYTES_MAX:
            ref = self._run_attachments.keep(reply, label=f"answer of {_NAME}")
        self._spend(Amount(host_calls=1))
        writing = self._asked.answered(
            HostAnswered(
                intent=call.place.intent,
                program=self._program,
                index=call.index,
                name=_NAME,
                request_sha256=call_digest(call.request),
                fuel=0,
                reply=reply if ref is None else b"",
                reply_ref=ref,
                ok=not reply.startswith(b"1"),
            )
        )
        await writing.done()


class BridgeDoor:
    """Asks the models of one run for programs outside. `ask` is what a token is given.

    `ends_at`, by `clock`, is when the run's time is over; `calls_max` is how many host calls the
    program still has. A question that names another temperature than the run's is refused. `failed`
    is what broke the record, if something did: the program cannot handle that, and the caller that
    runs it raises it.
    """

    def __init__(
        self,
        desk: QueryCalls,
        calls: WrittenCalls,
        run_scopes: RunScopes,
        *,
        limits: RunLimits,
        ends_at: float,
        temperature: float | None = None,
        calls_max: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._desk = desk
        self._calls = calls
        self._run_scopes = run_scopes
        self._limits = limits
        self._ends_at = ends_at
        self._temperature = temperature
        self._calls_left = min(limits.host_calls if calls_max is None else calls_max, ITEMS_MAX)
        self._clock = clock
        self.failed: BaseException | None = None

    def left(self) -> BridgeLeft:
        """What the run has left to spend."""
        seconds = max(0.0, self._ends_at - self._clock())
        return BridgeLeft(tokens=self._run_scopes.remaining().tokens, time_ms=int(seconds * 1000))

    async def ask(self, query: BridgeQuery) -> BridgeAnswer:
        """Ask one question. Raises `BridgeRefused`; a cancel is written down and raised."""
        cap = self._cap(query)
        self._check_temperature(query.temperature)
        if self._calls_left < 1:
            raise self._refused("TokenBudgetExceeded", "host_calls: the program has none left")
        if self._clock() >= self._ends_at:
            raise self._refused("TimeBudgetExceeded", "wall_ms: the run's time is over")
        self._calls_left -= 1
        try:
            call = self._calls.begin(_request(query))
        except _NOT_THE_PROGRAMS as error:
            self.failed = error
            raise
        heard = _Heard(self._desk)
        limits = msgspec.structs.replace(self._limits, reply_tokens=cap)
        queries = Queries(heard, limits=limits)
        queries.place = call.place
        try:
            async with asyncio.timeout(self._ends_at - self._clock()):
                text = await queries.query(query.prompt, model=query.model)
        except _NOT_THE_PROGRAMS as error:
            self.failed = error
            raise
        except (QueryProblem, UsageError, TimeoutError) as error:
            await self._calls.end(call, error_reply(error))
            raise self._problem(error, heard) from error
        except (Exception, asyncio.CancelledError) as error:
            # The program may go on, and ask again.
            await self._calls.end(call, error_reply(error))
            raise
        await self._calls.end(call, encoded_reply(text))
        return self._answer(str(text), heard)

    def _cap(self, query: BridgeQuery) -> int:
        """How long the reply may be: a maximum that is not to be had is refused, not lowered."""
        most = self._limits.reply_tokens
        if query.max_tokens is not None and query.max_tokens > most:
            said = f"max_tokens: {query.max_tokens:,}; at most {most:,} in this run"
            raise self._refused("ConfigError", said)
        return min(each for each in (query.max_tokens, query.cap, most) if each is not None)

    def _check_temperature(self, temperature: float | None) -> None:
        """Refuse a temperature that the run does not ask with."""
        if temperature is not None and temperature != self._temperature:
            own = "the model's own" if self._temperature is None else f"{self._temperature}"
            said = f"temperature: this run asks with {own}, and not with {temperature}"
            raise self._refused("NotSupported", said)

    def _answer(self, text: str, heard: _Heard) -> BridgeAnswer:
        reply = heard.reply
        assert reply is not None, "a text was replied"
        figures = heard.figures
        if figures == "reported" and not reply.usage.reported:
            figures = "estimated"
        return BridgeAnswer(
            response=text,
            tokens_used=heard.tokens_used,
            left=self.left(),
            usage=reply.usage,
            figures=figures,
            cut=reply.cut,
        )

    def _problem(
        self, error: QueryProblem | UsageError | TimeoutError, heard: _Heard
    ) -> BridgeRefused:
        if isinstance(error, TimeoutError):
            return self._refused("TimeBudgetExceeded", "wall_ms: the run's time is over", heard)
        if isinstance(error, UsageError):
            return self._refused("ConfigError", str(error), heard)
        name = _KINDS.get(error.kind)
        if name is None:
            dimension = "" if heard.refusal is None else heard.refusal.dimension
            name = _DIMENSIONS.get(dimension, "TokenBudgetExceeded")
        return self._refused(name, str(error), heard)

    def _refused(self, name: str, message: str, heard: _Heard | None = None) -> BridgeRefused:
        used = 0 if heard is None else heard.tokens_used
        return BridgeRefused(name, message, tokens_used=used, left=self.left())


class _Heard:
    """A desk before the real one: keeps what was settled."""

    def __init__(self, desk: QueryCalls) -> None:
        self._desk = desk
        self.tokens_used = 0
        self.figures = "returned"
        self.reply: QueryReplied | None = None
        self.refusal: QueryRefused | None = None

    async def begin(self, requests: Sequence[QueryRequest], *, whole: bool) -> None:
        """Nothing: a model that is not for programs is refused when it is asked, by its item.

        Refused as a batch, two questions of one host call would have one place in the record.
        """

    async def ask(self, request: QueryRequest) -> QueryReplied | QueryFailed | QueryRefused:
        event = await self._desk.ask(request)
        if isinstance(event, QueryRefused):
            self.refusal = event
            return event
        settled = event.settled
        self.tokens_used += settled.tokens_in + settled.tokens_out
        if settled.figures == "reserved" or self.figures == "returned":
            self.figures = settled.figures
        if isinstance(event, QueryReplied):
            self.reply = event
        return event

    def let_go(self, place: QueryPlace) -> None:
        self._desk.let_go(place)


def _request(query: BridgeQuery) -> bytes:
    """The question as a host call would have it."""
    given = {
        "model": query.model,
        "temperature": query.temperature,
        "max_tokens": query.max_tokens,
    }
    named = {name: value for name, value in given.items() if value is not None}
    return msgspec.json.encode([_NAME, [query.prompt], named])


_: type[QueryCalls] = _Heard


# The bridge of a run's native programs: commands of a shell ask models by it, as programs do.
#
# A program in Python has `llm_query`; what a shell starts has not. For as long as a command runs,
# `python3 "$TALLYSTICK_ASK" "a question"` asks through the run's own door: reserved, written down
# and settled as every call is. The token is that command's, and ends with it.


_VARIABLE = "TALLYSTICK_ASK"
# Who programs are, in a box that root makes.
_NOBODY = 65_534


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellBridge:
    """Opens the bridge for one command after the other of one run."""

    folder: Path
    run: str
    session_id: str
    desk: QueryCalls
    run_scopes: RunScopes
    run_attachments: RunAttachments
    temperature: float | None

    @contextlib.asynccontextmanager
    async def open(
        self, asked: CallLog, *, program: int, limits: RunLimits, ends_at: float, calls_max: int
    ) -> AsyncIterator[dict[str, str]]:
        """Inside, what is in these variables asks models. Raises what broke the run's record."""
        door = BridgeDoor(
            self.desk,
            WrittenCalls(asked, self.run_attachments, program=program, spend=self.run_scopes.spend),
            self.run_scopes,
            limits=limits,
            ends_at=ends_at,
            temperature=self.temperature,
            calls_max=calls_max,
        )
        sockets = self.folder / new_id()[-10:]
        try:
            async with Bridge() as bridge:
                uid = _NOBODY if os.geteuid() == 0 else None
                listener = bridge.listen_unix(sockets / "b", session=self.session_id, uid=uid)
                scope = TokenScope(session=self.session_id, run=self.run, program=program)
                issued = bridge.issue(scope, ask=door.ask)
                client = {_VARIABLE: str(self.folder / CLIENT)}
                yield {**environment_of(listener.address, issued), **client}
        finally:
            shutil.rmtree(sockets, ignore_errors=True)
        if door.failed is not None:
            raise door.failed
