"""Receipts of memory: issue one for each recall and each forgetting; store, cite and check them."""

from __future__ import annotations

import math
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from tallystick.core.chain import SALT_BYTES, body_hash
from tallystick.core.errors import UsageError
from tallystick.core.json_text import canonical
from tallystick.memory.errors import MemoryCorrupt
from tallystick.memory.receipts.receipt import (
    Derived,
    ForgetReceipt,
    ForgottenNote,
    Key,
    Link,
    MissingRecord,
    NotErased,
    NotForgotten,
    NotRecalled,
    RecallDiffers,
    RecallReceipt,
    Receipt,
    ReceiptError,
    ReceiptUnknown,
    ReceiptUnreadable,
    RecordContentHashMismatch,
    RunErased,
    Tokens,
    check_link,
    check_query,
    check_signature,
    query_hash,
    read_receipt,
    sign,
)
from tallystick.memory.store.records import (
    UNREADABLE,
    ForgetStrategy,
    NotesForgotten,
    NotesRecalled,
    decode_memory_record,
)
from tallystick.memory.store.sqlite import SqliteMemory, read_entry_header

# Issuing receipts: for a recall, and for a forgetting.


def issue(
    *,
    key: Key,
    link: Link,
    read_id: str,
    agent_id: str,
    query: str,
    scope: Mapping[str, object],
    as_of: int,
    profile: str,
    model: str | None,
    k: int,
    derived_from: Sequence[Derived],
    tokens: Tokens | None,
    ts: int,
) -> RecallReceipt:
    """Issue a receipt for a recall, as the next of its chain. Nothing is stored.

    Raise `UsageError` for more than `k` hits, a note twice, or a score that is not finite, and
    `HmacInit` if the key is too short.
    """
    _check_hits(derived_from, k=k)
    return sign(
        RecallReceipt(
            read_id=read_id,
            agent_id=agent_id,
            query_hash=query_hash(query, read_id=read_id, key=key),
            scope=_plain(scope),
            as_of=as_of,
            profile=profile,
            model=model,
            k=k,
            derived_from=tuple(derived_from),
            tokens=tokens,
            ts=ts,
            number=link.count,
            prev_hash=link.hash,
            hmac_key_id=key.id,
            hmac="",
        ),
        key,
    )


def issue_forget(
    *,
    key: Key,
    link: Link,
    forget_id: str,
    store: str,
    agent_id: str,
    strategy: ForgetStrategy,
    asked: Mapping[str, object],
    forgotten: Iterable[ForgottenNote],
    errors: Iterable[NotForgotten] = (),
    entries: Iterable[int] = (),
    exports: Iterable[tuple[int, str]] = (),
    runs: Iterable[RunErased] | None = None,
    attachments_left: int = 0,
    ts: int,
) -> ForgetReceipt:
    """Issue a receipt for a forgetting, as the next of its chain. Nothing is stored.

    Raise `HmacInit` if the key is too short.
    """
    return sign(
        ForgetReceipt(
            forget_id=forget_id,
            store=store,
            agent_id=agent_id,
            strategy=strategy,
            asked=_plain(asked),
            forgotten=tuple(forgotten),
            errors=tuple(errors),
            entries=tuple(entries),
            exports=tuple(exports),
            runs=None if runs is None else tuple(runs),
            attachments_left=attachments_left,
            ts=ts,
            number=link.count,
            prev_hash=link.hash,
            hmac_key_id=key.id,
            hmac="",
        ),
        key,
    )


def content_hash(body: bytes, *, salt: bytes) -> str:
    """Return the digest by which the log and a receipt bind a note.

    Raise `UsageError` if the salt has another length than those of the log.
    """
    # Salt and body are hashed as one: without a fixed length, bytes could change sides.
    if len(salt) != SALT_BYTES:
        raise UsageError(f"a salt has {SALT_BYTES} bytes, not {len(salt)}")
    return body_hash(salt, body)


def _check_hits(hits: Sequence[Derived], *, k: int) -> None:
    if len(hits) > k:
        raise UsageError(f"a recall of {k} cannot have {len(hits)} hits")
    if len({hit.id for hit in hits}) < len(hits):
        raise UsageError("a recall gives each note once")
    for hit in hits:
        if not all(map(math.isfinite, (hit.score, *(value for _, value in hit.lanes)))):
            raise UsageError(f"note {hit.id}: a score is a finite number")


