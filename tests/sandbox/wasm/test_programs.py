"""What a program finds: full Python, its own namespace, readable errors."""

import pytest
from tests.wasm_session import TestSession


def test_the_last_expression_is_the_value(session: TestSession) -> None:
    assert session.value("x = 40\nx + 2") == "42"


@pytest.mark.parametrize("program", ["", "x = 1", "None", "def f(): pass", "# only a comment"])
def test_a_program_without_a_last_expression_has_no_value(
    session: TestSession, program: str
) -> None:
    result = session.run(program)

    assert result.succeeded
    assert result.value is None


def test_names_live_on_from_program_to_program(session: TestSession) -> None:
    session.run("import math\ndef area(r): return math.pi * r * r\nclass Box: side = 3")

    assert session.value("round(area(2)), Box().side") == "(13, 3)"


def test_streams_are_kept_apart(session: TestSession) -> None:
    result = session.run("import sys\nprint('out')\nprint('err', file=sys.stderr)")

    assert (result.stdout, result.stderr) == ("out\n", "err\n")


@pytest.mark.parametrize(
    "write",
    [
        "sys.stdout.write('text\\n')",
        "sys.stdout.buffer.write(b'text\\n')",
        "sys.__stdout__.write('text\\n')",
        "os.write(1, b'text\\n')",
        "print('text', flush=True)",
    ],
)
def test_every_way_to_write_arrives(session: TestSession, write: str) -> None:
    assert session.run(f"import os, sys\n{write}\nNone").stdout == "text\n"


def test_a_replaced_stream_is_back_in_the_next_program(session: TestSession) -> None:
    session.run("import io, sys\nsys.stdout = sys.stderr = io.StringIO()")

    assert session.run("print('here')").stdout == "here\n"


def test_a_traceback_shows_the_programs_own_lines_and_only_them(session: TestSession) -> None:
    result = session.run(
        "def outer():\n    inner()\n\ndef inner():\n    raise ValueError('too late')\n\nouter()",
        context={"program_name": "report.py"},
    )

    assert result.exit_code == 1
    assert result.error is not None
    assert (result.error.kind, result.error.message) == ("ValueError", "too late")
    assert result.error.traceback == (
        "Traceback (most recent call last):\n"
        '  File "report.py", line 7, in <module>\n    outer()\n    ~~~~~^^\n'
        '  File "report.py", line 2, in outer\n    inner()\n    ~~~~~^^\n'
        "  File \"report.py\", line 5, in inner\n    raise ValueError('too late')\n"
        "ValueError: too late\n"
    )


def test_an_error_in_an_earlier_program_still_shows_that_programs_line(
    session: TestSession,
) -> None:
    session.run("def broken():\n    return 1 / 0")

    error = session.run("broken()").error

    assert error is not None
    assert "return 1 / 0" in error.traceback
    assert "broken()" in error.traceback


def test_chained_errors_are_shown_without_the_guests_own_frames(session: TestSession) -> None:
    error = session.run(
        "try:\n    open('x')\nexcept OSError as cause:\n    raise RuntimeError('no x') from cause"
    ).error

    assert error is not None
    assert "SandboxViolation" in error.traceback
    assert "tallystick_guest" not in error.traceback


def test_a_syntax_error_points_at_the_place(session: TestSession) -> None:
    error = session.run("a = 1\nb = = 2").error

    assert error is not None
    assert error.kind == "SyntaxError"
    assert "line 2" in error.traceback
    assert "^" in error.traceback


@pytest.mark.parametrize(
    ("program", "exit_code", "failed"),
    [
        ("import sys; sys.exit()", 0, False),
        ("import sys; sys.exit(0)", 0, False),
        ("import sys; sys.exit(3)", 3, True),
        ("exit(4)", 4, True),
        ("raise SystemExit('gone')", 1, True),
    ],
)
def test_a_program_may_end_itself(
    session: TestSession, program: str, exit_code: int, failed: bool
) -> None:
    result = session.run(program)

    assert result.stop == "finished"
    assert result.exit_code == exit_code
    assert (result.error is not None) == failed


