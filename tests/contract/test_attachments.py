"""What every store of attachments promises, tried on each of them."""

import io
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.attachments.builders import (
    AT_ONCE,
    EVERYTHING,
    LARGE,
    SMALL,
    Kept,
    Ticks,
    digest,
    intent,
    ref_of,
    session,
    stored,
)

from tallystick.attachments.collect import ReclaimPolicy, ReclaimReport, reclaim
from tallystick.attachments.memory import MemoryAttachments, NoManifest
from tallystick.attachments.port import (
    CHUNK_BYTES,
    AttachmentIoFailed,
    AttachmentMetaMissing,
    AttachmentNotFound,
    DurabilityTier,
    Intent,
    ManifestRecordFailed,
    Persistence,
    ReclamationRefused,
    Source,
    Transaction,
)
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.core.errors import InvalidLimit, InvalidName
from tallystick.core.records import AttachmentRef
from tallystick.stores import open_stores


@pytest.fixture
def ticks() -> Ticks:
    return Ticks()


@pytest.fixture(params=["memory", "sqlite"])
def kept(request: pytest.FixtureRequest, tmp_path: Path, ticks: Ticks) -> Iterator[Kept]:
    if request.param == "memory":
        with open_stores("memory:", clock=ticks) as stores:
            assert isinstance(stores.attachments, MemoryAttachments)
            yield stores.attachments
    else:
        with stored(tmp_path, ticks) as made:
            yield made


def collected(
    kept: Kept, policy: ReclaimPolicy = AT_ONCE, *, dry_run: bool = False
) -> ReclaimReport:
    return reclaim(kept, policy=policy, dry_run=dry_run)


# -- the store ---------------------------------------------------------------------------------


def test_the_same_bytes_twice_are_one_attachment_with_the_metadata_given(kept: Kept) -> None:
    held = session(kept)
    pixel = b"\x01\x02\x03"

    refs = [
        held.put(pixel, media_type="image/png", width=1, height=1, label="pixel") for _ in range(2)
    ]

    assert refs[0] == refs[1]
    assert refs[0] == AttachmentRef(
        id=digest(pixel), media_type="image/png", byte_len=3, width=1, height=1, label="pixel"
    )
    assert held.read(refs[0].id) == pixel


def test_an_id_is_the_sha_256_of_the_bytes_in_lowercase_hex(kept: Kept) -> None:
    ref = session(kept).put(b"\x04\x05\x06\x07")

    assert ref.id == "c6d44cf418f610e3fe9e1d9294ff43def81c6cdcad6cbb1820cff48d3aa4355d"
    assert ref.byte_len == 4


@pytest.mark.parametrize(
    "data", [b"", SMALL, LARGE, LARGE * 20], ids=["nothing", "small", "large", "many chunks"]
)
@pytest.mark.parametrize("way", ["bytes", "file", "pieces", "memoryview"])
def test_what_was_put_is_read_back_whatever_it_came_from(kept: Kept, data: bytes, way: str) -> None:
    held = session(kept)
    ways: dict[str, Source] = {
        "bytes": data,
        "file": io.BytesIO(data),
        "pieces": (data[start : start + 10_007] for start in range(0, len(data), 10_007)),
        "memoryview": memoryview(data),
    }

    ref = held.put(ways[way])

    assert (ref.id, ref.byte_len) == (digest(data), len(data))
    assert held.read(ref.id) == data
    with held.chunks(ref.id) as chunks:
        assert all(len(chunk) <= CHUNK_BYTES for chunk in chunks)


def test_metadata_belongs_to_the_reference_and_not_to_the_bytes(kept: Kept) -> None:
    one, two = session(kept, "one"), session(kept, "two")

    one.put(SMALL, label="mine", media_type="text/markdown")
    id = two.put(SMALL, label="yours").id

    assert one.reference(id).ref.label == "mine"
    assert one.reference(id).ref.media_type == "text/markdown"
    assert two.reference(id).ref.label == "yours"


def test_a_second_put_by_the_same_session_renames_its_reference(kept: Kept) -> None:
    held = session(kept)
    id = held.put(SMALL, label="before").id

    held.put(SMALL, label="after")

    assert [each.ref.label for each in held.references()] == ["after"]
    assert held.read(id) == SMALL


