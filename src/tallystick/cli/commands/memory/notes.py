"""`tally remember` and `tally recall`: store notes, and search them with a receipt."""

from __future__ import annotations

from pathlib import Path

import click

from tallystick.cli.commands.memory.options import (
    TYPES,
    age,
    content_line,
    content_of,
    filters_from,
    note_fields,
    open_memory,
    shown_time,
    signing_key,
    tell_remarks,
    utf8_text,
    with_filters,
    with_reader,
    write_file,
)
from tallystick.cli.exit_codes import OK
from tallystick.cli.parts import JSON, echo_json, echo_line
from tallystick.cli.show import plain
from tallystick.core.errors import UsageError
from tallystick.core.ids import moment_ms
from tallystick.memory.note import Note, NoteScope, SourceType
from tallystick.memory.recall.recall import K_MAX, STRATEGIES, Recalled, Strategy
from tallystick.memory.receipts.receipt import receipt_bytes
from tallystick.memory.remember import Remembered
from tallystick.memory.report import whole_id

# `tally remember`: store a note.


# The writer of a note if --agent names none.
_USER = "user"


@click.command("remember")
@click.argument("words", nargs=-1, metavar="TEXT...|-")
@click.option(
    "--key", metavar="NAME", help="Store it under this key; it replaces the last note there."
)
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Add this tag. May be repeated.")
@click.option(
    "--type", "memory_type", type=click.Choice(TYPES), default=TYPES[0], show_default=True,
    help="Store a note of this type: working expires after an hour; procedural is important and "
    "does not decay.",
)  # fmt: skip
@click.option(
    "--importance", type=float, default=0.5, show_default=True, metavar="I",
    help="Set the importance of the note, 0 to 1.",
)  # fmt: skip
@click.option(
    "--author", metavar="NAME",
    help="Name the person who said it.  [default: read off a text such as `Ann: ...`]",
)  # fmt: skip
@click.option(
    "--at", metavar="TIME",
    help="Say when it was said.  [default: a time that the text begins with, or now]",
)  # fmt: skip
@click.option("--as-is", is_flag=True, help="Read neither author nor time off the text.")
@click.option(
    "--decay", "decay_function", metavar="FUNCTION",
    help="Let its score fall in this way: exponential, linear, step:HOURS or power_law:ALPHA.  "
    "[default: exponential]",
)  # fmt: skip
@click.option(
    "--decay-rate", type=float, metavar="R",
    help="Let its score fall by this rate an hour.  [default: 0.01]",
)  # fmt: skip
@click.option("--thread", metavar="NAME", help="Name the conversation that it belongs to.")
@click.option(
    "--scope", type=click.Choice([each.value for each in NoteScope]), default="private",
    show_default=True, help="Let others than its agent see the note.",
)  # fmt: skip
@click.option(
    "--ttl", metavar="TIME",
    help="Let the note expire after this time, such as 15m, 12h, 30d or 2w.  [default: never, "
    "except for --type working]",
)  # fmt: skip
@click.option(
    "--related", multiple=True, metavar="ID", help="Relate it to this note. May be repeated."
)
@click.option(
    "--source", "source_type", type=click.Choice([each.value for each in SourceType]),
    default="human", show_default=True, metavar="SOURCE",
    help=f"Say where the note comes from: {', '.join(each.value for each in SourceType)}. Notes "
    "from tools, retrieval, imports and models are checked more strictly.",
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
    at: str | None,
    as_is: bool,
    decay_function: str | None,
    decay_rate: float | None,
    thread: str | None,
    scope: str,
    ttl: str | None,
    related: tuple[str, ...],
    source_type: str,
    tenant: str | None,
    agent: str | None,
    as_json: bool,
) -> int:
    r"""Store a note for later runs, and print its id.

    The note is on disk when the command returns. A text that is known already is not stored twice
    and keeps its id. A text that looks like an attack on a model is held back until a person
    reviews it (tally memory review). TEXT may be - for standard input.

    A text that begins as a message does, such as `[12 May 2024] Ann: ...`, gives the note its
    author and time. The text is kept as it is.

    \b
    Example:
        tally remember "Ann moved to Bern in May" --key ann.home
        git log -1 --format=%B | tally remember - --tag commit
    """
    content = content_of(words)
    ttl_ms = None if ttl is None else age(ttl, field="ttl")
    with open_memory(tenant, agent, create=True) as memory:
        made = memory.remember(
            content,
            key=key,
            tags=list(tags),
            memory_type=memory_type,
            importance=importance,
            author=author,
            created_at=None if at is None else moment_ms(at),
            as_is=as_is,
            decay_function=decay_function,
            decay_rate=decay_rate,
            thread_id=thread,
            scope=scope,
            ttl_ms=ttl_ms,
            related_to=[whole_id(memory, each) for each in related],
            source_type=source_type,
            created_by=agent or _USER,
        )
        kept = memory.note(made.id).note
    read = {name: _shown_field(kept, name) for name in kept.read_off}
    if as_json:
        echo_json(
            {
                "id": made.id, "seq": made.seq, "content_hash": made.content_hash,
                "known": made.sighted, "superseded": made.superseded,
                "held_back": made.quarantine, "read_off": read,
            }
        )  # fmt: skip
    else:
        click.echo(made.id)
        if read and not made.sighted:
            said = ", ".join(f"{name} {plain(value)}" for name, value in read.items())
            echo_line(f"read off the text: {said}", err=True)
        _echo_remembered(made)
    return OK


