"""Erase notes everywhere: from the memory, and from the runs that are affected by them.

Rule 1: what will be erased is recorded first, in the memory's log, by the ids of notes and runs.
Rule 2: runs are erased first and the notes last, so that a repeated request after a crash finds
what is left to do. A note that is gone can still be requested, because the record names its runs.
Rule 3: a run is pruned, so that its chain is still valid and says `erased`. If its receipt, which
stays, still has the text or the text's plain digest, the run is removed completely.
Rule 4: what cannot be erased is named with a reason and a remedy, and everything else is erased.
Earlier exports of the memory and of runs are out of reach, and nothing is claimed about them.
Rule 5: an actor that may not forget a note cannot erase a run either. For an agent that is not the
owner of the file, only runs that name the note, and their families, are erased. Otherwise the agent
could write a note with the words of others' runs, have it erased, and their runs with it.

The ledger's file is rewritten before the notes are deleted, not after: as long as a note exists, a
repeated request does all of it. The memory's own file is rewritten when it is opened next.
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
    announced_runs,
    begin_forgetting,
    expired_ids,
    exports_of,
    forget,
    ids_with_content,
    matching_ids,
    preview_forget,
    provenance_ids,
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


class ErasedRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run that is affected by notes, why, and what was done with it.

    `because` is that its records name a note, that it has the text, or that it is in the family of
    such a run. `why` is the reason why a run is kept, `todo` the remedy.
    """

    run: str
    how: Literal["pruned", "removed", "kept"]
    because: Because
    why: str = ""
    todo: str = ""


