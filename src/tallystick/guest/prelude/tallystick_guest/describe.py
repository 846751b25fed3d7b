"""Describe a value in a few hundred characters without running a line of the program's code.

`repr` calls the `__repr__` of the value and of all that it holds; one of a program's own may print,
loop for ever or change something. Here only the reprs of built-in and standard types are called,
and only on values of exactly these types. Fields of dataclasses and named tuples are read from
where they are stored. Any other object is named by its class.
"""

import ast
import collections
import datetime
import decimal
import fractions
import itertools
import types
import uuid
from collections.abc import Iterable, Mapping

_type, _len, _repr = type, len, repr
_islice = itertools.islice
# Taken from `type` itself: a metaclass may have properties of these names.
_name_of_type = type.__dict__["__name__"].__get__
_mro_of = type.__dict__["__mro__"].__get__
_dict_of_type = type.__dict__["__dict__"].__get__
_dict_of_module = types.ModuleType.__dict__["__dict__"].__get__
_Slot, _Member = types.GetSetDescriptorType, types.MemberDescriptorType
_NoneType, _Zone, _Fraction = type(None), datetime.timezone, fractions.Fraction
_Function, _Module = types.FunctionType, types.ModuleType
_OrderedDict = collections.OrderedDict
_plain_items, _ordered_items = dict.items, collections.OrderedDict.items

_LEVELS_MAX, _ITEMS_MAX, _VALUES_MAX = 4, 20, 200
_TEXT_CHARS_MAX, _CHARS_MAX, _INT_BITS_MAX = 500, 4_096, 1_600
_SORTED_MAX, _ATTRIBUTES_MAX = 1_000, 1_000

_MAPPINGS = {
    dict: "",
    collections.OrderedDict: "OrderedDict",
    collections.Counter: "Counter",
    collections.defaultdict: "defaultdict",
}
_SEQUENCES = {
    list: ("[", "]"),
    tuple: ("(", ")"),
    set: ("{", "}"),
    frozenset: ("frozenset({", "})"),
    collections.deque: ("deque([", "])"),
}
_EMPTY = {set: "set()", frozenset: "frozenset()"}


def add_type(kind: type) -> None:
    """Let `describe` call the repr of this class, which is one of ours."""
    _ATOMS[kind] = _repr


def type_name(value: object) -> str:
    """Return the name of a value's class, whatever its metaclass does."""
    return _name_of_type(_type(value))


def describe(value: object) -> str:
    """Return a short text about a value: its repr where that is safe, else its class's name."""
    return _cut(_Description().of(value, _LEVELS_MAX), _CHARS_MAX)


def _cut(shown: str, chars_max: int) -> str:
    if _len(shown) <= chars_max:
        return shown
    head = (chars_max - 3) // 2
    return f"{shown[:head]}...{shown[-(chars_max - 3 - head) :]}"


