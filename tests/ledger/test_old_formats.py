"""Files that earlier versions wrote are still read: a fixture for each format, never changed."""

import base64
import io
from pathlib import Path

import pytest

from tallystick.core.records import RunEnded, RunStarted
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.transfer import import_run
from tallystick.ledger.verify import verify
from tallystick.runtime.session import Session, records_of
from tallystick.sandbox.wasm.sandbox import WasmSandbox

FIXTURES = sorted((Path(__file__).parent / "fixtures").glob("run-format-*.b64"))


def imported(path: Path) -> tuple[MemoryLedger, str]:
    ledger = MemoryLedger()
    return ledger, import_run(ledger, io.BytesIO(base64.b64decode(path.read_bytes())))


@pytest.mark.parametrize("path", FIXTURES, ids=[path.stem for path in FIXTURES])
def test_an_export_of_every_format_is_imported_and_verifies(path: Path) -> None:
    ledger, run = imported(path)
    records = list(records_of(ledger, run))

    assert verify(ledger).ok
    assert isinstance(records[0], RunStarted)
    assert isinstance(records[-1], RunEnded)
    assert records[-1].answer == "42"


@pytest.mark.parametrize("path", FIXTURES, ids=[path.stem for path in FIXTURES])
def test_it_replays_with_its_programs_served_if_the_guest_is_another(
    path: Path, sandbox: WasmSandbox
) -> None:
    ledger, run = imported(path)

    report = Session(ledger=ledger, sandbox=sandbox).replay(run)

    assert report.served + report.programs == 2
    # A prompt template may have changed since; nothing else may have.
    assert report.divergence is None or report.divergence.field in ("request_sha256", "charge")


def test_there_is_a_fixture_of_the_present_format() -> None:
    from tallystick.ledger.stream import FORMAT

    assert f"run-format-{FORMAT}.b64" in {path.name for path in FIXTURES}
