"""`tally head`, `prove` and `verify`: documents that others can check a run by, and the check."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
import msgspec

from tallystick.cli.exit_codes import LEDGER, OK
from tallystick.cli.parts import echo_json
from tallystick.cli.show import counted
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

# `tally head` and `tally prove`: documents that others can check a run by.


_OUTPUT = click.Path(dir_okay=False, path_type=Path)


@click.command("head")
@click.argument("run")
@click.option("--sign", is_flag=True, help="Sign it with your key, made on first use.")
@click.option("-o", "--output", type=_OUTPUT, metavar="FILE", help="Write it there.")
@click.option("--json", "as_json", is_flag=True, help="Print it even if it is written to a file.")
def head_command(run: str, sign: bool, output: Path | None, as_json: bool) -> int:
    r"""Say where a run's chain stands, as a document to be kept elsewhere.

    \b
    Example:
        tally head last --output last.head
    """
    ledger = open_stores(ledger_path()).ledger
    found = resolve_run(ledger, run)
    key = _key() if sign else None
    document = head_of(ledger, found, at_ms=now_ms(), key=key)
    signed = f"signed by {document.key_id}" if document.signed else "unsigned"
    _hand_out(canonical(document), output, as_json)
    click.echo(f"head of {found}: {counted(document.count, 'entry')}, {signed}", err=True)
    return 0


@click.command("prove")
@click.argument("run")
@click.argument("seq", type=int)
@click.option("--body", is_flag=True, help="Show the entry's body too.")
@click.option(
    "--head",
    "head_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Prove it under this head, not under the present one.",
)
@click.option("-o", "--output", type=_OUTPUT, metavar="FILE", help="Write it there.")
@click.option("--json", "as_json", is_flag=True, help="Print it even if it is written to a file.")
def prove_command(
    run: str, seq: int, body: bool, head_file: Path | None, output: Path | None, as_json: bool
) -> int:
    r"""Prove that one entry stands at its place in a run, to someone who has a head of it.

    \b
    Example:
        tally prove last 3 --output entry.proof
    """
    ledger = open_stores(ledger_path()).ledger
    found = resolve_run(ledger, run)
    head = _head_for(found, head_file) if head_file is not None else None
    proof = proof_of(ledger, found, seq, head=head, body=body)
    _hand_out(canonical(proof), output, as_json)
    shown = "with its body" if body else "without its body"
    click.echo(f"entry {seq} of {found}, {shown}, under {counted(proof.count, 'entry')}", err=True)
    return 0


def _key() -> SigningKey:
    key = open_signing_key(config_directory(os.environ), ledger=ledger_path())
    if key.made:
        click.echo(
            f"made key {key.id}; give {key.public_path} to those who check your heads", err=True
        )
    return key


def _head_for(run: str, path: Path) -> Head:
    given = read_head(path)
    if isinstance(given, Head):
        return given
    if given.run != run:
        raise UsageError(f"--head {path}: a head of run {given.run}, not of {run}")
    return given.head


def _hand_out(document: bytes, output: Path | None, as_json: bool) -> None:
    line = document + b"\n"
    if output is not None:
        with (
            system_errors(f"--output {output}", UsageError),
            # A body is as private as the ledger it comes from.
            open(output, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file,
        ):
            file.write(line)
    if output is None or as_json:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()


# `tally verify`: every hash of the ledger, computed again; heads and proofs, too.


_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("verify")
@click.argument("run", required=False)
@click.option(
    "--head",
    "head_file",
    type=_FILE,
    metavar="FILE",
    help="A head of that run, kept elsewhere: a document of `tally head`, or {count, hash}.",
)
@click.option("--key", "key_file", type=_FILE, metavar="PUB", help="Who must have signed the head.")
@click.option(
    "--proof", "proof_file", type=_FILE, metavar="FILE", help="Check this proof under the head."
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def verify_command(
    run: str | None,
    head_file: Path | None,
    key_file: Path | None,
    proof_file: Path | None,
    as_json: bool,
) -> int:
    r"""Check every hash of the ledger, or of one run, and what stands beside the chains.

    Exit code 6 if something does not hold. With --proof no ledger is needed, only the head that
    the proof leads to.

    \b
    Example:
        tally verify
        tally verify --proof entry.proof --head last.head
    """
    if head_file is None:
        if key_file is not None or proof_file is not None:
            raise UsageError("--key and --proof need --head FILE, the head they are about")
        return _of_ledger(run, as_json)
    given = read_head(head_file)
    key = read_public_key(key_file) if key_file is not None else None
    if proof_file is None:
        return _of_head(run, given, key, as_json)
    if run is not None:
        raise UsageError("--proof needs no RUN: a proof names its own")
    return _of_proof(proof_file, given, key, as_json)


def _of_ledger(run: str | None, as_json: bool) -> int:
    ledger = open_stores(ledger_path()).ledger
    named = None if run is None else resolve_run(ledger, run)
    report = verify_records(ledger, None if named is None else [named])
    if named is not None and report.ok and (bad := bad_entry_of(ledger, named)) is not None:
        # What it shares with the run that it grew from is a part of it.
        report = msgspec.structs.replace(report, ok=False, first_bad=bad)
    click.echo(msgspec.json.encode(report).decode() if as_json else _told(report))
    return OK if report.ok else LEDGER


def _of_head(run: str | None, given: HeadFile | Head, key: PublicKey | None, as_json: bool) -> int:
    ledger = open_stores(ledger_path()).ledger
    if run is not None:
        named = resolve_run(ledger, run)
    elif isinstance(given, HeadFile):
        named = given.run
    else:
        raise UsageError("--head needs the run it is a head of: this one does not name it")
    report, standing = verify_head(ledger, named, given, key=key)
    if as_json:
        fields = {**msgspec.structs.asdict(report), "head": standing}
        echo_json(fields)
    else:
        click.echo(_told(report))
        _tell_standing(standing)
    return OK if report.ok else LEDGER


def _of_proof(
    proof_file: Path, given: HeadFile | Head, key: PublicKey | None, as_json: bool
) -> int:
    report = verify_proof(read_proof(proof_file), given, key=key)
    if as_json:
        echo_json(report)
    else:
        body = "with its body" if report.body else "without its body"
        held = f"run {report.run}, entry {report.seq}: {report.tag}, {body}, holds"
        click.echo(held if report.first_bad is None else _told_bad(report.first_bad))
        _tell_standing(report.head)
    return OK if report.ok else LEDGER


def _told(report: VerifyReport) -> str:
    if report.first_bad is not None:
        return _told_bad(report.first_bad)
    erased = f", {report.erased:,} erased" if report.erased else ""
    counts = f"{counted(report.runs, 'run')}, {counted(report.entries, 'entry')}{erased}"
    bad = [_told_row(each) for each in report.bad_rows]
    held = f"{counts}: all hold"
    if bad:
        held = f"{counts}: the chains hold, and {len(bad):,} of what stands beside them does not"
    uncovered = [f"not covered by the format: {each}" for each in report.not_covered]
    return "\n".join([*bad, held, *report.notes, *uncovered])


def _told_row(bad: BadRow) -> str:
    return f"run {bad.run}, {bad.what}: {bad.why}" if bad.run else f"{bad.what}: {bad.why}"


def _told_bad(bad: BadEntry) -> str:
    return f"run {bad.run}, entry {bad.seq}: {bad.why}"


def _tell_standing(head: HeadReport) -> None:
    signature = {
        "unsigned": "unsigned",
        "unchecked": f"signed by {head.key_id}, which was not checked: give its file with --key",
        "checked": f"signed by {head.key_id}",
        "bad": "not signed by the key given",
    }[head.signature]
    at = f" at {head.at}" if head.at else ""
    click.echo(f"head of {counted(head.count, 'entry')}{at}: {signature}", err=True)
