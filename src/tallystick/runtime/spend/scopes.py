"""The scopes that pay for a run: those around it in every tree, and the one that processes share.

A run stands in its session's tree; a step that began it may stand in another. A reservation is made
in all of them or in none. Each tree has a lock of its own, since steps and runs are begun from any
thread. A call that other calls keep from its money waits in line: `MoneyWait`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tallystick.core.budget.amount import (
    Amount,
    Breach,
    Budget,
    BudgetExhausted,
    BudgetOverrun,
    BudgetUnpriced,
    HoldExists,
    Remaining,
    ReservationClosed,
    Scope,
    ScopeRow,
    tightest,
)
from tallystick.core.budget.tree import BudgetTree, Reservation
from tallystick.core.errors import LedgerConflict
from tallystick.ledger.scopes import Scopes
from tallystick.runtime.spend.line import Waiter, WaitingLines
from tallystick.storage.transaction import Transaction

# The scope that several processes share: one cap for all runs on a ledger's file.
#
# The total is recorded in that file and binds every process, whatever it is configured with. So
# each reservation looks whether there is one: another process may have recorded it meanwhile.


DEPLOYMENT = "deployment"
_NO_LIMIT = Budget()


class SharedHolds:
    """What the runs of one client hold of the shared scope, and the line of those that wait."""

    def __init__(self) -> None:
        self.here: set[tuple[str, int]] = set()
        self.lines = WaitingLines(polled=True)


class SharedCap:
    """What one run holds of the shared scope. Each attempt has a number of its own."""

    def __init__(
        self,
        scopes: Scopes,
        *,
        run: str,
        own: Budget = _NO_LIMIT,
        holds: SharedHolds | None = None,
    ) -> None:
        self._scopes = scopes
        self._run = run
        # The total of this process, which counts where it is lower than the recorded one.
        self._own = own
        self._numbers = itertools.count(1)
        self._holds = SharedHolds() if holds is None else holds

    @property
    def lines(self) -> WaitingLines:
        return self._holds.lines

    @property
    def is_held(self) -> bool:
        """Tell whether calls under way, here or in a living process, may give something back."""
        return bool(self._holds.here) or any(not each.owner_dead for each in self._scopes.holds())

    def of(self, run: str) -> SharedCap:
        """The same for another run, whose holds are its own."""
        return SharedCap(self._scopes, run=run, own=self._own, holds=self._holds)

    def remaining(self) -> Remaining:
        if not self._scopes.knows(DEPLOYMENT):
            return Remaining()
        return self._scopes.remaining(DEPLOYMENT, own=self._own)

    def reserve(self, worst: Amount, *, usd_waived: bool) -> int | None:
        """Hold it, committed: what dies with it held stays held until somebody resolves it.

        Returns the number of the hold, None where the ledger has no total.
        """
        if not self._scopes.knows(DEPLOYMENT):
            return None
        number = next(self._numbers)
        with self._ours(), self._scopes.writing(forced=False) as within:
            self._scopes.hold(
                within,
                scope=DEPLOYMENT,
                run=self._run,
                intent=number,
                owner=self._scopes.owner(),
                amount=worst,
                usd_waived=usd_waived,
                own=self._own,
            )
        self._holds.here.add((self._run, number))
        return number

    def open(self) -> list[int]:
        """The numbers of what is held for the run."""
        return [each.row.intent for each in self._scopes.holds(run=self._run)]

    def go_on(self, last: int) -> None:
        """Go on with numbers after those that a process before this one used."""
        self._numbers = itertools.count(max([last, *self.open()]) + 1)

    def settle(self, number: int, used: Amount) -> list[Breach]:
        with self._closing(number, wakes=True) as within:
            return self._scopes.settle(within, run=self._run, intent=number, actual=used)

    def release(self, number: int, *, wakes: bool = True) -> None:
        with self._closing(number, wakes=wakes) as within:
            self._scopes.release(within, run=self._run, intent=number)

    @contextmanager
    def _closing(self, number: int, *, wakes: bool) -> Iterator[Transaction]:
        """Write how a hold ends, and then call the first that waits for what comes back."""
        self._holds.here.discard((self._run, number))
        try:
            with self._ours(), self._scopes.writing(forced=False) as within:
                yield within
        finally:
            if wakes:
                self.lines.wake([DEPLOYMENT])

    @contextmanager
    def _ours(self) -> Iterator[None]:
        """A hold that is not as we left it was closed by whoever took the run from us."""
        try:
            yield
        except (ReservationClosed, HoldExists) as error:
            raise LedgerConflict(
                run=self._run, field="hold", expected="this process's", found="another's"
            ) from error


# The scopes that pay for a run, in every tree they are in, as one.


_PER_DOLLAR = 10**9


@dataclass(frozen=True, slots=True)
class ScopeTree:
    """A tree of scopes, and the lock under which it is used."""

    tree: BudgetTree = field(default_factory=BudgetTree)
    lock: threading.RLock = field(default_factory=threading.RLock)
    lines: WaitingLines = field(default_factory=WaitingLines)

    def release(self, reservation: Reservation, *, wakes: bool) -> None:
        """Give a reservation back; with `wakes`, call the first that waits at each scope of it."""
        with self.lock:
            scopes = self.tree.around(reservation.scope)
            self.tree.release(reservation)
        if wakes:
            self.lines.wake(scopes)

    def settle(self, reservation: Reservation, used: Amount) -> list[Breach]:
        """Settle a reservation, and call the first that waits at each scope around it."""
        with self.lock:
            scopes = self.tree.around(reservation.scope)
            breaches = self.tree.settle(reservation, used)
        self.lines.wake(scopes)
        return breaches


@dataclass(frozen=True, slots=True)
class ScopeRef:
    """A scope in a tree."""

    scope_tree: ScopeTree
    scope: str


@dataclass(slots=True)
class Hold:
    """What is reserved for one attempt, in every tree."""

    parts: list[tuple[ScopeTree, Reservation]]
    shared: int | None = None
    open: bool = True


class RunScopes:
    """The scopes that pay for something, the nearest first."""

    def __init__(
        self,
        places: Sequence[ScopeRef],
        shared: SharedCap | None = None,
        *,
        knows_before: str | None = None,
    ) -> None:
        self._places = tuple(places)
        self._shared = shared
        # The scope, of the first tree, that has counted already what was spent before.
        self._knows_before = knows_before

    def within(self, place: ScopeRef) -> RunScopes:
        """The same with a nearer scope."""
        return RunScopes([place, *self._places], self._shared, knows_before=self._knows_before)

    def inside(self, place: ScopeRef, *, run: str) -> RunScopes:
        """The same for a run inside this one, from a scope inside the nearest, in the same tree."""
        shared = None if self._shared is None else self._shared.of(run)
        return RunScopes([place, *self._places[1:]], shared, knows_before=self._knows_before)

    def remaining(self) -> Remaining:
        """What is left of each dimension in the tightest scope."""
        found = []
        for place in self._places:
            with place.scope_tree.lock:
                found.append(place.scope_tree.tree.remaining(place.scope))
        if self._shared is not None:
            found.append(self._shared.remaining())
        return functools.reduce(tightest, found) if found else Remaining()

    def reserve(self, worst: Amount, *, usd_waived: bool = False) -> Hold:
        """Hold `worst` everywhere. Raises what the first scope says that cannot, and holds none."""
        hold = Hold([])
        with self.all_or_nothing():
            try:
                for place in self._places:
                    tree = place.scope_tree.tree
                    made = tree.reserve(place.scope, worst, usd_waived=usd_waived)
                    hold.parts.append((place.scope_tree, made))
                if self._shared is not None:
                    hold.shared = self._shared.reserve(worst, usd_waived=usd_waived)
            except BaseException:
                self.release(hold, wakes=False)
                raise
        return hold

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Lock every tree, so that nobody sees what is reserved and given back inside.

        Without it, a call of another thread could be refused for what is held for a moment only.
        It would have to be woken when that is given back; and so would the caller of this, which
        may be the first in line itself: it would wake itself for ever.
        """
        with contextlib.ExitStack() as locked:
            # In one order everywhere, or two callers could each wait for the other's lock.
            trees = {id(place.scope_tree): place.scope_tree for place in self._places}
            for key in sorted(trees):
                locked.enter_context(trees[key].lock)
            yield

    def release(self, hold: Hold, *, wakes: bool = True) -> None:
        """Give it back: the attempt is known to have cost nothing. Twice is the same as once.

        `wakes` is False only inside `all_or_nothing`, of what nobody has seen.
        """
        if hold.open:
            hold.open = False
            for scope_tree, reservation in hold.parts:
                scope_tree.release(reservation, wakes=wakes)
            if self._shared is not None and hold.shared is not None:
                self._shared.release(hold.shared, wakes=wakes)

    def settle(self, hold: Hold, used: Amount) -> list[Breach]:
        """Put what was used in its place, everywhere, and then say which limits it passed."""
        breaches: list[Breach] = []
        if hold.open:
            hold.open = False
            for scope_tree, reservation in hold.parts:
                breaches += scope_tree.settle(reservation, used)
            if self._shared is not None and hold.shared is not None:
                breaches += self._shared.settle(hold.shared, used)
        return breaches

    def lost(self, number: int) -> Hold:
        """What a process that died still holds in the shared scope, if that was not settled."""
        shared = self._shared
        held = shared is not None and number > 0 and number in shared.open()
        return Hold([], number if held else None)

    def reconcile(self, ended: Mapping[int, Amount], begun: Collection[int]) -> None:
        """Close the holds of a run that died, by their numbers: `ended` as their calls ended.

        One that is not `begun` either was never sent. What is begun and has not ended stays.
        """
        if self._shared is None:
            return
        for number in self._shared.open():
            if number in ended:
                self._shared.settle(number, ended[number])
            elif number not in begun:
                self._shared.release(number)
        self._shared.go_on(max([0, *ended, *begun]))

    def spend(self, used: Amount) -> None:
        """Note what needed no reservation."""
        for place in self._places:
            with place.scope_tree.lock:
                place.scope_tree.tree.spend(place.scope, used)

    def recall(self, used: Amount) -> None:
        """Note what was spent before, wherever it is not counted yet."""
        for number, place in enumerate(self._places):
            below = self._knows_before if number == 0 else None
            with place.scope_tree.lock:
                place.scope_tree.tree.spend(place.scope, used, below=below)

    def overrun(self) -> BudgetOverrun | None:
        """The refusal of a scope in which a call was charged above its reservation, if any was."""
        for place in self._places:
            with place.scope_tree.lock:
                refusal = place.scope_tree.tree.refusal(place.scope, Amount(), usd_waived=True)
            if isinstance(refusal, BudgetOverrun):
                return refusal
        return None

    def is_held(self, error: BudgetExhausted) -> bool:
        """Tell whether calls under way hold what a call was refused for, and may give it back."""
        if error.scope.id == DEPLOYMENT:
            return self._shared is not None and self._shared.is_held
        scope_tree = self._tree_of(error.scope)
        if scope_tree is None:
            return False
        with scope_tree.lock:
            # Its run may have ended meanwhile, in another thread.
            known = scope_tree.tree.has(error.scope)
            return known and scope_tree.tree.reserved(error.scope.id, error.dimension) > 0

    def first_line(self) -> tuple[WaitingLines, str] | None:
        """Return the nearest line at a scope here, which a call that comes now has to join."""
        for place in self._places:
            with place.scope_tree.lock:
                scopes = place.scope_tree.tree.around(place.scope)
            found = place.scope_tree.lines.first_line(scopes)
            if found is not None:
                return place.scope_tree.lines, found
        if self._shared is not None and self._shared.lines.first_line([DEPLOYMENT]) is not None:
            return self._shared.lines, DEPLOYMENT
        return None

    def lines_at(self, scope: Scope) -> WaitingLines | None:
        """Return the lines of the budget that a scope belongs to; None if it is not one of ours."""
        if scope.id == DEPLOYMENT:
            return None if self._shared is None else self._shared.lines
        scope_tree = self._tree_of(scope)
        return None if scope_tree is None else scope_tree.lines

    def _tree_of(self, scope: Scope) -> ScopeTree | None:
        for place in self._places:
            with place.scope_tree.lock:
                if place.scope_tree.tree.has(scope):
                    return place.scope_tree
        return None

    def rows(self) -> list[ScopeRow]:
        """Where each of the scopes stands."""
        found = []
        for place in self._places:
            with place.scope_tree.lock:
                found += [
                    row for row in place.scope_tree.tree.rows() if row.scope.id == place.scope
                ]
        return found


