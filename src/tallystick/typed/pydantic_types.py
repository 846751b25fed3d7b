"""Read the types of pydantic by their own methods, without importing pydantic."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from tallystick.core.json_text import canonical
from tallystick.core.schema.check import check_schema
from tallystick.core.schema.words import ONE_SCHEMA, SCHEMAS_LISTED, SCHEMAS_NAMED

# Older versions describe a Decimal by this pattern, which no linear engine reads.
_LOOKS_AHEAD = "(?!"


def read(annotation: Any) -> tuple[Mapping[str, Any], Callable[[object], Any]] | None:  # noqa: ANN401
    """Return the schema and the decoder of a type of pydantic; None for any other type.

    Raise `UsageError` for a schema that is not supported. The decoder raises `ValueError`.
    """
    if not isinstance(annotation, type):
        return None
    if hasattr(annotation, "model_json_schema") and hasattr(annotation, "model_validate_json"):
        schema, validate = annotation.model_json_schema(), annotation.model_validate_json
    elif hasattr(annotation, "__pydantic_validator__") or hasattr(
        annotation, "__get_pydantic_core_schema__"
    ):
        # The class was made by pydantic, so the module has been imported by the caller.
        module: Any = sys.modules.get("pydantic")
        adapter = getattr(module, "TypeAdapter", None)
        if adapter is None:
            return None
        made = adapter(annotation)
        schema, validate = made.json_schema(), made.validate_json
    else:
        return None

    def decode(value: object) -> Any:  # noqa: ANN401 (what the type makes of it)
        try:
            # As JSON: text becomes a date in the strict models too.
            return validate(canonical(value))
        except ValueError as error:
            raise ValueError(_problem(error)) from None

    return _plain(check_schema(_readable(schema))), decode


def _problem(error: ValueError) -> str:
    errors = getattr(error, "errors", None)
    if not callable(errors):
        return str(error)
    said = []
    for each in errors():
        place = "".join(
            f"[{step}]" if isinstance(step, int) else f".{step}" for step in each.get("loc", ())
        )
        said.append(f"{place}: {each.get('msg', '')}" if place else str(each.get("msg", "")))
    return "; ".join(said)[:300]


def _readable(schema: Any) -> Any:  # noqa: ANN401 (a part of a schema)
    """Return a schema without patterns that look ahead: the decoder checks what they say."""
    if isinstance(schema, list):
        return [_readable(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        word: _readable(value)
        for word, value in schema.items()
        if not (word == "pattern" and isinstance(value, str) and _LOOKS_AHEAD in value)
    }


def _plain(schema: Any) -> Any:  # noqa: ANN401 (a part of a schema)
    """Return a schema without the titles that repeat the names of its fields."""
    if not isinstance(schema, Mapping):
        return schema
    made: dict[str, Any] = {}
    for word, value in schema.items():
        if word in ONE_SCHEMA:
            made[word] = _plain(value)
        elif word in SCHEMAS_LISTED:
            made[word] = [_plain(each) for each in value]
        elif word in SCHEMAS_NAMED:
            made[word] = {name: _plain(each) for name, each in value.items()}
        elif word not in ("title", "discriminator"):
            made[word] = value
    return made
