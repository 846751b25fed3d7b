"""What stands beside the chains: each row that is changed by hand is found, and nothing else."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tallystick.attachments.collect import ReclaimPolicy, reclaim
from tallystick.attachments.session import SessionAttachments
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.client import Session
from tallystick.core.budget.amount import Budget
from tallystick.ledger.scopes import SharedScopes
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import VerifyReport, verify_ledger
from tallystick.model.scripted import ScriptedModel, ScriptedReply
from tallystick.runtime.context.inputs import given_text
from tallystick.runtime.runs.history import session_of
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.sessions.sessions import book_path
from tallystick.testing.models import block
from tallystick.upkeep.audit import needed_attachments, verify_records, verify_references
from tallystick.upkeep.prune import Pruned, Pruner
from tallystick.upkeep.transfer import export_run_with_attachments, import_run_with_attachments

NOW = 2_000_000_000_000
INPUT = "one line of many\n" * 9_000


@dataclass(frozen=True)
class World:
    """A ledger with runs of every kind, and the names of what is in it."""

    path: Path
    plain: str
    pruned: str
    in_session: str
    moved: str
    copy: str
    copy_pruned: str
    session: str
    holder: str

    def verify(self) -> VerifyReport:
        with SqliteLedger(self.path) as ledger:
            return verify_records(ledger)

    def change(self, statement: str, *values: object, book: bool = False) -> None:
        """Change the file by hand. A statement that changes nothing is a mistake of the test."""
        with sqlite3.connect(book_path(self.path) if book else self.path) as db:
            assert db.execute(statement, values).rowcount, statement
        db.close()


def client(path: Path, sandbox: WasmSandbox, *sources: str) -> Session:
    return Session(
        model=ScriptedModel([ScriptedReply(text=block(each)) for each in sources]),
        ledger=SqliteLedger(path),
        sandbox=sandbox,
        total=Budget(tokens=10_000_000),
    )


@pytest.fixture(scope="module")
def made(sandbox: WasmSandbox, tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("made")
    path, other = folder / "ledger.db", folder / "other.db"

    def run(source: str, where: Path = path, **more: object) -> str:
        with client(where, sandbox, source) as session:
            return session.run("what is it?", **more).run  # type: ignore[arg-type]

    put = "attachments.put('kept by a program')\nFINAL(len(context))"
    plain = run(
        put,
        inputs=[given_text(INPUT)],
        grants=["attachments.read", "attachments.write"],
    )
    pruned = run("FINAL(1)", inputs=[given_text(INPUT + "2")])
    with client(path, sandbox) as session:
        named = session.sessions.new().id
    in_session = run("kept = 41\nFINAL(kept)", session=named)
    moved, copy, copy_pruned = (
        run("FINAL(2)"),
        run("FINAL(3)", other, inputs=[given_text(INPUT + "3")]),
        run("FINAL(4)", other),
    )
    with (
        SqliteLedger(path) as ledger,
        SqliteLedger(other) as second,
        SqliteAttachments(ledger.file) as attachments,
        SqliteAttachments(second.file) as others,
        SharedScopes(ledger.file) as scopes,
    ):
        export_run_with_attachments(ledger, attachments, moved, folder / "moved", move=True)
        for each in (copy, copy_pruned):
            export_run_with_attachments(second, others, each, folder / each)
            import_run_with_attachments(ledger, attachments, folder / each)
        pruner = Pruner(ledger, attachments, scopes, clock=lambda: NOW)
        for each in (pruned, copy_pruned):
            assert isinstance(pruner.prune(each, why="a test"), Pruned)
        scopes.declare(
            "deployment",
            parent=None,
            kind="deployment",
            name="",
            budget=Budget(tokens=9_000_000),
        )
        holder = session_of(ledger, plain)
        assert holder is not None
    return World(
        path=path,
        plain=plain,
        pruned=pruned,
        in_session=in_session,
        moved=moved,
        copy=copy,
        copy_pruned=copy_pruned,
        session=named,
        holder=holder,
    )


@pytest.fixture
def world(made: World, tmp_path: Path) -> World:
    with sqlite3.connect(made.path) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    shutil.copytree(made.path.parent, tmp_path / "copy")
    return World(**{**made.__dict__, "path": tmp_path / "copy" / made.path.name})


def test_what_was_written_by_this_package_holds_and_is_covered(world: World) -> None:
    report = world.verify()

    assert report.ok, report.bad_rows
    assert report.erased > 0
    assert (report.bad_rows, report.notes, report.not_covered) == ((), (), ())
    with SqliteLedger(world.path) as ledger, SqliteAttachments(ledger.file) as attachments:
        assert verify_references(ledger, attachments).ok


Change = Callable[[World], None]


def reference(statement: str) -> Change:
    return lambda world: world.change(statement, world.holder)


def row(which: str, assigned: str) -> Change:
    return lambda world: world.change(
        f"UPDATE run SET {assigned} WHERE id = ?", getattr(world, which)
    )


def bodies(which: str, where: str) -> Change:
    return lambda world: world.change(
        f"UPDATE body SET salt = NULL, body = NULL WHERE run = ? AND ({where})",
        getattr(world, which),
    )


def plain(statement: str) -> Change:
    return lambda world: world.change(statement)


def book(statement: str) -> Change:
    return lambda world: world.change(statement, book=True)


OF_REFERENCES: dict[str, Change] = {
    "all of a run": reference("DELETE FROM attachment_reference WHERE session_id = ?"),
    "its input": reference(
        "DELETE FROM attachment_reference WHERE session_id = ? AND length(ref) > 0 AND "
        "json_extract(ref, '$.byte_len') > 100000"
    ),
    "what a program put": reference(
        "DELETE FROM attachment_reference WHERE session_id = ? AND "
        "json_extract(ref, '$.byte_len') < 100"
    ),
    "no longer committed": reference(
        "UPDATE attachment_reference SET committed_at = NULL WHERE session_id = ?"
    ),
    "another session's": reference(
        "UPDATE attachment_reference SET session_id = 'cli' WHERE session_id = ?"
    ),
    "another length": reference(
        "UPDATE attachment_reference SET ref = CAST(json_set(ref, '$.byte_len', 7) AS BLOB) "
        "WHERE session_id = ?"
    ),
    "of a copy": lambda world: world.change(
        "DELETE FROM attachment_reference WHERE session_id NOT IN (?, ?) "
        "AND session_id NOT LIKE '%/snapshots'",
        world.holder,
        "cli",
    ),
}
CHANGES: dict[str, tuple[Change, str]] = {
    **{f"references: {name}": (each, "attachment") for name, each in OF_REFERENCES.items()},
    "row: moved": (row("plain", "moved = 1"), "row"),
    "row: moved, with a fence": (row("plain", "moved = 1, fence = fence + 1"), "row"),
    "row: no longer moved": (row("moved", "moved = 0"), "row"),
    "row: imported": (row("plain", "imported = 1"), "row"),
    "row: imported, with a fence": (row("plain", "imported = 1, fence = 0"), "row"),
    "row: no longer imported": (row("copy", "imported = 0"), "row"),
    "row: no longer imported, with a fence": (row("copy", "imported = 0, fence = 1"), "row"),
    "row: created at": (row("plain", "created_at = created_at - 1"), "row"),
    "row: fence": (row("moved", "fence = fence + 1"), "row"),
    "row: steps": (row("plain", "steps = 1"), "row"),
    "row: parent": (row("plain", "parent = 'x'"), "row"),
    "row: caller": (row("plain", "caller = 'x'"), "row"),
    "row: session": (row("plain", "session = NULL"), "row"),
    "row: grown from": (row("plain", "grown_from = 'x'"), "row"),
    "row: stop": (row("plain", "stop = NULL"), "row"),
    "row: started at": (row("plain", "started_at = started_at + 1"), "row"),
    "row: ended at": (row("plain", "ended_at = NULL"), "row"),
    "bodies: the first": (bodies("plain", "seq = 0"), "body"),
    "bodies: one": (bodies("plain", "seq = 3"), "body"),
    "bodies: all": (bodies("plain", "1"), "body"),
    "bodies: of a copy": (bodies("copy", "1"), "body"),
    "bodies: the receipt of a pruned run": (
        lambda world: world.change(
            "UPDATE body SET salt = NULL, body = NULL WHERE run = ? AND seq = "
            "(SELECT seq FROM entry WHERE run = body.run "
            "AND instr(header, CAST('\"receipt.issued\"' AS BLOB)))",
            world.pruned,
        ),
        "body",
    ),
    "bodies: that it was pruned": (
        lambda world: world.change(
            "UPDATE body SET salt = NULL, body = NULL WHERE run = ? AND body IS NOT NULL",
            world.pruned,
        ),
        "body",
    ),
    "bodies: the receipt of a pruned copy": (
        lambda world: world.change(
            "UPDATE body SET salt = NULL, body = NULL WHERE run = ? AND body IS NOT NULL",
            world.copy_pruned,
        ),
        "body",
    ),
    "total: spent less": (plain("UPDATE budget_meter SET spent = spent / 2"), "total"),
    "total: spent nothing": (plain("UPDATE budget_meter SET spent = 0"), "total"),
    "total: spent below zero": (plain("UPDATE budget_meter SET spent = -5"), "total"),
    "total: held": (plain("UPDATE budget_meter SET held = 5 WHERE dimension = 'tokens'"), "total"),
    "total: limit": (
        plain("UPDATE budget_meter SET ceiling = ceiling + 1 WHERE ceiling IS NOT NULL"),
        "total",
    ),
    "total: a reservation that no meter has": (
        plain(
            "INSERT INTO budget_hold VALUES ('r', 1, 'deployment', 'o', 1, "
            "CAST('{\"tokens\": 3}' AS BLOB))"
        ),
        "total",
    ),
    "total: no scope": (plain("DELETE FROM budget_scope"), "total"),
    "session: tokens": (book("UPDATE run SET tokens = 0"), "session"),
    "session: time": (book("UPDATE run SET wall_ms = -1"), "session"),
    "session: a run less": (book("DELETE FROM run"), "session"),
    "session: another run": (
        lambda world: world.change("UPDATE run SET run = ?", world.plain, book=True),
        "session",
    ),
    "session: created at": (book("UPDATE session SET created_at = created_at + 1"), "session"),
    "session: another image": (
        book(f"UPDATE session SET kept = CAST(json_set(kept, '$.image.id', '{'0' * 64}') AS BLOB)"),
        "session",
    ),
    "session: its image is not held": (
        plain("DELETE FROM attachment_reference WHERE session_id LIKE '%/snapshots'"),
        "session",
    ),
    "session: unreadable": (book("UPDATE session SET kept = CAST('{' AS BLOB)"), "session"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_row_that_was_changed_by_hand_is_found(world: World, name: str) -> None:
    change, expected = CHANGES[name]
    change(world)

    report = world.verify()

    assert report.first_bad is None
    assert not report.ok
    assert any(each.what.startswith(expected) for each in report.bad_rows), report.bad_rows


@pytest.mark.parametrize("name", OF_REFERENCES)
def test_a_lost_reference_is_found_among_attachments_and_its_bytes_stay(
    world: World, name: str
) -> None:
    OF_REFERENCES[name](world)

    with SqliteLedger(world.path) as ledger, SqliteAttachments(ledger.file) as attachments:
        report = verify_references(ledger, attachments)
        collected = reclaim(
            attachments,
            policy=ReclaimPolicy(grace_period_ms=0),
            needed=lambda: needed_attachments(ledger),
        )
        assert not report.ok
        assert report.bad
        named = {each.id for each in report.bad}
        assert collected.reclaimed_count == 0
        assert set(collected.needed_ids) <= named
        for id in named:
            with attachments.chunks(id) as chunks:
                assert b"".join(chunks)


def test_a_lost_reference_of_a_session_is_found_among_attachments_and_its_bytes_stay(
    world: World, sandbox: WasmSandbox
) -> None:
    world.change("DELETE FROM attachment_reference WHERE session_id LIKE '%/snapshots'")

    with SqliteLedger(world.path) as ledger, SqliteAttachments(ledger.file) as attachments:
        report = verify_references(ledger, attachments)
        collected = reclaim(
            attachments,
            policy=ReclaimPolicy(grace_period_ms=0),
            needed=lambda: needed_attachments(ledger),
        )

    assert not report.ok
    assert any("has its interpreter in it" in each.why for each in report.bad)
    assert {each.id for each in report.bad} == set(collected.needed_ids)
    assert collected.reclaimed_count == 0
    with client(world.path, sandbox, "FINAL(kept)") as session:
        assert session.run("what is it?", session=world.session).answer == "41"


@pytest.mark.parametrize(
    ("index", "schema"),
    [
        (
            "attachment_reference_blob",
            "CREATE INDEX attachment_reference_blob ON attachment_reference (attachment_id)",
        ),
        ("act_run", "CREATE INDEX act_run ON act (run)"),
    ],
)
def test_a_damaged_index_is_found(world: World, index: str, schema: str) -> None:
    changed = "UPDATE sqlite_master SET sql = ? WHERE name = ?"
    for sql in (f"{schema} WHERE 0", schema):
        db = sqlite3.connect(world.path)
        db.execute("PRAGMA writable_schema = ON")
        db.execute(changed, (sql, index))
        db.commit()
        db.close()
        if sql != schema:
            # Written anew as one that indexes nothing.
            db = sqlite3.connect(world.path)
            db.execute(f"REINDEX {index}")
            db.commit()
            db.close()

    report = world.verify()

    assert not report.ok
    assert any(each.what == "file" and index in each.why for each in report.bad_rows)
    with SqliteLedger(world.path) as ledger, SqliteAttachments(ledger.file) as attachments:
        assert any(index in each for each in verify_references(ledger, attachments).damage)


def test_a_ledger_of_an_older_version_says_what_is_not_covered(world: World) -> None:
    with sqlite3.connect(world.path) as db:
        db.execute("DROP TABLE act")
        db.execute("DROP TABLE act_format")
    db.close()

    report = world.verify()

    assert report.ok, report.bad_rows
    assert len(report.not_covered) == 3
    assert any("moved" in each for each in report.not_covered)
    assert any("bodies" in each for each in report.not_covered)
    assert any("total" in each for each in report.not_covered)
    # A copy that was pruned has no entry that says so.
    assert [note for note in report.notes if world.copy_pruned in note]


@pytest.mark.parametrize(
    "name",
    [
        "references: its input", "row: created at", "row: imported", "row: no longer imported",
        "bodies: one", "bodies: the receipt of a pruned run", "total: held", "total: limit",
        "session: tokens",
    ],
)  # fmt: skip
def test_most_changes_are_found_in_a_ledger_of_an_older_version_too(
    world: World, name: str
) -> None:
    with sqlite3.connect(world.path) as db:
        db.execute("DROP TABLE act")
    db.close()
    CHANGES[name][0](world)

    assert not world.verify().ok


def test_an_older_ledger_is_covered_from_the_first_write_on(
    world: World, sandbox: WasmSandbox
) -> None:
    with sqlite3.connect(world.path) as db:
        db.execute("DROP TABLE act")
        db.execute("DROP TABLE act_format")
    db.close()
    with client(world.path, sandbox, "FINAL(5)") as session:
        session.run("and now?")

    before = world.verify()
    row("moved", "moved = 0")(world)
    after = world.verify()

    assert before.ok, before.bad_rows
    assert "before this version first wrote the ledger" in before.not_covered[0]
    assert [each.run for each in after.bad_rows] == [world.moved]


def test_a_row_whose_run_has_no_valid_id_is_found(world: World) -> None:
    world.change(
        "INSERT INTO run (id, created_at, count, hash, fence, moved, imported) "
        "VALUES ('not an id', 1, 0, ?, 1, 0, 0)",
        bytes(32),
    )

    report = world.verify()

    assert report.ok is False
    assert "its id is none that a run has" in [
        each.why for each in report.bad_rows if each.run == "not an id"
    ]


def test_one_run_is_checked_by_itself(world: World) -> None:
    OF_REFERENCES["its input"](world)

    with SqliteLedger(world.path) as ledger:
        assert not verify_records(ledger, [world.plain]).ok
        assert verify_records(ledger, [world.in_session]).ok


def test_a_run_that_comes_back_without_its_bodies_holds(world: World, tmp_path: Path) -> None:
    exported = world.path.parent / "moved"
    second = tmp_path / "second.db"
    with (
        SqliteLedger(world.path) as ledger,
        SqliteLedger(second) as other,
        SqliteAttachments(ledger.file) as attachments,
        SqliteAttachments(other.file) as others,
        SharedScopes(ledger.file) as scopes,
    ):
        import_run_with_attachments(other, others, exported)
        pruner = Pruner(ledger, attachments, scopes, clock=lambda: NOW)
        assert isinstance(pruner.prune(world.moved, why="a test"), Pruned)
        export_run_with_attachments(other, others, world.moved, tmp_path / "back", move=True)
        import_run_with_attachments(ledger, attachments, tmp_path / "back")
        found = ledger.row(world.moved)
        assert found is not None
        assert not found.moved
        assert verify_records(other).ok
    report = world.verify()

    assert report.ok, report.bad_rows
    bodies("moved", "body IS NOT NULL")(world)
    assert not world.verify().ok


def test_a_removed_run_leaves_nothing_to_find(world: World) -> None:
    with SqliteLedger(world.path) as ledger, SqliteAttachments(ledger.file) as attachments:
        ledger.remove(world.copy_pruned)
        acts = ledger.acts_by_run()
        assert acts is not None
        assert world.copy_pruned not in acts
        assert verify_ledger(ledger).ok
        held = SessionAttachments(attachments, session_id=world.holder)
        assert held.references()
    assert world.verify().ok
