"""Half of a surrogate pair has no bytes: what a backend says with one is still written down."""

from __future__ import annotations

import pytest

from tallystick.ledger.verify import verify_ledger
from tallystick.model.port import ModelReply
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import ModelDouble, block, reported
from tallystick.testing.runs import play

HALF = "\ud83d"


def halves(*lines: str | Exception) -> ModelDouble:
    """A model that says these lines as they are, or fails with one."""
    return ModelDouble(
        [
            each
            if isinstance(each, Exception)
            else ModelReply(text=each, usage=reported(10, 10), served_by=HALF, finish=HALF)
            for each in lines
        ]
    )


@pytest.mark.parametrize(
    ("lines", "answer"),
    [
        ([block(f"FINAL('a{HALF}b')")], "a?b"),
        ([HALF, block("FINAL(1)")], "1"),
        ([block("FINAL(llm_query('q'))"), f"a{HALF}b"], "a?b"),
        ([block("FINAL(rlm_query('q'))"), block(f"FINAL('a{HALF}b')")], "a?b"),
    ],
)
def test_a_reply_with_half_of_a_pair_is_read_and_written(
    sandbox: WasmSandbox, lines: list[str], answer: str
) -> None:
    played = play(sandbox, halves(*lines))

    assert played.run.answer == answer
    assert verify_ledger(played.ledger).ok
    assert all(played.session.replay(row.run).held for row in played.ledger.runs())


def test_a_backend_that_breaks_with_half_of_a_pair_ends_the_run(sandbox: WasmSandbox) -> None:
    played = play(sandbox, halves(RuntimeError(f"no {HALF}")))

    assert played.run.stop == "model_error"
    assert played.run.detail == "unknown: the backend broke (RuntimeError)"
    assert played.replayed().held
