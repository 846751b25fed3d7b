"""Collect garbage: delete attachments that no living holder keeps, and verify the others.

Rule 1: a committed reference keeps its bytes. An attachment intent keeps them until it is old and
its owners are proven dead. Bytes that no row names at all are dead when they are old, or when the
caller that asks for their deletion has just released them.
Rule 2: every deletion is checked again in the transaction that carries it out (the fence of
`manifest`).
Rule 3: a failure is reported and passed over. Only a manifest that cannot be read, or in which
nothing is held, stops a sweep, and then before it deleted anything.
Rule 4: between two steps the process may die, and any other sweep or put may come. `steps` yields
there, so that tests can interrupt it at each of them.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from tallystick.attachments.manifest import CONDEMNED, DELETING, FREE, Blob, ManifestRows
from tallystick.attachments.port import (
    AttachmentError,
    AttachmentIoFailed,
    AttachmentNotFound,
    Attachments,
    Blobs,
    Chunks,
    Intent,
    ReclamationRefused,
    Reference,
)
from tallystick.core.errors import LedgerCorrupt
from tallystick.storage.owner import Owners

# The policy and the report of a sweep, and the death of an intent.


_DAY_MS = 24 * 60 * 60 * 1000


class EmptyRootSet(enum.StrEnum):
    """The reaction if no attachment is held: a manifest that was lost looks the same."""

    REFUSE = "refuse"
    AUTHORIZE_DELETE_ALL = "authorize_delete_all"


class Fence(enum.StrEnum):
    """The protection against a put between the last look and the deletion."""

    FENCED = "fenced"
    BEST_EFFORT = "best_effort"


class ReclaimPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of a sweep. `grace_period_ms` is the age at which the intent of a dead owner goes.

    Age alone proves nothing about an intent that has an owner.
    """

    grace_period_ms: int = _DAY_MS
    empty_root_set: EmptyRootSet = EmptyRootSet.REFUSE


class ReclaimReport(msgspec.Struct, kw_only=True):
    """The findings and deletions of a sweep; in a dry run, what it would have deleted.

    `failed_ids` are large bytes that could not be unlinked; they are free again.
    `condemn_deferred_ids` are bytes that a put wanted after all, or that another sweep is deleting.
    `unproven_owners` are owners of old intents that have neither a lock nor a lock file; their
    intents stay. `needed_ids` are bytes that no holder keeps and that a record needs: a reference
    was lost, so they stay. `reclaimed_ids` are the bytes that are gone.
    `orphan_staged_bytes` are of files that a dead process had begun to write.
    """

    dry_run: bool = False
    fence: Fence = Fence.FENCED
    scanned_blob_count: int = 0
    reclaimed_count: int = 0
    reclaimed_bytes: int = 0
    failed_ids: list[str] = msgspec.field(default_factory=list)
    condemn_deferred_ids: list[str] = msgspec.field(default_factory=list)
    deleted_while_referenced: list[str] = msgspec.field(default_factory=list)
    root_enumeration_failure: str | None = None
    swept_intent_count: int = 0
    orphan_staged_count: int = 0
    orphan_file_count: int = 0
    orphan_failures: list[str] = msgspec.field(default_factory=list)
    unproven_owners: list[str] = msgspec.field(default_factory=list)
    needed_ids: list[str] = msgspec.field(default_factory=list)
    reclaimed_ids: list[str] = msgspec.field(default_factory=list)
    orphan_staged_bytes: int = 0


def intent_is_dead(
    intent: Intent,
    *,
    holders: Sequence[str],
    cutoff: int,
    proven_dead: Callable[[str], bool],
) -> bool:
    """Return True if an intent is at or before the cutoff and all its holders are proven dead.

    Without holders, its age is enough. `proven_dead` is not called for one that is younger.
    """
    return intent.intent_at_epoch_ms <= cutoff and all(map(proven_dead, holders))


# The sweep: it deletes what no living holder keeps, and no put can lose its bytes to it.


_POLICY = ReclaimPolicy()
_GROUP = 256
_Item = TypeVar("_Item")


