"""`tally forget`: make notes less important, hide them, or erase them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from tallystick.cli.commands.memory.options import (
    TYPES,
    age,
    open_memory,
    utf8_text,
    with_reader,
    write_file,
)
from tallystick.cli.exit_codes import FAILED, OK
from tallystick.cli.parts import JSON, echo_json, echo_line
from tallystick.cli.show import plain
from tallystick.core.errors import UsageError
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.memory.errors import NoteNotFound
from tallystick.memory.memory import Memory
from tallystick.memory.note import MemoryType
from tallystick.memory.receipts.receipt import receipt_bytes
from tallystick.memory.report import whole_id
from tallystick.memory.store.records import Criteria, Failure, ForgetStrategy
from tallystick.settings.paths import ledger_path
from tallystick.stores import open_stores
from tallystick.upkeep.erasure import USUAL_STRATEGY, Erased, Which, forget_notes

_HOUR_MS = 3_600_000
_STRATEGIES = [each.value for each in ForgetStrategy if each is not ForgetStrategy.CONSOLIDATE]
_WHY_CHARS_MAX = 300


@click.command("forget")
@click.argument("names", nargs=-1, metavar="[ID]...")
@click.option(
    "--subject",
    type=utf8_text,
    metavar="ID",
    help="Forget the notes about a person: those with the tag subject:ID.",
)
@click.option(
    "--principal",
    type=utf8_text,
    metavar="NAME",
    help="Forget the notes that this principal wrote.",
)
@click.option(
    "--session",
    type=utf8_text,
    metavar="ID",
    help="Forget the notes with this session_id (tally memory show).",
)
@click.option(
    "--older-than", metavar="AGE", help="Forget notes older than this, such as 12h, 30d or 2w."
)
@click.option(
    "--below", type=float, metavar="I", help="Forget notes of less than this importance, 0 to 1."
)
@click.option("--type", "memory_type", type=click.Choice(TYPES), help="Forget notes of this type.")
@click.option(
    "--tag",
    "tags",
    multiple=True,
    type=utf8_text,
    metavar="TAG",
    help="Forget notes with this tag. If repeated, with one of them.",
)
@click.option("--expired", is_flag=True, help="Forget the notes whose time is over: erase them.")
@click.option(
    "--strategy", type=click.Choice(_STRATEGIES),
    help="Forget the notes in this way.  [default: soft_delete; redact with --subject; "
    "hard_delete with --expired]",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show what would be forgotten; change nothing.")
@click.option("--yes", is_flag=True, help="Erase without asking.")
@click.option(
    "--receipt", "receipt_file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Write the receipt to this file.",
)  # fmt: skip
@with_reader
@JSON
def command(
    names: tuple[str, ...],
    subject: str | None,
    principal: str | None,
    session: str | None,
    older_than: str | None,
    below: float | None,
    memory_type: str | None,
    tags: tuple[str, ...],
    expired: bool,
    strategy: str | None,
    dry_run: bool,
    yes: bool,
    receipt_file: Path | None,
    tenant: str | None,
    agent: str | None,
    as_json: bool,
) -> int:
    r"""Hide, archive, redact or erase notes, with a receipt.

    soft_delete and archive keep a note but recall it no more; decay makes it less important.

    redact erases the text of a note. hard_delete erases everything but its position in the log.
    Both erase the bytes from the memory and from recorded runs, so they ask first. Exports that may
    still have the notes are named. Exit code 1 if a note could not be forgotten.

    \b
    Example:
        tally forget 0199d3a1-7c2e
        tally forget --subject ann --dry-run
        tally forget --older-than 90d --below 0.3 --strategy archive
        tally forget --expired --yes
    """
    hours = None if older_than is None else age(older_than, field="older-than", unit="h") / _HOUR_MS
    criteria = Criteria(
        max_age_hours=hours,
        min_importance_below=below,
        memory_type=None if memory_type is None else MemoryType(memory_type),
        tags=frozenset(tags),
    )
    which = _which(names, subject, principal, session, criteria, expired=expired)
    way = "subject" if subject is not None else "expired" if expired else ""
    usual = USUAL_STRATEGY.get(way, ForgetStrategy.SOFT_DELETE)
    chosen = usual if strategy is None else ForgetStrategy(strategy)
    with open_memory(tenant, agent) as memory, _open_ledger(chosen) as ledger:
        unknown: list[Failure] = []
        if names:
            which["ids"], unknown = _find_notes(memory, names)
        # Always: the question shows it, and for an agent it says which notes may be chosen.
        plan = _forget(memory, which, chosen, ledger, dry_run=True)
        if agent is not None and not names:
            # The agent did not choose notes that it may not see, so they are not named to it.
            plan = msgspec.structs.replace(plan, errors=())
            which = {"ids": plan.notes}
        if chosen.erases and not (dry_run or yes) and (plan.notes or plan.runs):
            click.confirm(_question(plan), abort=True, err=True)
        done = plan if dry_run else _forget(memory, which, chosen, ledger, dry_run=False)
    done = msgspec.structs.replace(done, errors=(*unknown, *done.errors))
    if receipt_file is not None and done.receipt is not None:
        write_file(receipt_file, iter((receipt_bytes(done.receipt), b"\n")))
    _echo_erased(done, as_json=as_json)
    return OK if done.whole else FAILED


def _which(
    names: tuple[str, ...],
    subject: str | None,
    principal: str | None,
    session: str | None,
    criteria: Criteria,
    *,
    expired: bool,
) -> dict[str, Any]:
    """Return the arguments that choose the notes.

    Raise `UsageError` if notes are chosen in no way, or in more than one.
    """
    ways: dict[str, dict[str, Any]] = {
        "ids": {"ids": names} if names else {},
        "--subject": {} if subject is None else {"subject": subject},
        "--principal or --session": {
            name: value
            for name, value in (("principal", principal), ("session_id", session))
            if value is not None
        },
        "criteria": {} if criteria == Criteria() else {"criteria": criteria},
        "--expired": {"expired": True} if expired else {},
    }
    given = {way: said for way, said in ways.items() if said}
    if not given:
        raise UsageError(
            "choose the notes to forget: by ID, --subject, --principal or --session, --expired, or "
            "by any of --older-than, --below, --type and --tag"
        )
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} cannot be combined; use one of them at a time")
    return next(iter(given.values()))


@contextmanager
def _open_ledger(strategy: ForgetStrategy) -> Iterator[SqliteLedger | None]:
    """Open the ledger, whose runs may contain the notes.

    Yield None if the strategy erases no bytes, or if there is no ledger file.
    """
    path = ledger_path()
    if not strategy.erases or not path.exists():
        yield None
        return
    with open_stores(path) as stores:
        yield stores.ledger


def _find_notes(memory: Memory, names: Sequence[str]) -> tuple[tuple[str, ...], list[Failure]]:
    """Return the ids of the named notes, and a failure for each name that no note has.

    A whole id is returned without looking for its note. Raise `UsageError` for the beginning of
    several ids.
    """
    ids: list[str] = []
    unknown: list[Failure] = []
    for name in names:
        try:
            ids.append(whole_id(memory, name))
        except NoteNotFound as error:
            unknown.append(Failure(id=name, code=error.code, message=str(error)))
    return tuple(ids), unknown


def _forget(
    memory: Memory,
    which: dict[str, Any],
    strategy: ForgetStrategy,
    ledger: SqliteLedger | None,
    *,
    dry_run: bool,
) -> Erased:
    if which.get("ids") == ():
        return Erased(dry_run=dry_run, strategy=strategy, notes=(), errors=())
    return forget_notes(memory, Which(**which), strategy=strategy, ledger=ledger, dry_run=dry_run)


def _question(plan: Erased) -> str:
    verb = "redact" if plan.strategy is ForgetStrategy.REDACT else "erase"
    runs = sum(run.how != "kept" for run in plan.runs or ())
    said = f"{verb} {_count(len(plan.notes), 'note')}"
    if runs:
        said += f", and prune {_count(runs, 'run')} that may contain them"
    return f"{said}? This cannot be undone"


def _echo_erased(done: Erased, *, as_json: bool) -> None:
    if as_json:
        fields = msgspec.structs.asdict(done)
        echo_json({"forgotten": fields.pop("notes"), **fields})
        return
    would = "would be " if done.dry_run else ""
    for id in done.notes:
        click.echo(f"{id}  {would}{_PAST[done.strategy]}")
    for run in done.runs or ():
        if run.how != "kept":
            click.echo(f"run {run.run}  {would}{run.how}")
    for each in done.errors:
        _say(f"not forgotten: {each.message}")
    if not (done.notes or done.errors or done.runs):
        _say("nothing to forget")
    _echo_left(done)
    if done.receipt is not None:
        _say(f"receipt {done.receipt.forget_id}, signed by {done.receipt.hmac_key_id}")


def _echo_left(done: Erased) -> None:
    """Print what may still contain the notes, and why it was not erased."""
    for run in done.runs or ():
        if run.how == "kept":
            _say(f"kept: run {run.run} {run.why}; {run.todo}")
    for ref in done.attachments_left:
        _say(f"kept: attachment {ref}: another run or session keeps it")
    for path in done.outputs_left:
        _say(f"kept: {path}")
    if done.not_searched and done.runs is not None:
        many = _count(len(done.not_searched), "note")
        _say(f"note: runs with {many} were found by id only: the text is too short, or gone")
    for id in done.alike:
        _say(f"note: {id} has the same text, and is kept")
    for seq, label in done.exports:
        _say(f"exported before, and not erased there: {label} (entry {seq:,})")
    if done.note is not None:
        _say(f"note: {done.note}")
    if done.scrubbed is False:
        _say("note: another process reads the file; the bytes are erased when it is opened next")


def _say(text: str) -> None:
    echo_line(plain(text, chars_max=_WHY_CHARS_MAX), indent=6, err=True)


def _count(count: int, word: str) -> str:
    return f"{count:,} {word if count == 1 else f'{word}s'}"


_PAST = {
    ForgetStrategy.SOFT_DELETE: "deleted",
    ForgetStrategy.HARD_DELETE: "erased",
    ForgetStrategy.DECAY: "less important",
    ForgetStrategy.CONSOLIDATE: "consolidated",
    ForgetStrategy.ARCHIVE: "archived",
    ForgetStrategy.REDACT: "redacted",
}
