"""Turn a question that arrives over the bridge into a model call of the run.

It is asked as the run's `Queries` ask: reserved before it is recorded, recorded before it is sent,
settled and recorded as any `llm_query`, as a host call of the program. A question that the door
cannot ask as it is gets a refusal with a name.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable

import msgspec

from tallystick.attachments.port import AttachmentError
from tallystick.bridge.protocol import BridgeAnswer, BridgeLeft, BridgeQuery, BridgeRefused
from tallystick.core.budget.amount import Amount
from tallystick.core.errors import LedgerError, ReplayDiverged, UsageError
from tallystick.core.records import HostAnswered, QueryRefused, QueryReplied
from tallystick.core.resume_errors import ResumeRefused, RunInDoubt
from tallystick.runtime.calls.queries import ITEMS_MAX, Queries, QueryOutcome, QueryProblem
from tallystick.runtime.calls.scope import Call, CallScope
from tallystick.runtime.context.attachments import INLINE_BYTES_MAX, RunAttachments
from tallystick.runtime.spend.scopes import RunScopes
from tallystick.sandbox.host import encode_reply, error_reply

_NAME = "llm_query"
# Errors of the record itself: a program cannot handle those, so they end the run.
_NOT_THE_PROGRAMS = (LedgerError, ReplayDiverged, ResumeRefused, RunInDoubt)
_KINDS = {
    "InDoubt": "ExecutionFailed",
    "ModelError": "LlmCallFailed",
    "UnknownModel": "ConfigError",
}
_DIMENSIONS = {"wall_ms": "TimeBudgetExceeded", "depth": "RecursionDepthExceeded"}


class BridgeDoor:
    """Asks the models of one run for a program outside. `ask` is the function behind a token.

    The calls that the program still has, its limits and its time are those of `scope`. A question
    that names another temperature than the run's is refused. An error that breaks the record is
    kept in the scope as `failed`: the program cannot handle it, and the caller that runs it raises
    it.
    """

    def __init__(
        self,
        queries: Queries,
        scope: CallScope,
        run_scopes: RunScopes,
        run_attachments: RunAttachments,
        *,
        temperature: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queries = queries
        self._scope = scope
        self._run_scopes = run_scopes
        self._run_attachments = run_attachments
        self._temperature = temperature
        self._calls_left = min(scope.host_calls_left, ITEMS_MAX)
        self._clock = clock
        self._indexes = itertools.count()

    def remaining(self) -> BridgeLeft:
        """Return the tokens and the time that the run has left.

        The tokens are None without a limit; the time, that of the program, is at least 0.
        """
        seconds = max(0.0, self._scope.times.ends_at - self._clock())
        return BridgeLeft(tokens=self._run_scopes.remaining().tokens, time_ms=int(seconds * 1000))

    async def ask(self, query: BridgeQuery) -> BridgeAnswer:
        """Ask one question and return the answer.

        Raise `BridgeRefused` if it is refused or fails: a refusal before the call is not recorded,
        any other is. A cancel, or another error, is recorded as the end of the call and raised
        again. An error of the record is kept in the scope as `failed`, and raised.
        """
        cap = self._reply_tokens(query)
        self._check_temperature(query.temperature)
        if self._calls_left < 1:
            raise self._refusal("TokenBudgetExceeded", "host_calls: the program has none left")
        ends_at = self._scope.times.ends_at
        if self._clock() >= ends_at:
            raise self._refusal("TimeBudgetExceeded", "wall_ms: the run's time is over")
        self._calls_left -= 1
        try:
            call = self._scope.call(_NAME, _request(query), index=next(self._indexes))
        except _NOT_THE_PROGRAMS as error:
            self._scope.failed = error
            raise
        heard = _Settlements()
        try:
            async with asyncio.timeout(ends_at - self._clock()):
                text = await self._queries.query_alone(
                    call,
                    query.prompt,
                    model=query.model,
                    tokens_out_max=cap,
                    heard=heard.add,
                )
        except _NOT_THE_PROGRAMS as error:
            self._scope.failed = error
            raise
        except (QueryProblem, UsageError, TimeoutError) as error:
            await self._end(call, error_reply(error))
            raise self._refusal_of(error, heard) from error
        except (Exception, asyncio.CancelledError) as error:
            # The call needs an end in the record: the program may continue, and ask again.
            await self._end(call, error_reply(error))
            raise
        await self._end(call, encode_reply(text))
        return self._answer(str(text), heard)

    async def _end(self, call: Call, reply: bytes) -> None:
        """Record the answer, and charge one host call: no sandbox counts this one.

        A long reply is kept as an attachment. Wait until the answer is recorded. If the reply
        cannot be kept (`AttachmentError`) or recording fails with an error of the record, keep that
        error in the scope as `failed` and raise it.
        """
        try:
            ref = None
            if len(reply) > INLINE_BYTES_MAX:
                ref = self._run_attachments.keep(reply, label=f"answer of {_NAME}")
            self._run_scopes.spend(Amount(host_calls=1))
            answered = HostAnswered(
                intent=call.intent,
                program=call.program,
                index=call.index,
                name=_NAME,
                request_sha256=call.request_sha256,
                fuel=0,
                reply=reply if ref is None else b"",
                reply_ref=ref,
                ok=not reply.startswith(b"1"),
            )
            await self._scope.note_answer(answered).wait()
        except (*_NOT_THE_PROGRAMS, AttachmentError) as error:
            # Not the program's to handle: the run must not continue on a record with a hole.
            self._scope.failed = error
            raise

    def _reply_tokens(self, query: BridgeQuery) -> int:
        """Return how many tokens a reply may have: the least of wish, token's cap and run's limit.

        Raise `BridgeRefused` for a wish for more than the run allows.
        """
        most = self._scope.limits.reply_tokens
        if query.max_tokens is not None and query.max_tokens > most:
            said = f"max_tokens: {query.max_tokens:,}; at most {most:,} in this run"
            raise self._refusal("ConfigError", said)
        return min(each for each in (query.max_tokens, query.cap, most) if each is not None)

    def _check_temperature(self, temperature: float | None) -> None:
        """Raise `BridgeRefused` for a temperature that the run does not ask with. None passes."""
        if temperature is not None and temperature != self._temperature:
            own = "the model's own" if self._temperature is None else f"{self._temperature}"
            said = f"temperature: this run asks with {own}, and not with {temperature}"
            raise self._refusal("NotSupported", said)

    def _answer(self, text: str, heard: _Settlements) -> BridgeAnswer:
        reply = heard.reply
        assert reply is not None, "a text was replied"
        figures = heard.figures
        if figures == "reported" and not reply.usage.reported:
            figures = "estimated"
        return BridgeAnswer(
            response=text,
            tokens_used=heard.tokens_used,
            left=self.remaining(),
            usage=reply.usage,
            figures=figures,
            cut=reply.cut,
        )

    def _refusal_of(
        self, error: QueryProblem | UsageError | TimeoutError, heard: _Settlements
    ) -> BridgeRefused:
        if isinstance(error, TimeoutError):
            return self._refusal("TimeBudgetExceeded", "wall_ms: the run's time is over", heard)
        if isinstance(error, UsageError):
            return self._refusal("ConfigError", str(error), heard)
        name = _KINDS.get(error.kind)
        if name is None:
            dimension = "" if heard.refusal is None else heard.refusal.dimension
            name = _DIMENSIONS.get(dimension, "TokenBudgetExceeded")
        return self._refusal(name, str(error), heard)

    def _refusal(self, name: str, message: str, heard: _Settlements | None = None) -> BridgeRefused:
        used = 0 if heard is None else heard.tokens_used
        return BridgeRefused(name, message, tokens_used=used, left=self.remaining())


class _Settlements:
    """Collects what was settled for one question, over all its attempts."""

    def __init__(self) -> None:
        self.tokens_used = 0
        self.figures = "returned"
        self.reply: QueryReplied | None = None
        self.refusal: QueryRefused | None = None

    def add(self, event: QueryOutcome) -> None:
        """Add one attempt: its tokens, its reply or its refusal.

        `figures` are "reserved" if one attempt was settled so, or else those of the first.
        """
        if isinstance(event, QueryRefused):
            self.refusal = event
            return
        settled = event.settled
        self.tokens_used += settled.tokens_in + settled.tokens_out
        if settled.figures == "reserved" or self.figures == "returned":
            self.figures = settled.figures
        if isinstance(event, QueryReplied):
            self.reply = event


def _request(query: BridgeQuery) -> bytes:
    """Return the question as a host call would encode it."""
    given = {
        "model": query.model,
        "temperature": query.temperature,
        "max_tokens": query.max_tokens,
    }
    named = {name: value for name, value in given.items() if value is not None}
    return msgspec.json.encode([_NAME, [query.prompt], named])
