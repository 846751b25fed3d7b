"""Attachments in memory: the double for tests, and for runs that nobody needs afterwards."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from tallystick.attachments.collect import (
    EmptyRootSet,
    ReclaimPolicy,
    ReclaimReport,
    intent_is_dead,
)
from tallystick.attachments.media import described
from tallystick.attachments.port import (
    NOTHING_DECLARED,
    AttachmentNotFound,
    Attachments,
    Chunks,
    Declared,
    Intent,
    Manifest,
    Persistence,
    ReclamationRefused,
    Reference,
    Source,
    Staged,
    Transaction,
    chunked,
    is_digest,
)
from tallystick.attachments.sqlite import WholeChunks
from tallystick.core.records import AttachmentRef
from tallystick.storage.clock import now_ms

_POLICY = ReclaimPolicy()
_OWNER = "memory"


class MemoryAttachments:
    """Keeps attachments as long as the process lives. Safe to share between threads."""

    def __init__(self, *, clock: Callable[[], int] = now_ms) -> None:
        self._clock = clock
        self._guard = threading.RLock()
        self._blobs: dict[str, tuple[bytes, int]] = {}
        self._rows: dict[tuple[str, str], Reference] = {}
        self._closed = False

    @property
    def persistence(self) -> Persistence:
        return Persistence.EPHEMERAL

    def clock(self) -> int:
        return self._clock()

    def owner(self) -> str:
        return _OWNER

    def close(self) -> None:
        """End the one owner there is. What it only intended may then be collected."""
        self._closed = True

    def stage(self, source: Source, declared: Declared = NOTHING_DECLARED) -> Staged:
        data = b"".join(chunked(source))
        id = hashlib.sha256(data).hexdigest()
        return Staged(
            ref=described(id=id, byte_len=len(data), head=data, declared=declared), data=data
        )

    def keep(self, staged: Staged, *, within: Transaction = None) -> None:
        if staged.data is not None:
            with self._guard:
                self._blobs.setdefault(staged.ref.id, (staged.data, self._clock()))
        staged.discard()

    def keep_committed(
        self, session_id: str, staged: Sequence[Staged], *, within: Transaction = None
    ) -> None:
        with self._guard:
            for each in staged:
                self.record_intent(
                    Intent(
                        session_id=session_id,
                        attachment_id=each.ref.id,
                        intent_at_epoch_ms=self._clock(),
                    ),
                    each.ref,
                )
                self.keep(Staged(ref=each.ref, data=each.data))
            self.commit_refs(session_id, [each.ref.id for each in staged])

    def chunks(self, id: str) -> Chunks:
        return WholeChunks(self._found(id))

    def byte_len(self, id: str) -> int:
        return len(self._found(id))

    def local_path(self, id: str) -> Path | None:
        self._found(id)
        return None

    def record_intent(
        self, intent: Intent, ref: AttachmentRef, *, within: Transaction = None
    ) -> None:
        key = (intent.session_id, intent.attachment_id)
        with self._guard:
            row = self._rows.get(key, Reference(intent=intent, ref=ref))
            self._rows[key] = msgspec.structs.replace(row, ref=ref)

    def commit_refs(
        self, session_id: str, ids: Sequence[str], *, within: Transaction = None
    ) -> Sequence[str]:
        held = []
        with self._guard:
            for id in ids:
                row = self._rows.get((session_id, id))
                if row is None:
                    continue
                if row.committed_at_epoch_ms is None:
                    row = msgspec.structs.replace(row, committed_at_epoch_ms=self._clock())
                    self._rows[session_id, id] = row
                if id in self._blobs:
                    held.append(id)
        return held

    def list_uncommitted(self, cutoff_epoch_ms: int) -> Sequence[Intent]:
        with self._guard:
            found = [
                row.intent
                for row in self._rows.values()
                if row.committed_at_epoch_ms is None
                and row.intent.intent_at_epoch_ms <= cutoff_epoch_ms
            ]
        return sorted(found, key=lambda intent: intent.intent_at_epoch_ms)

    def forget(self, session_id: str, id: str, *, within: Transaction = None) -> None:
        with self._guard:
            self._rows.pop((session_id, id), None)

    def forget_session(self, session_id: str, *, within: Transaction = None) -> None:
        with self._guard:
            self._rows = {key: row for key, row in self._rows.items() if key[0] != session_id}

    def references(
        self, session_id: str | None = None, id: str | None = None, *, within: Transaction = None
    ) -> Sequence[Reference]:
        with self._guard:
            if session_id is not None and id is not None:
                one = self._rows.get((session_id, id))
                return [] if one is None else [one]
            return [
                row
                for (session, attachment), row in self._rows.items()
                if session_id in (None, session) and id in (None, attachment)
            ]

    @contextlib.contextmanager
    def writing(self, *, forced: bool) -> Iterator[None]:
        """All of it or nothing, as in a file; nobody else sees half of it."""
        with self._guard:
            before = dict(self._blobs), dict(self._rows)
            try:
                yield None
            except BaseException:
                self._blobs, self._rows = before
                raise

    def reclaim(self, *, policy: ReclaimPolicy = _POLICY, dry_run: bool = False) -> ReclaimReport:
        """Delete what nobody alive holds."""
        cutoff = self._clock() - policy.grace_period_ms
        with self._guard:
            report = ReclaimReport(dry_run=dry_run, scanned_blob_count=len(self._blobs))
            dead_rows = [key for key, row in self._rows.items() if self._is_dead(row, cutoff)]
            roots = {id for session, id in self._rows if (session, id) not in dead_rows}
            named = {id for _, id in self._rows}
            dead = {
                id: data
                for id, (data, stored_at) in self._blobs.items()
                if id not in roots and (id in named or stored_at <= cutoff)
            }
            if dead and not roots and policy.empty_root_set is EmptyRootSet.REFUSE:
                raise ReclamationRefused(
                    why=f"{len(dead)} attachments are stored and nobody holds any", report=report
                )
            report.reclaimed_count = len(dead)
            report.reclaimed_bytes = sum(map(len, dead.values()))
            report.swept_intent_count = len(dead_rows)
            if not dry_run:
                for key in dead_rows:
                    del self._rows[key]
                for id in dead:
                    del self._blobs[id]
        return report

    def reclaim_forgotten(self, ids: Sequence[str]) -> None:
        """Delete bytes that their holder has just let go of, unless a row names them."""
        with self._guard:
            named = {id for _, id in self._rows}
            for id in ids:
                if id not in named:
                    self._blobs.pop(id, None)

    def _is_dead(self, row: Reference, cutoff: int) -> bool:
        owner = row.intent.owner
        return row.committed_at_epoch_ms is None and intent_is_dead(
            row.intent,
            holders=[] if owner is None else [owner],
            cutoff=cutoff,
            proven_dead=lambda owner: self._closed,
        )

    def _found(self, id: str) -> bytes:
        with self._guard:
            if not is_digest(id) or id not in self._blobs:
                raise AttachmentNotFound(id=id)
            return self._blobs[id][0]


class NoManifest:
    """A manifest that stays empty, for bytes that nobody collects."""

    def record_intent(
        self, intent: Intent, ref: AttachmentRef, *, within: Transaction = None
    ) -> None: ...

    def commit_refs(
        self, session_id: str, ids: Sequence[str], *, within: Transaction = None
    ) -> Sequence[str]:
        return []

    def list_uncommitted(self, cutoff_epoch_ms: int) -> Sequence[Intent]:
        return []

    def forget(self, session_id: str, id: str, *, within: Transaction = None) -> None: ...

    def references(
        self, session_id: str | None = None, id: str | None = None, *, within: Transaction = None
    ) -> Sequence[Reference]:
        return []


_: type[Attachments] = MemoryAttachments
__: type[Manifest] = NoManifest
