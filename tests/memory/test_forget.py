"""Forgetting: what is still recalled, what was known before, and which bytes are left."""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path

import pytest
from tests.memory.memory_store import (
    START,
    Clock,
    a_note,
    open_memory,
    raw_bytes,
    record_access,
    tables,
)

from tallystick.memory.errors import BackendUnsupported, NoteErased, NoteInvalid
from tallystick.memory.exchange import export_notes
from tallystick.memory.forget import (
    Forgotten,
    RunsErased,
    decay_pass,
    forget,
    matching_ids,
    preview_forget,
    provenance_ids,
    subject_ids,
)
from tallystick.memory.note import REDACTED, MemoryType, NoteScope, Permission
from tallystick.memory.recall.recall import Asking, recall
from tallystick.memory.recall.view import find_note, view
from tallystick.memory.receipts.keys import open_keys
from tallystick.memory.receipts.receipt import (
    ForgetReceipt,
    Key,
    Link,
    MissingRecord,
    NotErased,
    ReceiptUnknown,
    RunErased,
)
from tallystick.memory.receipts.receipts import (
    all_receipts,
    find_forget_receipt,
    find_recall_receipt,
    verify_chain,
    verify_forgotten,
)
from tallystick.memory.remember import remember, remember_all
from tallystick.memory.sharing import share
from tallystick.memory.store.records import Criteria, ForgetStrategy
from tallystick.memory.store.sqlite import SqliteMemory
from tallystick.memory.store.vectors import Vectors, choose_model, keep_vectors
from tallystick.memory.store.verify import verify_memory
from tallystick.upkeep.memory import Memory

HOUR = 3_600_000
MODEL = "a" * 64
SECRET = "zanzibar marmalade qwertzuiop"
WORDS = ("zanzibar", "marmalad", "qwertzuiop", "Xylophonist", "xylophonist")


KEY = Key(id="k1", secret=b"k" * 32)
KEYS = {KEY.id: KEY.secret}


def erased(memory: SqliteMemory, id: str) -> ForgetReceipt:
    """Erase a note; the receipt of that."""
    done = forget(memory, [id], actor=None, strategy=ForgetStrategy.HARD_DELETE, key=KEY)
    assert done.receipt is not None
    return done.receipt


def texts(memory: SqliteMemory, as_of: int | None = None) -> list[str]:
    seen = view(memory, reader="ada", as_of=as_of)
    return [seen.note(id).content for id in seen.ids]


# -- strategies --------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [ForgetStrategy.SOFT_DELETE, ForgetStrategy.ARCHIVE])
def test_a_note_out_of_sight_can_be_asked_for_as_of_before(
    strategy: ForgetStrategy, tmp_path: Path
) -> None:
    with open_memory(tmp_path) as memory:
        kept = remember(memory, a_note("stays"))
        made = remember(memory, a_note("goes"))

        done = forget(memory, [made.id], actor="ada", strategy=strategy)

        assert done.forgotten == (made.id,)
        assert texts(memory) == ["stays"]
        assert texts(memory, as_of=2) == ["stays", "goes"]
        assert view(memory, reader="ada", as_of=2).erased == ()
        assert view(memory, reader="ada").ids == (kept.id,)
        assert verify_memory(memory).valid