def test_what_was_never_put_is_not_found(kept: Kept) -> None:
    id = digest(b"never")

    with pytest.raises(AttachmentNotFound) as caught:
        kept.chunks(id)

    assert str(caught.value) == f"attachment `{id}` was not found"


@pytest.mark.parametrize(
    "id",
    ["", "x" * 129, "a/b", "..", ".", "a\\b", "a\0b", "caf\u00e9", "../../etc/passwd", "a\nb"],
)
def test_a_path_trick_is_refused_before_a_path_is_made(kept: Kept, id: str) -> None:
    held = session(kept)

    for attempt in (held.read, held.delete, held.local, kept.chunks, kept.byte_len):
        with pytest.raises(InvalidName, match=r"^attachment "):
            attempt(id)


@pytest.mark.parametrize("id", ["~", "x" * 128, "ABCD" * 16, "0" * 63, "a b", "..."])
def test_an_id_that_is_well_formed_and_no_digest_is_not_found(kept: Kept, id: str) -> None:
    with pytest.raises(AttachmentNotFound):
        kept.chunks(id)
    with pytest.raises(AttachmentNotFound):
        session(kept).read(id)


@pytest.mark.parametrize("bad", ["png", "image/", "a b/c", "image/png\n", "", "x/" + "y" * 200])
def test_a_media_type_that_is_none_is_refused_and_nothing_is_kept(kept: Kept, bad: str) -> None:
    held = session(kept)

    for data in (SMALL, LARGE):
        with pytest.raises(InvalidName):
            held.put(data, media_type=bad.replace("\n", "\r\nX: y"))

    assert held.references() == []


@pytest.mark.parametrize("side", [0, -1, 65_536])
def test_a_side_that_no_picture_has_is_refused(kept: Kept, side: int) -> None:
    with pytest.raises(InvalidLimit):
        session(kept).put(SMALL, width=side)


def test_a_source_that_breaks_leaves_nothing(kept: Kept) -> None:
    def breaking() -> Iterator[bytes]:
        yield LARGE
        raise RuntimeError("the source broke")

    held = session(kept)
    with pytest.raises(RuntimeError, match="the source broke"):
        held.put(breaking())

    assert held.references() == []
    assert list(kept.staged_files()) == []


def test_the_persistence_of_a_session_is_that_of_its_store(kept: Kept) -> None:
    durable = isinstance(kept, SqliteAttachments)

    held = session(kept)

    assert held.persistence is kept.persistence
    assert held.persistence is (Persistence.DURABLE if durable else Persistence.EPHEMERAL)
    assert held.tier is (DurabilityTier.DURABLE if durable else DurabilityTier.INLINE)


def test_a_store_that_claims_to_be_durable_is(tmp_path: Path) -> None:
    with stored(tmp_path) as first:
        assert first.persistence is Persistence.DURABLE
        held = session(first)
        ids = [held.put(SMALL).id, held.put(LARGE).id]
        held.commit(ids)

    with stored(tmp_path) as second:
        assert [session(second).read(id) for id in ids] == [SMALL, LARGE]


def test_the_texts_of_the_errors_are_the_agreed_ones() -> None:
    failed = ManifestRecordFailed.of_intent("abc", ValueError("no"))

    assert str(AttachmentNotFound(id="abc")) == "attachment `abc` was not found"
    assert (
        str(AttachmentIoFailed.of(Path("/x/y"), OSError(28, "No space left on device")))
        == "attachment store I/O failed at /x/y: No space left on device"
    )
    assert (
        str(AttachmentMetaMissing(id="abc")) == "attachment store metadata is unavailable for `abc`"
    )
    assert str(ManifestRecordFailed("no")) == "attachment manifest write failed: no"
    assert failed.message == "failed to record attachment intent for `abc`: no"


# -- the manifest ------------------------------------------------------------------------------


def test_an_intent_is_recorded_once_and_keeps_its_time(kept: Kept) -> None:
    id = digest(SMALL)

    for at in (7, 9):
        kept.record_intent(intent("s", id, at=at), ref_of(SMALL))

    (found,) = kept.list_uncommitted(100)
    assert (found.intent_at_epoch_ms, found.canonical_uri) == (7, f"sha256:{id}")


def test_uncommitted_intents_are_listed_up_to_the_cutoff_oldest_first(kept: Kept) -> None:
    for name, at in (("c", 30), ("a", 10), ("d", 31), ("b", 20)):
        kept.record_intent(intent(name, digest(SMALL), at=at), ref_of(SMALL))

    assert [each.session_id for each in kept.list_uncommitted(30)] == ["a", "b", "c"]


