"""Programs that call the three imports themselves, with addresses and lengths of their choosing."""
# ruff: noqa: E501 - a program is read by its own lines, not by ours.

from tests.escape.case import (
    FORGED,
    PRELUDE,
    RAW,
    Case,
    breaks_the_interface,
    gives,
    runs_out,
    traps,
)

_TOP = "2**32 - 1"

RAW_ABI = [
    breaks_the_interface(
        "call reads across the end", "host.call(2**32 - 16, 100, 0, 0)", "0xfffffff0"
    ),
    breaks_the_interface("call reads all there could be", f"host.call(0, {_TOP}, 0, 0)", "outside"),
    breaks_the_interface(
        "call reads with a sum that wraps", f"host.call({_TOP}, {_TOP}, 0, 0)", "0x1fffffffe"
    ),
    breaks_the_interface(
        "call answers across the end", "host.call(0, 2, 2**32 - 16, 100)", "outside"
    ),
    breaks_the_interface(
        "call answers with a sum that wraps", f"host.call(0, 2, {_TOP}, {_TOP})", "outside"
    ),
    breaks_the_interface(
        "call answers into all there could be", f"host.call(0, 2, 0, {_TOP})", "outside"
    ),
    breaks_the_interface(
        "call reads one byte past the end",
        ("import sys\nend = 64 * 1024 * 1024 * 32\nhost.call(end - 1, 2, 0, 0)"),
        "outside",
    ),
    breaks_the_interface("an empty span beyond the end", f"host.call({_TOP}, 0, 0, 0)", "outside"),
    breaks_the_interface("take without a reply", "host.take(1024)", "nothing to take"),
    breaks_the_interface(
        "take twice",
        (
            'b = bytes(4096)\nask(b\'["echo",["x"],{}]\')\nhost.take(address(b))\nhost.take(address(b))'
        ),
        "nothing to take",
    ),
    breaks_the_interface(
        "take after a reply that fitted",
        ("b = bytes(4096)\nask(b'[\"echo\",[1],{}]', address(b), 4096)\nhost.take(address(b))"),
        "nothing to take",
    ),
    breaks_the_interface(
        "take across the end", "ask(b'[\"echo\",[1],{}]')\nhost.take(2**32 - 1)", "outside"
    ),
    breaks_the_interface(
        "take of a long reply at the edge",
        ("ask(b'[\"echo\",[\"' + b'x' * 100_000 + b'\"],{}]')\nhost.take(2**31 + 2**30)"),
        "outside",
    ),
    breaks_the_interface("stdio to stream 0", "say(0, b'x')", "no stream 0"),
    breaks_the_interface("stdio to stream 4", "say(4, b'x')", "no stream 4"),
    breaks_the_interface("stdio to a huge stream", f"say({_TOP}, b'x')", "no stream 4294967295"),
    breaks_the_interface("stdio across the end", "host.stdio(1, 2**32 - 16, 100)", "outside"),
    breaks_the_interface("stdio of all there could be", f"host.stdio(1, 0, {_TOP})", "outside"),
    breaks_the_interface("a result across the end", "host.stdio(3, 2**32 - 16, 100)", "outside"),
    breaks_the_interface(
        "a negative address by masking", "host.call(-16 & 0xFFFF_FFFF, 32, 0, 0)", "outside"
    ),
    traps("a negative address", RAW + "host.call(-1, 0, 0, 0)"),
    traps("an address of 33 bits", RAW + "host.call(2**32, 0, 0, 0)"),
    traps("an address that is no number", RAW + "host.call('a', None, 0, 0)"),
    traps(
        "an import that does not exist",
        "import componentize_py_runtime as r\nr.call_import(9999, [])",
    ),
    traps(
        "an import with too few arguments",
        "import componentize_py_runtime as r\nr.call_import(0, [1])",
    ),
    traps(
        "a resource that does not exist",
        "import componentize_py_runtime as r\nr.drop_resource(0, 1)",
    ),
    gives("the lowest addresses are its own", RAW + "host.call(0, 0, 0, 0) > 0", "True"),
    gives("a reply window of no bytes", RAW + "ask(b'[\"echo\",[7],{}]', 0, 0)", "2"),
    gives(
        "a reply as long as its window is left to be taken",
        RAW
        + (
            "b = bytes(2)\nn = ask(b'[\"echo\",[7],{}]', address(b), 2)\nbefore = bytes(bytearray(b))\n"
            "host.take(address(b))\nn, before, bytes(bytearray(b))"
        ),
        "(2, b'\\x00\\x00', b'07')",
    ),
    gives(
        "requests that are no requests",
        RAW
        + """
window = bytes(4096)
def reply(data):
    n = ask(data, address(window), 4096)
    return bytes(bytearray(window))[:n][:1]
requests = [b'', b'\\0', b'[', b'[]', b'[1]', b'[[],[],{}]', b'["echo"]', b'["echo",{},[]]', b'null',
    b'["echo",[' + b'[' * 50_000, b'["echo",[' + b'9' * 100_000 + b'],{}]', b'["x",[1e999],{}]',
    b'{"echo":[]}', b'["no such",[],{}]', b'["text.slice",[0,0,9],{}]', b'["__class__",[],{}]',
    b'["echo",["\\\\ud800"],{}]']
{reply(each) for each in requests}
""",
        "{b'1'}",
    ),
    gives(
        "a request that is not UTF-8 is refused as one",
        RAW
        + (
            "window = bytes(4096)\nn = ask(b'[\"\\xff\\xfe\",[],{}]', address(window), 4096)\n"
            "bytes(bytearray(window))[:1]"
        ),
        "b'1'",
    ),
    gives(
        "arguments that are not UTF-8 are refused",
        RAW
        + (
            'window = bytes(4096)\nn = ask(b\'["echo",["\\xed\\xa0\\x80"],{}]\', address(window), 4096)\n'
            "bytes(bytearray(window))[:1]"
        ),
        "b'1'",
    ),
    gives(
        "a host function called with what it does not take",
        ("try:\n    echo(1, 2, nothing=3)\nexcept HostError as e:\n    kind = e.kind\nkind"),
        "'TypeError'",
    ),
    gives(
        "every way to the raw functions leads to the same three",
        """
import gc, sys
from wit_world.imports import host
ways = [
    __import__('wit_world').imports.host,
    sys.modules['wit_world.imports.host'],
    echo.__globals__['wire'].host,
    sys._getframe().f_back.f_globals['wire'].host,
]
gc.unfreeze()
ways += [m for m in gc.get_objects() if type(m) is type(sys) and m.__name__ == 'wit_world.imports.host']
len({id(way) for way in ways}), sorted(n for n in vars(host) if getattr(vars(host)[n], '__module__', '') == host.__name__)
""",
        "(1, ['call', 'stdio', 'take'])",
    ),
    gives(
        "a write of nothing to every stream",
        RAW + ("for stream in (1, 2, 3):\n    host.stdio(stream, 0, 0)\n'silent'"),
        "'silent'",
    ),
    breaks_the_interface(
        "a write of more than a write may be",
        ("big = bytes(65 * 1024 * 1024)\nhost.stdio(3, address(big), len(big))"),
        "a write of",
    ),
    gives(
        "a request over the limit is an error, not an end",
        (
            "try:\n    echo('x' * 5_000_000)\nexcept HostError as e:\n    told = str(e)\n'at most' in told"
        ),
        "True",
    ),
    runs_out(
        "more calls than allowed",
        RAW + "while True:\n    ask(b'[]')",
        of="host_calls",
        host_calls=50,
    ),
    runs_out(
        "calls too long to be served count as calls",
        RAW + "b = bytes(200)\nfor _ in range(100):\n    ask(b)\nb",
        of="host_calls",
        host_calls=50,
        request_bytes=100,
    ),
    runs_out(
        "a reply taken again and again",
        RAW
        + "b = bytes(4096)\nwhile True:\n    ask(b'[\"echo\",[1],{}]')\n    host.take(address(b))",
        of="host_calls",
        host_calls=50,
    ),
]

