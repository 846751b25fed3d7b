"""Host calls: what a program asks and how it is answered, also when that goes wrong."""

import asyncio
import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wasm_session import ECHO, TestSession, open_session

from tallystick.core.errors import InvalidName, SandboxError
from tallystick.sandbox.host import HostFunction, HostTable
from tallystick.sandbox.port import ExecutionContext, HostCall
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.strategies import json_values

values = json_values(integers=st.integers(-(2**63), 2**63 - 1), max_leaves=12)


def table(*, local: bool = True, **functions: Callable[..., Any]) -> HostTable:
    return HostTable(
        [HostFunction(name=name, function=each, local=local) for name, each in functions.items()]
    )


@pytest.fixture(scope="module")
def shared(sandbox: WasmSandbox) -> Any:
    with open_session(sandbox) as opened:
        yield opened


@given(value=values)
def test_a_json_value_crosses_and_comes_back_the_same(shared: TestSession, value: Any) -> None:
    assert shared.value(f"sent = {value!r}\necho(sent) == sent") == "True"


@pytest.mark.parametrize("size", [0, 1, 65_534, 65_535, 65_536, 65_537, 1_000_000])
@pytest.mark.parametrize("letter", ["a", "ä", "\N{SNOWMAN}", "\U0001f600"])
def test_text_of_any_size_comes_back_whole(shared: TestSession, size: int, letter: str) -> None:
    host = table(text=lambda: letter * size)

    assert shared.value(f"text() == {letter!r} * {size}", host=host) == "True"


