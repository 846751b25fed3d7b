"""Receipts of memory: given for each recall and each forgetting, and checked by anybody with a key.

A receipt is checked against the notes as they are stored, and by making the recall again. What was
erased since is said to be erased. It is neither hidden nor held against the receipt.

Ranking weighs words by how many notes have them. So once a note of the scope is erased, a recall
made again can come to other scores, also for the notes that are left. Then the scores are not
compared any more; the signature, and the digests of the notes that are left, still are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from tallystick.core.canonical import canonical
from tallystick.core.chain import SALT_BYTES, body_hash
from tallystick.memory.receipt_errors import (
    MissingRecord,
    NotErased,
    QueryHashMismatch,
    RecallDiffers,
    ReceiptError,
    RecordContentHashMismatch,
)
from tallystick.memory.receipt_issue import content_hash, issue, issue_forget
from tallystick.memory.receipt_records import (
    GENESIS,
    KEY_BYTES_MIN,
    Derived,
    ForgetReceipt,
    ForgottenNote,
    Key,
    Link,
    NotForgotten,
    RecallReceipt,
    Receipt,
    RunErased,
    Tokens,
    check_link,
    check_signature,
    query_hash,
    read_receipt,
    receipt_bytes,
    receipt_hash,
)

__all__ = [
    "GENESIS",
    "KEY_BYTES_MIN",
    "ChainVerdict",
    "Contents",
    "Derived",
    "Erased",
    "ForgetReceipt",
    "ForgottenNote",
    "Held",
    "Key",
    "Link",
    "NotForgotten",
    "NoteState",
    "RecallReceipt",
    "Receipt",
    "Recompute",
    "Recomputed",
    "RunErased",
    "Tokens",
    "Verified",
    "VerifiedForget",
    "content_hash",
    "issue",
    "issue_forget",
    "read_receipt",
    "receipt_bytes",
    "receipt_hash",
    "verify",
    "verify_chain",
    "verify_forget",
]

NoteState = Literal["held", "erased", "redacted"]


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


# What is stored of a note; None if nothing is, and nothing says that it ever was.
Contents = Callable[[str], Held | Erased | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """The recall of a receipt, made again from the log as it was then.

    `erased` are the notes that were in the scope then and whose text is gone now, whether they
    were hits or not. `tokens` is None where they were not counted again.
    """

    profile: str
    model: str | None
    hits: Sequence[Derived]
    erased: frozenset[str] = frozenset()
    tokens: Tokens | None = None


# The second argument is the query, which is the one that the receipt was given for.
Recompute = Callable[[RecallReceipt, str], Recomputed]


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """A receipt that holds, and how much of it could be checked.

    `notes` are the hits in order, each with what is left of it. `ranking` is `same` if the recall
    was made again and came to the same; `erased` if it came to something else and notes of its
    scope are gone, with the first `difference`; `not_recomputed` if it was not made again.
    """

    read_id: str
    notes: tuple[tuple[str, NoteState], ...]
    query: Literal["same", "not_given"]
    ranking: Literal["same", "erased", "not_recomputed"]
    difference: str | None = None

    @property
    def erased(self) -> tuple[str, ...]:
        """The hits whose text is gone."""
        return tuple(id for id, state in self.notes if state != "held")


class VerifiedForget(msgspec.Struct, frozen=True, kw_only=True):
    """A receipt of a forgetting that holds: each note it names, with what is left of it."""

    forget_id: str
    notes: tuple[tuple[str, NoteState | Literal["gone"]], ...]


class ChainVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether receipts are a whole chain. None of them is one.

    `first_broken_at` is the place, counted from zero, and as many as there are receipts if it is
    the end that is missing.
    """

    valid: bool
    total_records: int
    verified_records: int
    first_broken_at: int | None = None
    error_message: str | None = None


