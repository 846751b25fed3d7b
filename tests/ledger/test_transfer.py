"""One run as a file: out of a ledger, into another, and who goes on with it."""

import io
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from tests.ledger.builders import EMPTY, LEDGERS, OTHER, RUN, bodies, draft, drafts, filled

from tallystick.core.chain import Head
from tallystick.core.errors import LedgerConflict, RunNotFound, RunNotOwned, TransferRefused
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.port import ExportHeader, RunRow, TransferLedger
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.transfer import export_run, import_run, write_stream
from tallystick.ledger.verify import verify_ledger


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.tally"


@pytest.fixture(params=sorted(LEDGERS))
def two(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sequence[TransferLedger]]:
    """Two ledgers of one kind, as on two machines."""
    made = [LEDGERS[request.param](tmp_path / name) for name in ("here", "there")]
    yield made
    for ledger in made:
        if isinstance(ledger, SqliteLedger):
            ledger.close()


def gone_on(ledger: TransferLedger, count: int = 2) -> Head:
    """Claim a run and append to it."""
    fence = ledger.claim(RUN, create=False)
    (row,) = ledger.runs()
    return ledger.append(RUN, drafts(count), expected=row.head, fence=fence, forced=False)


def moved(source: TransferLedger, target: TransferLedger, file: Path) -> None:
    export_run(source, RUN, file, move=True)
    import_run(target, file)


def owners(ledgers: Sequence[TransferLedger]) -> int:
    rows: list[RunRow] = [row for ledger in ledgers for row in ledger.runs()]
    return sum(not (row.moved or row.imported) for row in rows)


def test_an_imported_run_is_the_one_that_was_exported(
    two: Sequence[TransferLedger], file: Path
) -> None:
    here, there = two
    filled(here)

    export_run(here, RUN, file)
    run = import_run(there, file)

    assert run == RUN
    assert list(there.read(RUN)) == list(here.read(RUN))
    assert (there.runs()[0].head, there.runs()[0].created_at) == (here.runs()[0].head, 1)
    assert verify_ledger(there, heads={RUN: here.runs()[0].head}).ok


def test_a_run_that_was_exported_goes_on_here_and_only_here(
    two: Sequence[TransferLedger], file: Path
) -> None:
    here, there = two
    filled(here)

    export_run(here, RUN, file)
    import_run(there, file)

    assert gone_on(here).count == 6
    with pytest.raises(RunNotOwned, match="is a copy of another ledger's run"):
        there.claim(RUN, create=False)


def test_a_run_that_was_moved_goes_on_there_and_only_there(
    two: Sequence[TransferLedger], file: Path
) -> None:
    here, there = two
    head = filled(here)

    moved(here, there, file)

    assert gone_on(there).count == 6
    assert verify_ledger(there, heads={RUN: head}).ok
    with pytest.raises(RunNotOwned, match="was moved away"):
        here.claim(RUN, create=False)


def test_the_writer_of_a_run_that_is_moved_away_is_stopped(
    two: Sequence[TransferLedger], file: Path
) -> None:
    here, _ = two
    head = filled(here)

    export_run(here, RUN, file, move=True)

    with pytest.raises(LedgerConflict, match="its fence is 2, not 1"):
        here.append(RUN, drafts(1), expected=head, fence=1, forced=True)


def test_a_run_can_move_there_and_back_again(two: Sequence[TransferLedger], tmp_path: Path) -> None:
    here, there = two
    filled(here)

    for turn in range(3):
        moved(here, there, tmp_path / f"there-{turn}")
        gone_on(there, 1)
        moved(there, here, tmp_path / f"back-{turn}")
        gone_on(here, 1)
        assert owners(two) == 1

    assert verify_ledger(here).entries == 4 + 6
    assert verify_ledger(there).entries == 4 + 5


def test_a_title_that_was_used_is_worth_nothing_to_those_who_had_the_run(
    two: Sequence[TransferLedger], tmp_path: Path
) -> None:
    here, there = two
    filled(here)
    first, second = tmp_path / "first", tmp_path / "second"
    moved(here, there, first)
    export_run(there, RUN, second, move=True)

    for ledger, title in ((here, first), (there, first), (there, second)):
        with pytest.raises(TransferRefused, match="only a later export brings it back"):
            import_run(ledger, title)

    assert owners(two) == 0
    import_run(here, second)
    assert owners(two) == 1


def test_importing_the_same_file_again_changes_nothing(
    two: Sequence[TransferLedger], tmp_path: Path
) -> None:
    here, there = two
    filled(here)
    copy, title = tmp_path / "copy", tmp_path / "title"
    export_run(here, RUN, copy)
    export_run(here, RUN, title, move=True)

    for file in (copy, copy, title, title, copy):
        assert import_run(there, file) == RUN

    assert owners(two) == 1
    assert verify_ledger(there).entries == 4