def _shown_field(note: Note, name: str) -> str:
    value = getattr(note, name)
    return str(shown_time(value) if isinstance(value, int) else value)


def _echo_remembered(made: Remembered) -> None:
    if made.sighted:
        click.echo("known already; this was recorded as another sighting", err=True)
    for id in made.superseded:
        click.echo(f"superseded {id}", err=True)
    if made.quarantine:
        echo_line(
            f"held back ({', '.join(made.quarantine)}): not recalled until it is released; to do "
            f"that: tally memory review {made.id} --release",
            err=True,
        )


# `tally recall`: search notes; check receipts; run recall programs.


_K = 10


@click.command("recall")
@click.argument("query", required=False, type=utf8_text)
@click.option(
    "-k", type=click.IntRange(0, K_MAX), default=_K, show_default=True, metavar="N",
    help="Return at most N notes.",
)  # fmt: skip
@click.option(
    "--as-of", metavar="PLACE|TIME",
    help="Search the memory as it was at a position in the log or at a time.  [default: now]",
)  # fmt: skip
@click.option(
    "--strategy", type=click.Choice(STRATEGIES), default="auto", show_default=True,
    help="Rank the notes in this way: hybrid and semantic need the extra `memory`; auto uses it if "
    "it can.",
)  # fmt: skip
@click.option(
    "--weigh", "weights", multiple=True, type=utf8_text, metavar="LANE=W",
    help="Weigh a lane of the ranking in this way, such as importance=0.5. May be repeated.",
)  # fmt: skip
@with_filters
@click.option(
    "--explain", is_flag=True, help="Show what each part of the ranking added to each score."
)
@click.option(
    "--tokens", "tokens_max", type=click.IntRange(min=0), metavar="N",
    help="Return notes of at most N tokens together, the best first.  [default: no limit]",
)  # fmt: skip
@click.option(
    "--receipt", "receipt_file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Write the receipt of the recall to this file.",
)  # fmt: skip
@click.option(
    "--sign", is_flag=True,
    help="With --receipt: sign it, so that others can check it by your public key.",
)  # fmt: skip
@click.option(
    "--verify", "verified", metavar="RECEIPT",
    help="Check a receipt, named by its file or its id, by repeating the recall.",
)  # fmt: skip
@click.option(
    "--query", "asked", type=utf8_text, metavar="TEXT",
    help="With --verify: check the ranking too, for this query. A receipt does not contain its "
    "query.",
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
@click.option(
    "--fuel", type=click.IntRange(min=0), metavar="N",
    help="With --program: stop it after N units of fuel.",
)  # fmt: skip
@click.option(
    "--pages", type=click.IntRange(min=0), metavar="N",
    help="With --program: give it at most N pages of memory, of 64 KiB each.",
)  # fmt: skip
@click.option(
    "--wall-ms", type=click.IntRange(min=0), metavar="N",
    help="With --program: stop it after N milliseconds.",
)  # fmt: skip
@with_reader
@JSON
def recall_command(
    query: str | None,
    k: int,
    as_of: str | None,
    strategy: Strategy,
    weights: tuple[str, ...],
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
    r"""Search notes, the best first, with a receipt.

    --verify repeats a recall offline, on the memory as it was then. Notes that were erased since
    are reported as erased.

    \b
    Exit codes: 0 done, 1 refused, 2 wrong usage, 3 a recall program reached a
    limit, 6 the receipt does not hold, 8 the repeated recall differs.

    Your own receipts are checked with your key. Those of others need a copy of their memory
    (--against), and their public key (--key) or a head of the memory (--head).

    \b
    Example:
        tally recall "where does Ann live?" -k 3
        tally recall "what to do first?" --weigh importance=0.5 --weigh decay=0.5
        tally recall --verify last.receipt --query "where does Ann live?"
        tally recall --verify ann.receipt --against ann.db --key ann.pub
        tally recall --program hop.py --json
    """
    _check(query, verified, program, asked, (fuel, pages, wall_ms), weights)
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
    weighed = _weights(weights)
    with open_memory(tenant, agent) as memory:
        # First: without the extra for signatures, nothing is recalled.
        key = signing_key(memory.store.path) if sign else None
        made = memory.recall(
            query,
            k,
            as_of=as_of,
            strategy=strategy,
            filters=filters,
            tokens_max=tokens_max,
            weights=weighed,
        )
        data = receipt_bytes(made.receipt)
        if key is not None:
            from tallystick.memory.receipts.receipt_file import receipt_file_bytes

            data = receipt_file_bytes(memory.receipt_file(made.receipt.read_id, key=key))
    if receipt_file is not None:
        write_file(receipt_file, iter((data, b"\n")))
    _echo_recalled(made, explain=explain, as_json=as_json)
    return OK


def _check(
    query: str | None,
    verified: str | None,
    program: str | None,
    asked: str | None,
    limits: tuple[int | None, ...],
    weights: tuple[str, ...],
) -> None:
    """Raise `UsageError` for options that contradict each other, and if nothing is asked for."""
    given = [each for each in (query, verified, program) if each is not None]
    if not given:
        raise UsageError("nothing to recall; give a query, --verify RECEIPT or --program FILE")
    if len(given) > 1:
        raise UsageError(
            "give one of: a query, --verify, --program (to verify with a query, use --query)"
        )
    if asked is not None and verified is None:
        raise UsageError("--query is for --verify; to search, write the query without --query")
    if weights and query is None:
        raise UsageError("--weigh is for a query; a receipt says how its recall was weighed")
    if program is None and any(each is not None for each in limits):
        raise UsageError("--fuel, --pages and --wall-ms need --program FILE")


def _weights(given: tuple[str, ...]) -> dict[str, float]:
    """Return the weights by lane. Raise `UsageError` for a text that is not LANE=NUMBER."""
    weights: dict[str, float] = {}
    for each in given:
        name, _, number = each.partition("=")
        try:
            weights[name.strip()] = float(number)
        except ValueError:
            raise UsageError(
                f"--weigh {plain(each, chars_max=80)!r}: write LANE=NUMBER, such as decay=0.5"
            ) from None
    return weights


def _check_others(
    verified: str | None, given: tuple[object, ...], *, sign: bool, receipt: Path | None
) -> None:
    if verified is None and any(each is not None for each in given):
        raise UsageError("--against, --key and --head need --verify RECEIPT")
    if sign and receipt is None:
        raise UsageError("--sign needs --receipt FILE; for an earlier recall: tally memory receipt")


def _echo_recalled(made: Recalled, *, explain: bool, as_json: bool) -> None:
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
        click.echo("no note fits", err=True)
    receipt, tokens = made.receipt, made.receipt.tokens
    counted = ""
    if tokens is not None:
        counted = f"; {tokens.delivered:,} of {tokens.whole_scope:,} tokens ({tokens.tokenizer})"
    echo_line(f"recall {receipt.read_id} as of {receipt.as_of:,}{counted}", indent=7, err=True)
