"""`tally session`: namespaces that outlive processes, and that runs go on in."""

from __future__ import annotations

import click

from tallystick.cli.exit_codes import OK
from tallystick.cli.session_shown import (
    JSON,
    echo_json,
    opened_sessions,
    session_fields,
    session_line,
    session_lines,
    snapshot_fields,
)
from tallystick.core.errors import UsageError
from tallystick.runtime.backends import BACKENDS
from tallystick.runtime.session_info import SessionInfo

__all__ = ["command"]


@click.group("session")
def command() -> None:
    r"""Make, list, show, extend, reopen and remove sessions.

    A session keeps the variables of its runs for the next one, also of another process. SESSION is
    an id, the beginning of one, or `last`.

    \b
    Exit codes: 0 done, 2 wrong usage, 4 no such session, expired, busy, or at a limit.

    \b
    Example:
        tally session new
        tally run "count the rows" -f sales.csv --session last
    """


@command.command("new")
@click.option(
    "--set", "variables", multiple=True, metavar="KEY=VALUE", help="A context variable. Repeatable."
)
@click.option(
    "--max-tokens", type=click.IntRange(min=0), metavar="N", help="Tokens of all its runs together."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Time of all its runs together.",
)
@click.option(
    "--sandbox",
    "backend",
    type=click.Choice(BACKENDS),
    default="wasm",
    help="Where its programs run: process has a shell and files.  [default: wasm]",
)
@JSON
def new_command(
    variables: tuple[str, ...],
    max_tokens: int | None,
    timeout: float | None,
    backend: str,
    as_json: bool,
) -> int:
    r"""Make a session, and print its id. It has half an hour.

    \b
    Example:
        tally session new --set region=EU
    """
    with opened_sessions(as_json=as_json) as sessions:
        made = sessions.new(
            token_budget=max_tokens,
            time_budget_ms=None if timeout is None else round(timeout * 1000),
            variables=_pairs(variables),
            backend=backend,
        )
        _show(made, as_json=as_json, line=made.id)
    return OK


@command.command("ls")
@JSON
def ls_command(as_json: bool) -> int:
    r"""List sessions, the newest last.

    \b
    Example:
        tally session ls
    """
    with opened_sessions(as_json=as_json) as sessions:
        sessions.book.cleanup_expired()
        found = sessions.list()
        if as_json:
            echo_json(
                {
                    "sessions": [session_fields(each) for each in found],
                    "stats": sessions.book.stats(),
                }
            )
            return OK
    for each in found:
        click.echo(session_line(each))
    if not found:
        click.echo("no sessions; to make one: tally session new", err=True)
    return OK


@command.command("show")
@click.argument("session")
@JSON
def show_command(session: str, as_json: bool) -> int:
    r"""Show a session: its state, variables, snapshots, and what its runs came to.

    \b
    Example:
        tally session show last
    """
    with opened_sessions(as_json=as_json) as sessions:
        info = sessions.get(sessions.find(session))
        runs, history = sessions.runs(info.id), sessions.history(info.id)
        snapshots = sessions.snapshots(info.id)
        if as_json:
            echo_json(
                {
                    **session_fields(info),
                    "runs": history,
                    "snapshots": [snapshot_fields(each) for each in snapshots],
                }
            )
            return OK
    for line in session_lines(info, runs, history, snapshots):
        click.echo(line)
    return OK


@command.command("extend")
@click.argument("session")
@JSON
def extend_command(session: str, as_json: bool) -> int:
    r"""Give a session half an hour more, at most three times.

    \b
    Example:
        tally session extend last
    """
    with opened_sessions(as_json=as_json) as sessions:
        info = sessions.book.extend(sessions.find(session))
        _show(info, as_json=as_json, line=session_line(info))
    return OK


@command.command("resume")
@click.argument("session")
@JSON
def resume_command(session: str, as_json: bool) -> int:
    r"""Reopen a session that has expired, with all that it keeps.

    \b
    Example:
        tally session resume last
    """
    with opened_sessions(as_json=as_json) as sessions:
        info = sessions.resume(sessions.find(session))
        _show(info, as_json=as_json, line=session_line(info))
    return OK


@command.command("set")
@click.argument("session")
@click.argument("variables", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--unset", multiple=True, metavar="KEY", help="Take one away. May be repeated.")
@JSON
def set_command(
    session: str, variables: tuple[str, ...], unset: tuple[str, ...], as_json: bool
) -> int:
    r"""Set context variables: programs of later runs find them in `context_variables`.

    \b
    Example:
        tally session set last region=EU --unset draft
    """
    with opened_sessions(as_json=as_json) as sessions:
        found = sessions.find(session)
        sessions.book.set_variables(found, _pairs(variables))
        for key in unset:
            if not sessions.book.delete_variable(found, key):
                raise UsageError(f"session {found} has no context variable {key[:80]!r}")
        info = sessions.get(found)
        if as_json:
            echo_json(info.context_variables)
            return OK
    for key, value in info.context_variables.items():
        click.echo(f"{key}={value}")
    return OK


@command.command("rm")
@click.argument("session")
@click.option("--yes", is_flag=True, help="Do not ask.")
@JSON
def rm_command(session: str, yes: bool, as_json: bool) -> int:
    r"""Remove a session: its variables and snapshots. A run in it is stopped; runs are kept.

    \b
    Example:
        tally session rm last --yes
    """
    with opened_sessions(as_json=as_json) as sessions:
        found = sessions.find(session)
        if not (yes or as_json):
            click.confirm(
                f"remove session {found}? Its variables and snapshots cannot be brought back",
                abort=True,
                err=True,
            )
        gone = sessions.remove(found)
        if as_json:
            echo_json({"removed": gone.id})
            return OK
    click.echo(f"removed {gone.id}; its runs are kept", err=True)
    return OK


def _show(info: SessionInfo, *, as_json: bool, line: str) -> None:
    if as_json:
        echo_json(session_fields(info))
    else:
        click.echo(line)


def _pairs(given: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not equals:
            raise UsageError(f"{each[:80]!r}: KEY=VALUE is needed")
        pairs[key] = value
    return pairs
