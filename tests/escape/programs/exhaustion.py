"""Programs that use all there is: time, memory, stack, output."""
# ruff: noqa: E501 - a program is read by its own lines, not by ours.

from tests.escape.case import MIB, PRELUDE, RAW, Case, gives, runs_out

_SMALL = 64 * MIB

C_LOOPS = [
    runs_out("sum of a long range", "sum(range(10**12))", of="wall", wall_ms=150),
    runs_out("a long range searched", "-1.5 in range(10**12)", of="wall", wall_ms=150),
    runs_out(
        "an endless iterator drained",
        "import collections, itertools\ncollections.deque(itertools.repeat(0), 0)",
        of="wall",
        wall_ms=150,
    ),
    runs_out("an endless zip", "import itertools\nmax(itertools.count())", of="fuel"),
    runs_out(
        "a sort whose key is slow",
        "sorted(range(10**6), key=lambda x: sum(range(1000)))",
        of="wall",
        wall_ms=150,
    ),
    runs_out(
        "permutations counted",
        "import itertools\nsum(1 for _ in itertools.permutations(range(15)))",
        of="fuel",
    ),
    runs_out(
        "bytes searched the slow way",
        "(b'a' * 3_000_000).count(b'a' * 1_000_000 + b'b' + b'a' * 1_000_000)\nwhile True: pass",
        of="wall",
        wall_ms=150,
    ),
    runs_out(
        "a hash of hashes",
        "import hashlib\nb = bytes(10**7)\nwhile True:\n    hashlib.blake2b(b)",
        of="wall",
        wall_ms=150,
    ),
    runs_out(
        "a query without an end",
        (
            "import sqlite3\nsqlite3.connect(':memory:').execute('with recursive c(x) as "
            "(select 1 union all select x + 1 from c) select count(*) from c').fetchone()"
        ),
        of="wall",
        wall_ms=150,
    ),
    runs_out(
        "a decompression of decompressions",
        ("import zlib\nb = zlib.compress(bytes(10**7))\nwhile True:\n    zlib.decompress(b)"),
        of="wall",
        wall_ms=150,
    ),
    runs_out(
        "a generator that never yields its last",
        "async def f():\n    while True:\n        yield 1\nasync for x in f():\n    pass",
        of="fuel",
    ),
    runs_out(
        "an event loop that is never idle",
        (
            "import asyncio\nloop = asyncio.get_running_loop()\ndef again():\n    loop.call_soon(again)\n"
            "again()\nawait asyncio.sleep(1e9)"
        ),
        of="fuel",
    ),
]

REDOS = [
    runs_out(
        "nested repeats", "import re\nre.match(r'(a+)+$', 'a' * 40 + 'b')", of="wall", wall_ms=150
    ),
    runs_out("overlapping choices", "import re\nre.match(r'(a|aa)+$', 'a' * 60 + 'b')", of="fuel"),
    runs_out(
        "backreferences",
        "import re\nre.match(r'(.*)(.*)(.*)(.*)(.*)(.*)\\1\\2\\3x', 'a' * 200)",
        of="wall",
        wall_ms=150,
    ),
    runs_out(
        "a pattern from fnmatch",
        "import fnmatch\nfnmatch.fnmatch('a' * 200, '*a' * 40 + 'b')\nwhile True: pass",
        of="fuel",
    ),
]

BIG_INTEGERS = [
    runs_out("a power of powers", "9 ** 9 ** 9", of="wall", wall_ms=150),
    runs_out("a factorial", "import math\nmath.factorial(10**7)", of="wall", wall_ms=150),
    runs_out("a modular power", "pow(3, 10**50000, 10**50000 + 1)", of="wall", wall_ms=150),
    runs_out(
        "digits of a long number",
        ("import sys\nsys.set_int_max_str_digits(0)\nstr(7 ** 3_000_000)"),
        of="wall",
        wall_ms=150,
    ),
    Case(
        name="a shift of more than there is",
        program="1 << (1 << 40)",
        stops=("finished", "memory"),
        kinds=("MemoryError", "MemoryExhausted", "OverflowError"),
    ),
    runs_out(
        "a decimal of great precision",
        ("import decimal\ndecimal.getcontext().prec = 10**8\ndecimal.Decimal(2).sqrt()"),
        of="wall",
        wall_ms=150,
    ),
]

