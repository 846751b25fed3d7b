"""Reserve and settle in all scopes that pay for a run: in every tree, and in the shared total.

A run is in its client's tree; a step that began it may be in another. A reservation is made in all
of them or in none. Each tree has its own lock, since steps and runs are started from any thread.
If other calls hold the money, a call waits in line: `MoneyWait`.
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

# The shared scope: one total for all runs on a ledger's file. It is recorded in that file and binds
# every process, whatever its configuration says. Each reservation reads it again, since another
# process may have recorded or lowered it meanwhile.
DEPLOYMENT = "deployment"
_NO_LIMIT = Budget()


class SharedHolds:
    """The reservations of one client in the shared scope, and the calls that wait there."""

    def __init__(self) -> None:
        self.here: set[tuple[str, int]] = set()
        self.lines = WaitingLines(polled=True)


class SharedCap:
    """The reservations of one run in the shared scope. Each attempt has its own number.

    A method that writes raises `LedgerConflict` if a process that took over the run has used or
    closed the number.
    """

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
        """Return True if calls in progress, here or in a living process, may give money back."""
        return bool(self._holds.here) or any(not each.owner_dead for each in self._scopes.holds())

    def of(self, run: str) -> SharedCap:
        """Return the shared scope for another run, which has reservations of its own."""
        return SharedCap(self._scopes, run=run, own=self._own, holds=self._holds)

    def remaining(self) -> Remaining:
        """Return what is left of the total; no limit where none is recorded."""
        if not self._scopes.knows(DEPLOYMENT):
            return Remaining()
        return self._scopes.remaining(DEPLOYMENT, own=self._own)

    def reserve(self, worst: Amount, *, usd_waived: bool) -> int | None:
        """Commit a reservation, and return its number; None if the ledger has no total.

        If this process dies, the reservation stays until the run is resumed or resolved. Raise
        `BudgetExhausted` if the total does not allow it, and `BudgetUnpriced` if the total limits
        money, the price is unknown, and that is not waived.
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
        """Return the numbers of the open reservations of the run."""
        return [each.row.intent for each in self._scopes.holds(run=self._run)]

    def number_after(self, last: int) -> None:
        """Start the next numbers after `last`, and after the reservations that are still open."""
        self._numbers = itertools.count(max([last, *self.open()]) + 1)

    def settle(self, number: int, used: Amount) -> list[Breach]:
        """Replace a reservation by what was used; return the limits that are passed now.

        Then wake the first call that waits for the total.
        """
        with self._closing(number, wakes=True) as within:
            return self._scopes.settle(within, run=self._run, intent=number, actual=used)

    def release(self, number: int, *, wakes: bool = True) -> None:
        """Give back a reservation whose call cost nothing; with `wakes`, wake the first in line."""
        with self._closing(number, wakes=wakes) as within:
            self._scopes.release(within, run=self._run, intent=number)

    @contextmanager
    def _closing(self, number: int, *, wakes: bool) -> Iterator[Transaction]:
        """Write the end of a reservation, and then call the first that waits for its money."""
        self._holds.here.discard((self._run, number))
        try:
            with self._ours(), self._scopes.writing(forced=False) as within:
                yield within
        finally:
            if wakes:
                self.lines.wake([DEPLOYMENT])

    @contextmanager
    def _ours(self) -> Iterator[None]:
        """Raise `LedgerConflict` if a process that took over the run closed the reservation."""
        try:
            yield
        except (ReservationClosed, HoldExists) as error:
            raise LedgerConflict(
                run=self._run, field="hold", expected="this process's", found="another's"
            ) from error


_PER_DOLLAR = 10**9


@dataclass(frozen=True, slots=True)
class ScopeTree:
    """A tree of scopes, and the lock under which it is used."""

    tree: BudgetTree = field(default_factory=BudgetTree)
    lock: threading.RLock = field(default_factory=threading.RLock)
    lines: WaitingLines = field(default_factory=WaitingLines)

    def release(self, reservation: Reservation, *, wakes: bool) -> None:
        """Give a reservation back; with `wakes`, call the first that waits at each scope of it.

        Raise `ReservationClosed` if it was given back or settled before.
        """
        with self.lock:
            # Before the release: a scope that was left is gone once nothing is reserved in it.
            scopes = self.tree.around(reservation.scope)
            self.tree.release(reservation)
        if wakes:
            self.lines.wake(scopes)

    def settle(self, reservation: Reservation, used: Amount) -> list[Breach]:
        """Settle a reservation, and call the first that waits at each scope around it.

        Return the limits that are passed now. Raise `ReservationClosed` if it was closed before.
        """
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
    """The reservation of one attempt, in every tree. `shared` is its number in the shared scope."""

    parts: list[tuple[ScopeTree, Reservation]]
    shared: int | None = None
    open: bool = True