def test_decay_takes_off_the_notes_own_rate_and_ends_at_nothing(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        plain = remember(memory, a_note("plain", importance=0.5)).id
        fast = remember(memory, a_note("fast", importance=0.3, decay_rate=0.4)).id

        forget(memory, [plain, fast], actor=None, strategy=ForgetStrategy.DECAY)

        assert find_note(memory, plain, reader=None).state.importance == pytest.approx(0.4)
        assert find_note(memory, fast, reader=None).state.importance == 0.0


def test_procedural_notes_do_not_decay(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        made = remember(memory, a_note("how to", memory_type=MemoryType.PROCEDURAL))

        done = forget(memory, [made.id], actor=None, strategy=ForgetStrategy.DECAY)

        assert done.forgotten == ()
        assert done.receipt is None
        assert done.errors[0].code == "usage.memory"
        assert find_note(memory, made.id, reader=None).state.importance == 0.8


def test_redaction_leaves_the_place_of_a_note_and_none_of_its_words(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        new = a_note(
            SECRET,
            tags=("subject:bob", "kept"),
            metadata={"who": "Xylophonist"},
            author="Xylophonist",
            thread_id="t",
        )
        made = remember(memory, new)
        before = memory.head()

        done = forget(memory, [made.id], actor="ada", strategy=ForgetStrategy.REDACT)

        left = find_note(memory, made.id, reader="ada").note
        assert (left.content, left.tags, left.metadata) == (REDACTED, ("kept",), {"redacted": True})
        assert (left.thread_id, left.author) == ("t", None)
        assert view(memory, reader="ada", as_of=1).erased == (made.id,)
        assert view(memory, reader="ada", as_of=1).ids == ()
        assert view(memory, reader="ada").erased == ()
        report = verify_memory(memory, head=before)
        assert (report.valid, report.erased) == (True, 1)
        assert done.scrubbed is True
    assert not any(word.encode() in raw_bytes(tmp_path) for word in WORDS)


def test_consolidation_is_refused_and_not_pretended(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        made = remember(memory, a_note())

        with pytest.raises(BackendUnsupported, match="consolidate"):
            forget(memory, [made.id], actor=None, strategy=ForgetStrategy.CONSOLIDATE)


# -- erasure -----------------------------------------------------------------------------------


def crowded(memory: SqliteMemory) -> str:
    """A memory with a note among many others, and everything that can be known of it."""
    for batch in range(4):
        remember_all(memory, [a_note(f"filler {batch} {n} " + "x" * (n % 90)) for n in range(60)])
        if batch == 1:
            new = a_note(
                f"{SECRET} " + "Xylophonist said so. " * 80,
                tags=("subject:Xylophonist",),
                metadata={"Xylophonist": SECRET},
                author="Xylophonist",
                key="Xylophonist",
                source_id="Xylophonist",
                thread_id="Xylophonist",
                created_by="Xylophonist",
                session_id="Xylophonist",
            )
            made = remember(memory, new).id
            remember(memory, new)
    record_access(memory, [made])
    choose_model(memory, MODEL, dimensions=4)
    windows = [Vectors(b"Xylophonist%d" % n, b"Xylophonist") for n in range(3)]
    keep_vectors(memory, [(made, windows)], model=MODEL)
    return made


def test_an_erased_note_leaves_no_byte_of_itself_in_any_file(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        made = crowded(memory)
        content = find_note(memory, made, reader=None).note.content.encode()
        assert all(word.encode() in raw_bytes(tmp_path) for word in WORDS)
        reader = open_memory(tmp_path)
        assert made in view(reader, reader=None)

        done = forget(memory, [made], actor="ada", strategy=ForgetStrategy.HARD_DELETE)

        assert done.scrubbed is True
        left = raw_bytes(tmp_path)
        for word in (*WORDS, SECRET):
            assert word.encode() not in left
        for digest in (hashlib.sha256(content), hashlib.sha256(SECRET.encode())):
            assert digest.digest() not in left
            assert digest.hexdigest().encode() not in left
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            "memory.db",
            "memory.db-shm",
            "memory.db-wal",
        ]
        reader.close()
    assert not any(word.encode() in raw_bytes(tmp_path) for word in WORDS)


def test_after_an_erasure_the_chain_holds_and_says_erased(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        made = crowded(memory)
        head = memory.head()

        done = erased(memory, made)

        report = verify_memory(memory, head=head)
        assert (report.valid, report.error_message) == (True, None)
        assert report.erased == len(done.entries) == 3
        assert verify_forgotten(memory, done, keys=KEYS).notes == ((made, "erased"),)
        with pytest.raises(NoteErased, match="was erased by entry"):
            find_note(memory, made, reader=None)
        assert view(memory, reader=None, as_of=head.count).erased == (made,)
        assert view(memory, reader=None).erased == ()


def test_no_term_of_an_erased_note_is_left_in_the_index(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        made = crowded(memory)
        forget(memory, [made], actor=None, strategy=ForgetStrategy.HARD_DELETE)

    terms = {term for term, _ in tables(tmp_path / "memory.db")["words"]}
    assert terms.isdisjoint({"zanzibar", "marmalad", "qwertzuiop", "xylophonist"})


def test_whoever_reads_an_older_state_delays_the_scrub_and_the_receipt_says_so(
    tmp_path: Path,
) -> None:
    memory = open_memory(tmp_path)
    impatient = SqliteMemory(tmp_path / "memory.db", busy_seconds=0.05)
    made = remember(memory, a_note(SECRET))
    other = sqlite3.connect(tmp_path / "memory.db", isolation_level=None)
    other.execute("BEGIN")
    other.execute("SELECT * FROM log").fetchall()

    done = forget(impatient, [made.id], actor=None, strategy=ForgetStrategy.HARD_DELETE)

    assert done.scrubbed is False
    assert impatient.scrub_due
    other.close()
    impatient.close()
    memory.close()
    with open_memory(tmp_path) as opened:
        assert not opened.scrub_due
        assert SECRET.encode() not in raw_bytes(tmp_path)


def test_what_was_exported_before_is_listed_and_not_claimed(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        made = remember(memory, a_note(SECRET))
        list(export_notes(memory, reader=None, label="backup of March"))
        later = remember(memory, a_note("later"))

        first = erased(memory, made.id)
        second = erased(memory, later.id)

        assert first.exports == ((2, "backup of March"),)
        assert second.exports == ()


# -- receipts ----------------------------------------------------------------------------------


def test_a_receipt_does_not_hold_where_the_bytes_came_back(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        made = remember(memory, a_note(SECRET))
        receipt = erased(memory, made.id)
        with memory.writing() as pen:
            pen.db.execute("UPDATE log SET salt = x'00', body = x'00' WHERE seq = 1")

        with pytest.raises(NotErased, match="entry 1 can still be read"):
            verify_forgotten(memory, receipt, keys=KEYS)
        assert not verify_memory(memory).valid


def test_a_receipt_does_not_hold_in_another_memory(tmp_path: Path) -> None:
    with open_memory(tmp_path / "one") as one, open_memory(tmp_path / "two", seed=1) as two:
        receipt = erased(one, remember(one, a_note(SECRET)).id)
        remember(two, a_note("other"))

        with pytest.raises(MissingRecord):
            verify_forgotten(two, receipt, keys=KEYS)


@pytest.mark.parametrize("strategy", [each for each in ForgetStrategy if each != "consolidate"])
def test_every_forgetting_gives_a_receipt_that_is_kept_and_holds(
    strategy: ForgetStrategy, tmp_path: Path
) -> None:
    with open_memory(tmp_path) as memory:
        made = remember(memory, a_note(SECRET)).id

        done = forget(memory, [made, "no id"], actor="ada", strategy=strategy, key=KEY)

        assert done.receipt is not None
        assert find_forget_receipt(memory, done.receipt.forget_id) == done.receipt
        state = "erased" if strategy.erases else "held"
        assert verify_forgotten(memory, done.receipt, keys=KEYS).notes == ((made, state),)
        assert (done.receipt.agent_id, done.receipt.asked) == ("ada", {"by": "ids", "why": "asked"})
        # A text that is no id says perhaps what is to be forgotten.
        assert done.receipt.errors == ()
        assert verify_memory(memory).valid


def test_receipts_of_recalls_and_of_forgetting_are_one_chain(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        ids = [remember(memory, a_note(f"tea at {n}")).id for n in range(3)]
        asking = Asking(agent_id="ada", reader="ada")
        first = recall(memory, "tea", asking, key=KEY).receipt
        second = erased(memory, ids[0])
        third = recall(memory, "tea", asking, key=KEY).receipt
        memory.rebuild()

        kept = list(all_receipts(memory))

        assert kept == [first, second, third]
        assert verify_chain(kept, keys=KEYS, head=Link.after(third)).valid
        assert not verify_chain([first, third], keys=KEYS).valid
        assert find_recall_receipt(memory, first.read_id) == first
        for missing in (second.forget_id, "nothing"):
            with pytest.raises(ReceiptUnknown):
                find_recall_receipt(memory, missing)
        with pytest.raises(ReceiptUnknown):
            find_forget_receipt(memory, first.read_id)


def test_a_receipt_says_how_notes_were_chosen_and_not_by_which_name(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        remember(memory, a_note("a", tags=("subject:Xylophonist",)))
        remember(memory, a_note("b", created_by="Xylophonist"))
        hard = ForgetStrategy.HARD_DELETE

        about = subject_ids(memory, "Xylophonist")
        one = forget(memory, about, actor=None, strategy=hard, key=KEY, by="subject")
        said = provenance_ids(memory, principal="Xylophonist", session_id=None)
        two = forget(memory, said, actor=None, strategy=hard, key=KEY, by="provenance")

        assert [each.receipt and each.receipt.asked["by"] for each in (one, two)] == [
            "subject",
            "provenance",
        ]
    assert b"Xylophonist" not in raw_bytes(tmp_path)


def test_what_can_be_forgotten_is_said_before_it_is(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        here = remember(memory, a_note("here")).id
        gone = remember(memory, a_note("gone")).id
        forget(memory, [gone], actor=None, strategy=ForgetStrategy.HARD_DELETE)
        before = memory.head()

        owner = preview_forget(
            memory, [here, gone], actor=None, strategy=ForgetStrategy.HARD_DELETE
        )
        other = preview_forget(
            memory, [here, gone], actor="bob", strategy=ForgetStrategy.HARD_DELETE
        )

        assert [note.id for note in owner.notes] == [here]
        assert (owner.gone, owner.errors) == ((gone,), ())
        assert (other.notes, other.gone) == ((), ())
        assert [each.code for each in other.errors] == ["backend.memory.not_found"] * 2
        assert memory.head() == before


def test_with_a_word_on_runs_a_note_that_is_gone_is_named_again(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        made = remember(memory, a_note(SECRET)).id
        first = erased(memory, made)
        runs = RunsErased(runs=(RunErased(run="R", how="kept", why="is running"),))

        again = forget(
            memory, [made], actor=None, strategy=ForgetStrategy.HARD_DELETE, key=KEY, runs=runs
        )

        assert again.errors == ()
        assert again.receipt is not None
        assert again.receipt.forgotten == first.forgotten
        assert (again.receipt.runs, first.runs) == (runs.runs, None)
        assert verify_forgotten(memory, again.receipt, keys=KEYS).notes == ((made, "erased"),)


# -- who and which -----------------------------------------------------------------------------


def test_what_cannot_be_forgotten_is_returned_and_the_others_are(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        mine = remember(memory, a_note("mine")).id
        theirs = remember(memory, a_note("theirs", agent_id="bob", scope=NoteScope.PUBLIC)).id
        hidden = remember(memory, a_note("hidden", agent_id="bob")).id
        nobody = mine[:-1] + ("0" if mine[-1] != "0" else "1")

        done = forget(memory, [theirs, hidden, nobody, mine, "no id"], actor="ada")

        assert done.forgotten == (mine,)
        assert [(each.id, each.code) for each in done.errors] == [
            (theirs, "refused.memory"),
            (hidden, "backend.memory.not_found"),
            (nobody, "backend.memory.not_found"),
            ("no id", "backend.memory.not_found"),
        ]


def test_whom_a_note_was_shared_with_forgets_it_only_with_write(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        made = remember(memory, a_note("ours", scope=NoteScope.SHARED)).id
        share(memory, made, actor="ada", with_agent="bob", permission=Permission.READ)
        refused = forget(memory, [made], actor="bob")
        share(memory, made, actor="ada", with_agent="bob", permission=Permission.DELETE)

        done = forget(memory, [made], actor="bob")

        assert refused.errors[0].code == "refused.memory"
        assert done.forgotten == (made,)


def test_criteria_are_met_all_together(tmp_path: Path) -> None:
    clock = Clock()
    with open_memory(tmp_path, clock=clock) as memory:
        old = remember(memory, a_note("old", importance=0.2, tags=("a",))).id
        remember(memory, a_note("old and dear", importance=0.9, tags=("a",)))
        remember(memory, a_note("old, other tag", importance=0.2, tags=("b",)))
        remember(memory, a_note("somebody else's", importance=0.2, tags=("a",), agent_id="bob"))
        clock.now = START + 3 * HOUR
        remember(memory, a_note("new", importance=0.2, tags=("a",)))
        which = Criteria(max_age_hours=2, min_importance_below=0.5, tags=frozenset({"a"}))

        done = forget(memory, matching_ids(memory, which, owner="ada"), actor="ada")

        assert done.forgotten == (old,)


def test_forgetting_needs_to_be_told_what(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        with pytest.raises(NoteInvalid, match="ids"):
            forget(memory, [], actor="ada")
        with pytest.raises(NoteInvalid, match="criteria"):
            matching_ids(memory, Criteria(), owner="ada")
        with pytest.raises(NoteInvalid, match="principal"):
            provenance_ids(memory, principal=None, session_id=None)
        with pytest.raises(NoteInvalid, match="subject"):
            subject_ids(memory, " ")


def test_a_subject_is_redacted_wherever_it_is_tagged_deleted_notes_too(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        ids = [
            remember(memory, a_note(f"{SECRET} {n}", tags=("subject:bob",))).id for n in range(3)
        ]
        remember(memory, a_note("about carol", tags=("subject:carol",)))
        forget(memory, ids[:1], actor=None)

        redact = ForgetStrategy.REDACT
        done = forget(memory, subject_ids(memory, "bob"), actor=None, strategy=redact)

        assert sorted(done.forgotten) == sorted(ids)
        assert texts(memory) == [REDACTED, REDACTED, "about carol"]
        assert verify_memory(memory).valid
    assert SECRET.encode() not in raw_bytes(tmp_path)
    assert b"subject:bob" not in raw_bytes(tmp_path)


def test_what_a_principal_or_a_session_wrote_can_be_taken_back(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        one = remember(memory, a_note("1", created_by="tool", session_id="s1")).id
        two = remember(memory, a_note("2", created_by="tool", session_id="s2")).id
        three = remember(memory, a_note("3", created_by="ada", session_id="s1")).id

        def taken_back(principal: str | None, session_id: str | None) -> Forgotten:
            ids = provenance_ids(memory, principal=principal, session_id=session_id)
            return forget(memory, ids, actor=None)

        both = taken_back("tool", "s1")
        session = taken_back(None, "s1")
        principal = taken_back("tool", None)

        assert both.forgotten == (one,)
        assert session.forgotten == (three,)
        assert principal.forgotten == (two,)


def test_notes_whose_time_is_over_are_not_seen_and_a_sweep_erases_them(tmp_path: Path) -> None:
    clock = Clock()
    with open_memory(tmp_path, clock=clock) as memory:
        made = remember(memory, a_note(SECRET, memory_type=MemoryType.WORKING)).id
        theirs = remember(memory, a_note("x", agent_id="bob", memory_type=MemoryType.WORKING)).id
        remember(memory, a_note("stays"))
        keys = open_keys(tmp_path / "keys")
        ada = Memory(memory, agent_id="ada", keys=keys, embedder=None)
        owner = Memory(memory, owner=True, keys=keys, embedder=None)
        assert owner.forget(expired=True).notes == ()
        clock.now = START + HOUR

        seen = texts(memory)
        assert ada.forget(expired=True, dry_run=True).notes == (made,)
        done = ada.forget(expired=True)

        assert seen == ["stays"]
        assert (done.notes, done.strategy) == ((made,), ForgetStrategy.HARD_DELETE)
        assert verify_memory(memory).erased == 1
        assert owner.forget(expired=True).notes == (theirs,)
    assert SECRET.encode() not in raw_bytes(tmp_path)


def test_a_decay_pass_archives_what_hardly_matters_and_forgets_what_does_not(
    tmp_path: Path,
) -> None:
    clock = Clock()
    with open_memory(tmp_path, clock=clock) as memory:
        weak = remember(memory, a_note("weak", importance=0.1)).id
        middling = remember(memory, a_note("middling", importance=0.4)).id
        used = remember(memory, a_note("used", importance=0.4)).id
        remember(memory, a_note("skill", memory_type=MemoryType.PROCEDURAL))
        for _ in range(20):
            record_access(memory, [used])
        clock.now = START + 100 * HOUR

        archived, forgotten = decay_pass(memory)

        assert (archived, forgotten) == ((middling,), (weak,))
        assert texts(memory) == ["used", "skill"]
        assert decay_pass(memory) == ((), ())


def test_a_request_that_is_made_again_is_done_once(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        made = remember(memory, a_note(SECRET))
        hard = ForgetStrategy.HARD_DELETE

        first = forget(memory, [made.id], actor=None, strategy=hard, origin="run:7", key=KEY)
        again = forget(memory, [made.id], actor=None, strategy=hard, origin="run:7", key=KEY)

        assert again == first
        assert memory.head().count == 3


def test_the_origin_of_a_request_to_remember_names_no_forgetting(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        kept = remember(memory, a_note("one"), origin="run:7")
        other = remember(memory, a_note("two"))

        with pytest.raises(NoteInvalid, match="origin of a request to forget"):
            forget(memory, [other.id], actor=None, origin="run:7")

        assert texts(memory) == ["one", "two"]
        assert remember(memory, a_note("one"), origin="run:7").id == kept.id
