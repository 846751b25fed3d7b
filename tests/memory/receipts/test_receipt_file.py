"""Receipts that somebody else checks: with a copy of the memory or an export, and no secret."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.memory.memory_store import a_note, open_memory, quick_folder
from tests.memory.receipts.test_receipts_at_size import Letters

from tallystick.core.chain import GENESIS, Head
from tallystick.core.errors import UsageError
from tallystick.core.json_text import canonical
from tallystick.memory.exchange import export_notes
from tallystick.memory.memory import Memory
from tallystick.memory.recall.recall import Asking, recall, verify_recall
from tallystick.memory.receipts.keys import add_key, open_keys
from tallystick.memory.receipts.receipt import (
    HmacMismatch,
    Key,
    MemoryDiffers,
    NotErased,
    NotOnLog,
    QueryHashMismatch,
    RecallDiffers,
    RecallReceipt,
    ReceiptError,
    ReceiptUnknown,
    ReceiptUnreadable,
    RecordContentHashMismatch,
    SignatureMismatch,
    UnknownKey,
    receipt_bytes,
    sign,
)
from tallystick.memory.receipts.receipt_file import (
    CheckedReceipt,
    ReceiptFile,
    make_receipt_file,
    read_receipt_file,
    receipt_file_bytes,
    verify_receipt_file,
    verify_with_memory,
)
from tallystick.memory.receipts.receipts import Verified
from tallystick.memory.remember import remember_all
from tallystick.memory.store.records import ForgetStrategy, NotesRecalled
from tallystick.memory.store.vectors import embed_missing
from tallystick.settings.signing import PublicKey, SigningKey, open_signing_key, read_public_key
from tallystick.upkeep.memory import Memory as ForgettingMemory

QUERY = "when does the ferry leave?"
NOTES = ("the ferry leaves at nine", "the ferry was late in May", "bread is in the cellar")
WAYS = ("key", "head", "own head")


class Maker:
    """The machine where the memory is, with its keys; nothing else of it goes to the checker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {"XDG_CONFIG_HOME": str(folder / "config"), "HOME": str(folder)}
        self.memory = self.open()
        self.ids = [self.memory.remember(text).id for text in NOTES]
        self.signing = signing_key(folder / "config", folder)
        self.public = read_public_key(self.signing.public_path)

    def open(self) -> ForgettingMemory:
        return ForgettingMemory.open(
            "ann",
            owner=True,
            embedder=None,
            directory=self.folder / "memory",
            environ=self.environ,
        )

    def file(self, *, query: str | None = QUERY, signed: bool = True) -> ReceiptFile:
        made = self.memory.recall(QUERY)
        key = self.signing if signed else None
        return self.memory.receipt_file(made.receipt.read_id, query=query, key=key)

    def copied(self, to: Path) -> Path:
        """A copy of the memory, with nothing else from this machine."""
        self.memory.close()
        return Path(shutil.copy(self.memory.store.path, to / "copy.db"))

    def exported(self, to: Path) -> Path:
        path = to / "notes.jsonl"
        path.write_bytes(
            b"".join(export_notes(self.memory.store, reader=None, label="to the other"))
        )
        return path


def signing_key(config: Path, memory: Path) -> SigningKey:
    return open_signing_key(config / "tallystick", ledger=memory / "memory" / "ann.db")


@pytest.fixture
def maker() -> Iterator[Maker]:
    with quick_folder() as folder:
        made = Maker(folder)
        yield made
        made.memory.close()


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Another machine: nothing of the maker's environment, and no key of it."""
    with quick_folder() as folder:
        monkeypatch.setenv("HOME", str(folder))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        yield folder


def trust(way: str, public: PublicKey, head: Head) -> dict[str, PublicKey | Head]:
    return {"key": {"key": public}, "head": {"head": head}, "own head": {}}[way]  # type: ignore[return-value]


