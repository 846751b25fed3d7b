"""A model for tests: it answers by a list or a function, keeps what it was asked, and bills.

One class is behind all tests, so a test says only what its model does differently:

    ModelDouble(block("FINAL(42)"))                    # always the same reply
    ModelDouble(["first", failure, "second"])               # one answer after the other
    ModelDouble(lambda call: "late" if call.number else None, window=8_000)
    ModelDouble(programs("n = 1", "FINAL(n)"), queries=lambda call: call.prompt.upper())
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import cached_property

from tallystick.core.charge import ModelUsage
from tallystick.core.machine.prompt import Message
from tallystick.core.views.open_calls import Lookup
from tallystick.model.port import Heard, Model, ModelError, ModelReply, ModelRequest
from tallystick.model.price_table import PriceTable, Pricing

# One dollar per million input tokens is 1,000 nano-dollars per token.
NANO_IN, NANO_OUT = 1_000, 4_000
PRICES = PriceTable.of_user({"fake:*": {"input": "1", "output": "4"}})
PRICING = Pricing(declared=PRICES)


@dataclass(frozen=True)
class ModelCall:
    """One call of a model: the request, and its number from 0 among all calls of that model."""

    request: ModelRequest
    number: int

    @property
    def prompt(self) -> str:
        """The text of the last message."""
        return self.request.messages[-1].text

    @property
    def messages(self) -> tuple[Message, ...]:
        return self.request.messages

    @property
    def key(self) -> str:
        """The name of the call, by which it can be looked up later."""
        return self.request.key

    @cached_property
    def text(self) -> str:
        """The texts of all messages, with an empty line between them."""
        return "\n\n".join(each.text for each in self.request.messages)

    @property
    def turn(self) -> int:
        """The number of replies of the model that are in the prompt: 0 in the first turn."""
        return sum(each.role == "assistant" for each in self.request.messages)

    @property
    def by_program(self) -> bool:
        """True if a program asks (`llm_query`), False if a run asks for its next program.

        The test is the first message: only that of a run has the role `system`.
        """
        return self.request.messages[0].role != "system"


# An answer to one call: a text, a whole reply, an error to raise, or None to wait for ever.
Answer = str | ModelReply | BaseException | None
AnswerTo = Callable[[ModelCall], Answer | Awaitable[Answer]]
# All answers of a model: the same each time, one after the other, or by a function of the call.
Script = Answer | Sequence[Answer] | AnswerTo
Usage = ModelUsage | Callable[[ModelCall, str], ModelUsage]
Hook = Callable[[ModelCall], Awaitable[object] | None]


def block(source: str) -> str:
    """Return a model's reply: this program in a fenced `repl` block, and nothing else."""
    return f"```repl\n{source}\n```"


def programs(*sources: str) -> AnswerTo:
    """Return a script that answers each turn of a run with the program of that turn.

    The script raises `IndexError` in a turn after the last program.
    """
    return lambda call: block(sources[call.turn])


def by_prompt(answer: Callable[[str], str]) -> AnswerTo:
    """Return a script that answers by a function of the last message alone."""
    return lambda call: answer(call.prompt)


def first(answers: Sequence[Answer], then: Answer | AnswerTo) -> AnswerTo:
    """Return a script that gives these answers, one for each call, and after them `then`.

    If `then` is a function, it is called with each later call.
    """
    left = list(answers)

    def answer(call: ModelCall) -> Answer | Awaitable[Answer]:
        if left:
            return left.pop(0)
        return then(call) if callable(then) else then

    return answer


def when_set(event: threading.Event, *, seconds: float = 20) -> Hook:
    """Return a hook that waits for an event, which the test sets in another thread.

    After `seconds` the call continues without it, and nothing is raised.
    """
    return lambda call: asyncio.to_thread(event.wait, seconds)


