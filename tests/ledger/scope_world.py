"""A ledger and the scopes that are shared on it, for tests of any backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from tests.ledger.builders import RUN

from tallystick.core.budget.amount import Amount, Breach, Budget
from tallystick.ledger.port import Ledger
from tallystick.ledger.scopes import Scopes

AnyLedger = TypeVar("AnyLedger", bound=Ledger)


@dataclass
class World(Generic[AnyLedger]):
    """A ledger with a deployment and a session in it."""

    ledger: AnyLedger
    scopes: Scopes

    def declare(self, *, deployment: Budget | None = None, session: Budget | None = None) -> None:
        self.scopes.declare(
            "d", parent=None, kind="deployment", name="acme", budget=deployment or Budget()
        )
        self.scopes.declare(
            "s", parent="d", kind="session", name="mine", budget=session or Budget()
        )

    def hold(self, amount: Amount, *, intent: int = 1, waived: bool = False) -> None:
        owner = self.scopes.owner()
        with self.scopes.writing(forced=False) as within:
            self.scopes.hold(
                within,
                scope="s",
                run=RUN,
                intent=intent,
                owner=owner,
                amount=amount,
                usd_waived=waived,
            )

    def settle(self, actual: Amount, *, intent: int = 1) -> list[Breach]:
        with self.scopes.writing(forced=False) as within:
            return self.scopes.settle(within, run=RUN, intent=intent, actual=actual)

    def release(self, *, intent: int = 1) -> None:
        with self.scopes.writing(forced=False) as within:
            self.scopes.release(within, run=RUN, intent=intent)

    def figures(self) -> list[tuple[int, int]]:
        """Tokens spent and reserved, the deployment first."""
        return [(row.spent.tokens, row.reserved.tokens) for row in self.scopes.rows()]
