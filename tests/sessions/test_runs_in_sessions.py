"""Runs in sessions: each goes on with what the last one left, and each holds by itself."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.attachments.builders import EVERYTHING

from tallystick.attachments.collect import reclaim
from tallystick.attachments.session import SessionAttachments, snapshots_holder
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.client import Session
from tallystick.core.budget.amount import BudgetExhausted
from tallystick.core.charge import RunLimits
from tallystick.core.errors import (
    SessionBusy,
    SessionExpired,
    SessionNotFound,
    SessionNotKept,
    SnapshotMismatch,
    StoreError,
    UsageError,
)
from tallystick.core.machine.prompt import direct, opening
from tallystick.core.records import Record, RunEnded, RunStarted, SessionGiven
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.model.scripted import ScriptedModel, ScriptedReply
from tallystick.runtime.calls.functions import host_function
from tallystick.runtime.context.inputs import given_text
from tallystick.runtime.runs.history import whole_records
from tallystick.runtime.runs.result import Run
from tallystick.sandbox.wasm import namespace
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.sessions import surroundings as session_runs
from tallystick.sessions.file import SessionFile, SqliteRows, book_in
from tallystick.sessions.rows import DURATION_MS, SessionInfo
from tallystick.sessions.sessions import EarlierRun, Sessions, summary_of
from tallystick.sessions.snapshots import SessionImages
from tallystick.sessions.surroundings import SessionLease
from tallystick.steps.decorator import step
from tallystick.testing.models import ModelDouble, block
from tallystick.upkeep.transfer import (
    export_run_with_attachments,
    import_run_with_attachments,
    remove_run_with_attachments,
)

pytestmark = pytest.mark.slow


def in_turn(*sources: str) -> ModelDouble:
    """A model that writes one of these programs after the other, over all runs."""
    return ModelDouble([block(each) for each in sources])


@dataclass
class World:
    """A folder with a ledger, and sessions beside it, used by one client after another."""

    folder: Path
    sandbox: WasmSandbox
    now: int = 0
    clients: list[Session] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return self.folder / "ledger.db"

    def client(self, *sources: str, **more: object) -> Session:
        client = Session(
            model=in_turn(*sources),
            ledger=SqliteLedger(self.path),
            sandbox=self.sandbox,
            **more,  # type: ignore[arg-type]
        )
        self.clients.append(client)
        return client

    def close(self) -> None:
        for each in self.clients:
            each.close()
            assert isinstance(each.ledger, SqliteLedger)
            each.ledger.close()

    def run(self, session: str, *sources: str, goal: str = "what is it?", **more: object) -> Run:
        with self.client(*sources) as client:
            return client.run(goal, session=session, **more)  # type: ignore[arg-type]

    def sessions(self) -> Sessions:
        return self.client().sessions

    def new(self, **more: object) -> str:
        return self.sessions().new(**more).id  # type: ignore[arg-type]

    def info(self, session: str) -> SessionInfo:
        return self.sessions().get(session)

    def records(self, run: str) -> Sequence[Record]:
        return whole_records(SqliteLedger(self.path), run)

    def started(self, run: str) -> RunStarted:
        started = self.records(run)[0]
        assert isinstance(started, RunStarted)
        return started

    def given(self, run: str) -> SessionGiven:
        given = self.started(run).session
        assert given is not None
        return given

    def holds(self, run: str) -> None:
        report = self.client().replay(run)
        assert report.held, report.divergence


# Where nothing waits for a disk, if there is such a place: what is tested here is not the disk.
QUICK = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@pytest.fixture
def world(sandbox: WasmSandbox) -> Iterator[World]:
    with tempfile.TemporaryDirectory(dir=QUICK) as folder:
        made = World(folder=Path(folder), sandbox=sandbox)
        yield made
        made.close()


def gone_by(monkeypatch: pytest.MonkeyPatch, ms: int) -> None:
    """Let time pass for every book that is opened from here on."""
    from tallystick.sessions import file as session_file
    from tallystick.storage.clock import now_ms

    monkeypatch.setattr(
        session_file,
        "book_in",
        lambda path, *, clock: book_in(path, clock=lambda: now_ms() + ms),
    )


# -- going on ----------------------------------------------------------------------------------


def test_the_next_run_finds_the_variables_of_the_last(world: World) -> None:
    session = world.new()
    first = world.run(session, "import random\nx = [40]\nprint(x)", "x.append(1)\nFINAL(sum(x))")

    second = world.run(session, "def f(): return x + [random.random() < 2]\nFINAL(sum(f()))")
    third = world.run(session, "FINAL([f.__name__, len(x)])")

    assert [each.answer for each in (first, second, third)] == ["41", "42", '["f",2]']
    assert world.given(first.run) == SessionGiven(session=session)
    assert world.given(second.run).run == first.run
    for each in (first, second, third):
        world.holds(each.run)
    assert world.info(session).state == "ready"
    assert world.info(session).left.names == "random: module, x: list, f: function"


def test_a_run_of_its_own_finds_nothing_and_leaves_nothing(world: World) -> None:
    session = world.new()
    world.run(session, "x = 1\nFINAL(x)")

    with world.client("FINAL('x' in dir())") as client:
        run = client.run("is it there?")

    assert run.answer == "false"
    assert world.started(run.run).session is None
    assert world.started(run.run).values == {}


@pytest.mark.slow
def test_what_a_program_was_stopped_in_is_not_kept(world: World) -> None:
    session = world.new()
    world.run(session, "x = 1\nFINAL(x)")

    world.run(session, "x = 2\nraise ValueError(x)", "FINAL(0)")
    world.run(session, "x += 10\nfor n in range(10**9): pass", limits=RunLimits(wall_ms=900))

    assert world.run(session, "FINAL(x)").answer == "2"


def test_a_run_without_programs_leaves_the_session_as_it_is(world: World) -> None:
    session = world.new()
    world.run(session, "x = 1\nFINAL(x)")
    before = world.info(session).left

    with world.client() as client:
        client.use(ScriptedModel([ScriptedReply(text="blue")]))
        run = client.run("which?", inputs=[given_text("blue")], strategy="direct", session=session)

    assert run.answer == "blue"
    assert world.info(session).left == before
    world.holds(run.run)


def test_a_fork_begins_as_its_run_did_and_leaves_the_session_alone(world: World) -> None:
    session = world.new()
    world.run(session, "x = 1\nFINAL(x)")
    run = world.run(session, "x += 1\nprint(x)", "FINAL(x)")
    world.run(session, "x = 'another'\nFINAL(x)")

    with world.client("FINAL(x * 100)") as client:
        fork = client.fork(run.run, turn=1)

    assert fork.answer == "200"
    assert world.run(session, "FINAL(x)").answer == "another"
    world.holds(fork.run)


def test_a_run_that_is_gone_on_with_leaves_what_it_came_to(world: World) -> None:
    session = world.new()
    cut = world.run(session, "x = 1\nprint(x)", limits=RunLimits(turns=1))
    assert cut.stop == "max_turns"

    with world.client("x = 1\nprint(x)", "x += 1\nprint(x)", "FINAL(x)") as client:
        ended = client.resume(cut.run, limits=RunLimits(turns=9))

    assert ended.answer == "2"
    assert world.run(session, "FINAL(x)").answer == "2"
    world.holds(cut.run)


def test_a_run_that_was_overtaken_is_gone_on_with_and_leaves_nothing(world: World) -> None:
    session = world.new()
    cut = world.run(session, "x = 1\nprint(x)", limits=RunLimits(turns=1))
    world.run(session, "x = 'newer'\nFINAL(x)")

    with world.client("x = 1\nprint(x)", "FINAL(x)") as client:
        ended = client.resume(cut.run, limits=RunLimits(turns=9))

    assert ended.answer == "1"
    assert ended.session_lost
    assert [each.lost for each in world.sessions().history(session)] == [True, False]
    assert world.run(session, "FINAL(x)").answer == "newer"


def test_a_run_goes_on_elsewhere_without_its_session(world: World, tmp_path: Path) -> None:
    session = world.new()
    world.run(session, "x = 20\nFINAL(x)")
    run = world.run(session, "y = x + 1\nprint(y)", limits=RunLimits(turns=1))
    file = tmp_path / "run.tally"
    with (
        SqliteLedger(world.path) as ledger,
        SqliteAttachments(ledger.file) as attachments,
        file.open("wb") as out,
    ):
        export_run_with_attachments(ledger, attachments, run.run, out, move=True)
    other = World(folder=tmp_path / "other", sandbox=world.sandbox)
    with (
        SqliteLedger(other.path) as ledger,
        SqliteAttachments(ledger.file) as attachments,
        file.open("rb") as source,
    ):
        import_run_with_attachments(ledger, attachments, source)

    other.holds(run.run)
    with other.client("y = x + 1\nprint(y)", "FINAL(x + y)") as client:
        assert client.resume(run.run, limits=RunLimits(turns=9)).answer == "41"
    assert other.sessions().list() == []


def test_steps_that_run_again_are_served_what_their_runs_left(world: World) -> None:
    session = world.new()
    client = world.client("x = 1\nFINAL(x)", "x += 1\nFINAL(x)")

    @step(name="plan")
    def plan() -> list[Run]:
        return [client.run(goal, session=session) for goal in ("one", "two")]

    first = plan()
    assert first[0].parent is not None
    with client.replay_steps(first[0].parent) as report:
        plan()
    with client.resume_steps(first[0].parent):
        again = plan()

    assert report.divergence is None
    assert [each.answer for each in again] == ["1", "2"]
    assert len(client.sessions.runs(session)) == 2


# -- who may -----------------------------------------------------------------------------------


@pytest.mark.parametrize("named", ["01M7H9059YPYTCBKVW1YQJBKX4", "nosuch", "", "../x", "last"])
def test_an_unknown_session_is_refused_and_nothing_is_written(world: World, named: str) -> None:
    with pytest.raises(SessionNotFound, match="tally session ls"):
        world.run(named, "FINAL(1)")
    assert SqliteLedger(world.path).runs() == []


def test_a_removed_session_is_refused_and_its_runs_stay(world: World) -> None:
    session = world.new()
    first = world.run(session, "x = 1\nFINAL(x)")
    run = world.run(session, "x += 1\nFINAL(x)")
    world.sessions().snapshot(session, "s")

    world.sessions().remove(session)

    with pytest.raises(SessionNotFound):
        world.run(session, "FINAL(x)")
    world.holds(first.run)
    world.holds(run.run)
    with SqliteLedger(world.path) as ledger, SqliteAttachments(ledger.file) as attachments:
        held = {each.intent.session_id for each in attachments.references()}
    assert not any(each.startswith(session) for each in held)


def test_an_expired_session_is_refused_until_it_is_reopened(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = world.new(expires="reference")
    world.run(session, "x = 1\nFINAL(x)")
    gone_by(monkeypatch, DURATION_MS + 1_000)

    with pytest.raises(SessionExpired, match="tally session resume"):
        world.run(session, "FINAL(x)")
    world.sessions().resume(session)

    assert world.run(session, "FINAL(x)").answer == "1"


def test_going_on_with_a_run_reopens_its_session(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = world.new(expires="reference")
    cut = world.run(session, "x = 1\nprint(x)", limits=RunLimits(turns=1))
    gone_by(monkeypatch, DURATION_MS + 1_000)
    assert world.info(session).state == "expired"

    with world.client("x = 1\nprint(x)", "FINAL(x)") as client:
        client.resume(cut.run, limits=RunLimits(turns=9))

    assert world.info(session).state == "ready"


def test_a_second_client_is_refused_by_name(world: World) -> None:
    session = world.new()
    sessions = world.sessions()

    with sessions.book.hold(session):
        for attempt in (
            lambda: world.run(session, "FINAL(1)"),
            lambda: sessions.snapshot(session, "s"),
            lambda: sessions.restore(session, "s"),
        ):
            with pytest.raises(SessionBusy, match=f"session {session} is in use: one run at a"):
                attempt()

    assert world.run(session, "FINAL(1)").answer == "1"


def test_removing_a_session_stops_the_run_in_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_runs, "_LOOK_SECONDS", 0.02)
    session = world.new()
    inside = threading.Event()

    @host_function(policy="read")
    def wait() -> bool:
        """Wait a moment."""
        inside.set()
        return threading.Event().wait(0.05)

    ended: list[Run] = []

    def work() -> None:
        with world.client("while True: wait()", functions=[wait]) as client:
            ended.append(client.run("wait", session=session))

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(20)

    world.sessions().remove(session)

    thread.join(20)
    assert ended[0].stop == "cancelled"
    assert world.sessions().list() == []


def test_a_ledger_without_a_file_has_sessions_that_end_with_it(sandbox: WasmSandbox) -> None:
    script = in_turn("kept = 41\nFINAL(1)", "FINAL(kept + 1)")
    with Session(model=script, ledger=MemoryLedger(), sandbox=sandbox) as client:
        with pytest.raises(SessionNotFound):
            client.run("one", session="last")
        session = client.sessions.new().id
        assert client.run("one", session=session).answer == "1"
        assert client.run("two", session=session).answer == "42"


def test_a_run_that_is_refused_is_none_of_the_session(world: World) -> None:
    session = world.new()

    with pytest.raises(UsageError):
        world.run(session, "FINAL(1)", inputs=[given_text("x", variable="FINAL")])

    assert world.sessions().runs(session) == []
    assert world.info(session).state == "ready"


# -- variables, history, budgets ---------------------------------------------------------------


def test_programs_find_the_context_variables_of_their_time(world: World) -> None:
    session = world.new(variables={"region": "EU", "b": "2"})
    first = world.run(session, "context_variables['new'] = 1\nFINAL(context_variables['region'])")
    world.sessions().book.set_variable(session, "region", "US")

    second = world.run(session, "FINAL(sorted(context_variables.items()))")

    assert first.answer == "EU"
    assert second.answer == '[["b","2"],["region","US"]]'
    assert world.started(first.run).values == {"context_variables": {"b": "2", "region": "EU"}}
    assert "keys 'b', 'region'" in world.given(second.run).has
    world.holds(first.run)
    world.holds(second.run)


def test_many_variables_are_there_and_only_some_are_told(world: World) -> None:
    session = world.new(variables={f"{n:03}{'k' * 200}": "v" for n in range(100)})

    run = world.run(session, "FINAL(len(context_variables))")

    assert run.answer == "100"
    assert len(world.given(run.run).has) < 500


def test_data_of_that_name_is_refused_in_a_session_only(world: World) -> None:
    session = world.new()
    data = [given_text("x", variable="context_variables")]

    with pytest.raises(UsageError, match="context_variables"):
        world.run(session, "FINAL(1)", inputs=data)
    with world.client("FINAL(context_variables)") as client:
        assert client.run("what?", inputs=data).answer == "x"


def test_the_model_is_told_what_came_before(world: World) -> None:
    session = world.new()
    world.run(session, "rows = [1]\nFINAL('seven')", goal="how many hosts?")

    with world.client("FINAL(rows)") as client:
        model = client.engine.models._own
        assert isinstance(model, ModelDouble)
        client.run("and now?", session=session)

    assert "- 'how many hosts?': 'seven'" in model.prompts[0]
    assert "left variables, which are still there: rows: list." in model.prompts[0]
    assert model.prompts[0].index("how many hosts?") < model.prompts[0].index("The task: and now?")


def test_a_run_outside_of_sessions_is_told_nothing_of_them(world: World) -> None:
    started = world.started(world.run(world.new(), "FINAL(1)").run)
    bare = RunStarted(
        **{
            name: getattr(started, name)
            for name in started.__struct_fields__
            if name not in ("session", "values")
        }
    )

    assert opening(started) == opening(bare)
    assert direct(started, []) == direct(bare, [])


def test_what_is_told_is_the_last_five_answers_each_cut_short() -> None:
    runs = [
        EarlierRun(run=f"R{n}", goal=f"goal {n} " + "g" * 999, stop="answered", answer="a\n" * 999)
        for n in range(9)
    ]
    others = [
        EarlierRun(run="cut", goal="cut off"),
        EarlierRun(run="capped", goal="capped", stop="max_turns", answer="partial"),
        EarlierRun(run="gone"),
    ]

    told = summary_of([*runs, *others])

    assert [f"goal {n}" in told for n in range(9)] == [False] * 4 + [True] * 5
    assert "cut off" not in told
    assert "partial" not in told
    assert len(told) < 5 * 640
    assert len(told.splitlines()) == 6
    assert summary_of(others) == ""


def test_what_was_removed_from_the_ledger_is_told_to_nobody(world: World) -> None:
    session = world.new()
    first = world.run(session, "x = 1\nFINAL('a secret')", goal="what must be forgotten?")
    with SqliteLedger(world.path) as ledger, SqliteAttachments(ledger.file) as attachments:
        remove_run_with_attachments(ledger, attachments, first.run)

    second = world.run(session, "FINAL(x)")

    assert second.answer == "1"
    assert world.given(second.run).told == ""
    assert world.sessions().history(session)[0] == EarlierRun(run=first.run)
    world.holds(second.run)


def test_all_runs_of_a_session_are_under_its_budget(world: World) -> None:
    session = world.new(token_budget=100_000)
    world.run(session, "FINAL(1)")
    spent = world.info(session).budget_status
    assert 0 < spent.tokens_used < 100_000

    second = world.run(session, "FINAL(2)")

    assert world.started(second.run).limits.tokens == 100_000 - spent.tokens_used
    used = world.info(session).budget_status.tokens_used
    world.sessions().book.update_budget(session, token_budget=used, time_budget_ms=None)
    with pytest.raises(BudgetExhausted, match="tokens: 1 needed, 0 left in session"):
        world.run(session, "FINAL(3)")
    world.sessions().book.update_budget(session, token_budget=None, time_budget_ms=0)
    with pytest.raises(BudgetExhausted, match="wall_ms"):
        world.run(session, "FINAL(3)")


def test_a_run_is_not_gone_on_with_when_the_others_have_used_the_session_up(world: World) -> None:
    session = world.new()
    cut = world.run(session, "x = 1\nprint(x)", limits=RunLimits(turns=1))
    book = world.sessions().book
    own = book.get(session).budget_status.tokens_used
    world.run(session, "FINAL(2)")
    others = book.get(session).budget_status.tokens_used - own
    before = len(world.records(cut.run))

    def gone_on(*, tokens: int | None, time_ms: int | None) -> Run:
        book.update_budget(session, token_budget=tokens, time_budget_ms=time_ms)
        with world.client("x = 1\nprint(x)", "FINAL(x)") as client:
            return client.resume(cut.run, limits=RunLimits(turns=9))

    with pytest.raises(BudgetExhausted, match="tokens: 1 needed, 0 left in session"):
        gone_on(tokens=others, time_ms=None)
    with pytest.raises(BudgetExhausted, match="wall_ms"):
        gone_on(tokens=None, time_ms=0)
    assert len(world.records(cut.run)) == before
    assert world.info(session).state == "ready"

    assert gone_on(tokens=others + 1, time_ms=None).answer == "1"


def test_what_a_run_spent_that_was_gone_on_with_and_died_is_counted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = world.new()
    cut = world.run(session, "x = 1\nprint(x)", limits=RunLimits(turns=1))
    before = world.info(session).budget_status.tokens_used
    with monkeypatch.context() as patch:
        patch.setattr(session_runs.SessionLease, "over", lambda self: None)  # its process dies
        with world.client("x = 1\nprint(x)", "FINAL(x)") as client:
            client.resume(cut.run, limits=RunLimits(turns=9))
    assert world.info(session).budget_status.tokens_used == before

    world.run(session, "FINAL(2)")

    first, _ = world.sessions().runs(session)
    assert first.ended
    assert first.tokens > before


# -- snapshots ---------------------------------------------------------------------------------


def test_a_snapshot_brings_variables_back(world: World) -> None:
    session = world.new()
    sessions = world.sessions()
    sessions.snapshot(session, "fresh")
    world.run(session, "x = 1\nFINAL(x)")
    sessions.snapshot(session, "one")
    world.run(session, "x = 2\nFINAL(x)")

    sessions.restore(session, "one")
    assert world.run(session, "FINAL(x)").answer == "1"
    sessions.restore(session, "fresh")
    assert world.run(session, "FINAL('x' in dir())").answer == "false"


def test_an_image_is_kept_once_for_all_who_need_it_and_then_goes(world: World) -> None:
    session = world.new()
    sessions = world.sessions()
    first = world.run(session, "x = 1\nFINAL(x)")
    sessions.snapshot(session, "a")
    sessions.snapshot(session, "b")
    left = sessions.get(session).left.image
    assert left is not None
    second = world.run(session, "x = 2\nFINAL(x)")

    def bytes_there() -> bool:
        with SqliteLedger(world.path) as ledger, SqliteAttachments(ledger.file) as attachments:
            return (attachments.files.size(left.id) or 0) > 0

    sessions.delete_snapshot(session, "a")
    assert bytes_there()
    sessions.delete_snapshot(session, "b")
    assert bytes_there()  # the second run began with it
    with SqliteLedger(world.path) as ledger, SqliteAttachments(ledger.file) as attachments:
        reclaim(attachments, policy=EVERYTHING)
    world.holds(first.run)
    world.holds(second.run)
    assert world.run(session, "FINAL(x)").answer == "2"


def test_what_a_dead_process_kept_and_did_not_name_is_let_go_of(world: World) -> None:
    session = world.new()
    world.run(session, "x = 1\nFINAL(x)")
    sessions = world.sessions()
    read = world.client()
    held = SessionAttachments(read.attachments, session_id=snapshots_holder(session))
    held.commit([held.put(b"an image that nobody names").id])

    world.run(session, "x = 2\nFINAL(x)")

    # Its interpreter and the record of its values, and nothing else.
    kept = sorted(each.ref.id for each in held.references())
    assert kept == sorted(sessions.book.kept.needed_attachments(session))
    assert len(kept) == 2


class Dead(BaseException):
    """The process is no more."""


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(4))
def test_a_process_may_die_at_any_write_of_the_book(
    world: World, monkeypatch: pytest.MonkeyPatch, number: int, after: bool
) -> None:
    session = world.new()
    world.run(session, "x = 1\nFINAL(x)")
    writing, written = SessionFile.writing, [0]

    @contextlib.contextmanager
    def dying(self: SessionFile) -> Iterator[SqliteRows]:
        written[0] += 1
        if written[0] > number + after:
            raise Dead
        with writing(self) as db:
            yield db
        if written[0] > number:
            raise Dead

    client = world.client("x = 2\nFINAL(x)")
    with monkeypatch.context() as patch:
        patch.setattr(SessionFile, "writing", dying)
        with contextlib.suppress(Dead):
            client.run("two", session=session)

    # What the ledger says, and nothing is held that nobody needs.
    answered = [each.answer for each in world.sessions().history(session) if each.stop]
    assert world.run(session, "FINAL(x)").answer == answered[-1]
    assert world.info(session).state == "ready"
    read = world.client()
    held = SessionAttachments(read.attachments, session_id=snapshots_holder(session))
    needed = read.sessions.book.kept.needed_attachments(session)
    assert {each.ref.id for each in held.references()} == needed
    for run in read.sessions.runs(session):
        world.holds(run.run)


def dying_after_its_end(world: World, session: str, *sources: str) -> str:
    """Play a run whose process dies as soon as the ledger has its end. Return its id."""
    run = ""

    def watch(id: str, record: Record) -> None:
        nonlocal run
        run = id
        if isinstance(record, RunEnded):
            raise Dead

    with pytest.MonkeyPatch.context() as patch, world.client(*sources) as client:
        patch.setattr(session_runs.SessionLease, "over", lambda self: None)
        with pytest.raises(Dead):
            client.run("two", session=session, watch=watch)
    return run


def test_the_next_run_finds_what_a_run_left_whose_process_died_at_its_end(world: World) -> None:
    session = world.new()
    world.run(session, "x = 1\nFINAL(x)")

    run = dying_after_its_end(world, session, "x = 2\ny = 3\nFINAL(x)")

    # Also who only looks is told so.
    shown = world.info(session)
    assert (shown.state, shown.left.run) == ("ready", run)
    assert "y" in shown.left.names
    assert [each.lost for each in world.sessions().history(session)] == [False, False]
    assert world.run(session, "FINAL(x + y)").answer == "5"
    assert [each.lost for each in world.sessions().runs(session)] == [False] * 3
    world.holds(run)


def test_resume_finishes_in_its_session_a_run_whose_process_died_at_its_end(world: World) -> None:
    session = world.new()
    run = dying_after_its_end(world, session, "x = 2\nFINAL(x)")

    with world.client() as client:
        ended = client.resume(run)

    assert (ended.answer, ended.session_lost) == ("2", False)
    assert world.sessions().book.get(session).left.run == run
    assert [each.ended for each in world.sessions().runs(session)] == [True]


def test_a_snapshot_is_of_what_a_run_left_whose_process_died_at_its_end(world: World) -> None:
    session = world.new()
    world.run(session, "x = 1\nFINAL(x)")
    run = dying_after_its_end(world, session, "x = 2\nFINAL(x)")

    assert world.sessions().snapshot(session, "two").left.run == run
    world.run(session, "x = 3\nFINAL(x)")
    world.sessions().restore(session, "two")

    assert world.run(session, "FINAL(x)").answer == "2"


def test_what_was_prepared_by_a_run_without_an_end_is_not_the_sessions(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = world.new()
    world.run(session, "x = 1\nFINAL(x)")
    prepare = SessionLease.prepare

    def dying(self: SessionLease, *args: object, **more: object) -> None:
        prepare(self, *args, **more)  # type: ignore[arg-type]
        raise Dead

    with monkeypatch.context() as patch:
        patch.setattr(SessionLease, "prepare", dying)
        with pytest.raises(Dead):
            world.run(session, "x = 2\nFINAL(x)")

    run = world.sessions().runs(session)[-1].run
    assert world.info(session).left.run != run
    with world.client("x = 2\nFINAL(x)") as client:
        assert client.resume(run).answer == "2"
    assert world.run(session, "FINAL(x)").answer == "2"


def test_what_is_lost_with_a_process_is_said_once_and_shown(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = world.new()
    world.run(session, "x = 1\nFINAL(x)")
    with monkeypatch.context() as patch:
        # As a version did that prepared nothing.
        patch.setattr(SessionLease, "prepare", lambda self, image, **more: None)
        run = dying_after_its_end(world, session, "x = 2\nFINAL(x)")

    assert [each.lost for each in world.sessions().history(session)] == [False, True]
    with pytest.raises(SessionNotKept, match=run):
        world.run(session, "FINAL(x)")

    with world.client("FINAL(x)") as client:
        assert client.resume(run).session_lost
        assert client.run("again", session=session).answer == "1"
    assert [each.lost for each in world.sessions().history(session)] == [False, True, False]
    assert (
        "(its variables were not kept)" in world.given(world.sessions().runs(session)[-1].run).told
    )


# -- what goes wrong ---------------------------------------------------------------------------


def test_an_image_that_is_lost_is_said_before_anything_is_written(world: World) -> None:
    session = world.new()
    run = world.run(session, "x = 1\nFINAL(x)")
    with SqliteLedger(world.path) as ledger, SqliteAttachments(ledger.file) as attachments:
        left = world.info(session).left.image
        assert left is not None
        attachments.files.path(left.id).unlink()
    before = [each.run for each in SqliteLedger(world.path).runs()]

    with pytest.raises(StoreError):
        world.run(session, "FINAL(x)")

    assert [each.run for each in SqliteLedger(world.path).runs()] == before == [run.run]
    assert world.info(session).state == "ready"


def test_the_interpreter_of_another_version_is_refused_by_name(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = world.new()
    world.run(session, "x = 1\nFINAL(x)")
    monkeypatch.setattr(namespace, "ENGINE", "another 1.0")

    with pytest.raises(SnapshotMismatch, match=f"session {session} was left by another version"):
        world.run(session, "FINAL(x)")


def test_what_cannot_be_kept_is_said_and_the_run_stays(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = world.new()
    world.run(session, "x = 1\nFINAL(x)")

    def full(self: SessionImages, session: str, **more: object) -> object:
        raise StoreError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(SessionImages, "keep", full)
        with pytest.raises(SessionNotKept, match="no space left") as raised:
            world.run(session, "x = 2\nFINAL(x)")

    world.holds(raised.value.run)
    assert world.run(session, "FINAL(x)").answer == "1"
