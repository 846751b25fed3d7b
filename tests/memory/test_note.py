"""A note: what its fields may be, and that what they may not be is named."""

from __future__ import annotations

import math
import uuid
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.memory.memory_store import a_note

from tallystick.core.errors import UsageError
from tallystick.memory.errors import NoteInvalid
from tallystick.memory.forget import importance_after_decay
from tallystick.memory.note import (
    CONTENT_BYTES_MAX,
    ConsolidationState,
    MemoryType,
    NoteScope,
    Permission,
    SourceType,
    check_new,
    effective_importance,
    is_note_id,
    normalise,
    uuid7,
)
from tallystick.memory.store.vectors import OVERLAP_PIECES, WINDOW_PIECES, windows

ID = "018bcfe5-6800-7000-8000-000000000001"


def test_the_words_of_other_systems_are_ours() -> None:
    assert [*MemoryType] == ["episodic", "semantic", "procedural", "working"]
    assert [*NoteScope] == ["private", "shared", "public", "global"]
    assert [*ConsolidationState] == [
        *("raw", "active", "pending", "consolidated", "archived", "forgotten")
    ]
    assert [*SourceType] == [
        *("agent", "human", "system", "user_input", "tool_output", "model_response"),
        *("retrieval", "consolidation", "import"),
    ]


def test_a_note_that_says_little_has_the_defaults() -> None:
    new = a_note()

    check_new(new)

    assert (new.memory_type, new.scope, new.source_type) == ("episodic", "private", "agent")
    assert new.importance == 0.5


def test_a_permission_satisfies_every_lower_one() -> None:
    order = [*Permission]

    assert order == ["read", "write", "delete", "share", "delegate", "admin"]
    for place, held in enumerate(order):
        assert [held.satisfies(each) for each in order] == [n <= place for n in range(6)]


DEEP: dict[str, Any] = {}
for _ in range(20):
    DEEP = {"in": DEEP}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("content", ""),
        ("content", " \n\t "),
        ("content", "x" * (10 << 20)),
        ("content", "é" * (CONTENT_BYTES_MAX // 2 + 1)),
        ("content", "nul \0"),
        ("content", "bell \x07"),
        ("content", "\x1b[31mred"),
        ("content", "c1 \x9b"),
        ("content", "half \ud83d"),
        ("importance", -0.01),
        ("importance", 1.01),
        ("importance", math.nan),
        ("importance", math.inf),
        ("agent_id", ""),
        ("agent_id", "a b"),
        ("agent_id", "a/../b"),
        ("agent_id", "a\n"),
        ("agent_id", "ada'; --"),
        ("agent_id", "é"),
        ("agent_id", "a" * 129),
        ("author", " "),
        ("author", "two\nlines"),
        ("thread_id", "x" * 129),
        ("key", ""),
        ("tags", ("a",) * 65),
        ("tags", ("",)),
        ("tags", ("x" * 257,)),
        ("tags", ("x" * 200 + "\n",)),
        ("metadata", {"x": math.nan}),
        ("metadata", {"x": {1, 2}}),
        ("metadata", {"x": b"bytes"}),
        ("metadata", {"x": 1 << 60}),
        ("metadata", {"x": "\ud800"}),
        ("metadata", DEEP),
        ("metadata", {"x": "y" * 70_000}),
        ("related_to", ("not an id",)),
        ("related_to", (ID.upper(),)),
        ("related_to", (ID,) * 257),
        ("created_at", -1),
        ("created_at", 1 << 48),
        ("position", -1),
        ("ttl_ms", 0),
        ("ttl_ms", -5),
        ("decay_rate", -0.1),
        ("decay_rate", math.inf),
        ("decay_function", "step:"),
        ("decay_function", "cubic"),
        ("decay_function", "step:1e9"),
    ],
)
def test_what_a_field_may_not_be_is_refused_by_its_name(field: str, value: Any) -> None:
    with pytest.raises(NoteInvalid) as refused:
        check_new(a_note(**{field: value}))

    assert refused.value.field == field
    assert refused.value.kind == "Validation"
    assert isinstance(refused.value, UsageError)
    assert len(str(refused.value)) < 300
    str(refused.value).encode()


