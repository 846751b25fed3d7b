"""A program of steps that runs again on what an earlier process left in a ledger."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import msgspec

from tallystick.core.chain import Head
from tallystick.core.charge import Charge, RunLimits
from tallystick.core.errors import LedgerError, RunNotFound, UsageError
from tallystick.core.history import History
from tallystick.core.json_text import canonical, digest
from tallystick.core.records import (
    InDoubt,
    KeptValue,
    Record,
    RunEnded,
    RunNote,
    RunRef,
    RunStarted,
    StepEntered,
    StepLeft,
    StepReceipt,
    StepStatus,
    decode_record,
    value_of,
)
from tallystick.core.step import StepsDiverged
from tallystick.core.views.receipt import holds_steps
from tallystick.ledger.port import Ledger
from tallystick.ledger.verify import verify_ledger
from tallystick.runtime.context.inputs import Input
from tallystick.runtime.runs.history import records_of, runs_inside, whole_records

# What a replay of steps found: how much ran again, and the first place where it was another.


_SHOWN_CHARS_MAX = 200


class StepDivergence(msgspec.Struct, frozen=True, kw_only=True):
    """The first place where steps did something else than they had done."""

    step: str
    run: str | None = None
    field: str
    recorded: object
    now: object


@dataclass(slots=True, kw_only=True)
class StepsReport:
    """What a replay of steps found, once it is over: how many ran again, and whether all was so."""

    chain: str
    steps: int = 0
    runs: int = 0
    divergence: StepDivergence | None = None

    @property
    def held(self) -> bool:
        return self.divergence is None

    def note(self, found: StepDivergence | None) -> None:
        """Keep the first one."""
        if found is not None and self.divergence is None:
            self.divergence = msgspec.structs.replace(
                found, recorded=shown(found.recorded), now=shown(found.now)
            )


def entered_otherwise(now: StepEntered, before: StepEntered | None) -> StepDivergence | None:
    """Whether a step is one that was not entered, or with other arguments."""
    if before is None:
        return StepDivergence(step=now.path, field="step", recorded=None, now=now.path)
    recorded, arguments = before.arguments_sha256, now.arguments_sha256
    if not recorded or recorded == arguments:
        return None
    return StepDivergence(step=now.path, field="arguments_sha256", recorded=recorded, now=arguments)


def left_otherwise(
    path: str, status: StepStatus, kept: KeptValue, before: StepLeft | None
) -> StepDivergence | None:
    """Whether a step came to something else than it had."""
    if before is None:
        return None
    pairs: list[tuple[str, object, object]] = [("status", before.receipt.status, status)]
    if before.value_kind:
        pairs.append(("value", before.value, kept.text))
    for what, recorded, now in pairs:
        if recorded != now:
            return StepDivergence(step=path, field=what, recorded=recorded, now=now)
    return None


def shown(value: object) -> object:
    """A value as people are shown it."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.to_builtins(value)
    if isinstance(value, str) and len(value) > _SHOWN_CHARS_MAX:
        return f"{value[:_SHOWN_CHARS_MAX]}..."
    return value


# What a ledger holds of a chain of steps and of the runs in it, for a program that runs again.


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
        bad = verify_ledger(ledger, [chain]).first_bad
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


def charges_of(history: History, read: Callable[[str], History]) -> Iterator[tuple[str, Charge]]:
    """Give the model and the charge of each model call of a run and of the runs inside it.

    `read` gives the history of a child run. One that is gone has no charges.
    """
    yield from history.charges
    for child in history.children:
        with contextlib.suppress(RunNotFound):
            yield from charges_of(read(child), read)


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


