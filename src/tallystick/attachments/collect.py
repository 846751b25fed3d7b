"""Collection: which bytes nobody alive holds, how they go, and whether the others are whole.

Rule 1: committed references are alive. An intent dies only when it is old and its owner is proven
dead. Bytes that no row names at all are dead when they are old, or were forgotten just now by who
asks for their deletion.
Rule 2: every sentence is checked again in the transaction that carries it out (the fence of
`manifest`).
Rule 3: what fails is named and passed over. Only a manifest that cannot be read, or that says
nobody holds anything, stops a sweep, and then before it deleted anything.
Rule 4: between two steps the process may die, and any other sweep or put may come. `steps` yields
there, so that tests can be all of them.
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

# What a sweep may do, what it says afterwards, and when an intent is dead.


_DAY_MS = 24 * 60 * 60 * 1000


class EmptyRootSet(enum.StrEnum):
    """What it means that nothing is held: a manifest that was lost looks the same."""

    REFUSE = "refuse"
    AUTHORIZE_DELETE_ALL = "authorize_delete_all"


class Fence(enum.StrEnum):
    """Whether a put can come between the last look and the deletion."""

    FENCED = "fenced"
    BEST_EFFORT = "best_effort"


class ReclaimPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """`grace_period_ms` is how old the intent of a dead owner must be. Age alone proves nothing."""

    grace_period_ms: int = _DAY_MS
    empty_root_set: EmptyRootSet = EmptyRootSet.REFUSE


class ReclaimReport(msgspec.Struct, kw_only=True):
    """What a sweep found and did; in a dry run, what it would have done.

    `condemn_deferred_ids`: bytes that somebody wanted after all, or that another sweep is at.
    `unproven_owners`: owners of old intents that have neither a lock nor a lock file; what they
    intended stays. `needed_ids`: bytes that no session holds and that a record needs; they stay,
    since a reference was lost.
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


def intent_is_dead(
    intent: Intent,
    *,
    holders: Sequence[str],
    cutoff: int,
    proven_dead: Callable[[str], bool],
) -> bool:
    """An intent dies if it is old and all who hold it, if any do, are proven dead."""
    return intent.intent_at_epoch_ms <= cutoff and all(map(proven_dead, holders))


# Collection: which bytes nobody alive holds, and how they go without a put losing them.


_POLICY = ReclaimPolicy()
_GROUP = 256
_Item = TypeVar("_Item")


class Reclaimable(Protocol):
    """A store whose bytes can be collected: its rows, its blobs, and who its owners are."""

    @property
    def blobs(self) -> Blobs: ...

    @property
    def owners(self) -> Owners: ...

    def clock(self) -> int:
        """Return milliseconds since 1970."""

    def looking(self) -> contextlib.AbstractContextManager[ManifestRows | None]:
        """Look at the rows in one state; None if there are none yet."""

    def changing(self, *, forced: bool) -> contextlib.AbstractContextManager[ManifestRows]:
        """Change rows in a transaction. A forced one is on the disk, if there is one."""

    def staged_files(self) -> Iterable[tuple[str, Path]]:
        """Go through the files in staging, each with its owner."""

    def chunks(self, id: str) -> Chunks:
        """Read an attachment, checked."""

    def scrub(self) -> None:
        """Take deleted bytes out of what was written, as far as no reader still needs it."""


class CollectableAttachments(Attachments, Reclaimable, Protocol):
    """Attachments that can be collected by whoever holds some of them."""


def reclaim(
    attachments: Reclaimable,
    *,
    policy: ReclaimPolicy = _POLICY,
    dry_run: bool = False,
    needed: Callable[[], Collection[str]] | None = None,
) -> ReclaimReport:
    """Delete what nobody alive holds. Raises `ReclamationRefused`, with what was found so far.

    `needed` gives the ids that records name. It is asked only if something is to be deleted, and
    what it gives stays, although no session holds it.
    """
    sweep = Sweep(attachments, policy=policy, dry_run=dry_run, needed=needed)
    for _ in sweep.steps():
        pass
    return sweep.report


def reclaim_forgotten(attachments: Reclaimable, ids: Sequence[str]) -> ReclaimReport:
    """Delete bytes that their holder has just let go of, however young, unless a row names them.

    For what is replaced again and again. The caller took its own row out, so that nothing has to be
    proven about the others, and nothing else is looked at; what it leaves is there for a sweep.
    """
    sweep = Sweep(attachments, forgotten=ids)
    for _ in sweep.forgotten_steps():
        pass
    return sweep.report


