"""A text that programs of a sandbox cannot count is refused before anything is written."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
from tests.runtime.run.cut_runs import GOAL, world

from tallystick.core.errors import UsageError
from tallystick.runtime.context.inputs import Input
from tallystick.sandbox.text import HostText
from tallystick.sandbox.wasm.backend import WasmBackend
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.ledgers import LastingAttachments
from tallystick.testing.plans import program

MOST = (1 << 31) - 1


def text_of(path: Path, size: int) -> HostText:
    """A text of so many bytes that takes no room: a file with a hole."""
    with path.open("wb") as file:
        file.truncate(size)
    with path.open("rb") as file:
        return HostText(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def test_over_two_gigabytes_is_refused_and_nothing_is_written(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    kept = LastingAttachments()
    plan = [program("FINAL(len(context))")]
    here = world(sandbox, plan, bare=True, attachments=kept)
    text = text_of(tmp_path / "big.txt", MOST + 1)

    with pytest.raises(UsageError) as caught:
        here.session.run(GOAL, inputs=[Input(name="big.txt", text=text)])

    assert str(caught.value) == (
        "big.txt: a text of 2,147,483,648 bytes; programs of this sandbox read texts of at most "
        "2,147,483,647: split it, or use the process sandbox (--sandbox process)"
    )
    assert list(here.ledger.runs()) == []
    assert kept.references() == []


def test_the_limit_is_what_the_guest_can_count(
    sandbox: WasmSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert WasmBackend.text_bytes_max == MOST
    monkeypatch.setattr(WasmBackend, "text_bytes_max", 3)
    here = world(sandbox, [program("FINAL(len(context))")] * 2, bare=True)

    assert here.session.run(GOAL, inputs=[Input(name="a", text=HostText(b"abc"))]).answer == "3"
    with pytest.raises(UsageError, match="a text of 4 bytes"):
        here.session.run(GOAL, inputs=[Input(name="a", text=HostText(b"abcd"))])
