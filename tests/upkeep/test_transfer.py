"""A run and its attachments travel together, arrive together, and go together."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.attachments.builders import AT_ONCE, EVERYTHING
from tests.ledger.builders import EMPTY, OTHER, RUN, bodies, draft, drafted, filled
from tests.ledger.test_transfer import Pipe
from tests.upkeep.transfer_builders import (
    FEW,
    LARGE,
    PICTURE,
    PLACES,
    SESSION,
    SEVERAL,
    Given,
    Place,
    attached_run,
    exported,
    in_files,
    in_memory,
    session_id,
    started,
)

from tallystick.attachments.collect import reclaim, reclaim_forgotten, verify_attachments
from tallystick.attachments.port import AttachmentNotFound
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.core.charge import ModelUsage
from tallystick.core.errors import TransferRefused
from tallystick.core.records import AttachmentRef, ModelReplied
from tallystick.ledger.transfer import export_run
from tallystick.ledger.verify import verify_ledger
from tallystick.upkeep.transfer import (
    Transferred,
    export_run_with_attachments,
    import_run_with_attachments,
    remove_run_with_attachments,
)

pytestmark = pytest.mark.slow

OTHER_SESSION = session_id(2)
Make = Callable[[str], Place]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Make places, in files or in memory, and close them in the end."""
    made: list[Place] = []

    def place(kind: str = "sqlite") -> Place:
        made.append(PLACES[kind](tmp_path / f"place {len(made)}"))
        return made[-1]

    yield place
    for each in made:
        each.close()


def imported(place: Place, content: bytes) -> Transferred:
    return import_run_with_attachments(place.ledger, place.kept, io.BytesIO(content))


def removed(place: Place, run: str = RUN) -> tuple[str, ...]:
    return remove_run_with_attachments(place.ledger, place.kept, run)


def blob_ids(kept: SqliteAttachments) -> set[str]:
    with kept.reading() as db:
        assert db is not None
        return {id for (id,) in db.execute("SELECT id FROM attachment_blob")}


# -- there and back ----------------------------------------------------------------------------


@pytest.mark.parametrize("there", sorted(PLACES))
@pytest.mark.parametrize("here", sorted(PLACES))
def test_a_run_arrives_with_every_attachment_as_it_was(make: Make, here: str, there: str) -> None:
    source, target = make(here), make(there)
    refs = attached_run(source)

    content = exported(source)
    done = imported(target, content)

    sizes = [len(data) for data, _, _ in SEVERAL]
    assert done == Transferred(run=RUN, attachments=6, bytes=sum(sizes), put=6)
    assert target.contents() == source.contents()
    arrived = {ref.id: (ref, data, committed) for ref, data, committed in target.contents()}
    for ref, (data, _, _) in zip(refs, SEVERAL, strict=True):
        assert arrived[ref.id] == (ref, data, True)
    assert list(target.ledger.read(RUN)) == list(source.ledger.read(RUN))
    assert exported(target) == content


@given(
    several=st.lists(
        st.tuples(
            st.binary(max_size=300),
            st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=1_000),
            st.none() | st.sampled_from(["text/plain", "image/png", "application/x-y+json"]),
        ),
        max_size=5,
    )
)
def test_whatever_can_be_put_arrives(several: list[Given]) -> None:
    source, target = in_memory(Path()), in_memory(Path())
    attached_run(source, several, unmentioned=len(several))

    imported(target, exported(source))

    assert target.contents() == source.contents()


def test_the_longest_reference_fits(make: Make) -> None:
    source, target = make("memory"), make("memory")
    longest = f"{'x' * 127}/{'y' * 127}"
    attached_run(source, [(PICTURE, "\x01" * 1_000, longest)])

    imported(target, exported(source))

    assert target.contents() == source.contents()


