"""`tally session` and `tally snapshot`: namespaces that outlive processes, and their variables."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import click
import msgspec

from tallystick.cli.exit_codes import OK
from tallystick.cli.parts import JSON, echo_json
from tallystick.cli.progress import Sayer
from tallystick.cli.show import counted, plain
from tallystick.core.clock import FIXED_CLOCK_NS
from tallystick.core.errors import Refused, TallystickError, UsageError, system_errors
from tallystick.interop.error_codes import told_error
from tallystick.sandbox.backend import BACKENDS
from tallystick.sandbox.snapshot import Image
from tallystick.sandbox.wasm.variables import (
    SessionValues,
    load_values,
    record_values,
    variable_names,
)
from tallystick.sessions.rows import EXTENSIONS_MAX, KeptSnapshot, Left, SessionInfo, SessionRun
from tallystick.sessions.sessions import (
    EarlierRun,
    Sessions,
    differs_from_here,
)
from tallystick.sessions.values import (
    FORMAT,
    ExportedValues,
    read_exported,
)
from tallystick.settings.paths import cache_directory, ledger_path
from tallystick.storage.clock import new_id, now_ms
from tallystick.stores import open_stores

# How sessions and their snapshots are shown, and how what goes wrong with one is told.


_TEXT_CHARS_MAX = 60


@contextlib.contextmanager
def opened_sessions(*, as_json: bool) -> Iterator[Sessions]:
    """This user's sessions. With JSON, an error is told on stdout too, with its code."""
    try:
        with open_stores(ledger_path()) as stores:
            yield stores.sessions
    except TallystickError as error:
        if as_json:
            echo_json({"error": told_error(error)})
        raise


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """Who made an interpreter. `differs` says what keeps this installation from loading it.

    `guest` and `engine` are None for a fresh interpreter, and if they cannot be read.
    """

    guest: str | None = None
    engine: str | None = None
    differs: Literal["guest", "engine"] | None = None


def made_by(sessions: Sessions, session: str, left: Left, *, backend: str) -> Made:
    """Find out who made an interpreter of a session."""
    origin = sessions.origin(session, left, backend=backend)
    if origin is None:
        return Made()
    return Made(guest=origin.guest, engine=origin.engine, differs=differs_from_here(origin))


def other_guest_note(sessions: Sequence[str]) -> str:
    """Say what can be done with sessions that another guest, or another engine, left."""
    one = len(sessions) == 1
    named = sessions[0] if one else "SESSION"
    return (
        f"{counted(len(sessions), 'session')} {'was' if one else 'were'} left by another version "
        f"of the sandbox: nothing can run in {'it' if one else 'them'} here. Runs stay readable "
        f"(tally session show, tally inspect). To start a new session from recorded values: "
        f"tally session export {named} >values.json, then tally session new --from values.json"
    )


def session_fields(info: SessionInfo, made: Made) -> dict[str, object]:
    """A session as JSON: what a client may rely on, and no reference to what is kept how."""
    fields: dict[str, object] = msgspec.to_builtins(info)
    del fields["left"], fields["generation"]
    if info.name is None:
        del fields["name"]
    image = info.left.image
    fields["left_by"] = info.left.run
    fields["names"] = info.left.names
    fields["image_bytes"] = 0 if image is None else image.byte_len
    fields["sandbox"] = made
    fields["values_recorded"] = info.left.values is not None
    return fields


def session_line(info: SessionInfo, made: Made) -> str:
    names = f"  {plain(info.left.names, chars_max=_TEXT_CHARS_MAX)}" if info.left.names else ""
    other = f"  of another {made.differs}" if made.differs else ""
    return f"{info.id}  {info.state:<12}  {_until(info)}{other}{names}"


