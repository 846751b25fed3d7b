"""Several lives of one program: a ledger that can be cut anywhere, a provider that remembers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tallystick.attachments.memory import MemoryAttachments
from tallystick.client import Session
from tallystick.core.chain import Draft, Head
from tallystick.core.records import (
    Record,
    RunEnded,
    RunStarted,
    StepEntered,
    StepLeft,
    StepReceipt,
    decode_record,
)
from tallystick.core.views.open_calls import NOT_RECEIVED
from tallystick.core.views.receipt import step_lines
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.port import Ledger
from tallystick.runtime.context.inputs import given_text
from tallystick.runtime.runs.history import records_of, runs_inside
from tallystick.runtime.runs.result import Run
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.steps.decorator import step, step_log
from tallystick.testing.models import (
    NANO_IN,
    NANO_OUT,
    PRICING,
    AnswerTo,
    ModelCall,
    ModelDouble,
    block,
    reported,
)

TOKENS_IN, TOKENS_OUT = 100, 10
CALL_TOKENS = TOKENS_IN + TOKENS_OUT
CALL_NANO = TOKENS_IN * NANO_IN + TOKENS_OUT * NANO_OUT
Program = Callable[[Session], object]
_TASK = re.compile(r"task (\w+) in (\d+)")


class JournalLedger(MemoryLedger):
    """Remembers what was written in which order, so that it can be cut behind any of it."""

    def __init__(self) -> None:
        super().__init__()
        self.journal: list[tuple[str, Sequence[Draft]]] = []

    def submit(self, run: str, drafts: Any, **more: Any) -> tuple[Head, Future[None]]:
        head, future = super().submit(run, drafts, **more)
        if future.exception() is None:
            self.journal.append((run, drafts))
        return head, future

    def cut(self, at: int) -> JournalLedger:
        """A ledger that has the first writes only, as if the process had died behind them."""
        made = JournalLedger()
        heads: dict[str, Head] = {}
        fences: dict[str, int] = {}
        for run, drafts in self.journal[:at]:
            if run not in fences:
                fences[run], heads[run] = made.claim(run, create=True), Head.of_nothing()
            heads[run], _ = made.submit(
                run, drafts, expected=heads[run], fence=fences[run], forced=False
            )
        return made

    def where(self, found: Callable[[str, Record], bool]) -> int:
        """The place behind the first write that has such a record."""
        for place, (run, drafts) in enumerate(self.journal):
            if any(found(run, decode_record(each.body)) for each in drafts):
                return place + 1
        raise AssertionError("no such record")


def task_program(call: ModelCall) -> str:
    """Return the program of a turn of `task NAME in N`, which answers `NAME done` in turn N."""
    task = _TASK.search(call.text)
    assert task is not None
    name, turns = task[1], int(task[2])
    last = f"FINAL('{name} ' + 'done')"
    return block(last if call.turn + 1 >= turns else f"print('turn', {call.turn + 1})")


def tasks(answers: AnswerTo = task_program, **more: Any) -> ModelDouble:
    """A model that does tasks. Each of its calls costs the same."""
    return ModelDouble(answers, usage=reported(TOKENS_IN, TOKENS_OUT), **more)


def provider(answers: AnswerTo = task_program, **more: Any) -> ModelDouble:
    """The same, which can also be asked for its earlier replies."""
    made = tasks(answers, **more)
    made.lookup_reply = lambda key: made.replies.get(key, NOT_RECEIVED)
    return made


@dataclass
class Lives:
    """A ledger, its attachments and a provider that outlive the sessions of one program."""

    sandbox: WasmSandbox
    ledger: Ledger = field(default_factory=JournalLedger)
    provider: ModelDouble = field(default_factory=provider)
    attachments: MemoryAttachments = field(default_factory=MemoryAttachments)

    def session(self, **more: Any) -> Session:
        given: dict[str, Any] = {"pricing": PRICING, "model": self.provider, **more}
        if isinstance(self.ledger, MemoryLedger):
            given["attachments"] = self.attachments
        return Session(config=None, ledger=self.ledger, sandbox=self.sandbox, **given)

    def cut(self, at: int) -> Lives:
        """The same world after the process had died behind a write."""
        assert isinstance(self.ledger, JournalLedger)
        after = provider(name=self.provider.name)
        after.replies = dict(self.provider.replies)
        return Lives(
            sandbox=self.sandbox,
            ledger=self.ledger.cut(at),
            provider=after,
            attachments=self.attachments,
        )

    @contextmanager
    def resumed(self, **more: Any) -> Iterator[Session]:
        """A session in which the next outermost step goes on with the only chain."""
        with self.session() as session, step_log(), session.resume_steps(self.chain, **more):
            yield session

    @property
    def chain(self) -> str:
        (chain,) = chains_in(self.ledger)
        return chain


def chains_in(ledger: Ledger) -> list[str]:
    return [
        row.run
        for row in ledger.runs()
        if isinstance(next(records_of(ledger, row.run), None), StepEntered)
    ]


def told(ledger: Ledger, chain: str) -> list[str]:
    """The records of a chain, shortly."""
    said = []
    for record in records_of(ledger, chain):
        if isinstance(record, StepEntered):
            said.append(f"+{record.path}{'' if record.note is None else ' noted'}")
        elif isinstance(record, StepLeft):
            said.append(f"-{record.receipt.path} {record.receipt.status}")
    return said


# -- what tests do with them ---------------------------------------------------------------------


def begin(lives: Lives, program: Program, **more: Any) -> object:
    """The first life of a program."""
    with lives.session(**more) as session, step_log():
        return program(session)


def resume(lives: Lives, program: Program, **more: Any) -> object:
    with lives.resumed(**more) as session:
        return program(session)


def journal(lives: Lives) -> JournalLedger:
    assert isinstance(lives.ledger, JournalLedger)
    return lives.ledger


def left(path: str) -> Callable[[str, Record], bool]:
    """That a step was left."""
    return lambda _, record: isinstance(record, StepLeft) and record.receipt.path == path


def receipts(lives: Lives) -> dict[str, StepReceipt]:
    """The receipts that count."""
    lines = step_lines(records_of(lives.ledger, lives.chain))
    return {line.path: line.receipt for line in lines if line.receipt is not None}


def runs_of(lives: Lives) -> dict[str, RunEnded | None]:
    """The runs by their goals, and how they ended."""
    found: dict[str, RunEnded | None] = {}
    for run in runs_inside(lives.ledger, lives.chain):
        records = list(records_of(lives.ledger, run))
        assert isinstance(records[0], RunStarted)
        found[records[0].goal] = records[-1] if isinstance(records[-1], RunEnded) else None
    return found


def paid(lives: Lives) -> tuple[int, int]:
    """What the outermost step has cost, as its receipt says: calls, and nano-dollars."""
    (root,) = (each for path, each in receipts(lives).items() if "/" not in path)
    return root.llm_calls, root.usd


class Trip:
    """Three steps in one: a run of three turns, and one of one turn that is asked for twice."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def __call__(self, session: Session) -> object:
        @step
        def pack(what: str) -> str | None:
            self.called.append(f"pack {what}")
            return session.run(f"task {what} in 1").answer

        @step
        def travel() -> dict[str, object]:
            self.called.append("travel")
            run = session.run("task far in 3", inputs=[given_text("a map")])
            return {"run": run, "turns": [run.turns, 0.5, None]}

        @step("the trip")
        def trip() -> list[object]:
            self.called.append("trip")
            found = travel()
            assert isinstance(found["run"], Run)
            return [pack("bag"), found["run"].answer, found["turns"], pack("more")]

        return trip()
