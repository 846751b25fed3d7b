"""Recall: what a reader sees, ranked, and a receipt for it that can be checked later.

A recall is looked at from one place of the log. Its receipt stands in the log behind that place,
and is the next of the chain of receipts; so what is remembered later changes neither. To check one,
the same view is made again and ranked again: the scores have to be equal to the last digit.

Rule 1: the query is kept nowhere. Whoever checks the ranking has it, or checks the rest.
Rule 2: filters and visibility are applied before anything is counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from tallystick.core.errors import UsageError
from tallystick.memory.candidates import Count
from tallystick.memory.errors import EmbedderNotConfigured, ModelMismatch
from tallystick.memory.finding import Found, Looked, looking
from tallystick.memory.fusion import Hit, Ranked
from tallystick.memory.note import Note, normalised
from tallystick.memory.profile import DEFAULT, Profile
from tallystick.memory.receipt import (
    Derived,
    Erased,
    Held,
    Key,
    RecallReceipt,
    Recomputed,
    Tokens,
    Verified,
    issue,
    receipt_bytes,
)
from tallystick.memory.receipt import verify as verify_receipt
from tallystick.memory.receipt_errors import ReceiptUnknown
from tallystick.memory.receipt_records import check_signature
from tallystick.memory.receipts_kept import content_at, link_of
from tallystick.memory.records import NotesRecalled
from tallystick.memory.scope import Embedder
from tallystick.memory.selection import NOW, Filters
from tallystick.memory.shortlist import RULES
from tallystick.memory.sqlite import SqliteMemory
from tallystick.memory.view import View

if TYPE_CHECKING:
    from tallystick.memory.standing import StandingIndex

__all__ = ["K_MAX", "STRATEGIES", "Asking", "Recalled", "Strategy", "recall", "verify_recall"]

Strategy = Literal["auto", "hybrid", "semantic", "lexical", "exact", "graph"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
K_MAX = 100
_BACKEND = "sqlite"
_GRAPH = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """Who asks, for what part of the memory, and how it is ranked.

    `reader` None is the owner of the file. `as_of` is a place in the log, `at` a moment of the
    world in milliseconds; the head and now, unless they are given. Of what is found, no more is
    given than `tokens_max`, by `count`.
    """

    agent_id: str
    reader: str | None = None
    k: int = 10
    filters: Filters = NOW
    as_of: int | None = None
    at: int | None = None
    strategy: Strategy = "auto"
    profile: Profile = DEFAULT
    tokens_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """What was found, the best first, each with its score by lanes; and the receipt."""

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
    """Find the best notes for a query, and write the receipt.

    `index` stands by the memory and makes it quicker in a large one; it finds the same without.
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
    ) as looked:
        rules = RULES if asking.strategy != "exact" and looked.large else ""
        made = _found(query, looked, asking, embedder, rules=rules)
        seen, ranked = made.seen, made.ranked
        hits = _within(ranked.hits, seen, asking.tokens_max, count)
        tokens = None
        if count is not None:
            whole = looked.tokens(count, made, tokenizer=tokenizer)
            tokens = _tokens(query, hits, seen, count, whole=whole, name=tokenizer)
    derived = tuple(_derived(hit, seen) for hit in hits)
    with memory.writing() as pen:
        link = link_of(pen.db)
        receipt = issue(
            key=key,
            link=link,
            read_id=pen.new_id(),
            agent_id=asking.agent_id,
            query=query,
            scope=_scope(seen, asking, rules=made.rules, store=pen.store),
            as_of=seen.seq,
            profile=profile.digest,
            model=ranked.model or None,
            k=asking.k,
            derived_from=derived,
            tokens=tokens,
            ts=pen.at,
        )
        ids = tuple(hit.id for hit in hits)
        pen.append(NotesRecalled(ids=ids, at=pen.at, receipt=receipt_bytes(receipt).decode()))
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
    keys: Mapping[str, bytes],
    query: str | None = None,
    profile: Profile = DEFAULT,
    embedder: Embedder | None = None,
    index: StandingIndex | None = None,
) -> Verified:
    """Check a receipt against the memory as it is now. Raises a `ReceiptError`.

    `profile` has to be the one that ranked: its digest is in the receipt. A recall that used a
    model is made again with the same one. Whether a short list was ranked, the receipt says.
    """
    if receipt.scope.get("store") != memory.identity():
        check_signature(receipt, keys)
        raise ReceiptUnknown(id=receipt.read_id)
    places = {hit.id: hit.seq for hit in receipt.derived_from}

    def contents(id: str) -> Held | Erased | None:
        seq = places.get(id)
        return None if seq is None else content_at(memory, seq)

    def again(of: RecallReceipt, asked: str) -> Recomputed:
        asking = _asking(of, profile)
        with looking(
            memory,
            reader=asking.reader,
            filters=asking.filters,
            as_of=of.as_of,
            at=asking.at,
            index=index,
        ) as looked:
            made = _found(asked, looked, asking, embedder, rules=_rules(of))
        seen, ranked = made.seen, made.ranked
        hits = ranked.hits[: len(of.derived_from)] if "tokens_max" in of.scope else ranked.hits
        return Recomputed(
            profile=_profile(asking).digest,
            model=ranked.model or None,
            hits=[_derived(hit, seen) for hit in hits],
            erased=frozenset(seen.erased),
            tokens=of.tokens,
        )

    return verify_receipt(receipt, keys=keys, contents=contents, recompute=again, query=query)


