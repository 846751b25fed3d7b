"""Error kinds and codes: the whole table by value, and each of our errors in it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import msgspec
import pytest

import tallystick
from tallystick.core.budget.amount import BudgetExhausted, Scope
from tallystick.core.errors import (
    Cancelled,
    InvalidSessionState,
    MaxExtensionsReached,
    MaxSnapshotsReached,
    NotSupported,
    RecursionDepthExceeded,
    SandboxError,
    SessionBusy,
    SessionExpired,
    SessionFormatUnknown,
    SessionNotFound,
    SnapshotNotFound,
    StoreError,
    TallystickError,
    UsageError,
)
from tallystick.interop.error_codes import ERROR_CODES, entry_of, entry_of_stop, error_report

# Name, code, retryable, budget_exhausted, requires_user_action.
TABLE = [
    ("CommandParseFailed", -32700, False, False, False),
    ("ConfigError", -32602, False, False, False),
    ("SessionNotFound", -32001, False, False, False),
    ("SessionExpired", -32002, False, False, False),
    ("TokenBudgetExceeded", -32010, False, True, False),
    ("TimeBudgetExceeded", -32011, False, True, False),
    ("RecursionDepthExceeded", -32012, False, True, False),
    ("ExecutionFailed", -32020, False, False, False),
    ("ExecutionTimeout", -32021, True, False, False),
    ("VmCrashed", -32022, False, False, False),
    ("KgValidationFailed", -32030, False, False, False),
    ("KgEscalationRequired", -32031, False, False, True),
    ("SnapshotNotFound", -32040, False, False, False),
    ("NoBackendAvailable", -32050, False, False, True),
    ("DnsBlocked", -32060, False, False, False),
    ("NotSupported", -32070, False, False, False),
    ("Cancelled", -32099, False, False, False),
    ("InvalidSessionState", -32000, False, False, False),
    ("MaxExtensionsReached", -32000, False, False, True),
    ("MaxSnapshotsReached", -32000, False, False, False),
    ("SnapshotCreationFailed", -32000, False, False, False),
    ("SnapshotRestoreFailed", -32000, False, False, False),
    ("BackendInitFailed", -32000, False, False, False),
    ("StrictDiagnosticsBusy", -32000, False, False, False),
    ("StrictDiagnosticsShuttingDown", -32000, False, False, False),
    ("PoolExhausted", -32000, False, False, False),
    ("VmAllocationTimeout", -32000, True, False, False),
    ("NetworkBlocked", -32000, False, False, False),
    ("LlmCallFailed", -32000, True, False, False),
    ("LlmNotConfigured", -32000, False, False, False),
    ("LlmBridgeAuthFailed", -32000, False, False, False),
    ("InvalidSessionToken", -32000, False, False, False),
    ("BatchSizeTooLarge", -32000, False, False, False),
    ("OutputTooLarge", -32000, False, False, False),
    ("AutoRemediationFailed", -32000, False, False, False),
    ("AlertWebhookFailed", -32000, True, False, False),
    ("Internal", -32000, False, False, False),
    ("Io", -32000, False, False, False),
    ("Serialization", -32000, False, False, False),
]


def test_the_table_has_every_row_and_no_other() -> None:
    rows = [msgspec.structs.astuple(each) for each in ERROR_CODES.values()]

    assert sorted(rows) == sorted(TABLE)
    assert all(name == row.name for name, row in ERROR_CODES.items())


def exhausted(dimension: str) -> BudgetExhausted:
    scope = Scope(id="s", parent=None, kind="session", name="")
    return BudgetExhausted(dimension=dimension, scope=scope, needed=2, left=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (SessionNotFound(session="S"), "SessionNotFound"),
        (SessionExpired(session="S"), "SessionExpired"),
        (InvalidSessionState(session="S", state="paused", why="x"), "InvalidSessionState"),
        (MaxExtensionsReached(session="S", limit=3), "MaxExtensionsReached"),
        (MaxSnapshotsReached(limit=10), "MaxSnapshotsReached"),
        (SnapshotNotFound(name="x"), "SnapshotNotFound"),
        (RecursionDepthExceeded(session="S", limit=10), "RecursionDepthExceeded"),
        (NotSupported(backend="wasm", operation="bash"), "NotSupported"),
        (SessionBusy("x"), "InvalidSessionState"),
        (SessionFormatUnknown(path="p", found=2, known=1), "Serialization"),
        (StoreError("x"), "Io"),
        (SandboxError("x"), "VmCrashed"),
        (UsageError("x"), "ConfigError"),
        (exhausted("tokens"), "TokenBudgetExceeded"),
        (exhausted("usd"), "TokenBudgetExceeded"),
        (exhausted("wall_ms"), "TimeBudgetExceeded"),
        (exhausted("depth"), "RecursionDepthExceeded"),
        (Cancelled(), "Cancelled"),
        (TallystickError("x"), "Internal"),
        (ValueError("x"), "Internal"),
    ],
)
def test_an_error_of_ours_has_its_row(error: BaseException, name: str) -> None:
    assert entry_of(error) == ERROR_CODES[name]


def every_error() -> Iterator[type[TallystickError]]:
    for module in pkgutil.walk_packages(tallystick.__path__, "tallystick."):
        if "error" in module.name or module.name.endswith((".port", ".queries")):
            importlib.import_module(module.name)
    found = [TallystickError]
    while found:
        each = found.pop()
        found += each.__subclasses__()
        yield each


def test_only_what_says_nothing_of_itself_is_internal() -> None:
    bare = {each for each in every_error() if entry_of(each.__new__(each)).name == "Internal"}

    assert {each.code for each in bare} <= {"error", "ledger.illegal_event"}


def test_an_error_is_told_with_its_code_and_what_a_client_may_make_of_it() -> None:
    told = error_report(MaxExtensionsReached(session="S", limit=3))

    assert (told.type, told.code, told.kind) == (
        "MaxExtensionsReached", -32000, "refused.extensions",
    )  # fmt: skip
    assert told.requires_user_action
    assert "extended 3 times" in told.message


def test_how_a_run_ended_has_a_row_unless_it_is_answered() -> None:
    assert entry_of_stop("answered") is None
    assert entry_of_stop("deadline") == ERROR_CODES["TimeBudgetExceeded"]
    assert entry_of_stop("cancelled") == ERROR_CODES["Cancelled"]