def verify(
    receipt: RecallReceipt,
    *,
    keys: Mapping[str, bytes],
    contents: Contents,
    recompute: Recompute | None = None,
    query: str | None = None,
) -> Verified:
    """Check a receipt of a recall: its signature, its query, its notes, then the recall itself.

    Without the query, the recall is not made again. Raises a `ReceiptError` that names the first
    thing that does not hold.
    """
    key = check_signature(receipt, keys)
    if query is not None:
        expected = query_hash(query, read_id=receipt.read_id, key=key)
        if expected != receipt.query_hash:
            raise QueryHashMismatch(read_id=receipt.read_id)
    notes = tuple((hit.id, _state(hit, contents(hit.id))) for hit in receipt.derived_from)
    ranking: Literal["same", "erased", "not_recomputed"] = "not_recomputed"
    difference = None
    if recompute is not None and query is not None:
        found = _difference(receipt, recompute(receipt, query), notes)
        ranking = "same" if found is None else "erased"
        difference = None if found is None else str(found)
    return Verified(
        read_id=receipt.read_id,
        notes=notes,
        query="not_given" if query is None else "same",
        ranking=ranking,
        difference=difference,
    )


def verify_forget(
    receipt: ForgetReceipt, *, keys: Mapping[str, bytes], contents: Contents
) -> VerifiedForget:
    """Check a receipt of a forgetting: its signature, and that what it says is gone is gone.

    Only a hard deletion and a redaction say that. What other strategies leave can be read.
    """
    check_signature(receipt, keys)
    notes: list[tuple[str, NoteState | Literal["gone"]]] = []
    for each in receipt.forgotten:
        stored = contents(each.id)
        if isinstance(stored, Held) and receipt.strategy.erases:
            raise NotErased(id=each.id)
        notes.append((each.id, "gone" if stored is None else _state(each, stored)))
    return VerifiedForget(forget_id=receipt.forget_id, notes=tuple(notes))


def verify_chain(
    receipts: Iterable[Receipt], *, keys: Mapping[str, bytes], head: Link | None = None
) -> ChainVerdict:
    """Check that receipts are all there are of a chain, in order, each of them as it was signed.

    That the last ones are missing can be seen only by a `head` that was kept elsewhere.
    """
    link = Link()
    listed = list(receipts)
    for place, receipt in enumerate(listed):
        try:
            check_signature(receipt, keys)
            link = check_link(receipt, link)
        except ReceiptError as error:
            return _broken(len(listed), at=place, why=str(error))
    if head is not None and head != link:
        why = f"the chain was {head.count:,} receipts long, and is {link.count:,}"
        if head.count == link.count:
            why = "the last receipt is not the one that the head names"
        return _broken(len(listed), at=link.count, why=why)
    return ChainVerdict(valid=True, total_records=len(listed), verified_records=len(listed))


def _broken(total: int, *, at: int, why: str) -> ChainVerdict:
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
    receipt: RecallReceipt, now: Recomputed, notes: Sequence[tuple[str, NoteState]]
) -> RecallDiffers | None:
    """Where the recall made again comes to something else, if erasure is why; else raises it."""
    gone = now.erased | {id for id, state in notes if state != "held"}
    left = [hit for hit in receipt.derived_from if hit.id not in gone]
    # Where a hit is gone, the next best takes its place at the end.
    hits = now.hits[: len(left)] if len(left) < len(receipt.derived_from) else now.hits
    found = _first_place(receipt, now, left, hits)
    if found is None:
        return None
    place, recorded, is_now = found
    differs = RecallDiffers(read_id=receipt.read_id, place=place, recorded=recorded, now=is_now)
    if gone and place not in ("profile", "model"):
        return differs
    raise differs


def _first_place(
    receipt: RecallReceipt, now: Recomputed, left: Sequence[Derived], hits: Sequence[Derived]
) -> tuple[str, object, object] | None:
    if receipt.profile != now.profile:
        return "profile", receipt.profile, now.profile
    if receipt.model != now.model:
        return "model", receipt.model, now.model
    for place, (was, is_now) in enumerate(zip(left, hits, strict=False), 1):
        for field in Derived.__struct_fields__:
            recorded, found = getattr(was, field), getattr(is_now, field)
            # As bytes: 0.0 and -0.0 are equal, and not the same score.
            if canonical(recorded) != canonical(found):
                return f"{field} of hit {place}", recorded, found
    if len(left) != len(hits):
        return "number of hits", len(left), len(hits)
    if now.tokens is not None and receipt.tokens != now.tokens:
        return "tokens", receipt.tokens, now.tokens
    return None
