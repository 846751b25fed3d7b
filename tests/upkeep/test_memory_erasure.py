"""Erasing notes from the runs that had to do with them: what goes, what stays, what is said."""

from __future__ import annotations

import base64
import contextlib
import sqlite3
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.ledger.builders import drafted
from tests.skills.skill_runs import make_skill
from tests.upkeep.test_prune import entered, left

from tallystick.attachments.rows import SqliteManifest
from tallystick.attachments.session import SessionAttachments, snapshots_holder
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.client import Session
from tallystick.core.chain import Head
from tallystick.core.charge import RunLimits
from tallystick.core.errors import UsageError
from tallystick.core.records import HostAnswered, RunPruned, RunStarted
from tallystick.ledger.scopes import SharedScopes
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import verify_ledger
from tallystick.memory.exchange import export_notes
from tallystick.memory.note import REDACTED
from tallystick.memory.receipts.keys import open_keys
from tallystick.memory.receipts.receipt import RunErased
from tallystick.memory.receipts.receipts import all_receipts, verify_chain
from tallystick.memory.store.records import Criteria, ForgetStrategy
from tallystick.memory.store.sqlite import SqliteMemory
from tallystick.memory.store.verify import verify_memory
from tallystick.model.scripted import ScriptedModel, ScriptedReply
from tallystick.runtime.context.inputs import given_text
from tallystick.runtime.programs import execution
from tallystick.runtime.runs.history import records_of
from tallystick.runtime.runs.lock import lock_run
from tallystick.runtime.runs.result import Run
from tallystick.sandbox.snapshot import MAGIC, unpack_snapshot
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.sessions.file import SessionFile
from tallystick.sessions.rows import SessionState
from tallystick.sessions.sessions import book_path
from tallystick.skills.skills import Skills
from tallystick.storage.clock import new_id
from tallystick.testing.models import block
from tallystick.upkeep import erasure as memory_erasure
from tallystick.upkeep.erasure import Erased, Erasure
from tallystick.upkeep.memory import Memory
from tallystick.upkeep.prune import Pruner

pytestmark = pytest.mark.slow

WORD = "qwertzuiop"
SECRET = f'the harbour\'s "{WORD}" opens\nat four, says Zoë'
HARD = ForgetStrategy.HARD_DELETE
GRANTS = ("memory.write", "attachments.write", "attachments.read")


