"""What a ledger holds of a chain of steps and of the runs in it, for a program that runs again."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from tallystick.core.canonical import canonical, digest
from tallystick.core.caps import charge_of
from tallystick.core.chain import Head
from tallystick.core.charge import Charge
from tallystick.core.errors import LedgerError, RunNotFound, UsageError
from tallystick.core.records import (
    ChildBegun,
    ModelFailed,
    ModelReplied,
    QueryAsked,
    QueryFailed,
    QueryReplied,
    Record,
    RunEnded,
    RunForked,
    RunLimits,
    RunStarted,
    decode_record,
)
from tallystick.core.step_receipt import holds_steps
from tallystick.core.step_records import RunNote, StepEntered, StepLeft
from tallystick.ledger.port import Ledger
from tallystick.ledger.verify import verify
from tallystick.runtime.history import records_of, runs_inside
from tallystick.runtime.inputs import Input

__all__ = ["RecordedRun", "RunAsked", "StepHistory", "Times", "charges_of", "inputs_digest"]

_LABEL_CHARS_MAX = 1_000
_PIECE_BYTES = 1 << 20


class RunAsked(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is asked for with, all that decides whether it is the same. None is not known."""

    goal: str
    inputs: str
    model: str | None
    seed: int
    temperature: float | None
    schema: str | None
    limits: RunLimits
    grants: tuple[str, ...]

    @classmethod
    def of_record(cls, started: RunStarted) -> RunAsked:
        held = [(each.name, each.attachment) for each in started.inputs]
        held += [(each.name, each.attachment) for each in started.texts if each.attachment]
        return cls(
            goal=started.goal,
            inputs=_digest_of(
                [(name, ref.label, ref.id) for name, ref in held],
                [("", each.label, each.id) for each in started.images],
            ),
            model=started.model,
            limits=started.limits,
            grants=started.grants,
            seed=started.seed,
            temperature=started.temperature,
            schema=started.schema,
        )

    def is_twin(self, now: RunAsked) -> bool:
        """Whether it asks the same of the same model. Limits and grants may be others."""
        return self.difference(now) in (None, "limits", "grants")

    def difference(self, now: RunAsked) -> str | None:
        """The first field that is another, limits and grants last."""
        for name in self.__struct_fields__:
            before, after = getattr(self, name), getattr(now, name)
            if before != after and not (name == "model" and after is None):
                return name
        return None


@dataclass(slots=True, kw_only=True, eq=False)
class RecordedRun:
    """A run of an earlier life: how it ended, and what was noted of it in the chain of steps.

    Without an answer it is over for its step only if that was `told`. `taken` is one that was asked
    for again, `counted` one that the session knows the cost of.
    """

    run: str
    started: RunStarted
    ended: RunEnded | None
    note: RunNote
    asked: RunAsked
    taken: bool = False
    counted: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class StepHistory:
    """A chain of steps as it stood when it was read. What is `left` was not entered again since."""

    chain: str
    head: Head
    root: StepEntered
    entered: dict[str, StepEntered] = field(default_factory=dict)
    left: dict[str, StepLeft] = field(default_factory=dict)
    runs: dict[str, list[RecordedRun]] = field(default_factory=dict)
    inside: dict[str, list[str]] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, ledger: Ledger, chain: str) -> StepHistory:
        """Read a chain and its runs. Raises if it is none, or does not hold."""
        rows = {row.run: row for row in ledger.runs()}
        if chain not in rows:
            raise RunNotFound(run=chain)
        bad = verify(ledger, [chain]).first_bad
        if bad is not None:
            raise LedgerError(f"steps {chain} do not hold at entry {bad.seq}: {bad.why}")
        records = list(records_of(ledger, chain))
        if not holds_steps(records):
            raise UsageError(f"{chain} is no chain of steps; a run is gone on with by `resume`")
        found = cls(chain=chain, head=rows[chain].head, root=_root_of(chain, records))
        notes = found._add(records)
        for run in runs_inside(ledger, chain):
            found._add_run(ledger, run, count=rows[run].head.count, notes=notes)
        for runs in found.runs.values():
            runs.sort(key=lambda each: (each.started.started_at, each.run))
        return found

    def _add(self, records: Iterable[Record]) -> dict[str, RunNote]:
        notes: dict[str, RunNote] = {}
        for record in records:
            if isinstance(record, StepEntered):
                if record.path not in self.entered:
                    around, slash, _ = record.path.rpartition("/")
                    if slash:
                        self.inside.setdefault(around, []).append(record.path)
                self.entered[record.path] = record
                self.left.pop(record.path, None)
                _take(notes, () if record.note is None else (record.note,))
            elif isinstance(record, StepLeft):
                self.left[record.receipt.path] = record
                _take(notes, record.notes)
        return notes

    def _add_run(
        self, ledger: Ledger, run: str, *, count: int, notes: Mapping[str, RunNote]
    ) -> None:
        first, last = _first_and_last(ledger, run, count)
        if not isinstance(first, RunStarted):
            return
        self.ids.add(run)
        self.runs.setdefault(first.step or "", []).append(
            RecordedRun(
                run=run,
                started=first,
                ended=last if isinstance(last, RunEnded) else None,
                note=notes.get(run) or RunNote(run=run),
                asked=RunAsked.of_record(first),
            )
        )

    def times(self, first: str) -> dict[int, str]:
        """Which times a step was entered inside another, and by which host calls."""
        around = first.rpartition("/")[0]
        found: dict[int, str] = {}
        for path in self.inside.get(around, ()):
            same, _, number = path.rpartition("#")
            if path == first:
                found[1] = self.entered[path].caller
            elif same == first and number.isdecimal():
                found[int(number)] = self.entered[path].caller
        return found

    def within(self, path: str) -> Iterator[RecordedRun]:
        """The runs of a step and of all steps inside it."""
        waiting = [path]
        while waiting:
            each = waiting.pop()
            yield from self.runs.get(each, ())
            waiting += self.inside.get(each, ())


