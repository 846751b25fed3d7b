"""`tally demo`: answer a question over a 3 MB file, then replay and verify the run.

The file is made from a seed and the programs run here. Only the replies are recorded, from a real
model. With `-m` the same question goes to a model of the user's own.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import click

from tallystick.agent.agent import Agent
from tallystick.cli.driving import show_run
from tallystick.cli.exit_codes import DIVERGED, LEDGER, OK, exit_code_of_stop
from tallystick.cli.parts import echo_error_line, stderr_columns, wrap_line
from tallystick.cli.progress import Sayer, progress_for
from tallystick.cli.show import quantity
from tallystick.core.errors import UsageError, system_errors
from tallystick.core.machine.commands import Code
from tallystick.core.machine.reply import parse_reply
from tallystick.core.records import ModelReplied, ProgramFinished, Record, RunProgram
from tallystick.demo.corpus import QUESTION, SEED, harbour
from tallystick.demo.recording import recording
from tallystick.ledger.verify import verify_ledger
from tallystick.model.pacing import Pacing
from tallystick.model.port import Model
from tallystick.model.recorded import RecordedModel
from tallystick.runtime.context.inputs import given_text
from tallystick.runtime.run.clock import FIXED
from tallystick.runtime.runs.history import recorded_model
from tallystick.runtime.runs.result import Run
from tallystick.settings.models import open_model
from tallystick.settings.settings import Settings, load_settings

Say = Callable[[str], None]
_OUTPUT_CHARS_MAX = 600


@click.command("demo")
@click.option(
    "-m",
    "--model",
    "model_name",
    metavar="MODEL",
    help="Ask this model, instead of using recorded replies.",
)
@click.option(
    "--max-usd",
    type=float,
    metavar="DOLLARS",
    help="With --model: spend at most this many US dollars.  [default: no limit]",
)
@click.option(
    "--save",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write the sample file to this directory, and run nothing.",
)
@click.option("--quiet", is_flag=True, help="Print only the answer.")
def demo_command(
    model_name: str | None, max_usd: float | None, save: Path | None, quiet: bool
) -> int:
    r"""Try a run over sample data, then replay and verify it.

    This needs no model and no key: the replies were recorded from a real model. The programs in
    them run now, on this machine, on a file that is made from a seed.

    \b
    Exit codes: as for tally run; 6 the verification failed, 8 the replay differs.

    \b
    Example:
        tally demo
        tally demo --save demo
    """
    texts = harbour()
    if save is not None:
        return _save(texts, save)

    sayer = Sayer()

    def say(line: str) -> None:
        if not quiet:
            sayer(line)

    # The user's limits hold for a model that is asked. Recorded replies cost nothing, so that the
    # demo works with any configuration, even a broken one.
    settings = None
    if model_name is not None:
        settings = load_settings(flags={"model": model_name, "max_usd": max_usd})
    with _session(settings, say) as session:
        model, temperature = _model(settings, session)
        _introduce(texts, model, recorded=model_name is None, say=say)
        session.use(model, owned=True, configured=settings is not None)
        result = _run(session, texts, temperature=temperature, quiet=quiet)
        show_run(result, quiet=quiet)
        if quiet or not result.answered:
            return exit_code_of_stop(result.stop)
        if isinstance(model, RecordedModel) and model.drift:
            say(f"note     {quantity(len(model.drift), 'prompt')} not as recorded")
        return _prove(session, result)


def corpus_sha256(texts: Mapping[str, str]) -> str:
    """Return the SHA-256 digest of the names and the texts of a corpus, in their order."""
    digest = hashlib.sha256()
    for name, text in texts.items():
        digest.update(f"{name}\0{text}\0".encode())
    return digest.hexdigest()


def _save(texts: Mapping[str, str], folder: Path) -> int:
    with system_errors(folder, UsageError):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
            click.echo(str(folder / name))
    return 0


def _session(settings: Settings | None, say: Say) -> Agent:
    # With a fixed clock, the prompts are those of the recording on every day.
    return Agent(say=say, config=settings, clock=FIXED)


def _model(settings: Settings | None, session: Agent) -> tuple[Model, float | None]:
    """Return the model to ask and the temperature to ask it at.

    Recorded replies need the temperature of their recording, since it is part of a request; for
    another model it is None, and comes from the settings.
    """
    if settings is not None:
        model = open_model(
            settings.model,
            settings,
            pacing=Pacing(),
            recorded=lambda run: recorded_model(session.ledger, run),
        )
        return model, None
    kept = recording()
    model = RecordedModel(
        kept.exchanges, name=f"recorded:{kept.made_with}", recorded_name=kept.model
    )
    return model, kept.temperature


def _introduce(texts: Mapping[str, str], model: Model, *, recorded: bool, say: Say) -> None:
    sizes = ", ".join(f"{name} ({len(text) / 1e6:.2f} MB)" for name, text in texts.items())
    say(f"data     {sizes}, made from seed {SEED}")
    for line in wrap_line(f"question {QUESTION}", indent=9, width=stderr_columns()):
        say(line)
    if recorded:
        say(f"model    the replies were recorded from {model.name.removeprefix('recorded:')};")
        say("         the programs in them run now, on this machine, in the sandbox")
    else:
        say(f"model    {model.name}")
    say("")


def _run(
    session: Agent,
    texts: Mapping[str, str],
    *,
    temperature: float | None,
    quiet: bool,
) -> Run:
    progress = progress_for(quiet=quiet)
    programs = _Programs(quiet=quiet)

    def watch(run: str, record: Record) -> None:
        programs.watch(record)
        progress.watch(run, record)

    try:
        return session.run(
            QUESTION,
            inputs=[given_text(text, name=name) for name, text in texts.items()],
            temperature=temperature,
            strategy="code",
            watch=watch,
            heard=progress.heard,
        )
    finally:
        progress.close()


class _Programs:
    """Print each program before it runs, and its output afterwards."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._sources: list[str] = []

    def watch(self, record: Record) -> None:
        if self._quiet:
            return
        match record:
            case ModelReplied():
                commands = parse_reply(record.text, cut=record.cut).commands
                self._sources = [each.source for each in commands if isinstance(each, Code)]
            case RunProgram() if record.part < len(self._sources):
                click.echo(_indent(self._sources[record.part], "    >>> "), err=True)
            case ProgramFinished() if record.stdout.strip():
                shown = record.stdout.strip()
                cut = shown if len(shown) <= _OUTPUT_CHARS_MAX else shown[:_OUTPUT_CHARS_MAX] + " …"
                click.echo(_indent(cut, "        "), err=True)
            case _:
                pass