class RunScopes:
    """All scopes that pay for one run, the nearest first.

    `knows_before` is a scope of the first tree. What a resumed run spent before is not counted in
    that scope, nor in those around it. None counts it in all.
    """

    def __init__(
        self,
        places: Sequence[ScopeRef],
        shared: SharedCap | None = None,
        *,
        knows_before: str | None = None,
    ) -> None:
        self._places = tuple(places)
        self._shared = shared
        # The scope of the first tree, that has already counted what was spent before a resume.
        self._knows_before = knows_before

    def within(self, place: ScopeRef) -> RunScopes:
        """Return these scopes with a nearer one in front."""
        return RunScopes([place, *self._places], self._shared, knows_before=self._knows_before)

    def inside(self, place: ScopeRef, *, run: str) -> RunScopes:
        """Return the scopes of a child run. `place` is inside the nearest scope, in its tree."""
        shared = None if self._shared is None else self._shared.of(run)
        return RunScopes([place, *self._places[1:]], shared, knows_before=self._knows_before)

    def remaining(self) -> Remaining:
        """Return the least that is left of each dimension in any scope, and in which.

        A dimension without a limit is None.
        """
        found = []
        for place in self._places:
            with place.scope_tree.lock:
                found.append(place.scope_tree.tree.remaining(place.scope))
        if self._shared is not None:
            found.append(self._shared.remaining())
        return functools.reduce(tightest, found) if found else Remaining()

    def reserve(self, worst: Amount, *, usd_waived: bool = False) -> Hold:
        """Reserve `worst` in every scope. Raise the first refusal, and then reserve nowhere.

        That is `BudgetExhausted`, or `BudgetUnpriced` if a scope limits money, the price is
        unknown, and `usd_waived` is False.
        """
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
        """Lock every tree, so that no other thread sees a reservation that is taken back inside.

        Without the lock, another call could be refused for money that is held for a moment only,
        and would have to be woken afterwards. The caller of this may itself be first in line: it
        would wake itself forever.
        """
        with contextlib.ExitStack() as locked:
            # In one order everywhere, or two callers could each wait for the other's lock.
            trees = {id(place.scope_tree): place.scope_tree for place in self._places}
            for key in sorted(trees):
                locked.enter_context(trees[key].lock)
            yield

    def release(self, hold: Hold, *, wakes: bool = True) -> None:
        """Give back the reservation of an attempt that cost nothing. A second call does nothing.

        `wakes` is False only inside `all_or_nothing`, where no other call has seen it. Raise
        `LedgerConflict` as `SharedCap` does, after the trees have it back.
        """
        if hold.open:
            hold.open = False
            for scope_tree, reservation in hold.parts:
                scope_tree.release(reservation, wakes=wakes)
            if self._shared is not None and hold.shared is not None:
                self._shared.release(hold.shared, wakes=wakes)

    def settle(self, hold: Hold, used: Amount) -> list[Breach]:
        """Replace the reservation by what was used, in every scope; return the limits it passed.

        A reservation that is closed already is left alone, and nothing is returned. Raise
        `LedgerConflict` as `SharedCap` does, after it was settled in the trees.
        """
        breaches: list[Breach] = []
        if hold.open:
            hold.open = False
            for scope_tree, reservation in hold.parts:
                breaches += scope_tree.settle(reservation, used)
            if self._shared is not None and hold.shared is not None:
                breaches += self._shared.settle(hold.shared, used)
        return breaches

    def hold_of(self, number: int) -> Hold:
        """Return the reservation that a dead process left in the shared scope.

        It has no parts, and no number either if it was settled before.
        """
        shared = self._shared
        held = shared is not None and number > 0 and number in shared.open()
        return Hold([], number if held else None)

    def reconcile(self, ended: Mapping[int, Amount], begun: Collection[int]) -> None:
        """Close the reservations that a dead process of this run left open, by their numbers.

        One in `ended` is settled with that amount. One that is not in `begun` either was never
        sent, and is released. A call that began and has no recorded end keeps its reservation. New
        reservations are numbered after all of these.
        """
        if self._shared is None:
            return
        for number in self._shared.open():
            if number in ended:
                self._shared.settle(number, ended[number])
            elif number not in begun:
                self._shared.release(number)
        self._shared.number_after(max([0, *ended, *begun]))

    def spend(self, used: Amount) -> None:
        """Count what needs no reservation, such as fuel, in the tree of every scope."""
        for place in self._places:
            with place.scope_tree.lock:
                place.scope_tree.tree.spend(place.scope, used)

    def recall(self, used: Amount) -> None:
        """Count what a resumed run spent earlier, in every scope that has not counted it yet.

        The shared scope is left out: its rows survived the process.
        """
        for number, place in enumerate(self._places):
            below = self._knows_before if number == 0 else None
            with place.scope_tree.lock:
                place.scope_tree.tree.spend(place.scope, used, below=below)

    def overrun(self) -> BudgetOverrun | None:
        """Return the refusal of the nearest scope in which a call cost more than it reserved.

        Return None if there is none in a tree. The shared scope is not asked.
        """
        for place in self._places:
            with place.scope_tree.lock:
                refusal = place.scope_tree.tree.refusal(place.scope, Amount(), usd_waived=True)
            if isinstance(refusal, BudgetOverrun):
                return refusal
        return None

    def is_held(self, error: BudgetExhausted) -> bool:
        """Return True if calls in progress hold what a call was refused for.

        In a tree, only reservations in the dimension of the refusal count; in the shared scope, all
        of this client and of living processes do. False for a scope that has ended.
        """
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
        """Return the nearest line of waiting calls, which a new call has to join; None without."""
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
        """Return the waiting lines of the tree that a scope is in, None for an unknown scope."""
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
        """Return a row for each scope: its limits, what is spent and what is reserved.

        The shared scope has none here.
        """
        found = []
        for place in self._places:
            with place.scope_tree.lock:
                found += [
                    row for row in place.scope_tree.tree.rows() if row.scope.id == place.scope
                ]
        return found