def test_an_older_copy_of_a_run_that_is_here_is_refused_by_name(
    two: Sequence[TransferLedger], tmp_path: Path
) -> None:
    here, there = two
    filled(here)
    old, title = tmp_path / "old", tmp_path / "title"
    export_run(here, RUN, old)
    export_run(here, RUN, title, move=True)
    import_run(there, title)
    gone_on(there)

    for file in (old, title):
        with pytest.raises(
            TransferRefused, match=f"run {RUN}: another run with this id is here: 6 ent"
        ):
            import_run(there, file)

    assert verify_ledger(there).entries == 6


@pytest.mark.parametrize("move", [False, True])
def test_another_run_of_the_same_id_is_refused_by_name(
    two: Sequence[TransferLedger], file: Path, move: bool
) -> None:
    here, there = two
    filled(here, count=3)
    head = filled(there, count=5)
    export_run(here, RUN, file, move=move)

    with pytest.raises(TransferRefused, match="another run with this id is here"):
        import_run(there, file)

    assert there.runs()[0].head == head


def test_a_title_that_does_not_grow_from_the_copy_here_is_refused(
    two: Sequence[TransferLedger], tmp_path: Path
) -> None:
    here, there = two
    filled(here, count=3)
    forger = MemoryLedger()
    filled(forger, count=5)
    export_run(here, RUN, tmp_path / "copy")
    export_run(forger, RUN, tmp_path / "title", move=True)
    import_run(there, tmp_path / "copy")

    with pytest.raises(TransferRefused, match="parts from it at or before entry 2"):
        import_run(there, tmp_path / "title")

    assert list(there.read(RUN)) == list(here.read(RUN))
    assert owners([there]) == 0


def test_a_copy_is_no_title_and_cannot_be_moved(
    two: Sequence[TransferLedger], tmp_path: Path
) -> None:
    here, there = two
    filled(here)
    export_run(here, RUN, tmp_path / "copy")
    import_run(there, tmp_path / "copy")

    with pytest.raises(RunNotOwned, match="is a copy"):
        export_run(there, RUN, tmp_path / "title", move=True)
    export_run(there, RUN, tmp_path / "copy of the copy")

    assert (tmp_path / "copy of the copy").read_bytes() == (tmp_path / "copy").read_bytes()
    assert not (tmp_path / "title").exists()


def test_erased_bodies_stay_erased_on_the_way(two: Sequence[TransferLedger], file: Path) -> None:
    here, there = two
    filled(here)
    here.erase(RUN, [0, 2])

    moved(here, there, file)

    assert [body is None for body in bodies(there)] == [True, False, True, False]
    assert verify_ledger(there).erased == 2


def test_an_empty_run_can_be_moved(two: Sequence[TransferLedger], file: Path) -> None:
    here, there = two
    here.claim(RUN, create=True)

    moved(here, there, file)

    assert gone_on(there).count == 2


def test_a_run_that_is_not_there_leaves_no_file(file: Path) -> None:
    with pytest.raises(RunNotFound):
        export_run(MemoryLedger(), RUN, file)

    assert list(file.parent.iterdir()) == []


def test_an_export_is_private_and_never_written_over_another_file(file: Path) -> None:
    ledger = MemoryLedger()
    filled(ledger)
    export_run(ledger, RUN, file)
    before = file.read_bytes()

    with pytest.raises(TransferRefused, match="it is there already; name a new file"):
        export_run(ledger, RUN, file, move=True)

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_bytes() == before
    assert owners([ledger]) == 1


@pytest.mark.parametrize("place", ["missing/run.tally", "plain/run.tally"])
def test_a_file_that_cannot_be_begun_moves_nothing(tmp_path: Path, place: str) -> None:
    (tmp_path / "plain").touch()
    ledger = MemoryLedger()
    filled(ledger)

    with pytest.raises(TransferRefused, match="it cannot be written"):
        export_run(ledger, RUN, tmp_path / place, move=True)

    assert owners([ledger]) == 1


