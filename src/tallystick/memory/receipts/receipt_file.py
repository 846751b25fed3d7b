"""A receipt as a file that somebody else can check, with the memory or an export, and no secret.

The file has the receipt, and the head of the memory's log that ends with it. Its maker may sign it,
and may add the query. It is checked in one of three ways:

- by the maker's public key. The signature covers the head, so a copy of the memory is checked
  against it as well: every entry up to the receipt is as it was. An export has no log; against it
  the text of each hit is checked, by the salts that the export has.
- by a head of the memory that was given by somebody who is trusted. The receipt must be an entry
  of the log under that head. This needs no signature, and also works for a bare receipt.
- by the head of the copy itself. That says only that the receipt belongs to this copy; the checker
  has to compare the head.

Rule 1: nothing here needs the secret key that receipts are signed with in the log. Whoever has that
key can make such receipts, and still cannot change the log under a head, or sign for another.
Rule 2: a file has one spelling, its canonical bytes with or without one newline at the end.
Rule 3: the file has the query only if its maker said so, together with the key of this one query.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from tallystick.core.chain import Head
from tallystick.core.errors import UsageError, system_errors
from tallystick.core.ids import is_moment, moment_text
from tallystick.core.json_text import canonical
from tallystick.memory.errors import MemoryCorrupt, StorageFailed
from tallystick.memory.exchange import read_export
from tallystick.memory.recall.minilm import MiniLm, missing
from tallystick.memory.recall.recall import verify_recall
from tallystick.memory.recall.scope import DEFAULT, Embedder, Profile
from tallystick.memory.receipts.receipt import (
    RECEIPT_BYTES_MAX,
    MemoryDiffers,
    NotOnLog,
    RecallDiffers,
    RecallReceipt,
    Receipt,
    ReceiptUnknown,
    ReceiptUnreadable,
    RecordContentHashMismatch,
    SignatureMismatch,
    check_query,
    check_signature,
    has_query_key,
    id_of,
    query_key,
    read_receipt,
    receipt_bytes,
)
from tallystick.memory.receipts.receipts import (
    NoteState,
    Verified,
    VerifiedForget,
    place_of,
    verify_forgotten,
)
from tallystick.memory.store.records import (
    UNREADABLE,
    NotesForgotten,
    NotesRecalled,
    decode_memory_record,
)
from tallystick.memory.store.sqlite import Entry, SqliteMemory
from tallystick.memory.store.verify import verify_memory
from tallystick.settings.paths import cache_directory
from tallystick.settings.schema import one_line

if TYPE_CHECKING:
    from tallystick.settings.signing import PublicKey, SigningKey

RECEIPT_FORMAT = "tallystick-receipt@1"
UNSIGNED = "unsigned"
# The receipt is a text in the file, so its quotation marks take two bytes each.
RECEIPT_FILE_BYTES_MAX = 2 * RECEIPT_BYTES_MAX
_QUERY_CHARS_MAX = 1 << 20
# Embeddings of one text differ in their last bits between processors. They are rounded, vectors to
# 16 bits and those of tokens to 8, so a last bit can become a step of the rounding.
_SCORE_TOLERANCE = 1e-3
_SQLITE = b"SQLite format 3\0"

_HASH = re.compile(r"[0-9a-f]{64}")
_SIGNATURE = re.compile(r"[0-9a-f]{128}")


class ReceiptFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A receipt that can be given away, with the head of the log that ends with it.

    `receipt` is the receipt in its one spelling, `count` its position in the log of the memory
    `store`, and `hash` the hash of the log there. `query_key` is there if `query` is, and `key_id`
    is None if, and only if, `signature` is `unsigned`.
    """

    format: str
    store: str
    receipt: str
    count: int
    hash: str
    at: str
    query: str | None
    query_key: str | None
    key_id: str | None
    signature: str

    @property
    def head(self) -> Head:
        """The head of the log that ends with the receipt."""
        return Head(count=self.count, hash=self.hash)

    @property
    def signed(self) -> bool:
        """True if the file has a signature. It is not checked here."""
        return self.signature != UNSIGNED

    def read(self) -> Receipt:
        """Return the receipt in the file. Raise `ReceiptUnreadable` if it is none."""
        return read_receipt(self.receipt.encode())


