"""Shape: how much code there is, how much of it a command passes through, and what starting costs.

Question: can a reader follow a run, and does a command load only what it uses?

Sketch before measuring. A two-turn run needs a command, a client, an assembly, a driver, a journal,
a ledger, a sandbox and their records: about 40 modules with ten functions each, so 400 functions.
Python itself starts in 10 to 15 ms; msgspec, click and asyncio cost 60 ms, the engine with the
digest of its compiled code 80 ms, and 150 modules of ours at 0.4 ms each 60 ms: 15 to 20 times
`python -c pass`.

Functions are counted once however often they are entered. Module and class bodies, generator
expressions, lambdas and comprehensions are not counted; a function that runs while a module is
imported is. Times are processor time of the process, user and system, with compiled bytecode.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import datetime
import inspect
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import tokenize
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

__all__ = ["ROOT", "Lines", "Row", "Trace", "World", "counted", "lines_of", "main", "shape_rows"]

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "tallystick"
RESULTS = ROOT / "bench" / "results"
_ROUNDS = 9

_CSV = "invoice,due,paid\nINV-1,2026-03-01,\nINV-2,2026-05-01,\nINV-3,2026-02-01,yes\n"
_LOOK = "import csv, io\nrows = list(csv.DictReader(io.StringIO(context)))\nprint(len(rows))"
_ANSWER = "FINAL(', '.join(r['invoice'] for r in rows if not r['paid'] and r['due'] < '2026-04'))"
_RECALL = "FINAL(recall('when does the ferry leave?')[0]['content'])"
_QUESTION = "which are overdue?"
_NOTE = "the ferry leaves at nine"
_OVERDUE = "INV-1\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure. `aim` is the most that it should be."""

    name: str
    unit: str
    value: float
    aim: float | None = None
    against: str = ""

    @property
    def met(self) -> bool | None:
        return None if self.aim is None else self.value <= self.aim


# Lines.


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """The lines of some files, by what they hold. `code` includes imports and `__all__`.

    `comments` are lines that hold a comment and no code.
    """

    files: int = 0
    lines: int = 0
    code: int = 0
    imports: int = 0
    exports: int = 0
    comments: int = 0
    docstrings: int = 0

    def __add__(self, other: Lines) -> Lines:
        return Lines(
            files=self.files + other.files,
            lines=self.lines + other.lines,
            code=self.code + other.code,
            imports=self.imports + other.imports,
            exports=self.exports + other.exports,
            comments=self.comments + other.comments,
            docstrings=self.docstrings + other.docstrings,
        )


def lines_of(source: str) -> Lines:
    """Count the lines of one module."""
    tree = ast.parse(source)
    docstrings: set[int] = set()
    imports: set[int] = set()
    exports: set[int] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import() | ast.ImportFrom():
                imports |= _span(node)
            case ast.Assign(targets=[ast.Name(id="__all__")]):
                exports |= _span(node)
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                if ast.get_docstring(node, clean=False) is not None:
                    docstrings |= _span(node.body[0])
            case _:
                pass
    # A line holds code if a token other than a comment or a line end touches it.
    code: set[int] = set()
    comments: set[int] = set()
    empty = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    for token in tokenize.generate_tokens(iter(source.splitlines(keepends=True)).__next__):
        if token.type not in empty and token.type != tokenize.ENDMARKER:
            code.update(range(token.start[0], token.end[0] + 1))
        elif token.type == tokenize.COMMENT:
            comments.add(token.start[0])
    return Lines(
        files=1,
        lines=len(source.splitlines()),
        code=len(code - docstrings),
        imports=len(imports),
        exports=len(exports),
        comments=len(comments - code),
        docstrings=len(docstrings),
    )


def _span(node: ast.stmt) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def counted(package: Path = PACKAGE) -> Lines:
    """Count the lines of a package. What is built into it is left out."""
    paths = (path for path in sorted(package.rglob("*.py")) if "_image" not in path.parts)
    return sum((lines_of(path.read_text(encoding="utf-8")) for path in paths), Lines())


def _line_rows(lines: Lines) -> Iterator[Row]:
    share = 100 * (lines.imports + lines.exports) / lines.lines
    yield Row(name="lines", unit="", value=lines.lines)
    yield Row(name="files", unit="", value=lines.files)
    yield Row(name="files per 1,000 lines", unit="", value=1000 * lines.files / lines.lines)
    yield Row(
        name="code lines (no comments, docstrings, blank lines)",
        unit="",
        value=lines.code,
        aim=54_000,
        against=f"{lines.code - lines.imports - lines.exports:,} without imports and `__all__`",
    )
    yield Row(name="lines that are imports or `__all__`", unit="%", value=share)
    yield Row(name="lines that are comments", unit="%", value=100 * lines.comments / lines.lines)
    docstrings = 100 * lines.docstrings / lines.lines
    yield Row(name="lines that are docstrings", unit="%", value=docstrings)


