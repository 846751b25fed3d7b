"""How sessions and their snapshots are shown, and how what goes wrong with one is told."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator, Sequence

import click
import msgspec

from tallystick.cli.render import plain
from tallystick.core.error_codes import told_error
from tallystick.core.errors import TallystickError
from tallystick.runtime.paths import ledger_path
from tallystick.runtime.session_history import EarlierRun
from tallystick.runtime.session_info import (
    EXTENSIONS_MAX,
    KeptSnapshot,
    SessionInfo,
    SessionRun,
)
from tallystick.runtime.session_keeper import Sessions, open_sessions
from tallystick.sandbox.identity import now_ms

__all__ = [
    "JSON",
    "echo_json",
    "opened_sessions",
    "session_fields",
    "session_line",
    "session_lines",
    "snapshot_fields",
    "snapshot_line",
]

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
    return f"{run.stop}  {goal!r}{answer}"


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