MEMORY_BOMBS = [
    runs_out("one long string", "'x' * 10**9", of="memory", memory_bytes=_SMALL),
    runs_out(
        "a list that doubles", "x = [0]\nwhile True:\n    x += x", of="memory", memory_bytes=_SMALL
    ),
    runs_out(
        "many small objects",
        "x = []\nwhile True:\n    x.append(bytearray(500))",
        of="memory",
        memory_bytes=_SMALL,
    ),
    runs_out(
        "a dictionary that grows",
        "d = {}\nwhile True:\n    d[len(d)] = bytes(2_000)",
        of="memory",
        memory_bytes=_SMALL,
    ),
    runs_out(
        "a zip bomb of its own",
        (
            "import zlib\nd = zlib.compressobj(1)\nb = b''.join(d.compress(bytes(10**6)) for _ in range(80)) + d.flush()\n"
            "zlib.decompress(b)"
        ),
        of="memory",
        memory_bytes=_SMALL,
    ),
    Case(
        name="XML entities",
        program=(
            "import xml.etree.ElementTree as E\ne = ''.join(f'<!ENTITY a{i} \"' + f'&a{i-1};' * 10 + '\">' "
            "for i in range(1, 12))\nE.fromstring('<!DOCTYPE x [<!ENTITY a0 \"' + 'x' * 50 + '\">' + e + ']><x>&a11;</x>')\n"
        ),
        stops=("finished", "memory", "fuel"),
        kinds=("ParseError", "MemoryExhausted", "FuelExhausted"),
        limits={"memory_bytes": _SMALL},
    ),
    Case(
        name="memory errors caught for ever",
        program="x = []\nwhile True:\n    try:\n        x.append('y' * 10**7)\n    except MemoryError:\n        pass",
        stops=("fuel", "wall", "memory", "trap"),
        kinds=("FuelExhausted", "WallExceeded", "MemoryExhausted", "InterpreterTrap"),
        fuel=300_000_000,
        limits={"memory_bytes": _SMALL},
    ),
    Case(
        name="a value whose text does not fit",
        program="class V:\n    def __repr__(self):\n        return 'x' * 10**9\nV()",
        stops=("memory",),
        kinds=("MemoryExhausted",),
        limits={"memory_bytes": _SMALL},
    ),
    Case(
        name="all memory but a little, then a failure",
        program=(
            "hold = []\ntry:\n    while True:\n        hold.append(bytes(4096))\nexcept MemoryError:\n    pass\n"
            "raise ValueError('x' * 100)"
        ),
        stops=("finished", "memory", "trap"),
        kinds=("ValueError", "MemoryError", "MemoryExhausted", "InterpreterTrap"),
        limits={"memory_bytes": _SMALL},
    ),
]


def deep(name: str, program: str, *, recursion: bool = True) -> Case:
    """A program that nests: it may be refused or stopped anywhere, but only itself."""
    return Case(
        name=name,
        program=program,
        stops=("finished", "trap", "memory", "fuel", "wall"),
        kinds=(
            "RecursionError",
            "MemoryError",
            "InterpreterTrap",
            "MemoryExhausted",
            "FuelExhausted",
            "WallExceeded",
            *(() if recursion else ("", "ValueError", "ExceptionGroup")),
        ),
        wall_ms=400,
        fuel=2_000_000_000,
        limits={"memory_bytes": 96 * MIB},
    )


_NEST = "x = []\nfor _ in range(100_000):\n    x = [x]\n"