# Commands, in a world of their own.


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What one command entered and imported. A function is a file, a name and a line."""

    functions: frozenset[tuple[str, str, int]]
    modules: frozenset[str]

    @property
    def files(self) -> frozenset[str]:
        return frozenset(file for file, _, _ in self.functions)


@dataclass(frozen=True, slots=True)
class World:
    """A home with no configuration, one CSV and two scripts; the compiled guest is the user's.

    The guest is compiled at the first command, unless the user's cache has it already.
    """

    home: Path
    environ: dict[str, str]

    @classmethod
    @contextmanager
    def made(cls) -> Iterator[World]:
        from tallystick.settings.paths import cache_directory

        kept = {name: value for name, value in os.environ.items() if _is_neutral(name)}
        with tempfile.TemporaryDirectory(prefix="tally-shape-") as directory:
            home = Path(directory)
            environ = {
                **kept,
                "HOME": directory,
                "XDG_CONFIG_HOME": str(home / "config"),
                "TALLYSTICK_DATA_DIR": str(home / "data"),
                "TALLYSTICK_CACHE_DIR": str(cache_directory()),
                "PYTHONPATH": str(ROOT),
            }
            world = cls(home, environ)
            (home / "books.csv").write_text(_CSV, encoding="utf-8")
            world._script("overdue.jsonl", _LOOK, _ANSWER)
            world._script("recall.jsonl", _RECALL)
            yield world

    def _script(self, name: str, *programs: str) -> None:
        replies = [json.dumps({"text": f"```repl\n{program}\n```"}) for program in programs]
        (self.home / name).write_text("\n".join(replies) + "\n", encoding="utf-8")

    def run_words(self, *more: str) -> list[str]:
        """Return the words of the two-turn run."""
        return ["run", _QUESTION, "-f", "books.csv", "-m", "scripted:overdue.jsonl", *more]

    def memory_words(self) -> list[str]:
        return ["run", "when?", "-m", "scripted:recall.jsonl", "--memory", "shape", *_CODE]

    def did(self, command: Sequence[str], *, code: int = 0) -> str:
        """Run a command here; return its standard output. Another exit code is an error."""
        done = subprocess.run(
            command, cwd=self.home, env=self.environ, capture_output=True, text=True, check=False
        )
        if done.returncode != code:
            said = done.stderr.strip()[-2000:]
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {said}")
        return done.stdout

    def tally(self, *words: str, code: int = 0) -> str:
        return self.did([sys.executable, "-m", "tallystick", *words], code=code)

    def trace(self, *words: str, says: str) -> Trace:
        """Run `tally` with these words and note what it entered. It must print `says`."""
        report = self.home / "trace.json"
        said = self.did([sys.executable, "-m", "bench.shape", "--trace", str(report), *words])
        if says not in said:
            raise RuntimeError(f"tally {' '.join(words)} printed {said!r}, without {says!r}")
        found = json.loads(report.read_text(encoding="utf-8"))
        functions = frozenset((file, name, line) for file, name, line in found["functions"])
        return Trace(functions=functions, modules=frozenset(found["modules"]))

    def cpu_ms(self, command: Sequence[str]) -> float:
        """Run a command; return the milliseconds of processor time that it took."""
        process = subprocess.Popen(
            command,
            cwd=self.home,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
        return (usage.ru_utime + usage.ru_stime) * 1000


# Without a file `tally run` would not have the model write programs.
_CODE = ("--strategy", "code")


def _is_neutral(variable: str) -> bool:
    """Whether a variable changes neither what tallystick does nor how Python starts."""
    return not variable.startswith(("TALLYSTICK_", "XDG_", "PYTHON"))


# Runs in the traced process.


def _trace(report: Path, words: Sequence[str]) -> None:
    """Run the command line with these words in this process; write what it entered to a file."""
    seen: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            seen.add(frame.f_code)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        from tallystick.cli.main import main as tally

        sys.argv = ["tally", *words]
        tally()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        functions = sorted(
            (
                str(Path(code.co_filename).relative_to(PACKAGE)),
                code.co_qualname,
                code.co_firstlineno,
            )
            for code in list(seen)
            if _is_counted(code)
        )
        ours = [name for name in sys.modules if name.partition(".")[0] == "tallystick"]
        found = {"functions": functions, "modules": sorted(ours)}
        report.write_text(json.dumps(found), encoding="utf-8")


def _is_counted(code: CodeType) -> bool:
    """Whether it is a function of ours with a name. Bodies of classes and modules are none."""
    in_function = bool(code.co_flags & inspect.CO_OPTIMIZED)
    ours = code.co_filename.startswith(f"{PACKAGE}{os.sep}")
    return ours and in_function and not code.co_name.startswith("<")


def _traces(world: World) -> Iterator[tuple[str, Trace, int | None, int | None, int | None]]:
    """Trace each command, with the aims for its functions, its files and its modules."""
    ran = world.trace(*world.run_words(), says=_OVERDUE)
    yield "tally run, two turns", ran, 450, 70, 150
    stopped = json.loads(world.tally(*world.run_words("--max-turns", "1", "--json"), code=3))["run"]
    resumed = world.trace("resume", stopped, "--max-turns", "5", says=_OVERDUE)
    yield "tally resume", resumed, 450, 75, None
    yield "tally replay", world.trace("replay", stopped, says="no divergence"), None, None, None
    world.tally("remember", "--memory", "shape", _NOTE)
    recalled = world.trace(*world.memory_words(), says=_NOTE)
    yield "tally run --memory, one recall", recalled, None, None, None


def _trace_rows(world: World) -> Iterator[Row]:
    for name, trace, functions, files, modules in _traces(world):
        yield Row(name=f"{name}: functions", unit="", value=len(trace.functions), aim=functions)
        yield Row(name=f"{name}: files", unit="", value=len(trace.files), aim=files)
        yield Row(name=f"{name}: modules imported", unit="", value=len(trace.modules), aim=modules)


# Processor time.


def _cpu_rows(world: World, rounds: int) -> Iterator[Row]:
    commands: dict[str, tuple[list[str], float | None]] = {
        "python -c pass": (["-c", "pass"], None),
        "tally --help": (["-m", "tallystick", "--help"], 7),
        "tally run, two turns": (["-m", "tallystick", *world.run_words()], 22),
        "tallystick.Agent": (["-c", "import tallystick; tallystick.Agent"], 12),
    }
    samples: dict[str, list[float]] = {name: [] for name in commands}
    for at in range(rounds + 1):
        # In turn, so that a busy moment falls on all. The first round writes bytecode.
        for name, (words, _) in commands.items():
            took = world.cpu_ms([sys.executable, *words])
            if at:
                samples[name].append(took)
    bare = samples["python -c pass"]
    plain = statistics.median(bare)
    # Its spread is shown too: where the divisor is unsteady, so is every multiple of it.
    spread = f"[{min(bare):.1f}..{max(bare):.1f}]"
    yield Row(name="python -c pass: CPU", unit="ms", value=plain, against=spread)
    for name, (_, aim) in commands.items():
        if aim is not None:
            took = statistics.median(samples[name])
            spread = f"{took:.0f} ms [{min(samples[name]):.0f}..{max(samples[name]):.0f}]"
            yield Row(name=f"{name}: CPU", unit="x", value=took / plain, aim=aim, against=spread)


def shape_rows(rounds: int = _ROUNDS) -> list[Row]:
    """Measure everything."""
    compileall.compile_dir(PACKAGE, quiet=2, workers=1)
    with World.made() as world:
        return [*_line_rows(counted()), *_trace_rows(world), *_cpu_rows(world, rounds)]


# The table.


def _figure(value: float | None, unit: str = "") -> str:
    if value is None:
        return ""
    exact = f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"
    return f"{exact} {unit}".strip()


def _table(rows: Sequence[Row], before: dict[str, float], about: str) -> str:
    """Write the rows as a table in Markdown, with earlier figures if there are any."""
    heads = ["figure", *(["before"] if before else []), "now", "aim", "", ""]
    lines = [about, "", f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for row in rows:
        verdict = {True: "met", False: "MISSED", None: ""}[row.met]
        cells = [
            row.name,
            *([_figure(before.get(row.name), row.unit)] if before else []),
            _figure(row.value, row.unit),
            _figure(row.aim, row.unit),
            verdict,
            row.against,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _stored(row: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "unit": row.unit,
        "value": round(row.value, 3),
        "aim": row.aim,
        "met": row.met,
        "against": row.against,
    }


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["--trace"]:
        _trace(Path(arguments[1]), arguments[2:])
        return 0
    parser = argparse.ArgumentParser(description="Measure the shape of the package.")
    parser.add_argument("--quick", action="store_true", help="One round; writes nothing.")
    parser.add_argument("--before", type=Path, metavar="FILE", help="Earlier figures to show.")
    parser.add_argument("--name", default="shape", help="Of the files that are written.")
    asked = parser.parse_args(arguments)
    before: dict[str, float] = {}
    if asked.before is not None:
        earlier = json.loads(asked.before.read_text(encoding="utf-8"))
        before = {row["name"]: row["value"] for row in earlier["rows"]}
    load = os.getloadavg()
    rows = shape_rows(1 if asked.quick else _ROUNDS)
    about = {
        "measured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "commit": _commit(),
        "load": {"start": load, "end": os.getloadavg()},
    }
    table = _table(rows, before, f"Shape at {about['commit']}, Python {about['python']}.")
    print(table, end="")
    if not asked.quick:
        written = json.dumps({**about, "rows": [_stored(row) for row in rows]}, indent=1)
        _write(RESULTS / f"{asked.name}.json", written + "\n")
        _write(RESULTS / f"{asked.name}.md", table)
    return 0


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    print(f"written to {path.relative_to(ROOT)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
