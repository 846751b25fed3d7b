"""Runs with attachments, and places where they can be: a ledger and a store in each."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.ledger.builders import EMPTY, RUN, draft, drafted

from tallystick.attachments.memory import MemoryAttachments
from tallystick.attachments.session import SessionAttachments
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.core.chain import Draft
from tallystick.core.charge import RunLimits
from tallystick.core.ids import ulid
from tallystick.core.records import AttachmentRef, RunStarted
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.upkeep.transfer import export_run_with_attachments


def session_id(number: int = 1) -> str:
    return ulid(time_ms=number, entropy=b"session ab")


SESSION = session_id(1)
PICTURE = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 3, 2) + b"\x08\x02\0\0\0"
LARGE = bytes(range(256)) * 1_024
# What it is, what it is called, what it is said to be.
Given = tuple[bytes, str | None, str | None]
SEVERAL: tuple[Given, ...] = (
    (b"some text\n", "notes – Größe.txt", "text/plain"),
    (b"", "nothing", None),
    (PICTURE, "picture", "text/plain"),
    (LARGE, None, None),
    (LARGE[1:], "large.bin", "application/octet-stream"),
    (b"x" * 65_536, "\x1b[31m'\"\\", None),
)
FEW: tuple[Given, ...] = ((b"one", "first", None), (b"two\n" * 9, None, None), (b"", "empty", None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where runs and their attachments are."""

    ledger: MemoryLedger | SqliteLedger
    kept: MemoryAttachments | SqliteAttachments

    def held(self, session: str = SESSION) -> SessionAttachments:
        return SessionAttachments(self.kept, session_id=session)

    def contents(self, session: str = SESSION) -> list[tuple[AttachmentRef, bytes, bool]]:
        """What a session has: each reference, its bytes, whether it is committed."""
        held = self.held(session)
        return [
            (each.ref, held.read(each.ref.id), each.committed_at_epoch_ms is not None)
            for each in held.references()
        ]

    def close(self) -> None:
        self.kept.close()
        if isinstance(self.ledger, SqliteLedger):
            self.ledger.close()


def in_memory(folder: Path) -> Place:
    return Place(ledger=MemoryLedger(), kept=MemoryAttachments())


def in_files(folder: Path) -> Place:
    ledger = SqliteLedger(folder / "ledger.db")
    return Place(ledger=ledger, kept=SqliteAttachments(ledger.file))


PLACES: dict[str, Callable[[Path], Place]] = {"memory": in_memory, "sqlite": in_files}


def started(session: str, refs: Sequence[AttachmentRef]) -> Draft:
    """The first record of a run that was given attachments."""
    return drafted(
        RunStarted(
            goal="?",
            model="scripted:x",
            limits=RunLimits(),
            grants=(),
            contexts=(),
            functions=(),
            texts=(),
            seed=0,
            clock_ns=0,
            session_id=session,
            template="t",
            guest="g",
            engine="e",
            started_at=1,
            images=tuple(refs),
        )
    )


def attached_run(
    place: Place,
    given: Sequence[Given] = SEVERAL,
    *,
    run: str = RUN,
    session: str = SESSION,
    unmentioned: int = 0,
) -> list[AttachmentRef]:
    """Make a run of three entries whose first one speaks of attachments, but for the last few."""
    batch = place.held(session).batch()
    refs = [batch.add(data, label=label, media_type=kind) for data, label, kind in given]
    fence = place.ledger.claim(run, create=True)
    place.ledger.append(
        run,
        [started(session, refs[: len(refs) - unmentioned]), draft(1), draft(2)],
        expected=EMPTY,
        fence=fence,
        forced=False,
        also=batch.commit,
    )
    return refs


def exported(place: Place, run: str = RUN, *, move: bool = False) -> bytes:
    stream = io.BytesIO()
    export_run_with_attachments(place.ledger, place.kept, run, stream, move=move)
    return stream.getvalue()


def file_with(given: Sequence[Given], **more: str) -> bytes:
    """An export of a run with attachments."""
    place = Place(ledger=MemoryLedger(salts=lambda count: b"s" * count), kept=MemoryAttachments())
    attached_run(place, given, **more)  # type: ignore[arg-type]
    return exported(place)
