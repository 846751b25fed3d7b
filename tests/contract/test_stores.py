"""What stores promise together, opened by their address: the same calls for every backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.attachments.builders import LARGE, SMALL, Ticks

from tallystick.attachments.port import AttachmentNotFound
from tallystick.attachments.session import SessionAttachments
from tallystick.client import Session
from tallystick.core.errors import SessionBusy, SessionNotFound, UsageError
from tallystick.model.scripted import ScriptedModel, ScriptedReply
from tallystick.runtime.runs.history import whole_records
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.stores import FileStores, MemoryStores, Stores, open_stores, stores_of

ADDRESSES: dict[str, Callable[[Path], str]] = {
    "path": lambda folder: str(folder / "data" / "ledger.db"),
    "memory": lambda folder: "memory:",
}


@pytest.fixture(params=sorted(ADDRESSES))
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    with open_stores(ADDRESSES[request.param](tmp_path)) as opened:
        yield opened


def test_nothing_is_made_before_it_is_needed(stores: Stores, tmp_path: Path) -> None:
    assert stores.ledger is stores.ledger
    assert stores.attachments is stores.attachments
    assert stores.owners is stores.attachments.owners
    assert stores.sessions is stores.sessions

    assert list(tmp_path.iterdir()) == []


def test_the_stores_of_one_address_work_together(stores: Stores) -> None:
    session = stores.sessions.new(variables={"a": "1"}).id
    held = SessionAttachments(stores.attachments, session_id="s")
    ids = [held.put(data).id for data in (SMALL, LARGE)]
    held.commit(ids)

    assert [held.read(id) for id in ids] == [SMALL, LARGE]
    assert stores.sessions.find("last") == session
    assert stores.sessions.history(session) == []
    assert list(stores.ledger.runs()) == []
    with stores.sessions.book.hold(session), pytest.raises(SessionBusy):
        stores.sessions.snapshot(session, "s")


def test_what_a_closed_one_only_intended_is_a_dead_owners(stores: Stores) -> None:
    owner = stores.attachments.owner() or ""
    SessionAttachments(stores.attachments, session_id="s").put(SMALL)

    stores.close()
    stores.close()

    assert stores.owners.proven_dead(owner)


def test_what_is_in_a_file_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with open_stores(path) as one:
        session = one.sessions.new().id
    with open_stores(str(path)) as two:
        assert two.sessions.find("last") == session
        assert isinstance(two, FileStores)


def test_what_is_in_memory_is_its_own(tmp_path: Path) -> None:
    with open_stores("memory:") as one, open_stores("memory:") as two:
        one.sessions.new()
        assert isinstance(one, MemoryStores)
        with pytest.raises(SessionNotFound):
            two.sessions.find("last")


@pytest.mark.parametrize("where", ["postgresql://me:secret@host/runs", "s3://bucket", "://"])
def test_an_address_of_another_kind_is_refused_without_its_password(where: str) -> None:
    with pytest.raises(UsageError, match="there is no store of this kind") as caught:
        open_stores(where)

    assert "secret" not in str(caught.value)


def test_the_clock_is_that_of_every_store(tmp_path: Path) -> None:
    ticks = Ticks(1_900_000_000_000)
    for where in ("memory:", str(tmp_path / "ledger.db")):
        with open_stores(where, clock=ticks) as stores:
            assert stores.sessions.new().created_at == stores.attachments.clock() == ticks.now


# -- runs in sessions of either kind -------------------------------------------------------------


def client(stores: Stores, sandbox: WasmSandbox, *sources: str) -> Session:
    """Return a client whose sessions are those of the stores."""
    replies = [ScriptedReply(text=f"```repl\n{source}\n```") for source in sources]
    of_files = {} if isinstance(stores, FileStores) else {"attachments": stores.attachments}
    made = Session(
        model=ScriptedModel(replies),
        ledger=stores.ledger,
        sandbox=sandbox,
        **of_files,  # type: ignore[arg-type]
    )
    if of_files:
        # Those of a ledger in a file are found beside it.
        made.engine._stores = stores
    return made


def test_runs_go_on_in_a_session_and_its_snapshots_bring_it_back(
    stores: Stores, sandbox: WasmSandbox
) -> None:
    sessions = stores.sessions
    session = sessions.new(variables={"region": "EU"}).id
    sources = ["x = [1]\nFINAL(context_variables['region'])", "x.append(2)\nFINAL(x)", "FINAL(x)"]
    with client(stores, sandbox, *sources) as opened:
        assert opened.run("one", session=session).answer == "EU"
        sessions.snapshot(session, "one")
        assert opened.run("two", session=session).answer == "[1,2]"
        sessions.restore(session, "one")
        last = opened.run("three", session=session)

        assert last.answer == "[1]"
        assert opened.replay(last.run).held
        assert [each.answer for each in sessions.history(session)] == ["EU", "[1,2]", "[1]"]
        assert len(whole_records(stores.ledger, last.run)) > 3
    kept = sessions.book.kept.needed_attachments(session)
    assert kept
    sessions.remove(session)
    assert [each.run for each in stores.ledger.runs()]
    held = SessionAttachments(stores.attachments, session_id=f"{session}/snapshots")
    for id in kept:
        with pytest.raises(AttachmentNotFound):
            held.read(id)


# -- beside a ledger that is open already --------------------------------------------------------


def test_the_stores_of_an_open_ledger_are_beside_it_and_leave_it_open(stores: Stores) -> None:
    session = stores.sessions.new().id
    held = SessionAttachments(stores.attachments, session_id="s")
    id = held.put(LARGE).id
    owner = stores.attachments.owner() or ""

    with stores_of(stores.ledger, attachments=stores.attachments) as beside:
        assert (beside.ledger, beside.attachments) == (stores.ledger, stores.attachments)
        assert type(beside) is type(stores)
        in_file = isinstance(beside, FileStores)
        assert beside.sessions.book.ids() == ((session,) if in_file else ())

    assert not stores.owners.proven_dead(owner)
    assert held.read(id) == LARGE
    assert list(stores.ledger.runs()) == []


def test_a_book_says_where_it_is_and_whether_it_is_there(stores: Stores, tmp_path: Path) -> None:
    book = stores.sessions.book

    in_file = isinstance(stores, FileStores)
    assert book.where == (str(tmp_path / "data" / "sessions.db") if in_file else "memory")
    assert book.exists is not in_file
    book.create()
    assert book.exists
