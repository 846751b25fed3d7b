"""Draw the figures of the docs as SVG files in `docs/figures`.

    python -m tools.figures          draw all of them
    python -m tools.figures --check  name those that differ from their file; exit code 1 if any do

Each figure is a function at the end of this file. A figure paints its own background and has its
colours twice, for light and for dark, so it can be read on a page of either kind. Text that would
not fit into its box is an error when the figure is drawn, not a surprise in a browser.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "figures"
PACKAGE = ROOT / "src" / "tallystick"

WIDTH = 760
_FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
_MONO = "ui-monospace, 'DejaVu Sans Mono', monospace"
# Of an em, for the widest of the fonts above. Too wide is safe: text then has more room.
_CHARACTER = 0.57
_CHARACTER_BOLD = 0.62
_CHARACTER_MONO = 0.61
_LINE = 17

# Fill, line and text of each kind of box, for light and for dark.
_KINDS = {
    "plain": (("#f3f5f7", "#8794a1", "#1f2933"), ("#232c35", "#7d8b98", "#e4e9ee")),
    "ours": (("#e4effa", "#2a6db5", "#123a63"), ("#17304a", "#6ea8e4", "#d5e7fa")),
    "good": (("#e3f3e8", "#2c7d4a", "#154d2b"), ("#16362a", "#67bd8a", "#d3f0de")),
    "care": (("#fcefdf", "#b0651a", "#6b3806"), ("#3f2b16", "#d99a5b", "#fbe6cf")),
    "gone": (("none", "#8794a1", "#5b6875"), ("none", "#7d8b98", "#a9b5c0")),
}
_PAPER = ("#ffffff", "#151b21")
_INK = ("#1f2933", "#e4e9ee")
_SOFT = ("#5b6875", "#a9b5c0")
_STROKE = ("#5b6875", "#a9b5c0")


class Figure:
    """One figure: shapes and text on a background, with a title that is read aloud."""

    def __init__(self, title: str, *, height: int) -> None:
        self._title = title
        self._height = height
        self._parts: list[str] = []

    def box(
        self,
        x: int,
        y: int,
        width: int,
        height: int,
        head: str,
        *notes: str,
        kind: str = "plain",
        mono: bool = False,
    ) -> None:
        """Draw a box with a bold line and smaller lines below it, all centred."""
        self.frame(x, y, width, height, kind=kind)
        lines = [head, *notes] if head else list(notes)
        top = y + height / 2 - (len(lines) - 1) * _LINE / 2 + 5
        for number, line in enumerate(lines):
            first = number == 0 and bool(head)
            style = f"{kind} {'head' if first else 'mono' if mono else 'note'}"
            self._write(x + width / 2, top + number * _LINE, line, style, room=width - 6)

    def frame(
        self, x: int, y: int, width: int, height: int, *, kind: str = "plain", head: str = ""
    ) -> None:
        """Draw a box that has others in it, with its name in the upper left corner."""
        self._parts.append(
            f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>'
        )
        if head:
            self._write(x + 10, y + 19, head, f"{kind} head left", room=width - 20)

    def text(
        self, x: int, y: int, line: str, *, kind: str = "soft", left: bool = False, room: int = 700
    ) -> None:
        """Write one line that stands in no box."""
        self._write(x, y, line, f"{kind} note" + (" left" if left else ""), room=room)

    def arrow(self, *points: tuple[int, int], dashed: bool = False) -> None:
        """Draw a line through points that ends in an arrow."""
        path = " ".join(f"{'L' if each else 'M'}{x} {y}" for each, (x, y) in enumerate(points))
        dash = ' stroke-dasharray="4 4"' if dashed else ""
        self._parts.append(f'<path class="line" d="{path}"{dash} marker-end="url(#tip)"/>')

    def rule(self, *points: tuple[int, int], dashed: bool = False) -> None:
        """Draw a line through points."""
        path = " ".join(f"{'L' if each else 'M'}{x} {y}" for each, (x, y) in enumerate(points))
        dash = ' stroke-dasharray="4 4"' if dashed else ""
        self._parts.append(f'<path class="line" d="{path}"{dash}/>')

    def drawn(self) -> str:
        """Return the whole file."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self._height}" '
            f'width="{WIDTH}" height="{self._height}" role="img" aria-labelledby="title">'
        )
        return "\n".join(
            [
                head,
                f'<title id="title">{escape(self._title)}</title>',
                f"<style>\n{_style()}</style>",
                '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
                'markerHeight="7" orient="auto"><path class="tip" d="M0 1 10 5 0 9z"/></marker>'
                "</defs>",
                f'<rect class="paper" width="{WIDTH}" height="{self._height}" rx="8"/>',
                *self._parts,
                "</svg>\n",
            ]
        )

    def _write(self, x: float, y: float, line: str, style: str, *, room: float) -> None:
        wide = _CHARACTER_BOLD if "head" in style else _CHARACTER
        size = 14 if "head" in style else 12.5
        wide = _CHARACTER_MONO if "mono" in style else wide
        if len(line) * wide * size > room:
            raise ValueError(f"{self._title}: {line!r} does not fit into {room:g} pixels")
        self._parts.append(f'<text class="{style}" x="{x:g}" y="{y:g}">{escape(line)}</text>')


