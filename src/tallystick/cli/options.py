"""Define the options of the commands that drive a run, and turn their values into settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from tallystick.cli.parts import JSON, Option, stack_options
from tallystick.core.charge import RunLimits, nano_usd
from tallystick.core.errors import UsageError, system_errors
from tallystick.sandbox.port import AUTO
from tallystick.settings.schema import one_line
from tallystick.settings.settings import Settings
from tallystick.skills.found import find_usable_skills
from tallystick.vocabulary.capability import VocabularyAsked, read_vocabulary

if TYPE_CHECKING:
    from tallystick.skills.skills import Skills

_DEFAULTS = RunLimits()
_THESAURUS_BYTES_MAX = 16 << 20


_BACKEND = click.option(
    "--sandbox",
    "backend",
    default=AUTO,
    metavar="NAME[,NAME]",
    help="Run programs in wasm, or in process: native Python and bash with files (Linux). Of "
    "several names, the first that works here is used.  [default: wasm]",
)


# The option that accepts weaker isolation than the process sandbox gives by default.
with_layers = click.option(
    "--accept-without",
    multiple=True,
    metavar="LAYER",
    help="Use the process sandbox even if this host lacks this layer of isolation (tally doctor "
    "lists them). May be repeated.",
)

# The options that choose the sandbox of a single program, which has no network.
with_backend = stack_options(_BACKEND, with_layers)

# The options that choose the sandbox of a run, and the hosts that its programs may connect to.
with_sandbox = stack_options(
    _BACKEND,
    click.option(
        "--net",
        "hosts",
        multiple=True,
        metavar="HOST[:PORT]",
        help="Let programs of the process sandbox connect to this host; every attempt is "
        "recorded. May be repeated.",
    ),
    with_layers,
)


# The options that check the names in programs before these run.
with_vocabulary = stack_options(
    click.option(
        "--vocabulary",
        "strictness",
        type=click.Choice(["permissive", "normal", "strict"]),
        help="Check the names that programs use before they run: permissive records, normal "
        "asks the model again and then warns, strict blocks and then waits for tally approve.  "
        "[default: no check]",
    ),
    click.option(
        "--thesaurus",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Let programs also use the terms in this file, one JSON object per line. Without "
        "--vocabulary, this implies --vocabulary normal.",
    ),
)


def vocabulary_for(strictness: str | None, thesaurus: Path | None) -> VocabularyAsked | None:
    """Read the options of the vocabulary check; return None if neither of them is given.

    Raise `UsageError` if the thesaurus cannot be read or is not valid.
    """
    if thesaurus is None:
        return read_vocabulary(strictness, None, name="")
    with system_errors(one_line(str(thesaurus)), UsageError), thesaurus.open("rb") as file:
        raw = file.read(_THESAURUS_BYTES_MAX + 1)
    return read_vocabulary(strictness, raw, name=one_line(str(thesaurus)))


# The option that says which memory a run has.
with_memory = click.option(
    "--memory",
    metavar="NAME",
    help="Let programs recall notes from this memory; to let them write notes, add --grant "
    "memory.write.",
)


# The options that set the date and the time zone of a run.
with_clock = stack_options(
    click.option(
        "--clock",
        metavar="now|fixed|TIME",
        help="Start the clock of programs at the present (now), at 2026-01-01 (fixed), or at a "
        "time such as 2026-03-01T09:30.  [default: now]",
    ),
    click.option(
        "--timezone",
        metavar="NAME",
        help="Tell the model the time in this zone, such as Europe/Berlin.  [default: UTC]",
    ),
)


# The options that choose the skills of a run.
with_skills = stack_options(
    click.option(
        "--skills",
        "skill_directories",
        multiple=True,
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Look for skills in this directory too, before all others. May be repeated.",
    ),
    click.option("--no-skills", is_flag=True, help="Use no skills, even if some are installed."),
)


def skills_for(
    settings: Settings,
    directories: Sequence[Path],
    *,
    none: bool,
    quiet: bool,
    put: Sequence[str] = (),
) -> Skills | None:
    """Return the skills for a command, or None with `none`.

    None is also returned if no directory with skills is found. Skills that are left out are
    reported on stderr, unless `quiet`. Raise `UsageError` if `none` is combined with a directory or
    with a skill to `put` into the prompt. Raise what `find_usable_skills` raises, such as
    `UsageError` for a missing directory, and `SkillUntrusted` if a skill to `put` is not trusted.
    """
    if none:
        if directories or put:
            other = "--skills" if directories else "--skill"
            raise UsageError(f"--no-skills and {other} contradict each other")
        return None

    def say(line: str) -> None:
        if not quiet:
            click.echo(f"warning: {line}", err=True)

    return find_usable_skills(settings.skills, flags=directories, put=put, say=say)


def _limit_options(default: Callable[[object], str]) -> Option:
    """Return the options for the limits of a run; `default` writes the default of each."""
    return stack_options(
        click.option(
            "--max-turns",
            type=click.IntRange(min=0),
            metavar="N",
            help=f"Stop after N model replies.  [{default(_DEFAULTS.turns)}]",
        ),
        click.option(
            "--max-tokens",
            type=click.IntRange(min=0),
            metavar="N",
            help="Use at most N tokens, input and output together.  "
            f"[{default(f'{_DEFAULTS.tokens:,}')}]",
        ),
        click.option(
            "--max-usd",
            type=float,
            metavar="DOLLARS",
            help="Spend at most this many US dollars; a call that might exceed it is not made.  "
            f"[{default('no limit')}]",
        ),
        click.option(
            "--timeout",
            type=click.FloatRange(min=0),
            metavar="SECONDS",
            help="Stop after this many seconds, waiting included.  "
            f"[{default(_DEFAULTS.wall_ms // 1000)}]",
        ),
        click.option(
            "--reply-tokens",
            type=click.IntRange(min=1),
            metavar="N",
            help="Ask for replies of at most N tokens.  "
            f"[{default(f'{_DEFAULTS.reply_tokens:,}')}]",
        ),
        click.option(
            "--retries",
            type=click.IntRange(min=0),
            metavar="N",
            help="Repeat a model call at most N times after a temporary failure.  "
            f"[{default(_DEFAULTS.retries)}]",
        ),
    )


# The options that set the limits of a new run, and those that replace the limits of one.
with_limits = _limit_options(lambda default: f"default: {default}")
with_new_limits = _limit_options(lambda _: "default: as before")


# The options that choose how a run is shown.
shown_options = stack_options(
    JSON,
    click.option(
        "--events", is_flag=True, help="Print each event as a JSON line once it is stored."
    ),
    click.option("--quiet", is_flag=True, help="Print only the answer."),
    click.option(
        "-v", "--verbose", is_flag=True, help="Show programs and what they print as they run."
    ),
)


def limits_from(before: RunLimits, given: Mapping[str, Any]) -> RunLimits | None:
    """Return the limits `before` with those on the command line in place; None if none is given.

    `--max-usd` is in dollars and becomes nano-dollars, `--timeout` in seconds and becomes
    milliseconds. Raise `InvalidLimit` for an amount of dollars that is not valid.
    """
    named: dict[str, tuple[str, Callable[[Any], int]]] = {
        "max_turns": ("turns", int),
        "max_tokens": ("tokens", int),
        "max_usd": ("usd", nano_usd),
        "timeout": ("wall_ms", lambda seconds: round(seconds * 1000)),
        "reply_tokens": ("reply_tokens", int),
        "retries": ("retries", int),
    }
    changes = {
        field: made(given[name])
        for name, (field, made) in named.items()
        if given.get(name) is not None
    }
    return msgspec.structs.replace(before, **changes) if changes else None
