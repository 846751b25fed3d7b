"""Turn values of Python types into JSON values, also those of pydantic."""

from __future__ import annotations

import os
from typing import Any

import msgspec


def encode_value(value: object) -> Any:  # noqa: ANN401 (a JSON value)
    """Return a value as JSON: dates and numbers with a point as text, objects as dictionaries.

    Raise `TypeError` or `ValueError` for a value that JSON has no form for.
    """
    return msgspec.to_builtins(value, str_keys=True, enc_hook=encode_other)


def encode_other(value: Any) -> Any:  # noqa: ANN401 (any value)
    """Return a value that msgspec does not know as one that it does. Raise `TypeError` if none."""
    dump = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        return dump(mode="json")
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(type(value), "__get_pydantic_core_schema__"):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")
