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
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TextIO

from tallystick.cli.show import counted, outcome, plain, safe
from tallystick.core.charge import Charge, RunLimits, shown_usd
from tallystick.core.machine.commands import Code, Run, line_count
from tallystick.core.machine.reply import as_program, parse_reply
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
from tallystick.runtime.runs.tree import RunNode, RunTree
from tallystick.sandbox.port import COMPILING

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text


# A tree of runs as rows of text: one for each run, what it does and cost, and what is left.
#
# Rule: names and errors are written by models. Nothing of them reaches a terminal that it would act
# on, and every row is as wide as it may be, however wide its characters are.


_NAME_CELLS_MAX = 60
_NAME_CELLS_MIN = 16
_STATE_CELLS = 19
_COST_CELLS = 8
# In nano-dollars: a column has four decimals.
_LEAST_SHOWN = 100_000
# A cap that is hardly ever met is told from this share on.
_SHARE_TOLD = 0.5
_WIDE = frozenset({"W", "F"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What is told of one run."""

    depth: int
    name: str
    state: str
    turn: int
    charge: Charge


def row_text(row: Row, *, width: int, name_cells: int | None = None) -> str:
    """A row in so many cells. Where there are few, what it cost is left out, then its turn.

    `name_cells` is how many its name has, with what it is set in by; else what the others leave.
    """
    spent = row.charge.tokens_in + row.charge.tokens_out
    columns = [
        f"{plain(row.state, chars_max=_STATE_CELLS):<{_STATE_CELLS}}",
        f"turn {row.turn:<3}" if row.turn else " " * 8,
        f"{spent:>7,} tokens",
        f"{_about_usd(row.charge.usd):>{_COST_CELLS}}",
    ]
    while len(columns) > 1 and width - _cells(columns) < _NAME_CELLS_MIN:
        columns.pop()
    room = min(max(4, width - _cells(columns)), name_cells or _NAME_CELLS_MAX)
    indent = "  " * min(row.depth, room // 4)
    named = fitted(f"{indent}{plain(row.name, chars_max=_NAME_CELLS_MAX)}", room)
    return fitted("  ".join([named, *columns]), width).rstrip()


def _cells(columns: list[str]) -> int:
    return sum(len(each) + 2 for each in columns)


def _about_usd(nano: int | None) -> str:
    """A sum in a column; nothing where no price is known."""
    if nano is None:
        return ""
    return "<$0.0001" if 0 < nano < _LEAST_SHOWN else f"${nano / 1e9:,.4f}"


def rows_of(tally: RunTree, *, rows_max: int, width: int) -> list[str]:
    """The live runs below the root, each under the one that began it, and a sum of the others."""
    chosen: list[RunNode] = []
    waiting = list(reversed(tally.root.live.values()))
    while waiting and len(chosen) < rows_max:
        chosen.append(waiting.pop())
        waiting.extend(reversed(chosen[-1].live.values()))
    shown = [
        row_text(
            Row(
                depth=each.depth,
                name=each.goal or each.run,
                state=state_of(each),
                turn=each.turn,
                charge=each.used,
            ),
            width=width,
        )
        for each in chosen
    ]
    rest = counts_of(tally, shown=len(chosen))
    return [*shown, fitted(f"  … {rest}", width).rstrip()] if rest else shown


def counts_of(tally: RunTree, *, shown: int = 0) -> str:
    """The runs that have no row, in numbers; nothing, where there are none."""
    more = tally.live - shown
    named = (
        (more, f"{more:,} {'more ' if shown else ''}live"),
        (tally.waiting, f"{tally.waiting:,} waiting for a place"),
        (tally.answered, f"{tally.answered:,} done"),
        (tally.failed, f"{tally.failed:,} failed"),
        (tally.stopped, f"{tally.stopped:,} cut off"),
    )
    return ", ".join(text for count, text in named if count > 0)


def state_of(branch: RunNode) -> str:
    """What a run does, in a few words."""
    inside = len(branch.live) + branch.waiting
    asked = len(branch.batch.asked)
    if branch.doing == "ended":
        return branch.stop
    if branch.doing == "running" and inside:
        return f"waits for {counted(inside, 'run')}"
    if branch.doing == "running" and asked > 1:
        return f"{len(branch.batch.answered):,} queries answered"
    words = {
        "starting": "starting",
        "waiting": "waiting for a place",
        "asking": "asking the model",
        "running": "running a program",
    }
    return words[branch.doing]


def budget_lines(used: Charge, limits: RunLimits, *, seconds: float, width: int) -> list[str]:
    """What a tree has used and may still use, the tightest cap first, in one line or two."""
    cost = f"used {shown_cost(used)}"
    caps = caps_left(used, limits, seconds=seconds)
    whole = f"{cost}   left {', '.join(caps)}"
    if len(whole) <= width:
        return [whole]
    # The loosest go first.
    while len(caps) > 1 and len(", ".join(caps)) + 5 > width:
        caps.pop()
    return [fitted(cost, width).rstrip(), fitted(f"left {', '.join(caps)}", width).rstrip()]


def caps_left(used: Charge, limits: RunLimits, *, seconds: float = 0.0) -> list[str]:
    """What may still be used under each cap, `seconds` into what is being done; tightest first."""
    spent = used.tokens_in + used.tokens_out
    past_ms = used.wall_ms + seconds * 1000
    time_left = max(0, round((limits.wall_ms - past_ms) / 1000))
    turns = max(0, limits.turns - used.turns)
    found = [
        (_share(used.turns, limits.turns), counted(turns, "turn")),
        (_share(spent, limits.tokens), f"{max(0, limits.tokens - spent):,} tokens"),
        (_share(past_ms, limits.wall_ms), f"{time_left // 60}:{time_left % 60:02d}"),
    ]
    if limits.usd is not None:
        usd = used.usd or 0
        found.append((_share(usd, limits.usd), shown_usd(max(0, limits.usd - usd))))
    if limits.model_calls is not None:
        calls = max(0, limits.model_calls - used.model_calls)
        found.append((_share(used.model_calls, limits.model_calls), counted(calls, "model call")))
    hosted = _share(used.host_calls, limits.host_calls)
    if hosted >= _SHARE_TOLD:
        left = max(0, limits.host_calls - used.host_calls)
        found.append((hosted, counted(left, "host call")))
    return [text for _, text in sorted(found, key=lambda each: -each[0])]


def _share(used: float, limit: int) -> float:
    return used / limit if limit else 1.0


def shown_cost(charge: Charge, *, bounded: bool = False) -> str:
    """Write tokens and dollars; with `bounded`, as the most that they can be."""
    spent = charge.tokens_in + charge.tokens_out
    usd = shown_usd(charge.usd) if charge.usd is not None else "price unknown"
    return f"{'at most ' if bounded else ''}{spent:,} tokens, {usd}"


def fitted(text: str, cells: int) -> str:
    """A text in exactly so many cells of a terminal, cut or filled up."""
    if text.isascii():
        wide = len(text)
        if wide <= cells:
            return text + " " * (cells - wide)
        return f"{text[: cells - 1]}…" if cells > 0 else ""
    kept: list[str] = []
    wide = 0
    for each in text:
        size = _cells_of(each)
        if wide + size > cells:
            while kept and wide + 1 > cells:
                wide -= _cells_of(kept.pop())
            return "".join(kept) + "…" + " " * (cells - wide - 1) if cells > 0 else ""
        kept.append(each)
        wide += size
    return text + " " * (cells - wide)


def _cells_of(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in _WIDE else 1


# How a run is going, for whoever waits: a live tree on a terminal, plain lines elsewhere.


_REFRESH_PER_SECOND = 4
# Rows of the tree at most, and lines around them that belong to the whole.
_ROWS_MAX = 12
_LINES_AROUND = 6
# So many children have a line each where no terminal is; the others are summed up, so often.
_CHILD_LINES_MAX = 20
_SUM_SECONDS = 5.0
# Before the lines of a program and of its output, and how many of the latter are shown.
_PROGRAM = "    >>> "
_OUTPUT = "    "
_OUTPUT_LINES_MAX = 40
# A bar of a compilation is full after so long, on a slow machine.
_BAR_CELLS = 24
_COMPILE_SECONDS = 20.0
# How often a line is printed where there is no bar, and when a compiler must have failed.
_COMPILE_LINE_SECONDS = 4.0
_COMPILE_SECONDS_MAX = 600.0
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

    def say(self, line: str) -> None:
        """Show a line of the sandbox, such as that it is being compiled."""
        ...

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
    verbose: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Progress:
    """The way to show progress that fits where it is shown; stderr, unless told.

    With `verbose`, programs are shown when they start, and what they printed when they end.

    `before` is what is recorded of a run that is gone on with, `inside` of its children that are:
    it is counted, and not told.
    """
    if quiet:
        return _Silent()
    stream = sys.stderr if stream is None else stream
    tally = RunTree(before, inside, clock=clock)
    if stream.isatty() and environ.get("TERM", "") not in ("", "dumb"):
        no_color = "NO_COLOR" in environ
        return _Live(stream, tally, before, plain=no_color, verbose=verbose, clock=clock)
    say = _said_to(stream)
    return _Lines(say, tally, before, children=True, verbose=verbose, clock=clock)


def _said_to(stream: TextIO) -> Callable[[str], None]:
    return lambda line: print(line, file=stream, flush=True)


class Sayer:
    """Print the lines of a sandbox on stderr, and show that time passes while it is compiled.

    A terminal shows a bar; elsewhere a line is printed every four seconds.
    """

    def __init__(
        self, stream: TextIO | None = None, *, every: float = _COMPILE_LINE_SECONDS
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._every = every
        self._bar: Live | None = None
        self._compiled = threading.Event()

    def __call__(self, line: str) -> None:
        self._compiled.set()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        print(safe(line), file=self._stream, flush=True)
        if not line.startswith(COMPILING):
            return
        if self._stream.isatty():
            self._bar = self._started_bar()
            return
        self._compiled = threading.Event()
        # A daemon: if the compiler fails, nothing tells this thread, and it must not keep the
        # process alive.
        threading.Thread(target=self._print_times, args=(self._compiled,), daemon=True).start()

    def _print_times(self, compiled: threading.Event) -> None:
        """Print how long the compiler has been at work, until the next line comes."""
        began = time.monotonic()
        while not compiled.wait(self._every):
            seconds = time.monotonic() - began
            if seconds > _COMPILE_SECONDS_MAX:
                return
            print(f"  {seconds:.0f} s (5 to 20 s on most machines)", file=self._stream, flush=True)

    def _started_bar(self) -> Live:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        began = time.monotonic()
        bar = Live(
            console=Console(file=self._stream, no_color="NO_COLOR" in os.environ),
            refresh_per_second=_REFRESH_PER_SECOND,
            transient=True,
            get_renderable=lambda: Text(_compile_line(time.monotonic() - began), style="dim"),
        )
        bar.start(refresh=True)
        return bar


def _compile_line(seconds: float) -> str:
    """Draw a bar for a compilation. The compiler does not say how far it is; time does, roughly."""
    done = min(_BAR_CELLS - 1, round(_BAR_CELLS * seconds / _COMPILE_SECONDS))
    bar = "━" * done + "─" * (_BAR_CELLS - done)
    return f"{bar} {seconds:.0f} s (5 to 20 s on most machines)"


class _Silent:
    """Says nothing but what concerns this machine, not the run."""

    def __init__(self) -> None:
        self.say = Sayer()

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
        self.source = ""
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
            self.source = self._sources[part] if part < len(self._sources) else ""
            self.lines = line_count(self.source) or 1


class _Lines:
    """One line for everything a person would want to have been told.

    With `children`, also for each of the first children that ended, and a sum of the others. With
    `verbose`, also each program and its output; `show_program` shows a program, if not `say`.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        tally: RunTree,
        before: Sequence[Record] = (),
        *,
        children: bool,
        verbose: bool = False,
        show_program: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say = say
        self.say = Sayer()
        self._verbose = verbose
        self._show_program = show_program or self._say_program
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
            is_root = self.tally.branch(run) is self.tally.root
            program = self.programs.source if isinstance(record, RunProgram) else ""
        if self._verbose and is_root:
            if program:
                self._show_program("\n".join(safe(line) for line in program.splitlines()))
            if isinstance(record, ProgramFinished):
                lines = [*_output_lines(record), *lines]
        for line in lines:
            # Servers and programs have their words in it; a terminal obeys control characters.
            self._say(safe(line[:_LINE_CHARS_MAX]))

    def _say_program(self, source: str) -> None:
        for line in source.splitlines():
            self._say(f"{_PROGRAM}{line}")

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

    def _child(self, child: RunNode, record: ChildEnded) -> list[str]:
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
                    f"{self._spent()}{outcome(record)}"
                )
            case _:
                return None

    def _spent(self) -> str:
        """What the run has cost, where that is known and anything."""
        usd = self.tally.root.used.usd
        at_most = "at most " if self.tally.at_most else ""
        return f"{at_most}{shown_usd(usd)} so far  " if usd else ""

    def _tokens(self) -> str:
        estimated = " (estimated)" if self.programs.estimated else ""
        return f"{self.programs.tokens:,} tokens{estimated}"


def _output_lines(record: ProgramFinished) -> list[str]:
    """List what a program printed, and its traceback; of long output, the beginning."""
    failure = "" if record.failure is None else record.failure.traceback
    lines = f"{record.stdout}{record.stderr}{failure}".splitlines()
    shown = [f"{_OUTPUT}{line}" for line in lines[:_OUTPUT_LINES_MAX]]
    more = len(lines) - len(shown)
    return [*shown, f"{_OUTPUT}… {counted(more, 'more line')} (tally inspect)"] if more else shown


def _child_line(child: RunNode, record: ChildEnded, *, number: int) -> str:
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
        tally: RunTree,
        before: Sequence[Record] = (),
        *,
        plain: bool,
        verbose: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # Slow to import, and wanted on terminals only.
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=stream, no_color=plain, highlight=False, soft_wrap=True)
        self._clock = clock
        self._tally = tally
        self._lines = _Lines(
            lambda line: self._console.print(line, markup=False),
            tally,
            before,
            children=False,
            verbose=verbose,
            show_program=None if plain else self._highlight,
        )
        self._chars = 0
        self._compiling_since: float | None = None
        self._stopping = False
        self._live = Live(
            console=self._console,
            refresh_per_second=_REFRESH_PER_SECOND,
            transient=True,
            get_renderable=self._render,
        )
        self._live.start()

    def _highlight(self, source: str) -> None:
        from rich.padding import Padding
        from rich.syntax import Syntax

        code = Syntax(source, "python", theme="ansi_dark", background_color="default")
        self._console.print(Padding(code, (0, 0, 0, len(_PROGRAM))))

    def watch(self, run: str, record: Record) -> None:
        if isinstance(record, AskModel):
            self._chars = 0
        self._lines.watch(run, record)

    def waits(self, parent: str, change: int) -> None:
        self._lines.waits(parent, change)

    def heard(self, chars: int) -> None:
        self._chars = chars

    def say(self, line: str) -> None:
        self._compiling_since = self._clock() if line.startswith(COMPILING) else None
        self._console.print(safe(line), markup=False)

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
        if self._compiling_since is not None:
            return [fitted(_compile_line(self._clock() - self._compiling_since), width).rstrip()]
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

    def _doing(self, root: RunNode) -> str:
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