def test_what_was_shown_to_be_an_image_stays_one(make: Make) -> None:
    source, target = make("sqlite"), make("memory")
    attached_run(source)

    imported(target, exported(source))

    (picture,) = [ref for ref, data, _ in target.contents() if data == PICTURE]
    assert (picture.media_type, picture.declared) == ("image/png", "text/plain")
    assert (picture.width, picture.height, picture.label) == (3, 2, "picture")


def test_an_attachment_that_no_record_speaks_of_is_carried_too(make: Make) -> None:
    source, target = make("memory"), make("memory")
    attached_run(source, unmentioned=len(SEVERAL))

    imported(target, exported(source))

    assert target.contents() == source.contents()


def test_what_was_only_intended_stays_behind(make: Make) -> None:
    source, target = make("sqlite"), make("sqlite")
    attached_run(source, FEW)
    source.held().put(b"on its way")

    done = imported(target, exported(source))

    assert done.attachments == len(FEW)


@pytest.mark.parametrize("kind", sorted(PLACES))
def test_a_moved_run_takes_its_attachments_along_and_brings_back_new_ones(
    make: Make, kind: str
) -> None:
    here, there = make(kind), make(kind)
    attached_run(here)
    imported(there, exported(here, move=True))
    fence = there.ledger.claim(RUN, create=False)
    batch = there.held().batch()
    ref = batch.add(b"new" * 50_000, label="output")
    there.ledger.append(
        RUN,
        [started(SESSION, [ref])],
        expected=there.ledger.runs()[0].head,
        fence=fence,
        forced=True,
        also=batch.commit,
    )

    done = imported(here, exported(there, move=True))

    assert (done.attachments, done.put) == (7, 1)
    assert here.contents() == there.contents()
    assert here.ledger.claim(RUN, create=False) > fence


def test_a_run_comes_with_its_attachments_through_a_pipe(make: Make) -> None:
    source, target = make("memory"), make("sqlite")
    attached_run(source, FEW)

    import_run_with_attachments(target.ledger, target.kept, Pipe(exported(source)))  # type: ignore[arg-type]

    assert target.contents() == source.contents()


def test_a_run_without_attachments_makes_no_store(make: Make, tmp_path: Path) -> None:
    source, target = make("memory"), make("sqlite")
    filled(source.ledger)

    done = imported(target, exported(source))

    assert done == Transferred(run=RUN)
    with target.kept.reading() as db:  # type: ignore[union-attr]
        assert db is None


def test_two_runs_that_hold_the_same_bytes_hold_them_once(make: Make) -> None:
    source, target = make("sqlite"), make("sqlite")
    assert isinstance(target.kept, SqliteAttachments)
    attached_run(source, [(LARGE, "a", None)])
    attached_run(source, [(LARGE, "b", None)], run=OTHER, session=OTHER_SESSION)

    for run in (RUN, OTHER):
        imported(target, exported(source, run))

    assert len(blob_ids(target.kept)) == 1
    assert [ref.label for ref, _, _ in target.contents()] == ["a"]
    assert [ref.label for ref, _, _ in target.contents(OTHER_SESSION)] == ["b"]


# -- importing again ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(PLACES))
def test_importing_the_same_file_again_changes_nothing(make: Make, kind: str) -> None:
    source, target = make("memory"), make(kind)
    attached_run(source)
    content = exported(source)
    imported(target, content)
    before = target.held().references()

    done = imported(target, content)

    assert done.put == 0
    assert target.held().references() == before


def test_a_file_with_other_labels_does_not_change_those_that_are_here(make: Make) -> None:
    source, target = make("memory"), make("sqlite")
    attached_run(source, FEW)
    imported(target, exported(source))
    source.held().put(b"one", label="another")

    done = imported(target, exported(source))

    assert done.put == 0
    assert [ref.label for ref, _, _ in target.contents()] == ["first", None, "empty"]


