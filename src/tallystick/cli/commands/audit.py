"""`tally head`, `prove` and `verify`: write proofs about a run, and check a run or a proof."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
import msgspec

from tallystick.cli.exit_codes import LEDGER, OK
from tallystick.cli.parts import JSON, echo_json, echo_line
from tallystick.cli.show import quantity
from tallystick.core.chain import Head
from tallystick.core.errors import UsageError, system_errors
from tallystick.core.json_text import canonical
from tallystick.core.proof import HeadFile
from tallystick.ledger.verify import BadEntry, BadRow, VerifyReport, bad_entry_of
from tallystick.runtime.runs.history import resolve_run
from tallystick.settings.files import config_directory
from tallystick.settings.paths import ledger_path
from tallystick.settings.signing import PublicKey, SigningKey, open_signing_key, read_public_key
from tallystick.storage.clock import now_ms
from tallystick.stores import open_stores
from tallystick.upkeep.audit import verify_records
from tallystick.upkeep.proof import (
    HeadReport,
    head_of,
    proof_of,
    read_head,
    read_proof,
    verify_head,
    verify_proof,
)

# `tally head` and `tally prove`: write documents with which others can check a run.


_OUTPUT_OPTION = click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the document to this file.  [default: standard output]",
)
_ALSO_PRINT = click.option(
    "--json", "as_json", is_flag=True, help="With --output: print the document too."
)


@click.command("head")
@click.argument("run")
@click.option(
    "--sign", is_flag=True, help="Sign the head with your key, which is made on first use."
)
@_OUTPUT_OPTION
@_ALSO_PRINT
def head_command(run: str, sign: bool, output: Path | None, as_json: bool) -> int:
    r"""Print a run's entry count and last hash, to keep elsewhere.

    tally verify --head finds a run that was cut off or rewritten later.

    \b
    Example:
        tally head last --output last.head
    """
    ledger = open_stores(ledger_path()).ledger
    found = resolve_run(ledger, run)
    key = _key() if sign else None
    document = head_of(ledger, found, at_ms=now_ms(), key=key)
    signed = f"signed by {document.key_id}" if document.signed else "unsigned"
    _write_document(canonical(document), output, as_json)
    click.echo(f"head of {found}: {quantity(document.count, 'entry')}, {signed}", err=True)
    return 0


@click.command("prove")
@click.argument("run")
@click.argument("seq", type=int)
@click.option("--body", is_flag=True, help="Include the content of the entry in the proof.")
@click.option(
    "--head",
    "head_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Prove the entry under this head, not under the present one.",
)
@_OUTPUT_OPTION
@_ALSO_PRINT
def prove_command(
    run: str, seq: int, body: bool, head_file: Path | None, output: Path | None, as_json: bool
) -> int:
    r"""Prove to somebody else that an entry is part of a run.

    SEQ is the number of the entry, from 0. The proof shows nothing of the other entries. With it
    and a head of the run, tally verify --proof checks the entry.

    \b
    Example:
        tally prove last 3 --output entry.proof
    """
    ledger = open_stores(ledger_path()).ledger
    found = resolve_run(ledger, run)
    head = _head_for(found, head_file) if head_file is not None else None
    proof = proof_of(ledger, found, seq, head=head, body=body)
    _write_document(canonical(proof), output, as_json)
    shown = "with its body" if body else "without its body"
    click.echo(f"entry {seq} of {found}, {shown}, under {quantity(proof.count, 'entry')}", err=True)
    return 0


def _key() -> SigningKey:
    """Open this user's signing key. It is made if there is none, and then named on stderr.

    Raise `UsageError` if the extra is missing, or if the key would be beside the ledger. Raise
    `StoreError` if the key cannot be used.
    """
    key = open_signing_key(config_directory(os.environ), ledger=ledger_path())
    if key.made:
        click.echo(
            f"made key {key.id}; give {key.public_path} to those who check your heads", err=True
        )
    return key


def _head_for(run: str, path: Path) -> Head:
    """Read a head from a file. Raise `UsageError` if it is of another run.

    A head that names no run is taken as one of this run. Raise what `read_head` raises.
    """
    given = read_head(path)
    if isinstance(given, Head):
        return given
    if given.run != run:
        raise UsageError(f"--head {path}: this is the head of run {given.run}, not of {run}")
    return given.head


def _write_document(document: bytes, output: Path | None, as_json: bool) -> None:
    line = document + b"\n"
    if output is not None:
        with (
            system_errors(f"--output {output}", UsageError),
            # Mode 0600: content of an entry is as private as the ledger that it comes from.
            open(output, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file,
        ):
            file.write(line)
    if output is None or as_json:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()


# `tally verify`: compute every hash of the ledger again; check heads and proofs.


_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("verify")
@click.argument("run", required=False)
@click.option(
    "--head",
    "head_file",
    type=_FILE,
    metavar="FILE",
    help="Check the run against this head: a file of tally head, or JSON with count and hash.",
)
@click.option(
    "--key",
    "key_file",
    type=_FILE,
    metavar="PUB",
    help="With --head: require a signature of this public key.",
)
@click.option(
    "--proof",
    "proof_file",
    type=_FILE,
    metavar="FILE",
    help="With --head: check this proof against the head.",
)
@JSON
def verify_command(
    run: str | None,
    head_file: Path | None,
    key_file: Path | None,
    proof_file: Path | None,
    as_json: bool,
) -> int:
    r"""Check every hash of the ledger, or of one run.

    The other tables of the ledger file are checked too. With --proof no ledger is needed, only the
    head that the proof is for. Exit codes: 0 all hold, 2 wrong usage, 6 something does not hold.

    \b
    Example:
        tally verify
        tally verify --proof entry.proof --head last.head
    """
    if head_file is None:
        if key_file is not None or proof_file is not None:
            raise UsageError("--key and --proof need --head FILE too: the head that they are for")
        return _verify_ledger(run, as_json)
    given = read_head(head_file)
    key = read_public_key(key_file) if key_file is not None else None
    if proof_file is None:
        return _verify_head(run, given, key, as_json)
    if run is not None:
        raise UsageError("leave out RUN: the proof names its run")
    return _verify_proof(proof_file, given, key, as_json)


def _verify_ledger(run: str | None, as_json: bool) -> int:
    ledger = open_stores(ledger_path()).ledger
    named = None if run is None else resolve_run(ledger, run)
    report = verify_records(ledger, None if named is None else [named])
    if named is not None and report.ok and (bad := bad_entry_of(ledger, named)) is not None:
        # The entries that a fork shares with the run it was forked from are part of it too.
        report = msgspec.structs.replace(report, ok=False, first_bad=bad)
    if as_json:
        echo_json(report)
    else:
        _echo_report(report)
    return OK if report.ok else LEDGER


def _verify_head(
    run: str | None, given: HeadFile | Head, key: PublicKey | None, as_json: bool
) -> int:
    ledger = open_stores(ledger_path()).ledger
    if run is not None:
        named = resolve_run(ledger, run)
    elif isinstance(given, HeadFile):
        named = given.run
    else:
        raise UsageError("this head does not name its run; name it: tally verify RUN --head FILE")
    report, standing = verify_head(ledger, named, given, key=key)
    if as_json:
        fields = {**msgspec.structs.asdict(report), "head": standing}
        echo_json(fields)
    else:
        _echo_report(report)
        _echo_head(standing)
    return OK if report.ok else LEDGER


def _verify_proof(
    proof_file: Path, given: HeadFile | Head, key: PublicKey | None, as_json: bool
) -> int:
    report = verify_proof(read_proof(proof_file), given, key=key)
    if as_json:
        echo_json(report)
    else:
        body = "with its body" if report.body else "without its body"
        held = f"run {report.run}, entry {report.seq}: {report.tag}, {body}, holds"
        click.echo(held if report.first_bad is None else _bad_entry_text(report.first_bad))
        _echo_head(report.head)
    return OK if report.ok else LEDGER


def _echo_report(report: VerifyReport) -> None:
    for line in _report_text(report).split("\n"):
        echo_line(line)


def _report_text(report: VerifyReport) -> str:
    """Write the result of a verification: the first bad entry, or all bad rows and the counts."""
    if report.first_bad is not None:
        return _bad_entry_text(report.first_bad)
    erased = f", {report.erased:,} erased" if report.erased else ""
    counts = f"{quantity(report.runs, 'run')}, {quantity(report.entries, 'entry')}{erased}"
    bad = [_bad_row_text(each) for each in report.bad_rows]
    held = f"{counts}: all hold"
    if bad:
        held = f"{counts}: the chains hold, but {quantity(len(bad), 'row')} of other tables do not"
    uncovered = [f"not covered by the format: {each}" for each in report.not_covered]
    return "\n".join([*bad, held, *report.notes, *uncovered])


def _bad_row_text(bad: BadRow) -> str:
    return f"run {bad.run}, {bad.what}: {bad.why}" if bad.run else f"{bad.what}: {bad.why}"


def _bad_entry_text(bad: BadEntry) -> str:
    return f"run {bad.run}, entry {bad.seq}: {bad.why}"


def _echo_head(head: HeadReport) -> None:
    signature = {
        "unsigned": "unsigned",
        "unchecked": f"signed by {head.key_id}, not checked: name its public key with --key FILE",
        "checked": f"signed by {head.key_id}",
        "bad": "not signed by the key of --key",
    }[head.signature]
    at = f" at {head.at}" if head.at else ""
    click.echo(f"head of {quantity(head.count, 'entry')}{at}: {signature}", err=True)
