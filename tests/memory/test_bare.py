"""What is read off a bare text, and what is never guessed."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.memory.memory_store import Clock, a_note, open_memory

from tallystick.memory.bare import read_off
from tallystick.memory.note import duplicate_digest, kept_at
from tallystick.memory.recall.view import view
from tallystick.memory.remember import remember

ROOT = Path(__file__).resolve().parents[2]
NOW = int(datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC).timestamp()) * 1000


def read(text: str, *known: str) -> tuple[str | None, str | None]:
    found = read_off(text, now=NOW, known=known.__contains__)
    if found.at is None:
        return found.author, None
    moment = datetime.datetime.fromtimestamp(found.at / 1000, datetime.UTC)
    return found.author, f"{moment:%Y-%m-%d %H:%M}"


@pytest.mark.parametrize(
    ("text", "author", "at"),
    [
        ("Ann: I moved to Bern in May", "Ann", None),
        ("**Ann**: I think so", "Ann", None),
        ("Jos\u00e9: are you there?", "Jos\u00e9", None),
        ("Dr. Meier: your results are fine", "Dr. Meier", None),
        ("[12 May 2024] Ann: the ferry leaves at nine", "Ann", "2024-05-12 00:00"),
        ("2024-05-12 10:31 Ann: the ferry leaves", "Ann", "2024-05-12 10:31"),
        ("2024-05-12T10:31:05Z Xiulan: the ferry leaves", "Xiulan", "2024-05-12 10:31"),
        ("2024-05-12 10:31 +02:00 Ann: late", "Ann", "2024-05-12 08:31"),
        ("2024-05-12: signed the lease", None, "2024-05-12 00:00"),
        ("(2024-05-12) signed the lease", None, "2024-05-12 00:00"),
        ("2024-05-12\nSigned the lease.", None, "2024-05-12 00:00"),
        ("May 12th, 2024 - I left", None, "2024-05-12 00:00"),
        ("Sunday, 12 May 2024: we went to the lake", None, "2024-05-12 00:00"),
        ("13/05/24, 10:31 - Ann Smith: hi", "Ann Smith", "2024-05-13 10:31"),
        ("[13/05/2024, 10:31:22] ~Ann: hi", None, "2024-05-13 10:31"),
        ("[5/13/24, 10:31:22 PM] Ann: hi", "Ann", "2024-05-13 22:31"),
        ("13/05/24, 10:31 - +49 170 1234567: hi", "+49 170 1234567", "2024-05-13 10:31"),
        ("12/05/24, 10:31 - Ann: hi", "Ann", None),
        ("Ann, [12.05.2024 10:31]\nhello", "Ann", "2024-05-12 10:31"),
        ("Ann Smith  10:31 AM\nhello", "Ann Smith", None),
        ("[10:31] <ann_b> hi all", "ann_b", None),
        ("1:56 pm on 8 May, 2023 Ann: hey", "Ann", "2023-05-08 13:56"),
        ("On May 3rd, we met Ben", None, "2025-05-03 00:00"),
        ("On May 3rd, 2024, Ann moved", None, "2024-05-03 00:00"),
        ("On 3 May 2024 Ann moved to Bern", None, "2024-05-03 00:00"),
    ],
)
def test_author_and_time_are_read_off(text: str, author: str | None, at: str | None) -> None:
    assert read(text) == (author, at)


@pytest.mark.parametrize(
    "text",
    [
        "Note: I need milk", "TODO: call you", "Coffee: I prefer espresso", "Berlin: we met there",
        "Groceries: we need milk", "PS: I love you", "Dear Ann: I am writing", "ERROR: I failed",
        "http://ann.example: my page", "Ann: sister of Mia", "10:30 standup with you",
        "12:00 lunch with Ann: my treat", "Ratio 3:4 I think", "Genesis 1:1 In the beginning",
        "2024-05-12 was a sunny day", "12 May 2024 is the deadline", "2024: my year",
        "2024-05-12 - 2024-05-14: conference", "12 May 2024 - 14: conference",
        "03/04/2024: lunch", "2024-13-40: x", "1.2.2024.3 is a version", "2024-05-12-report.pdf",
        "2027-05-12: concert", "On May 3rd, we will fly", "On May 3rd the train leaves at 9",
        "On May 3rd every year we celebrated", "On May 3rd.", "May 2024: I was in Rome",
        "Ann: I moved.\nBen: Great!", "31 February 2024: nothing", "12 May 1024: a battle",
    ],
)  # fmt: skip
def test_nothing_is_guessed(text: str) -> None:
    assert read(text) == (None, None)


def test_a_level_of_a_log_is_no_author() -> None:
    assert read("2024-05-12 10:31 ERROR: disk full") == (None, "2024-05-12 10:31")


def test_an_author_who_is_known_needs_no_other_sign() -> None:
    assert read("Xiulan: the ferry leaves at nine") == (None, None)
    assert read("Xiulan: the ferry leaves at nine", "Xiulan") == ("Xiulan", None)


def test_today_in_a_zone_ahead_is_now_and_tomorrow_is_no_time() -> None:
    assert read("2026-03-01 22:00 Ann: hi") == ("Ann", "2026-03-01 12:00")
    assert read("2026-03-03 08:00 Ann: hi") == ("Ann", None)


# -- both kinds, drawn ---------------------------------------------------------------------------

_DAYS = st.dates(min_value=datetime.date(1971, 1, 1), max_value=datetime.date(2026, 2, 28))
_NAMES = st.sampled_from(["Ann", "Ben", "Maria Rossi", "J. Miller", "Dr. Anna Weber"])
_SAID = st.sampled_from(["the ferry leaves", "I left", "see you at 9", "yes", "12 eggs: done"])
_STAMPS = (
    "{0:%Y-%m-%d} {1:%H:%M} ", "[{0:%Y-%m-%d} {1:%H:%M}] ", "[{0:%d.%m.%Y}, {1:%H:%M}] ",
    "{0:%d.%m.%Y}, {1:%H:%M} - ", "{0:%d} {0:%B} {0:%Y} {1:%H:%M} - ",
    "[{0:%B} {0:%d}, {0:%Y} {1:%H:%M}] ",
    "{0:%Y-%m-%d}T{1:%H:%M}:00Z ", "{1:%H:%M} on {0:%d} {0:%B}, {0:%Y} ",
)  # fmt: skip


@given(stamp=st.sampled_from(_STAMPS), day=_DAYS, time=st.times(), name=_NAMES, said=_SAID)
def test_every_line_of_a_chat_gives_its_author_and_its_minute(
    stamp: str, day: datetime.date, time: datetime.time, name: str, said: str
) -> None:
    assert read(f"{stamp.format(day, time)}{name}: {said}") == (name, f"{day} {time:%H:%M}")


@given(text=st.text(max_size=80))
def test_any_text_is_read_without_an_error_and_never_as_of_later(text: str) -> None:
    found = read_off(text, now=NOW, known=lambda _: False)

    assert found.at is None or 0 <= found.at <= NOW
    assert found.author is None or found.author in text


_NOUNS = st.sampled_from(
    [
        "Coffee",
        "Chess",
        "Docker",
        "Python",
        "Budget",
        "Switzerland",
        "Bread",
        "Ferry",
        "Allergies",
        "Diet",
        "Battery",
        "Garden",
    ]
)
_TELLS = st.sampled_from(["I like it", "we need two", "my choice is blue", "do you agree?", "soon"])


@given(label=st.lists(_NOUNS, min_size=1, max_size=2).map(" ".join), said=_TELLS)
def test_a_thing_before_a_colon_is_no_author(label: str, said: str) -> None:
    assert read(f"{label}: {said}") == (None, None)


@given(day=_DAYS, verb=st.sampled_from(["was", "is", "will be", "to", "and"]), rest=_TELLS)
def test_a_day_that_a_sentence_is_about_is_not_its_time(
    day: datetime.date, verb: str, rest: str
) -> None:
    assert read(f"{day} {verb} {rest}") == (None, None)
    assert read(f"{day:%d %B %Y} {verb} {rest}") == (None, None)


def test_no_line_of_our_own_prose_has_an_author() -> None:
    lines = [
        line.strip()
        for page in (ROOT / "docs").rglob("*.md")
        for line in page.read_text(encoding="utf-8").splitlines()
        # The guide shows such texts.
        if page.name != "memory.md"
    ]
    read_as = {line: read(line) for line in lines if re.match(r"\W*\w[^:]{0,40}:", line)}

    assert len(read_as) > 100
    assert {line: found for line, found in read_as.items() if found[0] is not None} == {}


# -- in a memory ---------------------------------------------------------------------------------


def test_a_kept_note_has_what_was_read_off_and_says_so(tmp_path: Path) -> None:
    text = "[12 May 2024] Ann: I moved to Bern"
    with open_memory(tmp_path, clock=Clock(NOW)) as memory:
        made = remember(memory, a_note(text))
        note = view(memory, reader="ada").note(made.id)

    assert (note.content, note.author) == (text, "Ann")
    assert note.created_at == note.valid_from < NOW
    assert note.read_off == ("author", "created_at")
    assert kept_at(note) == NOW


def test_what_the_caller_said_is_not_replaced(tmp_path: Path) -> None:
    with open_memory(tmp_path, clock=Clock(NOW)) as memory:
        given = remember(memory, a_note("Ann: I moved", author="Ben", created_at=5)).id
        plain = remember(memory, a_note("Ann: I left", as_is=True)).id
        seen = view(memory, reader="ada")

    assert (seen.note(given).author, seen.note(given).created_at) == ("Ben", 5)
    assert seen.note(plain).author is None
    assert seen.note(given).read_off == seen.note(plain).read_off == ()


def test_an_author_of_an_agents_notes_is_known_to_it_and_to_no_other(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        remember(memory, a_note("the ferry is late", author="Xiulan"))
        ours = remember(memory, a_note("Xiulan: bread is in the cellar")).id
        theirs = remember(memory, a_note("Xiulan: tea is at four", agent_id="bob")).id
        seen = view(memory, reader=None)

    assert (seen.note(ours).author, seen.note(theirs).author) == ("Xiulan", None)


def test_the_same_bare_text_is_kept_once_also_by_memories_of_before(tmp_path: Path) -> None:
    bare = a_note("Ann: I moved to Bern")
    with open_memory(tmp_path) as memory:
        first = remember(memory, bare)
        again = remember(memory, bare)
        note = view(memory, reader="ada").note(first.id)

    assert (again.id, again.sighted) == (first.id, True)
    assert duplicate_digest(note, secret=b"s" * 32) == duplicate_digest(bare, secret=b"s" * 32)
