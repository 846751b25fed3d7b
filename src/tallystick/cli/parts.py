"""Share the option `--json`, stacks of options, and the printing of JSON between all commands.

This module imports nothing else of the package, so that every command can load it at no cost.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click
import msgspec

Command = Callable[..., Any]
Option = Callable[[Command], Command]

JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


def stacked(*options: Option) -> Option:
    """Return one decorator that adds several options; `--help` lists them in this order."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def echo_json(value: object) -> None:
    r"""Print a value on stdout as one line of JSON.

    Bytes of a path that are not UTF-8 are printed as escapes (`\udcff`), not refused.
    """
    try:
        text = msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        # msgspec refuses lone surrogates, which Python uses for bytes of a path that are not UTF-8.
        # The json module writes them as escapes, so that a reader can restore the path.
        text = json.dumps(msgspec.to_builtins(value), separators=(",", ":"))
    click.echo(text)
