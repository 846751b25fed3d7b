"""Read which names a Python program uses, from its source, without running it.

Each name is listed once: first what the program imports, then the rest in the order of the source.

- what it imports: `import a.b` is `a.b`, `from a import b` is `a.b`. Later uses go by that path,
  whatever the program calls it: after `import a as x`, `x.f` is `a.f`;
- what it calls or reads by name: `f`, or a path as long as it is written, `a.b.c`. A path counts
  also if the program assigns to it.

An attribute of a computed value (`f().strip`, `x[0].sum`) is not a name of its own, and neither are
the parameters of a call. Each name has an origin. `own` are names that this program binds anywhere
in it, or that are given (by programs before it, or as data), with all their attributes; `standard`
are Python's builtins and modules; all others are `free`. Only free names can be unknown.

Texts that are arguments of calls are listed, too: string literals, also those in a list, tuple, set
or dict. Texts that are computed (f-strings, sums) are not.

This is not a security boundary. A program can reach a function in ways that no reading finds
(`getattr`); grants decide what it may do.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple

# Names that every program has: Python's own and the shell's own. They are not terms.
#
# The lists are written out, so that a verdict does not depend on the interpreter that gives it:
# they hold the names of every Python from 3.11 to 3.14.


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


# The names that a program uses, read from its source without running it.


# Python's parser takes up to ten seconds for a megabyte of the wrong kind.
PROGRAM_CHARS_MAX = 64 << 10
# Far below the limit of the interpreter's own stack, which differs from call to call.
DEPTH_MAX = 400
_NOTHING_GIVEN: Mapping[str, str] = MappingProxyType({})

Origin = Literal["free", "standard", "own"]


class Name(NamedTuple):
    """A name that a program uses, as a path, and its origin."""

    path: str
    origin: Origin = "free"


class Argument(NamedTuple):
    """A literal text that a program passes to the function at a path."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Problem:
    """The reason why a source was not read.

    `syntax`: it is not Python, and will fail by itself before any of it runs. `unread`: it, or a
    part of it, may well run. It is longer or deeper than what is read, or a text for a shell, which
    runs the lines before the one it cannot read.
    """

    kind: Literal["syntax", "unread"]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A source that was read. With a problem, all else is empty.

    `kept` are the names that it leaves to later programs, each with the path it was imported from,
    or "". Merged into `given` of this program, they are `given` of the next.
    """

    chars: int
    names: tuple[Name, ...] = ()
    arguments: tuple[Argument, ...] = ()
    kept: Mapping[str, str] = field(default_factory=dict)
    problem: Problem | None = None


def read_python(source: str, *, given: Mapping[str, str] = _NOTHING_GIVEN) -> Program:
    """Read a Python program; nothing is raised, a fault is the `problem`.

    `given` are names that exist before it, each with the path it was imported from, or "" if it is
    data or was assigned.
    """
    if (problem := too_long(source)) is not None:
        return Program(chars=len(source), problem=problem)
    try:
        with warnings.catch_warnings():
            # The parser warns of escapes such as `\d`, which are the program's own business.
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
        return _Reader(given).read(tree, chars=len(source))
    except (RecursionError, MemoryError, _TooDeep):
        problem = Problem("unread", f"it is nested deeper than {DEPTH_MAX} levels")
    except SyntaxError as error:
        problem = Problem("syntax", f"line {error.lineno or 1}: {error.msg}")
    except (ValueError, OverflowError):
        problem = Problem("syntax", "it has characters that no program has")
    return Program(chars=len(source), problem=problem)


def too_long(source: str) -> Problem | None:
    """Return the problem of a source with more than 65,536 characters; None for a shorter one."""
    if len(source) <= PROGRAM_CHARS_MAX:
        return None
    why = f"it has {len(source):,} characters; at most {PROGRAM_CHARS_MAX:,} are read"
    return Problem("unread", why)


class _TooDeep(Exception):
    """The tree has more levels than are read."""


class _Reader:
    """A walk over a tree without recursion: the nodes to be visited are in a list."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given
        # Each part with its depth, and whether the names it binds stay inside a function or class.
        self._waiting: list[tuple[ast.AST, int, bool]] = []
        self._depth = 0
        self._uses: dict[str, None] = {}
        self._imports: dict[str, None] = {}
        self._texts: dict[tuple[str, str], None] = {}
        self._bound: set[str] = set()
        self._kept: dict[str, str] = {}
        # Names that an import binds, with the path of what they are.
        self._from: dict[str, str] = {}

    def read(self, tree: ast.Module, *, chars: int) -> Program:
        waiting = self._waiting
        waiting.append((tree, 0, False))
        while waiting:
            node, self._depth, inside = waiting.pop()
            if self._depth > DEPTH_MAX:
                raise _TooDeep
            visit = _VISITORS.get(type(node))
            if visit is None:
                self._visit_next(_children(node), inside)
            else:
                visit(self, node, inside)
        names = [*map(_module_name, self._imports), *map(self._resolve, self._uses)]
        texts = [Argument(self._resolve(path).path, text) for path, text in self._texts]
        return Program(
            chars=chars,
            names=tuple(dict.fromkeys(names)),
            arguments=tuple(dict.fromkeys(texts)),
            kept=self._kept,
        )

    def _visit_next(self, parts: Iterable[ast.AST], inside: bool) -> None:
        """Visit these nodes next, in their order, one level deeper."""
        depth = self._depth + 1
        # Literals hold no names, and there are many.
        found = [(part, depth, inside) for part in parts if type(part) is not ast.Constant]
        self._waiting.extend(found[::-1])

    def _resolve(self, path: str) -> Name:
        """Return a path as a name with its origin, by what its first part is bound to."""
        root, dot, rest = path.partition(".")
        if origin := self._from.get(root) or self._given.get(root):
            whole = f"{origin}{dot}{rest}"
            return Name(whole, "own") if root in self._bound else _module_name(whole)
        if root in self._bound or root in self._given:
            return Name(path, "own")
        return Name(path, "standard" if is_standard(root) else "free")

    def _bind(self, name: str, inside: bool) -> None:
        self._bound.add(name)
        if not inside:
            self._kept[name] = ""

    # -- one method for each kind of node ----------------------------------------------------------

    def name(self, node: ast.Name, inside: bool) -> None:
        if isinstance(node.ctx, ast.Load):
            self._uses[node.id] = None
        else:
            self._bind(node.id, inside)

    def attribute(self, node: ast.Attribute, inside: bool) -> None:
        path, root = _path(node)
        if path is None:
            self._visit_next((root,), inside)
        else:
            self._uses[path] = None

    def call(self, node: ast.Call, inside: bool) -> None:
        given = [*node.args, *(each.value for each in node.keywords)]
        path, _ = _path(node.func)
        if path is not None:
            for text in (text for each in given for text in _literals(each)):
                self._texts[path, text] = None
        self._visit_next((node.func, *given), inside)

    def import_(self, node: ast.Import, inside: bool) -> None:
        for each in node.names:
            self._imports[each.name] = None
            root = each.name.partition(".")[0]
            self._bind_import(each.asname or root, each.name if each.asname else root, inside)

    def import_from(self, node: ast.ImportFrom, inside: bool) -> None:
        for each in node.names:
            bound, path = each.asname or each.name, f"{node.module}.{each.name}"
            if node.level:
                # A relative import comes from a file of the program's own.
                self._bind(bound, inside)
                continue
            self._imports[path] = None
            if each.name != "*":
                self._bind_import(bound, path, inside)

    def _bind_import(self, name: str, path: str, inside: bool) -> None:
        self._from[name] = path
        if not inside:
            self._kept[name] = path

    def scope(self, node: ast.AST, inside: bool) -> None:
        """Visit a function, class or lambda. Its name is bound here; what it binds is its own."""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self._bind(node.name, inside)
        self._visit_next(_children(node), True)

    def comprehension(self, node: ast.comprehension, inside: bool) -> None:
        self._visit_next((node.iter, *node.ifs), inside)
        self._visit_next((node.target,), True)

    def parameter(self, node: ast.arg, inside: bool) -> None:
        self._bind(node.arg, True)
        self._visit_next(_children(node), inside)

    def handler(self, node: ast.ExceptHandler, inside: bool) -> None:
        if node.name is not None:
            self._bind(node.name, True)
        self._visit_next(_children(node), inside)

    def global_(self, node: ast.Global, inside: bool) -> None:
        for name in node.names:
            self._bind(name, False)

    def pattern(self, node: ast.AST, inside: bool) -> None:
        """Visit a pattern or a type parameter, which may bind a name."""
        name = getattr(node, "rest" if isinstance(node, ast.MatchMapping) else "name", None)
        if isinstance(name, str):
            self._bind(name, inside)
        self._visit_next(_children(node), inside)


