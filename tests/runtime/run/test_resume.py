"""Resume: a run that was cut off, or stopped, goes on where it was."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.runtime.run.cut_runs import (
    GOAL,
    ROOMY,
    Cancelling,
    SlowLedger,
    Whole,
    World,
    died,
    in_doubt,
    keys_of,
    played,
    reopened,
    without_time,
    world,
)

from tallystick.agent.loop import LoopThread
from tallystick.client import Session
from tallystick.core.chain import Head
from tallystick.core.charge import RunLimits
from tallystick.core.errors import (
    BackendError,
    ReplayDiverged,
    RunNotFound,
    RunNotOwned,
    SandboxError,
    UsageError,
)
from tallystick.core.records import (
    LEFT,
    AskModel,
    ModelFailed,
    ModelRefused,
    ModelReplied,
    ProgramFinished,
    QueryFailed,
    ReceiptIssued,
    Record,
    RunEnded,
    RunResumed,
    RunStarted,
)
from tallystick.core.resume_errors import ResumeDiverged, ResumeRefused, RunInDoubt
from tallystick.core.views.open_calls import open_calls
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import verify_ledger
from tallystick.model.port import ModelError
from tallystick.runtime.calls.functions import host_function
from tallystick.runtime.context.inputs import given_text
from tallystick.runtime.runs.history import whole_records
from tallystick.runtime.runs.result import Run
from tallystick.sandbox.wasm.sandbox import WasmInterpreter, WasmSandbox
from tallystick.testing.ledgers import LastingAttachments, ledger_of
from tallystick.testing.models import ModelCall, block
from tallystick.testing.plans import Planned, planned, program
from tallystick.upkeep.transfer import export_run_with_attachments, import_run_with_attachments

# Randomness, the clock and limits of repeated programs are the guest's.
NEEDS_GUEST = True

PLAN: Sequence[Planned] = (
    program("import random", "n = 20 + fetch('a')", "print(n, random.random())"),
    program("n += send('x') + len(llm_query('what?'))", "print(n)"),
    program(
        "out = llm_query_batched(['a', 'bc', 'def'])", "n += len(out)", "print(out, len(text))"
    ),
    program("FINAL(n + int(random.random() * 100))"),
)
INPUTS = [given_text("x y z")]


@pytest.fixture(scope="module")
def whole(sandbox: WasmSandbox) -> Whole:
    plan = (
        *PLAN[:2],
        program("out = llm_query_batched(['a', 'bc', 'def'])", "print(out)"),
        PLAN[3],
    )
    return played(sandbox, *plan, inputs=INPUTS)


def check_whole(made: World, run: Run, whole: Whole) -> None:
    """It came to what it would have come to, and the record of it is sound."""
    assert run.answer == whole.run.answer
    check_sound(made, run)


def check_sound(made: World, run: Run) -> None:
    assert verify_ledger(made.ledger, [run.run]).first_bad is None
    report = made.session.replay(run.run)
    assert report.held, report.divergence


def only(records: Sequence[Record], kind: type) -> list[Any]:
    return [each for each in records if isinstance(each, kind)]


# -- cut off -----------------------------------------------------------------------------------


def test_from_every_place_it_reaches_the_same_end(whole: Whole, sandbox: WasmSandbox) -> None:
    for at in range(1, len(whole.records) + 1):
        before = whole.records[:at]
        made = whole.cut(sandbox, at)

        run = made.session.resume(whole.id, in_doubt="retry")

        check_whole(made, run, whole)
        assert not set(made.asked) & keys_of(whole.id, before)
        assert made.records(whole.id)[:at] == before
        if not in_doubt(before):
            assert without_time(run.charge) == without_time(whole.run.charge)


def test_variables_randomness_and_the_clock_are_what_they_were(sandbox: WasmSandbox) -> None:
    plan = (
        program("import random, time", "seen = [random.random(), time.time()]", "print(seen)"),
        program("seen += [random.random(), time.time()]", "fetch('a')", "print(seen)"),
        program("seen += [random.random(), time.time()]", "FINAL(seen)"),
    )
    whole = played(sandbox, *plan)
    places = [n for n, each in enumerate(whole.records) if isinstance(each, ProgramFinished)]

    for at in (*places, *(place + 1 for place in places)):
        made = whole.cut(sandbox, at)
        assert made.session.resume(whole.id).answer == whole.run.answer


def test_a_run_that_was_killed_on_a_disk_goes_on_from_its_files(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    dead = died(
        sandbox,
        tmp_path,
        program("n = 1", "print('x' * 70_000)"),
        program("n += len(outputs)", "n += len(llm_query('long one'))", "print(n)"),
        program("FINAL(n)"),
        when=lambda request: len(request.messages) > 5,
        # A reply above what was reserved for it would be the last.
        limits=msgspec.structs.replace(ROOMY, reply_tokens=50_000),
    )
    made = dead.reopened(sandbox)
    with pytest.raises(RunInDoubt):
        made.session.resume(dead.run)

    run = made.session.resume(dead.run, in_doubt="retry")

    assert run.answer == str(1 + 1 + 100_000)
    check_sound(made, run)
    made.session.close()


def test_a_run_goes_on_for_callers_that_await(whole: Whole, sandbox: WasmSandbox) -> None:
    made = whole.cut(sandbox, len(whole.records) // 2)

    run = asyncio.run(made.session.aresume(whole.id, in_doubt="retry"))

    check_whole(made, run, whole)


def test_one_that_nothing_was_written_of_is_refused_in_words(sandbox: WasmSandbox) -> None:
    """Its process died between making it and its first entry."""
    made = world(sandbox, PLAN)
    run = "01M7H9059YPYTCBKVW1YQJBKX4"
    made.ledger.claim(run, create=True)

    with pytest.raises(ResumeRefused, match="before anything of it was written"):
        made.session.resume(run)


# -- has its answer ----------------------------------------------------------------------------


def test_a_run_that_has_its_answer_is_returned_as_it_is(whole: Whole, sandbox: WasmSandbox) -> None:
    row = whole.world.ledger.row(whole.id)
    session = Session(
        ledger=whole.world.ledger,
        attachments=whole.world.session.attachments,
        sandbox=sandbox,
    )

    run = session.resume(whole.id, limits=RunLimits(turns=99), in_doubt="retry")

    assert run == msgspec.structs.replace(whole.run, run=run.run)
    assert whole.world.ledger.row(whole.id) == row


# -- cancelled ---------------------------------------------------------------------------------


Where = Callable[[Cancelling, World], None]


def in_a_call(prompt: str | None) -> Where:
    """When it asks for itself the second time, or when a program asks."""

    def armed(cancelling: Cancelling, made: World) -> None:
        def before(request: ModelCall) -> Any:
            cancelling.watch(request)
            own = request.messages[0].role == "system"
            last = request.messages[-1].text
            if (own and prompt is None and len(request.messages) > 3) or last == prompt:
                cancelling.cancel()
                return asyncio.sleep(20)
            return None

        made.model.before = before

    return armed


WHERE: dict[str, tuple[Where | None, str]] = {
    "its own call": (in_a_call(None), "cancelled"),
    "a query": (in_a_call("what?"), "cancelled"),
    "a batch": (in_a_call("bc"), "cancelled"),
    "a program": (None, "cancelled"),
    "a read": (None, "cancelled"),
    "an effect": (None, "in_doubt"),
}


def cancelled_in(sandbox: WasmSandbox, where: str) -> Whole:
    """A run that was cancelled there. What it calls on the way waits, once."""
    cancelling = Cancelling()
    first = threading.Event()

    def waits() -> None:
        if not first.is_set():
            first.set()
            cancelling.cancel()
            threading.Event().wait(1)

    @host_function(policy="read")
    def read_it() -> int:
        """Read it."""
        waits()
        return 1

    @host_function(policy="effect")
    def do_it() -> int:
        """Do it."""
        waits()
        return 1

    @host_function(policy="read", local=True)
    def once() -> int:
        """Say one."""
        if not first.is_set():
            first.set()
            cancelling.cancel()
        return 1

    busy = 1_000_000 if where == "a program" else 0
    calls = {"a read": "read_it()", "an effect": "do_it()", "a program": "once()"}
    plan = (
        program("n = 1", "print(n)"),
        program(f"i = {calls.get(where, '0')}", f"for _ in range({busy}):\n    pass", "n += 1"),
        program("n += len(llm_query('what?'))", "print(n)"),
        program("n += len(str(llm_query_batched(['a', 'bc', 'def'])))", "print(n)"),
        program("FINAL(n)"),
    )  # fmt: skip
    made = world(sandbox, plan, functions=[read_it, do_it, once])
    armed, _ = WHERE[where]
    made.model.before = cancelling.watch
    if armed is not None:
        armed(cancelling, made)
    run = made.session.run(GOAL, limits=ROOMY)
    return Whole(made, plan, run, made.records(run.run))


@pytest.mark.parametrize("where", WHERE)
def test_a_run_that_was_cancelled_goes_on(sandbox: WasmSandbox, where: str) -> None:
    stopped = cancelled_in(sandbox, where)
    assert stopped.run.stop == WHERE[where][1]
    check_sound(stopped.world, stopped.run)

    functions = list(stopped.world.session.engine.tools)
    made = reopened(stopped, sandbox, stopped.records, instead=functions)
    if where == "an effect":
        with pytest.raises(RunInDoubt):
            made.session.resume(stopped.id)
        assert made.records(stopped.id) == stopped.records
    run = made.session.resume(stopped.id, in_doubt="retry")

    said = "said what?", str(["said a", "said bc", "said def"])
    assert run.answer == str(2 + sum(map(len, said)))
    check_sound(made, run)
    assert not set(made.model.keys) & keys_of(stopped.id, stopped.records)
    left = [each for each in only(made.records(run.run), ModelFailed | QueryFailed)]  # type: ignore[arg-type]
    assert {each.reason for each in left} <= {LEFT}
    if where == "a batch":
        # Those that were under way are charged, and asked once more.
        assert 1 <= len(left) <= 3


def test_a_run_that_was_cancelled_twice_goes_on_all_the_same(sandbox: WasmSandbox) -> None:
    stopped = cancelled_in(sandbox, "a query")
    functions = list(stopped.world.session.engine.tools)
    records = stopped.records
    for prompt in ("what?", "bc", None):
        made = reopened(stopped, sandbox, records, instead=functions)
        cancelling = Cancelling()
        made.session.engine.loop = _Watching(cancelling)
        in_a_call(prompt)(cancelling, made)
        with pytest.raises(RunInDoubt):
            made.session.resume(stopped.id)
        run = made.session.resume(stopped.id, in_doubt="retry")
        assert run.stop == "cancelled"
        check_sound(made, run)
        records = made.records(stopped.id)

    made = reopened(stopped, sandbox, records, instead=functions)
    run = made.session.resume(stopped.id, in_doubt="retry")

    assert run.stop == "answered"
    assert len(only(made.records(run.run), RunEnded)) == 5
    check_sound(made, run)


class _Watching(LoopThread):
    """Knows the task of whatever is done on it."""

    def __init__(self, cancelling: Cancelling) -> None:
        super().__init__()
        self._cancelling = cancelling

    def submit(self, work: Any) -> Any:
        async def watched() -> Any:
            self._cancelling.task = asyncio.current_task()
            self._cancelling.loop = asyncio.get_running_loop()
            return await work

        return super().submit(watched())


def test_a_cancel_while_something_is_being_written_loses_nothing(sandbox: WasmSandbox) -> None:
    plan = (*PLAN[:2], program("out = llm_query_batched(['a', 'bc'])", "print(out)"), PLAN[3])
    whole = played(sandbox, *plan)
    seen: set[str] = set()
    for number in range(2, 99):
        cancelling = Cancelling()
        ledger = SlowLedger(number, cancelling)
        made = world(sandbox, plan, ledger=ledger)
        made.model.before = cancelling.watch
        stopped = made.session.run(GOAL, limits=ROOMY)
        if not ledger.tags:
            break
        seen |= {*ledger.tags}
        check_sound(made, stopped)
        again = world(
            sandbox, plan, ledger=ledger, attachments=made.session.attachments,
            recorded=made.records(stopped.run),
        )  # fmt: skip

        run = again.session.resume(stopped.run, in_doubt="retry")

        check_whole(again, run, whole)
        made.session.close()
        again.session.close()
    assert {"model.replied", "query.replied", "host.call", "host.answered"} <= seen


def test_a_cancelled_call_that_used_up_the_budget_can_be_gone_on_with(
    sandbox: WasmSandbox,
) -> None:
    """Its reservation was all that was left, and it is charged at that."""
    cancelling = Cancelling()
    made = world(sandbox, (program("FINAL(7)"),))

    def before(request: ModelCall) -> Any:
        cancelling.watch(request)
        cancelling.cancel()
        return asyncio.sleep(20)

    made.model.before = before
    stopped = made.session.run(GOAL, limits=RunLimits(tokens=3_000))
    check_sound(made, stopped)
    made.model.before = lambda request: None

    run = made.session.resume(stopped.run, limits=ROOMY, in_doubt="retry")

    assert run.answer == "7"
    check_sound(made, run)


# -- stopped by a cap --------------------------------------------------------------------------


CAPS: dict[str, tuple[RunLimits, RunLimits, str]] = {
    "turns": (RunLimits(turns=2), RunLimits(turns=9), "max_turns"),
    "no turns": (RunLimits(turns=0), RunLimits(turns=9), "max_turns"),
}


@pytest.mark.parametrize("cap", CAPS)
def test_a_run_at_its_cap_is_refused_until_that_is_higher(
    whole: Whole, sandbox: WasmSandbox, cap: str
) -> None:
    low, high, stop = CAPS[cap]
    stopped = played(sandbox, *whole.plan, limits=low, inputs=INPUTS)
    assert stopped.run.stop == stop
    made = reopened(stopped, sandbox, stopped.records)
    row = made.ledger.row(stopped.id)

    with pytest.raises(ResumeRefused) as caught:
        made.session.resume(stopped.id)
    assert "at its cap" in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(ResumeRefused):
        made.session.resume(stopped.id, limits=msgspec.structs.replace(low, retries=7))
    assert made.ledger.row(stopped.id) == row

    run = made.session.resume(stopped.id, limits=high)

    assert run.stop == "answered"
    check_sound(made, run)
    (resumed,) = only(made.records(run.run), RunResumed)
    assert resumed.limits == high


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (RunLimits(tokens=6_000, reply_tokens=500), ROOMY),
        (
            RunLimits(tokens=10_000_000, usd=3_000_000, reply_tokens=500),
            RunLimits(tokens=10_000_000, usd=900_000_000),
        ),
        (RunLimits(tokens=10_000_000, model_calls=1), ROOMY),
    ],
)
def test_a_call_that_no_cap_pays_for_is_made_once_one_does(
    sandbox: WasmSandbox, low: RunLimits, high: RunLimits
) -> None:
    plan = [program(f"n = {n}", "print('x' * 900)") for n in range(9)]
    stopped = played(sandbox, *plan, program("FINAL(n)"), limits=low)
    assert stopped.run.stop == "budget"
    made = reopened(stopped, sandbox, stopped.records)

    # It may be that somebody else's cap was in the way: it is tried, and refused, and free.
    again = made.session.resume(stopped.id)
    assert (again.stop, made.asked) == ("budget", [])
    assert again.charge.tokens_in == stopped.run.charge.tokens_in
    check_sound(made, again)

    run = made.session.resume(stopped.id, limits=high)

    assert run.answer == "8"
    assert without_time(run.charge).turns == 10
    receipt = only(made.records(run.run), ReceiptIssued)[-1].receipt
    assert receipt.usd_cap == high.usd
    assert only(made.records(run.run), ModelRefused)
    check_sound(made, run)


def test_the_caps_of_a_resume_are_in_force_and_are_for_the_whole_run(
    whole: Whole, sandbox: WasmSandbox
) -> None:
    made = whole.cut(sandbox, len(whole.records) // 2)
    used = 2

    run = made.session.resume(whole.id, in_doubt="retry", limits=RunLimits(turns=used + 1))

    assert (run.stop, run.charge.turns) == ("max_turns", used + 1)
    check_sound(made, run)


def test_lower_caps_than_what_is_spent_stop_it_at_once(whole: Whole, sandbox: WasmSandbox) -> None:
    place = next(n for n, each in enumerate(whole.records) if isinstance(each, AskModel) and n > 9)
    made = whole.cut(sandbox, place)

    run = made.session.resume(whole.id, limits=RunLimits(tokens=10))

    assert (run.stop, made.asked) == ("budget", [])
    check_sound(made, run)


def test_a_run_may_be_gone_on_with_as_often_as_it_stops(sandbox: WasmSandbox) -> None:
    plan = (program("n = 0", "print(n)"), *(program("n += 1", "print(n)") for _ in range(4)))
    stopped = played(sandbox, *plan, limits=RunLimits(turns=1))
    made = stopped.world
    for turns in range(2, 6):
        run = made.session.resume(stopped.id, limits=RunLimits(turns=turns))
        assert (run.stop, run.charge.turns) == ("max_turns", turns)
        check_sound(made, run)

    run = made.session.resume(stopped.id, limits=RunLimits())

    assert run.answer == "4"
    assert len(only(made.records(run.run), RunResumed)) == 5
    check_sound(made, run)


# -- out of time -------------------------------------------------------------------------------


def slow(request: ModelCall) -> Any:
    return asyncio.sleep(20) if request.messages[0].role == "system" else None


@pytest.mark.parametrize("where", ["a call", "a program", "a host call", "a query"])
def test_a_run_that_was_out_of_time_goes_on_with_more(sandbox: WasmSandbox, where: str) -> None:
    @host_function(policy="read")
    async def wait() -> int:
        """Wait long, once."""
        if not waited.is_set():
            waited.set()
            await asyncio.sleep(20)
        return 1

    waited = threading.Event()
    sources = {
        "a program": "while True:\n    pass",
        "a host call": "wait()",
        "a query": "llm_query('slow')",
    }
    plan = (program("n = 5", sources.get(where, "n")), program("FINAL(7)"))
    made = world(sandbox, plan, functions=[wait])

    def before(request: ModelCall) -> Any:
        late = where == "a call" if request.messages[0].role == "system" else True
        return asyncio.sleep(20) if late else None

    made.model.before = before
    stopped = made.session.run(GOAL, limits=RunLimits(wall_ms=300))
    assert stopped.stop == "deadline", stopped.detail
    check_sound(made, stopped)
    with pytest.raises(ResumeRefused, match="300 ms passed"):
        made.session.resume(stopped.run)
    made.model.before = lambda request: None

    run = made.session.resume(stopped.run, limits=RunLimits(wall_ms=60_000))

    assert run.answer == "7"
    check_sound(made, run)


# -- stopped otherwise -------------------------------------------------------------------------


def test_a_model_that_failed_is_asked_again(sandbox: WasmSandbox) -> None:
    made = world(sandbox, (program("n = 1", "print(n)"), program("FINAL(n + 6)")))

    def denied(request: ModelCall) -> None:
        if len(request.messages) > 2:
            raise ModelError(reason="auth_failure", message="no key", billed=False)

    made.model.before = denied
    stopped = made.session.run(GOAL)
    assert stopped.stop == "model_error"
    made.model.before = lambda request: None

    run = made.session.resume(stopped.run)

    assert run.answer == "7"
    assert [each.turn for each in only(made.records(run.run), AskModel)] == [1, 2, 2]
    check_sound(made, run)


def test_a_sandbox_that_broke_runs_the_program_again(
    sandbox: WasmSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = world(sandbox, (program("n = 1 + fetch('a')", "print(n)"), program("FINAL(n)")))

    async def broken(self: WasmInterpreter, *args: object, **more: object) -> None:
        raise SandboxError("it broke")

    with monkeypatch.context() as patch:
        patch.setattr(WasmInterpreter, "execute", broken)
        stopped = made.session.run(GOAL)
        assert stopped.stop == "sandbox_error"
        # It is still broken: nothing is written.
        row = made.ledger.row(stopped.run)
        with pytest.raises(BackendError):
            made.session.resume(stopped.run)
        assert made.ledger.row(stopped.run).head == row.head  # type: ignore[union-attr]

    run = made.session.resume(stopped.run)

    assert run.answer == "4"
    check_sound(made, run)


@pytest.mark.parametrize(
    ("stop", "said"),
    [
        ("no_progress", ["Hm.", "Well.", "So."]),
        ("no_progress", [block("print(1)")] * 3),
        ("refused", ["RUN(ls)\n\nRUN(ls)\n\nRUN(ls)"]),
    ],
)
def test_a_run_that_got_nowhere_goes_on(sandbox: WasmSandbox, stop: str, said: list[str]) -> None:
    stopped = played(sandbox, *map(Planned, said), program("FINAL(7)"))
    assert stopped.run.stop == stop

    run = stopped.world.session.resume(stopped.id)

    assert run.answer == "7"
    check_sound(stopped.world, run)


def test_who_watches_a_resume_and_fails_ends_it_written_down(
    whole: Whole, sandbox: WasmSandbox
) -> None:
    made = whole.cut(sandbox, 8)

    def watch(run: str, record: Record) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        made.session.resume(whole.id, in_doubt="retry", watch=watch)
    (ended,) = only(made.records(whole.id), RunEnded)
    assert ended.stop == "cancelled"
    assert made.session.replay(whole.id).held

    again = reopened(whole, sandbox, made.records(whole.id))
    run = again.session.resume(whole.id, in_doubt="retry")

    check_whole(again, run, whole)


def test_a_cancel_before_anything_is_new_writes_nothing(whole: Whole, sandbox: WasmSandbox) -> None:
    """Programs that are run again can be left: the run is as it was."""
    cancelling = Cancelling()
    source = "for i in range(3):\n    n += fetch(str(i))\nprint(n)"

    @host_function(policy="read", local=True)
    def look() -> int:
        """Look."""
        return 1

    plan = (program("n = look()", source), program("print(n)"), program("FINAL(n)"))
    made = played(sandbox, *plan, functions=[look])
    place = next(n for n, each in enumerate(made.records) if isinstance(each, ProgramFinished))
    again = made.cut(sandbox, place, functions=[look])
    row = again.ledger.row(made.id)
    execute = WasmInterpreter.execute

    async def cancelled(self: WasmInterpreter, *args: Any, **more: Any) -> Any:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return await execute(self, *args, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WasmInterpreter, "execute", cancelled)
        with pytest.raises((asyncio.CancelledError, BaseException)) as caught:
            again.session.resume(made.id)
    assert "Cancelled" in type(caught.value).__name__
    assert again.ledger.row(made.id).head == row.head  # type: ignore[union-attr]
    assert cancelling.task is None

    assert again.session.resume(made.id).answer == made.run.answer


# -- refused -----------------------------------------------------------------------------------


def test_a_run_that_is_not_there_is_not_found(sandbox: WasmSandbox) -> None:
    with pytest.raises(RunNotFound):
        world(sandbox, PLAN).session.resume("01M7H9059YPYTCBKVW1YQJBKX4")


def test_another_model_does_not_go_on_with_it(whole: Whole, sandbox: WasmSandbox) -> None:
    made = whole.cut(sandbox, 5)
    made.session.use(planned(whole.plan, name="fake:other"))
    row = made.ledger.row(whole.id)

    with pytest.raises(ResumeRefused, match=r"asks fake:model, and this is fake:other"):
        made.session.resume(whole.id)

    assert made.ledger.row(whole.id) == row


@pytest.mark.parametrize("field", ["guest", "engine"])
def test_another_sandbox_does_not_go_on_with_it(
    whole: Whole, sandbox: WasmSandbox, field: str
) -> None:
    started = msgspec.structs.replace(whole.records[0], **{field: "0" * 64})
    made = reopened(whole, sandbox, [started, *whole.records[1:5]])

    with pytest.raises(ResumeRefused, match="another version of the sandbox"):
        made.session.resume(whole.id)

    assert len(made.records(whole.id)) == 5


def test_other_prompts_do_not_go_on_with_it(whole: Whole, sandbox: WasmSandbox) -> None:
    started = msgspec.structs.replace(whole.records[0], template="python@1")
    made = reopened(whole, sandbox, [started, *whole.records[1:5]])

    with pytest.raises(ResumeRefused, match="made with the prompts python@1"):
        made.session.resume(whole.id)

    assert len(made.records(whole.id)) == 5


def test_functions_that_are_missing_are_named(whole: Whole, sandbox: WasmSandbox) -> None:
    ledger = ledger_of(whole.id, whole.records[:5])
    session = Session(
        model=planned(whole.plan),
        ledger=ledger,
        sandbox=sandbox,
        attachments=whole.world.session.attachments,
    )

    with pytest.raises(UsageError, match="send, post, note, page, fetch, hang"):
        session.resume(whole.id)

    assert ledger.row(whole.id).head.count == 5  # type: ignore[union-attr]


def test_a_model_that_programs_wait_for_and_that_is_missing_is_named(
    sandbox: WasmSandbox,
) -> None:
    other = planned((), name="fake:other")
    whole = played(
        sandbox,
        program("n = len(llm_query('one', model='fake:other'))", "print(n)"),
        models={"fake:other": other},
    )
    place = next(
        n for n, each in enumerate(whole.records) if open_calls(whole.records[: n + 1]) and n > 3
    )
    made = whole.cut(sandbox, place + 1)
    row = made.ledger.row(whole.id)

    with pytest.raises(UsageError, match="fake:other"):
        made.session.resume(whole.id, in_doubt="retry")
    assert made.ledger.row(whole.id).head == row.head  # type: ignore[union-attr]

    again = whole.cut(sandbox, place + 1, models={"fake:other": other})
    assert again.session.resume(whole.id, in_doubt="retry").answer == whole.run.answer


def test_a_copy_and_a_run_that_was_moved_are_not_gone_on_with(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    stopped = played(
        sandbox, *PLAN[:2], limits=RunLimits(turns=1), ledger=SqliteLedger(tmp_path / "a.db")
    )
    ledger, kept = stopped.world.ledger, stopped.world.session.attachments
    assert isinstance(ledger, SqliteLedger)
    copied, moved = io.BytesIO(), io.BytesIO()
    export_run_with_attachments(ledger, kept, stopped.id, copied)
    elsewhere = world(sandbox, stopped.plan, ledger=SqliteLedger(tmp_path / "b.db"))
    copied.seek(0)
    import_run_with_attachments(elsewhere.ledger, elsewhere.session.attachments, copied)  # type: ignore[arg-type]

    with pytest.raises(RunNotOwned, match="is a copy"):
        elsewhere.session.resume(stopped.id, limits=ROOMY)

    export_run_with_attachments(ledger, kept, stopped.id, moved, move=True)
    with pytest.raises(RunNotOwned, match="was moved away"):
        stopped.world.session.resume(stopped.id, limits=ROOMY)
    assert whole_records(ledger, stopped.id) == stopped.records


@pytest.mark.parametrize("at", [12, None])
def test_a_run_that_was_moved_goes_on_where_it_was_imported(
    sandbox: WasmSandbox, tmp_path: Path, at: int | None
) -> None:
    """In the middle of a program, or after a cap; its attachments come with it."""
    plan = (
        program("n = len(context)", "print('x' * 70_000)"),
        program("n += len(outputs)", "n += len(llm_query('long one'))", "print(n)"),
        program("FINAL(n + len(outputs[0]))"),
    )
    here = SqliteLedger(tmp_path / "here.db")
    stopped = played(
        sandbox, *plan, limits=RunLimits(turns=2, tokens=10_000_000), ledger=here, inputs=INPUTS
    )
    assert stopped.run.stop == "max_turns"
    moved = io.BytesIO()
    export_run_with_attachments(
        here, stopped.world.session.attachments, stopped.id, moved, move=True
    )
    moved.seek(0)
    made = world(
        sandbox, plan, ledger=SqliteLedger(tmp_path / "there.db"), recorded=stopped.records
    )
    import_run_with_attachments(made.ledger, made.session.attachments, moved)  # type: ignore[arg-type]

    run = made.session.resume(stopped.id, limits=ROOMY)

    assert run.answer == str(5 + 1 + 100_000 + 70_001)
    check_sound(made, run)


# -- something else ----------------------------------------------------------------------------


def other_reply(record: Record) -> Record:
    if isinstance(record, ModelReplied):
        return msgspec.structs.replace(record, text=record.text.replace("20", "21"))
    return record


def other_output(record: Record) -> Record:
    if isinstance(record, ProgramFinished):
        return msgspec.structs.replace(record, stdout="another")
    return record


def other_fuel(record: Record) -> Record:
    if isinstance(record, ProgramFinished):
        return msgspec.structs.replace(record, fuel=record.fuel + 1)
    return record


def other_request(record: Record) -> Record:
    if isinstance(record, AskModel) and record.turn == 2:
        return msgspec.structs.replace(record, request_sha256="0" * 64)
    return record


def other_goal(record: Record) -> Record:
    return msgspec.structs.replace(record, goal="!") if isinstance(record, RunStarted) else record


@pytest.mark.parametrize(
    "changed", [other_reply, other_output, other_fuel, other_request, other_goal]
)
def test_a_record_that_says_something_else_is_not_gone_on_from(
    whole: Whole, sandbox: WasmSandbox, changed: Callable[[Record], Record]
) -> None:
    """Its chain holds: somebody wrote it so, or another version of this did."""
    records = [changed(each) for each in whole.records[:12]]
    assert records != whole.records[:12]
    made = reopened(whole, sandbox, records)
    before = made.ledger.row(whole.id)

    with pytest.raises(ReplayDiverged) as caught:
        made.session.resume(whole.id, in_doubt="retry")

    assert "\n" not in str(caught.value)
    assert made.asked == []
    after = made.ledger.row(whole.id)
    assert after is not None
    assert before is not None
    assert after.head == before.head


def test_an_answer_to_another_call_is_not_served(whole: Whole, sandbox: WasmSandbox) -> None:
    records = list(whole.records)
    place = next(n for n, each in enumerate(records) if getattr(each, "name", "") == "fetch")
    records[place] = msgspec.structs.replace(records[place], request_sha256="0" * 64)
    made = reopened(whole, sandbox, records[: place + 1])

    with pytest.raises(ReplayDiverged, match="request"):
        made.session.resume(whole.id)

    assert made.records(whole.id) == records[: place + 1]


def test_a_difference_says_where_it_is_and_what_was_recorded(
    whole: Whole, sandbox: WasmSandbox
) -> None:
    made = reopened(whole, sandbox, [other_output(each) for each in whole.records[:8]])

    with pytest.raises(ResumeDiverged) as caught:
        made.session.resume(whole.id)

    place = next(n for n, each in enumerate(whole.records) if isinstance(each, ProgramFinished))
    error = caught.value
    assert (error.index, error.field, error.recorded) == (place, "stdout", "another")
    assert f"entry {place}: stdout was 'another'" in str(error)


def test_a_chain_that_does_not_hold_is_refused_before_anything_is_run(
    whole: Whole, sandbox: WasmSandbox
) -> None:
    made = whole.cut(sandbox, 12)
    assert isinstance(made.ledger, MemoryLedger)
    entries = made.ledger._entries[whole.id]
    body = entries[2].body
    assert body is not None
    entries[2] = msgspec.structs.replace(entries[2], body=body.replace(b"20", b"21"))

    with pytest.raises(ResumeRefused, match="does not hold at entry 2"):
        made.session.resume(whole.id)


def test_a_step_chain_is_not_resumed_as_a_run(sandbox: WasmSandbox) -> None:
    from tallystick import step

    made = world(sandbox, (program("FINAL(7)"),))

    @step
    def ask() -> Run:
        return made.session.run(GOAL)

    run = ask()
    assert run.parent is not None

    with pytest.raises(UsageError, match="holds steps"):
        made.session.resume(run.parent)


def test_attachments_that_are_gone_stop_it_before_anything_is_written(
    whole: Whole, sandbox: WasmSandbox
) -> None:
    records = whole.records[:5]
    made = world(
        sandbox, whole.plan, ledger=ledger_of(whole.id, records), recorded=records,
        attachments=LastingAttachments(),
    )  # fmt: skip

    with pytest.raises(Exception, match="attachment"):
        made.session.resume(whole.id)

    assert made.records(whole.id) == records
    assert Head.of_nothing().count == 0
