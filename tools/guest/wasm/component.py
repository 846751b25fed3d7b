"""Reads a component: its core modules, and how they are put together.

A component is a script: each section adds to one or more index spaces, and later entries name
earlier ones by number. Only the core level matters here. Types are counted and not read, nested
components are stepped over, and what cannot be understood is refused by name.

What comes out are the parts for the merger, in the order in which the component instantiates
them, plus the functions they import from outside: those are `Lowered`, and somebody must write
them.

An entry can only name earlier ones. That is checked while reading, so whoever follows names
comes to an end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from tools.guest.wasm.binary import COMPONENT_HEADER, BadWasm, Reader, sections

__all__ = [
    "Bundle",
    "Component",
    "CoreModule",
    "Entry",
    "ExportOf",
    "Imported",
    "Instantiation",
    "Lift",
    "Lower",
    "Opaque",
    "Options",
    "ResourceDrop",
    "Same",
    "Sort",
    "parse_component",
]


class Sort(Enum):
    """An index space. Values are the bytes of the format; core sorts have a zero before theirs."""

    CORE_FUNCTION = (0, 0x00)
    CORE_TABLE = (0, 0x01)
    CORE_MEMORY = (0, 0x02)
    CORE_GLOBAL = (0, 0x03)
    CORE_TAG = (0, 0x04)
    CORE_TYPE = (0, 0x10)
    CORE_MODULE = (0, 0x11)
    CORE_INSTANCE = (0, 0x12)
    FUNCTION = (0x01,)
    VALUE = (0x02,)
    TYPE = (0x03,)
    COMPONENT = (0x04,)
    INSTANCE = (0x05,)


@dataclass(frozen=True, slots=True)
class Options:
    """The canonical options we know: where text and lists go, and what to call afterwards."""

    memory: int | None = None
    realloc: int | None = None
    post_return: int | None = None


@dataclass(frozen=True, slots=True)
class Opaque:
    """An entry whose content does not matter to us."""


@dataclass(frozen=True, slots=True)
class CoreModule:
    """A core module, as a range of the component's bytes."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Instantiation:
    """A core module with, for each module name it imports from, a core instance."""

    module: int
    arguments: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Bundle:
    """A core instance made of things that exist already."""

    exports: Mapping[str, tuple[Sort, int]]


@dataclass(frozen=True, slots=True)
class ExportOf:
    """An alias: one export of an instance. Core or not follows from the space it stands in."""

    instance: int
    name: str


@dataclass(frozen=True, slots=True)
class Imported:
    """Something from outside the component."""

    name: str


@dataclass(frozen=True, slots=True)
class Same:
    """An export gives what it exports a second number."""

    index: int


@dataclass(frozen=True, slots=True)
class Lift:
    """A component function made of a core function."""

    function: int
    options: Options


@dataclass(frozen=True, slots=True)
class Lower:
    """A core function made of a component function."""

    function: int
    options: Options


@dataclass(frozen=True, slots=True)
class ResourceDrop:
    """A core function that gives up a handle."""

    type: int


Entry = (
    Opaque
    | CoreModule
    | Instantiation
    | Bundle
    | ExportOf
    | Imported
    | Same
    | Lift
    | Lower
    | ResourceDrop
)


@dataclass(slots=True)
class Component:
    """The index spaces of a component, and what it exports."""

    data: bytes
    spaces: dict[Sort, list[Entry]] = field(default_factory=lambda: {sort: [] for sort in Sort})
    exports: dict[str, tuple[Sort, int]] = field(default_factory=dict)

    def index(self, reader: Reader, sort: Sort) -> int:
        """Read the number of an entry that exists already."""
        return reader.index(len(self.spaces[sort]), sort.name.lower())

    def entry(self, sort: Sort, index: int) -> Entry:
        return self.spaces[sort][index]


