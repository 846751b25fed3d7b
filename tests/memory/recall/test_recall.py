"""Recall: what is found, for whom, as of when, and that its receipt can be checked for ever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.memory.memory_store import Clock, a_note, open_memory, quick_folder

from tallystick.core.errors import UsageError
from tallystick.memory.errors import EmbedderNotConfigured, NoteInvalid
from tallystick.memory.forget import forget
from tallystick.memory.note import NewNote
from tallystick.memory.recall.recall import Asking, Recalled, recall, verify_recall
from tallystick.memory.recall.scope import Profile
from tallystick.memory.recall.selection import Filters
from tallystick.memory.receipts.receipt import (
    HmacMismatch,
    Key,
    QueryHashMismatch,
    RecallDiffers,
    RecallReceipt,
    ReceiptError,
    ReceiptUnknown,
    UnknownKey,
    read_receipt,
    receipt_bytes,
    sign,
)
from tallystick.memory.receipts.receipts import verify_chain
from tallystick.memory.remember import remember, remember_all
from tallystick.memory.store.records import ForgetStrategy, NotesRecalled, decode_memory_record
from tallystick.memory.store.sqlite import SqliteMemory
from tallystick.memory.store.verify import verify_memory

KEY = Key(id="k1", secret=b"s" * 32)
KEYS = {KEY.id: KEY.secret}
ANN = Asking(agent_id="ann", reader="ann")


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[SqliteMemory]:
    with open_memory(tmp_path) as made:
        yield made


def notes(memory: SqliteMemory, *texts: str, agent_id: str = "ann") -> list[str]:
    made = remember_all(memory, [a_note(text, agent_id=agent_id) for text in texts])
    return [each.id for each in made]


def found(recalled: Recalled) -> list[str]:
    return [recalled.notes[hit.id].content for hit in recalled.hits]


def asked(memory: SqliteMemory, query: str, asking: Asking = ANN) -> Recalled:
    return recall(memory, query, asking, key=KEY)


def test_a_receipt_of_another_memory_is_refused(memory: SqliteMemory, tmp_path: Path) -> None:
    with SqliteMemory(tmp_path / "other.db") as other:
        nothing = recall(other, "ferry", ANN, key=KEY).receipt

        assert verify_recall(other, nothing, keys=KEYS).read_id == nothing.read_id
        with pytest.raises(ReceiptUnknown, match="is known here"):
            verify_recall(memory, nothing, keys=KEYS)


# -- what is found -----------------------------------------------------------------------------


def test_the_note_that_answers_comes_first_and_says_by_which_lanes(memory: SqliteMemory) -> None:
    notes(memory, "the ferry leaves at nine", "bread is in the cellar", "the ferry was late")

    made = asked(memory, "when does the ferry leave?")

    assert found(made)[0] == "the ferry leaves at nine"
    assert "bread is in the cellar" not in found(made)
    first = made.hits[0]
    assert first.score == pytest.approx(sum(value for _, value in first.lanes))
    assert any("dense" in remark for remark in made.remarks)


@pytest.mark.parametrize(
    ("texts", "query", "first"),
    [
        (["the ferry leaves at nine"], "zeppelin", "the ferry leaves at nine"),
        (["Ann moved to Bern in May"], "where does she live?", "Ann moved to Bern in May"),
        (["bread is in the cellar", "the boat was mended"], "boathouse", "the boat was mended"),
        (["Paul keeps bees", "Anna keeps goats"], "beekeeper", "Paul keeps bees"),
    ],
)
def test_a_small_memory_gives_its_nearest_notes_where_none_has_a_word_of_the_query(
    memory: SqliteMemory, texts: list[str], query: str, first: str
) -> None:
    notes(memory, *texts)

    made = asked(memory, query)

    assert found(made)[0] == first
    assert len(made.hits) == len(texts)
    assert verify_recall(memory, made.receipt, keys=KEYS, query=query).ranking == "same"
    notes(memory, "a note that came later, of a zeppelin and bees and boats")
    assert verify_recall(memory, made.receipt, keys=KEYS, query=query).ranking == "same"


def test_the_author_that_a_query_names_makes_a_note_nearer(memory: SqliteMemory) -> None:
    for author, text in (("Paul", "is in Rome since May"), ("Ann", "moved to Bern in May")):
        remember(memory, a_note(text, agent_id="ann", author=author))

    made = asked(memory, "where does Ann live?")

    assert found(made)[0] == "moved to Bern in May"
    assert any(remark.startswith("near: ") for remark in made.remarks)


def test_a_word_that_is_there_leaves_the_other_notes_out(memory: SqliteMemory) -> None:
    notes(memory, "the ferry leaves at nine", "bread is in the cellar")

    made = asked(memory, "ferry")

    assert found(made) == ["the ferry leaves at nine"]
    assert "few" not in made.receipt.scope


@pytest.mark.parametrize(("count", "hits"), [(20, 10), (21, 0)])
def test_a_memory_of_more_than_twenty_notes_gives_nothing_where_nothing_fits(
    memory: SqliteMemory, count: int, hits: int
) -> None:
    notes(memory, *(f"note {each} of bread" for each in range(count)))

    made = asked(memory, "zeppelin")

    assert len(made.hits) == hits
    assert verify_recall(memory, made.receipt, keys=KEYS, query="zeppelin").ranking == "same"


def test_no_notes_may_be_asked_for_and_the_receipt_says_so(memory: SqliteMemory) -> None:
    notes(memory, "tea at four", "tea at five")

    for strategy in ("auto", "exact", "lexical"):
        made = asked(memory, "tea", Asking(agent_id="ann", k=0, strategy=strategy))
        assert (made.hits, made.receipt.k, made.receipt.derived_from) == ((), 0, ())
        verified = verify_recall(memory, made.receipt, keys=KEYS, query="tea")
        assert verified.ranking == "same"


@pytest.mark.parametrize("query", ["", "?!", "   "])
def test_a_query_without_words_finds_nothing(memory: SqliteMemory, query: str) -> None:
    notes(memory, "the ferry leaves at nine")

    assert asked(memory, query).hits == ()


def test_what_others_may_see_is_not_given_as_the_nearest(memory: SqliteMemory) -> None:
    notes(memory, "the harbour code is green", agent_id="bob")

    assert asked(memory, "zeppelin").hits == ()


def test_an_empty_receipt_of_before_still_holds_in_a_small_memory(memory: SqliteMemory) -> None:
    notes(memory, "the ferry leaves at nine")
    made = asked(memory, "zeppelin").receipt
    scope = {name: each for name, each in made.scope.items() if name != "few"}
    before = sign(msgspec.structs.replace(made, derived_from=(), scope=scope, hmac=""), KEY)

    assert verify_recall(memory, before, keys=KEYS, query="zeppelin").ranking == "same"
    other = sign(msgspec.structs.replace(made, scope={**scope, "few": "x"}, hmac=""), KEY)
    with pytest.raises(UsageError, match="few notes by other rules"):
        verify_recall(memory, other, keys=KEYS, query="zeppelin")


def test_nobody_finds_what_is_not_theirs(memory: SqliteMemory) -> None:
    notes(memory, "the harbour code is blue")
    notes(memory, "the harbour code is green", agent_id="bob")

    assert found(asked(memory, "harbour code")) == ["the harbour code is blue"]
    owner = Asking(agent_id="owner", reader=None)
    assert len(asked(memory, "harbour code", owner).hits) == 2


def test_filters_count_before_anything_is_ranked(memory: SqliteMemory) -> None:
    remember(memory, a_note("a red kite", agent_id="ann", tags=("birds",)))
    remember(memory, a_note("a red kite made of paper", agent_id="ann", tags=("toys",)))

    narrow = Asking(agent_id="ann", reader="ann", filters=Filters(tags=frozenset({"toys"})))

    made = asked(memory, "red kite", narrow)

    assert found(made) == ["a red kite made of paper"]
    # The receipt says them, so the same view is made again.
    assert verify_recall(memory, made.receipt, keys=KEYS, query="red kite").ranking == "same"


def test_a_receipt_with_filters_that_nobody_knows_is_refused(memory: SqliteMemory) -> None:
    notes(memory, "red apple")
    receipt = asked(memory, "red").receipt
    scope = {**receipt.scope, "filters": {"mood": "sad"}}
    later = sign(msgspec.structs.replace(receipt, scope=scope), KEY)

    with pytest.raises(UsageError, match="'mood'"):
        verify_recall(memory, later, keys=KEYS, query="red")


def test_strategies_do_what_they_say_or_refuse(memory: SqliteMemory) -> None:
    notes(memory, "Grüße an Zoë, bitte!", "an answer to Zoe")

    exact = Asking(agent_id="ann", reader="ann", strategy="exact")
    lexical = Asking(agent_id="ann", reader="ann", strategy="lexical")

    assert found(asked(memory, "grüße  an", exact)) == ["Grüße an Zoë, bitte!"]
    assert found(asked(memory, "answer", lexical)) == ["an answer to Zoe"]
    for strategy in ("semantic", "hybrid"):
        with pytest.raises(EmbedderNotConfigured):
            asked(memory, "x", Asking(agent_id="ann", reader="ann", strategy=strategy))
    with pytest.raises(UsageError, match="strategy"):
        asked(memory, "x", Asking(agent_id="ann", strategy="guess"))  # type: ignore[arg-type]


@pytest.mark.parametrize("k", [-1, 101, 10_000])
def test_so_many_cannot_be_asked_for(memory: SqliteMemory, k: int) -> None:
    with pytest.raises(UsageError, match="k is from 0 to 100"):
        asked(memory, "x", Asking(agent_id="ann", k=k))


@pytest.mark.parametrize("query", ["", "?!", 'a" OR NEAR(b', "\x00\x1b[2J", "x" * 100_000, "日本"])
def test_any_text_is_a_query(memory: SqliteMemory, query: str) -> None:
    notes(memory, "something")

    made = asked(memory, query)

    assert verify_recall(memory, made.receipt, keys=KEYS, query=query).ranking == "same"


def test_a_place_that_is_not_there_yet_is_refused(memory: SqliteMemory) -> None:
    with pytest.raises(NoteInvalid):
        asked(memory, "x", Asking(agent_id="ann", as_of=99))


def test_no_more_is_given_than_there_is_room_for(memory: SqliteMemory) -> None:
    notes(memory, "red one", "red two more words", "red three")

    few = recall(
        memory,
        "red",
        Asking(agent_id="ann", reader="ann", tokens_max=4),
        key=KEY,
        count=lambda text: len(text.split()),
        tokenizer="words@1",
    )

    assert sum(len(text.split()) for text in found(few)) <= 4
    tokens = few.receipt.tokens
    assert tokens is not None
    assert (tokens.whole_scope, tokens.tokenizer) == (8, "words@1")
    assert tokens.delivered == sum(len(text.split()) for text in found(few))
    assert verify_recall(memory, few.receipt, keys=KEYS, query="red").ranking == "same"
    with pytest.raises(UsageError, match="tokenizer"):
        asked(memory, "red", Asking(agent_id="ann", tokens_max=4))


# -- receipts ----------------------------------------------------------------------------------


def test_receipts_stand_in_the_log_as_one_chain(memory: SqliteMemory) -> None:
    notes(memory, "one thing", "another thing")
    made = [asked(memory, query).receipt for query in ("one", "another", "nothing like it")]

    kept = [
        record.receipt
        for entry in memory.entries()
        if entry.body is not None
        and isinstance(record := decode_memory_record(entry.body), NotesRecalled)
    ]

    assert [read_receipt(each.encode()) for each in kept] == made
    assert verify_chain(made, keys=KEYS).valid
    assert not verify_chain([made[0], made[2]], keys=KEYS).valid
    assert verify_memory(memory).valid


def test_what_is_remembered_later_changes_no_receipt(memory: SqliteMemory) -> None:
    notes(memory, "the ferry leaves at nine", "the train leaves at ten")
    early = asked(memory, "when does the ferry leave?")
    notes(memory, *(f"the ferry number {n} leaves late" for n in range(50)))

    held = verify_recall(memory, early.receipt, keys=KEYS, query="when does the ferry leave?")
    now = asked(memory, "when does the ferry leave?")
    then = asked(
        memory,
        "when does the ferry leave?",
        Asking(agent_id="ann", reader="ann", as_of=early.receipt.as_of),
    )

    assert held.ranking == "same"
    assert now.hits != early.hits
    assert then.hits == early.hits


def test_another_query_key_weight_or_order_is_found(memory: SqliteMemory) -> None:
    notes(memory, "red apple", "red pear", "red plum")
    receipt = asked(memory, "red apple").receipt

    with pytest.raises(QueryHashMismatch):
        verify_recall(memory, receipt, keys=KEYS, query="red pear")
    with pytest.raises(UnknownKey):
        verify_recall(memory, receipt, keys={}, query="red apple")
    with pytest.raises(RecallDiffers):
        verify_recall(memory, receipt, keys=KEYS, query="red apple", profile=Profile(lexical=2.0))
    swapped = msgspec.structs.replace(receipt, derived_from=receipt.derived_from[::-1])
    with pytest.raises(HmacMismatch):
        verify_recall(memory, swapped, keys=KEYS, query="red apple")


def test_without_the_query_the_rest_is_checked(memory: SqliteMemory) -> None:
    notes(memory, "red apple")
    made = verify_recall(memory, asked(memory, "red apple").receipt, keys=KEYS)

    assert (made.query, made.ranking) == ("not_given", "not_recomputed")
    assert [state for _, state in made.notes] == ["held"]


def test_a_note_that_was_erased_is_said_to_be(memory: SqliteMemory) -> None:
    first, _ = notes(memory, "the safe opens with 4711", "the safe is in the hall")
    receipt = asked(memory, "safe").receipt

    forget(memory, [first], strategy=ForgetStrategy.HARD_DELETE, actor="ann")
    made = verify_recall(memory, receipt, keys=KEYS, query="safe")

    assert made.erased == (first,)
    assert made.ranking == "erased"
    assert verify_memory(memory).valid


@given(data=st.data())
def test_one_changed_byte_of_a_receipt_is_found(data: st.DataObject) -> None:
    with quick_folder() as folder, open_memory(folder) as memory:
        notes(memory, "red apple", "red pear")
        receipt = asked(memory, "red").receipt
        raw = bytearray(receipt_bytes(receipt))
        place = data.draw(st.integers(0, len(raw) - 1))
        raw[place] ^= data.draw(st.integers(1, 255))

        with pytest.raises((ReceiptError, UsageError)):
            _checked(memory, bytes(raw))


def _checked(memory: SqliteMemory, raw: bytes) -> None:
    receipt = read_receipt(raw)
    assert isinstance(receipt, RecallReceipt)
    verify_recall(memory, receipt, keys=KEYS, query="red")


@given(
    texts=st.lists(st.sampled_from(["red apple", "red pear", "blue plum", "a plum"]), max_size=6),
    later=st.lists(st.sampled_from(["red apple pie", "red", "blue plum jam"]), max_size=6),
    query=st.sampled_from(["red", "plum", "apple pie", ""]),
)
def test_a_recall_as_of_then_is_the_recall_that_was_made_then(
    texts: list[str], later: list[str], query: str
) -> None:
    with quick_folder() as folder, open_memory(folder) as memory:
        for text in texts:
            remember(memory, NewNote(agent_id="ann", content=text))
        early = asked(memory, query)
        for text in later:
            remember(memory, NewNote(agent_id="ann", content=text))

        again = asked(
            memory,
            query,
            Asking(
                agent_id="ann",
                reader="ann",
                as_of=early.receipt.as_of,
                at=early.receipt.ts,
            ),
        )

        assert again.hits == early.hits
        assert verify_recall(memory, early.receipt, keys=KEYS, query=query).ranking == "same"


def test_a_note_that_expires_later_was_seen_then(tmp_path: Path) -> None:
    clock = Clock()
    with open_memory(tmp_path, clock=clock) as memory:
        remember(memory, a_note("meet at noon", agent_id="ann", expires_at=clock.now + 1_000))
        early = asked(memory, "meet")
        clock.now += 5_000

        assert asked(memory, "meet").hits == ()
        assert verify_recall(memory, early.receipt, keys=KEYS, query="meet").ranking == "same"
