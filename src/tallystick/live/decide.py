"""Decide about what a run waits for: a call of a program, or a program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from tallystick.core.errors import RunNotFound, UsageError
from tallystick.core.json_text import digest
from tallystick.live.stop import outermost
from tallystick.model.endpoint import REDACTED
from tallystick.runtime.run.resume import bound
from tallystick.runtime.runs.history import resolve_run
from tallystick.runtime.runs.lock import submit_decided
from tallystick.runtime.runs.waiting import Waiting, waiting_in

if TYPE_CHECKING:
    from tallystick.ledger.port import Ledger
    from tallystick.runtime.runs.decided import Decided


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """The calls and programs that a person decides about, in a run and in those inside it.

    `run` is the outermost run, which is resumed with the decision; it has so many `entries`.
    """

    run: str
    waits: tuple[Waiting, ...]
    entries: int

    @property
    def inside(self) -> bool:
        """True if the process of the run waits for the decision."""
        return any(each.inside for each in self.waits)


def pending(ledger: Ledger, named: str) -> Pending:
    """Return what waits for a person in a run. For one inside another, only what waits in that one.

    `named` is an id, the beginning of one, or `last`. Raise `UsageError` if nothing waits, or if
    what is recorded of a request is not what its digest is of. Raise `RunNotFound`, and errors of
    the ledger.
    """
    found = resolve_run(ledger, named)
    if ledger.row(found) is None:
        raise RunNotFound(run=named)
    root = outermost(ledger, found)
    # Before what waits is read: whoever decides in between is noticed then.
    row = ledger.row(root)
    if row is None:
        raise RunNotFound(run=root)
    waits = tuple(each for each in waiting_in(ledger, root) if found in (root, each.run))
    if not waits:
        raise UsageError(f"run {found} has nothing that waits for a person")
    for each in waits:
        _check_shown(each)
    return Pending(run=root, waits=waits, entries=row.head.count)


def bind(found: Pending, decided: Decided) -> Decided:
    """Return a decision that is bound to what was found, and to nothing else.

    Raise `ResumeRefused` if that is several, unless it is about `all`.
    """
    runs = {each.run for each in found.waits}
    if not decided.all and len(runs) == 1:
        decided = msgspec.structs.replace(decided, run=next(iter(runs)))
    told = bound(found.run, found.waits, decided)
    assert told is not None
    return told if found.inside else msgspec.structs.replace(told, entries=found.entries)


def submit(ledger: Ledger, found: Pending, decided: Decided) -> None:
    """Leave a bound decision for the process in which a call waits for it.

    If no process works on the run, it is left for the next one that resumes it. Raise `UsageError`
    if somebody else has decided meanwhile, and what `submit_decided` raises.
    """
    waiting = {each.sha256 for each in found.waits}

    def is_of_use(before: Decided) -> bool:
        return bool(waiting.intersection(before.sha256s))

    if not submit_decided(ledger, found.run, decided, still=is_of_use):
        raise UsageError(
            f"run {found.run}: somebody else has decided just now; see tally inspect {found.run}"
        )


def _check_shown(waiting: Waiting) -> None:
    """Raise `UsageError` if a person would be shown another request than the one that waits.

    One that is not recorded as text, or that was erased in part, is not checked.
    """
    text = waiting.request
    if not text or REDACTED in text:
        return
    if digest(text.encode("utf-8", "surrogatepass")) != waiting.sha256:
        raise UsageError(
            f"run {waiting.run}: what is recorded of the request is not what its digest is of; "
            f"find out why: tally verify {waiting.run}"
        )
