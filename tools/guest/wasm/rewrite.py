"""Function bodies: copied byte for byte, except for the indices, which are renumbered.

A body is walked once, in a loop that looks each opcode up in a list of 256 entries. An entry is
None when nothing follows the opcode, else a method that is given the place after it and returns
the place after what it read. Bytes are copied in runs, from one renumbered index to the next.

The loop reads past the end of a damaged body at its own risk: a body is a separate `bytes`, so
that is an IndexError, and it is caught in one place. Checking every read for it would cost more
than all the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tools.guest.wasm.binary import REFERENCE_TYPES, VALUE_TYPES, BadWasm, signed, unsigned
from tools.guest.wasm.opcodes import BULK_OPCODES, OPCODES, VECTOR_OPCODES, Immediate

__all__ = [
    "BLANK_BODY",
    "CALL",
    "Body",
    "BodyRewriter",
    "IndexMaps",
]

EMPTY_BLOCK = 0x40
CALL = b"\x10"
END = 0x0B

# A function nobody can reach: no locals, `unreachable`, `end`.
BLANK_BODY = b"\x00\x00\x0b"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexMaps:
    """From a module's own numbers to those of the merged module. Position is the old number."""

    types: Sequence[int]
    functions: Sequence[int]
    tables: Sequence[int]
    globals: Sequence[int]
    tags: Sequence[int]
    element_base: int
    element_count: int
    segment_base: int
    segment_count: int
    has_memory: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A renumbered body, and what it does to the rest of the module."""

    code: bytes
    functions: frozenset[int]
    globals_written: frozenset[int]
    # Instructions that change what no snapshot can see: table entries and dropped segments.
    unseen_writes: tuple[str, ...]


Handler = Callable[[int], int]


class BodyRewriter:
    """Rewrites the bodies of one module, one at a time."""

    def __init__(self, data: bytes, maps: IndexMaps, *, grow: int | None) -> None:
        """Take the module's bytes. `grow`, if given, is called in place of `memory.grow`."""
        self._data = data
        self._maps = maps
        self._grow = grow
        self._types = [unsigned(new) for new in maps.types]
        self._functions = [unsigned(new) for new in maps.functions]
        self._tables = [unsigned(new) for new in maps.tables]
        self._globals = [unsigned(new) for new in maps.globals]
        self._tags = [unsigned(new) for new in maps.tags]
        self._handlers = self._table(OPCODES, 0x100)
        self._bulk = self._table(BULK_OPCODES, max(BULK_OPCODES) + 1)
        self._vector = self._table(VECTOR_OPCODES, max(VECTOR_OPCODES) + 1)
        self._reset(0, 0)

    def rewrite(self, start: int, end: int) -> Body:
        """Renumber the body in `data[start:end]`."""
        self._reset(start, end)
        code, handlers, length = self._code, self._handlers, end - start
        try:
            at = self._skip_locals()
            while at < length:
                handler = handlers[code[at]]
                at = at + 1 if handler is None else handler(at + 1)
        except IndexError:
            raise BadWasm("a function body ends inside an instruction", offset=end) from None
        if at != length or code[-1] != END:
            raise BadWasm("a function body ends inside an instruction", offset=end)
        self._chunks.append(code[self._copied :])
        return Body(
            code=b"".join(self._chunks),
            functions=frozenset(self._called),
            globals_written=frozenset(self._written),
            unseen_writes=tuple(self._unseen),
        )

    def _reset(self, start: int, end: int) -> None:
        self._start = start
        self._code = self._data[start:end]
        self._copied = 0
        self._chunks: list[bytes] = []
        self._called: set[int] = set()
        self._written: set[int] = set()
        self._unseen: list[str] = []

    def _table(self, opcodes: dict[int, Immediate], size: int) -> list[Handler | None]:
        handlers = self._handlers_by_immediate()
        return [
            handlers[opcodes[code]] if code in opcodes else self._unknown for code in range(size)
        ]

    def _handlers_by_immediate(self) -> dict[Immediate, Handler | None]:
        handlers: dict[Immediate, Handler | None] = {
            Immediate.NONE: None,
            Immediate.NUMBER_32: self._number_32,
            Immediate.NUMBER_64: self._number_64,
            Immediate.BYTES_4: lambda at: at + 4,
            Immediate.BYTES_8: lambda at: at + 8,
            Immediate.BYTES_16: lambda at: at + 16,
            Immediate.LANE: lambda at: at + 1,
            Immediate.BLOCK: self._block,
            Immediate.TRY_TABLE: self._try_table,
            Immediate.BRANCH_TABLE: self._branch_table,
            Immediate.VALUE_TYPES: self._value_types,
            Immediate.REFERENCE_TYPE: self._reference_type,
            Immediate.MEMORY_ADDRESS: self._memory_address,
            Immediate.MEMORY_ADDRESS_LANE: lambda at: self._memory_address(at) + 1,
            Immediate.MEMORY: self._memory,
            Immediate.MEMORY_PAIR: lambda at: self._memory(self._memory(at)),
            Immediate.MEMORY_GROW: self._memory_grow,
            Immediate.FUNCTION: self._function,
            Immediate.TYPE_TABLE: self._type_table,
            Immediate.GLOBAL: self._global,
            Immediate.GLOBAL_WRITE: self._global_write,
            Immediate.TABLE: self._table_index,
            Immediate.TABLE_WRITE: self._table_write,
            Immediate.TABLE_COPY: lambda at: self._table_index(self._table_write(at)),
            Immediate.TABLE_INIT: lambda at: self._table_write(self._element(at)),
            Immediate.TAG: self._tag,
            Immediate.DATA_MEMORY: lambda at: self._memory(self._segment(at)),
            Immediate.DATA_DROP: self._segment_drop,
            Immediate.ELEMENT_DROP: self._element_drop,
            Immediate.PREFIX_BULK: self._prefix_bulk,
            Immediate.PREFIX_VECTOR: self._prefix_vector,
        }
        return handlers

    def _bad(self, at: int, problem: str) -> BadWasm:
        return BadWasm(problem, offset=self._start + at)

    def _unknown(self, at: int) -> int:
        raise self._bad(at - 1, f"unsupported instruction {self._code[at - 1]:#04x}")

    # Numbers.

    def _skip_number(self, at: int, *, bytes_max: int) -> int:
        code, stop = self._code, at + bytes_max
        while code[at] > 0x7F:
            at += 1
            if at == stop:
                raise self._bad(at, f"a number of more than {bytes_max} bytes")
        return at + 1

    def _number_32(self, at: int) -> int:
        if self._code[at] < 0x80:
            return at + 1
        return self._skip_number(at, bytes_max=5)

    def _number_64(self, at: int) -> int:
        return self._skip_number(at, bytes_max=10)

    def _read(self, at: int) -> tuple[int, int]:
        value = self._code[at]
        if value < 0x80:
            return value, at + 1
        after = self._skip_number(at, bytes_max=5)
        value = 0
        for byte in reversed(self._code[at:after]):
            value = value << 7 | byte & 0x7F
        return value, after

    # Indices.

    def _replace(self, at: int, after: int, new: bytes) -> int:
        self._chunks.append(self._code[self._copied : at])
        self._chunks.append(new)
        self._copied = after
        return after

    def _renumber(self, at: int, table: Sequence[bytes], what: str) -> tuple[int, int]:
        old, after = self._read(at)
        if old >= len(table):
            raise self._bad(at, f"{what} {old} of {len(table)}")
        return old, self._replace(at, after, table[old])

    def _function(self, at: int) -> int:
        old, after = self._renumber(at, self._functions, "function")
        self._called.add(self._maps.functions[old])
        return after

    def _type_table(self, at: int) -> int:
        _, at = self._renumber(at, self._types, "type")
        return self._table_index(at)

    def _global(self, at: int) -> int:
        return self._renumber(at, self._globals, "global")[1]

    def _global_write(self, at: int) -> int:
        old, after = self._renumber(at, self._globals, "global")
        self._written.add(self._maps.globals[old])
        return after

    def _table_index(self, at: int) -> int:
        return self._renumber(at, self._tables, "table")[1]

    def _table_write(self, at: int) -> int:
        self._unseen.append("a table entry")
        return self._table_index(at)

    def _tag(self, at: int) -> int:
        return self._renumber(at, self._tags, "tag")[1]

    def _based(self, at: int, *, base: int, count: int, what: str) -> int:
        old, after = self._read(at)
        if old >= count:
            raise self._bad(at, f"{what} {old} of {count}")
        return self._replace(at, after, unsigned(base + old))

    def _element(self, at: int) -> int:
        base, count = self._maps.element_base, self._maps.element_count
        return self._based(at, base=base, count=count, what="element segment")

    def _segment(self, at: int) -> int:
        base, count = self._maps.segment_base, self._maps.segment_count
        return self._based(at, base=base, count=count, what="data segment")

    def _element_drop(self, at: int) -> int:
        self._unseen.append("a dropped element segment")
        return self._element(at)

    def _segment_drop(self, at: int) -> int:
        self._unseen.append("a dropped data segment")
        return self._segment(at)

    # Types.

    def _block(self, at: int) -> int:
        first = self._code[at]
        if first == EMPTY_BLOCK or first in VALUE_TYPES:
            return at + 1
        old, after = self._read(at)
        # Read as signed, as block types are, this would be negative: some other kind of type.
        if self._code[after - 1] & 0x40:
            raise self._bad(at, f"unsupported block type {first:#04x}")
        if old >= len(self._types):
            raise self._bad(at, f"type {old} of {len(self._types)}")
        return self._replace(at, after, signed(self._maps.types[old]))

    def _try_table(self, at: int) -> int:
        count, at = self._read(self._block(at))
        for _ in range(count):
            clause = self._code[at]
            if clause > 3:
                raise self._bad(at, f"unsupported catch clause {clause:#04x}")
            at = self._tag(at + 1) if clause < 2 else at + 1
            at = self._number_32(at)
        return at

    def _branch_table(self, at: int) -> int:
        count, at = self._read(at)
        for _ in range(count + 1):
            at = self._number_32(at)
        return at

    def _value_types(self, at: int) -> int:
        count, at = self._read(at)
        for _ in range(count):
            at = self._one_of(at, VALUE_TYPES, "value type")
        return at

    def _reference_type(self, at: int) -> int:
        return self._one_of(at, REFERENCE_TYPES, "reference type")

    def _one_of(self, at: int, types: dict[int, str] | frozenset[int], what: str) -> int:
        if self._code[at] not in types:
            raise self._bad(at, f"unsupported {what} {self._code[at]:#04x}")
        return at + 1

    def _skip_locals(self) -> int:
        count, at = self._read(0)
        for _ in range(count):
            at = self._one_of(self._number_32(at), VALUE_TYPES, "value type")
        return at

    # Memory. There is one, number 0 on both sides, so its index is checked and not rewritten.

    def _needs_memory(self, at: int) -> None:
        if not self._maps.has_memory:
            raise self._bad(at - 1, "a memory instruction in a module without memory")

    def _memory_address(self, at: int) -> int:
        self._needs_memory(at)
        if self._code[at] >= 0x40:
            raise self._bad(at, f"unsupported alignment {self._code[at]:#04x}")
        return self._number_32(at + 1)

    def _memory(self, at: int) -> int:
        self._needs_memory(at)
        if self._code[at] != 0:
            raise self._bad(at, f"memory {self._code[at]} of 1")
        return at + 1

    def _memory_grow(self, at: int) -> int:
        after = self._memory(at)
        if self._grow is None:
            return after
        self._called.add(self._grow)
        return self._replace(at - 1, after, CALL + unsigned(self._grow))

    # Prefixes.

    def _prefixed(self, at: int, handlers: Sequence[Handler | None], prefix: int) -> int:
        code, after = self._read(at)
        handler = handlers[code] if code < len(handlers) else self._unknown
        if handler is None:
            return after
        if handler == self._unknown:
            raise self._bad(at - 1, f"unsupported instruction {prefix:#04x} {code:#04x}")
        return handler(after)

    def _prefix_bulk(self, at: int) -> int:
        return self._prefixed(at, self._bulk, 0xFC)

    def _prefix_vector(self, at: int) -> int:
        return self._prefixed(at, self._vector, 0xFD)
