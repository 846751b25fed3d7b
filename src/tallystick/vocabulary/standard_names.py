"""Names that every program has: Python's own and the shell's own. They are no terms.

The lists are written out, so that a verdict does not depend on the interpreter that gives it: they
hold the names of every Python from 3.11 to 3.14.
"""

from __future__ import annotations

import re

__all__ = ["BUILTINS", "MODULES", "SHELL_BUILTINS", "is_standard"]

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
    """Whether a bare name is Python's own: a builtin, a module, `_`, or one like `__name__`."""
    if name in BUILTINS or name in MODULES or name == "_":
        return True
    return name.startswith("__") and name.endswith("__") and len(name) > len("____")
