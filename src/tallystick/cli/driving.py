"""Open, watch, interrupt and show a run, for the commands that drive one."""

from __future__ import annotations

import atexit
import dataclasses
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

import click
import msgspec

from tallystick.agent.agent import Agent
from tallystick.cli.exit_codes import INTERRUPTED, exit_code_of_stop
from tallystick.cli.parts import echo_error_line, echo_json, echo_line
from tallystick.cli.progress import Before, Progress, Sayer, progress_for
from tallystick.cli.show import plain
from tallystick.core.charge import shown_usd
from tallystick.core.records import (
    MemoryGiven,
    Receipt,
    ReceiptIssued,
    Record,
    RunStarted,
)
from tallystick.core.records.receipts import holds_reservations
from tallystick.inputs.strategy import Estimate, StrategyEstimate
from tallystick.ledger.port import Ledger, TransferLedger
from tallystick.live.stop import person_here
from tallystick.model.pacing import Pacing
from tallystick.model.port import Model
from tallystick.model.price_table import Pricing
from tallystick.runtime.runs.decided import Decided
from tallystick.runtime.runs.history import recorded_model
from tallystick.runtime.runs.result import Run, next_steps
from tallystick.runtime.runs.waiting import Waiting
from tallystick.sandbox.port import AUTO
from tallystick.settings.models import open_model
from tallystick.settings.settings import Settings
from tallystick.skills.found import loaded_skill_id

if TYPE_CHECKING:
    from tallystick.cli.followed import EventPrinter
    from tallystick.memory.memory import Memory
    from tallystick.skills.skills import Skills
    from tallystick.vocabulary.capability import VocabularyAsked


# The result of a run: the answer goes to stdout, the rest to stderr.


# Further lines of a long one begin where the text of the first begins.
_TEXT_COLUMN = 9
_QUOTE_CHARS_MAX = 100
# How much is shown of a call or a program that waits for a person.
_WAITING_CHARS_MAX = 400
# How much is shown of the last reply of a run without an answer.
_REPLY_LINES_MAX, _REPLY_CHARS_MAX = 12, 200
_NAME_CHARS_MAX = 300


def run_json(result: Run) -> str:
    """Encode the result of a run as JSON.

    `unchecked`, the claims that could not be verified, is always present, even if empty.
    """
    fields: dict[str, object] = msgspec.to_builtins(result)
    # `value` is there if the answer had a schema.
    fields.pop("typed", None)
    return msgspec.json.encode({**fields, "unchecked": fields.get("unchecked", [])}).decode()


def show_run(result: Run, *, quiet: bool, answer: bool = True, bounded: bool = False) -> None:
    """Print the answer on stdout; on stderr, its citations, the cost, and why the run stopped.

    Also on stderr: claims that were not checked, the last reply of a run without an answer, where
    the run is, and commands that continue it. With `quiet`, print only the answer; with `answer`
    false, everything else. With `bounded`, the cost is an upper bound, since it contains
    reservations of calls without a reported cost.
    """
    if result.answer is not None and answer:
        click.echo(result.answer)
    if quiet:
        return
    for number, citation in enumerate(result.citations, 1):
        quote = citation.quote[:_QUOTE_CHARS_MAX]
        name = plain(citation.name, chars_max=_NAME_CHARS_MAX)
        echo_error_line(f"cited    [{number}] {name}:{citation.lines}  {quote!r}")
    for each in result.unchecked:
        why = plain(each.why, chars_max=_NAME_CHARS_MAX)
        claim = plain(each.claim, chars_max=_QUOTE_CHARS_MAX)
        echo_line(f"unchecked: {claim} ({why})", indent=_TEXT_COLUMN, err=True)
    if not result.answered:
        what = "a partial answer" if result.partial else "no answer"
        # Broken on terminals only, so that a log can be searched for the whole message.
        line = f"stopped  {result.stop}: {result.detail} ({what})"
        echo_line(line, indent=_TEXT_COLUMN, err=True)
        for line in (*waiting_lines(result.waits), *_reply_lines(result)):
            echo_line(line, indent=_TEXT_COLUMN, err=True)
    if result.session_lost:
        echo_error_line(
            "session  the variables of this run were not stored, since another run or a restore "
            "changed the session in between"
        )
    echo_error_line(_cost_line(result, bounded=bounded))
    echo_error_line(f"ledger   run {result.run} in {result.ledger}")
    for number, line in enumerate(next_steps(result)):
        echo_error_line(f"{'' if number else 'next':<9}{line}")


