"""Programs that walk from what they were given to what they were not."""
# ruff: noqa: E501 - a program is read by its own lines, not by ours.

from tests.escape.case import PRELUDE, TRIED, Case, gives, raises

DUNDER_WALKS = [
    gives(
        "subclasses of object hold no way to a file",
        TRIED
        + """
found = [c for c in ().__class__.__base__.__subclasses__() if c.__name__ in ('Popen', 'FileIO')]
outcomes = set()
for c in found:
    for path in ('/etc/passwd', '/proc/self/environ'):
        outcomes.add(tried(c, path))
outcomes - {'FileNotFoundError', 'SandboxViolation', 'TypeError', 'OSError'}
""",
        "set()",
    ),
    gives(
        "every class called with a path",
        """
import gc
gc.unfreeze()
opened = []
for kind in object.__subclasses__() + __import__('_io')._RawIOBase.__subclasses__():
    try:
        made = kind('/etc/passwd')
        data = made.read(5)
    except BaseException:
        continue
    if isinstance(data, bytes) and data[:4] == b'root':
        opened.append(kind)
opened
""",
        "[]",
    ),
    raises("builtins of a function", "print.__self__.open('/etc/passwd')", "SandboxViolation"),
    raises(
        "the loader of a builtin",
        "__builtins__.__spec__.loader.load_module('posix').open('/etc/passwd', 0)",
        "FileNotFoundError",
    ),
    gives(
        "the globals of a host function hold no host",
        "import types\nsorted(n for n, v in echo.__globals__.items() if n in ('ctypes', 'wasmtime'))",
        "[]",
    ),
    raises(
        "the closure of a refusal gives the real function",
        (
            "import os\nreal = next(c.cell_contents for c in os.listdir.__closure__ "
            "if callable(c.cell_contents))\nreal('/')"
        ),
        "FileNotFoundError",
        "OSError",
    ),
    gives(
        "mro of an exception",
        "[c.__name__ for c in SandboxViolation.__mro__]",
        "['SandboxViolation', 'Exception', 'BaseException', 'object']",
    ),
    raises(
        "__reduce_ex__ into os.system",
        (
            "import pickle, os\ndef run(*a):\n    return os.system(*a)\nclass R:\n    def __reduce__(self):\n        return run, ('id',)\n"
            "pickle.loads(pickle.dumps(R()))"
        ),
        "SandboxViolation",
    ),
]

FRAME_WALKS = [
    gives(
        "frames end at our own entry",
        "import sys\nf, names = sys._getframe(), []\nwhile f:\n    names.append(f.f_code.co_name)\n"
        "    f = f.f_back\nnames",
        "['<module>', '_evaluate', 'run', 'run']",
    ),
    raises(
        "the real open, from the frames",
        PRELUDE + "cell['os'].open.__globals__['_real_open']('/etc/passwd')",
        "FileNotFoundError",
    ),
    raises(
        "a traceback's frame",
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n"
        "    g = e.__traceback__.tb_frame.f_back.f_globals\ng['os'].system('id')",
        "SandboxViolation",
    ),
    raises(
        "a generator's frame",
        "import sys\ndef g():\n    yield sys._getframe().f_back.f_back.f_globals\n"
        "next(g())['os'].fork()",
        "SandboxViolation",
    ),
    gives(
        "clearing every frame",
        (
            "import sys\nf, refused = sys._getframe().f_back, 0\nwhile f:\n    try:\n        f.clear()\n"
            "    except RuntimeError:\n        refused += 1\n    f = f.f_back\nrefused"
        ),
        "3",
    ),
    raises(
        "writing our own frame's locals",
        "import sys\nsys._getframe().f_back.f_locals['code'] = None\n'x'",
        "AttributeError",
    ),
]

FORMAT_WALKS = [
    gives(
        "str.format through a function's globals",
        "str(len('{f.__globals__}'.format(f=echo)) > 0)",
        "'True'",
    ),
    gives(
        "str.format of the environment",
        "'{f.__globals__[os].environ}'.format(f=echo)",
        "'environ({})'",
    ),
    raises(
        "str.format cannot call", "'{f.__globals__[os].system(1)}'.format(f=echo)", "AttributeError"
    ),
    raises(
        "a format of great width",
        "'{:>{w}}'.format('x', w=10**15)",
        "ValueError",
        "MemoryError",
        "OverflowError",
    ),
    gives(
        "string.Formatter with a hostile field",
        (
            "import string\nstring.Formatter().vformat('{0.__class__.__mro__[1].__name__}', ((),), {})"
        ),
        "'object'",
    ),
    gives(
        "a template string",
        "t'{echo.__globals__[\"os\"].environ}'.interpolations[0].value == {}",
        "True",
    ),
    raises(
        "logging with a hostile argument",
        (
            "import logging\nclass A:\n    def __getattr__(self, n):\n        import os\n        os.fork()\n"
            "'{0.x}'.format(A())"
        ),
        "SandboxViolation",
    ),
]
FRAME_WALKS.append(
    Case(
        name="a code object that reads beyond its constants",
        program="c = (lambda: 0).__code__\nexec(c.replace(co_code=bytes([100, 255] * 20)))",
        anyhow=True,
    )
)
