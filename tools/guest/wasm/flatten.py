"""From a component's plan to parts for the merger.

Each import of a core module is followed, through bundles and aliases, to the export of another
core module or to a function from outside. Outside functions of our own interface become imports
from `HOST`; the others are collected as `Outside`, for the virtual WASI to write.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tools.guest.wasm.binary import BadWasm
from tools.guest.wasm.component import (
    Bundle,
    Component,
    CoreModule,
    Entry,
    ExportOf,
    Imported,
    Instantiation,
    Lift,
    Lower,
    Options,
    ResourceDrop,
    Same,
    Sort,
)
from tools.guest.wasm.module import FunctionType, Kind, SignatureIndex, parse_module
from tools.guest.wasm.numbering import HOST, Part, Target

__all__ = [
    "OUTSIDE_MEMORY",
    "OUTSIDE_PLAIN",
    "Outside",
    "Plan",
    "flatten",
]

_SORT_OF = {
    Kind.FUNCTION: Sort.CORE_FUNCTION,
    Kind.TABLE: Sort.CORE_TABLE,
    Kind.MEMORY: Sort.CORE_MEMORY,
    Kind.GLOBAL: Sort.CORE_GLOBAL,
    Kind.TAG: Sort.CORE_TAG,
}

# Labels of the parts that hold the outside functions: those that touch no memory come before all
# modules, those that do come after the module that has it.
OUTSIDE_PLAIN = "wasi.plain"
OUTSIDE_MEMORY = "wasi.memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """A function from outside that some core module imports."""

    target: Target
    interface: str  # Without its version.
    function: str
    type: FunctionType
    realloc: Target | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to merge. `outside` is in the order of the targets' names."""

    parts: tuple[Part, ...]
    outside: tuple[Outside, ...]
    memory: Target
    stack_pointer: Target
    run: Target
    post_return: Target | None


def flatten(component: Component, *, host_interface: str, entry: str = "run") -> Plan:
    """Follow every import of every core module, and find the exported function `entry`."""
    return _Flattener(component, host_interface).plan(entry)


@dataclass(frozen=True, slots=True)
class _Import:
    interface: str
    function: str
    options: Options