@pytest.mark.parametrize("way", WAYS)
def test_a_receipt_is_checked_elsewhere_with_a_copy_and_no_secret(
    maker: Maker, elsewhere: Path, way: str
) -> None:
    file = maker.file()
    maker.memory.remember("the ferry is red")
    head = maker.memory.store.head()
    copy = maker.copied(elsewhere)

    checked = verify_receipt_file(
        receipt_file_bytes(file),
        copy,
        **trust(way, maker.public, head),  # type: ignore[arg-type]
    )

    verified = checked.verified
    assert isinstance(verified, Verified)
    assert (verified.query, verified.ranking) == ("same", "same")
    assert [state for _, state in verified.notes] == ["held", "held"]
    assert checked.by == {"key": "public_key", "head": "head", "own head": "own_head"}[way]
    assert list(elsewhere.rglob("*.key*")) == []


def test_a_bare_receipt_is_checked_by_a_head_and_needs_no_file(
    maker: Maker, elsewhere: Path
) -> None:
    made = maker.memory.recall(QUERY)
    head = maker.memory.store.head()
    copy = maker.copied(elsewhere)

    checked = verify_receipt_file(receipt_bytes(made.receipt), copy, head=head, query=QUERY)

    verified = checked.verified
    assert isinstance(verified, Verified)
    # Who has no key of the query still makes the recall again with it.
    assert (verified.query, verified.ranking) == ("not_checked", "same")
    with pytest.raises(RecallDiffers):
        verify_receipt_file(receipt_bytes(made.receipt), copy, head=head, query="bread")


def test_an_export_and_the_public_key_check_what_the_hits_said(
    maker: Maker, elsewhere: Path
) -> None:
    file = maker.file()
    maker.memory.forget([maker.ids[1]])
    data = receipt_file_bytes(file)

    checked = verify_receipt_file(data, maker.exported(elsewhere), key=maker.public)

    verified = checked.verified
    assert isinstance(verified, Verified)
    assert dict(verified.notes) == {maker.ids[0]: "held", maker.ids[1]: "not_exported"}
    assert (verified.query, verified.ranking) == ("same", "not_recomputed")
    with pytest.raises(UsageError, match="it has no log"):
        verify_receipt_file(data, elsewhere / "notes.jsonl")


def test_an_export_with_another_text_is_refused(maker: Maker, elsewhere: Path) -> None:
    file = maker.file()
    lines = maker.exported(elsewhere).read_bytes().splitlines(keepends=True)
    changed = [line.replace(b"at nine", b"at ten") for line in lines[:-1]]
    import hashlib

    digest = hashlib.sha256(b"".join(changed)).hexdigest()
    end = canonical({"notes": len(changed) - 1, "sha256": digest}) + b"\n"
    (elsewhere / "notes.jsonl").write_bytes(b"".join((*changed, end)))

    with pytest.raises(RecordContentHashMismatch):
        verify_receipt_file(receipt_file_bytes(file), elsewhere / "notes.jsonl", key=maker.public)


def test_a_related_note_that_is_not_exported_leaves_the_other_checkable(
    maker: Maker, elsewhere: Path
) -> None:
    bound = maker.memory.remember("a ferry ticket", related_to=(maker.ids[2],)).id
    file = maker.file()
    maker.memory.forget([maker.ids[2]])

    checked = verify_receipt_file(
        receipt_file_bytes(file), maker.exported(elsewhere), key=maker.public
    )

    assert dict(checked.verified.notes)[bound] == "held"


# -- forged, cut, reordered, signed again ------------------------------------------------------


def _forged(receipt: RecallReceipt) -> RecallReceipt:
    best = receipt.derived_from[0]
    other = msgspec.structs.replace(best, score=best.score + 1)
    return msgspec.structs.replace(receipt, derived_from=(other, *receipt.derived_from[1:]))


