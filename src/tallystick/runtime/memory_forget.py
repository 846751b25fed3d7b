"""Forgetting as users ask for it: which notes, in which way, with or without the recorded runs."""

from __future__ import annotations

from dataclasses import dataclass

from tallystick.core.errors import UsageError
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.memory.erase import exports_of
from tallystick.memory.forget import Failure, forget, forgettable
from tallystick.memory.forget_which import matching_ids, provenance_ids, subject_ids
from tallystick.memory.forgotten import Criteria, Strategy
from tallystick.runtime.erased import Erased
from tallystick.runtime.memory import Memory
from tallystick.runtime.memory_erasure import erase_notes
from tallystick.runtime.memory_visible import visible_ids

__all__ = ["Which", "forget_notes"]


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
    strategy: Strategy | None = None,
    dry_run: bool = False,
    ledger: SqliteLedger | None = None,
) -> Erased:
    """Forget notes; if their bytes go, from the runs of `ledger` first."""
    by = which.by
    if strategy is None:
        strategy = Strategy.REDACT if by == "subject" else Strategy.SOFT_DELETE
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


def _looked(memory: Memory, ids: list[str], strategy: Strategy) -> Erased:
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
