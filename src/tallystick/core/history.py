"""Index the records of a run once: the calls that were begun, their outcomes, the state of the run.

A call is known by its key: the same program asks in the same order, so a key means the same call in
every execution of a run. Replay, resume, fork and the views ask the history, and do not search the
records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Literal, NamedTuple, Protocol, TypeVar, cast

import msgspec

from tallystick.core.budget.amount import Amount
from tallystick.core.charge import Charge
from tallystick.core.errors import LedgerError
from tallystick.core.machine.turn import charge_of, with_new_terms
from tallystick.core.records import (
    CUT_OFF,
    DOUBTED,
    LEFT,
    AskModel,
    CallDecided,
    CallHost,
    CallWaiting,
    ChildBegun,
    ChildEnded,
    Continuation,
    FilesKept,
    HostAnswered,
    ModelFailed,
    ModelRefused,
    ModelReplied,
    ProgramFinished,
    QueryAsked,
    QueryFailed,
    QueryRecord,
    QueryRefused,
    QueryReplied,
    Record,
    RunEnded,
    RunForked,
    RunProgram,
    RunResumed,
    RunStarted,
    SnapshotTaken,
)
from tallystick.core.views.open_calls import OpenCall, left_calls, open_calls

# The item of a refusal that is of a whole batch.
WHOLE = -1


class Key(NamedTuple):
    """The place of a call in its run.

    The call is a model call of a turn, a program, a host call, a model call of a program, or a
    child run. `item` is the place in a batch, -1 for a call outside a batch, or for a whole batch.
    """

    kind: Literal["turn", "program", "host", "query", "child"]
    intent: int
    item: int = WHOLE
    attempt: int = 1


# Records of the beginning of a call, and of its outcome.
Beginning = AskModel | RunProgram | CallHost | QueryAsked | ChildBegun
Outcome = (
    ModelReplied
    | ModelFailed
    | ModelRefused
    | ProgramFinished
    | HostAnswered
    | QueryReplied
    | QueryFailed
    | QueryRefused
    | ChildEnded
)
Kind = TypeVar("Kind")


def key_of(record: Beginning | Outcome) -> Key:
    """Return the key of the call that a record belongs to.

    An effect of a host function that is begun again keeps its key. A child that is refused has the
    key of a query: it was never begun.
    """
    match record:
        case AskModel() | ModelReplied() | ModelFailed() | ModelRefused():
            return Key("turn", record.intent)
        case RunProgram() | ProgramFinished():
            return Key("program", record.intent)
        case CallHost() | HostAnswered():
            return Key("host", record.intent)
        case ChildBegun() | ChildEnded():
            return Key("child", record.intent, record.item, record.attempt)
        case QueryAsked() | QueryReplied() | QueryFailed() | QueryRefused():
            return Key("query", record.intent, record.item, record.attempt)


class History:
    """The index of one run's records. It is made once and never changed.

    `resumed` says that the run is resumed after the last of them, so that an end among them is not
    its end any more.
    """

    def __init__(self, records: Sequence[Record] = (), *, resumed: bool = False) -> None:
        self.records = records
        self._begun: dict[Key, list[Beginning]] = {}
        self._ended: dict[Key, Outcome] = {}
        self._by_type: dict[type, list[Record]] = {}
        # The model calls and children of each program, in the order they were written.
        self._inside: dict[int, list[QueryRecord]] = {}
        # The same by the host call that made them.
        self._inside_call: dict[int, list[QueryRecord]] = {}
        self._ended_at: dict[int, int] = {}
        self._continued_at = -1
        # The records of model calls and children do not all name their program. They are written
        # while it runs, and one program runs at a time: so they belong to the last that was begun.
        program = 0
        for place, record in enumerate(records):
            self._by_type.setdefault(type(record), []).append(record)
            if isinstance(record, Beginning):
                self._begun.setdefault(key_of(record), []).append(record)
            elif isinstance(record, Outcome):
                self._ended[key_of(record)] = record
            match record:
                case RunProgram():
                    program = record.intent
                case RunResumed() | RunForked():
                    self._continued_at = place
                case ModelReplied() | ModelFailed() | ProgramFinished():
                    self._ended_at[record.intent] = place
                case _ if isinstance(record, QueryRecord):
                    self._inside.setdefault(program, []).append(record)
                    self._inside_call.setdefault(record.intent, []).append(record)
                case _:
                    pass
        if resumed:
            self._continued_at = len(records)

    # -- calls ---------------------------------------------------------------------------------

    def begun(self, key: Key) -> Sequence[Beginning]:
        """Return every beginning of a call, none if there is none.

        An effect may be begun again under its key.
        """
        return self._begun.get(key, ())

    def ended(self, key: Key) -> Outcome | None:
        """Return the outcome of a call, or None if none is recorded.

        A refusal, or an answer that was only read, has no beginning. The refusal of a child is
        found by the key of the child too.
        """
        ended = self._ended.get(key)
        if ended is None and key.kind == "child":
            refused = self._ended.get(key._replace(kind="query"))
            return refused if isinstance(refused, QueryRefused) else None
        return ended

    def query(
        self, intent: int, item: int, attempt: int
    ) -> tuple[QueryAsked | None, QueryReplied | QueryFailed | QueryRefused | None]:
        """Return the beginning and the outcome of an attempt at a model call of a program.

        Each is None if it is not recorded.
        """
        key = Key("query", intent, item, attempt)
        begun, ended = self.begun(key), self.ended(key)
        asked = begun[0] if begun else None
        assert asked is None or isinstance(asked, QueryAsked)
        assert ended is None or isinstance(ended, QueryReplied | QueryFailed | QueryRefused)
        return asked, ended

    def child(self, intent: int, item: int) -> list[tuple[ChildBegun, ChildEnded | None]]:
        """Return every attempt at a child run with its outcome or None, the first attempt first.

        An attempt that was refused has no beginning and is not among them: `child_refusal`.
        """
        found = []
        for begun in self._all(ChildBegun):
            if (begun.intent, begun.item) == (intent, item):
                ended = self.ended(key_of(begun))
                assert ended is None or isinstance(ended, ChildEnded)
                found.append((begun, ended))
        return sorted(found, key=lambda attempt: attempt[0].attempt)

    def child_refusal(self, intent: int, item: int) -> QueryRefused | None:
        """Return the refusal of a child run, or with `WHOLE` of a batch; None if there is none."""
        return self._refusals.get((intent, item))

    def waiting(self, intent: int) -> CallWaiting | None:
        """Return the record that a host call needs a person's word; None if it needed none."""
        return self._waiting.get(intent)

    @cached_property
    def _waiting(self) -> Mapping[int, CallWaiting]:
        return _by_intent(self._all(CallWaiting))

    @cached_property
    def undecided(self) -> Sequence[CallWaiting]:
        """The calls that wait for a person's word, in their order."""
        decided = {each.intent for each in self._all(CallDecided)}
        return [
            each
            for each in self._all(CallWaiting)
            if each.intent not in decided
            and not self.begun(Key("host", each.intent))
            and not self.is_answered(each.intent)
            and each.program not in self.finished
        ]

    def is_answered(self, intent: int) -> bool:
        """Return True if the answer to a host call is recorded."""
        return Key("host", intent) in self._ended

    def inside(self, program: int) -> Sequence[QueryRecord]:
        """Return the records of the model calls and children of a program, in their order.

        `program` is its intent. 0 has those before the first program.
        """
        return self._inside.get(program, ())

    def inside_call(self, intent: int) -> Sequence[QueryRecord]:
        """Return the records of the model calls and children that one host call made, in order."""
        return self._inside_call.get(intent, ())

    @cached_property
    def open(self) -> Sequence[OpenCall]:
        """The calls that were begun and have no outcome."""
        return open_calls(self.records)

    @cached_property
    def left(self) -> Sequence[AskModel | QueryAsked]:
        """The calls that were left after they were sent, and that a resume would repeat."""
        return left_calls(self.records)

    @cached_property
    def _refusals(self) -> Mapping[tuple[int, int], QueryRefused]:
        return {(each.intent, each.item): each for each in self._all(QueryRefused)}

    # -- turns and programs, by intent -----------------------------------------------------------

    @cached_property
    def asked(self) -> Mapping[int, AskModel]:
        """The model calls of turns, by intent."""
        return _by_intent(self._all(AskModel))

    @cached_property
    def replies(self) -> Mapping[int, ModelReplied | ModelFailed]:
        """The outcome of each model call of a turn that was sent, by intent."""
        return {**_by_intent(self._all(ModelReplied)), **_by_intent(self._all(ModelFailed))}

    @cached_property
    def refused(self) -> Mapping[int, ModelRefused]:
        """The refused model calls of turns, by intent."""
        return _by_intent(self._all(ModelRefused))

    @cached_property
    def programs(self) -> frozenset[int]:
        """The intents of the programs that were begun."""
        return frozenset(each.intent for each in self._all(RunProgram))

    @cached_property
    def finished(self) -> Mapping[int, ProgramFinished]:
        """The results of programs, by intent."""
        return _by_intent(self._all(ProgramFinished))

    @cached_property
    def snapshots(self) -> Mapping[int, SnapshotTaken]:
        """The snapshots after programs, by intent."""
        return _by_intent(self._all(SnapshotTaken))

    @cached_property
    def files(self) -> Mapping[int, FilesKept]:
        """The files that were kept after native programs, by intent."""
        return _by_intent(self._all(FilesKept))

    @cached_property
    def answers(self) -> Mapping[int, Sequence[HostAnswered]]:
        """The host calls of each program that were answered, in their order, by its intent."""
        found: dict[int, list[HostAnswered]] = {}
        for each in self._all(HostAnswered):
            found.setdefault(each.program, []).append(each)
        return found

    @cached_property
    def unanswered(self) -> Mapping[int, Sequence[CallHost]]:
        """The effects of each program that have no answer, by its intent, each once."""
        found: dict[int, list[CallHost]] = {}
        for call in self._all(CallHost):
            if call.attempt == 1 and not self.is_answered(call.intent):
                found.setdefault(call.program, []).append(call)
        return found

    @property
    def files_missing(self) -> Sequence[str]:
        """Names of the files that a resume of this run does not have: they could not be kept.

        If nothing could be kept after the last program, it is one text that says so.
        """
        kept = self._all(FilesKept)
        if not kept:
            return ()
        if kept[-1].archive is None:
            return (f"all that was changed since ({kept[-1].problem})",)
        return kept[-1].left_out

    def open_in(self, program: int) -> str | None:
        """Return the name of an effect of a program that has no outcome, else "llm_query".

        That stands for a model call without an outcome; None without one too. Children do not
        count.
        """
        effects = self.unanswered.get(program, ())
        if effects:
            return effects[0].name
        asked = [each for each in self.inside(program) if isinstance(each, QueryAsked)]
        is_open = any(self.ended(key_of(each)) is None for each in asked)
        return "llm_query" if is_open else None

    # -- the run -------------------------------------------------------------------------------

    @cached_property
    def started(self) -> RunStarted:
        """The start as it applies now: with the current limits, model and temperature.

        A fork may have changed the last two. Raise `LedgerError` if the records do not begin with a
        start.
        """
        if not self.records or not isinstance(self.records[0], RunStarted):
            raise LedgerError("the run does not begin with its start")
        started = self.records[0]
        for record in self.records:
            if isinstance(record, Continuation):
                started = with_new_terms(started, record)
        return started

    @property
    def holder(self) -> str:
        """The id that holds the attachments of the run: its own, or that of the last fork.

        "" if there is neither record.
        """
        holders: list[RunStarted | RunForked] = [*self._all(RunStarted), *self._all(RunForked)]
        return holders[-1].session_id if holders else ""

    @property
    def end(self) -> RunEnded | None:
        """The end of the run; None without one, or if the run was resumed or forked after it."""
        ends = [
            each for each in self.records[self._continued_at + 1 :] if isinstance(each, RunEnded)
        ]
        return ends[-1] if ends else None

    def is_left(self, outcome: Outcome) -> bool:
        """Return True if the run ends with this outcome, because a cancel left the call.

        That is the model call of a turn, or a program that is an effect; other calls are inside
        one. False if the run was resumed or forked since.
        """
        if isinstance(outcome, ModelFailed):
            left = outcome.reason == LEFT
        else:
            left = isinstance(outcome, ProgramFinished) and outcome.stop == LEFT
        return left and not self.continued_after(outcome.intent)

    def continued_after(self, intent: int) -> bool:
        """Return True if the run was resumed or forked after the outcome of a turn or a program.

        For one without an outcome, True if it was resumed or forked at all.
        """
        return self._ended_at.get(intent, -1) < self._continued_at

    @cached_property
    def holds(self) -> tuple[dict[int, Amount], set[int]]:
        """The reservations in the shared scope: the cost of those with an outcome, by number.

        The second value has the numbers of all that were made.
        """
        ended: dict[int, Amount] = {}
        begun: set[int] = set()
        for key, records in self._begun.items():
            asked = records[-1]
            if not isinstance(asked, AskModel | QueryAsked) or asked.reserved is None:
                continue
            if asked.reserved.hold:
                begun.add(asked.reserved.hold)
                outcome = self.ended(key)
                if isinstance(outcome, ModelReplied | ModelFailed | QueryReplied | QueryFailed):
                    ended[asked.reserved.hold] = Amount.of_charge(spent_by(outcome))
        return ended, begun

    @cached_property
    def awaited_children(self) -> list[str]:
        """The child runs that a resume of this run resumes, by their ids.

        Programs began them, wait for them, and have no result yet. Also those that were stopped
        from outside, which have an end.
        """
        waits: dict[str, bool] = {}
        for record in self.records:
            if isinstance(record, ChildBegun):
                told = self.is_answered(record.intent) or record.program in self.finished
                waits[record.run] = not told
            elif isinstance(record, ChildEnded) and record.stop not in CUT_OFF:
                waits[record.run] = False
        return [run for run, still in waits.items() if still]

    @cached_property
    def charges(self) -> Sequence[tuple[str, Charge]]:
        """The name of the model and the charge of each model call that cost something, in order.

        Calls of turns and of programs are among them; those of child runs are in their own records.
        """
        model = ""
        found = []
        for record in self.records:
            match record:
                case RunStarted():
                    model = record.model
                case RunForked():
                    model = record.model or model
                case ModelReplied() | ModelFailed() if not _cost_nothing(record):
                    found.append((model, charge_of(record)))
                case QueryReplied() | QueryFailed() if not _cost_nothing(record):
                    asked, _ = self.query(record.intent, record.item, record.attempt)
                    found.append((model if asked is None else asked.model, charge_of(record)))
                case _:
                    pass
        return found

    @cached_property
    def children(self) -> Sequence[str]:
        """The runs that programs began, each once, in their order."""
        return list(dict.fromkeys(each.run for each in self._all(ChildBegun)))

    @cached_property
    def exchanges(self) -> Sequence[tuple[AskModel, ModelReplied | ModelFailed]]:
        """The model calls of turns that have an outcome, in the order of their intents, with it.

        An outcome whose call is not among the records, as in a hostile file, is left out.
        """
        known = sorted(self.replies.keys() & self.asked.keys())
        return [(self.asked[intent], self.replies[intent]) for intent in known]

    def answers_of(self, model: str) -> int:
        """Return how many calls a model has answered or failed.

        Counted are the calls of all turns, whatever their model, and those of programs that named
        this one. Calls that a cancel left, or whose process died, are not counted.
        """
        own = {(each.intent, each.item) for each in self._all(QueryAsked) if each.model == model}
        return sum(
            isinstance(each, ModelReplied | QueryReplied) or each.reason not in (LEFT, DOUBTED)
            for key, each in self._ended.items()
            if isinstance(each, ModelReplied | ModelFailed | QueryReplied | QueryFailed)
            and (key.kind == "turn" or (key.intent, key.item) in own)
        )

    def _all(self, kind: type[Kind]) -> Sequence[Kind]:
        return cast("Sequence[Kind]", self._by_type.get(kind, ()))


def spent_by(event: ModelReplied | ModelFailed | QueryReplied | QueryFailed) -> Charge:
    """Return what a call took from the budget.

    If its reservation was returned, it is no model call.
    """
    charge = charge_of(event)
    returned = event.settled is not None and event.settled.figures == "returned"
    return msgspec.structs.replace(charge, model_calls=0) if returned else charge


def _cost_nothing(record: ModelReplied | ModelFailed | QueryReplied | QueryFailed) -> bool:
    """Return True if an attempt is known to have cost nothing, so that it was never counted."""
    if record.settled is not None:
        return record.settled.figures == "returned"
    return isinstance(record, ModelFailed | QueryFailed) and not record.billed


class _OfIntent(Protocol):
    @property
    def intent(self) -> int: ...


_Found = TypeVar("_Found", bound=_OfIntent)


def _by_intent(records: Iterable[_Found]) -> dict[int, _Found]:
    return {each.intent: each for each in records}
