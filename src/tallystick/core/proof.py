"""Read and write heads, and proofs that one entry is at its position in a run.

A proof has the hash before the entry, the entry's header, and the headers of all later entries up
to the head. It has the entry's salt and body if they are to be shown. From these every hash is
computed again; the last must be the head's. Other bodies, and earlier entries, are not shown.

Rule 1: a proof is worth what its head is worth. It contains none; the person who checks it brings
the head.
Rule 2: a proof ends where its head does. Later entries would not be covered by the head.
Rule 3: a document has one spelling, its canonical bytes with or without one newline at the end.

The chain is linear, so a proof grows with the entries after it, by about 190 bytes for each.
Rejected: a tree over the entries beside the chain. Its proofs are short, but it is a second truth
that every append has to keep, for documents that are rarely made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from tallystick.core.chain import Head, Sealed, check_body, link, read_header, root_of
from tallystick.core.errors import UsageError
from tallystick.core.ids import is_moment, is_ulid
from tallystick.core.json_text import canonical

# A head as a document: the count and hash of a run's chain, the time, and a signature.
#
# Rule 1: a document has one spelling, its canonical bytes with or without one newline at the end.
# Two spellings would let another reader see other fields than those that were signed.
# Rule 2: the canonical document without its signature is signed. It names its own format, so a
# signature of a head cannot be used for any other document.
# Rule 3: a document names the key it was signed with and never contains it. The person who checks a
# signature brings the key: a key inside a file proves nothing.
#
# Before there were documents, a head was kept as JSON with `count` and `hash`. Those are still
# read: they name no run and no time, and are unsigned.


HEAD_FORMAT = "tallystick-head@1"
HEAD_BYTES_MAX = 4096
UNSIGNED = "unsigned"

_HASH = re.compile(r"[0-9a-f]{64}")
_SIGNATURE = re.compile(r"[0-9a-f]{128}")
_COUNT_MAX = (1 << 53) - 1
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class HeadFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The head of a run as a document.

    `key_id` is None if, and only if, `signature` is `unsigned`.
    """

    format: str
    run: str
    count: int
    hash: str
    at: str
    key_id: str | None
    signature: str

    @property
    def head(self) -> Head:
        """The head without the rest of the document."""
        return Head(count=self.count, hash=self.hash)

    @property
    def signed(self) -> bool:
        """True if the document has a signature. It is not checked here."""
        return self.signature != UNSIGNED


class _HeadKind(msgspec.Struct, frozen=True, kw_only=True):
    """The field that distinguishes a document from the bare head of earlier versions."""

    format: str | None = None


def signed_bytes(document: HeadFile) -> bytes:
    """Return the bytes that a signature of this document signs."""
    fields = msgspec.structs.asdict(document)
    del fields["signature"]
    return canonical(fields)


def parse_head(data: bytes) -> HeadFile | Head:
    """Return a document, or the bare head of earlier versions. A signature is not checked.

    Raise `UsageError` if the data is neither, of another version, or not in canonical form.
    """
    if len(data) > HEAD_BYTES_MAX:
        raise UsageError(f"not a head: longer than {HEAD_BYTES_MAX:,} bytes")
    try:
        kind = msgspec.json.decode(data, type=_HeadKind)
        if kind.format is None:
            return _check_head(msgspec.json.decode(data, type=Head))
        if kind.format != HEAD_FORMAT:
            raise UsageError(f"it is {kind.format[:80]!r}; this version reads {HEAD_FORMAT!r}")
        document = msgspec.json.decode(data, type=HeadFile)
    except _UNREADABLE as error:
        raise UsageError(f"not a head: {error}") from error
    _check_head(document.head)
    why = _head_flaw(document)
    if why is None and data.removesuffix(b"\n") != canonical(document):
        why = "not in canonical form"
    if why is not None:
        raise UsageError(f"not a head: {why}")
    return document


def _check_head(head: Head) -> Head:
    if not 0 <= head.count <= _COUNT_MAX:
        raise UsageError(f"not a head: a count of {head.count}")
    if not _HASH.fullmatch(head.hash):
        raise UsageError("not a head: its hash is not 64 hexadecimal digits")
    return head


def _head_flaw(document: HeadFile) -> str | None:
    if not is_ulid(document.run):
        return "its run is not the id of one"
    if not is_moment(document.at):
        return "its time is not like 2026-01-31T12:00:00Z"
    if (document.key_id is None) is document.signed:
        return "it has a key without a signature, or a signature without a key"
    if document.key_id is not None and not _HASH.fullmatch(document.key_id):
        return "its key_id is not 64 hexadecimal digits"
    if document.signed and not _SIGNATURE.fullmatch(document.signature):
        return "its signature is not 128 hexadecimal digits"
    return None


# A proof that one entry is at its position in a run, for a reader who has only a head of it.


