"""Hypothesis strategies for what many laws are about: text, JSON, amounts, budgets, usage.

This module alone needs Hypothesis, which is no dependency of the package.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tallystick.core.budget.amount import Amount, Budget
from tallystick.core.charge import ModelUsage

# Whatever may stand in a file or a reply. Half of a surrogate pair may not: no encoding has it.
_CHARACTERS = st.characters(exclude_categories=["Cs"])


def texts(*, max_size: int | None = None) -> st.SearchStrategy[str]:
    """Draw text of any characters that UTF-8 can encode."""
    return st.text(_CHARACTERS, max_size=max_size)


def json_values(
    *,
    integers: st.SearchStrategy[int] | None = None,
    floats: bool = True,
    max_leaves: int = 8,
) -> st.SearchStrategy[Any]:
    """Draw whatever JSON can say, from `null` to nested lists and objects.

    `integers` replaces integers of any size, for a reader that bounds them. Without `floats` there
    are none. `max_leaves` bounds the number of plain values in all.
    """
    whole = st.integers() if integers is None else integers
    scalars: st.SearchStrategy[Any] = st.none() | st.booleans() | whole | texts(max_size=5)
    if floats:
        scalars |= st.floats(allow_nan=False, allow_infinity=False)
    return st.recursive(
        scalars,
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(texts(max_size=3), inner, max_size=4)
        ),
        max_leaves=max_leaves,
    )


def amounts(*, most: int = 6, unpriced: bool = False) -> st.SearchStrategy[Amount]:
    """Draw small amounts, so that sums meet limits; `unpriced` has some without a price."""
    few = st.integers(0, most)
    return st.builds(
        Amount,
        tokens=few,
        usd=st.none() | few if unpriced else few,
        model_calls=st.integers(0, 1),
        turns=few,
        wall_ms=few,
    )


def budgets(*, most: int = 20) -> st.SearchStrategy[Budget]:
    """Draw budgets with some limits, or none, about as large as a few `amounts`."""
    limits = st.none() | st.integers(0, most)
    return st.builds(
        Budget,
        tokens=limits,
        usd=limits,
        turns=limits,
        wall_ms=limits,
        depth=st.none() | st.integers(0, 6),
    )


def usages(
    counts: st.SearchStrategy[int], *, raw: st.SearchStrategy[dict[str, Any]] | None = None
) -> st.SearchStrategy[ModelUsage]:
    """Draw what a provider may report of a call, with `counts` of tokens."""
    return st.builds(
        ModelUsage,
        tokens_in=counts,
        tokens_out=counts,
        reported=st.booleans(),
        raw=st.just({}) if raw is None else raw,
    )