def _cut(receipt: RecallReceipt) -> RecallReceipt:
    return msgspec.structs.replace(receipt, derived_from=receipt.derived_from[:1])


def _reordered(receipt: RecallReceipt) -> RecallReceipt:
    return msgspec.structs.replace(receipt, derived_from=receipt.derived_from[::-1])


CHANGES = {"forged": _forged, "cut": _cut, "reordered": _reordered}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_receipt_that_was_changed_is_refused_even_if_its_key_signed_it_again(
    maker: Maker, elsewhere: Path, change: str, way: str
) -> None:
    file = maker.file()
    head = maker.memory.store.head()
    receipt = file.read()
    assert isinstance(receipt, RecallReceipt)
    # The strongest forger: one who has the secret key of the maker's receipts.
    changed = sign(CHANGES[change](receipt), maker.memory.keys.current)
    data = canonical(msgspec.structs.replace(file, receipt=receipt_bytes(changed).decode()))
    copy = maker.copied(elsewhere)

    refused = SignatureMismatch if way == "key" else NotOnLog
    with pytest.raises(refused):
        verify_receipt_file(data, copy, **trust(way, maker.public, head))  # type: ignore[arg-type]


def test_a_file_that_another_key_signed_is_refused(maker: Maker, elsewhere: Path) -> None:
    other = signing_key(elsewhere / "config", elsewhere)
    read_id = maker.memory.recall(QUERY).receipt.read_id
    forged = maker.memory.receipt_file(read_id, key=other)
    named = msgspec.structs.replace(forged, key_id=maker.public.id)
    copy = maker.copied(elsewhere)

    for file in (forged, named):
        with pytest.raises(SignatureMismatch):
            verify_receipt_file(receipt_file_bytes(file), copy, key=maker.public)


def test_a_memory_that_was_written_again_with_the_forged_receipt_is_refused(
    maker: Maker, elsewhere: Path
) -> None:
    """Who rewrites the log can make all its hashes hold, and not the head or the signature."""
    file = maker.file()
    head = maker.memory.store.head()
    receipt = file.read()
    assert isinstance(receipt, RecallReceipt)
    with Memory.open("ann", owner=True, embedder=None, directory=elsewhere) as forger:
        for text in (*NOTES[:2], "bread is in the attic"):
            forger.remember(text)
        fresh = forger.recall(QUERY).receipt
        other = forger.receipt_file(fresh.read_id)
    path = elsewhere / "ann.db"
    renamed = msgspec.structs.replace(other, store=file.store)

    assert verify_receipt_file(receipt_file_bytes(other), path).by == "own_head"
    for data in (receipt_file_bytes(other), receipt_bytes(fresh)):
        with pytest.raises(MemoryDiffers):
            verify_receipt_file(data, path, head=head)
    for data in (receipt_file_bytes(file), receipt_file_bytes(renamed)):
        with pytest.raises((ReceiptUnknown, SignatureMismatch)):
            verify_receipt_file(data, path, key=maker.public)


def test_one_changed_byte_of_the_copy_is_found(maker: Maker, elsewhere: Path) -> None:
    file = maker.file()
    copy = maker.copied(elsewhere)
    with sqlite3.connect(copy) as db:
        # A note that is no hit: it still is part of the log that the head binds.
        db.execute(
            "UPDATE log SET body = CAST(replace(body, 'cellar', 'garden') AS BLOB) WHERE seq = 3"
        )
    db.close()

    with pytest.raises(MemoryDiffers, match="entry 3"):
        verify_receipt_file(receipt_file_bytes(file), copy, key=maker.public)


