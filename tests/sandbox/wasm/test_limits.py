"""Limits: each ends the program, not the session, and says why."""

import asyncio
import threading
import time
from typing import Any

import pytest
from tests.wasm_session import ECHO, MIB, TestSession

from tallystick.core.errors import InvalidLimit, NotSupported
from tallystick.sandbox.host import HostFunction, HostTable
from tallystick.sandbox.port import ExecutionContext
from tallystick.sandbox.wasm.sandbox import WasmSandbox

LOOP = "kept = 2\nprint('begun')\nwhile True: pass"
FLOOD = "kept = 2\nwhile True: print('x' * 1000)"
HOARD = "kept = 2\nx = []\nwhile True: x.append(bytes(1 << 20))"
ASKING = "kept = 2\nwhile True: echo(1)"

ENDINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "fuel": (LOOP, {"fuel": 50_000_000}),
    "wall": (LOOP, {"wall_ms": 100}),
    "memory": (HOARD, {"memory_bytes": 64 * MIB}),
    "output": (FLOOD, {"output_bytes": 100_000}),
    "host_calls": (ASKING, {"host_calls": 5}),
    "trap": ("kept = 2\nimport os\nos.abort()", {}),
}


@pytest.mark.parametrize("stop", sorted(ENDINGS))
def test_a_limit_ends_the_program_and_the_namespace_is_the_one_before(
    session: TestSession, stop: str
) -> None:
    program, limits = ENDINGS[stop]
    session.run("kept = 1")

    result = session.run(program, **limits)

    assert result.stop == stop
    assert not result.succeeded
    assert result.exit_code == -1
    assert result.error is not None
    assert result.error.message
    assert session.value("kept, 'x' in globals()") == "(1, False)"


@pytest.mark.parametrize("stop", ["fuel", "wall"])
def test_what_was_printed_before_the_end_is_kept(session: TestSession, stop: str) -> None:
    program, limits = ENDINGS[stop]

    assert session.run(program, **limits).stdout == "begun\n"


def test_only_time_is_a_timeout(session: TestSession) -> None:
    timed_out = {stop: session.run(p, **limits).timed_out for stop, (p, limits) in ENDINGS.items()}

    assert timed_out == {stop: stop == "wall" for stop in ENDINGS}


@pytest.mark.parametrize(
    "program",
    [
        "sum(range(10**12))",
        "import re; re.match(r'(a+)+$', 'a' * 40 + 'b')",
        "x = 3 ** (10 ** 7); len(str(x))",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "import time\nwhile True: time.sleep(1000)",
        "def f():\n    try:\n        f()\n    finally:\n        f()\nf()",
    ],
)
def test_no_loop_is_out_of_reach_of_the_wall_clock(session: TestSession, program: str) -> None:
    began = time.monotonic()

    result = session.run(f"import sys\nsys.set_int_max_str_digits(0)\n{program}", wall_ms=150)

    assert result.stop == "wall"
    assert time.monotonic() - began < 2


def test_exactly_at_the_fuel_limit_is_allowed_and_one_less_is_not(session: TestSession) -> None:
    program = "sum(range(1000))"
    image = session.do(session.session.image())
    used = session.run(program).charge.fuel

    session.do(session.session.load(image))
    enough = session.run(program, fuel=used)
    session.do(session.session.load(image))
    short = session.run(program, fuel=used - 1)

    assert (enough.stop, enough.charge.fuel) == ("finished", used)
    assert short.stop == "fuel"


def test_exactly_at_the_other_limits_is_allowed(session: TestSession) -> None:
    assert session.run("echo(1); echo(2)", host_calls=2).stop == "finished"
    assert session.run("echo(1); echo(2)", host_calls=1).stop == "host_calls"
    assert session.run("print('x' * 99)", output_bytes=100).stop == "finished"
    assert session.run("print('x' * 99)", output_bytes=99).stop == "output"


@pytest.mark.parametrize(
    ("limits", "stop"),
    [
        ({"fuel": 0}, "fuel"),
        ({"wall_ms": 0}, "wall"),
        ({"context": {"deadline_ms": 0}}, "deadline"),
        ({"output_bytes": 0}, "output"),
        ({"host_calls": 0}, "host_calls"),
    ],
)
def test_zero_means_stop(session: TestSession, limits: dict[str, Any], stop: str) -> None:
    assert session.run("print(1); echo(1)", **limits).stop == stop


def test_memory_below_the_interpreters_own_is_an_error_that_names_it(session: TestSession) -> None:
    with pytest.raises(InvalidLimit, match="memory_bytes"):
        session.run("1", memory_bytes=1 * MIB)


def test_a_program_may_catch_running_out_of_memory_and_go_on(session: TestSession) -> None:
    program = "try:\n    x = bytearray(10**9)\nexcept MemoryError:\n    x = 'none'\nx"

    assert session.value(program, memory_bytes=64 * MIB) == "'none'"


