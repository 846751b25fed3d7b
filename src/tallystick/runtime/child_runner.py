"""What a run hands on to its children, and who drives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tallystick.core.budget_errors import BudgetExhausted, BudgetUnpriced
from tallystick.core.chain import Head
from tallystick.core.records import Caller, RunLimits
from tallystick.model.port import Model
from tallystick.runtime.child_slots import ChildSlots
from tallystick.runtime.children import ChildRequest
from tallystick.runtime.functions import RunFunction
from tallystick.runtime.run import Run
from tallystick.runtime.teller import Teller

__all__ = ["ChildRunner", "Parent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """What a run hands on to its children."""

    run: str
    teller: Teller
    limits: RunLimits
    grants: Sequence[str]
    seed: int
    temperature: float | None
    functions: Sequence[RunFunction]
    model: Model
    depth: int
    compact_at: int | None = None


class ChildRunner(Protocol):
    """Drives children to their end; the session's part."""

    @property
    def slots(self) -> ChildSlots: ...

    def check_model(self, parent: Parent, name: str | None) -> None:
        """Raise `UsageError` if programs may not ask a model of this name."""
        ...

    def refusal(
        self, parent: Parent, request: ChildRequest
    ) -> BudgetExhausted | BudgetUnpriced | None:
        """Why what the parent has left does not even pay for a child's first call."""
        ...

    def waits(self, parent: str, change: int) -> None:
        """So many more children of a run wait for a place; fewer, if it is negative."""
        ...

    async def begin(
        self, parent: Parent, run: str, request: ChildRequest, caller: Caller, *, wall_ms: int
    ) -> tuple[Run, Head]: ...

    async def resume(
        self, parent: Parent, run: str, request: ChildRequest, caller: Caller, *, wall_ms: int
    ) -> tuple[Run, Head]:
        """Go on with a child that was begun; also if nothing of it was written."""
        ...
