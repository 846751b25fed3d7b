"""A run that a command drives: how it is opened, watched, interrupted and shown."""

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

from tallystick.cli.exit_codes import INTERRUPTED, exit_code_of_stop
from tallystick.cli.parts import echo_json
from tallystick.cli.progress import Before, Progress, Sayer, progress_for
from tallystick.cli.show import plain
from tallystick.client import Session
from tallystick.core.budget.amount import is_of_total, is_overrun
from tallystick.core.charge import shown_usd
from tallystick.core.records import (
    MemoryGiven,
    Receipt,
    ReceiptIssued,
    Record,
    RunStarted,
    encode_record,
    tag_of,
)
from tallystick.core.records.receipts import holds_reservations
from tallystick.inputs.strategy import Estimate, StrategyEstimate
from tallystick.ledger.port import Ledger
from tallystick.model.pacing import Pacing
from tallystick.model.port import Model
from tallystick.model.price_table import Pricing
from tallystick.model.prices import is_unpriced
from tallystick.runtime.runs.history import recorded_model
from tallystick.runtime.runs.result import Run
from tallystick.sandbox.port import AUTO
from tallystick.settings.models import open_model
from tallystick.settings.settings import Settings
from tallystick.skills.found import loaded_by

if TYPE_CHECKING:
    from tallystick.memory.memory import Memory
    from tallystick.skills.skills import Skills
    from tallystick.vocabulary.capability import VocabularyAsked


# What a run came to, printed: the answer on stdout, the rest on stderr.


_QUOTE_CHARS_MAX = 100
# Of the last reply, where a run has no answer.
_SAID_LINES_MAX, _SAID_CHARS_MAX = 12, 200
_NAME_CHARS_MAX = 300


def run_json(result: Run) -> str:
    """What a run came to, as JSON. What it claims in vain is there, also if that is nothing."""
    told: dict[str, object] = msgspec.to_builtins(result)
    return msgspec.json.encode({**told, "unchecked": told.get("unchecked", [])}).decode()


def show_run(result: Run, *, quiet: bool, answer: bool = True, bounded: bool = False) -> None:
    """Print the answer, where it stands, why the run stopped if it did, and what it cost.

    `bounded` says that some of the cost is what was reserved, and not what was reported.
    """
    if result.answer is not None and answer:
        click.echo(result.answer)
    if quiet:
        return
    for number, citation in enumerate(result.citations, 1):
        quote = citation.quote[:_QUOTE_CHARS_MAX]
        name = plain(citation.name, chars_max=_NAME_CHARS_MAX)
        click.echo(f"cited    [{number}] {name}:{citation.lines}  {quote!r}", err=True)
    for each in result.unchecked:
        why = plain(each.why, chars_max=_NAME_CHARS_MAX)
        click.echo(f"unchecked: {plain(each.claim, chars_max=_QUOTE_CHARS_MAX)} ({why})", err=True)
    if not result.answered:
        what = "a partial answer" if result.partial else "no answer"
        click.echo(f"stopped  {result.stop}: {result.detail} ({what})", err=True)
        for line in _said(result):
            click.echo(line, err=True)
    if result.session_lost:
        click.echo(
            "session  does not keep what this run left: another run, or a restore, came in between",
            err=True,
        )
    click.echo(_cost_line(result, bounded=bounded), err=True)
    click.echo(f"ledger   run {result.run} in {result.ledger}", err=True)
    if (how := _to_go_on(result)) is not None:
        click.echo(f"to go on: {how}", err=True)


def _cost_line(result: Run, *, bounded: bool) -> str:
    """Write what a run cost, or at most did."""
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


def _said(result: Run) -> list[str]:
    """Return the last reply of the model in lines for a terminal, unless it is the answer shown."""
    if result.said is None or result.said == result.answer:
        return []
    lines = result.said.splitlines()
    shown = [plain(each, chars_max=_SAID_CHARS_MAX) for each in lines[:_SAID_LINES_MAX]]
    left = len(lines) - len(shown)
    more = [f"({left:,} more lines: tally inspect {result.run})"] if left else []
    return [f"{'said' if not at else '':<9}{each}" for at, each in enumerate([*shown, *more])]


