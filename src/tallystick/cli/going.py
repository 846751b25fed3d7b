"""What the commands that drive a run share: how it is opened, watched, limited and shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from tallystick.cli.exit_codes import exit_code_of_stop
from tallystick.cli.interrupted import interruptible
from tallystick.cli.progress import Before, Progress, progress_for
from tallystick.cli.result import run_json, show_run
from tallystick.core.errors import UsageError
from tallystick.core.money import nano_usd
from tallystick.core.records import (
    MemoryGiven,
    Record,
    RunLimits,
    RunStarted,
    encode_record,
    tag_of,
)
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.model.pacing import Pacing
from tallystick.model.port import Model
from tallystick.runtime.backends import AUTO
from tallystick.runtime.config_keys import one_line
from tallystick.runtime.models import open_model
from tallystick.runtime.run import Run
from tallystick.runtime.session import Session
from tallystick.runtime.settings import Settings
from tallystick.runtime.skills import Skills
from tallystick.runtime.skills_here import loaded_by, skills_here
from tallystick.runtime.teller import Pricing
from tallystick.runtime.vocabulary_check import VocabularyAsked, read_vocabulary

if TYPE_CHECKING:
    from tallystick.runtime.memory import Memory

__all__ = [
    "Command",
    "Shown",
    "Watcher",
    "limits_from",
    "opened",
    "shown_options",
    "skills_for",
    "vocabulary_for",
    "with_layers",
    "with_limits",
    "with_memory",
    "with_sandbox",
    "with_skills",
    "with_vocabulary",
]

Command = Callable[..., Any]
_DEFAULTS = RunLimits()
_THESAURUS_BYTES_MAX = 16 << 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """How a run is shown while it goes, and when it has ended."""

    as_json: bool
    events: bool
    quiet: bool

    @property
    def tells(self) -> bool:
        """Whether anything but the outcome is told."""
        return not (self.quiet or self.as_json or self.events)

    def progress(self, before: Sequence[Record] = (), inside: Before = ()) -> Progress:
        """`before` is what is recorded of a run that is gone on with, `inside` of its children."""
        return progress_for(quiet=not self.tells, before=before, inside=inside)

    def watch(self, progress: Progress) -> Watcher:
        return Watcher(self, progress)

    @contextmanager
    def going(self, progress: Progress, run: str | None = None) -> Iterator[Watcher]:
        """Inside, a run may go on: it is watched, Ctrl-C stops it, and a second one leaves.

        `run` is the one that is gone on with; else it is the first that is heard of.
        """
        watcher = self.watch(progress)
        watcher.run = run
        with interruptible(progress, lambda: watcher.run, tells=self.tells):
            yield watcher

    def end(self, result: Run) -> int:
        """Show what it came to; the exit code says how it ended."""
        if self.as_json:
            click.echo(run_json(result))
        else:
            show_run(result, quiet=self.quiet or self.events, answer=not self.events)
        return exit_code_of_stop(result.stop)


class Watcher:
    """Sees every record of a tree of runs, and how many of it wait.

    `run` is the root, `loaded` the skills that programs loaded.
    """

    def __init__(self, shown: Shown, progress: Progress) -> None:
        self._shown = shown
        self._progress = progress
        self.run: str | None = None
        self.loaded: list[str] = []

    def __call__(self, run: str, record: Record) -> None:
        self.run = self.run or run
        skill = loaded_by(record)
        if skill is not None:
            self.loaded.append(skill)
        if self._shown.events:
            body = msgspec.Raw(encode_record(record))
            click.echo(msgspec.json.encode({"run": run, "tag": tag_of(record), "record": body}))
        elif self._shown.tells and isinstance(record, RunStarted) and record.strategy_why:
            # Which strategy was chosen, and why, before anything else.
            click.echo(f"strategy {record.strategy}: {record.strategy_why}", err=True)
        self._progress.watch(run, record)

    def waits(self, parent: str, change: int) -> None:
        self._progress.waits(parent, change)


@contextmanager
def opened(
    settings: Settings,
    ledger: SqliteLedger,
    skills: Skills | None = None,
    *,
    given: MemoryGiven | None = None,
    vocabulary: VocabularyAsked | None = None,
    backend: str = AUTO,
    accept_without: Sequence[str] = (),
) -> Iterator[tuple[Session, Model, Pricing]]:
    """A session with the model, the prices, the total and the memory of the settings.

    `given` is the memory of a run that is gone on with, in place of the one that is set.
    """
    model = open_model(settings.model, settings, pacing=Pacing(), ledger=lambda: ledger)
    pricing = dataclasses.replace(settings.pricing, tokenizer_of=model.name)
    with (
        _memory_of(settings, given) as memory,
        Session(
            ledger=ledger,
            pricing=pricing,
            total=settings.total,
            skills=skills,
            memory=memory,
            vocabulary=vocabulary,
            backend=backend,
            accept_without=accept_without,
            say=lambda line: click.echo(line, err=True),
        ) as session,
    ):
        session.use(model, owned=True)
        yield session, model, pricing


@contextmanager
def _memory_of(settings: Settings, given: MemoryGiven | None) -> Iterator[Memory | None]:
    """The memory of a run, if it has one."""
    if given is None and settings.memory is None:
        yield None
        return
    # Imported where there is one: it takes a while.
    from tallystick.runtime.memory import Memory

    if given is not None:
        with Memory.open(given.tenant, agent_id=given.agent_id, create=False) as memory:
            yield memory
    elif settings.memory is not None:
        with Memory.open(settings.memory) as memory:
            yield memory


def with_sandbox(command: Command) -> Command:
    """The options that say where the programs of a run run, and what they may reach."""
    options: list[Callable[[Command], Command]] = [
        click.option(
            "--sandbox",
            "backend",
            default=AUTO,
            metavar="NAME[,NAME]",
            help="wasm, or process: native Python and bash with files (Linux). Of several, the "
            "first that works here.  [default: wasm]",
        ),
        click.option(
            "--net",
            "hosts",
            multiple=True,
            metavar="HOST[:PORT]",
            help="Let programs of the process sandbox reach a host; every attempt is recorded. "
            "May be repeated.",
        ),
        with_layers,
    ]
    for option in reversed(options):
        command = option(command)
    return command


def with_layers(command: Command) -> Command:
    """The option that does without a layer of isolation."""
    return click.option(
        "--accept-without",
        multiple=True,
        metavar="LAYER",
        help="Use the process sandbox though this host lacks a layer of it (tally doctor).",
    )(command)


def with_vocabulary(command: Command) -> Command:
    """The options that have programs checked before they run."""
    options = [
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
    ]
    for option in reversed(options):
        command = option(command)
    return command


def vocabulary_for(strictness: str | None, thesaurus: Path | None) -> VocabularyAsked | None:
    """What programs of a run are checked against; None if nothing was asked for."""
    if thesaurus is None:
        return read_vocabulary(strictness, None, name="")
    try:
        with thesaurus.open("rb") as file:
            raw = file.read(_THESAURUS_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"{one_line(str(thesaurus))}: {error.strerror or error}") from error
    return read_vocabulary(strictness, raw, name=one_line(str(thesaurus)))


def with_memory(command: Command) -> Command:
    """The option that says which memory a run has."""
    return click.option(
        "--memory",
        metavar="NAME",
        help="Have programs recall from this memory; to write, add --grant memory.write.",
    )(command)


def with_skills(command: Command) -> Command:
    """The options that say which skills a run has."""
    options = [
        click.option(
            "--skills",
            "skill_directories",
            multiple=True,
            type=click.Path(path_type=Path),
            metavar="DIR",
            help="Look for skills here too, before all other places. May be repeated.",
        ),
        click.option("--no-skills", is_flag=True, help="Use no skills, wherever there are some."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


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


def with_limits(command: Command) -> Command:
    """The options that set the limits of a run."""
    options = [
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
            help="Further attempts at a call that failed in passing.  "
            f"[default: {_DEFAULTS.retries}]",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def shown_options(command: Command) -> Command:
    """The options that say how a run is shown."""
    options = [
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
        click.option(
            "--events", is_flag=True, help="Print every record as a JSON line while it is made."
        ),
        click.option("--quiet", is_flag=True, help="Print the answer only."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


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
