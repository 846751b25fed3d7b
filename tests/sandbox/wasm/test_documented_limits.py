"""The table of docs/reference/limits.md, row by row: each row is true, and each is tried."""

import contextlib
import io
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.wasm_session import TestSession

from tallystick.core.errors import UsageError
from tallystick.sandbox.host import HostTable

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "limits.md"


def kind_of(session: TestSession, program: str) -> str:
    """Return the class of the error that a program ends with, or how it was stopped."""
    result = session.run(program)
    assert result.error is not None, program
    return result.error.kind if result.stop == "finished" else result.stop


def is_refused(*programs: str) -> Callable[[TestSession], None]:
    return raises("SandboxViolation", *programs)


def raises(kind: str, *programs: str) -> Callable[[TestSession], None]:
    def check(session: TestSession) -> None:
        assert {program: kind_of(session, program) for program in programs} == dict.fromkeys(
            programs, kind
        )

    return check


def gives(*values: tuple[str, str]) -> Callable[[TestSession], None]:
    def check(session: TestSession) -> None:
        assert [(program, session.value(program)) for program, _ in values] == [*values]

    return check


def imports_nothing_of(*names: str) -> Callable[[TestSession], None]:
    return is_refused(*(f"import {name}" for name in names))


def every(*checks: Callable[[TestSession], None]) -> Callable[[TestSession], None]:
    def check(session: TestSession) -> None:
        for each in checks:
            each(session)

    return check


def _native_wheel(session: TestSession) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as wheel:
        wheel.writestr("numpy/core.so", b"\x7fELF")
        wheel.writestr("numpy-1.dist-info/WHEEL", "Wheel-Version: 1.0")
    with pytest.raises(UsageError, match="native code"):
        session.do(session.session.add_wheel(made.getvalue(), name="numpy.whl"))


def _files(session: TestSession) -> None:
    is_refused("open('/etc/passwd')", "import os\nos.listdir('/')", "open('x', 'w')")(session)
    given = HostTable(values={"context": "a,b\n1,2\n"})
    names = given.names.__class__
    files = {"files": (("data.csv", "context", None),)}
    given.names = names(**{f: getattr(given.names, f) for f in names.__struct_fields__} | files)
    program = (
        "import os\nfrom pathlib import Path\n"
        "[os.access('data.csv', os.R_OK), os.access('data.csv', os.W_OK), os.access('x', os.F_OK),"
        " os.path.exists('data.csv'), Path('data.csv').is_file(), os.path.getsize('data.csv'),"
        " os.path.exists('x'), open('data.csv').read()]"
    )
    assert session.value(program, host=given) == (
        "[True, False, False, True, True, 8, False, 'a,b\\n1,2\\n']"
    )


def _end_of_program(session: TestSession) -> None:
    first = "import atexit\n_ = atexit.register(print, 'one')\n_ = atexit.register(print, 'two')"
    assert session.run(first).stdout == "two\none\n"
    assert session.run("print('next')").stdout == "next\n"
    failing = "atexit.register(print, 'left')\n1 / 0"
    assert session.run(failing).stdout == "left\n"
    endless = "def forever():\n    while True: pass\natexit.register(forever)"
    assert session.run(endless, fuel=50_000_000).stop == "fuel"
    result = session.run("_ = atexit.register(lambda: 1 / 0)")
    assert "ZeroDivisionError" in result.stderr + str(result.error)


def _lines_of_the_interpreter(session: TestSession) -> None:
    error = session.run("import os\nos.fspath(1)\nos.makedirs(1, 2, 3)").error
    assert error is not None
    error = session.run("import codecs\ncodecs.getincrementaldecoder('utf-8')().decode(1)").error
    assert error is not None
    assert "<frozen codecs>" in error.traceback
    assert "data = self.buffer + input" not in error.traceback
    error = session.run("import json\njson.loads('[')").error
    assert error is not None
    assert "return _default_decoder.decode(s)" in error.traceback


def _deep(session: TestSession) -> None:
    program = "x = []\nfor _ in range(1_000_000): x = [x]\nrepr(x)"
    assert kind_of(session, program) in ("trap", "RecursionError")
    assert session.value("1") == "1"


SHARED = """
import multiprocessing as mp
from multiprocessing.managers import SyncManager
number, row, word = mp.Value('i', 7), mp.Array('d', [1, 2]), mp.Array('c', b'hello')
with number.get_lock():
    number.value += 1
row[0] = 5
with mp.Manager() as manager:
    shared, things, space = manager.dict(a=1), manager.list([1]), manager.Namespace(x=1)
    def work(place):
        shared[place] = place * 2
        things.append(place)
    workers = [mp.Process(target=work, args=(n,)) for n in range(2)]
    for each in workers: each.start()
    for each in workers: each.join()
    space.x += 1
    kept = dict(shared), sorted(things), space.x, isinstance(manager, SyncManager)
one, other = mp.Pipe()
one.send({'a': [1]})
received = other.recv()
one.close()
try:
    other.recv()
except EOFError:
    received['end'] = True
(number.value, row[:], word.value, mp.RawValue('d').value, len(mp.RawArray('i', 3)), kept, received)
"""
SHARED_VALUE = (
    "(8, [5.0, 2.0], b'hello', 0.0, 3, "
    "({'a': 1, 0: 0, 1: 2}, [0, 1, 1], 2, True), {'a': [1], 'end': True})"
)
PBKDF2 = "import hashlib\nhashlib.pbkdf2_hmac('sha1', b'password', b'salt', 4096).hex()"
SCRYPT = "import hashlib\nhashlib.scrypt(b'', salt=b'', n=16, r=1, p=1).hex()[:32]"
SQL = "import sqlite3\nsqlite3.connect(':memory:').execute({!r}).fetchall()"
SLEEP = "import time\nbegan = time.time()\ntime.sleep(1e6)\ntime.time() - began >= 1e6"
WINDOW = "with t(x) as (values(1),(2)) select sum(x) over (order by x), json_array(x) from t"

