"""`tally resume`, `approve`, `deny`, `fork` and `replay`: runs that are there already."""

from __future__ import annotations

import getpass
import os
from pathlib import Path
from typing import Any

import click
import msgspec

from tallystick.cli.driving import Shown, opened
from tallystick.cli.exit_codes import DIVERGED, INTERRUPTED, OK
from tallystick.cli.options import (
    limits_from,
    shown_options,
    skills_for,
    with_layers,
    with_limits,
    with_skills,
)
from tallystick.cli.parts import stacked
from tallystick.cli.progress import Sayer
from tallystick.cli.show import counted, plain
from tallystick.client import Session
from tallystick.core.errors import UsageError
from tallystick.core.history import History
from tallystick.core.records import InDoubt, PersonDecision, RunEnded
from tallystick.runtime.run.fork import shared_records
from tallystick.runtime.run.replay import ReplayReport
from tallystick.runtime.run.resume import check_decision, read_checked
from tallystick.runtime.runs.history import resolve_run
from tallystick.runtime.runs.lock import is_running
from tallystick.runtime.runs.tree import open_records
from tallystick.settings.paths import ledger_path
from tallystick.settings.schema import SETTINGS, Value, from_text
from tallystick.settings.settings import load_settings
from tallystick.skills.calls import NO_SKILLS
from tallystick.skills.why import has_skills
from tallystick.stores import open_stores

# `tally resume`: a run that was cut off, or stopped, goes on where it was.


# The options of the commands that go on with a run.
with_resume = stacked(
    click.argument("run"),
    click.option(
        "-m",
        "--model",
        metavar="MODEL",
        help="Where to find the run's model, if its name does not say: gguf:FILE, scripted:FILE.",
    ),
    click.option(
        "--sub-model",
        metavar="MODEL",
        help="Where to find the model of its sub-calls, if its name does not say.",
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
)


@click.command("resume")
@with_resume
def resume_command(**given: Any) -> int:  # noqa: ANN401 (the options, as they are called)
    r"""Go on with a run where it was: after a kill, a power cut, Ctrl-C, or a cap.

    Its programs run again on the answers that are recorded: nothing is paid or done twice. Limits
    that are given here replace those of the run, and are for the whole of it. RUN is an id, the
    beginning of one, or `last`.

    A call that was under way when the process died, or when Ctrl-C was pressed, may have been paid
    for. Then nothing is done and the exit code is 7, until you say: --in-doubt retry makes it again
    and accepts the cost, --in-doubt abandon does without it.

    \b
    Exit codes: as of tally run; 7 in doubt, 8 it no longer does what is recorded.

    \b
    Example:
        tally resume last --max-usd 2
    """
    return resume_run(**given)


def resume_run(
    *,
    run: str,
    model: str | None,
    sub_model: str | None = None,
    in_doubt: InDoubt,
    steal: bool,
    skill_directories: tuple[Path, ...],
    no_skills: bool,
    as_json: bool,
    events: bool,
    quiet: bool,
    verbose: bool,
    allow_unpriced: bool | None,
    accept_without: tuple[str, ...] = (),
    decision: PersonDecision | None = None,
    by: str = "",
    **given: object,
) -> int:
    """Go on with a run; `decision` is of the program that waits for a person."""
    ledger = open_stores(ledger_path()).ledger
    found = resolve_run(ledger, run)
    _, records = read_checked(ledger, found)
    started = History(records).started
    flags = {"model": model or started.model, "allow_unpriced": allow_unpriced}
    shown = Shown(as_json=as_json, events=events, quiet=quiet, verbose=verbose)
    ended = records[-1]
    check_decision(found, records, decision)
    if isinstance(ended, RunEnded) and ended.stop == "answered":
        # No model is needed to show it, and perhaps there is none any more.
        with Session(ledger=ledger, config=None) as session:
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
        opened(
            settings,
            ledger,
            skills,
            given=started.memory,
            accept_without=accept_without,
            say=progress.say,
        ) as (session, _, _),
    ):
        try:
            result = session.resume(
                found,
                in_doubt=in_doubt,
                limits=limits_from(started.limits, given),
                steal=steal,
                decision=decision,
                by=by,
                sub_model=sub_model,
                watch=watch,
                heard=progress.heard,
            )
        finally:
            progress.close()
    return shown.end(result)


# `tally approve` and `tally deny`: a person decides about a program that waits for one.


