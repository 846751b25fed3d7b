"""Run a program of steps again, on the record that an earlier process left in a ledger."""

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
from tallystick.ledger.custody import require_row
from tallystick.ledger.port import Ledger
from tallystick.ledger.verify import verify_ledger
from tallystick.runtime.context.inputs import Input
from tallystick.runtime.runs.history import records_of, runs_inside, whole_records

_SHOWN_CHARS_MAX = 200


class StepDivergence(msgspec.Struct, frozen=True, kw_only=True):
    """The first difference between the steps now and their record."""

    step: str
    run: str | None = None
    field: str
    recorded: object
    now: object


@dataclass(slots=True, kw_only=True)
class StepsReport:
    """The result of a replay of steps: how many ran again, and the first divergence."""

    chain: str
    steps: int = 0
    runs: int = 0
    divergence: StepDivergence | None = None

    @property
    def held(self) -> bool:
        """True if there was no divergence."""
        return self.divergence is None

    def note(self, found: StepDivergence | None) -> None:
        """Keep a divergence if it is the first one, with its texts shortened.

        None changes nothing.
        """
        if found is not None and self.divergence is None:
            self.divergence = msgspec.structs.replace(
                found, recorded=shorten(found.recorded), now=shorten(found.now)
            )


def entry_difference(now: StepEntered, before: StepEntered | None) -> StepDivergence | None:
    """Return the divergence of a step that is not recorded, or has other arguments; else None.

    Arguments that were recorded without a digest are not compared.
    """
    if before is None:
        return StepDivergence(step=now.path, field="step", recorded=None, now=now.path)
    recorded, arguments = before.arguments_sha256, now.arguments_sha256
    if not recorded or recorded == arguments:
        return None
    return StepDivergence(step=now.path, field="arguments_sha256", recorded=recorded, now=arguments)


def end_difference(
    path: str, status: StepStatus, kept: KeptValue, before: StepLeft | None
) -> StepDivergence | None:
    """Return the divergence of a step that ended with another status or value; else None.

    The status is compared first, the value only if the recorded one was kept. None if no end is
    recorded.
    """
    if before is None:
        return None
    pairs: list[tuple[str, object, object]] = [("status", before.receipt.status, status)]
    if before.value_kind:
        pairs.append(("value", before.value, kept.text))
    for what, recorded, now in pairs:
        if recorded != now:
            return StepDivergence(step=path, field=what, recorded=recorded, now=now)
    return None


def shorten(value: object) -> object:
    """Return a value as it is shown to people: a text is cut after 200 characters.

    A struct becomes plain values; other values are returned as they are.
    """
    if isinstance(value, msgspec.Struct):
        value = msgspec.to_builtins(value)
    if isinstance(value, str) and len(value) > _SHOWN_CHARS_MAX:
        return f"{value[:_SHOWN_CHARS_MAX]}..."
    return value


_LABEL_CHARS_MAX = 1_000
_PIECE_BYTES = 1 << 20


class RunAsked(msgspec.Struct, frozen=True, kw_only=True):
    """The request for a run: all that decides whether two requests are the same.

    None is not known.
    """

    goal: str
    inputs: str
    model: str | None
    seed: int
    temperature: float | None
    schema: str | None
    instructions: str | None
    limits: RunLimits
    grants: tuple[str, ...]

    @classmethod
    def of_record(cls, started: RunStarted) -> RunAsked:
        """Return the request of a recorded run. Texts without an attachment are left out."""
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
            instructions=started.instructions or None,
        )

    def is_twin(self, now: RunAsked) -> bool:
        """Return True if both ask the same of the same model. Limits and grants may differ."""
        return self.difference(now) in (None, "limits", "grants")

    def difference(self, now: RunAsked) -> str | None:
        """Return the first field that differs, limits and grants last; None if none does.

        A model that is not known now does not count as different.
        """
        for name in self.__struct_fields__:
            before, after = getattr(self, name), getattr(now, name)
            if before != after and not (name == "model" and after is None):
                return name
        return None


