"""Decide if a text is a program, and read the commands in a model's reply with their arguments.

Rule 1: an argument ends in one of three places, tried in this order: after one string literal that
is followed by `)`; at the `)` that balances the opening one, outside quotes; at a `)` that ends the
line, when the parentheses do not balance within it.
Rule 2: nothing but punctuation, markdown and a `#` comment may follow on that line. `FINAL(x) ends
the run, but first …` talks about a command, and to take it for one could not be undone.
Rule 3: one literal is unquoted and its escapes decoded; any other text is taken as it is. An
f-string is refused: only a program can evaluate it.
Rule 4: every look ahead is paid for from an `Effort` in proportion to the text, so no text, however
it is nested, costs more than a few passes over it.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Callable, Collection, Iterator

import msgspec

# Programs: a text is judged to be one without running it.
#
# Rule 1: Python's own parser is asked, for at most `CHECKED_CHARS_MAX` characters at a time and
# twice that for one judge: it takes up to ten seconds for a megabyte of the wrong kind.
# Rule 2: text that parses is not yet a program: `yes`, `42`, `Answer: 42` and `Paris (France)` do.
# It has to do something: assign, define, branch, loop, import, comprehend, slice, or call without a
# blank before the parenthesis.


CHECKED_CHARS_MAX = 32 << 10

# Syntax that no sentence parses as. Not here: `assert`, `del`, `raise`, `return`, `global`, `pass`,
# which begin sentences, and annotations without a value.
_DOING = (
    *(ast.Assign, ast.AugAssign, ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef),
    *(ast.AsyncFunctionDef, ast.For, ast.AsyncFor, ast.While, ast.If, ast.With, ast.AsyncWith),
    *(ast.Try, ast.TryStar, ast.Match, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
    *(ast.Lambda, ast.NamedExpr, ast.Await, ast.Slice),
)


class Judge:
    """Judges the texts of one reply. A statement that only calls one of `commands` is no sign.

    A text is too long with more than 32,768 characters, or if all texts then have over 65,536.
    """

    def __init__(self, *, commands: Collection[str] = ()) -> None:
        self._commands = commands
        self._chars_left = 2 * CHECKED_CHARS_MAX

    def parses(self, text: str) -> bool:
        """Return True if a text is Python; False also if it is too long to be judged."""
        return self._tree(text) is not None

    def does_something(self, text: str) -> bool:
        """Return True if a text is Python that does something; False also if it is too long."""
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
    """Return True if a node of a syntax tree shows that the text is meant as a program."""
    if isinstance(node, ast.Call):
        line, column = node.func.end_lineno or 0, node.func.end_col_offset or 0
        return lines[line - 1][column : column + 1] == b"("
    annotated = isinstance(node, ast.AnnAssign) and node.value is not None
    return annotated or isinstance(node, _DOING)


def tree_of(source: str) -> ast.Module | None:
    """Return the syntax tree of a program, or None if it is none or has over 32,768 characters."""
    if len(source) > CHECKED_CHARS_MAX:
        return None
    try:
        # The parser warns of escapes such as `\d`, which are the program's own business.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        return None


def names_bound(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement binds for those after it, each as often as it is bound.

    Names inside functions, classes and comprehensions are not yielded, nor are those of `except`
    and `case`. `import a.b` binds `a`.
    """
    # Not by recursion: a sum of a thousand terms is a thousand levels deep.
    waiting: list[ast.AST] = [statement]
    while waiting:
        match waiting.pop():
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
                | ast.Name(id=name, ctx=ast.Store())
            ):
                yield name
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from (each.asname or each.name.partition(".")[0] for each in aliases)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                pass  # Their names are local to them.
            case node:
                waiting += reversed(list(ast.iter_child_nodes(node)))


def line_count(source: str) -> int:
    """Return how many lines of a program are not blank."""
    return sum(1 for line in source.splitlines() if line.strip())


# The commands of a model's reply, and their arguments.


# A name is before any shorter one that it begins with: patterns have to try the longer one first.
COMMAND_NAMES = (
    *("FINAL_VAR", "FINAL", "RUN", "CODE", "SNAPSHOT", "ROLLBACK"),
    *("QUERY_LLM_BATCHED", "QUERY_LLM"),
)

# Python's `re` backtracks. The patterns here are one character class or possessive repeats of
# disjoint classes, so that there is nothing to come back to.
_DELIMITER = re.compile("[()\"'\u201c\u2018]")
_BLANK = re.compile(r"[ \t\r\n]*+")
_PREFIX = re.compile(r"[A-Za-z]{0,2}+(?=[\"'])")
_TAIL = re.compile(r"[ \t.,;:!*`]*+(?:#[^\n]*+)?+\r?+(?=\n|\Z)")
_ESCAPE = re.compile(
    r"\\(?:[ntr\"'\\]|\r?\n"
    r"|x[0-9A-Fa-f]{2}|U[0-9A-Fa-f]{8}"
    r"|u[dD][89abAB][0-9A-Fa-f]{2}\\u[dD][c-fC-F][0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4})"
)
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "'": "'", "\\": "\\"}
_AFTER_ARGUMENT = " \t\r.,;:!*`"
_PARTNERS = {'"': '"', "'": "'", "\u201c": "\u201d", "\u2018": "\u2019"}
_BEFORE_QUOTE = " \t\r\n([{,=:"

