"""Define the words that a schema may have, and what their values look like."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

TYPES: dict[str, Callable[[object], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: (
        is_number(value)
        and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))
    ),
    "number": lambda value: is_number(value),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
BOUNDS: dict[str, Callable[[Any, Any], bool]] = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
}
# The least and the greatest size, by the kind of value that has it.
SIZES: dict[type, tuple[str, str]] = {
    str: ("minLength", "maxLength"),
    list: ("minItems", "maxItems"),
    dict: ("minProperties", "maxProperties"),
}
NUMBERS = (*BOUNDS, "multipleOf", *(word for words in SIZES.values() for word in words))
# Words whose value is a schema, a list of schemas, or schemas by name.
ONE_SCHEMA = ("items", "additionalProperties", "propertyNames")
CHOICES = ("anyOf", "allOf", "oneOf")
SCHEMAS_LISTED = (*CHOICES, "prefixItems")
SCHEMAS_NAMED = ("properties", "patternProperties")
# Words that do not constrain a value. `discriminator` only says which of `oneOf` to try first.
REMARKS = frozenset(
    {
        *("title", "description", "examples", "default", "$schema", "$comment", "$id"),
        *("deprecated", "readOnly", "writeOnly", "discriminator"),
    }
)
KNOWN = frozenset(
    {
        *("type", "enum", "const", "required", "format", "pattern", "uniqueItems"),
        "contentEncoding",
        *NUMBERS,
        *ONE_SCHEMA,
        *SCHEMAS_LISTED,
        *SCHEMAS_NAMED,
        *REMARKS,
    }
)


def as_list(kinds: object) -> list[str]:
    """Return the value of `type` as a list; empty if it is neither text nor a list."""
    return [kinds] if isinstance(kinds, str) else list(kinds) if isinstance(kinds, list) else []


def is_number(value: object) -> bool:
    """Return True for a number that is no boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool)
