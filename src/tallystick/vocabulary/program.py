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
or dict, and sums of literals. Texts that are computed are not; the calls that have some are listed.

The text of `exec`, `eval` and `compile` is read like the program if it is a literal, and so is the
name that `getattr` or `__import__` is given. What no reading finds is `uncovered`: these functions
with a computed text, `globals`, `sys.modules`, frames, star imports, and the like.

This is not a security boundary: it finds slips, and says where it does not look. Grants decide what
a program may do.

The syntax is that of the Python that runs this module. So `guest_python` runs it in the sandbox,
and nothing but the standard library and `python_names` may be imported here.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple

from tallystick.vocabulary.python_names import (
    MODULES,
    MODULES_OF_UNREAD,
    PARTS_OF_UNREAD,
    REACH_UNREAD,
    REACHING_ATTRIBUTES,
    RUN_UNREAD,
    is_module_alone,
    is_standard,
    variants_of,
)

# The names that a program uses, read from its source without running it.


# Python's parser takes up to ten seconds for a megabyte of the wrong kind.
PROGRAM_CHARS_MAX = 64 << 10
# Far below the limit of the interpreter's own stack, which differs from call to call.
DEPTH_MAX = 400
_NOTHING_GIVEN: Mapping[str, str] = MappingProxyType({})

# How programs are read. 1 is as until version 0.1: what cannot be read is not listed, and of
# several modules imported under one name only the last counts. Recorded runs keep their reading,
# so that their verdicts stay the same.
READING_FIRST, READING = 1, 2

Origin = Literal["free", "standard", "own"]


class Name(NamedTuple):
    """A name that a program uses, as a path, and its origin."""

    path: str
    origin: Origin = "free"


class Argument(NamedTuple):
    """A literal text that a program passes to the function at a path."""

    path: str
    text: str


