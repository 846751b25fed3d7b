"""Make heads and proofs of runs, and check them against a ledger or without one.

A head is only made of a chain that is valid now, and a proof only if it leads to its head. Both are
checked before they are returned, by the code that will check them elsewhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from tallystick.core.chain import Head, Header
from tallystick.core.errors import LedgerCorrupt, RunNotFound, UsageError
from tallystick.core.ids import moment_text
from tallystick.core.json_text import canonical
from tallystick.core.proof import (
    HEAD_BYTES_MAX,
    HEAD_FORMAT,
    PROOF_BYTES_MAX,
    UNSIGNED,
    HeadFile,
    Proof,
    check_proof,
    make_proof,
    parse_head,
    parse_proof,
    signed_bytes,
)
from tallystick.ledger.port import Ledger
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import BadEntry, VerifyReport, verify_ledger
from tallystick.settings.schema import one_line
from tallystick.settings.signing import PublicKey, SigningKey
from tallystick.upkeep.audit import verify_records


class HeadReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of checking a given head. A bare one names no run and no time.

    `signature` is `checked` if it was made with the given key, and `unchecked` if no key was given.
    It is `bad` if a key was given, and the signature is of another key or missing. Without key and
    signature it is `unsigned`.
    """

    run: str | None
    count: int
    at: str | None
    key_id: str | None
    signature: Literal["unsigned", "unchecked", "checked", "bad"]


class ProofReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of checking a proof. `tag` is None if it proves nothing."""

    ok: bool
    run: str
    seq: int
    count: int
    tag: str | None
    body: bool
    head: HeadReport
    first_bad: BadEntry | None


def head_of(ledger: Ledger, run: str, *, at_ms: int, key: SigningKey | None = None) -> HeadFile:
    """Return a document with the present head of a run, signed if there is a key.

    `at_ms` is its time, in Unix ms. Raise `RunNotFound` if the run is not here, and `LedgerCorrupt`
    if its chain is not valid.
    """
    row = ledger.row(run)
    if row is None:
        raise RunNotFound(run=run)
    bad = verify_ledger(ledger, [run], heads={run: row.head}).first_bad
    if bad is not None:
        raise _corrupt(bad)
    document = HeadFile(
        format=HEAD_FORMAT,
        run=run,
        count=row.head.count,
        hash=row.head.hash,
        at=moment_text(at_ms),
        key_id=None if key is None else key.id,
        signature=UNSIGNED,
    )
    if key is None:
        return document
    signature = key.sign(signed_bytes(document)).hex()
    return msgspec.structs.replace(document, signature=signature)


def proof_of(
    ledger: Ledger, run: str, seq: int, *, head: Head | None = None, body: bool = False
) -> Proof:
    """Return a proof of one entry under a head of its run, the present one by default.

    With `body`, the content of the entry is included. Raise `RunNotFound` if the run is not here.
    Raise `UsageError` if the entry is not under the head, or the proof has more than
    `PROOF_BYTES_MAX` bytes. Raise `LedgerCorrupt` if the chain does not lead to the head.
    """
    row = ledger.row(run)
    if row is None:
        raise RunNotFound(run=run)
    head = head or row.head
    if not 0 <= seq < head.count:
        raise UsageError(f"run {run} has no entry {seq} under a head of {head.count} entries")
    start = max(0, seq - 1)
    entries = ledger.read(run, start=start, stop=head.count)
    proof = make_proof(entries, run=run, seq=seq, body=body, start=start)
    found = check_proof(proof, head)
    if found is not None:
        raise _corrupt(BadEntry(run=run, seq=found[0], why=found[1]))
    size = len(canonical(proof))
    if size > PROOF_BYTES_MAX:
        raise UsageError(
            f"the proof would have {size:,} bytes, more than {PROOF_BYTES_MAX:,}: prove it under "
            f"an earlier head, or without the body"
        )
    return proof


def read_head(path: Path) -> HeadFile | Head:
    """Read a head from a file: a document, or a bare head.

    Raise `UsageError` if the file cannot be read, is too large, or is none.
    """
    try:
        return parse_head(_bytes_of(path, HEAD_BYTES_MAX))
    except UsageError as error:
        raise UsageError(f"--head {one_line(str(path))}: {error}") from error


def read_proof(path: Path) -> Proof:
    """Read a proof from a file.

    Raise `UsageError` if it cannot be read, is too large, or is none.
    """
    try:
        return parse_proof(_bytes_of(path, PROOF_BYTES_MAX))
    except UsageError as error:
        raise UsageError(f"--proof {one_line(str(path))}: {error}") from error


def verify_head(
    ledger: Ledger, run: str, given: HeadFile | Head, *, key: PublicKey | None
) -> tuple[VerifyReport, HeadReport]:
    """Check a run, and that a head kept elsewhere is a part of it and signed with the key.

    Return both reports. If the head is not acceptable, the run is not read: that is so if it is one
    of another run, or not signed with the given key. Without a key no signature is checked. Of a
    ledger in a file the rows are checked too. A run that is gone is reported, and nothing is
    raised.
    """
    standing, bad = _examine_head(given, key, run=run)
    if bad is not None:
        return VerifyReport(ok=False, runs=0, entries=0, erased=0, first_bad=bad), standing
    heads = {run: _head_in(given)}
    if isinstance(ledger, SqliteLedger):
        return verify_records(ledger, [run], heads=heads), standing
    return verify_ledger(ledger, [run], heads=heads), standing


def verify_proof(proof: Proof, given: HeadFile | Head, *, key: PublicKey | None) -> ProofReport:
    """Check a proof under a head, and the head's signature. No ledger is needed.

    Without a key no signature is checked. A proof that does not hold is reported, and nothing is
    raised.
    """
    standing, bad = _examine_head(given, key, run=proof.run)
    if bad is None:
        found = check_proof(proof, _head_in(given))
        if found is not None:
            bad = BadEntry(run=proof.run, seq=found[0], why=found[1])
    tag = None if bad is not None else msgspec.json.decode(proof.header, type=Header).tag
    return ProofReport(
        ok=bad is None,
        run=proof.run,
        seq=proof.seq,
        count=proof.count,
        tag=tag,
        body=bad is None and proof.body is not None,
        head=standing,
        first_bad=bad,
    )


def _examine_head(
    given: HeadFile | Head, key: PublicKey | None, *, run: str
) -> tuple[HeadReport, BadEntry | None]:
    """Return a report on a head, and the reason not to accept it for this run.

    The reason is None if the head is acceptable.
    """
    document = given if isinstance(given, HeadFile) else None
    why = _signature_fault(document, key) if key is not None else None
    signature: Literal["unsigned", "unchecked", "checked", "bad"]
    if why is not None:
        signature = "bad"
    elif document is None or not document.signed:
        signature = "unsigned"
    else:
        signature = "unchecked" if key is None else "checked"
    if why is None and document is not None and document.run != run:
        why = f"the head given is one of run {document.run}"
    standing = HeadReport(
        run=document.run if document else None,
        count=given.count,
        at=document.at if document else None,
        key_id=document.key_id if document else None,
        signature=signature,
    )
    # The fault is reported at the last entry under the head.
    bad = BadEntry(run=run, seq=max(0, given.count - 1), why=why) if why else None
    return standing, bad


def _signature_fault(document: HeadFile | None, key: PublicKey) -> str | None:
    if document is None or not document.signed:
        return "the head given is unsigned, and a key was given to check it with"
    if document.key_id != key.id:
        return f"the head given names the key {document.key_id}, not {key.id}"
    if not key.signed(signed_bytes(document), bytes.fromhex(document.signature)):
        return f"the head given does not have the signature of key {key.id}"
    return None


def _head_in(given: HeadFile | Head) -> Head:
    return given.head if isinstance(given, HeadFile) else given


def _bytes_of(path: Path, bytes_max: int) -> bytes:
    """Return the bytes of a file, at most one more than allowed. Raise `UsageError` on failure."""
    try:
        with path.open("rb") as file:
            return file.read(bytes_max + 1)
    except OSError as error:
        raise UsageError(error.strerror or str(error)) from error


def _corrupt(bad: BadEntry) -> LedgerCorrupt:
    return LedgerCorrupt(where=f"run {bad.run}", why=f"entry {bad.seq}: {bad.why}")
