"""A core WebAssembly module, taken apart: everything but the function bodies, which stay bytes.

Every index in a parsed `Module` is known to lie inside its index space, so those who renumber
them may use them as positions in a list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

from tools.guest.wasm.binary import (
    FUNCREF,
    MODULE_HEADER,
    BadWasm,
    Limits,
    Reader,
    Section,
    sections,
)
from tools.guest.wasm.constant import Expression, read_expression

__all__ = [
    "SECTION_ORDER",
    "Data",
    "Element",
    "Export",
    "FunctionType",
    "Global",
    "GlobalType",
    "Import",
    "ImportType",
    "Kind",
    "Module",
    "Placement",
    "SignatureIndex",
    "TableType",
    "parse_module",
]


class Kind(IntEnum):
    """What can be imported and exported. The numbers are those of the binary format."""

    FUNCTION = 0
    TABLE = 1
    MEMORY = 2
    GLOBAL = 3
    TAG = 4


@dataclass(frozen=True, slots=True)
class FunctionType:
    """The types a function takes and gives, as bytes of the format."""

    parameters: tuple[int, ...]
    results: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TableType:
    """What a table holds, and how much of it."""

    reference: int
    limits: Limits


@dataclass(frozen=True, slots=True)
class GlobalType:
    """What a global holds, and whether it may change."""

    value: int
    mutable: bool


@dataclass(frozen=True, slots=True)
class SignatureIndex:
    """The type of a function or a tag: an index into the types of its module."""

    index: int


# Tags and the count of data segments came to the format late and stand before what needs them.
SECTION_ORDER = (1, 2, 3, 4, 5, 13, 6, 7, 8, 9, 12, 10, 11)

ImportType = SignatureIndex | TableType | Limits | GlobalType


@dataclass(frozen=True, slots=True)
class Import:
    """What a module asks for, under the names it uses itself."""

    module: str
    name: str
    kind: Kind
    type: ImportType


@dataclass(frozen=True, slots=True)
class Global:
    """A global a module defines."""

    type: GlobalType
    initial: Expression


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an active segment is copied to when the module starts."""

    index: int
    offset: Expression


@dataclass(frozen=True, slots=True)
class Element:
    """A run of references. `items` are function indices or one expression for each entry."""

    placement: Placement | None
    declarative: bool
    reference: int
    items: tuple[int, ...] | tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Data:
    """A run of bytes for memory."""

    placement: Placement | None
    content: bytes


@dataclass(frozen=True, slots=True)
class Export:
    """What a module gives, in its own index space."""

    name: str
    kind: Kind
    index: int


@dataclass(slots=True)
class Module:
    """A module's own view of itself. `spaces` counts imports and definitions together."""

    data: bytes
    types: list[FunctionType] = field(default_factory=list)
    imports: list[Import] = field(default_factory=list)
    functions: list[int] = field(default_factory=list)
    tables: list[TableType] = field(default_factory=list)
    memories: list[Limits] = field(default_factory=list)
    tags: list[int] = field(default_factory=list)
    globals: list[Global] = field(default_factory=list)
    exports: list[Export] = field(default_factory=list)
    start: int | None = None
    elements: list[Element] = field(default_factory=list)
    bodies: list[tuple[int, int]] = field(default_factory=list)
    segments: list[Data] = field(default_factory=list)
    segment_count: int | None = None
    spaces: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))


def parse_module(data: bytes, *, start: int = 0, end: int | None = None) -> Module:
    """Take the module in `data[start:end]` apart."""
    module = Module(data)
    seen = -1
    for section in sections(Reader(data, start=start, end=end), header=MODULE_HEADER):
        if section.id == _CUSTOM:
            continue
        seen = _in_order(section, after=seen)
        _READERS[section.id](module, section.content)
        section.content.done(f"section {section.id}")
    if len(module.bodies) != len(module.functions):
        raise BadWasm(
            f"{len(module.functions)} functions, {len(module.bodies)} bodies", offset=start
        )
    if module.segment_count not in (None, len(module.segments)):
        raise BadWasm(
            f"{module.segment_count} data segments, {len(module.segments)} found", offset=start
        )
    return module


_CUSTOM = 0


def _in_order(section: Section, *, after: int) -> int:
    if section.id not in SECTION_ORDER:
        raise BadWasm(f"unknown section {section.id}", offset=section.start)
    place = SECTION_ORDER.index(section.id)
    if place <= after:
        raise BadWasm(f"section {section.id} twice or out of order", offset=section.start)
    return place


def _function_type(reader: Reader) -> FunctionType:
    form = reader.byte("a function type")
    if form != 0x60:
        raise reader.bad(f"unsupported type {form:#04x}")
    parameters = reader.vector(Reader.value_type, "parameters")
    return FunctionType(tuple(parameters), tuple(reader.vector(Reader.value_type, "results")))


def _table_type(reader: Reader) -> TableType:
    return TableType(reader.reference_type(), reader.limits())


def _global_type(reader: Reader) -> GlobalType:
    value = reader.value_type()
    mutable = reader.byte("a mutability")
    if mutable > 1:
        raise reader.bad(f"unsupported mutability {mutable:#04x}")
    return GlobalType(value, mutable == 1)


def _tag_type(module: Module, reader: Reader) -> SignatureIndex:
    if reader.byte("a tag") != 0:
        raise reader.bad("unsupported kind of tag")
    return SignatureIndex(reader.index(len(module.types), "type"))