def _style() -> str:
    """Return the style sheet: colours for light, then the same for dark."""
    sheet = (
        f"text{{font-family:{_FONT};font-size:12.5px;text-anchor:middle}}\n"
        f".mono{{font-family:{_MONO};font-size:12px}}\n"
        ".head{font-size:14px;font-weight:600}\n.left{text-anchor:start}\n"
        "rect{stroke-width:1.4}\n.line{fill:none;stroke-width:1.6}\n"
        "rect.gone{stroke-dasharray:5 4}\n"
    )
    return sheet + _colours(0) + "@media (prefers-color-scheme:dark){\n" + _colours(1) + "}\n"


def _colours(dark: int) -> str:
    rules = [
        f"rect.paper{{fill:{_PAPER[dark]}}}",
        f"text.ink{{fill:{_INK[dark]}}}",
        f"text.soft{{fill:{_SOFT[dark]}}}",
        f".line{{stroke:{_STROKE[dark]}}}",
        f".tip{{fill:{_STROKE[dark]}}}",
    ]
    for kind, colours in _KINDS.items():
        fill, line, text = colours[dark]
        rules.append(f"rect.{kind}{{fill:{fill};stroke:{line}}}")
        rules.append(f"text.{kind}{{fill:{text}}}")
    return "\n".join(rules) + "\n"


# -- the figures -------------------------------------------------------------------------------


def run() -> Figure:
    """Draw the life of a run."""
    figure = Figure(
        "The life of a run: the model is asked, its program runs, and so on until the answer. "
        "Each action is recorded before and after.",
        height=330,
    )
    figure.box(16, 84, 124, 74, "Start", "goal, data,", "limits, grants")
    figure.frame(176, 20, 400, 182, kind="ours", head="a turn, repeated")
    figure.box(194, 84, 160, 74, "Model call", "reserve, ask, settle")
    figure.box(398, 84, 160, 74, "Program", "runs in the sandbox,", "calls the host")
    figure.box(612, 84, 132, 74, "End", "answer, or the", "reason to stop", kind="good")
    figure.arrow((140, 121), (192, 121))
    figure.arrow((354, 121), (396, 121))
    figure.arrow((558, 121), (610, 121))
    figure.arrow((478, 84), (478, 60), (274, 60), (274, 82))
    figure.text(376, 54, "what it printed")
    figure.text(376, 188, "the reply is a program")
    figure.frame(16, 240, 728, 74, kind="plain", head="the ledger, in order")
    records: Sequence[tuple[int, str, str]] = (
        (78, "", "run.started"),
        (274, "model.ask", "model.replied"),
        (478, "program.run", "program.finished"),
        (678, "receipt.issued", "run.ended"),
    )
    for x, before, after in records:
        figure.arrow((x, 158), (x, 238), dashed=True)
        figure.text(x, 282, before, kind="plain", room=150)
        figure.text(x, 300, after, kind="plain", room=150)
    return figure


