"""Python programs in the process sandbox: namespace, host calls, limits, and what survives them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.escape.process.boxes import ProcessTestSession, living_in, made_sandbox, opened

from tallystick.core.errors import InvalidLimit, NotSupported, UsageError
from tallystick.sandbox.host import HostFunction, HostTable
from tallystick.sandbox.port import ExecutionContext, ExecutionResult, Limits
from tallystick.sandbox.process.sandbox import ProcessSandbox
from tallystick.sandbox.text import HostText

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessSandbox]:
    made = made_sandbox(tmp_path_factory.mktemp("output"), spares=0)
    yield made
    asyncio.run(made.close())


@pytest.fixture
def session(sandbox: ProcessSandbox) -> Iterator[ProcessTestSession]:
    with opened(sandbox) as made:
        yield made


def test_a_name_lives_from_program_to_program(session: ProcessTestSession) -> None:
    session.value("import json\ndef double(n): return 2 * n\nclass Kept: pass\nkept = Kept()")

    assert session.value("json.dumps([double(4), type(kept).__name__])") == "'[8, \"Kept\"]'"


def test_a_program_that_is_ended_leaves_the_namespace_as_it_was(
    session: ProcessTestSession,
) -> None:
    session.value("kept = [1]")

    ended = session.run("kept.append(2)\nprint('so far', end='')\nwhile True: pass", wall_ms=100)

    assert (ended.stop, ended.timed_out, ended.stdout) == ("wall", True, "so far")
    assert session.value("kept") == "[1]"


def test_what_a_failed_program_did_before_it_failed_is_kept(session: ProcessTestSession) -> None:
    failed = session.run("before = 1\nnope")

    assert failed.error is not None
    assert failed.error.kind == "NameError"
    assert "line 2" in failed.error.traceback
    assert "interpreter.py" not in failed.error.traceback
    assert session.value("before") == "1"


def test_packages_of_the_interpreter_and_native_code_can_be_used(
    session: ProcessTestSession,
) -> None:
    session.value("import ctypes, lzma, sqlite3, zlib")

    assert session.value("lzma.decompress(lzma.compress(b'x')), zlib.crc32(b'x')") is not None


def test_top_level_await_and_threads_work(session: ProcessTestSession) -> None:
    program = (
        "import asyncio, threading\nseen = []\n"
        "threading.Thread(target=lambda: seen.append('thread')).start()\n"
        "await asyncio.sleep(0)\n"
    )
    session.value(program)

    assert session.value("seen") == "['thread']"


def test_a_seed_decides_the_numbers_that_follow_also_over_programs(
    sandbox: ProcessSandbox,
) -> None:
    drawn = []
    for _ in range(2):
        with opened(sandbox, seed=7) as session:
            session.value("import random")
            drawn.append([session.value("random.random()") for _ in range(2)])

    assert drawn[0] == drawn[1]
    assert drawn[0][0] != drawn[0][1]


def test_numbers_go_on_where_an_ended_program_began(session: ProcessTestSession) -> None:
    session.value("import random\nrandom.seed(1)")
    session.run("random.random()\nwhile True: pass", wall_ms=60)

    assert session.value("random.random()") == "0.13436424411240122"


# -- host ------------------------------------------------------------------------------------------


def test_the_answering_names_are_those_of_the_other_sandbox(session: ProcessTestSession) -> None:
    host = HostTable(values={"context": "some text"}, answering=True)

    shown = session.run("total = len(context)\nSHOW_VARS()", host=host)
    answered = session.run("FINAL_VAR('total')", host=host)
    unknown = session.run("FINAL_VAR('nothing')", host=host)

    assert shown.value == "'Variables: total: int'"
    assert answered.metadata["answer"] == "9"
    assert unknown.error is not None
    assert "there is no variable 'nothing'" in unknown.error.message


def test_a_text_stays_on_the_host(session: ProcessTestSession, tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("one\ntwo ERR-1\nthree ERR-2\n", encoding="utf-8")
    host = HostTable(texts={"log": HostText.open(path)})

    found = session.run("[line for _, line in log.grep('ERR-[0-9]')], log[0:3]", host=host)

    assert found.value == "(['two ERR-1', 'three ERR-2'], 'one')"


def test_a_name_that_was_rebound_is_back_in_the_next_program(session: ProcessTestSession) -> None:
    session.run("echo = None")

    again = session.run("echo(1)")

    assert (again.value, again.metadata["names_restored"]) == ("1", ["echo"])


def test_names_are_bound_again_when_they_change_and_when_their_program_was_ended(
    session: ProcessTestSession,
) -> None:
    first = HostTable([HostFunction(name="first", function=lambda: 1, local=True)])
    second = HostTable([HostFunction(name="second", function=lambda: 2, local=True)])

    assert session.run("first()", host=first).value == "1"
    assert session.run("second()\nwhile True: pass", host=second, wall_ms=60).stop == "wall"
    assert session.run("second()", host=second).value == "2"
    assert session.run("first", host=second).error is not None


def test_waiting_for_the_host_is_not_the_programs_time(session: ProcessTestSession) -> None:
    async def later() -> str:
        await asyncio.sleep(0.2)
        return "late"

    host = HostTable([HostFunction(name="later", function=later)])

    assert session.run("later()", host=host, wall_ms=150).value == "'late'"


def test_a_call_that_never_answers_ends_with_the_deadline(session: ProcessTestSession) -> None:
    async def never() -> None:
        await asyncio.sleep(60)

    host = HostTable([HostFunction(name="never", function=never)])

    result = session.run("never()", host=host, context={"deadline_ms": 150})

    assert (result.stop, result.timed_out) == ("deadline", True)


@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=50),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
        ),
        max_leaves=12,
    )
)
@settings(max_examples=10)
def test_what_goes_to_the_host_and_back_is_the_same(
    law_session: ProcessTestSession, value: object
) -> None:
    seen: list[object] = []

    def keep(given: object) -> object:
        seen.append(given)
        return given

    host = HostTable([HostFunction(name="keep", function=keep, local=True)])
    program = f"import json\nsent = json.loads({json.dumps(json.dumps(value))})\nkeep(sent) == sent"

    assert law_session.value(program, host=host) == "True"
    assert seen == [value]


@pytest.fixture(scope="module")
def law_session(sandbox: ProcessSandbox) -> Iterator[ProcessTestSession]:
    with opened(sandbox) as made:
        yield made


def test_requests_and_replies_beyond_their_size_are_refused_and_the_program_goes_on(
    session: ProcessTestSession,
) -> None:
    host = HostTable([HostFunction(name="long", function=lambda n: "x" * n, local=True)])
    program = (
        "def tried(n):\n    try: return len(long(n))\n"
        "    except HostError as e: return str(e)[:40]\n"
        "try: long('y' * 5000)\nexcept HostError as e: print(str(e)[:30])\n"
        "[tried(2_000), tried(9_000)]"
    )

    result = session.run(program, host=host, request_bytes=1_000, reply_bytes=4_000)

    assert result.value == "[2000, 'a reply of 9,001 bytes; at most 4,000']"
    assert "a request of 5," in result.stdout
    assert [call.ok for call in result.calls] == [False, True, False]


def test_a_reply_of_many_megabytes_arrives(session: ProcessTestSession) -> None:
    host = HostTable([HostFunction(name="big", function=lambda: "ü" * 4_000_000, local=True)])

    assert session.value("len(big())", host=host) == "4000000"


# -- limits ----------------------------------------------------------------------------------------


def test_memory_is_a_limit_of_the_program_and_not_of_the_session(
    session: ProcessTestSession,
) -> None:
    session.value("kept = 1")

    held = session.run("len(bytearray(200 << 20))", memory_bytes=64 << 20)

    assert (held.stop, held.error and held.error.kind) == ("memory", "MemoryExhausted")
    assert session.value("kept, len(bytearray(100 << 20))", memory_bytes=256 << 20) is not None


@pytest.mark.slow
def test_all_processes_of_a_session_together_have_a_limit_too() -> None:
    hungry = "import time; held = b'x' * (60 << 20); time.sleep(30)"
    sandbox = made_sandbox(memory_total_bytes=150 << 20)
    with opened(sandbox) as session:
        session.value("kept = 1")

        program = session.run(
            "import os, time\nfor _ in range(4):\n"
            "    if os.fork() == 0: held = b'x' * (60 << 20); time.sleep(30); os._exit(0)\n"
            "time.sleep(30)"
        )
        command = session.command(f'for n in 1 2 3 4; do python3 -c "{hungry}" & done; wait')

        assert [program.stop, command.stop] == ["memory", "memory"]
        assert program.error is not None
        assert "157,286,400" in program.error.message
        assert session.value("kept") == "1"
        # The last program's own process may still be on its way out.
        until = time.monotonic() + 5
        while len(living_in(session.namespace)) > 3 and time.monotonic() < until:
            time.sleep(0.02)
        assert len(living_in(session.namespace)) <= 3
    asyncio.run(sandbox.close())


@pytest.mark.slow
def test_sessions_at_the_same_time_stay_apart(sandbox: ProcessSandbox) -> None:
    found: dict[int, list[str | None]] = {}

    def work(number: int) -> None:
        with opened(sandbox) as session:
            session.value(f"kept = {number}")
            session.said(f"echo {number} > file; export KEPT={number}")
            session.run("while True: pass", wall_ms=50)
            found[number] = [session.value("kept"), session.said("cat file; echo $KEPT")]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == {number: [str(number), f"{number}\n{number}\n"] for number in range(4)}


def test_output_beyond_the_inline_cap_is_in_a_file(session: ProcessTestSession) -> None:
    result = session.run("for n in range(5000): print(n)", context={"max_output_bytes": 1_000})

    assert result.output_truncated
    assert result.output_file_path is not None
    assert Path(result.output_file_path).read_text().splitlines()[-1] == "4999"
    assert result.stdout.startswith("0\n1\n")


def test_output_of_children_and_of_native_code_is_output_too(session: ProcessTestSession) -> None:
    program = (
        "import os, subprocess, sys\nprint('one', flush=True)\nos.write(1, b'two\\n')\n"
        "subprocess.run(['echo', 'three'])\nsys.stdout.buffer.write(b'four\\n')\n"
        "print('five', file=sys.stderr)"
    )

    result = session.run(program)

    assert (result.stdout, result.stderr) == ("one\ntwo\nthree\nfour\n", "five\n")


def test_streams_that_are_not_wanted_are_not_kept(session: ProcessTestSession) -> None:
    quiet = {"capture_stdout": False, "capture_stderr": True}

    result = session.run("import sys\nprint('a')\nprint('b', file=sys.stderr)", context=quiet)

    assert (result.stdout, result.stderr, result.charge.output_bytes) == ("", "b\n", 4)


def test_host_calls_are_counted_and_end_with_their_limit(session: ProcessTestSession) -> None:
    result = session.run("while True: echo(1)", host_calls=5)

    assert (result.stop, result.charge.host_calls) == ("host_calls", 5)


@pytest.mark.parametrize(
    ("context", "error", "named"),
    [
        ({"limits": Limits(fuel=1)}, NotSupported, "fuel"),
        ({"limits": Limits(memory_bytes=1)}, InvalidLimit, "memory_bytes"),
        ({"limits": Limits(memory_bytes=1 << 50)}, InvalidLimit, "memory_bytes"),
        ({"working_dir": "../up"}, UsageError, "working_dir"),
        ({"working_dir": "/etc"}, UsageError, "working_dir"),
        ({"working_dir": "a\0b"}, UsageError, "working_dir"),
        ({"env_vars": {"A=B": "c"}}, UsageError, "A=B"),
        ({"env_vars": {"A": "c\0d"}}, UsageError, "env_vars"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(
    law_session: ProcessTestSession, context: dict[str, object], error: type[Exception], named: str
) -> None:
    asked = ExecutionContext(session_id="S", **context)  # type: ignore[arg-type]

    for perform in (law_session.session.execute, law_session.session.command):
        with pytest.raises(error, match=named):
            law_session.do(perform("1", context=asked, host=HostTable()))


@pytest.mark.parametrize("program", ["1 +", b"\xff\xfe", "x" * 2_000_000, "a\0b"])
def test_a_program_that_is_none_is_a_result(
    law_session: ProcessTestSession, program: str | bytes
) -> None:
    result = law_session.run(program)

    assert result.error is not None
    assert (result.exit_code, result.stop) == (1, "finished")
    assert law_session.value("1 + 1") == "2"


def test_the_environment_is_what_the_context_says_and_little_more(
    session: ProcessTestSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOT_FOR_PROGRAMS", "secret")
    seen = "import os, subprocess\nsorted(os.environ)"

    names = session.value(seen, context={"env_vars": {"GIVEN": "1"}})
    child = session.value(
        "subprocess.run(['bash', '-c', 'echo $GIVEN'], capture_output=True).stdout",
        context={"env_vars": {"GIVEN": "2"}},
    )

    assert names is not None
    assert "'GIVEN'" in names
    assert "NOT_FOR" not in names
    assert child == "b'2\\n'"
    assert "GIVEN" not in (session.value(seen) or "")


def test_a_working_directory_is_honoured_and_kept(session: ProcessTestSession) -> None:
    session.value("import os\nos.makedirs('a/b')")

    assert session.value("os.getcwd()", context={"working_dir": "a/b"}) == "'/session/work/a/b'"
    assert session.value("os.getcwd()") == "'/session/work/a/b'"
    absent = session.run("1", context={"working_dir": "nowhere"})
    assert absent.error is not None
    assert absent.error.kind == "FileNotFoundError"


# -- ends ------------------------------------------------------------------------------------------


def test_a_cancel_from_another_thread_ends_the_program(session: ProcessTestSession) -> None:
    timer = threading.Timer(0.1, session.session.cancel)
    timer.start()
    began = time.monotonic()

    result = session.run("print('begun')\nwhile True: pass", wall_ms=30_000)

    timer.join()
    assert (result.stop, result.stdout) == ("cancelled", "begun\n")
    assert time.monotonic() - began < 5


def test_cancelling_the_task_ends_the_program(session: ProcessTestSession) -> None:
    async def scenario() -> ExecutionResult:
        context = session.context(wall_ms=30_000)
        task = asyncio.ensure_future(
            session.session.execute("while True: pass", context=context, host=HostTable())
        )
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await session.session.execute("1 + 1", context=context, host=HostTable())

    assert session.do(scenario()).value == "2"


def test_a_cancellation_token_ends_what_it_names(
    sandbox: ProcessSandbox, session: ProcessTestSession
) -> None:
    timer = threading.Timer(0.1, lambda: sandbox.cancel("T"))
    timer.start()

    result = session.command("sleep 30", context={"cancellation_token": "T"})

    timer.join()
    assert result.stop == "cancelled"
    assert not sandbox.cancel("T")


def test_a_closed_session_runs_nothing_and_leaves_nothing(sandbox: ProcessSandbox) -> None:
    with opened(sandbox) as session:
        session.said("sleep 300 & echo")
    session.runner = asyncio.Runner()
    with session.runner, pytest.raises(UsageError, match="closed"):
        session.run("1")

    assert living_in(session.namespace) == []


def test_an_interpreter_that_a_program_has_killed_is_made_again_and_that_is_said(
    session: ProcessTestSession,
) -> None:
    session.value("kept = 1")
    session.run(
        "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nwhile True: pass", wall_ms=60
    )

    result = session.run("echo('kept' in dir())")

    assert (result.value, result.metadata.get("namespace_lost")) == ("False", True)
    assert session.value("echo('still there')") == "'still there'"
    assert session.run("1").metadata.get("namespace_lost") is None


_HOST = """
import asyncio, os, sys, time
from tallystick.sandbox.host import HostTable
from tallystick.sandbox.port import ExecutionContext
from tallystick.sandbox.process.sandbox import ProcessSandbox
async def main():
    sandbox = ProcessSandbox(spares=0)
    session = await sandbox.open(session_id='S')
    context = ExecutionContext(session_id='S')
    await session.command('setsid sleep 300 & sleep 300 & echo', context=context, host=HostTable())
    print(os.readlink(f'/proc/{session.box_pid}/ns/pid_for_children'), flush=True)
    await session.execute('while True: pass', context=context, host=HostTable())
asyncio.run(main())
"""


def test_nothing_survives_a_host_that_was_killed(sandbox: ProcessSandbox) -> None:
    with subprocess.Popen([sys.executable, "-c", _HOST], stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        namespace = host.stdout.readline().decode().strip()
        assert living_in(namespace)

        host.kill()
        host.wait()
        until = time.monotonic() + 10
        while living_in(namespace) and time.monotonic() < until:
            time.sleep(0.02)

    assert living_in(namespace) == []


@pytest.mark.slow
def test_sessions_go_on_in_a_new_launcher_when_the_old_one_was_killed() -> None:
    sandbox = made_sandbox()
    with opened(sandbox) as session:
        session.value("kept = 1")
        launcher = sandbox._launcher.pid
        assert launcher is not None
        os.kill(launcher, 9)
        until = time.monotonic() + 10
        while living_in(session.namespace) and time.monotonic() < until:
            time.sleep(0.01)

        broken = session.run("1")
        assert (broken.stop, broken.exit_code) == ("trap", -1)
    with opened(sandbox) as session:
        assert session.value("1 + 1") == "2"
    asyncio.run(sandbox.close())
