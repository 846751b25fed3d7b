"""The command `tally` and what its exit codes mean.

Commands are imported when they are called: `tally --help` should not load a sandbox.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import NoReturn

import click

from tallystick.cli.exit_codes import exit_code_of
from tallystick.core.errors import Cancelled, TallystickError

_COMMANDS = {
    "approve": ("tallystick.cli.commands.resume", "Let a program run that waits for a person."),
    "attach": (
        "tallystick.cli.commands.attach",
        "Keep bytes by their digest; list, collect, verify them.",
    ),
    "config": ("tallystick.cli.commands.config", "Print each setting and where it came from."),
    "demo": (
        "tallystick.cli.commands.demo",
        "Answer a question over sample data, and prove it. No model.",
    ),
    "deny": ("tallystick.cli.commands.resume", "Do not let a program run that waits for a person."),
    "diff": ("tallystick.cli.commands.inspect", "Compare two runs turn by turn."),
    "doctor": ("tallystick.cli.commands.doctor", "Try what each sandbox can do here, and say so."),
    "exec": ("tallystick.cli.commands.execute", "Run a Python program in the sandbox."),
    "export": ("tallystick.cli.commands.upkeep", "Write one run into a single file."),
    "forget": (
        "tallystick.cli.commands.memory.forget",
        "Forget notes, as softly or as hard as asked.",
    ),
    "fork": ("tallystick.cli.commands.resume", "Grow another run from one, after a turn."),
    "head": (
        "tallystick.cli.commands.audit",
        "Say where a run's chain stands, signed if asked to.",
    ),
    "import": ("tallystick.cli.commands.upkeep", "Take in a run that was exported."),
    "inspect": ("tallystick.cli.commands.inspect", "Show a run turn by turn."),
    "ls": ("tallystick.cli.commands.ls", "List the runs of the ledger."),
    "memory": (
        "tallystick.cli.commands.memory.memory",
        "List, show, move, review and check what is remembered.",
    ),
    "prove": ("tallystick.cli.commands.audit", "Prove that one entry stands in a run."),
    "prune": (
        "tallystick.cli.commands.upkeep",
        "Take out what old runs said; keep what proves them.",
    ),
    "recall": (
        "tallystick.cli.commands.memory.notes",
        "Find notes, with a receipt; check a receipt.",
    ),
    "receipt": ("tallystick.cli.commands.inspect", "Show what a run did and cost, line by line."),
    "remember": ("tallystick.cli.commands.memory.notes", "Keep a note for later."),
    "replay": ("tallystick.cli.commands.resume", "Run a run again from its record, and compare."),
    "resolve": ("tallystick.cli.commands.ls", "Close calls that dead processes left."),
    "resume": ("tallystick.cli.commands.resume", "Go on with a run where it was."),
    "rm": ("tallystick.cli.commands.upkeep", "Take a run out of the ledger."),
    "run": ("tallystick.cli.commands.run", "Answer a question with programs that a model writes."),
    "session": (
        "tallystick.cli.commands.sessions",
        "Make, list, show, extend and remove sessions.",
    ),
    "skills": (
        "tallystick.cli.commands.skills.skills",
        "Find, read, check, trust and install skills.",
    ),
    "snapshot": ("tallystick.cli.commands.sessions", "Keep a session's variables under a name."),
    "verify": ("tallystick.cli.commands.audit", "Check every hash of the ledger."),
    "warm": (
        "tallystick.cli.commands.doctor",
        "Compile the sandbox now, so that the next start is quick.",
    ),
}


class _Lazy(click.Group):
    """Finds commands by name and imports only the one that is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(_COMMANDS[cmd_name][0])
        # A module with one command calls it `command`; one with several, by name.
        command = getattr(module, f"{cmd_name}_command", None) or module.command
        assert isinstance(command, click.Command)
        return _readable(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][1]) for name in self.list_commands(ctx)])


def _readable(command: click.Command) -> click.Command:
    """Docstrings are raw, so the toolkit's mark for text that keeps its lines has to be made."""
    command.help = (command.help or "").replace("\\b\n", "\b\n")
    for each in command.commands.values() if isinstance(command, click.Group) else ():
        _readable(each)
    return command


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tallystick", prog_name="tally")
def cli() -> None:
    """Run programs that models write, in a sandbox that is metered and holds."""


def _show_warning(message: Warning | str, *where: object, **more: object) -> None:
    """Print a warning as one line: where in our code it was raised says nothing to a user."""
    click.echo(f"warning: {message}", err=True)


def main() -> NoReturn:
    """Run the command line. Errors are one line on stderr and an exit code."""
    warnings.showwarning = _show_warning
    try:
        sys.exit(cli(standalone_mode=False) or 0)
    except click.exceptions.Exit as ended:
        sys.exit(ended.exit_code)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "tally"
        click.echo(f"usage: {error.format_message()} See {command} --help.", err=True)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt, Cancelled):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except TallystickError as error:
        click.echo(f"{error.code}: {error}", err=True)
        sys.exit(exit_code_of(error))
    except BrokenPipeError:
        # Whoever read our output has gone. Nothing can be said to them.
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        # What we print has nowhere to go: a full disk behind a redirection, a closed terminal.
        click.echo(f"output: {error.strerror or error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
