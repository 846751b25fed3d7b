"""Write the table of commands and options that shell completion reads.

Run it as `make reference`, or `python -m tools.completion`. `tests/cli/test_completion.py` fails if
the table differs from what this module would write.
"""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from tallystick.cli import completion, main
from tallystick.cli.completion import Kind, Node, Option

_FILE = Path(completion.__file__).parent / completion.TABLE
# The kind of a value, by the name of its argument or option. Others are completed by the shell as
# files, or not at all.
_KINDS = {
    "run": "run",
    "runs": "run",
    "session": "session",
    "--run": "run",
    "--session": "session",
    "--model": "model",
    "--sub-model": "model",
    "--skill": "skill",
    "--memory": "memory",
    "--file": "file",
    "provider": "provider",
}
# Where the name says too little.
_AT = {
    ("diff", "a"): "run",
    ("diff", "b"): "run",
    ("snapshot restore", "name"): "snapshot",
    ("snapshot rm", "name"): "snapshot",
    ("skills show", "name"): "skill",
    ("skills trust", "name"): "skill",
    ("skills why", "name"): "skill",
}


def table() -> bytes:
    """Return the table as it should stand in the package."""
    root = click.Context(main.cli, info_name="tally")
    commands = {}
    for name, (_, about) in main._COMMANDS.items():
        command = main.cli.get_command(root, name)
        assert command is not None, name
        commands[name] = _node(command, name, about)
    made = Node(options=_options(main.cli, ""), commands=commands)
    return msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n"


def _node(command: click.Command, path: str, about: str) -> Node:
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    below = command.commands if isinstance(command, click.Group) else {}
    return Node(
        help=about,
        options=_options(command, path),
        arguments=[_kind(each, path) for each in arguments],
        repeats=bool(arguments) and arguments[-1].nargs == -1,
        commands={
            name: _node(each, f"{path} {name}", each.get_short_help_str(limit=80))
            for name, each in sorted(below.items())
            if not each.hidden
        },
    )


def _options(command: click.Command, path: str) -> dict[str, Option]:
    found = {"--help": Option("Show the help.", is_flag=True)}
    for each in command.params:
        if isinstance(each, click.Option) and not each.hidden:
            about = " ".join((each.help or "").split())
            is_flag = each.is_flag or each.count
            kind = None if is_flag else _kind(each, path)
            for name in (*each.opts, *each.secondary_opts):
                found[name] = Option(about, is_flag=is_flag, kind=kind)
    return dict(sorted(found.items()))


def _kind(parameter: click.Parameter, path: str) -> Kind:
    if isinstance(parameter.type, click.Choice):
        return list(map(str, parameter.type.choices))
    is_option = isinstance(parameter, click.Option)
    name = max(parameter.opts, key=len) if is_option else parameter.name or ""
    known = _AT.get((path, name)) or _KINDS.get(name)
    if known is not None:
        return known
    return "file" if isinstance(parameter.type, click.Path | click.File) else None


def write() -> None:
    """Write the table."""
    _FILE.write_bytes(table())


if __name__ == "__main__":
    write()