class World:
    """A data directory: a ledger, its attachments, a memory and a folder for output."""

    def __init__(self, folder: Path, sandbox: WasmSandbox) -> None:
        self.folder = folder
        self._sandbox = sandbox
        self.ledger = SqliteLedger(folder / "ledger.db")
        self.memory = Memory(
            SqliteMemory(folder / "memory" / "default.db"),
            owner=True,
            keys=open_keys(folder.parent / "config"),
            embedder=None,
        )
        self.output = folder / "output"
        self.output.mkdir(parents=True)
        self.note = self.memory.remember(SECRET).id
        self.other = self.memory.remember("the kettle is on, and will be for a while").id

    def session(self, *replies: str, skills: Skills | None = None) -> Session:
        model = ScriptedModel([ScriptedReply(text=each) for each in replies])
        return Session(
            model=model,
            ledger=self.ledger,
            sandbox=self._sandbox,
            memory=self.memory,
            skills=skills,
        )

    def run(
        self, *programs: str, goal: str = "what is it?", limits: RunLimits | None = None
    ) -> Run:
        """A run of these programs. What is no program is a plain reply."""
        replies = [each if each.startswith("say ") else block(each) for each in programs]
        with self.session(*replies) as session:
            return session.run(goal, grants=GRANTS, limits=limits or RunLimits())

    def holds(self, run: str) -> bool:
        """Whether a run replays as it was recorded."""
        with self.session() as session:
            return session.replay(run).held

    def forget(self, *ids: str, strategy: ForgetStrategy = HARD, dry_run: bool = False) -> Erased:
        return self.memory.forget(ids, strategy=strategy, ledger=self.ledger, dry_run=dry_run)

    def erasure(self, *ids: str) -> Generator[str]:
        """An erasure step by step; left in the middle, it is as if the process had died."""
        with SqliteAttachments(self.ledger.file) as kept, SharedScopes(self.ledger.file) as scopes:
            yield from Erasure(
                self.memory.store,
                ids,
                ledger=self.ledger,
                attachments=kept,
                scopes=scopes,
                actor=None,
                key=self.memory.keys.current,
                strategy=HARD,
                by="ids",
                why="asked",
                output=self.output,
            ).steps()

    def session_of(self, run: str) -> str:
        started = next(iter(records_of(self.ledger, run)))
        assert isinstance(started, RunStarted)
        return started.session_id

    def runs(self) -> set[str]:
        return {row.run for row in self.ledger.runs()}

    def pruned(self, run: str) -> bool:
        return any(isinstance(each, RunPruned) for each in records_of(self.ledger, run))

    def traces(self, word: str = WORD) -> list[str]:
        """Where a word stands in any file of the directory, or in a snapshot, however spelled."""
        raw = word.encode()
        coded = [base64.b64encode(bytes(n) + raw)[2 * bool(n) + (n == 2) : -3] for n in range(3)]
        forms = [raw, word.encode("utf-16-le"), word.encode("utf-16-be"), word.encode("utf-32-le")]
        found = []
        for path in sorted(self.folder.rglob("*")):
            data = path.read_bytes() if path.is_file() else b""
            found += [path.name for form in (*forms, *coded) if form in data]
        return found + [id for id, data in self.images() if any(form in data for form in forms)]

    def images(self) -> list[tuple[str, bytes]]:
        """What interpreters had in memory, of every snapshot that is there."""
        made = []
        with SqliteAttachments(self.ledger.file) as kept:
            with kept.reading() as db:
                ids = [] if db is None else [blob.id for blob in SqliteManifest(db).blobs()]
            for id in ids:
                with kept.chunks(id) as chunks:
                    data = b"".join(chunks)
                if data.startswith(MAGIC):
                    made.append((id, b"".join(unpack_snapshot([data])[1].pages)))
        return made

    def check(self, *, erased: bool = True) -> None:
        """That the ledger, the memory and the receipts hold, and say what is gone."""
        ledger = verify_ledger(self.ledger)
        memory = verify_memory(self.memory.store)
        assert ledger.ok
        assert (memory.valid, memory.error_message) == (True, None)
        assert (memory.erased > 0) is erased
        chain = verify_chain(all_receipts(self.memory.store), keys=self.memory.keys.by_id)
        assert chain.valid


@pytest.fixture
def world(tmp_path: Path, sandbox: WasmSandbox) -> Iterator[World]:
    made = World(tmp_path / "data", sandbox)
    yield made
    made.memory.close()
    made.ledger.close()


def how(done: Erased) -> dict[str, str]:
    return {each.run: f"{each.because} {each.how}" for each in done.runs or ()}


RECALL = "note = recall('harbour', k=1)[0]\nprint(note['content'])"


# -- what goes ---------------------------------------------------------------------------------


def test_an_erased_note_is_in_no_file_and_everything_else_is_as_it_was(world: World) -> None:
    recalled = world.run(
        RECALL,
        "kept = attachments.put(note['content'] * 3, label=note['content'][:40])",
        "print(len(llm_query('shorter: ' + note['content'])))",
        f"say a {WORD}",
        "print((note['content'] + '\\n') * 2_000)",
        "FINAL('it says ' + note['content'])",
    )
    remembered = world.run(f"remember({SECRET!r})", "FINAL(1)")
    beside = world.run("print(recall('kettle', k=1)[0]['content'])", "FINAL('on')")
    assert len(set(world.traces())) > 2

    looked = world.forget(world.note, dry_run=True)
    done = world.forget(world.note, *looked.alike)

    assert done.whole
    assert world.traces() == []
    # What a program remembers is another note, since it is a model that says so.
    assert (len(looked.alike), done.alike) == (1, ())
    assert how(done) == {recalled.run: "named pruned", remembered.run: "named pruned"}
    assert done.attachments == 2
    assert verify_ledger(world.ledger).erased > 10
    assert world.runs() == {recalled.run, remembered.run, beside.run}
    assert world.holds(beside.run)
    assert world.memory.note(world.other).note.content.startswith("the kettle")
    world.check()