@dataclass(slots=True, kw_only=True, eq=False)
class RecordedRun:
    """A run of an earlier process: how it ended, and its notes in the chain of steps.

    A run without an answer is over for its step only if the step was `told`. `taken` means that it
    was asked for again, `counted` that the agent knows its cost.
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
    """A chain of steps as it was when it was read. Steps in `left` were not entered again later."""

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
        """Read a chain and its runs.

        Runs with an erased body are left out, and so are forks. Raise `RunNotFound` if the chain is
        not in the ledger, and `LedgerError` if one of its entries is not valid. Raise `UsageError`
        if it is no chain of steps, or lacks its outermost step.
        """
        row = require_row(ledger.row(chain), chain)
        bad = verify_ledger(ledger, [chain]).first_bad
        if bad is not None:
            raise LedgerError(f"steps {chain} do not hold at entry {bad.seq}: {bad.why}")
        records = list(records_of(ledger, chain))
        if not holds_steps(records):
            raise UsageError(f"{chain} is a run and no chain of steps; resume it with `resume`")
        found = cls(chain=chain, head=row.head, root=_root_of(chain, records))
        notes = found._add(records)
        for run in runs_inside(ledger, chain):
            # A chain that is replayed may still be running: runs begin and go meanwhile.
            inside = ledger.row(run)
            if inside is not None:
                found._add_run(ledger, run, count=inside.head.count, notes=notes)
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

    def occurrences(self, first: str) -> dict[int, str]:
        """Return the occurrences of a step inside another, each with the host call that entered it.

        The call is "" for the step's own code. `first` is the path of the step at the first
        occurrence.
        """
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
        """Yield the runs of a step and of all steps inside it."""
        waiting = [path]
        while waiting:
            each = waiting.pop()
            yield from self.runs.get(each, ())
            waiting += self.inside.get(each, ())


class Occurrences:
    """Numbers the occurrences of a step inside another, consistently with the recorded ones.

    The step's own code counts from one, and skips the numbers that belong to host calls. A host
    call gets the numbers that it had, and then those after all others.
    """

    def __init__(self, recorded: Mapping[int, str]) -> None:
        self._recorded = recorded
        self._given: set[int] = set()
        self._own = 0

    def next(self, caller: str) -> int:
        """Return the next number; `caller` is the host call that enters, "" for own code.

        No number is returned twice.
        """
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
    """Yield the model and the charge of each model call of a run and of the runs inside it.

    `read` returns the history of a child run. A child for which it raises `RunNotFound` has no
    charges.
    """
    yield from history.charges
    for child in history.children:
        with contextlib.suppress(RunNotFound):
            yield from charges_of(read(child), read)


def inputs_digest(inputs: Sequence[Input]) -> str:
    """Return the digest of a run's inputs, as computed from the record of such a run.

    "" if there are none. Raise `UsageError` if a file cannot be read.
    """
    found = [
        ("" if each.is_picture else each.variable, _label(each), _sha256(each)) for each in inputs
    ]
    return _digest_of([each for each in found if each[0]], [each for each in found if not each[0]])


def _digest_of(
    texts: Sequence[tuple[str, str | None, str]], pictures: Sequence[tuple[str, str | None, str]]
) -> str:
    """Return the digest of texts and pictures; "" if there are none.

    Texts are sorted by variable, because a record lists those that stay on the host last.
    """
    by_variable = sorted(texts, key=lambda each: each[0])
    return digest(canonical([by_variable, pictures])) if texts or pictures else ""


def _label(given: Input) -> str:
    """Return the name of an input as its attachment has it: its last 1,000 characters."""
    return given.name.encode("utf-8", "replace").decode()[-_LABEL_CHARS_MAX:]


def _sha256(given: Input) -> str:
    if given.path is not None:
        # Read as a file and not through the memory map: if another program truncates a mapped file,
        # reading it kills this process (SIGBUS).
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
    """Merge notes into those of the same runs. The first note's caller is kept."""
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
    """Return the outermost step of a chain. Raise `UsageError` if it is missing."""
    for record in records:
        if isinstance(record, StepEntered) and "/" not in record.path:
            return record
    raise UsageError(f"steps {chain} lack their outermost step, so they cannot be resumed")