class MoneyWait:
    """One call on its way to its money: it tries, and waits in line while other calls hold it.

    Use it in a `with`: on the way out it leaves the line, and the next one is called.
    """

    def __init__(self, run_scopes: RunScopes, *, ends_at: float) -> None:
        self._run_scopes = run_scopes
        self._ends_at = ends_at
        self._waiter: Waiter | None = None
        self._line: tuple[WaitingLines, str] | None = None
        # What a call was refused for may be given back just before it looks who holds it. So one
        # that is told that nobody does asks once more, and is refused only if that fails too.
        self._held = True

    def __enter__(self) -> MoneyWait:
        return self

    def __exit__(self, *exception: object) -> None:
        self.leave()

    async def turn(self) -> None:
        """Return when this call may try: no other waits before it, or its time is over."""
        if self._line is None:
            found = self._run_scopes.first_line()
            if found is None:
                return
            self._join(found)
        assert self._line is not None
        assert self._waiter is not None
        lines, scope = self._line
        seconds = self._ends_at - time.monotonic()
        if lines.polled and lines.is_first(scope, self._waiter):
            seconds = min(seconds, self._waiter.next_pause())
        await self._waiter.wait(seconds)

    def stays(self, error: BudgetExhausted | BudgetUnpriced) -> bool:
        """Stand in line after a refusal. Returns False if the refusal is final."""
        if isinstance(error, BudgetOverrun) or not isinstance(error, BudgetExhausted):
            # After an overrun no money that comes back pays for another call.
            return False
        scope = error.scope.id
        lines = self._run_scopes.lines_at(error.scope)
        if lines is None or time.monotonic() >= self._ends_at:
            return False
        before, self._held = self._held, self._run_scopes.is_held(error)
        if self._line != (lines, scope):
            self._join((lines, scope))
            return True
        if not self._held and before and self._waiter is not None:
            self._waiter.call()
        return self._held or before

    def _join(self, line: tuple[WaitingLines, str]) -> None:
        self.leave()
        self._waiter = self._waiter or Waiter()
        self._line = line
        line[0].join(line[1], self._waiter)

    def leave(self) -> None:
        """Leave the line, if it stands in one."""
        if self._line is not None and self._waiter is not None:
            lines, scope = self._line
            self._line = None
            lines.leave(scope, self._waiter)


def remaining_of(run_scopes: RunScopes) -> Callable[[], dict[str, float | None]]:
    """What programs ask for as `budget.remaining()`."""

    def remaining() -> dict[str, float | None]:
        """What is left to spend: usd, tokens and model_calls; None where there is no limit."""
        left = run_scopes.remaining()
        return {
            "usd": None if left.usd is None else left.usd / _PER_DOLLAR,
            "tokens": left.tokens,
            "model_calls": left.model_calls,
        }

    return remaining
