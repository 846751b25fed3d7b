"""The instructions the merger knows, and what follows each one in the binary.

Rule 1: an instruction that is not in these tables is refused. It is never skipped, because what
follows it could then be taken for something else.
Rule 2: an instruction is listed with the indices it carries, so that adding one says at the same
time how it is renumbered.

Left out on purpose: threads (0xFE), garbage collection (0xFB), typed function references and the
older exception instructions, which no module we merge has, and the relaxed vector instructions,
whose results may differ from one processor to the next: a run could not be replayed elsewhere.
"""

from __future__ import annotations

from enum import IntEnum, auto

__all__ = [
    "BULK_OPCODES",
    "OPCODES",
    "VECTOR_OPCODES",
    "Immediate",
]


class Immediate(IntEnum):
    """What stands after an opcode."""

    NONE = auto()
    NUMBER_32 = auto()  # A LEB128 number that stays as it is: a label, a local, a constant.
    NUMBER_64 = auto()
    BYTES_4 = auto()
    BYTES_8 = auto()
    BYTES_16 = auto()
    LANE = auto()
    BLOCK = auto()  # A block type: one byte, or the index of a function type.
    TRY_TABLE = auto()
    BRANCH_TABLE = auto()
    VALUE_TYPES = auto()
    REFERENCE_TYPE = auto()
    MEMORY_ADDRESS = auto()  # Alignment and offset.
    MEMORY_ADDRESS_LANE = auto()
    MEMORY = auto()
    MEMORY_PAIR = auto()
    MEMORY_GROW = auto()
    FUNCTION = auto()
    TYPE_TABLE = auto()
    GLOBAL = auto()
    GLOBAL_WRITE = auto()
    TABLE = auto()
    TABLE_WRITE = auto()
    TABLE_COPY = auto()
    TABLE_INIT = auto()
    TAG = auto()
    DATA_MEMORY = auto()
    DATA_DROP = auto()
    ELEMENT_DROP = auto()
    PREFIX_BULK = auto()
    PREFIX_VECTOR = auto()


_I = Immediate

OPCODES: dict[int, Immediate] = {
    0x00: _I.NONE,  # unreachable
    0x01: _I.NONE,  # nop
    0x02: _I.BLOCK,
    0x03: _I.BLOCK,  # loop
    0x04: _I.BLOCK,  # if
    0x05: _I.NONE,  # else
    0x08: _I.TAG,  # throw
    0x0A: _I.NONE,  # throw_ref
    0x0B: _I.NONE,  # end
    0x0C: _I.NUMBER_32,  # br
    0x0D: _I.NUMBER_32,  # br_if
    0x0E: _I.BRANCH_TABLE,
    0x0F: _I.NONE,  # return
    0x10: _I.FUNCTION,  # call
    0x11: _I.TYPE_TABLE,  # call_indirect
    0x12: _I.FUNCTION,  # return_call
    0x13: _I.TYPE_TABLE,  # return_call_indirect
    0x1A: _I.NONE,  # drop
    0x1B: _I.NONE,  # select
    0x1C: _I.VALUE_TYPES,  # select with a type
    0x1F: _I.TRY_TABLE,
    0x20: _I.NUMBER_32,  # local.get
    0x21: _I.NUMBER_32,  # local.set
    0x22: _I.NUMBER_32,  # local.tee
    0x23: _I.GLOBAL,
    0x24: _I.GLOBAL_WRITE,
    0x25: _I.TABLE,
    0x26: _I.TABLE_WRITE,
    **dict.fromkeys(range(0x28, 0x3F), _I.MEMORY_ADDRESS),  # loads and stores
    0x3F: _I.MEMORY,  # memory.size
    0x40: _I.MEMORY_GROW,
    0x41: _I.NUMBER_32,  # i32.const
    0x42: _I.NUMBER_64,  # i64.const
    0x43: _I.BYTES_4,  # f32.const
    0x44: _I.BYTES_8,  # f64.const
    **dict.fromkeys(range(0x45, 0xC5), _I.NONE),  # comparison, arithmetic, conversion
    0xD0: _I.REFERENCE_TYPE,  # ref.null
    0xD1: _I.NONE,  # ref.is_null
    0xD2: _I.FUNCTION,  # ref.func
    0xFC: _I.PREFIX_BULK,
    0xFD: _I.PREFIX_VECTOR,
}

# After 0xFC: saturating conversion, then bulk memory and tables.
BULK_OPCODES: dict[int, Immediate] = {
    **dict.fromkeys(range(8), _I.NONE),
    8: _I.DATA_MEMORY,  # memory.init
    9: _I.DATA_DROP,
    10: _I.MEMORY_PAIR,  # memory.copy
    11: _I.MEMORY,  # memory.fill
    12: _I.TABLE_INIT,
    13: _I.ELEMENT_DROP,
    14: _I.TABLE_COPY,
    15: _I.TABLE_WRITE,  # table.grow
    16: _I.TABLE,  # table.size
    17: _I.TABLE_WRITE,  # table.fill
}

# The numbers nobody has given a meaning to, among the vector instructions.
_VECTOR_GAPS = frozenset(
    {0x9A, 0xA2, 0xA5, 0xA6, 0xAF, 0xB0, 0xB2, 0xB3, 0xB4, 0xBB, 0xC2, 0xC5, 0xC6}
    | {0xCF, 0xD0, 0xD2, 0xD3, 0xD4, 0xE2, 0xEE}
)

# After 0xFD.
VECTOR_OPCODES: dict[int, Immediate] = {
    **{code: _I.NONE for code in range(0x100) if code not in _VECTOR_GAPS},
    **dict.fromkeys(range(0x0C), _I.MEMORY_ADDRESS),
    0x0C: _I.BYTES_16,  # v128.const
    0x0D: _I.BYTES_16,  # i8x16.shuffle
    **dict.fromkeys(range(0x15, 0x23), _I.LANE),
    **dict.fromkeys(range(0x54, 0x5C), _I.MEMORY_ADDRESS_LANE),
    0x5C: _I.MEMORY_ADDRESS,
    0x5D: _I.MEMORY_ADDRESS,
}