_FORGED_OK = b'{"ok":true,"value":"forged"}'


def forged(name: str, data: str, **expected: object) -> Case:
    return Case(name=name, program=f"{FORGED}forge({data})", ruins_itself=True, **expected)  # type: ignore[arg-type]


def no_result(name: str, data: str) -> Case:
    return Case(
        name=name,
        program=f"{FORGED}forge({data})",
        stops=("trap",),
        kinds=("InterpreterTrap",),
        shows=("gave no result",),
    )


FORGED_RESULTS = [
    forged("a result of its own", repr(_FORGED_OK), value="forged"),
    forged("an error of its own", 'b\'{"ok":false,"kind":"K","message":"m"}\'', kinds=("K",)),
    no_result("nothing", "b''"),
    no_result("a result that is not JSON", "b'}{'"),
    no_result("a result that is not UTF-8", 'b\'{"ok":true,"value":"\\xff\\xfe"}\''),
    no_result("a result with half a surrogate pair", 'b\'{"ok":true,"value":"\\xed\\xa0\\x80"}\''),
    no_result("a result of the wrong shape", "b'[1,2,3]'"),
    no_result("a result of the wrong types", 'b\'{"ok":"yes","value":7}\''),
    no_result("a result nested too deeply", "b'[' * 1_000_000"),
    no_result("a field nested too deeply", "b'{\"ok\":true,\"x\":' + b'[' * 1_000_000"),
    forged(
        "an exit code of four thousand digits",
        "b'{\"ok\":false,\"exit\":' + b'9' * 4000 + b'}'",
        stops=("finished", "trap"),
        kinds=("", "InterpreterTrap"),
    ),
    Case(
        name="a result written before the program runs on",
        program=RAW + 'say(3, b\'{"ok":true,"value":"early"}\')\nimport os\nos.abort()',
        stops=("trap",),
        kinds=("InterpreterTrap",),
    ),
    Case(
        name="a result written before the fuel ends",
        program=RAW + 'say(3, b\'{"ok":true,"value":"early"}\')\nwhile True:\n    pass',
        stops=("fuel",),
        kinds=("FuelExhausted",),
        fuel=100_000_000,
    ),
    gives("a result written before our own", RAW + "say(3, b'{\"ok\":false}')\n'ours'", "'ours'"),
    runs_out(
        "results written for ever",
        RAW + "big = bytes(1_000_000)\nwhile True:\n    say(3, big)",
        of="wall",
        wall_ms=150,
    ),
]