def test_a_copy_from_before_the_receipt_and_a_head_from_before_it_do_not_do(
    maker: Maker, elsewhere: Path
) -> None:
    before = maker.memory.store.head()
    early = maker.copied(elsewhere).rename(elsewhere / "early.db")
    maker.memory = maker.open()
    file = maker.file()
    copy = maker.copied(elsewhere)
    data = receipt_file_bytes(file)

    with pytest.raises(NotOnLog, match="taken before the receipt"):
        verify_receipt_file(data, early, key=maker.public)
    with pytest.raises(NotOnLog, match="ask for a later one"):
        verify_receipt_file(data, copy, head=before)
    with pytest.raises(MemoryDiffers):
        verify_receipt_file(data, copy, head=Head(count=before.count, hash=GENESIS.hex()))


@pytest.mark.parametrize("field", ReceiptFile.__struct_fields__)
def test_no_field_of_a_signed_file_can_be_changed(
    maker: Maker, elsewhere: Path, field: str
) -> None:
    file = maker.file()
    value = getattr(file, field)
    if isinstance(value, int):
        changed: object = value + 1
    else:
        changed = ("1" if value[0] != "1" else "2") + value[1:]
    data = canonical({**msgspec.structs.asdict(file), field: changed})
    copy = maker.copied(elsewhere)

    with pytest.raises(ReceiptError):
        verify_receipt_file(data, copy, key=maker.public)


# -- the query ---------------------------------------------------------------------------------


def test_the_query_is_in_a_file_only_if_its_maker_said_so(maker: Maker, elsewhere: Path) -> None:
    without = maker.file(query=None)
    copy = maker.copied(elsewhere)
    data = receipt_file_bytes(without)

    assert b"ferry leave" not in data
    silent = verify_receipt_file(data, copy, key=maker.public).verified
    told = verify_receipt_file(data, copy, key=maker.public, query=QUERY).verified
    assert isinstance(silent, Verified)
    assert isinstance(told, Verified)
    assert (silent.query, silent.ranking) == ("not_given", "not_recomputed")
    assert (told.query, told.ranking) == ("not_checked", "same")


def test_the_key_of_one_query_tells_nothing_about_another(maker: Maker) -> None:
    one, other = maker.file(), maker.file()
    assert one.query_key != other.query_key
    with pytest.raises(QueryHashMismatch):
        maker.memory.receipt_file(maker.memory.recall("bread").receipt.read_id, query=QUERY)


def test_a_receipt_of_an_earlier_version_is_checked_by_its_owner_and_given_away_without_query(
    maker: Maker, elsewhere: Path
) -> None:
    receipt = _earlier(maker.memory, QUERY)
    key = maker.signing

    owned = maker.memory.verify(receipt, query=QUERY)
    assert (owned.query, owned.ranking) == ("same", "same")
    with pytest.raises(QueryHashMismatch):
        maker.memory.verify(receipt, query="bread")
    with pytest.raises(UsageError, match="earlier version"):
        maker.memory.receipt_file(receipt.read_id, query=QUERY, key=key)
    file = maker.memory.receipt_file(receipt.read_id, key=key)
    checked = verify_receipt_file(
        receipt_file_bytes(file), maker.copied(elsewhere), key=maker.public, query=QUERY
    )
    assert isinstance(checked.verified, Verified)
    assert (checked.verified.query, checked.verified.ranking) == ("not_checked", "same")


def _earlier(memory: Memory, query: str) -> RecallReceipt:
    """Append the receipt of a recall as earlier versions did: one key for all queries."""
    import hmac

    from tallystick.memory.receipts.receipts import chain_end

    def parts(*given: bytes) -> bytes:
        return b"".join(len(each).to_bytes(8, "big") + each for each in given)

    made = memory.recall(query).receipt
    key = memory.keys.current
    of_queries = hmac.digest(key.secret, b"tallystick.memory.query.v1", "sha256")
    with memory.store.writing() as writer:
        link, id = chain_end(writer.db), writer.new_id()
        digest = hmac.digest(of_queries, parts(id.encode(), query.encode()), "sha256").hex()
        old = sign(
            msgspec.structs.replace(
                made, read_id=id, query_hash=digest, number=link.count, prev_hash=link.hash
            ),
            key,
        )
        ids = tuple(hit.id for hit in old.derived_from)
        record = NotesRecalled(ids=ids, at=writer.at, receipt=receipt_bytes(old).decode())
        writer.append(record)
    return old


