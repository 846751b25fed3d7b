"""Find traces of a text: its spellings, and the runs and files that contain one.

A run that recalled or remembered a note names it in its records. A run that got its text in another
way is found by that text, in its records or attachments. A run may have passed it on to the run
that started it, to its children, to its forks, and to later runs of its session. So a family is
taken together, even if the words differ there.
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
from tallystick.sandbox.snapshot import MAGIC, PAGE_BYTES, Image, unpack_snapshot
from tallystick.upkeep.prune import record_in

# Needles: the spellings of a text, by which it is found.
#
# A text is found whole, as it is and as JSON, Python, base64 or an interpreter's memory spell it.
# The long lines of a long text are found too, and the parts of a long line, up to 200 in all. So
# any copy of 200 consecutive characters is found, except in very long texts. A text in other words
# is not found.
#
# Rule 1: a short text is not searched for. It would be found in unrelated places.
# Rule 2: nor are short or monotonous lines: a ruler or a heading is in many texts.


# A shorter text is not searched for.
TEXT_CHARS_MIN = 12
_LINE_CHARS_MIN = 40
_LINE_DISTINCT_MIN = 12
_PART_CHARS = 100
# The most parts of one text, longest lines first: a whole book is not searched for page by page.
_PARTS_MAX = 200


class TextForms:
    """Several texts, searched for together.

    False if all of them are too short to be searched for.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        wanted = [each for text in texts for each in dict.fromkeys((text.strip(), text)) if each]
        parts = dict.fromkeys(part for text in wanted for part in _parts(text.strip()))
        spelled = dict.fromkeys(form for part in parts for form in _spellings(part))
        self._forms = tuple(spelled)
        self._bytes = tuple(
            dict.fromkeys(
                [
                    *(form.encode("utf-8", "surrogatepass") for form in spelled),
                    *(form for part in parts for form in _encodings(part)),
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
        """Return True if one of them, or a part or spelling of it, is in a text."""
        return any(form in text for form in self._forms)

    def in_bytes(self, data: bytes) -> bool:
        """Return True if one of them, or a part, spelling or encoding of it, is in some bytes."""
        return any(form in data for form in self._bytes)

    def in_pieces(self, pieces: Iterable[bytes | memoryview]) -> bool:
        """Return True if one of them is in bytes that come piece by piece.

        The rest is not read then.
        """
        tail = b""
        for piece in pieces:
            # A match may begin at the end of the previous piece.
            data = tail + bytes(piece)
            if self.in_bytes(data):
                return True
            tail = data[-(self._longest - 1) :] if self._longest > 1 else b""
        return False

    def in_value(self, value: object) -> bool:
        """Return True if one of them is in a text or bytes anywhere in a record."""
        return any(self._in_leaf(leaf) for leaf in _leaves(value))

    def has_text_or_digest(self, value: object) -> bool:
        """Return True if a record has one of them, or the plain digest of a whole text.

        With such a digest, a guess of the text can be checked.
        """
        return any(
            self._in_leaf(leaf)
            or (isinstance(leaf, str) and any(digest in leaf for digest in self._digests))
            for leaf in _leaves(value)
        )

    def _in_leaf(self, leaf: str | bytes) -> bool:
        return self.in_text(leaf) if isinstance(leaf, str) else self.in_bytes(leaf)


def _parts(text: str) -> Iterator[str]:
    """Yield the text itself, and the parts of a long one that are long enough to be specific.

    Nothing is yielded for a text of under 12 characters, and at most 200 parts.
    """
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
        # A copy of twice as many consecutive characters contains one of these pieces whole.
        pieces = [line[at : at + _PART_CHARS] for at in range(0, len(line), _PART_CHARS)]
    for piece in pieces:
        if len(piece) >= _LINE_CHARS_MIN and len(set(piece)) >= _LINE_DISTINCT_MIN:
            yield piece


def _spellings(text: str) -> Iterator[str]:
    """Yield a text as it appears in other texts: plain, in JSON, in JSON within JSON, in Python."""
    yield text
    for ascii_only in (False, True):
        once = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
        yield once
        yield json.dumps(once, ensure_ascii=ascii_only)[1:-1]
    yield repr(text)[1:-1]


def _encodings(text: str) -> Iterator[bytes]:
    """Yield a text as it appears in bytes other than UTF-8: an interpreter's memory, or base64."""
    yield text.encode("utf-16-le", "surrogatepass")
    yield text.encode("utf-16-be", "surrogatepass")
    yield text.encode("utf-32-le", "surrogatepass")
    with contextlib.suppress(UnicodeEncodeError):
        yield text.encode("latin-1")
    raw = text.encode("utf-8", "surrogatepass")
    for before in range(3):
        # Base64 depends on the offset modulo 3. The digits at both ends also depend on the
        # neighbouring bytes, so they are cut off.
        coded = base64.b64encode(bytes(before) + raw).rstrip(b"=")
        yield coded[(0, 2, 3)[before] : -1]


def _leaves(value: object) -> Iterator[str | bytes]:
    """Yield every text and every bytes value inside a value, keys of mappings too."""
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


# Files of long program output. There are usually none: the output of a program becomes an
# attachment when it ends. Files of a process that died are left behind, named by their holder.


# The names that the sandbox gives. Other files in the folder are not touched.
_NAME = re.compile(r"([0-9A-Za-z]{26})-[0-9A-Za-z]{26}\.(stdout|stderr)")
_PIECE_BYTES = 1 << 20


def spilled_files(folder: Path) -> list[tuple[Path, str]]:
    """Return the files with output of programs, each with its holder, by name.

    There are none if the folder cannot be read. Files with other names are left out.
    """
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file())
    except OSError:
        return []
    matched = [(path, _NAME.fullmatch(path.name)) for path in files]
    return [(path, found[1]) for path, found in matched if found is not None]


def has_text(path: Path, needles: TextForms) -> bool:
    """Return True if a file has one of the texts; False if it cannot be read."""
    try:
        with path.open("rb") as file:
            return needles.in_pieces(iter(lambda: file.read(_PIECE_BYTES), b""))
    except OSError:
        return False


# Why a run is affected by notes: it names one, has the text of one, or is in the family of such a
# run.
Because = Literal["named", "text", "family"]
_PAGES_TOGETHER = 256


@dataclass(slots=True, kw_only=True)
class _RunFacts:
    """Facts from one reading of a run."""

    session: str | None = None
    within: str | None = None
    grown_from: str | None = None
    named: bool = False
    said: bool = False
    kin: set[str] = field(default_factory=set)
    blobs: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The runs and attachments that are affected by notes.

    `runs` are the newest first, so that forks and children come first. `sessions` are the holders
    of these runs. `blobs` are attachments that have the text, `held` all attachments that these
    runs keep. `others` are runs that have the text but are left out without `by_text`; `blobs` are
    then only those of `runs`. `heads` is the number of entries of each run at that time.
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
    """Search every run and every attachment. `known` are runs that were found before.

    A run is affected if it names a note of `ids`, or has a text of `needles`; so is its family.
    Without `by_text`, a run is not chosen only because it has the text. A run is searched up to the
    first entry that is damaged. An attachment whose bytes cannot be read is found by its label
    only.
    """
    blobs = blobs_with(attachments, needles)
    holding: dict[str, set[str]] = {}
    for each in attachments.references():
        holding.setdefault(each.intent.session_id, set()).add(each.ref.id)
    seen: dict[str, _RunFacts] = {}
    listed = ledger.runs()
    for row in listed:
        found = _search(ledger, row.run, ids=frozenset(ids), needles=needles)
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
    # Before the families: a run that only has the text must not bring its family along. It may come
    # back as a member of another family.
    others = [] if by_text else [run for run, why in because.items() if why == "text"]
    for run in others:
        del because[run]
    _add_families(because, seen)
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
    """Return the runs that are new or longer since `before`, and affected by the notes only now.

    Only their records are searched. Attachments and families are not.
    """
    late: dict[str, Because] = {}
    for row in ledger.runs():
        if row.run in before.runs or row.head.count == before.heads.get(row.run):
            continue
        found = _search(ledger, row.run, ids=frozenset(ids), needles=needles)
        if found.named or found.said:
            late[row.run] = "named" if found.named else "text"
    return late


def is_said_in(ledger: SqliteLedger, run: str, needles: TextForms) -> bool:
    """Return True if what is left of a run has a text, or its plain digest.

    A body that is no known record is searched as bytes. What comes after a damaged entry counts as
    having neither.
    """
    return any(
        needles.in_bytes(entry.body) if record is None else needles.has_text_or_digest(record)
        for entry, record in _entries(ledger, run)
        if entry.body is not None
    )


def blobs_with(
    attachments: SqliteAttachments, needles: TextForms, *, among: Collection[str] | None = None
) -> set[str]:
    """Return the attachments that have a text, in their bytes or in their label.

    An interpreter's image is searched unpacked. With `among`, only these are searched. One whose
    bytes cannot be read is found by its label only.
    """
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
    """Return files of attachments without a row that have a text, left by a crash during a put.

    Files that a living process is writing now may be among them.
    """
    if not needles:
        return []
    files = attachments.files
    with attachments.looking() as rows:
        named = set() if rows is None else {blob.id for blob in rows.blobs()}
    paths = [path for _, path in files.staged()]
    paths += [files.path(id) for id in files.ids() if id not in named]
    return [path for path in paths if has_text(path, needles)]


# -- inside ------------------------------------------------------------------------------------


def _search(
    ledger: SqliteLedger, run: str, *, ids: frozenset[str], needles: TextForms
) -> _RunFacts:
    found = _RunFacts()
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
            # The first record of a pruned run is gone, so this one repeats its caller.
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
    """Yield the entries of a run that have bodies, each with its record.

    The record is None if it is of no known kind. Nothing more comes after a damaged entry.
    """
    try:
        for entry in ledger.read(run):
            if entry.body is not None:
                yield entry, record_in(entry)
    except LedgerError:
        return  # removed just now, or damaged: pruning the run reports that


def _add_families(because: dict[str, Because], seen: dict[str, _RunFacts]) -> None:
    """Add families to `because`: callers, children, forks, later runs of a session, and theirs."""
    # Between a caller and a child the text may pass in both directions, with the goal and with the
    # answer. A fork has what its parent had, and a later run what an earlier one left, not the
    # other way round.
    kin: dict[str, set[str]] = {run: set(found.kin) for run, found in seen.items()}
    for run, found in seen.items():
        for other in found.kin:
            kin.setdefault(other, set()).add(run)
        if found.grown_from is not None:
            kin.setdefault(found.grown_from, set()).add(run)
    latest: dict[str, str] = {}
    for run in sorted(seen):
        # A run of a session has the interpreter of the one before, or a summary of its result.
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
            _, image = unpack_snapshot(chunks)
    except (AttachmentError, StoreError):
        return False  # gone just now, or damaged
    return needles.in_bytes(image.session) or needles.in_pieces(_memory(image))


def _memory(image: Image) -> Iterator[bytes]:
    """Yield an interpreter's memory, many pages at a time, with a gap between distant pages."""
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