def test_the_receipt_names_the_runs_and_holds(world: World) -> None:
    run = world.run(RECALL, "FINAL(1)").run
    list(export_notes(world.memory.store, reader=None, label="backup of March"))

    done = world.forget(world.note)

    receipt = done.receipt
    assert receipt is not None
    assert receipt.runs == (RunErased(run=run, how="pruned"),)
    assert [label for _, label in receipt.exports] == ["backup of March"]
    assert world.memory.forget_receipt(receipt.forget_id) == receipt
    assert world.memory.verify_forget(receipt).notes == ((world.note, "erased"),)


def test_a_run_is_found_by_every_note_that_a_script_of_a_skill_recalled(
    world: World, tmp_path: Path
) -> None:
    """None of the notes' words are on the record: only their ids tell."""
    source = "hit = recall('harbour', k=1)\nother = recall('kettle', k=1)\nprint('looked')"
    make_skill(tmp_path / "skills", "finder", files={"look.py": source}, allowed_tools="recall")
    program = "FINAL(skills.run('finder', 'look.py')['stdout'])"
    with world.session(block(program), skills=Skills.of(tmp_path / "skills")) as session:
        run = session.run("what is it?")
    assert run.answer == "looked\n"

    assert how(world.forget(world.note, dry_run=True)) == {run.run: "named pruned"}
    assert how(world.forget(world.other)) == {run.run: "named pruned"}


def test_a_family_goes_together_whatever_words_it_used(world: World) -> None:
    parent = world.run(
        "said = rlm_query('when does it open?')",
        "hit = recall('harbour', k=1)[0]\nFINAL(hit['content'].upper())",
        "aside = rlm_query('and what is the weather?')",
        "FINAL('fair')",
        "FINAL(len(said))",
    )
    children = world.runs() - {parent.run}

    done = world.forget(world.note)

    assert len(children) == 2
    assert sorted(how(done).values()) == ["family pruned", "family pruned", "named pruned"]
    assert how(done)[parent.run] == "family pruned"
    assert world.traces(WORD.upper()) == []
    world.check()


def test_what_grew_from_a_run_goes_before_it(world: World) -> None:
    whole = world.run(RECALL, "x = 1", "FINAL('one')")
    with world.session("", block("FINAL('two')")) as session:
        fork = session.fork(whole.run, turn=1)
    with world.session("", block("FINAL('three')")) as session:
        again = session.fork(fork.run, turn=1)

    done = world.forget(world.note)

    assert list(how(done)) == sorted([whole.run, fork.run, again.run], reverse=True)
    assert set(how(done).values()) == {"named pruned", "family pruned"}
    assert world.traces() == []
    world.check()


def test_a_snapshot_of_an_interpreter_that_had_read_it_goes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "SNAPSHOT_FUEL", 0)
    stopped = world.run(RECALL.replace("print", "len"), "x = 1", limits=RunLimits(turns=2))
    assert any(WORD.encode() in data for _, data in world.images())

    done = world.forget(world.note)

    assert how(done) == {stopped.run: "named pruned"}
    assert world.images() == []
    assert world.traces() == []


def test_a_session_that_had_read_it_goes_on_with_a_fresh_interpreter(world: World) -> None:
    with world.session(block(RECALL), block("FINAL(1)"), block("FINAL(2)")) as session:
        sessions = session.sessions
        read, other = sessions.new().id, sessions.new().id
        touched = session.run("what is it?", session=read)
        sessions.snapshot(read, "kept")
        session.run("what else?", session=other)
    assert any(WORD.encode() in data for _, data in world.images())

    done = world.forget(world.note)

    assert done.whole
    assert how(done)[touched.run] == "named pruned"
    assert world.traces() == []
    assert sessions.get(read).left.image is None
    assert list(sessions.snapshots(read)) == []
    assert sessions.get(other).left.image is not None
    with world.session(block("FINAL('note' in globals())")) as session:
        assert session.run("is it there?", session=read).stop == "answered"