class Uncovered(NamedTuple):
    """A part of a program by which it can reach names that the reading does not find.

    `runs` is True if it runs a text, or code, that was not read.
    """

    line: int
    what: str
    runs: bool = False


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
    or "". Merged into `given` of this program, they are `given` of the next. A name that is
    imported twice has all its paths, with a space between.

    `uncovered` is in the order of the source. `values` are paths that are used other than by a
    call, `computed` those of calls with a text that is not literal, each with its first line.
    """

    chars: int
    names: tuple[Name, ...] = ()
    arguments: tuple[Argument, ...] = ()
    uncovered: tuple[Uncovered, ...] = ()
    values: Mapping[str, int] = field(default_factory=dict)
    computed: Mapping[str, int] = field(default_factory=dict)
    reading: int = READING_FIRST
    kept: Mapping[str, str] = field(default_factory=dict)
    problem: Problem | None = None


def read_python(
    source: str, *, given: Mapping[str, str] = _NOTHING_GIVEN, reading: int = READING
) -> Program:
    """Read a Python program; nothing is raised, a fault is the `problem`.

    `given` are names that exist before it, each with the path it was imported from, or "" if it is
    data or was assigned. `reading` 1 is as in version 0.1: nothing is `uncovered`.
    """
    if (problem := too_long(source)) is not None:
        return Program(chars=len(source), problem=problem, reading=reading)
    # Both sandboxes drop a byte order mark; a parser of texts does not.
    text = source.removeprefix("\ufeff") if reading > READING_FIRST else source
    try:
        reader = _Reader(given) if reading == READING_FIRST else _WholeReader(given)
        return reader.read(_parse(text), chars=len(source))
    except (RecursionError, MemoryError, _TooDeep):
        problem = Problem("unread", f"it is nested deeper than {DEPTH_MAX} levels")
    except SyntaxError as error:
        problem = Problem("syntax", f"line {error.lineno or 1}: {error.msg}")
    except (ValueError, OverflowError):
        problem = Problem("syntax", "it has characters that no program has")
    return Program(chars=len(source), problem=problem, reading=reading)


def _parse(source: str) -> ast.Module:
    with warnings.catch_warnings():
        # The parser warns of escapes such as `\d`, which are the program's own business.
        warnings.simplefilter("ignore")
        return ast.parse(source)


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
                getattr(self, visit)(node, inside)
        return self._program(chars)

    def _program(self, chars: int) -> Program:
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

    def match_class(self, node: ast.MatchClass, inside: bool) -> None:
        self._visit_next(_children(node), inside)


class _WholeReader(_Reader):
    """A reader that also lists what it cannot read, and keeps all paths of a name."""

    def __init__(self, given: Mapping[str, str]) -> None:
        super().__init__(given)
        # All paths of each name that an import binds. Which of several imports comes last is not
        # known: it may be in a branch, or a loop.
        self._paths: dict[str, dict[str, None]] = {}
        # Paths that begin with `__import__("a")`.
        self._by_import: set[str] = set()
        self._called: set[int] = set()
        self._lines: dict[str, int] = {}
        self._import_lines: dict[str, int] = {}
        self._values: dict[str, int] = {}
        self._computed: dict[str, int] = {}
        self._found: dict[Uncovered, None] = {}
        # The line of a text that is read inside of the program is that of its call.
        self._line_of_text: dict[int, int] = {}
        self._texts_read = 0
        self._trees: list[ast.AST] = []

    def _program(self, chars: int) -> Program:
        names = [_module_name(each) for each in self._imports]
        names += [name for path in self._uses for name in self._resolve_all(path)]
        texts = [
            Argument(name.path, text)
            for path, text in self._texts
            for name in self._resolve_all(path)
        ]
        kept = {
            name: " ".join(self._paths.get(name, ())) or path for name, path in self._kept.items()
        }
        return Program(
            chars=chars,
            names=tuple(dict.fromkeys(names)),
            arguments=tuple(dict.fromkeys(texts)),
            uncovered=tuple(sorted(self._all_uncovered())),
            values=self._with_lines(self._values),
            computed=self._with_lines(self._computed),
            reading=READING,
            kept=kept,
        )

    def _all_uncovered(self) -> set[Uncovered]:
        found = set(self._found)
        used = [
            (name.path, line, path in self._values)
            for path, line in self._lines.items()
            if self._is_python(path)
            for name in self._resolve_all(path)
        ]
        used += [(path, line, False) for path, line in self._import_lines.items()]
        for path, line, is_value in used:
            for variant in variants_of(path):
                parts = variant.split(".", PARTS_OF_UNREAD)[:PARTS_OF_UNREAD]
                heads = {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
                if not heads.isdisjoint(RUN_UNREAD):
                    found.add(Uncovered(line, path, True))
                elif not heads.isdisjoint(REACH_UNREAD) or (
                    # A module that is passed on: what is taken from it is not read.
                    is_value and variant in MODULES_OF_UNREAD
                ):
                    found.add(Uncovered(line, path))
        return found

    def _is_python(self, path: str) -> bool:
        """Return True if a path may begin with a module or a builtin of Python.

        A variable that is called `code` or `trace` is no module. One that is called `exec` may
        still be the builtin, where the assignment does not happen.
        """
        root = path.partition(".")[0]
        imported = root in self._paths or bool(self._given.get(root)) or path in self._by_import
        return imported or not is_module_alone(root)

    def _with_lines(self, paths: Mapping[str, int]) -> dict[str, int]:
        made: dict[str, int] = {}
        for path, line in paths.items():
            for name in self._resolve_all(path):
                made.setdefault(name.path, line)
        return made

    def _resolve_all(self, path: str) -> Iterator[Name]:
        """Yield a path as names, one for each module that its first part may be."""
        root, dot, rest = path.partition(".")
        origins = dict.fromkeys((*self._paths.get(root, ()), *self._given.get(root, "").split()))
        for origin in origins:
            whole = f"{origin}{dot}{rest}"
            yield Name(whole, "own") if root in self._bound else _module_name(whole)
        if not origins:
            own = root in self._bound or root in self._given
            yield Name(path, "own" if own else "standard" if is_standard(root) else "free")

    def _bind_import(self, name: str, path: str, inside: bool) -> None:
        super()._bind_import(name, path, inside)
        self._paths.setdefault(name, {})[path] = None

    def _line(self, node: ast.AST) -> int:
        return self._line_of_text.get(id(node)) or int(getattr(node, "lineno", 1))

    def _use(self, path: str, node: ast.AST) -> None:
        line = self._line(node)
        self._uses[path] = None
        self._lines.setdefault(path, line)
        if id(node) not in self._called:
            self._values.setdefault(path, line)
        for each in path.split(".")[1:]:
            self._look_at(each, node)

    def _look_at(self, attribute: str, node: ast.AST) -> None:
        if attribute in REACHING_ATTRIBUTES:
            self._found[Uncovered(self._line(node), f".{attribute}")] = None

    def name(self, node: ast.Name, inside: bool) -> None:
        if isinstance(node.ctx, ast.Load):
            self._use(node.id, node)
        else:
            self._bind(node.id, inside)

    def attribute(self, node: ast.Attribute, inside: bool) -> None:
        path, root = _path(node)
        if path is not None:
            self._use(path, node)
            return
        part: ast.expr = node
        while isinstance(part, ast.Attribute):
            self._look_at(part.attr, node)
            part = part.value
        if (whole := _path_in(node)) is not None:
            self._called.add(id(root))
            self._use(whole, node)
            self._by_import.add(whole)
        self._visit_next((root,), inside)

    def call(self, node: ast.Call, inside: bool) -> None:
        given = [*node.args, *(each.value for each in node.keywords)]
        path, _ = _path(node.func)
        self._called.add(id(node.func))
        if path is not None:
            texts, is_literal = _texts_in(given)
            for text in texts:
                self._texts[path, text] = None
            if not is_literal:
                self._computed.setdefault(path, self._line(node))
        if path is not None and self._reads(path, node, inside):
            # Used, so that it can be denied; but what it does was read.
            self._uses[path] = None
            # What an attribute is taken from is used as its path, and not by itself.
            whole = path == "getattr" and _path(node.args[0])[0] is not None
            self._visit_next(given[1:] if whole else given, inside)
        else:
            self._visit_next((node.func, *given), inside)

    def _reads(self, path: str, node: ast.Call, inside: bool) -> bool:
        """Return True if a call of a builtin with a literal text was read in full.

        The builtins are `getattr`, `__import__`, `exec`, `eval` and `compile`. What the text names
        is noted, and the tree of a text that runs is visited next.
        """
        text = _text_of(node, 1 if path == "getattr" else 0)
        if text is None or any(isinstance(each, ast.Starred) for each in node.args):
            return False
        match path:
            case "getattr":
                self._look_at(text, node)
                whole = _path_in(node.args[0])
                if whole is not None:
                    self._called.add(id(_path(node.args[0])[1]))
                    self._use(f"{whole}.{text}", node)
                    if _path(node.args[0])[0] is None:
                        self._by_import.add(f"{whole}.{text}")
                return True
            case "__import__":
                self._imports[text] = None
                self._import_lines.setdefault(text, self._line(node))
                if id(node) not in self._called:
                    module = text.partition(".")[0]
                    self._lines.setdefault(module, self._line(node))
                    self._values.setdefault(module, self._line(node))
                    self._by_import.add(module)
                return True
            case "exec" | "eval" | "compile":
                return self._read_text(text.lstrip(" \t") if path == "eval" else text, node, inside)
            case _:
                return False

    def _read_text(self, text: str, node: ast.Call, inside: bool) -> bool:
        """Visit the tree of a text that the program runs.

        Return False if it was not read: it is no Python, or 100 texts were read before it.
        """
        self._texts_read += 1
        if self._texts_read > _TEXTS_READ_MAX:
            return False
        try:
            tree = _parse(text)
        except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
            return False
        line = self._line(node)
        for each in ast.walk(tree):
            self._line_of_text[id(each)] = line
        # Kept as long as the reader: the ids of its nodes must stay theirs.
        self._trees.append(tree)
        self._visit_next((tree,), inside)
        return True

    def import_(self, node: ast.Import, inside: bool) -> None:
        super().import_(node, inside)
        for each in node.names:
            self._import_lines.setdefault(each.name, self._line(node))

    def import_from(self, node: ast.ImportFrom, inside: bool) -> None:
        super().import_from(node, inside)
        if node.level:
            what = f"from {'.' * node.level}{node.module or ''} import"
            self._found[Uncovered(self._line(node), what, True)] = None
            return
        for each in node.names:
            path = f"{node.module}.{each.name}"
            self._import_lines.setdefault(path, self._line(node))
            self._look_at(each.name, node)
            if each.name == "*":
                self._found[Uncovered(self._line(node), path)] = None

    def match_class(self, node: ast.MatchClass, inside: bool) -> None:
        """Visit the pattern of a class, which takes attributes by their names."""
        for each in node.kwd_attrs:
            self._look_at(each, node)
        self._visit_next(_children(node), inside)


# The most texts of `exec` and `eval` that are read in one program.
_TEXTS_READ_MAX = 100
_VISITORS: dict[type[ast.AST], str] = {
    ast.Name: "name",
    ast.Attribute: "attribute",
    ast.Call: "call",
    ast.Import: "import_",
    ast.ImportFrom: "import_from",
    ast.FunctionDef: "scope",
    ast.AsyncFunctionDef: "scope",
    ast.ClassDef: "scope",
    ast.Lambda: "scope",
    ast.comprehension: "comprehension",
    ast.arg: "parameter",
    ast.ExceptHandler: "handler",
    ast.Global: "global_",
    ast.MatchAs: "pattern",
    ast.MatchStar: "pattern",
    ast.MatchMapping: "pattern",
    ast.MatchClass: "match_class",
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
        _VISITORS[getattr(ast, _newer)] = "pattern"


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
    """Yield the literal text that an argument is, or those in a list, tuple, set or dict.

    Only one level of them is looked into.
    """
    inside = [node]
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        inside = node.elts
    elif isinstance(node, ast.Dict):
        inside = [*filter(None, node.keys), *node.values]
    for each in inside:
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def _text_of(node: ast.Call, place: int) -> str | None:
    """Return the literal text at a place among the positional arguments of a call.

    Return None if there is no such argument, or if it is not literal.
    """
    if place >= len(node.args):
        return None
    return _folded(node.args[place])


def _folded(node: ast.AST) -> str | None:
    """Return the text of a literal, a sum of literals, or an f-string without values; else None."""
    parts: list[str] = []
    waiting: list[ast.AST] = [node]
    while waiting:
        each = waiting.pop()
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            parts.append(each.value)
        elif isinstance(each, ast.JoinedStr):
            waiting.extend(reversed(each.values))
        elif isinstance(each, ast.BinOp) and isinstance(each.op, ast.Add):
            waiting.extend((each.right, each.left))
        else:
            return None
    return "".join(parts)


def _texts_in(given: Iterable[ast.expr]) -> tuple[list[str], bool]:
    """Return the literal texts in arguments, and whether nothing in them is computed.

    Lists, tuples, sets and dicts are looked into, however deep.
    """
    texts: list[str] = []
    is_literal = True
    waiting: list[ast.AST] = list(reversed([*given]))
    while waiting:
        each = waiting.pop()
        if (text := _folded(each)) is not None:
            texts.append(text)
        elif isinstance(each, ast.List | ast.Tuple | ast.Set):
            waiting.extend(reversed(each.elts))
        elif isinstance(each, ast.Dict):
            waiting.extend(reversed([*filter(None, each.keys), *each.values]))
        elif isinstance(each, ast.Starred):
            waiting.append(each.value)
        elif not isinstance(each, ast.Constant):
            is_literal = False
    return texts, is_literal


def _path_in(node: ast.expr) -> str | None:
    """Return the path that an expression is, also if it begins with `__import__("a.b")`.

    `__import__("a.b")` gives `a`. Return None if it begins with anything else that is no name.
    """
    path, root = _path(node)
    if path is not None or not isinstance(root, ast.Call) or not isinstance(root.func, ast.Name):
        return path
    module = _text_of(root, 0) if root.func.id == "__import__" else None
    if module is None:
        return None
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join((module.partition(".")[0], *reversed(parts)))


def _module_name(path: str) -> Name:
    """Return the path of a module, or of a part of one, as a name."""
    root = path.partition(".")[0]
    return Name(path, "standard" if root in MODULES or root == "__future__" else "free")
