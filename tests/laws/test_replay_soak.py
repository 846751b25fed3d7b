"""A thousand generated runs, each replayed: no record differs from what is made again."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from tests.faults.soak_record import noted
from tests.laws.test_resume_laws import SLOW, at_once, caps, plans, played_plan

from tallystick.client import Session
from tallystick.core.charge import RunLimits
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.plans import Planned

__all__ = ["at_once"]

EXAMPLES = 1_000 if os.environ.get("TALLYSTICK_SOAK") == "full" else 25


@pytest.mark.soak
def test_generated_runs_replay_to_the_byte(sandbox: WasmSandbox) -> None:
    replayed = 0

    @settings(max_examples=EXAMPLES, suppress_health_check=SLOW, deadline=None)
    @given(plan=plans, limits=caps)
    def replays(plan: list[Planned], limits: RunLimits) -> None:
        nonlocal replayed
        whole = played_plan(sandbox, plan, limits)
        before = whole.world.session
        with Session(
            ledger=before.ledger, attachments=before.attachments, sandbox=sandbox
        ) as session:
            report = session.replay(whole.id)

        assert report.held, report.divergence
        assert report.entries == len(whole.records)
        replayed += 1

    replays()

    noted("generated runs replayed to the byte", [f"{replayed:,} runs"])
    assert replayed >= EXAMPLES