class Reclaimable(Protocol):
    """A store whose bytes can be collected: its rows, its blobs and its owners."""

    @property
    def blobs(self) -> Blobs:
        """The store of large bytes."""

    @property
    def owners(self) -> Owners:
        """The owners of intents, of staged files and of sweeps."""

    def clock(self) -> int:
        """Return milliseconds since 1970."""

    def looking(self) -> contextlib.AbstractContextManager[ManifestRows | None]:
        """Give the rows, to be read in one state; None if there are none yet."""

    def changing(self, *, forced: bool) -> contextlib.AbstractContextManager[ManifestRows]:
        """Give the rows, to be changed in a transaction that is undone if the block raises.

        A forced one is on the disk when it ends, if there is a disk.
        """

    def staged_files(self) -> Iterable[tuple[str, Path]]:
        """Yield the files in staging, each after the id of its owner."""

    def chunks(self, id: str) -> Chunks:
        """Read an attachment, checked against its digest. Raise as `Store.chunks` does."""

    def scrub(self) -> None:
        """Remove deleted bytes from logs too, as far as no reader still needs them."""


class CollectableAttachments(Attachments, Reclaimable, Protocol):
    """Attachments that a holder of some of them can also collect."""


def reclaim(
    attachments: Reclaimable,
    *,
    policy: ReclaimPolicy = _POLICY,
    dry_run: bool = False,
    needed: Callable[[], Collection[str]] | None = None,
) -> ReclaimReport:
    """Delete the attachments that no living holder keeps, and return a report.

    `needed` returns the ids that records name. It is called once, and only if something is to be
    deleted; its ids stay, although no holder keeps them. With `dry_run`, nothing is deleted. Raise
    `ReclamationRefused`, with the report so far, if the manifest cannot be read. It is raised also
    if bytes are stored and no living holder has any, unless `policy` authorizes that. Raise
    `AttachmentIoFailed` if the sweep cannot become an owner, the errors of the ledger that has the
    rows, and what `needed` raises. Files that cannot be removed are in the report, and raise
    nothing.
    """
    sweep = Sweep(attachments, policy=policy, dry_run=dry_run, needed=needed)
    for _ in sweep.steps():
        pass
    return sweep.report


def reclaim_forgotten(attachments: Reclaimable, ids: Sequence[str]) -> ReclaimReport:
    """Delete bytes that their holder has just released, of any age, unless a row names them.

    This is for attachments that are replaced again and again. The caller removed its own row, so no
    owner has to be proven dead. Other bytes are not looked at; a sweep finds them. Return a report.
    Raise `AttachmentIoFailed` if the deletion cannot become an owner, and the errors of the ledger
    that has the rows. A file that cannot be removed is in the report.
    The store's logs are not scrubbed, so the bytes may stay in one until a sweep.
    """
    sweep = Sweep(attachments, forgotten=ids)
    for _ in sweep.forgotten_steps():
        pass
    return sweep.report


