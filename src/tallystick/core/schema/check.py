"""Check that a schema is supported, and put each `$ref` of it in place.

A schema may come from a program, so it is hostile: it is bounded in size and depth, also while its
references are put in place. An unknown word is an error instead of a promise that is not kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tallystick.core.errors import UsageError
from tallystick.core.patterns import compile_pattern
from tallystick.core.schema.formats import FORMATS
from tallystick.core.schema.words import (
    KNOWN,
    NUMBERS,
    ONE_SCHEMA,
    REMARKS,
    SCHEMAS_LISTED,
    SCHEMAS_NAMED,
    TYPES,
    is_number,
)

_DEPTH_MAX = 16
_NODES_MAX = 500
_SCHEMA_BYTES_MAX = 8_000
# How many references may lead into each other. The stack of the interpreter holds more.
_REFERENCES_MAX = 32
_DEFINITIONS = ("$defs", "definitions")


def check_schema(schema: object) -> Mapping[str, Any]:
    """Return the schema that was given with its references put in place, if it is supported.

    Raise `UsageError`, which names the place, for any other, and for one that refers to itself. In
    place, it may have 16 levels, 500 parts and 8,000 characters as JSON. Raise `TypeError` if a
    value in it is no JSON.
    """
    placed = _Placing(schema).place(schema, "schema", ())
    assert isinstance(placed, Mapping)
    size = len(json.dumps(placed))
    if size > _SCHEMA_BYTES_MAX:
        raise UsageError(f"schema: {size:,} bytes; at most {_SCHEMA_BYTES_MAX:,}")
    return placed


class _Placing:
    """One schema while its references are put in place and its words are checked."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._count = 0

    def place(self, schema: object, where: str, inside: tuple[str, ...], depth: int = 0) -> object:
        """Return a part of the schema, checked. `inside` are the references that led to it."""
        self._count += 1
        if depth > _DEPTH_MAX or self._count > _NODES_MAX:
            raise UsageError(
                f"{where}: a schema has at most {_DEPTH_MAX} levels, {_NODES_MAX:,} parts"
            )
        if isinstance(schema, bool) and depth:
            return schema
        if not isinstance(schema, Mapping):
            raise UsageError(f"{where}: a schema is a JSON object, not {type(schema).__name__}")
        if "$ref" in schema:
            return self._referred(schema, where, inside, depth)
        rest = {word: value for word, value in schema.items() if word not in _DEFINITIONS}
        _check_words(rest, where)
        return {word: self._word(word, rest[word], where, inside, depth + 1) for word in rest}

    def _referred(
        self, schema: Mapping[str, Any], where: str, inside: tuple[str, ...], depth: int
    ) -> object:
        ref = schema["$ref"]
        if not isinstance(ref, str) or not ref.startswith("#"):
            raise UsageError(f"{where}.$ref: {ref!r} is not in this schema; use #/$defs/NAME")
        name = ref.rpartition("/")[2] or ref
        if ref in inside:
            raise UsageError(
                f"{where}: {name} refers to itself; a recursive schema cannot be checked. Give its "
                "nested part as a list, with the number of the parent"
            )
        if len(inside) >= _REFERENCES_MAX:
            raise UsageError(f"{where}: over {_REFERENCES_MAX} references inside each other")
        placed = self.place(self._target(ref, where), where, (*inside, ref), depth)
        rest = {
            word: value
            for word, value in schema.items()
            if word != "$ref" and word not in _DEFINITIONS
        }
        if not rest:
            return placed
        beside = self.place(rest, where, inside, depth)
        assert isinstance(beside, Mapping)
        # A remark beside a reference is closer to its place than the remark of what it refers to.
        if beside.keys() <= REMARKS and isinstance(placed, Mapping):
            return {**placed, **beside}
        return {"allOf": [placed, beside]}

    def _target(self, ref: str, where: str) -> object:
        found = self._root
        for step in ref.removeprefix("#").split("/")[1:]:
            name = _unquoted(step).replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and name in found:
                found = found[name]
            elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            else:
                raise UsageError(f"{where}.$ref: {ref[:80]!r} is not in this schema")
        return found

    def _word(
        self,
        word: str,
        value: Any,  # noqa: ANN401 (as the schema has it)
        where: str,
        inside: tuple[str, ...],
        depth: int,
    ) -> object:
        if word in ONE_SCHEMA:
            place = {"items": "[]", "additionalProperties": ".*"}.get(word, f".{word}")
            return self.place(value, f"{where}{place}", inside, depth)
        if word in SCHEMAS_LISTED:
            return [
                self.place(each, f"{where}.{word}[{number}]", inside, depth)
                for number, each in enumerate(value)
            ]
        if word in SCHEMAS_NAMED:
            return {
                name: self.place(each, f"{where}.{name}", inside, depth)
                for name, each in value.items()
            }
        return value


def _check_words(schema: Mapping[str, Any], where: str) -> None:
    """Raise `UsageError` unless all words are known, and their values have the right types."""
    unknown = sorted(str(word) for word in schema if word not in KNOWN)
    if unknown:
        raise UsageError(f"{where}: {unknown[0]!r} is not supported in a schema")
    # Comparing relies on each of these types. A wrong one is refused here, when the schema is
    # given, and does not raise later at an answer. Values in `enum` and `const` are only compared.
    problem = next(_word_problems(schema), None)
    if problem is not None:
        raise UsageError(f"{where}.{problem}")
    for pattern in _patterns_of(schema):
        try:
            compile_pattern(pattern)
        except UsageError as error:
            raise UsageError(f"{where}.pattern: {error}") from None


def _unquoted(step: str) -> str:
    """Return a step of a reference without the escapes of URLs, such as `%20`."""
    raw = re.sub(
        rb"%([0-9a-fA-F]{2})", lambda found: bytes([int(found[1], 16)]), step.encode("utf-8")
    )
    return raw.decode("utf-8", "replace")


def _word_problems(schema: Mapping[str, Any]) -> Iterator[str]:
    kinds = schema.get("type", [])
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if not isinstance(kind, str) or kind not in TYPES:
            yield f"type: {kind!r} is none of {', '.join(TYPES)}"
    for words, fits, needed in _WORD_TYPES:
        for word in words:
            if word in schema and not fits(schema[word]):
                yield f"{word}: {needed} is needed"
    if not all(isinstance(each, str) for each in schema.get("required", [])):
        yield "required: a list of names is needed"
    if "format" in schema and schema["format"] not in FORMATS:
        yield f"format: {schema['format']!r} is none of {', '.join(FORMATS)}"
    if schema.get("contentEncoding", "base64") != "base64":
        yield "contentEncoding: only base64 is supported"


_WORD_TYPES: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
    (NUMBERS, is_number, "a number"),
    (("multipleOf",), lambda value: value > 0, "a number above 0"),
    (("enum", "required", *SCHEMAS_LISTED), lambda value: isinstance(value, list), "a list"),
    (SCHEMAS_NAMED, lambda value: isinstance(value, Mapping), "a JSON object"),
    (("uniqueItems",), lambda value: isinstance(value, bool), "true or false"),
)


def _patterns_of(schema: Mapping[str, Any]) -> Iterator[Any]:
    if "pattern" in schema:
        yield schema["pattern"]
    yield from schema.get("patternProperties", {})
