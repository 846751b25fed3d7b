"""Keep the budget tree: nested scopes, what they have spent, and what is reserved in them.

Rule 1: limit = remaining + reserved + spent, in every scope and dimension, after every action. A
child is a cap and not a gift: nothing moves into it. What is used in it is used in every scope
around it too, so a tree cannot spend more than its root may, however wide it is.
Rule 2: a request may be refused, and then nothing has changed. `reserve` and `enter` are requests.
Rule 3: a charge is a fact. `settle` and `spend` record it in every scope first, and then return
which limits it passed; a scope that is over any of its limits reserves nothing more. Nor does a
scope that limits tokens or money after a charge above its reservation. A provider that bills more
than the most that was reserved can bill anything, and no limit holds with it.
Rule 4: unknown is not zero. If money is limited, a call without a known price is refused, or let
through as waived and counted apart. A price that stays unknown settles at what was reserved.

The tree reads no clock and takes no lock; callers that share one hold a lock of their own. Scopes
that several processes share are rows in the ledger's file, kept by the same rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import msgspec

from tallystick.core.budget.amount import (
    COUNTED,
    Amount,
    Breach,
    Budget,
    BudgetExhausted,
    BudgetOverrun,
    BudgetUnpriced,
    Dimension,
    InvalidScope,
    NegativeAmount,
    Remaining,
    ReservationClosed,
    Scope,
    ScopeKind,
    ScopeRow,
    ScopeUnknown,
)

# Scopes and amounts as rows of figures: for this tree, and for the scopes in a ledger's file.


_PARENTS: dict[ScopeKind, frozenset[ScopeKind | None]] = {
    "deployment": frozenset({None}),
    "session": frozenset({None, "deployment"}),
    "run": frozenset({None, "deployment", "session", "run", "step"}),
    "step": frozenset({None, "deployment", "session", "run", "step"}),
}


_counted = attrgetter(*COUNTED)


def figures_of(amount: Amount) -> tuple[int, ...]:
    """Return an amount as figures in the order of `COUNTED`, with zero for unknown money.

    Raise `NegativeAmount`, which names the first, if one is below zero.
    """
    figures = tuple(each or 0 for each in _counted(amount))
    if min(figures) < 0:
        place = next(place for place, figure in enumerate(figures) if figure < 0)
        raise NegativeAmount(dimension=COUNTED[place], given=figures[place])
    return figures


def caps_of(budget: Budget) -> tuple[tuple[int, int], ...]:
    """Return the limits of a budget, each with the place of its dimension in `COUNTED`.

    Depth is not among them: it is a level and no sum.
    """
    return tuple(
        (place, limit)
        for place, dimension in enumerate(COUNTED)
        if (limit := getattr(budget, dimension)) is not None
    )


def refusal_of(
    lefts: Iterable[tuple[int, int, Scope]], wanted: Sequence[int]
) -> BudgetExhausted | None:
    """Return the refusal of an amount that does not fit, or None if it does.

    It names the first dimension that is short, and there the scope with the least left. `lefts` are
    the limits: the place of the dimension in `COUNTED`, what is left there, and in which scope.
    """
    short = [found for found in lefts if wanted[found[0]] > found[1]]
    if not short:
        return None
    place, left, scope = min(short, key=lambda found: found[:2])
    return BudgetExhausted(dimension=COUNTED[place], scope=scope, needed=wanted[place], left=left)


def check_place(scope: str, kind: ScopeKind, *, within: ScopeKind | None) -> None:
    """Raise `InvalidScope` unless a scope of `kind` may be inside one of the kind `within`.

    `within` None is no scope around it.
    """
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
    """Return the row of a scope from its figures, which are in the order of `COUNTED`.

    What remains follows from the limits of this scope only, and may be below zero. The others are
    as in `ScopeRow`.
    """
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


# The length of a reply that the rest of a budget still pays for.
#
# Rule: a `WorstUsd` returns the most that a call can cost with this input and at most this output:
# reasoning, price bands and cache writes included. More output never costs less.


# Input tokens and the output cap to nano-dollars, rounded up.
WorstUsd = Callable[[int, int], int]


def affordable_output(
    left: Remaining,
    *,
    tokens_in: int,
    tokens_out_wanted: int,
    tokens_out_min: int,
    price: WorstUsd | None,
    usd_waived: bool = False,
) -> int:
    """Return the largest output cap, up to the wanted one, that tokens and money still pay for.

    Raise `BudgetExhausted` if that is less than `tokens_out_min`, or than the wanted cap if that
    one is smaller: a reply cut so short is paid for and of no use. A price of None is unknown. If
    money is limited, that raises `BudgetUnpriced`, unless the limit is waived. `price` is called
    several times, as a search does, and must not fall with more output. Nothing is reserved.
    """
    least = min(tokens_out_min, tokens_out_wanted)
    cap = tokens_out_wanted
    if left.tokens is not None:
        cap = min(cap, left.tokens - tokens_in)
        if cap < least:
            raise BudgetExhausted(
                dimension="tokens",
                scope=left.by["tokens"],
                needed=tokens_in + least,
                left=left.tokens,
            )
    if left.usd is None or (price is None and usd_waived):
        return cap
    if price is None:
        raise BudgetUnpriced(scope=left.by["usd"])
    needed = price(tokens_in, least)
    if needed > left.usd:
        raise BudgetExhausted(dimension="usd", scope=left.by["usd"], needed=needed, left=left.usd)
    return _largest(price, tokens_in=tokens_in, paid=least, cap=cap, usd=left.usd)


def _largest(price: WorstUsd, *, tokens_in: int, paid: int, cap: int, usd: int) -> int:
    """Return the largest output up to `cap` that `usd` pays for, where it does pay for `paid`."""
    if price(tokens_in, cap) <= usd:
        return cap
    # Between a cap that is paid for and one that is not. Bands make the price a staircase, so it is
    # searched and not divided.
    too_much = cap
    while too_much - paid > 1:
        middle = (paid + too_much) // 2
        if price(tokens_in, middle) <= usd:
            paid = middle
        else:
            too_much = middle
    return paid


# The budget tree: nested scopes, what they have spent, and what is reserved in them.


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """An amount held in a scope and every scope around it, until it is settled or released."""

    id: int
    scope: str
    amount: Amount


@dataclass(slots=True, eq=False)
class _Node:
    """A scope that is open, or left with something reserved in it."""

    scope: Scope
    # This one first, the root last.
    chain: tuple[_Node, ...]
    # How many runs are around it, not counting the first.
    level: int
    limit: Budget
    # Where there is a limit: the place of its dimension, and the limit.
    caps: tuple[tuple[int, int], ...]
    spent: list[int] = field(default_factory=lambda: [0] * len(COUNTED))
    reserved: list[int] = field(default_factory=lambda: [0] * len(COUNTED))
    unpriced: int = 0
    deepest: int = 0
    children: int = 0
    reservations: int = 0
    left: bool = False
    # The first charge above its reservation: its dimension, what was reserved, and the charge.
    overrun: tuple[Dimension, int, int] | None = None


class BudgetTree:
    """The scopes of a process and their sums, by ids that the caller gives.

    A method that is given the id of a scope raises `ScopeUnknown` for one that is not here. A scope
    that was left stays here while something is reserved in it. `enter` inside it, `leave`,
    `reserve` and `refusal` raise `ScopeUnknown` for it; the others do not. A method that is given
    an amount raises `NegativeAmount` for one below zero. A method that raises has changed nothing.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        # Each with its figures that are not zero, by their places in `COUNTED`.
        self._open: dict[int, tuple[Reservation, _Node, list[tuple[int, int]]]] = {}
        self._made = 0

    # -- scopes --------------------------------------------------------------------------------

    def enter(
        self, scope: str, *, parent: str | None, budget: Budget, kind: ScopeKind, name: str
    ) -> None:
        """Open a scope inside another. A run inside a run needs a level of depth.

        Raise `InvalidScope` if the scope is open or may not be inside the parent. Raise
        `ScopeUnknown` if the parent is not open, and `BudgetExhausted` if a limit of depth is
        reached.
        """
        if scope in self._nodes:
            raise InvalidScope(scope=scope, why="it is open already")
        around = None if parent is None else self._open_node_of(parent)
        check_place(scope, kind, within=None if around is None else around.scope.kind)
        chain = () if around is None else around.chain
        level = 0 if around is None else around.level
        if kind == "run" and any(each.scope.kind == "run" for each in chain):
            level += 1
            _check_depth(chain, level)
        node = _Node(
            scope=Scope(id=scope, parent=parent, kind=kind, name=name),
            chain=(),
            level=level,
            limit=budget,
            caps=caps_of(budget),
        )
        node.chain = (node, *chain)
        for each in chain:
            each.deepest = max(each.deepest, level - each.level)
        if around is not None:
            around.children += 1
        self._nodes[scope] = node

    def reopen(self, row: ScopeRow) -> None:
        """Open a scope that was left, from the row that `leave` returned. Its sums go on.

        They are not counted again in the scopes around it. Raise as `enter` does.
        """
        scope = row.scope
        self.enter(
            scope.id, parent=scope.parent, budget=row.limit, kind=scope.kind, name=scope.name
        )
        node = self._nodes[scope.id]
        node.spent = list(figures_of(row.spent))
        node.unpriced = row.unpriced

    def leave(self, scope: str) -> ScopeRow:
        """Close a scope and return its last row. Raise `InvalidScope` if scopes inside it are open.

        What is still reserved in it stays reserved, here and around it, until it is settled or
        released; only then is the scope forgotten. So an error on its way out is not hidden behind
        a complaint of this method. A scope that is not open raises `ScopeUnknown`.
        """
        node = self._open_node_of(scope)
        if node.children:
            raise InvalidScope(scope=scope, why=f"{node.children} scopes inside it are open")
        node.left = True
        if len(node.chain) > 1:
            node.chain[1].children -= 1
        if not node.reservations:
            del self._nodes[scope]
        return _row(node)

    # -- requests ------------------------------------------------------------------------------

    def reserve(self, scope: str, worst: Amount, *, usd_waived: bool = False) -> Reservation:
        """Reserve `worst` in this scope and every scope around it, or raise and reserve nothing.

        Raise `BudgetExhausted` if a limit would be passed, or is passed already, also by an amount
        of nothing. Raise `BudgetOverrun` after a charge above its reservation, if a scope that has
        seen it limits tokens or money. Raise `BudgetUnpriced` if money is limited, `worst.usd` is
        None and `usd_waived` is False. Raise `ScopeUnknown` if the scope is not open.
        """
        node = self._open_node_of(scope)
        figures = figures_of(worst)
        refused = _refusal(node, figures, unpriced=worst.usd is None and not usd_waived)
        if refused is not None:
            raise refused
        self._made += 1
        reservation = Reservation(id=self._made, scope=scope, amount=worst)
        some = [(place, figure) for place, figure in enumerate(figures) if figure]
        self._open[self._made] = reservation, node, some
        for each in node.chain:
            each.reservations += 1
            reserved = each.reserved
            for place, figure in some:
                reserved[place] += figure
        return reservation

    def refusal(
        self, scope: str, worst: Amount, *, usd_waived: bool = False
    ) -> BudgetExhausted | BudgetUnpriced | None:
        """Return the refusal that `reserve` would raise for this, or None if it would reserve.

        Its other errors are raised here too. Nothing is reserved.
        """
        node = self._open_node_of(scope)
        return _refusal(node, figures_of(worst), unpriced=worst.usd is None and not usd_waived)

    # -- facts ---------------------------------------------------------------------------------

    def settle(self, reservation: Reservation, actual: Amount) -> list[Breach]:
        """Replace a reservation by what was used, and return every limit that is then passed.

        An unknown price is charged as reserved, if that is known, and else counted as unpriced.
        Raise `ReservationClosed` if the reservation is not open.
        """
        worst = reservation.amount
        if actual.usd is None and worst.usd is not None:
            actual = msgspec.structs.replace(actual, usd=worst.usd)
        used = figures_of(actual)
        node = self._close(reservation)
        _record(node, used, unpriced=actual.usd is None)
        overrun = _overrun(worst, actual)
        if overrun is not None:
            for each in node.chain:
                each.overrun = each.overrun or overrun
        return _breaches(node)

    def release(self, reservation: Reservation) -> None:
        """Return what was reserved for an attempt that is known to have cost nothing.

        Raise `ReservationClosed` if the reservation is not open.
        """
        self._close(reservation)

    def spend(self, scope: str, amount: Amount, *, below: str | None = None) -> list[Breach]:
        """Record what needed no reservation (turns, fuel, time).

        Return every limit of the scope and those around it that is then passed, also if it was
        before. An unknown price counts as one unpriced call. With `below`, it is recorded only in
        the scopes inside that one, which has it already. Raise `ScopeUnknown` if there is no scope
        `scope`.
        """
        used = figures_of(amount)
        node = self._node_of(scope)
        _record(node, used, unpriced=amount.usd is None, below=below)
        return _breaches(node)

    # -- views ---------------------------------------------------------------------------------

    def remaining(self, scope: str) -> Remaining:
        """Return what is left in each dimension, with the scope that limits it.

        That is the tightest one of the scope and those around it. None is no limit, and a figure
        may be below zero.
        """
        node = self._node_of(scope)
        left: dict[Dimension, int | None] = {}
        by: dict[Dimension, Scope] = {}
        for place, figure, owner in _lefts(node):
            _tighten(left, by, COUNTED[place], figure, owner)
        for each in node.chain:
            if each.limit.depth is not None:
                figure = each.limit.depth - (node.level - each.level)
                _tighten(left, by, "depth", figure, each.scope)
        return Remaining(by=by, **left)

    def around(self, scope: str) -> tuple[str, ...]:
        """Return the ids of a scope and of those around it: itself first, the root last."""
        return tuple(each.scope.id for each in self._node_of(scope).chain)

    def has(self, scope: Scope) -> bool:
        """Return True if this very scope object is in this tree: ids repeat in other trees."""
        node = self._nodes.get(scope.id)
        return node is not None and node.scope is scope

    def reserved(self, scope: str, dimension: Dimension) -> int:
        """Return how much of a dimension is reserved in a scope and inside it; of depth, 0."""
        node = self._node_of(scope)
        return node.reserved[COUNTED.index(dimension)] if dimension in COUNTED else 0

    def rows(self) -> list[ScopeRow]:
        """Return the row of every scope, in the order they were entered.

        A scope that was left is among them while something is reserved in it.
        """
        return [_row(node) for node in self._nodes.values()]

    # -- inside --------------------------------------------------------------------------------

    def _node_of(self, scope: str) -> _Node:
        node = self._nodes.get(scope)
        if node is None:
            raise ScopeUnknown(scope=scope)
        return node

    def _open_node_of(self, scope: str) -> _Node:
        node = self._node_of(scope)
        if node.left:
            raise ScopeUnknown(scope=scope)
        return node

    def _close(self, reservation: Reservation) -> _Node:
        """Take a reservation out of every scope around it.

        A scope that was left is forgotten with its last reservation. Raise `ReservationClosed` if
        the reservation is not open.
        """
        found = self._open.get(reservation.id)
        if found is None or found[0] is not reservation:
            raise ReservationClosed(
                what=f"reservation {reservation.id} of scope {reservation.scope}"
            )
        del self._open[reservation.id]
        _, node, some = found
        for each in node.chain:
            each.reservations -= 1
            reserved = each.reserved
            for place, figure in some:
                reserved[place] -= figure
            if each.left and not each.reservations:
                del self._nodes[each.scope.id]
        return node


