"""A run of a ledger, replayed: its chain is checked first, then it is driven again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from tallystick.core.errors import RunNotFound
from tallystick.core.native import is_native_run
from tallystick.core.records import RunStarted
from tallystick.core.step_errors import StepsNotReplayed
from tallystick.core.step_receipt import holds_steps
from tallystick.ledger.ancestry import bad_entry_of
from tallystick.ledger.port import Ledger
from tallystick.ledger.verify import verify
from tallystick.runtime.history import runs_inside, whole_records
from tallystick.runtime.replay import ReplayReport, broken_chain, replay_records, rerunnable
from tallystick.runtime.rlms_log import refuse_foreign
from tallystick.runtime.session_interpreter import load_image
from tallystick.runtime.shelf import Shelf
from tallystick.runtime.skill_drift import SkillDrift, drift_of
from tallystick.runtime.skills import Skills, cards_again
from tallystick.runtime.so_far import holder_of
from tallystick.sandbox.wasm.sandbox import WasmSandbox

__all__ = ["replayed"]


async def replayed(
    run: str,
    *,
    ledger: Ledger,
    sandbox: Callable[[], WasmSandbox],
    shelf_of: Callable[[str, Sequence[str]], Shelf],
    skills: Skills | None,
) -> ReplayReport:
    """Run it again from its record, and compare; its skills too, with those there are now."""
    # The chain first: records that are not the ones that were sealed prove nothing.
    bad = bad_entry_of(ledger, run)
    if bad is not None:
        return broken_chain(run, entries=verify(ledger, [run]).entries, bad=bad)
    records = whole_records(ledger, run)
    if holds_steps(records):
        raise StepsNotReplayed(chain=run, runs=runs_inside(ledger, run))
    if not records or not isinstance(records[0], RunStarted):
        raise RunNotFound(run=run)
    started = records[0]
    refuse_foreign(run, started)
    shelf = shelf_of(holder_of(records), started.grants)
    drift: tuple[SkillDrift, ...] = ()
    if started.skills is not None and skills is not None:
        drift = drift_of(started.skills, cards_again(started.skills, shelf), records, skills)
    if is_native_run(started) or not rerunnable(started, sandbox().guest.image.sha256):
        report = await replay_records(run, records, session=None, shelf=shelf)
        return msgspec.structs.replace(report, drift=drift)
    session = await sandbox().open(
        session_id=started.session_id, seed=started.seed, clock_ns=started.clock_ns
    )
    try:
        await load_image(session, started, shelf)
        report = await replay_records(run, records, session=session, shelf=shelf)
        return msgspec.structs.replace(report, drift=drift)
    finally:
        await session.close()