class _Kind(msgspec.Struct, frozen=True, kw_only=True):
    """The field that distinguishes a file from the bare receipt of earlier versions."""

    format: str | None = None


class CheckedReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """A receipt that holds, and what it was checked by.

    `by` is `public_key` for the key `key_id`, `head` for a head that was given, `own_head` for the
    head of the copy itself, which the checker has to compare. `head` is None for an export, whose
    log is not there to be checked. `why_not_ranked` says why a recall was not repeated though its
    query is known.
    """

    verified: Verified | VerifiedForget
    by: Literal["public_key", "head", "own_head"]
    against: Literal["memory", "export"]
    key_id: str | None
    head: Head | None
    why_not_ranked: str = ""


# -- making and reading ------------------------------------------------------------------------


def make_receipt_file(
    memory: SqliteMemory,
    receipt: Receipt,
    *,
    keys: Mapping[str, bytes],
    query: str | None = None,
    key: SigningKey | None = None,
) -> ReceiptFile:
    """Make the file of a receipt of this memory, signed with `key` if it is given.

    `query` is added to it for everybody who gets the file. Raise a `ReceiptError` if the receipt is
    not one of this memory, or was given for another query. Raise `UsageError` if it has no query,
    or one that only its owner can check.
    """
    # Whoever could change the memory must not get a signature for it: the receipt has to be ours.
    owner = check_signature(receipt, keys)
    of_query = None
    if query is not None:
        if not isinstance(receipt, RecallReceipt):
            raise UsageError("the receipt is of a forgetting, which has no query")
        if not has_query_key(receipt):
            raise UsageError(
                "the receipt is of an earlier version: its query can be checked by its owner only, "
                "so leave it out"
            )
        check_query(receipt, query, key=owner)
        of_query = query_key(receipt.read_id, key=owner).hex()
    seq = place_of(memory, id_of(receipt))
    entry = _entry_with(memory, receipt, seq)
    made = ReceiptFile(
        format=RECEIPT_FORMAT,
        store=memory.identity(),
        receipt=receipt_bytes(receipt).decode(),
        count=seq,
        hash=entry.hash,
        at=moment_text(memory.clock()),
        query=query,
        query_key=of_query,
        key_id=None if key is None else key.id,
        signature=UNSIGNED,
    )
    if key is None:
        return made
    return msgspec.structs.replace(made, signature=key.sign(_signed_bytes(made)).hex())


def receipt_file_bytes(file: ReceiptFile) -> bytes:
    """Return the one spelling of a file."""
    return canonical(file)


def read_receipt_file(data: bytes) -> ReceiptFile | Receipt:
    """Read a file of a receipt, or a bare receipt. Raise `ReceiptUnreadable` if it is neither.

    Its content may still be false: checking finds that out.
    """
    if len(data) > RECEIPT_FILE_BYTES_MAX:
        raise ReceiptUnreadable(why=f"longer than {RECEIPT_FILE_BYTES_MAX:,} bytes")
    try:
        if msgspec.json.decode(data, type=_Kind).format is None:
            return read_receipt(data)
        file = msgspec.json.decode(data, type=ReceiptFile)
        why = _flaw(file)
        if why is None and canonical(file) != data.removesuffix(b"\n"):
            why = "not in canonical form"
    except UNREADABLE as error:
        raise ReceiptUnreadable(why=_other_version(data) or str(error)) from error
    if why is not None:
        raise ReceiptUnreadable(why=why)
    return file


def _other_version(data: bytes) -> str | None:
    """Return that the file is of another version, if its format says so; otherwise None."""
    try:
        format = msgspec.json.decode(data, type=_Kind).format
    except UNREADABLE:
        return None
    return None if format in (None, RECEIPT_FORMAT) else _unknown_format(str(format))


