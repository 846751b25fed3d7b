"""Scopes and amounts as rows of figures, for whoever keeps a budget's sums."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tallystick.core.budget_amount import (
    COUNTED,
    Amount,
    Budget,
    Dimension,
    Remaining,
    Scope,
    ScopeKind,
    ScopeRow,
)
from tallystick.core.budget_errors import BudgetExhausted, InvalidScope, NegativeAmount

__all__ = ["caps_of", "check_place", "exhausted", "figures_of", "row_of"]

_PARENTS: dict[ScopeKind, frozenset[ScopeKind | None]] = {
    "deployment": frozenset({None}),
    "session": frozenset({None, "deployment"}),
    "run": frozenset({None, "deployment", "session", "run", "step"}),
    "step": frozenset({None, "deployment", "session", "run", "step"}),
}


def figures_of(amount: Amount) -> tuple[int, ...]:
    """An amount as figures in the order of `COUNTED`, with zero for money that is not known."""
    figures = (
        amount.tokens,
        amount.usd or 0,
        amount.model_calls,
        amount.turns,
        amount.host_calls,
        amount.fuel,
        amount.wall_ms,
        amount.output_bytes,
    )
    if min(figures) < 0:
        place = next(place for place, figure in enumerate(figures) if figure < 0)
        raise NegativeAmount(dimension=COUNTED[place], given=figures[place])
    return figures


def caps_of(budget: Budget) -> tuple[tuple[int, int], ...]:
    """The places of the dimensions that have a limit, each with its limit."""
    return tuple(
        (place, limit)
        for place, dimension in enumerate(COUNTED)
        if (limit := getattr(budget, dimension)) is not None
    )


def exhausted(
    lefts: Iterable[tuple[int, int, Scope]], wanted: Sequence[int]
) -> BudgetExhausted | None:
    """The refusal of what does not fit: its first dimension, and there the tightest scope.

    `lefts` are places of dimensions, what is left there, and in which scope.
    """
    short = [found for found in lefts if wanted[found[0]] > found[1]]
    if not short:
        return None
    place, left, scope = min(short, key=lambda found: found[:2])
    return BudgetExhausted(dimension=COUNTED[place], scope=scope, needed=wanted[place], left=left)


def check_place(scope: str, kind: ScopeKind, *, within: ScopeKind | None) -> None:
    """Raise `InvalidScope` unless a scope of this kind may stand inside one of that kind."""
    if within not in _PARENTS[kind]:
        why = f"a {kind} does not stand in a {within}"
        raise InvalidScope(scope=scope, why=why)


def row_of(
    scope: Scope,
    limit: Budget,
    *,
    spent: Sequence[int],
    reserved: Sequence[int],
    unpriced: int,
    deepest: int = 0,
    left: bool = False,
) -> ScopeRow:
    """The row of a scope from its figures, which are in the order of `COUNTED`."""
    rest: dict[Dimension, int | None] = {"depth": limit.depth}
    for place, cap in caps_of(limit):
        rest[COUNTED[place]] = cap - spent[place] - reserved[place]
    by = {dimension: scope for dimension in rest if rest[dimension] is not None}
    return ScopeRow(
        scope=scope,
        limit=limit,
        spent=Amount(**dict(zip(COUNTED, spent, strict=True))),
        reserved=Amount(**dict(zip(COUNTED, reserved, strict=True))),
        remaining=Remaining(by=by, **rest),
        unpriced=unpriced,
        deepest=deepest,
        left=left,
    )
