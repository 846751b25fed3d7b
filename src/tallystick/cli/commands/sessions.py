"""`tally session` and `tally snapshot`: manage sessions, and the variables that they keep."""

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
from tallystick.cli.parts import JSON, echo_json, echo_line
from tallystick.cli.progress import Sayer
from tallystick.cli.show import plain, quantity, size_text
from tallystick.core.clock import FIXED_CLOCK_NS
from tallystick.core.duration import duration_ms
from tallystick.core.errors import (
    Refused,
    SessionBusy,
    SessionNotFound,
    TallystickError,
    UsageError,
    system_errors,
)
from tallystick.interop.error_codes import error_report
from tallystick.sandbox.backend import BACKENDS
from tallystick.sandbox.snapshot import Image
from tallystick.sandbox.wasm.variables import (
    SessionValues,
    load_values,
    record_values,
    variable_names,
)
from tallystick.sessions.rows import (
    KeptSnapshot,
    Left,
    SessionInfo,
    SessionRun,
    period_of,
)
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
from tallystick.settings.settings import load_settings
from tallystick.storage.clock import new_id, now_ms
from tallystick.stores import open_stores

# Showing sessions and snapshots, and reporting errors of either.


_TEXT_CHARS_MAX = 60
_MIB = 1024 * 1024


@contextlib.contextmanager
def open_sessions(*, as_json: bool) -> Iterator[Sessions]:
    """Open this user's sessions. With JSON, print an error on stdout too, with its code.

    The error is raised again, so that it also reaches stderr and decides the exit code.
    """
    try:
        with open_stores(ledger_path()) as stores:
            stores.sessions.bytes_max = load_settings().session_bytes
            yield stores.sessions
    except TallystickError as error:
        if as_json:
            echo_json({"error": error_report(error)})
        raise


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """The guest image and the WebAssembly engine that stored an interpreter.

    `differs` names the one that keeps this installation from loading it. `guest` and `engine` are
    None for a fresh interpreter, and if they cannot be read.
    """

    guest: str | None = None
    engine: str | None = None
    differs: Literal["guest", "engine"] | None = None


def made_by(sessions: Sessions, session: str, left: Left, *, backend: str) -> Made:
    """Return the guest and the engine that stored what a session or a snapshot keeps.

    All fields are None for a fresh interpreter, an unreadable one, and another backend than WASM.
    """
    origin = sessions.origin(session, left, backend=backend)
    if origin is None:
        return Made()
    return Made(guest=origin.guest, engine=origin.engine, differs=differs_from_here(origin))


def other_guest_note(sessions: Sequence[str]) -> str:
    """Write what a user can do with sessions that another guest or another engine stored."""
    one = len(sessions) == 1
    named = sessions[0] if one else "SESSION"
    return (
        f"{quantity(len(sessions), 'session')} {'was' if one else 'were'} stored by another "
        f"version of the sandbox: no program can run in {'it' if one else 'them'} here. Runs stay "
        f"readable (tally session show, tally inspect). To start a new session from recorded "
        f"values: tally session export {named} >values.json, then tally session new --from "
        f"values.json"
    )


def session_fields(info: SessionInfo, made: Made) -> dict[str, object]:
    """Return a session as JSON fields that clients may rely on.

    References to the stored interpreter are left out, since their form may change. A session
    without an end has `expires_at` None.
    """
    fields: dict[str, object] = msgspec.to_builtins(info)
    del fields["left"], fields["generation"]
    if not info.has_end:
        fields["expires_at"] = None
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
    size = size_text(info.bytes)
    return f"{info.id}  {info.state:<12}  {size:>8}  {_until(info)}{other}{names}"


