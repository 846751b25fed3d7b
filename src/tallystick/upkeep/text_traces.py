"""Traces of a text: what it looks like wherever it may stand, and which runs and files have it.

A run that recalled or remembered a note names it in its records. One that was given its text some
other way is found by that text, in its records or in what it keeps. What a run knows it may have
told the run that began it, the runs that it began, those that grew from it, and the later ones of
its session: so a family is taken together, whatever words were used.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from tallystick.attachments.port import AttachmentError
from tallystick.attachments.session import snapshots_holder
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
from tallystick.runtime.runs.history import references_in
from tallystick.sandbox.snapshot import MAGIC, PAGE_BYTES, Image, unpacked
from tallystick.upkeep.prune import record_in

# Needles: what a text looks like wherever it may stand, so that it can be found and taken out.
#
# A text is found whole, as it is and as JSON, Python, base64 or an interpreter's memory spell it.
# Of a long one its long lines are found too, and of a long line its parts, up to 200 of them: so,
# but in very long texts, any 200 characters in a row that somebody copied. Other words are not
# found.
#
# Rule 1: a short text is not looked for. It would be found in what has nothing to do with it.
# Rule 2: the same for short or monotonous lines: a ruler or a heading stands in many texts.


# A text that is shorter is not looked for.
TEXT_CHARS_MIN = 12
_LINE_CHARS_MIN = 40
_LINE_DISTINCT_MIN = 12
_PART_CHARS = 100
# Of one text, the longest lines: a book is not looked for page by page.
_PARTS_MAX = 200


class TextForms:
    """Several texts, looked for together."""

    def __init__(self, texts: Iterable[str]) -> None:
        wanted = [each for text in texts for each in dict.fromkeys((text.strip(), text)) if each]
        parts = dict.fromkeys(part for text in wanted for part in _parts(text.strip()))
        spelled = dict.fromkeys(form for part in parts for form in _spelled(part))
        self._forms = tuple(spelled)
        self._bytes = tuple(
            dict.fromkeys(
                [
                    *(form.encode("utf-8", "surrogatepass") for form in spelled),
                    *(form for part in parts for form in _encoded(part)),
                ]
            )
        )
        self._longest = max(map(len, self._bytes), default=0)
        self._digests = tuple(
            hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() for text in wanted
        )

    def __bool__(self) -> bool:
        return bool(self._forms)

    def in_text(self, text: str) -> bool:
        return any(form in text for form in self._forms)

    def in_bytes(self, data: bytes) -> bool:
        return any(form in data for form in self._bytes)

    def in_pieces(self, pieces: Iterable[bytes | memoryview]) -> bool:
        """Whether one of them stands in bytes that come piece by piece."""
        tail = b""
        for piece in pieces:
            # What began in the piece before may end in this one.
            data = tail + bytes(piece)
            if self.in_bytes(data):
                return True
            tail = data[-(self._longest - 1) :] if self._longest > 1 else b""
        return False

    def in_value(self, value: object) -> bool:
        """Whether one of them stands anywhere in a record."""
        return any(self._in_leaf(leaf) for leaf in _leaves(value))

    def bound_by(self, value: object) -> bool:
        """Whether a record has one of them, or the plain digest of a whole text.

        Who has such a digest and guesses the text can check the guess.
        """
        return any(
            self._in_leaf(leaf)
            or (isinstance(leaf, str) and any(digest in leaf for digest in self._digests))
            for leaf in _leaves(value)
        )

    def _in_leaf(self, leaf: str | bytes) -> bool:
        return self.in_text(leaf) if isinstance(leaf, str) else self.in_bytes(leaf)


def _parts(text: str) -> Iterator[str]:
    """The text itself, and of a long one what is long enough in it to be told from others."""
    if len(text) < TEXT_CHARS_MIN:
        return
    yield text
    lines = sorted(
        {line.strip() for line in text.splitlines()} - {text}, key=lambda line: -len(line)
    )
    found = 0
    for line in [*lines, text]:
        for part in _of_line(line):
            if part != text and found < _PARTS_MAX:
                found += 1
                yield part


def _of_line(line: str) -> Iterator[str]:
    if "\n" in line:
        return
    pieces = [line]
    if len(line) >= 2 * _PART_CHARS:
        # Whoever copies twice as many characters in a row copies one of these whole.
        pieces = [line[at : at + _PART_CHARS] for at in range(0, len(line), _PART_CHARS)]
    for piece in pieces:
        if len(piece) >= _LINE_CHARS_MIN and len(set(piece)) >= _LINE_DISTINCT_MIN:
            yield piece


def _spelled(text: str) -> Iterator[str]:
    """A text as it stands in other texts: plain, in JSON, in JSON inside of JSON, in Python."""
    yield text
    for ascii_only in (False, True):
        once = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
        yield once
        yield json.dumps(once, ensure_ascii=ascii_only)[1:-1]
    yield repr(text)[1:-1]


def _encoded(text: str) -> Iterator[bytes]:
    """A text as it stands in bytes that are not UTF-8: an interpreter's memory, or base64."""
    yield text.encode("utf-16-le", "surrogatepass")
    yield text.encode("utf-16-be", "surrogatepass")
    yield text.encode("utf-32-le", "surrogatepass")
    with contextlib.suppress(UnicodeEncodeError):
        yield text.encode("latin-1")
    raw = text.encode("utf-8", "surrogatepass")
    for before in range(3):
        # Where it begins decides how it is spelled; its ends share digits with what is beside it.
        coded = base64.b64encode(bytes(before) + raw).rstrip(b"=")
        yield coded[(0, 2, 3)[before] : -1]