def waiting_lines(waits: Sequence[Waiting]) -> list[str]:
    """Write what waits for a person, each call or program in a line."""
    return [
        f"waits    {plain(each.text(), chars_max=_WAITING_CHARS_MAX)}  (turn {each.turn} of run "
        f"{each.run})"
        for each in waits
    ]


def has_person() -> bool:
    """Return True if somebody can be asked: input and messages are a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def word_on_terminal(result: Run, display: Display) -> Decided | None:
    """Ask the person at this terminal about what a run waits for, and return the decision.

    Return None if the run does not wait, if there is no terminal, or if the person leaves it open.
    """
    if result.stop != "waiting" or not result.waits:
        return None
    if not (display.shows_progress and has_person()):
        return None
    for line in waiting_lines(result.waits):
        echo_error_line(line)
    choice = click.prompt(
        "approve (y), approve all of this run (a), deny (n), or decide later (l)?",
        type=click.Choice(["y", "a", "n", "l"]),
        default="l",
        show_choices=False,
        err=True,
    )
    if choice == "l":
        return None
    because = ""
    if choice == "n":
        because = click.prompt("why?", default="", show_default=False, err=True)
    return Decided(
        decision="deny" if choice == "n" else "approve",
        by=person_here(),
        because=because,
        sha256s=tuple(sorted({each.sha256 for each in result.waits})),
        all=choice == "a",
    )


def _cost_line(result: Run, *, bounded: bool) -> str:
    """Write the tokens, dollars, turns and seconds of a run."""
    charge = result.charge
    used = charge.tokens_in + charge.tokens_out
    cost = shown_usd(charge.usd) if charge.usd is not None else "price unknown"
    if bounded:
        cost = f"at most {cost} (calls without a report are charged as reserved)"
    if not charge.model_calls:
        cost = "no model was asked"
    return (
        f"cost     {used:,} tokens ({charge.tokens_in:,} in, {charge.tokens_out:,} out)   {cost}   "
        f"{result.turns} turn{'' if result.turns == 1 else 's'}   {charge.wall_ms / 1000:.1f} s"
    )


def _reply_lines(result: Run) -> list[str]:
    """Return the last reply of the model in lines for a terminal: 12 at most, of 200 characters.

    Of a longer reply, one more line names how many are left. Return no lines if there is no reply,
    or if it is the answer.
    """
    if result.said is None or result.said == result.answer:
        return []
    lines = result.said.splitlines()
    kept = [plain(each, chars_max=_REPLY_CHARS_MAX) for each in lines[:_REPLY_LINES_MAX]]
    left = len(lines) - len(kept)
    more = [f"({left:,} more lines: tally inspect {result.run})"] if left else []
    return [f"{'said' if not at else '':<9}{each}" for at, each in enumerate([*kept, *more])]


def show_estimate(estimate: Estimate, *, as_json: bool) -> None:
    """Print the size of a run's first prompt, its strategies and their costs, or all as JSON."""
    if as_json:
        echo_json(estimate)
        return
    cap = "no limit in dollars"
    if estimate.usd_cap is not None:
        cap = f"limit {shown_usd(estimate.usd_cap)}"
    usual, first = "price unknown", "price unknown"
    if estimate.usual_usd is not None and estimate.first_call_usd_max is not None:
        usual = f"about {shown_usd(estimate.usual_usd)} for four turns"
        first = f"at most {shown_usd(estimate.first_call_usd_max)} for the first"
    echo_line(f"model     {estimate.model}")
    echo_line(f"price     {estimate.why}")
    echo_line(
        f"prompt    about {estimate.tokens_in_estimated:,} tokens (at most "
        f"{estimate.tokens_in_max:,}); a reply of at most {estimate.tokens_out_max:,}"
    )
    echo_line(f"call      {first}")
    echo_line(f"run       {usual}; {cap}, {estimate.tokens_cap:,} tokens")
    for each in estimate.strategies:
        echo_line(f"{each.strategy:<10}{_strategy_text(each)}")
    echo_line(f"auto      {estimate.auto}: {estimate.auto_why}")
    if estimate.price == "refuse":
        echo_line(
            "refused   the price is unknown, and --max-usd is set; declare the price in [prices], "
            "or add --allow-unpriced"
        )
    elif not estimate.fits:
        echo_line(
            "refused   the first call does not fit: raise --max-usd or --max-tokens, or give less "
            "data"
        )