@pytest.mark.parametrize(
    "program",
    [
        "'a' * 10**9",
        pytest.param("x = {}\ni = 0\nwhile True: x[i] = [i]; i += 1", marks=pytest.mark.slow),
        "x = b''\nwhile True: x += b'q' * 10**6",
        "2 ** 10 ** 10",
        "import array\narray.array('q', [0]) * 10**7",
        "import io\nb = io.BytesIO()\nwhile True: b.write(bytes(10**6))",
    ],
)
def test_every_way_to_hoard_memory_ends_the_same(session: TestSession, program: str) -> None:
    result = session.run(program, memory_bytes=64 * MIB)

    assert result.stop == "memory"
    assert result.charge.memory_bytes <= 64 * MIB
    assert session.value("1 + 1") == "2"


def test_both_streams_and_native_writes_count_together(session: TestSession) -> None:
    program = (
        "import os, sys\nprint('a' * 9)\nprint('b' * 9, file=sys.stderr)\nos.write(2, b'c' * 10)"
    )

    assert session.run(program, output_bytes=30).charge.output_bytes == 30
    assert session.run(program, output_bytes=29).stop == "output"


def test_waiting_for_the_host_is_not_the_programs_time(session: TestSession) -> None:
    async def slow() -> int:
        await asyncio.sleep(0.3)
        return 1

    host = HostTable([HostFunction(name="slow", function=slow)])

    result = session.run("slow()", host=host, wall_ms=200)

    assert result.stop == "finished"
    assert result.charge.wall_ms < 200 <= result.execution_time_ms


@pytest.mark.parametrize("blocking", [False, True])
def test_a_host_function_that_hangs_ends_at_the_deadline(
    session: TestSession, blocking: bool
) -> None:
    release = threading.Event()

    async def hangs() -> None:
        await asyncio.sleep(60)

    function = release.wait if blocking else hangs
    host = HostTable([HostFunction(name="hangs", function=function)])
    session.run("kept = 1")
    began = time.monotonic()

    result = session.run("kept = 2\nhangs()", host=host, context={"deadline_ms": 150})
    release.set()

    assert result.stop == "deadline"
    assert result.timed_out
    assert result.error is not None
    assert "'hangs' had not answered" in result.error.message
    assert time.monotonic() - began < 2
    assert session.value("kept") == "1"


@pytest.mark.parametrize("program", ["while True: pass", "hangs()"])
def test_a_cancel_from_another_thread_ends_the_program(session: TestSession, program: str) -> None:
    async def hangs() -> None:
        await asyncio.sleep(60)

    host = HostTable([HostFunction(name="hangs", function=hangs)])
    timer = threading.Timer(0.2, session.session.cancel)
    timer.start()

    result = session.run(program, host=host)
    timer.join()

    assert result.stop == "cancelled"
    assert session.value("1 + 1") == "2"


def test_a_cancellation_token_ends_the_program_that_has_it(
    session: TestSession, sandbox: WasmSandbox
) -> None:
    timer = threading.Timer(0.2, sandbox.cancel, args=("TOKEN",))
    timer.start()

    result = session.run("while True: pass", context={"cancellation_token": "TOKEN"})
    timer.join()

    assert result.stop == "cancelled"
    assert not sandbox.cancel("TOKEN")


def test_cancelling_the_task_that_waits_cancels_the_program(session: TestSession) -> None:
    async def scenario() -> str:
        context = ExecutionContext(session_id="S")
        running = asyncio.ensure_future(
            session.session.execute("while True: pass", context=context, host=ECHO)
        )
        await asyncio.sleep(0.1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        result = await session.session.execute("1 + 1", context=context, host=ECHO)
        return str(result.value)

    assert session.do(scenario()) == "2"


def test_a_working_directory_is_refused_by_name(session: TestSession) -> None:
    with pytest.raises(NotSupported, match="wasm sandbox does not support a working directory"):
        session.run("1", context={"working_dir": "here"})


def test_a_session_lives_through_many_endings(session: TestSession) -> None:
    session.run("count = 0")
    for number in range(1, 8):
        session.run(f"count = {number}")
        session.run("count = -1\nwhile True: pass", fuel=20_000_000)

    assert session.value("count") == "7"


def test_what_comes_back_after_an_ending_is_equal_to_the_last_byte(session: TestSession) -> None:
    session.run("import random\nx = {str(n): random.random() for n in range(500)}")
    session.run(
        "try:\n    big = bytearray(10**9)\nexcept MemoryError:\n    big = None",
        memory_bytes=64 * MIB,
    )
    session.run("echo(len(x))")
    before = session.do(session.session.digest())

    session.run("x.clear()\nwhile True: pass", fuel=20_000_000)

    # The next program's limits are set before it runs; look after one that changes nothing else.
    session.session._namespace.live_instance().set("memory_pages_max", 256 * MIB // 65_536)
    assert session.do(session.session.digest()) == before


@pytest.mark.slow
def test_heavy_programs_before_an_ending_are_not_run_again(session: TestSession) -> None:
    session.run("total = sum(i * i for i in range(3_000_000))")
    session.run("after = 1")
    session.run("while True: pass", fuel=20_000_000)
    began = time.monotonic()

    assert session.value("after") == "1"
    assert time.monotonic() - began < 0.5
