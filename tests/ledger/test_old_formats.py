"""Files that earlier versions wrote are still read: a fixture for each format, never changed."""

import base64
import io
from pathlib import Path

import pytest

from tallystick.attachments.memory import MemoryAttachments
from tallystick.client import Session
from tallystick.core.records import RunEnded, RunForked, RunProgram, RunStarted, tag_of
from tallystick.core.views.receipt import step_lines
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.verify import ancestors_of, verify_ledger
from tallystick.runtime.runs.history import records_of, whole_records
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.upkeep.transfer import import_run_with_attachments

FIXTURES = sorted((Path(__file__).parent / "fixtures").glob("run-format-*.b64"))


def imported(path: Path, attachments: MemoryAttachments | None = None) -> tuple[MemoryLedger, str]:
    ledger = MemoryLedger()
    content = io.BytesIO(base64.b64decode(path.read_bytes()))
    done = import_run_with_attachments(ledger, attachments or MemoryAttachments(), content)
    return ledger, done.run


@pytest.mark.parametrize("path", FIXTURES, ids=[path.stem for path in FIXTURES])
def test_an_export_of_every_format_is_imported_and_verifies(path: Path) -> None:
    ledger, run = imported(path)
    records = whole_records(ledger, run)

    assert verify_ledger(ledger).ok
    assert isinstance(records[0], RunStarted)
    assert isinstance(records[-1], RunEnded)
    assert records[-1].answer == "42"


@pytest.mark.parametrize("path", FIXTURES, ids=[path.stem for path in FIXTURES])
def test_it_replays_with_its_programs_served_if_the_guest_is_another(
    path: Path, sandbox: WasmSandbox
) -> None:
    kept = MemoryAttachments()
    ledger, run = imported(path, kept)
    programs = [each for each in whole_records(ledger, run) if isinstance(each, RunProgram)]

    report = Session(ledger=ledger, attachments=kept, sandbox=sandbox).replay(run)

    assert report.served + report.programs == len(programs) > 1
    # A prompt template may have changed since; nothing else may have.
    assert report.divergence is None or report.divergence.field in ("request_sha256", "charge")


def test_the_attachments_of_the_second_format_are_read() -> None:
    kept = MemoryAttachments()

    imported(Path(__file__).parent / "fixtures" / "run-format-2.b64", kept)

    found = {each.ref.label: each.ref for each in kept.references()}
    assert [ref.byte_len for ref in found.values()] == [10, 0, 33, 256]
    assert b"".join(kept.chunks(found["question.txt"].id)) == b"6 times 7\n"
    picture = found["Bild – 3×2"]
    assert (picture.media_type, picture.declared) == ("image/png", "text/plain")
    assert (picture.width, picture.height) == (3, 2)


def test_the_ancestors_of_the_third_format_are_read() -> None:
    kept = MemoryAttachments()

    ledger, run = imported(Path(__file__).parent / "fixtures" / "run-format-3.b64", kept)

    rows = list(ledger.runs())
    assert [(row.head.count, row.imported) for row in rows] == [(5, True), (5, True), (7, True)]
    assert [each.run for each in ancestors_of(ledger, run)] == [row.run for row in rows[:2]]
    forks = [record for record in whole_records(ledger, run) if isinstance(record, RunForked)]
    assert [fork.turn for fork in forks] == [1, 2]
    (text,) = kept.references(forks[-1].session_id)
    assert b"".join(kept.chunks(text.ref.id)) == b"seven.."


def test_steps_as_they_were_first_written_are_read() -> None:
    ledger, chain = imported(Path(__file__).parent / "fixtures" / "steps-1.b64")
    records = list(records_of(ledger, chain))

    assert verify_ledger(ledger).ok
    assert [tag_of(each) for each in records] == [
        "step.entered", "step.entered", "step.left", "step.left",
    ]  # fmt: skip
    outer, inner = step_lines(records)
    assert (outer.name, outer.status, inner.name, inner.status) == (
        "plan – Größe", "completed", "look up", "skipped",
    )  # fmt: skip
    assert outer.receipt is not None
    assert outer.receipt.schema == "tallystick.step-receipt.v1"
    assert (outer.receipt.usd, outer.receipt.unpriced) == (140_000, 1)


def test_there_is_a_fixture_of_the_present_format() -> None:
    from tallystick.ledger.transfer import FORMAT

    assert f"run-format-{FORMAT}.b64" in {path.name for path in FIXTURES}