def test_what_ran_before_an_exit_stays(session: TestSession) -> None:
    session.run("kept = 1\nraise SystemExit(2)")

    assert session.value("kept") == "1"


def test_top_level_await_runs_in_one_loop(session: TestSession) -> None:
    program = """
import asyncio
async def double(n):
    await asyncio.sleep(n)
    return n * 2
task = asyncio.create_task(double(3))
await asyncio.gather(double(1), double(2), task)
"""
    assert session.value(program) == "[2, 4, 6]"


def test_asyncio_run_and_timeouts_work(session: TestSession) -> None:
    program = """
import asyncio
async def main():
    try:
        async with asyncio.timeout(1):
            await asyncio.sleep(100)
    except TimeoutError:
        return 'in time'
asyncio.run(main())
"""
    assert session.value(program) == "'in time'"


def test_a_deadlock_of_tasks_is_an_error_and_not_a_hang(session: TestSession) -> None:
    error = session.run("import asyncio\nawait asyncio.Event().wait()").error

    assert error is not None
    assert "deadlock" in error.message


def test_the_environment_is_what_the_context_says(session: TestSession) -> None:
    shown = "import os\ndict(os.environ)"

    assert session.value(shown, context={"env_vars": {"A": "1"}}) == "{'A': '1'}"
    assert session.value(shown) == "{}"


def test_a_program_may_have_any_name(session: TestSession) -> None:
    error = session.run("1 / 0", context={"program_name": "a\nb\0c 'd' ü.py"}).error

    assert error is not None
    assert "File \"a?b?c 'd' ü.py\", line 1" in error.traceback


def test_time_zones_are_there(session: TestSession) -> None:
    program = """
import datetime, zoneinfo
paris = zoneinfo.ZoneInfo('Europe/Paris')
[datetime.datetime(2026, month, 1, tzinfo=paris).utcoffset().seconds for month in (1, 7)]
"""
    assert session.value(program) == "[3600, 7200]"
    assert session.value("'Asia/Tokyo' in zoneinfo.available_timezones()") == "True"


def test_sqlite_in_memory_works(session: TestSession) -> None:
    program = "import sqlite3\nsqlite3.connect(':memory:').execute('select 6 * 7').fetchall()"

    assert session.value(program) == "[(42,)]"


def test_main_is_a_real_module(session: TestSession) -> None:
    program = """
import pickle, __main__
class Point: pass
point = pickle.loads(pickle.dumps(Point()))
__name__, __main__.Point is Point, type(point).__module__
"""
    assert session.value(program) == "('__main__', True, '__main__')"


def test_the_values_text_is_cut_when_it_is_long(session: TestSession) -> None:
    value = session.value("'x' * 100_000")

    assert value is not None
    assert value.endswith("more characters)")
    assert len(value) < 66_000


def test_a_value_whose_repr_fails_is_the_programs_error(session: TestSession) -> None:
    result = session.run("class Bad:\n    def __repr__(self): return 1 / 0\nBad()")

    assert result.error is not None
    assert result.error.kind == "ZeroDivisionError"


def test_output_and_names_stay_when_a_program_fails(session: TestSession) -> None:
    result = session.run("kept = 5\nprint('so far')\n1 / 0")

    assert result.stdout == "so far\n"
    assert session.value("kept") == "5"


def test_sessions_share_nothing(session: TestSession, sandbox: object) -> None:
    from tests.wasm_session import open_session

    from tallystick.sandbox.wasm.sandbox import WasmSandbox

    assert isinstance(sandbox, WasmSandbox)
    session.run("import json\njson.secret = secret = 1")

    with open_session(sandbox) as other:
        assert other.value("import json\nhasattr(json, 'secret'), 'secret' in globals()") == (
            "(False, False)"
        )
