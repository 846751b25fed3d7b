"""`tally session` and `tally snapshot`: namespaces that outlive processes, and their variables."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator, Sequence

import click
import msgspec

from tallystick.cli.exit_codes import OK
from tallystick.cli.show import plain
from tallystick.core.errors import TallystickError, UsageError
from tallystick.interop.error_codes import told_error
from tallystick.sandbox.port import BACKENDS, now_ms
from tallystick.sessions.rows import EXTENSIONS_MAX, KeptSnapshot, SessionInfo, SessionRun
from tallystick.sessions.sessions import EarlierRun, Sessions, open_sessions
from tallystick.settings.paths import ledger_path

# How sessions and their snapshots are shown, and how what goes wrong with one is told.


JSON = click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
_TEXT_CHARS_MAX = 60


@contextlib.contextmanager
def opened_sessions(*, as_json: bool) -> Iterator[Sessions]:
    """This user's sessions. With JSON, an error is told on stdout too, with its code."""
    try:
        with open_sessions(ledger_path()) as sessions:
            yield sessions
    except TallystickError as error:
        if as_json:
            echo_json({"error": told_error(error)})
        raise


def echo_json(value: object) -> None:
    click.echo(msgspec.json.encode(value).decode())


def session_fields(info: SessionInfo) -> dict[str, object]:
    """A session as JSON: what a client may rely on, and no reference to what is kept how."""
    fields: dict[str, object] = msgspec.to_builtins(info)
    del fields["left"], fields["generation"]
    image = info.left.image
    fields["left_by"] = info.left.run
    fields["names"] = info.left.names
    fields["image_bytes"] = 0 if image is None else image.byte_len
    return fields


def session_line(info: SessionInfo) -> str:
    names = f"  {plain(info.left.names, chars_max=_TEXT_CHARS_MAX)}" if info.left.names else ""
    return f"{info.id}  {info.state:<12}  {_until(info)}{names}"


def session_lines(
    info: SessionInfo,
    runs: Sequence[SessionRun],
    history: Sequence[EarlierRun],
    snapshots: Sequence[KeptSnapshot],
) -> Iterator[str]:
    """All of a session, a line each."""
    spent = info.budget_status
    yield f"session   {info.id}"
    yield f"state     {info.state}, {_until(info)}"
    yield f"extended  {info.extension_count} of {EXTENSIONS_MAX} times"
    yield f"backend   {info.backend}"
    tokens = _of(spent.tokens_used, spent.token_budget)
    yield f"spent     {tokens} tokens, {_of(spent.time_used_ms, spent.time_budget_ms)} ms"
    if info.left.names:
        yield f"has       {plain(info.left.names)}"
    for key, value in info.context_variables.items():
        yield f"set       {plain(key)} = {plain(value, chars_max=_TEXT_CHARS_MAX)}"
    for each in snapshots:
        yield f"snapshot  {snapshot_line(each)}"
    for run, told in zip(runs, history, strict=True):
        yield f"run       {run.run}  {_told(told)}"


def snapshot_fields(kept: KeptSnapshot) -> dict[str, object]:
    fields: dict[str, object] = msgspec.to_builtins(kept.snapshot)
    image = kept.left.image
    return {
        **fields,
        "shown": str(kept.snapshot),
        "backend": kept.backend,
        "left_by": kept.left.run,
        "names": kept.left.names,
        "image_bytes": 0 if image is None else image.byte_len,
    }


def snapshot_line(kept: KeptSnapshot) -> str:
    names = f"  {plain(kept.left.names, chars_max=_TEXT_CHARS_MAX)}" if kept.left.names else ""
    shown = plain(str(kept.snapshot), chars_max=300)
    return f"{shown}  {_time(kept.snapshot.created_at)}{names}"


def _told(run: EarlierRun) -> str:
    if run.goal is None:
        return "not in the ledger any more"
    goal = plain(run.goal, chars_max=_TEXT_CHARS_MAX)
    if run.stop is None:
        return f"without an end  {goal!r}"
    answer = "" if run.answer is None else f": {plain(run.answer, chars_max=_TEXT_CHARS_MAX)}"
    lost = ", variables not kept" if run.lost else ""
    return f"{run.stop}{lost}  {goal!r}{answer}"


def _of(used: int, budget: int | None) -> str:
    return f"{used:,}" if budget is None else f"{used:,} of {budget:,}"


def _until(info: SessionInfo) -> str:
    if info.state == "expired":
        return f"since {_time(info.expires_at)}"
    minutes = max(0, info.expires_at - now_ms()) // 60_000
    return f"until {_time(info.expires_at)} ({minutes} min left)"


def _time(epoch_ms: int) -> str:
    at = datetime.datetime.fromtimestamp(epoch_ms // 1000, tz=datetime.UTC)
    return at.strftime("%Y-%m-%d %H:%M:%SZ")


# `tally session`: namespaces that outlive processes, and that runs go on in.


@click.group("session")
def session_command() -> None:
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


@session_command.command("new")
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
        _show_session(made, as_json=as_json, line=made.id)
    return OK


@session_command.command("ls")
@JSON
def session_ls_command(as_json: bool) -> int:
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


@session_command.command("show")
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


@session_command.command("extend")
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
        _show_session(info, as_json=as_json, line=session_line(info))
    return OK


@session_command.command("resume")
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
        _show_session(info, as_json=as_json, line=session_line(info))
    return OK


@session_command.command("set")
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


@session_command.command("rm")
@click.argument("session")
@click.option("--yes", is_flag=True, help="Do not ask.")
@JSON
def session_rm_command(session: str, yes: bool, as_json: bool) -> int:
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


def _show_session(info: SessionInfo, *, as_json: bool, line: str) -> None:
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


# `tally snapshot`: the variables of a session under a name, to come back to.


@click.group("snapshot")
def snapshot_command() -> None:
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


@snapshot_command.command("create")
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
        _show_snapshot(sessions.snapshot(sessions.find(session), name), as_json=as_json)
    return OK


@snapshot_command.command("restore")
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
        _show_snapshot(sessions.restore(sessions.find(session), name), as_json=as_json)
    return OK


@snapshot_command.command("ls")
@click.argument("session")
@JSON
def snapshot_ls_command(session: str, as_json: bool) -> int:
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


@snapshot_command.command("rm")
@click.argument("session")
@click.argument("name")
@JSON
def snapshot_rm_command(session: str, name: str, as_json: bool) -> int:
    r"""Let go of a snapshot.

    \b
    Example:
        tally snapshot rm last clean
    """
    with opened_sessions(as_json=as_json) as sessions:
        _show_snapshot(sessions.delete_snapshot(sessions.find(session), name), as_json=as_json)
    return OK


def _show_snapshot(kept: KeptSnapshot, *, as_json: bool) -> None:
    if as_json:
        echo_json(snapshot_fields(kept))
    else:
        click.echo(str(kept.snapshot))
