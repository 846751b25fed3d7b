"""Modules that are part of the image: reloaded, imported again, and shown in tracebacks."""

import asyncio

import pytest
from tests.wasm_session import TestSession

from tallystick.core.errors import InvalidLimit
from tallystick.sandbox.wasm.sandbox import WasmSandbox

# All that the image has imported, but for parts of the interpreter itself, and for second names of
# modules such as `os.path`, which CPython cannot import again either.
BAKED = """
import sys
left = {'sys', 'builtins', '__main__', 'entry', 'wit_world', 'componentize_py_types'}
names = [
    name for name, module in sorted(sys.modules.items())
    if name.split('.')[0] not in left
    and (module.__spec__ is None or module.__spec__.name == name)
    and not name.startswith('pyexpat.')
]
"""


def test_every_module_of_the_image_can_be_reloaded(session: TestSession) -> None:
    program = f"""{BAKED}
import importlib
failed = {{}}
for name in names:
    try:
        importlib.reload(sys.modules[name])
    except Exception as error:
        failed[name] = repr(error)
failed
"""

    assert session.value(program) == "{}"
    assert session.value("import json\njson.loads('[1]')") == "[1]"


def test_every_module_of_the_image_can_be_imported_again(session: TestSession) -> None:
    program = f"""{BAKED}
import importlib
failed = {{}}
for name in names:
    if name.startswith(('_frozen_importlib', 'importlib')):
        continue
    before = dict(sys.modules)
    for each in before:
        if each == name or each.startswith(name + '.'):
            del sys.modules[each]
    try:
        if importlib.import_module(name).__name__ != before[name].__name__:
            failed[name] = 'another'
    except Exception as error:
        failed[name] = repr(error)
    sys.modules.update(before)
failed
"""

    assert session.value(program) == "{}"


def test_a_reload_undoes_what_a_program_did_to_a_module(session: TestSession) -> None:
    program = "import importlib, json\njson.loads = None\nimportlib.reload(json).loads('[1]')"

    assert session.value(program) == "[1]"


def test_a_module_imported_again_is_another_one(session: TestSession) -> None:
    program = "import sys, heapq\nold = heapq\ndel sys.modules['heapq']\nimport heapq\nold is heapq"

    assert session.value(program) == "False"


@pytest.mark.parametrize("how", ["importlib.reload(m)", "sys.modules.pop(n); __import__(n)"])
@pytest.mark.parametrize(
    ("module", "program"),
    [
        ("threading", "t = threading.Thread(target=print, args=('in',))\nt.start()\nt.join()"),
        ("time", "time.sleep(10_000)"),
        ("asyncio", "asyncio.run(asyncio.sleep(10_000))"),
        ("multiprocessing", "multiprocessing.Value('i', 1).value"),
        ("hashlib", "hashlib.pbkdf2_hmac('sha256', b'', b'', 1)"),
    ],
)
def test_a_module_that_the_sandbox_changed_still_works_afterwards(
    session: TestSession, module: str, program: str, how: str
) -> None:
    again = f"import importlib, sys\nn = {module!r}\nm = __import__(n)\n{how}\n"

    session.value(f"{again}import {module}\n{program}")


@pytest.mark.parametrize("how", ["importlib.reload(m)", "sys.modules.pop(n); __import__(n)"])
@pytest.mark.parametrize(
    ("module", "program", "capability"),
    [
        ("os", "os.listdir('/')", "files.read"),
        ("socket", "socket.socket()", "network"),
        ("subprocess", "subprocess.run(['id'])", "process.run"),
    ],
)
def test_a_refusal_still_names_its_capability_afterwards(
    session: TestSession, module: str, program: str, capability: str, how: str
) -> None:
    again = f"import importlib, sys\nn = {module!r}\nm = __import__(n)\n{how}\n"

    result = session.run(f"{again}import {module}\n{program}")

    assert result.error is not None
    assert capability in result.error.message


def test_a_traceback_shows_the_lines_of_the_library(session: TestSession) -> None:
    error = session.run("import json\njson.loads('[1, 2')").error

    assert error is not None
    assert "json.loads('[1, 2')" in error.traceback
    assert "return _default_decoder.decode(s)" in error.traceback
    assert "obj, end = self.raw_decode(s, idx=_w(s, 0).end())" in error.traceback


def test_a_traceback_shows_the_lines_of_a_rarer_module(session: TestSession) -> None:
    error = session.run("import shelve\nshelve.Shelf({})['absent']").error

    assert error is not None
    assert "f = BytesIO(self.dict[key.encode(self.keyencoding)])" in error.traceback


@pytest.mark.parametrize("name", ["json", "sched", "tarfile", "asyncio.base_events"])
def test_the_source_of_a_standard_module_can_be_read(session: TestSession, name: str) -> None:
    program = f"import importlib, inspect\nm = importlib.import_module({name!r})\n"

    assert session.value(program + "inspect.getsource(m).count('def ') > 5") == "True"


def test_asyncio_works_after_the_policy_is_taken_back(session: TestSession) -> None:
    session.value("import asyncio\nasyncio.set_event_loop_policy(None)")

    assert session.value("await asyncio.sleep(1, 'slept')") == "'slept'"
    assert session.value("asyncio.run(asyncio.sleep(1, 'slept'))") == "'slept'"
    session.value("asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy())")
    assert session.value("await asyncio.sleep(1, 'slept')") == "'slept'"


# -- the clock -----------------------------------------------------------------------------------

LATER = """
import asyncio, datetime, random, time
await asyncio.sleep(3600)
time.sleep(24 * 3600)
datetime.datetime.now().year, time.monotonic() > 0
"""


@pytest.mark.parametrize(
    "program",
    [
        "import time\ntime.sleep(7.4e9)",
        "import time\ntry:\n    time.sleep(9.2e9)\nexcept OverflowError: pass",
        "import time\ntry:\n    while True: time.sleep(1e8)\nexcept OverflowError: pass",
        "import asyncio\ntry:\n    await asyncio.sleep(9.2e9)\nexcept OverflowError: pass",
        "import time\ntry:\n    while True: time.sleep(3e7)\nexcept Exception: pass",
    ],
)
def test_a_clock_far_in_the_future_does_not_break_a_later_program(
    session: TestSession, program: str
) -> None:
    session.run(program)

    for _ in range(3):
        value = session.value(LATER)
        assert value is not None
        assert "True" in value


def test_a_sleep_past_the_end_of_the_clock_says_so(session: TestSession) -> None:
    error = session.run("import time\ntime.sleep(9.2e9)").error

    assert error is not None
    assert (error.kind, "past the year 2262" in error.message) == ("OverflowError", True)


def test_a_program_after_a_far_one_is_run_again_alike(session: TestSession) -> None:
    session.value("import time\ntime.sleep(7.4e9)")
    before = session.value("time.time()")
    assert session.run("while True: pass", fuel=50_000_000).stop == "fuel"

    assert session.value("time.time()") == before


@pytest.mark.parametrize("clock_ns", [-1, 2**63 - 1])
def test_a_session_does_not_start_where_python_cannot_count(
    sandbox: WasmSandbox, clock_ns: int
) -> None:
    with pytest.raises(InvalidLimit, match="clock_ns"):
        asyncio.run(sandbox.open(session_id="far", clock_ns=clock_ns))
