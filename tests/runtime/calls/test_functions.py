"""Host functions that cannot be used are refused at once; their errors tell no host paths."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tallystick.client import Session
from tallystick.core.errors import UsageError
from tallystick.ledger.memory import MemoryLedger
from tallystick.model.scripted import ScriptedModel, ScriptedReply
from tallystick.runtime.calls.functions import RunFunction, host_function
from tallystick.sandbox.host import shorten_paths
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import block
from tallystick.testing.runs import play


def made(name: str | None = "look", **more: Any) -> RunFunction:
    @host_function(name=name, **more)
    def look(key: str) -> str:
        """Look."""
        return key

    return look


@pytest.mark.parametrize("policy", ["efect", "", "Effect", "paid", None, 3, ["read"]])
def test_an_unknown_policy_is_refused_where_it_is_written(policy: Any) -> None:
    with pytest.raises(UsageError, match=r"^look: policy must be pure, read or effect, not "):
        made(policy=policy)


@pytest.mark.parametrize(
    "name",
    [
        *("", " ", "a b", "1st", "a.b.c", ".a", "a.", "__class__", "class", "a.class", 7),
        *("FINAL", "llm_query", "answer", "budget.remaining", "outputs.x", "context", "text.x"),
    ],
)
def test_a_name_that_programs_cannot_call_is_refused_where_it_is_written(name: Any) -> None:
    with pytest.raises(UsageError):
        made(name)


@pytest.mark.parametrize("name", ["look", "mail.send", "größe", None])
def test_a_name_that_programs_can_call_is_taken(name: str | None) -> None:
    assert made(name).name == (name or "look")


@pytest.mark.parametrize(
    "functions",
    [
        [made(), made()],
        [made("mail"), made("mail.send")],
        [made("mail.send"), made("mail.send")],
        [lambda key: key],
        [str],
    ],
)
def test_functions_that_programs_could_not_tell_apart_are_refused_at_once(functions: Any) -> None:
    with pytest.raises(UsageError, match=r"^(functions|tools): "):
        Session(functions=functions, ledger=MemoryLedger())


@pytest.mark.parametrize("goal", ["", "  \n", None])
def test_an_empty_goal_is_refused_before_anything_is_written(goal: Any) -> None:
    with (
        Session(model=ScriptedModel([]), ledger=MemoryLedger()) as session,
        pytest.raises(UsageError, match=r"^goal: it is empty"),
    ):
        session.run(goal)

    assert list(session.ledger.runs()) == []


USES: list[Callable[[Session], Any]] = [
    lambda session: session.run("what is it?"),
    lambda session: asyncio.run(session.arun("what is it?")),
    lambda session: session.replay("x"),
    lambda session: session.resume("x"),
    lambda session: asyncio.run(session.aresume("x")),
    lambda session: session.fork("x", turn=1),
]


@pytest.mark.parametrize("use", USES)
def test_a_closed_session_says_so(use: Callable[[Session], Any]) -> None:
    session = Session(model=ScriptedModel([]), ledger=MemoryLedger())
    session.close()

    with pytest.raises(UsageError, match=r"^the agent is closed"):
        use(session)
    session.close()


SECRET = "/home/alice/projects/acme/config.yaml"


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (f"[Errno 2] No such file or directory: '{SECRET}'", "'config.yaml'"),
        (f"cannot read {SECRET}: denied", "read config.yaml: denied"),
        (f"cannot read ({SECRET})", "(config.yaml)"),
        ("'/srv/my files/a b.csv' -> '/srv/other files/c'", "'a b.csv' -> 'c'"),
        (r"C:\Users\Alice\secret.txt is locked", "secret.txt is locked"),
        ("open('~/keys/id.pem')", "open('id.pem')"),
        ("at file:///var/lib/acme/db.sqlite", "at db.sqlite"),
        (f"key={SECRET}", "key=config.yaml"),
        ("https://example.com/a/b/c answered 404", "https://example.com/a/b/c answered 404"),
        ("3/4 of 10/2026, and/or km/h", "3/4 of 10/2026, and/or km/h"),
    ],
)
def test_a_message_has_no_host_paths(message: str, told: str) -> None:
    assert told in shorten_paths(message)
    assert "/home/" not in shorten_paths(message)


class Unsayable(Exception):
    def __str__(self) -> str:
        raise RuntimeError(SECRET)


@pytest.mark.parametrize(
    "error",
    [FileNotFoundError(2, "No such file", SECRET), RuntimeError(f"bad: {SECRET}"), Unsayable()],
)
@pytest.mark.parametrize("awaited", [False, True])
def test_an_unexpected_exception_reaches_the_program_without_host_paths(
    error: Exception, awaited: bool, sandbox: WasmSandbox
) -> None:
    def fails() -> str:
        raise error

    async def fails_later() -> str:
        raise error

    tool = host_function(policy="read", name="fails")(fails_later if awaited else fails)
    source = "try:\n    fails()\nexcept HostError as error:\n    FINAL(f'{error.kind} {error}')"

    played = play(sandbox, [ScriptedReply(text=block(source))], functions=[tool])

    assert type(error).__name__ in str(played.run.answer)
    assert "alice" not in str(played.run.answer)
    assert played.replayed().held


@pytest.mark.parametrize(
    "error", [SystemExit(3), SystemExit("usage: tool FILE"), KeyboardInterrupt()]
)
@pytest.mark.parametrize("awaited", [False, True])
def test_a_function_that_exits_fails_in_its_call_and_the_run_goes_on(
    error: BaseException, awaited: bool, sandbox: WasmSandbox
) -> None:
    def fails() -> str:
        raise error

    async def fails_later() -> str:
        raise error

    tool = host_function(policy="read", name="fails")(fails_later if awaited else fails)
    source = "try:\n    fails()\nexcept HostError as error:\n    FINAL(f'{error.kind}|{error}')"

    played = play(sandbox, [ScriptedReply(text=block(source))], functions=[tool])

    told = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    assert played.run.answer == f"{type(error).__name__}|{told}"
    assert played.replayed().held


class Looker:
    """An object that is called, as clients of services are."""

    async def __call__(self, key: str) -> str:
        """Look."""
        return key.upper()


def test_an_object_whose_call_is_async_is_awaited(sandbox: WasmSandbox) -> None:
    tool = host_function(policy="read", name="look")(Looker())

    played = play(sandbox, [ScriptedReply(text=block("FINAL(look('a'))"))], functions=[tool])

    assert played.run.answer == "A"
    assert played.replayed().held