def test_a_commit_stamps_the_rows_of_its_session_once(kept: Kept, ticks: Ticks) -> None:
    id = digest(SMALL)
    for name in ("s", "other"):
        kept.record_intent(intent(name, id), ref_of(SMALL))

    kept.commit_refs("s", [id])
    ticks.now += 5
    kept.commit_refs("s", [id])

    assert kept.references("s")[0].committed_at_epoch_ms == ticks.now - 5
    assert [each.session_id for each in kept.list_uncommitted(100)] == ["other"]


def test_a_commit_of_nothing_is_nothing_and_a_swept_row_does_not_come_back(kept: Kept) -> None:
    id = digest(SMALL)
    kept.record_intent(intent("s", id), ref_of(SMALL))
    kept.forget("s", id)

    assert list(kept.commit_refs("s", [])) == []
    assert list(kept.commit_refs("s", [id])) == []
    assert list(kept.references("s")) == []


def test_forgetting_takes_out_one_sessions_row_only(kept: Kept) -> None:
    id = digest(SMALL)
    for name in ("s", "other"):
        kept.record_intent(intent(name, id), ref_of(SMALL))

    kept.forget("s", id)

    assert list(kept.references("s", id)) == []
    assert len(kept.references("other", id)) == 1


def test_a_manifest_that_keeps_nothing_stays_empty() -> None:
    nothing = NoManifest()

    nothing.record_intent(intent("s", digest(SMALL)), ref_of(SMALL))

    assert list(nothing.commit_refs("s", [digest(SMALL)])) == []
    assert list(nothing.list_uncommitted(1 << 60)) == []
    assert list(nothing.references("s")) == []


# -- a session ---------------------------------------------------------------------------------


def test_a_session_finds_only_what_it_holds(kept: Kept) -> None:
    id = session(kept, "one").put(SMALL).id
    two = session(kept, "two")

    for attempt in (two.read, two.chunks, two.local, two.reference):
        with pytest.raises(AttachmentNotFound):
            attempt(id)

    two.put(SMALL)
    assert two.read(id) == SMALL


def test_deleting_drops_only_the_sessions_own_reference(kept: Kept) -> None:
    one, two = session(kept, "one"), session(kept, "two")
    id = one.put(LARGE).id
    two.put(LARGE)

    one.delete(id)

    with pytest.raises(AttachmentNotFound):
        one.read(id)
    assert two.read(id) == LARGE