def _strategy_text(estimate: StrategyEstimate) -> str:
    """Write the calls, tokens and dollars of a strategy, or why it cannot be used."""
    if estimate.why_not:
        return f"does not fit: {estimate.why_not}"
    calls = f"{estimate.calls:,} call{'' if estimate.calls == 1 else 's'}"
    cost = "price unknown" if estimate.usd is None else f"about {shown_usd(estimate.usd)}"
    return f"{calls:<12}about {f'{estimate.tokens:,} tokens':<20}{cost}"


# Ctrl-C during a run: the first stops the run and records that, the second ends the process.
#
# The second is like a crash: nothing more is recorded, and a call that is in progress may be in
# doubt. The ledger is made for crashes, so the run can be resumed.


_CURSOR_SHOWN = b"\x1b[?25h"


@contextmanager
def interruptible(
    progress: Progress, run: Callable[[], str | None], *, prints: bool
) -> Iterator[None]:
    """Handle Ctrl-C inside: the first raises `KeyboardInterrupt`, the second ends the process.

    `run` returns the id of the run to resume, once it is known; with `prints`, the command for that
    is printed if the first leaves the block. After a press, the handler stays until the process
    ends. If the signal has another handler, or this is not the main thread, nothing changes.
    """
    before = signal.getsignal(signal.SIGINT)
    in_main = threading.current_thread() is threading.main_thread()
    if before is not signal.default_int_handler or not in_main:
        yield
        return
    pressed = False

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            _leave(run(), prints=prints)
        pressed = True
        # While the interpreter shuts down it handles no signal, and a press would kill the process
        # with another exit code. This runs after all threads have ended: nothing is left to leave.
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
        progress.stopping()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, press)
    try:
        yield
    except KeyboardInterrupt:
        # The run did not stop in time, or had not started.
        if prints and (named := run()) is not None:
            click.echo(f"next     tally resume {named}", err=True)
        raise
    finally:
        if not pressed:
            signal.signal(signal.SIGINT, before)
        # After a press the process is about to end. Until it has, keep the handler, so that a
        # second press ends it at once.


def _leave(run: str | None, *, prints: bool) -> None:
    """End the process with exit code 130, without waiting for any thread.

    Nothing here takes a lock or flushes a stream: a thread that holds one may never release it.
    """
    said = "" if run is None else f"left at once; next: tally resume {run}\n"
    line = f"\n{said or 'interrupted'}".encode() if prints else b""
    shown = _CURSOR_SHOWN if sys.stderr.isatty() else b""
    try:
        os.write(2, shown + line)
    finally:
        os._exit(INTERRUPTED)