class Erased(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an erasure, or of a dry run, with what could not be erased.

    `runs` is None if no ledger was searched. `attachments` and `outputs` are counts;
    `attachments_left` have the text and another holder. `not_searched` are notes whose text was not
    searched for, because it is too short or gone already: their runs are found by name. `alike` are
    other notes with the same text that the actor may see: they stay, and need a request of their
    own. `note` says why bytes may still be in the ledger's file, `scrubbed` is as in `Forgotten`.
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
        """True if everything was erased that was to be. Exports do not count."""
        kept = any(run.how == "kept" for run in self.runs or ())
        left = self.attachments_left or self.outputs_left or self.note
        return not (self.errors or kept or left or self.scrubbed is False)


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

    `actor`, `key`, `by` and `why` are as in `forget`. `output` is the folder of programs' long
    output, by default beside the ledger. With `dry_run` nothing is changed. What cannot be erased
    is named in the result. If a store fails half-way, the same request does the rest. Raise
    `UsageError` for a strategy that leaves the text, and `NoteInvalid` for an actor that is no
    name.
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
        return erasure.result()


class Erasure:
    """One erasure. `steps` does it, and yields at each point where the process could die.

    Use an object once. Raise `UsageError` for a strategy that leaves the text.
    """

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

    def result(self) -> Erased:
        """Return the result so far."""
        return self._made

    # -- the dry run ---------------------------------------------------------------------------

    def look(self) -> Erased:
        """Return what would be erased. Nothing is changed.

        A run that cannot be examined is in it as `kept`. Receipts that would make a run be removed
        are not looked at: such a run is in it as `pruned`.
        """
        needles, found, notes = self._find()
        for run, because in found.runs.items():
            self._note(run, because, self._look_at(run))
        going = [run for run, each in self._runs.items() if each.how != "kept"]
        with self._memory.reading() as db:
            exports = exports_of(db, notes)
        spilled = self._output_files(needles, found, going)
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

    def _look_at(self, run: str) -> Pruned | Kept:
        try:
            return self._pruner.look(run)
        except (LedgerError, AttachmentError) as error:
            return Kept(run=run, why=f"cannot be pruned: {error}")

    def _find(self) -> tuple[TextForms, Survey, tuple[str, ...]]:
        """Return the needles, where they were found, and the ids of notes that may be erased.

        Notes that may not be erased, and runs that only the owner may erase, go into the result.
        """
        may = preview_forget(self._memory, self._ids, actor=self._actor, strategy=self._strategy)
        ids = (*(note.id for note in may.notes), *may.gone)
        texts = {note.id: note.content for note in may.notes if note.content != REDACTED}
        needles = TextForms(texts.values())
        unsaid = [id for id in ids if len(texts.get(id, "").strip()) < TEXT_CHARS_MIN]
        saying = ids_with_content(self._memory, needles.in_bytes) if needles else []
        saying = visible_ids(self._memory, saying, reader=self._actor)
        alike = tuple(id for id in saying if id not in ids)
        self._set(errors=may.errors, not_searched=tuple(unsaid), alike=alike)
        known = announced_runs(self._memory, ids)
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
        """Return True if an attachment has a holder that is not a run to be erased."""
        sessions = {found.sessions[run] for run in going if run in found.sessions}
        holders = [each.intent.session_id for each in self._attachments.references(id=id)]
        return any(holder.removesuffix("/snapshots") not in sessions for holder in holders)

    # -- the erasure ---------------------------------------------------------------------------

    def steps(self) -> Iterator[str]:
        """Do the work. Yield a name after each step, for tests that interrupt it there.

        Without a note that may be erased it does nothing. A run or an attachment that cannot be
        erased is noted in the result, and the notes go in any case. Errors of the memory, of
        sessions, and of the search are raised: the same request then does the rest.
        """
        needles, found, ids = self._find()
        if not ids:
            return
        yield "looked"
        if found.runs:
            begin_forgetting(self._memory, ids, runs=list(found.runs))
            yield "written down"
        for run, because in found.runs.items():
            self._note(run, because, self._prune(run))
            yield f"pruned {run}"
        for run in [run for run in found.runs if is_said_in(self._ledger, run, needles)]:
            self._remove(run)
            yield f"removed {run}"
        note, images = self._clear_sessions(needles, found)
        self._free(needles, found)
        yield "attachments freed"
        self._unlink(needles, found)
        yield "output removed"
        note = (self._rewrite() if found.runs or found.blobs else None) or note
        left = tuple(dict.fromkeys((*self._remaining(needles, found), *sorted(images))))
        self._set(note=note, runs=tuple(self._runs.values()), attachments_left=left)
        yield "ledger written anew"
        self._forget(ids, left)
        yield "forgotten"
        self._report_late(ids, needles, found)

    def _prune(self, run: str) -> Pruned | Kept:
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
            todo=_remedy(run, why) if kept else "",
        )

    def _remove(self, run: str) -> None:
        """Remove a run completely, after its forks, if those were pruned too.

        One that was not pruned stays. An error is noted with the run, which then counts as kept.
        """
        if self._runs[run].how != "pruned":
            return
        try:
            for fork in self._ledger.forks_of(run):
                if fork in self._runs:
                    self._remove(fork)
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

    def _clear_sessions(
        self, needles: TextForms, found: Survey
    ) -> tuple[str | None, Collection[str]]:
        """Remove images and variables from sessions. Return a note, and the images that stay.

        Images that erased runs left are removed, and for the owner those that have the text, and
        variables with it. The note is None if the file of sessions was written anew. Sessions in
        use are skipped.
        """
        sessions = stores_of(self._ledger, attachments=self._attachments).sessions
        if not sessions.book.exists:
            return None, ()
        # Only the owner may reset a session because of the text alone (rule 5).
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

    def _free(self, needles: TextForms, found: Survey) -> None:
        """Free attachments without a holder, including those that a crashed erasure left.

        An error is ignored: `_remaining` finds what is still there.
        """
        ids = sorted(found.blobs | found.held)
        count = self._made.attachments
        try:
            loose = [id for id in ids if not self._attachments.references(id=id)]
            for start in range(0, len(loose), _TOGETHER):
                report = reclaim_forgotten(self._attachments, loose[start : start + _TOGETHER])
                count += report.reclaimed_count
            if strays_with(self._attachments, needles):
                # `reclaim` only takes what a process left that is proven dead.
                reclaim(self._attachments)
        except (AttachmentError, LedgerError):
            pass  # `_remaining` finds and reports what is still there
        self._set(attachments=count)

    def _remaining(self, needles: TextForms, found: Survey) -> tuple[str, ...]:
        """Return the attachments that still have the text, by id or by the name of a file."""
        strays = [path.name for path in strays_with(self._attachments, needles)]
        return (*sorted(blobs_with(self._attachments, needles, among=found.blobs)), *strays)

    def _unlink(self, needles: TextForms, found: Survey) -> None:
        going = [run for run, each in self._runs.items() if each.how != "kept"]
        count, left = 0, []
        for path in self._output_files(needles, found, going):
            try:
                path.unlink(missing_ok=True)
                count += 1
            except OSError:
                left.append(path.name)
        kept = [run for run, each in self._runs.items() if each.how == "kept"]
        left += [path.name for path in self._output_of_runs(found, kept)]
        self._set(outputs=count, outputs_left=tuple(sorted(left)))

    def _rewrite(self) -> str | None:
        """Rewrite the ledger's file.

        Return why not, if that cannot be done now; None if it was done.
        """
        try:
            # Also if the file cannot be rewritten below: this empties SQLite's own log.
            self._attachments.scrub()
            working = next(running_runs(self._ledger), None)
            if working is not None:
                return f"the ledger's file is not written anew while run {working} is running"
            return self._pruner.shrink(whole=True)
        except LedgerError as error:
            return f"the ledger's file could not be written anew: {error}"

    def _forget(self, ids: Sequence[str], left: Sequence[str]) -> None:
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

    def _report_late(self, ids: Sequence[str], needles: TextForms, found: Survey) -> None:
        """Report and record the runs that got the notes during the erasure."""
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

    def _output_files(
        self, needles: TextForms, found: Survey, going: Collection[str]
    ) -> list[Path]:
        """Return the output files to delete: those of erased runs, and those that have the text.

        For an agent, only the former. Files of runs in `found` that are running are left out, even
        if they have the text.
        """
        ours = set(self._output_of_runs(found, going))
        busy = {found.sessions.get(run) for run in found.runs if is_running(self._ledger, run)}
        return [
            path
            for path, session in spilled_files(self._output)
            if path in ours
            or (self._actor is None and session not in busy and has_text(path, needles))
        ]

    def _output_of_runs(self, found: Survey, runs: Collection[str]) -> list[Path]:
        sessions = {found.sessions[run] for run in runs if run in found.sessions}
        return [path for path, session in spilled_files(self._output) if session in sessions]


