"""The reference values of sessions: states, limits and what is told of one."""

from typing import get_args

from tallystick.core.charge import RunLimits
from tallystick.sandbox import snapshot as snapshot_module
from tallystick.sandbox.port import ExecutionContext
from tallystick.sandbox.snapshot import SnapshotId
from tallystick.sessions import rows
from tallystick.sessions.rows import SessionInfo, SessionState, SessionStats


def test_the_states_of_a_session() -> None:
    assert get_args(SessionState) == (
        "initializing", "ready", "executing", "paused", "terminated", "expired",
    )  # fmt: skip


def test_what_is_told_of_a_session() -> None:
    assert {
        "id", "state", "created_at", "expires_at", "extension_count", "recursion_depth",
        "budget_status", "vm_instance_id", "context_variables", "current_snapshot_id",
        "snapshot_count",
    } <= set(SessionInfo.__struct_fields__)  # fmt: skip
    assert SessionStats.__struct_fields__ == ("total_created", "active", "with_vm")


def test_the_limits_of_a_session() -> None:
    assert rows.DURATION_MS == 1_800_000
    assert rows.EXTENSIONS_MAX == 3
    # An extension adds the lifetime once more.
    assert rows.REFERENCE.lifetime_ms == 1_800_000
    assert snapshot_module.SNAPSHOTS_MAX == 10
    assert rows.DEPTH_MAX == 10


def test_the_limits_of_a_run() -> None:
    limits = RunLimits()

    assert (limits.tokens, limits.wall_ms, limits.depth, limits.turns) == (
        100_000, 300_000, 10, 30,
    )  # fmt: skip
    assert ExecutionContext(session_id="S").max_output_bytes == 65_536
    assert ExecutionContext(session_id="S").timeout_ms == 30_000


def test_a_snapshot_is_shown_by_its_name_and_its_id() -> None:
    snapshot = SnapshotId(id="I", name="test-snapshot", session_id="S", created_at=1)

    assert (str(snapshot), snapshot.session_id) == ("test-snapshot:I", "S")