def test_importing_again_restores_what_is_gone_or_damaged(make: Make) -> None:
    source, target = make("memory"), make("sqlite")
    assert isinstance(target.kept, SqliteAttachments)
    refs = attached_run(source)
    content = exported(source)
    imported(target, content)
    target.held().delete(refs[0].id)
    target.kept.files.path(refs[3].id).unlink()
    target.kept.files.path(refs[4].id).write_bytes(b"!" + LARGE[2:])
    broken = verify_attachments(target.kept)

    done = imported(target, content)

    assert len(broken.bad) == 2
    assert done.put == 3
    assert verify_attachments(target.kept).ok
    assert {ref.id for ref, _, _ in target.contents()} == {ref.id for ref in refs}
    assert exported(target) != b""


def test_a_run_that_was_removed_can_be_imported_again(make: Make) -> None:
    source, target = make("memory"), make("sqlite")
    attached_run(source)
    content = exported(source)
    imported(target, content)
    removed(target)

    done = imported(target, content)

    assert target.contents() == source.contents()
    assert done.put == 6


# -- an export that is refused -----------------------------------------------------------------


def lose_row(place: Place, ref: AttachmentRef) -> None:
    place.held().delete(ref.id)


def lose_bytes(place: Place, ref: AttachmentRef) -> None:
    assert isinstance(place.kept, SqliteAttachments)
    place.kept.files.path(ref.id).unlink()


def damage(place: Place, ref: AttachmentRef) -> None:
    assert isinstance(place.kept, SqliteAttachments)
    place.kept.files.path(ref.id).write_bytes(b"!" + LARGE[1:])


def lose_blob(place: Place, ref: AttachmentRef) -> None:
    assert isinstance(place.kept, SqliteAttachments)
    with place.kept.writing(forced=False) as db:
        db.execute("DELETE FROM attachment_blob WHERE id = ?", (ref.id,))


def lie_of_length(place: Place, ref: AttachmentRef) -> None:
    assert isinstance(place.kept, SqliteAttachments)
    with place.kept.writing(forced=False) as db:
        longer = msgspec.json.encode(msgspec.structs.replace(ref, byte_len=ref.byte_len + 1))
        db.execute(
            "UPDATE attachment_reference SET ref = ? WHERE attachment_id = ?", (longer, ref.id)
        )


@pytest.mark.parametrize("move", [False, True])
@pytest.mark.parametrize("harm", [lose_row, lose_bytes, damage, lose_blob, lie_of_length])
def test_a_run_whose_attachment_is_gone_or_damaged_is_not_exported(
    make: Make, tmp_path: Path, harm: Callable[[Place, AttachmentRef], None], move: bool
) -> None:
    place = make("sqlite")
    refs = attached_run(place, [(b"fine", None, None), (LARGE, "the large one", None)])
    file = tmp_path / "run.tally"
    harm(place, refs[1])

    with pytest.raises(TransferRefused) as caught:
        export_run_with_attachments(place.ledger, place.kept, RUN, file, move=move)

    message = str(caught.value)
    assert refs[1].id in message
    assert message.startswith(f"{file}: run {RUN}: ")
    assert message.endswith("; nothing was exported")
    assert "\n" not in message
    assert not list(tmp_path.glob("*.tally")) + list(tmp_path.glob(".tally*"))
    assert not place.ledger.runs()[0].moved


def test_what_cannot_be_exported_leaves_an_open_stream_empty(make: Make) -> None:
    place, stream = make("sqlite"), io.BytesIO()
    damage(place, attached_run(place, [(b"fine", None, None), (LARGE, None, None)])[1])

    with pytest.raises(TransferRefused, match=r"the given stream: .* is damaged"):
        export_run_with_attachments(place.ledger, place.kept, RUN, stream)

    assert stream.getvalue() == b""


