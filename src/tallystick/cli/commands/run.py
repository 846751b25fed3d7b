"""`tally run` and `check`: answer a question with programs of a model; check one program."""

from __future__ import annotations

import os
import stat
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from tallystick.cli.driving import Display, open_session, show_estimate, word_on_terminal
from tallystick.cli.exit_codes import OK
from tallystick.cli.options import (
    shown_options,
    skills_for,
    vocabulary_for,
    with_clock,
    with_limits,
    with_memory,
    with_sandbox,
    with_skills,
    with_vocabulary,
)
from tallystick.cli.parts import JSON, echo_json
from tallystick.cli.show import safe
from tallystick.core.errors import UsageError, system_errors
from tallystick.core.machine.answer import SCHEMA_BYTES_MAX, read_schema
from tallystick.core.machine.compaction import COMPACT_AT
from tallystick.core.machine.prompt import NET
from tallystick.core.strategy import STRATEGIES
from tallystick.inputs.reading import describe_encodings, read_inputs, wants_stdin
from tallystick.inputs.strategy import estimate_run
from tallystick.settings.paths import data_directory, ledger_path
from tallystick.settings.settings import load_settings
from tallystick.skills.found import Recent
from tallystick.stores import open_stores

if TYPE_CHECKING:
    from tallystick.runtime.calls.capability import Capability
    from tallystick.skills.skills import Skills

# After this time without an end of standard input, a line says what the command waits for.
_STDIN_SECONDS = 2.0
# A pipe may never end, and what comes through it is kept in memory.
_STDIN_BYTES_MAX = 1 << 30