@pytest.mark.parametrize("size", [0, 1, 2, 65_535, 65_536, 300_000])
def test_bytes_come_back_as_bytes(shared: TestSession, size: int) -> None:
    host = table(data=lambda: bytes(range(256)) * (size // 256 + 1))

    assert shared.value("len(data()), data()[:3]", host=host) == (
        f"({(size // 256 + 1) * 256}, b'\\x00\\x01\\x02')"
    )


@pytest.mark.parametrize("local", [True, False])
def test_arguments_arrive_by_place_and_by_name(session: TestSession, local: bool) -> None:
    host = table(local=local, join=lambda *a, sep="-": sep.join(map(str, a)))

    assert session.value("join(1, 2, sep='+')", host=host) == "'1+2'"


def test_a_coroutine_function_is_awaited_on_the_loop(session: TestSession) -> None:
    threads: list[str] = []

    async def where() -> int:
        threads.append(threading.current_thread().name)
        await asyncio.sleep(0)
        return 7

    assert session.value("where()", host=table(local=False, where=where)) == "7"
    assert threads == [threading.current_thread().name]


def test_a_local_function_is_answered_in_the_programs_thread(session: TestSession) -> None:
    host = table(where=lambda: threading.current_thread().name)

    assert session.value("where()", host=host) == "'tally-program'"


@pytest.mark.parametrize("local", [True, False])
def test_a_function_that_raises_is_an_error_the_program_can_catch(
    session: TestSession, local: bool
) -> None:
    def fails() -> None:
        raise KeyError("no such row")

    host = table(local=local, fails=fails)
    program = (
        "try:\n    fails()\nexcept HostError as error:\n    caught = error.kind, str(error)\ncaught"
    )

    assert session.value(program, host=host) == "('KeyError', \"KeyError: 'no such row'\")"


@pytest.mark.parametrize("value", [object(), {1: object()}, print, [b"x", {object()}], "\ud800"])
def test_what_cannot_be_encoded_is_an_error_that_says_so(
    session: TestSession, value: object
) -> None:
    error = session.run("odd()", host=table(odd=lambda: value)).error

    assert error is not None
    assert error.kind == "HostError"
    assert "cannot be encoded" in error.message


def test_a_circular_value_is_an_error_that_says_so(session: TestSession) -> None:
    circle: list[Any] = []
    circle.append(circle)

    error = session.run("odd()", host=table(odd=lambda: circle)).error

    assert error is not None
    assert error.kind == "HostError"


@pytest.mark.parametrize("value", ["object()", "{1, 2}", "print", "float('nan')"])
def test_what_a_program_cannot_send_is_its_own_error(session: TestSession, value: str) -> None:
    result = session.run(f"echo({value})")

    assert result.error is not None
    assert result.error.kind in ("TypeError", "ValueError")
    assert session.value("echo([1])") == "[1]"


def test_a_circular_argument_does_not_spoil_the_next_call(session: TestSession) -> None:
    result = session.run("c = []\nc.append(c)\necho(c)")

    assert result.error is not None
    assert session.value("c = [1]\necho([c, c])") == "[[1], [1]]"


def test_big_numbers_cross_or_say_why_not(session: TestSession) -> None:
    assert session.value(f"echo({2**63 - 1})") == str(2**63 - 1)
    assert session.value("echo(1e308)") == "1e+308"
    assert session.run(f"echo({2**200})").error is not None or session.value(f"echo({2**200})") in (
        str(2**200),
        repr(float(2**200)),
    )


def test_a_function_that_was_not_granted_looks_like_one_that_is_not_there(
    session: TestSession,
) -> None:
    secret = HostFunction(name="secret", function=lambda: 1, local=True, needs="files.read")
    allowed = HostTable([secret], granted=frozenset({"files.read"}))

    assert session.value("secret()", host=allowed) == "1"
    missing = session.run("secret()", host=HostTable([secret])).error
    assert missing is not None
    assert missing.kind == "NameError"
    unknown = session.run("secrett()").error
    assert unknown is not None
    assert unknown.kind == "NameError"


def test_a_name_that_went_away_is_gone_from_the_namespace(session: TestSession) -> None:
    session.run("1", host=table(first=lambda: 1, second=lambda: 2))

    assert session.value("'first' in globals(), second()", host=table(second=lambda: 3)) == (
        "(False, 3)"
    )


def test_a_rebound_name_is_back_in_the_next_program_and_the_result_says_so(
    session: TestSession,
) -> None:
    session.run("echo = None")

    result = session.run("echo(1)")

    assert result.value == "1"
    assert result.metadata["names_restored"] == ["echo"]


def test_the_docstring_is_what_the_program_reads(session: TestSession) -> None:
    def lookup(key: str, *, limit: int = 3) -> list[str]:
        """Look a key up, for example "a"."""
        return []

    doc = session.value("lookup.__doc__", host=table(lookup=lookup))

    assert doc is not None
    assert "lookup(key: str, *, limit: int = 3)" in doc.replace("'", "")
    assert "Look a key up" in doc


def test_bytes_cross_as_bytes_both_ways(session: TestSession) -> None:
    given: list[object] = []

    def turned(data: bytes, *, more: bytes) -> bytes:
        given.extend([data, more])
        return data[::-1]

    value = session.value("turned(b'abc', more=bytearray(3))", host=table(turned=turned))

    assert value == "b'cba'"
    assert given == [b"abc", bytes(3)]


def test_functions_of_a_group_are_attributes_of_its_name(session: TestSession) -> None:
    functions = [
        HostFunction(name="files.read", function=lambda name: f"<{name}>"),
        HostFunction(name="files.count", function=lambda: 2),
        HostFunction(name="files.drop", function=lambda: None, needs="files.write"),
    ]
    host = HostTable(functions, granted=frozenset())

    assert session.value("[files.read('a'), files.count()]", host=host) == "['<a>', 2]"
    assert session.value("hasattr(files, 'drop')", host=host) == "False"


def test_a_name_that_is_hidden_by_escapes_is_not_called() -> None:
    """What is recorded of a call, and whether it is an effect, goes by the name as it was sent."""
    called: list[object] = []
    request = b'["ec\\u0068o",[1],{}]'
    call = HostCall(index=0, name="ec\\u0068o", request=request, fuel=0)

    reply = table(echo=called.append).serve(call)

    assert isinstance(reply, bytes)
    assert reply.startswith(b"1")
    assert called == []


@pytest.mark.parametrize("name", ["", "a b", "1st", "__import__", "a.b.c", "a.", "text.slice"])
def test_a_host_name_is_an_identifier(name: str) -> None:
    with pytest.raises(InvalidName):
        HostTable([HostFunction(name=name, function=lambda: 1)])


def test_a_request_that_is_too_long_is_refused_and_the_program_goes_on(
    session: TestSession,
) -> None:
    program = "try:\n    echo('x' * 2000)\nexcept HostError as error:\n    said = str(error)\nsaid"

    value = session.value(program, request_bytes=1_000)

    assert value is not None
    assert "at most 1,000" in value


def test_a_reply_that_is_too_long_is_refused_and_the_program_goes_on(session: TestSession) -> None:
    program = "try:\n    long()\nexcept HostError as error:\n    said = str(error)\nsaid"

    value = session.value(program, host=table(long=lambda: "x" * 2_000), reply_bytes=1_000)

    assert value is not None
    assert "at most 1,000" in value


def test_calls_are_listed_in_order_with_what_they_cost(session: TestSession) -> None:
    calls = session.run("echo(1)\nechoo = echo\nechoo('x')").calls

    assert [(call.index, call.name, call.ok) for call in calls] == [
        (0, "echo", True),
        (1, "echo", True),
    ]
    assert 0 < calls[0].fuel < calls[1].fuel
    assert calls[1].reply_bytes == len(b'0"x"')


def test_replies_beyond_measure_are_not_kept_for_running_again(session: TestSession) -> None:
    host = table(long=lambda: "x" * 1_000_000)
    session.run("kept = sum(len(long()) for _ in range(20))", host=host)

    session.run("kept = 0\nwhile True: pass", fuel=10_000_000)

    assert session.value("kept") == "20000000"


class _BrokenHost:
    names = ECHO.names

    def serve(self, call: HostCall) -> bytes:
        raise SandboxError("the disk is on fire")


def test_a_host_that_breaks_is_not_the_programs_fault(session: TestSession) -> None:
    session.run("kept = 1", host=ECHO)

    with pytest.raises(SandboxError, match="the disk is on fire"):
        session.run("kept = 2\necho(1)", host=_BrokenHost())

    assert session.value("kept") == "1"


def test_two_programs_wait_for_the_host_at_the_same_time(sandbox: WasmSandbox) -> None:
    """Waiting holds no slot: many more programs wait than may be active."""
    count = 20

    async def scenario() -> list[str | None]:
        barrier = asyncio.Barrier(count)

        async def meet() -> int:
            await barrier.wait()
            return 1

        host = table(local=False, meet=meet)
        sessions = [await sandbox.open(session_id=f"S{n}") for n in range(count)]
        context = ExecutionContext(session_id="S", deadline_ms=20_000)
        results = await asyncio.gather(
            *(each.execute("meet()", context=context, host=host) for each in sessions)
        )
        for each in sessions:
            await each.close()
        return [result.value for result in results]

    assert asyncio.run(scenario()) == ["1"] * count


def test_numbers_that_json_lacks_become_null(session: TestSession) -> None:
    assert session.value("odd()", host=table(odd=lambda: math.nan)) is None
