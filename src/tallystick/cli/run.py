"""`tally run`: a question, answered by programs that a model writes."""

from __future__ import annotations

import dataclasses
import sys

import click
import msgspec

from tallystick.cli.exit_codes import OK, exit_code_of_stop
from tallystick.cli.progress import progress_for
from tallystick.cli.result import show_estimate, show_run
from tallystick.core.records import Record, RunLimits, encode_record, tag_of
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.model.pacing import Pacing
from tallystick.runtime.estimate import estimated
from tallystick.runtime.inputs import read_inputs
from tallystick.runtime.models import open_model
from tallystick.runtime.paths import ledger_path
from tallystick.runtime.session import Session
from tallystick.runtime.settings import load_settings

__all__ = ["command"]

_DEFAULTS = RunLimits()


@click.command("run")
@click.argument("question")
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    metavar="FILE|DIR|GLOB|-",
    help="Give the program text to read, as `context`. May be repeated.",
)
@click.option(
    "-m",
    "--model",
    metavar="MODEL",
    help="PROVIDER:NAME, an alias, gguf:FILE, scripted:FILE or recorded:RUN.",
)
@click.option(
    "--max-turns",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"Model replies at most.  [default: {_DEFAULTS.turns}]",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"Tokens in and out at most.  [default: {_DEFAULTS.tokens}]",
)
@click.option(
    "--max-usd",
    type=float,
    metavar="DOLLARS",
    help="Money at most; a call that might pass it is not made.",
)
@click.option(
    "--allow-unpriced",
    is_flag=True,
    default=None,
    help="Under a cap in dollars, let calls through whose price nobody knows.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help=f"Time at most.  [default: {_DEFAULTS.wall_ms // 1000}]",
)
@click.option(
    "--reply-tokens",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"Tokens of one reply at most.  [default: {_DEFAULTS.reply_tokens}]",
)
@click.option(
    "--retries",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"Further attempts at a call that failed in passing.  [default: {_DEFAULTS.retries}]",
)
@click.option(
    "--temperature",
    type=click.FloatRange(min=0, max=2),
    metavar="T",
    help="Of the model's choices.  [default: the server's]",
)
@click.option(
    "--grant",
    "grants",
    multiple=True,
    metavar="CAPABILITY",
    help="Give the run a right. May be repeated.",
)
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    metavar="N",
    help="Seed of the programs' randomness.",
)
@click.option("--dry-run", is_flag=True, help="Say what it would cost; ask and write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--events", is_flag=True, help="Print every record as a JSON line while it is made.")
@click.option("--quiet", is_flag=True, help="Print the answer only.")
def command(
    question: str,
    files: tuple[str, ...],
    seed: int,
    dry_run: bool,
    as_json: bool,
    events: bool,
    quiet: bool,
    **flags: object,
) -> int:
    r"""Answer a question with programs that a model writes.

    The answer goes to stdout, progress and cost to stderr. A stopped run prints what it has.
    What is not given here comes from the environment and the configuration (tally config).

    \b
    Exit codes: 0 answered, 1 no progress or refused, 2 wrong usage, 3 a cap, 4 the sandbox,
    5 the model, 6 the ledger, 130 interrupted.

    \b
    Example:
        tally run "which invoices are overdue?" -f books/ -m openai:gpt-5-mini
    """
    settings = load_settings(flags=flags)
    if not quiet:
        for warning in settings.warnings:
            click.echo(f"warning: {warning}", err=True)
    stdin = sys.stdin.buffer.read() if "-" in files else None
    inputs = read_inputs(files, stdin=stdin)
    progress = progress_for(quiet=quiet or as_json or events)

    def watch(run: str, record: Record) -> None:
        if events:
            body = msgspec.Raw(encode_record(record))
            click.echo(msgspec.json.encode({"run": run, "tag": tag_of(record), "record": body}))
        progress.watch(run, record)

    ledger = SqliteLedger(ledger_path())
    model = open_model(settings.model, settings, pacing=Pacing(), ledger=lambda: ledger)
    pricing = dataclasses.replace(settings.pricing, tokenizer_of=model.name)
    with Session(
        ledger=ledger,
        pricing=pricing,
        total=settings.total,
        say=lambda line: click.echo(line, err=True),
    ) as session:
        session.use(model, owned=True)
        if dry_run:
            estimate = estimated(
                model,
                question,
                inputs=inputs,
                limits=settings.limits,
                grants=settings.grants,
                pricing=pricing,
            )
            show_estimate(estimate, as_json=as_json)
            return OK
        try:
            result = session.run(
                question,
                inputs=inputs,
                limits=settings.limits,
                grants=settings.grants,
                seed=seed,
                temperature=settings.temperature,
                watch=watch,
                heard=progress.heard,
            )
        finally:
            progress.close()
    if as_json:
        click.echo(msgspec.json.encode(result).decode())
    else:
        show_run(result, quiet=quiet or events, answer=not events)
    return exit_code_of_stop(result.stop)