# Too short to be looked for by its text: what has it is found by whose it is.
SHORT = "zyxwvut tea"
TURNED = "said = recall('tea', k=1)[0]['content'].upper()"


def test_later_runs_and_images_of_a_session_go_whatever_words_they_used(world: World) -> None:
    short = world.memory.remember(SHORT).id
    with world.session(
        *(block(each) for each in ("FINAL(0)", TURNED, "FINAL(1)")),
        *(block(each) for each in ("print(said)", "FINAL(2)", "FINAL(3)")),
    ) as session:
        sessions = session.sessions
        read, other = sessions.new().id, sessions.new().id
        runs = [session.run("what is it?", session=read).run for _ in range(3)]
        sessions.snapshot(read, "kept")
        beside = session.run("what else?", session=other).run
    assert any(SHORT.upper().encode() in data for _, data in world.images())

    done = world.forget(short)

    assert done.whole
    assert how(done) == {runs[1]: "named pruned", runs[2]: "family pruned"}
    assert world.traces(SHORT.upper()) == []
    assert sessions.get(read).left.image is None
    assert list(sessions.snapshots(read)) == []
    assert sessions.get(other).left.image is not None
    assert world.holds(beside)


def test_an_image_of_a_busy_session_is_named_until_it_goes(world: World) -> None:
    short = world.memory.remember(SHORT).id
    with world.session(block(TURNED), block("FINAL(1)")) as session:
        sessions = session.sessions
        read = sessions.new().id
        session.run("what is it?", session=read)
    left = sessions.get(read).left
    # The interpreter, and the record of its values.
    assert left.image is not None
    assert left.values is not None

    with sessions.book.hold(read):
        done = world.forget(short)

    assert done.attachments_left == tuple(sorted((left.image.id, left.values.id)))
    assert not done.whole
    assert done.receipt is not None
    assert done.receipt.attachments_left == 2
    again = world.forget(short)
    assert again.whole
    assert world.traces(SHORT.upper()) == []


@pytest.mark.parametrize("state", ["ready", "terminated"])
def test_context_variables_that_say_it_go_from_the_raw_files(
    world: World, state: SessionState
) -> None:
    with world.session() as session:
        book = session.sessions.book
        made = session.sessions.new(variables={"said": f"so: {SECRET}", "who": "Zoë"})
    book.update_state(made.id, state)
    path = book_path(Path(world.ledger.path))
    raw = [path, path.with_name(f"{path.name}-wal")]

    # Another process has the file open: SQLite's own log is not removed at the end.
    with contextlib.closing(sqlite3.connect(path)) as beside:
        beside.execute("SELECT count(*) FROM variable").fetchall()
        book.set_variable(
            session.sessions.new().id, "again", base64.b64encode(SECRET.encode()).decode()
        )
        assert any(WORD.encode() in each.read_bytes() for each in raw)

        done = world.forget(world.note)

        assert done.whole
        assert not any(WORD.encode() in each.read_bytes() for each in raw)
        assert world.traces() == []
    assert book.get(made.id).context_variables == {"who": "Zoë"}


def test_a_file_of_sessions_that_somebody_reads_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world.session() as session:
        session.sessions.new(variables={"said": SECRET})
    path = book_path(Path(world.ledger.path))
    monkeypatch.setattr(SessionFile.__init__, "__kwdefaults__", {"busy_seconds": 0.1})
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as beside:
        beside.execute("BEGIN")
        beside.execute("SELECT count(*) FROM variable").fetchall()
        done = world.forget(world.note)
        beside.execute("COMMIT")

    assert done.note == "the file of sessions is not written anew; ask again"
    assert not done.whole
    assert world.forget(world.note).whole