@click.command("approve")
@with_resume
def approve_command(**given: Any) -> int:  # noqa: ANN401 (the options, as they are called)
    r"""Let the program run that a run's vocabulary refused, and go on with the run.

    Under a strict vocabulary a run ends with exit code 1 once its retries are used up, and waits.
    tally inspect RUN shows the program. Who approved it, and when, is on the run's record.

    \b
    Example:
        tally inspect last
        tally approve last
    """
    return resume_run(**given, decision="approve", by=_who())


@click.command("deny")
@with_resume
def deny_command(**given: Any) -> int:  # noqa: ANN401 (the options, as they are called)
    r"""Do not let the program run; the model is told, and writes another.

    \b
    Example:
        tally deny last
    """
    return resume_run(**given, decision="deny", by=_who())


def _who() -> str:
    """Who decides, as far as this machine can say."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


# `tally fork`: another run that grows from one, after a turn.


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
def fork_command(
    run: str,
    turn: int,
    model: str | None,
    changes: tuple[str, ...],
    skill_directories: tuple[Path, ...],
    no_skills: bool,
    as_json: bool,
    events: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    r"""Grow another run from RUN, after a turn, and drive it to its end.

    What came before is shared: it is neither paid nor stored again. The run itself stays as it is.
    tally diff shows where the two part.

    \b
    Example:
        tally fork last --at 2 -m openai:gpt-5 --set max_turns=10
    """
    ledger = open_stores(ledger_path()).ledger
    found = resolve_run(ledger, run)
    _, records = read_checked(ledger, found)
    started = History(records).started
    settings = load_settings(flags={"model": model or started.model})
    given = dict(_change(each) for each in changes)
    temperature = given.get("temperature")
    shown = Shown(as_json=as_json, events=events, quiet=quiet, verbose=verbose)
    progress = shown.progress(shared_records(found, records, turn))
    skills = None
    if started.skills is not None:
        skills = skills_for(settings, skill_directories, none=no_skills, quiet=quiet)
    with (
        shown.going(progress) as watch,
        opened(settings, ledger, skills, given=started.memory, say=progress.say) as (session, _, _),
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


# `tally replay`: a run again, from its record.


@click.command("replay")
@click.argument("run")
@with_skills
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Stop after this many seconds.  [default: no limit]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def replay_command(
    run: str,
    skill_directories: tuple[Path, ...],
    no_skills: bool,
    timeout: float | None,
    as_json: bool,
) -> int:
    r"""Run a run again with no model and no network, and say whether it holds.

    Prompts, programs, outputs, host calls and fuel are made again and compared with the record.
    Exit code 8 if anything differs. Programs may take as long as they need. A replay that is
    stopped says nothing against the record: exit code 3 after --timeout, 130 after Ctrl-C. Skills
    that changed since the run are named: it holds all the same, since what it saw of them is
    recorded.

    \b
    Example:
        tally replay last
    """
    ledger = open_stores(ledger_path()).ledger
    found = resolve_run(ledger, run)
    skills = None
    if has_skills(ledger, found) and not no_skills:
        settings = load_settings()
        skills = skills_for(settings, skill_directories, none=False, quiet=True) or NO_SKILLS
    with Session(ledger=ledger, skills=skills, config=None, say=Sayer()) as session:
        try:
            timeout_ms = None if timeout is None else round(timeout * 1000)
            report = session.replay(found, timeout_ms=timeout_ms)
        except KeyboardInterrupt:
            click.echo(
                f"stopped: the replay of run {found} was interrupted before its end; replay it "
                "again to know whether it holds",
                err=True,
            )
            return INTERRUPTED
    click.echo(msgspec.json.encode(report).decode() if as_json else _told(report))
    for each in () if as_json else report.drift:
        click.echo(f"drift: {plain(str(each), chars_max=300)}", err=True)
    return OK if report.held else DIVERGED


def _told(report: ReplayReport) -> str:
    served = f", {counted(report.served, 'program')} served as recorded" if report.served else ""
    entries = counted(report.entries, "entry")
    if report.divergence is None:
        again = counted(report.programs, "program")
        return f"{entries}, {again} run again{served}: no divergence"
    where = report.divergence
    note = f"; {report.note}" if report.note else ""
    return (
        f"entry {where.seq}: {where.field} was {where.recorded!r} and is {where.now!r}"
        f" ({entries}{served}){note}"
    )
