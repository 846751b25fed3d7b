"""The part of a purse that several processes share: one cap for all runs on a ledger's file."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

from tallystick.core.budget_amount import Amount, Breach, Budget, Remaining
from tallystick.core.budget_errors import HoldExists, ReservationClosed
from tallystick.core.errors import LedgerConflict
from tallystick.ledger.scopes import SharedScopes
from tallystick.ledger.sqlite_file import LedgerFile

__all__ = ["DEPLOYMENT", "SharedPurse", "declared"]

DEPLOYMENT = "deployment"


def declared(file: LedgerFile, budget: Budget) -> SharedScopes:
    """The shared scopes of a ledger's file, with this cap for all runs together."""
    scopes = SharedScopes(file)
    scopes.declare(DEPLOYMENT, parent=None, kind="deployment", name="", budget=budget)
    return scopes


class SharedPurse:
    """What one run holds of the shared scope. Each attempt has a number of its own."""

    def __init__(
        self,
        file: LedgerFile,
        scopes: SharedScopes,
        *,
        run: str,
        here: set[tuple[str, int]] | None = None,
    ) -> None:
        self._file = file
        self._scopes = scopes
        self._run = run
        self._numbers = itertools.count(1)
        # What is held by this run, and by those around and inside it: their calls are under way.
        self._here: set[tuple[str, int]] = set() if here is None else here

    @property
    def is_held(self) -> bool:
        """Whether calls of this tree of runs are under way, and so may give something back."""
        return bool(self._here)

    def of(self, run: str) -> SharedPurse:
        """The same for another run, whose holds are its own."""
        return SharedPurse(self._file, self._scopes, run=run, here=self._here)

    def remaining(self) -> Remaining:
        return self._scopes.remaining(DEPLOYMENT)

    def reserve(self, worst: Amount, *, usd_waived: bool) -> int:
        """Hold it, committed: what dies with it held stays held until somebody resolves it."""
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
