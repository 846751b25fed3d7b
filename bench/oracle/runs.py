"""One run of a task by a strategy, through the real runtime, and what came of it.

The charge is what the runtime has counted, call by call; the bill is the model's own. They are kept
apart until they are compared.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from bench.oracle.oracle import (
    NAME,
    SETTINGS,
    Faults,
    OracleModel,
    Reader,
    latency_ms,
)
from bench.oracle.root import written
from bench.oracle.tasks import Task, task_of

from tallystick.client import Session
from tallystick.core.charge import RunLimits
from tallystick.core.errors import UsageError
from tallystick.core.records import (
    ChildEnded,
    ModelFailed,
    ModelReplied,
    QueryAsked,
    QueryFailed,
    QueryReplied,
    Record,
    RunStarted,
)
from tallystick.core.strategy import AskedStrategy
from tallystick.ledger.memory import MemoryLedger
from tallystick.model.price_table import PriceTable, Pricing
from tallystick.runtime.context.inputs import given_text
from tallystick.sandbox.wasm.sandbox import WasmSandbox

__all__ = ["Case", "Outcome", "cap_of", "ran"]

_FAULTS = Faults()
# No other limit is to end a run before its cap in dollars does.
_TOKENS_MAX, _WALL_MS_MAX = 10**9, 3_600_000
_FAILED_MS = 200
_Attempt = ModelReplied | ModelFailed | QueryReplied | QueryFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is to be run. `usd` is its cap in nano-dollars."""

    kind: str
    tokens: int
    seed: int
    strategy: AskedStrategy
    setting: str
    usd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of it. Money is in nano-dollars; `refused` says why it could not be begun.

    `charged` is all that the runtime has counted; of this, `reserved` is for attempts of which
    nobody knows what they cost. `billed` and `unknown` are the model's bill for the same two.
    """

    case: Case
    refused: str = ""
    strategy: str = ""
    answer: str = ""
    score: float = 0.0
    stop: str = ""
    turns: int = 0
    calls: int = 0
    charged: int = 0
    reserved: int = 0
    billed: int = 0
    unknown: int = 0
    virtual_ms: int = 0


def cap_of(tokens: int) -> int:
    """A cap that pays for reading a text six times, and for what is reserved beside."""
    return 6 * tokens * SETTINGS["fading"].nano_in + 10**8


def pricing_of(setting: str) -> Pricing:
    """The prices of a setting as somebody would declare them, in dollars for a million tokens."""
    priced = SETTINGS[setting]
    usd = {"input": f"{priced.nano_in / 1000}", "output": f"{priced.nano_out / 1000}"}
    return Pricing(declared=PriceTable.of_user({NAME: usd}))


def ran(case: Case, sandbox: WasmSandbox, *, faults: Faults = _FAULTS) -> Outcome:
    """Run it: a session of its own, the real sandbox, budget and prices."""
    task = task_of(case.kind, case.tokens, case.seed)
    model = _model(task, case, faults)
    seen = _Seen()
    limits = RunLimits(tokens=_TOKENS_MAX, wall_ms=_WALL_MS_MAX, usd=case.usd)
    pricing = pricing_of(case.setting)
    with Session(
        config=None,
        model=model,
        ledger=MemoryLedger(),
        sandbox=sandbox,
        pricing=pricing,
        # What the oracle says depends on every letter of the prompt, and prompts tell the time.
        clock="fixed",
    ) as session:
        try:
            run = session.run(
                task.question,
                inputs=[given_text(task.text)],
                limits=limits,
                strategy=case.strategy,
                watch=seen.note,
            )
        except UsageError as error:
            return Outcome(case=case, refused=str(error))
    return Outcome(
        case=case,
        strategy=seen.strategy,
        answer=run.answer or "",
        score=task.score(run.answer or "") if run.answered else 0.0,
        stop=run.stop,
        turns=run.turns,
        calls=run.charge.model_calls,
        charged=run.charge.usd or 0,
        reserved=seen.reserved,
        billed=model.billed,
        unknown=model.unknown,
        virtual_ms=seen.took(run.run),
    )


def _model(task: Task, case: Case, faults: Faults) -> OracleModel:
    reader = Reader(meanings=task.meanings, setting=SETTINGS[case.setting], faults=faults)
    return OracleModel(reader=reader, root=written, seed=case.seed)


@dataclass(slots=True)
class _Seen:
    """What the records of a run and of the runs inside it say of money and time."""

    strategy: str = ""
    reserved: int = 0
    # By run: its turns, one after the other; its programs' calls by host call and place.
    turns: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    calls: dict[str, dict[tuple[int, int], int]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(int))
    )

    def note(self, run: str, record: Record) -> None:
        if isinstance(record, RunStarted):
            self.strategy = self.strategy or record.strategy
        elif isinstance(record, QueryAsked):
            self.calls[run][record.intent, record.item] += record.wait_ms
        elif isinstance(record, ChildEnded):
            self.calls[run][record.intent, record.item] += self.took(record.run)
        elif isinstance(record, _Attempt):
            settled = record.settled
            if settled is not None and settled.figures == "reserved":
                self.reserved += settled.usd or 0
            took = _FAILED_MS
            if isinstance(record, ModelReplied | QueryReplied):
                took = latency_ms(record.usage.tokens_in, record.usage.tokens_out)
            if isinstance(record, QueryReplied | QueryFailed):
                self.calls[run][record.intent, record.item] += took
            else:
                self.turns[run] += took

    def took(self, run: str) -> int:
        """Virtual milliseconds on the longest way: the calls of a batch run side by side."""
        longest: dict[int, int] = defaultdict(int)
        for (intent, _), took in self.calls[run].items():
            longest[intent] = max(longest[intent], took)
        return self.turns[run] + sum(longest.values())