def _leaves(value: object) -> Iterator[str | bytes]:
    """Every text and every run of bytes in a value."""
    match value:
        case str() | bytes():
            yield value
        case msgspec.Struct():
            for name in value.__struct_fields__:
                yield from _leaves(getattr(value, name))
        case Mapping():
            for key, each in value.items():
                yield from _leaves(key)
                yield from _leaves(each)
        case Sequence() | frozenset() | set():
            for each in value:
                yield from _leaves(each)
        case _:
            pass


# Files of long output that are left where programs' output is spilled to.
#
# There are usually none: what a program printed becomes an attachment when it ends. Those of a
# process that died are left behind, named by the session that they are of.


# As the sandbox names them: anything else in the folder is somebody else's.
_NAME = re.compile(r"([0-9A-Za-z]{26})-[0-9A-Za-z]{26}\.(stdout|stderr)")
_PIECE_BYTES = 1 << 20


def spilled_files(folder: Path) -> list[tuple[Path, str]]:
    """The files that programs printed into, each with its session."""
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file())
    except OSError:
        return []
    matched = [(path, _NAME.fullmatch(path.name)) for path in files]
    return [(path, found[1]) for path, found in matched if found is not None]


def has_text(path: Path, needles: TextForms) -> bool:
    """Whether a file has one of the texts."""
    try:
        with path.open("rb") as file:
            return needles.in_pieces(iter(lambda: file.read(_PIECE_BYTES), b""))
    except OSError:
        return False


# Which recorded runs have to do with notes: those that name them, say what they say, or are kin.


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
    needles: TextForms,
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
            for holder in (found.session, snapshots_holder(found.session)):
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
    before: Survey, ledger: SqliteLedger, *, ids: Collection[str], needles: TextForms
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


def is_said_in(ledger: SqliteLedger, run: str, needles: TextForms) -> bool:
    """Whether what is left of a run has a text, or its plain digest."""
    return any(
        needles.in_bytes(entry.body) if record is None else needles.bound_by(record)
        for entry, record in _entries(ledger, run)
        if entry.body is not None
    )


def blobs_with(
    attachments: SqliteAttachments, needles: TextForms, *, among: Collection[str] | None = None
) -> set[str]:
    """The attachments that have a text, in their bytes or in what they are called."""
    if not needles:
        return set()
    called = {
        each.ref.id
        for each in attachments.references()
        if each.ref.label is not None and needles.in_text(each.ref.label)
    }
    with attachments.looking() as rows:
        there = [] if rows is None else [blob.id for blob in rows.blobs()]
    wanted = [id for id in there if among is None or id in among]
    return {id for id in wanted if id in called or _has(attachments, id, needles)}


def strays_with(attachments: SqliteAttachments, needles: TextForms) -> list[Path]:
    """Files of attachments that no row names, left by who died while putting one."""
    if not needles:
        return []
    files = attachments.files
    with attachments.looking() as rows:
        named = set() if rows is None else {blob.id for blob in rows.blobs()}
    paths = [path for _, path in files.staged()]
    paths += [files.path(id) for id in files.ids() if id not in named]
    return [path for path in paths if has_text(path, needles)]


# -- inside ------------------------------------------------------------------------------------


def _looked(ledger: SqliteLedger, run: str, *, ids: frozenset[str], needles: TextForms) -> _Seen:
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


def _has(attachments: SqliteAttachments, id: str, needles: TextForms) -> bool:
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
