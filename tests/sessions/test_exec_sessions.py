"""Sessions with a name: held by one process, in the book, and brought over from older files."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.test_snapshot_store import an_image
from tests.fixtures.write import unpacked
from tests.opened_sessions import open_sessions

from tallystick.core.errors import (
    InvalidName,
    InvalidSessionState,
    SessionBusy,
    SessionNotFound,
    StoreError,
    UsageError,
)
from tallystick.sessions.book import SessionBook
from tallystick.sessions.exec_sessions import HeldSession, hold_session, old_origins
from tallystick.sessions.sessions import Sessions
from tallystick.sessions.snapshots import SessionImages
from tallystick.storage.lock import FileLock

# What the version before left: `work` has an interpreter and seed 3, `empty` has none.
OLD = Path(__file__).parents[1] / "fixtures" / "exec-sessions-1.b64"
WORK = "01M7R4SA0FC2A8QVRDWK13ZQ9Y"
CLOCK_NS = 1_767_225_600_000_000_000


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "data" / "ledger.db"


@pytest.fixture
def old(ledger: Path) -> Path:
    """The ledger of a directory that the version before left."""
    unpacked(OLD.read_bytes(), ledger.parent)
    return ledger


@contextlib.contextmanager
def held(ledger: Path, name: str = "work", *, seed: int | None = None) -> Iterator[HeldSession]:
    folder = ledger.parent / "sessions"
    with (
        open_sessions(ledger) as sessions,
        hold_session(sessions, name, folder=folder, seed=seed, clock_ns=7) as found,
    ):
        yield found


def image_of(sessions: Sessions, session: str) -> object:
    ref = sessions.book.get(session).left.image
    return None if ref is None else sessions.images.load_image(session, ref)


class Interpreter:
    """Stands for a session of the sandbox: all that is asked of it is its image."""

    def __init__(self, image: object) -> None:
        self._image = image

    async def image(self) -> object:
        return self._image


def keep(found: HeldSession, image: object) -> None:
    asyncio.run(found.keep(Interpreter(image)))  # type: ignore[arg-type]


# -- in the book -------------------------------------------------------------------------------


def test_a_session_with_a_name_is_one_of_the_book_that_keeps_one_image(ledger: Path) -> None:
    with held(ledger, seed=5) as found:
        keep(found, an_image(b"\1"))
    with held(ledger) as again:
        keep(again, an_image(b"\2"))
        assert again.name == found.name

    with open_sessions(ledger) as sessions:
        (info,) = sessions.list()
        assert (info.name, info.state, info.generation) == ("work", "ready", 2)
        assert (found.name.seed, found.name.clock_ns) == (5, 7)
        assert image_of(sessions, info.id) == an_image(b"\2")
        assert len(sessions.images._holder(info.id).references()) == 1


def test_it_is_found_by_its_name_and_is_never_the_last_one(ledger: Path) -> None:
    with held(ledger) as found:
        pass
    with open_sessions(ledger) as sessions:
        with pytest.raises(SessionNotFound):
            sessions.find("last")
        other = sessions.new().id
        with held(ledger, "later"):
            pass

        assert sessions.find("last") == other
        assert sessions.find("work") == sessions.find(found.name.session) == found.name.session
        with pytest.raises(SessionNotFound):
            sessions.find("Work")


def test_a_name_comes_before_the_beginning_of_an_id(ledger: Path) -> None:
    with open_sessions(ledger) as sessions:
        other = sessions.new().id
        assert sessions.find(other[:4]) == other
        with held(ledger, other[:4]) as found:
            assert sessions.find(other[:4]) == found.name.session


def test_it_has_snapshots_like_any_other(ledger: Path) -> None:
    with held(ledger) as found:
        keep(found, an_image(b"\1"))
    with open_sessions(ledger) as sessions:
        sessions.snapshot(found.name.session, "before")
    with held(ledger) as found:
        keep(found, an_image(b"\2"))

    with open_sessions(ledger) as sessions:
        sessions.restore(found.name.session, "before")
        assert image_of(sessions, found.name.session) == an_image(b"\1")


def test_it_has_no_end_and_cannot_be_extended(ledger: Path) -> None:
    with held(ledger) as found:
        pass
    with open_sessions(ledger) as sessions:
        sessions.book.cleanup_expired()
        assert sessions.book.validate(found.name.session).name == "work"
        with pytest.raises(InvalidSessionState, match="it has no end"):
            sessions.book.extend(found.name.session)


def test_one_that_is_removed_while_a_program_runs_stays_removed(ledger: Path) -> None:
    with held(ledger) as found:
        with open_sessions(ledger) as sessions:
            sessions.book.remove(found.name.session)
        keep(found, an_image())

    with open_sessions(ledger) as sessions:
        assert sessions.list() == []
        assert sessions.images._holder(found.name.session).references() == []
    with held(ledger) as anew:
        assert anew.name.session != found.name.session


def test_one_process_works_in_it_at_a_time(ledger: Path) -> None:
    with (
        held(ledger),
        pytest.raises(SessionBusy, match=r"^session 'work' is in use by another process; wait"),
        held(ledger),
    ):
        pass
    with held(ledger), held(ledger, "other"):
        pass


@pytest.mark.parametrize("name", ["", ".", "../evil", "a b", "é", "x" * 65, "a\0"])
def test_a_name_that_cannot_be_is_refused_and_makes_nothing(ledger: Path, name: str) -> None:
    with pytest.raises(InvalidName, match="session name"), held(ledger, name):
        pass
    assert not ledger.parent.exists()


@pytest.mark.parametrize("seed", [0, -1, 2**63, 2**200])
def test_a_seed_is_kept_whatever_it_is(ledger: Path, seed: int) -> None:
    with held(ledger, seed=seed) as found:
        assert found.name.seed == seed
    with held(ledger) as again:
        assert again.name.seed == seed
    with pytest.raises(UsageError, match=f"has seed {seed}; it cannot be given seed 7"):
        held(ledger, seed=7).__enter__()


# -- a book of an earlier version, and this one's read by it ------------------------------------


def test_a_book_without_names_is_read_and_not_changed(ledger: Path) -> None:
    with open_sessions(ledger) as sessions:
        made = sessions.new().id
        assert sessions.book.names() == {}
        assert sessions.book.find_named("work") is None
        assert sessions.book.get(made).name is None
    with sqlite3.connect(ledger.with_name("sessions.db")) as db:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    assert "named" not in tables


def test_the_version_before_reads_a_session_with_a_name_as_any_other(ledger: Path) -> None:
    """Its statements, on the tables that it knows: it looks at the format and at no other table."""
    with held(ledger) as found:
        pass
    with sqlite3.connect(ledger.with_name("sessions.db")) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (1,)
        row = db.execute("SELECT * FROM session ORDER BY id").fetchone()
        assert len(row) == 13
        assert row[:3] == (found.name.session, "wasm", "ready")
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("DELETE FROM session WHERE id = ?", (found.name.session,))
    with open_sessions(ledger) as sessions:
        assert sessions.book.names() == {}


# -- brought over from the files of an earlier version -----------------------------------------


def files_of(ledger: Path) -> list[str]:
    folder = ledger.parent / "sessions"
    return sorted(os.listdir(folder)) if folder.exists() else []


def check_brought_over(ledger: Path) -> None:
    """The session is in the book with its interpreter, and nothing of the old files is left."""
    with held(ledger) as found:
        assert found.name.session == WORK
        assert (found.name.seed, found.name.clock_ns) == (3, CLOCK_NS)
    with open_sessions(ledger) as sessions:
        assert image_of(sessions, WORK) == an_image(b"\7")
        assert sessions.images.free(f"{WORK}/current") == 0
    assert "work.json" not in files_of(ledger)


def test_a_session_of_an_earlier_version_goes_on_where_it_was(old: Path) -> None:
    check_brought_over(old)
    check_brought_over(old)

    assert files_of(old) == ["empty.json"]
    with held(old, "empty") as found, open_sessions(old) as sessions:
        assert image_of(sessions, found.name.session) is None
    assert not (old.parent / "sessions").exists()
    with pytest.raises(UsageError, match="has seed 3"), held(old, seed=4):
        pass


def test_the_time_of_one_that_was_brought_over_is_that_of_its_id(old: Path) -> None:
    from tallystick.ledger.custody import created_at_ms

    check_brought_over(old)
    with open_sessions(old) as sessions:
        assert sessions.get(WORK).created_at == created_at_ms(WORK)


class Died(BaseException):
    """The process ends here."""


@pytest.mark.parametrize(
    ("owner", "method"),
    [
        (SessionImages, "share"),
        (SessionImages, "free"),
        (Path, "unlink"),
        (SessionBook, "open_named"),
    ],
)
@pytest.mark.parametrize("after", [False, True])
def test_whoever_dies_while_bringing_over_loses_nothing(
    old: Path, monkeypatch: pytest.MonkeyPatch, owner: type, method: str, after: bool
) -> None:
    original: Callable[..., Any] = getattr(owner, method)

    def dies(*given: Any, **more: Any) -> Any:
        if after:
            original(*given, **more)
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(owner, method, dies)
        with pytest.raises(Died), held(old):
            pass

    check_brought_over(old)


def test_it_is_not_taken_from_a_process_of_an_earlier_version(old: Path) -> None:
    lock = FileLock(old.parent / "sessions" / "work.lock")
    assert lock.take()
    with pytest.raises(SessionBusy, match="in use by another process"), held(old):
        pass
    lock.release()

    check_brought_over(old)


def test_a_file_that_an_earlier_version_made_later_is_left_alone(old: Path) -> None:
    check_brought_over(old)
    path = old.parent / "sessions" / "work.json"
    record = json.loads((old.parent / "sessions" / "empty.json").read_bytes())
    path.write_text(json.dumps({**record, "name": "work"}))
    before = path.read_bytes()

    with held(old) as found:
        assert found.name.session == WORK
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"format": 9}'])
def test_a_file_that_cannot_be_read_is_named_and_left_alone(old: Path, damage: bytes) -> None:
    path = old.parent / "sessions" / "work.json"
    path.write_bytes(damage)

    with pytest.raises(StoreError, match=r"work\.json cannot be read"), held(old):
        pass

    assert path.read_bytes() == damage


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"format": 2}, "has format 2; this version reads 1"),
        ({"name": "other"}, "is not the record of this session"),
        ({"session_id": "../S"}, "is not the record of this session"),
    ],
)
def test_a_record_that_is_none_of_ours_is_refused(
    old: Path, change: dict[str, object], why: str
) -> None:
    path = old.parent / "sessions" / "work.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **change}))

    with pytest.raises(StoreError, match=why), held(old):
        pass


def test_who_made_those_in_files_is_said_without_making_anything(old: Path) -> None:
    (old.parent / "sessions" / "broken.json").write_bytes(b"{")
    with open_sessions(old) as sessions:
        origins = old_origins(sessions.images, folder=old.parent / "sessions")

    assert {name: each.guest for name, each in origins.items()} == {"work": "g"}
    assert not old.with_name("sessions.db").exists()
