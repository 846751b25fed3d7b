"""`tally doctor`: what works on this machine, found out by trying it."""

from __future__ import annotations

import asyncio
import platform

import click
import msgspec

from tallystick.core.errors import TallystickError
from tallystick.runtime.paths import cache_directory, data_directory
from tallystick.sandbox.wasm.engine import ENGINE
from tallystick.sandbox.wasm.image import load_image
from tallystick.sandbox.wasm.sandbox import WasmSandbox

__all__ = ["command"]


class _Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One capability of one backend. `why` is None when it was proven."""

    backend: str
    capability: str
    proven: bool
    why: str | None = None


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def command(as_json: bool) -> int:
    r"""Try what each sandbox can do here, and say so.

    \b
    Example:
        tally doctor
    """
    findings = asyncio.run(_examine())
    facts = {
        "python": platform.python_version(),
        "guest": _guest(),
        "engine": ENGINE,
        "cache": str(cache_directory()),
        "data": str(data_directory()),
    }
    if as_json:
        click.echo(msgspec.json.encode({**facts, "findings": findings}).decode())
    else:
        for name, fact in facts.items():
            click.echo(f"{name:<8} {fact}")
        for finding in findings:
            verdict = "proven" if finding.proven else f"not proven: {finding.why}"
            click.echo(f"{finding.backend:<8} {finding.capability:<16} {verdict}")
    return 0 if all(finding.proven for finding in findings) else 4


def _guest() -> str:
    try:
        return load_image().sha256
    except TallystickError as error:
        return f"missing: {error}"


async def _examine() -> list[_Finding]:
    try:
        sandbox = WasmSandbox.load(
            cache=cache_directory(), say=lambda line: click.echo(line, err=True)
        )
    except TallystickError as error:
        why = f"{error.code}: {error}"
        return [_Finding(backend="wasm", capability="load", proven=False, why=why)]
    try:
        return [
            _Finding(backend="wasm", capability=capability, proven=why is None, why=why)
            for capability, why in await sandbox.self_test()
        ]
    finally:
        await sandbox.close()
