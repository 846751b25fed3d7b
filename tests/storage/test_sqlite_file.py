"""The SQLite file under a store: private, recognised, whole, and one answer to a fork."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.descriptors import new_descriptors, open_descriptors
from tests.unprivileged import unprivileged

from tallystick.core.errors import UsageError
from tallystick.storage import sqlite_connection
from tallystick.storage.sqlite_connection import FileKind, SqliteConnection
from tallystick.storage.sqlite_errors import StoreErrors
from tallystick.storage.sqlite_file import SqliteFile

ROOT = Path(__file__).parents[2]
# Writes, and is killed before the transaction has ended, or after.
WRITES = """
import os, signal, sys
from pathlib import Path
from tests.storage.test_sqlite_file import KIND
from tallystick.storage.sqlite_file import SqliteFile
file = SqliteFile(Path(sys.argv[1]), KIND, busy_seconds=10.0)
with file.writing(forced=False) as db:
    db.execute("INSERT INTO word VALUES ('theirs')")
    if sys.argv[2] == "inside":
        os.kill(os.getpid(), signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"""


class Failed(Exception):
    """An error of the store in these tests, told by its first word."""


def failed(word: str) -> Callable[..., Failed]:
    return lambda **fields: Failed(f"{word} {Path(fields['where']).name} {fields.get('why', '')}")


KIND = FileKind(
    name="a file of words",
    application_id=0x544C5454,
    versions=(2, 3),
    schema=("CREATE TABLE word (word TEXT)",),
    errors=StoreErrors(
        full=failed("full"),
        locked=failed("locked"),
        read_only=failed("read_only"),
        foreign=failed("foreign"),
        unavailable=failed("unavailable"),
        corrupt=failed("corrupt"),
    ),
    newer=lambda path, version: Failed(f"newer {version}"),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store" / "words.db"


@pytest.fixture(params=[True, False], ids=["kept", "closed after each"])
def file(request: pytest.FixtureRequest, path: Path) -> Iterator[SqliteFile]:
    made = SqliteFile(path, KIND, busy_seconds=0.2, kept=request.param)
    with contextlib.closing(made):
        yield made


def add(file: SqliteFile, *words: str) -> None:
    with file.writing() as db:
        db.executemany("INSERT INTO word VALUES (?)", [(word,) for word in words])


def words(file: SqliteFile) -> list[str]:
    with file.reading() as db:
        return [word for (word,) in db.execute("SELECT word FROM word ORDER BY word")]


def said_by_child(work: Callable[[], object]) -> str:
    """Fork, and return what the child says."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = str(work())
        except BaseException as error:
            said = str(error)
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with open(reading, "rb") as pipe:
        return pipe.read().decode()


# -- made, recognised, refused -------------------------------------------------------------------


def test_a_file_is_made_when_it_is_first_used_and_private(file: SqliteFile, path: Path) -> None:
    assert not path.parent.exists()
    add(file, "one")

    assert words(file) == ["one"]
    modes = {stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
    assert modes == {0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_file_that_is_closed_is_opened_again(file: SqliteFile) -> None:
    add(file, "one")
    file.close()
    file.close()

    assert words(file) == ["one"]


@pytest.mark.parametrize(
    ("pragma", "said"),
    [
        ("PRAGMA user_version = 1", "foreign words.db"),
        ("PRAGMA application_id = 7", "foreign words.db"),
        ("CREATE TABLE theirs (x)", "foreign words.db"),
    ],
)
def test_the_file_of_another_program_is_refused_and_left_as_it_is(
    file: SqliteFile, path: Path, pragma: str, said: str
) -> None:
    path.parent.mkdir()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(pragma)
    before = path.read_bytes()

    with pytest.raises(Failed, match=said):
        words(file)

    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == ["words.db"]


def test_a_newer_version_is_refused_by_its_number(file: SqliteFile, path: Path) -> None:
    add(file, "one")
    file.close()
    for version in (3, 4):
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute(f"PRAGMA user_version = {version}")
        if version == 3:
            assert words(file) == ["one"]
            file.close()

    with pytest.raises(Failed, match="newer 4"):
        words(file)


def test_bytes_that_are_no_database_are_refused(file: SqliteFile, path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"this is not a database, whatever its name says" * 100)

    with pytest.raises(Failed, match=r"foreign words\.db"):
        words(file)


def test_what_should_be_a_directory_and_is_none_is_said(file: SqliteFile, path: Path) -> None:
    path.parent.write_text("")

    with pytest.raises(Failed, match="what should be a directory is none"):
        words(file)


def test_a_directory_that_may_not_be_written_is_said() -> None:
    with unprivileged() as folder:
        (folder / "shut").mkdir(mode=0o500)
        file = SqliteFile(folder / "shut" / "words.db", KIND, busy_seconds=0.1)
        with pytest.raises(Failed, match=r"read_only words\.db"):
            words(file)


def test_a_file_that_may_not_be_written_is_said() -> None:
    with unprivileged() as folder:
        file = SqliteFile(folder / "words.db", KIND, busy_seconds=0.1)
        add(file, "one")
        file.close()
        (folder / "words.db").chmod(0o400)
        with pytest.raises(Failed, match=r"read_only words\.db"):
            add(file, "two")
        file.close()


def test_a_full_disk_is_said_and_the_file_is_whole(file: SqliteFile) -> None:
    add(file, "one")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, hard))
    try:
        with pytest.raises(Failed, match=r"full|unavailable"):
            add(file, "x" * (1 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)

    assert words(file) == ["one"]
    add(file, "two")
    assert words(file) == ["one", "two"]


# -- transactions --------------------------------------------------------------------------------


def test_what_is_raised_inside_undoes_the_transaction(file: SqliteFile) -> None:
    add(file, "one")

    def rows() -> Iterator[tuple[str]]:
        yield ("two",)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), file.writing() as db:
        db.executemany("INSERT INTO word VALUES (?)", rows())

    assert words(file) == ["one"]


def test_a_reading_inside_another_sees_the_same_state(file: SqliteFile) -> None:
    add(file, "one")
    with file.reading():
        assert words(file) == ["one"]
        add(file, "two")
        assert words(file) == ["one"]

    assert words(file) == ["one", "two"]


def test_a_thread_in_a_transaction_does_not_wait_for_itself(file: SqliteFile) -> None:
    with file.writing(), pytest.raises(UsageError, match="this thread is in a transaction of it"):
        add(file, "one")


def test_a_reader_cannot_write(file: SqliteFile) -> None:
    with pytest.raises(Failed, match="read_only"), file.reading() as db:
        db.execute("INSERT INTO word VALUES ('one')")


def test_another_process_that_writes_for_too_long_is_said(file: SqliteFile, path: Path) -> None:
    add(file, "one")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Failed, match=r"locked words\.db"):
            add(file, "two")


