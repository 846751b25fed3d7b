"""Programs are read by the Python that runs them, in the sandbox, whatever the host has."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import pytest
from tests.vocabulary.slips import NAMED, NAMED_ANYWHERE, UNNAMED

from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.vocabulary.guest_python import read_python_in
from tallystick.vocabulary.program import DEPTH_MAX, PROGRAM_CHARS_MAX, Program, read_python


def read(sandbox: WasmSandbox, source: str, given: Mapping[str, str] | None = None) -> Program:
    return asyncio.run(read_python_in(sandbox, source, given=given or {}))


def test_syntax_that_only_the_guest_has_is_read(sandbox: WasmSandbox) -> None:
    program = read(sandbox, "type A = int\nprint(f'{crm.find('a')}')")

    assert program.problem is None
    assert "crm.find" in [name.path for name in program.names]
    assert [(each.path, each.text) for each in program.arguments] == [("crm.find", "a")]
    assert "A" in program.kept


def test_what_the_guest_cannot_parse_has_its_message(sandbox: WasmSandbox) -> None:
    problem = read(sandbox, "print 'a'").problem

    assert problem is not None
    assert (problem.kind, problem.why) == (
        "syntax",
        "line 1: Missing parentheses in call to 'print'. Did you mean print(...)?",
    )


@pytest.mark.parametrize(
    "source",
    [
        "np.sum(x)",
        "import os as o\nimport json as o\no.system('x')",
        "f('\\ud800', 'a', g='b')",
        "x = 1\ny: int = 2",
        *NAMED_ANYWHERE[:40],
        *UNNAMED[:20],
        *[each for each in NAMED if "[T]" not in each and not each.startswith("type ")][:3],
    ],
)
def test_host_and_guest_read_alike_what_both_have(sandbox: WasmSandbox, source: str) -> None:
    given = {"np": "numpy", "x": ""}

    assert read(sandbox, source, given) == read_python(source, given=given)


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("#" * (PROGRAM_CHARS_MAX + 1), "unread"),
        ("a" + ".b" * (DEPTH_MAX + 1), "unread"),
        ("not " * 10_000 + "1", "unread"),
        ("1" + "+1" * 30_000, "unread"),
        ("a\0b", "syntax"),
        ("\ud800 = 1", "syntax"),
        ("(" * 60_000, None),
        ("f(" * 20_000, None),
        ("x = [" + "[]," * 20_000 + "]", "none"),
        ("print(1)\n" * 7_000, "none"),
        ("import a" + ".bbbbbbbbb" * 300 + " as x\n" + "\n".join(f"x.f{n}" for n in range(6000)),
         None),
    ],
    ids=lambda source: f"{source[:8]!r}" if source else "any",
)  # fmt: skip
def test_a_hostile_source_ends_with_a_problem_and_in_time(
    sandbox: WasmSandbox, source: str, kind: str | None
) -> None:
    began = time.monotonic()

    problem = read(sandbox, source).problem

    assert time.monotonic() - began < 20
    if kind is not None:
        assert ("none" if problem is None else problem.kind) == kind
    # The next program is read as if nothing had been.
    assert [each.path for each in read(sandbox, "lookup(1)").names] == ["lookup"]


def test_nothing_of_a_program_is_run_when_it_is_read(sandbox: WasmSandbox) -> None:
    program = read(sandbox, "'); print('{}'); raise SystemExit\n'''\nwhile True: pass")

    assert program.problem is not None
    program = read(sandbox, "while True: pass\nprint('no')")
    assert program.problem is None
