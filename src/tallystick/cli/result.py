"""What a run came to, printed: the answer on stdout, the rest on stderr."""

from __future__ import annotations

import click
import msgspec

from tallystick.cli.render import plain
from tallystick.core.money import shown_usd
from tallystick.runtime.estimate import Estimate, StrategyEstimate
from tallystick.runtime.run import Run

__all__ = ["run_json", "show_estimate", "show_run"]

_QUOTE_CHARS_MAX = 100
_NAME_CHARS_MAX = 300


def run_json(result: Run) -> str:
    """What a run came to, as JSON. What it claims in vain is there, also if that is nothing."""
    told: dict[str, object] = msgspec.to_builtins(result)
    return msgspec.json.encode({**told, "unchecked": told.get("unchecked", [])}).decode()


def show_run(result: Run, *, quiet: bool, answer: bool = True) -> None:
    """Print the answer, where it stands, why the run stopped if it did, and what it cost."""
    if result.answer is not None and answer:
        click.echo(result.answer)
    if quiet:
        return
    for number, citation in enumerate(result.citations, 1):
        quote = citation.quote[:_QUOTE_CHARS_MAX]
        name = plain(citation.name, chars_max=_NAME_CHARS_MAX)
        click.echo(f"cited    [{number}] {name}:{citation.lines}  {quote!r}", err=True)
    for each in result.unchecked:
        why = plain(each.why, chars_max=_NAME_CHARS_MAX)
        click.echo(f"unchecked: {plain(each.claim, chars_max=_QUOTE_CHARS_MAX)} ({why})", err=True)
    if not result.answered:
        what = "a partial answer" if result.partial else "no answer"
        click.echo(f"stopped  {result.stop}: {result.detail} ({what})", err=True)
    charge = result.charge
    used = charge.tokens_in + charge.tokens_out
    cost = shown_usd(charge.usd) if charge.usd is not None else "price unknown"
    if not charge.model_calls:
        cost = "no model was asked"
    click.echo(
        f"cost     {used:,} tokens ({charge.tokens_in:,} in, {charge.tokens_out:,} out)   {cost}   "
        f"{result.turns} turn{'' if result.turns == 1 else 's'}   {charge.wall_ms / 1000:.1f} s",
        err=True,
    )
    click.echo(f"ledger   run {result.run} in {result.ledger}", err=True)
    if (how := _to_go_on(result)) is not None:
        click.echo(f"to go on: {how}", err=True)


def _to_go_on(result: Run) -> str | None:
    """What to type to go on with a run that has no answer. What was paid for is kept."""
    resume = f"tally resume {result.run}"
    match result.stop:
        case "cancelled" | "model_error" | "sandbox_error":
            return resume
        case "max_turns":
            return f"{resume} --max-turns N, with a higher one"
        case "deadline":
            return f"{resume} --timeout SECONDS, with a higher one"
        case "budget":
            return f"{resume} with a higher cap: --max-usd, --max-tokens"
        case "in_doubt":
            return f"look whether it happened, then {resume} --in-doubt retry or abandon"
        case _:
            return None


def show_estimate(estimate: Estimate, *, as_json: bool) -> None:
    """Print what a run would begin with, and what it costs as far as that can be told."""
    if as_json:
        click.echo(msgspec.json.encode(estimate).decode())
        return
    cap = "no cap" if estimate.usd_cap is None else f"cap {shown_usd(estimate.usd_cap)}"
    usual, first = "unpriced", "nobody knows"
    if estimate.usual_usd is not None and estimate.first_call_usd_max is not None:
        usual = f"about {shown_usd(estimate.usual_usd)} for four turns"
        first = f"at most {shown_usd(estimate.first_call_usd_max)} for the first"
    click.echo(f"model     {estimate.model}")
    click.echo(f"price     {estimate.why}")
    click.echo(
        f"prompt    about {estimate.tokens_in_estimated:,} tokens (at most "
        f"{estimate.tokens_in_max:,}); a reply of at most {estimate.tokens_out_max:,}"
    )
    click.echo(f"call      {first}")
    click.echo(f"run       {usual}; {cap}, {estimate.tokens_cap:,} tokens")
    for each in estimate.strategies:
        click.echo(f"{each.strategy:<10}{_taken(each)}")
    click.echo(f"auto      {estimate.auto}: {estimate.auto_why}")
    if not estimate.fits:
        click.echo("refused   the first call does not fit: raise the cap, or ask for less")


def _taken(estimate: StrategyEstimate) -> str:
    if estimate.why_not:
        return f"does not fit: {estimate.why_not}"
    calls = f"{estimate.calls:,} call{'' if estimate.calls == 1 else 's'}"
    cost = "unpriced" if estimate.usd is None else f"about {shown_usd(estimate.usd)}"
    return f"{calls:<12}about {f'{estimate.tokens:,} tokens':<20}{cost}"
