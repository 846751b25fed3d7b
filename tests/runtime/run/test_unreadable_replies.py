"""Half of a surrogate pair has no bytes: what a backend says with one is still written down."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext

import pytest

from tallystick.core.charge import ModelUsage
from tallystick.ledger.verify import verify_ledger
from tallystick.model.port import Heard, ModelReply, ModelRequest
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import block
from tallystick.testing.runs import play

HALF = "\ud83d"


class Halves:
    """Says its lines as they are, or breaks with one."""

    name = "scripted"

    def __init__(self, *lines: str | Exception) -> None:
        self._lines = list(lines)

    def admitted(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def ask(self, request: ModelRequest, *, heard: Heard = lambda chars: None) -> ModelReply:
        said = self._lines.pop(0)
        if isinstance(said, Exception):
            raise said
        usage = ModelUsage(tokens_in=10, tokens_out=10, reported=True)
        return ModelReply(text=said, usage=usage, served_by=HALF, finish=HALF)

    async def close(self) -> None: ...


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
    played = play(sandbox, Halves(*lines))

    assert played.run.answer == answer
    assert verify_ledger(played.ledger).ok
    assert all(played.session.replay(row.run).held for row in played.ledger.runs())


def test_a_backend_that_breaks_with_half_of_a_pair_ends_the_run(sandbox: WasmSandbox) -> None:
    played = play(sandbox, Halves(RuntimeError(f"no {HALF}")))

    assert played.run.stop == "model_error"
    assert played.run.detail == "unknown: the backend broke (RuntimeError)"
    assert played.replayed().held