def test_a_run_is_marked_as_moved_before_its_file_has_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = SqliteLedger(tmp_path / "ledger.db")
    filled(ledger)
    file = tmp_path / "run.tally"
    order = []
    fsync, release = os.fsync, ledger.release

    def told(word: str) -> None:
        with SqliteLedger(tmp_path / "ledger.db") as other:
            order.append((word, other.runs()[0].moved, file.exists()))

    def written(target: BinaryIO, header: ExportHeader, *rest: Any) -> None:
        told("writing")
        write_stream(target, header, *rest)

    def synced(descriptor: int) -> None:
        told("syncing")
        fsync(descriptor)

    def released(run: str) -> RunRow:
        told("marking")
        return release(run)

    monkeypatch.setattr("tallystick.ledger.transfer.write_stream", written)
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(ledger, "release", released)
    export_run(ledger, RUN, file, move=True)
    ledger.close()

    assert order == [
        ("marking", False, False),
        ("writing", True, False),
        ("syncing", True, False),
        ("syncing", True, True),
    ]


def test_a_move_that_failed_half_way_is_mended_by_exporting_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = MemoryLedger(), MemoryLedger()
    filled(here)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(TransferRefused, match="cannot be written: No space left on device"):
            export_run(here, RUN, tmp_path / "run.tally", move=True)
    left = list(tmp_path.iterdir())
    none = owners([here, there])
    moved(here, there, tmp_path / "run.tally")

    assert (left, none, owners([here, there])) == ([], 0, 1)


def test_a_damaged_run_is_not_exported(file: Path) -> None:
    ledger = MemoryLedger()
    filled(ledger)
    ledger._entries[RUN][2], ledger._entries[RUN][1] = ledger._entries[RUN][1:3]

    with pytest.raises(TransferRefused, match=f"run {RUN}, entry 1: .* nothing was exported"):
        export_run(ledger, RUN, file, move=True)

    assert owners([ledger]) == 1
    assert not file.exists()


class Pipe(io.RawIOBase):
    """Bytes that can be read once, a few at a time."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._data.read(min(7, len(buffer)))
        buffer[: len(piece)] = piece
        return len(piece)


def test_a_run_goes_through_streams_too() -> None:
    here, there = MemoryLedger(), MemoryLedger()
    filled(here)
    stream = io.BytesIO(b"before")
    stream.seek(6)

    export_run(here, RUN, stream)
    stream.seek(6)
    import_run(there, stream)

    assert list(there.read(RUN)) == list(here.read(RUN))


def test_a_run_goes_through_a_pipe_too() -> None:
    here, there = MemoryLedger(), MemoryLedger()
    filled(here)
    stream = io.BytesIO()
    export_run(here, RUN, stream)

    import_run(there, Pipe(stream.getvalue()))  # type: ignore[arg-type]

    assert list(there.read(RUN)) == list(here.read(RUN))


class Changing(io.BytesIO):
    """A file that someone writes while it is read: the second reading finds another one."""

    def __init__(self, first: bytes, second: bytes) -> None:
        super().__init__(first)
        self._second = second

    def seek(self, offset: int, whence: int = 0) -> int:
        self.truncate(0)
        super().seek(0)
        self.write(self._second)
        return super().seek(offset, whence)


def exported(run: str = RUN, *, count: int = 4) -> bytes:
    ledger, stream = MemoryLedger(), io.BytesIO()
    filled(ledger, run=run, count=count)
    export_run(ledger, run, stream)
    return stream.getvalue()


def test_a_file_that_changes_between_the_readings_is_refused(tmp_path: Path) -> None:
    good = exported()
    with SqliteLedger(tmp_path / "ledger.db") as ledger:
        filled(ledger, run=OTHER)
        for second in (
            exported(),
            exported(OTHER),
            good[:-40],
            good[:-1] + bytes([good[-1] ^ 1]),
            b"",
        ):
            with pytest.raises(TransferRefused, match="nothing was imported"):
                import_run(ledger, Changing(good, second))

        assert [row.run for row in ledger.runs()] == [OTHER]
        assert verify_ledger(ledger).entries == 4
        with ledger._file.reading() as db:
            assert db.execute("SELECT count(*) FROM entry").fetchone() == (4,)


def test_an_import_waits_for_no_other_run_while_it_reads(tmp_path: Path) -> None:
    good = exported()
    with (
        SqliteLedger(tmp_path / "ledger.db", busy_seconds=0) as ledger,
        SqliteLedger(tmp_path / "ledger.db", busy_seconds=0) as other,
    ):
        fence = other.claim(OTHER, create=True)
        heads = [EMPTY]

        class Slow(Pipe):
            def readinto(self, buffer: Any) -> int:
                head = other.append(
                    OTHER, [draft(0)], expected=heads[-1], fence=fence, forced=False
                )
                heads.append(head)
                return super().readinto(buffer)

        import_run(ledger, Slow(good))  # type: ignore[arg-type]

        assert heads[-1].count > 10
        assert verify_ledger(ledger).entries == heads[-1].count + 4
