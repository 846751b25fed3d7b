"""The process sandbox: open sessions in boxes, keep spare boxes ready, test itself."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tallystick.core.errors import TallystickError
from tallystick.sandbox.host import HostFunction, HostTable
from tallystick.sandbox.port import ExecutionContext, ExecutionResult, Sandbox
from tallystick.sandbox.process.launch import Box, Launcher
from tallystick.sandbox.process.proxy import (
    PROXY_PORT,
    Attempt,
    NetworkGrant,
    Proxy,
    Resolve,
    resolve_name,
)
from tallystick.sandbox.process.session import ProcessInterpreter
from tallystick.sandbox.process.settings import BoxSettings, order_of, require_layers
from tallystick.sandbox.scheduling import CancellationTokens, ProgramThreads, Slots
from tallystick.storage.clock import new_id

# The self-test: each capability is tried by a program that needs it.


_Probe = Callable[["ProcessSandbox", "ProcessInterpreter"], Awaitable[str | None]]


async def run_self_test(sandbox: ProcessSandbox) -> Sequence[tuple[str, str | None]]:
    """Test each capability in a new session. Return it with None, or with what went wrong."""
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
    session: ProcessInterpreter, program: str, *, timeout_ms: int = 10_000
) -> ExecutionResult:
    context = ExecutionContext(session_id=session.session_id, timeout_ms=timeout_ms)
    return await session.execute(program, context=context, host=_ECHO)


async def _command(session: ProcessInterpreter, text: str) -> ExecutionResult:
    context = ExecutionContext(session_id=session.session_id, timeout_ms=10_000)
    return await session.command(text, context=context, host=_ECHO)


def _unless(given: object, wanted: object) -> str | None:
    return None if given == wanted else f"gave {given!r}"


async def _isolation(sandbox: ProcessSandbox, session: ProcessInterpreter) -> str | None:
    """Return why isolation fails; None if processes, network, files and rights are kept out."""
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


async def _python(sandbox: ProcessSandbox, session: ProcessInterpreter) -> str | None:
    await _run(session, "kept = [6 * 7]")
    return _unless((await _run(session, "import json\njson.dumps(kept)")).value, "'[42]'")


async def _bash(sandbox: ProcessSandbox, session: ProcessInterpreter) -> str | None:
    await _command(session, "mkdir -p a/b && cd a/b && export NAMED=here")
    return _unless((await _command(session, 'echo "$NAMED ${PWD##*/}"')).stdout, "here b\n")


async def _files(sandbox: ProcessSandbox, session: ProcessInterpreter) -> str | None:
    await _run(session, "import pathlib\npathlib.Path('a.txt').write_text('from python')")
    return _unless((await _command(session, "cat a.txt")).stdout, "from python")


async def _limits(sandbox: ProcessSandbox, session: ProcessInterpreter) -> str | None:
    await _run(session, "kept = 1")
    stops = [
        (await _run(session, "while True: pass", timeout_ms=100)).stop,
        (await _run(session, "x = []\nwhile True: x.append(bytes(1 << 24))")).stop,
        (await _run(session, "kept")).value,
    ]
    return _unless(stops, ["wall", "memory", "1"])


async def _snapshots(sandbox: ProcessSandbox, session: ProcessInterpreter) -> str | None:
    await _run(session, "value = 1\nopen('f', 'w').write('one') and None")
    await session.snapshot("before")
    await _run(session, "value = 2\nopen('f', 'w').write('two') and None")
    await session.restore("before")
    return _unless((await _run(session, "value, open('f').read()")).value, "(1, 'one')")


async def _overlay(sandbox: ProcessSandbox, session: ProcessInterpreter) -> str | None:
    return (await sandbox.layers())["overlay"]


async def _bridge(sandbox: ProcessSandbox, session: ProcessInterpreter) -> str | None:
    result = await _run(session, "echo({'a': [1, None, 'ü']})")
    return _unless(result.value, "{'a': [1, None, 'ü']}")


async def _network(sandbox: ProcessSandbox, session: ProcessInterpreter) -> str | None:
    """Return why the network grant fails; None if it holds.

    It holds if a granted host is reached, another one is not, and both attempts are recorded.
    """
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


# The sandbox: one launcher, and the boxes that it makes for sessions.


_ACTIVE_MAX = 64
_REST_SECONDS = 0.05


class ProcessSandbox:
    """Open sessions with native Python, bash and files. Linux only; needs no root.

    The launcher starts with the first session. If the host lacks a layer of isolation, opening
    raises `IsolationMissing`, unless `settings.accept_without` names the layer. `active_max`
    programs are active at once. `spares` boxes are kept ready for the next sessions. Output over
    the inline limit goes to files in `output_directory`; without that, it is lost. Raises
    `ValueError` for an `active_max` below 1.
    """

    name = "process"

    def __init__(
        self,
        *,
        settings: BoxSettings | None = None,
        output_directory: Path | None = None,
        active_max: int = _ACTIVE_MAX,
        spares: int = 1,
    ) -> None:
        self.settings = settings if settings is not None else BoxSettings()
        self.output_directory = output_directory
        self.slots = Slots(active_max)
        self.threads = ProgramThreads()
        self._launcher = Launcher()
        self.cancels = CancellationTokens()
        self._sessions: set[ProcessInterpreter] = set()
        # Boxes that are made in advance, because a session would have to wait for one.
        self._spares_max = spares
        self._spares: list[Box] = []
        self._making = threading.Lock()
        self._pretended: dict[str, str | None] = {}
        self._closing = threading.Event()

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment variables of programs that depend on the sandbox: PATH, PYTHONPATH."""
        paths = ["/usr/local/bin", "/usr/bin", "/bin"]
        if not sys.base_prefix.startswith("/usr"):
            paths.insert(0, f"{sys.base_prefix}/bin")
        found = {"PATH": ":".join(paths)}
        if self.settings.packages:
            found["PYTHONPATH"] = ":".join(str(path) for path in self.settings.packages)
        return found

    async def layers(self) -> Mapping[str, str | None]:
        """Return each layer of isolation with None, or with the reason why this host lacks it.

        Start the launcher if it does not run; raise what `Launcher.start` raises.
        """
        return await self.threads.run(self._find_layers).outcome

    def pretend(self, layer: str, missing: str | None) -> None:
        """Act as if the host lacked a layer, for the reason `missing`, or had it (None).

        For tests.
        """
        self._pretended[layer] = missing

    def _find_layers(self) -> dict[str, str | None]:
        return {**self._launcher.start(), **self._pretended}

    async def open(
        self,
        *,
        session_id: str,
        seed: int = 0,
        files: Path | None = None,
        network: NetworkGrant | None = None,
        record: Callable[[Attempt], None] = lambda attempt: None,
        resolve: Resolve = resolve_name,
        saved: Path | None = None,
    ) -> ProcessInterpreter:
        """Open a session. Its working directory starts with what is in `files`, or empty.

        `files` itself is never changed. `saved` is a directory to which a session was saved, in
        this process or another: the new session continues from there, and `seed` is not used.
        Without `network`, nothing can be reached. With it, a proxy connects to what it names, and
        passes each attempt to `record`, in a thread of its own. `resolve` returns the addresses of
        a host.

        Raise `IsolationMissing` if a required layer is missing, and `NotSupported` on other systems
        than Linux. Raise `UsageError` if `files` is not a directory or the sandbox is closed,
        `SandboxError` if no box can be made, and `StoreError` if `saved` cannot be loaded. Raise
        `OSError` if Python cannot be started.
        """
        box, proxy = await self.threads.run(
            lambda: self._make_box(files, network, record, resolve)
        ).outcome
        session = ProcessInterpreter(
            self,
            box,
            session_id=session_id,
            seed=seed if saved is None else None,
            proxy=proxy,
        )
        if saved is not None:
            try:
                await session.load(saved)
            except BaseException:
                await session.close()
                raise
        self._sessions.add(session)
        if self._spares_max:
            self.threads.run(self._replenish)
        return session

    def _make_box(
        self,
        files: Path | None,
        network: NetworkGrant | None,
        record: Callable[[Attempt], None],
        resolve: Resolve,
    ) -> tuple[Box, Proxy | None]:
        """Make a box, and with `network` a proxy that listens inside it.

        Raise what `open` raises without `saved`; no box is left then.
        """
        if network is None:
            return self._box(files), None
        box = self._launcher.open(self._order(files, network=True))
        try:
            box.send({"do": "listen", "port": PROXY_PORT})
            _, descriptors = box.receive("listening")
            listening = socket.socket(fileno=descriptors[0])
        except BaseException:
            box.close()
            raise
        proxy = Proxy(listening, network, record=record, resolve=resolve)
        proxy.start()
        return box, proxy

    def _box(self, files: Path | None) -> Box:
        if files is None:
            with contextlib.suppress(IndexError):
                spare = self._spares.pop()
                if not spare.ended:
                    return spare
                spare.close()
        return self._launcher.open(self._order(files))

    def _order(self, files: Path | None, *, network: bool = False) -> dict[str, Any]:
        found = self._find_layers()
        require_layers(self.settings, found)
        return order_of(
            self.settings, found, root=self._launcher.root, files=files, network=network
        )

    def _replenish(self) -> None:
        """Make spare boxes for the next sessions. Failures are ignored: those make their own."""
        # Wait first, because the session that was just opened needs the processor now.
        self._closing.wait(_REST_SECONDS)
        with self._making, contextlib.suppress(TallystickError):
            while len(self._spares) < self._spares_max and not self._closing.is_set():
                self._spares.append(self._launcher.open(self._order(None)))

    def forget(self, session: ProcessInterpreter) -> None:
        """Remove a closed session from those that `close` closes."""
        self._sessions.discard(session)

    def cancel(self, cancellation_token: str) -> bool:
        """Cancel the program with this token in its context. Return False if there is none.

        This does not wait for the end of the program.
        """
        return self.cancels.cancel(cancellation_token)

    async def self_test(self) -> Sequence[tuple[str, str | None]]:
        """Try each capability here. Return it with None, or with what went wrong."""
        return await run_self_test(self)

    async def close(self) -> None:
        """Close every session and end the launcher. Closing twice is harmless."""
        self._closing.set()
        for session in [*self._sessions]:
            await session.close()
        with self._making:
            while self._spares:
                self._spares.pop().close()
        self._launcher.close()
        self.threads.close()


_: type[Sandbox] = ProcessSandbox