_VISITORS: dict[type[ast.AST], Callable[..., None]] = {
    ast.Name: _Reader.name,
    ast.Attribute: _Reader.attribute,
    ast.Call: _Reader.call,
    ast.Import: _Reader.import_,
    ast.ImportFrom: _Reader.import_from,
    ast.FunctionDef: _Reader.scope,
    ast.AsyncFunctionDef: _Reader.scope,
    ast.ClassDef: _Reader.scope,
    ast.Lambda: _Reader.scope,
    ast.comprehension: _Reader.comprehension,
    ast.arg: _Reader.parameter,
    ast.ExceptHandler: _Reader.handler,
    ast.Global: _Reader.global_,
    ast.MatchAs: _Reader.pattern,
    ast.MatchStar: _Reader.pattern,
    ast.MatchMapping: _Reader.pattern,
}
# The fields of each kind of node that may hold names: no operators, contexts or texts.
_NO_PARTS = frozenset({"arg", "attr", "ctx", "id", "kind", "op", "ops", "type_comment"})
_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {
    kind: tuple(name for name in kind._fields if name not in _NO_PARTS)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}
# Type parameters: Python has them since 3.12, and we support 3.11.
for _newer in ("TypeVar", "ParamSpec", "TypeVarTuple"):
    if hasattr(ast, _newer):
        _VISITORS[getattr(ast, _newer)] = _Reader.pattern


def _children(node: ast.AST) -> list[ast.AST]:
    """Return the parts of a node that may hold names."""
    parts: list[ast.AST] = []
    for name in _FIELDS[type(node)]:
        value = getattr(node, name, None)
        if isinstance(value, list):
            parts.extend([each for each in value if isinstance(each, ast.AST)])
        elif isinstance(value, ast.AST):
            parts.append(value)
    return parts


def _path(node: ast.expr) -> tuple[str | None, ast.expr]:
    """Return the dotted path that an expression is, and what it begins with.

    The path is None if it begins with anything but a name. Raise `_TooDeep` for one of too many
    parts.
    """
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if len(parts) > DEPTH_MAX:
        raise _TooDeep
    if not isinstance(node, ast.Name):
        return None, node
    return ".".join((node.id, *reversed(parts))), node


def _literals(node: ast.expr) -> Iterator[str]:
    """Yield the literal texts in an argument."""
    inside = [node]
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        inside = node.elts
    elif isinstance(node, ast.Dict):
        inside = [*filter(None, node.keys), *node.values]
    for each in inside:
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def _module_name(path: str) -> Name:
    """Return the path of a module, or of a part of one, as a name."""
    root = path.partition(".")[0]
    return Name(path, "standard" if root in MODULES or root == "__future__" else "free")