@click.command("run")
@click.argument("question")
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    metavar="[NAME=]FILE|DIR|GLOB|-",
    help="Let programs read this file, directory or glob, as `context` or as NAME; - is standard "
    "input. May be repeated.",
)
@click.option(
    "-m",
    "--model",
    metavar="MODEL",
    help="Ask this model: PROVIDER:NAME, an alias, gguf:FILE, scripted:FILE or recorded:RUN.  "
    "[default: the setting model]",
)
@click.option(
    "--sub-model",
    metavar="MODEL",
    help="Ask this model for programs that name none, and for child runs.  [default: the run's]",
)
@with_limits
@click.option(
    "--allow-unpriced",
    is_flag=True,
    default=None,
    help="Allow model calls whose price is unknown, even under a limit in dollars.",
)
@click.option(
    "--temperature",
    type=click.FloatRange(min=0, max=2),
    metavar="T",
    help="Ask the model at this temperature, 0 to 2.  [default: the server's]",
)
@click.option(
    "--strategy",
    type=click.Choice(STRATEGIES),
    help="Choose how to answer: direct puts all data into one prompt, code writes programs, "
    "recursive lets programs ask models, auto takes what fits.  [default: code; direct if there "
    "is no data]",
)
@click.option(
    "--compact-at",
    type=click.IntRange(min=0),
    metavar="TOKENS",
    help="Shorten old turns in prompts of more than this many tokens; 0 never does.  "
    f"[default: {COMPACT_AT:,}, or what fits]",
)
@click.option(
    "--schema",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Require an answer in JSON that fits the JSON Schema in this file.",
)
@click.option(
    "--skill",
    "put_skills",
    multiple=True,
    metavar='"NAME ARGS"',
    help="Put the instructions of this skill into the prompt. May be repeated.",
)
@with_skills
@with_memory
@with_vocabulary
@with_sandbox
@click.option(
    "--session",
    metavar="SESSION",
    help="Start with the variables of this session, and store them there afterwards (tally "
    "session new).",
)
@click.option(
    "--grant",
    "grants",
    multiple=True,
    metavar="CAPABILITY",
    help="Grant the run a capability, such as memory.write or attachments.read. May be repeated.",
)
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    metavar="N",
    help="Start the random numbers of programs from this seed.",
)
@with_clock
@click.option("--dry-run", is_flag=True, help="Estimate the cost; ask no model and record nothing.")
@shown_options
def run_command(
    question: str,
    files: tuple[str, ...],
    schema: Path | None,
    put_skills: tuple[str, ...],
    sub_model: str | None,
    skill_directories: tuple[Path, ...],
    no_skills: bool,
    session: str | None,
    strictness: str | None,
    thesaurus: Path | None,
    backend: str,
    hosts: tuple[str, ...],
    accept_without: tuple[str, ...],
    seed: int,
    dry_run: bool,
    as_json: bool,
    events: bool,
    quiet: bool,
    verbose: bool,
    **flags: object,
) -> int:
    r"""Answer a question with programs that a model writes.

    The answer goes to stdout, progress and cost to stderr. A stopped run prints the best answer it
    has. Options that are not given here come from the environment and from configuration files
    (tally config).

    \b
    Exit codes: 0 answered, 1 no progress, refused, or output cannot be written,
    2 wrong usage, 3 limit reached, 4 sandbox failed, 5 model failed,
    6 ledger failed, 7 outcome of a call unknown, 9 waits for a person,
    130 interrupted.

    \b
    Example:
        tally run "which invoices are overdue?" -f books/ -m openai:gpt-5-mini
        cat access.log | tally run "which hosts failed twice?"
    """
    settings = load_settings(flags=flags)
    if not quiet:
        for warning in settings.warnings:
            click.echo(f"warning: {warning}", err=True)
    rule = None if schema is None else _read_schema_file(schema)
    stdin = None
    if wants_stdin(files) or (not files and _is_piped()):
        stdin = _read_stdin(quiet=quiet)
        # An empty pipe that no --file names was not meant as data: cron jobs and CI have one.
        files = files or (("-",) if stdin else ())
    inputs = read_inputs(files, stdin=stdin)
    if not quiet:
        for line in describe_encodings(inputs):
            click.echo(line, err=True)
    display = Display(as_json=as_json, events=events, quiet=quiet, verbose=verbose)
    skills = skills_for(settings, skill_directories, none=no_skills, quiet=quiet, put=put_skills)
    vocabulary = vocabulary_for(strictness, thesaurus)
    progress = display.progress()
    ledger = open_stores(ledger_path()).ledger
    with (
        display.watching(progress, ledger) as watch,
        open_session(
            settings,
            ledger,
            skills,
            vocabulary=vocabulary,
            backend=backend,
            accept_without=accept_without,
            say=progress.say,
        ) as (opened_here, model, pricing),
    ):
        if dry_run:
            if session is not None:
                raise UsageError(
                    "--dry-run cannot estimate a run in a session; leave out --dry-run or --session"
                )
            if sub_model is not None:
                # Refused as the run would refuse it. A first turn asks nothing of it.
                opened_here.model_of(sub_model)
            estimate = estimate_run(
                model,
                question,
                inputs=inputs,
                limits=settings.limits,
                grants=settings.grants,
                schema=rule,
                pricing=pricing,
                capabilities=_capabilities(skills, put_skills),
                put_skills=put_skills,
                find_model=opened_here.models_of_programs(sub_model),
            )
            show_estimate(estimate, as_json=as_json)
            return OK
        try:
            result = opened_here.run(
                question,
                inputs=inputs,
                grants=[*settings.grants, *(f"{NET}{host}" for host in hosts)],
                seed=seed,
                answer=cast("Any", rule),
                skills=put_skills,
                session=session,
                sub_model=sub_model,
                clock=settings.clock,
                timezone=settings.timezone,
                watch=watch,
                heard=progress.heard,
            )
        finally:
            progress.close()
            # Also after an error: the skills were loaded, and later catalogs rank them higher.
            Recent(data_directory()).note(watch.loaded)
    word = word_on_terminal(result, display)
    if word is None:
        return display.end(result)
    from tallystick.cli.commands.resume import resume_run

    return resume_run(
        run=result.run,
        model=None,
        sub_model=sub_model,
        in_doubt="halt",
        steal=False,
        skill_directories=skill_directories,
        no_skills=no_skills,
        as_json=as_json,
        events=events,
        quiet=quiet,
        verbose=verbose,
        allow_unpriced=None,
        accept_without=accept_without,
        decided=word,
    )


def _capabilities(skills: Skills | None, put: Sequence[str]) -> list[Capability]:
    """Return the capabilities that add text to the prompt, so that an estimate counts it.

    That is the one of skills; without skills to use or to `put` there, none.
    """
    if skills is None and not put:
        return []
    from tallystick.skills.capability import SkillsCapability

    return [SkillsCapability(skills)]


