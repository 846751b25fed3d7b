"""Collection: which bytes nobody alive holds, and how they go without a put losing them.

Rule 1: committed references are alive. An intent dies only when it is old and its owner is proven
dead. Bytes that no row names at all are dead when they are old.
Rule 2: every sentence is checked again in the transaction that carries it out (`rows`: the fence).
Rule 3: what fails is named and passed over. Only a manifest that cannot be read, or that says
nobody holds anything, stops a sweep, and then before it deleted anything.
Rule 4: between two steps the process may die, and any other sweep or put may come. `steps` yields
there, so that tests can be all of them.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator

from tallystick.attachments import rows
from tallystick.attachments.errors import AttachmentError, ReclamationRefused
from tallystick.attachments.reclaim import (
    EmptyRootSet,
    ReclaimPolicy,
    ReclaimReport,
    intent_is_dead,
)
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.core.errors import LedgerCorrupt

__all__ = ["Sweep", "reclaim"]

_POLICY = ReclaimPolicy()


def reclaim(
    attachments: SqliteAttachments, *, policy: ReclaimPolicy = _POLICY, dry_run: bool = False
) -> ReclaimReport:
    """Delete what nobody alive holds. Raises `ReclamationRefused`, with what was found so far."""
    sweep = Sweep(attachments, policy=policy, dry_run=dry_run)
    for _ in sweep.steps():
        pass
    return sweep.report


class Sweep:
    """One collection. It is an owner of its own: what it left half done outlives it as nobody's."""

    def __init__(
        self, attachments: SqliteAttachments, *, policy: ReclaimPolicy, dry_run: bool = False
    ) -> None:
        self.report = ReclaimReport(dry_run=dry_run)
        self._attachments = attachments
        self._policy = policy
        self._dry_run = dry_run
        self._cutoff = 0
        self._id = ""
        self._dead: dict[str, bool] = {}

    def steps(self) -> Iterator[str]:
        """Do the work, stopping wherever something else could happen."""
        self._cutoff = self._attachments.clock() - self._policy.grace_period_ms
        candidates = self._candidates()
        yield "looked"
        if self._dry_run:
            self._count_orphans()
            return
        with contextlib.closing(self._owned()) as owned:
            next(owned)
            for id in candidates:
                yield from self._reclaim(id)
            self._sweep_intents()
            yield "intents"
            yield from self._remove_orphans()
        self._bury()

    # -- who is alive --------------------------------------------------------------------------

    def _candidates(self) -> list[str]:
        """The blobs that nobody alive holds, as far as a look can tell."""
        dead: list[rows.Blob] = []
        alive = 0
        try:
            with self._attachments.reading() as db:
                if db is None:
                    return []
                for blob in rows.blobs(db):
                    self.report.scanned_blob_count += 1
                    if self._is_dead(db, blob):
                        dead.append(blob)
                    else:
                        alive += 1
                rooted = alive or self._intends(db)
        except (AttachmentError, LedgerCorrupt) as error:
            self.report.root_enumeration_failure = str(error)
            raise self._refused(f"who holds what cannot be read: {error}") from error
        if dead and not rooted and self._policy.empty_root_set is EmptyRootSet.REFUSE:
            raise self._refused(
                f"{len(dead)} attachments are stored and nobody holds one of them; "
                f"if that is so, authorize it"
            )
        if self._dry_run:
            self.report.reclaimed_count = len(dead)
            self.report.reclaimed_bytes = sum(blob.byte_len for blob in dead)
        return [blob.id for blob in dead]

    def _is_dead(self, db: sqlite3.Connection, blob: rows.Blob) -> bool:
        if blob.state == rows.DELETING:
            # Another sweep's. If that one is gone, this is what it left.
            return blob.sweep is None or self._proven_dead(blob.sweep)
        held = list(rows.references(db, id=blob.id))
        if not held:
            return blob.stored_at <= self._cutoff
        return all(
            each.committed_at_epoch_ms is None
            and intent_is_dead(
                each.intent,
                holders=rows.holders(db, each.intent),
                cutoff=self._cutoff,
                proven_dead=self._proven_dead,
            )
            for each in held
        )

    def _intends(self, db: sqlite3.Connection) -> bool:
        """Whether anything is held at all, also if its bytes are not there yet."""
        return any(
            each.committed_at_epoch_ms is not None
            or not intent_is_dead(
                each.intent,
                holders=rows.holders(db, each.intent),
                cutoff=self._cutoff,
                proven_dead=self._proven_dead,
            )
            for each in rows.references(db)
        )

    def _proven_dead(self, owner: str) -> bool:
        """Asked once: who is dead stays dead, and who lived a moment ago is left alone."""
        if owner not in self._dead:
            self._dead[owner] = self._attachments.owners.proven_dead(owner)
            if not self._dead[owner] and owner not in self._attachments.owners.ids():
                self.report.unproven_owners.append(owner)
        return self._dead[owner]

    # -- one blob ------------------------------------------------------------------------------

    def _reclaim(self, id: str) -> Iterator[str]:
        with self._attachments.writing(forced=False) as db:
            blob = rows.blob_of(db, id)
            if blob is None:
                return  # another sweep was faster
            condemned = self._is_dead(db, blob)
            if condemned and blob.state != rows.DELETING:
                rows.condemn(db, id, state=rows.CONDEMNED, sweep=self._id)
        yield "condemned"
        if not condemned or not self._execute(blob):
            self.report.condemn_deferred_ids.append(id)
            return
        if blob.filed:
            yield "deleting"
            if not (yield from self._unlink(id)):
                return
        self.report.reclaimed_count += 1
        self.report.reclaimed_bytes += blob.byte_len

    def _execute(self, seen: rows.Blob) -> bool:
        """Carry the sentence out, if it still stands: a row goes, a file is marked as going."""
        with self._attachments.writing(forced=False) as db:
            blob = rows.blob_of(db, seen.id)
            if blob is None or not self._is_ours(blob) or not self._is_dead(db, blob):
                return False
            self._forget_dead(db, seen.id)
            if blob.filed:
                rows.condemn(db, seen.id, state=rows.DELETING, sweep=self._id)
            else:
                rows.drop_blob(db, seen.id)
        return True

    def _is_ours(self, blob: rows.Blob) -> bool:
        return blob.state == rows.DELETING or (
            blob.state == rows.CONDEMNED and blob.sweep == self._id
        )

    def _unlink(self, id: str) -> Iterator[str]:
        """Take the file away, and then its row. Nobody can want it in between: they wait."""
        try:
            self._attachments.files.remove(id)
        except AttachmentError:
            self.report.failed_ids.append(id)
            with self._attachments.writing(forced=False) as db:
                rows.condemn(db, id, state=rows.FREE, sweep="")
            return False
        yield "unlinked"
        with self._attachments.writing(forced=False) as db:
            blob = rows.blob_of(db, id)
            if blob is not None and (blob.state, blob.sweep) == (rows.DELETING, self._id):
                if any(True for _ in rows.references(db, id=id)):
                    self.report.deleted_while_referenced.append(id)
                rows.drop_blob(db, id)
        return True

    def _forget_dead(self, db: sqlite3.Connection, id: str) -> None:
        for each in list(rows.references(db, id=id)):
            rows.forget(db, each.intent.session_id, id)
            self.report.swept_intent_count += 1
