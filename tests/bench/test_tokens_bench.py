"""The token bench: a workshop that is the same every time, questions it answers, honest counts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from bench.memory.tokens import Done, Store, answered, filled, main, rendered, table, word_pieces
from bench.memory.workshop import Workshop
from bench.memory.workshop_questions import Question, questions
from tests.memory.memory_store import Clock, open_memory

from tallystick.memory.recall.minilm import MiniLm, missing
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.settings.paths import cache_directory

SHOP = Workshop()
needs_model = pytest.mark.skipif(bool(missing()), reason=missing())


def words(text: str) -> int:
    return len(text.split())


def asked(kind: str) -> Question:
    return next(each for each in questions(SHOP) if each.kind == kind)


@pytest.fixture(scope="module")
def done(sandbox: WasmSandbox, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Done]:
    """A question of each kind, worked through without a model."""
    # In July, when all of it has happened.
    july = Clock(1_751_328_000_000)
    with open_memory(tmp_path_factory.mktemp("workshop"), clock=july) as memory:
        store = filled(memory, SHOP, None)
        return {
            kind: answered(asked(kind), store, sandbox, asyncio.run)
            for kind in ("one", "count", "join")
        }


def test_the_workshop_is_the_same_every_time_and_says_nothing_twice() -> None:
    assert Workshop().notes == SHOP.notes != Workshop(seed=2).notes
    assert len({text for _, text in SHOP.notes}) == len(SHOP.notes) > 500


@pytest.mark.parametrize("seed", range(1, 6))
def test_twenty_questions_follow_from_notes_that_are_there(seed: int) -> None:
    shop = Workshop(seed=seed)
    written = {text for _, text in shop.notes}

    listed = questions(shop)

    assert len(listed) == len({each.text for each in listed}) == 20
    for each in listed:
        assert each.needed <= written
        assert each.answer
        if not each.computed:
            assert all(each.answer in note for note in each.needed)


def test_both_ways_are_run_and_right(done: dict[str, Done]) -> None:
    for each in done.values():
        assert each.json_right
        assert each.code_right


def test_the_json_way_holds_every_note_and_the_code_way_what_was_printed(
    done: dict[str, Done],
) -> None:
    count = done["count"]
    query, k = count.question.rounds[0][0]

    assert count.json_records == k
    assert count.json.held.count('"content":') == k
    assert f'"query":"{query}"' in count.json.replies[0]
    assert count.code.replies == (*count.question.programs, count.question.answer)
    assert (count.records_seen, count.records_emitted) == (k + 3, 6)


def test_calls_that_do_not_need_each_other_are_made_at_once(done: dict[str, Done]) -> None:
    join = done["join"]

    assert len(join.question.rounds[0]) == 2
    assert len(join.json.requests) == len(join.question.rounds) + 1
    assert join.json.held.count("<|tool|>") == 2


def test_a_request_has_all_that_was_before_it(done: dict[str, Done]) -> None:
    for chat in (done["join"].json, done["join"].code):
        for earlier, later in zip(chat.requests, chat.requests[1:], strict=False):
            assert later.startswith(earlier)
        assert chat.held.startswith(chat.requests[-1])


def test_one_note_saves_next_to_nothing_beside_the_bare_contents(done: dict[str, Done]) -> None:
    one, count = (done[kind].code.counted(words).held for kind in ("one", "count"))

    assert done["one"].records_emitted == done["one"].records_seen
    assert one > 0.5 * done["one"].lean.counted(words).held
    assert count < 0.2 * done["count"].lean.counted(words).held


def test_a_note_that_is_not_recalled_makes_both_ways_wrong(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    with open_memory(tmp_path) as memory:
        found = answered(asked("count"), Store(memory, None), sandbox, asyncio.run)

    assert not found.json_right
    assert not found.code_right


def test_the_table_adds_up_and_names_its_tokenizer(done: dict[str, Done]) -> None:
    figures = table(list(done.values()), tokenizer="words", count=words)

    total = figures["totals"]["all"]
    assert total["questions"] == 3
    assert total["json"]["sent"] == sum(row["json"]["sent"] for row in figures["rows"])
    assert total["right"] == {"json": 3, "code": 3}
    lines = rendered(figures).splitlines()
    assert lines[0] == "Tokens by words."
    assert {line.count("|") for line in lines[2:] if line.startswith("|")} == {14}


@needs_model
@pytest.mark.slow
def test_long_texts_are_counted_to_their_end() -> None:
    count = word_pieces(MiniLm.load(cache=cache_directory()))

    assert count("an oak shelf, unbelievably") == 4 + count("unbelievably")
    assert count("shelf " * 5_000) == 5_000 * count("shelf")


@needs_model
@pytest.mark.slow
def test_all_twenty_are_right_in_both_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TALLYSTICK_MODEL_URL", raising=False)

    assert main(["--out", str(tmp_path / "out.json")]) == 0

    (only,) = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["tables"]
    assert only["totals"]["all"]["right"] == {"json": 20, "code": 20}
    assert "WordPiece of all-MiniLM-L6-v2" in capsys.readouterr().out
