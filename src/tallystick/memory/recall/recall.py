"""Recall: find the best notes for a query that a reader sees, with a receipt that can be checked.

A recall reads as of one position of the log. Its receipt is appended after that position, as the
next one of the chain of receipts; so later notes change neither. To check a receipt, the same view
is made and ranked again: the scores have to be equal to the last digit.

Rule 1: the query is stored nowhere. To check the ranking, the caller has to give it again; without
it the rest is checked.
Rule 2: filters and visibility are applied before anything is counted.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from tallystick.core.errors import UsageError
from tallystick.memory.errors import EmbedderNotConfigured, ModelMismatch
from tallystick.memory.note import Note, normalise
from tallystick.memory.recall import shortlist as limits
from tallystick.memory.recall.rank import FEW_NOTES, NEAREST, Hit, Ranked, nearest, rank
from tallystick.memory.recall.scope import DEFAULT, FIRST_RULES, FORMER, Embedder, Profile
from tallystick.memory.recall.selection import NOW, Filters
from tallystick.memory.recall.shortlist import (
    RULES,
    CachingEmbedder,
    Candidates,
    Count,
    NumberedScope,
    Scan,
    Shortlist,
    full_list,
    related_numbers,
    shortlist,
)
from tallystick.memory.recall.view import View, check_viewpoint, view
from tallystick.memory.receipts.receipt import (
    Derived,
    Key,
    RecallReceipt,
    ReceiptUnknown,
    Tokens,
    check_signature,
    receipt_bytes,
)
from tallystick.memory.receipts.receipts import (
    Erased,
    Held,
    Recomputed,
    Verified,
    chain_end,
    content_at,
    issue,
    verify_receipt,
)
from tallystick.memory.store.records import NotesRecalled
from tallystick.memory.store.sqlite import SqliteMemory
from tallystick.memory.store.vectors import model_at

if TYPE_CHECKING:
    from tallystick.memory.recall.index import Masked, StandingIndex


# Ranking a scope of any size, as of a position and a time.
#
# A scope of at most `shortlist.LARGE` notes is ranked note by note. For a larger one a short list
# is ranked; the receipt says which of the two it was. Either way the notes come from one source: a
# standing index or, without numpy, a scan of the file. The result is the same.


_SEEDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewpoint:
    """The reader, the filters, the position and the time of a recall."""

    reader: str | None
    filters: Filters
    seq: int
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedView:
    """The result of a ranking. `seen` has at least the hits.

    `rules` are those of a short list, if any.

    `few` are the rules by which notes are returned that have no word of the query, if any are.
    """

    ranked: Ranked
    seen: View
    rules: str = ""
    few: str = ""


@contextmanager
def looking(
    memory: SqliteMemory,
    *,
    reader: str | None,
    filters: Filters,
    as_of: int | None,
    at: int | None,
    index: StandingIndex | None,
    vectors: bool = True,
) -> Iterator[OpenScope]:
    """Read one state of a memory; yield its scope, which is valid inside the block only.

    Without `vectors`, it cannot be ranked with an embedder.
    Without an index the file is read. With one, blocks of it that are due are stored first, and
    those that turn out to be damaged at the end. Raise `UsageError` if the index is of another
    memory, `NoteInvalid` if an argument is out of range.
    """
    if index is not None and index.memory is not memory:
        raise UsageError("the index is of another memory")
    if index is not None:
        index.keep()
    with memory.reading() as db:
        seq, moment = check_viewpoint(memory, reader=reader, filters=filters, as_of=as_of, at=at)
        look = Viewpoint(reader=reader, filters=filters, seq=seq, at=moment)
        if index is None:
            yield OpenScope(memory, db, look)
            return
        with index.at(
            reader=reader, filters=filters, seq=seq, at=moment, vectors=vectors
        ) as standing:
            yield OpenScope(memory, db, look, standing)
    if index.spoiled:
        # Found only now, and the next process would find it again.
        index.keep()


class OpenScope:
    """A scope in one state of a memory, with its standing index if there is one."""

    def __init__(
        self,
        memory: SqliteMemory,
        db: sqlite3.Connection,
        look: Viewpoint,
        standing: Masked | None = None,
    ) -> None:
        self._memory = memory
        self._db = db
        self._look = look
        self._standing = standing

    @property
    def model(self) -> str | None:
        """The digest of the model that was chosen at that position; None if none was."""
        model = model_at(self._db, self._look.seq)
        return None if model is None else model[0]

    @property
    def large(self) -> bool:
        """True if there are more notes than are ranked one by one: more than 2,000."""
        return self._whole.notes > limits.LARGE

    @property
    def few(self) -> bool:
        """True if there are so few notes that the nearest are returned when no word matches.

        That is at most 20.
        """
        return self._whole.notes <= FEW_NOTES

    def whole(self) -> View:
        """Return a view of every note of the scope."""
        return self._view(None)

    def of_all(
        self, query: str, *, k: int, profile: Profile, embedder: Embedder | None
    ) -> RankedView:
        """Rank every note of the scope. The result is the same with and without an index.

        Raise the errors of `rank`.
        """
        listed = full_list(query, self._whole)
        return self._rank_list(query, listed, k, profile, embedder)

    def of_shortlist(
        self, query: str, *, k: int, profile: Profile, embedder: Embedder | None
    ) -> RankedView:
        """Rank the notes of a short list, and say in `notes` that it was one.

        A text is embedded once, however often it is needed. Raise the errors of `shortlist` and of
        `rank`.
        """
        once = None if embedder is None else CachingEmbedder(embedder)
        whole = self._whole
        listed = shortlist(query, whole, profile=profile, embedder=once)
        if profile.related:
            listed = listed.with_more(self._related_to_best(query, listed, profile, once), whole)
        made = self._rank_list(query, listed, k, profile, once)
        said = f"short list: {len(listed.numbers):,} of {whole.notes:,} notes are ranked"
        if self._standing is None:
            said += ", found by reading the file: there is no standing index"
        ranked = replace(made.ranked, notes=(*made.ranked.notes, said))
        return RankedView(ranked=ranked, seen=made.seen, rules=RULES)

    def tokens(self, count: Count, *, tokenizer: str) -> int:
        """Return how many tokens all notes of the scope have."""
        return self._whole.tokens(self._db, count, tokenizer=tokenizer)

    def count_all(self, count: Count, *, tokenizer: str) -> None:
        """Count the tokens of all notes now, so that a recall need not.

        Without a standing index, nothing is done: there is no place to keep the counts.
        """
        if self._standing is not None:
            self._standing.tokens(self._db, count, tokenizer=tokenizer)

    # -- inside --------------------------------------------------------------------------------

    @cached_property
    def _whole(self) -> NumberedScope:
        look = self._look
        return self._standing or Scan(
            self._db, reader=look.reader, filters=look.filters, seq=look.seq, at=look.at
        )

    def _rank_list(
        self,
        query: str,
        listed: Shortlist,
        k: int,
        profile: Profile,
        embedder: Embedder | None,
    ) -> RankedView:
        """Rank a list, and make a view of the hits.

        The view has the hits alone. Raise the errors of `rank`.
        """
        scope = self._candidates(listed, profile, embedder)
        ranked = rank(
            query,
            scope,
            k=k,
            profile=profile,
            embedder=embedder,
            now=self._look.at,
            statistics=listed.statistics,
            asked=listed.asked,
        )
        seen = self._view([scope.number(hit.id) for hit in ranked.hits])
        return RankedView(ranked=ranked, seen=seen)

    def _candidates(
        self, listed: Shortlist, profile: Profile, embedder: Embedder | None
    ) -> Candidates:
        scope = Candidates(
            self._db, listed, self._whole, seq=self._look.seq, vectors=embedder is not None
        )
        if profile.related:
            scope.read_relations()
        if profile.decay:
            scope.read_worths(self._look.at)
        return scope

    def _related_to_best(
        self,
        query: str,
        listed: Shortlist,
        profile: Profile,
        embedder: Embedder | None,
    ) -> set[int]:
        """Return the numbers of the notes that relations lead to from the best of the list."""
        scope = self._candidates(listed, profile, embedder)
        best = rank(
            query,
            scope,
            k=_SEEDS,
            profile=msgspec.structs.replace(
                profile, related=0.0, token=0.0, passage=0.0, tells=0.0
            ),
            embedder=embedder,
            now=self._look.at,
            statistics=listed.statistics,
            asked=listed.asked,
        )
        return related_numbers(
            self._db, [scope.number(hit.id) for hit in best.hits], seq=self._look.seq
        )

    def _view(self, among: list[int] | None) -> View:
        look = self._look
        return view(
            self._memory,
            reader=look.reader,
            filters=look.filters,
            as_of=look.seq,
            at=look.at,
            among=among,
        )


# A recall, and the check of its receipt.


Strategy = Literal["auto", "hybrid", "semantic", "lexical", "exact", "graph"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
K_MAX = 100
_BACKEND = "sqlite"
_GRAPH = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """A request to recall: the reader, the part of the memory, and how to rank it.

    `reader` None is the owner of the file. `as_of` is a position in the log, `at` a time in
    milliseconds; the defaults are the head and the clock's time. `tokens_max` limits the hits: the
    best ones are returned that fit, by the `count` of `recall`. `weights` replace some of those of
    the profile, and are in the receipt.
    """

    agent_id: str
    reader: str | None = None
    k: int = 10
    filters: Filters = NOW
    as_of: int | None = None
    at: int | None = None
    strategy: Strategy = "auto"
    profile: Profile = DEFAULT
    weights: Mapping[str, float] = field(default_factory=dict)
    tokens_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """The hits of a recall, the best first, each with its score by lanes; and the receipt."""

    hits: tuple[Hit, ...]
    notes: Mapping[str, Note]
    receipt: RecallReceipt
    remarks: tuple[str, ...]


def recall(
    memory: SqliteMemory,
    query: str,
    asking: Asking,
    *,
    key: Key,
    embedder: Embedder | None = None,
    count: Count | None = None,
    tokenizer: str = "",
    index: StandingIndex | None = None,
) -> Recalled:
    """Find the `k` best notes for a query, and append the receipt to the log.

    The entry counts as an access to each hit. `index` makes it quicker in a large memory; the
    result is the same without. Without `count`, the receipt has no tokens, and `tokens_max` cannot
    be asked for. `tokenizer` is the name of `count` in the receipt.

    Raise `UsageError` or `NoteInvalid` for a request out of range. Raise `EmbedderNotConfigured` if
    `semantic` or `hybrid` is asked for and there is no embedder or no model, and `ModelMismatch` if
    the embedder is not the store's model. Raise `HmacInit` if the key is too short.
    """
    _check(asking)
    profile = _profile(asking)
    with looking(
        memory,
        reader=asking.reader,
        filters=asking.filters,
        as_of=asking.as_of,
        at=asking.at,
        index=index,
        vectors=embedder is not None,
    ) as looked:
        rules = RULES if asking.strategy != "exact" and looked.large else ""
        made = _rank(query, looked, asking, embedder, rules=rules)
        if _wants_nearest(made, asking) and looked.few:
            made = _nearest(query, looked, asking, made.ranked)
        seen, ranked = made.seen, made.ranked
        hits = _fit_tokens(ranked.hits, seen, asking.tokens_max, count)
        tokens = None
        if count is not None:
            whole = looked.tokens(count, tokenizer=tokenizer)
            tokens = _tokens(query, hits, seen, count, whole=whole, name=tokenizer)
    derived = tuple(_derived_hit(hit, seen) for hit in hits)
    # Another process may append between the reading above and this transaction. The receipt names
    # the position that was read, so it stays true.
    with memory.writing() as writer:
        link = chain_end(writer.db)
        receipt = issue(
            key=key,
            link=link,
            read_id=writer.new_id(),
            agent_id=asking.agent_id,
            query=query,
            scope=_scope(seen, asking, rules=made.rules, few=made.few, store=writer.store),
            as_of=seen.seq,
            profile=profile.digest,
            model=ranked.model or None,
            k=asking.k,
            derived_from=derived,
            tokens=tokens,
            ts=writer.at,
        )
        ids = tuple(hit.id for hit in hits)
        writer.append(NotesRecalled(ids=ids, at=writer.at, receipt=receipt_bytes(receipt).decode()))
    return Recalled(
        hits=hits,
        notes={hit.id: seen.note(hit.id) for hit in hits},
        receipt=receipt,
        remarks=ranked.notes,
    )


def verify_recall(
    memory: SqliteMemory,
    receipt: RecallReceipt,
    *,
    keys: Mapping[str, bytes] | None,
    query: str | None = None,
    given_key: bytes | None = None,
    profile: Profile = DEFAULT,
    embedder: Embedder | None = None,
    index: StandingIndex | None = None,
    ranking: bool = True,
    tolerance: float = 0.0,
) -> Verified:
    """Check a receipt against the memory as it is now. Raise a `ReceiptError` if it does not hold.

    With `keys` None, the caller has checked that the receipt is genuine, and `given_key` checks its
    query. With `ranking` False, the recall is not repeated. Scores may differ by `tolerance`.

    `profile` has to be the one that ranked: its digest is in the receipt. A recall that used a
    model is repeated with the same one, or raises `ModelMismatch` or `EmbedderNotConfigured`. The
    receipt says whether a short list was ranked. Raise `ReceiptUnknown` if it is of another memory,
    `UsageError` or `NoteInvalid` if this version cannot repeat what it describes.
    """
    if receipt.scope.get("store") != memory.identity():
        if keys is not None:
            check_signature(receipt, keys)
        raise ReceiptUnknown(id=receipt.read_id)
    places = {hit.id: hit.seq for hit in receipt.derived_from}

    def contents(id: str) -> Held | Erased | None:
        seq = places.get(id)
        return None if seq is None else content_at(memory, seq)

    def again(of: RecallReceipt, asked: str) -> Recomputed:
        asking = _request_of(of, profile)
        with looking(
            memory,
            reader=asking.reader,
            filters=asking.filters,
            as_of=of.as_of,
            at=asking.at,
            index=index,
            vectors=embedder is not None,
        ) as looked:
            made = _rank(asked, looked, asking, embedder, rules=_rules(of))
            # Receipts of versions without these rules have no `few`, and are checked without them.
            if _few(of) and not made.ranked.hits:
                made = _nearest(asked, looked, asking, made.ranked)
        seen, ranked = made.seen, made.ranked
        hits = ranked.hits[: len(of.derived_from)] if "tokens_max" in of.scope else ranked.hits
        return Recomputed(
            profile=_profile(asking).digest,
            model=ranked.model or None,
            hits=[_derived_hit(hit, seen) for hit in hits],
            erased=frozenset(seen.erased),
            tokens=of.tokens,
        )

    return verify_receipt(
        receipt,
        keys=keys,
        contents=contents,
        recompute=again if ranking else None,
        query=query,
        given_key=given_key,
        tolerance=tolerance,
    )


def _check(asking: Asking) -> None:
    if asking.strategy not in STRATEGIES:
        raise UsageError(f"strategy {asking.strategy!r}: there are {', '.join(STRATEGIES)}")
    if not 0 <= asking.k <= K_MAX:
        raise UsageError(f"k is from 0 to {K_MAX}, not {asking.k}")
    if asking.tokens_max is not None and asking.tokens_max < 0:
        raise UsageError("tokens_max is at least 0")


def _profile(asking: Asking) -> Profile:
    """Return the profile with weight 0 for each lane that the strategy does without.

    For `graph`, relations have the weight 0.5 if the profile gives them none.
    """
    profile = asking.profile.weighed(asking.weights)
    match asking.strategy:
        case "lexical":
            return msgspec.structs.replace(profile, dense=0.0, token=0.0, passage=0.0)
        case "semantic":
            return msgspec.structs.replace(profile, lexical=0.0)
        case "graph":
            return msgspec.structs.replace(profile, related=profile.related or _GRAPH)
        case _:
            return profile


def _rank(
    query: str, looked: OpenScope, asking: Asking, embedder: Embedder | None, *, rules: str
) -> RankedView:
    """Rank by the rules of a short list or, if there are none, note by note.

    Raise `EmbedderNotConfigured` or `ModelMismatch` as `recall` does.
    """
    strategy, profile = asking.strategy, _profile(asking)
    model = looked.model
    if strategy in ("semantic", "hybrid") and (embedder is None or model is None):
        raise EmbedderNotConfigured(requested=strategy, backend=_BACKEND)
    if strategy == "exact":
        seen = looked.whole()
        return RankedView(ranked=Ranked(hits=_exact(query, seen)[: asking.k]), seen=seen)
    used = embedder if profile.dense or profile.token or profile.passage else None
    if used is not None and model is not None and used.digest != model:
        raise ModelMismatch(found=model, given=used.digest)
    ranked = looked.of_shortlist if rules else looked.of_all
    return ranked(query, k=asking.k, profile=profile, embedder=used)


def _wants_nearest(made: RankedView, asking: Asking) -> bool:
    """Return True if no words matched, and no model compared meanings.

    Only for the strategies `auto`, `lexical` and `graph`, and if every note was ranked.
    """
    by_words = asking.strategy in ("auto", "lexical", "graph")
    return by_words and not (made.ranked.hits or made.ranked.model or made.rules)


def _nearest(query: str, looked: OpenScope, asking: Asking, before: Ranked) -> RankedView:
    """Return the nearest notes of a small scope, with the remarks of the ranking `before`."""
    seen = looked.whole()
    found = nearest(query, seen, k=asking.k)
    ranked = replace(found, notes=(*before.notes, *found.notes))
    return RankedView(ranked=ranked, seen=seen, few=NEAREST if found.hits else "")


def _exact(query: str, seen: View) -> tuple[Hit, ...]:
    """Return the notes that have the query in them, word for word, in the order of their ids."""
    wanted = normalise(query)
    found = [id for id in seen.ids if wanted and wanted in normalise(seen.note(id).content)]
    return tuple(Hit(id=id, score=1.0, lanes=(("exact", 1.0),)) for id in sorted(found))


def _fit_tokens(
    hits: tuple[Hit, ...], seen: View, tokens_max: int | None, count: Count | None
) -> tuple[Hit, ...]:
    """Return the best hits before the first one that exceeds `tokens_max`. None means no limit.

    Raise `UsageError` for a limit without `count`.
    """
    if tokens_max is None:
        return hits
    if count is None:
        raise UsageError("tokens_max needs a tokenizer to count with")
    kept: list[Hit] = []
    for hit in hits:
        tokens_max -= count(seen.note(hit.id).content)
        if tokens_max < 0:
            break
        kept.append(hit)
    return tuple(kept)


def _tokens(
    query: str, hits: tuple[Hit, ...], seen: View, count: Count, *, whole: int, name: str
) -> Tokens:
    """Count the tokens of the hits, of the whole scope, and of the same hits as a tool's JSON."""
    contents = [seen.note(hit.id).content for hit in hits]
    payload = [
        {"id": hit.id, "content": content, "score": hit.score}
        for hit, content in zip(hits, contents, strict=True)
    ]
    asked = {"name": "recall", "arguments": {"query": query, "k": len(hits)}}
    return Tokens(
        delivered=sum(map(count, contents)),
        whole_scope=whole,
        json_tools=count(msgspec.json.encode(asked).decode())
        + count(msgspec.json.encode(payload).decode()),
        tokenizer=name,
    )


