"""Check JSON values against a part of JSON Schema, and find JSON values in replies.

A schema comes from a program, so it is hostile: it is bounded in size and depth, and refers to
nothing. An unknown keyword is an error instead of a promise that is not kept. Patterns are not
supported: a pattern of a program runs in no engine of the host.
"""

from __future__ import annotations

import itertools
import json
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from tallystick.core.errors import UsageError
from tallystick.core.json_text import finite_float, refuse_constant, short_json

_DEPTH_MAX = 16
_NODES_MAX = 500
_SCHEMA_BYTES_MAX = 8_000
# A value is searched for at this many places of a reply, and in this many characters.
_STARTS_MAX = 8
_EMBEDDED_CHARS_MAX = 200_000
# Comparing a value with a schema takes at most this many steps.
_STEPS_MAX = 50_000
_TYPES: dict[str, Callable[[object], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: (
        _is_number(value)
        and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))
    ),
    "number": lambda value: _is_number(value),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
_WHOLE = ("minLength", "maxLength", "minItems", "maxItems")
_BOUNDS: dict[str, Callable[[Any, Any], bool]] = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
}
_LISTS = ("anyOf", "allOf")
# Keywords that do not constrain a value.
_REMARKS = frozenset({"title", "description", "examples", "default", "$schema", "$comment"})
_KNOWN = frozenset(
    {
        "type",
        "enum",
        "const",
        "properties",
        "required",
        "additionalProperties",
        "items",
        *_WHOLE,
        *_BOUNDS,
        *_LISTS,
        *_REMARKS,
    }
)
_FENCED = re.compile(r"```[a-zA-Z]*\n(.*?)```", re.DOTALL)
_YES, _NO = frozenset({"yes", "true"}), frozenset({"no", "false"})
_BARE_NUMBER = re.compile(
    r"(?<![\w.])-?(?:[1-9]\d{0,2}(?:,\d{3})+|0|[1-9]\d{0,30})(?:\.\d{1,30})?(?![\w]|\.\d)"
)
_WORD = re.compile(r"[A-Za-z]+")


# -- schemas -----------------------------------------------------------------------------------


def check_schema(schema: object) -> Mapping[str, Any]:
    """Return the schema that was given, if it is supported.

    Raise `UsageError`, which names the place, for any other. It may have 16 levels, 500 parts and
    8,000 characters as JSON. Raise `TypeError` if a value in it is no JSON.
    """
    count = [0]
    _check(schema, "schema", 0, count)
    assert isinstance(schema, Mapping)
    size = len(json.dumps(schema))
    if size > _SCHEMA_BYTES_MAX:
        raise UsageError(f"schema: {size:,} bytes; at most {_SCHEMA_BYTES_MAX:,}")
    return schema


def _check(schema: object, where: str, depth: int, count: list[int]) -> None:
    count[0] += 1
    if depth > _DEPTH_MAX or count[0] > _NODES_MAX:
        raise UsageError(f"{where}: a schema has at most {_DEPTH_MAX} levels, {_NODES_MAX:,} parts")
    if not isinstance(schema, Mapping):
        raise UsageError(f"{where}: a schema is a JSON object, not {type(schema).__name__}")
    unknown = sorted(str(key) for key in schema if key not in _KNOWN)
    if unknown:
        raise UsageError(f"{where}: {unknown[0]!r} is not supported in a schema")
    _check_words(schema, where)
    _check_parts(schema, where, depth, count)


def _check_words(schema: Mapping[str, Any], where: str) -> None:
    """Raise `UsageError` unless the keywords have values of their types."""
    # Comparing relies on each of these types. A wrong one is refused here, when the schema is
    # given, and does not raise later at an answer. Values in `enum` and `const` are only compared.
    kinds = schema.get("type", [])
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if not isinstance(kind, str) or kind not in _TYPES:
            raise UsageError(f"{where}.type: {kind!r} is none of {', '.join(_TYPES)}")
    for word in (*_WHOLE, *_BOUNDS):
        if word in schema and not _is_number(schema[word]):
            raise UsageError(f"{where}.{word}: a number is needed")
    for word in ("enum", "required", *_LISTS):
        if word in schema and not isinstance(schema[word], list):
            raise UsageError(f"{where}.{word}: a list is needed")
    if not all(isinstance(each, str) for each in schema.get("required", [])):
        raise UsageError(f"{where}.required: a list of names is needed")


