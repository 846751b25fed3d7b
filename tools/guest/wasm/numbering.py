"""Which number everything gets in the merged module.

Rule 1: a part may import from earlier parts and from `HOST`, and from nowhere else. What is left
as an import of the merged module is therefore what a guest can ask of the world.
Rule 2: what is imported must have the type it is imported with, as if it were linked live.

Live linking runs each part's start function before the next part's segments are copied; in one
module all segments are copied first. Where that could be seen, the merge is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tools.guest.wasm import binary
from tools.guest.wasm.binary import BadWasm, Limits
from tools.guest.wasm.constant import Constant, Expression, fold
from tools.guest.wasm.module import (
    Data,
    Element,
    FunctionType,
    GlobalType,
    Import,
    Kind,
    Module,
    SignatureIndex,
    TableType,
    parse_module,
)
from tools.guest.wasm.rewrite import IndexMaps

__all__ = [
    "HOST",
    "Item",
    "NumberedGlobal",
    "Numbering",
    "Part",
    "Source",
    "Target",
]

HOST = "host"


@dataclass(frozen=True, slots=True)
class Target:
    """Something a part exports, named by the part's label and the export."""

    label: str
    name: str

    def __str__(self) -> str:
        return f"{self.label}.{self.name}"


@dataclass(frozen=True, slots=True)
class Part:
    """A module to merge. `links` says, import by import, what each one is."""

    label: str
    module: Module
    links: tuple[Target, ...]

    @classmethod
    def of(cls, label: str, data: bytes) -> Part:
        """Make a part of a module whose imports already name parts and their exports."""
        module = parse_module(bytes(data))
        return cls(label, module, tuple(Target(each.module, each.name) for each in module.imports))


@dataclass(frozen=True, slots=True)
class Item:
    """Something in one of the merged index spaces."""

    kind: Kind
    index: int


@dataclass(frozen=True, slots=True)
class NumberedGlobal:
    """A global whose initial value is known."""

    type: GlobalType
    initial: Constant


@dataclass(frozen=True, slots=True)
class Source:
    """Where the body of a merged function is to be found."""

    part: int
    start: int
    end: int


@dataclass(slots=True)
class _Spaces:
    """A part's index spaces while it is numbered, as lists of merged indices."""

    types: list[int]
    of_kind: dict[Kind, list[int]] = field(default_factory=lambda: {kind: [] for kind in Kind})


