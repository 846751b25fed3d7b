"""What a program was given to read: views made when they are first named, files, names that stay.

A view is the data already taken apart: `lines`, `rows`, `records`. It is made when a program first
names it, since most programs name one or none. What it consists of was decided by the host, which
read the whole text and says so in the prompt; here it is only carried out.
"""

import ast
import csv
import io
import json
import re
from collections.abc import Iterator

_Name, _Load, _AST = ast.Name, ast.Load, ast.AST
_Import, _ImportFrom = ast.Import, ast.ImportFrom
_Defines = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_Assign, _AnnAssign, _Constant = ast.Assign, ast.AnnAssign, ast.Constant
_LITERAL = (
    ast.Constant,
    ast.List,
    ast.Tuple,
    ast.Dict,
    ast.Set,
    ast.UnaryOp,
    ast.unaryop,
    ast.expr_context,
)
_reader, _StringIO, _BytesIO, _loads = csv.reader, io.StringIO, io.BytesIO, json.loads
_field_limit = csv.field_size_limit
_isinstance, _str, _dict, _getattr, _list = isinstance, str, dict, getattr, list
_between = re.compile(r"[\s,;]+").split
_FIELD_CHARS_MAX = 1 << 30
_SAMPLE_CHARS_LEAST = 40
_CONTAINERS = (ast.List, ast.Tuple, ast.Set, ast.Dict)


class GivenData:
    """The inputs of one session, over its namespace."""

    def __init__(self, names: dict[str, object], injected: dict[str, object]) -> None:
        self._names = names
        self._injected = injected
        self._views: dict[str, list[dict[str, object]]] = {}
        self._files: list[tuple[str, str, str | None]] = []
        self._held: frozenset[str] = frozenset()

    def bind(self, views: list[dict[str, object]], files: list[list[object]]) -> None:
        """Take what the host lists. Views of earlier inputs are forgotten."""
        for name in self._views:
            self._names.pop(name, None)
        self._views = {}
        for view in views:
            self._views.setdefault(view["name"], []).append(view)
        self._files = [tuple(each) for each in files]
        self._held = frozenset(variable for _, variable, _ in self._files)

    @property
    def any(self) -> bool:
        return bool(self._views or self._held)

    # -- programs ------------------------------------------------------------------------------

    def kept(self, tree: ast.Module) -> list[str]:
        """Leave out assignments that would put something else in the place of the data.

        One that is made from the data itself is the program's business: the rest relies on it. A
        view may be rebound, but not to a sample that the program has typed in.
        """
        dropped = []
        for statement in tree.body[:]:
            name = _target(statement)
            if name in self._held:
                away = not _mentions(statement, name)
            else:
                away = name in self._views and _is_typed_in(statement.value)
            if away:
                tree.body.remove(statement)
                dropped.append(name)
        return dropped

    def make_views(self, tree: ast.Module) -> None:
        """Make the views that a program reads before it makes names of its own of them."""
        left = {name for name in self._views if name not in self._names}
        for statement in tree.body:
            if not left:
                return
            named = [node for node in _walk(statement) if _isinstance(node, _Name)]
            read = {node.id for node in named if _isinstance(node.ctx, _Load)} & left
            for name in read:
                self._names[name] = self._made(name)
            left -= read | _bound_by(statement)

    def _made(self, name: str) -> object:
        views = self._views[name]
        if views[0]["key"] is None:
            return _view(views[0], self._injected[views[0]["of"]])
        return {view["key"]: _view(view, self._injected[view["of"]][view["key"]]) for view in views}

    # -- files ---------------------------------------------------------------------------------

    def opened(self, file: object, mode: str) -> object | None:
        """A given text as an open file, by its own name. None for a name that was not given."""
        wanted = _str(file)
        short = wanted.rpartition("/")[2]
        found = [each for each in self._files if each[0] == wanted] or [
            each for each in self._files if each[0].rpartition("/")[2] == short
        ]
        if len(found) != 1:
            return None
        _, variable, key = found[0]
        held = self._injected.get(variable)
        text = held if key is None else held.get(key)
        if not _isinstance(text, _str):
            return None
        return _BytesIO(text.encode("utf-8", "replace")) if "b" in mode else _StringIO(text)


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes. Written here: that of the library looks up names that a program can replace."""
    waiting = [node]
    while waiting:
        each = waiting.pop()
        yield each
        for field in each._fields:
            value = _getattr(each, field, None)
            for part in value if _isinstance(value, _list) else (value,):
                if _isinstance(part, _AST):
                    waiting.append(part)


def _bound_by(statement: ast.stmt) -> set[str]:
    """The names that a statement binds in any case, as far as can be seen at once."""
    if _isinstance(statement, _Defines):
        return {statement.name}
    if _isinstance(statement, (_Import, _ImportFrom)):
        return {each.asname or each.name for each in statement.names}
    name = _target(statement)
    return set() if name is None else {name}


def _target(statement: ast.stmt) -> str | None:
    if _isinstance(statement, _Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    elif _isinstance(statement, _AnnAssign):
        target = statement.target
    else:
        return None
    return target.id if _isinstance(target, _Name) else None


def _mentions(statement: ast.Assign | ast.AnnAssign, name: str) -> bool:
    value = statement.value
    return value is not None and any(
        _isinstance(node, _Name) and node.id == name for node in _walk(value)
    )


def _is_typed_in(value: ast.expr | None) -> bool:
    """Whether a value consists of constants and holds any: a copy of what was shown."""
    if value is None:
        return False
    if _isinstance(value, _Constant):
        return _isinstance(value.value, _str) and len(value.value) >= _SAMPLE_CHARS_LEAST
    nodes = [*_walk(value)]
    return (
        _isinstance(value, _CONTAINERS)
        and all(_isinstance(node, _LITERAL) for node in nodes)
        and any(_isinstance(node, _Constant) for node in nodes)
    )


def _view(view: dict[str, object], text: str) -> object:
    kind = view["kind"]
    text = text.removeprefix("\ufeff")
    if kind == "table":
        return _table(text, view["delimiter"], view["columns"])
    if kind == "json_lines":
        # Not `splitlines`: a JSON string may hold other line separators.
        return [_loads(line) for line in text.split("\n") if line.strip()]
    if kind == "json":
        return _loads(text)
    if kind == "numbers":
        return [_number(word) for word in _between(text) if word]
    return text.splitlines()


def _table(text: str, delimiter: str, columns: list[list[str]]) -> list[dict[str, object]]:
    names = [name for name, _ in columns]
    casts = [(name, _CASTS[kind]) for name, kind in columns if kind in _CASTS]
    rows = []
    before = _field_limit(_FIELD_CHARS_MAX)
    reader = _reader(_StringIO(text, newline=""), delimiter=delimiter)
    records = (record for record in reader if record)
    next(records, None)
    for record in records:
        row = _dict(zip(names, [cell.strip() for cell in record], strict=False))
        for name, cast in casts:
            cell = row[name]
            row[name] = cast(cell) if cell else None
        rows.append(row)
    _field_limit(before)
    return rows


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def _amount(text: str) -> float:
    return float("".join(text.translate(_NO_SIGNS).split()))


_NO_SIGNS = str.maketrans("", "", "$€£¥,")
_CASTS = {"int": int, "float": float, "amount": _amount}