DEEP_RECURSION = [
    Case(
        name="plain recursion",
        program="def f(n):\n    return f(n + 1)\nf(0)",
        kinds=("RecursionError",),
    ),
    deep(
        "recursion without its limit",
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(n):\n    return f(n + 1) + 1\nf(0)",
    ),
    deep(
        "recursion through C",
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(n):\n    return max([n], key=f)\nf(0)",
    ),
    deep("a repr of nested lists", _NEST + "repr(x)"),
    deep(
        "a comparison of nested lists",
        _NEST + "y = []\nfor _ in range(100_000):\n    y = [y]\nx == y",
    ),
    deep(
        "the freeing of nested tuples",
        "x = ()\nfor _ in range(300_000):\n    x = (x,)\ndel x\n1",
        recursion=False,
    ),
    deep("the parser", "eval('(' * 100_000 + ')' * 100_000)"),
    deep("the compiler", "compile('-' * 90_000 + '1', 'x', 'eval')"),
    deep(
        "the compiler, by attributes", "compile('a' + '.a' * 90_000, 'x', 'eval')", recursion=False
    ),
    deep("pickle", _NEST + "import pickle\npickle.dumps(x)"),
    deep("copy.deepcopy", _NEST + "import copy\ncopy.deepcopy(x)"),
    deep("reading JSON", "import json\njson.loads('[' * 1_000_000)"),
    deep("writing JSON to the host", _NEST + "echo(x)"),
    deep("a regular expression", "import re\nre.compile('(' * 50_000 + ')' * 50_000)"),
    deep(
        "__getattr__ of itself",
        "class A:\n    def __getattr__(self, n):\n        return getattr(self, n + 'x')\nA().x",
    ),
    deep(
        "a class hierarchy",
        "c = object\nfor _ in range(20_000):\n    c = type('C', (c,), {})\nc()",
        recursion=False,
    ),
    deep(
        "chained exceptions",
        (
            "e = None\nfor i in range(30_000):\n    n = ValueError(i)\n    n.__cause__ = e\n    e = n\nraise e"
        ),
        recursion=False,
    ),
    deep(
        "nested exception groups",
        ("e = ValueError(1)\nfor _ in range(3_000):\n    e = ExceptionGroup('g', [e])\nraise e"),
        recursion=False,
    ),
]
OUTPUT_FLOODS = [
    runs_out("print", "while True:\n    print('x' * 100)", of="output", output_bytes=100_000),
    runs_out("print in one piece", "print('x' * 10_000_000)", of="output", output_bytes=100_000),
    runs_out(
        "stderr",
        "import sys\nwhile True:\n    sys.stderr.write('x' * 1000)",
        of="output",
        output_bytes=100_000,
    ),
    runs_out(
        "os.write",
        "import os\nwhile True:\n    os.write(1, b'x' * 1000)",
        of="output",
        output_bytes=100_000,
    ),
    runs_out(
        "os.write to stderr",
        "import os\nwhile True:\n    os.write(2, b'x' * 1000)",
        of="output",
        output_bytes=100_000,
    ),
    runs_out(
        "sys.stdout.buffer",
        "import sys\nwhile True:\n    sys.stdout.buffer.write(b'\\xff' * 1000)",
        of="output",
        output_bytes=100_000,
    ),
    runs_out(
        "faulthandler",
        "import faulthandler\nwhile True:\n    faulthandler.dump_traceback(file=2)",
        of="output",
        output_bytes=100_000,
    ),
    runs_out(
        "warnings",
        "import warnings\nwarnings.simplefilter('always')\nwhile True:\n    warnings.warn('x' * 1000)",
        of="output",
        output_bytes=100_000,
    ),
    runs_out(
        "raw writes",
        RAW + "b = b'x' * 60_000\nwhile True:\n    say(1, b)",
        of="output",
        output_bytes=100_000,
    ),
    runs_out(
        "both streams together",
        "import sys\nwhile True:\n    print('x' * 99)\n    print('y' * 99, file=sys.stderr)",
        of="output",
        output_bytes=100_000,
    ),
    runs_out(
        "errors that nobody raises",
        (
            "class D:\n    def __del__(self):\n        raise ValueError('x' * 1000)\nwhile True:\n    D()"
        ),
        of="output",
        output_bytes=100_000,
    ),
    runs_out(
        "a window that lies about its count",
        PRELUDE
        + (
            "import struct\nwhile True:\n    streams['_out']._used = 16_000\n    streams['_out'].flush()"
        ),
        of="output",
        output_bytes=100_000,
    ),
]