class Sweep:
    """One collection.

    It is an owner of its own, so a sweep that was interrupted is a dead owner's.
    """

    def __init__(
        self,
        attachments: Reclaimable,
        *,
        policy: ReclaimPolicy = _POLICY,
        dry_run: bool = False,
        group: int = _GROUP,
        forgotten: Sequence[str] = (),
        needed: Callable[[], Collection[str]] | None = None,
    ) -> None:
        self._needed = needed
        self._needed_ids: frozenset[str] | None = None
        self.report = ReclaimReport(dry_run=dry_run)
        self._attachments = attachments
        self._policy = policy
        self._dry_run = dry_run
        self._group = group
        self._forgotten = forgotten
        self._cutoff = 0
        self._id = ""
        self._dead: dict[str, bool] = {}

    def steps(self) -> Iterator[str]:
        """Do the work, and yield the name of the last step wherever another process could act.

        Raise `ReclamationRefused` as `reclaim` does. If it is not run to its end, its lock file
        stays, so that others can prove it dead.
        """
        self._cutoff = self._attachments.clock() - self._policy.grace_period_ms
        candidates = self._candidates()
        if self._dry_run:
            self._count_orphans()
            return
        yield "looked"
        with self._as_owner():
            for start in range(0, len(candidates), self._group):
                yield from self._reclaim(candidates[start : start + self._group])
            self._forget_dead_intents()
            yield "intents forgotten"
            yield from self._remove_orphans()
        self._bury()
        if self.report.reclaimed_count:
            self._attachments.scrub()

    def forgotten_steps(self) -> Iterator[str]:
        """Do the work of `steps` on the forgotten bytes only. Yield the name of each step.

        Nothing is scrubbed or refused.
        """
        with self._as_owner():
            yield from self._reclaim(self._forgotten)

    @contextlib.contextmanager
    def _as_owner(self) -> Iterator[None]:
        owner = self._attachments.owners.hold()
        self._id = owner.id
        done = False
        try:
            yield
            done = True
        finally:
            owner.release(remove=done)

    # -- living holders ------------------------------------------------------------------------

    def _candidates(self) -> list[str]:
        """Return the ids of blobs that no living holder keeps, as far as this look can tell.

        Those that records need are left out, and noted in the report. A dry run counts the others
        there. Raise `ReclamationRefused` as `reclaim` does.
        """
        try:
            with self._attachments.looking() as rows:
                alive, dead = (set(), []) if rows is None else self._split_by_life(rows)
        except (AttachmentError, LedgerCorrupt) as error:
            self.report.root_enumeration_failure = str(error)
            raise ReclamationRefused(
                why=f"who holds what cannot be read: {error}", report=self.report
            ) from error
        if not alive and self._policy.empty_root_set is EmptyRootSet.REFUSE:
            # Count files without a row too: a store looks like that if its ledger file was lost.
            stored = len(dead) + len(self._files_without_row())
            if stored:
                raise ReclamationRefused(
                    why=f"{stored} attachments are stored and nobody holds any; authorize it "
                    "if that is so",
                    report=self.report,
                )
        dead = [blob for blob in dead if not self._is_needed(blob.id)]
        if self._dry_run:
            self.report.reclaimed_count = len(dead)
            self.report.reclaimed_bytes = sum(blob.byte_len for blob in dead)
            self.report.reclaimed_ids = [blob.id for blob in dead]
        return [blob.id for blob in dead]

    def _is_needed(self, id: str) -> bool:
        """Return True if a record names bytes that no holder keeps, and note that in the report.

        The first call asks `needed`, and the others use its answer. Without `needed`, none is.
        """
        if self._needed is None:
            return False
        if self._needed_ids is None:
            self._needed_ids = frozenset(self._needed())
        if id not in self._needed_ids:
            return False
        if id not in self.report.needed_ids:
            self.report.needed_ids.append(id)
        return True

    def _split_by_life(self, rows: ManifestRows) -> tuple[set[str], list[Blob]]:
        """Return the ids that living holders keep, and the blobs that may be deleted.

        Young bytes without a row are in neither, nor are those that a living sweep is deleting.
        """
        # Every row is read, also those of other blobs: one that cannot be read may be a reference
        # to anything.
        alive = {each.intent.attachment_id for each in rows.references() if self._lives(rows, each)}
        dead = []
        for blob in rows.blobs():
            self.report.scanned_blob_count += 1
            if blob.id not in alive and self._is_dead(rows, blob):
                dead.append(blob)
        return alive, dead

    def _lives(self, rows: ManifestRows, reference: Reference) -> bool:
        return reference.committed_at_epoch_ms is not None or not intent_is_dead(
            reference.intent,
            holders=rows.holders(reference.intent),
            cutoff=self._cutoff,
            proven_dead=self._proven_dead,
        )

    def _is_dead(self, rows: ManifestRows, blob: Blob) -> bool:
        if blob.state == DELETING:
            # Another sweep is deleting it. If that sweep is dead, this one takes over.
            return blob.sweep is None or self._proven_dead(blob.sweep)
        held = list(rows.references(id=blob.id))
        if blob.id in self._forgotten:
            return not held
        if not held:
            return blob.stored_at <= self._cutoff
        return not any(self._lives(rows, each) for each in held)

    def _proven_dead(self, owner: str) -> bool:
        """Return True if an owner is proven dead. Each owner is asked about once.

        A dead owner stays dead, and one that lived a moment ago is left alone in this sweep. An
        owner without any proof is noted in the report, and counts as alive.
        """
        if owner not in self._dead:
            self._dead[owner] = self._attachments.owners.proven_dead(owner)
            if not self._dead[owner] and not self._attachments.owners.knows(owner):
                self.report.unproven_owners.append(owner)
        return self._dead[owner]

    # -- from free to gone ---------------------------------------------------------------------

    def _reclaim(self, ids: Sequence[str]) -> Iterator[str]:
        self._condemn(ids)
        yield "condemned"
        going = self._execute(ids)
        filed = [blob for blob in going if blob.filed]
        self._count([blob for blob in going if not blob.filed])
        if filed:
            yield "deleting"
            yield from self._unlink(filed)

    def _condemn(self, ids: Sequence[str]) -> None:
        with self._attachments.changing(forced=False) as rows:
            for id in ids:
                blob = rows.blob_of(id)
                if blob is not None and blob.state != DELETING and self._is_dead(rows, blob):
                    rows.mark(id, state=CONDEMNED, sweep=self._id)

    def _execute(self, ids: Sequence[str]) -> list[Blob]:
        """Carry out the deletions that still apply: delete rows at once, mark files as going.

        Return the blobs of both kinds. Their dead intents are deleted too. Other ids that have a
        row are noted in the report as deferred.
        """
        going: list[Blob] = []
        # Forced: else a power cut could undo the mark and not the unlink that follows it.
        with self._attachments.changing(forced=True) as rows:
            for id in ids:
                blob = rows.blob_of(id)
                if blob is None:
                    continue  # another sweep was faster
                if not self._stands(rows, blob):
                    self.report.condemn_deferred_ids.append(id)
                    continue
                for each in list(rows.references(id=id)):
                    rows.forget(each.intent.session_id, id)
                    self.report.swept_intent_count += 1
                if blob.filed:
                    rows.mark(id, state=DELETING, sweep=self._id)
                else:
                    rows.drop_blob(id)
                going.append(blob)
        return going

    def _stands(self, rows: ManifestRows, blob: Blob) -> bool:
        sentenced = blob.state == CONDEMNED and blob.sweep == self._id
        return (sentenced or blob.state == DELETING) and self._is_dead(rows, blob)

    def _unlink(self, blobs: Sequence[Blob]) -> Iterator[str]:
        """Delete files, then their rows. Yield the name of each step.

        A put of the same bytes in between waits. Files that are gone are counted in the report. A
        file that cannot be deleted is noted in the report and gets free again, so that its
        holders and a later sweep find it.
        """
        # Nobody is asked again who holds these: their rows say `DELETING`, on the disk, so an
        # intent waits and a commit reports them as gone.
        gone = []
        for blob in blobs:
            try:
                self._attachments.blobs.remove(blob.id)
            except AttachmentIoFailed:
                self.report.failed_ids.append(blob.id)
            else:
                gone.append(blob)
            yield "unlinked"
        with self._attachments.changing(forced=False) as rows:
            for blob in blobs:
                found = rows.blob_of(blob.id)
                if found is None or (found.state, found.sweep) != (DELETING, self._id):
                    continue  # small bytes have taken its place
                if blob not in gone:
                    rows.mark(blob.id, state=FREE, sweep=None)
                    continue
                # No intent can have come meanwhile. If one has, its bytes are lost: say so.
                if any(True for _ in rows.references(id=blob.id)):
                    self.report.deleted_while_referenced.append(blob.id)
                rows.drop_blob(blob.id)
        self._count(gone)

    def _count(self, blobs: Sequence[Blob]) -> None:
        self.report.reclaimed_count += len(blobs)
        self.report.reclaimed_bytes += sum(blob.byte_len for blob in blobs)
        self.report.reclaimed_ids.extend(blob.id for blob in blobs)

    def _forget_dead_intents(self) -> None:
        """Delete the old intents of dead owners, whatever became of their bytes."""
        with self._attachments.changing(forced=False) as rows:
            for each in rows.uncommitted_references(self._cutoff):
                if not self._lives(rows, each):
                    rows.forget(each.intent.session_id, each.intent.attachment_id)
                    self.report.swept_intent_count += 1

    # -- files without a row -------------------------------------------------------------------

    def _remove_orphans(self) -> Iterator[str]:
        """Remove staged files of dead owners, and large bytes with neither a row nor an intent.

        Yield the name of each step. Files that records need stay. What is removed is counted in the
        report, and what cannot be is noted there.
        """
        for path in self._orphans_in_staging():
            size = _size_of(path)
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                self.report.orphan_failures.append(str(AttachmentIoFailed.of(path, error)))
            else:
                self.report.orphan_staged_count += 1
                self.report.orphan_staged_bytes += size
        yield "staging emptied"
        orphans = [id for id in self._files_without_row() if not self._is_needed(id)]
        for start in range(0, len(orphans), self._group):
            marked = self._mark_orphans(orphans[start : start + self._group])
            yield "deleting"
            before = self.report.reclaimed_count
            yield from self._unlink(marked)
            self.report.orphan_file_count += self.report.reclaimed_count - before

    def _mark_orphans(self, ids: Sequence[str]) -> list[Blob]:
        """Give files without a row the row of a blob that is going, and return those blobs.

        A file that has a row, or that an intent names by now, is left alone. If the sizes cannot be
        read, all are, and the report says so.
        """
        sizes = self._list_or_note(
            lambda: [(id, self._attachments.blobs.size(id) or 0) for id in ids]
        )
        marked = []
        with self._attachments.changing(forced=True) as rows:
            for id, size in sizes:
                if rows.blob_of(id) is None and not list(rows.references(id=id)):
                    rows.keep_file(id, size, now=self._attachments.clock())
                    rows.mark(id, state=DELETING, sweep=self._id)
                    marked.append(Blob(id, size, 0, DELETING, self._id, True))
        return marked

    def _orphans_in_staging(self) -> list[Path]:
        return self._list_or_note(
            lambda: [
                path for owner, path in self._attachments.staged_files() if self._proven_dead(owner)
            ]
        )

    def _files_without_row(self) -> list[str]:
        def found() -> list[str]:
            ids = list(self._attachments.blobs.ids())
            with self._attachments.looking() as rows:
                if rows is None:
                    return ids
                return [
                    id
                    for id in ids
                    if rows.blob_of(id) is None and not list(rows.references(id=id))
                ]

        return self._list_or_note(found)

    def _list_or_note(self, listing: Callable[[], list[_Item]]) -> list[_Item]:
        """Return a listing; after an `AttachmentIoFailed`, note that in the report, return []."""
        try:
            return listing()
        except AttachmentIoFailed as error:
            self.report.orphan_failures.append(str(error))
            return []

    def _count_orphans(self) -> None:
        staged = self._orphans_in_staging()
        self.report.orphan_staged_count = len(staged)
        self.report.orphan_staged_bytes = sum(map(_size_of, staged))
        orphans = [id for id in self._files_without_row() if not self._is_needed(id)]
        self.report.orphan_file_count = len(orphans)

    def _bury(self) -> None:
        """Remove the lock files of dead owners that no row and no staged file names any more.

        If the staged files or the owners cannot be listed, none is removed, and the report says so.
        """
        owners = self._attachments.owners

        def find_unnamed() -> list[str]:
            named = {owner for owner, _ in self._attachments.staged_files()}
            with self._attachments.looking() as rows:
                named |= set() if rows is None else rows.named_owners()
            return [owner for owner in owners.ids() if owner not in named]

        for owner in self._list_or_note(find_unnamed):
            owners.bury(owner)


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