def session_lines(
    info: SessionInfo,
    made: Made,
    runs: Sequence[SessionRun],
    history: Sequence[EarlierRun],
    snapshots: Sequence[KeptSnapshot],
) -> Iterator[str]:
    """Write all that is known of a session, one line for each fact, snapshot and run."""
    spent = info.budget_status
    yield f"session   {info.id}"
    yield f"state     {info.state}, {_until(info)}"
    if info.period is not None:
        most = info.period.extensions_max
        yield f"extended  {info.extension_count}{'' if most is None else f' of {most}'} times"
    yield f"backend   {info.backend}"
    yield f"keeps     {size_text(info.bytes)}"
    if info.recursion_depth:
        yield f"depth     {info.recursion_depth} of {spent.max_recursion_depth}"
    if made.differs is not None:
        yield f"left by   another {made.differs}, {_maker_text(made)}"
    tokens = _used_of(spent.tokens_used, spent.token_budget)
    yield f"spent     {tokens} tokens, {_used_of(spent.time_used_ms, spent.time_budget_ms)} ms"
    if info.left.names:
        yield f"has       {plain(info.left.names)}"
    for key, value in info.context_variables.items():
        yield f"set       {plain(key)} = {plain(value, chars_max=_TEXT_CHARS_MAX)}"
    for each in snapshots:
        yield f"snapshot  {snapshot_line(each)}"
    for run, earlier in zip(runs, history, strict=True):
        yield f"run       {run.run}  {_run_text(earlier)}"


def _maker_text(made: Made) -> str:
    """Write the guest or engine that differs; of a guest, the first 12 digits of its digest."""
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


def _run_text(run: EarlierRun) -> str:
    """Write how a run of a session ended, its goal and its answer, each cut to 60 characters.

    Of a run without a goal, write that it is not in the ledger any more.
    """
    if run.goal is None:
        return "not in the ledger any more"
    goal = plain(run.goal, chars_max=_TEXT_CHARS_MAX)
    if run.stop is None:
        return f"not ended  {goal!r}"
    answer = "" if run.answer is None else f": {plain(run.answer, chars_max=_TEXT_CHARS_MAX)}"
    lost = ", variables not kept" if run.lost else ""
    return f"{run.stop}{lost}  {goal!r}{answer}"


def _used_of(used: int, budget: int | None) -> str:
    return f"{used:,}" if budget is None else f"{used:,} of {budget:,}"


def _until(info: SessionInfo) -> str:
    if info.state == "terminated":
        return "for good"
    if info.name is not None:
        return f"no end, named {info.name}"
    if not info.has_end:
        return "no end"
    if info.state == "expired":
        return f"since {_time(info.expires_at)}"
    left = _span(max(0, info.expires_at - now_ms()))
    if info.state == "paused":
        return f"{left} left when it is resumed"
    return f"until {_time(info.expires_at)} ({left} left)"


def _span(ms: int) -> str:
    """Write a time in minutes, or in hours or days if it is longer than two of them."""
    minutes = ms // 60_000
    for unit, length in (("days", 1_440), ("hours", 60)):
        if minutes >= 2 * length:
            return f"{minutes // length} {unit}"
    return f"{minutes} min"


