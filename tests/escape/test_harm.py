"""Attacks on the host itself: its memory, its time, its other sessions, its process.

What a crash would take down with it is tried in a process of its own.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import textwrap
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.escape.case import FORGED, PRELUDE, RAW
from tests.wasm_session import MIB, TestSession, open_session

from tallystick.core.errors import TallystickError
from tallystick.sandbox.host import HostFunction, HostTable
from tallystick.sandbox.text import HostText
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.settings.paths import cache_directory

ROOT = Path(__file__).resolve().parents[2]


def nothing() -> int:
    return 1


OTHER_HOST = HostTable([HostFunction(name="other", function=nothing, local=True)])


def in_a_process(
    program: str, *, after: str = "1", more: str = "", seconds: float = 30
) -> subprocess.CompletedProcess[str]:
    """Run host code where it may crash, in a session that has run `after`."""
    head = """
    import asyncio, faulthandler, sys, threading, time
    from tallystick.settings.paths import cache_directory
    from tallystick.sandbox.host import HostFunction, HostTable
    from tallystick.sandbox.port import ExecutionContext
    from tallystick.sandbox.wasm.sandbox import WasmSandbox
    from tests.escape.test_wheels import wheel
    from tests.wasm_session import ECHO, TestSession
    sandbox = WasmSandbox.load(cache=cache_directory())
    session = TestSession(sandbox)
    context = ExecutionContext(session_id="s")
    session.run(sys.argv[1])
    """
    return subprocess.run(
        [
            sys.executable,
            "-X",
            "faulthandler",
            "-c",
            textwrap.dedent(head) + textwrap.dedent(program),
            after,
            more,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


@pytest.fixture(scope="module")
def small() -> Iterator[WasmSandbox]:
    """A sandbox of its own in which one program is active at a time.

    It keeps the compiled code open until nothing refers to it, which is after a test has ended.
    """
    loaded = WasmSandbox.load(cache=cache_directory(), active_max=1)
    yield loaded
    asyncio.run(loaded.close())


def peak_bytes_of(session: TestSession, program: str) -> int:
    """What the host had to allocate at the most while the program ran."""
    session.value("1")
    tracemalloc.start()
    try:
        session.run(program)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# -- the host's memory -----------------------------------------------------------------------------


def test_the_replies_of_one_program_do_not_gather_on_the_host(session: TestSession) -> None:
    program = RAW + (
        "b = b'[\"echo\",[\"' + b'a' * 2_000_000 + b'\"],{}]'\nfor _ in range(60):\n    ask(b)"
    )

    assert peak_bytes_of(session, program) < 40 * MIB


def test_the_names_of_calls_do_not_gather_on_the_host(session: TestSession) -> None:
    program = RAW + "b = b'[\"' + b'a' * 1_000_000\nfor _ in range(40):\n    ask(b)"

    result = session.run(program)

    assert max(len(call.name) for call in result.calls) <= 200


def test_a_forged_result_is_not_larger_on_the_host_than_an_honest_one(session: TestSession) -> None:
    program = FORGED + "forge(b'{\"ok\":true,\"value\":\"' + b'x' * 30_000_000 + b'\"}')"

    result = session.run(program)

    assert len(result.value or "") <= MIB


def test_a_forged_list_of_names_does_not_fill_the_host(session: TestSession) -> None:
    program = FORGED + 'forge(b\'{"ok":true,"restored":[\' + b\'"a",\' * 2_000_000 + b\'"a"]}\')'

    assert peak_bytes_of(session, program) < 40 * MIB


def test_a_class_name_of_ten_million_letters_is_cut(session: TestSession) -> None:
    result = session.run("raise type('x' * 10_000_000, (Exception,), {})")

    assert result.error is not None
    assert len(result.error.kind) <= 100_000


def test_what_a_patched_prelude_says_while_names_are_bound_does_not_gather(
    session: TestSession,
) -> None:
    session.run(
        RAW + PRELUDE + "big = b'x' * 4_000_000\ndef bind(payload):\n"
        "    for _ in range(40):\n        say(3, big)\n    return {}\nentry['_bind'] = bind"
    )
    tracemalloc.start()
    try:
        session.run("1 + 1", host=OTHER_HOST)
    except TallystickError:
        pass  # Saying that this session is broken is as good as going on.
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()

    assert peak < 60 * MIB


def looping(name: str) -> str:
    """A program that makes one of our own functions a loop."""
    return f"{PRELUDE}def loop(payload):\n    while True:\n        pass\nentry[{name!r}] = loop"


# -- the host's time -------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_patched_prelude_cannot_hold_the_host_while_names_are_bound() -> None:
    ended = in_a_process(
        """
        def give_up():
            import os
            print("held", flush=True)
            os._exit(3)
        threading.Timer(2.0, session.session.cancel).start()
        watch = threading.Timer(6.0, give_up)
        watch.start()
        other = HostTable([HostFunction(name="other", function=time.time, local=True)])
        try:
            session.run("1 + 1", host=other, wall_ms=500, context=dict(deadline_ms=3_000))
        except Exception as error:
            print(type(error).__name__)
        watch.cancel()
        print("let go", flush=True)
        """,
        after=looping("_bind"),
    )

    assert "held" not in ended.stdout
    assert "let go" in ended.stdout


@pytest.mark.slow
def test_a_wheel_given_to_a_patched_prelude_cannot_hold_the_host() -> None:
    ended = in_a_process(
        """
        def give_up():
            import os
            print("held", flush=True)
            os._exit(3)
        threading.Timer(2.0, session.session.cancel).start()
        watch = threading.Timer(8.0, give_up)
        watch.start()
        try:
            session.do(session.session.add_wheel(wheel({"w.py": b"x = 1"}), name="w.whl"))
        except Exception as error:
            print(type(error).__name__)
        watch.cancel()
        print("let go", flush=True)
        """,
        after=looping("_add_wheel"),
    )

    assert "held" not in ended.stdout
    assert "let go" in ended.stdout


def test_a_search_pattern_of_great_cost_ends_with_its_program() -> None:
    """Linear in the text is not quick: this pattern costs microseconds for each byte."""
    data = bytes(random.Random(1).choices(b"ab", k=600_000))
    host = HostTable(texts={"text": HostText(data)})
    with open_session(WasmSandbox.load(cache=cache_directory())) as session:
        session.run("1", host=host)
        canceller = threading.Timer(0.3, session.session.cancel)
        canceller.start()
        began = time.monotonic()

        session.run(
            "text.search_bytes('[ab]*a[ab]{900}c')", host=host, context={"deadline_ms": 600}
        )

        canceller.cancel()
        assert time.monotonic() - began < 2.0


def test_positions_in_text_that_is_not_utf_8_end_with_their_program(session: TestSession) -> None:
    host = HostTable(texts={"text": HostText((b"\xff" * 50_000 + b"a" * 10_000) * 20)})
    session.run("1", host=host)
    began = time.monotonic()

    session.run("text.search('a', limit=10_000)", host=host, context={"deadline_ms": 500})

    assert time.monotonic() - began < 1.5


# -- other sessions --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_program_of_many_quick_host_calls_passes_its_slot_on(small: WasmSandbox) -> None:
    def nap() -> int:
        time.sleep(0.004)
        return 1

    host = HostTable([HostFunction(name="nap", function=nap, local=True)])
    with open_session(small) as greedy, open_session(small) as patient:
        patient.value("1")
        greedy.run("1", host=host)
        hog = threading.Thread(
            target=lambda: greedy.run(
                "while True: nap()", host=host, context={"deadline_ms": 2_500}
            )
        )
        hog.start()
        time.sleep(0.3)
        began = time.monotonic()
        patient.run("1 + 1")
        waited = time.monotonic() - began
        hog.join()

    assert waited < 0.5


@pytest.mark.slow
def test_a_call_made_while_names_are_bound_keeps_no_slot_and_reaches_no_host() -> None:
    """What is granted to one program is not granted to the binding of the next one's names."""
    stealing = (
        PRELUDE + "real, ask = entry['_bind'], secret\ndef bind(payload):\n    global stolen\n"
        "    try:\n        stolen = ask('x')\n    except BaseException:\n        pass\n"
        "    return real(payload)\nentry['_bind'] = bind"
    )
    ended = in_a_process(
        """
        import os
        asked = []
        async def secret(what):
            asked.append(what)
            return "granted to the program before only"
        first = HostTable([HostFunction(name="secret", function=secret)])
        one = WasmSandbox.load(cache=cache_directory(), active_max=1)
        thief, bystander = TestSession(one), TestSession(one)
        threading.Timer(6.0, lambda: (print("hangs", len(asked), flush=True), os._exit(3))).start()
        thief.run(sys.argv[2], host=first)
        try:
            thief.run("1 + 1", host=ECHO)
        except Exception as error:
            print(type(error).__name__)
        bystander.run("1 + 1")
        print("asked", len(asked), flush=True)
        os._exit(0)
        """,
        more=stealing,
    )

    assert (ended.returncode, ended.stdout.split()[-2:]) == (0, ["asked", "0"]), ended.stdout


