"""`tally doctor` and `tally warm`: test what works on this machine, and compile the sandbox."""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import Iterator, Mapping, Sequence

import click
import msgspec

from tallystick.cli.commands.sessions import made_by, other_guest_note
from tallystick.cli.parts import JSON, echo_json, echo_line
from tallystick.cli.progress import Sayer
from tallystick.core.errors import TallystickError
from tallystick.runtime.programs.backends import CAPABILITIES
from tallystick.sandbox.backend import DEFAULT
from tallystick.sandbox.process.sandbox import ProcessSandbox
from tallystick.sandbox.wasm.image import ENGINE, load_image
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.sessions.exec_sessions import old_origins
from tallystick.sessions.sessions import differs_from_here
from tallystick.settings.paths import cache_directory, data_directory, ledger_path
from tallystick.stores import open_stores

_NOT_OFFERED = "this sandbox does not have it"
# Names that a sandbox has for something that is one of the capabilities.
_SAME = {"HostCalls": "LlmBridge"}
_Tried = Sequence[tuple[str, str | None]]


class _Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The test of one capability of one backend. `why` is None if the test passed.

    A capability that the backend does not claim to have is not `offered`.
    """

    backend: str
    capability: str
    proven: bool
    why: str | None = None
    offered: bool = True


@click.command("doctor")
@JSON
def doctor_command(as_json: bool) -> int:
    r"""Test what each sandbox can do on this machine.

    Sessions that another version of the sandbox stored are named: no program can run in them here.

    \b
    Exit codes: 0 the default sandbox works, 4 it does not. Another sandbox that
    this machine does not support is named, and does not change the exit code.

    \b
    Example:
        tally doctor
    """
    findings, beside, layers = asyncio.run(_examine())
    others, programs_only, unread = _left_by_others()
    facts = {
        "python": platform.python_version(),
        "guest": _guest(),
        "engine": ENGINE,
        "cache": str(cache_directory()),
        "data": str(data_directory()),
    }
    if as_json:
        report = {
            **facts,
            **{"findings": findings, "beside": beside, "layers": layers},
            "left_by_another_sandbox": {"sessions": others, "exec_sessions": programs_only},
            "sessions_unreadable": unread,
        }
        echo_json(report)
    else:
        for name, fact in facts.items():
            echo_line(f"{name:<8} {fact}", indent=9)
        for finding in [*findings, *beside]:
            if finding.offered:
                verdict = "proven" if finding.proven else f"not proven: {finding.why}"
                echo_line(f"{finding.backend:<8} {finding.capability:<18} {verdict}", indent=28)
        for layer, why in layers.items():
            if why is not None:
                echo_line(f"process  without {layer}: {why}", indent=9)
        for line in _session_lines(others, programs_only, unread):
            echo_line(f"sessions {line}", indent=9)
    needed = [each for each in (*findings, *beside) if each.backend == DEFAULT and each.offered]
    return 0 if all(finding.proven for finding in needed) else 4


def _guest() -> str:
    try:
        return load_image().sha256
    except TallystickError as error:
        return f"missing: {error}"


def _left_by_others() -> tuple[list[str], list[str], str | None]:
    """Find the sessions that cannot be used here, since another guest or engine stored them.

    Return the sessions of runs, those of `tally exec`, and the error if they could not be read.
    No file is created: without a session file there are no sessions.
    """
    others: list[str] = []
    programs_only: list[str] = []
    try:
        old = data_directory() / "sessions"
        with open_stores(ledger_path()) as stores:
            sessions = stores.sessions
            if not sessions.book.exists and not (old.exists() and ledger_path().exists()):
                return others, programs_only, None
            known = sessions.list() if sessions.book.exists else ()
            origins = old_origins(sessions.images, folder=old)
            for each in known:
                origins = {name: origins[name] for name in origins if name != each.name}
                if made_by(sessions, each.id, each.left, backend=each.backend).differs:
                    others += [each.id] if each.name is None else []
                    programs_only += [] if each.name is None else [each.name]
            programs_only += [name for name, origin in origins.items() if differs_from_here(origin)]
    except TallystickError as error:
        return others, programs_only, f"{error.code}: {error}"
    return others, programs_only, None


def _session_lines(
    others: Sequence[str], programs_only: Sequence[str], unread: str | None
) -> Iterator[str]:
    for each in others:
        yield f"{each} was stored by another version of the sandbox"
    if others:
        yield other_guest_note(others)
    for each in programs_only:
        yield (
            f"tally exec --session {each}: stored by another version of the sandbox, and only that "
            f"version can read it; use another name here"
        )
    if unread is not None:
        yield f"cannot be read: {unread}"


async def _examine() -> tuple[list[_Finding], list[_Finding], Mapping[str, str | None]]:
    """Run the self-tests of both sandboxes.

    Return a finding for each known capability, the findings of other tests, and the layers of
    isolation of the process sandbox, each with the reason why it is missing or None.
    """
    wasm = await _wasm()
    process, layers = await _process()
    findings, beside = [], []
    for backend, tried in (("wasm", wasm), ("process", process)):
        found = {_SAME.get(name, name): why for name, why in tried}
        for capability in CAPABILITIES:
            why = found.pop(capability, found.get("load", _NOT_OFFERED))
            findings.append(_finding(backend, capability, why, offered=why is not _NOT_OFFERED))
        beside += [_finding(backend, name, why) for name, why in found.items()]
    return findings, beside, layers


def _finding(backend: str, capability: str, why: str | None, *, offered: bool = True) -> _Finding:
    return _Finding(
        backend=backend, capability=capability, proven=why is None, why=why, offered=offered
    )


async def _wasm() -> _Tried:
    try:
        sandbox = WasmSandbox.load(cache=cache_directory(), say=Sayer())
    except TallystickError as error:
        return [("load", f"{error.code}: {error}")]
    try:
        return await sandbox.self_test()
    finally:
        await sandbox.close()


async def _process() -> tuple[_Tried, Mapping[str, str | None]]:
    sandbox = ProcessSandbox()
    try:
        return await sandbox.self_test(), await sandbox.layers()
    except (TallystickError, OSError) as error:
        why = f"{error.code}: {error}" if isinstance(error, TallystickError) else str(error)
        return [("load", why)], {}
    finally:
        await sandbox.close()


# `tally warm`: compile the sandbox before its first use.


@click.command("warm")
def warm_command() -> int:
    r"""Compile the sandbox now, so that the next run starts fast.

    The result is stored in the cache directory (tally doctor prints it).

    \b
    Example:
        tally warm
    """
    began = time.monotonic()

    async def load() -> None:
        sandbox = WasmSandbox.load(cache=cache_directory(), say=Sayer())
        await sandbox.close()

    asyncio.run(load())
    click.echo(f"the sandbox is ready ({time.monotonic() - began:.1f} s)")
    return 0