def _remedy(run: str, why: str) -> str:
    """Return what the user can do about a run that is kept."""
    if why == "is running":
        return "when it has ended, ask again"
    if why.startswith("has not ended"):
        return f"tally resume {run}, or tally rm {run}; then ask again"
    if why.startswith("has calls in doubt"):
        return f"tally resolve {run} and tally resume {run}, or tally rm {run}; then ask again"
    return f"see to that, or tally rm {run}; then ask again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """A choice of notes, in one of these ways. A principal and a session are one way.

    `expired` are the notes whose time is over.
    """

    ids: tuple[str, ...] = ()
    subject: str | None = None
    principal: str | None = None
    session_id: str | None = None
    criteria: Criteria | None = None
    expired: bool = False

    @property
    def by(self) -> str:
        """The name of the way. Raise `UsageError` for none, and for two."""
        ways = {
            "ids": bool(self.ids),
            "subject": self.subject is not None,
            "provenance": self.principal is not None or self.session_id is not None,
            "criteria": self.criteria is not None,
            "expired": self.expired,
        }
        given = [way for way, said in ways.items() if said]
        if len(given) != 1:
            said = " and ".join(given) or "nothing"
            raise UsageError(
                "notes are chosen in one way: ids, subject, provenance, criteria or expired; not "
                f"by {said}"
            )
        return given[0]

    def select_ids(self, memory: Memory) -> list[str]:
        """Return the ids of these notes.

        Given ids are returned as they are. Other notes are only those that the reader of `memory`
        may see, by criteria only its own. Raise `UsageError` if they are chosen in no way or in
        two, and `NoteInvalid` for a blank subject or empty criteria.
        """
        store = memory.store
        match self.by:
            case "ids":
                return list(self.ids)
            case "subject":
                ids = subject_ids(store, self.subject or "")
            case "expired":
                return expired_ids(store, owner=memory.reader)
            case "provenance":
                ids = provenance_ids(store, principal=self.principal, session_id=self.session_id)
            case _:
                return matching_ids(store, self.criteria or Criteria(), owner=memory.reader)
        # Notes that the reader may not see must not be revealed, not even by their ids.
        return visible_ids(store, ids, reader=memory.reader)


# The strategy for notes that were chosen in a way, if none is given; else soft deletion.
USUAL_STRATEGY = {
    "subject": ForgetStrategy.REDACT,
    "expired": ForgetStrategy.HARD_DELETE,
}


def forget_notes(
    memory: Memory,
    which: Which,
    *,
    strategy: ForgetStrategy | None = None,
    dry_run: bool = False,
    ledger: SqliteLedger | None = None,
) -> Erased:
    """Forget notes. If their text is erased, it is erased from the runs of `ledger` first.

    The default strategy is soft deletion, for a subject redaction, for expired notes hard deletion.
    Without `ledger`, or with a strategy that keeps the text, runs are left alone. If no note is
    chosen, or with `dry_run`, nothing is changed. Raise `UsageError` if the notes are chosen in no
    way or in two. Raise `NoteInvalid` for a blank subject, empty criteria, or more than 200,000
    notes, and `BackendUnsupported` for `consolidate`.
    """
    by = which.by
    if strategy is None:
        strategy = USUAL_STRATEGY.get(by, ForgetStrategy.SOFT_DELETE)
    ids = which.select_ids(memory)
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
        return _dry_run(memory, ids, strategy)
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


def _dry_run(memory: Memory, ids: list[str], strategy: ForgetStrategy) -> Erased:
    may = preview_forget(memory.store, ids, actor=memory.reader, strategy=strategy)
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
