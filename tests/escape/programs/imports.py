"""Programs that import what is not there, or load what they made themselves."""
# ruff: noqa: E501 - a program is read by its own lines, not by ours.

from tests.escape.case import TRIED, Case, gives, raises, refused

_ZIP = "import io, zipfile\nb = io.BytesIO()\nz = zipfile.ZipFile(b, 'w')\nz.writestr('m.py', 'x = 1')\nz.close()\n"

IMPORT_TRICKS = [
    refused("ctypes", "import ctypes\nctypes.CDLL(None)", "native.code"),
    refused("mmap", "import mmap", "native.code"),
    refused("fcntl", "import fcntl", "native.code"),
    refused("resource", "import resource", "native.code"),
    raises("_ctypes without its Python half", "import _ctypes", "ModuleNotFoundError"),
    raises("the test module of the interpreter", "import _testcapi", "ModuleNotFoundError"),
    raises("the host's own package", "import tallystick", "ModuleNotFoundError"),
    raises("the host's engine", "import wasmtime", "ModuleNotFoundError"),
    raises("our own prelude by name", "import tallystick_guest", "ModuleNotFoundError"),
    raises("the entry by name", "import entry", "ModuleNotFoundError"),
    raises(
        "a shared library",
        (
            "import importlib.machinery as m\n"
            "m.ExtensionFileLoader('x', '/lib/x86_64-linux-gnu/libc.so.6').create_module("
            "m.ModuleSpec('x', None, origin='/lib/x86_64-linux-gnu/libc.so.6'))"
        ),
        "AttributeError",
        "ImportError",
    ),
    raises(
        "dlopen below the loader",
        "import _imp\n_imp.create_dynamic(type('S', (), {'name': 'x', 'origin': '/lib/libc.so.6'}))",
        "AttributeError",
        "ImportError",
        "TypeError",
    ),
    raises(
        "a source file loader",
        (
            "import importlib.machinery as m\nm.SourceFileLoader('x', '/etc/passwd').get_data('/etc/passwd')"
        ),
        "FileNotFoundError",
        "SandboxViolation",
    ),
    raises(
        "runpy",
        "import runpy\nrunpy.run_path('/etc/passwd')",
        "SandboxViolation",
        "FileNotFoundError",
    ),
    raises(
        "zipimport from a path",
        "import zipimport\nzipimport.zipimporter('/x.zip')",
        "ZipImportError",
    ),
    raises(
        "a path put on sys.path",
        "import sys\nsys.path.append('/usr/lib/python3')\nimport no_such_module",
        "ModuleNotFoundError",
    ),
    raises(
        "the removed path finder",
        (
            "import sys, importlib.machinery as m\nsys.meta_path.append(m.PathFinder)\n"
            "sys.path.append('/')\nimport no_such_module"
        ),
        "ModuleNotFoundError",
    ),
    raises(
        "a finder that finds the real os",
        ("import sys\nreal = sys.modules.pop('os')\nimport os\nos.listdir('/')"),
        "FileNotFoundError",
        "OSError",
        "SandboxViolation",
    ),
    raises(
        "posix imported afresh",
        ("import sys\nsys.modules.pop('posix')\nimport posix\nposix.listdir('/')"),
        "FileNotFoundError",
        "OSError",
    ),
    raises(
        "socket imported afresh",
        ("import sys\nsys.modules.pop('socket')\nimport socket\nsocket.socket()"),
        "ModuleNotFoundError",
        "OSError",
        "SandboxViolation",
    ),
    raises(
        "subprocess imported afresh",
        ("import sys\nsys.modules.pop('subprocess')\nimport subprocess\nsubprocess.run(['id'])"),
        "SandboxViolation",
        "OSError",
        "ModuleNotFoundError",
    ),
    gives("an emptied sys.modules", "import sys\nsys.modules.clear()\n1 + 1", "2"),
    gives("an emptied meta_path", "import sys\nsys.meta_path.clear()\n1 + 1", "2"),
    gives(
        "an import hook that swallows everything",
        ("import builtins\nbuiltins.__import__ = lambda *a, **k: None\nimport os\nos is None"),
        "True",
    ),
    raises(
        "pickle that calls",
        "import pickle\npickle.loads(b'cos\\nsystem\\n(S\"id\"\\ntR.')",
        "SandboxViolation",
    ),
    raises(
        "pickle of a persistent walk",
        ("import pickle\npickle.loads(b'cbuiltins\\neval\\n(S\"open(\\'/etc/passwd\\')\"\\ntR.')"),
        "SandboxViolation",
    ),
    raises(
        "marshal of nonsense",
        "import marshal\nmarshal.loads(b'\\xe3' + b'\\xff' * 60)",
        "ValueError",
        "EOFError",
        "TypeError",
    ),
    Case(
        name="marshal of ten thousand mutated code objects",
        program="""
import marshal, random
source = marshal.dumps(compile('def f(a):\\n    return [a, 1.5, "x", (1, 2)]', 'x', 'exec'))
chance = random.Random(7)
for _ in range(10_000):
    data = bytearray(source)
    for _ in range(3):
        data[chance.randrange(len(data))] = chance.randrange(256)
    try:
        marshal.loads(bytes(data))
    except Exception:
        pass
'survived'
""",
        stops=("finished", "trap", "memory", "fuel"),
        kinds=("", "InterpreterTrap", "MemoryExhausted", "FuelExhausted", "MemoryError"),
        fuel=3_000_000_000,
    ),
    Case(
        name="hand-made bytecode that forges an object",
        program="""
import types
def forged(address):
    data = b'\\0' * 8 + address.to_bytes(4, 'little') * 4
    code = (lambda: None).__code__.replace(
        co_consts=(), co_code=bytes([82, 255, 35, 0] * 8), co_stacksize=1)
    return types.FunctionType(code, {})()
forged(0xFFFF_FFF0)
""",
        anyhow=True,
    ),
    Case(
        name="random bytecode",
        program="""
import random, types
chance = random.Random(3)
base = (lambda a=0: a).__code__
for _ in range(300):
    body = bytes(chance.randrange(256) for _ in range(40))
    try:
        exec(base.replace(co_code=body, co_argcount=0, co_flags=0, co_stacksize=20), {})
    except Exception:
        pass
""",
        anyhow=True,
        wall_ms=300,
    ),
    gives(
        "a zip made in memory is not a path",
        _ZIP + TRIED + "import zipimport\ntried(zipimport.zipimporter, b)",
        "'TypeError'",
    ),
    gives(
        "native modules that exist do no I/O",
        (
            TRIED
            + "import _imp\n[n for n in ('_socket', 'posix') if tried(_imp.is_builtin, n) != '1']"
        ),
        "[]",
    ),
]
