"""The graph of all-MiniLM-L6-v2 for one text at a time, from its weights.

The weights come as a safetensors file. The graph is written here and not exported by a framework:
one text has no padding, so there is no mask, and the mean over the tokens is a plain mean. Of two
outputs one is the vector of the text, of length one; the other has the vector of each token.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tallystick.core.errors import UsageError
from tallystick.memory.onnx_file import (
    FLOAT,
    INT32,
    INT64,
    Attribute,
    Node,
    Tensor,
    Value,
    encode_model,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["DIMENSIONS", "TOKENS_MAX", "build_graph", "read_safetensors"]

DIMENSIONS = 384
# What the model was trained on; longer texts are cut into windows before they come here.
TOKENS_MAX = 256

_LAYERS, _HEADS = 6, 12
_EPSILON = 1e-12
_LENGTH_ONE: Mapping[str, Attribute] = {"axis": -1, "p": 2}
_ONNX, _MICROSOFT = "", "com.microsoft"
_HEADER_BYTES_MAX = 1 << 20


def read_safetensors(data: bytes) -> dict[str, NDArray[np.float32]]:
    """The tensors of a safetensors file of 32-bit floats, and the positions it also holds."""
    import numpy as np

    size = int.from_bytes(data[:8], "little")
    if not 0 < size <= min(_HEADER_BYTES_MAX, len(data) - 8):
        raise UsageError("this is not a safetensors file")
    header: dict[str, Any] = json.loads(data[8 : 8 + size])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] != "F32":
            continue
        start, end = entry["data_offsets"]
        flat = np.frombuffer(data, dtype="<f4", count=(end - start) // 4, offset=8 + size + start)
        tensors[name] = flat.reshape(entry["shape"])
    return tensors


class _Builder:
    """Nodes and constants in the order in which they are added."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.tensors: list[Tensor] = []

    def floats(self, name: str, values: NDArray[np.float32]) -> str:
        data = values.astype("<f4").tobytes()
        self.tensors.append(Tensor(name=name, kind=FLOAT, shape=values.shape, data=data))
        return name

    def axes(self, name: str, values: Sequence[int]) -> str:
        data = b"".join(value.to_bytes(8, "little", signed=True) for value in values)
        self.tensors.append(Tensor(name=name, kind=INT64, shape=(len(values),), data=data))
        return name

    def node(
        self,
        kind: str,
        inputs: Sequence[str],
        output: str,
        *,
        domain: str = _ONNX,
        having: Mapping[str, Attribute] | None = None,
    ) -> str:
        node = Node(
            kind=kind, inputs=inputs, outputs=(output,), domain=domain, attributes=having or {}
        )
        self.nodes.append(node)
        return output


def build_graph(weights: Mapping[str, NDArray[np.float32]]) -> bytes:
    """The model file. Input: `tokens`, int32 of [1, length]. Outputs: `text` and `each`."""
    graph = _Builder()
    hidden = _embedded(graph, weights)
    for layer in range(_LAYERS):
        hidden = _layer(graph, weights, layer, hidden)
    graph.node("ReduceMean", [hidden], "mean", having={"axes": (1,), "keepdims": 0})
    graph.node("LpNormalization", ["mean"], "text", having=_LENGTH_ONE)
    graph.node("LpNormalization", [hidden], "each", having=_LENGTH_ONE)
    return encode_model(
        name="all-MiniLM-L6-v2",
        nodes=graph.nodes,
        tensors=graph.tensors,
        inputs=[Value(name="tokens", kind=INT32, shape=(1, "length"))],
        outputs=[
            Value(name="text", kind=FLOAT, shape=(1, DIMENSIONS)),
            Value(name="each", kind=FLOAT, shape=(1, "length", DIMENSIONS)),
        ],
        opsets={_ONNX: 17, _MICROSOFT: 1},
    )


def _embedded(graph: _Builder, weights: Mapping[str, NDArray[np.float32]]) -> str:
    part = "embeddings."
    # Every token is of the first kind, so that kind's vector is part of each position's.
    places = weights[part + "position_embeddings.weight"][:TOKENS_MAX]
    places = places + weights[part + "token_type_embeddings.weight"][0]
    words = graph.floats("words", weights[part + "word_embeddings.weight"])
    graph.node("Gather", [words, "tokens"], "w")
    graph.node("Shape", ["tokens"], "length", having={"start": 1, "end": 2})
    start = graph.axes("start", [0])
    graph.node("Slice", [graph.floats("places", places), start, "length", start], "p")
    graph.node("Add", ["w", "p"], "wp")
    return _normal(graph, weights, part + "LayerNorm", "wp", "x")


def _layer(
    graph: _Builder, weights: Mapping[str, NDArray[np.float32]], layer: int, hidden: str
) -> str:
    import numpy as np

    part, at = f"encoder.layer.{layer}.", f".{layer}"
    heads = [part + f"attention.self.{name}." for name in ("query", "key", "value")]
    joined = np.concatenate([weights[head + "weight"].T for head in heads], axis=1)
    bias = np.concatenate([weights[head + "bias"] for head in heads])
    graph.node(
        "Attention",
        [hidden, graph.floats("qkv" + at, joined), graph.floats("qkv.bias" + at, bias)],
        "attended" + at,
        domain=_MICROSOFT,
        having={"num_heads": _HEADS},
    )
    out = _dense(graph, weights, part + "attention.output.dense", "attended" + at, "out" + at)
    graph.node("Add", [out, hidden], "out.sum" + at)
    middle = _normal(graph, weights, part + "attention.output.LayerNorm", "out.sum" + at, "m" + at)
    wide = _dense(graph, weights, part + "intermediate.dense", middle, "wide" + at)
    graph.node("Gelu", [wide], "gelu" + at, domain=_MICROSOFT)
    narrow = _dense(graph, weights, part + "output.dense", "gelu" + at, "narrow" + at)
    graph.node("Add", [narrow, middle], "narrow.sum" + at)
    return _normal(graph, weights, part + "output.LayerNorm", "narrow.sum" + at, "x" + at)


def _dense(
    graph: _Builder, weights: Mapping[str, NDArray[np.float32]], name: str, value: str, to: str
) -> str:
    matrix = graph.floats(to + ".weight", weights[name + ".weight"].T)
    graph.node("MatMul", [value, matrix], to + ".product")
    return graph.node(
        "Add", [to + ".product", graph.floats(to + ".bias", weights[name + ".bias"])], to
    )


def _normal(
    graph: _Builder, weights: Mapping[str, NDArray[np.float32]], name: str, value: str, to: str
) -> str:
    scale = graph.floats(to + ".scale", weights[name + ".weight"])
    shift = graph.floats(to + ".shift", weights[name + ".bias"])
    having: Mapping[str, Attribute] = {"axis": -1, "epsilon": _EPSILON}
    return graph.node("LayerNormalization", [value, scale, shift], to, having=having)
