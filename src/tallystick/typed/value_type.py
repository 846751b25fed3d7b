"""Turn a Python type into the schema of its values, and JSON values into values of that type.

`value_type` reads dataclasses, `TypedDict`, `NamedTuple`, `msgspec.Struct`, enums, `Literal`,
unions, the collections of them, and the types of dates, times and numbers. Models of pydantic are
known by their own methods: pydantic is never imported here. A type that cannot be checked is
refused by name, and so is one that contains itself.

Every type is read by one function of `_READERS`, in their order. The schema is what a run checks.
A decoder checks too, because arguments of tools are not compared with a schema.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import decimal
import enum
import inspect
import pathlib
import types
import typing
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

import msgspec

from tallystick.core.errors import UsageError
from tallystick.core.schema.check import check_schema
from tallystick.core.schema.formats import has_format, without_nanoseconds
from tallystick.core.schema.values import problem_of
from tallystick.typed import pydantic_types
from tallystick.typed.encode import encode_value

T = TypeVar("T")
_Schema = Mapping[str, Any]
_DEPTH_MAX = 40
_KNOWN = (
    "use a dataclass, TypedDict, NamedTuple, Struct or pydantic model, an enum, Literal, a union, "
    "or a list, dict, set or tuple of those"
)


@dataclass(frozen=True, slots=True)
class ValueType(Generic[T]):
    """A type of values: its name, the schema of its JSON, and the decoder of that JSON.

    `decode` returns the value of a JSON value, and raises `ValueError` with one line if there is
    none.
    """

    name: str
    schema: _Schema
    decode: Callable[[object], T]


def value_type(annotation: Any, *, where: str) -> ValueType[Any]:  # noqa: ANN401 (any annotation)
    """Return the type of values that an annotation stands for.

    Raise `UsageError`, which begins with `where`, for a type that cannot be checked.
    """
    read = _Reading(where, {}, ()).read(annotation)
    try:
        schema = check_schema(read.schema)
    except (UsageError, TypeError, ValueError) as error:
        said = str(error).removeprefix("schema")
        raise UsageError(f"{where}: {type_name(annotation)}{said}") from None
    return ValueType(type_name(annotation), schema, read.decode)


def type_name(annotation: object) -> str:
    """Return a type as its author writes it, without the modules that its names are from."""
    if annotation is None or annotation is types.NoneType:
        return "None"
    if isinstance(annotation, str):
        return annotation
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return type_name(parts[0])
    if origin is Literal:
        return f"Literal[{', '.join(map(_literal_name, parts))}]"
    if origin is typing.Union or origin is types.UnionType:
        return " | ".join(map(type_name, parts))
    if isinstance(annotation, list):
        return f"[{', '.join(map(type_name, annotation))}]"
    if origin is not None and parts:
        inside = ", ".join("..." if each is ... else type_name(each) for each in parts)
        return f"{type_name(origin)}[{inside}]"
    return getattr(annotation, "__name__", None) or str(annotation).replace("typing.", "")


def _literal_name(value: object) -> str:
    return f"{type(value).__name__}.{value.name}" if isinstance(value, enum.Enum) else repr(value)


# -- readers ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Read:
    """A type that was read. With `native`, msgspec alone converts values of it."""

    schema: _Schema
    decode: Callable[[object], Any]
    native: bool = False


@dataclass(frozen=True, slots=True)
class _Reading:
    """The place of a type inside others: what its type variables are, and what it is part of."""

    where: str
    variables: Mapping[Any, Any]
    inside: tuple[Any, ...]

    def read(self, annotation: Any) -> _Read:  # noqa: ANN401 (any annotation)
        if len(self.inside) > _DEPTH_MAX:
            raise UsageError(f"{self.where}: {type_name(annotation)} is nested too deep")
        for reader in _READERS:
            found = reader(self, annotation)
            if found is not None:
                return found
        raise self.refused(annotation)

    def refused(
        self, annotation: object, why: str = "is no type that can be checked"
    ) -> UsageError:
        return UsageError(f"{self.where}: {type_name(annotation)} {why}; {_KNOWN}")

    def within(self, annotation: Any, variables: Mapping[Any, Any] | None = None) -> _Reading:  # noqa: ANN401
        """Return the reading of a part of a type. Raise `UsageError` if that contains itself."""
        if annotation in self.inside:
            raise self.refused(annotation, "contains itself, so its values cannot be checked")
        known = self.variables if variables is None else variables
        return _Reading(self.where, known, (*self.inside, annotation))

    def native(self, annotation: Any, schema: _Schema) -> _Read:  # noqa: ANN401 (any annotation)
        """Return a type that msgspec converts. Type variables must be resolved in `annotation`."""
        return _Read(schema, lambda value: _convert(value, annotation), native=True)


def _convert(value: object, annotation: Any) -> Any:  # noqa: ANN401 (any annotation and its value)
    try:
        # Bytes of a program are bytes already; in JSON they are base64.
        return msgspec.convert(
            value, annotation, builtin_types=(bytes,) if _has_bytes(value) else ()
        )
    except msgspec.ValidationError as error:
        raise ValueError(_one_line(error)) from None


def _has_bytes(value: object) -> bool:
    return isinstance(value, bytes)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).replace(" - at `$", " at `").split())


# A type of Python's own that msgspec converts, with the schema of its JSON.
_SCALARS: Mapping[object, _Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    types.NoneType: {"type": "null"},
    None: {"type": "null"},
    bytes: {"type": "string", "contentEncoding": "base64"},
    datetime.date: {"type": "string", "format": "date"},
    # Years and months have no fixed length.
    datetime.timedelta: {
        "type": "string",
        "format": "duration",
        "pattern": r"^[+-]?P(\d{1,8}W)?(\d{1,8}D)?(T(\d{1,8}H)?(\d{1,8}M)?(\d{1,8}(\.\d+)?S)?)?$",
    },
    uuid.UUID: {"type": "string", "format": "uuid"},
    decimal.Decimal: {"anyOf": [{"type": "number"}, {"type": "string", "format": "decimal"}]},
}


def _anything(reading: _Reading, annotation: Any) -> _Read | None:  # noqa: ANN401
    if annotation is Any or annotation is object:
        return _Read({}, lambda value: value)
    return None


def _scalar(reading: _Reading, annotation: Any) -> _Read | None:  # noqa: ANN401
    try:
        schema = _SCALARS.get(annotation)
    except TypeError:
        return None
    if schema is not None:
        return reading.native(annotation, schema)
    if annotation in (datetime.datetime, datetime.time):
        # Not by msgspec, which needs seconds: what fits the schema has to become a value.
        word = "time" if annotation is datetime.time else "date-time"
        return _Read({"type": "string", "format": word}, _parser(_moment(annotation, word)))
    if isinstance(annotation, type) and issubclass(annotation, pathlib.PurePath):
        return _Read({"type": "string", "format": "path"}, _parser(annotation))
    return None


def _moment(annotation: Any, word: str) -> Callable[[str], Any]:  # noqa: ANN401
    def parse(text: str) -> Any:  # noqa: ANN401 (a time, or a date with a time)
        if not has_format(word, text):
            raise ValueError(f"{text!r:.80} is no {word}")
        return annotation.fromisoformat(without_nanoseconds(text))

    return parse


def _parser(parse: Callable[[str], Any]) -> Callable[[object], Any]:
    def decode(value: object) -> Any:  # noqa: ANN401 (what the type makes of it)
        if not isinstance(value, str):
            raise ValueError(f"text is needed, not {type(value).__name__}")
        return parse(value)

    return decode


def _alias(reading: _Reading, annotation: Any) -> _Read | None:  # noqa: ANN401
    """Read another name for a type: an alias, a `NewType`, or a type variable; None for others.

    Raise `UsageError` for a name that cannot be found, or for what it stands for.
    """
    if isinstance(annotation, TypeVar):
        bound = reading.variables.get(annotation, annotation.__bound__)
        return reading.read(Any if bound is None else bound)
    if isinstance(annotation, typing.ForwardRef | str):
        name = annotation if isinstance(annotation, str) else annotation.__forward_arg__
        raise UsageError(f"{reading.where}: the type {name!r} cannot be found from here")
    other = getattr(annotation, "__supertype__", None)
    if other is None and type(annotation).__name__ == "TypeAliasType":
        other = annotation.__value__
    return None if other is None else reading.within(annotation).read(other)


def _literal(reading: _Reading, annotation: Any) -> _Read | None:  # noqa: ANN401
    if typing.get_origin(annotation) is not Literal:
        return None
    values = [(encode_value(each), each) for each in typing.get_args(annotation)]
    return _Read(_one_of([each for each, _ in values]), _chooser(values))


def _enum(reading: _Reading, annotation: Any) -> _Read | None:  # noqa: ANN401
    if not (isinstance(annotation, type) and issubclass(annotation, enum.Enum)):
        return None
    values = [each.value for each in annotation]
    if not values or not all(isinstance(each, str | int | float | None) for each in values):
        raise reading.refused(annotation, "is an enum with values that are no text or number")
    return _Read(
        _described(annotation, _one_of(values)),
        _chooser([(each.value, each) for each in annotation]),
    )


def _one_of(values: list[Any]) -> _Schema:
    return {"const": values[0]} if len(values) == 1 else {"enum": values}


def _chooser(values: Sequence[tuple[Any, Any]]) -> Callable[[object], Any]:
    def decode(value: object) -> Any:  # noqa: ANN401 (what the type makes of it)
        for each, chosen in values:
            # As JSON has them, true is not 1.
            if each == value and isinstance(each, bool) == isinstance(value, bool):
                return chosen
        raise ValueError(f"{value!r:.80} is none of {', '.join(repr(each) for each, _ in values)}")

    return decode


def _annotated(reading: _Reading, annotation: Any) -> _Read | None:  # noqa: ANN401
    """Read a type with limits beside it, in the words of msgspec, annotated-types or pydantic.

    None for any other. Raise `UsageError` as reading a type does.
    """
    if typing.get_origin(annotation) is not typing.Annotated:
        return None
    plain, *beside = typing.get_args(annotation)
    read = reading.read(plain)
    limits = _limits_of(beside, read.schema)
    if not limits:
        return read
    checked = {word: value for word, value in limits.items() if word != "description"}

    def decode(value: object) -> Any:  # noqa: ANN401 (what the type makes of it)
        problem = problem_of(value, checked, of="it")
        if problem is not None:
            raise ValueError(problem)
        return read.decode(value)

    return _Read({**read.schema, **limits}, decode if checked else read.decode)


_LIMITS = {
    "gt": "exclusiveMinimum",
    "ge": "minimum",
    "lt": "exclusiveMaximum",
    "le": "maximum",
    "multiple_of": "multipleOf",
    "pattern": "pattern",
}
_SIZES = {"string": "Length", "array": "Items", "object": "Properties"}


def _limits_of(beside: Sequence[Any], schema: _Schema) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    for each in beside:
        if isinstance(each, str):
            limits["description"] = each
            continue
        # A `Field` of pydantic holds its limits in a list.
        for holder in (each, *(getattr(each, "metadata", None) or ())):
            for name, word in _LIMITS.items():
                value = getattr(holder, name, None)
                if value is not None:
                    limits[word] = getattr(value, "pattern", value)
            for name, least in (("min_length", "min"), ("max_length", "max")):
                value = getattr(holder, name, None)
                if value is not None:
                    limits[f"{least}{_SIZES.get(schema.get('type', ''), 'Length')}"] = value
        said = getattr(each, "description", None) or getattr(each, "documentation", None)
        if said:
            limits["description"] = said
    return limits


def _union(reading: _Reading, annotation: Any) -> _Read | None:  # noqa: ANN401
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return None
    choices = [reading.read(each) for each in typing.get_args(annotation)]
    schema = {"anyOf": [each.schema for each in choices]}
    if all(each.native for each in choices) and _converts(annotation):
        return reading.native(annotation, schema)

    def decode(value: object) -> Any:  # noqa: ANN401 (what the type makes of it)
        problems = []
        for each in sorted(choices, key=lambda choice: _unknown_names(value, choice.schema)):
            try:
                return each.decode(value)
            except ValueError as error:
                problems.append(str(error))
        raise ValueError(f"it is no {type_name(annotation)}: {'; '.join(problems)}"[:300])

    return _Read(schema, decode)


def _unknown_names(value: object, schema: _Schema) -> int:
    """Return how many names of an object a schema does not know: the best choice has the fewest."""
    if not isinstance(value, dict):
        return 0
    return len(value.keys() - schema.get("properties", {}).keys())


def _converts(annotation: Any) -> bool:  # noqa: ANN401 (any annotation)
    """Return True if msgspec can convert values of a type. It refuses some unions."""
    try:
        msgspec.json.Decoder(annotation)
    except TypeError:
        return False
    return True


_LISTS = (
    *(list, collections.abc.Sequence, collections.abc.MutableSequence),
    *(collections.abc.Collection, collections.abc.Iterable),
)
_SETS = {
    set: set,
    collections.abc.MutableSet: set,
    frozenset: frozenset,
    collections.abc.Set: frozenset,
}
_MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


def _collection(reading: _Reading, annotation: Any) -> _Read | None:  # noqa: ANN401
    origin, parts = typing.get_origin(annotation) or annotation, typing.get_args(annotation)
    if origin in _LISTS:
        return _items(reading, annotation, parts, list, {})
    if origin in _SETS:
        return _items(reading, annotation, parts, _SETS[origin], {"uniqueItems": True})
    if origin is tuple and (not parts or parts[-1] is ...) and annotation != tuple[()]:
        return _items(reading, annotation, parts[:1], tuple, {})
    if origin is tuple:
        return _row(reading, [reading.read(each) for each in parts], lambda *each: tuple(each))
    if origin in _MAPPINGS:
        return _mapping(reading, annotation, parts or (str, Any))
    return None


def _items(
    reading: _Reading,
    annotation: Any,  # noqa: ANN401 (any annotation)
    parts: Sequence[Any],
    kind: Callable[[list[Any]], Any],
    words: _Schema,
) -> _Read:
    item = reading.read(parts[0] if parts else Any)
    schema = {"type": "array", "items": item.schema, **words}
    if item.native and _converts(annotation) and not reading.variables:
        return reading.native(annotation, schema)
    return _Read(schema, lambda value: kind(_decoded_items(value, item)))


def _decoded_items(value: object, item: _Read) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"a list is needed, not {type(value).__name__}")
    return [_at(f"[{number}]", item.decode, each) for number, each in enumerate(value)]


def _at(place: str, decode: Callable[[object], Any], value: object) -> Any:  # noqa: ANN401
    """Return a decoded part. An error names its place."""
    try:
        return decode(value)
    except ValueError as error:
        said = _one_line(error)
        joint = "" if said.startswith(("[", ".")) else ": "
        raise ValueError(f"{place}{joint}{said}") from None


def _row(
    reading: _Reading, parts: Sequence[_Read], make: Callable[..., Any], needed: int | None = None
) -> _Read:
    """Return the type of a list with a type for each place, of which `needed` must be there."""
    least = len(parts) if needed is None else needed
    schema = {
        "type": "array",
        "prefixItems": [each.schema for each in parts],
        "items": False,
        "minItems": least,
    }

    def decode(value: object) -> Any:  # noqa: ANN401 (what the type makes of it)
        if not isinstance(value, list | tuple) or not least <= len(value) <= len(parts):
            raise ValueError(f"a list of {len(parts)} items is needed")
        each = zip(parts, value, strict=False)
        return make(
            *(_at(f"[{place}]", part.decode, item) for place, (part, item) in enumerate(each))
        )

    return _Read(schema, decode)


def _mapping(reading: _Reading, annotation: Any, parts: Sequence[Any]) -> _Read:  # noqa: ANN401
    names, values = reading.read(parts[0]), reading.read(parts[1])
    schema: dict[str, Any] = {"type": "object", "additionalProperties": values.schema}
    decode_name: Callable[[Any], Any] = names.decode
    if names.schema == _SCALARS[int]:
        schema["propertyNames"] = {"pattern": r"^-?(0|[1-9]\d*)$"}
        decode_name = int
    elif names.schema not in (_SCALARS[str], {}):
        if not _is_text(names.schema):
            raise reading.refused(annotation, "has names that are no text and no integers")
        schema["propertyNames"] = names.schema
    if values.native and parts[0] is str and _converts(annotation) and not reading.variables:
        return reading.native(annotation, schema)

    def decode(value: object) -> Any:  # noqa: ANN401 (what the type makes of it)
        if not isinstance(value, dict):
            raise ValueError(f"an object is needed, not {type(value).__name__}")
        return {
            _at(f".{name}", decode_name, name): _at(f".{name}", values.decode, each)
            for name, each in value.items()
        }

    return _Read(schema, decode)


def _is_text(schema: _Schema) -> bool:
    named = [*schema.get("enum", []), *([schema["const"]] if "const" in schema else [])]
    return schema.get("type") == "string" or bool(
        named and all(isinstance(each, str) for each in named)
    )


def _of_pydantic(reading: _Reading, annotation: Any) -> _Read | None:  # noqa: ANN401
    found = pydantic_types.read(annotation)
    return None if found is None else _Read(*found)


# -- objects with fields ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Field:
    """One field of an object: its name in Python and in JSON, and its default, if it has one."""

    name: str
    annotation: Any
    required: bool
    default: object = None
    spelled: str = ""
    more: _Schema = field(default_factory=dict)


def _object(
    reading: _Reading,
    annotation: Any,  # noqa: ANN401 (any annotation)
    fields: Sequence[_Field],
    make: Callable[[dict[str, Any]], Any],
    constants: Mapping[Any, Any] = types.MappingProxyType({}),
) -> _Read:
    """Return the type of an object. `constants` are the fields that have one value each."""
    read = {each.name: reading.read(each.annotation) for each in fields}
    properties = {name: {"const": value} for name, value in constants.items()}
    for each in fields:
        schema = {**read[each.name].schema, **each.more}
        if not each.required and each.default is not None:
            schema["default"] = _default(each.default)
        properties[each.spelled or each.name] = {
            word: value for word, value in schema.items() if value is not _UNSHOWN
        }

    def decode(value: object) -> Any:  # noqa: ANN401 (what the type makes of it)
        if not isinstance(value, dict):
            raise ValueError(f"an object is needed, not {type(value).__name__}")
        _check_constants(value, constants)
        made = {}
        for each in fields:
            spelled = each.spelled or each.name
            if spelled in value:
                made[each.name] = _at(f".{spelled}", read[each.name].decode, value[spelled])
            elif each.required:
                raise ValueError(f"it has no {spelled!r}")
        try:
            return make(made)
        except TypeError as error:
            raise ValueError(str(error)) from None

    needed = [*constants, *(each.spelled or each.name for each in fields if each.required)]
    schema = {"type": "object", "properties": properties, "required": needed}
    return _Read(_described(annotation, schema), decode)


def _check_constants(value: Mapping[str, Any], constants: Mapping[Any, Any]) -> None:
    for name, constant in constants.items():
        if value.get(name) != constant:
            raise ValueError(f".{name} is {value.get(name)!r:.80}, not {constant!r}")


_UNSHOWN = object()


def _default(value: object) -> object:
    """Return a default as the schema shows it, or `_UNSHOWN` for one that is no JSON value."""
    try:
        return encode_value(value)
    except (TypeError, ValueError):
        return _UNSHOWN


def _described(annotation: Any, schema: _Schema) -> _Schema:  # noqa: ANN401 (any annotation)
    """Return a schema with the description that the author of a class wrote, if there is one."""
    made = typing.get_origin(annotation) or annotation
    said = vars(made).get("__doc__") if isinstance(made, type) else None
    # Dataclasses and named tuples without a docstring have one that was made from their fields.
    if not said or said.startswith(f"{made.__name__}(") or said == "An enumeration.":
        return schema
    return {"description": inspect.cleandoc(said), **schema}


def _fields_in(
    reading: _Reading,
    annotation: Any,  # noqa: ANN401 (any annotation)
) -> tuple[_Reading, dict[str, Any]]:
    """Return the annotations of a class, and the reading for them, with its type variables."""
    made, parts = typing.get_origin(annotation) or annotation, typing.get_args(annotation)
    variables = dict(zip(getattr(made, "__parameters__", ()), parts, strict=False))
    inner = reading.within(annotation, {**reading.variables, **variables})
    try:
        return inner, typing.get_type_hints(made, include_extras=True)
    except NameError as error:
        raise UsageError(
            f"{reading.where}: {type_name(annotation)} names a type that cannot be found: {error}; "
            "define it at the top of its module"
        ) from None


def _dataclass(reading: _Reading, annotation: Any) -> _Read | None:  # noqa: ANN401
    made = typing.get_origin(annotation) or annotation
    if not (isinstance(made, type) and dataclasses.is_dataclass(made)):
        return None
    inner, hints = _fields_in(reading, annotation)
    fields = [
        _Field(
            each.name,
            hints[each.name],
            each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING,
            None if each.default is dataclasses.MISSING else each.default,
        )
        for each in dataclasses.fields(made)
        if each.init
    ]
    return _object(inner, annotation, fields, lambda values: made(**values))


def _typed_dict(reading: _Reading, annotation: Any) -> _Read | None:  # noqa: ANN401
    made = typing.get_origin(annotation) or annotation
    # `is_typeddict` does not know those of typing_extensions.
    if not (isinstance(made, type) and hasattr(made, "__required_keys__")):
        return None
    inner, hints = _fields_in(reading, annotation)
    fields = [
        _Field(name, *_without_marks(each, needed=name in made.__required_keys__))
        for name, each in hints.items()
    ]
    return _object(inner, annotation, fields, dict)


def _without_marks(annotation: Any, *, needed: bool) -> tuple[Any, bool]:  # noqa: ANN401
    """Return an annotation of a `TypedDict` without its marks, and True if the field is needed.

    The marks are read here, because the class does not see them in annotations that are text.
    """
    while (mark := getattr(typing.get_origin(annotation), "_name", "")) in _MARKS:
        (annotation,) = typing.get_args(annotation)
        needed = {"Required": True, "NotRequired": False}.get(mark, needed)
    return annotation, needed


_MARKS = ("Required", "NotRequired", "ReadOnly")


def _named_tuple(reading: _Reading, annotation: Any) -> _Read | None:  # noqa: ANN401
    made = typing.get_origin(annotation) or annotation
    if not (isinstance(made, type) and issubclass(made, tuple) and hasattr(made, "_fields")):
        return None
    inner, hints = _fields_in(reading, annotation)
    names = made._fields
    parts = [inner.read(hints.get(name, Any)) for name in names]
    needed = len(names) - len(getattr(made, "_field_defaults", ()))
    read = _row(inner, parts, made, needed)
    titled = {"description": f"[{', '.join(names)}]", **read.schema}
    return _Read(_described(annotation, titled), read.decode)


def _struct(reading: _Reading, annotation: Any) -> _Read | None:  # noqa: ANN401
    made = typing.get_origin(annotation) or annotation
    if not (isinstance(made, type) and issubclass(made, msgspec.Struct)):
        return None
    config = made.__struct_config__
    if config.array_like:
        raise reading.refused(annotation, "is a Struct that is written as a list")
    inner, hints = _fields_in(reading, annotation)
    fields = [
        _Field(each.name, hints[each.name], each.required, _struct_default(each), each.encode_name)
        for each in msgspec.structs.fields(made)
    ]
    tagged = config.tag is not None and config.tag_field is not None
    constants = {config.tag_field: config.tag} if tagged else {}
    return _object(inner, annotation, fields, lambda values: made(**values), constants)


def _struct_default(each: msgspec.structs.FieldInfo) -> object:
    return None if each.default is msgspec.NODEFAULT else each.default


_READERS: Sequence[Callable[[_Reading, Any], _Read | None]] = (
    _anything,
    _scalar,
    _alias,
    _annotated,
    _literal,
    _union,
    _collection,
    _enum,
    _of_pydantic,
    _struct,
    _typed_dict,
    _named_tuple,
    _dataclass,
)
