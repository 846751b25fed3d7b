"""The parts that commands are put together of: options that many have, and JSON as output.

It imports nothing of ours, so that a command which only reads loads no more for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click
import msgspec

Command = Callable[..., Any]
Option = Callable[[Command], Command]

JSON = click.option("--json", "as_json", is_flag=True, help="Print as JSON.")


def stacked(*options: Option) -> Option:
    """Make one decorator of several options, which `--help` lists in this order."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def echo_json(value: object) -> None:
    """Print a value as one line of JSON."""
    try:
        text = msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        # A path whose bytes are no text: in escapes, from which it can be had back.
        text = json.dumps(msgspec.to_builtins(value), separators=(",", ":"))
    click.echo(text)
