"""`tally warm`: compile the sandbox ahead of its first use."""

from __future__ import annotations

import asyncio
import time

import click

from tallystick.runtime.paths import cache_directory
from tallystick.sandbox.wasm.sandbox import WasmSandbox

__all__ = ["command"]


@click.command("warm")
def command() -> int:
    r"""Compile the sandbox now, so that the next start is quick.

    \b
    Example:
        tally warm
    """
    began = time.monotonic()

    async def load() -> None:
        sandbox = WasmSandbox.load(
            cache=cache_directory(), say=lambda line: click.echo(line, err=True)
        )
        await sandbox.close()

    asyncio.run(load())
    click.echo(f"the sandbox is ready ({time.monotonic() - began:.1f} s)")
    return 0
