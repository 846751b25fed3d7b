"""Programs of every kind, to be run in several processes and compared to the last bit.

`LIVE` is a host whose answers come from the real world (clock, randomness): they are recorded once
and served from the record elsewhere.
"""

from __future__ import annotations

import random
import time
from typing import Any

from tallystick.sandbox.host import HostFunction, HostTable

PROGRAMS = [
    "1 + 1",
    "x = [i * i for i in range(1000)]; sum(x)",
    "import random; [random.random() for _ in range(5)]",
    "import random; random.seed(4); random.sample(range(10**6), 5)",
    "import os; os.urandom(16).hex()",
    "import uuid; str(uuid.uuid4()), str(uuid.uuid1())",
    "import secrets; secrets.token_hex(16), secrets.choice('abcdef'), secrets.randbelow(10**9)",
    "list({'a', 'b', 'c', 'dd', 'eee', 'f%d' % 3})",
    "{hash('abc'), hash(b'xyz'), hash((1, 'q')), hash(1.5)}",
    "s = set('the quick brown fox jumps over the lazy dog'.split()); print(*s)",
    "import time; time.time(), time.time_ns(), time.monotonic(), time.perf_counter()",
    "import time; time.process_time(), time.thread_time(), time.localtime(), time.tzname",
    "import datetime as d; d.datetime.now().isoformat(), d.datetime.now(d.UTC), d.date.today()",
    "import time; t = time.time(); time.sleep(2.5); time.time() - t",
    "object(), id(object())",
    "[hex(id(x)) for x in ([], {}, set(), 'a' * 50)]",
    "print(object()); repr(lambda: 0)",
    "import asyncio\nasync def f(i):\n    await asyncio.sleep(i / 10); return i\n"
    "await asyncio.gather(*[f(i) for i in range(10)])",
    "import asyncio\nasync def w(q, o):\n    while (x := await q.get()) is not None:\n"
    "        await asyncio.sleep(0.01 * (x % 3)); o.append(x)\n"
    "q = asyncio.Queue(); o = []\nts = [asyncio.create_task(w(q, o)) for _ in range(3)]\n"
    "for i in range(12): q.put_nowait(i)\nfor _ in range(3): q.put_nowait(None)\n"
    "await asyncio.gather(*ts)\no",
    "import asyncio\ntry:\n    await asyncio.wait_for(asyncio.sleep(10), 0.5)\n"
    "except TimeoutError: print('timeout')",
    "sum(echo(i) for i in range(50))",
    "{n: answer('prompt %d' % n) for n in range(5)}",
    "now()",
    "try:\n    fail('x')\nexcept HostError as e: print(type(e).__name__, e)",
    "x = rand()\nfor i in range(int(x * 10)): echo(i)\nx",
    "for k in {'alpha', 'beta', 'gamma', 'delta'}: echo(k)",
    "import random\nfor _ in range(5): echo(random.randint(1, 10**6))",
    "import time\nfor _ in range(3): echo(time.time())",
    "later('a'), later('b')",
    "import json; json.dumps({'a': [1, 2, {'b': None}]}, sort_keys=True)",
    r"import re; re.findall(r'(\w+)@(\w+)', 'a@b c@d ' * 100)[:3]",
    "import hashlib; hashlib.sha256(b'x' * 10000).hexdigest()",
    "import math; [math.sin(i) ** 2 + math.exp(-i) * math.gamma(i + 1.5) for i in range(20)]",
    "sum(1 / (i + 1) for i in range(100000))",
    "float('nan') != float('nan'), float('inf') - float('inf'), (-1) ** 0.5",
    "import struct; struct.pack('<d', float('inf') - float('inf')).hex()",
    "import decimal; decimal.Decimal(2).sqrt()",
    "import fractions; sum(fractions.Fraction(1, n) for n in range(1, 50))",
    "import statistics, random; statistics.stdev([random.gauss(0, 1) for _ in range(1000)])",
    "1 / 0",
    "def r(n): return r(n + 1)\nr(0)",
    "import gc; gc.collect(); len(gc.get_objects()) > 0",
    "class A:\n    def __del__(s): print('del')\na = A(); a.b = a; del a\nimport gc; gc.collect()",
    "import weakref\nclass B: pass\nb = B(); w = weakref.ref(b); del b; w() is None",
    "open('/etc/passwd')",
    "import socket; socket.socket()",
    "import subprocess; subprocess.run(['ls'])",
    "import threading; t = threading.Thread(target=print, args=(1,)); t.start(); t.join()",
    "from concurrent.futures import ThreadPoolExecutor as T; list(T(3).map(str, range(5)))",
    "import collections, random; collections.Counter(random.choices('abc', k=1000)).most_common()",
    "import pickle; len(pickle.dumps({str(i): i for i in range(1000)}))",
    "x = 'a' * 10**7; len(x.upper())",
    "[''.join(sorted(set('hello world %d' % i))) for i in range(100)][-1]",
    "import itertools; len(list(itertools.permutations(range(8))))",
    "import sqlite3; c = sqlite3.connect(':memory:'); c.execute('select random()').fetchone()",
    "import dataclasses\n@dataclasses.dataclass\nclass P:\n    x: int\n    y: int = 2\nrepr(P(1))",
    "big(100000)[:20]",
    "big(3000000)[-20:]",
    "len(raw(200000))",
    "import zlib; zlib.crc32(zlib.compress(b'abc' * 1000))",
    "print('x' * 100000)",
    "import os, sys; os.getpid(), dict(os.environ), os.getcwd(), sys.platform",
    "import sys; sys.getrefcount([]), sys.getsizeof({}), sys.version",
    "import traceback\ntry: 1 / 0\nexcept Exception: print(traceback.format_exc())",
    "import tempfile; next(tempfile._get_candidate_names())",
    "import string, random; ''.join(random.choices(string.ascii_letters, k=20))",
    "import zoneinfo, datetime as d; d.datetime.now(zoneinfo.ZoneInfo('Asia/Tokyo')).isoformat()",
    "import os; os.write(1, b'native'); os.write(2, b'err')",
    "import pydoc; pydoc.render_doc('int')[:50]",
    "x = bytearray(20_000_000); x[12345] = 7; sum(x[:100_000])",
    "try:\n    x = bytearray(10**9)\nexcept MemoryError: print('none')",
    "import warnings; warnings.warn('careful')",
    "import logging; logging.warning('hey %d', 3)",
]


def _fail(value: str) -> None:
    raise LookupError(value)


async def _later(value: str) -> str:
    return f"{value} {random.random()}"


LIVE = HostTable(
    [
        HostFunction(name="echo", function=lambda value: value, local=True),
        HostFunction(name="answer", function=lambda prompt: f"{prompt}: {random.random()}"),
        HostFunction(name="now", function=time.time, local=True),
        HostFunction(name="fail", function=_fail, local=True),
        HostFunction(name="rand", function=random.random, local=True),
        HostFunction(name="later", function=_later),
        HostFunction(name="big", function=lambda size: "z" * size, local=True),
        HostFunction(name="raw", function=lambda size: bytes(size), local=True),
    ]
)


def facts(result: Any) -> dict[str, Any]:
    """What must be equal wherever and whenever the program runs."""
    return {
        "stdout": result.stdout,
        "stderr": result.stderr,
        "value": result.value,
        "error": None if result.error is None else [result.error.kind, result.error.traceback],
        "stop": result.stop,
        "fuel": result.charge.fuel,
        "memory_bytes": result.charge.memory_bytes,
        "calls": [[call.name, call.request_sha256, call.fuel] for call in result.calls],
    }
