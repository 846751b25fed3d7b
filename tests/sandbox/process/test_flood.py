"""A program that asks and never reads what it is answered does not fill the host."""

from __future__ import annotations

import asyncio

import pytest
from tests.escape.process.boxes import made_sandbox

from tallystick.sandbox.port import ExecutionContext, HostCall, HostNames

pytestmark = pytest.mark.slow

ANSWER = b"0" + b"x" * (4 << 20)
FORGED = """
import os, socket, struct, time
for fd in range(3, 30):
    try:
        if socket.socket(fileno=os.dup(fd)).type == socket.SOCK_STREAM:
            break
    except OSError:
        pass
for _ in range(60):
    os.write(fd, struct.pack("<BI", 3, 7) + b'["x",0]')
time.sleep(5)
"""


class Greedy:
    """Gives long answers, and counts them."""

    names = HostNames()
    served = 0

    def serve(self, call: HostCall) -> bytes:
        self.served += 1
        return ANSWER


def test_unread_answers_are_bounded() -> None:
    box = made_sandbox()

    async def play() -> tuple[str, int]:
        host = Greedy()
        session = await box.open(session_id="0" * 26)
        try:
            context = ExecutionContext(session_id="0" * 26, timeout_ms=10_000, deadline_ms=10_000)
            result = await session.execute(FORGED, context=context, host=host)
            return result.stop, host.served
        finally:
            await session.close()
            await box.close()

    stop, served = asyncio.run(play())

    assert stop == "trap"
    # 64 MiB are let pile up, in answers of 4 MiB.
    assert 16 <= served <= 20