def _kind(reader: Reader) -> Kind:
    value = reader.byte("a kind of import or export")
    if value not in list(Kind):
        raise reader.bad(f"unsupported kind {value:#04x}")
    return Kind(value)


def _import_type(module: Module, reader: Reader, kind: Kind) -> ImportType:
    match kind:
        case Kind.FUNCTION:
            return SignatureIndex(reader.index(len(module.types), "type"))
        case Kind.TABLE:
            return _table_type(reader)
        case Kind.MEMORY:
            return reader.limits()
        case Kind.GLOBAL:
            return _global_type(reader)
        case Kind.TAG:
            return _tag_type(module, reader)


def _read_types(module: Module, reader: Reader) -> None:
    module.types = reader.vector(_function_type, "types")


def _read_imports(module: Module, reader: Reader) -> None:
    for _ in range(reader.count("imports")):
        source, name, kind = reader.name(), reader.name(), _kind(reader)
        module.imports.append(Import(source, name, kind, _import_type(module, reader, kind)))
        module.spaces[kind] += 1


def _read_functions(module: Module, reader: Reader) -> None:
    count = len(module.types)
    module.functions = reader.vector(lambda each: each.index(count, "type"), "functions")
    module.spaces[Kind.FUNCTION] += len(module.functions)


def _read_tables(module: Module, reader: Reader) -> None:
    module.tables = reader.vector(_table_type, "tables")
    module.spaces[Kind.TABLE] += len(module.tables)


def _read_memories(module: Module, reader: Reader) -> None:
    module.memories = reader.vector(Reader.limits, "memories")
    module.spaces[Kind.MEMORY] += len(module.memories)


def _read_tags(module: Module, reader: Reader) -> None:
    module.tags = [_tag_type(module, reader).index for _ in range(reader.count("tags"))]
    module.spaces[Kind.TAG] += len(module.tags)


def _expression(module: Module, reader: Reader) -> Expression:
    spaces = module.spaces
    return read_expression(reader, functions=spaces[Kind.FUNCTION], globals_=spaces[Kind.GLOBAL])


def _read_globals(module: Module, reader: Reader) -> None:
    for _ in range(reader.count("globals")):
        kind = _global_type(reader)
        module.globals.append(Global(kind, _expression(module, reader)))
        # Counted one by one: an initial value may use the globals before it, never itself.
        module.spaces[Kind.GLOBAL] += 1


def _read_exports(module: Module, reader: Reader) -> None:
    names: set[str] = set()
    for _ in range(reader.count("exports")):
        name, kind = reader.name(), _kind(reader)
        if name in names:
            raise reader.bad(f"export {name!r} twice")
        names.add(name)
        module.exports.append(Export(name, kind, reader.index(module.spaces[kind], kind.name)))


def _read_start(module: Module, reader: Reader) -> None:
    module.start = reader.index(module.spaces[Kind.FUNCTION], "function")


def _placement(module: Module, reader: Reader, kind: Kind, *, explicit: bool) -> Placement:
    space = module.spaces[kind]
    if explicit:
        index = reader.index(space, kind.name)
    elif space:
        index = 0
    else:
        raise reader.bad(f"a segment for {kind.name} 0 of 0")
    return Placement(index, _expression(module, reader))


def _element(module: Module, reader: Reader) -> Element:
    # Three bits: passive or declarative (else active), an explicit table (or, without a table,
    # declarative), and expressions instead of function indices.
    flags = reader.unsigned()
    if flags > 7:
        raise reader.bad(f"unsupported element segment {flags}")
    placement = None
    if not flags & 1:
        placement = _placement(module, reader, Kind.TABLE, explicit=bool(flags & 2))
    reference = FUNCREF
    items: tuple[int, ...] | tuple[Expression, ...]
    if flags & 4:
        if flags & 3:
            reference = reader.reference_type()
        items = tuple(reader.vector(lambda each: _expression(module, each), "elements"))
    else:
        if flags & 3 and reader.byte("a kind of element") != 0:
            raise reader.bad("unsupported kind of element")
        space = module.spaces[Kind.FUNCTION]
        items = tuple(reader.vector(lambda each: each.index(space, "function"), "elements"))
    return Element(placement, flags & 3 == 3, reference, items)


def _read_elements(module: Module, reader: Reader) -> None:
    module.elements = reader.vector(lambda each: _element(module, each), "element segments")


def _read_segment_count(module: Module, reader: Reader) -> None:
    module.segment_count = reader.unsigned()


def _body(reader: Reader) -> tuple[int, int]:
    body = reader.within(reader.unsigned(), "a function body")
    return body.position, body.end


def _read_bodies(module: Module, reader: Reader) -> None:
    module.bodies = reader.vector(_body, "function bodies")


def _segment(module: Module, reader: Reader) -> Data:
    flags = reader.unsigned()
    if flags > 2:
        raise reader.bad(f"unsupported data segment {flags}")
    placement = None
    if flags != 1:
        placement = _placement(module, reader, Kind.MEMORY, explicit=flags == 2)
    return Data(placement, reader.take(reader.unsigned(), "data"))


def _read_segments(module: Module, reader: Reader) -> None:
    module.segments = reader.vector(lambda each: _segment(module, each), "data segments")


_READERS: dict[int, Callable[[Module, Reader], None]] = {
    1: _read_types,
    2: _read_imports,
    3: _read_functions,
    4: _read_tables,
    5: _read_memories,
    6: _read_globals,
    7: _read_exports,
    8: _read_start,
    9: _read_elements,
    10: _read_bodies,
    11: _read_segments,
    12: _read_segment_count,
    13: _read_tags,
}
