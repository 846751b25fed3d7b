"""Recall programs against their sandbox and their limits: what hostile ones reach for, and get."""

from __future__ import annotations

import threading
import time

import msgspec
import pytest
from tests.memory.code_mode.recall_programs import NOTES, WordStore, ends, partial, play

from tallystick.memory.code_mode.operations import (
    FUEL_MAX,
    PYTHON_FORM,
    Budget,
    CodeModeError,
    EmptyProgram,
    Halted,
    OperationFailed,
    RecallHit,
    SandboxViolation,
    WallTimeExceeded,
)
from tallystick.memory.code_mode.python import ProgramFailed
from tallystick.sandbox.wasm.sandbox import WasmSandbox

pytestmark = pytest.mark.slow

SMALL = Budget(fuel=100_000_000, mem_pages=256, wall_ms=2_000)


# -- what is stripped ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reaching", "capability"),
    [
        ("open('/etc/passwd')", "files.read"),
        ("open('notes.txt', 'w')", "files.write"),
        ("import os; os.listdir('/')", "files.read"),
        ("import os; os.remove('/etc/passwd')", "files.write"),
        ("import pathlib; pathlib.Path('/etc/passwd').read_text()", "files.read"),
        ("import tempfile; tempfile.TemporaryFile()", "files.write"),
        ("import shutil; shutil.copy('/etc/passwd', 'x')", "files.read"),
        ("import sqlite3; sqlite3.connect('memory.db')", "files"),
        ("import runpy; runpy.run_path('/etc/passwd')", "files"),
        ("import _io; _io.open('/proc/self/environ')", "files"),
        ("import io; io.FileIO('/etc/passwd')", "files"),
        ("import posix; posix.open('/x', posix.O_WRONLY | posix.O_CREAT)", "files"),
        ("import posix; posix.listdir('/')", "files"),
        ("import socket; socket.socket()", "network"),
        ("import socket; socket.create_connection(('localhost', 80))", "network"),
        ("import urllib.request; urllib.request.urlopen('http://localhost')", "network"),
        ("import http.client; http.client.HTTPConnection('localhost').connect()", "network"),
        ("import _socket; _socket.socket()", "network"),
        ("import _socket; _socket.getaddrinfo('localhost', 80)", "network"),
        ("import ssl", "network"),
        ("import subprocess; subprocess.run(['ls'])", "process.run"),
        ("import os; os.system('ls')", "process.run"),
        ("import os; os.fork()", "process.run"),
        ("import os; os.kill(1, 9)", "process.run"),
        ("import os; os.environ['HOME']", "environment"),
        ("import os; del os.environ['HOME']", "environment"),
        ("import ctypes", "native.code"),
        ("recall.__globals__['_host_call']('remember', ['mine'], {})", "host.remember"),
        ("recall.__globals__['_host_call']('text.slice', ['key', 0, 9], {})", "host.text"),
    ],
)
def test_what_the_sandbox_does_not_have_is_named(
    sandbox: WasmSandbox, reaching: str, capability: str
) -> None:
    violation = ends(SandboxViolation, sandbox, f"recall('tea', 1)\n{reaching}")

    assert str(violation) == (
        f"guest tried to access {capability} which is stripped from the sandbox"
    )
    assert violation.capability == capability
    assert partial(violation).records_seen == 1


def test_a_program_sees_nothing_of_the_hosts_environment(
    sandbox: WasmSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALLYSTICK_SECRET", "s3cret")
    source = "import os, sys, platform\nrecall('tea')\nprint(dict(os.environ), platform.node())"

    assert play(sandbox, source).final_answer == "{} (none)"


def test_a_program_may_go_on_without_what_it_could_not_have(sandbox: WasmSandbox) -> None:
    source = """
try:
    open("/etc/passwd")
except OSError as error:
    print(type(error).__name__)
print(recall("tea", 1)[0]["content"])
"""

    assert play(sandbox, source).final_answer == "SandboxViolation\ntea is at four"


def test_a_forged_violation_is_one_short_line(sandbox: WasmSandbox) -> None:
    source = "raise SandboxViolation('x', 'a\\n\\x1b[31m' + 'b' * 9_999)"

    violation = ends(SandboxViolation, sandbox, source)

    assert str(violation).isprintable()
    assert len(violation.capability) == 80


# -- arguments that are none --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("recall('tea', -1)", "k is -1; it is a whole number from 0 to 100"),
        ("recall('tea', 10_000)", "k is 10000; it is a whole number from 0 to 100"),
        ("recall('tea', k=10 ** 400)", ""),
        ("recall('tea', True)", "Expected `int`, got `bool`"),
        ("recall('tea', 1.5)", "Expected `int`, got `float`"),
        ("recall('tea', '3')", "Expected `int`, got `str`"),
        ("recall('tea', None)", "Expected `int`, got `null`"),
        ("recall(7)", "Expected `str`, got `int`"),
        ("recall(None)", "Expected `str`, got `null`"),
        ("recall(['tea'])", "Expected `str`, got `array`"),
        ("recall({'query': 'tea'})", "Expected `str`, got `object`"),
        ("recall(b'tea')", "Expected `str`, got `bytes`"),
        ("recall('')", "query is blank"),
        ("recall('x' * 10_001)", "query has 10,001 characters; at most 10,000"),
        ("score(3)", "Expected `str`, got `int`"),
        ("score(' ')", "memory_id is blank"),
        ("cite('m' * 201)", "memory_id has 201 characters; at most 200"),
    ],
)
def test_an_argument_that_cannot_be_meant_never_gets_to_the_store(
    sandbox: WasmSandbox, call: str, why: str
) -> None:
    host = WordStore()
    name = call.partition("(")[0]

    caught = play(sandbox, f"try:\n    {call}\nexcept HostError as error: print(error)", host)
    failed = ends(CodeModeError, sandbox, call, host)

    assert host.asked == []
    assert why in caught.final_answer
    assert caught.guest_token_cost > 4
    assert isinstance(failed, OperationFailed)
    assert str(failed).startswith(f"operation 1 ({name}): {why}")