def _time(epoch_ms: int) -> str:
    at = datetime.datetime.fromtimestamp(epoch_ms // 1000, tz=datetime.UTC)
    return at.strftime("%Y-%m-%d %H:%M:%SZ")


# `tally session`: interpreter variables that later runs continue from.


@click.group("session")
def session_command() -> None:
    r"""Keep variables between runs: make, list, show, pause, export, prune sessions.

    A session keeps the variables of a run for the next run in it, also in another process. SESSION
    is an id, the beginning of one, or `last`.

    \b
    Exit codes: 0 done, 2 wrong usage, 4 no such session, busy, at a limit, or in
    a state that does not allow it, 6 ledger failed.

    \b
    Example:
        tally session new
        tally run "count the rows" -f sales.csv --session last
    """


@session_command.command("new")
@click.option(
    "--set",
    "variables",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a context variable, which programs can read. May be repeated.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=0),
    metavar="N",
    help="Let all runs of the session together use at most N tokens.  [default: no limit]",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Let all runs of the session together take at most this many seconds.  "
    "[default: no limit]",
)
@click.option(
    "--sandbox",
    "backend",
    type=click.Choice(list(BACKENDS)),
    default="wasm",
    help="Run the programs of the session in this sandbox; process has a shell and files.  "
    "[default: wasm]",
)
@click.option(
    "--expires",
    metavar="TIME",
    default="never",
    help="Let the session expire after this time: 90s, 30m, 12h, 7d, 2w, or never. With reference: "
    "30m, which can be extended three times.  [default: never]",
)
@click.option(
    "--from",
    "source",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Start with the values in this file, which tally session export wrote.",
)
@JSON
def new_command(
    variables: tuple[str, ...],
    max_tokens: int | None,
    timeout: float | None,
    backend: str,
    expires: str,
    source: Path | None,
    as_json: bool,
) -> int:
    r"""Make a session, and print its id.

    With --from it starts with the variables and the context variables of the file.

    \b
    Example:
        tally session new --set region=EU
        tally session new --expires 12h
        tally session new --from values.json
    """
    with open_sessions(as_json=as_json) as sessions:
        # Refused before the values are loaded, which takes a moment.
        period_of(expires)
        sessions.check_room()
        given = None if source is None else _read_source(source, backend=backend)
        # Load the values before the session is made, so that a failure leaves no session behind.
        first = None if given is None else asyncio.run(_interpreter_with(given))
        made = sessions.new(
            token_budget=max_tokens,
            time_budget_ms=None if timeout is None else round(timeout * 1000),
            variables={**(given.context_variables if given else {}), **_pairs(variables)},
            backend=backend,
            expires=expires,
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
    """Read exported values. Raise `UsageError` for another sandbox or a file that is not valid."""
    if backend != "wasm":
        raise UsageError("--from works with the wasm sandbox only; leave out --sandbox")
    with system_errors(source, UsageError):
        raw = source.read_bytes()
    return read_exported(raw, name=str(source))


async def _interpreter_with(given: ExportedValues) -> tuple[Image, str, bytes | None]:
    """Return an interpreter that has these values, their names, and the values as recorded.

    The values as recorded are None if the guest did not return them. Raise `StoreError` if it does
    not set the values, `GuestMissing` if the sandbox cannot be loaded, and what
    `WasmInterpreter.execute` raises.
    """
    # The engine is imported only here: the other commands on sessions start faster without it.
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
@click.option(
    "--snapshot",
    metavar="NAME",
    help="Export the values of this snapshot, not those of the session.",
)
def session_export_command(session: str, snapshot: str | None) -> int:
    r"""Print the values of a session as JSON.

    tally session new --from reads them. They were recorded when the last run of the session ended:
    variables that JSON can hold, at most 1 MiB together, and the context variables. This also works
    for a session that another version of the sandbox stored. Variables that are not exported are
    named on stderr, with the reason.

    \b
    Example:
        tally session export last >values.json
        tally session new --from values.json
    """
    with open_sessions(as_json=False) as sessions:
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
    """Return the recorded values of a session or of a snapshot.

    Without an interpreter there are none. Raise `Refused` if the sandbox records no values, or if
    an interpreter is stored whose values were not recorded. Raise `StoreError` if they cannot be
    read.
    """
    if info.backend != "wasm":
        raise Refused(
            f"session {info.id} runs its programs in the {info.backend} sandbox, whose variables "
            f"are not recorded as JSON; to export one, print it from a program"
        )
    found = sessions.values(info.id, left)
    if found is not None:
        return found
    if left.image is None:
        return SessionValues()
    other = made_by(sessions, info.id, left, backend=info.backend).differs is not None
    how = (
        "only the version of the sandbox that stored them can read them: with that version, run a "
        "program in the session that prints them"
        if other
        else f"the next run with a program records them: tally run QUESTION --session {info.id}"
    )
    raise Refused(f"session {info.id}: its values were not recorded when its last run ended; {how}")


@session_command.command("ls")
@JSON
def session_ls_command(as_json: bool) -> int:
    r"""List sessions, the newest last: state, size on the disk, end, variables.

    \b
    Example:
        tally session ls
    """
    with open_sessions(as_json=as_json) as sessions:
        sessions.book.cleanup_expired()
        found = [(each, _maker_of(sessions, each)) for each in sessions.list()]
        used, most = sessions.disk_bytes(), sessions.bytes_max
        if as_json:
            echo_json(
                {
                    "sessions": [session_fields(*each) for each in found],
                    "stats": sessions.book.stats(),
                    "bytes": used,
                    "bytes_max": most,
                }
            )
            return OK
    for info, made in found:
        echo_line(session_line(info, made), indent=28)
    others = [info.id for info, made in found if made.differs and info.name is None]
    if others:
        echo_line(other_guest_note(others), indent=2, err=True)
    if not found:
        click.echo("there are no sessions; to make one: tally session new", err=True)
        return OK
    over = most is not None and used > most
    room = "" if most is None else f" of {size_text(most)}"
    hint = "; tally session prune offers the oldest" if over else ""
    echo_line(f"sessions keep {size_text(used)}{room}{hint}", err=True)
    return OK


@session_command.command("show")
@click.argument("session")
@JSON
def show_command(session: str, as_json: bool) -> int:
    r"""Show a session: its state, variables, snapshots and runs.

    \b
    Example:
        tally session show last
    """
    with open_sessions(as_json=as_json) as sessions:
        info = sessions.get(sessions.find(session))
        runs, history = sessions.runs(info.id), sessions.history(info.id)
        snapshots = sessions.snapshots(info.id)
        made = _maker_of(sessions, info)
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
        echo_line(line)
    if made.differs is not None:
        echo_line(other_guest_note([info.id]), indent=2, err=True)
    return OK


@session_command.command("extend")
@click.argument("session")
@JSON
def extend_command(session: str, as_json: bool) -> int:
    r"""Let a session with an end last longer, by as long as it was made for.

    One of half an hour (--expires reference) can be extended three times. tally session resume
    --expires sets another end, or none.

    \b
    Example:
        tally session extend last
    """
    with open_sessions(as_json=as_json) as sessions:
        info = sessions.extend(sessions.find(session))
        _show_session(sessions, info.id, as_json=as_json)
    return OK


@session_command.command("pause")
@click.argument("session")
@JSON
def pause_command(session: str, as_json: bool) -> int:
    r"""Let nothing run or change in a session until it is resumed.

    Its time stands still meanwhile. It can be listed, shown and exported.

    \b
    Example:
        tally session pause last
    """
    with open_sessions(as_json=as_json) as sessions:
        info = sessions.pause(sessions.find(session))
        _show_session(sessions, info.id, as_json=as_json)
    return OK


@session_command.command("terminate")
@click.argument("session")
@click.option("--yes", is_flag=True, help="Do not ask.")
@JSON
def terminate_command(session: str, yes: bool, as_json: bool) -> int:
    r"""End a session for good: delete its variables and snapshots, keep its history.

    A run that is going on in it is stopped. The session stays in the list, with its runs and what
    they spent; tally session rm removes that too.

    \b
    Example:
        tally session terminate last --yes
    """
    with open_sessions(as_json=as_json) as sessions:
        found = sessions.find(session)
        if not (yes or as_json):
            click.confirm(
                f"terminate session {found}, and delete its variables and snapshots? This cannot "
                f"be undone",
                abort=True,
                err=True,
            )
        info = sessions.terminate(found)
        _show_session(sessions, info.id, as_json=as_json)
    return OK


@session_command.command("resume")
@click.argument("session")
@click.option(
    "--expires",
    metavar="TIME",
    help="Let the session expire after this time from now, as in tally session new.  "
    "[default: the time it was made for, or what was left of it]",
)
@JSON
def resume_command(session: str, expires: str | None, as_json: bool) -> int:
    r"""Let a session go on that is paused or has expired, with all that it keeps.

    With --expires it gets another end, or none; that works for a session in use too.

    \b
    Example:
        tally session resume last
        tally session resume last --expires never
    """
    with open_sessions(as_json=as_json) as sessions:
        found = sessions.find(session)
        if expires is not None:
            sessions.set_expiry(found, expires)
        info = sessions.resume(found)
        _show_session(sessions, info.id, as_json=as_json)
    return OK


@session_command.command("set")
@click.argument("session")
@click.argument("variables", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--unset", multiple=True, metavar="KEY", help="Remove this context variable. May be repeated."
)
@JSON
def set_command(
    session: str, variables: tuple[str, ...], unset: tuple[str, ...], as_json: bool
) -> int:
    r"""Set context variables, and print all of them.

    Programs of later runs in the session read them in `context_variables`.

    \b
    Example:
        tally session set last region=EU --unset draft
    """
    with open_sessions(as_json=as_json) as sessions:
        found = sessions.find(session)
        given = _pairs(variables)
        # Refused before anything is set: a command that fails changes nothing.
        known = {*sessions.get(found).context_variables, *given}
        for key in unset:
            if key not in known:
                raise UsageError(
                    f"session {found} has no context variable {key[:80]!r}; tally session show "
                    f"{found} lists them"
                )
        sessions.book.set_variables(found, given)
        for key in unset:
            sessions.book.delete_variable(found, key)
        info = sessions.get(found)
        if as_json:
            echo_json(info.context_variables)
            return OK
    for key, value in info.context_variables.items():
        click.echo(f"{key}={value}")
    return OK


@session_command.command("prune")
@click.option(
    "--unused",
    metavar="AGE",
    help="Choose sessions in which no run began for this long: 12h, 30d, 2w.",
)
@click.option(
    "--keep", type=click.IntRange(min=0), metavar="N", help="Choose all but the N used last."
)
@click.option(
    "--to",
    "megabytes",
    type=click.IntRange(min=0),
    metavar="MB",
    help="Choose the oldest until at most this many MiB are kept.  [default: session_mb]",
)
@click.option("--dry-run", is_flag=True, help="Show what would be removed; change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@JSON
def session_prune_command(
    unused: str | None,
    keep: int | None,
    megabytes: int | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    r"""Offer the sessions that were used longest ago, and remove them.

    Without options, as many as have to go until the limit of session_mb is kept. Sessions with a
    name are left out, and those in which a run is in progress. Runs stay in the ledger; what a run
    holds of a session is deleted with the run (tally prune).

    \b
    Example:
        tally session prune --unused 30d --dry-run
        tally session prune --keep 20 --yes
    """
    with open_sessions(as_json=as_json) as sessions:
        most = None if megabytes is None else megabytes * _MIB
        if unused is None and keep is None and megabytes is None:
            most = sessions.bytes_max
        chosen = sessions.oldest(
            unused_ms=None if unused is None else _unused_ms(unused), keep=keep, bytes_max=most
        )
        removed = []
        if chosen and not dry_run:
            if not (yes or as_json):
                for each in chosen:
                    echo_line(session_line(each, _maker_of(sessions, each)), indent=28, err=True)
                click.confirm(_prune_question(chosen), abort=True, err=True)
            removed = [each.id for each in chosen if _remove_if_idle(sessions, each)]
        used = sessions.disk_bytes()
        lines = [(each, _maker_of(sessions, each)) for each in chosen] if dry_run else []
        if as_json:
            echo_json(
                {
                    "dry_run": dry_run,
                    "chosen": [each.id for each in chosen],
                    "removed": removed,
                    "bytes": used,
                    "bytes_max": sessions.bytes_max,
                }
            )
            return OK
    for info, made in lines:
        echo_line(session_line(info, made), indent=28)
    how = "would be removed" if dry_run else "removed"
    count = len(chosen) if dry_run else len(removed)
    said = f"{how}: {quantity(count, 'session')}" if chosen else "nothing to prune"
    click.echo(f"{said}; sessions keep {size_text(used)}", err=True)
    return OK


def _remove_if_idle(sessions: Sessions, info: SessionInfo) -> bool:
    """Remove a session that nothing was done with since it was chosen. Return False otherwise."""
    try:
        with sessions.book.hold(info.id):
            unchanged = sessions.get(info.id).used_at == info.used_at
        if unchanged:
            sessions.remove(info.id)
    except (SessionBusy, SessionNotFound):
        return False
    return unchanged


def _prune_question(chosen: Sequence[SessionInfo]) -> str:
    size = size_text(sum(each.bytes for each in chosen))
    return (
        f"remove {quantity(len(chosen), 'session')}, with variables and snapshots of {size}? This "
        f"cannot be undone"
    )


def _unused_ms(text: str) -> int:
    return duration_ms(text, field="unused", why="a duration such as 30m, 12h, 30d or 2w")


@session_command.command("rm")
@click.argument("session")
@click.option("--yes", is_flag=True, help="Do not ask.")
@JSON
def session_rm_command(session: str, yes: bool, as_json: bool) -> int:
    r"""Remove a session with its variables and snapshots.

    A run that is going on in it is stopped. Its runs stay in the ledger.

    \b
    Example:
        tally session rm last --yes
    """
    with open_sessions(as_json=as_json) as sessions:
        found = sessions.find(session)
        if not (yes or as_json):
            click.confirm(
                f"remove session {found}, with its variables and snapshots? This cannot be undone",
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
    """Print the present state of a session; `line` replaces the usual line."""
    info = sessions.get(session)
    made = _maker_of(sessions, info)
    if as_json:
        echo_json(session_fields(info, made))
    else:
        echo_line(line or session_line(info, made), indent=28)


def _maker_of(sessions: Sessions, info: SessionInfo) -> Made:
    return made_by(sessions, info.id, info.left, backend=info.backend)


def _pairs(given: tuple[str, ...]) -> dict[str, str]:
    """Split each KEY=VALUE. Raise `UsageError` for one without an equals sign."""
    pairs = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not equals:
            raise UsageError(f"{each[:80]!r}: write KEY=VALUE")
        pairs[key] = value
    return pairs


# `tally snapshot`: save the variables of a session under a name, and restore them.


@click.group("snapshot")
def snapshot_command() -> None:
    r"""Save and restore the variables of a session.

    A session has at most ten snapshots. NAME has at most 256 characters, no path separator and no
    `..`; an existing snapshot is also found by `name:id`.

    \b
    Exit codes: 0 done, 2 wrong usage, 4 no such session or snapshot, expired,
    busy, or at a limit, 6 ledger failed.

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
    r"""Save the variables of a session under NAME.

    They are saved as the last run of the session left them.

    \b
    Example:
        tally snapshot create last clean
    """
    with open_sessions(as_json=as_json) as sessions:
        _show_snapshot(sessions.snapshot(sessions.find(session), name), as_json=as_json)
    return OK


@snapshot_command.command("restore")
@click.argument("session")
@click.argument("name")
@JSON
def restore_command(session: str, name: str, as_json: bool) -> int:
    r"""Let the next run of a session start from a snapshot.

    \b
    Example:
        tally snapshot restore last clean
    """
    with open_sessions(as_json=as_json) as sessions:
        _show_snapshot(sessions.restore(sessions.find(session), name), as_json=as_json)
    return OK


@snapshot_command.command("ls")
@click.argument("session")
@JSON
def snapshot_ls_command(session: str, as_json: bool) -> int:
    r"""List the snapshots of a session, expired or not.

    \b
    Example:
        tally snapshot ls last
    """
    with open_sessions(as_json=as_json) as sessions:
        found = sessions.snapshots(sessions.find(session))
        if as_json:
            echo_json([snapshot_fields(each) for each in found])
            return OK
    for each in found:
        echo_line(snapshot_line(each))
    return OK


@snapshot_command.command("rm")
@click.argument("session")
@click.argument("name")
@JSON
def snapshot_rm_command(session: str, name: str, as_json: bool) -> int:
    r"""Delete a snapshot; the session is not changed.

    \b
    Example:
        tally snapshot rm last clean
    """
    with open_sessions(as_json=as_json) as sessions:
        _show_snapshot(sessions.delete_snapshot(sessions.find(session), name), as_json=as_json)
    return OK


def _show_snapshot(kept: KeptSnapshot, *, as_json: bool) -> None:
    if as_json:
        echo_json(snapshot_fields(kept))
    else:
        click.echo(str(kept.snapshot))
