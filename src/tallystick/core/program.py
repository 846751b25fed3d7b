"""Whether a text is a Python program, judged without running it.

Rule 1: Python's own parser is asked, for at most `CHECKED_CHARS_MAX` characters at a time and twice
that for one judge: it takes up to ten seconds for a megabyte of the wrong kind.
Rule 2: text that parses is not yet a program: `yes`, `42`, `Answer: 42` and `Paris (France)` do. It
has to do something: assign, define, branch, loop, import, comprehend, slice, or call without a
blank before the parenthesis.
"""

import ast
import warnings
from collections.abc import Collection

__all__ = ["CHECKED_CHARS_MAX", "Judge", "line_count", "tree_of"]

CHECKED_CHARS_MAX = 32 << 10

# What no sentence parses as. Not here: `assert`, `del`, `raise`, `return`, `global`, `pass`, which
# begin sentences, and annotations without a value.
_DOING = (
    *(ast.Assign, ast.AugAssign, ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef),
    *(ast.AsyncFunctionDef, ast.For, ast.AsyncFor, ast.While, ast.If, ast.With, ast.AsyncWith),
    *(ast.Try, ast.TryStar, ast.Match, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
    *(ast.Lambda, ast.NamedExpr, ast.Await, ast.Slice),
)


class Judge:
    """Judges the texts of one reply. A statement that only calls one of `commands` is no sign."""

    def __init__(self, *, commands: Collection[str] = ()) -> None:
        self._commands = commands
        self._chars_left = 2 * CHECKED_CHARS_MAX

    def parses(self, text: str) -> bool:
        return self._tree(text) is not None

    def does_something(self, text: str) -> bool:
        tree = self._tree(text)
        if tree is None:
            return False
        lines = text.encode().splitlines()
        statements = [statement for statement in tree.body if not self._commands_only(statement)]
        return any(_does(node, lines) for each in statements for node in ast.walk(each))

    def _commands_only(self, statement: ast.stmt) -> bool:
        call = statement.value if isinstance(statement, ast.Expr) else None
        # A list marker in front of it parses as a sign or a star.
        if isinstance(call, ast.UnaryOp):
            call = call.operand
        elif isinstance(call, ast.Starred):
            call = call.value
        name = call.func if isinstance(call, ast.Call) else None
        return isinstance(name, ast.Name) and name.id in self._commands

    def _tree(self, text: str) -> ast.Module | None:
        if len(text) > min(CHECKED_CHARS_MAX, self._chars_left):
            return None
        self._chars_left -= len(text)
        return tree_of(text)


def _does(node: ast.AST, lines: list[bytes]) -> bool:
    """Say whether a part of a text that parses shows that it is meant as a program."""
    if isinstance(node, ast.Call):
        line, column = node.func.end_lineno or 0, node.func.end_col_offset or 0
        return lines[line - 1][column : column + 1] == b"("
    annotated = isinstance(node, ast.AnnAssign) and node.value is not None
    return annotated or isinstance(node, _DOING)


def tree_of(source: str) -> ast.Module | None:
    """The syntax tree of a program of bearable length; None if it is none."""
    if len(source) > CHECKED_CHARS_MAX:
        return None
    try:
        # The parser warns of escapes such as `\d`, which are the program's own business.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        return None


def line_count(source: str) -> int:
    """How many lines of a program say something."""
    return sum(1 for line in source.splitlines() if line.strip())