# A program of steps that runs again on what an earlier life of it left in a ledger.
#
# Rule 1: a step is known by its path. Resumed, one that had completed with the same arguments is
# served; any other runs again, and what it asks for is found in the record. Replayed, all run
# again.
# Rule 2: a run is known by the step it was begun in and what it was asked for with. The frame of a
# step asks in an order: what it asks for and the record does not have is a divergence, as long as
# there are recorded runs it has not asked for. Tasks and threads have none: there it is a new run.
# Rule 3: what a program reached by a host call is known by that call too. Where the answer of the
# call is recorded nobody makes it again, and the steps and runs in it are not asked for.
# Rule 4: nothing that was spent is forgotten. What is recorded in a step and not asked for again is
# counted when the step is left.


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A step that is not entered: what it came to, and its receipt."""

    value: object
    receipt: StepReceipt


@dataclass(slots=True, kw_only=True)
class Unasked:
    """What is recorded inside a step and was not asked for again: its runs, and whole steps."""

    runs: list[RecordedRun] = field(default_factory=list)
    receipts: list[StepReceipt] = field(default_factory=list)


class StepReplay:
    """One life of a program on the record of another. Shared by all its steps and runs.

    `key` tells the ledger of the chain from others, `fence` is of whoever goes on with it.
    `find_run` gives the run that a value refers to, None if it is not that any more. `count` tells
    the session of runs that it has not paid for in this life.
    """

    def __init__(
        self,
        history: StepHistory,
        *,
        ledger: Ledger,
        key: object,
        fence: int,
        in_doubt: InDoubt = "halt",
        report: StepsReport | None = None,
        find_run: Callable[[RunRef], object | None],
        count: Callable[[Sequence[RecordedRun]], None],
    ) -> None:
        self.history = history
        self.ledger = ledger
        self.key = key
        self.fence = fence
        self.in_doubt: InDoubt = in_doubt
        self._report = report
        self._find_run = find_run
        self._count = count
        self._guard = threading.Lock()
        self._taken = False
        self._seen: set[str] = set()
        self._times: dict[str, Times] = {}

    @property
    def chain(self) -> str:
        return self.history.chain

    @property
    def replaying(self) -> bool:
        """Whether nothing live may happen."""
        return self._report is not None

    # -- steps ---------------------------------------------------------------------------------

    def take(self) -> bool:
        """Be the one outermost step that goes on with the chain. False if another is."""
        with self._guard:
            taken, self._taken = self._taken, True
        return not taken

    def root_path(self, part: str) -> str:
        """The path of the outermost step. `part` is the function that is called, and its key."""
        path = self.history.root.path
        if path != part and not path.startswith(f"{part}#"):
            self._diverge(step=path, field="step", recorded=path, now=part)
        return path

    def time(self, first: str, caller: str) -> int:
        """Which time a step is entered inside another. `first` is its path the first time."""
        with self._guard:
            if first not in self._times:
                self._times[first] = Times(self.history.times(first))
            return self._times[first].next(caller)

    def enter(self, facts: StepEntered) -> Served | None:
        """A step is about to be entered. Returns what it is served with, if it is."""
        path = facts.path
        self._seen.add(path)
        before, left = self.history.entered.get(path), self.history.left.get(path)
        if self._report is not None:
            with self._guard:
                self._report.steps += 1
                self._report.note(entered_otherwise(facts, before))
            return None
        if (
            before is None
            or left is None
            or left.receipt.status != "completed"
            or left.receipt.unfinished
            or not before.arguments_sha256
            or before.arguments_sha256 != facts.arguments_sha256
        ):
            return None
        try:
            value = value_of(KeptValue(kind=left.value_kind, text=left.value), self._found)
        except ValueError:
            return None
        self.count(list(self.history.within(path)))
        return Served(value=value, receipt=left.receipt)

    def since(self, facts: StepEntered) -> StepEntered:
        """The facts of a step with the time at which it was entered first."""
        before = self.history.entered.get(facts.path)
        if before is None:
            return facts
        return msgspec.structs.replace(facts, entered_at=before.entered_at)

    def has(self, facts: StepEntered, left: StepLeft | None = None) -> bool:
        """Whether the chain says that a step is open, or was left so, with these facts."""
        before = self.history.entered.get(facts.path)
        if before is None or _undated(before) != _undated(facts):
            return False
        known = self.history.left.get(facts.path)
        return known is None if left is None else known is not None and _is_same(left, known)

    def leave(self, path: str, status: StepStatus, kept: KeptValue) -> Unasked:
        """A step is left. Returns what of it was not asked for again; it counts as if it had."""
        if self._report is not None:
            self._report.note(left_otherwise(path, status, kept, self.history.left.get(path)))
            if status == "completed":
                self._note_unasked(path, self._report)
        unasked = self._unasked(path)
        self.count(unasked.runs)
        for each in unasked.receipts:
            self.count(list(self.history.within(each.path)))
        return unasked

    def limits_changed(self, facts: StepEntered) -> bool:
        """Whether a step declares another budget than it did."""
        before = self.history.entered.get(facts.path)
        now = facts.tokens_max, facts.usd_max
        return before is not None and (before.tokens_max, before.usd_max) != now

    # -- runs ----------------------------------------------------------------------------------

    def find(
        self, path: str, asked: RunAsked, *, key: object, in_order: bool, caller: str
    ) -> RecordedRun | None:
        """The recorded run that is asked for in a step, None if it is a new one.

        Raises `StepsDiverged` if the step asked for another at this place. `in_order` says that its
        own frame asks, and not one of several tasks or threads; `caller` that a host call does.
        """
        if key != self.key:
            raise UsageError(
                f"steps {self.chain} are in another ledger than this session's: what they did here "
                f"is not known, and would be paid for again"
            )
        with self._guard:
            waiting = [each for each in self._waiting(path) if each.note.caller == caller]
            for each in waiting:
                if each.asked.difference(asked) is None:
                    each.taken = True
                    return each
        nearest = _nearest(waiting, asked, strict=in_order or self.replaying)
        if nearest is None:
            self._check_missing(path, asked)
            return None
        field = nearest.asked.difference(asked)
        assert field is not None
        recorded, now = getattr(nearest.asked, field), getattr(asked, field)
        self._diverge(step=path, run=nearest.run, field=field, recorded=recorded, now=now)

    def history_of(self, run: str) -> History:
        """Return what is recorded of a run. Raises `RunNotFound`."""
        return History(whole_records(self.ledger, run))

    def count(self, runs: Sequence[RecordedRun]) -> None:
        """Tell the session of runs that an earlier life paid for, each once."""
        with self._guard:
            fresh = [each for each in runs if not each.counted]
            for each in fresh:
                each.counted = True
        if fresh and not self.replaying:
            self._count(fresh)

    def refuse(self, now: str) -> None:
        """Raise if nothing live may happen."""
        if self.replaying:
            self._diverge(step=self.history.root.path, field="run", recorded=None, now=now)

    # -- a replay ------------------------------------------------------------------------------

    def replayed(self, path: str, found: StepDivergence | None) -> None:
        """A run was replayed, and held or did not."""
        if self._report is not None:
            with self._guard:
                self._report.runs += 1
                self._report.note(
                    None if found is None else msgspec.structs.replace(found, step=path)
                )

    def cut_off(self, path: str, run: str) -> NoReturn:
        """Raise: a run that is asked for has no end that was told, and nobody goes on with it."""
        self._diverge(step=path, run=run, field="end", recorded=None, now="asked for")

    def over(self) -> None:
        """The program has ended."""
        root = self.history.root.path
        if self._report is not None and not self._taken:
            self._report.note(StepDivergence(step=root, field="step", recorded=root, now=None))

    def _note_unasked(self, path: str, report: StepsReport) -> None:
        """What the step had asked for itself, and did not. Host calls are not made in a replay."""
        for run in self._waiting(path):
            if not run.note.caller:
                report.note(
                    StepDivergence(step=path, run=run.run, field="run", recorded=run.run, now=None)
                )
        for inner in self.history.inside.get(path, ()):
            if inner not in self._seen and not self.history.entered[inner].caller:
                report.note(StepDivergence(step=path, field="step", recorded=inner, now=None))

    # -- inside --------------------------------------------------------------------------------

    def _diverge(
        self, *, step: str, field: str, recorded: object, now: object, run: str | None = None
    ) -> NoReturn:
        found = StepDivergence(step=step, run=run, field=field, recorded=recorded, now=now)
        if self._report is not None:
            self._report.note(found)
        raise StepsDiverged(
            chain=self.chain,
            step=step,
            run=run,
            field=field,
            recorded=shown(recorded),
            now=shown(now),
        )

    def _found(self, ref: RunRef) -> object:
        run = self._find_run(ref)
        if run is None:
            raise ValueError(f"run {ref.run} is not what it was")
        return run

    def _check_missing(self, path: str, asked: RunAsked) -> None:
        """Refuse to pay again for a run that a receipt names and this ledger does not have."""
        if self.replaying:
            self._diverge(step=path, field="run", recorded=None, now=asked.goal)
        left = self.history.left.get(path)
        if left is None or left.receipt.unfinished:
            # It may name runs that never came so far as to be written.
            return
        for run in left.receipt.runs:
            if run not in self.history.ids:
                self._diverge(
                    step=path, run=run, field="run", recorded=run, now="not in this ledger"
                )

    def _waiting(self, path: str) -> list[RecordedRun]:
        return [each for each in self.history.runs.get(path, ()) if not each.taken]

    def _unasked(self, path: str) -> Unasked:
        found = Unasked()
        waiting = [path]
        while waiting:
            here = waiting.pop()
            with self._guard:
                runs = self._waiting(here)
                for each in runs:
                    each.taken = True
            found.runs += runs
            for inner in self.history.inside.get(here, ()):
                if inner in self._seen:
                    continue
                self._seen.add(inner)
                left = self.history.left.get(inner)
                if left is None:
                    waiting.append(inner)
                else:
                    found.receipts.append(left.receipt)
        return found


def _undated(facts: StepEntered) -> StepEntered:
    return msgspec.structs.replace(facts, entered_at=0, missed=0, note=None)


def _is_same(left: StepLeft, before: StepLeft) -> bool:
    """Whether a step came to what it had come to. Times, and the order of its runs, may differ."""
    return _timeless(left) == _timeless(before)


def _timeless(left: StepLeft) -> StepLeft:
    receipt = left.receipt
    return msgspec.structs.replace(
        left,
        notes=(),
        receipt=msgspec.structs.replace(
            receipt, started_at=0, completed_at=0, runs=tuple(sorted(receipt.runs))
        ),
    )


def _nearest(
    waiting: Sequence[RecordedRun], asked: RunAsked, *, strict: bool
) -> RecordedRun | None:
    """Of several that are not what is asked for, the one that was to be.

    One that asks the same under other limits; or else, if `strict`, one with the same goal, or the
    first.
    """
    twins = [each for each in waiting if each.asked.is_twin(asked)]
    same = [each for each in waiting if each.asked.goal == asked.goal]
    return next(iter([*twins, *same, *waiting] if strict else twins), None)
