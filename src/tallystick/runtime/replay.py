"""Replay: the driver over a recorded world, compared entry by entry.

No model, no network, no host function. Replies and answers come from the ledger, or are made again
from the run's attachments and compared; programs run again and must print, ask and cost what they
did. A program that was ended by time, a cancel or a trap did
not end at a repeatable place: it is served as it was recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from tallystick.core.errors import LedgerError, ReplayDiverged
from tallystick.core.prompt import TEMPLATE
from tallystick.core.records import Record, RunEnded, RunStarted, tag_of
from tallystick.ledger.verify import BadEntry
from tallystick.runtime.child_desk import RecordedChildDesk
from tallystick.runtime.children import Children
from tallystick.runtime.comparing import ComparingPen
from tallystick.runtime.driver import Driver
from tallystick.runtime.given import given_again, texts_of
from tallystick.runtime.names import names_of
from tallystick.runtime.queries import Queries
from tallystick.runtime.recorded_desk import RecordedDesk
from tallystick.runtime.recorded_world import RecordedWorld
from tallystick.runtime.recording import Divergence, NothingMore, Recording
from tallystick.runtime.run_records import RunRecords
from tallystick.runtime.shelf import Shelf
from tallystick.runtime.skill_drift import SkillDrift
from tallystick.runtime.skill_evidence import kept_evidence
from tallystick.runtime.vocabulary_check import check_again
from tallystick.sandbox.host import HostTable
from tallystick.sandbox.wasm.engine import ENGINE
from tallystick.sandbox.wasm.session import WasmSession

__all__ = ["Divergence", "ReplayReport", "broken_chain", "replay_records", "rerunnable"]


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay found. `drift` are skills that changed since; the run holds all the same."""

    run: str
    entries: int
    held: bool
    divergence: Divergence | None
    programs: int
    served: int
    note: str | None = None
    drift: tuple[SkillDrift, ...] = ()


async def replay_records(
    run: str, records: Sequence[Record], *, session: WasmSession | None, shelf: Shelf
) -> ReplayReport:
    """Drive the recorded run again. Without a session, programs are served, not run."""
    if not records or not isinstance(records[0], RunStarted):
        raise LedgerError(f"run {run} does not begin with its start")
    started = records[0]
    given = given_again(started, shelf)
    desk = RecordedDesk(records, shelf)
    queries = Queries(desk, limits=started.limits)
    children = RecordedChildDesk(records, shelf)
    recording = Recording(records)
    world = RecordedWorld(
        RunRecords(records),
        session,
        desk=desk,
        queries=queries,
        children=children,
        names=names_of(started, given.values),
        table=HostTable(
            [*shelf.functions(), *queries.functions(), *Children(children, queries).functions()],
            texts=given.texts,
            granted=frozenset(started.grants),
            find_text=shelf.find_text,
        ),
        shelf=shelf,
    )
    pen = ComparingPen(recording)
    driver = Driver(
        started,
        world=world,
        pen=pen,
        texts=texts_of(given.values),
        evidence=kept_evidence(started.skills, shelf, live=False),
        check=check_again(started, shelf),
    )
    divergence: Divergence | None = None
    try:
        await driver.drive()
    except NothingMore:
        pass
    except asyncio.CancelledError:
        if not world.cancelled:
            raise
    except ReplayDiverged as error:
        divergence = Divergence(
            seq=recording.seq, field=error.field, recorded=error.recorded, now=error.now
        )
    divergence = pen.first or divergence
    if divergence is None and isinstance(records[-1], RunEnded) and recording.left is not None:
        seq, record = recording.left
        divergence = Divergence(seq=seq, field="entries", recorded=tag_of(record), now=None)
    return ReplayReport(
        run=run,
        entries=len(records),
        held=divergence is None,
        divergence=divergence,
        programs=world.programs,
        served=world.served,
        note=_other_template(records[0]) if divergence is not None else None,
    )


def _other_template(started: RunStarted) -> str | None:
    """Why prompts differ, where that is no fault of the record."""
    if started.template == TEMPLATE:
        return None
    return (
        f"the run was made with the prompts {started.template}; this version writes {TEMPLATE} and "
        "cannot make those again"
    )


def broken_chain(run: str, *, entries: int, bad: BadEntry) -> ReplayReport:
    """The report of a run whose hashes, computed again, are not the recorded ones."""
    divergence = Divergence(seq=bad.seq, field="chain", recorded=bad.why, now=None)
    return ReplayReport(
        run=run, entries=entries, held=False, divergence=divergence, programs=0, served=0
    )


def rerunnable(started: RunStarted, guest: str) -> bool:
    """True if programs of this run mean the same here: same guest, same engine."""
    return started.guest == guest and started.engine == ENGINE
