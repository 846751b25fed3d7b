"""Whoever changes a ledger behind its back is found, with the run and the entry named."""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ledger.builders import OTHER, RUN, filled

from tallystick.core.chain import Head, Sealed
from tallystick.core.errors import LedgerError
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import verify_ledger

COUNT = 4
COLUMNS = [("entry", "header"), ("entry", "hash"), ("body", "salt"), ("body", "body")]


class Attacked:
    """A ledger with two runs, and a second connection that obeys none of its rules."""

    def __init__(self, path: Path) -> None:
        self.ledger = SqliteLedger(path)
        self.head = filled(self.ledger, run=RUN, count=COUNT)
        filled(self.ledger, run=OTHER, count=COUNT)
        self.db = sqlite3.connect(path, isolation_level=None)

    def found(self, heads: dict[str, Head] | None = None) -> tuple[str, int] | None:
        """Which run and entry a verify names."""
        report = verify_ledger(self.ledger, heads=heads or {})
        assert report.ok is (report.first_bad is None)
        return None if report.first_bad is None else (report.first_bad.run, report.first_bad.seq)

    def close(self) -> None:
        self.db.close()
        self.ledger.close()


@pytest.fixture
def attacked(tmp_path: Path) -> Iterator[Attacked]:
    made = Attacked(tmp_path / "ledger.db")
    yield made
    made.close()


def flipped(data: bytes, place: int, mask: int) -> bytes:
    return data[:place] + bytes([data[place] ^ mask]) + data[place + 1 :]


@pytest.mark.parametrize(("table", "column"), COLUMNS)
@pytest.mark.parametrize(("seq", "stride"), [(0, 9), (1, 1), (COUNT - 1, 9)])
def test_a_byte_changed_anywhere_in_an_entry_is_found_and_named(
    attacked: Attacked, table: str, column: str, seq: int, stride: int
) -> None:
    where = f"FROM {table} WHERE run = '{OTHER}' AND seq = {seq}"
    update = f"UPDATE {table} SET {column} = ? WHERE run = '{OTHER}' AND seq = {seq}"
    ((original,),) = attacked.db.execute(f"SELECT {column} {where}")

    for place in range(0, len(original), stride):
        attacked.db.execute(update, (flipped(original, place, 1 << place % 8),))
        assert attacked.found() == (OTHER, seq), place

    attacked.db.execute(update, (original,))
    assert attacked.found() is None


@pytest.mark.parametrize(("table", "column"), COLUMNS)
def test_a_value_cut_short_or_made_longer_is_found(
    attacked: Attacked, table: str, column: str
) -> None:
    for change in (f"substr({column}, 2)", f"substr({column}, 1, 5)", "x''", f"{column} || x'00'"):
        attacked.db.execute("BEGIN")
        attacked.db.execute(
            f"UPDATE {table} SET {column} = {change} WHERE run = '{RUN}' AND seq = 2"
        )
        attacked.db.execute("COMMIT")

        assert attacked.found() == (RUN, 2)


@pytest.mark.parametrize(("table", "column"), COLUMNS)
@pytest.mark.parametrize("value", ["CAST({} AS TEXT)", "7", "1.5", "'text'"])
def test_a_value_of_another_type_is_found(
    attacked: Attacked, table: str, column: str, value: str
) -> None:
    change = value.format(f"hex({column})")

    attacked.db.execute(f"UPDATE {table} SET {column} = {change} WHERE run = '{RUN}' AND seq = 1")

    assert attacked.found() == (RUN, 1)


def test_bytes_that_change_sides_between_salt_and_body_are_found(attacked: Attacked) -> None:
    attacked.db.execute(
        "UPDATE body SET salt = substr(salt, 1, 15), body = CAST(substr(salt, 16) || body AS BLOB) "
        f"WHERE run = '{RUN}' AND seq = 2"
    )

    assert attacked.found() == (RUN, 2)


def sql(*statements: str) -> Callable[[sqlite3.Connection], None]:
    def change(db: sqlite3.Connection) -> None:
        for statement in statements:
            db.execute(statement.replace("RUN", f"'{RUN}'").replace("OTHER", f"'{OTHER}'"))

    return change


def moved(seq: int, to: int) -> tuple[str, str]:
    return (
        f"UPDATE entry SET seq = {to} WHERE run = RUN AND seq = {seq}",
        f"UPDATE body SET seq = {to} WHERE run = RUN AND seq = {seq}",
    )


