"""Export, import and remove a run together with its attachments.

Rule 1: the attachments of a run are the committed references of its holder, which its first record
names. The holder belongs to the run if its name is a ULID and no other run here names it. Nothing
else is exported or released: otherwise a file that names the holder of another run, or of a user,
could copy or delete their attachments.
Rule 2: a file is not trusted until all of it was read. References are checked here, and bytes
against the digest that names them. Every attachment that a record names has to be in the file,
unless that record was erased.
Rule 3: bytes are put before the run is adopted, as attachment intents of this process, and
committed in the transaction that adopts it. A crash in between leaves bytes for garbage collection.
Rule 4: what the holder keeps here already stays as it is. Only what is missing or damaged is put,
so importing a file again restores attachments and changes nothing else.
Rule 5: a fork keeps the attachments that its shared entries name, under a holder of its own. If
only the shared part of an ancestor is imported, its holder keeps nothing.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from tallystick.attachments.media import LABEL_CHARS_MAX, SIDE_MAX, canonical_media_type
from tallystick.attachments.port import AttachmentError, Attachments, Intent, Transaction, is_digest
from tallystick.attachments.session import SessionAttachments
from tallystick.attachments.session import snapshots_holder as snapshots_of
from tallystick.core.chain import Sealed
from tallystick.core.errors import InvalidName, LedgerError, TransferRefused
from tallystick.core.ids import is_ulid
from tallystick.core.json_text import canonical
from tallystick.core.records import AttachmentRef
from tallystick.ledger.port import Carried, ExportHeader, Ledger, Receiver, TransferLedger
from tallystick.ledger.transfer import display_name, export_run, import_run
from tallystick.ledger.verify import ancestors_of
from tallystick.runtime.runs.history import (
    mentions,
    other_run_of,
    own_session,
    session_in,
    session_of,
)

_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_decode_ref = msgspec.json.Decoder(AttachmentRef).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Transferred:
    """The result of a transfer. `put` is how many attachments were not here before."""

    run: str
    attachments: int = 0
    bytes: int = 0
    put: int = 0


def export_run_with_attachments(
    ledger: TransferLedger,
    attachments: Attachments,
    run: str,
    target: Path | BinaryIO,
    *,
    move: bool = False,
) -> Transferred:
    """Write a run and its attachments to a new file, or to an open one.

    Raise `TransferRefused`, and write nothing, if an attachment that the records name is missing or
    damaged. Otherwise it behaves as `export_run`, also with `move`: it raises `TransferRefused`,
    `RunNotFound` and `RunNotOwned`. If the first record was erased, only the chain is exported.
    """
    session_id = own_session(ledger, run)
    mentioned = functools.cache(lambda: _all_mentioned(ledger, run))
    sizes: list[int] = []

    def collect() -> Sequence[Carried]:
        refs = _committed_refs(attachments, session_id)
        held = {ref.id: ref.byte_len for ref in refs}
        sizes[:] = held.values()
        for (id, byte_len), where in mentioned().items():
            if held.get(id) != byte_len:
                why = f"attachment {id[:64]!r}, of which {where} speaks, is not its own"
                raise _not_exported(run, target, why)
        return [
            Carried(
                ref=canonical(ref),
                byte_len=ref.byte_len,
                pieces=_pieces(attachments, ref, run, target),
            )
            for ref in refs
        ]

    export_run(ledger, run, target, move=move, carried=collect)
    return Transferred(run=run, attachments=len(sizes), bytes=sum(sizes))


def import_run_with_attachments(
    ledger: TransferLedger, attachments: Attachments, source: Path | BinaryIO
) -> Transferred:
    """Import an exported run and its attachments.

    Raise `TransferRefused` if the file is not valid, or if `import_run` refuses it for what is
    here. Then no run is kept, and garbage collection deletes what was put. A run that is here
    already with the same entries stays as it is; its attachments that are missing or damaged here
    are restored.
    """
    incoming = _Incoming(ledger, attachments)
    run = import_run(ledger, source, receiver=incoming)
    return Transferred(
        run=run,
        attachments=len(incoming.carried),
        bytes=sum(incoming.carried.values()),
        put=incoming.put_count,
    )


def remove_run_with_attachments(
    ledger: Ledger, attachments: Attachments, run: str
) -> tuple[str, ...]:
    """Delete a run, and its holder's references in the same transaction.

    Return the ids without a reference now; none if the run has no holder of its own, or their rows
    cannot be read. Their bytes are still there, for garbage collection. Raise `RunNotFound` if it
    is not here, and `UsageError` if a fork of it is.
    """
    session_id = own_session(ledger, run)
    if session_id is None:
        ledger.remove(run)
        return ()
    sessions = (session_id, snapshots_of(session_id))
    try:
        ids = [each.ref.id for held in sessions for each in attachments.references(held)]
    except AttachmentError:
        ids = []  # a row cannot be read, which must not prevent the removal of the run

    def release(db: Transaction) -> None:
        for held in sessions:
            attachments.forget_session(held, within=db)

    ledger.remove(run, also=release)
    try:
        return tuple(id for id in ids if not attachments.references(id=id))
    except AttachmentError:
        return ()


# -- export ------------------------------------------------------------------------------------


def _committed_refs(attachments: Attachments, session_id: str | None) -> list[AttachmentRef]:
    if session_id is None:
        return []
    return [
        each.ref
        for each in attachments.references(session_id)
        if each.committed_at_epoch_ms is not None
    ]


def _pieces(
    attachments: Attachments, ref: AttachmentRef, run: str, target: Path | BinaryIO
) -> Iterator[bytes]:
    count = 0
    try:
        with attachments.chunks(ref.id) as chunks:
            for piece in chunks:
                count += len(piece)
                yield piece
    except AttachmentError as error:
        raise _not_exported(run, target, str(error)) from error
    if count != ref.byte_len:
        raise _not_exported(
            run, target, f"attachment `{ref.id}` has {count} bytes, not {ref.byte_len}"
        )


def _all_mentioned(ledger: Ledger, run: str) -> dict[tuple[str, int], str]:
    """Return id and length of every attachment that the records name, with the first that does.

    For a fork, the shared entries count too. Nothing is returned if the first record was erased:
    the holder is unknown then, and only the chain is exported.
    """
    found: dict[tuple[str, int], str] = {}
    if session_of(ledger, run) is None:
        return found
    for seq, entry in enumerate(ledger.read(run)):
        _note(found, entry, f"entry {seq}")
    for ancestor in ancestors_of(ledger, run):
        for seq, entry in enumerate(ledger.read(ancestor.run, stop=ancestor.count)):
            _note(found, entry, f"entry {seq} of run {ancestor.run}")
    return found


def _note(found: dict[tuple[str, int], str], entry: Sealed, where: str) -> None:
    for ref in mentions(entry):
        found.setdefault((ref.id, ref.byte_len), where)


def _not_exported(run: str, target: Path | BinaryIO, why: str) -> TransferRefused:
    return TransferRefused(file=display_name(target), why=f"run {run}: {why}; nothing was exported")


# -- import ------------------------------------------------------------------------------------


class _Incoming:
    """Checks and stores the attachments of one import."""

    def __init__(self, ledger: Ledger, attachments: Attachments) -> None:
        self._ledger = ledger
        self._attachments = attachments
        self._session_id: str | None = None
        self._sessions: dict[str, str] = {}
        self._mentioned: dict[tuple[str, int], str] = {}
        self.carried: dict[str, int] = {}
        self.put_count = 0

    def check_shared(self, run: str, seq: int, entry: Sealed) -> str | None:
        session_id = session_in(entry) if seq == 0 else None
        if session_id is not None:
            self._sessions[run] = session_id
        _note(self._mentioned, entry, f"entry {seq} of run {run}")
        return None

    def check_entry(self, seq: int, entry: Sealed) -> str | None:
        if seq == 0:
            self._session_id = session_in(entry)
        if self._session_id is not None:
            _note(self._mentioned, entry, f"entry {seq}")
        return None

    def check_attachment(self, carried: Carried) -> str | None:
        what = f"attachment {len(self.carried)}"
        try:
            ref = _decode_ref(carried.ref)
            # Nothing may come along that the decoder ignores: unknown fields, or a second spelling.
            same = canonical(ref) == carried.ref
        except (*_UNREADABLE, UnicodeEncodeError):
            return f"the reference of {what} cannot be read"
        if not same:
            return f"the reference of {what} is not in canonical form"
        why = _reference_fault(ref)
        if why is not None:
            return f"the reference of {what} does not hold: {why}"
        if ref.byte_len != carried.byte_len:
            return f"{what} has {carried.byte_len} bytes, and its reference says {ref.byte_len}"
        if ref.id in self.carried:
            return f"attachment `{ref.id}` is in it twice"
        hashed = hashlib.sha256()
        for piece in carried.pieces:
            hashed.update(piece)
        if hashed.hexdigest() != ref.id:
            return f"attachment `{ref.id}` does not hold: its bytes are others"
        self.carried[ref.id] = ref.byte_len
        return None

    def check_whole(self, header: ExportHeader) -> str | None:
        session_id = self._session_id
        if session_id is None:
            if header.attachments:
                return "it carries attachments, and its first record names no session"
        else:
            for (id, byte_len), where in self._mentioned.items():
                if self.carried.get(id) != byte_len:
                    return f"{where} speaks of attachment {id[:64]!r}, which it does not carry"
            why = self._holder_fault(header.run, session_id, self.carried)
            if why is not None:
                return f"its session {why}"
            self._sessions[header.run] = session_id
        # A holder belongs to one run (rule 1): with a common one, to remove one of the runs would
        # release the attachments of the other.
        if len(set(self._sessions.values())) < len(self._sessions):
            return "two of its runs name the same session"
        for run, each in self._sessions.items():
            why = None if run == header.run else self._holder_fault(run, each, {})
            if why is not None:
                return f"the session of run {run}, which it shares, {why}"
        return None

    def _holder_fault(self, run: str, session_id: str, carried: Collection[str]) -> str | None:
        """Return why an imported run cannot have this holder; None if it can."""
        if not is_ulid(session_id):
            return f"{session_id[:40]!r} is none that a run has"
        other = other_run_of(self._ledger, session_id, run)
        if other is not None:
            return f"is that of run {other}, which is here"
        if self._keeps_foreign(session_id, run, carried):
            return "holds attachments here that it does not carry"
        return None

    def take(self, carried: Carried) -> str | None:
        assert self._session_id is not None
        ref = _decode_ref(carried.ref)
        rows = self._attachments.references(self._session_id, ref.id)
        if rows and rows[0].committed_at_epoch_ms is not None and self._is_whole(ref):
            return None
        staged = self._attachments.stage(carried.pieces)
        try:
            if (staged.ref.id, staged.ref.byte_len) != (ref.id, ref.byte_len):
                return "it changed while it was read"
            intent = Intent(
                session_id=self._session_id,
                attachment_id=ref.id,
                intent_at_epoch_ms=self._attachments.clock(),
                owner=self._attachments.owner(),
            )
            # An existing row keeps its label and media type.
            ref = rows[0].ref if rows else ref
            if staged.data is None:
                # A file is published between two transactions, never inside one.
                self._attachments.record_intent(intent, ref)
                self._attachments.keep(staged)
            else:
                with self._attachments.writing(forced=False) as db:
                    self._attachments.record_intent(intent, ref, within=db)
                    self._attachments.keep(staged, within=db)
        finally:
            staged.discard()
        self.put_count += 1
        return None

    def commit(self, within: Transaction) -> None:
        assert self._session_id is not None
        held = SessionAttachments(self._attachments, session_id=self._session_id)
        held.commit(list(self.carried), within=within)

    def _keeps_foreign(self, session_id: str, run: str, carried: Collection[str]) -> bool:
        """Return True if the holder keeps attachments here that are not in the file.

        False if the run here has this holder already: then they are its own.
        """
        try:
            if session_of(self._ledger, run) == session_id:
                return False
        except LedgerError:
            pass  # the run is not here, or cannot be read
        held = _committed_refs(self._attachments, session_id)
        return any(ref.id not in carried for ref in held)

    def _is_whole(self, ref: AttachmentRef) -> bool:
        try:
            with self._attachments.chunks(ref.id) as chunks:
                return sum(map(len, chunks)) == ref.byte_len
        except AttachmentError:
            return False


def _reference_fault(ref: AttachmentRef) -> str | None:
    """Return why a reference cannot be one that this package wrote; None if it can."""
    try:
        if not is_digest(ref.id):
            return "its id is no digest"
        for kind in (ref.media_type, ref.declared):
            if kind is not None and canonical_media_type(kind) != kind:
                return "its media type is not in canonical form"
    except InvalidName as error:
        return str(error)
    # A declared type is only recorded if it differs from the detected one.
    if ref.declared == ref.media_type:
        return "it declares the media type that it has"
    if ref.label is not None and len(ref.label) > LABEL_CHARS_MAX:
        return f"its label has more than {LABEL_CHARS_MAX} characters"
    if any(side is not None and not 0 < side <= SIDE_MAX for side in (ref.width, ref.height)):
        return f"its sides are 1 to {SIDE_MAX} pixels"
    return None


_: type[Receiver] = _Incoming
