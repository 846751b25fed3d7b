"""Every field of the execution context, and of the result, changes something in both sandboxes.

One row for each field: two values, and what of the outcome must differ between them. A field
without a row fails, so a field that nothing reads cannot be added.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tallystick.core.errors import NotSupported, TallystickError
from tallystick.sandbox.host import HostFunction, HostTable
from tallystick.sandbox.port import (
    CallRecord,
    ExecutionContext,
    ExecutionResult,
    Limits,
    ProgramCharge,
    ProgramError,
    Rerun,
)
from tallystick.sandbox.process.sandbox import ProcessSandbox
from tallystick.sandbox.wasm.sandbox import WasmSandbox

TOKEN = "T0ken-of-exactly-one-session-1234"
Outcome = ExecutionResult | TallystickError


async def _slow() -> int:
    await asyncio.sleep(0.3)
    return 1


HOST = HostTable(
    [
        HostFunction(name="echo", function=lambda value: value),
        HostFunction(name="slow", function=_slow),
    ]
)


class Box:
    """A sandbox of one kind, with a fresh interpreter for each program."""

    def __init__(self, name: str, sandbox: WasmSandbox | ProcessSandbox) -> None:
        self.name = name
        self.sandbox = sandbox

    def run(self, program: str, **fields: Any) -> Outcome:
        return self.run_all([program], **fields)

    def run_all(self, programs: list[str], **fields: Any) -> Outcome:
        """Run programs in one interpreter, and return the outcome of the last one."""
        session_id = fields.pop("session_id", "S")
        cancel_ms = fields.pop("cancel_ms", None)

        async def scenario() -> ExecutionResult:
            session = await self.sandbox.open(session_id="S")
            try:
                for program in programs:
                    context = ExecutionContext(session_id=session_id, **fields)
                    work = asyncio.ensure_future(
                        session.execute(program, context=context, host=HOST)
                    )
                    if cancel_ms is not None:
                        await asyncio.sleep(cancel_ms / 1000)
                        self.sandbox.cancel(TOKEN)
                    last = await work
                return last
            finally:
                await session.close()

        try:
            return asyncio.run(scenario())
        except TallystickError as error:
            return error


@pytest.fixture(scope="module")
def process_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessSandbox]:
    if sys.platform != "linux":
        pytest.skip("the process sandbox needs Linux")
    made = ProcessSandbox(spares=0, output_directory=tmp_path_factory.mktemp("output"))
    # Starts its launcher, which then lives as long as the sandbox.
    asyncio.run(made.layers())
    yield made
    asyncio.run(made.close())


@pytest.fixture(scope="module", params=["wasm", "process"])
def box(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Box:
    if request.param == "process":
        return Box("process", request.getfixturevalue("process_sandbox"))
    made: WasmSandbox = request.getfixturevalue("sandbox")
    return Box("wasm", made)


# -- the context ---------------------------------------------------------------------------------

LOOP = "while True: pass"
BOTH = "import sys\nprint('a')\nprint('b', file=sys.stderr)"
LONG = "print('x' * 100_000)"
ENVIRON = "import os\n{k: v for k, v in os.environ.items() if k.startswith('TALLY') or k == 'A'}"

See = Callable[[Outcome], object]


def value(outcome: Outcome) -> object:
    return outcome.value if isinstance(outcome, ExecutionResult) else outcome


def stop(outcome: Outcome) -> object:
    return outcome.stop if isinstance(outcome, ExecutionResult) else type(outcome)


def kind(outcome: Outcome) -> object:
    return None if isinstance(outcome, ExecutionResult) else type(outcome).__name__


def streams(outcome: Outcome) -> object:
    assert isinstance(outcome, ExecutionResult)
    return outcome.stdout, outcome.stderr


# By field: a program, two values of the field (and other fields that both have), what is looked at.
ROWS: dict[str, tuple[str, object, object, dict[str, Any], See]] = {
    "session_id": (LONG, "one", "two/../x", {}, lambda each: _stem(each)),
    "timeout_ms": (LOOP, 60_000, 100, {"deadline_ms": 400}, stop),
    "deadline_ms": ("slow()", 10_000, 50, {}, stop),
    "working_dir": (
        "import os\nos.getcwd()",
        None,
        "sub",
        {},
        lambda each: value(each) or kind(each),
    ),
    "env_vars": (ENVIRON, {}, {"A": "1"}, {}, value),
    "capture_stdout": (BOTH, True, False, {}, streams),
    "capture_stderr": (BOTH, True, False, {}, streams),
    "max_output_bytes": (LONG, 200_000, 10, {}, lambda each: _truncated(each)),
    "cancellation_token": (
        LOOP,
        TOKEN,
        "another-token-0123456789",
        {"timeout_ms": 600, "cancel_ms": 100},
        stop,
    ),
    "session_token": (ENVIRON, None, TOKEN, {}, value),
    "recursion_depth": (ENVIRON, 0, 3, {}, value),
    "outputs_before": (LONG, None, 2, {"max_output_bytes": 10}, streams),
    "program_name": ("1 / 0", "<one>", "<two>", {}, lambda each: _traceback(each)),
    "limits": ("echo(1)", Limits(), Limits(host_calls=0), {}, stop),
    "rerun": (
        "import time\n[echo(1) for _ in range(3)]",
        None,
        Rerun(fuel=1, calls=None),
        {},
        lambda each: stop(each),
    ),
}


def _stem(outcome: Outcome) -> object:
    assert isinstance(outcome, ExecutionResult)
    assert outcome.output_file_path is not None
    name = Path(outcome.output_file_path).name
    Path(outcome.output_file_path).unlink()
    return name.rpartition("-")[0]


def _truncated(outcome: Outcome) -> object:
    assert isinstance(outcome, ExecutionResult)
    if outcome.output_file_path is not None:
        Path(outcome.output_file_path).unlink()
    return outcome.output_truncated


def _traceback(outcome: Outcome) -> object:
    assert isinstance(outcome, ExecutionResult)
    assert outcome.error is not None
    return outcome.error.traceback


def test_every_field_of_the_context_has_a_row() -> None:
    assert set(ROWS) == set(ExecutionContext.__struct_fields__)


@pytest.mark.parametrize("field", ROWS)
def test_a_field_of_the_context_changes_something(box: Box, field: str) -> None:
    program, one, other, fields, see = ROWS[field]
    before = ["import os\nos.makedirs('sub', exist_ok=True)"] if box.name == "process" else []
    if field in ("cancellation_token", "deadline_ms", "limits", "timeout_ms", "rerun"):
        before = []

    first = see(box.run_all([*before, program], **{**fields, field: one}))
    second = see(box.run_all([*before, program], **{**fields, field: other}))

    assert first != second


LIMITS: dict[str, tuple[str, Limits, Limits]] = {
    "fuel": ("sum(range(100_000))", Limits(), Limits(fuel=1)),
    "memory_bytes": ("len(bytearray(150_000_000))", Limits(), Limits(memory_bytes=100 << 20)),
    "host_calls": ("echo(1)", Limits(), Limits(host_calls=0)),
    "output_bytes": ("print('x' * 100)", Limits(), Limits(output_bytes=10)),
    "request_bytes": ("echo('x' * 1_000)", Limits(), Limits(request_bytes=100)),
    "reply_bytes": ("echo('x' * 1_000)", Limits(), Limits(reply_bytes=100)),
    "source_bytes": ("'x' * 1_000", Limits(), Limits(source_bytes=3)),
}


@pytest.mark.parametrize("limit", Limits.__struct_fields__)
def test_a_limit_stops_a_program_or_refuses_what_passes_it(box: Box, limit: str) -> None:
    program, loose, tight = LIMITS[limit]

    free, bound = box.run(program, limits=loose), box.run(program, limits=tight)

    assert isinstance(free, ExecutionResult)
    assert free.error is None
    if isinstance(bound, TallystickError):
        # Native code is not counted: a limit of fuel is refused, and never without effect.
        assert (box.name, limit, type(bound)) == ("process", "fuel", NotSupported)
    else:
        assert bound.error is not None


def test_a_session_token_is_a_secret_and_never_the_id_of_a_session() -> None:
    for wrong in ("0" * 26, "short", "two words and a space here", "x" * 300, "line\nbreak" * 4):
        with pytest.raises(TallystickError, match="session_token"):
            ExecutionContext(session_id="0" * 26, session_token=wrong)


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "2"])
def test_a_depth_is_a_whole_number(wrong: Any) -> None:
    with pytest.raises(TallystickError, match="recursion_depth"):
        ExecutionContext(session_id="S", recursion_depth=wrong)


# -- the result ----------------------------------------------------------------------------------

# By field: two programs with the same context, between whose results the field must differ.
RESULTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "stdout": ("print('a')", "print('b')", {}),
    "stderr": ("1", "import sys\nprint('b', file=sys.stderr)", {}),
    "value": ("1", "2", {}),
    "exit_code": ("1", "import sys\nsys.exit(7)", {}),
    "timed_out": ("1", LOOP, {"timeout_ms": 200}),
    "output_truncated": ("print('a')", LONG, {"max_output_bytes": 100}),
    "output_file_path": ("print('a')", LONG, {"max_output_bytes": 100}),
    "error": ("1", "1 / 0", {}),
    "stop": ("1", LOOP, {"timeout_ms": 200}),
    "charge": ("1", "print(echo('abc'))", {}),
    "calls": ("1", "echo(1)", {}),
    "execution_time_ms": ("1", "slow(); slow()", {}),
    # The name that the program before took is given back, which the metadata say.
    "metadata": ("1", "echo = 5\n---\n1", {}),
}
CHARGES: dict[str, tuple[str, str]] = {
    "fuel": ("1", "sum(range(1_000_000))"),
    "wall_ms": ("1", "sum(range(1_000_000))"),
    "memory_bytes": ("1", "x = bytearray(b'1' * 60_000_000)\nlen(x)"),
    "host_calls": ("1", "echo(1)"),
    "output_bytes": ("1", "print('a')"),
}
ERRORS = {
    "kind": ("1 / 0", "[][1]"),
    "message": ("int('a')", "int('b')"),
    "traceback": ("1 / 0", "\n\n1 / 0"),
    "line": ("one = 1\n1 / 0", "two = 2\n\n1 / 0 if two else 0"),
}
CALLS = {
    "index": ("echo(1)", "echo(1)\necho(1)"),
    "name": ("echo(1)", "slow()"),
    "request_sha256": ("echo(1)", "echo(2)"),
    "request_bytes": ("echo(1)", "echo(100)"),
    "reply_bytes": ("echo(1)", "echo('x' * 50)"),
    "fuel": ("echo(1)", "sum(range(1000))\necho(1)"),
    "ok": ("echo(1)", "try: absent = echo(1, 2, 3)\nexcept Exception: pass"),
}


def test_every_field_of_the_result_has_a_row() -> None:
    assert set(RESULTS) == set(ExecutionResult.__struct_fields__)
    assert set(CHARGES) == set(ProgramCharge.__struct_fields__)
    assert set(ERRORS) == set(ProgramError.__struct_fields__)
    assert set(CALLS) == set(CallRecord.__struct_fields__)


def finished(outcome: Outcome) -> ExecutionResult:
    assert isinstance(outcome, ExecutionResult), outcome
    return outcome


@pytest.mark.parametrize("field", RESULTS)
def test_a_field_of_the_result_says_something(box: Box, field: str) -> None:
    one, other, fields = RESULTS[field]

    first, second = (
        finished(box.run_all(each.split("\n---\n"), **fields)) for each in (one, other)
    )

    assert getattr(first, field) != getattr(second, field)


@pytest.mark.parametrize("field", CHARGES)
def test_a_charge_of_the_result_says_what_was_used(box: Box, field: str) -> None:
    one, other = CHARGES[field]

    few = getattr(finished(box.run(one)).charge, field)
    many = getattr(finished(box.run(other)).charge, field)

    if (box.name, field) == ("process", "fuel"):
        assert (few, many) == (0, 0)  # native code is not counted, and the limit is refused
    elif field == "memory_bytes":
        assert many - few > 40_000_000
    else:
        assert many > few


@pytest.mark.parametrize("field", ERRORS)
def test_a_field_of_an_error_says_something(box: Box, field: str) -> None:
    one, other = (finished(box.run(each)).error for each in ERRORS[field])

    assert one is not None
    assert other is not None
    assert getattr(one, field) != getattr(other, field)


@pytest.mark.parametrize("field", CALLS)
def test_a_field_of_a_call_says_something(box: Box, field: str) -> None:
    one, other = (finished(box.run(each)).calls[-1] for each in CALLS[field])

    if (box.name, field) == ("process", "fuel"):
        assert (one.fuel, other.fuel) == (0, 0)
    else:
        assert getattr(one, field) != getattr(other, field)
