"""Keep the budgets of one client: a scope for each run, the total that processes share, prices."""

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
# How deep runs may be nested is a limit of a run, not of a budget.
_OF_RUNS: tuple[Dimension, ...] = ("depth",)
# Only what is reserved is written to the shared scope. These are counted after the fact, in this
# process alone, so a limit on them could not bind the others.
_ONE_PROCESS: tuple[Dimension, ...] = (
    "turns",
    "host_calls",
    "fuel",
    "wall_ms",
    "output_bytes",
)


class ClientScopes:
    """The budget of one client, and the scopes of its runs in it.

    Raise `UsageError` for a limit in `budget` or `total` that nothing would enforce.
    """

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
        """Set the total and the prices for the runs that follow.

        A ledger without a file cannot record a total. There, one that the caller gave is refused
        when a run starts, and one from the configuration (`total_given` False) binds this client.
        """
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
        """Open the scope of a run, and yield its door to models. The scope closes on the way out.

        `places` are scopes of other trees that pay too. `noted` is called with each settled call.
        What a resumed run spent earlier is counted in the client's budget as well, unless this
        client paid for it then, or the run only shares it with the one it was forked from
        (`shared_before`). Raise `UsageError` for a total that the ledger cannot record, and
        `InvalidScope` if the scope of the run is open.
        """
        # The client's scope stays when a run ends, and the run's own scope is new each time. So
        # only the client's may have counted what the run spent before.
        counted = shared_before or run in self._paid_for
        self._paid_for.add(run)
        with self._account.lock:
            self._account.tree.enter(
                run, parent=_SESSION, budget=budget_of(limits), kind="run", name=""
            )
        try:
            shared = self._shared_cap(run, ledger)
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
        """Open the scope of a child run inside its parent's, and yield its door to models.

        Every scope that pays for the parent pays for the child as well. Raise `BudgetExhausted` at
        the maximum depth, and `InvalidScope` if the scope is open already.
        """
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
        """Return a row for the client, for each open run, and for the shared total.

        The shared total is there once a run was started on a ledger in a file that records one.
        """
        with self._account.lock:
            rows = self._account.tree.rows()
        return rows if self._scopes is None else [*rows, *self._scopes.rows()]

    def close(self) -> None:
        """Close the shared scopes, if they are open. The next run opens them again."""
        if self._scopes is not None:
            self._scopes.close()
            self._scopes = None

    def _shared_cap(self, run: str, ledger: Ledger) -> SharedCap | None:
        """Return what one run reserves of the total of a ledger in a file, None without a file.

        The first total that a process brings is recorded, and binds all others from then on. The
        first run also releases what dead processes reserved and never sent. Raise `UsageError` if
        the caller gave a total and there is no file to record it in.
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
        """Return the scope of a configured total on a ledger without a file; none without a total.

        No other process can share it. It still has to bind this client: a user who configured a
        total would not expect a program with a ledger in memory to ignore it.
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
    """Raise `UsageError` for a limit that nothing would enforce."""
    for dimension in not_kept:
        if getattr(budget, dimension) is not None:
            raise UsageError(f"{what}.{dimension} is not supported; limit usd, tokens, model_calls")


def budget_of(limits: RunLimits) -> Budget:
    """Return the limits of a run that a call reserves before it is sent."""
    return Budget(tokens=limits.tokens, usd=limits.usd, model_calls=limits.model_calls)
