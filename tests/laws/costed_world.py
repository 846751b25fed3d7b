"""A world that costs money: servers with a bill of their own, watched scopes, a clock of its own.

An honest server bills at most a token for each byte it was sent and for the frame around each
message, and at most the cap it was given; what it reports may be anything. `Books` holds its bill
against every scope at the moment it is written.
"""

from __future__ import annotations

import asyncio
import selectors
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from tests.laws.test_price_laws import oracle
from tests.model.misfortunes import MISFORTUNES, Misfortune

from tallystick.agent.loop import LoopThread
from tallystick.core.budget.amount import COUNTED, Amount, Breach, Budget, ScopeKind, ScopeRow
from tallystick.core.budget.tree import BudgetTree, Reservation
from tallystick.core.charge import ModelUsage, Reserved
from tallystick.core.records import QueryAsked, QueryFailed, QueryRecord, QueryReplied, Record
from tallystick.model.dialect import usage_of
from tallystick.model.pacing import Gate
from tallystick.model.port import Heard, ModelError, ModelReply, ModelRequest
from tallystick.model.prices import TokenUsage

Figures = dict[str, int]
# Around each message and around all of them, by OpenAI's own count.
MESSAGE_TOKENS, REQUEST_TOKENS = 4, 3


# -- time ---------------------------------------------------------------------------------------


class Stuck(Exception):
    """Everybody waits, and nothing will ever happen."""


class _Instant(selectors.SelectSelector):
    """Does not wait for a time: it is then that time."""

    def __init__(self, *, alone: bool) -> None:
        super().__init__()
        self.now = 0.0
        self._alone = alone

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if found or timeout == 0:
            return found
        if timeout is None:
            if self._alone:
                raise Stuck
            return super().select(None)
        self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose clock is its own. One that is `alone` is told nothing by other threads."""

    def __init__(self, *, alone: bool = True) -> None:
        self._instant = _Instant(alone=alone)
        super().__init__(self._instant)

    def time(self) -> float:
        return self._instant.now


class VirtualLoopThread(LoopThread):
    """The loop of a session, with such a clock."""

    def _start(self) -> None:
        real = asyncio.new_event_loop
        asyncio.new_event_loop = lambda: VirtualLoop(alone=False)
        try:
            super()._start()
        finally:
            asyncio.new_event_loop = real


# -- scopes -------------------------------------------------------------------------------------


def figures(amount: Amount) -> Figures:
    return {dimension: getattr(amount, dimension) or 0 for dimension in COUNTED}


def _zero() -> Figures:
    return dict.fromkeys(COUNTED, 0)


class WatchedTree(BudgetTree):
    """A tree whose every action is counted once more, by its definition, and compared."""

    def __init__(self) -> None:
        super().__init__()
        self.parents: dict[str, str | None] = {}
        self.limits: dict[str, Budget] = {}
        self.spent: dict[str, Figures] = defaultdict(_zero)
        self.held: dict[str, Figures] = defaultdict(_zero)
        # By the scope in which it happened, and in no other.
        self.alone: dict[str, Figures] = defaultdict(_zero)
        # Scopes in which a call was charged more than was reserved for it.
        self.overrun: set[str] = set()
        self.actions = 0

    def chain(self, scope: str) -> list[str]:
        found: list[str] = []
        at: str | None = scope
        while at is not None:
            found.append(at)
            at = self.parents[at]
        return found

    def enter(
        self, scope: str, *, parent: str | None, budget: Budget, kind: ScopeKind, name: str
    ) -> None:
        super().enter(scope, parent=parent, budget=budget, kind=kind, name=name)
        self.parents[scope], self.limits[scope] = parent, budget
        self._checked()

    def leave(self, scope: str) -> ScopeRow:
        row = super().leave(scope)
        self._checked()
        return row

    def reserve(self, scope: str, worst: Amount, *, usd_waived: bool = False) -> Reservation:
        over = [each for each in self.chain(scope) if self.overdrawn(each)]
        made = super().reserve(scope, worst, usd_waived=usd_waived)
        assert not over, f"{over[0]} is over its limit and lets a further call through"
        limited = [each for each in self.chain(scope) if self._limits_cost(each)]
        assert not self.overrun & set(limited), f"{limited} let a call through after an overrun"
        self._add(self.held, scope, figures(worst))
        self._checked()
        return made

    def settle(self, reservation: Reservation, actual: Amount) -> list[Breach]:
        breaches = super().settle(reservation, actual)
        worst = figures(reservation.amount)
        used = {**figures(actual), **({"usd": worst["usd"]} if actual.usd is None else {})}
        self._add(self.held, reservation.scope, worst, times=-1)
        self._add(self.spent, reservation.scope, used)
        unpriced = reservation.amount.usd is None
        if used["tokens"] > worst["tokens"] or (not unpriced and used["usd"] > worst["usd"]):
            self.overrun |= set(self.chain(reservation.scope))
        self._alone(reservation.scope, used)
        self._checked()
        return breaches

    def release(self, reservation: Reservation) -> None:
        super().release(reservation)
        self._add(self.held, reservation.scope, figures(reservation.amount), times=-1)
        self._checked()

    def spend(self, scope: str, amount: Amount, *, below: str | None = None) -> list[Breach]:
        breaches = super().spend(scope, amount, below=below)
        self._add(self.spent, scope, figures(amount))
        self._alone(scope, figures(amount))
        if below is not None:
            # What is above has it already: there, it only moves into the scope.
            self._add(self.spent, below, figures(amount), times=-1)
            self._alone(below, figures(amount), times=-1)
        self._checked()
        return breaches

    def overdrawn(self, scope: str) -> bool:
        caps = figures_of_limit(self.limits[scope])
        return any(self.spent[scope][dimension] > cap for dimension, cap in caps.items())

    def _limits_cost(self, scope: str) -> bool:
        limit = self.limits[scope]
        return limit.usd is not None or limit.tokens is not None

    def quiet(self) -> None:
        """Nothing goes on: nothing is reserved, and what the leaves spent is what the root did."""
        for scope in self.parents:
            assert self.held[scope] == _zero(), scope
            inside = [each for each in self.parents if scope in self.chain(each)]
            for dimension in COUNTED:
                everything = sum(self.alone[each][dimension] for each in inside)
                assert self.spent[scope][dimension] == everything
        for row in self.rows():
            assert row.reserved == Amount()
            assert not row.left

    def _add(self, sums: dict[str, Figures], scope: str, some: Figures, *, times: int = 1) -> None:
        for each in self.chain(scope):
            for dimension, figure in some.items():
                sums[each][dimension] += times * figure

    def _alone(self, scope: str, some: Figures, *, times: int = 1) -> None:
        for dimension, figure in some.items():
            self.alone[scope][dimension] += times * figure

    def _checked(self) -> None:
        """Limit = remaining + reserved + spent, in every scope, by sums that are not the tree's."""
        self.actions += 1
        for row in self.rows():
            scope = row.scope.id
            assert figures(row.spent) == self.spent[scope]
            assert figures(row.reserved) == self.held[scope]
            for dimension, limit in figures_of_limit(row.limit).items():
                left = getattr(row.remaining, dimension)
                assert limit == left + self.held[scope][dimension] + self.spent[scope][dimension]