def _indent(text: str, lead: str) -> str:
    """Indent lines of a program or of its output, with `?` for what a terminal would act on."""
    shown = "".join(each if each.isprintable() or each == "\n" else "?" for each in text)
    return textwrap.indent(shown, lead)


def _prove(session: Agent, result: Run) -> int:
    """Replay the run, check its chain, and print the results and what to try next.

    Return the exit code: 8 if the replay differs, 6 if a hash does not hold, otherwise 0. What to
    try next is printed only with 0.
    """
    replayed = session.replay(result.run)
    echo_error_line(
        f"replay   {quantity(replayed.programs, 'program')} ran again without a model: "
        f"{'the same, to the byte' if replayed.held else f'differs at {replayed.divergence}'}"
    )
    checked = verify_ledger(session.ledger, [result.run])
    echo_error_line(
        f"verify   {quantity(checked.entries, 'entry')}, "
        f"{'every hash holds' if checked.first_bad is None else f'broken: {checked.first_bad}'}"
    )
    if not replayed.held or checked.first_bad is not None:
        return DIVERGED if not replayed.held else LEDGER
    for line in _NEXT:
        click.echo(line.format(tally=_tally()), err=True)
    return OK


def _tally() -> str:
    """Return what a user types for `tally`: `make run` starts one that is not on the path."""
    started = Path(sys.argv[0])
    if started.name != "tally" or _same(shutil.which("tally"), started):
        return "tally"
    with contextlib.suppress(ValueError):
        return str(started.absolute().relative_to(Path.cwd()))
    return str(started)


def _same(found: str | None, started: Path) -> bool:
    try:
        return found is not None and started.samefile(found)
    except OSError:
        return False


# `last` is the run of the demo: a command can be typed as it stands.
_NEXT = (
    "",
    "next     what it did, turn by turn, and the sample file:",
    "    {tally} inspect last",
    "    {tally} demo --save demo",
    "then, with a key in OPENAI_API_KEY (other models: {tally} run --help):",
    '    {tally} run "how often was a hull inspected?" -f demo/harbour.csv \\',
    "        -m openai:gpt-5-mini",
)