class _Description:
    """One description on its way. It looks at so many values and no more."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values = 0

    def of(self, value: object, levels: int) -> str:
        self._values += 1
        if self._values > _VALUES_MAX:
            return "..."
        kind = _type(value)
        if kind is _Fraction:
            return f"Fraction({self.of(value.numerator, 1)}, {self.of(value.denominator, 1)})"
        # Only a plain class is looked up: a metaclass may hash and compare with code of its own.
        if _type(kind) is type:
            if kind in _ATOMS:
                return _ATOMS[kind](value)
            if kind in _SEQUENCES:
                return self._sequence(value, kind, levels)
            if kind in _MAPPINGS:
                return self._mapping(value, kind, levels)
            if kind is range or kind is slice:
                parts = (value.start, value.stop, value.step)
                return f"{_name_of_type(kind)}({', '.join(self.of(each, 1) for each in parts)})"
        return self._fields(value, kind, levels)

    def _all(self, values: Iterable[object], levels: int) -> list[str]:
        return [self.of(each, levels - 1) for each in _islice(values, _ITEMS_MAX)]

    def _sequence(self, value: object, kind: type, levels: int) -> str:
        before, after = _SEQUENCES[kind]
        if not _len(value):
            return _EMPTY.get(kind, before + after)
        if levels <= 0:
            return f"{before}...{after}"
        shown = self._all(_in_order(value) if kind in _EMPTY else value, levels)
        if _len(value) > _ITEMS_MAX:
            shown.append("...")
        elif kind is tuple and _len(shown) == 1:
            after = ",)"
        return before + ", ".join(shown) + after

    def _mapping(self, value: dict[object, object], kind: type, levels: int) -> str:
        shown = []
        if levels > 0:
            items = _ordered_items(value) if kind is _OrderedDict else _plain_items(value)
            for key, each in _islice(items, _ITEMS_MAX):
                shown.append(f"{self.of(key, levels - 1)}: {self.of(each, levels - 1)}")
        if _len(value) > _len(shown):
            shown.append("...")
        inside = "{" + ", ".join(shown) + "}"
        name = _MAPPINGS[kind]
        return f"{name}({inside})" if name else inside

    def _fields(self, value: object, kind: type, levels: int) -> str:
        """Describe a named tuple or a dataclass by its fields, if they can be read safely."""
        if levels <= 0:
            return _named(value)
        classes = _mro_of(kind)
        bases = [_dict_of_type(each) for each in classes]
        if any(each is tuple for each in classes):
            names = _found(bases, "_fields")
            if _type(names) is tuple:
                return self._written(kind, zip(names, tuple.__iter__(value), strict=False), levels)
        fields = _found(bases, "__dataclass_fields__")
        if _type(fields) is dict:
            held = _stored(value, bases)
            if all(_type(name) is str and name in held for name in fields):
                return self._written(kind, [(name, held[name]) for name in fields], levels)
        return _named(value)

    def _written(self, kind: type, pairs: Iterable[tuple[object, object]], levels: int) -> str:
        shown = [
            f"{name}={self.of(each, levels - 1)}"
            for name, each in _islice(pairs, _ITEMS_MAX)
            if _type(name) is str
        ]
        return f"{_name_of_type(kind)}({', '.join(shown)})"


def _moment(value: "datetime.datetime | datetime.time") -> str:
    zone = _type(value.tzinfo)
    return _repr(value) if zone is _NoneType or zone is _Zone else _named(value)


def _decimal(value: decimal.Decimal) -> str:
    return _named(value) if _len(value.as_tuple().digits) > _TEXT_CHARS_MAX else _repr(value)


def _int(value: int) -> str:
    bits = value.bit_length()
    return _repr(value) if bits <= _INT_BITS_MAX else f"<an int of {bits:,} bits>"


def _text(value: "str | bytes | bytearray") -> str:
    if _len(value) > 2 * _TEXT_CHARS_MAX:
        # Both ends are enough to make the head and the tail of a repr from.
        value = value[:_TEXT_CHARS_MAX] + value[-_TEXT_CHARS_MAX:]
    return _cut(_repr(value), _TEXT_CHARS_MAX)


def _in_order(value: "set[object] | frozenset[object]") -> Iterable[object]:
    """Sort a short set whose items are of one type that sorts without a program's code."""
    if _len(value) > _SORTED_MAX:
        return value
    first = _type(next(iter(value)))
    sortable = first is str or first is int or first is float or first is bytes
    return sorted(value) if sortable and all(_type(each) is first for each in value) else value


def _found(bases: list[dict[str, object]], name: str) -> object:
    return next((each[name] for each in bases if name in each), None)


def _stored(value: object, bases: list[dict[str, object]]) -> dict[str, object]:
    """Return what an object holds, from its slots and its dictionary."""
    held: dict[str, object] = {}
    for each in bases:
        for name, descriptor in _islice(each.items(), _ATTRIBUTES_MAX):
            if _type(descriptor) is _Member and name not in held:
                try:
                    held[name] = descriptor.__get__(value)
                except AttributeError:
                    continue
    slot = _found(bases, "__dict__")
    if _type(slot) is _Slot:
        own = slot.__get__(value)
        if _type(own) is dict:
            held |= own
    return held


def _named(value: object) -> str:
    kind = _type(value)
    if kind is _Function:
        return f"<function {value.__name__}>"
    if kind is _Module:
        name = _dict_of_module(value).get("__name__")
        return f"<module {name!r}>" if _type(name) is str else "<module>"
    if kind is type:
        return f"<class {_name_of_type(value)!r}>"
    return f"<{_name_of_type(kind)} object>"


# Of these, the repr is short and calls nothing of a program.
_ATOMS = dict.fromkeys(
    (
        *(bool, float, complex, _NoneType, type(...), type(NotImplemented)),
        *(datetime.date, datetime.timedelta, _Zone, uuid.UUID),
    ),
    _repr,
)
_ATOMS |= dict.fromkeys((str, bytes, bytearray), _text)
_ATOMS |= dict.fromkeys((datetime.datetime, datetime.time), _moment)
_ATOMS |= {int: _int, decimal.Decimal: _decimal}


# The values on a line that failed.
#
# Only plain names and their items are looked up, and items only in built-in containers: nothing of
# the program runs, and what it would have computed is not computed again.