class Pauses:
    """A hook that stops each call until the test lets it continue, from another thread.

    A call that is not allowed continues by itself after 20 s.
    """

    def __init__(self) -> None:
        self._begun, self._allowed = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self, call: ModelCall) -> Awaitable[object]:
        self._begun.release()
        return asyncio.to_thread(self._allowed.acquire, timeout=20)

    def wait(self) -> bool:
        """Wait up to 20 s until the next call has stopped; False if none has."""
        return self._begun.acquire(timeout=20)

    def allow(self, calls: int = 1) -> None:
        """Let so many calls continue."""
        self._allowed.release(calls)


def four_bytes(call: ModelCall, text: str) -> ModelUsage:
    """Return a usage of one token for every four bytes of the messages and of the reply.

    Each count is at least 1. The reply's is also at most the cap of the request.
    """
    request = call.request
    sent = sum(len(each.text.encode("utf-8", "replace")) for each in request.messages)
    received = len(text.encode("utf-8", "replace"))
    # A provider bills no more than the cap that it was sent.
    tokens_out = min(request.tokens_out_max, max(1, received // 4))
    return ModelUsage(tokens_in=max(1, sent // 4), tokens_out=tokens_out, reported=True)


def reported(tokens_in: int, tokens_out: int) -> ModelUsage:
    """Return a usage with these token counts, as a provider reports it."""
    return ModelUsage(tokens_in=tokens_in, tokens_out=tokens_out, reported=True)


def each_turn(tokens_in: int, tokens_out: int) -> Usage:
    """Return a rule by which every turn uses so many tokens, and calls of programs by the bytes."""
    used = reported(tokens_in, tokens_out)
    return lambda call, text: four_bytes(call, text) if call.by_program else used


class ModelDouble:
    """Answer by a script, and keep the requests, the replies and the bill.

    `answers` is the script. `queries` is that for the calls of programs, if they have one of their
    own. `failures` are raised first, one for each call. `usage` is what each answer that is a text
    reports, or a function that computes it. `delay` is in seconds. `before` is called with each
    call, before `delay` and before a failure is raised; an awaitable from it is awaited. `after` is
    called with each call that got a reply. A call after the last answer of a list raises
    `ModelError`.
    `places` is the number of calls that are admitted at once. `admit` is called with the number of
    calls that were admitted before; what it returns is awaited. `lookup` answers for earlier calls
    by their key; without it, the model has no such method. `window` is its context in tokens.

    Tests may set each of them later as well.
    """

    def __init__(
        self,
        answers: Script = "ok",
        *,
        queries: Script = "",
        name: str = "fake:model",
        failures: Iterable[BaseException] = (),
        usage: Usage = four_bytes,
        delay: float = 0.0,
        before: Hook | None = None,
        after: Callable[[ModelCall], object] | None = None,
        places: int | None = None,
        admit: Callable[[int], Awaitable[object] | None] | None = None,
        lookup: Callable[[str], ModelReply | Lookup] | None = None,
        window: int | None = None,
    ) -> None:
        self.name = name
        self.answers = answers
        self.queries = queries
        self.failures = list(failures)
        self.usage = usage
        self.delay = delay
        self.before = before
        self.after = after
        self.admit = admit
        self.window = window
        self.lookup_reply = lookup
        self._places = None if places is None else asyncio.Semaphore(places)
        self._taken: Counter[str] = Counter()

        self.requests: list[ModelRequest] = []
        # The replies by the keys of their calls.
        self.replies: dict[str, ModelReply] = {}
        self.looked_up: list[str] = []
        # Nano-dollars, by the usage of the replies.
        self.billed = 0
        self.admitted_count = self.waiting = 0
        self.most_at_once = self._at_once = 0
        # Set when the first call comes.
        self.begun = threading.Event()
        self._hung = threading.Semaphore(0)

    # -- what was asked --------------------------------------------------------------------------

    @property
    def asked(self) -> list[str]:
        """The last message of each request."""
        return [each.messages[-1].text for each in self.requests]

    @property
    def prompts(self) -> list[str]:
        """The whole text of each request."""
        return [ModelCall(each, 0).text for each in self.requests]

    @property
    def keys(self) -> list[str]:
        return [each.key for each in self.requests]

    @property
    def queried(self) -> list[str]:
        """The prompts of programs."""
        calls = [ModelCall(each, 0) for each in self.requests]
        return [each.prompt for each in calls if each.by_program]

    @property
    def turns(self) -> int:
        """The number of requests for a next program; the others are of programs."""
        return sum(not ModelCall(each, 0).by_program for each in self.requests)

    @property
    def caps(self) -> list[int]:
        """The most tokens that each request allowed for its reply."""
        return [each.tokens_out_max for each in self.requests]

    @property
    def temperatures(self) -> list[float | None]:
        return [each.temperature for each in self.requests]

    def wait_until_hung(self, calls: int = 1, *, seconds: float = 20) -> bool:
        """Wait until this many more calls wait for ever; False if one does not come in time.

        `seconds` is the time for each of them. Those that were counted before count no more.
        """
        return all(self._hung.acquire(timeout=seconds) for _ in range(calls))

    # -- the port --------------------------------------------------------------------------------

    def admitted(self) -> AbstractAsyncContextManager[None]:
        return self._admitted()

    async def ask(self, request: ModelRequest, *, heard: Heard = lambda text: None) -> ModelReply:
        call = ModelCall(request, len(self.requests))
        self.requests.append(request)
        self.begun.set()
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            reply = await self._reply(call)
        finally:
            self._at_once -= 1
        heard(reply.text)
        self.replies[request.key] = reply
        if self.after is not None:
            self.after(call)
        return reply

    async def close(self) -> None:
        """Do nothing."""

    def __getattr__(self, name: str) -> object:
        # A runtime asks whether a model can look calls up by whether it has the method.
        if name == "lookup" and self.__dict__.get("lookup_reply") is not None:
            return self._look_up
        raise AttributeError(name)

    # -- inside ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def _admitted(self) -> AsyncIterator[None]:
        self.waiting += 1
        try:
            waits = None if self.admit is None else self.admit(self.admitted_count)
            if waits is not None:
                await waits
            if self._places is not None:
                await self._places.acquire()
        finally:
            self.waiting -= 1
        self.admitted_count += 1
        try:
            yield
        finally:
            if self._places is not None:
                self._places.release()

    async def _reply(self, call: ModelCall) -> ModelReply:
        waits = None if self.before is None else self.before(call)
        if waits is not None:
            await waits
        if self.delay:
            await asyncio.sleep(self.delay)
        # Before the script, so that a call that fails takes no answer from it.
        if self.failures:
            raise self.failures.pop(0)
        answer = await self._answer(call)
        if answer is None:
            await self.hang()
        if isinstance(answer, BaseException):
            raise answer
        assert answer is not None
        if isinstance(answer, str):
            used = self.usage
            if not isinstance(used, ModelUsage):
                used = used(call, answer)
            answer = ModelReply(text=answer, usage=used)
        self.billed += answer.usage.tokens_in * NANO_IN + answer.usage.tokens_out * NANO_OUT
        return answer

    async def hang(self) -> None:
        """Wait for ever, as a call that is never answered; `wait_until_hung` counts it."""
        self._hung.release()
        await asyncio.Event().wait()

    async def _answer(self, call: ModelCall) -> Answer:
        which = "queries" if call.by_program and self.queries != "" else "answers"
        script: Script = getattr(self, which)
        if callable(script):
            answer = script(call)
            return await answer if isinstance(answer, Awaitable) else answer
        if script is None or isinstance(script, str | ModelReply | BaseException):
            return script
        place, self._taken[which] = self._taken[which], self._taken[which] + 1
        if place >= len(script):
            raise ModelError(
                reason="unknown", message=f"the script has no answer after number {len(script)}"
            )
        return script[place]

    async def _look_up(self, key: str) -> ModelReply | Lookup:
        assert self.lookup_reply is not None
        self.looked_up.append(key)
        return self.lookup_reply(key)


_: type[Model] = ModelDouble
