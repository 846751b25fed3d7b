"""Options that the commands which drive a run share, and what they mean for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from tallystick.cli.parts import stacked
from tallystick.core.charge import RunLimits, nano_usd
from tallystick.core.errors import UsageError, system_errors
from tallystick.sandbox.port import AUTO
from tallystick.settings.schema import one_line
from tallystick.settings.settings import Settings
from tallystick.skills.found import skills_here
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
    help="wasm, or process: native Python and bash with files (Linux). Of several, the "
    "first that works here.  [default: wasm]",
)


# The option that does without a layer of isolation.
with_layers = click.option(
    "--accept-without",
    multiple=True,
    metavar="LAYER",
    help="Use the process sandbox though this host lacks a layer of it (tally doctor).",
)

# The options that say where a program runs. It reaches no network.
with_backend = stacked(_BACKEND, with_layers)

# The options that say where the programs of a run run, and what they may reach.
with_sandbox = stacked(
    _BACKEND,
    click.option(
        "--net",
        "hosts",
        multiple=True,
        metavar="HOST[:PORT]",
        help="Let programs of the process sandbox reach a host; every attempt is recorded. "
        "May be repeated.",
    ),
    with_layers,
)


# The options that have programs checked before they run.
with_vocabulary = stacked(
    click.option(
        "--vocabulary",
        "strictness",
        type=click.Choice(["permissive", "normal", "strict"]),
        help="Check the names that programs use before they run: permissive records, normal "
        "asks again and then warns, strict blocks and then waits for tally approve.",
    ),
    click.option(
        "--thesaurus",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Terms that programs may use, one JSON object a line.  [vocabulary: normal]",
    ),
)


def vocabulary_for(strictness: str | None, thesaurus: Path | None) -> VocabularyAsked | None:
    """What programs of a run are checked against; None if nothing was asked for."""
    if thesaurus is None:
        return read_vocabulary(strictness, None, name="")
    with system_errors(one_line(str(thesaurus)), UsageError), thesaurus.open("rb") as file:
        raw = file.read(_THESAURUS_BYTES_MAX + 1)
    return read_vocabulary(strictness, raw, name=one_line(str(thesaurus)))


# The option that says which memory a run has.
with_memory = click.option(
    "--memory",
    metavar="NAME",
    help="Have programs recall from this memory; to write, add --grant memory.write.",
)


# The options that say what time it is in a run.
with_clock = stacked(
    click.option(
        "--clock",
        metavar="now|fixed|TIME",
        help="Start the clock of programs at the present, at 2026-01-01, or at a time such as "
        "2026-03-01T09:30.  [default: now]",
    ),
    click.option(
        "--timezone",
        metavar="NAME",
        help="Tell the model the time in this zone, such as Europe/Berlin.  [default: UTC]",
    ),
)


# The options that say which skills a run has.
with_skills = stacked(
    click.option(
        "--skills",
        "skill_directories",
        multiple=True,
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Look for skills here too, before all other places. May be repeated.",
    ),
    click.option("--no-skills", is_flag=True, help="Use no skills, wherever there are some."),
)


def skills_for(
    settings: Settings,
    directories: Sequence[Path],
    *,
    none: bool,
    quiet: bool,
    put: Sequence[str] = (),
) -> Skills | None:
    """The skills of a command; what is left out of them is said, unless it is to be quiet."""
    if none:
        if directories or put:
            other = "--skills" if directories else "--skill"
            raise UsageError(f"--no-skills and {other} contradict each other")
        return None

    def say(line: str) -> None:
        if not quiet:
            click.echo(f"warning: {line}", err=True)

    return skills_here(settings.skills, flags=directories, put=put, say=say)


# The options that set the limits of a run.
with_limits = stacked(
    click.option(
        "--max-turns",
        type=click.IntRange(min=0),
        metavar="N",
        help=f"Model replies at most.  [default: {_DEFAULTS.turns}]",
    ),
    click.option(
        "--max-tokens",
        type=click.IntRange(min=0),
        metavar="N",
        help=f"Tokens in and out at most.  [default: {_DEFAULTS.tokens}]",
    ),
    click.option(
        "--max-usd",
        type=float,
        metavar="DOLLARS",
        help="Money at most; a call that might pass it is not made.",
    ),
    click.option(
        "--timeout",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help=f"Time at most.  [default: {_DEFAULTS.wall_ms // 1000}]",
    ),
    click.option(
        "--reply-tokens",
        type=click.IntRange(min=1),
        metavar="N",
        help=f"Tokens of one reply at most.  [default: {_DEFAULTS.reply_tokens}]",
    ),
    click.option(
        "--retries",
        type=click.IntRange(min=0),
        metavar="N",
        help=f"Further attempts at a call that failed in passing.  [default: {_DEFAULTS.retries}]",
    ),
)


# The options that say how a run is shown.
shown_options = stacked(
    click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
    click.option(
        "--events", is_flag=True, help="Print every record as a JSON line while it is made."
    ),
    click.option("--quiet", is_flag=True, help="Print the answer only."),
    click.option(
        "-v", "--verbose", is_flag=True, help="Show programs and what they print as they run."
    ),
)


def limits_from(before: RunLimits, given: Mapping[str, Any]) -> RunLimits | None:
    """The limits of a run with those that were given in their place; None if none was."""
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
