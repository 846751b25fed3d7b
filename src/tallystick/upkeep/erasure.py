"""Erasing notes everywhere: from the memory, and from the runs that had to do with them.

Rule 1: what will go is written down first, in the memory's log, by the ids of notes and runs.
Rule 2: runs go first and the notes last, so that asking again after a crash finds what is left to
do. A note that is gone can still be asked for: what was written down names its runs.
Rule 3: a run is pruned, so that its chain still holds and says `erased`. If what stays of it, its
receipt, still has the text or the text's plain digest, the run is removed whole.
Rule 4: what cannot go is named with a reason and what to do about it, and everything else goes.
What left before, exports of the memory and of runs, is out of reach and nothing is claimed of it.
Rule 5: whoever may not forget a note cannot make a run go either. For an agent that is not the
owner of the file, only runs go that name the note, and their families: else it could write down
what others' runs say, have that erased, and their runs with it.

The ledger's file is written anew before the notes go, not after: as long as a note is there, asking
again does all of it; and the memory's own file is written anew by whoever opens it next.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from tallystick.attachments.collect import reclaim, reclaim_forgotten
from tallystick.attachments.port import AttachmentError
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.core.errors import LedgerError, UsageError
from tallystick.ledger.scopes import Scopes
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.memory.forget import (
    RunsErased,
    begin_forgetting,
    exports_of,
    forget,
    forgettable,
    matching_ids,
    provenance_ids,
    runs_begun,
    saying_ids,
    subject_ids,
)
from tallystick.memory.memory import Memory, visible_ids
from tallystick.memory.note import REDACTED
from tallystick.memory.receipts.receipt import ForgetReceipt, Key, RunErased
from tallystick.memory.store.records import Criteria, Failure, ForgetStrategy
from tallystick.memory.store.sqlite import SqliteMemory
from tallystick.runtime.runs.history import require_not_awaited
from tallystick.runtime.runs.lock import is_running, require_idle, running_runs
from tallystick.stores import stores_of
from tallystick.upkeep.prune import Kept, Pruned, Pruner
from tallystick.upkeep.text_traces import (
    TEXT_CHARS_MIN,
    Because,
    Survey,
    TextForms,
    blobs_with,
    has_text,
    is_said_in,
    spilled_files,
    strays_with,
    survey,
    touched_since,
)
from tallystick.upkeep.transfer import remove_run_with_attachments

# What an erasure did, and what it could not do: plain data, for whoever asked.


class ErasedRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run that had to do with notes, why it is one, and what became of it.

    `because` is that its records name a note, that it has the text, or that it is of the family of
    such a run. `why` says why a run is kept, `todo` what to do about that.
    """

    run: str
    how: Literal["pruned", "removed", "kept"]
    because: Because
    why: str = ""
    todo: str = ""


class Erased(msgspec.Struct, frozen=True, kw_only=True):
    """What was erased, or in a dry run would be, and what could not be.

    `runs` is None if no ledger was looked through. `attachments` and `outputs` are counted;
    `attachments_left` are those that have the text and that somebody else holds. `not_searched` are
    notes whose text was not looked for, because it is too short or gone already: their runs are
    found by name. `alike` are other notes that say the same: they stay, and have to be asked for.
    `note` says why bytes may still be in the ledger's file, `scrubbed` is as in `Forgotten`.
    """

    dry_run: bool
    strategy: ForgetStrategy
    notes: tuple[str, ...]
    errors: tuple[Failure, ...]
    runs: tuple[ErasedRun, ...] | None = None
    attachments: int = 0
    attachments_left: tuple[str, ...] = ()
    outputs: int = 0
    outputs_left: tuple[str, ...] = ()
    not_searched: tuple[str, ...] = ()
    alike: tuple[str, ...] = ()
    exports: tuple[tuple[int, str], ...] = ()
    note: str | None = None
    receipt: ForgetReceipt | None = None
    scrubbed: bool | None = None

    @property
    def whole(self) -> bool:
        """Whether nothing was left that was to go. Exports are not ours."""
        kept = any(run.how == "kept" for run in self.runs or ())
        left = self.attachments_left or self.outputs_left or self.note
        return not (self.errors or kept or left or self.scrubbed is False)


