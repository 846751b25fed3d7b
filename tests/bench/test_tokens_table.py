"""The token table: real transcripts of both ways, one tokenizer, records seen and emitted."""

from __future__ import annotations

import json

import pytest
from bench.memory.tokens_table import (
    CODE_MANUAL,
    JSON_TOOL,
    Asked,
    Recalled,
    code_transcript,
    json_transcript,
    tokens_table,
)
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.errors import UsageError
from tallystick.memory.code_mode.operations import RecallHit

HITS = tuple(
    RecallHit(id=f"m{n}", content=f'note {n} says "{word}"', score=0.5)
    for n, word in enumerate(["tea", "key", "door"])
)
ASKED = Asked(
    question="When is tea?",
    recalls=(Recalled(query="tea", k=2, hits=HITS[:2]), Recalled(query="time", k=1, hits=HITS[2:])),
    program='print(recall("tea", 2)[0].content)',
    printed=HITS[0].content,
    answer="At four.",
)


def words(text: str) -> int:
    return len(text.split())


def test_the_json_way_has_the_tool_the_calls_and_all_results_in_its_context() -> None:
    held = json_transcript(ASKED).held

    assert held.startswith(f"<|tools|>\n{JSON_TOOL}\n<|user|>\nWhen is tea?\n<|assistant|>\n")
    results = [json.loads(line) for line in held.splitlines() if line.startswith("[")]
    assert [hit["content"] for result in results for hit in result] == [hit.content for hit in HITS]
    assert held.endswith("<|assistant|>\nAt four.\n")


def test_the_code_way_has_the_program_and_only_what_it_printed() -> None:
    held = code_transcript(ASKED).held

    assert held == (
        f"<|system|>\n{CODE_MANUAL}\n<|user|>\nWhen is tea?\n<|assistant|>\n{ASKED.program}\n"
        f"<|user|>\n{HITS[0].content}\n<|assistant|>\nAt four.\n"
    )


def test_every_request_sends_what_came_before_it_again() -> None:
    transcript = json_transcript(ASKED)

    assert len(transcript.requests) == len(transcript.replies) == 3
    for earlier, later in zip(transcript.requests, transcript.requests[1:], strict=False):
        assert later.startswith(earlier)
    assert transcript.held.startswith(transcript.requests[-1])


def test_a_program_that_answers_is_one_request() -> None:
    answered = Asked(
        question="When is tea?", recalls=(), program="FINAL('At four.')", printed="",
        answer="At four.", answered=True,
    )  # fmt: skip

    transcript = code_transcript(answered)

    assert transcript.replies == ("FINAL('At four.')",)
    assert len(transcript.requests) == 1


def test_a_row_counts_the_very_texts() -> None:
    table = tokens_table([ASKED], count=words, tokenizer="words")
    by_json, by_code = json_transcript(ASKED), code_transcript(ASKED)
    (row,) = table.rows

    assert (row.json.held, row.code.held) == (words(by_json.held), words(by_code.held))
    assert row.json.sent == sum(map(words, by_json.requests))
    assert row.code.written == words(ASKED.program) + words("At four.")
    assert (row.records_seen, row.records_emitted) == (3, 1)
    assert table.saved == 1 - row.code.sent / row.json.sent


def test_a_program_that_prints_all_it_recalled_is_said_to() -> None:
    everything = Asked(
        question=ASKED.question, recalls=ASKED.recalls, program="...", answer="At four.",
        printed="\n".join(hit.content for hit in HITS),
    )  # fmt: skip

    (row,) = tokens_table([everything], count=words, tokenizer="words").rows

    assert (row.records_seen, row.records_emitted) == (3, 3)


def test_more_records_that_are_not_printed_cost_only_the_json_way() -> None:
    more = tuple(RecallHit(id=f"x{n}", content=f"other note {n}", score=0.1) for n in range(50))
    wider = Asked(
        question=ASKED.question, recalls=(Recalled(query="tea", k=100, hits=HITS + more),),
        program=ASKED.program, printed=ASKED.printed, answer=ASKED.answer,
    )  # fmt: skip

    narrow_row, wide_row = tokens_table([ASKED, wider], count=len, tokenizer="characters").rows

    assert wide_row.code == narrow_row.code
    assert wide_row.json.held > narrow_row.json.held + 50 * len("other note 1")


@given(st.lists(st.just(ASKED), max_size=4))
def test_the_total_is_the_sum_of_the_rows(asked: list[Asked]) -> None:
    table = tokens_table(asked, count=words, tokenizer="words")

    assert table.total.json.sent == sum(row.json.sent for row in table.rows)
    assert table.total.records_seen == 3 * len(asked)


def test_the_table_names_its_tokenizer_and_keeps_its_columns() -> None:
    odd = Asked(question="a | b\nc?", recalls=(), program="p", printed="", answer="a")

    lines = tokens_table([ASKED, odd], count=words, tokenizer="words").rendered().splitlines()

    assert lines[0] == "Tokens by words."
    assert {line.replace("\\|", "").count("|") for line in lines[2:]} == {10}
    assert lines[-1].startswith("| all 2 | ")


def test_a_count_without_a_name_is_none() -> None:
    with pytest.raises(UsageError, match="names its tokenizer"):
        tokens_table([ASKED], count=words, tokenizer=" ")


def test_no_questions_save_nothing() -> None:
    assert tokens_table([], count=words, tokenizer="words").saved == 0.0
