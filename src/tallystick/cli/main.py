"""Find, load and run the commands of `tally`, and turn errors into a line and an exit code.

A command's module is imported only when the command is called: `tally --help` loads no sandbox.
"""

from __future__ import annotations

import difflib
import importlib
import sys
import warnings
from typing import NoReturn

import click

from tallystick.cli.exit_codes import INTERRUPTED
from tallystick.core.errors import Cancelled, TallystickError

# The groups and commands in the order of `tally --help`; each command has its module below
# `tallystick.cli.commands`, and its line of help. The line is here too, and not only in the
# docstring of the command, so that `tally --help` imports none of the modules.
_GROUPS = {
    "Run": {
        "run": ("run", "Answer a question with programs that a model writes."),
        "resume": ("resume", "Resume a run that was stopped or interrupted."),
        "stop": ("resume", "Stop a run that another process works on."),
        "fork": ("resume", "Start a new run from a turn of another."),
        "approve": ("resume", "Let a program run that waits for your approval."),
        "deny": ("resume", "Refuse a program that waits for your approval."),
        "exec": ("execute", "Run a Python program in the sandbox."),
        "demo": ("demo", "Try a run over sample data, without a model or a key."),
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
        "prove": ("audit", "Prove to somebody else that an entry is part of a run."),
        "check": ("run", "Check the names that a program uses, without running it."),
    },
    "Remember": {
        "remember": ("memory.notes", "Store a note for later runs."),
        "recall": ("memory.notes", "Search notes, with a receipt; check a receipt."),
        "forget": ("memory.forget", "Hide, archive, redact or erase notes."),
        "memory": ("memory.memory", "List, show, review, check, export and import notes."),
        "skills": ("skills.skills", "Find, read, check, trust and install skills."),
        "session": ("sessions", "Keep variables between runs: make and manage sessions."),
        "snapshot": ("sessions", "Save and restore the variables of a session."),
    },
    "Store": {
        "attach": ("attach", "Store, read, list, verify, remove and clean up attachments."),
        "export": ("transfer", "Write one run to a single file."),
        "import": ("transfer", "Read a run from an exported file into the ledger."),
        "prune": ("prune", "Delete the content of old runs; keep hashes and receipts."),
        "resolve": ("ls", "Settle model calls that dead processes left open."),
        "rm": ("prune", "Delete a run from the ledger."),
        "total": ("total", "Show or change the limit in dollars for all runs together."),
    },
    "Set up": {
        "models": ("setup.models", "Show which models can be asked, and what to set for the rest."),
        "config": ("setup.config", "Print each setting and where it came from."),
        "doctor": ("setup.doctor", "Test what each sandbox can do on this machine."),
        "warm": ("setup.doctor", "Compile the sandbox now, so that the next run starts fast."),
        "completion": ("setup.completion", "Let the shell complete commands, options and run ids."),
    },
}
_NAME_CHARS_MAX = 40
_COMMANDS = {name: found for group in _GROUPS.values() for name, found in group.items()}


class _Lazy(click.Group):
    """A group that finds commands by name, and imports only the one that is used."""

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
        # Click itself refuses unknown options, with a better message.
        if name not in _COMMANDS and not name.startswith("-"):
            near = difflib.get_close_matches(name, _COMMANDS, n=1)
            meant = f" Did you mean {near[0]}?" if near else ""
            raise click.UsageError(f"there is no command {name[:_NAME_CHARS_MAX]!r}.{meant}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        wide = max(map(len, _COMMANDS))
        for group, commands in _GROUPS.items():
            with formatter.section(group):
                formatter.write_dl(
                    [(f"{name:<{wide}}", each[1]) for name, each in commands.items()]
                )


def _readable(command: click.Command) -> click.Command:
    r"""Replace the two characters `\b` in help texts by the mark that makes click keep lines.

    The docstrings are raw, so that they read the same in the source; click expects the control
    character. Changes `command` and its commands in place, and returns it.
    """
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
    r"""Run agents that write Python: sandboxed, budgeted, recorded.

    \b
    Try it without a model:  tally demo
    Ask about a file:        tally run "which are overdue?" -f books.csv
    Help for a command:      tally run --help
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


_readable(cli)


def _show_warning(message: Warning | str, *where: object, **more: object) -> None:
    """Print a warning as one line on stderr, without the place in our code that raised it."""
    click.echo(f"warning: {message}", err=True)


def main() -> NoReturn:
    """Run the command line and end the process.

    An error is printed as one line on stderr, beginning with its code, and decides the exit code
    (`tallystick.cli.errors`). If output cannot be written, the exit code is 1; a reader that is
    gone is not reported. Only an error that is none of these is raised.
    """
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
        sys.exit(INTERRUPTED)
    except TallystickError as error:
        # Imported late: this module imports every package that has errors of its own.
        from tallystick.cli.errors import exit_code_of

        click.echo(f"{error.code}: {error}", err=True)
        sys.exit(exit_code_of(error))
    except BrokenPipeError:
        # The reader of our output is gone, as in `tally ls | head -1`. Close stderr too, or the
        # interpreter prints a second error when it flushes the streams at its end.
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        # Output cannot be written: a full disk behind a redirection, or a closed terminal.
        click.echo(f"output: cannot be written: {error.strerror or error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