def turn() -> Figure:
    """Draw one turn."""
    figure = Figure(
        "A turn: the prompt is built, the model replies, and the reply is read.", height=366
    )
    figure.frame(16, 20, 210, 204, head="the prompt")
    for place, line in enumerate(
        (
            "fixed part: how to act",
            "functions it may call",
            "the data, by its shape",
            "the task and the time",
            "programs and outputs",
        )
    ):
        kind = "ours" if place == 4 else "plain"
        figure.box(28, 50 + place * 34, 186, 28, "", line, kind=kind)
    figure.box(270, 84, 120, 76, "Model", "one reply")
    figure.box(434, 84, 130, 76, "Reader", "finds programs", "and FINAL")
    figure.arrow((226, 122), (268, 122))
    figure.arrow((390, 122), (432, 122))
    figure.box(608, 20, 136, 60, "Answer", "the run ends", kind="good")
    figure.box(608, 94, 136, 60, "Program", "runs; its output", kind="ours")
    figure.box(608, 168, 136, 60, "Only words", "a program is due", kind="care")
    figure.arrow((564, 108), (586, 108), (586, 50), (606, 50))
    figure.arrow((564, 122), (606, 122))
    figure.arrow((564, 136), (586, 136), (586, 198), (606, 198))
    figure.arrow((744, 124), (752, 124), (752, 262), (121, 262), (121, 228))
    figure.rule((676, 228), (676, 262))
    figure.text(440, 254, "the next turn: the program and its output are added to the prompt")
    figure.frame(16, 290, 728, 60, kind="gone")
    figure.text(
        380, 315, "Long runs: beyond 12,000 tokens, old outputs are shortened in the prompt."
    )
    figure.text(380, 335, "Programs still find the whole of them in the list outputs.")
    return figure


def program() -> Figure:
    """Draw a host call of a program."""
    figure = Figure(
        "A host call: the program waits, the host checks and records, and the answer goes back.",
        height=372,
    )
    for x, width, head, kind in (
        (16, 180, "guest", "care"),
        (230, 240, "host", "ours"),
        (504, 108, "ledger", "plain"),
        (646, 98, "outside", "plain"),
    ):
        figure.frame(x, 16, width, 340, kind=kind, head=head)
    figure.box(28, 60, 156, 50, "", "rate('usd')", "is called", mono=True)
    figure.box(28, 150, 156, 96, "Waits", "its clock of active", "time is stopped", kind="gone")
    figure.box(28, 284, 156, 50, "Continues", "with the answer", kind="plain")
    figure.box(242, 52, 216, 66, "Check", "known? granted? within", "limits of size and number?")
    figure.box(242, 140, 216, 48, "On record already?", "then serve that answer")
    figure.box(242, 210, 216, 48, "Call the function", "or a model, or a text")
    figure.box(242, 280, 216, 58, "Answer", "as JSON, its size checked")
    figure.arrow((184, 85), (240, 85))
    figure.arrow((350, 118), (350, 138))
    figure.arrow((350, 188), (350, 208))
    figure.arrow((350, 258), (350, 278))
    figure.arrow((242, 309), (186, 309))
    figure.box(514, 175, 88, 48, "", "host.call", "if it acts", kind="good")
    figure.box(514, 285, 88, 48, "", "answered", "afterwards", kind="good")
    figure.arrow((350, 199), (512, 199), dashed=True)
    figure.arrow((458, 309), (512, 309), dashed=True)
    figure.box(656, 210, 78, 48, "", "the world")
    figure.arrow((458, 240), (654, 240))
    return figure


