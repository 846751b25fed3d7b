"""The recall benchmark: what it reads, what it counts, and that all its methods run."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import pytest
from bench.memory.conversations import find_file, read_conversations
from bench.memory.locomo import beside, figures, main, measure, spread
from bench.memory.methods import METHODS, WITHOUT, Remembered, prepare

from tallystick.memory.recall.codes import pack_tokens, pack_vector
from tallystick.memory.recall.minilm import missing
from tallystick.memory.recall.scope import Embedded

_TALK = {
    "sample_id": "conv-1",
    "conversation": {
        "speaker_a": "Anna",
        "session_2_date_time": "1:56 pm on 8 May, 2023",
        "session_2": [{"speaker": "Ben", "dia_id": "D2:1", "text": "a tent"}],
        "session_1_date_time": "whenever",
        "session_1": [
            {"speaker": "Anna", "dia_id": "D1:1", "text": "the lake", "blip_caption": "a boat"},
            {"speaker": "Ben", "dia_id": "D1:2", "text": "rain"},
        ],
    },
    "qa": [
        {"question": "What did Anna see?", "category": 1, "evidence": ["D1:1; D2:01", "D:1:2"]},
        {"question": "A lake?", "category": 4, "evidence": ["D1:1"]},
        {"question": "None?", "category": 4, "evidence": ["D9:9"]},
        {"question": "Trick?", "category": 5, "evidence": ["D1:1"]},
    ],
}


class Letters:
    """An embedder without a model: texts with the same digest are the same."""

    digest = "d" * 64

    def embed(self, text: str) -> Embedded:
        values = [byte - 127.5 for byte in hashlib.sha256(text.encode()).digest()]
        unit = [value / math.hypot(*values) for value in values]
        return Embedded(vector=pack_vector(unit), tokens=pack_tokens(unit))


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    (tmp_path / "set").mkdir()
    path = tmp_path / "set" / "locomo-small.json"
    path.write_text(json.dumps([_TALK]), encoding="utf-8")
    return path


def test_conversations_are_read_with_their_fields_and_evidence(talk: Path) -> None:
    (conversation,) = read_conversations(talk)

    assert list(conversation.notes) == ["D1:1", "D1:2", "D2:1"]
    first, _, last = conversation.notes.values()
    assert (first.text, first.author, first.session) == ("the lake [image: a boat]", "Anna", "1")
    assert (first.position, first.created_at) == (0, 0)
    assert last.created_at == 1_683_554_160_000
    assert [(each.category, sorted(each.evidence)) for each in conversation.questions] == [
        (1, ["D1:1", "D1:2", "D2:1"]),
        (4, ["D1:1"]),
    ]


def test_the_file_is_found_beside_or_below_what_the_variable_names(talk: Path) -> None:
    for place in (talk, talk.parent, talk.parent.parent):
        assert find_file({"TALLYSTICK_EVAL_DATA": str(place)}) == talk
    assert find_file({}) is None


def test_recall_is_the_mean_share_of_evidence_among_the_first() -> None:
    first = (1, frozenset({"a", "b"}), [*"xxxxxxxxx", "a", "b"])
    second = (4, frozenset({"c"}), ["c"])

    row = figures([first, second])

    assert (row["R@5"], row["R@10"], row["R@20"]) == (0.5, 0.75, 1.0)
    assert (row["multi-hop"], row["single-hop"], row["questions"]) == (0.5, 1.0, 2)
    assert row["MRR"] == 0.55
    assert math.isnan(row["temporal"])


def test_every_method_ranks_every_question(talk: Path) -> None:
    embedder = Remembered(Letters())
    prepared = [prepare(each, embedder) for each in read_conversations(talk)]

    rows = measure(prepared, {**METHODS, **WITHOUT})

    assert rows.keys() == {*METHODS, *WITHOUT}
    for row in rows.values():
        assert row["questions"] == 2
    assert rows["BM25"]["single-hop"] == rows["tallystick"]["single-hop"] == 1.0


def test_ours_stands_beside_what_was_computed_in_the_same_run() -> None:
    rows = {
        "tallystick": {"R@10": 0.8, "questions": 7},
        "BM25": {"R@10": 0.5},
        "RRF(BM25, MiniLM)": {"R@10": 0.0},
    }

    found = beside(rows)

    assert (found["R@10"], found["times BM25"], found["questions"]) == (0.8, 1.6, 7)
    assert math.isnan(found["times RRF(BM25, MiniLM)"])


def test_the_spread_is_of_conversations_and_not_of_questions() -> None:
    found = spread([{"R@10": 0.6, "questions": 100}, {"R@10": 0.8, "questions": 1}])

    assert found == {"R@10": {"mean": 0.7, "deviation": 0.1414, "least": 0.6, "most": 0.8}}
    assert spread([{"R@10": 0.6}])["R@10"]["deviation"] == 0.0


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_what_is_written_has_figures_and_no_word_of_the_data(
    talk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALLYSTICK_EVAL_DATA", str(talk))
    out = tmp_path / "out.json"

    assert main(["--out", str(out)]) == 0

    written = out.read_text(encoding="utf-8")
    assert {"parts", "alone", "spread", "targets", "profile"} <= json.loads(written).keys()
    for word in ("Anna", "Ben", "lake", "tent", "boat"):
        assert word not in written


def test_without_data_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TALLYSTICK_EVAL_DATA", raising=False)

    assert main([]) == 2
    assert "TALLYSTICK_EVAL_DATA" in capsys.readouterr().err