def figures_of_limit(budget: Budget) -> Figures:
    found = {dimension: getattr(budget, dimension) for dimension in COUNTED}
    return {dimension: limit for dimension, limit in found.items() if limit is not None}


# -- the bill -----------------------------------------------------------------------------------


@dataclass
class Books:
    """What servers billed, in every scope that pays for it."""

    honest: bool = True
    billed: dict[tuple[int, str], Figures] = field(default_factory=lambda: defaultdict(_zero))
    attempts: int = 0
    # What did not hold while something was billed: an error in a backend is one attempt's end.
    broken: list[AssertionError] = field(default_factory=list)

    def write(
        self, places: Sequence[tuple[WatchedTree, str]], *, usd: int, tokens: int, known: bool
    ) -> None:
        """Bill one attempt. `known` says that its price is, so that money caps count it."""
        self.attempts += 1
        for tree, scope in places:
            for each in tree.chain(scope):
                bill = self.billed[id(tree), each]
                bill["usd"] += usd if known else 0
                bill["tokens"] += tokens
                bill["model_calls"] += 1
                if self.honest:
                    self._held(tree, each, bill)

    def _held(self, tree: WatchedTree, scope: str, bill: Figures) -> None:
        for dimension in ("usd", "tokens", "model_calls"):
            accounted = tree.spent[scope][dimension] + tree.held[scope][dimension]
            assert bill[dimension] <= accounted, (scope, dimension)
            limit = getattr(tree.limits[scope], dimension)
            if limit is not None:
                assert bill[dimension] <= limit, (scope, dimension)

    def settled(self, trees: Sequence[WatchedTree]) -> None:
        """All is quiet: whatever was billed stands in the scopes' own sums too."""
        for error in self.broken:
            raise error
        for tree in trees:
            for scope in tree.parents:
                bill = self.billed[id(tree), scope]
                for dimension in ("usd", "tokens", "model_calls"):
                    assert bill[dimension] <= tree.spent[scope][dimension], (scope, dimension)


# -- servers ------------------------------------------------------------------------------------

Made = Callable[[Random, TokenUsage], object]
# What is on record as reserved for the attempt of a request; None where that is not known.
ReservedFor = Callable[[ModelRequest], Reserved | None]


