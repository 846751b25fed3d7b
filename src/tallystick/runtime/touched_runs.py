"""Which recorded runs have to do with notes: those that name them, say what they say, or are kin.

A run that recalled or remembered a note names it in its records. One that was given its text some
other way is found by that text, in its records or in what it keeps. What a run knows it may have
told the run that began it, the runs that it began, those that grew from it, and the later ones of
its session: so a family is taken together, whatever words were used.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tallystick.attachments import rows
from tallystick.attachments.errors import AttachmentError
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.core.chain import Sealed
from tallystick.core.errors import LedgerError, StoreError
from tallystick.core.records import (
    ChildBegun,
    HostAnswered,
    Record,
    RunForked,
    RunPruned,
    RunStarted,
)
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.mention import references_in
from tallystick.runtime.needles import Needles
from tallystick.runtime.prunable import record_in
from tallystick.runtime.snapshots import holder_of
from tallystick.runtime.spilled_output import has_text
from tallystick.sandbox.container import MAGIC, unpacked
from tallystick.sandbox.snapshot import PAGE_BYTES, Image

__all__ = [
    "Because",
    "Survey",
    "blobs_with",
    "is_said_in",
    "strays_with",
    "survey",
    "touched_since",
]

Because = Literal["named", "text", "family"]
_PAGES_TOGETHER = 256


@dataclass(slots=True, kw_only=True)
class _Seen:
    """What one reading of a run found."""

    session: str | None = None
    within: str | None = None
    grown_from: str | None = None
    named: bool = False
    said: bool = False
    kin: set[str] = field(default_factory=set)
    blobs: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What was found. `runs` are the newest first, so that what grew or was begun comes first.

    `sessions` are those of these runs. `blobs` are attachments that have the text, `held` all that
    these runs hold. `others` have the text and are left out, where that is not enough; `blobs` are
    only those of these runs then. `heads` is how long each run was then.
    """

    runs: dict[str, Because]
    sessions: dict[str, str]
    blobs: frozenset[str]
    held: frozenset[str]
    others: tuple[str, ...]
    heads: dict[str, int]


def survey(
    ledger: SqliteLedger,
    attachments: SqliteAttachments,
    *,
    ids: Collection[str],
    needles: Needles,
    known: Collection[str] = (),
    by_text: bool = True,
) -> Survey:
    """Look through every run and every attachment. `known` are runs that were found before.

    Without `by_text`, a run is not chosen because it has the text.
    """
    blobs = blobs_with(attachments, needles)
    holding: dict[str, set[str]] = {}
    for each in attachments.references():
        holding.setdefault(each.intent.session_id, set()).add(each.ref.id)
    seen: dict[str, _Seen] = {}
    listed = ledger.runs()
    for row in listed:
        found = _looked(ledger, row.run, ids=frozenset(ids), needles=needles)
        if found.session is not None:
            for holder in (found.session, holder_of(found.session)):
                found.blobs |= holding.get(holder, set())
        seen[row.run] = found
    because: dict[str, Because] = {}
    for run, found in seen.items():
        if found.named or run in known:
            because[run] = "named"
        elif found.said or not blobs.isdisjoint(found.blobs):
            because[run] = "text"
    others = [] if by_text else [run for run, why in because.items() if why == "text"]
    for run in others:
        del because[run]
    _with_kin(because, seen)
    chosen = {run: because[run] for run in sorted(because, reverse=True)}
    held = frozenset().union(*(seen[run].blobs for run in chosen))
    return Survey(
        runs=chosen,
        sessions={run: seen[run].session or "" for run in chosen if seen[run].session},
        blobs=frozenset(blobs) if by_text else frozenset(blobs) & held,
        held=held,
        others=tuple(run for run in others if run not in because),
        heads={row.run: row.head.count for row in listed},
    )


def touched_since(
    before: Survey, ledger: SqliteLedger, *, ids: Collection[str], needles: Needles
) -> dict[str, Because]:
    """The runs that began or went on since, and have to do with the notes now, and had not then."""
    late: dict[str, Because] = {}
    for row in ledger.runs():
        if row.run in before.runs or row.head.count == before.heads.get(row.run):
            continue
        found = _looked(ledger, row.run, ids=frozenset(ids), needles=needles)
        if found.named or found.said:
            late[row.run] = "named" if found.named else "text"
    return late


def is_said_in(ledger: SqliteLedger, run: str, needles: Needles) -> bool:
    """Whether what is left of a run has a text, or its plain digest."""
    return any(
        needles.in_bytes(entry.body) if record is None else needles.bound_by(record)
        for entry, record in _entries(ledger, run)
        if entry.body is not None
    )