# -- the host's process ----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_wheel_whose_adding_is_cancelled_does_not_run_beside_the_next_program() -> None:
    ended = in_a_process(
        """
        data = wheel({f"w/m{n}.py": b"x = 1\\n" * 400_000 for n in range(60)})
        async def attack():
            try:
                await asyncio.wait_for(session.session.add_wheel(data, name="w.whl"), 0.1)
            except TimeoutError:
                pass
            for _ in range(5):
                result = await session.session.execute(
                    "sum(range(100_000))", context=context, host=ECHO
                )
                assert result.value == "4999950000", result
        session.do(attack())
        print("alive", flush=True)
        """
    )

    assert (ended.returncode, ended.stdout) == (0, "alive\n"), ended.stderr[-800:]


@pytest.mark.slow
def test_a_program_cancelled_twice_is_not_freed_while_it_runs() -> None:
    ended = in_a_process(
        """
        def nap():
            time.sleep(1.0)
            return 1
        host = HostTable([HostFunction(name="nap", function=nap, local=True)])
        async def attack():
            task = asyncio.ensure_future(
                session.session.execute("while True: nap()", context=context, host=host)
            )
            await asyncio.sleep(0.3)
            task.cancel()
            await asyncio.sleep(0.05)
            task.cancel()
            await asyncio.wait({task})
            await session.session.close()
            await asyncio.sleep(1.5)
        session.do(attack())
        print("alive", flush=True)
        """
    )

    assert (ended.returncode, ended.stdout) == (0, "alive\n"), ended.stderr[-800:]


