"""ONNX files, written by hand: the few protobuf messages that a graph of one model needs.

The package `onnx` would do the same and weighs more than the runtime that reads the file. Only what
is used here is known: float and integer attributes, tensors as raw little-endian bytes, and inputs
and outputs with some free dimensions. The same graph is the same bytes everywhere, so its digest
can be pinned.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["FLOAT", "INT32", "INT64", "Attribute", "Node", "Tensor", "Value", "encode_model"]

FLOAT, INT32, INT64 = 1, 6, 7

Attribute = float | int | Sequence[int]

_IR_VERSION = 8
_ATTRIBUTE_FLOAT, _ATTRIBUTE_INT, _ATTRIBUTE_INTS = 1, 2, 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operation. A float attribute is written as a float, a whole number as an integer."""

    kind: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    domain: str = ""
    attributes: Mapping[str, Attribute]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A constant: its values are little-endian, in the order of C."""

    name: str
    kind: int
    shape: Sequence[int]
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """An input or output. A dimension that is a name is free."""

    name: str
    kind: int
    shape: Sequence[int | str]


def encode_model(
    *,
    name: str,
    nodes: Sequence[Node],
    tensors: Sequence[Tensor],
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    opsets: Mapping[str, int],
) -> bytes:
    """The bytes of a model file."""
    graph = b"".join(
        (
            *(_block(1, _node(node)) for node in nodes),
            _text(2, name),
            *(_block(5, _tensor(tensor)) for tensor in tensors),
            *(_block(11, _value(value)) for value in inputs),
            *(_block(12, _value(value)) for value in outputs),
        )
    )
    used = (_text(1, domain) + _number(2, version) for domain, version in sorted(opsets.items()))
    return b"".join(
        (
            _number(1, _IR_VERSION),
            _text(2, "tallystick"),
            _block(7, graph),
            *(_block(8, opset) for opset in used),
        )
    )


def _node(node: Node) -> bytes:
    return b"".join(
        (
            *(_text(1, name) for name in node.inputs),
            *(_text(2, name) for name in node.outputs),
            _text(4, node.kind),
            *(_block(5, _attribute(*item)) for item in sorted(node.attributes.items())),
            _text(7, node.domain) if node.domain else b"",
        )
    )


def _attribute(name: str, value: Attribute) -> bytes:
    match value:
        case int():
            return _text(1, name) + _number(3, value) + _number(20, _ATTRIBUTE_INT)
        case float():
            return _text(1, name) + _float(2, value) + _number(20, _ATTRIBUTE_FLOAT)
        case _:
            several = b"".join(_number(8, each) for each in value)
            return _text(1, name) + several + _number(20, _ATTRIBUTE_INTS)


def _tensor(tensor: Tensor) -> bytes:
    dimensions = b"".join(_number(1, size) for size in tensor.shape)
    return dimensions + _number(2, tensor.kind) + _text(8, tensor.name) + _block(9, tensor.data)


def _value(value: Value) -> bytes:
    dimensions = b"".join(
        _block(1, _text(2, size) if isinstance(size, str) else _number(1, size))
        for size in value.shape
    )
    tensor = _number(1, value.kind) + _block(2, dimensions)
    return _text(1, value.name) + _block(2, _block(1, tensor))


# -- protobuf: a tag, then a number, four bytes, or a length and so many bytes --------------------


def _varint(value: int) -> bytes:
    # Negative numbers are written as the 64 bits that they are.
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _float(field: int, value: float) -> bytes:
    return _varint(field << 3 | 5) + struct.pack("<f", value)


def _block(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _text(field: int, value: str) -> bytes:
    return _block(field, value.encode())