class Numbering:
    """The merged module without its code. Lists are in the order of the merged indices."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        self.types: dict[FunctionType, int] = {}
        self.host: dict[str, FunctionType] = {}
        # Imported functions are numbered before all others, so they must be known first.
        for part in parts:
            self._collect_host(part)
        self.host_indices = {name: index for index, name in enumerate(self.host)}
        # Of every function, the imported ones too; `sources` has only those with a body.
        self.signatures = list(self.host.values())
        self.sources: list[Source] = []
        self.tables: list[TableType] = []
        self.memories: list[Limits] = []
        self.globals: list[NumberedGlobal] = []
        self.tags: list[FunctionType] = []
        self.exports: dict[Target, Item] = {}
        self.elements: list[bytes] = []
        self.segments: list[bytes] = []
        self.starts: list[int] = []
        # Functions that a table or a global holds: they can be called without being named.
        self.held: set[int] = set()
        self.maps: list[IndexMaps] = []
        for part in parts:
            self._add(part)

    def type_index(self, signature: FunctionType) -> int:
        return self.types.setdefault(signature, len(self.types))

    def find(self, target: Target, kind: Kind | None = None) -> Item:
        item = self.exports.get(target)
        if item is None or kind not in (None, item.kind):
            what = "" if kind is None else f" as a {kind.name.lower()}"
            raise BadWasm(f"no part exports {target}{what}")
        return item

    def _collect_host(self, part: Part) -> None:
        imports = part.module.imports
        if len(part.links) != len(imports):
            raise BadWasm(f"{part.label}: {len(imports)} imports, {len(part.links)} links")
        for link, wanted in zip(part.links, imports, strict=True):
            if link.label != HOST:
                continue
            if wanted.kind is not Kind.FUNCTION or not isinstance(wanted.type, SignatureIndex):
                raise BadWasm(f"{part.label}: {link} is not a function")
            signature = part.module.types[wanted.type.index]
            if self.host.setdefault(link.name, signature) != signature:
                raise BadWasm(f"{part.label}: {link} has another type in an earlier part")

    def _add(self, part: Part) -> None:
        module = part.module
        spaces = _Spaces([self.type_index(signature) for signature in module.types])
        for link, wanted in zip(part.links, module.imports, strict=True):
            spaces.of_kind[wanted.kind].append(self._resolve(part, link, wanted))
        self._define(part, spaces)
        self._define_globals(module, spaces)
        maps = self._index_maps(module, spaces)
        self.maps.append(maps)
        self._place_segments(part, maps)
        for export in module.exports:
            target = Target(part.label, export.name)
            if target in self.exports:
                raise BadWasm(f"{target} is exported twice")
            self.exports[target] = Item(export.kind, spaces.of_kind[export.kind][export.index])
        if module.start is not None:
            self.starts.append(self._start_function(part, maps.functions[module.start]))

    def _index_maps(self, module: Module, spaces: _Spaces) -> IndexMaps:
        return IndexMaps(
            types=spaces.types,
            functions=spaces.of_kind[Kind.FUNCTION],
            tables=spaces.of_kind[Kind.TABLE],
            globals=spaces.of_kind[Kind.GLOBAL],
            tags=spaces.of_kind[Kind.TAG],
            element_base=len(self.elements),
            element_count=len(module.elements),
            segment_base=len(self.segments),
            segment_count=len(module.segments),
            has_memory=bool(spaces.of_kind[Kind.MEMORY]),
        )

    def _resolve(self, part: Part, link: Target, wanted: Import) -> int:
        if link.label == HOST:
            return self.host_indices[link.name]
        item = self.exports.get(link)
        if item is None:
            raise BadWasm(f"{part.label}: no earlier part exports {link}")
        if item.kind is not wanted.kind or not self._fits(part.module, wanted, item.index):
            raise BadWasm(f"{part.label}: {link} is not of the type it is imported with")
        return item.index

    def _fits(self, module: Module, wanted: Import, index: int) -> bool:
        match wanted.type:
            case SignatureIndex(index=type_index):
                spaces = self.signatures if wanted.kind is Kind.FUNCTION else self.tags
                return spaces[index] == module.types[type_index]
            case TableType(reference=reference, limits=limits):
                table = self.tables[index]
                return table.reference == reference and limits.admits(table.limits)
            case Limits() as limits:
                return limits.admits(self.memories[index])
            case GlobalType() as kind:
                return self.globals[index].type == kind

    def _define(self, part: Part, spaces: _Spaces) -> None:
        module, number = part.module, len(self.maps)
        for type_index, (start, end) in zip(module.functions, module.bodies, strict=True):
            spaces.of_kind[Kind.FUNCTION].append(len(self.signatures))
            self.signatures.append(module.types[type_index])
            self.sources.append(Source(number, start, end))
        for table in module.tables:
            spaces.of_kind[Kind.TABLE].append(len(self.tables))
            self.tables.append(table)
        for memory in module.memories:
            spaces.of_kind[Kind.MEMORY].append(len(self.memories))
            self.memories.append(memory)
        for tag in module.tags:
            spaces.of_kind[Kind.TAG].append(len(self.tags))
            self.tags.append(module.types[tag])
        if len(self.memories) > 1 or len(spaces.of_kind[Kind.MEMORY]) > 1:
            raise BadWasm(f"{part.label}: more than one memory")

    def _define_globals(self, module: Module, spaces: _Spaces) -> None:
        numbers = spaces.of_kind[Kind.GLOBAL]
        for each in module.globals:
            initial = self._fold(each.initial, numbers, spaces.of_kind[Kind.FUNCTION])
            numbers.append(len(self.globals))
            self.globals.append(NumberedGlobal(each.type, initial))

    def _start_function(self, part: Part, index: int) -> int:
        if self.signatures[index] != FunctionType((), ()):
            raise BadWasm(f"{part.label}: the start function takes or gives something")
        return index

    def _fold(
        self, expression: Expression, globals_: Sequence[int], functions: Sequence[int]
    ) -> Constant:
        def global_value(old: int) -> Constant:
            found = self.globals[globals_[old]]
            if found.type.mutable:
                raise BadWasm(f"global {old} in a constant expression can change")
            return found.initial

        constant = fold(
            expression, global_value=global_value, function_index=lambda old: functions[old]
        )
        if constant.function is not None:
            self.held.add(constant.function)
        return constant

    def _place_segments(self, part: Part, maps: IndexMaps) -> None:
        module = part.module
        placements = [each.placement for each in module.elements]
        placements += [each.placement for each in module.segments]
        if any(placements) and self.starts:
            raise BadWasm(f"{part.label}: segments to copy after an earlier part has started")
        self.elements += [self._element(each, maps) for each in module.elements]
        self.segments += [self._segment(each, maps) for each in module.segments]

    def _element(self, element: Element, maps: IndexMaps) -> bytes:
        items: list[bytes] = []
        # Function indices are the short form, for functions only.
        expressions = element.reference != binary.FUNCREF
        for item in element.items:
            if isinstance(item, int):
                items.append(binary.unsigned(maps.functions[item]))
                self.held.add(maps.functions[item])
            else:
                expressions = True
                items.append(self._fold(item, maps.globals, maps.functions).expression)
        return self._element_head(element, maps, expressions=expressions) + binary.vector(items)

    def _element_head(self, element: Element, maps: IndexMaps, *, expressions: bool) -> bytes:
        reference = bytes([element.reference if expressions else 0])
        form = 4 if expressions else 0
        if element.placement is None:
            return bytes([form | (3 if element.declarative else 1)]) + reference
        table = binary.unsigned(maps.tables[element.placement.index])
        offset = self._fold(element.placement.offset, maps.globals, maps.functions)
        return bytes([form | 2]) + table + offset.expression + reference

    def _segment(self, segment: Data, maps: IndexMaps) -> bytes:
        content = binary.unsigned(len(segment.content)) + segment.content
        if segment.placement is None:
            return b"\1" + content
        offset = self._fold(segment.placement.offset, maps.globals, maps.functions)
        return b"\0" + offset.expression + content
