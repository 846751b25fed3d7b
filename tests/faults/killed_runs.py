"""Runs that are killed and gone on with: the processes, what they said, and what must hold."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import msgspec
from tests.faults.call_places import Place, Places, named_in, open_places, place_of
from tests.faults.paid_server import PaidServer
from tests.faults.run_shape import Shape, shape_of
from tests.faults.run_worker import Order, Subject
from tests.faults.tracer import run_traced

from tallystick.attachments.collect import verify_attachments
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.core.budget.amount import Amount
from tallystick.core.chain import Head
from tallystick.core.records import AskModel, CallHost, ModelFailed, QueryAsked, QueryFailed, tag_of
from tallystick.ledger.scopes import SharedScopes
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import verify_ledger
from tallystick.runtime.runs.history import records_of

ROOT = Path(__file__).parents[2]
# How a point ended: the run had not begun, it went on by itself, or somebody had to say so.
Outcome = Literal["not begun", "went on", "in doubt"]
# Records that ride along with the next that is written. All of it comes out the same again.
RIDING = (
    "run.started",
    "run.resumed",
    "program.run",
    "host.answered",
    "program.finished",
    "receipt.issued",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a process ended, what it had said, and which calls were seen."""

    code: int
    lines: list[str]
    seen: list[str] = field(default_factory=list)

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL

    @property
    def error(self) -> str:
        """The name of the error it ended with, or nothing."""
        found = [line.split()[1] for line in self.lines if line.startswith("error ")]
        return found[-1].rstrip(":") if found else ""

    @property
    def result(self) -> dict[str, Any] | None:
        said: dict[str, Any] | None = self._said("result")
        return said

    @property
    def in_doubt(self) -> list[dict[str, Any]] | None:
        said: list[dict[str, Any]] | None = self._said("in_doubt")
        return said

    def _said(self, word: str) -> Any:
        found = [line.partition(" ")[2] for line in self.lines if line.startswith(f"{word} ")]
        return json.loads(found[-1]) if found else None

    @property
    def heads(self) -> dict[str, Head]:
        """Where each run stood when it was last acknowledged."""
        said = [line.split() for line in self.lines if line.startswith(("forced", "committed"))]
        return {run: Head(count=int(count), hash=hash) for _, run, count, hash in said}