def _row(node: _Node) -> ScopeRow:
    return row_of(
        node.scope,
        node.limit,
        spent=node.spent,
        reserved=node.reserved,
        unpriced=node.unpriced,
        deepest=node.deepest,
        left=node.left,
    )


def _check_depth(chain: tuple[_Node, ...], level: int) -> None:
    for each in chain:
        if each.limit.depth is not None and level - each.level > each.limit.depth:
            left = each.limit.depth - (chain[0].level - each.level)
            raise BudgetExhausted(dimension="depth", scope=each.scope, needed=1, left=left)


def _refusal(
    node: _Node, wanted: Sequence[int], *, unpriced: bool
) -> BudgetExhausted | BudgetUnpriced | None:
    """Return the error for an amount that does not fit the scope and all around it, or None.

    A limit that is passed already refuses every amount, also nothing. Limits go before a price that
    is unknown, in each scope; an overrun of any scope comes last. `unpriced` says that the price is
    unknown and not waived.
    """
    for each in node.chain:
        spent, reserved = each.spent, each.reserved
        # Every limit, also where nothing is wanted: a scope that is over one has to stop.
        for place, limit in each.caps:
            if spent[place] + reserved[place] + wanted[place] > limit:
                return refusal_of(_lefts(node), wanted)
        if unpriced and each.limit.usd is not None:
            return BudgetUnpriced(scope=each.scope)
    for each in node.chain:
        limited = each.limit.usd is not None or each.limit.tokens is not None
        if limited and each.overrun is not None:
            dimension, reserved_before, charged = each.overrun
            return BudgetOverrun(
                dimension=dimension, scope=each.scope, needed=charged, left=reserved_before
            )
    return None


