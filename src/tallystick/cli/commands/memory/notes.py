"""`tally remember` and `tally recall`: notes kept for later, and found with a receipt."""

from __future__ import annotations

from pathlib import Path

import click

from tallystick.cli.commands.memory.options import (
    TYPES,
    age,
    content_line,
    filters_from,
    note_fields,
    opened,
    signing_key,
    source,
    tell_remarks,
    utf8_text,
    with_filters,
    with_reader,
    written,
)
from tallystick.cli.exit_codes import OK
from tallystick.cli.parts import JSON, echo_json
from tallystick.cli.show import plain
from tallystick.core.errors import UsageError
from tallystick.memory.errors import NoteInvalid
from tallystick.memory.note import CONTENT_BYTES_MAX, NoteScope, SourceType
from tallystick.memory.recall.recall import K_MAX, STRATEGIES, Recalled, Strategy
from tallystick.memory.receipts.receipt import receipt_bytes
from tallystick.memory.remember import Remembered
from tallystick.memory.report import whole_id

# `tally remember`: a note for later.


# Who wrote it down, where nobody is named: whoever calls the command.
_USER = "user"


@click.command("remember")
@click.argument("words", nargs=-1, metavar="TEXT...|-")
@click.option("--key", metavar="NAME", help="What it is about; it ends the note with this key.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="May be repeated.")
@click.option(
    "--type", "memory_type", type=click.Choice(TYPES), default=TYPES[0], show_default=True,
    help="working expires after an hour; procedural is important and does not decay.",
)  # fmt: skip
@click.option(
    "--importance", type=float, default=0.5, show_default=True, metavar="I", help="From 0 to 1."
)
@click.option("--author", metavar="NAME", help="Who said it.")
@click.option("--thread", metavar="NAME", help="The conversation that it is of.")
@click.option(
    "--scope", type=click.Choice([each.value for each in NoteScope]), default="private",
    show_default=True, help="Who may see it beside its agent.",
)  # fmt: skip
@click.option("--ttl", metavar="TIME", help="Until when it holds, from now: 15m, 12h, 30d, 2w.")
@click.option("--related", multiple=True, metavar="ID", help="A note it goes with; repeatable.")
@click.option(
    "--source", "source_type", type=click.Choice([each.value for each in SourceType]),
    default="human", show_default=True, help="Where it comes from; strangers are looked at harder.",
)  # fmt: skip
@with_reader
@JSON
def remember_command(
    words: tuple[str, ...],
    key: str | None,
    tags: tuple[str, ...],
    memory_type: str,
    importance: float,
    author: str | None,
    thread: str | None,
    scope: str,
    ttl: str | None,
    related: tuple[str, ...],
    source_type: str,
    tenant: str | None,
    agent: str | None,
    as_json: bool,
) -> int:
    r"""Keep a note, on disk when this returns. Prints its id.

    What is known already is sighted again, and keeps its id. What looks like an attack is held
    back until somebody looks: tally memory review.

    \b
    Example:
        tally remember "Ann moved to Bern in May" --key ann.home
        git log -1 --format=%B | tally remember - --tag commit
    """
    content = _content(words)
    ttl_ms = None if ttl is None else age(ttl, field="ttl")
    with opened(tenant, agent, create=True) as memory:
        made = memory.remember(
            content,
            key=key,
            tags=list(tags),
            memory_type=memory_type,
            importance=importance,
            author=author,
            thread_id=thread,
            scope=scope,
            ttl_ms=ttl_ms,
            related_to=[whole_id(memory, each) for each in related],
            source_type=source_type,
            created_by=agent or _USER,
        )
    if as_json:
        echo_json(
            {
                "id": made.id, "seq": made.seq, "content_hash": made.content_hash,
                "known": made.sighted, "superseded": made.superseded,
                "held_back": made.quarantine,
            }
        )  # fmt: skip
    else:
        click.echo(made.id)
        _tell_remembered(made)
    return OK


def _content(words: tuple[str, ...]) -> str:
    if words == ("-",):
        with source("-") as file:
            raw = file.read(CONTENT_BYTES_MAX + 2)
        if len(raw.removesuffix(b"\n")) > CONTENT_BYTES_MAX:
            why = f"more than {CONTENT_BYTES_MAX:,} bytes: keep it as an attachment"
            raise NoteInvalid(field="content", why=why)
        try:
            return raw.decode("utf-8").removesuffix("\n")
        except UnicodeDecodeError as error:
            raise UsageError(f"standard input: byte {error.start + 1:,} is not UTF-8") from None
    if not words:
        raise UsageError("say what to remember, or - for standard input")
    return " ".join(words)


def _tell_remembered(made: Remembered) -> None:
    if made.sighted:
        click.echo("known already; sighted again", err=True)
    for id in made.superseded:
        click.echo(f"superseded {id}", err=True)
    if made.quarantine:
        click.echo(
            f"held back ({', '.join(made.quarantine)}): not recalled until reviewed; "
            f"tally memory review {made.id} --release",
            err=True,
        )


# `tally recall`: notes that fit a query, with a receipt; receipts checked; recall programs run.


_K = 10


@click.command("recall")
@click.argument("query", required=False, type=utf8_text)
@click.option(
    "-k", type=click.IntRange(0, K_MAX), default=_K, show_default=True, metavar="N",
    help="At most so many notes.",
)  # fmt: skip
@click.option(
    "--as-of", metavar="PLACE|TIME",
    help="What was known then, ranked as it was then: a place in the log, or a time.",
)  # fmt: skip
@click.option(
    "--strategy", type=click.Choice(STRATEGIES), default="auto", show_default=True,
    help="hybrid and semantic need the extra `memory`; auto uses it where it can.",
)  # fmt: skip
@with_filters
@click.option("--explain", is_flag=True, help="Show what each lane gave to each score.")
@click.option(
    "--tokens", "tokens_max", type=click.IntRange(min=0), metavar="N",
    help="No more evidence than this; the best first.",
)  # fmt: skip
@click.option(
    "--receipt", "receipt_file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Write the receipt there.",
)  # fmt: skip
@click.option(
    "--sign", is_flag=True,
    help="With --receipt: sign it, so that others can check it by your public key.",
)  # fmt: skip
@click.option(
    "--verify", "verified", metavar="RECEIPT",
    help="Check a receipt, a file or the id of a recall, by making the recall again.",
)  # fmt: skip
@click.option(
    "--query", "asked", type=utf8_text, metavar="TEXT",
    help="With --verify: what was asked, which no receipt says. With it the ranking is checked.",
)  # fmt: skip
@click.option(
    "--against", metavar="FILE",
    help="With --verify: a copy of somebody else's memory, or an export of it.",
)  # fmt: skip
@click.option(
    "--key", "key_file", type=click.Path(dir_okay=False, path_type=Path), metavar="PUB",
    help="With --verify: who must have signed the receipt.",
)  # fmt: skip
@click.option(
    "--head", metavar="COUNT:HASH",
    help="With --verify: a head of the memory; the receipt must be an entry under it.",
)  # fmt: skip
@click.option(
    "--program", metavar="FILE|-",
    help="Run a recall program: a list of operations as JSON, or Python.",
)  # fmt: skip
@click.option("--fuel", type=click.IntRange(min=0), metavar="N", help="With --program: its fuel.")
@click.option(
    "--pages", type=click.IntRange(min=0), metavar="N", help="With --program: pages of 64 KiB."
)
@click.option(
    "--wall-ms", type=click.IntRange(min=0), metavar="N", help="With --program: its time."
)
@with_reader
@JSON
def recall_command(
    query: str | None,
    k: int,
    as_of: str | None,
    strategy: Strategy,
    explain: bool,
    tokens_max: int | None,
    receipt_file: Path | None,
    sign: bool,
    verified: str | None,
    asked: str | None,
    against: str | None,
    key_file: Path | None,
    head: str | None,
    program: str | None,
    fuel: int | None,
    pages: int | None,
    wall_ms: int | None,
    tenant: str | None,
    agent: str | None,
    as_json: bool,
    **given: object,
) -> int:
    r"""Find the notes that fit a query, the best first. Each recall has a receipt.

    --verify makes a recall again, offline, from what was known then: exit code 8 if it comes to
    something else, 6 if the receipt does not hold. What was erased since is said to be erased.

    Your own receipts are checked with your key. Those of others need a copy of their memory
    (--against), and their public key (--key) or a head of the memory (--head).

    \b
    Example:
        tally recall "where does Ann live?" -k 3
        tally recall --verify last.receipt --query "where does Ann live?"
        tally recall --verify ann.receipt --against ann.db --key ann.pub
        tally recall --program hop.py --json
    """
    _check(query, verified, program, asked, (fuel, pages, wall_ms))
    _check_others(verified, (against, key_file, head), sign=sign, receipt=receipt_file)
    if verified is not None:
        from tallystick.cli.commands.memory.recall_checks import By, verify_receipt

        by = By(against=against, key_file=key_file, head=head)
        return verify_receipt(verified, asked, by=by, tenant=tenant, as_json=as_json)
    filters = filters_from(given)
    if program is not None:
        from tallystick.cli.commands.memory.recall_checks import run_program

        return run_program(
            program,
            limits=(fuel, pages, wall_ms),
            tenant=tenant,
            agent=agent,
            as_of=as_of,
            strategy=strategy,
            filters=filters,
            as_json=as_json,
        )
    assert query is not None
    with opened(tenant, agent) as memory:
        # First: without the extra for signatures, nothing is recalled.
        key = signing_key(memory.store.path) if sign else None
        made = memory.recall(
            query, k, as_of=as_of, strategy=strategy, filters=filters, tokens_max=tokens_max
        )
        data = receipt_bytes(made.receipt)
        if key is not None:
            from tallystick.memory.receipts.receipt_file import receipt_file_bytes

            data = receipt_file_bytes(memory.receipt_file(made.receipt.read_id, key=key))
    if receipt_file is not None:
        written(receipt_file, iter((data, b"\n")))
    _tell_recalled(made, explain=explain, as_json=as_json)
    return OK


def _check(
    query: str | None,
    verified: str | None,
    program: str | None,
    asked: str | None,
    limits: tuple[int | None, ...],
) -> None:
    """Refuse what contradicts itself."""
    given = [each for each in (query, verified, program) if each is not None]
    if not given:
        raise UsageError("say what to recall: a query, --verify RECEIPT or --program FILE")
    if len(given) > 1:
        raise UsageError("a query, --verify and --program: one of them; --query goes with --verify")
    if asked is not None and verified is None:
        raise UsageError("--query goes with --verify; without it, give the query by itself")
    if program is None and any(each is not None for each in limits):
        raise UsageError("--fuel, --pages and --wall-ms go with --program")


def _check_others(
    verified: str | None, given: tuple[object, ...], *, sign: bool, receipt: Path | None
) -> None:
    if verified is None and any(each is not None for each in given):
        raise UsageError("--against, --key and --head go with --verify")
    if sign and receipt is None:
        raise UsageError(
            "--sign goes with --receipt FILE; for a recall that was made: tally memory receipt"
        )


def _tell_recalled(made: Recalled, *, explain: bool, as_json: bool) -> None:
    if as_json:
        hits = [
            {"score": hit.score, "lanes": dict(hit.lanes), **note_fields(made.notes[hit.id])}
            for hit in made.hits
        ]
        echo_json({"hits": hits, "receipt": made.receipt, "remarks": made.remarks})
        return
    for hit in made.hits:
        head = f"{hit.score:>8.4f}  {hit.id}  "
        click.echo(f"{head}{content_line(made.notes[hit.id].content, taken=len(head))}")
        if explain:
            lanes = (f"{plain(name)} {value:.4f}" for name, value in hit.lanes if value)
            click.echo(f"          {'  '.join(lanes) or 'no lane'}")
    tell_remarks(made.remarks, everything=explain)
    if not made.hits:
        click.echo("nothing fits", err=True)
    receipt, tokens = made.receipt, made.receipt.tokens
    counted = ""
    if tokens is not None:
        counted = f"; {tokens.delivered:,} of {tokens.whole_scope:,} tokens ({tokens.tokenizer})"
    click.echo(f"recall {receipt.read_id} as of {receipt.as_of:,}{counted}", err=True)