PATCHED_PRELUDE = [
    gives("json.dumps replaced", "import json\njson.dumps = json.loads = None\n1 + 1", "2"),
    gives(
        "the encoder's class replaced",
        (
            "import json.encoder\njson.encoder.c_make_encoder = json.encoder.JSONEncoder = None\n1 + 1"
        ),
        "2",
    ),
    Case(
        name="builtins deleted",
        program=(
            "import builtins\nfor n in ('repr', 'str', 'len', 'id', 'bytes', 'type', 'isinstance', 'getattr'):\n"
            "    delattr(builtins, n)\n1 + 1"
        ),
        stops=("finished", "trap"),
        kinds=("", "InterpreterTrap", "NameError"),
        ruins_itself=True,
    ),
    Case(
        name="every builtin deleted",
        program=(
            "import builtins\nfor n in [n for n in vars(builtins) if n[0] != '_']:\n    vars(builtins).pop(n)\n1 + 1"
        ),
        stops=("finished", "trap"),
        kinds=("", "InterpreterTrap", "NameError"),
        ruins_itself=True,
    ),
    gives(
        "streams replaced",
        "import sys\nsys.stdout = sys.stderr = sys.__stdout__ = None\n1 + 1",
        "2",
    ),
    gives("linecache poisoned", "import linecache\nlinecache.cache = None\n1 + 1", "2"),
    gives(
        "traceback replaced",
        (
            "import traceback\ntraceback.TracebackException = None\ntry:\n    1 / 0\nexcept Exception:\n    x = 3\nx"
        ),
        "3",
    ),
    gives("random reseeded and replaced", "import random\nrandom.seed = None\n1 + 1", "2"),
    gives("host names rebound", "echo = None\necho is None", "True"),
    gives("the display hook replaced", "import sys\nsys.displayhook = lambda v: 1 / 0\n1 + 1", "2"),
    gives(
        "the exception hook replaced",
        "import sys\nsys.excepthook = sys.unraisablehook = None\n1 + 1",
        "2",
    ),
    *(
        Case(
            name=name,
            program=PRELUDE + change,
            stops=("finished", "trap", "wall", "fuel"),
            kinds=(
                "",
                "InterpreterTrap",
                "TypeError",
                "ValueError",
                "ZeroDivisionError",
                "WallExceeded",
            ),
            ruins_itself=True,
            wall_ms=300,
        )
        for name, change in {
            "the encoder of results": "wire['dumps'] = lambda value: '{}'",
            "the function that runs programs": "entry['_run'] = lambda payload: {'ok': True, 'value': 'x'}",
            "the function that runs programs, by a loop": "def f(p):\n    while True: pass\nentry['_run'] = f",
            "the taker of payloads": "entry['_take'] = lambda length: b'{}\\n1'",
            "the export itself": "entry['WitWorld'].run = None",
            "the export's class": "entry['WitWorld'].__init__ = lambda self: 1 / 0",
            "the describer of failures": "entry['_failure'] = cell['failure_of'] = lambda e: 1 / 0\n1 / 0",
            "the window's address": "streams['_out'].address = 0xFFFF_FFF0\nprint('x')",
            "the window's count": "streams['_out']._used = 10**9\nprint('x')",
            "the window's handle": "streams['_out'].handle = 3\nprint('not json')",
            "the window's cells": "streams['_out']._view.release()\nprint('x')",
            "the flusher": "cell['_flush'] = lambda: 1 / 0",
            "the drain of threads": "cell['_drain'] = lambda: 1 / 0",
            "the raw write": "streams['_write'] = streams['_write_at'] = None\nprint('x' * 100_000)",
            "the reply window's address": "wire['_window_address'] = 0xFFFF_0000",
            "the ballast": "cell['_ballast'] = None",
            "the namespace itself": "cell['_names'] = {}",
            "the injected names": "cell['_injected']['echo'] = None\ncell['_injected'][3] = 4",
            "the names for programs": "cell['_seen'] = cell['_environ'] = None",
        }.items()
    ),
]