def _unknown_format(format: str) -> str:
    return f"it is {format[:80]!r}; this version reads {RECEIPT_FORMAT!r}"


def _flaw(file: ReceiptFile) -> str | None:
    if file.format != RECEIPT_FORMAT:
        return _unknown_format(file.format)
    if file.count < 1:
        return f"a place of {file.count}"
    if not _HASH.fullmatch(file.hash):
        return "its hash is not 64 hexadecimal digits"
    if not is_moment(file.at):
        return "its time is not one"
    return _query_flaw(file) or _signature_flaw(file)


def _query_flaw(file: ReceiptFile) -> str | None:
    if file.query is None or file.query_key is None:
        return (
            None if file.query is file.query_key else "only one of the query and its key is there"
        )
    if not _HASH.fullmatch(file.query_key):
        return "its query_key is not 64 hexadecimal digits"
    if len(file.query) > _QUERY_CHARS_MAX:
        return f"its query has more than {_QUERY_CHARS_MAX:,} characters"
    return None


def _signature_flaw(file: ReceiptFile) -> str | None:
    if file.signed is (file.key_id is None):
        return "a key without a signature, or a signature without a key"
    if file.key_id is not None and not _HASH.fullmatch(file.key_id):
        return "its key_id is not 64 hexadecimal digits"
    if file.signed and not _SIGNATURE.fullmatch(file.signature):
        return "its signature is not 128 hexadecimal digits"
    return None


def _signed_bytes(file: ReceiptFile) -> bytes:
    fields = msgspec.structs.asdict(file)
    del fields["signature"]
    return canonical(fields)


# -- checking ----------------------------------------------------------------------------------


def verify_receipt_file(
    data: bytes,
    against: Path,
    *,
    key: PublicKey | Path | None = None,
    head: Head | None = None,
    query: str | None = None,
    profile: Profile = DEFAULT,
) -> CheckedReceipt:
    """Check somebody else's receipt against a copy of the memory, or against an export of it.

    `key` is the public key of the receipt's maker, or the PEM file with it. `head` is a head of the
    memory that its owner gave. `profile` has to be the one that ranked. An export needs the key.
    Raise a `ReceiptError` if something does not hold, `ImportRefused` for a damaged export, and
    `UsageError` if `against` is neither a memory nor an export. Raise `UsageError` too if it or the
    key cannot be read, or if an export comes without a key or with a head, and what
    `verify_with_memory` raises. Raise a `StorageFailed` if the memory cannot be opened.
    """
    file = read_receipt_file(data)
    if isinstance(key, Path):
        from tallystick.settings.signing import read_public_key

        key = read_public_key(key)
    name = one_line(str(against))
    with system_errors(name, UsageError), against.open("rb") as opened:
        begin = opened.read(len(_SQLITE))
        if begin.startswith(b"{"):
            opened.seek(0)
            if key is None or head is not None:
                raise UsageError(
                    f"{name} is an export: it has no log, so give the public key of the receipt's "
                    "maker (--key), and no head"
                )
            return verify_with_export(file, opened, key=key, query=query)
    if begin != _SQLITE:
        raise UsageError(f"{name} is neither a memory nor an export of one")
    with SqliteMemory(against) as memory:
        return verify_with_memory(file, memory, key=key, head=head, query=query, profile=profile)


