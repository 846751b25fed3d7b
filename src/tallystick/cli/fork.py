"""`tally fork`: another run that grows from one, after a turn."""

from __future__ import annotations

from pathlib import Path

import click

from tallystick.cli.going import (
    Shown,
    limits_from,
    opened,
    shown_options,
    skills_for,
    with_skills,
)
from tallystick.core.errors import UsageError
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.config_keys import SETTINGS, Value, from_text
from tallystick.runtime.fork import shared_records
from tallystick.runtime.history import resolve_run
from tallystick.runtime.paths import ledger_path
from tallystick.runtime.resume import checked
from tallystick.runtime.settings import load_settings
from tallystick.runtime.so_far import start_now

__all__ = ["command"]

# What may be another in a fork. The rest belongs to what it shares.
_SETTABLE = (
    "max_turns",
    "max_tokens",
    "max_usd",
    "timeout",
    "reply_tokens",
    "retries",
    "temperature",
)


@click.command("fork")
@click.argument("run")
@click.option(
    "--at",
    "turn",
    type=click.IntRange(min=0),
    required=True,
    metavar="TURN",
    help="Share the turns up to this one; 0 is the very beginning.",
)
@click.option("-m", "--model", metavar="MODEL", help="Another model from there on.")
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help=f"Another limit or temperature from there on: {', '.join(_SETTABLE)}. May be repeated.",
)
@with_skills
@shown_options
def command(
    run: str,
    turn: int,
    model: str | None,
    changes: tuple[str, ...],
    skill_directories: tuple[Path, ...],
    no_skills: bool,
    as_json: bool,
    events: bool,
    quiet: bool,
) -> int:
    r"""Grow another run from RUN, after a turn, and drive it to its end.

    What came before is shared: it is neither paid nor stored again. The run itself stays as it is.
    tally diff shows where the two part.

    \b
    Example:
        tally fork last --at 2 -m openai:gpt-5 --set max_turns=10
    """
    ledger = SqliteLedger(ledger_path())
    found = resolve_run(ledger, run)
    _, records = checked(ledger, found)
    started = start_now(records)
    settings = load_settings(flags={"model": model or started.model})
    given = dict(_change(each) for each in changes)
    temperature = given.get("temperature")
    shown = Shown(as_json=as_json, events=events, quiet=quiet)
    progress = shown.progress(shared_records(found, records, turn))
    skills = None
    if started.skills is not None:
        skills = skills_for(settings, skill_directories, none=no_skills, quiet=quiet)
    with (
        shown.going(progress) as watch,
        opened(settings, ledger, skills, given=started.memory) as (session, _, _),
    ):
        try:
            result = session.fork(
                found,
                turn=turn,
                limits=limits_from(started.limits, given),
                temperature=temperature if isinstance(temperature, float) else None,
                watch=watch,
                heard=progress.heard,
            )
        finally:
            progress.close()
    return shown.end(result)


def _change(text: str) -> tuple[str, Value]:
    key, equals, value = text.partition("=")
    if not equals or key not in _SETTABLE:
        raise UsageError(f"--set {text[:80]!r}: KEY=VALUE is needed, with {', '.join(_SETTABLE)}")
    return key, from_text(SETTINGS[key].kind, value, variable=f"--set {key}")