def test_output_that_a_dead_process_left_goes_and_files_of_others_do_not(world: World) -> None:
    run = world.run(RECALL, "FINAL(1)").run
    session = world.session_of(run)
    ours = [f"{session}-{new_id()}.stdout", f"{new_id()}-{new_id()}.stderr"]
    theirs = ["notes.txt", f"{new_id()}-{new_id()}.stdout", f"{session}.stdout"]
    for name in (*ours, *theirs):
        (world.output / name).write_text("nothing")
    (world.output / ours[1]).write_text(SECRET)
    (world.output / theirs[0]).write_text("mine")

    done = world.forget(world.note)

    assert done.outputs == 2
    assert sorted(path.name for path in world.output.iterdir()) == sorted(theirs)


# -- how it is found ---------------------------------------------------------------------------


def test_a_run_that_was_told_the_text_otherwise_is_found_by_it(world: World) -> None:
    goal = world.run("FINAL(1)", goal=f"is this so? {SECRET}").run
    beside = world.run("FINAL(1)").run
    with world.session(block("FINAL(1)")) as session:
        given = session.run("what?", inputs=[given_text(f"x\n{SECRET}\n" * 5_000)]).run

    done = world.forget(world.note)

    assert how(done) == {goal: "text pruned", given: "text pruned"}
    assert world.traces() == []
    assert world.holds(beside)


def test_what_steps_gave_is_found_by_its_text(world: World) -> None:
    chain = new_id()
    world.ledger.append(
        chain,
        [drafted(entered("a")), drafted(left("a", value=f"it is {SECRET}"))],
        expected=Head.of_nothing(),
        fence=world.ledger.claim(chain, create=True),
        forced=True,
    )

    done = world.forget(world.note)

    assert how(done) == {chain: "text pruned"}
    assert world.traces() == []
    world.check()


def test_a_short_text_is_not_looked_for_and_that_is_said(world: World) -> None:
    short = world.memory.remember("tea at 4").id
    named = world.run("FINAL(recall('tea', k=1)[0]['id'])").run
    world.run("FINAL(1)", goal="tea at 4")

    done = world.forget(short)

    assert done.not_searched == (short,)
    assert list(how(done)) == [named]


def test_of_a_long_note_a_long_line_is_enough(world: World) -> None:
    line = "every second Tuesday the pilot's cousin rows out to the buoy"
    long = world.memory.remember(f"a heading\n{line}\n--------\nand more").id
    quoted = world.run("FINAL(1)", goal=f"why? {line}!").run
    world.run("FINAL(1)", goal="a heading\n--------")

    assert how(world.forget(long)) == {quoted: "text pruned"}


def test_what_somebody_else_holds_is_named_and_left(world: World) -> None:
    with SqliteAttachments(world.ledger.file) as kept:
        held = SessionAttachments(kept, session_id="mine")
        ref = held.put(f"about {SECRET}".encode())
        held.commit([ref.id])
        image = SessionAttachments(kept, session_id=snapshots_holder("mine")).put(b"other")

        done = world.forget(world.note)

        assert done.attachments_left == (ref.id,)
        assert not done.whole
        assert done.receipt is not None
        # An attachment's name is the digest of what it says.
        assert done.receipt.attachments_left == 1
        assert kept.byte_len(image.id) == 5


def test_what_was_left_by_who_died_while_putting_it_goes(world: World) -> None:
    world.run("attachments.put('something else')", "FINAL(1)")
    with SqliteAttachments(world.ledger.file) as kept:
        owner = kept.owners.hold()
        dead, _, _ = kept.files.write([SECRET.encode()], owner=owner.id)
        owner.release(remove=False)
        alive, _, _ = kept.files.write([SECRET.encode()], owner=kept.owner())

        done = world.forget(world.note)

        assert not dead.exists()
        assert done.attachments_left == (alive.name,)


# -- what is left of a run ---------------------------------------------------------------------


@pytest.mark.parametrize("answer", [SECRET, f"{SECRET} and more"])
def test_a_run_whose_receipt_still_binds_the_text_is_removed_whole(
    world: World, answer: str
) -> None:
    run = world.run(RECALL, f"FINAL({answer!r})").run

    done = world.forget(world.note)

    # The receipt has the plain digest of the answer, so that a guess could be checked.
    removed = answer == SECRET
    assert how(done) == {run: "named removed" if removed else "named pruned"}
    assert (run in world.runs()) is not removed
    world.check()