# Verification: every committed reference has its bytes, and they are the ones that were put.


class BadAttachment(msgspec.Struct, frozen=True, kw_only=True):
    """An attachment that is held and cannot be read, with the reason."""

    id: str
    sessions: tuple[str, ...]
    why: str


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of reading held blobs again. Each is read once, however many hold it.

    `damage` is what SQLite finds wrong with the file, and which records cannot be read.
    """

    ok: bool
    references: int
    blobs: int
    bytes: int
    bad: tuple[BadAttachment, ...]
    damage: tuple[str, ...] = ()


def verify_attachments(attachments: Reclaimable, *, session_id: str | None = None) -> VerifyReport:
    """Read the bytes of every committed reference, of one holder or of all, and report bad ones.

    Bytes that cannot be read, or have another length than a reference says, are in the report. A
    reference whose row cannot be read raises `AttachmentCorrupt`. `damage` stays empty: the caller
    knows the file.
    """
    holders: dict[str, list[str]] = {}
    lengths: dict[str, set[int]] = {}
    with attachments.looking() as rows:
        if rows is not None:
            for each in rows.references(session_id=session_id):
                if each.committed_at_epoch_ms is not None:
                    holders.setdefault(each.ref.id, []).append(each.intent.session_id)
                    lengths.setdefault(each.ref.id, set()).add(each.ref.byte_len)
    bad = []
    total = 0
    # Outside of the look: reading large bytes takes long, and a look keeps the log from shrinking.
    for id, sessions in holders.items():
        try:
            length = _length(attachments, id)
            why = None if lengths[id] == {length} else f"it has {length} bytes, not as referred to"
            total += length
        except AttachmentNotFound:
            why = "its bytes are gone"
        except AttachmentError as error:
            why = str(error)
        if why is not None:
            bad.append(BadAttachment(id=id, sessions=tuple(sessions), why=why))
    return VerifyReport(
        ok=not bad,
        references=sum(map(len, holders.values())),
        blobs=len(holders),
        bytes=total,
        bad=tuple(bad),
    )


def _length(attachments: Reclaimable, id: str) -> int:
    with attachments.chunks(id) as chunks:
        return sum(map(len, chunks))
