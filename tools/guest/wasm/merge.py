"""The static merger: several core modules that import from one another become one.

Rule 1: a function nobody can reach is blanked: its body is replaced by a trap and not even read.
Numbers of functions stay as they are, so nothing else moves.
Rule 2: whatever a reachable function can change is in memory or in an exported global. What is
neither (table entries, dropped segments) is reported, for the builder to refuse.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tools.guest.wasm import binary
from tools.guest.wasm.binary import I32, BadWasm
from tools.guest.wasm.module import SECTION_ORDER, FunctionType, Kind
from tools.guest.wasm.numbering import HOST, Item, NumberedGlobal, Numbering, Part, Target
from tools.guest.wasm.rewrite import BLANK_BODY, CALL, Body, BodyRewriter

__all__ = [
    "Merged",
    "merge",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """One module, and what the merger learned about it."""

    data: bytes
    # Exported mutable globals, by merged index: with memory, all that a run can change.
    state: tuple[str, ...]
    # What reachable functions, start functions aside, change that no snapshot can carry.
    unseen_writes: tuple[str, ...]
    functions: int
    functions_blank: int


def merge(
    parts: Sequence[Part], *, keep: Mapping[str, Target], grow: Target | None = None
) -> Merged:
    """Join `parts` into one module that exports `keep`.

    With `grow`, every reachable `memory.grow` becomes a call of that function, except in the
    function itself. Each mutable global that a reachable function writes is exported too, under
    its name in `keep` or as `state.N`, N being its index.
    """
    numbering = Numbering(parts)
    exports = {name: numbering.find(target) for name, target in keep.items()}
    bodies = _Bodies(numbering, grow=None if grow is None else _grow_function(numbering, grow))
    bodies.reach(numbering.held)
    bodies.reach(item.index for item in exports.values() if item.kind is Kind.FUNCTION)
    unseen_writes = bodies.unseen_writes()
    bodies.reach(numbering.starts)
    state = _state(numbering, exports, bodies.globals_written())
    return Merged(
        data=_encode(numbering, exports | state, bodies.codes()),
        state=tuple(state),
        unseen_writes=unseen_writes,
        functions=len(numbering.sources),
        functions_blank=len(numbering.sources) - bodies.reached,
    )


def _grow_function(numbering: Numbering, target: Target) -> int:
    index = numbering.find(target, Kind.FUNCTION).index
    if numbering.signatures[index] != FunctionType((I32,), (I32,)):
        raise BadWasm(f"{target} is not a function from i32 to i32")
    return index


def _state(
    numbering: Numbering, exports: Mapping[str, Item], written: Iterable[int]
) -> dict[str, Item]:
    names = {
        item.index: name
        for name, item in exports.items()
        if item.kind is Kind.GLOBAL and numbering.globals[item.index].type.mutable
    }
    for index in written:
        names.setdefault(index, f"state.{index}")
    return {names[index]: Item(Kind.GLOBAL, index) for index in sorted(names)}


class _Bodies:
    """The bodies that can be reached, rewritten as they are found."""

    def __init__(self, numbering: Numbering, *, grow: int | None) -> None:
        self._numbering = numbering
        self._grow = grow
        self._imported = len(numbering.host)
        self._found: dict[int, Body] = {}
        self._rewriters = [
            BodyRewriter(part.module.data, maps, grow=grow)
            for part, maps in zip(numbering.parts, numbering.maps, strict=True)
        ]

    @property
    def reached(self) -> int:
        return len(self._found)

    def reach(self, functions: Iterable[int]) -> None:
        """Rewrite these functions and all that they can come to call."""
        waiting = list(functions)
        while waiting:
            function = waiting.pop()
            if function < self._imported or function in self._found:
                continue
            body = self._rewrite(function)
            self._found[function] = body
            waiting.extend(body.functions)

    def _rewrite(self, function: int) -> Body:
        source = self._numbering.sources[function - self._imported]
        rewriter = self._rewriters[source.part]
        if function == self._grow:
            # The one place where memory really grows.
            part, maps = self._numbering.parts[source.part], self._numbering.maps[source.part]
            rewriter = BodyRewriter(part.module.data, maps, grow=None)
        return rewriter.rewrite(source.start, source.end)

    def unseen_writes(self) -> tuple[str, ...]:
        return tuple(
            f"function {function} changes {what}"
            for function, body in sorted(self._found.items())
            for what in body.unseen_writes
        )

    def globals_written(self) -> frozenset[int]:
        return frozenset().union(*(body.globals_written for body in self._found.values()))

    def codes(self) -> list[bytes]:
        blank = BLANK_BODY
        functions = range(self._imported, self._imported + len(self._numbering.sources))
        return [self._found[i].code if i in self._found else blank for i in functions]


def _encode(numbering: Numbering, exports: Mapping[str, Item], codes: list[bytes]) -> bytes:
    signatures = numbering.signatures[len(numbering.host) :]
    sections: dict[int, bytes] = {}
    if numbering.starts:
        # One function that calls the start functions in the order of their parts.
        calls = b"".join(CALL + binary.unsigned(each) for each in numbering.starts)
        sections[8] = binary.unsigned(len(numbering.signatures))
        codes = [*codes, b"\0" + calls + b"\x0b"]
        signatures = [*signatures, FunctionType((), ())]
    if numbering.segments:
        sections[12] = binary.unsigned(len(numbering.segments))
    type_index = numbering.type_index
    vectors = {
        2: [
            binary.name(HOST) + binary.name(name) + b"\0" + binary.unsigned(type_index(signature))
            for name, signature in numbering.host.items()
        ],
        3: [binary.unsigned(type_index(signature)) for signature in signatures],
        4: [bytes([each.reference]) + binary.limits(each.limits) for each in numbering.tables],
        5: [binary.limits(each) for each in numbering.memories],
        13: [b"\0" + binary.unsigned(type_index(signature)) for signature in numbering.tags],
        6: [_encode_global(each) for each in numbering.globals],
        7: [
            binary.name(name) + bytes([item.kind]) + binary.unsigned(item.index)
            for name, item in exports.items()
        ],
        9: numbering.elements,
        10: [binary.unsigned(len(code)) + code for code in codes],
        11: numbering.segments,
        # Last, because those above may still have added to it.
        1: [_encode_type(signature) for signature in numbering.types],
    }
    sections |= {number: binary.vector(items) for number, items in vectors.items() if items}
    present = [number for number in SECTION_ORDER if number in sections]
    return binary.MODULE_HEADER + b"".join(binary.section(i, sections[i]) for i in present)


def _encode_type(signature: FunctionType) -> bytes:
    parameters = binary.unsigned(len(signature.parameters)) + bytes(signature.parameters)
    return b"\x60" + parameters + binary.unsigned(len(signature.results)) + bytes(signature.results)


def _encode_global(each: NumberedGlobal) -> bytes:
    return bytes([each.type.value, each.type.mutable]) + each.initial.expression