def _check_parts(schema: Mapping[str, Any], where: str, depth: int, count: list[int]) -> None:
    properties = schema.get("properties", {})
    if not isinstance(properties, Mapping):
        raise UsageError(f"{where}.properties: a JSON object is needed")
    for name, each in properties.items():
        _check(each, f"{where}.{name}", depth + 1, count)
    if "items" in schema:
        _check(schema["items"], f"{where}[]", depth + 1, count)
    more = schema.get("additionalProperties", True)
    if not isinstance(more, bool):
        _check(more, f"{where}.*", depth + 1, count)
    for word in _LISTS:
        for number, each in enumerate(schema.get(word, [])):
            _check(each, f"{where}.{word}[{number}]", depth + 1, count)


def takes_text(schema: Mapping[str, Any]) -> bool:
    """Return True if a schema names strings among its values: by type, `enum`, `const` or a choice.

    A schema that only leaves them possible, because it has no type, does not.
    """
    named = [*schema.get("enum", []), schema.get("const")]
    parts = [each for word in _LISTS for each in schema.get(word, [])]
    return (
        "string" in _as_list(schema.get("type", []))
        or any(isinstance(each, str) for each in named)
        or any(takes_text(part) for part in parts)
    )


# -- values ------------------------------------------------------------------------------------


def problem_of(value: object, schema: Mapping[str, Any]) -> str | None:
    """Return the first reason why a value does not fit a schema; None if it does.

    A value that takes more than 50,000 steps to compare, or is nested too deep, does not fit.
    """
    try:
        return _problem(value, schema, "the answer", [0])
    except (OverflowError, RecursionError) as error:
        return f"the answer cannot be compared: {error}"


def _problem(value: object, schema: Mapping[str, Any], where: str, steps: list[int]) -> str | None:
    """Return why a value does not fit a schema, None if it does.

    `steps` counts on through the whole comparison. Raise `OverflowError` after `_STEPS_MAX`.
    """
    # `anyOf` in `anyOf` compares one value many times: a short schema could take for ever.
    steps[0] += 1
    if steps[0] > _STEPS_MAX:
        raise OverflowError("it has too many parts")
    kinds = _as_list(schema.get("type", []))
    if kinds and not any(_TYPES[kind](value) for kind in kinds):
        return f"{where} is {_kind(value)}, not {' or '.join(kinds)}"
    if "enum" in schema and not any(_same(value, each) for each in schema["enum"]):
        return f"{where} is {short_json(value)}, which is none of {short_json(schema['enum'])}"
    if "const" in schema and not _same(value, schema["const"]):
        return f"{where} is {short_json(value)}, not {short_json(schema['const'])}"
    problem = _size_problem(value, schema, where)
    if problem is None and isinstance(value, dict):
        problem = _object_problem(value, schema, where, steps)
    if problem is None and isinstance(value, list) and "items" in schema:
        found = (
            _problem(each, schema["items"], f"{where}[{number}]", steps)
            for number, each in enumerate(value)
        )
        problem = next((each for each in found if each is not None), None)
    return problem or _combined_problem(value, schema, where, steps)


def _size_problem(value: object, schema: Mapping[str, Any], where: str) -> str | None:
    bounds: list[tuple[str, bool]] = []
    if _is_number(value):
        bounds = [
            (word, word not in schema or holds(value, schema[word]))
            for word, holds in _BOUNDS.items()
        ]
    elif isinstance(value, str | list):
        least, most = ("minLength", "maxLength") if isinstance(value, str) else _WHOLE[2:]
        size = len(value)
        bounds = [(least, size >= schema.get(least, 0)), (most, size <= schema.get(most, size))]
    failed = next((word for word, holds in bounds if not holds), None)
    return None if failed is None else f"{where} breaks {failed} {schema[failed]}"