@pytest.mark.parametrize(("moment", "found"), [("inside", []), ("after", ["theirs"])])
def test_a_process_that_is_killed_leaves_whole_transactions(
    file: SqliteFile, path: Path, moment: str, found: list[str]
) -> None:
    command = [sys.executable, "-c", WRITES, str(path), moment]
    done = subprocess.run(command, cwd=ROOT, timeout=60)

    assert done.returncode == -signal.SIGKILL
    assert words(file) == found


def test_what_was_removed_is_in_neither_file_after_a_rewrite(file: SqliteFile, path: Path) -> None:
    add(file, "secret-words")
    with file.writing() as db:
        db.execute("DELETE FROM word")

    assert file.rewrite()
    held = b"".join(each.read_bytes() for each in path.parent.iterdir())
    assert b"secret-words" not in held


def test_a_rewrite_waits_for_whoever_reads_an_older_state(file: SqliteFile) -> None:
    add(file, "one")
    with file.reading():
        words(file)
        add(file, "two")
        assert not file.rewrite()

    assert file.rewrite()


def test_a_file_that_is_not_kept_leaves_no_descriptor(path: Path) -> None:
    before = open_descriptors()
    file = SqliteFile(path, KIND, busy_seconds=0.2, kept=False)
    add(file, "one")
    words(file)

    assert new_descriptors(before) == {}


# -- forks ---------------------------------------------------------------------------------------


def test_parent_and_child_of_a_fork_both_go_on(file: SqliteFile) -> None:
    add(file, "before")
    words(file)

    said_by_child(lambda: add(file, "child"))
    add(file, "parent")

    assert words(file) == ["before", "child", "parent"]


@pytest.mark.parametrize("use", [SqliteFile.reading, SqliteFile.writing])
def test_a_file_that_is_in_use_at_a_fork_is_refused_in_the_child(
    file: SqliteFile,
    path: Path,
    use: Callable[[SqliteFile], contextlib.AbstractContextManager[object]],
) -> None:
    add(file, "one")
    with use(file):
        said = said_by_child(lambda: words(file))
        again = said_by_child(lambda: words(SqliteFile(path, KIND, busy_seconds=0.2)))

    assert said.startswith("unavailable words.db it was in use when this process was forked")
    assert again == said
    add(file, "two")
    assert words(file) == ["one", "two"]


