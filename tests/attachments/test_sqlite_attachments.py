"""Attachments beside a ledger: files, rows, the ledger's transaction, and what can break."""

import contextlib
import errno
import os
import resource
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.attachments.builders import (
    AT_ONCE,
    LARGE,
    SMALL,
    Ticks,
    crash,
    digest,
    intent,
    local_path,
    ref_of,
    session,
    stored,
)
from tests.ledger.builders import EMPTY, RUN, bodies, drafts, filled
from tests.unprivileged import unprivileged

from tallystick.attachments.collect import reclaim, verify_attachments
from tallystick.attachments.memory import MemoryAttachments
from tallystick.attachments.port import (
    AttachmentCorrupt,
    AttachmentError,
    AttachmentIoFailed,
    AttachmentMetaMissing,
    AttachmentNotFound,
    ManifestRecordFailed,
)
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.attachments.store import INLINE_BYTES_MAX
from tallystick.core.errors import LedgerConflict, LedgerFull
from tallystick.ledger.file import FORMAT
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import verify_ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[SqliteLedger]:
    with SqliteLedger(tmp_path / "ledger.db") as opened:
        yield opened


@pytest.fixture
def kept(ledger: SqliteLedger) -> Iterator[SqliteAttachments]:
    with SqliteAttachments(ledger.file, clock=Ticks(), wait_seconds=0.05) as made:
        yield made


def sql(kept: SqliteAttachments, statement: str) -> None:
    with closing(sqlite3.connect(kept.files.root.with_name("ledger.db"))) as db, db:
        db.execute(statement)


# -- where bytes lie ---------------------------------------------------------------------------


def test_small_ones_are_rows_and_large_ones_files_under_their_digest(
    kept: SqliteAttachments,
) -> None:
    held = session(kept)
    small = held.put(b"x" * INLINE_BYTES_MAX).id
    large = held.put(b"x" * (INLINE_BYTES_MAX + 1)).id

    path = local_path(held, large)

    assert local_path(held, small) is None
    assert path == kept.files.root / large[:2] / large
    assert path is not None
    assert path.read_bytes() == b"x" * (INLINE_BYTES_MAX + 1)


def test_files_are_private_and_nothing_is_left_in_staging(kept: SqliteAttachments) -> None:
    session(kept).put(LARGE)

    modes = {
        path.is_dir(): stat.S_IMODE(path.stat().st_mode) for path in kept.files.root.rglob("*")
    }

    assert modes == {True: 0o700, False: 0o600}
    assert stat.S_IMODE(kept.files.root.stat().st_mode) == 0o700
    assert list(kept.files.staged()) == []


def test_the_same_bytes_are_one_file_and_one_row(kept: SqliteAttachments) -> None:
    for name in ("one", "two"):
        session(kept, name).put(LARGE)
        session(kept, name).put(SMALL)

    with kept.reading() as db:
        assert db is not None
        assert db.execute("SELECT count(*) FROM attachment_blob").fetchone() == (2,)
    assert len(list(kept.files.ids())) == 1


def test_nothing_is_made_before_the_first_put(ledger: SqliteLedger) -> None:
    filled(ledger)

    with SqliteAttachments(ledger.file) as made:
        assert session(made).references() == []
        with pytest.raises(AttachmentNotFound):
            session(made).read(digest(SMALL))

    assert not made.files.root.exists()
    with ledger.file.reading() as db:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    assert not any("attachment" in name for name in tables)


def test_two_ledgers_in_one_directory_have_a_directory_each(tmp_path: Path) -> None:
    with SqliteLedger(tmp_path / "a.db") as one, SqliteLedger(tmp_path / "b.db") as two:
        roots = {SqliteAttachments(each.file).files.root for each in (one, two)}

    assert roots == {tmp_path / "a.db-attachments", tmp_path / "b.db-attachments"}


def test_an_owner_with_nothing_open_leaves_no_lock_file(kept: SqliteAttachments) -> None:
    held = session(kept)
    held.commit([held.put(LARGE).id])

    kept.close()
    kept.close()

    assert kept.owners.ids() == []


# -- in the ledger's transaction ---------------------------------------------------------------


