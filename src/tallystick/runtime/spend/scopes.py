"""What pays for a run: the scopes around it, in every tree they stand in, also shared ones.

A run stands in its session's tree; a step that began it may stand in another. A reservation is made
in all of them or in none. Each tree has a lock of its own, since steps and runs are begun from any
thread.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tallystick.core.budget.amount import (
    Amount,
    Breach,
    Budget,
    BudgetOverrun,
    Dimension,
    HoldExists,
    Remaining,
    ReservationClosed,
    ScopeRow,
    tightest,
)
from tallystick.core.budget.tree import BudgetTree, Reservation
from tallystick.core.errors import LedgerConflict
from tallystick.ledger.scopes import SharedScopes
from tallystick.ledger.sqlite import LedgerFile

# The part of a purse that several processes share: one cap for all runs on a ledger's file.
#
# The total is recorded in that file and binds every process, whatever it is configured with. So
# each reservation looks whether there is one: another process may have recorded it meanwhile.


DEPLOYMENT = "deployment"
_NO_LIMIT = Budget()


def declared(file: LedgerFile, budget: Budget) -> SharedScopes:
    """Open the shared scopes of a ledger's file, with this total if it has none recorded yet."""
    scopes = SharedScopes(file)
    scopes.record_total(DEPLOYMENT, budget)
    return scopes


class SharedCap:
    """What one run holds of the shared scope. Each attempt has a number of its own."""

    def __init__(
        self,
        file: LedgerFile,
        scopes: SharedScopes,
        *,
        run: str,
        own: Budget = _NO_LIMIT,
        here: set[tuple[str, int]] | None = None,
    ) -> None:
        self._file = file
        self._scopes = scopes
        self._run = run
        # The total of this process, which counts where it is lower than the recorded one.
        self._own = own
        self._numbers = itertools.count(1)
        # What is held by this run, and by those around and inside it: their calls are under way.
        self._here: set[tuple[str, int]] = set() if here is None else here

    @property
    def is_held(self) -> bool:
        """Whether calls of this tree of runs are under way, and so may give something back."""
        return bool(self._here)

    def of(self, run: str) -> SharedCap:
        """The same for another run, whose holds are its own."""
        return SharedCap(self._file, self._scopes, run=run, own=self._own, here=self._here)

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
        with self._ours(), self._file.writing(forced=False) as db:
            self._scopes.hold(
                db,
                scope=DEPLOYMENT,
                run=self._run,
                intent=number,
                owner=self._scopes.owner(),
                amount=worst,
                usd_waived=usd_waived,
                own=self._own,
            )
        self._here.add((self._run, number))
        return number

    def open(self) -> list[int]:
        """The numbers of what is held for the run."""
        return [each.row.intent for each in self._scopes.holds(run=self._run)]

    def go_on(self, last: int) -> None:
        """Go on with numbers after those that a process before this one used."""
        self._numbers = itertools.count(max([last, *self.open()]) + 1)

    def settle(self, number: int, used: Amount) -> list[Breach]:
        self._here.discard((self._run, number))
        with self._ours(), self._file.writing(forced=False) as db:
            return self._scopes.settle(db, run=self._run, intent=number, actual=used)

    def release(self, number: int) -> None:
        self._here.discard((self._run, number))
        with self._ours(), self._file.writing(forced=False) as db:
            self._scopes.release(db, run=self._run, intent=number)

    @contextmanager
    def _ours(self) -> Iterator[None]:
        """A hold that is not as we left it was closed by whoever took the run from us."""
        try:
            yield
        except (ReservationClosed, HoldExists) as error:
            raise LedgerConflict(
                run=self._run, field="hold", expected="this process's", found="another's"
            ) from error


# What pays for a run: the scopes around it, in every tree they stand in, as one purse.


_PER_DOLLAR = 10**9


@dataclass(frozen=True, slots=True)
class ScopeTree:
    """A tree of scopes, and the lock under which it is used."""

    tree: BudgetTree = field(default_factory=BudgetTree)
    lock: threading.RLock = field(default_factory=threading.RLock)


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
        try:
            for place in self._places:
                with place.scope_tree.lock:
                    made = place.scope_tree.tree.reserve(place.scope, worst, usd_waived=usd_waived)
                hold.parts.append((place.scope_tree, made))
            if self._shared is not None:
                hold.shared = self._shared.reserve(worst, usd_waived=usd_waived)
        except BaseException:
            self.release(hold)
            raise
        return hold

    def release(self, hold: Hold) -> None:
        """Give it back: the attempt is known to have cost nothing. Twice is the same as once."""
        if hold.open:
            hold.open = False
            for scope_tree, reservation in hold.parts:
                with scope_tree.lock:
                    scope_tree.tree.release(reservation)
            if self._shared is not None and hold.shared is not None:
                self._shared.release(hold.shared)

    def settle(self, hold: Hold, used: Amount) -> list[Breach]:
        """Put what was used in its place, everywhere, and then say which limits it passed."""
        breaches: list[Breach] = []
        if hold.open:
            hold.open = False
            for scope_tree, reservation in hold.parts:
                with scope_tree.lock:
                    breaches += scope_tree.tree.settle(reservation, used)
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

    def is_held(self, scope: str, dimension: Dimension) -> bool:
        """Whether calls under way hold some of a scope here, and so may give it back."""
        if scope == DEPLOYMENT:
            return self._shared is not None and self._shared.is_held
        for place in self._places:
            with place.scope_tree.lock:
                for row in place.scope_tree.tree.rows():
                    held: int | None = getattr(row.reserved, dimension, None)
                    if row.scope.id == scope and held:
                        return True
        return False

    def rows(self) -> list[ScopeRow]:
        """Where each of the scopes stands."""
        found = []
        for place in self._places:
            with place.scope_tree.lock:
                found += [
                    row for row in place.scope_tree.tree.rows() if row.scope.id == place.scope
                ]
        return found


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