@pytest.mark.slow
def test_a_trap_does_not_end_a_host_that_has_its_fault_handler_on() -> None:
    """Enabled before the sandbox was loaded: docs/reference/limits.md says why."""
    ended = in_a_process(
        """
        session.run("kept = 41")
        session.run("import os; os.abort()")
        print(session.value("kept"), flush=True)
        """
    )

    assert (ended.returncode, ended.stdout) == (0, "41\n"), ended.stderr[:300]


# -- the session's way back ------------------------------------------------------------------------


def test_a_request_that_was_too_long_does_not_stand_in_the_way_back(session: TestSession) -> None:
    session.value("kept = 41\ntry:\n    echo('x' * 5_000_000)\nexcept HostError:\n    pass")

    ended = session.run("import os; os.abort()")

    assert ended.stop == "trap"
    assert session.value("kept") == "41"


def test_an_error_that_cannot_be_encoded_does_not_stand_in_the_way_back(
    session: TestSession,
) -> None:
    session.value("kept = 41")
    session.run("kept = 43\nraise ValueError('\\ud800')")
    session.value("echo([kept, 1])")
    kept = session.value("kept")

    ended = session.run("import os; os.abort()")

    assert ended.stop == "trap"
    assert session.value("kept") == kept


@pytest.mark.parametrize(
    "program",
    [
        "try:\n    x = 'y' * 10**9\nexcept MemoryError:\n    x = None",
        RAW + "for n in range(300):\n    ask(b'[\"echo\",[%d],{}]' % n)",
        RAW + "ask(b'[\"echo\",[\"' + b'a' * 100_000 + b'\"],{}]')",
        "import random, time, uuid\nx = [random.random(), time.time(), uuid.uuid4()]",
        "import threading\nfor _ in range(50): threading.Thread(target=echo, args=(1,)).start()",
        "import gc\ngc.unfreeze()\ngc.collect()\ngc.disable()",
        "import sys\nsys.setrecursionlimit(50_000)",
        "import sys\nsys.stdout.write('x' * 100_000)",
        "def f():\n    return f()\ntry:\n    f()\nexcept RecursionError:\n    pass",
        "x = {object() for _ in range(1000)}\ny = [hash(o) for o in x]",
        "try:\n    echo(object())\nexcept TypeError:\n    pass",
    ],
)
def test_a_session_comes_back_equal_after_any_program(
    program: str, session: TestSession, sandbox: WasmSandbox
) -> None:
    limits: dict[str, Any] = {"memory_bytes": 64 * MIB}
    with open_session(sandbox) as calm:
        for each in (session, calm):
            each.run("kept = 41", **limits)
            each.run(program, **limits)
            each.run("kept += 1", **limits)
        session.run("import os; os.abort()", **limits)

        assert session.value("kept", **limits) == calm.value("kept", **limits) == "42"
        assert session.do(session.session.digest()) == calm.do(calm.session.digest())