def test_what_grew_from_a_removed_run_is_removed_before_it(world: World) -> None:
    run = world.run("x = 1", RECALL, f"FINAL({SECRET!r})").run
    with world.session("", block("FINAL('two')")) as session:
        fork = session.fork(run, turn=1).run

    done = world.forget(world.note)

    assert how(done) == {run: "named removed", fork: "family removed"}
    assert world.runs() == set()
    world.check()


# -- what cannot go ----------------------------------------------------------------------------


def test_a_run_that_is_running_is_reported_and_the_rest_goes(world: World) -> None:
    busy = world.run(RECALL, "FINAL(1)").run
    gone = world.run(RECALL, "FINAL(2)").run

    with lock_run(world.ledger, busy):
        done = world.forget(world.note)

    assert how(done) == {busy: "named kept", gone: "named pruned"}
    kept = next(each for each in done.runs or () if each.run == busy)
    assert (kept.why, kept.todo) == ("is running", "when it has ended, ask again")
    assert not done.whole
    assert done.note is not None
    assert done.receipt is not None
    assert RunErased(run=busy, how="kept", why="is running") in (done.receipt.runs or ())

    again = world.forget(world.note)

    assert again.whole
    assert how(again) == {busy: "named pruned", gone: "named pruned"}
    assert world.traces() == []
    world.check()


def cut(world: World, run: str) -> str:
    """Another run, with the records of this one up to its first answer of the host."""
    records = list(records_of(world.ledger, run))
    place = next(n for n, each in enumerate(records) if isinstance(each, HostAnswered))
    started = records[0]
    assert isinstance(started, RunStarted)
    records[0] = msgspec.structs.replace(started, session_id=new_id())
    made = new_id()
    world.ledger.append(
        made,
        [drafted(each) for each in records[: place + 1]],
        expected=Head.of_nothing(),
        fence=world.ledger.claim(made, create=True),
        forced=True,
    )
    return made


def test_a_run_without_an_end_is_reported_until_it_is_removed(world: World) -> None:
    ended = world.run(RECALL, "FINAL(1)").run
    open_run = cut(world, ended)

    done = world.forget(world.note)

    assert how(done) == {open_run: "named kept", ended: "named pruned"}
    kept = next(each for each in done.runs or () if each.how == "kept")
    assert kept.why.startswith("has not ended")
    assert f"tally rm {open_run}" in kept.todo
    assert not world.pruned(open_run)

    world.ledger.remove(open_run)
    again = world.forget(world.note)

    assert again.whole
    assert how(again) == {ended: "named pruned"}
    assert world.traces() == []


# -- who may, and how it is asked --------------------------------------------------------------


def test_who_may_not_forget_a_note_makes_no_run_go(world: World) -> None:
    run = world.run(RECALL, "FINAL(1)").run
    eve = Memory(world.memory.store, agent_id="eve", keys=world.memory.keys, embedder=None)

    done = eve.forget([world.note], strategy=HARD, ledger=world.ledger)

    assert [each.code for each in done.errors] == ["backend.memory.not_found"]
    assert (done.notes, done.runs) == ((), None)
    assert not world.pruned(run)
    assert world.holds(run)


def test_an_agent_makes_no_run_go_that_only_has_the_text(world: World) -> None:
    ada = Memory(world.memory.store, agent_id="ada", keys=world.memory.keys, embedder=None)
    goal = "which invoices are overdue?"
    victim = world.run("FINAL(1)", goal=goal).run
    bait = ada.remember(goal).id
    named = world.run("FINAL(recall('invoices', k=1)[0]['id'])").run

    done = ada.forget([bait], strategy=HARD, ledger=world.ledger)

    assert done.notes == (bait,)
    assert how(done) == {victim: "text kept", named: "named pruned"}
    assert world.holds(victim)
    assert not done.whole


