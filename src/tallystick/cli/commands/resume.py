"""`tally resume`, `approve`, `deny`, `stop`, `fork` and `replay`: continue or repeat a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tallystick.agent.agent import Agent
from tallystick.cli.driving import Display, open_session, waiting_lines, word_on_terminal
from tallystick.cli.exit_codes import DIVERGED, INTERRUPTED, OK
from tallystick.cli.options import (
    limits_from,
    shown_options,
    skills_for,
    with_layers,
    with_new_limits,
    with_skills,
)
from tallystick.cli.parts import JSON, echo_error_line, echo_json, echo_line, stack_options
from tallystick.cli.progress import Sayer
from tallystick.cli.show import plain, quantity
from tallystick.core.errors import UsageError
from tallystick.core.history import History
from tallystick.core.records import InDoubt, PersonDecision, RunEnded
from tallystick.core.resume_errors import FunctionsMissing
from tallystick.live.decide import bind, pending, submit
from tallystick.live.stop import WAIT_SECONDS, person_here, stop
from tallystick.runtime.run.fork import shared_records
from tallystick.runtime.run.replay import ReplayReport
from tallystick.runtime.run.resume import bound, read_checked
from tallystick.runtime.runs.decided import Decided
from tallystick.runtime.runs.history import resolve_run
from tallystick.runtime.runs.lock import decided_left, is_running
from tallystick.runtime.runs.tree import open_records
from tallystick.runtime.runs.waiting import waiting_in
from tallystick.settings.paths import ledger_path
from tallystick.settings.schema import SETTINGS, Value, from_text
from tallystick.settings.settings import load_settings
from tallystick.skills.calls import NO_SKILLS
from tallystick.skills.why import has_skills
from tallystick.stores import open_stores

# `tally resume`: continue a run that was interrupted or stopped.


# The options of the commands that continue a run.
with_resume = stack_options(
    click.argument("run"),
    click.option(
        "-m",
        "--model",
        metavar="MODEL",
        help="Load the run's model from here, if its recorded name does not say where it is: "
        "gguf:FILE or scripted:FILE.",
    ),
    click.option(
        "--sub-model",
        metavar="MODEL",
        help="Ask this model for sub-calls, if the recorded name does not say where it is.",
    ),
    with_new_limits,
    click.option(
        "--allow-unpriced",
        is_flag=True,
        default=None,
        help="Allow model calls whose price is unknown, even under a limit in dollars.",
    ),
    click.option(
        "--in-doubt",
        type=click.Choice(["halt", "retry", "abandon"]),
        default="halt",
        show_default=True,
        help="Decide about calls whose outcome is unknown: halt does nothing, retry repeats them "
        "(you may pay twice), abandon never repeats them.",
    ),
    with_skills,
    with_layers,
    click.option(
        "--steal", is_flag=True, help="Take the run over from a process that still runs it."
    ),
    shown_options,
)


@click.command("resume")
@with_resume
def resume_command(**given: Any) -> int:  # noqa: ANN401 (the options, as they are called)
    r"""Continue a run after a kill, a power cut, Ctrl-C, or a limit.

    Programs run again on their recorded answers: nothing is paid or done twice. Limits that are
    given here replace those of the run; they are for the whole run, including what it has used
    already. RUN is an id, the beginning of one, or `last`.

    A call that was in progress when the process died, or when Ctrl-C was pressed, may have been
    billed. Then nothing is done and the exit code is 7, until you decide: --in-doubt retry repeats
    the call and accepts the cost, --in-doubt abandon never repeats it.

    \b
    Exit codes: as for tally run, and 8: the run does no longer what is recorded.

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
    decided: Decided | None = None,
    **given: object,
) -> int:
    """Continue a run and show it; return the exit code.

    `decided` is about what the run waits for. If it waits again, the person at this terminal is
    asked. A run that has answered is only shown. Raise `RunNotFound`, `RunInDoubt` or another error
    of `Agent.resume` if the run cannot be continued. Raise `ResumeRefused` if a decision is
    needed and missing, or given and not needed, and what `open_session` raises.
    """
    ledger = open_stores(ledger_path()).ledger
    found = resolve_run(ledger, run)
    _, records = read_checked(ledger, found)
    started = History(records).started
    flags = {"model": model or started.model, "allow_unpriced": allow_unpriced}
    display = Display(as_json=as_json, events=events, quiet=quiet, verbose=verbose)
    ended = records[-1]
    waits = waiting_in(ledger, found, records)
    bound(found, waits, decided or decided_left(ledger, found, [each.sha256 for each in waits]))
    if isinstance(ended, RunEnded) and ended.stop == "answered":
        # Showing the answer needs no model, so do not open one: its file or key may be gone.
        with Agent(ledger=ledger, config=None) as session:
            return display.end(session.resume(found))
    if steal and is_running(ledger, found):
        click.echo(
            f"warning: run {found} is taken over from a process that still runs it: that process "
            "can record nothing more, and a call that it has in progress is paid for and lost",
            err=True,
        )
    settings = load_settings(flags=flags)
    progress = display.progress(records, open_records(ledger, records))
    skills = None
    if started.skills is not None:
        skills = skills_for(settings, skill_directories, none=no_skills, quiet=quiet)
    with (
        display.watching(progress, ledger, found) as watch,
        open_session(
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
                decision=decided,
                sub_model=sub_model,
                watch=watch,
                heard=progress.heard,
            )
        finally:
            progress.close()
    word = word_on_terminal(result, display)
    if word is None:
        return display.end(result)
    return resume_run(
        run=found,
        model=model,
        sub_model=sub_model,
        in_doubt=in_doubt,
        steal=False,
        skill_directories=skill_directories,
        no_skills=no_skills,
        as_json=as_json,
        events=events,
        quiet=quiet,
        verbose=verbose,
        allow_unpriced=allow_unpriced,
        accept_without=accept_without,
        decided=word,
    )


# `tally approve` and `tally deny`: decide about what a run waits for.


_ALL = click.option(
    "--all",
    "every",
    is_flag=True,
    help="Decide about everything that waits; with approve, also about all later calls.",
)


@click.command("approve")
@_ALL
@with_resume
def approve_command(every: bool, **given: Any) -> int:  # noqa: ANN401 (the options of resume)
    r"""Approve the call or the program that a run waits for, and continue it.

    A run with exit code 9 waits for a person. What waits is a call of a tool that needs an
    approval, or a program that --vocabulary strict refused; tally inspect RUN shows it. The
    approval is of that and of nothing else. Who approved it, and when, is recorded in the run. Exit
    codes: as for tally resume.

    \b
    Example:
        tally inspect last
        tally approve last
    """
    return _decide(given, decision="approve", every=every)


@click.command("deny")
@_ALL
@click.option("--because", metavar="TEXT", default="", help="Tell the program this reason.")
@with_resume
def deny_command(every: bool, because: str, **given: Any) -> int:  # noqa: ANN401 (as above)
    r"""Deny the call or the program that a run waits for, and continue it.

    A denied call raises an exception in the program, with the reason. For a denied program, the
    model is told so, and writes another. Who denied it, and when, is recorded in the run. Exit
    codes: as for tally resume.

    \b
    Example:
        tally deny last --because "not on Fridays"
    """
    return _decide(given, decision="deny", every=every, because=because)


def _decide(
    given: dict[str, Any], *, decision: PersonDecision, every: bool, because: str = ""
) -> int:
    """Show what waits, decide about it, and continue the run; return the exit code.

    If a call waits in a running process, or the run needs functions of a program, the decision is
    left for that. Raise what `pending`, `bind`, `submit` and `resume_run` raise.
    """
    ledger = open_stores(ledger_path()).ledger
    found = pending(ledger, given.pop("run"))
    decided = bind(found, Decided(decision=decision, by=person_here(), because=because, all=every))
    if not (given["quiet"] or given["as_json"] or given["events"]):
        for line in waiting_lines(found.waits):
            echo_error_line(line)
    if found.inside:
        submit(ledger, found, decided)
        click.echo(f"run {found.run} goes on in its own process", err=True)
        return OK
    try:
        return resume_run(run=found.run, decided=decided, **given)
    except FunctionsMissing:
        # The functions are those of a program in Python, which resumes the run itself.
        submit(ledger, found, decided)
        click.echo(
            f"the decision is kept, and taken when run {found.run} is resumed where its functions "
            "are (Session.resume)",
            err=True,
        )
        return OK


# `tally stop`: stop a run that another process works on.


@click.command("stop")
@click.argument("run")
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    default=WAIT_SECONDS,
    show_default=True,
    help="Wait this many seconds for the end of the run.",
)
@JSON
def stop_command(run: str, wait: float, as_json: bool) -> int:
    r"""Stop a run that a process of this machine works on.

    The run and the runs inside it end as cancelled, usually within half a second, and the record
    says who stopped them. tally resume continues them. A run that nothing works on stays as it is.
    RUN is an id, the beginning of one, or `last`.

    \b
    Exit codes: 0 it has ended or will, 2 nothing works on the run.

    \b
    Example:
        tally stop last
    """
    done = stop(run, wait=wait)
    if as_json:
        echo_json({"run": done.run, "stop": done.stop})
    elif done.stop is None:
        echo_line(
            f"asked    run {done.run} to stop; it has not ended yet: tally inspect {done.run}"
        )
    elif done.stop == "cancelled":
        echo_line(f"stopped  run {done.run}")
        echo_line(f"next     tally resume {done.run}")
    else:
        echo_line(f"ended    run {done.run} by itself: {done.stop}")
    return OK