def verify_with_memory(
    file: ReceiptFile | Receipt,
    memory: SqliteMemory,
    *,
    key: PublicKey | None = None,
    head: Head | None = None,
    query: str | None = None,
    profile: Profile = DEFAULT,
    embedder: Embedder | Literal["auto"] | None = "auto",
) -> CheckedReceipt:
    """Check a receipt against a copy of the memory, with no secret.

    The whole copy is checked as well: a log that was changed anywhere gives no result. Without a
    `key` and a `head`, the head is the copy's own. If only scores by a model differ, by at most
    0.001, the ranking is `close`. Raise a `ReceiptError` if something does not hold. Raise
    `UsageError` for a query of a forgetting, or if the model's files are not the ones of this
    version, and `UsageError` or `NoteInvalid` if this version cannot repeat the recall.
    """
    # First what is quick: a receipt of somebody else needs no check of a whole copy.
    if key is not None:
        _check_key(file, key)
    receipt, query, given_key = _opened(file, query)
    id = id_of(receipt)
    if isinstance(file, ReceiptFile) and file.store != memory.identity():
        raise ReceiptUnknown(id=id)
    try:
        report = verify_memory(memory, head=head)
        seq = file.count if isinstance(file, ReceiptFile) else place_of(memory, id)
    except MemoryCorrupt as error:
        raise MemoryDiffers(where=str(memory.path), why=str(error)) from error
    if not report.valid:
        place = "" if report.first_broken_at is None else f"entry {report.first_broken_at:,}: "
        raise MemoryDiffers(where=str(memory.path), why=f"{place}{report.error_message}")
    entry = _entry_with(memory, receipt, seq)
    if isinstance(file, ReceiptFile) and entry.hash != file.hash:
        raise NotOnLog(id=id, why=f"the log up to entry {seq:,} is another than it was made under")
    # A key speaks for the entry itself; a head only for the log up to it.
    if key is None and head is not None and head.count < seq:
        why = f"it is entry {seq:,}, and the head given has {head.count:,}; ask for a later one"
        raise NotOnLog(id=id, why=why)
    verified, why_not = _verify(memory, receipt, query, given_key, profile, embedder)
    by: Literal["public_key", "head", "own_head"] = "own_head" if head is None else "head"
    return CheckedReceipt(
        verified=verified,
        by=by if key is None else "public_key",
        against="memory",
        key_id=None if key is None else key.id,
        head=head or memory.head(),
        why_not_ranked=why_not,
    )


def verify_with_export(
    file: ReceiptFile | Receipt, lines: Iterable[bytes], *, key: PublicKey, query: str | None = None
) -> CheckedReceipt:
    """Check a receipt of a recall against an export, with its maker's public key.

    Each hit that the export has must say what it said then. The recall is not repeated: an export
    has the notes, and not the log. Raise a `ReceiptError` or `ImportRefused` if something does not
    hold, and `UsageError` for a receipt of a forgetting.
    """
    _check_key(file, key)
    receipt, query, given_key = _opened(file, query)
    if not isinstance(receipt, RecallReceipt):
        raise UsageError("a receipt of a forgetting is checked against a copy of the memory")
    export = read_export(lines)
    if export.store != receipt.scope.get("store"):
        raise ReceiptUnknown(id=receipt.read_id)
    same: Literal["same", "not_given", "not_checked"] = "not_given"
    if query is not None:
        checked = check_query(receipt, query, given_key=given_key)
        same = "same" if checked else "not_checked"
    notes: list[tuple[str, NoteState]] = []
    for hit in receipt.derived_from:
        state: NoteState = "not_exported"
        if hit.id in export.digests:
            found = export.digests[hit.id]
            state = "redacted" if found is None else "held"
            if found not in (None, hit.content_hash):
                raise RecordContentHashMismatch(id=hit.id)
        notes.append((hit.id, state))
    verified = Verified(
        read_id=receipt.read_id, notes=tuple(notes), query=same, ranking="not_recomputed"
    )
    return CheckedReceipt(
        verified=verified,
        by="public_key",
        against="export",
        key_id=key.id,
        head=None,
        why_not_ranked="an export has no log to rank again",
    )