# Erasing notes everywhere: from the memory, and from the runs that had to do with them.


_TOGETHER = 256


def erase_notes(
    memory: SqliteMemory,
    ids: Sequence[str],
    *,
    ledger: SqliteLedger,
    actor: str | None,
    key: Key | None,
    strategy: ForgetStrategy = ForgetStrategy.HARD_DELETE,
    by: str = "ids",
    why: str = "asked",
    output: Path | None = None,
    dry_run: bool = False,
) -> Erased:
    """Erase or redact notes, and with them what recorded runs have of them.

    `actor`, `key`, `by` and `why` as in `forget`. `output` is where programs' long output is
    spilled to, beside the ledger unless it is given.
    """
    with stores_of(ledger) as stores:
        erasure = Erasure(
            memory,
            ids,
            ledger=ledger,
            attachments=stores.attachments,
            scopes=stores.scopes,
            actor=actor,
            key=key,
            strategy=strategy,
            by=by,
            why=why,
            output=output or ledger.path.parent / "output",
        )
        if dry_run:
            return erasure.look()
        for _ in erasure.steps():
            pass
        return erasure.erased()


class Erasure:
    """One erasure. `steps` does it, and stops wherever the process could die."""

    def __init__(
        self,
        memory: SqliteMemory,
        ids: Sequence[str],
        *,
        ledger: SqliteLedger,
        attachments: SqliteAttachments,
        scopes: Scopes,
        actor: str | None,
        key: Key | None,
        strategy: ForgetStrategy,
        by: str,
        why: str,
        output: Path,
    ) -> None:
        if not strategy.erases:
            raise UsageError(f"{strategy.value} leaves the text; hard_delete and redact erase it")
        self._memory = memory
        self._ids = tuple(dict.fromkeys(ids))
        self._ledger = ledger
        self._attachments = attachments
        self._actor, self._key, self._strategy = actor, key, strategy
        self._by, self._why = by, why
        self._output = output
        self._pruner = Pruner(ledger, attachments, scopes, clock=memory.clock)
        self._runs: dict[str, ErasedRun] = {}
        self._made = Erased(dry_run=False, strategy=strategy, notes=(), errors=())

    def erased(self) -> Erased:
        """What was done."""
        return self._made

    # -- looking -------------------------------------------------------------------------------

    def look(self) -> Erased:
        """What would be erased. Nothing is changed."""
        needles, found, notes = self._found()
        for run, because in found.runs.items():
            self._note(run, because, self._looked(run))
        going = [run for run, each in self._runs.items() if each.how != "kept"]
        with self._memory.reading() as db:
            exports = exports_of(db, notes)
        spilled = self._spilled(needles, found, going)
        held = [id for id in found.blobs | found.held if self._is_held(id, found, going)]
        return msgspec.structs.replace(
            self._made,
            dry_run=True,
            notes=notes,
            runs=tuple(self._runs.values()),
            attachments=len((found.blobs | found.held).difference(held)),
            attachments_left=tuple(sorted(found.blobs.intersection(held))),
            outputs=len(spilled),
            exports=exports,
        )

    def _looked(self, run: str) -> Pruned | Kept:
        try:
            return self._pruner.look(run)
        except (LedgerError, AttachmentError) as error:
            return Kept(run=run, why=f"cannot be pruned: {error}")

    def _found(self) -> tuple[TextForms, Survey, tuple[str, ...]]:
        """What is looked for, where it was found, and the ids of the notes that may go."""
        may = forgettable(self._memory, self._ids, actor=self._actor, strategy=self._strategy)
        ids = (*(note.id for note in may.notes), *may.gone)
        texts = {note.id: note.content for note in may.notes if note.content != REDACTED}
        needles = TextForms(texts.values())
        unsaid = [id for id in ids if len(texts.get(id, "").strip()) < TEXT_CHARS_MIN]
        saying = saying_ids(self._memory, needles.in_bytes) if needles else []
        saying = visible_ids(self._memory, saying, reader=self._actor)
        alike = tuple(id for id in saying if id not in ids)
        self._set(errors=may.errors, not_searched=tuple(unsaid), alike=alike)
        known = runs_begun(self._memory, ids)
        found = survey(
            self._ledger,
            self._attachments,
            ids=ids,
            needles=needles,
            known=known,
            by_text=self._actor is None,
        )
        for run in found.others:
            why = "is not known to have it from this note, and only has the text"
            self._runs[run] = ErasedRun(
                run=run, how="kept", because="text", why=why, todo="ask as the owner of the memory"
            )
        return needles, found, ids

    def _is_held(self, id: str, found: Survey, going: Collection[str]) -> bool:
        """Whether somebody holds an attachment who is not among the runs that go."""
        sessions = {found.sessions[run] for run in going if run in found.sessions}
        holders = [each.intent.session_id for each in self._attachments.references(id=id)]
        return any(holder.removesuffix("/snapshots") not in sessions for holder in holders)

    # -- doing ---------------------------------------------------------------------------------

    def steps(self) -> Iterator[str]:
        """Do the work, stopping wherever something else could happen."""
        needles, found, ids = self._found()
        if not ids:
            return
        yield "looked"
        if found.runs:
            begin_forgetting(self._memory, ids, runs=list(found.runs))
            yield "written down"
        for run, because in found.runs.items():
            self._note(run, because, self._pruned(run))
            yield f"pruned {run}"
        for run in [run for run in found.runs if is_said_in(self._ledger, run, needles)]:
            self._removed(run)
            yield f"removed {run}"
        note, images = self._reset(needles, found)
        self._freed(needles, found)
        yield "attachments freed"
        self._unlinked(needles, found)
        yield "output removed"
        note = (self._rewritten() if found.runs or found.blobs else None) or note
        left = tuple(dict.fromkeys((*self._left(needles, found), *sorted(images))))
        self._set(note=note, runs=tuple(self._runs.values()), attachments_left=left)
        yield "ledger written anew"
        self._forgotten(ids, left)
        yield "forgotten"
        self._late(ids, needles, found)

    def _pruned(self, run: str) -> Pruned | Kept:
        try:
            done = self._pruner.prune(run, why="a note was erased")
        except (LedgerError, AttachmentError) as error:
            return Kept(run=run, why=f"cannot be pruned: {error}")
        if isinstance(done, Pruned):
            self._set(attachments=self._made.attachments + done.attachments)
        return done

    def _note(self, run: str, because: Because, done: Pruned | Kept) -> None:
        kept = isinstance(done, Kept) and not done.pruned
        why = done.why if isinstance(done, Kept) and kept else ""
        self._runs[run] = ErasedRun(
            run=run,
            how="kept" if kept else "pruned",
            because=because,
            why=why,
            todo=_todo(run, why) if kept else "",
        )

    def _removed(self, run: str) -> None:
        """Take out a run of which too much is left, and first what grew from it, if that went."""
        if self._runs[run].how != "pruned":
            return
        try:
            for fork in self._ledger.forks_of(run):
                if fork in self._runs:
                    self._removed(fork)
            require_idle(self._ledger, run)
            require_not_awaited(self._ledger, run)
            remove_run_with_attachments(self._ledger, self._attachments, run)
        except (LedgerError, AttachmentError, UsageError) as error:
            why = f"was pruned, and its receipt still has some of it: {error}"
            self._runs[run] = msgspec.structs.replace(
                self._runs[run], how="kept", why=why, todo=f"then tally rm {run}"
            )
        else:
            self._runs[run] = msgspec.structs.replace(self._runs[run], how="removed")

    def _reset(self, needles: TextForms, found: Survey) -> tuple[str | None, Collection[str]]:
        """Have sessions go on without it. Gives what is to be said, and the images that stay."""
        sessions = stores_of(self._ledger, attachments=self._attachments).sessions
        if not sessions.book.exists:
            return None, ()
        # Whoever is not the owner resets no session that only has the text.
        blobs = found.blobs if self._actor is None else ()
        sessions.forget_images(blobs, runs=found.runs)
        if self._actor is None and needles:
            sessions.book.forget_variables(
                lambda *said: any(needles.in_bytes(each.encode()) for each in said)
            )
        note = (
            None if sessions.book.scrub() else "the file of sessions is not written anew; ask again"
        )
        return note, sessions.images_of(blobs, runs=found.runs)

    def _freed(self, needles: TextForms, found: Survey) -> None:
        """Free what nobody holds any more, also what somebody left who died in the middle."""
        ids = sorted(found.blobs | found.held)
        count = self._made.attachments
        try:
            loose = [id for id in ids if not self._attachments.references(id=id)]
            for start in range(0, len(loose), _TOGETHER):
                report = reclaim_forgotten(self._attachments, loose[start : start + _TOGETHER])
                count += report.reclaimed_count
            if strays_with(self._attachments, needles):
                # Only what was left by who is proven dead.
                reclaim(self._attachments)
        except (AttachmentError, LedgerError):
            pass  # what is left is found by the look that follows
        self._set(attachments=count)

    def _left(self, needles: TextForms, found: Survey) -> tuple[str, ...]:
        """The attachments that have the text all the same, by id or by the name of a file."""
        strays = [path.name for path in strays_with(self._attachments, needles)]
        return (*sorted(blobs_with(self._attachments, needles, among=found.blobs)), *strays)

    def _unlinked(self, needles: TextForms, found: Survey) -> None:
        going = [run for run, each in self._runs.items() if each.how != "kept"]
        count, left = 0, []
        for path in self._spilled(needles, found, going):
            try:
                path.unlink(missing_ok=True)
                count += 1
            except OSError:
                left.append(path.name)
        kept = [run for run, each in self._runs.items() if each.how == "kept"]
        left += [path.name for path in self._of_sessions(found, kept)]
        self._set(outputs=count, outputs_left=tuple(sorted(left)))

    def _rewritten(self) -> str | None:
        """Write the ledger's file anew. Says why, if that cannot be done now."""
        try:
            # Not only what was shrunk: this also empties SQLite's own log.
            self._attachments.scrub()
            working = next(running_runs(self._ledger), None)
            if working is not None:
                return f"the ledger's file is not written anew while run {working} is running"
            return self._pruner.shrink(whole=True)
        except LedgerError as error:
            return f"the ledger's file could not be written anew: {error}"

    def _forgotten(self, ids: Sequence[str], left: Sequence[str]) -> None:
        runs = [RunErased(run=each.run, how=each.how, why=each.why) for each in self._runs.values()]
        done = forget(
            self._memory,
            ids,
            actor=self._actor,
            strategy=self._strategy,
            why=self._why,
            by=self._by,
            key=self._key,
            runs=RunsErased(runs=tuple(runs), attachments_left=len(left)),
        )
        self._set(
            notes=done.forgotten,
            errors=(*self._made.errors, *done.errors),
            exports=() if done.receipt is None else done.receipt.exports,
            receipt=done.receipt,
            scrubbed=done.scrubbed,
        )

    def _late(self, ids: Sequence[str], needles: TextForms, found: Survey) -> None:
        """Name the runs that came to the notes while this went on, and write them down."""
        late = touched_since(found, self._ledger, ids=ids, needles=needles)
        if not late:
            return
        begin_forgetting(self._memory, ids, runs=list(late))
        why = "recalled it, or was told it, while it was erased"
        for run, because in late.items():
            self._runs[run] = ErasedRun(
                run=run, how="kept", because=because, why=why, todo="when it has ended, ask again"
            )
        self._set(runs=tuple(self._runs.values()))

    def _set(self, **fields: object) -> None:
        self._made = msgspec.structs.replace(self._made, **fields)

    # -- output --------------------------------------------------------------------------------

    def _spilled(self, needles: TextForms, found: Survey, going: Collection[str]) -> list[Path]:
        """Files of output that go: those of runs that do, and those that have the text."""
        ours = set(self._of_sessions(found, going))
        busy = {found.sessions.get(run) for run in found.runs if is_running(self._ledger, run)}
        return [
            path
            for path, session in spilled_files(self._output)
            if path in ours
            or (self._actor is None and session not in busy and has_text(path, needles))
        ]

    def _of_sessions(self, found: Survey, runs: Collection[str]) -> list[Path]:
        sessions = {found.sessions[run] for run in runs if run in found.sessions}
        return [path for path, session in spilled_files(self._output) if session in sessions]


