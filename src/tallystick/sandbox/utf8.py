"""Count the characters of UTF-8 bytes, for texts of hundreds of megabytes.

A decoder reads one character at a time and predicts the length of the next: 240 MB/s if the lengths
change often. Here sixteen bytes are checked at once, in the WebAssembly engine that runs programs
anyway: 2,000 MB/s for any text. Rejected: an automaton in RE2 plus counting first bytes. It is
faster than the decoder for mixed text only, and slower for every real script.

The check is that of Keiser and Lemire, "Validating UTF-8 In Less Than One Instruction Per Byte"
(2021). Every error but one is visible in two neighbouring bytes. It is a bit that is set in three
tables, which are indexed by both halves of the first byte and by the upper half of the second. The
other error is a third or fourth byte that is missing or too many: `_TWO_CONTINUE` is compared with
what the first byte of the character requires.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Sequence

import wasmtime

# The overhead of one call is the time of 200 KiB of text, so each call gets many blocks.
BLOCKS_MAX = 16
BLOCK_BYTES_MAX = 65_536 + 3

_TOO_SHORT, _TOO_LONG, _OVERLONG_3, _TOO_LARGE = 0x01, 0x02, 0x04, 0x08
_SURROGATE, _OVERLONG_2, _TOO_LARGE_1000, _TWO_CONTINUE = 0x10, 0x20, 0x40, 0x80
_OVERLONG_4 = _TOO_LARGE_1000  # the same bit: their first bytes differ
_ANY_LOW = _TOO_SHORT | _TOO_LONG | _TWO_CONTINUE
_CONTINUES = _TOO_LONG | _OVERLONG_2 | _TWO_CONTINUE
_FIRST_HIGH = (
    *(_TOO_LONG,) * 8,
    *(_TWO_CONTINUE,) * 4,
    _TOO_SHORT | _OVERLONG_2,
    _TOO_SHORT,
    _TOO_SHORT | _OVERLONG_3 | _SURROGATE,
    _TOO_SHORT | _TOO_LARGE | _TOO_LARGE_1000 | _OVERLONG_4,
)
_FIRST_LOW = (
    _ANY_LOW | _OVERLONG_3 | _OVERLONG_2 | _OVERLONG_4,
    _ANY_LOW | _OVERLONG_2,
    *(_ANY_LOW,) * 2,
    _ANY_LOW | _TOO_LARGE,
    *(_ANY_LOW | _TOO_LARGE | _TOO_LARGE_1000,) * 8,
    _ANY_LOW | _TOO_LARGE | _TOO_LARGE_1000 | _SURROGATE,
    *(_ANY_LOW | _TOO_LARGE | _TOO_LARGE_1000,) * 2,
)
_SECOND_HIGH = (
    *(_TOO_SHORT,) * 8,
    _CONTINUES | _OVERLONG_3 | _TOO_LARGE_1000 | _OVERLONG_4,
    _CONTINUES | _OVERLONG_3 | _TOO_LARGE,
    *(_CONTINUES | _SURROGATE | _TOO_LARGE,) * 2,
    *(_TOO_SHORT,) * 4,
)
_VECTOR_BYTES = 16
_SLOT_BYTES = (BLOCK_BYTES_MAX // _VECTOR_BYTES + 1) * _VECTOR_BYTES
_SLOTS_AT = 4 * BLOCKS_MAX
_PAGES = (_SLOTS_AT + BLOCKS_MAX * _SLOT_BYTES) // 65_536 + 1


def _vector(values: tuple[int, ...]) -> str:
    return f"(v128.const i8x16 {' '.join(map(str, values))})"


def _earlier(count: int) -> str:
    """Return the instruction that gives, for each byte, the byte `count` places before it."""
    lanes = " ".join(str(_VECTOR_BYTES - count + lane) for lane in range(_VECTOR_BYTES))
    return f"(i8x16.shuffle {lanes} (local.get $before) (local.get $bytes))"


# Memory holds a table of lengths, which the counts replace, and a slot for each block, padded with
# zeros. A character cut short at the end of a block is then followed by a zero, which is an error.
# Each zero counts as a character, so the padding is subtracted at the end. First bytes of
# characters are those above 0xBF and those below 0x80: as signed numbers, all greater than -65.
_PROGRAM = f"""
(module
  (memory (export "memory") {_PAGES})
  (func (export "count") (param $blocks i32)
    (local $block i32)
    (loop $next
      (i32.store (i32.mul (local.get $block) (i32.const 4)) (call $characters
        (i32.add (i32.const {_SLOTS_AT}) (i32.mul (local.get $block) (i32.const {_SLOT_BYTES})))
        (i32.load (i32.mul (local.get $block) (i32.const 4)))))
      (local.set $block (i32.add (local.get $block) (i32.const 1)))
      (br_if $next (i32.lt_u (local.get $block) (local.get $blocks)))))
  (func $characters (param $at i32) (param $length i32) (result i32)
    (local $end i32) (local $count i32)
    (local $bytes v128) (local $before v128) (local $first v128) (local $wrong v128)
    (local.set $end (i32.add (local.get $at) (local.get $length)))
    (loop $next
      (local.set $bytes (v128.load (local.get $at)))
      (local.set $first {_earlier(1)})
      (local.set $wrong (v128.or (local.get $wrong) (v128.xor
        (v128.and
          (v128.and
            (i8x16.swizzle {_vector(_FIRST_HIGH)}
              (i8x16.shr_u (local.get $first) (i32.const 4)))
            (i8x16.swizzle {_vector(_FIRST_LOW)}
              (v128.and (local.get $first) (i8x16.splat (i32.const 0x0f)))))
          (i8x16.swizzle {_vector(_SECOND_HIGH)}
            (i8x16.shr_u (local.get $bytes) (i32.const 4))))
        (v128.and (i8x16.splat (i32.const {_TWO_CONTINUE})) (v128.or
          (i8x16.sub_sat_u {_earlier(2)} (i8x16.splat (i32.const {0xE0 - 0x80})))
          (i8x16.sub_sat_u {_earlier(3)} (i8x16.splat (i32.const {0xF0 - 0x80}))))))))
      (local.set $count (i32.add (local.get $count) (i32.popcnt (i8x16.bitmask
        (i8x16.gt_s (local.get $bytes) (i8x16.splat (i32.const -65)))))))
      (local.set $before (local.get $bytes))
      (local.set $at (i32.add (local.get $at) (i32.const {_VECTOR_BYTES})))
      (br_if $next (i32.le_u (local.get $at) (local.get $end))))
    (if (result i32) (v128.any_true (local.get $wrong))
      (then (i32.const -1))
      (else (i32.sub (local.get $count) (i32.sub (local.get $at) (local.get $end)))))))