def blobs_with(
    attachments: SqliteAttachments, needles: Needles, *, among: Collection[str] | None = None
) -> set[str]:
    """The attachments that have a text, in their bytes or in what they are called."""
    if not needles:
        return set()
    called = {
        each.ref.id
        for each in attachments.references()
        if each.ref.label is not None and needles.in_text(each.ref.label)
    }
    with attachments.reading() as db:
        there = [] if db is None else [blob.id for blob in rows.blobs(db)]
    wanted = [id for id in there if among is None or id in among]
    return {id for id in wanted if id in called or _has(attachments, id, needles)}


def strays_with(attachments: SqliteAttachments, needles: Needles) -> list[Path]:
    """Files of attachments that no row names, left by who died while putting one."""
    if not needles:
        return []
    files = attachments.files
    with attachments.reading() as db:
        named = set() if db is None else {blob.id for blob in rows.blobs(db)}
    paths = [path for _, path in files.staged()]
    paths += [files.path(id) for id in files.ids() if id not in named]
    return [path for path in paths if has_text(path, needles)]


# -- inside ------------------------------------------------------------------------------------


def _looked(ledger: SqliteLedger, run: str, *, ids: frozenset[str], needles: Needles) -> _Seen:
    found = _Seen()
    for entry, record in _entries(ledger, run):
        match record:
            case None:
                # No record of this version: its bytes can still be looked through.
                found.said = found.said or needles.in_bytes(entry.body or b"")
                continue
            case RunStarted(session_id=session, caller=caller, session=given):
                found.session = session
                found.within = None if given is None else given.session
                found.kin.update(() if caller is None else (caller.run,))
            case RunForked(session_id=session, parent=parent):
                found.session, found.grown_from = session, parent
            case ChildBegun(run=child):
                found.kin.add(child)
            case RunPruned(caller=caller_run):
                found.kin.update(() if caller_run is None else (caller_run,))
            case HostAnswered(memory=touched) if touched is not None:
                found.named = found.named or not ids.isdisjoint(touched.ids)
            case _:
                pass
        found.said = found.said or needles.in_value(record)
        found.blobs.update(ref.id for ref in references_in(record))
    return found


def _entries(ledger: SqliteLedger, run: str) -> Iterator[tuple[Sealed, Record | None]]:
    """The entries of a run whose bodies are there, each as the record that it is, if it is one."""
    try:
        for entry in ledger.read(run):
            if entry.body is not None:
                yield entry, record_in(entry)
    except LedgerError:
        return  # removed just now, or damaged: whoever is to prune it will say so


def _with_kin(because: dict[str, Because], seen: dict[str, _Seen]) -> None:
    """Add the families: whom they began or were begun by, what grew or came after, and theirs."""
    kin: dict[str, set[str]] = {run: set(found.kin) for run, found in seen.items()}
    for run, found in seen.items():
        for other in found.kin:
            kin.setdefault(other, set()).add(run)
        if found.grown_from is not None:
            kin.setdefault(found.grown_from, set()).add(run)
    latest: dict[str, str] = {}
    for run in sorted(seen):
        # It went on with the interpreter of the one before, or was told what that came to.
        within = seen[run].within
        if within is not None:
            if within in latest:
                kin.setdefault(latest[within], set()).add(run)
            latest[within] = run
    waiting = list(because)
    while waiting:
        for other in kin.get(waiting.pop(), ()):
            if other in seen and other not in because:
                because[other] = "family"
                waiting.append(other)


def _has(attachments: SqliteAttachments, id: str, needles: Needles) -> bool:
    try:
        with attachments.chunks(id) as chunks:
            first = next(chunks, b"")
            if not first.startswith(MAGIC):
                return needles.in_pieces(itertools.chain([first], chunks))
        with attachments.chunks(id) as chunks:
            _, image = unpacked(chunks)
    except (AttachmentError, StoreError):
        return False  # gone just now, or damaged
    return needles.in_bytes(image.session) or needles.in_pieces(_memory(image))


def _memory(image: Image) -> Iterator[bytes]:
    """An interpreter's memory, many pages at a time. What is not side by side is kept apart."""
    together: list[bytes] = []
    before = None
    for index, page in zip(image.indices, image.pages, strict=True):
        if before is not None and index != before + 1:
            together.append(bytes(PAGE_BYTES))
        together.append(page)
        before = index
        if len(together) >= _PAGES_TOGETHER:
            yield b"".join(together)
            together = []
    yield b"".join(together)