def _to_go_on(result: Run) -> str | None:
    """What to type to go on with a run that has no answer. What was paid for is kept."""
    resume = f"tally resume {result.run}"
    match result.stop:
        case "cancelled" | "model_error" | "sandbox_error":
            return resume
        case "max_turns":
            return f"{resume} --max-turns N, with a higher one"
        case "deadline":
            return f"{resume} --timeout SECONDS, with a higher one"
        case "budget" if is_unpriced(result.detail):
            return f"{resume} once the price is declared, or with --allow-unpriced"
        case "budget" if is_overrun(result.detail):
            return resume
        case "budget" if is_of_total(result.detail):
            return f"{resume} once the total pays for more: tally total"
        case "budget":
            return f"{resume} with a higher cap: --max-usd, --max-tokens"
        case "in_doubt":
            return f"look whether it happened, then {resume} --in-doubt retry or abandon"
        case _:
            return None


def show_estimate(estimate: Estimate, *, as_json: bool) -> None:
    """Print what a run would begin with, and what it costs as far as that can be told."""
    if as_json:
        echo_json(estimate)
        return
    cap = "no cap" if estimate.usd_cap is None else f"cap {shown_usd(estimate.usd_cap)}"
    usual, first = "price unknown", "price unknown"
    if estimate.usual_usd is not None and estimate.first_call_usd_max is not None:
        usual = f"about {shown_usd(estimate.usual_usd)} for four turns"
        first = f"at most {shown_usd(estimate.first_call_usd_max)} for the first"
    click.echo(f"model     {estimate.model}")
    click.echo(f"price     {estimate.why}")
    click.echo(
        f"prompt    about {estimate.tokens_in_estimated:,} tokens (at most "
        f"{estimate.tokens_in_max:,}); a reply of at most {estimate.tokens_out_max:,}"
    )
    click.echo(f"call      {first}")
    click.echo(f"run       {usual}; {cap}, {estimate.tokens_cap:,} tokens")
    for each in estimate.strategies:
        click.echo(f"{each.strategy:<10}{_taken(each)}")
    click.echo(f"auto      {estimate.auto}: {estimate.auto_why}")
    if estimate.price == "refuse":
        click.echo("refused   the price is not known, and a cap in dollars is set")
    elif not estimate.fits:
        click.echo("refused   the first call does not fit: raise the cap, or ask for less")


def _taken(estimate: StrategyEstimate) -> str:
    if estimate.why_not:
        return f"does not fit: {estimate.why_not}"
    calls = f"{estimate.calls:,} call{'' if estimate.calls == 1 else 's'}"
    cost = "price unknown" if estimate.usd is None else f"about {shown_usd(estimate.usd)}"
    return f"{calls:<12}about {f'{estimate.tokens:,} tokens':<20}{cost}"


# Ctrl-C while a run goes: once stops it, written down; a second time leaves at once.
#
# The second leaves as a crash would: nothing more is written, and a call that is under way then may
# be in doubt. The ledger is made for that.


_CURSOR_SHOWN = b"\x1b[?25h"


