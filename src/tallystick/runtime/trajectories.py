"""A run of a ledger as a file of trajectory events: with its children, and what it shares."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tallystick.attachments.errors import AttachmentError
from tallystick.attachments.port import AttachmentRef, Store
from tallystick.core.errors import InvalidName, RunNotFound, TransferRefused, UsageError
from tallystick.core.records import decode_record
from tallystick.core.step_receipt import holds_steps
from tallystick.core.trajectory import Placed, trajectory_of
from tallystick.core.trajectory_content import CHARS_MAX, Shown
from tallystick.core.trajectory_events import TrajectoryEvent, encode_event
from tallystick.ledger.ancestry import ancestors_of
from tallystick.ledger.port import Ledger
from tallystick.runtime.history import runs_inside

__all__ = ["Exported", "events_of", "export_trajectory"]

# Longer than any text that a run of ours keeps apart; one that was imported may say anything.
_TEXT_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written. `erased` counts entries whose bodies are gone: they have no events."""

    events: int
    erased: int


class _Source:
    """The chains of a ledger, and the texts that are kept apart from them."""

    def __init__(self, ledger: Ledger, store: Store) -> None:
        self._ledger = ledger
        self._store = store
        self.erased = 0

    def whole(self, run: str) -> Iterator[Placed]:
        """The entries of a run, behind those that it shares with the runs it grew from."""
        for ancestor in ancestors_of(self._ledger, run):
            yield from self._placed(ancestor.run, ancestor.count)
        yield from self._placed(run, None)

    def child(self, run: str) -> Iterable[Placed] | None:
        """The entries of a child; None if its chain is not here."""
        try:
            next(self._ledger.read(run, stop=1), None)
        except (RunNotFound, InvalidName):
            return None
        return self._placed(run, None)

    def text_of(self, ref: AttachmentRef) -> str | None:
        """A text that is kept apart; None if its bytes are gone or damaged, or too many."""
        if ref.byte_len > _TEXT_BYTES_MAX:
            return None
        try:
            with self._store.chunks(ref.id) as chunks:
                return b"".join(chunks).decode("utf-8", "surrogatepass")
        except (AttachmentError, InvalidName, UnicodeDecodeError):
            return None

    def _placed(self, run: str, stop: int | None) -> Iterator[Placed]:
        for seq, sealed in enumerate(self._ledger.read(run, stop=stop)):
            if sealed.body is None:
                self.erased += 1
                continue
            record = decode_record(sealed.body)
            yield Placed(run=run, seq=seq, hash=sealed.hash, record=record)


def events_of(
    ledger: Ledger, store: Store, run: str, *, redact: bool = False, full: bool = False
) -> Iterator[TrajectoryEvent]:
    """The trajectory events of a run. Content is cut unless `full`, and left out if `redact`."""
    yield from _events(_Source(ledger, store), run, redact=redact, full=full)


def export_trajectory(
    ledger: Ledger,
    store: Store,
    run: str,
    target: Path | BinaryIO,
    *,
    redact: bool = False,
    full: bool = False,
) -> Exported:
    """Write the events of a run as JSON lines, to a new file or to an open one.

    Raises `UsageError` for a chain of steps, and for a run of which nothing is left to tell.
    """
    first = [decode_record(each.body) for each in ledger.read(run, stop=1) if each.body is not None]
    if holds_steps(first):
        inside = ", ".join(runs_inside(ledger, run)) or "none are here"
        raise UsageError(f"{run} holds steps, which have no trajectory; name a run: {inside}")
    source = _Source(ledger, store)
    events = _events(source, run, redact=redact, full=full)
    # Asked for before a file is made: what cannot be told leaves none behind.
    begun = next(events, None)
    if begun is None:
        why = "was pruned: its content is gone" if source.erased else "has no entries yet"
        raise UsageError(f"run {run} {why}; there is nothing to tell")
    count = 1
    with _opened(target) as file:
        file.write(encode_event(begun) + b"\n")
        for event in events:
            file.write(encode_event(event) + b"\n")
            count += 1
    return Exported(events=count, erased=source.erased)


def _events(source: _Source, run: str, *, redact: bool, full: bool) -> Iterator[TrajectoryEvent]:
    shown = Shown(redact=redact, chars_max=None if full else CHARS_MAX, text_of=source.text_of)
    return trajectory_of(source.whole(run), children=source.child, shown=shown)


@contextmanager
def _opened(target: Path | BinaryIO) -> Iterator[BinaryIO]:
    """A new file, private to the user; taken away again if it does not become whole."""
    if not isinstance(target, Path):
        yield target
        target.flush()
        return
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        file = os.fdopen(os.open(target, flags, 0o600), "wb")
    except FileExistsError:
        why = "it is there already; name a new file"
        raise TransferRefused(file=str(target), why=why) from None
    except OSError as error:
        why = f"it cannot be written: {error.strerror}"
        raise TransferRefused(file=str(target), why=why) from error
    try:
        with file:
            yield file
    except BaseException as error:
        with suppress(OSError):
            target.unlink()
        if isinstance(error, OSError):
            why = f"it cannot be written: {error.strerror}"
            raise TransferRefused(file=str(target), why=why) from error
        raise
