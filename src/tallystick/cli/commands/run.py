"""`tally run` and `check`: a question answered by programs, and the check of a single program."""

from __future__ import annotations

import os
import stat
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.cli.driving import Shown, opened, show_estimate
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
from tallystick.inputs.reading import encodings_told, read_inputs, wants_stdin
from tallystick.inputs.strategy import estimated
from tallystick.settings.paths import data_directory, ledger_path
from tallystick.settings.settings import load_settings
from tallystick.skills.found import Recent
from tallystick.stores import open_stores

if TYPE_CHECKING:
    from tallystick.runtime.calls.capability import Capability
    from tallystick.skills.skills import Skills

# After so long without an end of standard input, its reader is told what is waited for.
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
    help="Give the program text to read, as `context` or as NAME. May be repeated.",
)
@click.option(
    "-m",
    "--model",
    metavar="MODEL",
    help="PROVIDER:NAME, an alias, gguf:FILE, scripted:FILE or recorded:RUN.",
)
@click.option(
    "--sub-model",
    metavar="MODEL",
    help="Asked by programs that name no model, and by child runs.  [default: the run's]",
)
@with_limits
@click.option(
    "--allow-unpriced",
    is_flag=True,
    default=None,
    help="Under a cap in dollars, let calls through whose price nobody knows.",
)
@click.option(
    "--temperature",
    type=click.FloatRange(min=0, max=2),
    metavar="T",
    help="Of the model's choices.  [default: the server's]",
)
@click.option(
    "--strategy",
    type=click.Choice(STRATEGIES),
    help="direct: read all at once. code: write programs. recursive: have them ask models. "
    "auto: what fits.  [default: code; direct where there is nothing to read]",
)
@click.option(
    "--compact-at",
    type=click.IntRange(min=0),
    metavar="TOKENS",
    help="Shorten old turns when a prompt passes this; 0: never.  "
    f"[default: {COMPACT_AT}, or what fits]",
)
@click.option(
    "--schema",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A JSON Schema: the answer is JSON that fits it.",
)
@click.option(
    "--skill",
    "put_skills",
    multiple=True,
    metavar='"NAME ARGS"',
    help="Put a skill's instructions into the prompt. May be repeated.",
)
@with_skills
@with_memory
@with_vocabulary
@with_sandbox
@click.option(
    "--session",
    metavar="SESSION",
    help="Go on with the variables of a session, and leave them there (tally session new).",
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
@with_clock
@click.option("--dry-run", is_flag=True, help="Say what it would cost; ask and write nothing.")
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

    The answer goes to stdout, progress and cost to stderr. A stopped run prints what it has.
    What is not given here comes from the environment and the configuration (tally config).

    \b
    Exit codes: 0 answered, 1 no progress or refused, 2 wrong usage, 3 limit reached,
    4 sandbox failed, 5 model failed, 6 ledger failed, 7 outcome of a call unknown,
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
    rule = None if schema is None else _read(schema)
    stdin = None
    if wants_stdin(files) or (not files and _is_piped()):
        stdin = _read_stdin(quiet=quiet)
        # A pipe that nobody named and that holds nothing was not meant as data.
        files = files or (("-",) if stdin else ())
    inputs = read_inputs(files, stdin=stdin)
    if not quiet:
        for line in encodings_told(inputs):
            click.echo(line, err=True)
    shown = Shown(as_json=as_json, events=events, quiet=quiet, verbose=verbose)
    skills = skills_for(settings, skill_directories, none=no_skills, quiet=quiet, put=put_skills)
    vocabulary = vocabulary_for(strictness, thesaurus)
    progress = shown.progress()
    with (
        shown.going(progress) as watch,
        opened(
            settings,
            open_stores(ledger_path()).ledger,
            skills,
            vocabulary=vocabulary,
            backend=backend,
            accept_without=accept_without,
            say=progress.say,
        ) as (opened_here, model, pricing),
    ):
        if dry_run:
            if session is not None:
                raise UsageError("--dry-run knows nothing of a session: leave out one of the two")
            estimate = estimated(
                model,
                question,
                inputs=inputs,
                limits=settings.limits,
                grants=settings.grants,
                schema=rule,
                pricing=pricing,
                capabilities=_capabilities(skills, put_skills),
                put_skills=put_skills,
            )
            show_estimate(estimate, as_json=as_json)
            return OK
        try:
            result = opened_here.run(
                question,
                inputs=inputs,
                grants=[*settings.grants, *(f"{NET}{host}" for host in hosts)],
                seed=seed,
                schema=rule,
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
            Recent(data_directory()).note(watch.loaded)
    return shown.end(result)


def _capabilities(skills: Skills | None, put: Sequence[str]) -> list[Capability]:
    """Return what tells the prompt of a run more than its task and its data."""
    if skills is None and not put:
        return []
    from tallystick.skills.capability import SkillsCapability

    return [SkillsCapability(skills)]


def _is_piped() -> bool:
    """Say whether standard input is a pipe or a file, and not a terminal or nothing."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):
        # Closed, or replaced by something without a descriptor.
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _read_stdin(*, quiet: bool) -> bytes:
    """Read standard input to its end; say so if nothing comes, since the pipe may never end."""
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


def _read(path: Path) -> Mapping[str, object]:
    """The schema in a file."""
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
@click.option("--function", "functions", multiple=True, metavar="NAME", help="A known function.")
@click.option(
    "--tool", "tools", multiple=True, metavar="NAME",
    help="A known function whose text arguments are checked, too.",
)  # fmt: skip
@click.option("--given", multiple=True, metavar="NAME", help="A name of data that it finds.")
@click.option("--shell", is_flag=True, help="FILE is a shell text, not Python.")
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
