"""The command `tally` and what its exit codes mean.

Commands are imported when they are called: `tally --help` should not load a sandbox.
"""

from __future__ import annotations

import difflib
import importlib
import sys
import warnings
from typing import NoReturn

import click

from tallystick.core.errors import Cancelled, TallystickError

# By what a user wants to do, in the order of `tally --help`: a module, and a line of help.
_GROUPS = {
    "Run": {
        "run": ("run", "Answer a question with programs that a model writes."),
        "resume": ("resume", "Resume a run that was stopped or interrupted."),
        "fork": ("resume", "Start a new run from a turn of another."),
        "approve": ("resume", "Let a program run that waits for your approval."),
        "deny": ("resume", "Refuse a program that waits for your approval."),
        "exec": ("execute", "Run a Python program in the sandbox."),
        "demo": ("demo", "Answer a question over sample data, and prove it. No model."),
    },
    "Look": {
        "ls": ("ls", "List the runs of the ledger."),
        "inspect": ("inspect", "Show a run turn by turn."),
        "receipt": ("inspect", "Show what a run did and cost, line by line."),
        "diff": ("inspect", "Compare two runs turn by turn."),
    },
    "Check": {
        "replay": ("resume", "Repeat a recorded run without a model, and compare."),
        "verify": ("audit", "Check every hash of the ledger."),
        "head": ("audit", "Print a run's entry count and last hash, to keep elsewhere."),
        "prove": ("audit", "Prove that one entry stands in a run."),
        "check": ("run", "Check the names that a program uses, without running it."),
    },
    "Remember": {
        "remember": ("memory.notes", "Keep a note for later."),
        "recall": ("memory.notes", "Find notes, with a receipt; check a receipt."),
        "forget": ("memory.forget", "Forget notes, as softly or as hard as asked."),
        "memory": ("memory.memory", "List, show, move, review and check what is remembered."),
        "skills": ("skills.skills", "Find, read, check, trust and install skills."),
        "session": ("sessions", "Make, list, show, extend and remove sessions."),
        "snapshot": ("sessions", "Keep a session's variables under a name."),
    },
    "Store": {
        "attach": ("attach", "Keep bytes by their digest; list, collect, verify them."),
        "export": ("transfer", "Write one run into a single file."),
        "import": ("transfer", "Import a run that was exported."),
        "prune": ("prune", "Delete the content of old runs; keep hashes and receipts."),
        "resolve": ("ls", "Settle calls that dead processes left in doubt."),
        "rm": ("prune", "Delete a run from the ledger."),
        "total": ("total", "Show or change the total in dollars for all runs on the ledger."),
    },
    "Set up": {
        "config": ("config", "Print each setting and where it came from."),
        "doctor": ("doctor", "Try what each sandbox can do here, and say so."),
        "warm": ("doctor", "Compile the sandbox now, so that the next start is quick."),
    },
}
_NAME_CHARS_MAX = 40
_COMMANDS = {name: found for group in _GROUPS.values() for name, found in group.items()}


class _Lazy(click.Group):
    """Finds commands by name and imports only the one that is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"tallystick.cli.commands.{_COMMANDS[cmd_name][0]}")
        # A module with one command calls it `command`; one with several, by name.
        command = getattr(module, f"{cmd_name}_command", None) or module.command
        assert isinstance(command, click.Command)
        return _readable(command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        # A word that looks like an option is the toolkit's to refuse.
        if name not in _COMMANDS and not name.startswith("-"):
            near = difflib.get_close_matches(name, _COMMANDS, n=1)
            meant = f" Did you mean {near[0]}?" if near else ""
            raise click.UsageError(f"There is no command {name[:_NAME_CHARS_MAX]!r}.{meant}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        wide = max(map(len, _COMMANDS))
        for group, commands in _GROUPS.items():
            with formatter.section(group):
                formatter.write_dl(
                    [(f"{name:<{wide}}", each[1]) for name, each in commands.items()]
                )


def _readable(command: click.Command) -> click.Command:
    """Docstrings are raw, so the toolkit's mark for text that keeps its lines has to be made."""
    command.help = (command.help or "").replace("\\b\n", "\b\n")
    for each in command.commands.values() if isinstance(command, click.Group) else ():
        _readable(each)
    return command


@click.group(
    cls=_Lazy,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="tallystick", prog_name="tally")
@click.pass_context
def cli(context: click.Context) -> None:
    r"""Answer questions with programs that a model writes, in a sandbox and within a budget.

    \b
    Try it without a model:  tally demo
    Ask about a file:        tally run "which are overdue?" -f books.csv
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


_readable(cli)


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
        # Here, since it loads the errors of every package.
        from tallystick.cli.errors import exit_code_of

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
