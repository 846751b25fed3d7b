"""The sandbox of plain Python does what a run needs of a sandbox, and nothing is about a guest."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tallystick.core.errors import ReplayDiverged, SnapshotMismatch
from tallystick.core.records import ProgramFinished
from tallystick.runtime.calls.functions import host_function
from tallystick.runtime.context.inputs import given_text
from tallystick.sandbox.host import HostFunction, HostTable
from tallystick.sandbox.port import ExecutionContext, ExecutionResult, Host, Limits, Rerun
from tallystick.testing.models import ModelDouble, block, programs
from tallystick.testing.runs import ROOMY, play
from tallystick.testing.sandbox import FUEL_PER_STEP, PlainSandbox, PlainSession


def _fail() -> None:
    raise LookupError("nothing there")


async def _never() -> None:
    await asyncio.Event().wait()


HOST = HostTable(
    [
        HostFunction(name="echo", function=lambda value: value, local=True),
        HostFunction(name="fail", function=_fail, local=True),
        HostFunction(name="never", function=_never),
        HostFunction(name="mail.count", function=lambda: 3),
    ],
    answering=True,
)


class Interpreter:
    """One session, with a method that runs a program to its end."""

    def __init__(self, **more: Any) -> None:
        self.sandbox = PlainSandbox(**more)
        self.session: PlainSession = asyncio.run(self.sandbox.open(session_id="S"))

    def run(self, source: str, *, host: Host = HOST, **context: Any) -> ExecutionResult:
        given = ExecutionContext(session_id="S", **context)
        return asyncio.run(self.session.execute(source, context=given, host=host))


def test_a_program_prints_and_has_the_value_of_its_last_line() -> None:
    result = Interpreter().run("import sys\nprint('out')\nprint('err', file=sys.stderr)\n6 * 7")

    assert (result.stdout, result.stderr, result.value) == ("out\n", "err\n", "42")
    assert result.succeeded
    assert result.charge.fuel % FUEL_PER_STEP == 0 < result.charge.fuel


def test_variables_stay_and_host_functions_are_called() -> None:
    made = Interpreter()

    made.run("kept = echo([1]) + [mail.count()]")
    result = made.run("kept")

    assert result.value == "[1, 3]"
    assert made.sandbox.programs == ["kept = echo([1]) + [mail.count()]", "kept"]


def test_errors_of_the_host_and_of_the_program_are_results() -> None:
    made = Interpreter()

    caught = made.run("try:\n    fail()\nexcept HostError as error:\n    print(error.kind)")
    raised = made.run("def f():\n    return {}['k']\nf()")
    ended = made.run("raise SystemExit(3)")
    unfinished = made.run("x = (")

    assert caught.stdout == "LookupError\n"
    assert raised.error is not None
    assert (raised.error.kind, raised.error.message, raised.exit_code) == ("KeyError", "'k'", 1)
    assert "line 2, in f" in raised.error.traceback
    assert "testing/sandbox.py" not in raised.error.traceback
    assert (ended.exit_code, unfinished.error and unfinished.error.kind) == (3, "SyntaxError")


def test_an_answer_is_in_the_metadata_as_the_guest_gives_it() -> None:
    made = Interpreter()

    assert made.run("FINAL({'n': 1})").metadata["answer"] == '{"n":1}'
    assert made.run("x = 5").metadata["assigned"] == ("x", "5")
    assert made.run("FINAL_VAR('x')").metadata["answer"] == "5"
    assert made.run("FINAL = 3").metadata == {"backend": "wasm", "assigned": ("FINAL", "3")}
    assert made.run("SHOW_VARS()").value == "'Variables: x: int'"


def test_a_program_may_await() -> None:
    assert Interpreter().run("import asyncio\nawait asyncio.sleep(0)\n1").value == "1"


@pytest.mark.parametrize(
    ("source", "context", "stop"),
    [
        ("while True: pass", {"limits": Limits(fuel=2_000 * FUEL_PER_STEP)}, "fuel"),
        ("while True: pass", {"timeout_ms": 20}, "wall"),
        ("while True: pass", {"deadline_ms": 20}, "deadline"),
        ("never()", {"deadline_ms": 20}, "deadline"),
        ("while True: echo(1)", {"limits": Limits(host_calls=3)}, "host_calls"),
        ("while True: print('x' * 99)", {"limits": Limits(output_bytes=1_000)}, "output"),
        ("try:\n    never()\nexcept BaseException:\n    n = 9\n", {"deadline_ms": 20}, "deadline"),
    ],
)
def test_a_limit_stops_a_program_and_undoes_what_it_did(
    source: str, context: dict[str, Any], stop: str
) -> None:
    made = Interpreter()
    made.run("n = echo(1)")

    result = made.run(f"n = 2\n{source}", **context)

    assert (result.stop, result.exit_code) == (stop, -1)
    assert made.run("n").value == "1"


@pytest.mark.parametrize("source", ["never()", "while True: pass"])
def test_a_cancelled_program_ends_before_the_cancel_does(source: str) -> None:
    made, begun = Interpreter(), threading.Event()
    made.sandbox.names["begun"] = begun

    async def scenario() -> None:
        context = ExecutionContext(session_id="S")
        running = asyncio.ensure_future(
            made.session.execute(f"begun.set()\n{source}", context=context, host=HOST)
        )
        await asyncio.to_thread(begun.wait, 20)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(scenario())
    for thread in threading.enumerate():
        if thread.name == "tally-plain-program":
            thread.join(1)
            assert not thread.is_alive()


def test_an_image_has_the_variables_and_fits_its_guest_alone() -> None:
    made, other = Interpreter(), Interpreter()
    stranger = Interpreter(guest="1" * 64)
    made.run("n = [echo(1)]")
    image = asyncio.run(made.session.image())
    made.run("n.append(2)")

    asyncio.run(other.session.load(image))

    assert (other.run("n").value, made.run("n").value) == ("[1]", "[1, 2]")
    with pytest.raises(SnapshotMismatch):
        asyncio.run(stranger.session.load(image))


def test_a_repeated_program_that_uses_more_fuel_has_diverged() -> None:
    with pytest.raises(ReplayDiverged):
        Interpreter().run("a = 1\nb = 2\nc = 3", rerun=Rerun(fuel=2 * FUEL_PER_STEP))


def test_long_output_goes_to_a_file(tmp_path: Path) -> None:
    result = Interpreter(output_directory=tmp_path).run("print('x' * 500)", max_output_bytes=100)

    assert result.output_truncated
    assert result.output_file_path is not None
    assert Path(result.output_file_path).read_text() == "x" * 500 + "\n"


def test_programs_may_call_the_test() -> None:
    seen: list[int] = []

    Interpreter(names={"observe": seen.append}).run("for n in range(3): observe(n)")

    assert seen == [0, 1, 2]


def whole_run(model: ModelDouble, **more: Any) -> Any:
    return play(PlainSandbox(), model, limits=ROOMY, **more)


def test_a_run_is_recorded_and_replays_without_its_model() -> None:
    @host_function(policy="effect")
    def send(what: str) -> int:
        """Send it."""
        return len(what)

    model = ModelDouble(
        programs(
            "n = send('abc')",
            "try:\n    {}['k']\nexcept KeyError as error:\n    print(error)",
            "print(context[:3], len(context))",
            "FINAL([n, *llm_query_batched(['a', 'b'])])",
        ),
        queries=lambda call: call.prompt.upper(),
    )

    played = whole_run(model, functions=[send], inputs=[given_text("long " * 300_000)])

    assert json.loads(played.run.answer) == [3, "A", "B"]
    assert [each.stdout for each in played.of(ProgramFinished)] == [
        "", "'k'\n", "lon 1500000\n", "",
    ]  # fmt: skip
    assert played.replayed().held


def test_a_run_inside_a_run_does_not_wait_for_a_thread() -> None:
    def answer(call: Any) -> str:
        depth = int(call.text.split("depth ")[1].split()[0])
        child = f"FINAL(rlm_query('depth {depth - 1} now'))" if depth else "FINAL('bottom')"
        return block(child)

    played = whole_run(ModelDouble(answer), goal="depth 9 now")

    assert played.run.answer == "bottom"