def _check(asking: Asking) -> None:
    if asking.strategy not in STRATEGIES:
        raise UsageError(f"strategy {asking.strategy!r}: there are {', '.join(STRATEGIES)}")
    if not 1 <= asking.k <= K_MAX:
        raise UsageError(f"k is from 1 to {K_MAX}, not {asking.k}")
    if asking.tokens_max is not None and asking.tokens_max < 0:
        raise UsageError("tokens_max is at least 0")


def _profile(asking: Asking) -> Profile:
    """The weights of a strategy: a lane that it does without has none."""
    match asking.strategy:
        case "lexical":
            return msgspec.structs.replace(asking.profile, dense=0.0, token=0.0)
        case "semantic":
            return msgspec.structs.replace(asking.profile, lexical=0.0)
        case "graph":
            related = asking.profile.related or _GRAPH
            return msgspec.structs.replace(asking.profile, related=related)
        case _:
            return asking.profile


def _found(
    query: str, looked: Looked, asking: Asking, embedder: Embedder | None, *, rules: str
) -> Found:
    """The best notes, by the rules of a short list or, if there are none, note by note."""
    strategy, profile = asking.strategy, _profile(asking)
    model = looked.model
    if strategy in ("semantic", "hybrid") and (embedder is None or model is None):
        raise EmbedderNotConfigured(requested=strategy, backend=_BACKEND)
    if strategy == "exact":
        seen = looked.whole()
        return Found(ranked=Ranked(hits=_exact(query, seen)[: asking.k]), seen=seen)
    used = embedder if profile.dense or profile.token else None
    if used is not None and model is not None and used.digest != model:
        raise ModelMismatch(found=model, given=used.digest)
    ranked = looked.of_shortlist if rules else looked.of_all
    return ranked(query, k=asking.k, profile=profile, embedder=used)


def _exact(query: str, seen: View) -> tuple[Hit, ...]:
    """The notes that have the query in them, word for word, in the order of their ids."""
    wanted = normalised(query)
    found = [id for id in seen.ids if wanted and wanted in normalised(seen.note(id).content)]
    return tuple(Hit(id=id, score=1.0, lanes=(("exact", 1.0),)) for id in sorted(found))


def _within(
    hits: tuple[Hit, ...], seen: View, tokens_max: int | None, count: Count | None
) -> tuple[Hit, ...]:
    """As many of the best as there is room for."""
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
    """What was given, beside all that could have been, and the same hits as a tool's JSON."""
    contents = [seen.note(hit.id).content for hit in hits]
    told = [
        {"id": hit.id, "content": content, "score": hit.score}
        for hit, content in zip(hits, contents, strict=True)
    ]
    asked = {"name": "recall", "arguments": {"query": query, "k": len(hits)}}
    return Tokens(
        delivered=sum(map(count, contents)),
        whole_scope=whole,
        json_tools=count(msgspec.json.encode(asked).decode())
        + count(msgspec.json.encode(told).decode()),
        tokenizer=name,
    )


def _derived(hit: Hit, seen: View) -> Derived:
    return Derived(
        id=hit.id,
        content_hash=seen.content_hash(hit.id),
        score=hit.score,
        lanes=hit.lanes,
        seq=seen.content_seq(hit.id),
    )


def _scope(seen: View, asking: Asking, *, rules: str, store: str) -> dict[str, object]:
    """What was looked through, in words that make the same view again."""
    said: dict[str, object] = {"at": seen.at, "strategy": asking.strategy, "store": store}
    if rules:
        said["shortlist"] = rules
    if seen.reader is not None:
        said["reader"] = seen.reader
    if asking.tokens_max is not None:
        said["tokens_max"] = asking.tokens_max
    filters = _told(seen.filters)
    if filters:
        said["filters"] = filters
    return said


def _told(filters: Filters) -> dict[str, object]:
    """The filters that are not as usual, with sets in order."""
    said: dict[str, object] = {}
    for name in Filters.__dataclass_fields__:
        value = getattr(filters, name)
        if value != getattr(NOW, name):
            said[name] = sorted(map(str, value)) if isinstance(value, frozenset) else value
    return said


def _asking(receipt: RecallReceipt, profile: Profile) -> Asking:
    """What was asked, as a receipt says it. Raises `UsageError` for words that are none."""
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
            profile=profile,
        )
    except (msgspec.ValidationError, KeyError) as error:
        raise UsageError(f"the receipt's scope cannot be read: {error}") from error


def _rules(receipt: RecallReceipt) -> str:
    """The rules of the short list that a receipt is of, none if it ranked note by note."""
    said = receipt.scope.get("shortlist", "")
    if said not in ("", RULES):
        raise UsageError(f"the receipt is of a short list by other rules: {str(said)[:80]!r}")
    return str(said)


def _filters(said: object) -> Filters:
    """Filters as a receipt says them. One that is not known here is refused, not dropped."""
    words = msgspec.convert(said, type=dict[str, object])
    unknown = sorted(words.keys() - Filters.__dataclass_fields__.keys())
    if unknown:
        raise UsageError(f"the receipt has a filter of another version: {unknown[0][:80]!r}")
    return msgspec.convert(words, type=Filters)
