"""Constant expressions: read from a module, computed while merging.

An initial value or an offset may use a global of another module, as long as that one never
changes. In the merged module the two stand side by side, where not every engine allows it, so
each expression is computed here and written back as one constant instruction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tools.guest.wasm import binary
from tools.guest.wasm.binary import F32, F64, FUNCREF, I32, I64, V128, BadWasm, Reader

__all__ = [
    "Arithmetic",
    "Constant",
    "Expression",
    "FunctionReference",
    "GlobalGet",
    "Step",
    "fold",
    "integer",
    "read_expression",
]

_END = 0x0B
_GLOBAL_GET = 0x23
_REF_FUNC = 0xD2
_V128_CONST = 0x0C  # After the prefix 0xFD.

_ARITHMETIC: dict[int, tuple[int, Callable[[int, int], int]]] = {
    0x6A: (I32, int.__add__),
    0x6B: (I32, int.__sub__),
    0x6C: (I32, int.__mul__),
    0x7C: (I64, int.__add__),
    0x7D: (I64, int.__sub__),
    0x7E: (I64, int.__mul__),
}
_BITS = {I32: 32, I64: 64}
_CONST = {I32: 0x41, I64: 0x42}


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A value known before anything runs, as the one instruction that makes it.

    `number` is there for integers, `function` for references to one.
    """

    type: int
    instruction: bytes
    number: int | None = None
    function: int | None = None

    @property
    def expression(self) -> bytes:
        return self.instruction + bytes([_END])


@dataclass(frozen=True, slots=True)
class GlobalGet:
    """The value of a global, by the module's own number."""

    index: int


@dataclass(frozen=True, slots=True)
class FunctionReference:
    """A reference to a function, by the module's own number."""

    index: int


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """An operation on the two numbers before it."""

    opcode: int
    offset: int


Step = Constant | GlobalGet | FunctionReference | Arithmetic
Expression = tuple[Step, ...]


def integer(kind: int, number: int) -> Constant:
    """Make an i32 or an i64. A number out of range wraps around, as it does at run time."""
    half = 1 << _BITS[kind] - 1
    wrapped = (number + half) % (2 * half) - half
    instruction = bytes([_CONST[kind]]) + binary.signed(wrapped)
    return Constant(type=kind, instruction=instruction, number=wrapped)


def read_expression(reader: Reader, *, functions: int, globals_: int) -> Expression:
    """Read up to the end. The two numbers say how many functions and globals there are."""
    steps: list[Step] = []
    while True:
        offset = reader.position
        opcode = reader.byte("a constant expression")
        if opcode == _END:
            return tuple(steps)
        if opcode in _ARITHMETIC:
            steps.append(Arithmetic(opcode, offset))
        elif opcode == _GLOBAL_GET:
            steps.append(GlobalGet(reader.index(globals_, "global")))
        elif opcode == _REF_FUNC:
            steps.append(FunctionReference(reader.index(functions, "function")))
        else:
            steps.append(_literal(reader, opcode, offset))


def _literal(reader: Reader, opcode: int, offset: int) -> Constant:
    head = bytes([opcode])
    match opcode:
        case 0x41:
            return integer(I32, reader.signed(32))
        case 0x42:
            return integer(I64, reader.signed(64))
        case 0x43:
            return Constant(type=F32, instruction=head + reader.take(4, "a constant"))
        case 0x44:
            return Constant(type=F64, instruction=head + reader.take(8, "a constant"))
        case 0xD0:
            kind = reader.reference_type()
            return Constant(type=kind, instruction=head + bytes([kind]))
        case 0xFD if reader.unsigned() == _V128_CONST:
            number = bytes([_V128_CONST]) + reader.take(16, "a constant")
            return Constant(type=V128, instruction=head + number)
    problem = f"unsupported instruction {opcode:#04x} in a constant expression"
    raise BadWasm(problem, offset=offset)


def fold(
    expression: Expression,
    *,
    global_value: Callable[[int], Constant],
    function_index: Callable[[int], int],
) -> Constant:
    """Compute an expression. The two callables know the merged module."""
    stack: list[Constant] = []
    for step in expression:
        match step:
            case Constant():
                stack.append(step)
            case GlobalGet(index=old):
                stack.append(global_value(old))
            case FunctionReference(index=old):
                new = function_index(old)
                instruction = bytes([_REF_FUNC]) + binary.unsigned(new)
                stack.append(Constant(type=FUNCREF, instruction=instruction, function=new))
            case Arithmetic():
                _compute(step, stack)
    if len(stack) != 1:
        raise BadWasm(f"a constant expression leaves {len(stack)} values")
    return stack[0]


def _compute(step: Arithmetic, stack: list[Constant]) -> None:
    kind, operation = _ARITHMETIC[step.opcode]
    match [each.number for each in stack[-2:] if each.type == kind]:
        case [int() as left, int() as right]:
            stack[-2:] = [integer(kind, operation(left, right))]
        case _:
            problem = f"instruction {step.opcode:#04x} without two numbers before it"
            raise BadWasm(problem, offset=step.offset)