STUBBORN = [
    runs_out(
        "except BaseException around a loop",
        (
            "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass"
        ),
        of="fuel",
    ),
    runs_out(
        "the same, ended by the clock",
        (
            "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass"
        ),
        of="wall",
        wall_ms=150,
    ),
    runs_out(
        "finally that goes on",
        "def f():\n    try:\n        f()\n    finally:\n        f()\nf()",
        of="fuel",
    ),
    runs_out(
        "a context manager that swallows all",
        (
            "import contextlib\nwhile True:\n    with contextlib.suppress(BaseException):\n        while True:\n            pass"
        ),
        of="wall",
        wall_ms=150,
    ),
    runs_out(
        "a generator that will not close",
        (
            "def g():\n    while True:\n        try:\n            yield\n        except GeneratorExit:\n            pass\n"
            "x = g()\nnext(x)\nwhile True:\n    try:\n        x.close()\n    except RuntimeError:\n        pass"
        ),
        of="fuel",
    ),
    runs_out(
        "a task that will not be cancelled",
        (
            "import asyncio\nasync def f():\n    while True:\n        try:\n            await asyncio.sleep(1)\n"
            "        except asyncio.CancelledError:\n            pass\nt = asyncio.create_task(f())\n"
            "await asyncio.sleep(2)\nt.cancel()"
        ),
        of="fuel",
    ),
    runs_out(
        "a trace function that never returns",
        ("import sys\ndef t(*a):\n    while True:\n        pass\nsys.settrace(t)\n(lambda: 0)()"),
        of="wall",
        wall_ms=150,
    ),
    runs_out(
        "a profile function that never returns",
        ("import sys\ndef t(*a):\n    while True:\n        pass\nsys.setprofile(t)\nlen('x')"),
        of="wall",
        wall_ms=150,
    ),
    runs_out(
        "an audit hook that never returns",
        (
            "import sys\ndef h(*a):\n    while True:\n        pass\nsys.addaudithook(h)\ncompile('1', 'x', 'eval')"
        ),
        of="wall",
        wall_ms=150,
    ),
    runs_out(
        "a repr that never ends",
        "class V:\n    def __repr__(self):\n        while True:\n            pass\nV()",
        of="fuel",
    ),
    runs_out(
        "an error whose text never ends",
        (
            "class E(Exception):\n    def __str__(self):\n        while True:\n            pass\nraise E"
        ),
        of="fuel",
    ),
    runs_out(
        "an exit code whose text never ends",
        (
            "import sys\nclass C:\n    def __str__(self):\n        while True:\n            pass\nsys.exit(C())"
        ),
        of="fuel",
    ),
    runs_out(
        "a finalizer that never ends",
        "class D:\n    def __del__(self):\n        while True:\n            pass\nD()\n1",
        of="fuel",
    ),
    runs_out(
        "a value whose finalizer never ends",
        (
            "class D:\n    def __repr__(self):\n        return 'd'\n    def __del__(self):\n        while True:\n            pass\nD()"
        ),
        of="fuel",
    ),
    runs_out(
        "a weak reference's callback that never ends",
        (
            "import weakref\nclass A:\n    pass\na = A()\ndef f(_):\n    while True:\n        pass\nr = weakref.ref(a, f)\ndel a"
        ),
        of="fuel",
    ),
    runs_out(
        "a collector callback that never ends",
        (
            "import gc\ndef f(*a):\n    while True:\n        pass\ngc.callbacks.append(f)\ngc.collect()"
        ),
        of="fuel",
    ),
]