def _derived_hit(hit: Hit, seen: View) -> Derived:
    return Derived(
        id=hit.id,
        content_hash=seen.content_hash(hit.id),
        score=hit.score,
        lanes=hit.lanes,
        seq=seen.content_seq(hit.id),
    )


def _scope(seen: View, asking: Asking, *, rules: str, few: str, store: str) -> dict[str, object]:
    """Return the scope as a receipt says it: all that is needed to make the same view again."""
    said: dict[str, object] = {"at": seen.at, "strategy": asking.strategy, "store": store}
    if rules:
        said["shortlist"] = rules
    if few:
        said["few"] = few
    if seen.reader is not None:
        said["reader"] = seen.reader
    if asking.profile.rules != FIRST_RULES:
        # Receipts without it were ranked by the first rules.
        said["ranking"] = asking.profile.rules
    if asking.weights:
        said["weights"] = dict(sorted(asking.weights.items()))
    if asking.tokens_max is not None:
        said["tokens_max"] = asking.tokens_max
    filters = _changed_filters(seen.filters)
    if filters:
        said["filters"] = filters
    return said


def _changed_filters(filters: Filters) -> dict[str, object]:
    """Return the filters that differ from their defaults, with sets in order."""
    said: dict[str, object] = {}
    for name in Filters.__dataclass_fields__:
        value = getattr(filters, name)
        if value != getattr(NOW, name):
            said[name] = sorted(map(str, value)) if isinstance(value, frozenset) else value
    return said