"""


class CharacterCount:
    """A counter of characters. Use each one in one thread only."""

    def __init__(self) -> None:
        engine, module = _compile()
        self._store = wasmtime.Store(engine)
        exports = wasmtime.Instance(self._store, module, []).exports(self._store)
        memory, count = exports["memory"], exports["count"]
        assert isinstance(memory, wasmtime.Memory)
        assert isinstance(count, wasmtime.Func)
        self._memory, self._count = memory, count

    def count(self, blocks: Sequence[bytes]) -> list[int | None]:
        """Return the number of characters of each block, None for one that is not valid UTF-8.

        Raise `ValueError` for over `BLOCKS_MAX` blocks, or one of over `BLOCK_BYTES_MAX` bytes.
        """
        if len(blocks) > BLOCKS_MAX or any(len(block) > BLOCK_BYTES_MAX for block in blocks):
            raise ValueError("more or longer blocks than there is room for")
        if not blocks:
            return []
        counts = array("i", map(len, blocks))
        slots = b"".join(block.ljust(_SLOT_BYTES, b"\0") for block in blocks)
        self._memory.write(self._store, slots, _SLOTS_AT)
        self._memory.write(self._store, counts.tobytes(), 0)
        self._count(self._store, len(blocks))
        counts = array("i", bytes(self._memory.read(self._store, 0, 4 * len(blocks))))
        return [None if count < 0 else count for count in counts]


@functools.cache
def _compile() -> tuple[wasmtime.Engine, wasmtime.Module]:
    """Compile the counting program, once in a process; it takes 4 ms."""
    engine = wasmtime.Engine()
    return engine, wasmtime.Module(engine, _PROGRAM)
