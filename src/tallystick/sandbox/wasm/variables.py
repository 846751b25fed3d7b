"""List the variables of an interpreter, record them as JSON, and set them from JSON.

The image of an interpreter can be loaded only by the guest that made it. So the variables that JSON
can hold are recorded beside it, and another guest can start from them. Functions, classes, modules
and other objects are listed with the reason why they are not recorded.

This module does not import the engine: commands on sessions only read recorded values.
"""

from __future__ import annotations

import ast
import json
import keyword
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from tallystick.core.errors import StoreError, UsageError
from tallystick.core.records import CONTEXT_VARIABLES, TAKEN
from tallystick.sandbox.host import HostTable
from tallystick.sandbox.port import ExecutionContext, Limits
from tallystick.sandbox.snapshot import SESSION_NAMES_CHARS_MAX, Image

if TYPE_CHECKING:
    from tallystick.sandbox.wasm.sandbox import WasmInterpreter

# The limit for all values of a session together, as JSON. The end of a run waits for the writing.
VALUES_BYTES_MAX = 1_048_576
_VALUES_MAX = 1_000
# Limits for our own programs that only read variables.
_MS_MAX = 2_000
_FUEL = 5_000_000_000
_LOADING_MS_MAX = 30_000
_LISTED, _NONE = "Variables: ", "none yet"

# Runs in the guest after the image was taken, so it changes nothing that is kept. It reads only
# values of plain types, because programs cannot replace their methods. It stops measuring a value
# as soon as that is too long, because a session may hold 100 MB.
_RECORD = """
def _recorded(space, most, names_most):
    import json
    plain = (str, int, float, bool, type(None))
    class TooLong(Exception): pass
    class NotPlain(Exception): pass
    def measure(value, left, tuples):
        kind = type(value)
        if kind in plain:
            left -= len(value) if kind is str else 1
        elif kind is dict:
            for key, each in value.items():
                if type(key) is not str:
                    raise NotPlain("a dict with keys that are not texts")
                left = measure(each, left - len(key), tuples)
        elif kind is list or kind is tuple:
            if kind is tuple:
                tuples.append(True)
            for each in value:
                left = measure(each, left, tuples)
        else:
            raise NotPlain(kind.__name__)
        left -= 1
        if left < 0:
            raise TooLong
        return left
    values, tuples, refused = {}, [], {}
    left = most
    for name, value in list(space.items()):
        if name.startswith("_") or len(values) + len(refused) >= names_most:
            continue
        found = []
        try:
            measure(value, left, found)
            text = json.dumps({name: value}, allow_nan=False, ensure_ascii=False)
            length = len(text.encode())
            if length > left:
                raise TooLong
        except TooLong:
            refused[name] = "too long"
        except NotPlain as error:
            refused[name] = str(error)
        except RecursionError:
            refused[name] = "nested too deep, or holds itself"
        except UnicodeEncodeError:
            refused[name] = "a text that is not Unicode"
        except ValueError:
            refused[name] = "a number that JSON cannot hold"
        else:
            left -= length
            values[name] = value
            if found:
                tuples.append(name)
    return {"values": values, "tuples": tuples, "refused": refused}
FINAL(__import__("json").dumps(_recorded(
    {name: value for name, value in globals().items() if name not in GIVEN}, MOST, NAMES_MOST
), ensure_ascii=False))
"""


class SessionValues(msgspec.Struct, frozen=True, kw_only=True):
    """The variables that JSON can hold, by name.

    `tuples` names those with tuples in them, which are lists in JSON. `refused` gives the reason
    for each variable that is missing: the name of its type, or what is wrong with it.
    """

    values: dict[str, msgspec.Raw] = {}
    tuples: tuple[str, ...] = ()
    refused: dict[str, str] = {}


async def variable_names(session: WasmInterpreter) -> str:
    """Return the names and types of the variables in short, at most 400 characters.

    "" if there are none, or if the guest did not list them. This runs a program, so call it after
    the image was taken. Raise what `WasmInterpreter.execute` raises.
    """
    result = await session.execute(
        "SHOW_VARS()",
        context=ExecutionContext(
            session_id=session.session_id,
            timeout_ms=_MS_MAX,
            deadline_ms=_MS_MAX,
            limits=Limits(fuel=_FUEL, host_calls=0),
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
    if len(listed) > SESSION_NAMES_CHARS_MAX:
        return f"{listed[: SESSION_NAMES_CHARS_MAX - 4]} ..."
    return listed


async def record_values(session: WasmInterpreter) -> bytes | None:
    """Return the variables of an interpreter as JSON, which `read_values` reads.

    At most 1,000 names, and about 1 MiB of values; a value beyond that is refused as "too long".
    None if the guest did not return them within 2 s, or returned something else. This runs a
    program, so call it after the image was taken. Raise what `WasmInterpreter.execute` raises.
    """
    source = _RECORD.replace("GIVEN", repr(sorted(TAKEN | {CONTEXT_VARIABLES})))
    source = source.replace("NAMES_MOST", str(_VALUES_MAX)).replace("MOST", str(VALUES_BYTES_MAX))
    result = await session.execute(
        source,
        context=ExecutionContext(
            session_id=session.session_id,
            timeout_ms=_MS_MAX,
            deadline_ms=_MS_MAX,
            limits=Limits(fuel=_FUEL, host_calls=0),
        ),
        host=HostTable(answering=True),
    )
    said = result.metadata.get("answer")
    if not isinstance(said, str):
        return None
    try:
        raw = said.encode()
        read_values(raw)
    except (StoreError, UnicodeEncodeError):
        # A program of the session has replaced something that our program uses.
        return None
    return raw


def read_values(raw: bytes) -> SessionValues:
    """Decode the values that `record_values` returned. Raise `StoreError` if they are not such."""
    try:
        found = msgspec.json.decode(raw, type=SessionValues)
        check_names(found.values)
    except (msgspec.MsgspecError, UsageError) as error:
        raise StoreError(f"the recorded values of a session cannot be read: {error}") from error
    return found


async def load_values(session: WasmInterpreter, values: Mapping[str, msgspec.Raw]) -> Image:
    """Set variables in a fresh interpreter, and return its image.

    Raise `StoreError` if the guest fails to set them within 30 s, and what
    `WasmInterpreter.execute` raises.
    """
    # As ASCII text: a JSON document need not be a Python expression.
    text = json.dumps(json.loads(msgspec.json.encode(values)))
    source = f"globals().update(__import__('json').loads({text!r}))\nNone"
    result = await session.execute(
        source,
        context=ExecutionContext(
            session_id=session.session_id,
            timeout_ms=_LOADING_MS_MAX,
            limits=Limits(host_calls=0),
        ),
        host=HostTable(answering=True),
    )
    if not result.succeeded:
        why = "" if result.error is None else f": {result.error.kind}: {result.error.message}"
        raise StoreError(f"the values could not be set in the sandbox{why}")
    return await session.image()


def check_names(values: Iterable[str]) -> None:
    """Raise `UsageError` for a name that no variable of a session can have.

    That is one that is no identifier, a keyword, begins with `_`, or is a name that programs have
    for something else.
    """
    for name in values:
        if not name.isidentifier() or name.startswith("_") or keyword.iskeyword(name):
            raise UsageError(f"{name[:80]!r} is no name for a variable")
        if name in TAKEN or name == CONTEXT_VARIABLES:
            raise UsageError(f"{name} is taken: programs have it for something else")
