"""Write a schema as one short line for a model, such as `{"sku": text, "count": integer > 0}`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

_CHARS_MAX = 400
_NAMES = {"string": "text", "array": "list", "object": "object", "null": "None"}
_FORMATS = {
    "date": "date as text",
    "date-time": 'date and time as text, such as "2031-07-01T16:36:00"',
    "time": 'time as text, such as "16:36"',
    "duration": 'duration as text, such as "P1DT2H"',
    "byte": "base64 as text",
}
_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
_SIZES = {
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
}


def outline_of(schema: Mapping[str, Any] | bool) -> str:
    """Return a schema in one line of at most 400 characters, cut with "..." at the end."""
    said = _outline(schema)
    return said if len(said) <= _CHARS_MAX else f"{said[: _CHARS_MAX - 3]}..."


def _outline(schema: Mapping[str, Any] | bool) -> str:
    if isinstance(schema, bool) or not schema:
        return "any value"
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False)
    if "enum" in schema:
        return " | ".join(json.dumps(each, ensure_ascii=False) for each in schema["enum"])
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return " | ".join(dict.fromkeys(_outline(each) for each in schema[word]))
    if "allOf" in schema:
        return _outline({name: each for part in schema["allOf"] for name, each in part.items()})
    return ", ".join(_parts(schema))


def _parts(schema: Mapping[str, Any]) -> Iterator[str]:
    kind = schema.get("type", "any value")
    bounds = [f"{sign} {schema[word]}" for word, sign in _BOUNDS.items() if word in schema]
    yield " ".join([_shape(kind, schema), *bounds])
    for word, said in _SIZES.items():
        if word in schema and "prefixItems" not in schema:
            yield said.format(schema[word])
    if "pattern" in schema and "format" not in schema:
        yield f"matching {schema['pattern']}"


def _shape(kind: object, schema: Mapping[str, Any]) -> str:
    if "properties" in schema:
        needed = schema.get("required", [])
        names = {each: json.dumps(each, ensure_ascii=False) for each in schema["properties"]}
        fields = (
            f"{names[name]}{'' if name in needed else '?'}: {_outline(each)}"
            for name, each in schema["properties"].items()
        )
        return f"{{{', '.join(fields)}}}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"{{name: {_outline(schema['additionalProperties'])}}}"
    if "prefixItems" in schema:
        return f"[{', '.join(map(_outline, schema['prefixItems']))}]"
    if kind == "array" and schema.get("items"):
        return f"[{_outline(schema['items'])}, ...]"
    if kind == "string":
        named = schema.get("format") or ("byte" if "contentEncoding" in schema else None)
        return "text" if named is None else _FORMATS.get(named, f"{named} as text")
    kinds = kind if isinstance(kind, list) else [kind]
    return " | ".join(_NAMES.get(str(each), str(each)) for each in kinds)
