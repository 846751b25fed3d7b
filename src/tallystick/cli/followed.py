"""Print the events of runs: as JSON lines while a run goes on here, or as lines for people."""

from __future__ import annotations

import datetime
import threading

import click

from tallystick.cli.parts import echo_line
from tallystick.cli.show import plain, quantity
from tallystick.core.charge import shown_usd
from tallystick.core.views.call_text import call_text
from tallystick.interop.trajectory_events import (
    BudgetWarning,
    CommandChecked,
    CommandExecuted,
    CommandParsed,
    CommandParseFailed,
    CommandStarted,
    Content,
    ErrorSeen,
    HostAnswer,
    HostCall,
    HostCallDecided,
    HostCallWaiting,
    LlmCall,
    LlmResponse,
    QueryComplete,
    QueryStart,
    SessionEnd,
    SessionStart,
    TrajectoryEvent,
    encode_event,
)
from tallystick.ledger.port import TransferLedger
from tallystick.live.follow import Followed, follow
from tallystick.runtime.calls.deltas import TextDelta
from tallystick.stores import stores_of

_TEXT_CHARS_MAX = 120
_DEPTH_SHOWN = 12
_TEXT_COLUMN = 25


class EventPrinter:
    """Prints the events of a run that this process works on, each as one line of JSON on stdout.

    `run` is that of a resume: what is on its record already is not printed. What a fork shares with
    its parent is not printed either. The events are read from the ledger, so what was printed
    survives the process.
    """

    def __init__(self, ledger: TransferLedger, run: str | None = None) -> None:
        self._ledger = ledger
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._followed: Followed | None = None
        self.failed: Exception | None = None
        if run is not None:
            self._followed = self._follow(run)
            self._followed.skip_recorded()

    def begin(self, run: str) -> None:
        """Begin to print, in a thread of its own. Only the first call does something."""
        if self._thread is None:
            shared = self._followed is None
            followed = self._followed or self._follow(run)
            self._thread = threading.Thread(
                target=self._print, args=(followed, shared), name="tally-events", daemon=True
            )
            self._thread.start()

    def end(self) -> None:
        """Print what is left, and wait for that. The run must have ended."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _follow(self, run: str) -> Followed:
        return Followed(stores_of(self._ledger), run, is_going=lambda: not self._ended.is_set())

    def _print(self, followed: Followed, shared: bool) -> None:
        try:
            for event in followed:
                shared = shared and event.run != followed.run
                if not shared:
                    assert not isinstance(event, TextDelta)
                    click.echo(encode_event(event))
        except Exception as error:
            # The next record of the run raises it, which ends the run.
            self.failed = error


def print_followed(run: str, *, after: int, full: bool, as_json: bool) -> None:
    """Print the events of a run of this or another process, until it ends.

    Raise what `follow` raises.
    """
    with follow(run, after=after, full=full) as followed:
        for event in followed:
            if isinstance(event, TextDelta):
                continue
            if as_json:
                click.echo(encode_event(event))
            elif (line := event_line(event)) is not None:
                echo_line(line, indent=_TEXT_COLUMN)


def event_line(event: TrajectoryEvent) -> str | None:
    """Write an event as a line; None for one that says nothing to a person."""
    text = _text(event)
    if text is None:
        return None
    number = f"{event.number:>5}" if isinstance(event.number, int) else " " * 5
    indent = "  " * min(event.depth, _DEPTH_SHOWN)
    return f"{number} {_time(event.at)} {indent}{text}"


def _time(at: int | None) -> str:
    if at is None:
        return " " * 8
    return f"{datetime.datetime.fromtimestamp(at / 1000, datetime.UTC):%H:%M:%S}"


def _text(event: TrajectoryEvent) -> str | None:
    match event:
        case SessionStart() | SessionEnd() | CommandStarted():
            return None
        case QueryStart() | QueryComplete():
            return _of_run(event)
        case LlmCall() | LlmResponse():
            return _of_call(event)
        case CommandParsed() | CommandParseFailed() | CommandChecked() | CommandExecuted():
            return _of_command(event)
        case HostCall() | HostCallWaiting() | HostCallDecided() | HostAnswer():
            return _of_host_call(event)
        case BudgetWarning():
            said = event.message or (f"{event.share} % used" if event.share else "the last turn")
            return f"budget    {plain(said)}"
        case ErrorSeen():
            return f"error     {plain(event.reason)}: {_short(event.message)}"


def _of_run(event: QueryStart | QueryComplete) -> str:
    if isinstance(event, QueryComplete):
        answer = "" if event.result is None else f"  {_short(event.result)}"
        return f"ended     {event.stop}{answer}"
    goal = "" if event.goal is None else f"  {_short(event.goal)}"
    decided = ""
    if isinstance(event.decision, str) and isinstance(event.by, str):
        decided = f"  {event.decision} by {plain(event.by)}"
    return f"{event.begun:<9} run {plain(event.query)}{goal}{decided}"


def _of_call(event: LlmCall | LlmResponse) -> str:
    if isinstance(event, LlmCall):
        again = f"  attempt {event.attempt}" if event.attempt > 1 else ""
        turn = f"turn {event.iteration}" if event.call == "turn" else "query"
        return f"asks      {plain(event.model)}  {turn}{again}"
    cost = "price unknown" if event.usd is None else shown_usd(event.usd)
    return (
        f"replied   {event.tokens_in:,} tokens in, {event.tokens_out:,} out  {cost}  "
        f"{event.wall_ms / 1000:.1f} s"
    )


def _of_command(
    event: CommandParsed | CommandParseFailed | CommandChecked | CommandExecuted,
) -> str:
    match event:
        case CommandParsed():
            return f"{event.command.lower():<9} {_short(event.content)}"
        case CommandParseFailed():
            return f"unread    {_short(event.problem)}"
        case CommandChecked():
            return f"checked   {event.decision}  {_short(event.message)}".rstrip()
        case CommandExecuted():
            return _of_program(event)


def _of_program(event: CommandExecuted) -> str:
    calls = f"  {quantity(event.host_calls, 'host call')}" if event.host_calls else ""
    said = event.error or event.answer or (event.stdout if event.stdout.text else event.value)
    text = "" if said is None else f"  {_short(said)}"
    return f"ran       {event.stop}{calls}{text}"


def _of_host_call(event: HostCall | HostCallWaiting | HostCallDecided | HostAnswer) -> str:
    match event:
        case HostCall():
            return f"calls     {_call(event.name, event.request)}"
        case HostCallWaiting():
            return f"waits     {_call(event.name, event.request)}  for a person"
        case HostCallDecided():
            said = f"decided   {event.decision} by {plain(event.by)}  {plain(event.because)}"
            return said.rstrip()
        case HostAnswer():
            verdict = "ok" if event.success else "error"
            return f"answered  {_call(event.name, event.request)}  {verdict}"


def _call(name: str, request: Content | None) -> str:
    if request is None or request.text is None:
        return plain(name)
    return plain(call_text(name, request.text), chars_max=_TEXT_CHARS_MAX)


def _short(content: Content) -> str:
    return plain(content.text or "", chars_max=_TEXT_CHARS_MAX)