def sandbox() -> Figure:
    """Draw the walls of the two sandboxes."""
    figure = Figure(
        "The walls of the two sandboxes: one engine with three imports, or layers of the kernel.",
        height=400,
    )
    figure.frame(16, 16, 356, 368, head="wasm: in your process")
    figure.frame(36, 50, 316, 236, kind="ours", head="engine: counts fuel, bounds memory")
    figure.frame(56, 84, 276, 182, kind="care", head="one module, its own memory")
    figure.box(76, 118, 236, 52, "Program", "hostile", kind="plain")
    figure.box(
        76,
        186,
        236,
        62,
        "CPython and its library",
        "clock, randomness: its own",
        "no files, no sockets",
    )
    figure.box(36, 320, 316, 48, "Host", "everything a program is given", kind="good")
    for x, name in ((96, "call"), (194, "take"), (292, "stdio")):
        figure.arrow((x, 266), (x, 318))
        figure.text(x + 4, 304, name, kind="ink", left=True, room=40)
    figure.frame(388, 16, 356, 368, head="process: beside your process")
    figure.frame(408, 50, 316, 236, kind="ours", head="namespaces: own files, processes")
    figure.frame(424, 84, 284, 190, kind="ours", head="Landlock, seccomp: few calls")
    figure.frame(440, 118, 252, 146, kind="care", head="limits of memory, time")
    figure.box(456, 150, 220, 44, "Program", "Python and bash, hostile", kind="plain")
    figure.box(456, 206, 220, 44, "Working directory", "256 MB, in memory", kind="plain")
    figure.box(408, 320, 150, 48, "Host", "functions, models", kind="good")
    figure.box(574, 320, 150, 48, "Proxy", "only if granted", kind="gone")
    figure.arrow((482, 286), (482, 318))
    figure.arrow((648, 286), (648, 318), dashed=True)
    return figure


def ledger() -> Figure:
    """Draw the chain of a run."""
    figure = Figure(
        "The chain of a run: each entry is hashed with the one before. Bodies are stored apart "
        "and can be deleted; the hashes still hold.",
        height=352,
    )
    entries = (("0", "run.started"), ("1", "model.ask"), ("2", "model.replied"))
    for place, (seq, tag) in enumerate(entries):
        x = 16 + place * 206
        erased = place == 1
        figure.frame(x, 48, 178, 116, kind="ours", head=f"entry {seq}")
        figure.text(x + 89, 90, tag, kind="ours", room=170)
        figure.text(x + 89, 110, "header: place, kind,", kind="ours", room=170)
        figure.text(x + 89, 127, "SHA-256(salt + body)", kind="ours", room=170)
        figure.text(x + 89, 152, "hash", kind="ours", room=170)
        if erased:
            figure.box(x, 210, 178, 56, "", "body and salt", "deleted by a prune", kind="gone")
        else:
            figure.box(x, 210, 178, 56, "Body and salt", "the content")
        figure.rule((x + 89, 210), (x + 89, 166), dashed=True)
        if place < 2:
            figure.arrow((x + 178, 148), (x + 192, 148), (x + 192, 68), (x + 204, 68))
    figure.box(648, 76, 96, 60, "Head", "count: 3", "hash of 2", kind="good")
    figure.arrow((606, 106), (646, 106))
    figure.text(
        380, 32, "hash of an entry = SHA-256(hash of the entry before + header)", kind="ink"
    )
    figure.text(112, 190, "bound by the header", left=True, room=170)
    figure.frame(16, 288, 728, 48, kind="gone")
    figure.text(
        380, 308, "A changed byte, a missing entry or another order: tally verify names the place."
    )
    figure.text(380, 326, "A cut end is found with a head that was kept somewhere else.")
    return figure


def budget() -> Figure:
    """Draw the budget tree, with one reservation in all of its scopes."""
    figure = Figure(
        "The budget tree: one model call is reserved in every scope around it before it is sent.",
        height=378,
    )
    figure.text(
        380, 30, "limit = spent + reserved + remaining, in each scope, at every moment", kind="ink"
    )
    rows = (
        (16, "total of the ledger", "all processes", 190),
        (40, "agent", "all its runs", 150),
        (64, "step", "your own code", 110),
        (88, "run", "one goal", 170),
        (112, "child run", "begun by a program", 60),
    )
    bar, wide = 300, 444
    for place, (x, name, note, spent) in enumerate(rows):
        y = 52 + place * 54
        right = bar + wide - place * 34
        figure.box(x, y, 270 - x, 42, name, note, kind="plain")
        if place:
            figure.arrow((x - 12, y - 12), (x - 12, y + 21), (x - 2, y + 21))
        figure.box(bar, y, spent, 42, "", "spent" if spent > 90 else "")
        figure.box(bar + spent, y, 76, 42, "", "reserved", kind="care")
        left = right - bar - spent - 76
        figure.box(bar + spent + 76, y, left, 42, "", "remaining", kind="good")
    figure.frame(16, 326, 728, 40, kind="gone")
    figure.text(
        380, 351, "If one scope cannot pay, nothing is reserved anywhere and the call is not sent."
    )
    return figure


