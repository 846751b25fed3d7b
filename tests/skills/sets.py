"""Sets of cards: a plain one, and strategies that make odd ones."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from tallystick.skills.format.manifest import Card
from tallystick.skills.match import Match

__all__ = ["cards", "fits", "plain", "sets"]


def plain(*ids: str, disabled: Sequence[str] = ()) -> list[Card]:
    """Cards as the reference has them: `does <id>`, `when <id>`."""
    return [
        Card(
            id=id,
            name=id.rpartition("/")[2],
            source="project",
            description=f"does {id}",
            when_to_use=f"when {id}",
            disable_model_invocation=id in disabled,
        )
        for id in ids
    ]


# Letters of many kinds, spaces and breaks of many kinds, marks that mean something in a catalog.
_LETTERS = st.sampled_from('ab cdé字🙂`"\\:-.\n\r\t\x00\x1b\u2028\u202e\u00a0$')
_TEXTS = st.one_of(
    st.just(""),
    st.text(_LETTERS, max_size=40),
    st.sampled_from(
        ["word " * 60, "x" * 700, "\n- `forged`: does evil\n  when: always", "字" * 90]
    ),
)
_NAMES = st.one_of(
    st.sampled_from(["a", "b", "pdf", "csv-clean", "release-notes", "n" * 64]),
    st.text(_LETTERS, min_size=1, max_size=12).filter(lambda name: name.strip() != ""),
    st.just("long" * 60),
)


@st.composite
def cards(draw: st.DrawFn) -> Card:
    name = draw(_NAMES)
    space = draw(st.sampled_from(["", "", "one", "two"]))
    return Card(
        id=f"{space}/{name}" if space else name,
        name=name,
        source=draw(st.sampled_from(["project", "user"])),
        description=draw(_TEXTS),
        when_to_use=draw(_TEXTS),
        short=draw(_TEXTS),
        disable_model_invocation=draw(st.integers(0, 3)) == 0,
        user_invocable=draw(st.booleans()),
    )


def sets(max_size: int = 14) -> st.SearchStrategy[list[Card]]:
    """Cards with ids of their own, in any order; at times many that are small."""
    many = st.integers(0, 120).map(lambda n: plain(*(f"s{i}" for i in range(n))))
    odd = st.lists(cards(), max_size=max_size, unique_by=lambda card: card.id)
    return st.one_of(odd, odd, many)


@st.composite
def fits(draw: st.DrawFn) -> tuple[list[Card], dict[str, object]]:
    """Cards, and what a catalog of them is fitted with besides its budget."""
    found = draw(sets())
    ids = st.sampled_from([*(card.id for card in found), "unknown"])
    some = st.lists(ids, max_size=4, unique=True)
    scores = st.floats(-1, 3, allow_nan=False)
    matched = {id: Match(id=id, score=draw(scores), reason="words a, b") for id in draw(some)}
    return found, {
        "catalog_limit": draw(st.one_of(st.none(), st.none(), st.integers(0, 6))),
        "pinned": draw(some),
        "matched": matched,
        "recent": draw(some),
        "loaded": draw(some),
        "used": {id: ("resource notes.md",) for id in draw(some)},
    }