# The first cell of each row, and what shows that the second is true.
ROWS: dict[str, Callable[[TestSession], None]] = {
    "files": _files,
    "sockets": is_refused("import socket\nsocket.create_connection(('localhost', 1))"),
    "processes": is_refused("import subprocess\nsubprocess.run(['id'])", "import os\nos.fork()"),
    "native modules (`numpy`, `pandas`, any wheel with compiled code)": _native_wheel,
    "`bz2`, `lzma`, `zstd`, `ctypes`, `mmap`, `fcntl`, `resource`, `pwd`, `grp`, `syslog`": (
        imports_nothing_of(
            *("bz2", "lzma", "compression.zstd", "ctypes", "mmap", "fcntl", "resource"),
            *("pwd", "grp", "syslog"),
        )
    ),
    "`ssl`": imports_nothing_of("ssl"),
    "`tkinter`, `turtle`, `curses`, `readline`, `termios`, `tty`, `pty`": imports_nothing_of(
        "tkinter", "turtle", "curses", "readline", "termios", "tty", "pty"
    ),
    "`ensurepip`, `idlelib`, `turtledemo`": raises(
        "ModuleNotFoundError", "import ensurepip", "import idlelib", "import turtledemo"
    ),
    "SQLite's FTS3, FTS4, FTS5 and R-tree": every(
        raises(
            "OperationalError",
            *(
                SQL.format(f"create virtual table t using {name}(a, b, c)")
                for name in ("fts3", "fts4", "fts5", "rtree")
            ),
        ),
        gives((SQL.format(WINDOW), "[(1, '[1]'), (3, '[2]')]")),
    ),
    "hashes that only OpenSSL has (`ripemd160`, `sha512_256`, `sm3`)": every(
        raises(
            "ValueError",
            *(
                f"import hashlib\nhashlib.new('{name}')"
                for name in ("ripemd160", "sha512_256", "sm3")
            ),
        ),
        gives(
            (PBKDF2, "'4b007901b765489abead49d926f721d065a429c1'"),
            (SCRYPT, "'77d6576238657b203b19ca42c18a0497'"),
        ),
    ),
    "sizes beyond 32 bits": every(
        gives(
            ("import sys\nsys.maxsize", "2147483647"),
            ("import struct\nstruct.calcsize('P'), struct.calcsize('l')", "(4, 4)"),
            ("import array\narray.array('l').itemsize", "4"),
            ("sys.hash_info.width", "32"),
            ("2 ** 100", str(2**100)),
        ),
        raises("OverflowError", "len(range(2 ** 40))", "[0] * 2 ** 31"),
    ),
    "real threads and processes": gives(
        ("import threading\nthreading.active_count()", "1"),
        ("import os\nos.cpu_count()", "1"),
    ),
    "`multiprocessing` with `ctypes` types, `shared_memory`, servers at an address": every(
        gives((SHARED, SHARED_VALUE)),
        raises("TypeError", "import multiprocessing\nmultiprocessing.Value(int, 1)"),
        raises("ModuleNotFoundError", "import multiprocessing.shared_memory"),
    ),
    "`atexit`": _end_of_program,
    "descriptors of streams": every(
        gives(
            (
                "import sys\n[each.fileno() for each in (sys.stdin, sys.stdout, sys.stderr,"
                " sys.stdout.buffer)]",
                "[0, 1, 2, 1]",
            ),
            ("import os\nos.write(sys.stdout.fileno(), b'x'), os.isatty(1)", "(1, False)"),
            ("sys.stdin.read(), sys.stdin.buffer.read()", "('', b'')"),
        ),
    ),
    "source lines of modules that are part of the interpreter (`os`, `codecs`, `abc`)": (
        _lines_of_the_interpreter
    ),
    "real time": every(
        gives((SLEEP, "True")),
        raises("OverflowError", "import time\ntime.sleep(9e9)"),
    ),
    "standard input": raises("EOFError", "input()"),
    "signals, `os.abort`, `os._exit`": raises(
        "trap",
        "import os\nos.abort()",
        "import os\nos._exit(0)",
        "import signal\nsignal.raise_signal(6)",
    ),
    "very deep recursion in native code (nested `repr`, C-level parsers)": (_deep),
}


@pytest.mark.parametrize("row", ROWS)
def test_a_row_of_the_limits_page_is_true(session: TestSession, row: str) -> None:
    ROWS[row](session)


def test_the_limits_page_has_these_rows_and_no_other() -> None:
    cells = re.findall(r"^\| (.+?) \| .+ \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    with contextlib.suppress(ValueError):
        cells.remove("what")
        cells.remove("---")

    assert cells == [*ROWS]