def _plain(words: Mapping[str, object]) -> dict[str, object]:
    """Return words as they will be when read again, so that a receipt equals its decoded form."""
    return msgspec.json.decode(canonical(words), type=dict[str, object])


# Checking receipts. Their maker has the key of their signature. Somebody else checks them against
# the log of a memory that is known to be genuine, or by a public key: see `receipt_file`.
#
# A receipt is checked against the notes as they are stored, and by repeating the recall. Notes that
# were erased since are reported as erased, and are no fault of the receipt.
#
# Ranking weighs words by how many notes have them. So after a note of the scope is erased, a
# repeated recall can give other scores, also for the notes that are left. Then the scores are not
# compared; the signature, and the digests of the notes that are left, still are.


# `not_exported` notes are not in the export that a receipt was checked against.
NoteState = Literal["held", "erased", "redacted", "not_exported"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A note as it is stored: the body of its entry in the log, and the salt of it."""

    body: bytes
    salt: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """A note whose bytes are gone. The log still has the digest that it was bound by."""

    content_hash: str
    how: Literal["erased", "redacted"] = "erased"


# Returns what is stored of a note, or None if the store never had it.
Contents = Callable[[str], Held | Erased | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """The recall of a receipt, repeated on the log as it was then.

    `erased` are the notes that were in the scope then and whose text is gone now, whether they were
    hits or not. `tokens` is None if they were not counted again.
    """

    profile: str
    model: str | None
    hits: Sequence[Derived]
    erased: frozenset[str] = frozenset()
    tokens: Tokens | None = None


# Repeats the recall of a receipt. The second argument is its query.
Recompute = Callable[[RecallReceipt, str], Recomputed]


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """A receipt that holds, and how much of it could be checked.

    `notes` are the hits in order, each with what is left of it. `query` is `same` if the receipt
    was given for it, `not_checked` if nothing was there to check its digest with. `ranking` is
    `same` if the recall was repeated with the same result. It is `erased` if the result differs and
    notes of its scope are gone, with the first `difference`; `not_recomputed` if it was not
    repeated.
    `close` is the same notes in the same order with scores that differ in their last digits, as
    embeddings do between processors.
    """

    read_id: str
    notes: tuple[tuple[str, NoteState], ...]
    query: Literal["same", "not_given", "not_checked"]
    ranking: Literal["same", "close", "erased", "not_recomputed"]
    difference: str | None = None

    @property
    def erased(self) -> tuple[str, ...]:
        """The ids of the hits whose text is gone."""
        return tuple(id for id, state in self.notes if state in ("erased", "redacted"))


class VerifiedForget(msgspec.Struct, frozen=True, kw_only=True):
    """A receipt of a forgetting that holds: each note it names, with what is left of it."""

    forget_id: str
    notes: tuple[tuple[str, NoteState | Literal["gone"]], ...]


class ChainVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result of checking a chain of receipts. A chain of none is valid.

    `first_broken_at` is the place of the first fault, counted from zero. If the end is missing, it
    is the number of receipts. `unknown_keys` counts those whose signature could not be checked.
    """

    valid: bool
    total_records: int
    verified_records: int
    first_broken_at: int | None = None
    error_message: str | None = None
    unknown_keys: int = 0


def verify_receipt(
    receipt: RecallReceipt,
    *,
    keys: Mapping[str, bytes] | None,
    contents: Contents,
    recompute: Recompute | None = None,
    query: str | None = None,
    given_key: bytes | None = None,
    tolerance: float = 0.0,
) -> Verified:
    """Check a receipt of a recall: its signature, its query, its notes, then the recall itself.

    With `keys` None, the caller has checked in another way that the receipt is genuine; then
    `given_key`, the key of its query, checks the query. Without the query, the recall is not
    repeated. Scores may differ by `tolerance`. Raise a `ReceiptError` that names the first thing
    that does not hold. Errors of `contents` and `recompute` are passed on.
    """
    key = None if keys is None else check_signature(receipt, keys)
    same: Literal["same", "not_given", "not_checked"] = "not_given"
    if query is not None:
        checked = check_query(receipt, query, key=key, given_key=given_key)
        same = "same" if checked else "not_checked"
    notes = tuple((hit.id, _state(hit, contents(hit.id))) for hit in receipt.derived_from)
    ranking: Literal["same", "erased", "not_recomputed"] = "not_recomputed"
    difference = None
    if recompute is not None and query is not None:
        found = _difference(receipt, recompute(receipt, query), notes, tolerance)
        ranking = "same" if found is None else "erased"
        difference = None if found is None else str(found)
    return Verified(
        read_id=receipt.read_id,
        notes=notes,
        query=same,
        ranking=ranking,
        difference=difference,
    )


def verify_forget(
    receipt: ForgetReceipt, *, keys: Mapping[str, bytes] | None, contents: Contents
) -> VerifiedForget:
    """Check a receipt of a forgetting: its signature, and that what it says is gone is gone.

    Only a hard deletion and a redaction say that. After other strategies the note can be read.
    With `keys` None, the caller has checked that the receipt is genuine. Raise a `ReceiptError` if
    the receipt does not hold.
    """
    if keys is not None:
        check_signature(receipt, keys)
    notes: list[tuple[str, NoteState | Literal["gone"]]] = []
    for each in receipt.forgotten:
        stored = contents(each.id)
        if isinstance(stored, Held) and receipt.strategy.erases:
            raise NotErased(id=each.id)
        notes.append((each.id, "gone" if stored is None else _state(each, stored)))
    return VerifiedForget(forget_id=receipt.forget_id, notes=tuple(notes))


def verify_chain(
    receipts: Iterable[Receipt],
    *,
    keys: Mapping[str, bytes],
    head: Link | None = None,
    genuine: int = 0,
) -> ChainVerdict:
    """Check that receipts are a chain without gaps, in order, each of them as it was signed.

    Only a `head` that was kept elsewhere shows that the last ones are missing. The first `genuine`
    receipts are entries of a log that is known to be genuine: if their key is not here, they are
    checked without their signature. Faults are in the result, not raised.
    """
    link = Link()
    unknown = 0
    listed = list(receipts)
    for place, receipt in enumerate(listed):
        try:
            if place < genuine and receipt.hmac_key_id not in keys:
                unknown += 1
            else:
                check_signature(receipt, keys)
            link = check_link(receipt, link)
        except ReceiptError as error:
            return _broken_verdict(len(listed), at=place, why=str(error))
    if head is not None and head != link:
        why = f"the chain was {head.count:,} receipts long, and is {link.count:,}"
        if head.count == link.count:
            why = "the last receipt is not the one that the head names"
        return _broken_verdict(len(listed), at=link.count, why=why)
    return ChainVerdict(
        valid=True,
        total_records=len(listed),
        verified_records=len(listed),
        unknown_keys=unknown,
    )


def _broken_verdict(total: int, *, at: int, why: str) -> ChainVerdict:
    return ChainVerdict(
        valid=False,
        total_records=total,
        verified_records=at,
        first_broken_at=at,
        error_message=why,
    )


def _state(named: Derived | ForgottenNote, stored: Held | Erased | None) -> NoteState:
    if stored is None:
        raise MissingRecord(id=named.id)
    if _hash_of(stored) != named.content_hash:
        raise RecordContentHashMismatch(id=named.id)
    return stored.how if isinstance(stored, Erased) else "held"


def _hash_of(stored: Held | Erased) -> str | None:
    if isinstance(stored, Erased):
        return stored.content_hash
    return body_hash(stored.salt, stored.body) if len(stored.salt) == SALT_BYTES else None


def _difference(
    receipt: RecallReceipt,
    now: Recomputed,
    notes: Sequence[tuple[str, NoteState]],
    tolerance: float,
) -> RecallDiffers | None:
    """Return the first difference of a repeated recall if erasure may explain it; None for none.

    Raise `RecallDiffers` if nothing was erased, or if profile or model differ.
    """
    gone = now.erased | {id for id, state in notes if state != "held"}
    left = [hit for hit in receipt.derived_from if hit.id not in gone]
    # If a hit is gone, one more note is at the end of the list now: leave it out.
    hits = now.hits[: len(left)] if len(left) < len(receipt.derived_from) else now.hits
    found = _first_place(receipt, now, left, hits, tolerance)
    if found is None:
        return None
    place, recorded, is_now = found
    differs = RecallDiffers(read_id=receipt.read_id, place=place, recorded=recorded, now=is_now)
    if gone and place not in ("profile", "model"):
        return differs
    raise differs


def _first_place(
    receipt: RecallReceipt,
    now: Recomputed,
    left: Sequence[Derived],
    hits: Sequence[Derived],
    tolerance: float,
) -> tuple[str, object, object] | None:
    if receipt.profile != now.profile:
        return "profile", receipt.profile, now.profile
    if receipt.model != now.model:
        return "model", receipt.model, now.model
    for place, (was, is_now) in enumerate(zip(left, hits, strict=False), 1):
        for field in Derived.__struct_fields__:
            recorded, found = getattr(was, field), getattr(is_now, field)
            # Compared as bytes: 0.0 and -0.0 are equal, and not the same score.
            if canonical(recorded) != canonical(found) and not _close(recorded, found, tolerance):
                return f"{field} of hit {place}", recorded, found
    if len(left) != len(hits):
        return "number of hits", len(left), len(hits)
    if now.tokens is not None and receipt.tokens != now.tokens:
        return "tokens", receipt.tokens, now.tokens
    return None


def _close(one: object, other: object, tolerance: float) -> bool:
    """Return True if two scores, or the scores of the same lanes, differ by at most `tolerance`.

    Without a tolerance it is always False: equal ones are not given to it.
    """
    if not tolerance:
        return False
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= tolerance
    if not isinstance(one, tuple) or not isinstance(other, tuple):
        return one == other
    return len(one) == len(other) and all(
        _close(each, its, tolerance) for each, its in zip(one, other, strict=True)
    )


# The receipts in the log of a memory: find one by id, read all, check one.


def find_recall_receipt(memory: SqliteMemory, read_id: str) -> RecallReceipt:
    """Return the receipt of a recall.

    Raise `ReceiptUnknown` if this memory gave none of that id, `MemoryCorrupt` if it cannot be
    read.
    """
    found = _find_receipt(memory, read_id)
    if not isinstance(found, RecallReceipt):
        raise ReceiptUnknown(id=read_id)
    return found


def find_forget_receipt(memory: SqliteMemory, forget_id: str) -> ForgetReceipt:
    """Return the receipt of a forgetting.

    Raise `ReceiptUnknown` if this memory gave none of that id, `MemoryCorrupt` if it cannot be
    read.
    """
    found = _find_receipt(memory, forget_id)
    if not isinstance(found, ForgetReceipt):
        raise ReceiptUnknown(id=forget_id)
    return found


def all_receipts(memory: SqliteMemory) -> Iterator[Receipt]:
    """Yield every receipt of either kind, the first one first.

    Raise `MemoryCorrupt` at one that cannot be read.
    """
    with memory.reading() as db:
        rows = db.execute("SELECT seq FROM receipt ORDER BY number").fetchall()
    for (seq,) in rows:
        yield _receipt_at(memory, seq)


def receipts_up_to(memory: SqliteMemory, seq: int) -> int:
    """Return how many receipts the log has up to a position."""
    with memory.reading() as db:
        question = "SELECT count(*) FROM receipt WHERE seq <= ?"
        return int(db.execute(question, (seq,)).fetchone()[0])


def chain_end(db: sqlite3.Connection) -> Link:
    """Return the end of the chain of receipts; that of an empty chain if there are none."""
    last = db.execute("SELECT number, hash FROM receipt ORDER BY number DESC LIMIT 1").fetchone()
    return Link() if last is None else Link(count=last[0] + 1, hash=last[1])


def verify_forgotten(
    memory: SqliteMemory, receipt: ForgetReceipt, *, keys: Mapping[str, bytes] | None
) -> VerifiedForget:
    """Check a receipt of a forgetting against the memory as it is now.

    Raise a `ReceiptError` if it does not hold: `MissingRecord` if it is of another memory,
    `NotErased` if bytes that it calls gone are there.

    Its list of runs says what was done to them then, and is signed; runs are not looked at here.
    With `keys` None, the caller has checked that the receipt is genuine.
    """
    if keys is not None:
        check_signature(receipt, keys)
    ids = [each.id for each in receipt.forgotten]
    if receipt.store != memory.identity():
        raise MissingRecord(id=ids[0] if ids else receipt.forget_id)
    for seq in receipt.entries:
        if isinstance(content_at(memory, seq), Held):
            raise NotErased(id=f"at entry {seq}")
    places = {each.id: each.seq for each in receipt.forgotten}

    def contents(id: str) -> Held | Erased:
        found = content_at(memory, places[id])
        if found is None:
            raise MissingRecord(id=id)
        return found

    return verify_forget(receipt, keys=keys, contents=contents)


def content_at(memory: SqliteMemory, seq: int) -> Held | Erased | None:
    """Return what the log has of an entry.

    Return None if there is no such entry, or if its body is gone and its header cannot be read.
    """
    entry = next(memory.entries(start=seq, stop=seq), None)
    if entry is None:
        return None
    if entry.salt is not None and entry.body is not None:
        return Held(body=entry.body, salt=entry.salt)
    header = read_entry_header(entry.header, store=memory.identity(), seq=seq)
    return None if isinstance(header, str) else Erased(content_hash=header.body_sha256)


def place_of(memory: SqliteMemory, id: str) -> int:
    """Return the position of the log where a receipt is. Raise `ReceiptUnknown` if it is not."""
    with memory.reading() as db:
        row = db.execute("SELECT seq FROM receipt WHERE read_id = ?", (id,)).fetchone()
    if row is None:
        raise ReceiptUnknown(id=id)
    return int(row[0])


def _find_receipt(memory: SqliteMemory, id: str) -> Receipt:
    return _receipt_at(memory, place_of(memory, id))


def _receipt_at(memory: SqliteMemory, seq: int) -> Receipt:
    """Return the receipt in an entry. Raise `MemoryCorrupt` if it has none that can be read."""
    entry = next(memory.entries(start=seq, stop=seq), None)
    if entry is not None and entry.body is not None:
        try:
            record = decode_memory_record(entry.body)
            if isinstance(record, NotesRecalled | NotesForgotten) and record.receipt:
                return read_receipt(record.receipt.encode())
        except (ReceiptUnreadable, *UNREADABLE) as error:
            why = f"the receipt in entry {seq} cannot be read: {error}"
            raise MemoryCorrupt(where=str(memory.path), why=why) from error
    raise MemoryCorrupt(where=str(memory.path), why=f"entry {seq} has no receipt")


# Citations of notes: a short text with a note's id, the recall that returned it, and its digest.
#
# `note:<id>@<read_id>#<first 16 digits of the digest>`. The recall's receipt has the whole digest,
# and is signed; so a citation is as good as that receipt. Only a recalled note can be cited.


_DIGEST_CHARS = 16
_CITATION = re.compile(r"note:([^@#\s]{1,200})@([^@#\s]{1,200})#([0-9a-f]{16})")


class NoteCitation(msgspec.Struct, frozen=True, kw_only=True):
    """A citation of a note as one recall gave it."""

    id: str
    read_id: str
    digest: str

    @property
    def text(self) -> str:
        """The citation as it is written."""
        return f"note:{self.id}@{self.read_id}#{self.digest}"


def cite(id: str, receipts: Iterable[RecallReceipt]) -> NoteCitation:
    """Cite a note by the last of these receipts that has it. Raise `NotRecalled` if none has."""
    for receipt in reversed(list(receipts)):
        for hit in receipt.derived_from:
            if hit.id == id:
                digest = hit.content_hash[:_DIGEST_CHARS]
                return NoteCitation(id=id, read_id=receipt.read_id, digest=digest)
    raise NotRecalled(id=id)


def read_citation(text: str) -> NoteCitation:
    """Parse a citation. Raise `UsageError` if it is none.

    Its note or its recall may still not exist.
    """
    found = _CITATION.fullmatch(text)
    if found is None:
        raise UsageError(f"not a citation: {text[:80]!r}; one is note:<id>@<recall>#<16 digits>")
    return NoteCitation(id=found[1], read_id=found[2], digest=found[3])


def check_citation(citation: NoteCitation, receipt: RecallReceipt) -> Derived:
    """Return the hit that a citation names. The receipt and the note are for `verify` to check.

    Raise `NotRecalled` if the receipt is of another recall or has no such note, and
    `RecordContentHashMismatch` if the note had another text then.
    """
    if receipt.read_id != citation.read_id:
        raise NotRecalled(id=citation.id)
    for hit in receipt.derived_from:
        if hit.id == citation.id:
            if hit.content_hash[:_DIGEST_CHARS] != citation.digest:
                raise RecordContentHashMismatch(id=citation.id)
            return hit
    raise NotRecalled(id=citation.id)
