"""Compare JSON values with a schema, and say in one line why one does not fit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from tallystick.core.errors import UsageError
from tallystick.core.json_text import short_json
from tallystick.core.patterns import compile_pattern
from tallystick.core.schema.formats import has_format
from tallystick.core.schema.words import BOUNDS, SIZES, TYPES, as_list, is_number

# Comparing a value with a schema takes at most this many steps.
_STEPS_MAX = 50_000


def takes_text(schema: Mapping[str, Any]) -> bool:
    """Return True if a schema names strings among its values: by type, `enum`, `const` or a choice.

    A schema that only leaves them possible, because it has no type, does not.
    """
    named = [*schema.get("enum", []), schema.get("const")]
    parts = [each for word in ("anyOf", "allOf", "oneOf") for each in schema.get(word, [])]
    return (
        "string" in as_list(schema.get("type", []))
        or any(isinstance(each, str) for each in named)
        or any(isinstance(part, Mapping) and takes_text(part) for part in parts)
    )


def problem_of(value: object, schema: Mapping[str, Any], *, of: str = "the answer") -> str | None:
    """Return the first reason why a value does not fit a schema; None if it does.

    A value that takes more than 50,000 steps to compare, or is nested too deep, does not fit. `of`
    is what the reason calls the value.
    """
    try:
        return _Comparison().problem(value, schema, of)
    except (OverflowError, RecursionError) as error:
        return f"{of} cannot be compared: {error}"


class _Comparison:
    """One comparison, with its steps. Raise `OverflowError` after `_STEPS_MAX`."""

    def __init__(self) -> None:
        self._steps = 0

    def problem(self, value: object, schema: Mapping[str, Any] | bool, where: str) -> str | None:
        # `anyOf` in `anyOf` compares one value many times: a short schema could take for ever.
        self._count()
        if isinstance(schema, bool):
            return None if schema else f"{where} is not asked for"
        return next(self._problems(value, schema, where), None)

    def _count(self, steps: int = 1) -> None:
        self._steps += steps
        if self._steps > _STEPS_MAX:
            raise OverflowError("it has too many parts")

    def _problems(self, value: object, schema: Mapping[str, Any], where: str) -> Iterator[str]:
        kinds = as_list(schema.get("type", []))
        if kinds and not any(TYPES[kind](value) for kind in kinds):
            yield f"{where} is {_kind(value)}, not {' or '.join(kinds)}"
        if "enum" in schema and not any(_same(value, each) for each in schema["enum"]):
            yield f"{where} is {short_json(value)}, which is none of {short_json(schema['enum'])}"
        if "const" in schema and not _same(value, schema["const"]):
            yield f"{where} is {short_json(value)}, not {short_json(schema['const'])}"
        if is_number(value):
            yield from _number_problems(value, schema, where)
        if isinstance(value, str):
            yield from self._text_problems(value, schema, where)
        if isinstance(value, str | list | dict):
            yield from _size_problems(value, schema, where)
        if isinstance(value, dict):
            yield from self._object_problems(value, schema, where)
        if isinstance(value, list):
            yield from self._list_problems(value, schema, where)
        yield from self._choice_problems(value, schema, where)

    def _text_problems(self, value: str, schema: Mapping[str, Any], where: str) -> Iterator[str]:
        pattern, name = schema.get("pattern"), schema.get("format")
        if pattern is not None and not self._is_found(pattern, value):
            yield f"{where} is {short_json(value)}, which does not match {short_json(pattern)}"
        if name is None and "contentEncoding" in schema:
            name = "byte"
        if name is not None and not has_format(name, value):
            yield f"{where} is {short_json(value)}, which is no {_FORMAT_NAMES.get(name, name)}"

    def _is_found(self, pattern: str, text: str) -> bool:
        # RE2 is linear in the text: a step for each 64 characters keeps the sum of all bounded.
        self._count(1 + len(text) // 64)
        try:
            compiled = compile_pattern(pattern).compiled
        except UsageError:
            # The schema was checked by another version of RE2. Nothing fits what cannot be read.
            return False
        return compiled.search(text.encode("utf-8", "surrogatepass")) is not None

    def _object_problems(
        self, value: dict[str, Any], schema: Mapping[str, Any], where: str
    ) -> Iterator[str]:
        missing = [name for name in schema.get("required", []) if name not in value]
        if missing:
            yield f"{where} has no {missing[0]!r}"
        properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        more = schema.get("additionalProperties", True)
        for name, each in value.items():
            if "propertyNames" in schema:
                problem = self.problem(name, schema["propertyNames"], f"a name in {where}")
                if problem is not None:
                    yield problem
            rules = [properties[name]] if name in properties else []
            rules += [rule for pattern, rule in patterns.items() if self._is_found(pattern, name)]
            if not rules and more is False:
                yield f"{where} has {name!r}, which is not asked for"
            for rule in rules or [more]:
                problem = self.problem(each, rule, f"{where}.{name}")
                if problem is not None:
                    yield problem

    def _list_problems(
        self, value: list[Any], schema: Mapping[str, Any], where: str
    ) -> Iterator[str]:
        first, rest = schema.get("prefixItems", []), schema.get("items", True)
        if rest is False and len(value) > len(first):
            yield f"{where} has {len(value):,} items; at most {len(first):,}"
        for number, each in enumerate(value):
            rule = first[number] if number < len(first) else rest
            problem = None if rule is True else self.problem(each, rule, f"{where}[{number}]")
            if problem is not None:
                yield problem
        if schema.get("uniqueItems", False):
            yield from self._twice(value, where)

    def _twice(self, value: list[Any], where: str) -> Iterator[str]:
        for number, each in enumerate(value):
            self._count(number)
            if any(_same(each, other) for other in value[:number]):
                yield f"{where} has {short_json(each)} twice"

    def _choice_problems(
        self, value: object, schema: Mapping[str, Any], where: str
    ) -> Iterator[str]:
        for each in schema.get("allOf", []):
            problem = self.problem(value, each, where)
            if problem is not None:
                yield problem
        for word in ("anyOf", "oneOf"):
            if word not in schema:
                continue
            problems = [self.problem(value, each, where) for each in schema[word]]
            fitting = problems.count(None)
            if not fitting:
                # With one choice that is near, its reason helps more than that there are others.
                near = _of_its_type(value, schema[word], problems)
                yield near or f"{where} is none of what {word} allows"
            if word == "oneOf" and fitting > 1:
                yield f"{where} fits {fitting} of what oneOf allows, and only one is asked for"


_FORMAT_NAMES = {"date-time": "date and time (2031-07-01T16:36:00)", "byte": "base64"}


def _of_its_type(value: object, choices: list[Any], problems: list[str | None]) -> str | None:
    """Return the problem with the only choice that allows values of this type, if it is one."""
    fitting = [
        problem
        for choice, problem in zip(choices, problems, strict=True)
        if isinstance(choice, Mapping)
        and any(TYPES[kind](value) for kind in as_list(choice.get("type", [])))
    ]
    return fitting[0] if len(fitting) == 1 else None


def _number_problems(value: Any, schema: Mapping[str, Any], where: str) -> Iterator[str]:  # noqa: ANN401
    for word, holds in BOUNDS.items():
        if word in schema and not holds(value, schema[word]):
            yield f"{where} breaks {word} {schema[word]}"
    step = schema.get("multipleOf")
    if step is not None and not _is_multiple(value, step):
        yield f"{where} breaks multipleOf {step}"


def _is_multiple(value: float, step: float) -> bool:
    if isinstance(value, int) and isinstance(step, int):
        return value % step == 0
    if not math.isfinite(value):
        return False
    # As they are written: 0.3 is a multiple of 0.1, although their floats are not.
    found = Decimal(str(value)) / Decimal(str(step))
    return found == found.to_integral_value()


def _size_problems(
    value: str | list[Any] | dict[str, Any], schema: Mapping[str, Any], where: str
) -> Iterator[str]:
    least, most = SIZES[type(value)]
    if len(value) < schema.get(least, 0):
        yield f"{where} breaks {least} {schema[least]}"
    if most in schema and len(value) > schema[most]:
        yield f"{where} breaks {most} {schema[most]}"


def _same(one: object, other: object) -> bool:
    """Return True if two values are equal as JSON: true is not 1, and 1.0 is."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _kind(value: object) -> str:
    return next(name for name, is_it in TYPES.items() if is_it(value))