def _check_key(file: ReceiptFile | Receipt, key: PublicKey) -> None:
    """Raise `SignatureMismatch` unless the holder of a key signed the file as it is.

    Raise `ReceiptUnreadable` if there is no receipt in it.
    """
    if not isinstance(file, ReceiptFile) or not file.signed:
        id = id_of(file.read() if isinstance(file, ReceiptFile) else file)
        why = f"it has no signature; its maker adds one: tally memory receipt {id[:80]} --sign"
        raise SignatureMismatch(id=id, why=why)
    id = id_of(file.read())
    if file.key_id != key.id:
        raise SignatureMismatch(id=id, why=f"signed with the key {file.key_id}, not {key.id}")
    if not key.signed(_signed_bytes(file), bytes.fromhex(file.signature)):
        raise SignatureMismatch(id=id, why=f"it was changed, or not signed by the key {key.id}")


def _opened(
    file: ReceiptFile | Receipt, query: str | None
) -> tuple[Receipt, str | None, bytes | None]:
    """Return the receipt, its query as far as known, and the key of its query if it is there.

    Raise `ReceiptUnreadable` for a file without a receipt, `UsageError` for a query of a
    forgetting.
    """
    if not isinstance(file, ReceiptFile):
        receipt, given_key = file, None
    else:
        receipt = file.read()
        given_key = None if file.query_key is None else bytes.fromhex(file.query_key)
        query = file.query if query is None else query
    if query is not None and not isinstance(receipt, RecallReceipt):
        raise UsageError("the receipt is of a forgetting, which has no query")
    return receipt, query, given_key


def _verify(
    memory: SqliteMemory,
    receipt: Receipt,
    query: str | None,
    given_key: bytes | None,
    profile: Profile,
    embedder: Embedder | Literal["auto"] | None,
) -> tuple[Verified | VerifiedForget, str]:
    """Check a receipt that is genuine, and say why its recall was not repeated if it was not.

    Raise a `ReceiptError` if it does not hold, and other errors as `verify_with_memory` does. If a
    model ranked, scores may differ by 0.001.
    """
    if not isinstance(receipt, RecallReceipt):
        return verify_forgotten(memory, receipt, keys=None), ""
    model: Embedder | None = None
    why_not = ""
    if query is not None and receipt.model is not None:
        model, why_not = _embedder(receipt.model, embedder)

    def check(tolerance: float) -> Verified:
        return verify_recall(
            memory,
            receipt,
            keys=None,
            query=query,
            given_key=given_key,
            profile=profile,
            embedder=model,
            ranking=not why_not,
            tolerance=tolerance,
        )

    try:
        return check(0.0), why_not
    except RecallDiffers:
        if model is None:
            raise
    return msgspec.structs.replace(check(_SCORE_TOLERANCE), ranking="close"), ""


def _embedder(digest: str, given: Embedder | Literal["auto"] | None) -> tuple[Embedder | None, str]:
    """Return the embedder that a receipt was made with, and ""; or None, and why it is not here.

    Raise `UsageError` if the files of the model are not those that this version was made for.
    """
    if given == "auto":
        given = None if missing() else MiniLm.load(cache=cache_directory())
    if given is None:
        return None, f"the model that ranked is not here; {missing() or 'no embedder is given'}"
    if given.digest != digest:
        return None, f"it was ranked with another model than is here: {digest[:12]}"
    return given, ""


def _entry_with(memory: SqliteMemory, receipt: Receipt, seq: int) -> Entry:
    """Return the entry at a position, which has this receipt. Raise `NotOnLog` if it has not.

    Raise `MemoryDiffers` if the log cannot be read there.
    """
    id = id_of(receipt)
    try:
        entry = next(memory.entries(start=seq, stop=seq), None)
    except StorageFailed as error:
        raise MemoryDiffers(where=str(memory.path), why=str(error)) from error
    if entry is None:
        why = f"the copy has no entry {seq:,}; it was taken before the receipt"
        raise NotOnLog(id=id, why=why)
    try:
        record = None if entry.body is None else decode_memory_record(entry.body)
    except UNREADABLE:
        record = None
    on_log = record.receipt if isinstance(record, NotesRecalled | NotesForgotten) else None
    if on_log is None or on_log.encode() != receipt_bytes(receipt):
        raise NotOnLog(id=id, why=f"entry {seq:,} is another")
    return entry
