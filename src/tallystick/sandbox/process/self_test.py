"""What the process sandbox can do here, tried: each capability by a program that needs it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from tallystick.core.errors import TallystickError
from tallystick.sandbox.host import HostFunction, HostTable
from tallystick.sandbox.identity import new_id
from tallystick.sandbox.port import ExecutionContext, ExecutionResult
from tallystick.sandbox.process.proxy import Attempt, NetworkGrant

if TYPE_CHECKING:
    from tallystick.sandbox.process.sandbox import ProcessSandbox
    from tallystick.sandbox.process.session import ProcessSession

__all__ = ["run_self_test"]

_Probe = Callable[["ProcessSandbox", "ProcessSession"], Awaitable[str | None]]


async def run_self_test(sandbox: ProcessSandbox) -> Sequence[tuple[str, str | None]]:
    """Return each capability with None if it is proven, or with what went wrong."""
    outcomes = []
    for capability, probe in _PROBES:
        try:
            session = await sandbox.open(session_id=new_id())
            try:
                why = await probe(sandbox, session)
            finally:
                await session.close()
        except TallystickError as error:
            why = f"{error.code}: {error}"
        outcomes.append((capability, why))
    return outcomes


async def _run(
    session: ProcessSession, program: str, *, timeout_ms: int = 10_000
) -> ExecutionResult:
    context = ExecutionContext(session_id=session.session_id, timeout_ms=timeout_ms)
    return await session.execute(program, context=context, host=_ECHO)


async def _command(session: ProcessSession, text: str) -> ExecutionResult:
    context = ExecutionContext(session_id=session.session_id, timeout_ms=10_000)
    return await session.command(text, context=context, host=_ECHO)


def _unless(given: object, wanted: object) -> str | None:
    return None if given == wanted else f"gave {given!r}"


async def _isolation(sandbox: ProcessSandbox, session: ProcessSession) -> str | None:
    """Other processes, the network, the host's files and privileges are not there."""
    result = await _run(
        session,
        "import os, socket\n"
        "def tried(f):\n    try:\n        f()\n        return 'done'\n"
        "    except OSError as error:\n        return 'refused'\n"
        "[tried(lambda: socket.socket()), tried(lambda: os.kill(1, 9)),"
        " tried(lambda: os.listdir('/.kept')), tried(lambda: open('/usr/x', 'w')),"
        " tried(lambda: os.setuid(0)), os.path.exists('/etc/shadow'),"
        " len([each for each in os.listdir('/proc') if each.isdigit()]) < 8]",
    )
    return _unless(result.value or result.error, str([*["refused"] * 5, False, True]))


async def _python(sandbox: ProcessSandbox, session: ProcessSession) -> str | None:
    await _run(session, "kept = [6 * 7]")
    return _unless((await _run(session, "import json\njson.dumps(kept)")).value, "'[42]'")


async def _bash(sandbox: ProcessSandbox, session: ProcessSession) -> str | None:
    await _command(session, "mkdir -p a/b && cd a/b && export NAMED=here")
    return _unless((await _command(session, 'echo "$NAMED ${PWD##*/}"')).stdout, "here b\n")


async def _files(sandbox: ProcessSandbox, session: ProcessSession) -> str | None:
    await _run(session, "import pathlib\npathlib.Path('a.txt').write_text('from python')")
    return _unless((await _command(session, "cat a.txt")).stdout, "from python")


async def _limits(sandbox: ProcessSandbox, session: ProcessSession) -> str | None:
    await _run(session, "kept = 1")
    stops = [
        (await _run(session, "while True: pass", timeout_ms=100)).stop,
        (await _run(session, "x = []\nwhile True: x.append(bytes(1 << 24))")).stop,
        (await _run(session, "kept")).value,
    ]
    return _unless(stops, ["wall", "memory", "1"])


async def _snapshots(sandbox: ProcessSandbox, session: ProcessSession) -> str | None:
    await _run(session, "value = 1\nopen('f', 'w').write('one') and None")
    await session.snapshot("before")
    await _run(session, "value = 2\nopen('f', 'w').write('two') and None")
    await session.restore("before")
    return _unless((await _run(session, "value, open('f').read()")).value, "(1, 'one')")


async def _overlay(sandbox: ProcessSandbox, session: ProcessSession) -> str | None:
    return (await sandbox.layers())["overlay"]


async def _bridge(sandbox: ProcessSandbox, session: ProcessSession) -> str | None:
    result = await _run(session, "echo({'a': [1, None, 'ü']})")
    return _unless(result.value, "{'a': [1, None, 'ü']}")


async def _network(sandbox: ProcessSandbox, session: ProcessSession) -> str | None:
    """A host on the list is reached, another is not, and both are written down."""
    seen: list[Attempt] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        listed = frozenset({f"listed.invalid:{port}"})
        listening.settimeout(5.0)
        threading.Thread(target=_answer_once, args=(listening,), daemon=True).start()
        open_session = await sandbox.open(
            session_id=new_id(),
            network=NetworkGrant(allow=listed, private=listed),
            record=seen.append,
            resolve=lambda host, port: ["127.0.0.1"],
        )
        try:
            result = await _run(open_session, _FETCH.replace("PORT", str(port)))
        finally:
            await open_session.close()
    outcomes = sorted((each.host, each.outcome) for each in seen)
    wanted = [("listed.invalid", "allowed"), ("other.invalid", "refused")]
    return _unless((result.value or result.error, outcomes), ("['here', 'refused']", wanted))


_FETCH = """
import urllib.request
def fetch(host):
    try:
        return urllib.request.urlopen(f'http://{host}:PORT/', timeout=5).read().decode()
    except OSError as error:
        return 'refused'
[fetch('listed.invalid'), fetch('other.invalid')]
"""


def _answer_once(listening: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection, _ = listening.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhere")


def _echo(value: object) -> object:
    """Return what was given."""
    return value


_ECHO = HostTable([HostFunction(name="echo", function=_echo, local=True)])

_PROBES: tuple[tuple[str, _Probe], ...] = (
    ("ContainerIsolation", _isolation),
    ("PythonExecution", _python),
    ("BashExecution", _bash),
    ("FileOperations", _files),
    ("ResourceLimits", _limits),
    ("Snapshots", _snapshots),
    ("OverlayFs", _overlay),
    ("LlmBridge", _bridge),
    ("NetworkAudit", _network),
    ("DnsAllowlist", _network),
)