def test_a_fork_waits_for_another_threads_transaction(file: SqliteFile) -> None:
    entered, free = threading.Event(), threading.Event()

    def hold() -> None:
        with file.writing() as db:
            entered.set()
            free.wait()
            db.execute("INSERT INTO word VALUES ('held')")

    holder = threading.Thread(target=hold)
    holder.start()
    entered.wait()
    threading.Timer(0.05, free.set).start()
    said = said_by_child(lambda: words(file))
    holder.join()

    assert said == "['held']"


def test_a_fork_waits_for_a_file_that_was_opened_while_it_waited_for_others(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = SqliteFile(path, KIND, busy_seconds=0.2)
    entered, free = threading.Event(), threading.Event()
    stop = sqlite_connection._stop
    with contextlib.closing(made):

        def hold() -> None:
            with made.writing() as db:
                entered.set()
                free.wait()
                db.execute("INSERT INTO word VALUES ('held')")

        holder = threading.Thread(target=hold)

        def stopped(connections: list[SqliteConnection], give_up: float) -> None:
            """Stop those of before, of which the new file was not one."""
            if entered.is_set():
                stop(connections, give_up)
                return
            ours = {made._reader, made._writer.connection}
            stop([each for each in connections if each not in ours], give_up)
            holder.start()
            entered.wait()
            threading.Timer(0.05, free.set).start()

        monkeypatch.setattr(sqlite_connection, "_stop", stopped)
        said = said_by_child(lambda: words(made))
        holder.join()

    assert said == "['held']"


# -- older versions and the form of a new file -------------------------------------------------


def upgraded(db: sqlite3.Connection) -> None:
    db.execute("ALTER TABLE word ADD COLUMN said INTEGER")


NEWER_KIND = dataclasses.replace(
    KIND, versions=(3, 2), upgrade=upgraded, page_bytes=1_024, log_pages=7
)


def test_an_older_file_is_upgraded_by_the_first_write_and_by_no_reading(path: Path) -> None:
    with contextlib.closing(SqliteFile(path, KIND, busy_seconds=1.0)) as older:
        add(older, "x")
    with contextlib.closing(SqliteFile(path, NEWER_KIND, busy_seconds=1.0)) as newer:
        with newer.reading() as db:
            before = db.execute("PRAGMA user_version").fetchone()
        with newer.writing() as db:
            columns = db.execute("SELECT word, said FROM word").fetchall()
        with newer.reading() as db:
            after = db.execute("PRAGMA user_version").fetchone()

    assert (before, columns, after) == ((2,), [("x", None)], (3,))


def test_a_new_file_has_the_pages_that_its_kind_asks_for(path: Path) -> None:
    asked = ("page_size", "wal_autocheckpoint", "user_version")
    file = SqliteFile(path, NEWER_KIND, busy_seconds=1.0)
    with contextlib.closing(file), file.writing() as db:
        found = [db.execute(f"PRAGMA {each}").fetchone() for each in asked]

    assert found == [(1_024,), (7,), (3,)]


# -- work that nobody waits for ----------------------------------------------------------------

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


def test_a_watched_statement_is_interrupted_and_other_threads_go_on(file: SqliteFile) -> None:
    add(file, "one")
    unwanted = threading.Event()
    raised: list[BaseException] = []

    def work() -> None:
        try:
            with file.interruptible(unwanted.is_set), file.reading() as db:
                db.execute(ENDLESS).fetchall()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    unwanted.set()
    thread.join(20)

    assert not thread.is_alive()
    assert [type(each) for each in raised] == [TimeoutError]
    # The connection is as it was: nothing is interrupted any more.
    assert words(file) == ["one"]
    with file.interruptible(lambda: False):
        assert words(file) == ["one"]


def test_nothing_is_begun_for_somebody_who_does_not_wait(file: SqliteFile) -> None:
    add(file, "one")

    with file.interruptible(lambda: True):
        with pytest.raises(TimeoutError), file.reading():
            pass
        with pytest.raises(TimeoutError), file.writing():
            pass

    add(file, "two")
    assert words(file) == ["one", "two"]


def test_a_reading_inside_another_one_is_ended_as_the_outer_one_is(file: SqliteFile) -> None:
    unwanted = threading.Event()

    def work() -> None:
        with file.interruptible(unwanted.is_set), file.reading():
            unwanted.set()
            words(file)

    with pytest.raises(TimeoutError):
        work()


def test_what_is_being_written_is_written(file: SqliteFile) -> None:
    unwanted = threading.Event()

    with file.interruptible(unwanted.is_set), file.writing() as db:
        unwanted.set()
        db.execute("INSERT INTO word VALUES ('one')")

    assert words(file) == ["one"]