def parse_component(data: bytes) -> Component:
    """Read the index spaces of a component."""
    component = Component(data)
    for section in sections(Reader(data), header=COMPONENT_HEADER):
        if section.id not in _READERS:
            raise BadWasm(f"unsupported component section {section.id}", offset=section.start)
        _READERS[section.id](component, section.content)
    return component


# The parts that sections are made of.

_CORE_SORTS = {sort.value[1]: sort for sort in Sort if len(sort.value) == 2}
_SORTS = {sort.value[0]: sort for sort in Sort if len(sort.value) == 1}


def _core_sort(reader: Reader) -> Sort:
    value = reader.byte("a core sort")
    if value not in _CORE_SORTS:
        raise reader.bad(f"unsupported core sort {value:#04x}")
    return _CORE_SORTS[value]


def _sort(reader: Reader) -> Sort:
    value = reader.byte("a sort")
    if value == 0:
        return _core_sort(reader)
    if value not in _SORTS:
        raise reader.bad(f"unsupported sort {value:#04x}")
    return _SORTS[value]


def _extern_name(reader: Reader) -> str:
    form = reader.byte("a name")
    if form > 1:
        raise reader.bad(f"unsupported form of name {form:#04x}")
    return reader.name()


def _skip_extern_type(reader: Reader) -> Sort:
    """Read the type of an import or export for the sort it tells."""
    sort = _sort(reader)
    match sort:
        case Sort.FUNCTION | Sort.COMPONENT | Sort.INSTANCE | Sort.CORE_MODULE:
            reader.unsigned()
        case Sort.TYPE:
            bound = reader.byte("a type bound")
            if bound > 1:
                raise reader.bad(f"unsupported type bound {bound:#04x}")
            if bound == 0:
                reader.unsigned()
        case _:
            raise reader.bad(f"unsupported import or export of a {sort.name.lower()}")
    return sort


_OPTION_SORTS = {0x03: Sort.CORE_MEMORY, 0x04: Sort.CORE_FUNCTION, 0x05: Sort.CORE_FUNCTION}


def _options(component: Component, reader: Reader) -> Options:
    numbers: dict[int, int] = {}
    for _ in range(reader.count("options")):
        option = reader.byte("an option")
        if option == 0x00:  # UTF-8, which is what the guest speaks.
            continue
        if option not in _OPTION_SORTS or option in numbers:
            raise reader.bad(f"unsupported canonical option {option:#04x}")
        numbers[option] = component.index(reader, _OPTION_SORTS[option])
    return Options(
        memory=numbers.get(0x03), realloc=numbers.get(0x04), post_return=numbers.get(0x05)
    )


# The sections.


def _skip(component: Component, reader: Reader) -> None:
    """Leave custom sections alone: they are about the component, not part of it."""


def _read_core_module(component: Component, reader: Reader) -> None:
    component.spaces[Sort.CORE_MODULE].append(CoreModule(reader.position, reader.end))


def _core_argument(component: Component, reader: Reader) -> tuple[str, int]:
    name = reader.name()
    sort = _core_sort(reader)
    if sort is not Sort.CORE_INSTANCE:
        raise reader.bad(f"unsupported core argument of sort {sort.name.lower()}")
    return name, component.index(reader, sort)


def _core_export(component: Component, reader: Reader) -> tuple[str, tuple[Sort, int]]:
    name, sort = reader.name(), _core_sort(reader)
    return name, (sort, component.index(reader, sort))


def _core_instance(component: Component, reader: Reader) -> Entry:
    form = reader.byte("a core instance")
    match form:
        case 0x00:
            module = component.index(reader, Sort.CORE_MODULE)
            arguments = reader.vector(lambda each: _core_argument(component, each), "arguments")
            return Instantiation(module, dict(arguments))
        case 0x01:
            exports = reader.vector(lambda each: _core_export(component, each), "exports")
            return Bundle(dict(exports))
    raise reader.bad(f"unsupported core instance {form:#04x}")


