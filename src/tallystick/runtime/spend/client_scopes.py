"""Where a session's money is: the scopes of its runs, the cap it shares with others, its prices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tallystick.core.budget.amount import Budget, Dimension, ScopeRow
from tallystick.core.charge import RunLimits
from tallystick.core.errors import UsageError
from tallystick.ledger.port import Ledger
from tallystick.ledger.scopes import Scopes
from tallystick.model.price_table import Pricing
from tallystick.runtime.runs.in_doubt import release_unsent
from tallystick.runtime.spend.door import ModelDoor, Noted
from tallystick.runtime.spend.scopes import (
    DEPLOYMENT,
    RunScopes,
    ScopeRef,
    ScopeTree,
    SharedCap,
    SharedHolds,
)

NO_LIMIT = Budget()
PRICING = Pricing()
_SESSION = "session"
_TOTAL = "total"
# How deep runs may stand inside each other is a limit of a run, not of a budget.
_OF_RUNS: tuple[Dimension, ...] = ("depth",)
# What is counted without being reserved is counted in this process only.
_ONE_PROCESS: tuple[Dimension, ...] = (
    "turns",
    "host_calls",
    "fuel",
    "wall_ms",
    "output_bytes",
)


class ClientScopes:
    """Pays for the runs of one session."""

    def __init__(self, *, budget: Budget, total: Budget, pricing: Pricing) -> None:
        _check_dimensions("budget", budget, _OF_RUNS)
        _check_dimensions("total", total, (*_OF_RUNS, *_ONE_PROCESS))
        self._account = ScopeTree()
        self._account.tree.enter(_SESSION, parent=None, budget=budget, kind="session", name="")
        self._total = total
        # A total that was configured, on a ledger that has no file to record it in.
        self._unrecorded: ScopeTree | None = None
        self._total_given = total != NO_LIMIT
        self._pricing = pricing
        self._scopes: Scopes | None = None
        self._shared_holds = SharedHolds()
        self._paid_for: set[str] = set()

    def configure(self, *, total: Budget, total_given: bool, pricing: Pricing) -> None:
        """Take the total and the prices in force. A total that was not given may not be kept."""
        self._total, self._total_given, self._pricing = total, total_given, pricing

    @contextmanager
    def run(
        self,
        run: str,
        limits: RunLimits,
        ledger: Ledger,
        *,
        places: Sequence[ScopeRef] = (),
        noted: Noted = lambda model, charge: None,
        shared_before: bool = False,
    ) -> Iterator[ModelDoor]:
        """Give the door to models for one run, whose scope is open as long as the run goes.

        `places` stand in other trees; they pay too, and `noted` hears of each call. What a run
        spent before it was gone on with counts in the session, unless that paid for it, or the run
        only shares it with another (`shared_before`).
        """
        counted = shared_before or run in self._paid_for
        self._paid_for.add(run)
        with self._account.lock:
            self._account.tree.enter(
                run, parent=_SESSION, budget=budget_of(limits), kind="run", name=""
            )
        try:
            shared = self._shared(run, ledger)
            alone = self._unshared_total() if shared is None else []
            run_scopes = RunScopes(
                [ScopeRef(self._account, run), *places, *alone],
                shared,
                knows_before=_SESSION if counted else None,
            )
            yield ModelDoor(run_scopes, self._pricing, noted=noted)
        finally:
            with self._account.lock:
                self._account.tree.leave(run)

    @contextmanager
    def child(
        self, model_door: ModelDoor, run: str, limits: RunLimits, *, parent: str
    ) -> Iterator[ModelDoor]:
        """Give the door for a run inside another, which pays for it with all that is around it."""
        with self._account.lock:
            self._account.tree.enter(
                run, parent=parent, budget=budget_of(limits), kind="run", name=""
            )
        try:
            yield model_door.inside(ScopeRef(self._account, run), run=run)
        finally:
            with self._account.lock:
                self._account.tree.leave(run)

    def rows(self) -> list[ScopeRow]:
        """Where the session stands, its runs, and what it shares with others."""
        with self._account.lock:
            rows = self._account.tree.rows()
        return rows if self._scopes is None else [*rows, *self._scopes.rows()]

    def close(self) -> None:
        if self._scopes is not None:
            self._scopes.close()
            self._scopes = None

    def _shared(self, run: str, ledger: Ledger) -> SharedCap | None:
        """Return what pays for a run beside its own scopes: the total of a ledger in a file.

        The first total that a process brings is recorded, and binds all others from then on.
        """
        if self._scopes is None:
            self._scopes = ledger.shared_scopes()
            if self._scopes is not None:
                release_unsent(ledger, self._scopes)
        if self._scopes is None:
            if self._total != NO_LIMIT and self._total_given:
                raise UsageError("total: a ledger in a file is needed to share a cap with others")
            return None
        self._scopes.record_total(DEPLOYMENT, self._total)
        return SharedCap(self._scopes, run=run, own=self._total, holds=self._shared_holds)

    def _unshared_total(self) -> list[ScopeRef]:
        """Return the scope of a configured total that no other process can share: the client's own.

        Configured for everything that is spent, it may not be without effect in a program that
        keeps its ledger in memory.
        """
        if self._total == NO_LIMIT:
            return []
        if self._unrecorded is None:
            self._unrecorded = ScopeTree()
            self._unrecorded.tree.enter(
                _TOTAL, parent=None, budget=self._total, kind="session", name=""
            )
        return [ScopeRef(self._unrecorded, _TOTAL)]


def _check_dimensions(what: str, budget: Budget, not_kept: tuple[Dimension, ...]) -> None:
    """A limit that nobody would keep is refused, not taken."""
    for dimension in not_kept:
        if getattr(budget, dimension) is not None:
            raise UsageError(f"{what}.{dimension} is not supported; limit usd, tokens, model_calls")


def budget_of(limits: RunLimits) -> Budget:
    """The limits of a run that are reserved before a call."""
    return Budget(tokens=limits.tokens, usd=limits.usd, model_calls=limits.model_calls)
