"""Ways to rank the turns of a conversation: ours, and what others ship, on the same vectors.

The baselines see a turn as they would index it, `Author: text`, and the question as it was asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from bench.memory.conversations import Conversation

from tallystick.memory.bare import read_off
from tallystick.memory.note import effective_importance
from tallystick.memory.recall.codes import cosines
from tallystick.memory.recall.rank import rank
from tallystick.memory.recall.scope import (
    DEFAULT,
    FIRST_RULES,
    FORMER,
    Embedded,
    Embedder,
    ListScope,
    NoteFields,
    Profile,
)
from tallystick.memory.recall.words import (
    Bm25,
    asked_terms,
    bm25_scores,
    count_statistics,
    count_terms,
)

__all__ = ["METHODS", "WITHOUT", "Method", "Prepared", "prepare"]

_RRF = 60
_DAY_MS, _HOUR_MS = 86_400_000, 3_600_000
# After the last conversation: 1 March 2024, and the day on which bare texts are kept.
_LAST_MS = 1_709_251_200_000
_LATER_MS = _LAST_MS
# The default rate takes all of a note of half a year: this one leaves a third after a month.
_SLOW = 0.0015
_K = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A conversation with everything that is computed once for it."""

    conversation: Conversation
    embedder: Embedder
    scope: ListScope
    bare: ListScope
    ids: Sequence[str]
    counts: Sequence[Mapping[str, int]]
    vectors: Sequence[bytes]


# The ids of the best twenty turns for a question.
Method = Callable[[Prepared, str], list[str]]


def prepare(conversation: Conversation, embedder: Embedder) -> Prepared:
    """Embed every turn twice: as ours does, and with its author in front for the baselines."""
    notes = conversation.notes
    named = {id: f"{note.author}: {note.text}" for id, note in notes.items()}
    return Prepared(
        conversation=conversation,
        embedder=embedder,
        scope=ListScope(
            notes, embedded={id: embedder.embed(note.text) for id, note in notes.items()}
        ),
        bare=_bare_scope(conversation, embedder),
        ids=tuple(notes),
        counts=[count_terms(named[id]) for id in notes],
        vectors=[embedder.embed(named[id]).vector for id in notes],
    )


def _bare_scope(conversation: Conversation, embedder: Embedder) -> ListScope:
    """The turns as bare texts, `Author: text`, without any field."""
    texts = {id: f"{note.author}: {note.text}" for id, note in conversation.notes.items()}
    return ListScope(
        {id: NoteFields(text=text) for id, text in texts.items()},
        embedded={id: embedder.embed(text) for id, text in texts.items()},
    )


class Remembered:
    """An embedder that embeds no text twice: several methods ask with the same question."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._known: dict[str, Embedded] = {}

    @property
    def digest(self) -> str:
        return self._embedder.digest

    def embed(self, text: str) -> Embedded:
        if text not in self._known:
            self._known[text] = self._embedder.embed(text)
        return self._known[text]


def _bm25(prepared: Prepared, question: str) -> list[float]:
    asked = asked_terms(question)
    statistics = count_statistics(asked, prepared.counts)
    return bm25_scores(asked, prepared.counts, statistics, Bm25())


def _dense(prepared: Prepared, question: str) -> list[float]:
    return cosines(prepared.embedder.embed(question).vector, prepared.vectors)


def _rrf(prepared: Prepared, question: str) -> list[float]:
    fused = [0.0] * len(prepared.ids)
    for scores in (_bm25(prepared, question), _dense(prepared, question)):
        for place, at in enumerate(_order(scores)):
            fused[at] += 1 / (_RRF + place + 1)
    return fused


def _order(scores: Sequence[float]) -> list[int]:
    return sorted(range(len(scores)), key=lambda at: -scores[at])


def _by(scores: Callable[[Prepared, str], list[float]]) -> Method:
    def best(prepared: Prepared, question: str) -> list[str]:
        return [prepared.ids[at] for at in _order(scores(prepared, question))[:_K]]

    return best


def _ours(
    profile: Profile = DEFAULT,
    *,
    dense: bool = True,
    known: Callable[[NoteFields], NoteFields] | None = None,
    bare: bool = False,
) -> Method:
    def best(prepared: Prepared, question: str) -> list[str]:
        scope = prepared.bare if bare else prepared.scope
        if known is not None:
            scope = scope.changed(known)
        embedder = prepared.embedder if dense else None
        last = max(note.created_at for note in prepared.conversation.notes.values())
        ranked = rank(question, scope, k=_K, profile=profile, embedder=embedder, now=last + _DAY_MS)
        return [hit.id for hit in ranked.hits]

    return best


def _unplaced(note: NoteFields) -> NoteFields:
    return replace(note, session="", position=None)


def _bare(note: NoteFields) -> NoteFields:
    return NoteFields(text=note.text)


def _read(note: NoteFields) -> NoteFields:
    """What the memory reads off a bare text when it is kept alone, with no author known before."""
    found = read_off(note.text, now=_LATER_MS)
    return replace(note, author=found.author or "", created_at=found.at or 0)


def _decayed(profile_now: int) -> Callable[[NoteFields], NoteFields]:
    def worth(note: NoteFields) -> NoteFields:
        hours = (profile_now - note.created_at) / _HOUR_MS
        return replace(note, worth=effective_importance(note.importance, hours=hours, rate=_SLOW))

    return worth


METHODS: Mapping[str, Method] = {
    "BM25": _by(_bm25),
    "MiniLM": _by(_dense),
    "RRF(BM25, MiniLM)": _by(_rrf),
    "tallystick": _ours(),
}
# Ours with less: which lane is worth what, and what a corpus without these fields would get.
WITHOUT: Mapping[str, Method] = {
    "no token lane": _ours(Profile(token=0)),
    "no dense and no token lane": _ours(dense=False),
    "the first rules": _ours(FORMER[FIRST_RULES]),
    "the first rules, no dense lane": _ours(FORMER[FIRST_RULES], dense=False),
    "no passage lane": _ours(Profile(passage=0)),
    "no lane of what is told": _ours(Profile(tells=0)),
    "importance 0.3": _ours(Profile(importance=0.3)),
    "recency 0.3": _ours(Profile(recency=0.3)),
    "decay 0.3": _ours(Profile(decay=0.3), known=_decayed(_LAST_MS)),
    "no lexical lane": _ours(Profile(lexical=0)),
    "no author lane": _ours(Profile(author=0)),
    "no session lane": _ours(Profile(session=0)),
    "no neighbours": _ours(Profile(before=0, after=0)),
    "notes without session": _ours(known=_unplaced),
    "notes without session and author": _ours(known=_bare),
    "bare texts": _ours(bare=True),
    "bare texts, author read off": _ours(bare=True, known=_read),
    "bare texts, without model": _ours(bare=True, dense=False),
    "bare texts, author read off, without model": _ours(bare=True, known=_read, dense=False),
}
