"""`tally snapshot`: the variables of a session under a name, to come back to."""

from __future__ import annotations

import click

from tallystick.cli.exit_codes import OK
from tallystick.cli.session_shown import (
    JSON,
    echo_json,
    opened_sessions,
    snapshot_fields,
    snapshot_line,
)
from tallystick.runtime.session_info import KeptSnapshot

__all__ = ["command"]


@click.group("snapshot")
def command() -> None:
    r"""Keep the variables of a session under a name, and come back to them.

    A session has at most ten. NAME has at most 256 characters, no path separator and no `..`; one
    that is there is also found by `name:id`.

    \b
    Exit codes: 0 done, 2 wrong usage, 4 no such session or snapshot, expired, busy, or at a limit.

    \b
    Example:
        tally snapshot create last clean
        tally snapshot restore last clean
    """


@command.command("create")
@click.argument("session")
@click.argument("name")
@JSON
def create_command(session: str, name: str, as_json: bool) -> int:
    r"""Keep the variables of a session as its last run left them.

    \b
    Example:
        tally snapshot create last clean
    """
    with opened_sessions(as_json=as_json) as sessions:
        _show(sessions.snapshot(sessions.find(session), name), as_json=as_json)
    return OK


@command.command("restore")
@click.argument("session")
@click.argument("name")
@JSON
def restore_command(session: str, name: str, as_json: bool) -> int:
    r"""Have the next run of a session go on from a snapshot.

    \b
    Example:
        tally snapshot restore last clean
    """
    with opened_sessions(as_json=as_json) as sessions:
        _show(sessions.restore(sessions.find(session), name), as_json=as_json)
    return OK


@command.command("ls")
@click.argument("session")
@JSON
def ls_command(session: str, as_json: bool) -> int:
    r"""List the snapshots of a session, also of one that has expired.

    \b
    Example:
        tally snapshot ls last
    """
    with opened_sessions(as_json=as_json) as sessions:
        found = sessions.snapshots(sessions.find(session))
        if as_json:
            echo_json([snapshot_fields(each) for each in found])
            return OK
    for each in found:
        click.echo(snapshot_line(each))
    return OK


@command.command("rm")
@click.argument("session")
@click.argument("name")
@JSON
def rm_command(session: str, name: str, as_json: bool) -> int:
    r"""Let go of a snapshot.

    \b
    Example:
        tally snapshot rm last clean
    """
    with opened_sessions(as_json=as_json) as sessions:
        _show(sessions.delete_snapshot(sessions.find(session), name), as_json=as_json)
    return OK


def _show(kept: KeptSnapshot, *, as_json: bool) -> None:
    if as_json:
        echo_json(snapshot_fields(kept))
    else:
        click.echo(str(kept.snapshot))