CHANGES: dict[str, tuple[int, Callable[[sqlite3.Connection], None]]] = {
    "the first entry removed": (0, sql("DELETE FROM entry WHERE run = RUN AND seq = 0")),
    "one removed from the middle": (2, sql("DELETE FROM entry WHERE run = RUN AND seq = 2")),
    "the last entry removed": (3, sql("DELETE FROM entry WHERE run = RUN AND seq = 3")),
    "all entries removed": (0, sql("DELETE FROM entry WHERE run = RUN")),
    "one removed and the others moved up": (
        1,
        sql(
            "DELETE FROM entry WHERE run = RUN AND seq = 1",
            "DELETE FROM body WHERE run = RUN AND seq = 1",
            *moved(2, 1),
            *moved(3, 2),
            "UPDATE run SET count = 3 WHERE id = RUN",
        ),
    ),
    "two entries exchanged": (1, sql(*moved(1, 9), *moved(2, 1), *moved(9, 2))),
    "the last entry doubled": (
        4,
        sql(
            "INSERT INTO entry SELECT run, 4, header, hash FROM entry WHERE run = RUN AND seq = 3",
            "INSERT INTO body SELECT run, 4, salt, body FROM body WHERE run = RUN AND seq = 3",
        ),
    ),
    "one doubled and the others moved down": (
        2,
        sql(
            *moved(3, 4),
            *moved(2, 3),
            "INSERT INTO entry SELECT run, 2, header, hash FROM entry WHERE run = RUN AND seq = 1",
            "INSERT INTO body SELECT run, 2, salt, body FROM body WHERE run = RUN AND seq = 1",
            "UPDATE run SET count = 5 WHERE id = RUN",
        ),
    ),
    "the entries of another run": (
        0,
        sql(
            "DELETE FROM entry WHERE run = RUN",
            "UPDATE entry SET run = RUN WHERE run = OTHER",
        ),
    ),
    "two bodies exchanged": (
        1,
        sql(
            "UPDATE body SET seq = 9 WHERE run = RUN AND seq = 1",
            "UPDATE body SET seq = 1 WHERE run = RUN AND seq = 2",
            "UPDATE body SET seq = 2 WHERE run = RUN AND seq = 9",
        ),
    ),
    "a body that is gone without being erased": (
        2,
        sql("DELETE FROM body WHERE run = RUN AND seq = 2"),
    ),
    "only the salt erased": (2, sql("UPDATE body SET salt = NULL WHERE run = RUN AND seq = 2")),
    "only the body erased": (2, sql("UPDATE body SET body = NULL WHERE run = RUN AND seq = 2")),
    "a head of another hash": (3, sql("UPDATE run SET hash = zeroblob(32) WHERE id = RUN")),
    "a head that counts less": (3, sql("UPDATE run SET count = 3 WHERE id = RUN")),
    "a head that counts more": (4, sql("UPDATE run SET count = 5 WHERE id = RUN")),
    "a head that counts nothing": (0, sql("UPDATE run SET count = 0 WHERE id = RUN")),
}


@pytest.mark.parametrize("change", sorted(CHANGES))
def test_entries_out_of_their_place_are_found_and_named(attacked: Attacked, change: str) -> None:
    seq, apply = CHANGES[change]

    apply(attacked.db)

    found = attacked.found()
    # A head that counts too little names the entry that it ends at or the first one behind it.
    assert found == (RUN, seq) or (change == "a head that counts less" and found == (RUN, 2))


@pytest.mark.parametrize("left", range(COUNT))
def test_a_chain_cut_together_with_its_head_is_found_by_a_kept_head(
    attacked: Attacked, left: int
) -> None:
    kept = {RUN: attacked.head}
    cut = [*attacked.ledger.read(RUN)][:left]
    sql(f"DELETE FROM entry WHERE run = RUN AND seq >= {left}")(attacked.db)
    attacked.db.execute(
        f"UPDATE run SET count = ?, hash = ? WHERE id = '{RUN}'",
        (left, bytes.fromhex(cut[-1].hash) if cut else bytes(32)),
    )

    assert attacked.found() is None
    assert attacked.found(kept) == (RUN, left)


def test_a_run_that_is_gone_is_found_by_a_kept_head(attacked: Attacked) -> None:
    attacked.ledger.remove(RUN)

    assert attacked.found() is None
    assert attacked.found({RUN: attacked.head}) == (RUN, 0)


def test_a_chain_written_anew_is_found_by_a_kept_head(attacked: Attacked) -> None:
    attacked.ledger.remove(RUN)
    filled(attacked.ledger, run=RUN, count=COUNT)

    assert attacked.found() is None
    assert attacked.found({RUN: attacked.head}) == (RUN, COUNT - 1)


def all_of(ledger: SqliteLedger) -> list[tuple[str, Head, list[Sealed]]]:
    return [(row.run, row.head, list(ledger.read(row.run))) for row in ledger.runs()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "ledger.db"
    with SqliteLedger(path) as ledger:
        filled(ledger, run=RUN, count=COUNT)
        filled(ledger, run=OTHER, count=COUNT)
    return path


@given(place=st.integers(0, 1 << 16), mask=st.integers(1, 255))
def test_a_byte_changed_anywhere_in_the_file_is_found_or_was_not_in_an_entry(
    whole: Path, place: int, mask: int
) -> None:
    data = whole.read_bytes()
    with SqliteLedger(whole) as ledger:
        before = all_of(ledger)
    whole.write_bytes(flipped(data, place % len(data), mask))

    with SqliteLedger(whole) as ledger:
        try:
            held = verify_ledger(ledger).ok and all_of(ledger) != before
        except LedgerError:
            held = False
    whole.write_bytes(data)

    assert not held
