"""How a run is going, for whoever waits: a live line on a terminal, plain lines elsewhere.

Everything goes to stderr; the answer alone goes to stdout. What a model writes is shown when it is
on the ledger, never while it comes: until then there is only how much of it has come.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TextIO

from tallystick.cli.render import outcome
from tallystick.core.caps import charge_of
from tallystick.core.money import shown_usd
from tallystick.core.program import line_count
from tallystick.core.records import (
    AskModel,
    Charge,
    HostAnswered,
    ModelFailed,
    ModelReplied,
    ProgramFinished,
    QueryFailed,
    QueryReplied,
    Record,
    RunForked,
    RunLimits,
    RunProgram,
    RunResumed,
    RunStarted,
)
from tallystick.core.reply import Code, parse_reply

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["Progress", "progress_for"]

_REFRESH_PER_SECOND = 8


class Progress(Protocol):
    """Is told of every record and of every piece of a reply."""

    def watch(self, run: str, record: Record) -> None: ...

    def heard(self, chars: int) -> None: ...

    def close(self) -> None: ...


def progress_for(
    *,
    quiet: bool,
    stream: TextIO | None = None,
    environ: Mapping[str, str] = os.environ,
    before: Sequence[Record] = (),
) -> Progress:
    """The way to show progress that fits where it is shown; stderr, unless told.

    `before` is what is recorded of a run that is gone on with: it is counted, and not told.
    """
    if quiet:
        return _Silent()
    stream = sys.stderr if stream is None else stream
    if stream.isatty() and environ.get("TERM", "") not in ("", "dumb"):
        return _Live(stream, plain="NO_COLOR" in environ, before=before)
    return _Lines(lambda line: print(line, file=stream, flush=True), before)


class _Silent:
    """Says nothing."""

    def watch(self, run: str, record: Record) -> None: ...

    def heard(self, chars: int) -> None: ...

    def close(self) -> None: ...


class Tally:
    """What a run has used so far, counted from its records."""

    def __init__(self, before: Sequence[Record] = ()) -> None:
        self.limits = RunLimits()
        self.used = Charge()
        self.turn = 0
        self.tokens = 0
        self.estimated = False
        self.lines = 0
        self._programs: list[str] = []
        for record in before:
            self.add(record)

    def add(self, record: Record) -> None:
        match record:
            case RunStarted():
                self.limits = record.limits
            case RunResumed() | RunForked():
                self.limits = record.limits or self.limits
            case AskModel():
                self.turn = record.turn
            case ModelReplied():
                self.tokens = record.usage.tokens_in + record.usage.tokens_out
                self.estimated = not record.usage.reported
                commands = parse_reply(record.text, cut=record.cut).commands
                self._programs = [
                    each.source if isinstance(each, Code) else "" for each in commands
                ]
                self.used += charge_of(record) + Charge(turns=1, wall_ms=record.wall_ms)
            case ModelFailed():
                self.used += charge_of(record) + Charge(wall_ms=record.wall_ms)
            case QueryReplied() | QueryFailed():
                self.used += charge_of(record)
            case RunProgram():
                part = record.part
                source = self._programs[part] if part < len(self._programs) else ""
                self.lines = line_count(source) or 1
            case HostAnswered():
                self.used += Charge(host_calls=1)
            case ProgramFinished():
                self.used += Charge(wall_ms=record.wall_ms, fuel=record.fuel)
            case _:
                pass

    def left(self, *, seconds: float) -> str:
        """What the run may still use, `seconds` into what it is doing."""
        spent = self.used.tokens_in + self.used.tokens_out
        time_left = max(0, round((self.limits.wall_ms - self.used.wall_ms) / 1000 - seconds))
        return (
            f"left {_counted(self.limits.turns - self.used.turns, 'turn')}, "
            f"{max(0, self.limits.tokens - spent):,} tokens, "
            f"{time_left // 60}:{time_left % 60:02d}"
        )

    def cost(self) -> str:
        spent = self.used.tokens_in + self.used.tokens_out
        usd = self.used.usd
        return f"{spent:,} tokens, {shown_usd(usd) if usd is not None else 'price unknown'}"


class _Lines:
    """One line for everything a person would want to have been told."""

    def __init__(self, say: Callable[[str], None], before: Sequence[Record] = ()) -> None:
        self._say = say
        self._tally = Tally(before)
        self._told_turn = self._tally.turn

    def watch(self, run: str, record: Record) -> None:
        self._tally.add(record)
        line = self._line(record)
        if line is not None:
            # Servers and programs have their words in it; a terminal obeys control characters.
            self._say("".join(each if each.isprintable() else "?" for each in line))

    def heard(self, chars: int) -> None: ...

    def close(self) -> None: ...

    def _line(self, record: Record) -> str | None:
        tally = self._tally
        match record:
            case AskModel() if record.attempt > 1:
                return (
                    f"turn {record.turn:<3} asking again (attempt {record.attempt} of "
                    f"{tally.limits.retries + 1}), after {record.wait_ms / 1000:.2g} s"
                )
            case AskModel() if self._told_turn not in (record.turn, record.turn - 1):
                # The turn before had a reply and nothing that ran.
                self._told_turn = record.turn - 1
                return f"turn {record.turn - 1:<3} no program   {self._tokens()}"
            case ModelFailed():
                return f"turn {record.turn:<3} failed       {record.reason}: {record.message}"
            case ProgramFinished():
                self._told_turn = record.turn
                return (
                    f"turn {record.turn:<3} program {_counted(tally.lines, 'line'):<10}"
                    f"{_counted(record.host_calls, 'host call'):<14}{self._tokens():<14}  "
                    f"{self._so_far()}{outcome(record)}"
                )
            case _:
                return None

    def _so_far(self) -> str:
        """What the run has cost, where that is known and anything."""
        usd = self._tally.used.usd
        return f"{shown_usd(usd)} so far  " if usd else ""

    def _tokens(self) -> str:
        return f"{self._tally.tokens:,} tokens{' (estimated)' if self._tally.estimated else ''}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


class _Live:
    """The same lines, and below them one that moves."""

    def __init__(self, stream: TextIO, *, plain: bool, before: Sequence[Record] = ()) -> None:
        # Slow to import, and wanted on terminals only.
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=stream, no_color=plain, highlight=False, soft_wrap=True)
        self._lines = _Lines(lambda line: self._console.print(line, markup=False), before)
        self._guard = threading.Lock()
        self._tally = Tally(before)
        self._doing = "starting"
        self._since = time.monotonic()
        self._chars = 0
        self._calls = 0
        self._live = Live(
            console=self._console,
            refresh_per_second=_REFRESH_PER_SECOND,
            transient=True,
            get_renderable=self._render,
        )
        self._live.start()

    def watch(self, run: str, record: Record) -> None:
        with self._guard:
            self._tally.add(record)
            self._note(record)
        self._lines.watch(run, record)

    def heard(self, chars: int) -> None:
        self._chars = chars

    def close(self) -> None:
        self._live.stop()

    def _note(self, record: Record) -> None:
        match record:
            case AskModel():
                self._doing, self._chars, self._calls = "asking the model", 0, 0
            case RunProgram():
                self._doing = f"running a program of {_counted(self._tally.lines, 'line')}"
            case HostAnswered():
                self._calls += 1
                return
            case _:
                return
        self._since = time.monotonic()

    def _render(self) -> Text:
        from rich.text import Text

        with self._guard:
            doing = self._doing
            if self._chars and doing == "asking the model":
                doing = f"the model is writing, {self._chars:,} characters"
            if self._calls:
                doing += f", {_counted(self._calls, 'host call')}"
            seconds = time.monotonic() - self._since
            line = (
                f"turn {self._tally.turn:<3} {doing}, {seconds:.0f} s   "
                f"used {self._tally.cost()}   {self._tally.left(seconds=seconds)}"
            )
        return Text(line, style="dim", no_wrap=True, overflow="ellipsis")


_checked: tuple[type[Progress], ...] = (_Silent, _Lines, _Live)