def session_lines(
    info: SessionInfo,
    made: Made,
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
    if made.differs is not None:
        yield f"left by   another {made.differs}, {_shown_maker(made)}"
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


def _shown_maker(made: Made) -> str:
    """Name the guest or the engine that differs, as short as tells them apart."""
    return f"{made.guest or ''}"[:12] if made.differs == "guest" else plain(made.engine or "")


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
    if info.name is not None:
        return f"no end, named {info.name}"
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
    r"""Make, list, show, extend, reopen, export and remove sessions.

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
    type=click.Choice(list(BACKENDS)),
    default="wasm",
    help="Where its programs run: process has a shell and files.  [default: wasm]",
)
@click.option(
    "--from",
    "source",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Start with the values of this file, which `tally session export` wrote.",
)
@JSON
def new_command(
    variables: tuple[str, ...],
    max_tokens: int | None,
    timeout: float | None,
    backend: str,
    source: Path | None,
    as_json: bool,
) -> int:
    r"""Make a session, and print its id. It has half an hour.

    With --from it has the variables and the context variables of the file.

    \b
    Example:
        tally session new --set region=EU
        tally session new --from values.json
    """
    with opened_sessions(as_json=as_json) as sessions:
        given = None if source is None else _read_source(source, backend=backend)
        # Before the session is made: what goes wrong in the sandbox leaves none behind.
        first = None if given is None else asyncio.run(_interpreter_with(given))
        made = sessions.new(
            token_budget=max_tokens,
            time_budget_ms=None if timeout is None else round(timeout * 1000),
            variables={**(given.context_variables if given else {}), **_pairs(variables)},
            backend=backend,
        )
        if first is not None:
            image, names, values = first
            try:
                sessions.start_from(made.id, image, names=names, values=values)
            except BaseException:
                sessions.remove(made.id)
                raise
        _show_session(sessions, made.id, as_json=as_json, line=made.id)
    return OK


def _read_source(source: Path, *, backend: str) -> ExportedValues:
    if backend != "wasm":
        raise UsageError("--from sets variables of the wasm sandbox; leave out --sandbox")
    with system_errors(source, UsageError):
        raw = source.read_bytes()
    return read_exported(raw, name=str(source))


async def _interpreter_with(given: ExportedValues) -> tuple[Image, str, bytes | None]:
    """Return an interpreter that has these values, the names of them, and what it records."""
    # The engine is loaded only here: the other commands on sessions start faster without it.
    from tallystick.sandbox.wasm.sandbox import WasmSandbox

    sandbox = WasmSandbox.load(cache=cache_directory(), say=Sayer())
    try:
        session = await sandbox.open(session_id=new_id(), seed=0, clock_ns=FIXED_CLOCK_NS)
        image = await load_values(session, given.values)
        return image, await variable_names(session), await record_values(session)
    finally:
        await sandbox.close()


@session_command.command("export")
@click.argument("session")
@click.option("--snapshot", metavar="NAME", help="Export the values of this snapshot instead.")
def session_export_command(session: str, snapshot: str | None) -> int:
    r"""Print the values of a session as JSON, for `tally session new --from`.

    They were recorded when its last run ended: variables that JSON can hold, at most 1 MiB
    together. Context variables are exported too. This also works for a session that another
    version of the sandbox left. Variables that are not exported are named on stderr, with the
    reason.

    \b
    Example:
        tally session export last >values.json
        tally session new --from values.json
    """
    with opened_sessions(as_json=False) as sessions:
        info = sessions.get(sessions.find(session))
        left = info.left
        if snapshot is not None:
            left = sessions.named_snapshot(info.id, snapshot).left
        values = _recorded_values(sessions, info, left)
    click.echo(
        msgspec.json.encode(
            ExportedValues(
                format=FORMAT,
                values=values.values,
                session=info.id,
                left_by=left.run,
                tuples=values.tuples,
                refused=values.refused,
                context_variables=dict(info.context_variables),
            )
        )
    )
    for name in values.tuples:
        click.echo(f"changed: {plain(name)} (tuples are lists in JSON)", err=True)
    for name, why in values.refused.items():
        click.echo(f"not exported: {plain(name)} ({plain(why)})", err=True)
    return OK


def _recorded_values(sessions: Sessions, info: SessionInfo, left: Left) -> SessionValues:
    """Return the values of an interpreter. Raises `Refused` if there is one and none are known."""
    if info.backend != "wasm":
        raise Refused(
            f"session {info.id} runs its programs in the {info.backend} sandbox, whose variables "
            f"are not recorded as JSON"
        )
    found = sessions.values(info.id, left)
    if found is not None:
        return found
    if left.image is None:
        return SessionValues()
    other = made_by(sessions, info.id, left, backend=info.backend).differs is not None
    how = (
        "only the version that left it can read them: with that one, run a program in the session "
        "that prints them"
        if other
        else "the next run of the session that has a program records them"
    )
    raise Refused(f"session {info.id}: its values were not recorded when its last run ended; {how}")


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
        found = [(each, _made(sessions, each)) for each in sessions.list()]
        if as_json:
            echo_json(
                {
                    "sessions": [session_fields(*each) for each in found],
                    "stats": sessions.book.stats(),
                }
            )
            return OK
    for info, made in found:
        click.echo(session_line(info, made))
    others = [info.id for info, made in found if made.differs and info.name is None]
    if others:
        click.echo(other_guest_note(others), err=True)
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
        made = _made(sessions, info)
        if as_json:
            echo_json(
                {
                    **session_fields(info, made),
                    "runs": history,
                    "snapshots": [snapshot_fields(each) for each in snapshots],
                }
            )
            return OK
    for line in session_lines(info, made, runs, history, snapshots):
        click.echo(line)
    if made.differs is not None:
        click.echo(other_guest_note([info.id]), err=True)
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
        _show_session(sessions, info.id, as_json=as_json)
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
        _show_session(sessions, info.id, as_json=as_json)
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


def _show_session(
    sessions: Sessions, session: str, *, as_json: bool, line: str | None = None
) -> None:
    """Show a session as it stands now; `line` is shown instead of the usual one."""
    info = sessions.get(session)
    made = _made(sessions, info)
    if as_json:
        echo_json(session_fields(info, made))
    else:
        click.echo(line or session_line(info, made))


def _made(sessions: Sessions, info: SessionInfo) -> Made:
    return made_by(sessions, info.id, info.left, backend=info.backend)


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