def test_two_times_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(NoteInvalid, match="valid_to"):
        check_new(a_note(valid_from=5, valid_to=4))
    with pytest.raises(NoteInvalid, match="ttl_ms"):
        check_new(a_note(expires_at=5, ttl_ms=5))


@pytest.mark.parametrize(
    "content", ["x" * CONTENT_BYTES_MAX, "tab\tand\r\nline", '"quoted" OR (x) NEAR * -', "👩‍👩‍👧 ⁂"]
)
def test_text_is_taken_as_it_is(content: str) -> None:
    check_new(a_note(content))


@given(st.integers(0, (1 << 48) - 1), st.binary(min_size=10, max_size=10))
def test_an_id_is_a_uuid_of_version_seven_with_its_time(time_ms: int, entropy: bytes) -> None:
    made = uuid7(time_ms=time_ms, entropy=entropy)

    read = uuid.UUID(made)
    assert str(read) == made
    assert (read.version, read.variant) == (7, uuid.RFC_4122)
    assert read.int >> 80 == time_ms
    assert is_note_id(made)


@given(st.lists(st.integers(0, (1 << 48) - 1), min_size=2, max_size=5))
def test_ids_sort_by_time(times: list[int]) -> None:
    made = [uuid7(time_ms=time, entropy=bytes(10)) for time in times]

    assert sorted(made) == [uuid7(time_ms=time, entropy=bytes(10)) for time in sorted(times)]


def test_texts_that_differ_in_case_and_space_are_normalised_alike() -> None:
    assert normalise(" I  LIKE\ntea ") == normalise("i like tea")
    assert normalise("Straße \uff11") == normalise("STRASSE 1")
    assert normalise("tea") != normalise("coffee")


@given(st.text())
def test_normalising_twice_is_normalising_once(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


# -- windows -----------------------------------------------------------------------------------


def test_a_short_note_has_one_window() -> None:
    assert windows("a short one") == ((0, 11),)
    assert windows("a " * WINDOW_PIECES) == ((0, 2 * WINDOW_PIECES),)


def test_a_long_note_has_windows_that_overlap() -> None:
    text = " ".join(f"w{number:03}" for number in range(500))

    cut = windows(text)

    parts = [text[begin:end].split() for begin, end in cut]
    assert [len(part) for part in parts] == [200, 200, 180]
    for one, other in pairwise(parts):
        assert one[-OVERLAP_PIECES:] == other[:OVERLAP_PIECES]


@given(st.text(alphabet="ab ,é文\n", max_size=2_000), st.integers(1, 3))
def test_windows_cover_a_text_in_order(text: str, times: int) -> None:
    text *= times

    cut = windows(text)

    assert cut[0][0] == 0
    assert cut[-1][1] == len(text)
    for (begin, end), (after, last) in pairwise(cut):
        assert begin < after <= end < last


def test_the_longest_note_without_a_space_is_cut_too() -> None:
    cut = windows("x" * CONTENT_BYTES_MAX)

    assert max(end - begin for begin, end in cut) <= 5 * WINDOW_PIECES


# -- decay -------------------------------------------------------------------------------------


def test_importance_decays_by_the_notes_function() -> None:
    after = {
        function: effective_importance(0.8, hours=10, rate=0.05, function=function)
        for function in (None, "exponential", "linear", "step:5", "power_law:1")
    }

    assert after[None] == after["exponential"] == pytest.approx(0.8 * math.exp(-0.5))
    assert after["linear"] == pytest.approx(0.4)
    assert after["step:5"] == pytest.approx(0.2)
    assert after["power_law:1"] == pytest.approx(0.8 / 11)


def test_accesses_raise_importance_up_to_one() -> None:
    assert effective_importance(0.5, hours=0, access_count=3) == pytest.approx(
        0.5 + 0.05 * math.log(4)
    )
    assert effective_importance(1.0, hours=0, access_count=10**6) == 1.0


@given(st.floats(0, 1), st.floats(0, 1e6), st.sampled_from([None, "linear", "step:0", "step:3"]))
def test_importance_stays_between_nothing_and_one(
    importance: float, hours: float, function: str | None
) -> None:
    assert 0 <= effective_importance(importance, hours=hours, function=function) <= 1
    assert 0 <= importance_after_decay(importance, rate=None) <= importance