PROOF_FORMAT = "tallystick-proof@1"
# Room for 170,000 headers; the longest bodies do not fit. Short texts take twenty times their bytes
# once they are read: the worst file of this length takes 1.5 seconds and 700 megabytes.
PROOF_BYTES_MAX = 32 << 20

# A run's id, a number, a tag and a digest: a header of ours has under 200 bytes.
_HEADER_CHARS_MAX = 1024


class Proof(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry, and the headers from it to a head, each as the very text that was hashed."""

    format: str
    run: str
    seq: int
    previous: str
    header: str
    after: tuple[str, ...]
    salt: bytes | None = None
    body: bytes | None = None

    @property
    def count(self) -> int:
        """The number of entries of the head that this proof ends at."""
        return self.seq + 1 + len(self.after)


class _ProofKind(msgspec.Struct, frozen=True, kw_only=True):
    format: str


def make_proof(
    entries: Iterable[Sealed], *, run: str, seq: int, body: bool = False, start: int = 0
) -> Proof:
    """Return the proof of the entry at `seq`, from a run's entries from `start` to a head.

    `start` may be as late as the entry before. Raise `UsageError` if the entry is not there, or if
    its body is asked for and was erased. Raise it also for a first entry if the root of the run
    cannot be known. Nothing is checked here: `check_proof` does that.
    """
    # One pass: a run may have many entries, and only the headers after this one are kept.
    previous: str | None = None
    found: Sealed | None = None
    after: list[str] = []
    for place, entry in enumerate(entries, start):
        if place == seq - 1:
            previous = entry.hash
        elif place == seq:
            found = entry
        elif place > seq:
            after.append(_text(entry))
    if seq == 0 and found is not None:
        root = root_of(found, run=run)
        if isinstance(root, str):
            raise UsageError(f"entry 0 of run {run}: {root}")
        previous = root.hash
    if found is None or previous is None:
        raise UsageError(f"run {run} has no entry {seq}")
    if body and found.body is None:
        raise UsageError(f"the body of entry {seq} was erased; its place can be proven without it")
    return Proof(
        format=PROOF_FORMAT,
        run=run,
        seq=seq,
        previous=previous,
        header=_text(found),
        after=tuple(after),
        salt=found.salt if body else None,
        body=found.body if body else None,
    )


def check_proof(proof: Proof, head: Head) -> tuple[int, str] | None:
    """Return at which entry a proof does not lead to a head, and why; None if it does.

    `proof` is one of `parse_proof` or `make_proof`.
    """
    if head.count <= proof.seq:
        return proof.seq, f"it is behind the head, which counts {head.count}"
    if head.count != proof.count:
        return proof.seq, f"its proof ends at {proof.count} entries, the head at {head.count}"
    reached = proof.previous
    for seq, text in enumerate((proof.header, *proof.after), proof.seq):
        data = text.encode()
        header = read_header(data, run=proof.run, seq=seq)
        if isinstance(header, str):
            return seq, header
        if seq == proof.seq:
            why = check_body(header, proof.salt, proof.body)
            if why is not None:
                return seq, why
        reached = link(reached, data)
    # There is only one hash to compare, so it cannot be known which of the headers is wrong.
    return None if reached == head.hash else (proof.seq, "its proof does not lead to the head")


def parse_proof(data: bytes) -> Proof:
    """Return a proof. Raise `UsageError` if it is none, of another version, or not canonical.

    Its content may still be false: `check_proof` compares it with a head.
    """
    if len(data) > PROOF_BYTES_MAX:
        raise UsageError(f"not a proof: longer than {PROOF_BYTES_MAX:,} bytes")
    try:
        kind = msgspec.json.decode(data, type=_ProofKind)
        if kind.format != PROOF_FORMAT:
            raise UsageError(f"it is {kind.format[:80]!r}; this version reads {PROOF_FORMAT!r}")
        proof = msgspec.json.decode(data, type=Proof)
    except _UNREADABLE as error:
        raise UsageError(f"not a proof: {error}") from error
    why = _proof_flaw(proof)
    if why is None and data.removesuffix(b"\n") != canonical(proof):
        why = "not in canonical form"
    if why is not None:
        raise UsageError(f"not a proof: {why}")
    return proof


def _proof_flaw(proof: Proof) -> str | None:
    if not is_ulid(proof.run):
        return "its run is not the id of one"
    if proof.seq < 0:
        return f"a place of {proof.seq}"
    if not _HASH.fullmatch(proof.previous):
        return "the hash before it is not 64 hexadecimal digits"
    if max(map(len, (proof.header, *proof.after))) > _HEADER_CHARS_MAX:
        return f"a header of more than {_HEADER_CHARS_MAX:,} characters"
    if (proof.salt is None) is not (proof.body is None):
        return "only one of salt and body is there"
    return None


def _text(entry: Sealed) -> str:
    # A header that is no text was not written by us. It stays what it is and fails the check.
    return entry.header.decode("utf-8", "backslashreplace")