def _request_of(receipt: RecallReceipt, profile: Profile) -> Asking:
    """Return the request that a receipt describes.

    Raise `UsageError` if its scope cannot be read.
    """
    said = receipt.scope
    try:
        return Asking(
            agent_id=receipt.agent_id,
            reader=msgspec.convert(said.get("reader"), type=str | None),
            k=receipt.k,
            filters=_filters(said.get("filters", {})),
            as_of=receipt.as_of,
            at=msgspec.convert(said["at"], type=int),
            strategy=msgspec.convert(said["strategy"], type=Strategy),
            profile=_profile_of(receipt, profile),
            weights=msgspec.convert(said.get("weights", {}), type=dict[str, float]),
        )
    except (msgspec.ValidationError, KeyError) as error:
        raise UsageError(f"the receipt's scope cannot be read: {error}") from error


def _profile_of(receipt: RecallReceipt, profile: Profile) -> Profile:
    """Return the profile that ranked: the given one, or that of the receipt's earlier rules.

    Raise `UsageError` for rules that this version does not know.
    """
    said = receipt.scope.get("ranking", FIRST_RULES)
    if said == profile.rules:
        return profile
    former = FORMER.get(said) if isinstance(said, str) else None
    if former is None:
        raise UsageError(f"the receipt was ranked by other rules: {str(said)[:80]!r}")
    return former


def _rules(receipt: RecallReceipt) -> str:
    """Return the rules of the short list in a receipt, or "" if every note was ranked.

    Raise `UsageError` for rules that this version does not know.
    """
    said = receipt.scope.get("shortlist", "")
    if said not in ("", RULES):
        raise UsageError(f"the receipt is of a short list by other rules: {str(said)[:80]!r}")
    return str(said)


def _few(receipt: RecallReceipt) -> str:
    """Return the rules by which a receipt has notes without a word of the query, or "".

    Raise `UsageError` for rules that this version does not know.
    """
    said = receipt.scope.get("few", "")
    if said not in ("", NEAREST):
        raise UsageError(f"the receipt is of few notes by other rules: {str(said)[:80]!r}")
    return str(said)


def _filters(said: object) -> Filters:
    """Return the filters that a receipt describes.

    Raise `UsageError` for one that is unknown here, `msgspec.ValidationError` for a wrong value.
    """
    words = msgspec.convert(said, type=dict[str, object])
    unknown = sorted(words.keys() - Filters.__dataclass_fields__.keys())
    if unknown:
        raise UsageError(f"the receipt has a filter of another version: {unknown[0][:80]!r}")
    return msgspec.convert(words, type=Filters)