def openai_report(usage: TokenUsage) -> dict[str, object]:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {
            "cached_tokens": usage.cache_read,
            "cache_write_tokens": usage.cache_write,
        },
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def xai_report(usage: TokenUsage) -> dict[str, object]:
    """Reasoning beside the completion; only the total shows it."""
    return {**openai_report(usage), "completion_tokens": usage.output - usage.reasoning}


def anthropic_report(usage: TokenUsage) -> dict[str, object]:
    return {
        "input_tokens": usage.input - usage.cache_read - usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_creation": {"ephemeral_1h_input_tokens": usage.cache_write_hour},
        "output_tokens": usage.output,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
    }


# What a server may say that is not so. Less than the truth, in figures that could be true, is left
# out: nobody on this side can know that.
MISREPORTS: dict[str, Made] = {
    "missing": lambda chance, usage: None,
    "empty": lambda chance, usage: {},
    "of another kind": lambda chance, usage: chance.choice(["12", 12, [], True]),
    "zero": lambda chance, usage: {"prompt_tokens": 0, "completion_tokens": 0},
    "no input": lambda chance, usage: {"prompt_tokens": 0, "completion_tokens": usage.output},
    "no output": lambda chance, usage: {"prompt_tokens": usage.input, "completion_tokens": 0},
    "half": lambda chance, usage: {"prompt_tokens": 1},
    "negative": lambda chance, usage: {"prompt_tokens": -5, "completion_tokens": -1},
    "negative part": lambda chance, usage: {
        "prompt_tokens": 1,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": -1_000_000},
    },
    "contradictory": lambda chance, usage: {
        "prompt_tokens": 1,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": usage.input + 1},
    },
    "texts": lambda chance, usage: {"prompt_tokens": "1", "completion_tokens": 1.5},
    "beyond all counting": lambda chance, usage: {
        "prompt_tokens": chance.choice([10**9 + 1, 10**30]),
        "completion_tokens": usage.output,
    },
}


@dataclass
class Mix:
    """How a server behaves, as weights."""

    well: int = 6
    misreports: int = 1
    absurd: int = 0
    fails: int = 2
    breaks: int = 0
    stalls: int = 1
    bills_too_much: int = 0