def test_references_are_committed_with_the_entry_that_carries_them(
    ledger: SqliteLedger, kept: SqliteAttachments
) -> None:
    fence = ledger.claim(RUN, create=True)
    held = session(kept, RUN)
    batch = held.batch()
    refs = [batch.add(SMALL), batch.add(LARGE)]

    ledger.append(RUN, drafts(1), expected=EMPTY, fence=fence, forced=False, also=batch.commit)

    assert [held.read(ref.id) for ref in refs] == [SMALL, LARGE]
    assert all(each.committed_at_epoch_ms for each in held.references())


def test_an_append_that_is_refused_commits_no_reference(
    ledger: SqliteLedger, kept: SqliteAttachments
) -> None:
    head = filled(ledger)
    held = session(kept, RUN)
    batch = held.batch()
    small, large = batch.add(SMALL), batch.add(LARGE)

    with pytest.raises(LedgerConflict):
        ledger.append(RUN, drafts(1), expected=EMPTY, fence=1, forced=False, also=batch.commit)

    assert [each.ref for each in held.references()] == [large]
    assert len(kept.list_uncommitted(1 << 60)) == 1
    ledger.append(RUN, drafts(1), expected=head, fence=1, forced=False, also=batch.commit)
    assert held.read(small.id) == SMALL


def test_a_commit_that_fails_leaves_no_entry(ledger: SqliteLedger, kept: SqliteAttachments) -> None:
    head = filled(ledger)
    held = session(kept, RUN)
    unknown = digest(b"never put")

    with pytest.raises(AttachmentNotFound):
        ledger.append(
            RUN,
            drafts(1),
            expected=head,
            fence=1,
            forced=False,
            also=lambda db: held.commit([unknown], within=db),
        )

    assert len(bodies(ledger)) == 4
    assert verify_ledger(ledger).ok


def test_a_run_goes_together_with_its_references(
    ledger: SqliteLedger, kept: SqliteAttachments
) -> None:
    filled(ledger)
    held = session(kept, RUN)
    id = held.put(SMALL).id
    held.commit([id])
    session(kept, "other").put(SMALL)

    ledger.remove(RUN, also=lambda db: held.delete_all(within=db))

    assert held.references() == []
    assert [each.intent.session_id for each in kept.references()] == ["other"]


def test_a_ledger_in_memory_commits_attachments_in_memory() -> None:
    ledger, kept = MemoryLedger(), MemoryAttachments()
    fence = ledger.claim(RUN, create=True)
    held = session(kept, RUN)
    batch = held.batch()
    ref = batch.add(SMALL)

    ledger.append(RUN, drafts(1), expected=EMPTY, fence=fence, forced=True, also=batch.commit)

    assert held.read(ref.id) == SMALL
    with pytest.raises(AttachmentNotFound):
        ledger.append(
            RUN,
            drafts(1),
            expected=ledger.runs()[0].head,
            fence=fence,
            forced=True,
            also=lambda db: held.commit([digest(LARGE)], within=db),
        )
    assert len(bodies(ledger)) == 1


def test_the_bytes_of_a_failed_transaction_are_not_there(kept: SqliteAttachments) -> None:
    held = session(kept)
    batch = held.batch()
    ref = batch.add(SMALL)

    with contextlib.suppress(RuntimeError), kept.writing(forced=False) as db:
        batch.commit(db)
        raise RuntimeError

    with pytest.raises(AttachmentNotFound):
        kept.chunks(ref.id)
    batch.commit()
    assert held.read(ref.id) == SMALL


def test_a_ledger_that_was_made_without_attachments_takes_them(tmp_path: Path) -> None:
    with SqliteLedger(tmp_path / "ledger.db") as before:
        head = filled(before)

    with SqliteLedger(tmp_path / "ledger.db") as ledger, SqliteAttachments(ledger.file) as kept:
        held = session(kept)
        held.commit([held.put(SMALL).id])
        assert verify_ledger(ledger, heads={RUN: head}).ok

    with closing(sqlite3.connect(tmp_path / "ledger.db")) as db:
        # What an older version looks at before it opens a ledger is as it was.
        assert db.execute("PRAGMA user_version").fetchone() == (FORMAT,)


def test_attachments_of_another_format_are_refused_by_name(kept: SqliteAttachments) -> None:
    session(kept).put(SMALL)
    sql(kept, "UPDATE attachment_format SET version = 2")

    with stored(kept.files.root.parent) as other, pytest.raises(AttachmentError, match="format"):
        session(other).put(SMALL)