class Workers:
    """Makes processes that play the run, one at a time."""

    def __init__(
        self, folder: Path, server: PaidServer, *, name: str = "said", subject: Subject = "run"
    ) -> None:
        self.folder = folder
        self.subject: Subject = subject
        self._said = folder / name
        self.server = server
        self.snapshots = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.run_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"},
            text=True,
        )

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            # It waits for a child that hangs, which ends by itself.
            self._process.kill()
            self._process.wait()

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def begin_anew(self) -> None:
        """Nothing is there, and nothing was paid."""
        shutil.rmtree(self.data, ignore_errors=True)
        self.data.mkdir(parents=True)
        self.server.forget()

    def run(self, *, asked: bool = False) -> Ended:
        return self._done(self._order("run", asked=asked))

    def traced(
        self,
        *,
        kill_at: int | None,
        asked: bool = False,
        work: Literal["run", "resume"] = "run",
    ) -> Ended:
        """Play the run, or go on with it in spite of any doubt, and kill it at a system call."""
        order = self._order(work, asked=asked, traced=True, in_doubt="retry")
        pid = self._begun(order)
        code, seen = run_traced(pid, self.data, kill_at=kill_at, go=lambda: self._say("go"))
        assert self._heard() == str(code)
        return self._ended(code, [str(each) for each in seen])

    def broken(self, *, die_at: int, asked: bool = False) -> Ended:
        """Play the run in a process that kills itself at a call of Python."""
        return self._done(self._order("run", asked=asked, die_at=die_at))

    def failing(self, call: str, error: str, *, on: str, since: int) -> Ended:
        """Play the run while a system call on a file fails, from its n-th time on."""
        order = self._order("run")
        pid = self._begun(order)
        inject = f"inject={call}:error={error}:when={since}+"
        path = str(self.data / on)
        with subprocess.Popen(
            ["strace", "-f", "-p", str(pid), "-P", path, "-e", f"trace={call}", "-e", inject],
            stderr=subprocess.PIPE,
            text=True,
        ) as strace:
            assert strace.stderr is not None
            while "attached" not in (line := strace.stderr.readline()):
                assert line, "strace is gone"
            self._say("go")
            # Its report has to be read, or it stops.
            report = strace.stderr.read()
        return self._ended(int(self._heard()), report.splitlines())

    def resumed(
        self, in_doubt: Literal["halt", "retry"], *, asked: bool = False, steal: bool = False
    ) -> Ended:
        return self._done(self._order("resume", asked=asked, in_doubt=in_doubt, steal=steal))

    def start(self, work: Literal["run", "resume"] = "run", **more: Any) -> None:
        """Begin to play the run, or to go on with it, and do not wait for its end."""
        self._begun(self._order(work, **more))
        self._say("go")

    def finish(self) -> Ended:
        """Wait for the end of one that was started."""
        code = int(self._heard())
        return self._ended(code, [])

    def _order(self, work: Literal["run", "resume"], **more: Any) -> Order:
        self._said.unlink(missing_ok=True)
        ledger, out = str(self.data / "ledger.db"), str(self._said)
        return Order(
            work=work,
            subject=self.subject,
            ledger=ledger,
            url=self.server.url,
            out=out,
            snapshots=self.snapshots,
            **more,
        )

    def _done(self, order: Order) -> Ended:
        self._begun(order)
        self._say("go")
        return self._ended(int(self._heard()), [])

    def _begun(self, order: Order) -> int:
        self._say(msgspec.json.encode(order).decode())
        return int(self._heard())

    def _ended(self, code: int, seen: list[str]) -> Ended:
        self.server.wait_until_alone()
        lines = self._said.read_text().splitlines() if self._said.exists() else []
        seen = seen or [line.partition(" ")[2] for line in lines if line.startswith("seen ")]
        return Ended(code=code, lines=lines, seen=seen)

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _heard(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """What the run comes to when nothing happens to it, and what it paid for."""

    result: dict[str, Any]
    paid: Counter[str]
    shape: Shape


def played_whole(workers: Workers) -> Whole:
    """Play it with nothing happening to it."""
    workers.begin_anew()
    ended = workers.run()
    assert ended.result is not None, ended.lines[-3:]
    paid = Counter(workers.server.contents)
    return Whole(result=ended.result, paid=paid, shape=shape_of(workers.data))


def expected(whole: Whole, data: Path) -> dict[str, Any]:
    """What a run comes to: the same. An attempt that never arrived costs nothing and is counted."""
    charge = whole.result["charge"]
    with SqliteLedger(data / "ledger.db") as ledger:
        never_arrived = sum(
            isinstance(record, ModelFailed | QueryFailed) and not record.billed
            for row in ledger.runs()
            for record in records_of(ledger, row.run)
        )
    calls = charge["model_calls"] + never_arrived
    return whole.result | {"charge": charge | {"model_calls": calls}}


def check_kept(data: Path, heads: Mapping[str, Head]) -> dict[str, Head]:
    """Everything that was acknowledged is there and holds. Returns where the runs stand."""
    if not heads and not (data / "ledger.db").exists():
        return {}
    with SqliteLedger(data / "ledger.db") as ledger:
        report = verify_ledger(ledger, heads=heads)
        assert report.ok, report.first_bad
        with SqliteAttachments(ledger.file) as kept:
            attachments = verify_attachments(kept)
            assert attachments.ok, attachments.bad
        return {row.run: row.head for row in ledger.runs()}


def check_shown(data: Path, killed: Ended) -> None:
    """What whoever watched was shown of calls and of the end is written: nobody knows of more."""
    said = [line.split()[1:] for line in killed.lines if line.startswith("shown ")]
    shown = Counter((run, tag) for run, tag in said if tag not in RIDING)
    if shown:
        with SqliteLedger(data / "ledger.db") as ledger:
            written = Counter(
                (row.run, tag_of(record))
                for row in ledger.runs()
                for record in records_of(ledger, row.run)
            )
        assert not shown - written, f"shown before it was written: {shown - written}"


def check_written(data: Path, keys: Collection[str]) -> None:
    """Calls that were sent, by their keys: the intent of each stands on the ledger."""
    if not keys:
        return
    begun: set[Place] = set()
    with SqliteLedger(data / "ledger.db") as ledger:
        for row in ledger.runs():
            for record in records_of(ledger, row.run):
                if isinstance(record, AskModel | CallHost | QueryAsked):
                    begun.add((row.run, record.intent, getattr(record, "item", -1)))
    for key in keys:
        assert place_of(key) in begun, f"{key} was sent and is not written"


def go_on(
    workers: Workers, killed: Ended, whole: Whole, *, asked: bool, doubted: Places = frozenset()
) -> Outcome:
    """Go on with a run after its process died, and check everything that was promised.

    `doubted` are the calls that were in doubt after an earlier death.
    """
    server = workers.server
    stood = check_kept(workers.data, killed.heads)
    check_written(workers.data, server.keys)
    check_shown(workers.data, killed)
    before = Counter(server.contents)
    ended = workers.resumed("halt", asked=asked)
    doubt = ended.in_doubt
    if doubt is not None:
        assert not asked, f"the provider could have been asked about {doubt}"
        assert server.contents == before, "something was paid for in spite of the doubt"
        assert check_kept(workers.data, killed.heads) == stood, "something was written"
        doubted |= check_named(workers, doubt)
        ended = workers.resumed("retry")
    elif not doubted:
        assert ended.result == expected(whole, workers.data), ended.lines[-3:]
    check_kept(workers.data, killed.heads | ended.heads)
    check_written(workers.data, server.keys)
    check_paid(server, whole, doubted)
    assert ended.result is not None, ended.lines[-3:]
    assert ended.result["answer"] == whole.result["answer"]
    assert ended.result["replay_held"]
    charged = ended.result["charge"]["usd"]
    # Of what was in doubt, the most that it can have cost is charged.
    assert server.billed == charged or (doubted and server.billed < charged)
    check_shared(workers.data, billed=server.billed, charged=charged)
    assert shape_of(workers.data) == whole.shape
    if "not begun" in ended.lines:
        assert not before
        return "not begun"
    return "went on" if doubt is None else "in doubt"


def check_named(workers: Workers, doubt: Sequence[Mapping[str, Any]]) -> Places:
    """What is in doubt is what is open, all of it: one intent for each run that was under way."""
    named = named_in(doubt)
    assert named == open_places(workers.data)
    assert len({each["run"] for each in doubt}) == len(doubt)
    if workers.subject != "tree":
        assert len(doubt) == 1
    return named


def check_paid(server: PaidServer, whole: Whole, doubted: Places) -> None:
    """Everything was paid for, and nothing twice but what was in doubt before it was made again."""
    assert server.contents.keys() == whole.paid.keys()
    for content, keys in server.keys_of.items():
        for key in keys[:-1]:
            assert place_of(key) in doubted, f"{content} was paid for twice"


def check_shared(data: Path, *, billed: int, charged: int) -> None:
    """What processes share was charged with at least what was billed, and at most what the run was.

    Nothing is held, but for a run that died before its first record. Nobody goes on with that one:
    what it held for the call it was about to make stays a dead owner's until somebody resolves it.
    """
    with SqliteLedger(data / "ledger.db") as ledger, SharedScopes(ledger.file) as scopes:
        begun = {row.run for row in ledger.runs() if row.head.count}
        holds = scopes.holds()
        assert not [hold for hold in holds if hold.row.run in begun or not hold.owner_dead]
        assert len(holds) <= 1
        (row,) = scopes.rows()
        assert billed <= (row.spent.usd or 0) <= charged
        assert row.reserved == (holds[0].row.amount if holds else Amount())