def _is_piped() -> bool:
    """Return True if standard input is a pipe or a file, not a terminal, a device or closed."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):
        # Standard input is closed, or replaced by an object without a file descriptor.
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _read_stdin(*, quiet: bool) -> bytes:
    """Return all of standard input.

    If it has not ended after two seconds, a line on stderr says so, unless `quiet`: the pipe may
    never end. Raise `UsageError` for over 1 GiB.
    """
    waiting = threading.Timer(
        _STDIN_SECONDS, click.echo, ["reading standard input ..."], {"err": True}
    )
    waiting.daemon = True
    if not quiet:
        waiting.start()
    try:
        data = sys.stdin.buffer.read(_STDIN_BYTES_MAX + 1)
    finally:
        waiting.cancel()
    if len(data) > _STDIN_BYTES_MAX:
        raise UsageError(
            f"standard input has more than {_STDIN_BYTES_MAX:,} bytes, which are kept in memory; "
            "write them to a file, and give that with -f"
        )
    return data


def _read_schema_file(path: Path) -> Mapping[str, object]:
    """Read a JSON Schema. Raise `UsageError` if the file cannot be read or holds no schema."""
    with system_errors(path, UsageError), path.open("rb") as file:
        raw = file.read(SCHEMA_BYTES_MAX + 1)
    return read_schema(raw, name=str(path))


# `tally check`: a program and a vocabulary, without a run.


# More than any program that is read; the rest of a longer file is not needed to say so.
_PROGRAM_BYTES_MAX = 1 << 20
# The functions that the programs of every run find, and the names that they answer with.
_FUNCTIONS_OF_RUNS = (
    "attachments", "budget", "llm_query", "llm_query_batched", "outputs", "rlm_query",
    "rlm_query_batched",
)  # fmt: skip
_DATA_OF_RUNS = ("FINAL", "FINAL_VAR", "SHOW_VARS", "answer", "context")


@click.command("check")
@click.argument("program", metavar="FILE|-")
@with_vocabulary
@click.option(
    "--function", "functions", multiple=True, metavar="NAME", help="Treat NAME as a function."
)
@click.option(
    "--tool", "tools", multiple=True, metavar="NAME",
    help="Treat NAME as a function, and check its text arguments too.",
)  # fmt: skip
@click.option("--given", multiple=True, metavar="NAME", help="Treat NAME as a variable.")
@click.option("--shell", is_flag=True, help="Read FILE as a shell text, not as Python.")
@JSON
def check_command(
    program: str,
    strictness: str | None,
    thesaurus: Path | None,
    functions: tuple[str, ...],
    tools: tuple[str, ...],
    given: tuple[str, ...],
    shell: bool,
    as_json: bool,
) -> int:
    r"""Check which names a program uses, as --vocabulary does in runs. It is not run.

    Exit code 1 if it would not run. The functions of every run are known, those of --function and
    --tool, and the terms of --thesaurus. Without --vocabulary the check is strict.

    \b
    Example:
        tally check program.py --tool crm.find --given rows
    """
    from tallystick.vocabulary import Vocabulary, check_program, read_thesaurus

    asked = vocabulary_for(strictness or "strict", thesaurus)
    assert asked is not None
    raw = asked.thesaurus
    result = check_program(
        _program_text(program),
        Vocabulary(
            functions=(*_FUNCTIONS_OF_RUNS, *functions),
            tools=tools,
            thesaurus=None if raw is None else read_thesaurus(raw, name=str(thesaurus)),
        ),
        asked.rules,
        kind="bash" if shell else "python",
        given=(*_DATA_OF_RUNS, *given),
    )
    if as_json:
        echo_json(result)
    elif result.is_valid:
        known = ", ".join(map(safe, result.matched_terms)) or "none"
        click.echo(f"passes    known terms: {known}")
        if result.unknown_terms:
            click.echo(f"unknown   {', '.join(map(safe, result.unknown_terms))}")
        if result.message:
            click.echo(f"note      {safe(result.message)}")
    else:
        click.echo("\n".join(map(safe, result.feedback().splitlines())))
    return 0 if result.is_valid else 1


def _program_text(name: str) -> str:
    if name == "-":
        raw = sys.stdin.buffer.read(_PROGRAM_BYTES_MAX)
    else:
        with system_errors(safe(name), UsageError), open(name, "rb") as file:
            raw = file.read(_PROGRAM_BYTES_MAX)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{safe(name)} is not UTF-8 at byte {error.start:,}") from None