@dataclass
class CostedServer:
    """A model with a price that keeps the bill for one client."""

    name: str
    table: Mapping[str, Any]
    known: bool
    chance: Random
    mix: Mix
    books: Books
    # Who pays for a request.
    places: Callable[[ModelRequest], Sequence[tuple[WatchedTree, str]]]
    gate: Gate | None = None
    reserved: ReservedFor = lambda request: None
    program: Callable[[ModelRequest], str] = lambda request: "7"
    # Seconds for what takes one; none where the clock is a real one.
    pace: float = 1.0

    def admitted(self) -> AbstractAsyncContextManager[None]:
        return nullcontext() if self.gate is None else self.gate.admitted()

    async def ask(self, request: ModelRequest, *, heard: Heard = lambda text: None) -> ModelReply:
        mix = self.mix
        kinds = {
            self._well: mix.well,
            self._misreports: mix.misreports,
            self._absurd: mix.absurd,
            self._fails: mix.fails,
            self._breaks: mix.breaks,
            self._stalls: mix.stalls,
            self._bills_too_much: mix.bills_too_much,
        }
        (kind,) = self.chance.choices(list(kinds), list(kinds.values()))
        await asyncio.sleep(self.pace * self.chance.choice([0, 0, 0.1, 3]))
        return await kind(request)

    async def close(self) -> None: ...

    # -- what comes of it ------------------------------------------------------------------------

    async def _well(self, request: ModelRequest) -> ModelReply:
        usage = self._used(request)
        self._bill(request, usage)
        await asyncio.sleep(self.pace * self.chance.choice([0, 0.2]))
        return self._reply(request, self._report(usage), text=self.program(request))

    async def _misreports(self, request: ModelRequest) -> ModelReply:
        usage = self._used(request)
        self._bill(request, usage)
        made = self.chance.choice(list(MISREPORTS.values()))
        return self._reply(request, made(self.chance, usage), text=self.program(request))

    async def _absurd(self, request: ModelRequest) -> ModelReply:
        """A report that is believed, since it is more than was reserved: scopes are then over."""
        usage = self._used(request)
        self._bill(request, usage)
        more = replace(usage, input=10**9, output=self.chance.choice([usage.output, 10**9]))
        if self.known and oracle(dict(self.table), more) < oracle(dict(self.table), usage):
            # A table may ask less for more; then this would be a report below the truth.
            more = usage
        return self._reply(request, self._report(more), text=self.program(request))

    async def _fails(self, request: ModelRequest) -> ModelReply:
        name = self.chance.choice(list(MISFORTUNES))
        error = _error(name, MISFORTUNES[name])
        if error.billed and self.chance.random() < 0.7:
            usage = self._used(request)
            self._bill(request, usage)
            if error.reason == "content_policy":
                error.usage = self._reported(request, openai_report(usage), text="x")
            elif self.chance.random() < 0.3:
                # Up to where it broke off.
                error.usage = ModelUsage(tokens_in=1, tokens_out=1, reported=True)
        raise error

    async def _breaks(self, request: ModelRequest) -> ModelReply:
        """A backend with a fault of its own, after the request has left."""
        self._bill(request, self._used(request))
        await asyncio.sleep(0.1)
        raise RuntimeError("a fault in the backend")

    async def _stalls(self, request: ModelRequest) -> ModelReply:
        self._bill(request, self._used(request))
        await asyncio.sleep(self.pace * self.chance.choice([20, 600]))
        raise ModelError(reason="timeout", message="sent nothing")

    async def _bills_too_much(self, request: ModelRequest) -> ModelReply:
        """Neither the bytes nor the cap are anything to it; what it reports is what it bills."""
        usage = TokenUsage(
            input=self._most_in(request) * 50, output=request.tokens_out_max * 50 + 50
        )
        self._bill(request, usage)
        return self._reply(request, openai_report(usage), text="more than was asked for")

    # -- inside ----------------------------------------------------------------------------------

    def _bill(self, request: ModelRequest, usage: TokenUsage) -> None:
        usd = oracle(dict(self.table), usage) if self.known else 0
        tokens = usage.input + usage.output
        try:
            held = self.reserved(request)
            if self.books.honest and held is not None:
                assert tokens <= held.tokens_in + held.tokens_out
                assert held.usd is None or usd <= held.usd
            self.books.write(self.places(request), usd=usd, tokens=tokens, known=self.known)
        except AssertionError as error:
            self.books.broken.append(error)
            raise

    def _used(self, request: ModelRequest) -> TokenUsage:
        most, cap = self._most_in(request), request.tokens_out_max
        input_ = self.chance.choice([1, max(1, most // 4), most, most])
        output = self.chance.choice([1, max(1, cap // 3), cap, cap])
        read = self.chance.choice([0, 0, self.chance.randint(0, input_)])
        written = self.chance.choice([0, 0, input_ - read])
        return TokenUsage(
            input=input_,
            output=output,
            cache_read=read,
            cache_write=written,
            cache_write_hour=self.chance.choice([0, written, self.chance.randint(0, written)]),
            reasoning=self.chance.choice([0, output, self.chance.randint(0, output)]),
        )

    def _most_in(self, request: ModelRequest) -> int:
        sent = sum(len(each.text.encode("utf-8", "surrogatepass")) for each in request.messages)
        return sent + MESSAGE_TOKENS * len(request.messages) + REQUEST_TOKENS

    def _report(self, usage: TokenUsage) -> dict[str, object]:
        # OpenAI has no name for what is kept for an hour.
        if usage.cache_write_hour:
            return anthropic_report(usage)
        return self.chance.choice([openai_report, xai_report, anthropic_report])(usage)

    def _reply(self, request: ModelRequest, raw: object, *, text: str) -> ModelReply:
        return ModelReply(text=text, usage=self._reported(request, raw, text=text))

    def _reported(self, request: ModelRequest, raw: object, *, text: str) -> ModelUsage:
        """The report as a transport reads it."""
        if isinstance(raw, dict) and "input_tokens" in raw:
            names: tuple[str, ...] = (
                "input_tokens",
                "cache_read_input_tokens",
                "cache_creation_input_tokens",
            )
            made = "output_tokens"
        else:
            names, made = ("prompt_tokens",), "completion_tokens"
        return usage_of(raw, tokens_in=names, tokens_out=made, request=request, text=text)


def _error(name: str, misfortune: Misfortune) -> ModelError:
    word = name.split(",")[0].split()[0]
    return ModelError(
        reason=misfortune.reason,
        message=name,
        kind=misfortune.kind,
        status=int(word) if word.isdigit() else None,
        retry_after_ms=misfortune.retry_after_ms,
        billed=misfortune.billed,
    )


# -- records ------------------------------------------------------------------------------------


def charged_quietly(records: Sequence[Record]) -> tuple[int, int]:
    """Check that each attempt has its end. Return what they were charged: dollars and tokens."""
    begun = [_key(each) for each in records if isinstance(each, QueryAsked)]
    ends = [each for each in records if isinstance(each, QueryReplied | QueryFailed)]
    assert sorted(begun) == sorted(map(_key, ends))
    assert len(set(begun)) == len(begun)
    return (
        sum(each.settled.usd or 0 for each in ends),
        sum(each.settled.tokens_in + each.settled.tokens_out for each in ends),
    )


def _key(record: QueryRecord) -> tuple[int, int, int]:
    return record.intent, record.item, record.attempt