@dataclass(slots=True)
class _Flattener:
    component: Component
    host_interface: str
    outside: dict[Target, _Import] = field(default_factory=dict)
    types: dict[Target, FunctionType] = field(default_factory=dict)

    def plan(self, entry: str) -> Plan:
        lift = self._lift(entry)
        parts = self._parts()
        outside = [self._outside(target) for target in sorted(self.outside, key=str)]
        post_return = lift.options.post_return
        return Plan(
            parts=tuple(parts),
            outside=tuple(outside),
            memory=self._memory(parts),
            stack_pointer=self._only("__stack_pointer", Kind.GLOBAL, parts),
            run=self._core(Sort.CORE_FUNCTION, lift.function),
            post_return=None
            if post_return is None
            else self._core(Sort.CORE_FUNCTION, post_return),
        )

    def _parts(self) -> list[Part]:
        parts = []
        used: set[int] = set()
        for number, entry in enumerate(self.component.spaces[Sort.CORE_INSTANCE]):
            if not isinstance(entry, Instantiation):
                continue
            if entry.module in used:
                # Three bytes could otherwise ask for one more copy of a whole module.
                raise BadWasm(f"core module {entry.module} is instantiated twice")
            used.add(entry.module)
            parts.append(self._part(_label(number), entry))
        return parts

    def _part(self, label: str, entry: Instantiation) -> Part:
        found = self.component.entry(Sort.CORE_MODULE, entry.module)
        if not isinstance(found, CoreModule):
            raise BadWasm(f"core module {entry.module} is not in the component")
        module = parse_module(self.component.data, start=found.start, end=found.end)
        links = []
        for wanted in module.imports:
            if wanted.module not in entry.arguments:
                raise BadWasm(f"{label}: nothing is given for imports from {wanted.module!r}")
            sort = _SORT_OF[wanted.kind]
            found_link = self._export(sort, entry.arguments[wanted.module], wanted.name)
            link = found_link if isinstance(found_link, Target) else self._core(sort, found_link)
            if link in self.outside and isinstance(wanted.type, SignatureIndex):
                self._note_type(link, module.types[wanted.type.index])
            links.append(link)
        return Part(label, module, tuple(links))

    def _note_type(self, target: Target, signature: FunctionType) -> None:
        if self.types.setdefault(target, signature) != signature:
            raise BadWasm(f"{target} is imported with two types")

    # Following names.

    def _core(self, sort: Sort, index: int) -> Target:
        entry = self.component.entry(sort, index)
        # A loop and not a recursion: a component may stack any number of bundles.
        while isinstance(entry, ExportOf):
            found = self._export(sort, entry.instance, entry.name)
            if isinstance(found, Target):
                return found
            index, entry = found, self.component.entry(sort, found)
        match entry:
            case Lower(function=function, options=options):
                interface, name = self._imported(Sort.FUNCTION, function)
                return self._name_outside(index, _Import(interface, name, options))
            case ResourceDrop(type=kind):
                interface, name = self._imported(Sort.TYPE, kind)
                drop = _Import(interface, f"[resource-drop]{name}", Options())
                return self._name_outside(index, drop)
        raise BadWasm(f"unsupported {sort.name.lower()} {index}: {_describe(entry)}")

    def _export(self, sort: Sort, instance: int, name: str) -> Target | int:
        """Look an export up: in a module it is a target, in a bundle the number of an entry."""
        entry = self.component.entry(Sort.CORE_INSTANCE, instance)
        if isinstance(entry, Instantiation):
            return Target(_label(instance), name)
        if not isinstance(entry, Bundle) or name not in entry.exports:
            raise BadWasm(f"core instance {instance} has no export {name!r}")
        found, index = entry.exports[name]
        if found is not sort:
            raise BadWasm(f"export {name!r} of core instance {instance} is a {found.name.lower()}")
        return index

    def _imported(self, sort: Sort, index: int) -> tuple[str, str]:
        """Name an imported function or type by its interface and its name there."""
        entry = self.component.entry(sort, index)
        if isinstance(entry, ExportOf):
            instance = self.component.entry(Sort.INSTANCE, entry.instance)
            if isinstance(instance, Imported):
                return instance.name.split("@")[0], entry.name
        raise BadWasm(f"{sort.name.lower()} {index} does not come from an imported interface")

    def _name_outside(self, index: int, found: _Import) -> Target:
        if found.interface == self.host_interface:
            return Target(HOST, found.function)
        label = OUTSIDE_PLAIN if found.options.memory is None else OUTSIDE_MEMORY
        # One function may be lowered twice, with a different realloc: the number keeps them apart.
        target = Target(label, f"{found.interface}#{found.function}@{index}")
        self.outside[target] = found
        return target

    # What the plan needs by name.

    def _lift(self, name: str) -> Lift:
        sort, index = self.component.exports.get(name, (None, 0))
        if sort is not Sort.FUNCTION:
            raise BadWasm(f"the component exports no function {name!r}")
        entry = self.component.entry(Sort.FUNCTION, index)
        while isinstance(entry, Same):
            entry = self.component.entry(Sort.FUNCTION, entry.index)
        if not isinstance(entry, Lift):
            raise BadWasm(f"the exported function {name!r} is not made of a core function")
        return entry

    def _outside(self, target: Target) -> Outside:
        found = self.outside[target]
        realloc = found.options.realloc
        return Outside(
            target=target,
            interface=found.interface,
            function=found.function,
            type=self.types[target],
            realloc=None if realloc is None else self._core(Sort.CORE_FUNCTION, realloc),
        )

    def _memory(self, parts: list[Part]) -> Target:
        """Find the memory that outside functions are given; it must be one for all."""
        used = {
            self._core(Sort.CORE_MEMORY, found.options.memory)
            for found in self.outside.values()
            if found.options.memory is not None
        }
        if len(used) > 1:
            raise BadWasm("outside functions are given more than one memory")
        return used.pop() if used else self._only("memory", Kind.MEMORY, parts)

    def _only(self, name: str, kind: Kind, parts: list[Part]) -> Target:
        found = [
            Target(part.label, name)
            for part in parts
            if any(each.name == name and each.kind is kind for each in part.module.exports)
        ]
        if len(found) != 1:
            raise BadWasm(f"{len(found)} core modules export a {kind.name.lower()} {name!r}")
        return found[0]


def _label(instance: int) -> str:
    return f"core.{instance}"


def _describe(entry: Entry) -> str:
    return type(entry).__name__.lower()
