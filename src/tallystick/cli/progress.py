"""How a run is going, for whoever waits: a live tree on a terminal, plain lines elsewhere.

Everything goes to stderr; the answer alone goes to stdout. What a model writes is shown when it is
on the ledger, never while it comes: until then there is only how much of it has come.

Rule: a record is counted in constant time, whatever the tree. What is drawn is bounded: by the
height of the terminal, and elsewhere by how many children have a line of their own.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TextIO

from tallystick.cli.progress_rows import (
    budget_lines,
    counted,
    counts_of,
    fitted,
    rows_of,
    shown_cost,
    state_of,
)
from tallystick.cli.render import outcome, plain, safe
from tallystick.core.commands import as_program
from tallystick.core.money import shown_usd
from tallystick.core.program import line_count
from tallystick.core.records import (
    AskModel,
    ChildEnded,
    ModelFailed,
    ModelReplied,
    ProgramFinished,
    Record,
    RunEnded,
    RunProgram,
)
from tallystick.core.reply import Code, Run, parse_reply
from tallystick.runtime.family_tally import Branch, FamilyTally

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["Before", "Progress", "progress_for"]

_REFRESH_PER_SECOND = 4
# Rows of the tree at most, and lines around them that belong to the whole.
_ROWS_MAX = 12
_LINES_AROUND = 6
# So many children have a line each where no terminal is; the others are summed up, so often.
_CHILD_LINES_MAX = 20
_SUM_SECONDS = 5.0
_LINE_CHARS_MAX = 1_000
_NAME_CHARS_MAX = 40

# What is recorded of the children of a run that are gone on with, each under its run.
Before = Sequence[tuple[str, Record]]


class Progress(Protocol):
    """Is told of every record of a tree, and of every piece of a reply."""

    def watch(self, run: str, record: Record) -> None: ...

    def waits(self, parent: str, change: int) -> None:
        """So many more children of a run wait for a place."""
        ...

    def heard(self, chars: int) -> None: ...

    def stopping(self) -> None:
        """Whoever waits wants it to stop. Called where anything may be going on."""
        ...

    def close(self) -> None: ...


def progress_for(
    *,
    quiet: bool,
    stream: TextIO | None = None,
    environ: Mapping[str, str] = os.environ,
    before: Sequence[Record] = (),
    inside: Before = (),
    clock: Callable[[], float] = time.monotonic,
) -> Progress:
    """The way to show progress that fits where it is shown; stderr, unless told.

    `before` is what is recorded of a run that is gone on with, `inside` of its children that are:
    it is counted, and not told.
    """
    if quiet:
        return _Silent()
    stream = sys.stderr if stream is None else stream
    tally = FamilyTally(before, inside, clock=clock)
    if stream.isatty() and environ.get("TERM", "") not in ("", "dumb"):
        return _Live(stream, tally, before, plain="NO_COLOR" in environ, clock=clock)
    say = _said_to(stream)
    return _Lines(say, tally, before, children=True, clock=clock)


def _said_to(stream: TextIO) -> Callable[[str], None]:
    return lambda line: print(line, file=stream, flush=True)


class _Silent:
    """Says nothing."""

    def watch(self, run: str, record: Record) -> None: ...

    def waits(self, parent: str, change: int) -> None: ...

    def heard(self, chars: int) -> None: ...

    def stopping(self) -> None: ...

    def close(self) -> None: ...


class _Programs:
    """What the last reply of the root held, for the lines that tell of it."""

    def __init__(self, before: Sequence[Record] = ()) -> None:
        self.tokens = 0
        self.estimated = False
        self.lines = 0
        self._sources: list[str] = []
        for record in before:
            self.add(record)

    def add(self, record: Record) -> None:
        if isinstance(record, ModelReplied):
            self.tokens = record.usage.tokens_in + record.usage.tokens_out
            self.estimated = not record.usage.reported
            commands = parse_reply(record.text, cut=record.cut).commands
            self._sources = [
                as_program(each) if isinstance(each, Code | Run) else "" for each in commands
            ]
        elif isinstance(record, RunProgram):
            part = record.part
            source = self._sources[part] if part < len(self._sources) else ""
            self.lines = line_count(source) or 1


class _Lines:
    """One line for everything a person would want to have been told.

    With `children`, also for each of the first children that ended, and a sum of the others.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        tally: FamilyTally,
        before: Sequence[Record] = (),
        *,
        children: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say = say
        self._clock = clock
        self.guard = threading.Lock()
        self._children = children
        self._ended = 0
        self._unsaid = 0
        self._summed_at = clock()
        self.tally = tally
        self.programs = _Programs(before)
        self._told_turn = tally.root.turn

    def watch(self, run: str, record: Record) -> None:
        # Of one run they come in order; those of a tree come from several threads.
        with self.guard:
            lines = self._told(run, record)
        for line in lines:
            # Servers and programs have their words in it; a terminal obeys control characters.
            self._say(safe(line[:_LINE_CHARS_MAX]))

    def waits(self, parent: str, change: int) -> None:
        with self.guard:
            self.tally.waits(parent, change)

    def heard(self, chars: int) -> None: ...

    def stopping(self) -> None: ...

    def close(self) -> None: ...

    def _told(self, run: str, record: Record) -> list[str]:
        is_root = self.tally.branch(run) is self.tally.root
        ended = self.tally.add(run, record)
        lines: list[str] = []
        if ended is not None and isinstance(record, ChildEnded) and self._children:
            lines += self._child(ended, record)
        if is_root:
            self.programs.add(record)
            if isinstance(record, ProgramFinished | RunEnded) and self._unsaid:
                lines.append(self._sum())
            own = self._line(record)
            lines += [] if own is None else [own]
        return lines

    def _child(self, child: Branch, record: ChildEnded) -> list[str]:
        """A child that ended; or a sum, where there were many and one is due."""
        if record.stop == "cancelled":
            # The end of the whole says so.
            return []
        self._ended += 1
        if self._ended <= _CHILD_LINES_MAX:
            return [_child_line(child, record, number=self._ended)]
        self._unsaid += 1
        due = self._clock() - self._summed_at >= _SUM_SECONDS
        return [self._sum()] if due else []

    def _sum(self) -> str:
        self._unsaid, self._summed_at = 0, self._clock()
        return f"  runs inside: {counts_of(self.tally)}   {shown_cost(self.tally.root.used)}"

    def _line(self, record: Record) -> str | None:
        root = self.tally.root
        match record:
            case AskModel() if record.attempt > 1:
                return (
                    f"turn {record.turn:<3} asking again (attempt {record.attempt} of "
                    f"{root.limits.retries + 1}), after {record.wait_ms / 1000:.2g} s"
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
                    f"turn {record.turn:<3} program {counted(self.programs.lines, 'line'):<10}"
                    f"{counted(record.host_calls, 'host call'):<14}{self._tokens():<14}  "
                    f"{self._so_far()}{outcome(record)}"
                )
            case _:
                return None

    def _so_far(self) -> str:
        """What the run has cost, where that is known and anything."""
        usd = self.tally.root.used.usd
        return f"{shown_usd(usd)} so far  " if usd else ""

    def _tokens(self) -> str:
        estimated = " (estimated)" if self.programs.estimated else ""
        return f"{self.programs.tokens:,} tokens{estimated}"