@contextmanager
def interruptible(
    progress: Progress, run: Callable[[], str | None], *, tells: bool
) -> Iterator[None]:
    """Inside, Ctrl-C stops what goes on, and once more leaves. `run` is what to go on with.

    Signals that somebody else handles, or ignores, stay theirs.
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
            _leave(run(), tells=tells)
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
        # It did not stop in time, or nothing was live yet.
        if tells and (named := run()) is not None:
            click.echo(f"to go on: tally resume {named}", err=True)
        raise
    finally:
        if not pressed:
            signal.signal(signal.SIGINT, before)
        # Else the process is about to end, and a second press leaves at once until it has.


def _leave(run: str | None, *, tells: bool) -> None:
    """End the process. Nothing is waited for: whatever holds a lock may never let go of it."""
    said = "" if run is None else f"left at once; to go on: tally resume {run}\n"
    line = f"\n{said or 'interrupted'}".encode() if tells else b""
    shown = _CURSOR_SHOWN if sys.stderr.isatty() else b""
    try:
        os.write(2, shown + line)
    finally:
        os._exit(INTERRUPTED)


# What the commands that drive a run share: how it is opened, watched, limited and shown.


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """How a run is shown while it goes, and when it has ended."""

    as_json: bool
    events: bool
    quiet: bool
    verbose: bool = False
    # Of the run that is watched; the last is that of its end.
    receipts: list[Receipt] = dataclasses.field(default_factory=list, compare=False)

    @property
    def tells(self) -> bool:
        """Whether anything but the outcome is told."""
        return not (self.quiet or self.as_json or self.events)

    def progress(self, before: Sequence[Record] = (), inside: Before = ()) -> Progress:
        """`before` is what is recorded of a run that is gone on with, `inside` of its children."""
        return progress_for(
            quiet=not self.tells, before=before, inside=inside, verbose=self.verbose
        )

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
            bounded = bool(self.receipts) and holds_reservations(self.receipts[-1])
            quiet = self.quiet or self.events
            show_run(result, quiet=quiet, answer=not self.events, bounded=bounded)
        return exit_code_of_stop(result.stop)


class Watcher:
    """Sees every record of a tree of runs, and how many of it wait.

    Events are printed once they are committed: what was shown survives the process.

    `run` is the root, `loaded` the skills that programs loaded.
    """

    def __init__(self, shown: Shown, progress: Progress) -> None:
        self._shown = shown
        self._progress = progress
        self._failed: Exception | None = None
        self.run: str | None = None
        self.loaded: list[str] = []

    def __call__(self, run: str, record: Record) -> None:
        if self._failed is not None:
            raise self._failed
        self.run = self.run or run
        if isinstance(record, ReceiptIssued) and run == self.run:
            self._shown.receipts.append(record.receipt)
        skill = loaded_by(record)
        if skill is not None:
            self.loaded.append(skill)
        if self._shown.tells and isinstance(record, RunStarted) and record.strategy_why:
            # Which strategy was chosen, and why, before anything else.
            click.echo(f"strategy {record.strategy}: {record.strategy_why}", err=True)
        self._progress.watch(run, record)

    def committed(self, run: str, record: Record) -> None:
        """Print an event. What cannot be printed ends the run at the next record."""
        if not self._shown.events or self._failed is not None:
            return
        body = msgspec.Raw(encode_record(record))
        try:
            click.echo(msgspec.json.encode({"run": run, "tag": tag_of(record), "record": body}))
        except Exception as error:
            self._failed = error

    def waits(self, parent: str, change: int) -> None:
        self._progress.waits(parent, change)


@contextmanager
def opened(
    settings: Settings,
    ledger: Ledger,
    skills: Skills | None = None,
    *,
    given: MemoryGiven | None = None,
    vocabulary: VocabularyAsked | None = None,
    backend: str = AUTO,
    accept_without: Sequence[str] = (),
    say: Callable[[str], None] | None = None,
) -> Iterator[tuple[Session, Model, Pricing]]:
    """A session with the model, the prices, the total and the memory of the settings.

    `given` is the memory of a run that is gone on with, in place of the one that is set.
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
        Session(
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
    """The memory of a run, if it has one."""
    if given is None and settings.memory is None:
        yield None
        return
    # Imported where there is one: it takes a while.
    from tallystick.memory.memory import Memory

    if given is not None:
        with Memory.open(given.tenant, agent_id=given.agent_id, create=False) as memory:
            yield memory
    elif settings.memory is not None:
        with Memory.open(settings.memory) as memory:
            yield memory
