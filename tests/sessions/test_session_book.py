"""The book of sessions in a file: private, recognised, and written by two processes at once."""

from __future__ import annotations

import multiprocessing
import sqlite3
from pathlib import Path

import pytest

from tallystick.core.errors import NotASessionBook, SessionFormatUnknown, StoreError
from tallystick.sessions.book import SessionBook
from tallystick.sessions.file import book_in


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "sessions.db"


@pytest.fixture
def book(path: Path) -> SessionBook:
    return book_in(path)


def test_the_file_is_private_and_what_is_in_it_outlives_the_book(
    book: SessionBook, path: Path
) -> None:
    session = book.create().id

    again = book_in(path)

    assert again.get(session) == book.get(session)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_another_format_is_refused_by_name_and_left_alone(book: SessionBook, path: Path) -> None:
    book.create()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 2")

    with pytest.raises(SessionFormatUnknown, match="format 2; this version reads 1"):
        book.list()


def test_another_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a book, and longer than a header of SQLite is " * 50)
    with sqlite3.connect(tmp_path / "other") as db:
        db.execute("CREATE TABLE mine (a)")
    (tmp_path / "folder").mkdir()
    before = [(tmp_path / name).read_bytes() for name in ("text", "other")]

    for name in ("text", "other"):
        with pytest.raises(NotASessionBook):
            book_in(tmp_path / name).create()
    with pytest.raises(StoreError):
        book_in(tmp_path / "folder").create()
    assert [(tmp_path / name).read_bytes() for name in ("text", "other")] == before


def test_rows_that_make_no_sense_are_refused(book: SessionBook, path: Path) -> None:
    session = book.create().id
    with sqlite3.connect(path) as db:
        db.execute("UPDATE session SET kept = ?", (b"{",))
    with pytest.raises(StoreError):
        book.get(session)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE session SET kept = ?, state = 'asleep'", (b"{}",))
    with pytest.raises(StoreError):
        book.get(session)


def _makes_sessions(path: str, count: int) -> None:
    book = book_in(Path(path))
    for number in range(count):
        made = book.create()
        book.set_variable(made.id, "n", str(number))


def test_two_processes_make_the_file_and_write_it_together(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=_makes_sessions, args=(str(path), 5)) for _ in range(2)]

    for each in processes:
        each.start()
    for each in processes:
        each.join(60)

    assert [each.exitcode for each in processes] == [0, 0]
    book = book_in(path)
    assert len(book.list()) == book.stats().total_created == 10
    assert all(len(each.context_variables) == 1 for each in book.list())