# -- forgetting, keys, files -------------------------------------------------------------------


def test_a_receipt_of_a_forgetting_is_checked_elsewhere_too(maker: Maker, elsewhere: Path) -> None:
    early = maker.copied(elsewhere).rename(elsewhere / "early.db")
    maker.memory = maker.open()
    done = maker.memory.forget([maker.ids[2]], strategy=ForgetStrategy.HARD_DELETE)
    assert done.receipt is not None
    file = maker.memory.receipt_file(done.receipt.forget_id, key=maker.signing)
    data = receipt_file_bytes(file)
    export = maker.exported(elsewhere)
    copy = maker.copied(elsewhere)

    checked = verify_receipt_file(data, copy, key=maker.public)

    assert checked.verified.notes == ((maker.ids[2], "erased"),)
    with pytest.raises((NotErased, NotOnLog)):
        verify_receipt_file(data, early, key=maker.public)
    with pytest.raises(UsageError, match="against a copy"):
        verify_receipt_file(data, export, key=maker.public)
    with pytest.raises(UsageError, match="has no query"):
        verify_receipt_file(data, copy, key=maker.public, query=QUERY)


def test_only_a_receipt_of_ones_own_is_signed(maker: Maker) -> None:
    receipt = maker.memory.recall(QUERY).receipt
    stranger = Key(id=receipt.hmac_key_id, secret=b"s" * 32)
    for changed, refused in (
        (_forged(receipt), HmacMismatch),
        (sign(_forged(receipt), stranger), HmacMismatch),
        (sign(_forged(receipt), maker.memory.keys.current), NotOnLog),
    ):
        with pytest.raises(refused):
            make_receipt_file(
                maker.memory.store, changed, keys=maker.memory.keys.by_id, key=maker.signing
            )


def test_a_receipt_is_signed_with_the_users_key_and_checked_by_its_file(
    maker: Maker, elsewhere: Path
) -> None:
    read_id = maker.memory.recall(QUERY).receipt.read_id
    file = maker.memory.receipt_file(read_id, sign=True)
    copy = maker.copied(elsewhere)

    checked = verify_receipt_file(
        receipt_file_bytes(file), copy, key=maker.signing.public_path, query=QUERY
    )

    assert (file.key_id, checked.by) == (maker.signing.id, "public_key")
    private = maker.signing.public_path.with_name("signing.key")
    with pytest.raises(UsageError, match="private key"):
        verify_receipt_file(receipt_file_bytes(file), copy, key=private)


def test_a_receipt_of_an_older_key_is_given_away_as_well(maker: Maker, elsewhere: Path) -> None:
    read_id = maker.memory.recall(QUERY).receipt.read_id
    config = maker.folder / "config" / "tallystick"
    assert add_key(config).current.id != maker.memory.keys.current.id
    maker.memory.close()
    maker.memory = maker.open()

    file = maker.memory.receipt_file(read_id, query=QUERY, key=maker.signing)

    checked = verify_receipt_file(
        receipt_file_bytes(file), maker.copied(elsewhere), key=maker.public
    )
    assert isinstance(checked.verified, Verified)
    assert checked.verified.query == "same"


