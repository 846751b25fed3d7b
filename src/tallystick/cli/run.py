"""`tally run`: a question, answered by programs that a model writes."""

from __future__ import annotations

import os
import sys

import click
import msgspec

from tallystick.cli.exit_codes import exit_code_of_stop
from tallystick.cli.render import progress_line
from tallystick.core.errors import UsageError
from tallystick.core.records import Record, RunLimits, encode_record, tag_of
from tallystick.model.port import Model
from tallystick.model.scripted import ScriptedModel
from tallystick.runtime.inputs import read_inputs
from tallystick.runtime.run import Run
from tallystick.runtime.session import Session, recorded_model

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
    "model_name",
    metavar="MODEL",
    help="scripted:FILE or recorded:RUN.  [default: TALLYSTICK_MODEL]",
)
@click.option(
    "--max-turns",
    type=click.IntRange(min=0),
    default=_DEFAULTS.turns,
    show_default=True,
    metavar="N",
    help="Model replies at most.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=0),
    default=_DEFAULTS.tokens,
    show_default=True,
    metavar="N",
    help="Tokens in and out at most.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=_DEFAULTS.wall_ms / 1000,
    show_default=True,
    metavar="SECONDS",
    help="Time at most.",
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
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--events", is_flag=True, help="Print every record as a JSON line while it is made.")
@click.option("--quiet", is_flag=True, help="Print the answer only.")
def command(
    question: str,
    files: tuple[str, ...],
    model_name: str | None,
    max_turns: int,
    max_tokens: int,
    timeout: float,
    grants: tuple[str, ...],
    seed: int,
    as_json: bool,
    events: bool,
    quiet: bool,
) -> int:
    r"""Answer a question with programs that a model writes.

    The answer goes to stdout, progress and cost to stderr. A stopped run prints what it has.

    \b
    Exit codes: 0 answered, 1 no progress or refused, 2 wrong usage, 3 a cap, 4 the sandbox,
    5 the model, 6 the ledger, 130 interrupted.

    \b
    Example:
        tally run "which invoices are overdue?" -f books/ -m scripted:demo.jsonl
    """
    stdin = sys.stdin.buffer.read() if "-" in files else None
    inputs = read_inputs(files, stdin=stdin)
    limits = RunLimits(turns=max_turns, tokens=max_tokens, wall_ms=round(timeout * 1000))

    def watch(run: str, record: Record) -> None:
        if events:
            body = msgspec.Raw(encode_record(record))
            click.echo(msgspec.json.encode({"run": run, "tag": tag_of(record), "record": body}))
        elif not quiet and not as_json:
            line = progress_line(record)
            if line:
                click.echo(line, err=True)

    with Session(say=lambda line: click.echo(line, err=True)) as session:
        session.use(_model(model_name, session))
        result = session.run(
            question, inputs=inputs, limits=limits, grants=grants, seed=seed, watch=watch
        )
    _show(result, as_json=as_json, events=events, quiet=quiet)
    return exit_code_of_stop(result.stop)


def _model(named: str | None, session: Session) -> Model:
    name = named or os.environ.get("TALLYSTICK_MODEL", "")
    kind, _, rest = name.partition(":")
    if kind == "scripted" and rest:
        return ScriptedModel.from_file(rest)
    if kind == "recorded" and rest:
        return recorded_model(session.ledger, rest)
    if name:
        raise UsageError(f"model {name!r} is not known; use scripted:FILE or recorded:RUN")
    raise UsageError(
        "no model: give -m scripted:FILE (replies from a file), -m recorded:RUN (replies of an "
        "earlier run), or set TALLYSTICK_MODEL to one of these"
    )


def _show(result: Run, *, as_json: bool, events: bool, quiet: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode(result).decode())
        return
    if result.answer is not None and not events:
        click.echo(result.answer)
    if quiet or events:
        return
    charge = result.charge
    if not result.answered:
        what = "a partial answer" if result.partial else "no answer"
        click.echo(f"stopped  {result.stop}: {result.detail} ({what})", err=True)
    click.echo(
        f"ledger   run {result.run}   {result.turns} turns   "
        f"{charge.tokens_in + charge.tokens_out:,} tokens   {charge.wall_ms / 1000:.1f} s",
        err=True,
    )