def _overrun(worst: Amount, actual: Amount) -> tuple[Dimension, int, int] | None:
    """Return the dimension in which a charge is above its reservation, with both figures.

    None if there is no such dimension; an unknown price is not compared.
    """
    if actual.tokens > worst.tokens:
        return "tokens", worst.tokens, actual.tokens
    if worst.usd is not None and actual.usd is not None and actual.usd > worst.usd:
        return "usd", worst.usd, actual.usd
    return None


def _lefts(node: _Node) -> Iterator[tuple[int, int, Scope]]:
    for each in node.chain:
        for place, limit in each.caps:
            yield place, limit - each.spent[place] - each.reserved[place], each.scope


def _record(
    node: _Node, figures: Sequence[int], *, unpriced: bool, below: str | None = None
) -> None:
    some = [(place, figure) for place, figure in enumerate(figures) if figure]
    for each in node.chain:
        if each.scope.id == below:
            break
        spent = each.spent
        for place, figure in some:
            spent[place] += figure
        each.unpriced += unpriced


def _breaches(node: _Node) -> list[Breach]:
    """Return every limit that is passed, of the scope and those around it, the innermost first."""
    breaches = []
    for each in node.chain:
        spent = each.spent
        for place, limit in each.caps:
            if spent[place] > limit:
                passed = Breach(
                    scope=each.scope, dimension=COUNTED[place], limit=limit, spent=spent[place]
                )
                breaches.append(passed)
    return breaches


def _tighten(
    left: dict[Dimension, int | None],
    by: dict[Dimension, Scope],
    dimension: Dimension,
    figure: int,
    scope: Scope,
) -> None:
    known = left.get(dimension)
    if known is None or figure < known:
        left[dimension], by[dimension] = figure, scope
