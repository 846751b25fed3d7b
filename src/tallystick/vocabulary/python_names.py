"""List the names that Python itself gives to programs, and those by which other names are reached.

The lists are written out, so that a verdict does not depend on the interpreter that gives it: they
hold the names of every Python from 3.11 to 3.14. Like `program`, this module is also run in the
sandbox, so it imports nothing but the standard library.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# Names that every program has: Python's own and the shell's own. They are not terms.


_WORD = re.compile(r"\S+")

BUILTINS = frozenset(
    _WORD.findall(
        "ArithmeticError AssertionError AttributeError BaseException BaseExceptionGroup "
        "BlockingIOError BrokenPipeError BufferError BytesWarning ChildProcessError "
        "ConnectionAbortedError ConnectionError ConnectionRefusedError ConnectionResetError "
        "DeprecationWarning EOFError Ellipsis EncodingWarning EnvironmentError Exception "
        "ExceptionGroup False FileExistsError FileNotFoundError FloatingPointError "
        "FutureWarning GeneratorExit IOError ImportError ImportWarning IndentationError "
        "IndexError InterruptedError IsADirectoryError KeyError KeyboardInterrupt LookupError "
        "MemoryError ModuleNotFoundError NameError None NotADirectoryError NotImplemented "
        "NotImplementedError OSError OverflowError PendingDeprecationWarning PermissionError "
        "ProcessLookupError PythonFinalizationError RecursionError ReferenceError "
        "ResourceWarning RuntimeError RuntimeWarning StopAsyncIteration StopIteration "
        "SyntaxError SyntaxWarning SystemError SystemExit TabError TimeoutError True "
        "TypeError UnboundLocalError UnicodeDecodeError UnicodeEncodeError UnicodeError "
        "UnicodeTranslateError UnicodeWarning UserWarning ValueError Warning "
        "ZeroDivisionError abs aiter all anext any ascii bin bool breakpoint bytearray bytes "
        "callable chr classmethod compile complex copyright credits delattr dict dir divmod "
        "enumerate eval exec exit filter float format frozenset getattr globals hasattr hash "
        "help hex id input int isinstance issubclass iter len license list locals map max "
        "memoryview min next object oct open ord pow print property quit range repr reversed "
        "round set setattr slice sorted staticmethod str sum super tuple type vars zip "
    )
)

MODULES = frozenset(
    _WORD.findall(
        "abc aifc annotationlib antigravity argparse array ast asynchat asyncio asyncore "
        "atexit audioop base64 bdb binascii bisect builtins bz2 cProfile calendar cgi cgitb "
        "chunk cmath cmd code codecs codeop collections colorsys compileall compression "
        "concurrent configparser contextlib contextvars copy copyreg crypt csv ctypes curses "
        "dataclasses datetime dbm decimal difflib dis distutils doctest email encodings "
        "ensurepip enum errno faulthandler fcntl filecmp fileinput fnmatch fractions ftplib "
        "functools gc genericpath getopt getpass gettext glob graphlib grp gzip hashlib heapq "
        "hmac html http idlelib imaplib imghdr imp importlib inspect io ipaddress itertools "
        "json keyword lib2to3 linecache locale logging lzma mailbox mailcap marshal math "
        "mimetypes mmap modulefinder msilib msvcrt multiprocessing netrc nis nntplib nt "
        "ntpath nturl2path numbers opcode operator optparse os ossaudiodev pathlib pdb pickle "
        "pickletools pipes pkgutil platform plistlib poplib posix posixpath pprint profile "
        "pstats pty pwd py_compile pyclbr pydoc pydoc_data pyexpat queue quopri random re "
        "readline reprlib resource rlcompleter runpy sched secrets select selectors shelve "
        "shlex shutil signal site smtpd smtplib sndhdr socket socketserver spwd sqlite3 "
        "sre_compile sre_constants sre_parse ssl stat statistics string stringprep struct "
        "subprocess sunau symtable sys sysconfig syslog tabnanny tarfile telnetlib tempfile "
        "termios textwrap this threading time timeit tkinter token tokenize tomllib trace "
        "traceback tracemalloc tty turtle turtledemo types typing unicodedata unittest urllib "
        "uu uuid venv warnings wave weakref webbrowser winreg winsound wsgiref xdrlib xml "
        "xmlrpc zipapp zipfile zipimport zlib zoneinfo "
    )
)

SHELL_BUILTINS = frozenset(
    _WORD.findall(
        ": . [ alias bg bind break builtin caller cd command compgen complete compopt continue "
        "declare dirs disown echo enable eval exec exit export false fc fg for getopts hash help "
        "history jobs kill let local logout mapfile popd printf pushd pwd read readarray readonly "
        "return select set shift shopt source suspend test time times trap true type typeset "
        "ulimit umask unalias unset wait"
    )
)


def is_standard(name: str) -> bool:
    """Return True if a bare name is Python's own.

    That is a builtin, a module of the standard library, `_`, or a name like `__name__`.
    """
    if name in BUILTINS or name in MODULES or name == "_":
        return True
    return name.startswith("__") and name.endswith("__") and len(name) > len("____")


def is_module_alone(name: str) -> bool:
    """Return True if a bare name is no builtin and not like `__name__`.

    Then only an import gives it a meaning of Python's.
    """
    return name not in BUILTINS and not (name.startswith("__") and name.endswith("__"))


# Names that lead to others without naming them. The first run a text or code that was not read;
# the others give a value by a name that may be computed, or start another program.
RUN_UNREAD = frozenset(
    _WORD.findall(
        "exec eval compile __import__ code codeop imp importlib.__import__ "
        "importlib.import_module importlib.machinery importlib.reload importlib.util "
        "marshal.load marshal.loads runpy timeit.Timer timeit.repeat timeit.timeit "
        "types.CodeType types.FunctionType zipimport "
    )
)
REACH_UNREAD = frozenset(
    _WORD.findall(
        "getattr globals locals vars breakpoint __builtins__ __loader__ __spec__ __main__ "
        "annotationlib asyncio.create_subprocess_exec asyncio.create_subprocess_shell bdb "
        "cProfile copyreg ctypes doctest gc inspect "
        "operator.attrgetter operator.methodcaller os.execl os.execle os.execlp os.execlpe "
        "os.execv os.execve os.execvp os.execvpe os.popen os.posix_spawn os.posix_spawnp "
        "os.spawnl os.spawnle os.spawnlp os.spawnlpe os.spawnv os.spawnve os.spawnvp os.spawnvpe "
        "os.startfile os.system pdb pickle.Unpickler pickle.load pickle.loads pkgutil profile pty "
        "string.Formatter subprocess sys._current_frames sys._getframe sys.meta_path sys.modules "
        "sys.path sys.path_hooks sys.setprofile sys.settrace threading.setprofile "
        "threading.settrace trace traceback.walk_stack typing.ForwardRef "
        "typing.evaluate_forward_ref typing.get_type_hints unittest.mock "
    )
)
REACHING_ATTRIBUTES = frozenset(
    _WORD.findall(
        "__base__ __bases__ __builtins__ __class__ __closure__ __code__ __dict__ __func__ "
        "__getattr__ __getattribute__ __globals__ __import__ __loader__ __mro__ __reduce__ "
        "__reduce_ex__ __self__ __spec__ __subclasses__ __wrapped__ ag_frame cr_frame f_back "
        "f_builtins f_globals f_locals gi_frame mro tb_frame "
    )
)
# Modules that are another under a name of their own.
_SAME_MODULE = {"posix": "os", "nt": "os", "posixpath": "os.path", "ntpath": "os.path"}

PARTS_OF_UNREAD = max(each.count(".") + 1 for each in RUN_UNREAD | REACH_UNREAD)
MODULES_OF_UNREAD = frozenset(
    {"builtins", *(each.rpartition(".")[0] for each in RUN_UNREAD | REACH_UNREAD)} - {""}
)


def variants_of(path: str) -> Iterator[str]:
    """Yield a path, and those under which the same is also known.

    `builtins.eval` is `eval`, `posix.system` and `subprocess.os.system` are `os.system`, and
    `_socket.socket` is `socket.socket`.
    """
    yield path
    parts = path.split(".")
    if parts[0].lstrip("_") not in MODULES and parts[0] not in _SAME_MODULE:
        return
    for at, part in enumerate(parts):
        rest = parts[at + 1 :]
        if part in ("builtins", "__builtins__") and rest:
            yield ".".join(rest)
        elif part in _SAME_MODULE:
            yield ".".join((_SAME_MODULE[part], *rest))
        elif at and part in MODULES:
            yield ".".join((part, *rest))
        elif part.startswith("_") and part.lstrip("_") in MODULES:
            yield ".".join((part.lstrip("_"), *rest))