class Times:
    """Numbers for the times that a step is entered inside another, by those that are recorded.

    The step's own code counts as it did: it passes over what host calls had. A host call has the
    numbers that it had, and then those behind all others.
    """

    def __init__(self, recorded: Mapping[int, str]) -> None:
        self._recorded = recorded
        self._given: set[int] = set()
        self._own = 0

    def next(self, caller: str) -> int:
        if caller:
            known = (each for each in sorted(self._recorded) if self._recorded[each] == caller)
            number = next((each for each in known if each not in self._given), None)
            if number is None:
                number = max([*self._recorded, *self._given], default=0) + 1
        else:
            self._own += 1
            while self._own in self._given or self._recorded.get(self._own):
                self._own += 1
            number = self._own
        self._given.add(number)
        return number


def charges_of(
    records: Sequence[Record], read: Callable[[str], Sequence[Record]]
) -> Iterator[tuple[str, Charge]]:
    """What each model call of a run was charged, by the name of its model, in their order.

    Those of the runs that its programs began are among them; `read` gives their records.
    """
    model = ""
    asked: dict[tuple[int, int], str] = {}
    children: set[str] = set()
    for record in records:
        match record:
            case RunStarted():
                model = record.model
            case RunForked():
                model = record.model or model
            case QueryAsked():
                asked[record.intent, record.item] = record.model
            case ModelReplied() | ModelFailed() if not _is_returned(record):
                yield model, charge_of(record)
            case QueryReplied() | QueryFailed() if not _is_returned(record):
                yield asked.get((record.intent, record.item), model), charge_of(record)
            case ChildBegun() if record.run not in children:
                children.add(record.run)
                with contextlib.suppress(RunNotFound):
                    yield from charges_of(read(record.run), read)
            case _:
                pass


def inputs_digest(inputs: Sequence[Input]) -> str:
    """The digest of what a run is given to read, as the record of such a run has it."""
    found = [
        ("" if each.is_picture else each.variable, _label(each), _sha256(each)) for each in inputs
    ]
    return _digest_of([each for each in found if each[0]], [each for each in found if not each[0]])


def _digest_of(
    texts: Sequence[tuple[str, str | None, str]], pictures: Sequence[tuple[str, str | None, str]]
) -> str:
    """Of texts by variable, name and digest. Those that stay on the host come last in a record."""
    by_variable = sorted(texts, key=lambda each: each[0])
    return digest(canonical([by_variable, pictures])) if texts or pictures else ""


def _label(given: Input) -> str:
    """The name of an input as its attachment has it."""
    return given.name.encode("utf-8", "replace").decode()[-_LABEL_CHARS_MAX:]


def _sha256(given: Input) -> str:
    if given.path is not None:
        # Read as a file: a mapped one that is cut short by somebody would end the process.
        try:
            with given.path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise UsageError(f"{given.path}: {error.strerror or error}") from error
    hashed = hashlib.sha256()
    for start in range(0, len(given.text), _PIECE_BYTES):
        hashed.update(given.text.read_raw(start, start + _PIECE_BYTES))
    return hashed.hexdigest()


def _is_returned(record: ModelReplied | ModelFailed | QueryReplied | QueryFailed) -> bool:
    """Whether an attempt is known to have cost nothing, so that nobody counted it."""
    if record.settled is not None:
        return record.settled.figures == "returned"
    return isinstance(record, ModelFailed | QueryFailed) and not record.billed


def _take(notes: dict[str, RunNote], more: Iterable[RunNote]) -> None:
    """Put notes to those of the same runs: who began it, and that it was told."""
    for note in more:
        before = notes.get(note.run)
        if before is not None and before.caller:
            note = msgspec.structs.replace(note, caller=before.caller)
        notes[note.run] = note


def _first_and_last(ledger: Ledger, run: str, count: int) -> tuple[Record | None, Record | None]:
    first = next(ledger.read(run, stop=1), None)
    last = next(ledger.read(run, start=count - 1, stop=count), None)
    return (
        None if first is None or first.body is None else decode_record(first.body),
        None if last is None or last.body is None else decode_record(last.body),
    )


def _root_of(chain: str, records: Sequence[Record]) -> StepEntered:
    """The outermost step of a chain."""
    for record in records:
        if isinstance(record, StepEntered) and "/" not in record.path:
            return record
    raise UsageError(f"steps {chain} do not have their outermost step, so nothing can be gone on")