# `tally fork`: start a new run that shares the first turns of another.


# Only these may differ in a fork. The goal, the data and the seed belong to the shared turns.
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
    help="Share the turns up to and including this one; 0 shares none.",
)
@click.option(
    "-m", "--model", metavar="MODEL", help="Ask this model from there on.  [default: as before]"
)
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a limit or the temperature from there on; KEY is one of "
    f"{', '.join(_SETTABLE)}. May be repeated.",
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
    r"""Start a new run that shares the first turns of RUN.

    The shared turns are neither paid nor stored again. RUN stays as it is. tally diff shows where
    the two runs differ. Exit codes: as for tally resume.

    \b
    Example:
        tally fork last --at 2 -m openai:gpt-5 --set max_turns=10
    """
    ledger = open_stores(ledger_path()).ledger
    found = resolve_run(ledger, run)
    _, records = read_checked(ledger, found)
    started = History(records).started
    settings = load_settings(flags={"model": model or started.model})
    given = dict(_parse_change(each) for each in changes)
    temperature = given.get("temperature")
    display = Display(as_json=as_json, events=events, quiet=quiet, verbose=verbose)
    progress = display.progress(shared_records(found, records, turn))
    skills = None
    if started.skills is not None:
        skills = skills_for(settings, skill_directories, none=no_skills, quiet=quiet)
    with (
        display.watching(progress, ledger) as watch,
        open_session(settings, ledger, skills, given=started.memory, say=progress.say) as (
            session,
            _,
            _,
        ),
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
    return display.end(result)


def _parse_change(text: str) -> tuple[str, Value]:
    """Split KEY=VALUE. Raise `UsageError` for an unknown key or a value that does not fit it."""
    key, equals, value = text.partition("=")
    if not equals or key not in _SETTABLE:
        raise UsageError(
            f"--set {text[:80]!r}: write KEY=VALUE, where KEY is one of {', '.join(_SETTABLE)}"
        )
    return key, from_text(SETTINGS[key].kind, value, variable=f"--set {key}")


# `tally replay`: repeat a run from its record, without a model, and compare.


@click.command("replay")
@click.argument("run")
@with_skills
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Stop the replay after this many seconds.  [default: no limit]",
)
@JSON
def replay_command(
    run: str,
    skill_directories: tuple[Path, ...],
    no_skills: bool,
    timeout: float | None,
    as_json: bool,
) -> int:
    r"""Repeat a recorded run without a model or network, and compare.

    Prompts, programs, outputs, host calls and fuel are computed again and compared with the record.
    Programs may take as long as they need. A replay that is stopped proves nothing against the
    record. Skills that changed since the run are named, but are no difference: the run recorded the
    texts that it saw.

    \b
    Exit codes: 0 the same, 2 wrong usage, 3 stopped by --timeout,
    4 sandbox failed, 6 the ledger cannot be read, 8 something differs,
    130 interrupted.

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
    with Agent(ledger=ledger, skills=skills, config=None, say=Sayer()) as session:
        try:
            timeout_ms = None if timeout is None else round(timeout * 1000)
            report = session.replay(found, timeout_ms=timeout_ms)
        except KeyboardInterrupt:
            click.echo(
                f"stopped: the replay of run {found} was interrupted before its end; to compare "
                f"all of it: tally replay {found}",
                err=True,
            )
            return INTERRUPTED
    if as_json:
        echo_json(report)
    else:
        echo_line(_report_line(report))
        for each in report.drift:
            echo_line(f"drift: {plain(str(each), chars_max=300)}", indent=7, err=True)
    return OK if report.held else DIVERGED


def _report_line(report: ReplayReport) -> str:
    """Write a replay in a line: what was compared, and the first difference if there is one."""
    served = (
        f", {quantity(report.served, 'program')} taken from the record" if report.served else ""
    )
    entries = quantity(report.entries, "entry")
    if report.divergence is None:
        again = quantity(report.programs, "program")
        return f"{entries}, {again} run again{served}: no divergence"
    where = report.divergence
    note = f"; {report.note}" if report.note else ""
    return (
        f"entry {where.seq}: {where.field} was {where.recorded!r} and is now {where.now!r}"
        f" ({entries}{served}){note}"
    )
