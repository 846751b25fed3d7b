"""`tally resume`: a run that was cut off, or stopped, goes on where it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tallystick.cli.going import (
    Command,
    Shown,
    limits_from,
    opened,
    shown_options,
    skills_for,
    with_layers,
    with_limits,
    with_skills,
)
from tallystick.core.passage_records import InDoubt
from tallystick.core.records import RunEnded
from tallystick.core.vocabulary_records import PersonDecision
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.family_tree import open_records
from tallystick.runtime.history import resolve_run
from tallystick.runtime.paths import ledger_path
from tallystick.runtime.resume import checked
from tallystick.runtime.run_lock import is_running
from tallystick.runtime.session import Session
from tallystick.runtime.settings import load_settings
from tallystick.runtime.so_far import start_now
from tallystick.runtime.vocabulary_check import check_decision

__all__ = ["command", "gone_on_with", "with_resume"]


def with_resume(command: Command) -> Command:
    """The options of the commands that go on with a run."""
    options: list[Callable[[Command], Command]] = [
        click.argument("run"),
        click.option(
            "-m",
            "--model",
            metavar="MODEL",
            help="Where to find the run's model, if its name does not say: "
            "gguf:FILE, scripted:FILE.",
        ),
        with_limits,
        click.option(
            "--allow-unpriced",
            is_flag=True,
            default=None,
            help="Under a cap in dollars, let calls through whose price nobody knows.",
        ),
        click.option(
            "--in-doubt",
            type=click.Choice(["halt", "retry", "abandon"]),
            default="halt",
            show_default=True,
            help="What becomes of calls whose outcome nobody knows.",
        ),
        with_skills,
        with_layers,
        click.option("--steal", is_flag=True, help="Take the run from a process that still lives."),
        shown_options,
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.command("resume")
@with_resume
def command(**given: Any) -> int:  # noqa: ANN401 (the options, as they are called)
    r"""Go on with a run where it was: after a kill, a power cut, Ctrl-C, or a cap.

    Its programs run again on the answers that are recorded: nothing is paid or done twice. Limits
    that are given here replace those of the run, and are for the whole of it. RUN is an id, the
    beginning of one, or `last`.

    A call that was under way when the process died may have been paid for. Then nothing is done
    and the exit code is 7, until you say: --in-doubt retry makes it again and accepts the cost,
    --in-doubt abandon does without it.

    \b
    Exit codes: as of tally run; 7 in doubt, 8 it no longer does what is recorded.

    \b
    Example:
        tally resume last --max-usd 2
    """
    return gone_on_with(**given)


def gone_on_with(
    *,
    run: str,
    model: str | None,
    in_doubt: InDoubt,
    steal: bool,
    skill_directories: tuple[Path, ...],
    no_skills: bool,
    as_json: bool,
    events: bool,
    quiet: bool,
    allow_unpriced: bool | None,
    accept_without: tuple[str, ...] = (),
    decision: PersonDecision | None = None,
    by: str = "",
    **given: object,
) -> int:
    """Go on with a run; `decision` is of the program that waits for a person."""
    ledger = SqliteLedger(ledger_path())
    found = resolve_run(ledger, run)
    _, records = checked(ledger, found)
    started = start_now(records)
    flags = {"model": model or started.model, "allow_unpriced": allow_unpriced}
    shown = Shown(as_json=as_json, events=events, quiet=quiet)
    ended = records[-1]
    check_decision(found, records, decision)
    if isinstance(ended, RunEnded) and ended.stop == "answered":
        # No model is needed to show it, and perhaps there is none any more.
        with Session(ledger=ledger) as session:
            return shown.end(session.resume(found))
    if steal and is_running(ledger, found):
        click.echo(
            f"warning: run {found} is taken from a process that still works on it: what that "
            "process does from now on is not written, and a call it has under way is paid for "
            "and lost",
            err=True,
        )
    settings = load_settings(flags=flags)
    progress = shown.progress(records, open_records(ledger, records))
    skills = None
    if started.skills is not None:
        skills = skills_for(settings, skill_directories, none=no_skills, quiet=quiet)
    with (
        shown.going(progress, found) as watch,
        opened(settings, ledger, skills, given=started.memory, accept_without=accept_without) as (
            session,
            _,
            _,
        ),
    ):
        try:
            result = session.resume(
                found,
                in_doubt=in_doubt,
                limits=limits_from(started.limits, given),
                steal=steal,
                decision=decision,
                by=by,
                watch=watch,
                heard=progress.heard,
            )
        finally:
            progress.close()
    return shown.end(result)
