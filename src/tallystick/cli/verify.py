"""`tally verify`: every hash of the ledger, computed again; heads and proofs, too."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from tallystick.cli.exit_codes import LEDGER, OK
from tallystick.core.chain import Head
from tallystick.core.errors import UsageError
from tallystick.core.head_file import HeadFile
from tallystick.ledger.ancestry import bad_entry_of
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import BadEntry, VerifyReport, verify
from tallystick.runtime.audit import HeadReport, read_head, read_proof, verify_head, verify_proof
from tallystick.runtime.history import resolve_run
from tallystick.runtime.paths import ledger_path
from tallystick.runtime.signing import PublicKey, read_public_key

__all__ = ["command"]

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
def command(
    run: str | None,
    head_file: Path | None,
    key_file: Path | None,
    proof_file: Path | None,
    as_json: bool,
) -> int:
    r"""Check every hash of the ledger, or of one run. Exit code 6 if one does not hold.

    With --proof no ledger is needed, only the head that the proof leads to.

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
    ledger = SqliteLedger(ledger_path())
    named = None if run is None else resolve_run(ledger, run)
    report = verify(ledger, runs=None if named is None else [named])
    if named is not None and report.ok and (bad := bad_entry_of(ledger, named)) is not None:
        # What it shares with the run that it grew from is a part of it.
        report = msgspec.structs.replace(report, ok=False, first_bad=bad)
    click.echo(msgspec.json.encode(report).decode() if as_json else _told(report))
    return OK if report.ok else LEDGER


def _of_head(run: str | None, given: HeadFile | Head, key: PublicKey | None, as_json: bool) -> int:
    ledger = SqliteLedger(ledger_path())
    if run is not None:
        named = resolve_run(ledger, run)
    elif isinstance(given, HeadFile):
        named = given.run
    else:
        raise UsageError("--head needs the run it is a head of: this one does not name it")
    report, standing = verify_head(ledger, named, given, key=key)
    if as_json:
        fields = {**msgspec.structs.asdict(report), "head": standing}
        click.echo(msgspec.json.encode(fields).decode())
    else:
        click.echo(_told(report))
        _tell_standing(standing)
    return OK if report.ok else LEDGER


def _of_proof(
    proof_file: Path, given: HeadFile | Head, key: PublicKey | None, as_json: bool
) -> int:
    report = verify_proof(read_proof(proof_file), given, key=key)
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
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
    notes = "".join(f"\n{note}" for note in report.notes)
    return f"{report.runs:,} runs, {report.entries:,} entries{erased}: all hold{notes}"


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
    click.echo(f"head of {head.count:,} entries{at}: {signature}", err=True)