def test_a_session_that_lets_go_of_everything_leaves_the_others_theirs(kept: Kept) -> None:
    one, two = session(kept, "one"), session(kept, "two")
    for data in (SMALL, LARGE):
        one.put(data)
        two.put(data)

    one.delete_all()

    assert one.references() == []
    assert [two.read(each.ref.id) for each in kept.references()] == [SMALL, LARGE]


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
def test_an_intent_that_cannot_be_recorded_leaves_no_bytes(
    kept: Kept, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(intent: Intent, ref: AttachmentRef, *, within: Transaction = None) -> None:
        raise ValueError("no manifest today")

    held = session(kept)
    with monkeypatch.context() as patch:
        patch.setattr(kept, "record_intent", failing)
        with pytest.raises(ManifestRecordFailed) as caught:
            held.put(data)

    id = digest(data)
    assert str(caught.value) == (
        "attachment manifest write failed: "
        f"failed to record attachment intent for `{id}`: no manifest today"
    )
    with pytest.raises(AttachmentNotFound):
        kept.chunks(id)
    assert list(kept.staged_files()) == []


def test_a_commit_of_what_is_not_held_is_refused_whole(kept: Kept) -> None:
    held = session(kept)
    id = held.put(SMALL).id
    foreign = session(kept, "other").put(LARGE).id

    with pytest.raises(AttachmentNotFound, match=foreign):
        held.commit([id, foreign])

    assert [each.committed_at_epoch_ms for each in held.references()] == [None]


def test_a_batch_is_there_when_it_is_committed_and_not_before(kept: Kept) -> None:
    held = session(kept)
    batch = held.batch()
    small = batch.add(SMALL, label="small")
    large = batch.add(LARGE, label="large")
    again = batch.add(SMALL, label="small")
    with pytest.raises(AttachmentNotFound):
        held.read(small.id)

    batch.commit()

    assert small == again
    assert [held.read(ref.id) for ref in (small, large)] == [SMALL, LARGE]
    assert all(each.committed_at_epoch_ms for each in held.references())
    assert len(held.references()) == 2


@pytest.mark.parametrize("name", ["", "x" * 129, "a\nb", "\0"])
def test_a_session_has_a_name_that_can_be_shown(kept: Kept, name: str) -> None:
    with pytest.raises(InvalidName):
        session(kept, name)


def test_threads_that_put_at_the_same_time_all_find_their_bytes(kept: Kept) -> None:
    def work(number: int) -> None:
        held = session(kept, f"s{number % 3}")
        for each in range(10):
            data = bytes([each]) * (70_000 if each % 3 == 0 else 50)
            ref = held.put(data)
            held.commit([ref.id], forced=False)
            assert held.read(ref.id) == data
        done.append(number)

    done: list[int] = []
    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(done) == list(range(6))


# -- collection --------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
def test_committed_references_live_and_what_was_let_go_is_reclaimed(
    kept: Kept, data: bytes
) -> None:
    held = session(kept)
    stays = held.put(b"stays").id
    goes = held.put(data).id
    held.commit([stays, goes])
    held.delete(goes)

    dry = collected(kept, dry_run=True)
    report = collected(kept)

    for each in (dry, report):
        assert (each.scanned_blob_count, each.reclaimed_count) == (2, 1)
        assert each.reclaimed_bytes == len(data)
    assert held.read(stays) == b"stays"
    with pytest.raises(AttachmentNotFound):
        kept.chunks(goes)


def test_an_intent_of_a_living_owner_never_dies_of_age(kept: Kept, ticks: Ticks) -> None:
    held = session(kept)
    id = held.put(LARGE).id
    ticks.now += 10**12

    report = collected(kept, EVERYTHING)

    assert report.reclaimed_count == 0
    assert held.read(id) == LARGE


def test_an_intent_of_a_dead_owner_dies_when_it_is_old(kept: Kept, ticks: Ticks) -> None:
    session(kept).put(LARGE)
    anchor = session(kept, "anchor")
    anchor.commit([anchor.put(SMALL).id])
    kept.close()
    patient = ReclaimPolicy(grace_period_ms=100)

    young = collected(kept, patient)
    ticks.now += 100
    old = collected(kept, patient)

    assert (young.reclaimed_count, old.reclaimed_count, old.swept_intent_count) == (0, 1, 1)
    assert list(session(kept).references()) == []


def test_an_intent_without_an_owner_has_its_age_only(kept: Kept, ticks: Ticks) -> None:
    kept.keep(kept.stage(SMALL))
    kept.record_intent(intent("s", digest(SMALL), at=ticks.now), ref_of(SMALL))
    ticks.now += 100

    young = collected(kept, ReclaimPolicy(grace_period_ms=101))
    old = collected(kept, EVERYTHING)

    assert (young.reclaimed_count, old.reclaimed_count) == (0, 1)


def test_an_empty_root_set_is_refused_unless_it_was_authorized(kept: Kept) -> None:
    held = session(kept)
    id = held.put(SMALL).id
    held.delete(id)

    with pytest.raises(ReclamationRefused, match="nobody holds any") as caught:
        collected(kept)

    assert isinstance(caught.value.report, ReclaimReport)
    assert caught.value.report.scanned_blob_count == 1
    assert kept.byte_len(id) == len(SMALL)
    assert collected(kept, EVERYTHING).reclaimed_count == 1


def test_with_nothing_stored_there_is_nothing_to_refuse(kept: Kept) -> None:
    assert collected(kept).scanned_blob_count == 0


def test_bytes_of_two_sessions_live_when_the_first_dies_before_its_commit(
    tmp_path: Path, ticks: Ticks
) -> None:
    with stored(tmp_path, ticks) as first, stored(tmp_path, ticks) as second:
        id = session(first, "one").put(LARGE).id
        survivor = session(second, "two")
        survivor.put(LARGE)
        first.close()
        survivor.commit([id])
        ticks.now += 10

        report = reclaim(second, policy=AT_ONCE)

        assert (report.reclaimed_count, report.swept_intent_count) == (0, 1)
        assert survivor.read(id) == LARGE
