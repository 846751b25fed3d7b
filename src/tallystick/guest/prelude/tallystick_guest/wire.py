"""How the guest speaks to the host: bytes by address, JSON inside, one tag byte on each reply.

The three imports take integers only. A request is handed over by the address of a `bytes` object's
data; a reply shorter than the window is written by the host into a `bytes` object we own, a longer
one is taken with a second call. Nothing here is trusted by the host: it checks every address.

The encoder and the scanner are built once. `json.dumps` costs more than the crossing itself, and a
program may replace it.
"""

import binascii
import json.decoder
import json.encoder
import types
from collections.abc import Callable

from wit_world.imports import host

_DATA = bytes.__basicsize__ - 1  # where the data of a bytes object starts
_WINDOW_BYTES = 65_536
_window = bytes(_WINDOW_BYTES)
_window_address = id(_window) + _DATA

_host_call, _host_take, _host_stdio = host.call, host.take, host.stdio
_id, _len, _bytes, _str, _memoryview = id, len, bytes, str, memoryview
_join = "".join
_quote = json.encoder.encode_basestring
_make_encoder = json.encoder.c_make_encoder
_scan = json.decoder.JSONDecoder().scan_once

_TAG_JSON, _TAG_ERROR, _TAG_TEXT, _TAG_BYTES, _TAG_HELD = b"01234"
RESULT = 3
_GenericAlias, _UnionType = types.GenericAlias, types.UnionType
_isinstance, _b64 = isinstance, binascii.b2a_base64
_held: Callable[..., object] | None = None


class HostError(Exception):
    """The host function failed. `kind` is the name of the host's error."""

    __module__ = "builtins"

    def __init__(self, message: str, kind: str = "HostError") -> None:
        super().__init__(message)
        self.kind = kind


class SandboxViolation(Exception):
    """The program touched what this sandbox does not have. `capability` names it."""

    __module__ = "builtins"

    def __init__(self, message: str, capability: str = "") -> None:
        super().__init__(message)
        self.capability = capability


def make_held(make: Callable[..., object]) -> None:
    """Say what becomes of a text that the host holds: called with its key, size and name."""
    global _held
    _held = make


_SCHEMAS = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    list: {"type": "array"},
    dict: {"type": "object"},
    type(None): {"type": "null"},
}


def _schema_of(value: object) -> dict[str, object] | None:
    """A type as the schema of its values: `bool`, `list[str]`, `dict[str, int]`, `int | None`."""
    if _isinstance(value, _GenericAlias):
        parts = value.__args__
        if value.__origin__ is list and len(parts) == 1:
            return {"type": "array", "items": _schema_of(parts[0])}
        if value.__origin__ is dict and len(parts) == 2:
            return {"type": "object", "additionalProperties": _schema_of(parts[1])}
        return None
    if _isinstance(value, _UnionType):
        return {"anyOf": [_schema_of(part) for part in value.__args__]}
    if _isinstance(value, type):
        return _SCHEMAS.get(value)
    return None


def _other(value: object) -> object:
    """Bytes cross as text that says so; what else is no JSON value does not cross."""
    if _isinstance(value, (_bytes, bytearray, _memoryview)):
        return {"$bytes": _str(_b64(value, newline=False), "ascii")}
    schema = _schema_of(value)
    if schema is not None:
        return schema
    raise TypeError(f"{type(value).__name__} cannot cross to the host; pass JSON values")


def _new_encoder() -> object:
    return _make_encoder({}, _other, _quote, None, ":", ",", False, False, False)


_encode = _new_encoder()


def dumps(value: object) -> str:
    """Encode to JSON text with functions bound when the image was made."""
    global _encode
    try:
        return _join(_encode(value, 0))
    except BaseException:
        # A failed encoding leaves its circularity marks behind.
        _encode = _new_encoder()
        raise


def loads(text: str) -> object:
    """Decode JSON text that the host wrote."""
    return _scan(text, 0)[0]


def take_bytes(length: int) -> bytes:
    """Fetch the `length` bytes the host holds for us."""
    buffer = _bytes(length)
    if length < 2:
        # One-byte and empty bytes objects are shared by the interpreter: never write into them.
        buffer = _bytes(2)
        _host_take(_id(buffer) + _DATA)
        return buffer[:length]
    _host_take(_id(buffer) + _DATA)
    return buffer


def call_raw(request: bytes) -> bytes:
    """Send a request and return the reply with its tag byte."""
    size = _host_call(_id(request) + _DATA, _len(request), _window_address, _WINDOW_BYTES)
    # Strictly less: `_window[:_WINDOW_BYTES]` would be the window itself, not a copy.
    if size < _WINDOW_BYTES:
        return _window[:size]
    return take_bytes(size)


def host_call(name: str, args: object, kwargs: object) -> object:
    """Ask the host for `name(*args, **kwargs)` and return what it answered, or raise."""
    reply = call_raw(dumps([name, args, kwargs]).encode("utf-8"))
    tag = reply[0]
    if tag == _TAG_JSON:
        return _scan(_str(reply, "utf-8"), 1)[0]
    if tag == _TAG_TEXT:
        return _str(_memoryview(reply)[1:], "utf-8", "replace")
    if tag == _TAG_BYTES:
        return reply[1:]
    if tag == _TAG_HELD:
        return _held(*_scan(_str(reply, "utf-8"), 1)[0])
    error = _scan(_str(reply, "utf-8"), 1)[0]
    capability = error.get("capability")
    if capability:
        raise SandboxViolation(error["message"], capability)
    raise HostError(error["message"], error["kind"])


def write(handle: int, data: bytes) -> None:
    """Write bytes to one of the host's streams."""
    _host_stdio(handle, _id(data) + _DATA, _len(data))


def write_at(handle: int, address: int, length: int) -> None:
    """Write `length` bytes at `address` to one of the host's streams."""
    _host_stdio(handle, address, length)


def emit_result(result: object) -> None:
    """Hand the program's result to the host."""
    write(RESULT, dumps(result).encode("utf-8", "replace"))