def replay() -> Figure:
    """Draw what a replay compares."""
    figure = Figure("What a replay compares, what it serves, and what it leaves out.", height=422)
    figure.box(16, 16, 210, 34, "of the record", kind="ours")
    figure.box(254, 16, 232, 34, "what replay does", kind="ours")
    figure.box(514, 16, 230, 34, "then", kind="ours")
    rows = (
        ("hashes of the chain", "computed again, first", "must be equal", "good"),
        ("prompt of a turn", "computed again", "digest must be equal", "good"),
        ("reply of the model", "served: no model is asked", "", "plain"),
        ("answers of your functions", "served: not called", "", "plain"),
        ("reads of long texts", "computed again", "digest must be equal", "good"),
        ("programs", "run again in the sandbox", "output, calls, fuel equal", "good"),
        ("receipt and end", "computed again", "must be equal", "good"),
        ("times and durations", "served", "not compared", "gone"),
    )
    for place, (what, done, then, kind) in enumerate(rows):
        y = 62 + place * 38
        figure.box(16, y, 210, 30, "", what)
        figure.box(254, y, 232, 30, "", done, kind="plain" if kind != "gone" else "gone")
        figure.arrow((226, y + 15), (252, y + 15))
        if then:
            figure.box(514, y, 230, 30, "", then, kind=kind)
            figure.arrow((486, y + 15), (512, y + 15))
    figure.frame(16, 372, 728, 36, kind="gone")
    figure.text(
        380, 395, "The first difference is named by entry and field, and the exit code is 8."
    )
    return figure