# -- damage ------------------------------------------------------------------------------------


def test_a_file_that_was_changed_is_told_before_its_last_piece(kept: SqliteAttachments) -> None:
    held = session(kept)
    data = os.urandom(3 << 20)
    id = held.put(data).id
    path = local_path(held, id)
    assert path is not None
    with open(path, "r+b") as file:
        file.seek(5)
        file.write(b"!")

    with held.chunks(id) as chunks:
        received = [next(chunks), next(chunks)]
        with pytest.raises(AttachmentCorrupt, match=f"attachment `{id}` is damaged"):
            next(chunks)

    assert sum(map(len, received)) == 2 << 20
    with pytest.raises(AttachmentCorrupt):
        held.read(id)


def test_a_file_of_another_length_is_told_at_once(kept: SqliteAttachments) -> None:
    held = session(kept)
    id = held.put(LARGE).id
    os.truncate(kept.files.path(id), 100)

    with pytest.raises(AttachmentCorrupt, match="has 100 bytes, not 262144"):
        held.chunks(id)


def test_a_row_whose_bytes_were_changed_is_damaged(kept: SqliteAttachments) -> None:
    held = session(kept)
    id = held.put(SMALL).id
    sql(kept, "UPDATE attachment_blob SET data = x'00'")

    with pytest.raises(AttachmentCorrupt, match=id):
        held.read(id)


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
def test_putting_the_same_bytes_again_mends_damage(kept: SqliteAttachments, data: bytes) -> None:
    held = session(kept)
    id = held.put(data).id
    if data is LARGE:
        kept.files.path(id).write_bytes(bytes(len(LARGE)))
    else:
        sql(kept, "UPDATE attachment_blob SET data = x'00'")

    held.put(data)

    assert held.read(id) == data


def test_bytes_without_a_row_are_not_given_out(kept: SqliteAttachments) -> None:
    held = session(kept)
    id = held.put(LARGE).id
    sql(kept, "DELETE FROM attachment_blob")

    with pytest.raises(AttachmentMetaMissing, match="metadata is unavailable"):
        held.read(id)


@pytest.mark.parametrize(
    "change",
    [
        "ref = x'ff'",
        "ref = 7",
        "ref = 'x'",
        "intent_at = 'x'",
        "committed_at = 'x'",
        "attachment_id = 'x'",
        "owner = x'00'",
    ],
)
def test_a_row_of_the_manifest_that_cannot_be_read_is_not_passed_over(
    kept: SqliteAttachments, change: str
) -> None:
    session(kept).put(SMALL)
    sql(kept, f"UPDATE attachment_reference SET {change}")

    with pytest.raises(AttachmentCorrupt, match="manifest of session s1"):
        session(kept).references()


def test_verify_names_every_attachment_that_is_held_and_cannot_be_had(
    kept: SqliteAttachments,
) -> None:
    one, two = session(kept, "one"), session(kept, "two")
    good = one.put(SMALL).id
    lost = one.put(LARGE).id
    changed = two.put(LARGE + b"x").id
    two.put(LARGE)
    intended = two.put(LARGE + b"not committed").id
    one.commit([good, lost])
    two.commit([changed, lost])
    before = verify_attachments(kept)

    kept.files.path(lost).unlink()
    kept.files.path(intended).unlink()
    kept.files.path(changed).write_bytes(bytes(len(LARGE) + 1))
    after = verify_attachments(kept)

    assert (before.ok, before.references, before.blobs) == (True, 4, 3)
    assert before.bytes == len(SMALL) + 2 * len(LARGE) + 1
    assert not after.ok
    assert {each.id: each.sessions for each in after.bad} == {
        lost: ("one", "two"),
        changed: ("two",),
    }
    assert verify_attachments(kept, session_id="two").references == 2


# -- the disk ----------------------------------------------------------------------------------