def _todo(run: str, why: str) -> str:
    """What whoever asked can do about a run that is kept."""
    if why == "is running":
        return "when it has ended, ask again"
    if why.startswith("has not ended"):
        return f"tally resume {run}, or tally rm {run}; then ask again"
    if why.startswith("has calls in doubt"):
        return f"tally resolve {run} and tally resume {run}, or tally rm {run}; then ask again"
    return f"see to that, or tally rm {run}; then ask again"


# Forgetting as users ask for it: which notes, in which way, with or without the recorded runs.


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """How notes are chosen: in one of these ways. A principal and a session are one way."""

    ids: tuple[str, ...] = ()
    subject: str | None = None
    principal: str | None = None
    session_id: str | None = None
    criteria: Criteria | None = None

    @property
    def by(self) -> str:
        """The way, by its name. Raises `UsageError` for none, and for two."""
        ways = {
            "ids": bool(self.ids),
            "subject": self.subject is not None,
            "provenance": self.principal is not None or self.session_id is not None,
            "criteria": self.criteria is not None,
        }
        given = [way for way, said in ways.items() if said]
        if len(given) != 1:
            said = " and ".join(given) or "nothing"
            raise UsageError(
                f"notes are chosen in one way: ids, subject, provenance or criteria; not by {said}"
            )
        return given[0]

    def chosen(self, memory: Memory) -> list[str]:
        """The ids of these notes."""
        store = memory.store
        match self.by:
            case "ids":
                return list(self.ids)
            case "subject":
                ids = subject_ids(store, self.subject or "")
            case "provenance":
                ids = provenance_ids(store, principal=self.principal, session_id=self.session_id)
            case _:
                return matching_ids(store, self.criteria or Criteria(), owner=memory.reader)
        # Of what a reader does not see, also nothing is said.
        return visible_ids(store, ids, reader=memory.reader)


