"""Read the file of a session's values, which an export writes and a new session starts from.

The variables that JSON can hold are recorded beside the interpreter when a run of the session ends
(`tallystick.sandbox.wasm.variables`). This module does not import the engine, because `tally
session export` only reads.
"""

from __future__ import annotations

import json

import msgspec

from tallystick.core.errors import UsageError
from tallystick.sandbox.wasm.variables import VALUES_BYTES_MAX, check_names

FORMAT = 1
VALUES_TYPE = "application/json"
# Larger than the limit of the values, because a file written by hand may have spaces.
_FILE_BYTES_MAX = 4 * VALUES_BYTES_MAX


class ExportedValues(msgspec.Struct, frozen=True, kw_only=True):
    """The file that `tally session export` writes and `tally session new --from` reads."""

    format: int
    values: dict[str, msgspec.Raw]
    session: str | None = None
    left_by: str | None = None
    tuples: tuple[str, ...] = ()
    refused: dict[str, str] = {}
    context_variables: dict[str, str] = {}


def read_exported(raw: bytes, *, name: str) -> ExportedValues:
    """Read a file of values. `name` is the file's name, for errors.

    Raise `UsageError` if it is too large, or is no such file.
    """
    if len(raw) > _FILE_BYTES_MAX:
        raise UsageError(f"{name}: {len(raw):,} bytes; at most {_FILE_BYTES_MAX:,}")
    try:
        found = msgspec.json.decode(raw, type=ExportedValues)
        # msgspec leaves the values unparsed. The guest parses them later, and its parser accepts
        # more than JSON (NaN, Infinity), so that is refused here.
        json.loads(raw, parse_constant=_no_constant)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{name}: these are no values of a session ({error}); tally session export writes them"
        ) from error
    if found.format != FORMAT:
        raise UsageError(f"{name} has format {found.format}; this version reads {FORMAT}")
    try:
        check_names(found.values)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from error
    return found


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