def test_a_disk_that_is_full_halfway_leaves_nothing_behind(kept: SqliteAttachments) -> None:
    held = session(kept)
    held.put(SMALL)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6 << 20, hard))
    try:
        with pytest.raises(AttachmentIoFailed, match=r"I/O failed at .*staging"):
            held.put(bytes(1 << 20) for _ in range(20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert list(kept.files.staged()) == []
    assert list(kept.files.ids()) == []
    assert len(held.references()) == 1


@pytest.mark.parametrize("call", ["fsync", "rename", "open"])
def test_a_system_call_that_fails_leaves_no_final_name(
    kept: SqliteAttachments, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    held = session(kept)
    held.put(SMALL)

    def failing(*arguments: object, **options: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        with pytest.raises(AttachmentError, match="No space left on device"):
            held.put(LARGE)

    assert list(kept.files.ids()) == []
    assert list(kept.files.staged()) == []
    assert held.put(LARGE).byte_len == len(LARGE)


def test_a_full_ledger_refuses_a_small_put_by_name(
    ledger: SqliteLedger, kept: SqliteAttachments
) -> None:
    held = session(kept)
    held.put(SMALL)
    with ledger.file.writing(forced=False) as db:
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        db.execute(f"PRAGMA max_page_count = {pages}")

    with pytest.raises((LedgerFull, ManifestRecordFailed), match="disk is full"):
        _ = [held.put(bytes([number]) * 60_000) for number in range(100)]

    assert verify_attachments(kept).ok


def test_a_directory_that_may_not_be_written_is_told_by_its_path() -> None:
    with unprivileged() as directory, SqliteLedger(directory / "ledger.db") as ledger:
        kept = SqliteAttachments(ledger.file)
        kept.files.root.mkdir(mode=0o500)

        with pytest.raises(AttachmentError, match=r"ledger\.db-attachments"):
            session(kept).put(LARGE)


def test_a_directory_that_is_none_is_told_by_its_path(kept: SqliteAttachments) -> None:
    kept.files.root.write_bytes(b"in the way")

    with pytest.raises(AttachmentError, match=r"ledger\.db-attachments"):
        session(kept).put(LARGE)


def test_a_link_in_the_place_of_a_file_is_not_followed(
    kept: SqliteAttachments, tmp_path: Path
) -> None:
    held = session(kept)
    id = held.put(LARGE).id
    (tmp_path / "elsewhere").write_bytes(LARGE)
    kept.files.path(id).unlink()
    kept.files.path(id).symlink_to(tmp_path / "elsewhere")

    with pytest.raises(AttachmentIoFailed):
        held.read(id)


# -- owners ------------------------------------------------------------------------------------


def test_the_proof_of_a_death_stays_if_staged_files_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stored(tmp_path) as kept:
        owner = kept.owner()

        def unreadable() -> Iterator[tuple[str, Path]]:
            raise OSError("the folder cannot be listed")

        monkeypatch.setattr(kept, "staged_files", unreadable)

    assert kept.owners.proven_dead(owner)


def test_an_owner_is_dead_when_its_lock_is_gone_and_not_when_its_file_is(
    kept: SqliteAttachments,
) -> None:
    alive = kept.owners.hold()
    dead = kept.owners.hold()
    dead.release(remove=False)
    vanished = kept.owners.hold()
    vanished.release(remove=True)

    proofs = [kept.owners.proven_dead(each.id) for each in (alive, dead, vanished)]
    alive.release(remove=True)

    assert proofs == [False, True, False]
    assert not any(map(kept.owners.proven_dead, ["", "../x", "0" * 26, "x" * 500]))


def test_an_intent_that_two_processes_share_lives_as_long_as_one_of_them(tmp_path: Path) -> None:
    ticks = Ticks()

    with stored(tmp_path, ticks) as first, stored(tmp_path, ticks) as second:
        anchor = session(second, "anchor")
        anchor.commit([anchor.put(SMALL).id])
        session(first, "shared").put(LARGE)
        session(second, "shared").put(LARGE)
        crash(first)
        ticks.now += 10

        one_left = reclaim(second, policy=AT_ONCE)
        crash(second)
        none_left = reclaim(second, policy=AT_ONCE)

    assert (one_left.reclaimed_count, none_left.reclaimed_count) == (0, 1)


def test_names_in_the_manifest_are_data_and_never_sql(kept: SqliteAttachments) -> None:
    name = "'; DROP TABLE attachment_blob; --"
    held = session(kept, name)

    id = held.put(SMALL, label=name).id

    assert held.read(id) == SMALL
    assert held.reference(id).ref.label == name
    kept.record_intent(intent(name, id), ref_of(SMALL))