def _object_problem(
    value: dict[str, Any], schema: Mapping[str, Any], where: str, steps: list[int]
) -> str | None:
    properties = schema.get("properties", {})
    missing = [name for name in schema.get("required", []) if name not in value]
    if missing:
        return f"{where} has no {missing[0]!r}"
    more = schema.get("additionalProperties", True)
    for name, each in value.items():
        rule = properties.get(name, more)
        if rule is False:
            return f"{where} has {name!r}, which is not asked for"
        problem = None if rule is True else _problem(each, rule, f"{where}.{name}", steps)
        if problem is not None:
            return problem
    return None


def _combined_problem(
    value: object, schema: Mapping[str, Any], where: str, steps: list[int]
) -> str | None:
    for each in schema.get("allOf", []):
        problem = _problem(value, each, where, steps)
        if problem is not None:
            return problem
    choices = schema.get("anyOf")
    if choices is not None and all(
        _problem(value, each, where, steps) is not None for each in choices
    ):
        return f"{where} is none of what anyOf allows"
    return None


# -- replies -----------------------------------------------------------------------------------


def json_in_reply(text: str, schema: Mapping[str, Any]) -> object:
    """Return the JSON value in a reply, not yet compared with the schema.

    Tried in this order: the whole text, each block in a fence, what the type of the schema allows,
    an object or a list inside prose. A boolean may be `yes` or `no` as the first word, and a number
    the only one in the first 200,000 characters. If the schema wants only a string, or has an
    `enum`, it is the whole text without quotes at its ends. Raise `ValueError` if there is none.
    """
    # A model asked for a yes or a number often writes it bare, with a word around it. Text that is
    # JSON as it stands goes first: it needs no guess. An object inside prose goes last, because
    # brackets stand in prose for other reasons too.
    kinds = _as_list(schema.get("type", []))
    for part in (text.strip(), *(each.strip() for each in _FENCED.findall(text))):
        try:
            return json.loads(part, parse_constant=refuse_constant, parse_float=finite_float)
        except (ValueError, RecursionError):
            continue
    if "boolean" in kinds:
        first = _WORD.search(text)
        word = first[0].lower() if first else ""
        if word in _YES or word in _NO:
            return word in _YES
    if kinds in (["integer"], ["number"]):
        numbers = {
            each.replace(",", "") for each in _BARE_NUMBER.findall(text[:_EMBEDDED_CHARS_MAX])
        }
        if len(numbers) == 1:
            return json.loads(numbers.pop(), parse_float=finite_float)
    if kinds == ["string"] or "enum" in schema:
        return text.strip().strip("\"'")
    return _first_json_value(text)


def _first_json_value(text: str) -> object:
    """Return the JSON object or list that begins at one of the first eight brackets of a text.

    Only its first 200,000 characters are read. Raise `ValueError` if none begins there.
    """
    decoder = json.JSONDecoder(parse_constant=refuse_constant, parse_float=finite_float)
    text = text[:_EMBEDDED_CHARS_MAX]
    for match in itertools.islice(re.finditer(r"[\[{]", text), _STARTS_MAX):
        try:
            return decoder.raw_decode(text, match.start())[0]
        except (ValueError, RecursionError):
            continue
    raise ValueError("the reply holds no JSON value")


def _as_list(kinds: object) -> list[str]:
    return [kinds] if isinstance(kinds, str) else list(kinds) if isinstance(kinds, list) else []


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same(one: object, other: object) -> bool:
    """Return True if two values are equal as JSON: true is not 1, and 1.0 is."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _kind(value: object) -> str:
    return next(name for name, is_it in _TYPES.items() if is_it(value))
