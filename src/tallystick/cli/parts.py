"""Share the option `--json`, stacks of options, and the printing of lines between all commands.

This module imports nothing else of the package, so that every command can load it at no cost.
"""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import click
import msgspec

Command = Callable[..., Any]
Option = Callable[[Command], Command]

JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


def stack_options(*options: Option) -> Option:
    """Return one decorator that adds several options; `--help` lists them in this order."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def stdout_columns() -> int | None:
    """Return the width of the terminal on stdout, or None if it is a file or a pipe.

    The variable COLUMNS alone gives no width: CI systems set it, and programs that read the output
    need whole lines.
    """
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def stderr_columns() -> int:
    """Return the width of lines on stderr: COLUMNS, that of the terminal, or 80."""
    return shutil.get_terminal_size().columns


def wrap_line(line: str, *, indent: int, width: int) -> list[str]:
    """Break a line between words, so that it fits `width` columns.

    Further lines are indented, by less if a long word needs the room. A word that is wider than a
    line is not broken, so that a path or an id can be copied. A blank line gives no lines.
    """
    indent = min(indent, max(0, width - max(map(len, line.split()), default=0)))
    return textwrap.wrap(
        line,
        width=width,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def echo_line(line: str, *, indent: int = 10, err: bool = False) -> None:
    """Print a line on stdout or stderr; on a terminal, break it between words if it is too wide.

    `indent` is that of the further lines.
    """
    stream = sys.stderr if err else sys.stdout
    width = shutil.get_terminal_size().columns if stream.isatty() else len(line)
    for each in [line] if len(line) <= width else wrap_line(line, indent=indent, width=width):
        click.echo(each, err=err)


def echo_error_line(line: str, *, indent: int = 9) -> None:
    """Print a line on stderr, broken between words if it is wider than `stderr_columns`.

    `indent` is that of the further lines. Without a terminal it is broken too, unlike `echo_line`.
    """
    width = stderr_columns()
    for each in [line] if len(line) <= width else wrap_line(line, indent=indent, width=width):
        click.echo(each, err=True)


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
