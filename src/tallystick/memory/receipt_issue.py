"""Giving receipts: for a recall, and for a forgetting."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tallystick.core.canonical import canonical
from tallystick.core.chain import SALT_BYTES, body_hash
from tallystick.core.errors import UsageError
from tallystick.memory.forgotten import Strategy
from tallystick.memory.receipt_records import (
    Derived,
    ForgetReceipt,
    ForgottenNote,
    Key,
    Link,
    NotForgotten,
    RecallReceipt,
    RunErased,
    Tokens,
    query_hash,
    signed,
)

__all__ = ["content_hash", "issue", "issue_forget"]


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
    """Give a receipt for a recall, as the next of its chain."""
    _check_hits(derived_from, k=k)
    return signed(
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
    strategy: Strategy,
    asked: Mapping[str, object],
    forgotten: Iterable[ForgottenNote],
    errors: Iterable[NotForgotten] = (),
    entries: Iterable[int] = (),
    exports: Iterable[tuple[int, str]] = (),
    runs: Iterable[RunErased] | None = None,
    attachments_left: int = 0,
    ts: int,
) -> ForgetReceipt:
    """Give a receipt for a forgetting, as the next of its chain."""
    return signed(
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
    """The digest by which the log and a receipt bind a note."""
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
    """Words as they are when they are read again, so that a receipt equals what is read of it."""
    return msgspec.json.decode(canonical(words), type=dict[str, object])
