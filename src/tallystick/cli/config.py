"""`tally config`: each setting and where it came from."""

from __future__ import annotations

import click
import msgspec

from tallystick.runtime.settings import settings

__all__ = ["command"]


@click.command("config")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(as_json: bool) -> int:
    r"""Print each setting and where it came from.

    \b
    Example:
        tally config
    """
    found = settings()
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
    else:
        for each in found:
            click.echo(f"{each.name:<15} {each.value or '-':<50} {each.source}")
    return 0