def forget_notes(
    memory: Memory,
    which: Which,
    *,
    strategy: ForgetStrategy | None = None,
    dry_run: bool = False,
    ledger: SqliteLedger | None = None,
) -> Erased:
    """Forget notes; if their bytes go, from the runs of `ledger` first."""
    by = which.by
    if strategy is None:
        strategy = ForgetStrategy.REDACT if by == "subject" else ForgetStrategy.SOFT_DELETE
    ids = which.chosen(memory)
    why = "asked" if by == "ids" else by
    actor, key = memory.reader, memory.keys.current
    if not ids:
        return Erased(dry_run=dry_run, strategy=strategy, notes=(), errors=())
    if strategy.erases and ledger is not None:
        return erase_notes(
            memory.store,
            ids,
            ledger=ledger,
            actor=actor,
            key=key,
            strategy=strategy,
            by=by,
            why=why,
            dry_run=dry_run,
        )
    if dry_run:
        return _looked(memory, ids, strategy)
    done = forget(memory.store, ids, actor=actor, strategy=strategy, why=why, by=by, key=key)
    return Erased(
        dry_run=False,
        strategy=strategy,
        notes=done.forgotten,
        errors=done.errors,
        exports=() if done.receipt is None else done.receipt.exports,
        receipt=done.receipt,
        scrubbed=done.scrubbed,
    )


def _looked(memory: Memory, ids: list[str], strategy: ForgetStrategy) -> Erased:
    may = forgettable(memory.store, ids, actor=memory.reader, strategy=strategy)
    notes = tuple(note.id for note in may.notes)
    gone = [
        Failure(id=id, code="backend.memory.erased", message=f"note {id} was erased")
        for id in may.gone
    ]
    with memory.store.reading() as db:
        exports = exports_of(db, notes) if strategy.erases else ()
    return Erased(
        dry_run=True,
        strategy=strategy,
        notes=notes,
        errors=(*may.errors, *gone),
        exports=exports,
    )
