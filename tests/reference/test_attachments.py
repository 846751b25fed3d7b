"""The reference vectors of attachments, value for value, over every store; and their rules."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tallystick.attachments.memory import MemoryAttachments, NoManifest
from tallystick.attachments.port import (
    AttachmentIoFailed,
    AttachmentMetaMissing,
    AttachmentNotFound,
    DurabilityTier,
    Intent,
    Manifest,
    ManifestRecordFailed,
    Persistence,
    Transaction,
    check_storage_id,
)
from tallystick.attachments.session import SessionAttachments
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.core.errors import InvalidName
from tallystick.core.records import AttachmentRef
from tallystick.ledger.sqlite import SqliteLedger

Kept = MemoryAttachments | SqliteAttachments
ID = "a" * 64
REF = AttachmentRef(id=ID, media_type="text/plain", byte_len=1)


class Ticks:
    def __init__(self) -> None:
        self.now = 1_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def ticks() -> Ticks:
    return Ticks()


@pytest.fixture(params=["memory", "sqlite"])
def kept(request: pytest.FixtureRequest, tmp_path: Path, ticks: Ticks) -> Iterator[Kept]:
    if request.param == "memory":
        yield MemoryAttachments(clock=ticks)
        return
    with (
        SqliteLedger(tmp_path / "ledger.db") as ledger,
        SqliteAttachments(ledger.file, clock=ticks) as opened,
    ):
        yield opened


def held_by(kept: Kept, name: str = "s") -> SessionAttachments:
    return SessionAttachments(kept, session_id=name)


def intent(name: str, *, at: int, id: str = ID) -> Intent:
    return Intent(session_id=name, attachment_id=id, intent_at_epoch_ms=at)


# -- vectors -----------------------------------------------------------------------------------


def test_vector_13_the_same_bytes_put_twice_are_one_attachment(kept: Kept) -> None:
    held = held_by(kept)
    pixel = bytes([1, 2, 3])

    first, second = (
        held.put(pixel, media_type="image/png", width=1, height=1, label="pixel") for _ in range(2)
    )

    assert first.id == second.id
    assert first.byte_len == 3
    assert (first.media_type, first.width, first.height, first.label) == (
        "image/png", 1, 1, "pixel",
    )  # fmt: skip
    assert held.read(first.id) == pixel
    assert len(kept.references()) == 1


def test_vector_14_an_id_is_the_sha_256_in_lowercase_hex(kept: Kept) -> None:
    data = bytes([4, 5, 6, 7])

    ref = held_by(kept).put(data)

    assert ref.id == "c6d44cf418f610e3fe9e1d9294ff43def81c6cdcad6cbb1820cff48d3aa4355d"
    assert ref.id == hashlib.sha256(data).hexdigest()
    assert ref.byte_len == 4


# -- the store ---------------------------------------------------------------------------------


def test_a_reference_says_these_things_and_the_declared_type_beside_them() -> None:
    fields = AttachmentRef.__struct_fields__

    assert fields == ("id", "media_type", "byte_len", "width", "height", "label", "declared")


def test_an_unknown_id_is_not_found(kept: Kept) -> None:
    with pytest.raises(AttachmentNotFound) as caught:
        held_by(kept).read(ID)

    assert caught.value.id == ID
    assert str(caught.value) == f"attachment `{ID}` was not found"


def test_the_texts_of_the_errors_are_these_to_the_letter() -> None:
    failed = ManifestRecordFailed.of_intent("abc", ValueError("disk gone"))

    assert str(AttachmentNotFound(id="abc")) == "attachment `abc` was not found"
    assert (
        str(AttachmentIoFailed(path="/store/ab/abc", source="No space left on device"))
        == "attachment store I/O failed at /store/ab/abc: No space left on device"
    )
    assert (
        str(AttachmentMetaMissing(id="abc")) == "attachment store metadata is unavailable for `abc`"
    )
    assert str(ManifestRecordFailed("why")) == "attachment manifest write failed: why"
    assert failed.message == "failed to record attachment intent for `abc`: disk gone"
    assert str(failed) == (
        "attachment manifest write failed: failed to record attachment intent for `abc`: disk gone"
    )


def test_a_store_is_ephemeral_or_durable_and_a_session_says_what_its_store_is(kept: Kept) -> None:
    held = held_by(kept)

    assert [each.value for each in Persistence] == ["ephemeral", "durable"]
    assert Persistence.EPHEMERAL.tier is DurabilityTier.INLINE
    assert Persistence.DURABLE.tier is DurabilityTier.DURABLE
    assert (held.persistence, held.tier) == (kept.persistence, kept.persistence.tier)


@pytest.mark.parametrize("id", ["a", "~", "a b", "...", ".a", "x" * 128, ID])
def test_an_id_is_1_to_128_printable_ascii_characters(id: str) -> None:
    assert check_storage_id(id) == id


@pytest.mark.parametrize(
    "id", ["", "x" * 129, ".", "..", "a/b", "/", "a\\b", "\x1f", "\x7f", "\xe9", "a\0", "a\n"]
)
def test_an_id_is_no_path_and_no_control_character(id: str) -> None:
    with pytest.raises(InvalidName):
        check_storage_id(id)


# -- the manifest ------------------------------------------------------------------------------


def test_a_put_records_its_intent_before_its_bytes(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = []
    record, keep = kept.record_intent, kept.keep

    def recording(intent: Intent, ref: AttachmentRef, *, within: Transaction = None) -> None:
        order.append(("intent", intent.attachment_id, intent.canonical_uri))
        record(intent, ref, within=within)

    def keeping(staged: object, *, within: Transaction = None) -> None:
        order.append(("bytes", "", ""))
        keep(staged, within=within)  # type: ignore[arg-type]

    monkeypatch.setattr(kept, "record_intent", recording)
    monkeypatch.setattr(kept, "keep", keeping)
    id = held_by(kept).put(b"bytes").id

    assert order == [("intent", id, f"sha256:{id}"), ("bytes", "", "")]


def test_without_an_intent_there_are_no_bytes_and_the_error_names_the_id(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(intent: Intent, ref: AttachmentRef, *, within: Transaction = None) -> None:
        raise ValueError("no")

    id = hashlib.sha256(b"bytes").hexdigest()
    with monkeypatch.context() as patch:
        patch.setattr(kept, "record_intent", failing)
        with pytest.raises(ManifestRecordFailed) as caught:
            held_by(kept).put(b"bytes")

    assert str(caught.value) == (
        f"attachment manifest write failed: failed to record attachment intent for `{id}`: no"
    )
    with pytest.raises(AttachmentNotFound):
        kept.chunks(id)


def test_an_intent_that_is_there_is_left_as_it_is(kept: Kept) -> None:
    for at in (5, 9):
        kept.record_intent(intent("s", at=at), REF)

    assert [each.intent_at_epoch_ms for each in kept.list_uncommitted(100)] == [5]


def test_a_commit_stamps_what_is_unset_and_only_its_sessions(kept: Kept, ticks: Ticks) -> None:
    for name in ("s", "other"):
        kept.record_intent(intent(name, at=5), REF)

    kept.commit_refs("s", [ID])
    ticks.now = 2_000
    kept.commit_refs("s", [ID])

    assert kept.references("s")[0].committed_at_epoch_ms == 1_000
    assert kept.references("other")[0].committed_at_epoch_ms is None


def test_a_commit_of_an_empty_list_does_nothing(kept: Kept) -> None:
    kept.record_intent(intent("s", at=5), REF)

    assert list(kept.commit_refs("s", [])) == []
    assert len(kept.list_uncommitted(5)) == 1


def test_a_commit_never_brings_a_swept_row_back(kept: Kept) -> None:
    kept.record_intent(intent("s", at=5), REF)
    kept.forget("s", ID)

    kept.commit_refs("s", [ID])

    assert list(kept.references()) == []


def test_what_is_uncommitted_is_listed_up_to_the_cutoff_oldest_first(kept: Kept) -> None:
    for name, at in (("late", 31), ("third", 30), ("first", 10), ("second", 20), ("done", 5)):
        kept.record_intent(intent(name, at=at), REF)
    kept.commit_refs("done", [ID])

    listed = kept.list_uncommitted(30)

    assert [each.session_id for each in listed] == ["first", "second", "third"]


def test_a_manifest_that_keeps_nothing_stays_empty() -> None:
    nothing: Manifest = NoManifest()

    nothing.record_intent(intent("s", at=5), REF)
    nothing.commit_refs("s", [ID])
    nothing.forget("s", ID)

    assert list(nothing.list_uncommitted(1 << 60)) == []
    assert list(nothing.references()) == []


def test_a_read_is_not_found_unless_the_session_itself_holds_a_reference(kept: Kept) -> None:
    id = held_by(kept, "one").put(b"bytes").id

    with pytest.raises(AttachmentNotFound):
        held_by(kept, "two").read(id)

    assert held_by(kept, "one").read(id) == b"bytes"


def test_two_sessions_with_the_same_bytes_have_a_row_each(kept: Kept) -> None:
    """The upstream mistake: a second intent that was ignored, and a commit that matched no row."""
    one, two = held_by(kept, "one"), held_by(kept, "two")
    id = one.put(b"bytes").id
    two.put(b"bytes")

    two.commit([id])
    one.delete(id)

    assert two.read(id) == b"bytes"
    assert [each.intent.session_id for each in kept.references()] == ["two"]
    assert kept.references()[0].committed_at_epoch_ms is not None
    assert list(kept.list_uncommitted(1 << 60)) == []