def test_an_agent_resets_no_session_that_only_has_the_text(world: World) -> None:
    ada = Memory(world.memory.store, agent_id="ada", keys=world.memory.keys, embedder=None)
    text = "which invoices are overdue, and since when?"
    with world.session(block(f"said = {text!r} * 3"), block("FINAL(1)")) as session:
        sessions = session.sessions
        theirs = sessions.new(variables={"goal": text}).id
        victim = session.run("go on", session=theirs).run
    with SqliteAttachments(world.ledger.file) as kept:
        held = SessionAttachments(kept, session_id="mine")
        held.commit([held.put(text.encode()).id])
    image = sessions.get(theirs).left.image
    bait = ada.remember(text).id

    done = ada.forget([bait], strategy=HARD, ledger=world.ledger)

    assert image is not None
    assert done.notes == (bait,)
    assert how(done) == {victim: "text kept"}
    # What others hold is not told either.
    assert done.attachments_left == ()
    assert sessions.get(theirs).left.image == image
    assert sessions.get(theirs).context_variables == {"goal": text}
    assert world.holds(victim)


def test_an_agent_is_told_nothing_of_notes_it_does_not_see(world: World) -> None:
    ada, eve = (
        Memory(world.memory.store, agent_id=name, keys=world.memory.keys, embedder=None)
        for name in ("ada", "eve")
    )
    text = "Xylophonist Ann lives by the mill"
    more: dict[str, Any] = {"tags": ["subject:ann"], "created_by": "tool", "session_id": "s"}
    hers = ada.remember(text, **more).id
    mine = eve.remember(f"{text}, they say", **more).id
    bait = eve.remember(text).id

    ways: list[dict[str, Any]] = [{"subject": "ann"}, {"principal": "tool"}, {"session": "s"}]
    for which in ways:
        looked = eve.forget(**which, strategy=HARD, dry_run=True, ledger=world.ledger)
        assert (looked.notes, looked.errors) == ((mine,), ())
    assert eve.forget([bait], strategy=HARD, dry_run=True, ledger=world.ledger).alike == (mine,)
    owned = world.memory.forget(subject="ann", dry_run=True, ledger=world.ledger)
    assert set(owned.notes) == {hers, mine}


def test_a_dry_run_says_what_would_go_and_changes_nothing(world: World) -> None:
    run = world.run(RECALL, "attachments.put(note['content'] * 3)", f"FINAL({SECRET!r} + '!')").run
    list(export_notes(world.memory.store, reader=None, label="backup"))
    head, before = world.memory.store.head(), list(world.ledger.read(run))

    looked = world.forget(world.note, dry_run=True)

    assert looked.dry_run
    assert looked.receipt is None
    assert (looked.notes, how(looked)) == ((world.note,), {run: "named pruned"})
    assert (looked.attachments, len(looked.exports)) == (1, 1)
    assert world.memory.store.head() == head
    assert list(world.ledger.read(run)) == before
    assert world.forget(world.note).attachments == 1


def test_a_subject_is_redacted_in_runs_too(world: World) -> None:
    about = world.memory.remember("Xylophonist Ann lives by the mill", tags=["subject:ann"]).id
    run = world.run("print(recall('mill', k=1))", "FINAL(1)").run

    done = world.memory.forget(subject="ann", ledger=world.ledger)

    assert (done.strategy, done.notes) == (ForgetStrategy.REDACT, (about,))
    assert how(done) == {run: "named pruned"}
    assert world.memory.note(about).note.content == REDACTED
    assert world.traces("Xylophonist") == []
    world.check()