class Sweep:
    """One collection. It is an owner of its own: what it left half done is then a dead owner's."""

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
        """Do the work, stopping wherever something else could happen."""
        self._cutoff = self._attachments.clock() - self._policy.grace_period_ms
        candidates = self._candidates()
        if self._dry_run:
            self._count_orphans()
            return
        yield "looked"
        with self._owning():
            for start in range(0, len(candidates), self._group):
                yield from self._reclaim(candidates[start : start + self._group])
            self._forget_dead_intents()
            yield "intents forgotten"
            yield from self._remove_orphans()
        self._bury()
        if self.report.reclaimed_count:
            self._attachments.scrub()

    def forgotten_steps(self) -> Iterator[str]:
        """The same work, on the bytes that were forgotten and on no others."""
        with self._owning():
            yield from self._reclaim(self._forgotten)

    @contextlib.contextmanager
    def _owning(self) -> Iterator[None]:
        owner = self._attachments.owners.hold()
        self._id = owner.id
        done = False
        try:
            yield
            done = True
        finally:
            owner.release(remove=done)

    # -- who is alive --------------------------------------------------------------------------

    def _candidates(self) -> list[str]:
        """The blobs that nobody alive holds, as far as a look can tell."""
        try:
            with self._attachments.looking() as rows:
                alive, dead = (set(), []) if rows is None else self._sorted_out(rows)
        except (AttachmentError, LedgerCorrupt) as error:
            self.report.root_enumeration_failure = str(error)
            raise ReclamationRefused(
                why=f"who holds what cannot be read: {error}", report=self.report
            ) from error
        if not alive and self._policy.empty_root_set is EmptyRootSet.REFUSE:
            # Files without a row too: that is how they look when the ledger's file was lost.
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
        return [blob.id for blob in dead]

    def _is_needed(self, id: str) -> bool:
        """Return whether a record names bytes, though no session holds them. Noted if so."""
        if self._needed is None:
            return False
        if self._needed_ids is None:
            self._needed_ids = frozenset(self._needed())
        if id not in self._needed_ids:
            return False
        if id not in self.report.needed_ids:
            self.report.needed_ids.append(id)
        return True

    def _sorted_out(self, rows: ManifestRows) -> tuple[set[str], list[Blob]]:
        """What somebody alive holds, and the blobs that nobody does."""
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
            # Another sweep's. If that one is gone, this is what it left.
            return blob.sweep is None or self._proven_dead(blob.sweep)
        held = list(rows.references(id=blob.id))
        if blob.id in self._forgotten:
            return not held
        if not held:
            return blob.stored_at <= self._cutoff
        return not any(self._lives(rows, each) for each in held)

    def _proven_dead(self, owner: str) -> bool:
        """AskedRun once: who is dead stays dead, and who lived a moment ago is left alone."""
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
        """Carry out the sentences that still stand: rows go at once, files are marked as going."""
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
        """Take files away, then their rows. Whoever wants one in between waits."""
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
                if any(True for _ in rows.references(id=blob.id)):
                    self.report.deleted_while_referenced.append(blob.id)
                rows.drop_blob(blob.id)
        self._count(gone)

    def _count(self, blobs: Sequence[Blob]) -> None:
        self.report.reclaimed_count += len(blobs)
        self.report.reclaimed_bytes += sum(blob.byte_len for blob in blobs)

    def _forget_dead_intents(self) -> None:
        """Rows of the dead whose bytes others hold, or never came."""
        with self._attachments.changing(forced=False) as rows:
            for each in rows.uncommitted(self._cutoff):
                if not self._lives(rows, each):
                    rows.forget(each.intent.session_id, each.intent.attachment_id)
                    self.report.swept_intent_count += 1

    # -- what no row names ---------------------------------------------------------------------

    def _remove_orphans(self) -> Iterator[str]:
        for path in self._orphans_in_staging():
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                self.report.orphan_failures.append(str(AttachmentIoFailed.of(path, error)))
            else:
                self.report.orphan_staged_count += 1
        yield "staging emptied"
        orphans = [id for id in self._files_without_row() if not self._is_needed(id)]
        for start in range(0, len(orphans), self._group):
            marked = self._mark_orphans(orphans[start : start + self._group])
            yield "deleting"
            before = self.report.reclaimed_count
            yield from self._unlink(marked)
            self.report.orphan_file_count += self.report.reclaimed_count - before

    def _mark_orphans(self, ids: Sequence[str]) -> list[Blob]:
        """Give files the row of one that is going, unless somebody is about to give them theirs."""
        sizes = self._listed(lambda: [(id, self._attachments.blobs.size(id) or 0) for id in ids])
        marked = []
        with self._attachments.changing(forced=True) as rows:
            for id, size in sizes:
                if rows.blob_of(id) is None and not list(rows.references(id=id)):
                    rows.keep_file(id, size, now=self._attachments.clock())
                    rows.mark(id, state=DELETING, sweep=self._id)
                    marked.append(Blob(id, size, 0, DELETING, self._id, True))
        return marked

    def _orphans_in_staging(self) -> list[Path]:
        return self._listed(
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

        return self._listed(found)

    def _listed(self, listing: Callable[[], list[_Item]]) -> list[_Item]:
        """A directory that cannot be listed is a failure to name, not a reason to stop."""
        try:
            return listing()
        except AttachmentIoFailed as error:
            self.report.orphan_failures.append(str(error))
            return []

    def _count_orphans(self) -> None:
        self.report.orphan_staged_count = len(self._orphans_in_staging())
        orphans = [id for id in self._files_without_row() if not self._is_needed(id)]
        self.report.orphan_file_count = len(orphans)

    def _bury(self) -> None:
        """Remove the lock files of the dead whom nothing names any more."""
        owners = self._attachments.owners
        staged = self._listed(lambda: [owner for owner, _ in self._attachments.staged_files()])
        with self._attachments.looking() as rows:
            named = {*staged, *(() if rows is None else rows.named_owners())}
        for owner in self._listed(owners.ids):
            if owner not in named:
                owners.bury(owner)


# Whether every committed reference has its bytes, and whether they are the ones that were put.


class BadAttachment(msgspec.Struct, frozen=True, kw_only=True):
    """An attachment that somebody holds and nobody can have, and why."""

    id: str
    sessions: tuple[str, ...]
    why: str


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was read again. Each blob is read once, however many hold it.

    `damage` is what SQLite finds wrong with the file, and which records cannot be read.
    """

    ok: bool
    references: int
    blobs: int
    bytes: int
    bad: tuple[BadAttachment, ...]
    damage: tuple[str, ...] = ()


def verify_attachments(attachments: Reclaimable, *, session_id: str | None = None) -> VerifyReport:
    """Read the bytes of every committed reference, of one session or of all."""
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
