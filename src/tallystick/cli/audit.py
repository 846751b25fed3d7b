"""`tally head` and `tally prove`: documents that others can check a run by."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import click

from tallystick.core.canonical import canonical
from tallystick.core.chain import Head
from tallystick.core.errors import UsageError
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.audit import head_of, proof_of, read_head
from tallystick.runtime.config_file import config_directory
from tallystick.runtime.history import resolve_run
from tallystick.runtime.paths import ledger_path
from tallystick.runtime.signing import SigningKey, open_signing_key

__all__ = ["head_command", "prove_command"]

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
    ledger = SqliteLedger(ledger_path())
    found = resolve_run(ledger, run)
    key = _key() if sign else None
    document = head_of(ledger, found, at_ms=time.time_ns() // 1_000_000, key=key)
    signed = f"signed by {document.key_id}" if document.signed else "unsigned"
    _hand_out(canonical(document), output, as_json)
    click.echo(f"head of {found}: {document.count:,} entries, {signed}", err=True)
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
    ledger = SqliteLedger(ledger_path())
    found = resolve_run(ledger, run)
    head = _head_for(found, head_file) if head_file is not None else None
    proof = proof_of(ledger, found, seq, head=head, body=body)
    _hand_out(canonical(proof), output, as_json)
    shown = "with its body" if body else "without its body"
    click.echo(f"entry {seq} of {found}, {shown}, under {proof.count:,} entries", err=True)
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
        try:
            # A body is as private as the ledger it comes from.
            with open(output, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                file.write(line)
        except OSError as error:
            raise UsageError(f"--output {output}: {error.strerror or error}") from error
    if output is None or as_json:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