def _child_line(child: Branch, record: ChildEnded, *, number: int) -> str:
    charge = record.charge
    spent = charge.tokens_in + charge.tokens_out
    cost = "" if charge.usd is None else f"  {shown_usd(charge.usd)}"
    said = plain(record.answer or record.detail, chars_max=_NAME_CHARS_MAX)
    return (
        f"{'  ' * min(child.depth, _ROWS_MAX)}run {number:<3} {record.stop:<11} "
        f"{counted(charge.turns, 'turn'):<8} {spent:,} tokens{cost}  "
        f"{plain(child.goal, chars_max=_NAME_CHARS_MAX)!r}  {said!r}"
    )


class _Live:
    """The lines of the root, and below them what moves: the root, and the runs inside it."""

    def __init__(
        self,
        stream: TextIO,
        tally: FamilyTally,
        before: Sequence[Record] = (),
        *,
        plain: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # Slow to import, and wanted on terminals only.
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=stream, no_color=plain, highlight=False, soft_wrap=True)
        self._clock = clock
        self._tally = tally
        self._lines = _Lines(
            lambda line: self._console.print(line, markup=False), tally, before, children=False
        )
        self._chars = 0
        self._stopping = False
        self._live = Live(
            console=self._console,
            refresh_per_second=_REFRESH_PER_SECOND,
            transient=True,
            get_renderable=self._render,
        )
        self._live.start()

    def watch(self, run: str, record: Record) -> None:
        if isinstance(record, AskModel):
            self._chars = 0
        self._lines.watch(run, record)

    def waits(self, parent: str, change: int) -> None:
        self._lines.waits(parent, change)

    def heard(self, chars: int) -> None:
        self._chars = chars

    def stopping(self) -> None:
        self._stopping = True

    def close(self) -> None:
        self._live.stop()

    def _render(self) -> Text:
        from rich.text import Text

        width, height = self._console.size
        with self._lines.guard:
            lines = self._drawn(width=width - 1, height=height)
        return Text("\n".join(lines), style="dim", no_wrap=True, overflow="ellipsis")

    def _drawn(self, *, width: int, height: int) -> list[str]:
        root = self._tally.root
        used = root.used
        seconds = self._clock() - root.since
        doing = f"turn {root.turn:<3} {self._doing(root)}, {seconds:.0f} s"
        if not root.goal:
            # Its limits are not known before it has begun.
            return [fitted(doing, width).rstrip()]
        rows_max = max(1, min(_ROWS_MAX, height - _LINES_AROUND))
        rows = rows_of(self._tally, rows_max=rows_max, width=width)
        budget = budget_lines(used, root.limits, seconds=seconds, width=width)
        whole = f"{doing}   {'   '.join(budget)}"
        if not rows and len(whole) <= width:
            return [whole]
        return [fitted(doing, width).rstrip(), *rows, *budget]

    def _doing(self, root: Branch) -> str:
        if self._stopping:
            return "stopping; Ctrl-C again leaves at once"
        if root.doing == "asking" and self._chars:
            return f"the model is writing, {self._chars:,} characters"
        if root.doing != "running":
            return state_of(root)
        doing = f"running a program of {counted(self._lines.programs.lines, 'line')}"
        asked, answered = len(root.batch.asked), len(root.batch.answered)
        if asked > 1:
            # How many the batch has is not on record before all are asked.
            doing += f", {counted(answered, 'query')} answered, {asked - answered:,} under way"
        return doing + (f", {counted(root.calls, 'host call')}" if root.calls else "")


_checked: tuple[type[Progress], ...] = (_Silent, _Lines, _Live)