ODD_ENDINGS = [
    Case(
        name="sys.exit with text",
        program="import sys\nsys.exit('bye')",
        kinds=("SystemExit",),
        shows=("bye",),
    ),
    Case(
        name="sys.exit with a huge number",
        program="import sys\nsys.exit(10**5000 + 3)",
        kinds=("SystemExit",),
    ),
    Case(name="sys.exit with a bool", program="import sys\nsys.exit(True)", kinds=("SystemExit",)),
    Case(
        name="sys.exit with a number that lies",
        program="import sys\nclass I(int):\n    def __and__(self, other):\n        return object()\nsys.exit(I(3))",
        stops=("finished", "trap"),
        kinds=("SystemExit", "InterpreterTrap"),
    ),
    Case(
        name="SystemExit from a thread",
        program="import threading, sys\nt = threading.Thread(target=sys.exit)\nt.start()\nt.join()\n1",
        value="1",
    ),
    Case(name="KeyboardInterrupt", program="raise KeyboardInterrupt", kinds=("KeyboardInterrupt",)),
    Case(name="GeneratorExit", program="raise GeneratorExit", kinds=("GeneratorExit",)),
    Case(
        name="a class whose name cannot be asked for",
        program=(
            "class M(type):\n    @property\n    def __name__(cls):\n        raise BaseException\n"
            "class E(Exception, metaclass=M):\n    pass\nraise E"
        ),
        stops=("finished", "trap"),
        kinds=("BaseException", "E", "InterpreterTrap"),
    ),
    Case(
        name="a class whose name raises a class like it",
        program=(
            "class M(type):\n    @property\n    def __name__(cls):\n        raise E\n"
            "class E(Exception, metaclass=M):\n    pass\nraise E"
        ),
        stops=("finished", "trap"),
        kinds=("E", "InterpreterTrap"),
    ),
    Case(
        name="a class whose name is not text",
        program=(
            "class M(type):\n    __name__ = property(lambda cls: 7)\n"
            "class E(Exception, metaclass=M):\n    pass\nraise E"
        ),
        stops=("finished", "trap"),
        kinds=("7", "E", "InterpreterTrap"),
    ),
    Case(
        name="an error whose text lies about its length",
        program=(
            "class S(str):\n    def __len__(self):\n        return -1\nclass E(Exception):\n"
            "    def __str__(self):\n        return S('x')\nraise E"
        ),
        stops=("finished", "trap"),
        kinds=("E", "ValueError", "InterpreterTrap"),
    ),
    Case(
        name="an error whose text is half a surrogate pair",
        program="raise ValueError('\\ud800')",
        kinds=("ValueError",),
    ),
    Case(
        name="a value with a lone surrogate",
        program="class V:\n    def __repr__(self):\n        return '\\ud800'\nV()",
        stops=("finished",),
    ),
    Case(
        name="a violation whose capability is not text",
        program="e = SandboxViolation('x')\ne.capability = object\nraise e",
        stops=("finished", "trap"),
        kinds=("SandboxViolation", "InterpreterTrap"),
    ),
    Case(name="atexit", program="import atexit\natexit.register(print, 'late')\n1", value="1"),
    Case(name="the last value is deleted", program="x = 1\nx\ndel x", value=None),
    Case(name="the hidden name of the value", program="__tally_value__ = 'mine'\n7", value="7"),
    gives(
        "returning from the top by a coroutine that is never awaited",
        "async def f():\n    pass\nf().close()\n5",
        "5",
    ),
    Case(
        name="a value that replaces the streams as it is shown",
        program="import sys\nclass V:\n    def __repr__(self):\n        sys.stdout = None\n        return 'v'\nV()",
        value="v",
    ),
]

THREADS = [
    gives(
        "three thousand threads",
        (
            "import threading\nn = []\nts = [threading.Thread(target=n.append, args=(1,)) for _ in range(3_000)]\n"
            "for t in ts:\n    t.start()\nfor t in ts:\n    t.join()\nlen(n)"
        ),
        "3000",
    ),
    runs_out(
        "threads that start threads",
        "import threading\ndef f():\n    threading.Thread(target=f).start()\nf()",
        of="fuel",
    ),
    Case(
        name="a deadlock",
        program="import threading\nl = threading.Lock()\nl.acquire()\nl.acquire()",
        kinds=("RuntimeError",),
        shows=("deadlock",),
    ),
    Case(
        name="an event nobody sets",
        program="import threading\nthreading.Event().wait()",
        kinds=("RuntimeError",),
        shows=("deadlock",),
    ),
    Case(
        name="a queue nobody fills",
        program="import queue\nqueue.Queue().get()",
        kinds=("RuntimeError",),
        shows=("deadlock",),
    ),
    Case(
        name="a thread that joins itself",
        program=(
            "import threading\nt = threading.Thread(target=lambda: t.join())\nt.start()\nt.join()\n1"
        ),
        value="1",
    ),
    Case(
        # Every worker waits for another, for which there is no worker left.
        name="an executor inside an executor",
        program=(
            "from concurrent.futures import ThreadPoolExecutor as P\np = P()\n"
            "def f(n):\n    return p.submit(f, n + 1).result()\nf(0)"
        ),
        kinds=("RuntimeError",),
        shows=("deadlock",),
    ),
    runs_out(
        "a thread that never ends",
        (
            "import threading\ndef f():\n    while True:\n        pass\nthreading.Thread(target=f).start()"
        ),
        of="fuel",
    ),
    # Nobody waits for one that is a daemon.
    gives(
        "a daemon that never ends",
        (
            "import threading\ndef f():\n    while True:\n        pass\n"
            "threading.Thread(target=f, daemon=True).start()\n1"
        ),
        "1",
    ),
    Case(
        name="an asyncio deadlock",
        program="import asyncio\nawait asyncio.Event().wait()",
        kinds=("RuntimeError",),
        shows=("deadlock",),
    ),
    runs_out(
        "timers that set timers",
        ("import threading\ndef f():\n    threading.Timer(0.001, f).start()\nf()"),
        of="fuel",
    ),
]