_PARSED_CHARS_MAX, _LINE_CHARS_MAX, _VALUES_ON_LINE_MAX = 400, 160, 4
_VALUE_CHARS_MAX, _LEVELS_ON_LINE = 80, 2
_CONTAINERS = (dict, list, tuple, str)
_COMPREHENSIONS = (ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp)
_ITEMS_LOOKED_AT_MAX, _TYPES_MAX = 2_000, 3
_COUNTED = (dict, list, tuple, set)
_KEYS = (str, int, bool)
_CODE = (_Function, _Module, type, types.BuiltinFunctionType, types.MethodType)
_MISSING = object()
_ast_parse, _unparse, _child_nodes = ast.parse, ast.unparse, ast.iter_child_nodes


def describe_line(
    line: str, part: str, local_names: Mapping[str, object], global_names: Mapping[str, object]
) -> str:
    """Return a line that failed and under it its values with their types; "" without any.

    `part` is the expression of the line that failed, if it is known, else "". Functions, classes
    and modules are no values. A line of over 400 characters gives none.
    """
    line = line.strip()
    if _len(line) > _PARSED_CHARS_MAX:
        # The parser overflows the stack of the interpreter on a line that is nested too deeply.
        return ""
    found: dict[str, str] = {}
    for each in (part, line):
        tree = _tree_of(each)
        if tree is not None and not found:
            _collect_values(tree, (local_names, global_names), found)
    if not found:
        return ""
    shown = [f"{name} is {value}" for name, value in found.items()]
    return "\n".join([_cut(line, _LINE_CHARS_MAX), *shown[:_VALUES_ON_LINE_MAX]])


def _tree_of(text: str) -> ast.AST | None:
    # The head of a loop or a condition is no statement without a body.
    for each in (text, f"{text} pass", f"{text.removeprefix('el')} pass"):
        try:
            return _ast_parse(each) if text else None
        except (SyntaxError, ValueError):
            continue
    return None


def _collect_values(
    node: ast.AST, names: tuple[Mapping[str, object], ...], found: dict[str, str]
) -> None:
    value = _looked_up(node, names)
    if value is not _MISSING:
        if not isinstance(value, _CODE):
            found[_unparse(node)] = _told(value)
        return
    if _type(node) in _COMPREHENSIONS:
        _collect_items(node, names, found)
    for each in _child_nodes(node):
        _collect_values(each, names, found)


def _told(value: object) -> str:
    shown = _cut(_Description().of(value, _LEVELS_ON_LINE), _VALUE_CHARS_MAX)
    count = f" of {_len(value):,}" if _type(value) in _COUNTED else ""
    return f"{shown} ({type_name(value)}{count})"


def _collect_items(
    node: ast.AST, names: tuple[Mapping[str, object], ...], found: dict[str, str]
) -> None:
    """Add what a comprehension takes from each item, with an example of each type it has.

    A built-in such as `sum` fails with none of these values in a frame.
    """
    loop = node.generators[0]
    held = _looked_up(loop.iter, names)
    if _len(node.generators) > 1 or _type(loop.target) is not ast.Name:
        return
    if _type(held) not in (list, tuple):
        return
    taken: list[ast.AST] = []
    for part in (node.elt, *loop.ifs) if hasattr(node, "elt") else (node.key, node.value):
        _lookups_of(part, loop.target.id, taken)
    for part in taken[:_VALUES_ON_LINE_MAX]:
        kinds: dict[str, str] = {}
        for item in _islice(held, _ITEMS_LOOKED_AT_MAX):
            value = _looked_up(part, ({loop.target.id: item}, *names))
            kind = "missing" if value is _MISSING else type_name(value)
            if kind not in kinds:
                kinds[kind] = kind if value is _MISSING else _told(value)
        if _len(kinds) > 1:
            shown = " or ".join(itertools.islice(kinds.values(), _TYPES_MAX))
            found[_unparse(part)] = shown


def _lookups_of(node: ast.AST, name: str, taken: list[ast.AST]) -> None:
    """Add the longest lookups that begin with a name, such as `record['order']['price']`."""
    base = node
    while _type(base) is ast.Subscript:
        base = base.value
    if _type(base) is ast.Name:
        if base.id == name:
            while _type(node) is ast.Subscript and base is not node:
                taken.append(node)
                node = node.value
        return
    for each in _child_nodes(node):
        _lookups_of(each, name, taken)


def _looked_up(node: ast.AST, names: tuple[Mapping[str, object], ...]) -> object:
    """The value of a name or of an item of one; `_MISSING` for anything else."""
    if _type(node) is ast.Name:
        for each in names:
            if node.id in each:
                return each[node.id]
        return _MISSING
    if _type(node) is not ast.Subscript:
        return _MISSING
    held = _looked_up(node.value, names)
    index = node.slice.value if _type(node.slice) is ast.Constant else _looked_up(node.slice, names)
    if _type(held) not in _CONTAINERS or _type(index) not in _KEYS:
        return _MISSING
    try:
        return held[index]
    except (LookupError, TypeError):
        return _MISSING
