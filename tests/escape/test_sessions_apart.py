"""What one program leaves behind, and who can see it."""
# ruff: noqa: E501 - a program is read by its own lines, not by ours.

from __future__ import annotations

import pytest
from tests.escape.case import PRELUDE
from tests.wasm_session import TestSession, open_session

from tallystick.sandbox.wasm.sandbox import WasmSandbox

# What a program might hide something in: (how it is left, how it is looked for).
HIDING_PLACES = {
    "a variable": ("left = 'mark'", "globals().get('left')"),
    "a module": (
        "import sys, types\nsys.modules['hidden'] = types.ModuleType('mark')",
        "__import__('sys').modules.get('hidden')",
    ),
    "a builtin": ("import builtins\nbuiltins.left = 'mark'", "vars(__import__('builtins')).get('left')"),
    "the environment": ("import os\nos.environ['LEFT'] = 'mark'", "__import__('os').environ.get('LEFT')"),
    "the cache of lines": (
        "import linecache\nlinecache.cache['left'] = (1, None, ['mark'], 'left')",
        "__import__('linecache').cache.get('left')",
    ),
    "a codec": (
        "import codecs\ncodecs.register(lambda n: 'mark' if n == 'left' else None)",
        "(lambda: [f for f in [__import__('codecs')] if 'left' in dir(f)] or None)()",
    ),
    "an attribute of a standard class": ("import json\njson.JSONDecoder.left = 'mark'", "getattr(__import__('json').JSONDecoder, 'left', None)"),
    "our own prelude": (PRELUDE + "cell['left'] = 'mark'", "echo.__globals__.get('left')"),
    "the collector's garbage": ("import gc\ngc.garbage.append('mark')", "(__import__('gc').garbage or [None])[0]"),
    "a database in memory": (
        "import sqlite3\nc = sqlite3.connect('file:left?mode=memory&cache=shared', uri=True)\n"
        "c.execute('create table mark(x)')",
        "__import__('sqlite3').connect('file:left?mode=memory&cache=shared', uri=True)"
        ".execute('select name from sqlite_master').fetchone()",
    ),
}  # fmt: skip

each_hiding_place = pytest.mark.parametrize("place", HIDING_PLACES)


@each_hiding_place
def test_what_is_left_in_one_session_is_not_in_another(
    place: str, session: TestSession, sandbox: WasmSandbox
) -> None:
    leave, look = HIDING_PLACES[place]
    with open_session(sandbox) as before:
        before.value("1")
        session.value(leave)
        with open_session(sandbox) as after:
            seen = [before.value(look), after.value(look)]

    assert seen == [None, None]


@pytest.mark.parametrize("place", ["a variable", "a module", "a builtin", "our own prelude"])
def test_what_is_left_stays_in_its_own_session(place: str, session: TestSession) -> None:
    leave, look = HIDING_PLACES[place]
    session.value(leave)

    assert "mark" in (session.value(f"str({look})") or "")


@each_hiding_place
def test_what_a_program_that_was_ended_had_left_is_gone(place: str, session: TestSession) -> None:
    leave, look = HIDING_PLACES[place]
    session.value("kept = 41")

    ended = session.run(f"{leave}\nimport os\nos.abort()")

    assert ended.stop == "trap"
    assert session.value("kept") == "41"
    assert session.value(look) is None


@each_hiding_place
def test_a_session_that_was_ended_looks_like_one_that_never_was(
    place: str, session: TestSession, sandbox: WasmSandbox
) -> None:
    leave, _ = HIDING_PLACES[place]
    with open_session(sandbox) as calm:
        calm.value("kept = 41")
        session.value("kept = 41")
        session.run(f"{leave}\nimport os\nos.abort()")

        assert session.do(session.session.digest()) == calm.do(calm.session.digest())


def test_environment_and_streams_are_renewed_for_each_program(session: TestSession) -> None:
    session.value("import os, sys\nos.environ['LEFT'] = 'mark'\nsys.stdout = None")

    result = session.run("print('heard')\nos.environ.get('LEFT')")

    assert (result.stdout, result.value) == ("heard\n", None)


def test_equal_seeds_are_equal_and_others_are_not(sandbox: WasmSandbox) -> None:
    probe = "import random, secrets, uuid, os\n[random.random(), secrets.token_hex(), uuid.uuid4()]"
    values = []
    for seed in (1, 1, 2):
        with open_session(sandbox, seed=seed) as opened:
            values.append(opened.value(probe))

    assert values[0] == values[1] != values[2]


def test_a_finalizer_left_behind_runs_under_the_limits_of_the_program_it_strikes(
    session: TestSession,
) -> None:
    session.value(
        "class D:\n    def __del__(self):\n        while True:\n            pass\nleft = D()"
    )

    struck = session.run("del left", fuel=300_000_000)

    assert struck.stop == "fuel"
    assert session.value("type(left).__name__") == "'D'"


def test_a_trace_function_left_behind_ends_under_the_limits_of_the_next_program(
    session: TestSession,
) -> None:
    session.value(
        "import sys\ndef t(*a):\n    while armed:\n        pass\narmed = False\nsys.setprofile(t)"
    )

    struck = session.run("armed = True\nlen('x')", wall_ms=150)

    assert struck.stop in ("finished", "wall")
    assert session.run("1 + 1", wall_ms=500).stop in ("finished", "wall")
