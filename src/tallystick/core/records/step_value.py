"""Encode the arguments and the result of a step: a digest of the first, the value of the second.

Rule: what is not exact is not written. A value is kept only if reading it gives the same again,
type by type; arguments have a digest only if equal ones always have the same. A step without them
runs again.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from tallystick.core.json_text import canonical, digest

# The encoding of a value: not kept, JSON, or JSON with runs in it.
ValueKind = Literal["", "json", "runs"]
VALUE_BYTES_MAX = 65_536
_DEPTH_MAX = 64
# Arguments with more parts or bytes than this have no digest. A text of more than 1,024 characters
# counts by its own digest.
_PARTS_MAX = 65_536
_ARGUMENT_BYTES_MAX = 16 << 20
_INLINE_CHARS_MAX = 1_024
_INT_MAX = 1 << 63
# Keys stay in their order, and numbers have all their digits.
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_SCALARS = (str, int, bool, type(None))


class KeptValue(msgspec.Struct, frozen=True, kw_only=True):
    """A value as text. In the kind `runs`, each object has the key `items`, or a run's `run`."""

    kind: ValueKind = ""
    text: str = ""


class RunRef(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is a part of a value: its id, and the digest of its result."""

    run: str
    sha256: str


NOT_KEPT = KeptValue()


class _Unfit(Exception):
    """Raised for a value without a form that can be read back."""


# -- values --------------------------------------------------------------------------------------


def kept_value(value: object, refer: Callable[[object], RunRef | None]) -> KeptValue:
    """Return a value as it is kept, or `NOT_KEPT` if it cannot be read back exactly.

    Its text has at most 65,536 bytes, and 64 levels. `refer` is called for each part that is no
    JSON value. It returns the reference of a run, or None for anything else, which is not kept.
    """
    writing = _ValueWriter(refer)
    try:
        form = writing.form(value, 0)
        kind: ValueKind = "runs" if writing.runs else "json"
        text = _encode(form if writing.runs else value)
        return NOT_KEPT if len(text.encode()) > VALUE_BYTES_MAX else KeptValue(kind=kind, text=text)
    except (_Unfit, ValueError):
        # Text that UTF-8 cannot encode, or a number with more digits than Python converts.
        return NOT_KEPT


def value_of(kept: KeptValue, find: Callable[[RunRef], object]) -> object:
    """Return the value that was kept, with what `find` returns for each run in it.

    `find` is called once for each place of a run, in the order of the value. Raise `ValueError` if
    no value was kept or its text is malformed, and what `find` raises.
    """
    if not kept.kind:
        raise ValueError("no value was kept")
    read: object = json.loads(kept.text)
    return _with_runs(read, find) if kept.kind == "runs" else read


class _ValueWriter:
    """Converts a value to its form in JSON, and counts the runs in it."""

    def __init__(self, refer: Callable[[object], RunRef | None]) -> None:
        self._refer = refer
        self._bytes = 0
        self.runs = 0

    def form(self, value: object, depth: int) -> object:
        """Return the form of a value.

        Raise `_Unfit` if it is too large, too deep, or of another type.
        """
        # Exact types only: a subclass would be read back as the type that it is derived from.
        kind = type(value)
        # Each part is a byte at least, and so is each character.
        self._bytes += len(value) if isinstance(value, str) else 1
        if depth > _DEPTH_MAX or self._bytes > VALUE_BYTES_MAX:
            raise _Unfit
        if kind in _SCALARS:
            return value
        if isinstance(value, float) and kind is float:
            return value
        if isinstance(value, list) and kind is list:
            return [self.form(each, depth + 1) for each in value]
        if isinstance(value, dict) and kind is dict:
            return {"items": {_text(key): self.form(value[key], depth + 1) for key in value}}
        ref = self._refer(value)
        if ref is None:
            raise _Unfit
        self.runs += 1
        return {"run": ref.run, "sha256": ref.sha256}


def _text(key: object) -> str:
    if type(key) is not str:
        raise _Unfit
    return key


def _with_runs(form: object, find: Callable[[RunRef], object]) -> object:
    match form:
        case list():
            return [_with_runs(each, find) for each in form]
        case {"items": dict(items), **rest} if not rest:
            return {key: _with_runs(each, find) for key, each in items.items()}
        case {"run": str(run), "sha256": str(sha256), **rest} if not rest:
            return find(RunRef(run=run, sha256=sha256))
        case dict():
            raise ValueError("an object that is neither a dictionary nor a run")
        case _:
            return form


# -- arguments -----------------------------------------------------------------------------------


def arguments_digest(args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
    """Return the SHA-256 of the arguments of a step, "" if they have no canonical form.

    They have one if they consist of JSON values, bytes, tuples, structs and dataclasses. There may
    be 65,536 parts, 16 MiB of text and bytes, and 64 levels.
    """
    reading = _ArgumentReader()
    try:
        form = [reading.form(args, 0), reading.form(dict(kwargs), 0)]
        return digest(canonical(form))
    except (_Unfit, ValueError, AttributeError):
        return ""


# Types of ours that users pass to steps, by the names that chains of steps were written with.
_WRITTEN_AS = {
    "tallystick.core.budget.amount.Budget": "tallystick.core.budget_amount.Budget",
    "tallystick.model.price_table.Pricing": "tallystick.runtime.teller.Pricing",
    "tallystick.runtime.context.inputs.Input": "tallystick.runtime.inputs.Input",
    "tallystick.runtime.runs.result.Run": "tallystick.runtime.run.Run",
    "tallystick.skills.skills.Skills": "tallystick.runtime.skills.Skills",
}


class _ArgumentReader:
    """Converts arguments to JSON: a container becomes an array that begins with its type."""

    def __init__(self) -> None:
        self._parts = 0
        self._bytes = 0

    def form(self, value: object, depth: int) -> object:
        """Return the form of an argument. Raise `_Unfit` if it has none."""
        self._count(1, 0)
        if depth > _DEPTH_MAX:
            raise _Unfit
        # The exact type: a subclass may hold more than the value that it compares equal to.
        match value:
            case None | bool():
                return value
            case int() if type(value) is int:
                # Beyond 64 bits a reader of the record could not hold it as a number.
                return value if -_INT_MAX <= value < _INT_MAX else ["int", hex(value)]
            case float() if type(value) is float and math.isfinite(value):
                return value
            case str() if type(value) is str:
                self._count(0, len(value))
                long = len(value) > _INLINE_CHARS_MAX
                return ["str", digest(value.encode())] if long else value
            case bytes() if type(value) is bytes:
                self._count(0, len(value))
                return ["bytes", digest(value)]
            case list() | tuple() if type(value) in (list, tuple):
                return [type(value).__name__, *(self.form(each, depth + 1) for each in value)]
            case dict() if type(value) is dict:
                keys = sorted(map(_text, value))
                return ["dict", *([key, self.form(value[key], depth + 1)] for key in keys)]
            case _:
                return self._fields(value, depth)

    def _fields(self, value: object, depth: int) -> object:
        kind = type(value)
        if isinstance(value, msgspec.Struct):
            names = value.__struct_fields__
        elif dataclasses.is_dataclass(kind):
            names = tuple(field.name for field in dataclasses.fields(kind))
        else:
            raise _Unfit
        fields = ([name, self.form(getattr(value, name), depth + 1)] for name in names)
        name = f"{kind.__module__}.{kind.__qualname__}"
        return ["of", _WRITTEN_AS.get(name, name), *fields]

    def _count(self, parts: int, size: int) -> None:
        self._parts += parts
        self._bytes += size
        if self._parts > _PARTS_MAX or self._bytes > _ARGUMENT_BYTES_MAX:
            raise _Unfit