@pytest.mark.parametrize(
    "call",
    [
        "recall()",
        "recall('tea', 1, 2)",
        "recall('tea', limit=3)",
        "recall(query=object())",
        "recall('tea', float('nan'))",
        "recall('\\ud800')",
        "recall('x' * 200_000)",
        "x = []\nx.append(x)\nrecall(x)",
        "x = 'tea'\nfor _ in range(9_000): x = [x]\nrecall(x)",
        "recall.__globals__['_host_call']('recall', 'tea', 'k')",
        "recall.__globals__['wire'].call_raw(b'')\nraise ValueError",
        "recall.__globals__['wire'].call_raw(b'[' * 100_000)[1]\nraise ValueError",
        "recall.__globals__['wire'].call_raw(b'[\"recall\"]')[1]\nraise ValueError",
    ],
)
def test_a_call_that_is_none_fails_in_the_program_alone(sandbox: WasmSandbox, call: str) -> None:
    host = WordStore()

    failed = ends(CodeModeError, sandbox, call, host)

    assert isinstance(failed, ProgramFailed | OperationFailed)
    assert host.asked == []


# -- using up -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "ending"),
    [
        ("x = 'x' * 100_000_000", SandboxViolation),
        ("x = ['x' * 1_000_000 for _ in range(100)]", SandboxViolation),
        ("x = b''\nwhile True: x += bytes(1_000_000)", SandboxViolation),
        ("recall('x' * 100_000_000)", SandboxViolation),
        ("FINAL('x' * 1_000_000)", SandboxViolation),
        ("while True: print('x' * 1_000)", SandboxViolation),
        ("import sys\nwhile True: sys.stderr.write('x' * 1_000)", SandboxViolation),
        ("while True: recall('tea', 100)", Halted),
        ("while True:\n    try: recall('tea', 0)\n    except BaseException: pass", Halted),
        ("while True:\n    try: recall('x' * 140_000)\n    except BaseException: pass", Halted),
        ("while True: pass", Halted),
        ("while True:\n    try:\n        while True: pass\n    except BaseException: pass", Halted),
        ("import time\nwhile True: time.sleep(1_000)", Halted),
        ("sum(range(10 ** 12))", Halted),
        ("import re\nre.match(r'(a+)+$', 'a' * 40 + 'b')", Halted),
        (
            "import threading\ndef f():\n    while True: recall('tea')\n"
            "for _ in range(9): threading.Thread(target=f).start()",
            Halted,
        ),
        ("import os\nos.abort()", ProgramFailed),
        ("import os\nos._exit(0)", ProgramFailed),
    ],
)
def test_using_up_whatever_there_is_ends_the_program(
    sandbox: WasmSandbox, source: str, ending: type[CodeModeError]
) -> None:
    began = time.monotonic()

    ended = ends(CodeModeError, sandbox, f"recall('Ada', 1)\n{source}", budget=SMALL)

    assert type(ended) is ending
    assert time.monotonic() - began < 4
    assert partial(ended).recalled[0].content == NOTES[0]


def test_a_flood_of_hits_is_counted_in_bearable_time(sandbox: WasmSandbox) -> None:
    class Flood(WordStore):
        def recall(self, query: str, k: int) -> list[RecallHit]:
            return [
                RecallHit(id=f"{query}-{n}", content=f"{query} {n} {'word ' * 8}", score=1.0)
                for n in range(k)
            ]

    source = (
        "for n in range(100): last = recall(f'note{n:03}', 100)\nprint('word ' * 50_000, last[7:9])"
    )
    began = time.process_time()

    bundle = play(
        sandbox, source, Flood(), budget=Budget(fuel=FUEL_MAX, mem_pages=512, wall_ms=9_999)
    )

    assert (bundle.records_seen, bundle.records_emitted) == (10_000, 2)
    assert time.process_time() - began < 2.5


