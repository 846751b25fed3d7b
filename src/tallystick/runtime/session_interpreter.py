"""The interpreter of a run in a session: loaded from what its start names, and kept at its end."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tallystick.attachments.errors import AttachmentError
from tallystick.core.errors import (
    BackendError,
    LedgerError,
    SnapshotMismatch,
    StoreError,
    UsageError,
)
from tallystick.core.machine import RunState
from tallystick.core.records import RunStarted
from tallystick.core.session_errors import SessionNotKept
from tallystick.core.session_records import CONTEXT_VARIABLES, SessionGiven
from tallystick.runtime.functions import RunFunction
from tallystick.runtime.given import Given
from tallystick.runtime.inputs import Input
from tallystick.runtime.native_session import NativeSession
from tallystick.runtime.session_runs import Joined
from tallystick.runtime.shelf import Shelf
from tallystick.sandbox.container import unpacked
from tallystick.sandbox.host import HostTable
from tallystick.sandbox.port import ExecutionContext, Limits
from tallystick.sandbox.wasm.session import WasmSession

if TYPE_CHECKING:
    from tallystick.sandbox.process.saved import Saved

__all__ = ["given_in_session", "leave_session", "load_image", "share_image"]

_NAMES_CHARS_MAX = 400
_NAMES_MS_MAX = 2_000
_NAMES_FUEL = 5_000_000_000
_LISTED, _NONE = "Variables: ", "none yet"


def given_in_session(
    given: Given,
    joined: Joined | None,
    *,
    inputs: Iterable[Input],
    functions: Iterable[RunFunction],
) -> tuple[Given, dict[str, object], SessionGiven | None]:
    """What a run in a session is given: the data, the values and the session of its start."""
    if joined is None:
        return given, {}, None
    taken = {each.variable for each in inputs}
    taken |= {each.name.partition(".")[0] for each in functions}
    if CONTEXT_VARIABLES in taken:
        raise UsageError(
            f"{CONTEXT_VARIABLES}: a run in a session has its variables under that name; use "
            f"another"
        )
    # In the order in which the record gives them back.
    variables = dict(sorted(joined.variables.items()))
    values: dict[str, object] = {CONTEXT_VARIABLES: variables}
    return dataclasses.replace(given, values={**values, **given.values}), values, joined.given


def share_image(joined: Joined | None, shelf: Shelf) -> None:
    """Have a run that begins hold the interpreter that it goes on with, with its first records."""
    if joined is None or joined.given is None or joined.given.image is None:
        return
    try:
        shelf.share([joined.given.image])
    except AttachmentError as error:
        raise StoreError(
            f"session {joined.session}: its interpreter cannot be read ({error}); restore one of "
            f"its snapshots (tally snapshot ls {joined.session})"
        ) from error


async def load_image(session: WasmSession, started: RunStarted, shelf: Shelf) -> None:
    """Put a run's interpreter to where its session stood when it began."""
    given = started.session
    ref = None if given is None else given.image
    if given is None or ref is None:
        return
    try:
        _, image = await asyncio.to_thread(lambda: unpacked([shelf.read(ref)]))
    except AttachmentError as error:
        raise StoreError(
            f"the interpreter that the run began with, of session {given.session}, cannot be "
            f"read: {error}"
        ) from error
    try:
        await session.load(image)
    except SnapshotMismatch as error:
        raise SnapshotMismatch(
            f"session {given.session} was left by another version ({error}); its runs are kept: "
            f"go on with that version, or in a new session"
        ) from error


async def leave_session(
    joined: Joined | None, session: WasmSession | NativeSession, state: RunState
) -> None:
    """Keep the interpreter of a run that has ended for the next one.

    A run without programs has changed nothing. Raises `SessionNotKept` if it cannot be kept.
    """
    if joined is None:
        return
    joined.charge = state.charge
    if isinstance(session, NativeSession):
        await _leave_native(joined, session)
        return
    if not state.charge.fuel:
        return
    try:
        image = await session.image()
        names = await _names(session)
        await asyncio.to_thread(lambda: joined.keep(image, names=names))
    except (BackendError, LedgerError) as error:
        raise SessionNotKept(session=joined.session, run=joined.run, why=str(error)) from error


async def _leave_native(joined: Joined, session: NativeSession) -> None:
    """Keep the files of a run that has ended for the next one, the shell's state and variables.

    Variables that cannot be kept are named.
    """
    if not session.changed:
        return
    try:
        saved = await session.saved()
        raw = await asyncio.to_thread(session.archive, saved)
        names = _native_names(saved)
        await asyncio.to_thread(lambda: joined.keep(raw, names=names))
    except (BackendError, LedgerError) as error:
        raise SessionNotKept(session=joined.session, run=joined.run, why=str(error)) from error


def _native_names(saved: Saved) -> str:
    kept = ", ".join(sorted({*saved.kept, *saved.imported}))[:_NAMES_CHARS_MAX]
    refused = ", ".join(sorted(saved.refused))[:_NAMES_CHARS_MAX]
    return f"{kept or 'no variables'}; not kept: {refused}" if refused else kept


async def _names(session: WasmSession) -> str:
    """The variables there are, in short. Asked after the image was taken: it changes nothing."""
    result = await session.execute(
        "SHOW_VARS()",
        context=ExecutionContext(
            session_id=session.session_id,
            timeout_ms=_NAMES_MS_MAX,
            deadline_ms=_NAMES_MS_MAX,
            limits=Limits(fuel=_NAMES_FUEL, host_calls=0),
        ),
        host=HostTable(answering=True),
    )
    try:
        said = ast.literal_eval(result.value or "''")
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return ""
    if not isinstance(said, str) or not said.startswith(_LISTED):
        return ""
    listed = " ".join(said.removeprefix(_LISTED).split())
    if listed == _NONE:
        return ""
    if len(listed) > _NAMES_CHARS_MAX:
        return f"{listed[: _NAMES_CHARS_MAX - 4]} ..."
    return listed