# Rules for a program of steps that runs again on the record of an earlier process.
#
# Rule 1: a step is identified by its path. In a resume, a step that had completed with the same
# arguments is served; any other runs again, and the runs that it asks for are found in the record.
# In a replay, all steps run again.
# Rule 2: a run is identified by its step and its request. The step's own frame asks in a fixed
# order: a request without a record is a divergence, as long as recorded runs are left. Tasks and
# threads have no fixed order: there it is a new run.
# Rule 3: steps and runs inside a host call are identified by that call too. If the answer of the
# call is recorded, the call is not repeated, and the steps and runs in it are not asked for.
# Rule 4: no spending is forgotten. Recorded steps and runs that are not asked for again are counted
# when their step is left.


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A step that is not entered, because it had completed: its value and its receipt."""

    value: object
    receipt: StepReceipt


@dataclass(slots=True, kw_only=True)
class Unasked:
    """Recorded runs and whole steps inside a step that were not asked for again."""

    runs: list[RecordedRun] = field(default_factory=list)
    receipts: list[StepReceipt] = field(default_factory=list)


class StepReplay:
    """The record of an earlier process, for one process that runs the program again.

    It is shared by all steps and runs of the program. `key` identifies the ledger of the chain,
    `fence` is the fencing token of the resume. With a `report`, it is a replay. `find_run` returns
    the run that a value refers to, None if it has changed. `count` is called in a resume with runs
    that this process did not pay for, each run once.
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
        self._occurrences: dict[str, Occurrences] = {}

    @property
    def chain(self) -> str:
        return self.history.chain

    @property
    def replaying(self) -> bool:
        """True in a replay, in which nothing new may happen."""
        return self._report is not None

    # -- steps ---------------------------------------------------------------------------------

    def claim(self) -> bool:
        """Return True for the first outermost step, which takes the chain, and False for others."""
        with self._guard:
            taken, self._taken = self._taken, True
        return not taken

    def root_path(self, part: str) -> str:
        """Return the path of the outermost step. `part` is the called function, with its key.

        Raise `StepsDiverged` if the recorded step is another; a replay notes it in the report too.
        """
        path = self.history.root.path
        if path != part and not path.startswith(f"{part}#"):
            self._diverge(step=path, field="step", recorded=path, now=part)
        return path

    def occurrence(self, first: str, caller: str) -> int:
        """Return the occurrence of a step that is entered now. `first` is its path the first time.

        Each call counts one more.
        """
        with self._guard:
            if first not in self._occurrences:
                self._occurrences[first] = Occurrences(self.history.occurrences(first))
            return self._occurrences[first].next(caller)

    def enter(self, facts: StepEntered) -> Served | None:
        """Note that a step is about to be entered. Return its recorded result if it is served.

        Return None if it must run. That is always so in a replay, which notes a divergence in the
        report. In a resume it is so unless the step completed with the same known arguments, left
        nothing unfinished, and its value can be read. Runs of a served step are counted. Raise what
        `find_run` raises, except `ValueError`.
        """
        path = facts.path
        self._seen.add(path)
        before, left = self.history.entered.get(path), self.history.left.get(path)
        if self._report is not None:
            with self._guard:
                self._report.steps += 1
                self._report.note(entry_difference(facts, before))
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
            value = value_of(KeptValue(kind=left.value_kind, text=left.value), self._resolve_run)
        except ValueError:
            return None
        self.count(list(self.history.within(path)))
        return Served(value=value, receipt=left.receipt)

    def with_first_time(self, facts: StepEntered) -> StepEntered:
        """Return the facts of a step with the recorded time of its entry.

        They are unchanged if none is recorded.
        """
        before = self.history.entered.get(facts.path)
        if before is None:
            return facts
        return msgspec.structs.replace(facts, entered_at=before.entered_at)

    def has_record(self, facts: StepEntered, left: StepLeft | None = None) -> bool:
        """Return True if the chain had these facts of a step when it was read.

        With `left`, it had that end too; without, no end. Times, notes and the order of runs may
        differ.
        """
        before = self.history.entered.get(facts.path)
        if before is None or _without_time(before) != _without_time(facts):
            return False
        known = self.history.left.get(facts.path)
        return known is None if left is None else known is not None and _is_same(left, known)

    def leave(self, path: str, status: StepStatus, kept: KeptValue) -> Unasked:
        """Note that a step is left. Return what was recorded in it and not asked for again.

        That counts as asked for from now on, and the agent is informed of its cost in a resume. A
        replay notes another end, and in a completed step all that was not asked for, as
        divergences.
        """
        if self._report is not None:
            self._report.note(end_difference(path, status, kept, self.history.left.get(path)))
            if status == "completed":
                self._note_unasked(path, self._report)
        unasked = self._collect_unasked(path)
        self.count(unasked.runs)
        for each in unasked.receipts:
            self.count(list(self.history.within(each.path)))
        return unasked

    def limits_changed(self, facts: StepEntered) -> bool:
        """Return True if a step declares another budget than the recorded one.

        False if it is not recorded.
        """
        before = self.history.entered.get(facts.path)
        now = facts.tokens_max, facts.usd_max
        return before is not None and (before.tokens_max, before.usd_max) != now

    # -- runs ----------------------------------------------------------------------------------

    def find(
        self, path: str, asked: RunAsked, *, key: object, in_order: bool, caller: str
    ) -> RecordedRun | None:
        """Return the recorded run for a request in a step, and take it; None if it is a new run.

        Raise `UsageError` if `key` is that of another ledger. Raise `StepsDiverged` if a recorded
        run is the same request under other limits, or if a run is missing that a receipt names.
        With `in_order` it is raised for any other request while recorded runs are left, and in a
        replay for every request without a record. `in_order` means that the step's own frame asks,
        and not one of several tasks or threads. `caller` is the host call that asks, "" for none.
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
        """Return the records of a run, of a fork with those that it shares.

        Raise `RunNotFound` if it is not there, `ResumeRefused` if a body was removed, and
        `RecordUnreadable` for a body that is no record of this version.
        """
        return History(whole_records(self.ledger, run))

    def count(self, runs: Sequence[RecordedRun]) -> None:
        """Inform the agent of runs that an earlier process paid for, each once. Not in a replay."""
        with self._guard:
            fresh = [each for each in runs if not each.counted]
            for each in fresh:
                each.counted = True
        if fresh and not self.replaying:
            self._count(fresh)

    def refuse_new(self, now: str) -> None:
        """Raise `StepsDiverged` in a replay, for an action that is not recorded."""
        if self.replaying:
            self._diverge(step=self.history.root.path, field="run", recorded=None, now=now)

    # -- a replay ------------------------------------------------------------------------------

    def note_replayed(self, path: str, found: StepDivergence | None) -> None:
        """Count a run that was replayed, and note its divergence if it has one.

        `path` is the step of the divergence. Does nothing in a resume.
        """
        if self._report is not None:
            with self._guard:
                self._report.runs += 1
                self._report.note(
                    None if found is None else msgspec.structs.replace(found, step=path)
                )

    def refuse_interrupted(self, path: str, run: str) -> NoReturn:
        """Raise `StepsDiverged` for an interrupted run, which a replay cannot resume.

        A replay has it in its report too.
        """
        self._diverge(step=path, run=run, field="end", recorded=None, now="asked for")

    def finish(self) -> None:
        """Note a divergence if the program ended without entering the outermost step.

        Only in a replay.
        """
        root = self.history.root.path
        if self._report is not None and not self._taken:
            self._report.note(StepDivergence(step=root, field="step", recorded=root, now=None))

    def _note_unasked(self, path: str, report: StepsReport) -> None:
        """Note recorded requests that the step's own code did not make again.

        Requests inside host calls are left out: a replay does not make host calls.
        """
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
            recorded=shorten(recorded),
            now=shorten(now),
        )

    def _resolve_run(self, ref: RunRef) -> object:
        run = self._find_run(ref)
        if run is None:
            raise ValueError(f"run {ref.run} is not what it was")
        return run

    def _check_missing(self, path: str, asked: RunAsked) -> None:
        """Raise `StepsDiverged` if the step's receipt names a run that this ledger does not have.

        Without it, the run would be paid for again. A receipt of a step with unfinished runs counts
        for nothing. In a replay it is always raised: `asked` has no record.
        """
        if self.replaying:
            self._diverge(step=path, field="run", recorded=None, now=asked.goal)
        left = self.history.left.get(path)
        if left is None or left.receipt.unfinished:
            # Such a receipt may name runs that died before they were recorded.
            return
        for run in left.receipt.runs:
            if run not in self.history.ids:
                self._diverge(
                    step=path, run=run, field="run", recorded=run, now="not in this ledger"
                )

    def _waiting(self, path: str) -> list[RecordedRun]:
        return [each for each in self.history.runs.get(path, ()) if not each.taken]

    def _collect_unasked(self, path: str) -> Unasked:
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


def _without_time(facts: StepEntered) -> StepEntered:
    return msgspec.structs.replace(facts, entered_at=0, missed=0, note=None)


def _is_same(left: StepLeft, before: StepLeft) -> bool:
    """Return True if a step ended as recorded, apart from times and the order of its runs."""
    return _without_times(left) == _without_times(before)


def _without_times(left: StepLeft) -> StepLeft:
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
    """Return the recorded run that the program most likely meant, of several that differ.

    That is one with the same request under other limits. If `strict`, it may also be one with the
    same goal, or else the first that waits. None if there is no such run.
    """
    twins = [each for each in waiting if each.asked.is_twin(asked)]
    same = [each for each in waiting if each.asked.goal == asked.goal]
    return next(iter([*twins, *same, *waiting] if strict else twins), None)