def _read_core_instances(component: Component, reader: Reader) -> None:
    for _ in range(reader.count("core instances")):
        component.spaces[Sort.CORE_INSTANCE].append(_core_instance(component, reader))
    reader.done("core instances")


def _counted(sort: Sort) -> Callable[[Component, Reader], None]:
    def read(component: Component, reader: Reader) -> None:
        component.spaces[sort] += [Opaque()] * reader.count("types")

    return read


def _read_nested(component: Component, reader: Reader) -> None:
    component.spaces[Sort.COMPONENT].append(Opaque())


def _instance(component: Component, reader: Reader) -> Entry:
    """Read what an instance is made of, for its length only: no core function hangs on it."""
    form = reader.byte("an instance")
    match form:
        case 0x00:
            component.index(reader, Sort.COMPONENT)
            read_name: Callable[[Reader], str] = Reader.name
        case 0x01:
            read_name = _extern_name
        case _:
            raise reader.bad(f"unsupported instance {form:#04x}")
    reader.vector(lambda each: (read_name(each), _sort(each), each.unsigned()), "arguments")
    return Opaque()


def _read_instances(component: Component, reader: Reader) -> None:
    for _ in range(reader.count("instances")):
        component.spaces[Sort.INSTANCE].append(_instance(component, reader))
    reader.done("instances")


def _read_aliases(component: Component, reader: Reader) -> None:
    for _ in range(reader.count("aliases")):
        sort = _sort(reader)
        form = reader.byte("an alias")
        # Core aliases name core instances and the others do not; the sort tells which.
        core = len(sort.value) == 2
        if form != (0x01 if core else 0x00):
            raise reader.bad(f"unsupported alias {form:#04x} of a {sort.name.lower()}")
        instance = component.index(reader, Sort.CORE_INSTANCE if core else Sort.INSTANCE)
        component.spaces[sort].append(ExportOf(instance, reader.name()))
    reader.done("aliases")


def _read_canonical(component: Component, reader: Reader) -> None:
    for _ in range(reader.count("canonical functions")):
        form = reader.byte("a canonical function")
        if form in (0x00, 0x01) and reader.byte("a canonical function") != 0x00:
            raise reader.bad("unsupported canonical function")
        match form:
            case 0x00:
                function = component.index(reader, Sort.CORE_FUNCTION)
                options = _options(component, reader)
                component.index(reader, Sort.TYPE)
                component.spaces[Sort.FUNCTION].append(Lift(function, options))
            case 0x01:
                function = component.index(reader, Sort.FUNCTION)
                lower = Lower(function, _options(component, reader))
                component.spaces[Sort.CORE_FUNCTION].append(lower)
            case 0x03:
                drop = ResourceDrop(component.index(reader, Sort.TYPE))
                component.spaces[Sort.CORE_FUNCTION].append(drop)
            case _:
                raise reader.bad(f"unsupported canonical function {form:#04x}")
    reader.done("canonical functions")


def _read_imports(component: Component, reader: Reader) -> None:
    for _ in range(reader.count("imports")):
        name = _extern_name(reader)
        component.spaces[_skip_extern_type(reader)].append(Imported(name))
    reader.done("imports")


def _read_exports(component: Component, reader: Reader) -> None:
    for _ in range(reader.count("exports")):
        name, sort = _extern_name(reader), _sort(reader)
        index = component.index(reader, sort)
        if reader.byte("an optional type"):
            _skip_extern_type(reader)
        if name in component.exports:
            raise reader.bad(f"export {name!r} twice")
        component.exports[name] = sort, index
        component.spaces[sort].append(Same(index))
    reader.done("exports")


_READERS: dict[int, Callable[[Component, Reader], None]] = {
    0: _skip,
    1: _read_core_module,
    2: _read_core_instances,
    3: _counted(Sort.CORE_TYPE),
    4: _read_nested,
    5: _read_instances,
    6: _read_aliases,
    7: _counted(Sort.TYPE),
    8: _read_canonical,
    10: _read_imports,
    11: _read_exports,
}