def test_the_checkers_own_key_does_not_check_it(maker: Maker, elsewhere: Path) -> None:
    receipt = maker.memory.recall(QUERY).receipt
    keys = open_keys(elsewhere / "config" / "tallystick")
    with pytest.raises(UnknownKey, match="--key"):
        verify_recall(maker.memory.store, receipt, keys=keys.by_id)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda fields: {**fields, "format": "tallystick-receipt@2"}, "this version reads"),
        (lambda fields: {**fields, "format": "tallystick-receipt@2", "x": 1}, "this version reads"),
        (lambda fields: {**fields, "count": 0}, "a place of 0"),
        (lambda fields: {**fields, "hash": "0"}, "64 hexadecimal"),
        (lambda fields: {**fields, "at": "yesterday"}, "its time"),
        (lambda fields: {**fields, "query_key": None}, "only one of the query"),
        (lambda fields: {**fields, "query_key": "z"}, "query_key"),
        (lambda fields: {**fields, "signature": "unsigned"}, "a key without"),
        (lambda fields: {**fields, "key_id": "z"}, "key_id"),
        (lambda fields: {**fields, "signature": "z"}, "128"),
        (lambda fields: {**fields, "more": 1}, "more"),
        (lambda fields: {"format": 3}, "not a receipt"),
    ],
)
def test_what_is_no_file_of_a_receipt_is_refused_by_name(
    maker: Maker, change: Callable[[dict[str, object]], dict[str, object]], said: str
) -> None:
    fields = change(msgspec.structs.asdict(maker.file()))
    with pytest.raises(ReceiptUnreadable, match=said):
        read_receipt_file(canonical(fields))


def test_a_file_has_one_spelling(maker: Maker) -> None:
    data = receipt_file_bytes(maker.file())
    assert read_receipt_file(data) == read_receipt_file(data + b"\n")
    with pytest.raises(ReceiptUnreadable, match="canonical"):
        read_receipt_file(b" " + data)


def test_what_is_neither_memory_nor_export_is_wrong_usage(maker: Maker, elsewhere: Path) -> None:
    data = receipt_file_bytes(maker.file())
    (elsewhere / "it").write_bytes(b"notes")
    with pytest.raises(UsageError, match="neither a memory nor an export"):
        verify_receipt_file(data, elsewhere / "it", key=maker.public)
    with pytest.raises(UsageError, match="No such file"):
        verify_receipt_file(data, elsewhere / "nosuch", key=maker.public)


# -- recalls by meaning ------------------------------------------------------------------------


class Nearly(Letters):
    """The same model on another processor: its numbers differ by `off`."""

    def __init__(self, off: float) -> None:
        self.off = off

    def _word(self, word: str) -> list[float]:
        return [value + self.off * (-1) ** at for at, value in enumerate(super()._word(word))]


class Other(Letters):
    digest = "f" * 64


@pytest.mark.parametrize(
    ("embedder", "ranking", "why"),
    [
        (Letters(), "same", ""),
        (Nearly(3e-5), "close", ""),
        (Nearly(0.2), RecallDiffers, ""),
        (Other(), "not_recomputed", "another model"),
        (None, "not_recomputed", "not here"),
    ],
)
def test_a_recall_by_meaning_is_made_again_with_the_same_model_or_not_at_all(
    elsewhere: Path, embedder: Letters | None, ranking: str | type[Exception], why: str
) -> None:
    with open_memory(elsewhere) as memory:
        remember_all(memory, [a_note(text) for text in NOTES])
        embed_missing(memory, Letters(), dimensions=Letters.dimensions)
        key = Key(id="k1", secret=b"s" * 32)
        asking = Asking(agent_id="ada", strategy="hybrid")
        made = recall(memory, "ferry in May", asking, key=key, embedder=Letters())
        file = make_receipt_file(
            memory, made.receipt, keys={"k1": key.secret}, query="ferry in May"
        )

        def check() -> CheckedReceipt:
            return verify_with_memory(file, memory, head=memory.head(), embedder=embedder)

        if not isinstance(ranking, str):
            with pytest.raises(ranking):
                check()
            return
        checked = check()

    assert isinstance(checked.verified, Verified)
    assert (checked.verified.ranking, checked.verified.query) == (ranking, "same")
    assert why in checked.why_not_ranked
    assert bool(checked.why_not_ranked) == bool(why)