_LOOK_CHARS = 128
_LOOKS_PER_CHAR = 4
_EFFORT_CHARS_MIN = 1 << 20
_FLUSH_CHARS_MAX = 64 << 10


class Code(msgspec.Struct, frozen=True, kw_only=True, tag="code"):
    """A program."""

    source: str


class Run(msgspec.Struct, frozen=True, kw_only=True, tag="run"):
    """A command line for the shell."""

    command: str


class Final(msgspec.Struct, frozen=True, kw_only=True, tag="final"):
    """The answer, as text. A single name may be that of a variable."""

    text: str


class FinalVar(msgspec.Struct, frozen=True, kw_only=True, tag="final_var"):
    """The answer, in a variable."""

    name: str


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, tag="snapshot"):
    """A request to keep the files and variables under a name."""

    name: str


class Rollback(msgspec.Struct, frozen=True, kw_only=True, tag="rollback"):
    """A request to restore a snapshot."""

    name: str


class QueryLlm(msgspec.Struct, frozen=True, kw_only=True, tag="query_llm"):
    """A prompt for another model call.

    No run has this command; a program calls `llm_query` instead.
    """

    prompt: str


class QueryLlmBatched(msgspec.Struct, frozen=True, kw_only=True, tag="query_llm_batched"):
    """Several such prompts."""

    prompts: tuple[str, ...]


Command = Code | Run | Final | FinalVar | Snapshot | Rollback | QueryLlm | QueryLlmBatched


class Effort:
    """The characters that may still be spent on looking ahead in one text.

    A look costs the characters it passes and a fixed part, which stands for the steps around it.
    When nothing is left, looks find nothing: what is then unread counts as not closed.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._chars = _EFFORT_CHARS_MIN + _LOOKS_PER_CHAR * len(text)

    def find(self, needle: str, start: int) -> int:
        """Return the position of `needle` from `start` on, or -1 if nothing is found or left."""
        if self._chars <= 0:
            return -1
        at = self._text.find(needle, start)
        self._pay(start, at)
        return at

    def search(self, pattern: re.Pattern[str], start: int) -> re.Match[str] | None:
        """Return the first match from `start` on; None if there is none or nothing is left."""
        if self._chars <= 0:
            return None
        found = pattern.search(self._text, start)
        self._pay(start, -1 if found is None else found.end())
        return found

    def _pay(self, start: int, end: int) -> None:
        self._chars -= _LOOK_CHARS + (len(self._text) if end < 0 else end) - start


class Argument(msgspec.Struct, frozen=True, kw_only=True):
    """The argument of a command, read.

    `literal` is True if it was quoted: blanks at its ends count.
    """

    value: str
    end: int
    literal: bool = False


class Unreadable(msgspec.Struct, frozen=True, kw_only=True):
    """The problem of an argument, to follow the command's name. `closed` is False without a `)`."""

    why: str
    closed: bool = True


def read_argument(text: str, start: int, effort: Effort) -> Argument | Unreadable:
    """Read the argument whose first character is at `start`, just after the parenthesis.

    `end` of the result is the end of the line on which the argument closes. An `Unreadable` is
    returned for an argument that is not closed, that is not alone on its line, or that is an
    f-string.
    """
    literal = _literal(text, start, effort)
    if literal is not None:
        return literal

    close = _find_closing_parenthesis(text, start, effort)
    tail = None if close is None else _TAIL.match(text, close + 1)
    line_end = text.find("\n", start)
    line_end = len(text) if line_end < 0 else line_end
    if tail is None and (close is None or close > line_end):
        line = text[start:line_end].rstrip(_AFTER_ARGUMENT)
        if not line.endswith(")"):
            return Unreadable(why="( is not closed; end it with )", closed=False)
        return Argument(value=line[:-1], end=line_end)
    if tail is None:
        return Unreadable(why="(…) must stand alone on its line")
    return Argument(value=_strip_curly_quotes(text[start:close]), end=tail.end())


_OF_TEXT: dict[str, Callable[[str], Command]] = {
    "FINAL": lambda text: Final(text=text),
    "QUERY_LLM": lambda text: QueryLlm(prompt=text),
    "ROLLBACK": lambda text: Rollback(name=text),
    "RUN": lambda text: Run(command=text),
    "SNAPSHOT": lambda text: Snapshot(name=text),
}


def make_command(name: str, argument: Argument) -> Command | str:
    """Return the command, or a text about what its argument lacks. `name` is in `COMMAND_NAMES`."""
    text = argument.value if argument.literal else argument.value.strip()
    if not text.strip():
        return f"has an empty argument; write {name}(…) with something in it"
    if name == "CODE":
        return Code(source=dedent_block(argument.value))
    if name == "FINAL_VAR":
        text = text.strip()
        named = text.replace("_", "a").isalnum()
        return FinalVar(name=text) if named else "takes the name of one variable: FINAL_VAR(total)"
    if name == "QUERY_LLM_BATCHED":
        return _batch(text)
    return _OF_TEXT[name](text)


