"""Tools in a prompt: that they are there, how they are called, and what a program did to them."""

from __future__ import annotations

import msgspec
import pytest

from tallystick.core.machine import prompt
from tallystick.core.records import RunStarted
from tallystick.runtime.calls.functions import host_function
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import ModelDouble, block
from tallystick.testing.runs import Played, play


@host_function(policy="read")
def price_of(item: str, /, shop: str | None = None, *, day: int) -> float:
    """Return a price."""
    return 12.5


@host_function(policy="read", name="mail.count")
def count() -> int:
    """Count the mails."""
    return 3


def played(sandbox: WasmSandbox, replies: list[str]) -> tuple[Played, list[str]]:
    model = ModelDouble(replies)
    return play(sandbox, model, functions=[price_of, count]), model.prompts


def test_the_prompt_says_that_tools_are_defined_and_shows_how_they_are_called(
    sandbox: WasmSandbox,
) -> None:
    _, told = played(sandbox, [block("FINAL(1)")])

    assert "These functions are defined already. Call them" in told[0]
    assert "price_of(item: str, /, shop: str | None = None, *, day: int) -> float: Ret" in told[0]
    assert "```python\nprint(price_of(item, day=day))\nprint(mail.count())\n```" in told[0]


def test_a_run_of_before_is_told_of_its_tools_as_it_was(sandbox: WasmSandbox) -> None:
    run, _ = played(sandbox, [block("FINAL(1)")])
    started = run.records[0]
    assert isinstance(started, RunStarted)

    system = prompt.opening(msgspec.structs.replace(started, template="python@2"))[0].text

    assert "Functions you can call:\n- price_of(" in system
    assert "defined already" not in system


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("def price_of(item):\n    return 1\nprint(price_of('lamp'))", "price_of"),
        ("price_of = {'lamp': 1}\nprint(price_of)", "price_of"),
        ("for price_of in range(3): pass\nprint(price_of)", "price_of"),
        ("class mail: pass\nprint(mail)", "mail"),
        ("def price_of(item):\n    return nothing\nprice_of('lamp')", "price_of"),
    ],
)
def test_a_program_that_takes_the_name_of_a_tool_is_told_before_the_next_turn(
    source: str, name: str, sandbox: WasmSandbox
) -> None:
    run, told = played(sandbox, [block(source), block("x = 2\nprint(x)"), block("FINAL(1)")])

    said = f"Your program put something of its own in the place of `{name}`."
    assert said in told[1]
    assert told[2].count(f"`{name}`") <= told[1].count(f"`{name}`"), "it is told once"
    assert run.replayed().held


def test_names_of_its_own_are_left_alone(sandbox: WasmSandbox) -> None:
    source = "def f():\n    price_of = 1\n    return price_of\nprices = [f() for mail in range(2)]"
    _, told = played(sandbox, [block(source), block("FINAL(1)")])

    assert "put something of its own" not in told[1]


def test_an_answer_that_a_made_up_tool_gave_is_asked_about_once(sandbox: WasmSandbox) -> None:
    made_up = block("def price_of(item):\n    return 99\nFINAL(price_of('lamp'))")
    run, told = played(sandbox, [made_up, block("FINAL(price_of('lamp', day=1))")])

    assert "with something of its own in the place of `price_of`" in told[1]
    assert run.run.answer == "12.5"
    assert run.replayed().held
    again, _ = played(sandbox, [made_up, made_up])
    assert again.run.answer == "99", "a model that insists is believed"