# Opening, watching and showing a run.


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Display:
    """The choices of how a run is shown, and the functions that show it."""

    as_json: bool
    events: bool
    quiet: bool
    verbose: bool = False
    # The receipts of the watched run, the last of which is that of its end.
    receipts: list[Receipt] = dataclasses.field(default_factory=list, compare=False)

    @property
    def shows_progress(self) -> bool:
        """True if progress and other lines for people are shown."""
        return not (self.quiet or self.as_json or self.events)

    def progress(self, before: Sequence[Record] = (), inside: Before = ()) -> Progress:
        """Return what shows the progress of a run.

        `before` has the records of a run that is resumed or forked, `inside` those of its children:
        both are counted and not shown.
        """
        return progress_for(
            quiet=not self.shows_progress, before=before, inside=inside, verbose=self.verbose
        )

    @contextmanager
    def watching(
        self, progress: Progress, ledger: TransferLedger, run: str | None = None
    ) -> Iterator[Watcher]:
        """Watch a run, and let Ctrl-C stop it; a second Ctrl-C ends the process.

        Its events are printed as they come to be in `ledger`, if they are to be printed. `run` is
        the id of a run that is resumed. For a new one it is that of its first record.
        """
        printer = None
        if self.events:
            # Events are a format of other systems, which few runs print.
            from tallystick.cli.followed import EventPrinter

            printer = EventPrinter(ledger, run)
        watcher = Watcher(self, progress, printer)
        watcher.run = run
        try:
            with interruptible(progress, lambda: watcher.run, prints=self.shows_progress):
                yield watcher
        finally:
            if printer is not None:
                printer.end()

    def end(self, result: Run) -> int:
        """Print the result of a run, and return the exit code that says how it ended."""
        if self.as_json:
            click.echo(run_json(result))
        else:
            bounded = bool(self.receipts) and holds_reservations(self.receipts[-1])
            quiet = self.quiet or self.events
            show_run(result, quiet=quiet, answer=not self.events, bounded=bounded)
        return exit_code_of_stop(result.stop)


class Watcher:
    """Follow the records of a tree of runs, show its progress, and have its events printed.

    `run` is the id of the root, `loaded` the skills that programs loaded.
    """

    def __init__(self, display: Display, progress: Progress, printer: EventPrinter | None) -> None:
        self._display = display
        self._progress = progress
        self._printer = printer
        self.run: str | None = None
        self.loaded: list[str] = []

    def __call__(self, run: str, record: Record) -> None:
        self.run = self.run or run
        if self._printer is not None:
            if self._printer.failed is not None:
                raise self._printer.failed
            self._printer.begin(self.run)
        if isinstance(record, ReceiptIssued) and run == self.run:
            self._display.receipts.append(record.receipt)
        skill = loaded_skill_id(record)
        if skill is not None:
            self.loaded.append(skill)
        if self._display.shows_progress and isinstance(record, RunStarted) and record.strategy_why:
            echo_error_line(f"strategy {record.strategy}: {record.strategy_why}")
        self._progress.watch(run, record)

    def waits(self, parent: str, change: int) -> None:
        self._progress.waits(parent, change)


@contextmanager
def open_session(
    settings: Settings,
    ledger: Ledger,
    skills: Skills | None = None,
    *,
    given: MemoryGiven | None = None,
    vocabulary: VocabularyAsked | None = None,
    backend: str = AUTO,
    accept_without: Sequence[str] = (),
    say: Callable[[str], None] | None = None,
) -> Iterator[tuple[Agent, Model, Pricing]]:
    """Open a session with the model, prices, total and memory of the settings; close it at the end.

    `given` is the memory of a run that is resumed, and replaces that of the settings. Raise what
    `open_model`, `Memory.open` and `Agent` raise if one of them cannot be opened.
    """
    model = open_model(
        settings.model,
        settings,
        pacing=Pacing(),
        recorded=lambda run: recorded_model(ledger, run),
    )
    pricing = dataclasses.replace(settings.pricing, tokenizer_of=model.name)
    with (
        _memory_of(settings, given) as memory,
        Agent(
            ledger=ledger,
            config=settings,
            skills=skills,
            memory=memory,
            vocabulary=vocabulary,
            backend=backend,
            accept_without=accept_without,
            say=say or Sayer(),
        ) as session,
    ):
        session.use(model, owned=True, configured=True)
        yield session, model, pricing


@contextmanager
def _memory_of(settings: Settings, given: MemoryGiven | None) -> Iterator[Memory | None]:
    """Open the memory of a run; yield None if it has none.

    That of a resumed run, `given`, is not made if it is missing. Raise what `Memory.open` raises.
    """
    if given is None and settings.memory is None:
        yield None
        return
    # Imported only for runs with a memory, since the import is slow.
    from tallystick.memory.memory import Memory

    if given is not None:
        with Memory.open(given.tenant, agent_id=given.agent_id, create=False) as memory:
            yield memory
    elif settings.memory is not None:
        with Memory.open(settings.memory) as memory:
            yield memory