def _batch(text: str) -> Command | str:
    try:
        prompts = msgspec.json.decode(text, type=tuple[str, ...])
    except (msgspec.DecodeError, ValueError):
        prompts = ()
    if not prompts or not all(prompt.strip() for prompt in prompts):
        return 'takes a JSON list of strings: QUERY_LLM_BATCHED(["first", "second"])'
    return QueryLlmBatched(prompts=prompts)


def dedent_block(source: str) -> str:
    """Remove the indentation that all lines share, and the blanks at both ends.

    A text of more than 65,536 characters keeps its indentation, because finding it takes too long.
    """
    lines = source.strip("\r\n")
    return (textwrap.dedent(lines) if len(lines) <= _FLUSH_CHARS_MAX else lines).strip()


def _literal(text: str, start: int, effort: Effort) -> Argument | Unreadable | None:
    """Read an argument that is one string literal, which may span lines.

    None if it is not one, is not closed, or something else follows on its line. An f-string is
    `Unreadable`.
    """
    at = _skip_blanks(text, start)
    prefix = _PREFIX.match(text, at)
    if prefix is None:
        return None
    kind = prefix[0].lower()
    if "f" in kind:
        return Unreadable(why=' cannot evaluate f"…" outside a code block; put it in the program')
    at = prefix.end()
    quote = text[at] * 3 if text.startswith(text[at] * 3, at) else text[at]
    close = _find_unescaped(text, quote, at + len(quote), effort)
    if close < 0:
        return None
    end = _skip_blanks(text, close + len(quote))
    if text.startswith(",", end):
        end = _skip_blanks(text, end + 1)
    tail = _TAIL.match(text, end + 1) if text.startswith(")", end) else None
    if tail is None or kind not in {"", "r", "u"}:
        return None
    inside = text[at + len(quote) : close]
    return Argument(
        value=inside if kind == "r" else _decode_escapes(inside), end=tail.end(), literal=True
    )


def _find_closing_parenthesis(text: str, start: int, effort: Effort) -> int | None:
    """Return the position of the parenthesis that closes the one before `start`.

    None if none does, or no effort is left.
    """
    depth = 1
    while (found := effort.search(_DELIMITER, start)) is not None:
        start = found.end()
        if found[0] == "(":
            depth += 1
        elif found[0] != ")":
            start = _skip_string(text, found.start(), effort)
        elif depth == 1:
            return found.start()
        else:
            depth -= 1
    return None


def _skip_string(text: str, at: int, effort: Effort) -> int:
    """Return the position after the string that a quote at `at` opens, or after a mere quote.

    In prose most single quotes are apostrophes. A quote opens a string only after a blank, a
    bracket or one of `,=:`, and only if the next quote of its kind is on its line (or is a triple
    one) and is not followed by a letter, as the one in `it's` is.
    """
    quote = text[at]
    if text[at - 1] not in _BEFORE_QUOTE:
        return at + 1
    if text.startswith(quote * 3, at):
        close = effort.find(quote * 3, at + 3)
        return at + 3 if close < 0 else close + 3
    close = _find_unescaped(text, _PARTNERS[quote], at + 1, effort)
    after = text[close + 1 : close + 2]
    if close < 0 or after.isalnum() or after == "_" or text.find("\n", at, close) >= 0:
        return at + 1
    return close + 1


def _find_unescaped(text: str, quote: str, start: int, effort: Effort) -> int:
    """Return the position of the next `quote` that no odd number of backslashes precedes, or -1."""
    at = effort.find(quote, start)
    while at >= 0:
        before = text[start:at]
        if (len(before) - len(before.rstrip("\\"))) % 2 == 0:
            return at
        start = at + 1
        at = effort.find(quote, start)
    return -1


def _strip_curly_quotes(argument: str) -> str:
    """Remove typographic quotes; they have no escapes, and programs have no use for them."""
    text = argument.strip()
    partner = {"\u201c": "\u201d", "\u2018": "\u2019"}.get(text[:1])
    alone = partner is not None and text.find(partner) == len(text) - 1
    return text[1:-1] if alone else argument


def _decode_escapes(literal: str) -> str:
    r"""Decode escapes. An unknown one stays: `\d` and `\b` are more often patterns."""
    return _ESCAPE.sub(_character, literal) if "\\" in literal else literal


def _character(escape: re.Match[str]) -> str:
    body = escape[0][1:]
    if body in _LETTERS:
        return _LETTERS[body]
    if body[0] in "\r\n":
        return ""
    if len(body) == 11:
        high, low = int(body[1:5], 16), int(body[7:], 16)
        return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))
    code = int(body[1:], 16)
    # Half of a pair is no character: it could not be written to the ledger.
    usable = code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF
    return chr(code) if usable else escape[0]


def _skip_blanks(text: str, start: int) -> int:
    blank = _BLANK.match(text, start)
    return start if blank is None else blank.end()