def test_notes_are_chosen_in_one_way(world: World) -> None:
    forget = world.memory.forget
    one = world.memory.remember("by a tool", created_by="tool", session_id="s").id
    two = world.memory.remember("of little use", importance=0.1).id

    with pytest.raises(UsageError, match="not by nothing"):
        forget()
    with pytest.raises(UsageError, match="not by ids and subject"):
        forget([one], subject="ann")

    assert forget(principal="tool", session="s", dry_run=True).notes == (one,)
    assert forget(criteria=Criteria(min_importance_below=0.2)).notes == (two,)
    assert forget(subject="nobody") == Erased(
        dry_run=False, strategy=ForgetStrategy.REDACT, notes=(), errors=()
    )
    done = forget([one, world.note[:-1] + "x"], strategy=HARD)
    assert (done.notes, done.runs, len(done.errors)) == ((one,), None, 1)
    assert done.receipt is not None
    assert [each.code for each in forget([one], strategy=HARD, dry_run=True).errors] == [
        "backend.memory.erased"
    ]


# -- crashes -----------------------------------------------------------------------------------


def crowd(world: World) -> tuple[set[str], str]:
    """Runs of every kind that has to do with the note, and one that has not."""
    parent = world.run(
        "said = rlm_query('when?')",
        "FINAL(recall('harbour', k=1)[0]['content'].upper())",
        "FINAL(len(said))",
    )
    exact = world.run(RECALL, "attachments.put(note['content'] * 9)", f"FINAL({SECRET!r})")
    with world.session("", block("FINAL('two')")) as session:
        session.fork(exact.run, turn=1)
    (world.output / f"{world.session_of(exact.run)}-{new_id()}.stdout").write_text(SECRET)
    touched = world.runs()
    assert {parent.run, exact.run} <= touched
    return touched, world.run("FINAL('beside')").run


def stages(world: World) -> list[str]:
    return list(world.erasure(world.note))


@pytest.mark.slow
def test_a_crash_at_any_step_is_finished_by_asking_again(
    tmp_path: Path, sandbox: WasmSandbox
) -> None:
    first = World(tmp_path / "first", sandbox)
    crowd(first)
    count = len(stages(first))
    assert count > 9
    for stop in range(1, count + 1):
        world = World(tmp_path / f"data{stop}", sandbox)
        touched, beside = crowd(world)
        steps = world.erasure(world.note)
        for _ in range(stop):
            next(steps)
        steps.close()
        world.memory.close()
        world.ledger.close()

        done = world.forget(world.note)

        assert done.whole, stop
        assert world.traces() == world.traces(WORD.upper()) == [], stop
        left = world.runs()
        assert all(world.pruned(run) for run in touched & left), stop
        assert world.holds(beside)
        assert list(world.output.iterdir()) == []
        world.check()
        world.memory.close()
        world.ledger.close()


class Died(BaseException):
    """The process dies here."""


PLACES = [
    (Pruner, "mark"),
    (Pruner, "erase"),
    (Pruner, "free"),
    (memory_erasure, "remove_run_with_attachments"),
    (memory_erasure, "reclaim_forgotten"),
    (memory_erasure, "has_text"),
    (SqliteLedger, "reclaim"),
    (memory_erasure, "forget"),
    (SqliteMemory, "scrub"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("owner", "name"), PLACES, ids=[name for _, name in PLACES])
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_crash_inside_of_a_step_is_finished_by_asking_again(
    world: World, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, before: bool
) -> None:
    touched, beside = crowd(world)
    (world.output / f"{new_id()}-{new_id()}.stdout").write_text("of nobody")
    original = getattr(owner, name)

    def dies(*args: Any, **more: Any) -> None:
        if not before:
            original(*args, **more)
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, dies)
        with pytest.raises(Died):
            world.forget(world.note)

    done = world.forget(world.note)

    assert done.whole
    assert world.traces() == world.traces(WORD.upper()) == []
    assert all(world.pruned(run) for run in touched & world.runs())
    assert world.holds(beside)
    world.check()


def test_a_run_that_is_told_the_note_meanwhile_is_found_when_asked_again(
    world: World,
) -> None:
    world.run(RECALL, "FINAL(1)")
    steps = world.erasure(world.note)
    while next(steps) != "ledger written anew":
        pass
    late = world.run("FINAL(1)", goal=SECRET).run
    for _ in steps:
        pass

    again = world.forget(world.note)

    assert again.not_searched == (world.note,)
    assert how(again)[late] == "named pruned"
    assert world.traces() == []