class MoneyWait:
    """The wait of one call for money that other calls hold.

    Use it in a `with`: on the way out the call leaves the line, and the next one is called.
    """

    def __init__(self, run_scopes: RunScopes, *, ends_at: float) -> None:
        self._run_scopes = run_scopes
        self._ends_at = ends_at
        self._waiter: Waiter | None = None
        self._line: tuple[WaitingLines, str] | None = None
        # Between the refusal and the look at who holds the money, it may be given back. So after
        # a look that finds no holder the call tries once more, and a second refusal is final.
        self._held = True

    def __enter__(self) -> MoneyWait:
        return self

    def __exit__(self, *exception: object) -> None:
        self.leave()

    async def turn(self) -> None:
        """Wait until no other call is before this one in line, or its time is over.

        In a line for money that other processes hold, the first also returns after a pause, to ask
        again. Without a line, return at once.
        """
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
        """Join the line after a refusal, and return True; return False if the refusal is final.

        It is final after an overrun, without a price, at the end of the time, and in a scope that
        has ended. It is also final if for the second time no call holds the money.
        """
        if isinstance(error, BudgetOverrun) or not isinstance(error, BudgetExhausted):
            # After an overrun, every further call is refused, whatever is given back.
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
        """Leave the line, if the call is in one."""
        if self._line is not None and self._waiter is not None:
            lines, scope = self._line
            self._line = None
            lines.leave(scope, self._waiter)


def remaining_of(run_scopes: RunScopes) -> Callable[[], dict[str, float | None]]:
    """Return the function that programs call as `budget.remaining()`."""

    def remaining() -> dict[str, float | None]:
        """What is left to spend: usd, tokens and model_calls; None where there is no limit."""  # noqa: D401 (read by models)
        left = run_scopes.remaining()
        return {
            "usd": None if left.usd is None else left.usd / _PER_DOLLAR,
            "tokens": left.tokens,
            "model_calls": left.model_calls,
        }

    return remaining