def in_doubt() -> Figure:
    """Draw the moments of a paid call, and what a crash leaves at each."""
    figure = Figure(
        "The moments of a paid call, and what is known after a crash at each.", height=300
    )
    moments = (
        ("Reserve", "in every scope"),
        ("Record", "model.ask on disk"),
        ("Send", "to the provider"),
        ("Reply", "arrives"),
        ("Record", "model.replied"),
    )
    for place, (head, note) in enumerate(moments):
        kind = "ours" if head == "Record" else "plain"
        figure.box(16 + place * 150, 36, 128, 62, head, note, kind=kind)
        if place:
            figure.arrow((16 + place * 150 - 22, 67), (16 + place * 150 - 2, 67))
    # Between the moments: before the first record, up to the second, and from there on.
    crashes = (
        (16, 176, "Nothing was sent", ("crash before entry:", "no cost"), "good"),
        (
            204,
            402,
            "In doubt",
            (
                "crash in between: it may have been billed,",
                "so its reservation stays until you decide",
            ),
            "care",
        ),
        (618, 126, "It is known", ("crash later:", "reply is used"), "good"),
    )
    for x, width, head, notes, kind in crashes:
        figure.rule((x + 4, 118), (x + width - 4, 118))
        figure.rule((x + 4, 110), (x + 4, 118))
        figure.rule((x + width - 4, 110), (x + width - 4, 118))
        figure.arrow((x + width // 2, 118), (x + width // 2, 138))
        figure.box(x, 140, width, 66, head, *notes, kind=kind)
    figure.frame(16, 228, 728, 56, kind="gone")
    figure.text(
        380, 251, "--in-doubt retry: repeat the call; the lost one is charged at its reservation"
    )
    figure.text(380, 270, "--in-doubt abandon: never repeat the call")
    return figure


def session() -> Figure:
    """Draw runs that follow each other in a session."""
    figure = Figure(
        "A session: each run begins with the variables that the last run left.", height=318
    )
    figure.frame(16, 16, 728, 96, kind="ours", head="a session, on disk")
    for x, head, note in (
        (40, "state 0", "empty"),
        (258, "state 1", "hosts"),
        (476, "state 1", "unchanged"),
        (618, "state 2", "hosts, days"),
    ):
        figure.box(x, 48, 106, 52, head, note, kind="plain")
    for x, head, note, kind in (
        (120, "run A", "answered", "good"),
        (344, "run B", "process is killed", "care"),
        (552, "run C", "answered", "good"),
    ):
        figure.box(x, 160, 150, 56, head, note, kind=kind)
    figure.arrow((93, 100), (93, 188), (118, 188))
    figure.arrow((270, 188), (290, 188), (290, 102))
    figure.arrow((326, 100), (326, 188), (342, 188))
    figure.arrow((529, 100), (529, 188), (550, 188))
    figure.arrow((680, 160), (680, 102))
    figure.rule((364, 74), (476, 74), dashed=True)
    figure.text(419, 236, "leaves nothing; resume finishes it", room=260)
    figure.text(195, 236, "in process 1", room=200)
    figure.text(640, 236, "in process 2", room=200)
    figure.frame(16, 256, 728, 48, kind="gone")
    figure.text(
        380,
        276,
        "A snapshot is a state with a name: tally snapshot create, tally snapshot restore.",
    )
    figure.text(
        380, 294, "Each run also keeps the state that it began with, so it can be replayed alone."
    )
    return figure


def layers() -> Figure:
    """Draw the layers of the package, as the import contracts in pyproject.toml have them."""
    package, runtime = _layers("tallystick"), _layers("tallystick.runtime")
    height = 44 + 36 * max(len(package), len(runtime)) + 36
    figure = Figure("The layers: imports point down, never up.", height=height)
    figure.text(240, 28, "src/tallystick: imports point down", kind="ink")
    figure.text(640, 28, "inside runtime/", kind="ink")
    for place, names in enumerate(package):
        y = 44 + place * 36
        wide = (448 - 4 * (len(names) - 1)) // len(names)
        for number, name in enumerate(names):
            kind = "ours" if name == "runtime" else "good" if name == "core" else "plain"
            figure.box(16 + number * (wide + 4), y, wide, 28, "", name, kind=kind)
        if "runtime" in names:
            figure.rule((464, y), (536, 44), dashed=True)
            figure.rule((464, y + 28), (536, 44 + len(runtime) * 36 - 8), dashed=True)
    for place, names in enumerate(runtime):
        figure.box(536, 44 + place * 36, 208, 28, "", " | ".join(names), kind="ours")
    figure.text(
        240, height - 14, "Names side by side do not import each other. core does no I/O.", room=460
    )
    return figure


def _layers(container: str) -> list[list[str]]:
    """Return the layers of a package that exist, from high to low."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = config["tool"]["importlinter"]["contracts"]
    found = next(
        each for each in contracts if each["type"] == "layers" and each["containers"] == [container]
    )
    folder = PACKAGE.joinpath(*container.split(".")[1:])
    rows = [[name.strip(" ()") for name in row.split("|")] for row in found["layers"]]
    there = [
        [name for name in row if (folder / name).exists() or (folder / f"{name}.py").exists()]
        for row in rows
    ]
    return [row for row in there if row]


FIGURES: dict[str, Callable[[], Figure]] = {
    "budget": budget,
    "in-doubt": in_doubt,
    "layers": layers,
    "ledger": ledger,
    "program": program,
    "replay": replay,
    "run": run,
    "sandbox": sandbox,
    "session": session,
    "turn": turn,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tools.figures")
    parser.add_argument("--check", action="store_true", help="write nothing")
    asked = parser.parse_args(arguments)
    FOLDER.mkdir(exist_ok=True)
    stale = []
    for name, draw in FIGURES.items():
        path, drawn = FOLDER / f"{name}.svg", draw().drawn()
        if asked.check and (not path.exists() or path.read_text(encoding="utf-8") != drawn):
            stale.append(name)
        if not asked.check:
            path.write_text(drawn, encoding="utf-8")
    if stale:
        print(f"draw again with python -m tools.figures: {', '.join(stale)}", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
