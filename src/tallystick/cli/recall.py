"""`tally recall`: notes that fit a query, with a receipt; receipts checked; recall programs run."""

from __future__ import annotations

from pathlib import Path

import click

from tallystick.cli.exit_codes import OK
from tallystick.cli.memory_opened import (
    JSON,
    content_line,
    echo_json,
    filters_from,
    note_fields,
    opened,
    tell_remarks,
    utf8_text,
    with_filters,
    with_reader,
    written,
)
from tallystick.cli.render import plain
from tallystick.core.errors import UsageError
from tallystick.memory.recall import K_MAX, STRATEGIES, Recalled, Strategy
from tallystick.memory.receipt import receipt_bytes

__all__ = ["command"]

_K = 10


@click.command("recall")
@click.argument("query", required=False, type=utf8_text)
@click.option(
    "-k", type=click.IntRange(1, K_MAX), default=_K, show_default=True, metavar="N",
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
    "--verify", "verified", metavar="RECEIPT",
    help="Check a receipt, a file or the id of a recall, by making the recall again.",
)  # fmt: skip
@click.option(
    "--query", "asked", type=utf8_text, metavar="TEXT",
    help="With --verify: what was asked, which no receipt says. With it the ranking is checked.",
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
def command(
    query: str | None,
    k: int,
    as_of: str | None,
    strategy: Strategy,
    explain: bool,
    tokens_max: int | None,
    receipt_file: Path | None,
    verified: str | None,
    asked: str | None,
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

    \b
    Example:
        tally recall "where does Ann live?" -k 3
        tally recall --verify last.receipt --query "where does Ann live?"
        tally recall --program hop.py --json
    """
    _check(query, verified, program, asked, (fuel, pages, wall_ms))
    if verified is not None:
        from tallystick.cli.memory_verify import verify_receipt

        return verify_receipt(verified, asked, tenant=tenant, as_json=as_json)
    filters = filters_from(given)
    if program is not None:
        from tallystick.cli.memory_program import run_program

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
        made = memory.recall(
            query, k, as_of=as_of, strategy=strategy, filters=filters, tokens_max=tokens_max
        )
    if receipt_file is not None:
        written(receipt_file, iter((receipt_bytes(made.receipt), b"\n")))
    _tell(made, explain=explain, as_json=as_json)
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


def _tell(made: Recalled, *, explain: bool, as_json: bool) -> None:
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