def test_time_ends_what_threads_and_handlers_hold_on_to(sandbox: WasmSandbox) -> None:
    source = """
import atexit, sys, threading
recall("tea", 1)
def forever(*_):
    while True:
        try:
            while True: pass
        except BaseException: pass
atexit.register(forever)
sys.excepthook = threading.excepthook = forever
threading.Thread(target=forever).start()
forever()
"""
    budget = msgspec.structs.replace(PYTHON_FORM, fuel=FUEL_MAX, wall_ms=150)

    assert partial(ends(WallTimeExceeded, sandbox, source, budget=budget)).records_seen == 1


# -- tampering ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tampering",
    [
        "recall = score = cite = FINAL = answer = None",
        "import builtins\nbuiltins.print = builtins.len = builtins.str = None",
        "import json\njson.dumps = json.loads = None",
        "recall.__globals__['_names'].clear()",
        "recall.__globals__['_injected'].clear()",
        "import sys\nsys.stdout = sys.stderr = None",
        "import sys\nsys.modules.clear()",
        "import gc\n[each.clear() for each in gc.get_objects() if type(each) is list and not each]",
    ],
)
def test_what_a_program_does_to_its_own_names_changes_nothing_that_was_recalled(
    sandbox: WasmSandbox, tampering: str
) -> None:
    try:
        bundle = play(sandbox, f"recall('tea', 1)\n{tampering}")
    except CodeModeError as error:
        bundle = partial(error)

    assert [hit.content for hit in bundle.recalled] == ["tea is at four"]
    assert bundle.final_answer == "- tea is at four"


def test_a_recall_of_the_programs_own_making_is_not_in_the_bundle(sandbox: WasmSandbox) -> None:
    source = """
def recall(query, k=10):
    return [{"id": "forged", "content": "the moon is cheese", "score": 1.0}]
print(recall("moon")[0]["content"])
"""

    empty = ends(EmptyProgram, sandbox, source)

    assert partial(empty).recalled == ()


def test_hits_changed_by_a_program_stay_as_the_store_gave_them(sandbox: WasmSandbox) -> None:
    source = "note = recall('tea', 1)[0]\nnote['content'] = 'forged'\nprint(note['content'])"

    bundle = play(sandbox, source)

    assert bundle.recalled[0].content == "tea is at four"
    assert (bundle.final_answer, bundle.records_emitted) == ("forged", 0)


def test_calls_of_threads_come_one_at_a_time_and_count_alike(sandbox: WasmSandbox) -> None:
    class Busy(WordStore):
        def __init__(self) -> None:
            super().__init__()
            self.inside = threading.Lock()

        def score(self, memory_id: str) -> float:
            assert self.inside.acquire(blocking=False)
            self.inside.release()
            return super().score(memory_id)

    source = """
import threading
from concurrent.futures import ThreadPoolExecutor
threads = [threading.Thread(target=score, args=(f"m{n}",)) for n in range(4)]
for each in threads: each.start()
for each in threads: each.join()
with ThreadPoolExecutor(4) as pool:
    print(list(pool.map(score, ["m0", "m1"])))
"""

    one, other = (play(sandbox, source, Busy()) for _ in range(2))

    assert one.final_answer == "[0.25, 0.75]"
    assert sorted(one.scores) == ["m0", "m1", "m2", "m3"]
    assert msgspec.json.encode(one) == msgspec.json.encode(other)


def test_programs_share_nothing(sandbox: WasmSandbox) -> None:
    leave = "import builtins, os\nbuiltins.left = os.environ['LEFT'] = 'x'\nrecall('tea')"
    look = "import builtins, os\nrecall('tea')\nprint(hasattr(builtins, 'left'), dict(os.environ))"

    play(sandbox, leave)

    assert play(sandbox, look).final_answer == "False {}"


# -- a store that is hostile --------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        "FINAL('hacked')",
        "\x00\x1b[31m\r\n",
        '"], "$bytes": "',
        "{{7*7}} ${7*7} %s",
        "é" * 40_000,
        "\N{PILE OF POO}" * 20_000,
        "",
    ],
)
def test_a_note_is_data(sandbox: WasmSandbox, content: str) -> None:
    note = RecallHit(id="m0", content=content, score=1.0)

    class One(WordStore):
        def recall(self, query: str, k: int) -> list[RecallHit]:
            return [note]

    bundle = play(sandbox, "note = recall('x')[0]\nFINAL(str(len(note['content'])))", One())

    assert bundle.final_answer == str(len(content))
    assert bundle.recalled == (note,)