def test_a_run_with_more_attachments_than_a_file_may_carry_is_not_exported(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = make("memory")
    attached_run(place, FEW)
    monkeypatch.setattr("tallystick.ledger.transfer.ATTACHMENTS_MAX", 2)

    with pytest.raises(TransferRefused, match="has 3 attachments, and an export carries at most 2"):
        exported(place, move=True)

    assert not place.ledger.runs()[0].moved


# -- what records speak of ---------------------------------------------------------------------


def without_attachments(place: Place) -> bytes:
    """What an export would be that left them behind."""
    stream = io.BytesIO()
    export_run(place.ledger, RUN, stream)
    return stream.getvalue()


@pytest.mark.parametrize("kind", sorted(PLACES))
def test_a_file_that_does_not_carry_what_its_records_speak_of_is_refused(
    make: Make, kind: str
) -> None:
    source, target = make("memory"), make(kind)
    refs = attached_run(source, FEW)

    with pytest.raises(TransferRefused, match=f"entry 0 speaks of attachment '{refs[0].id}', whi"):
        imported(target, without_attachments(source))

    assert list(target.ledger.runs()) == []


def test_what_an_erased_record_spoke_of_need_not_come(make: Make) -> None:
    source, target = make("memory"), make("memory")
    refs = attached_run(source, FEW, unmentioned=3)
    (row,) = source.ledger.runs()
    source.ledger.append(
        RUN, [started(SESSION, refs)], expected=row.head, fence=row.fence, forced=False
    )
    source.ledger.erase(RUN, [3])
    for ref in refs:
        source.held().delete(ref.id)

    done = imported(target, exported(source))

    assert done.attachments == 0
    assert verify_ledger(target.ledger).erased == 1


def test_a_run_whose_start_was_erased_travels_alone(make: Make) -> None:
    source, target = make("memory"), make("memory")
    attached_run(source, FEW)
    source.ledger.erase(RUN, [0])

    done = imported(target, exported(source))

    assert done.attachments == 0
    assert verify_ledger(target.ledger).ok


def test_what_only_looks_like_a_reference_is_none(make: Make) -> None:
    source, target = make("memory"), make("memory")
    attached_run(source, [])
    (row,) = source.ledger.runs()
    raw = {"id": "5a" * 32, "media_type": "text/plain", "byte_len": 3}
    usage = ModelUsage(tokens_in=1, tokens_out=1, reported=True, raw={"seen": raw})
    record = drafted(ModelReplied(intent=3, turn=3, text="?", usage=usage))
    source.ledger.append(RUN, [record], expected=row.head, fence=row.fence, forced=False)

    assert imported(target, exported(source)).attachments == 0


# -- whose session it is -----------------------------------------------------------------------


def test_a_run_that_names_the_session_of_another_run_is_refused(make: Make) -> None:
    source, target = make("memory"), make("sqlite")
    attached_run(source, FEW)
    attached_run(target, [(b"mine", None, None)], run=OTHER)

    with pytest.raises(TransferRefused, match=f"its session is that of run {OTHER}, which is here"):
        imported(target, exported(source))

    assert [ref.label for ref, _, _ in target.contents()] == [None]


def test_a_run_that_names_a_session_that_holds_something_else_is_refused(make: Make) -> None:
    source, target = make("memory"), make("sqlite")
    attached_run(source, FEW)
    target.held().commit([target.held().put(b"mine").id])

    with pytest.raises(TransferRefused, match="its session holds attachments here that it does"):
        imported(target, exported(source))

    assert [data for _, data, _ in target.contents()] == [b"mine"]


def test_a_session_that_two_runs_name_is_neithers(make: Make, tmp_path: Path) -> None:
    place = make("sqlite")
    attached_run(place, FEW, unmentioned=3)
    fence = place.ledger.claim(OTHER, create=True)
    place.ledger.append(OTHER, [started(SESSION, [])], expected=EMPTY, fence=fence, forced=False)

    done = export_run_with_attachments(place.ledger, place.kept, OTHER, tmp_path / "other.tally")
    gone = removed(place, OTHER)

    assert (done.attachments, gone) == (0, ())
    assert len(place.contents()) == 3


# -- files that change, processes that die -----------------------------------------------------


class Changing(io.BytesIO):
    """A file that someone writes while it is read: from the n-th reading on it is another one."""

    def __init__(self, first: bytes, second: bytes, *, at: int) -> None:
        super().__init__(first)
        self._second = second
        self._left = at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._left -= 1
        if self._left == 0:
            self.truncate(0)
            super().seek(0)
            self.write(self._second)
        return super().seek(offset, whence)


def changed_last(content: bytes) -> bytes:
    """Another byte at the end of the last attachment, and an honest digest."""
    return content[:-33] + b"?" + content[-32:]


# The third reading ends behind the entries: what comes after them was kept by then.
@pytest.mark.parametrize(
    ("kind", "at"), [("cut", 1), ("other", 1), ("attachment", 1), ("other", 2), ("cut early", 2)]
)
def test_a_file_that_changes_between_the_readings_is_refused(
    make: Make, kind: str, at: int
) -> None:
    source, target, third = make("memory"), make("sqlite"), make("memory")
    assert isinstance(target.kept, SqliteAttachments)
    attached_run(source)
    attached_run(third, FEW, run=OTHER, session=OTHER_SESSION)
    good = exported(source)
    second = {
        "cut": good[: len(good) // 2],
        "cut early": good[:600],
        "other": exported(third, OTHER),
        "attachment": changed_last(good),
    }[kind]

    with pytest.raises(TransferRefused, match="nothing was imported"):
        import_run_with_attachments(target.ledger, target.kept, Changing(good, second, at=at))

    assert list(target.ledger.runs()) == []
    assert all(not committed for _, _, committed in target.contents())
    target.kept.close()
    reclaim(target.kept, policy=EVERYTHING)
    assert blob_ids(target.kept) == set()
    assert [*target.kept.files.ids(), *target.kept.files.staged()] == []


def test_an_attachment_that_went_away_before_the_commit_stops_the_import(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = make("memory"), make("sqlite")
    refs = attached_run(source, FEW)
    adopt = target.ledger.adopt

    def late(*given: object, **more: object) -> None:
        target.held().delete(refs[1].id)
        adopt(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(target.ledger, "adopt", late)
    with pytest.raises(AttachmentNotFound):
        imported(target, exported(source))

    assert list(target.ledger.runs()) == []
    assert all(not committed for _, _, committed in target.contents())


def test_a_process_killed_anywhere_in_an_import_leaves_nothing_that_is_held(
    make: Make, tmp_path: Path
) -> None:
    source = make("memory")
    attached_run(source)
    file = tmp_path / "run.tally"
    file.write_bytes(exported(source))

    subprocess.run(
        [sys.executable, "-m", "tests.upkeep.import_worker", file, tmp_path / "deaths", "23"],
        cwd=Path(__file__).parents[2],
        check=True,
        timeout=120,
    )

    places = sorted((tmp_path / "deaths").iterdir())
    assert len(places) > 20
    left = 0
    for folder in places:
        place = in_files(folder)
        assert isinstance(place.kept, SqliteAttachments)
        if folder.name != "whole":
            assert list(place.ledger.runs()) == []
            assert not any(each.committed_at_epoch_ms for each in place.held().references())
            left += len(place.held().references())
            assert imported(place, file.read_bytes()).put == len(SEVERAL)
            reclaim(place.kept, policy=AT_ONCE)
        assert place.contents() == source.contents()
        place.close()
    assert left > 0


def test_what_a_process_killed_in_an_import_left_is_collected(make: Make, tmp_path: Path) -> None:
    source = make("memory")
    attached_run(source)
    file = tmp_path / "run.tally"
    file.write_bytes(exported(source))
    subprocess.run(
        [sys.executable, "-m", "tests.upkeep.import_worker", file, tmp_path / "deaths", "1000000"],
        cwd=Path(__file__).parents[2],
        check=True,
        timeout=120,
    )
    place = in_files(tmp_path / "deaths" / "0")
    assert isinstance(place.kept, SqliteAttachments)

    before = blob_ids(place.kept)
    reclaim(place.kept, policy=EVERYTHING)

    assert len(before) == len(SEVERAL)
    assert blob_ids(place.kept) == set()
    assert place.held().references() == []
    assert [*place.kept.files.ids(), *place.kept.files.staged()] == []
    place.close()


# -- going -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(PLACES))
def test_a_run_that_goes_lets_go_of_what_it_held(make: Make, kind: str) -> None:
    place = make(kind)
    refs = attached_run(place)

    gone = removed(place)

    assert sorted(gone) == sorted(ref.id for ref in refs)
    assert place.held().references() == []
    assert list(place.ledger.runs()) == []


def test_its_bytes_are_freed_and_those_that_another_run_holds_are_not(make: Make) -> None:
    place = make("sqlite")
    assert isinstance(place.kept, SqliteAttachments)
    refs = attached_run(place, [(b"mine", None, None), (LARGE, None, None), (b"ours", None, None)])
    attached_run(place, [(LARGE, None, None), (b"ours", None, None)], run=OTHER,
                 session=OTHER_SESSION)  # fmt: skip

    first = removed(place)
    freed = reclaim_forgotten(place.kept, first)
    after = blob_ids(place.kept)
    second = removed(place, OTHER)
    reclaim_forgotten(place.kept, second)

    assert list(first) == [refs[0].id]
    assert freed.reclaimed_count == 1
    assert after == {refs[1].id, refs[2].id}
    assert blob_ids(place.kept) == set()
    assert list(place.kept.files.ids()) == []


def test_what_nobody_freed_goes_with_the_next_sweep(make: Make) -> None:
    place = make("sqlite")
    assert isinstance(place.kept, SqliteAttachments)
    attached_run(place)
    (ref,) = attached_run(place, [(LARGE, None, None)], run=OTHER, session=OTHER_SESSION)

    removed(place)
    reclaim(place.kept, policy=AT_ONCE)

    assert blob_ids(place.kept) == {ref.id}
    assert [data for _, data, _ in place.contents(OTHER_SESSION)] == [LARGE]


def test_a_removal_that_fails_lets_go_of_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = make("sqlite")
    attached_run(place, FEW)
    forget = place.kept.forget_session

    def failing(*given: object, **more: object) -> None:
        forget(*given, **more)  # type: ignore[arg-type]
        raise AttachmentNotFound(id="5a" * 32)

    monkeypatch.setattr(place.kept, "forget_session", failing)
    with pytest.raises(AttachmentNotFound):
        removed(place)

    assert len(bodies(place.ledger)) == 3
    assert len(place.contents()) == 3


def test_a_run_whose_start_is_damaged_can_still_be_removed(make: Make) -> None:
    place = make("sqlite")
    attached_run(place, FEW)
    with place.ledger.file.writing(forced=False) as db:  # type: ignore[union-attr]
        db.execute("UPDATE body SET body = x'00' WHERE seq = 0")

    assert removed(place) == ()
    assert list(place.ledger.runs()) == []


# -- memory ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_attachment_of_200_mb_goes_in_and_out_in_a_few(tmp_path: Path) -> None:
    folder = tmp_path / "all of it"
    source, target = in_files(folder / "here"), in_files(folder / "there")
    piece = bytes(range(256)) * 4_096
    held = source.held()
    ref = held.put(piece for _ in range(200))
    held.commit([ref.id])
    fence = source.ledger.claim(RUN, create=True)
    source.ledger.append(
        RUN, [started(SESSION, [ref]), draft(1)], expected=EMPTY, fence=fence, forced=True
    )
    file = folder / "run.tally"
    tracemalloc.start()

    export_run_with_attachments(source.ledger, source.kept, RUN, file)
    _, writing = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    import_run_with_attachments(target.ledger, target.kept, file)
    _, reading = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    arrived = target.held().reference(ref.id).ref
    source.close()
    target.close()
    shutil.rmtree(folder)
    assert arrived == ref
    assert writing < 8 << 20
    assert reading < 24 << 20
