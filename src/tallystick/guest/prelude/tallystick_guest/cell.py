"""Runs one program in the session's namespace and says what came of it.

The namespace is a real `__main__` module, so classes pickle, dataclasses resolve and tracebacks
show the program's own lines. The last expression's value is kept by assigning it to a hidden name
in the same code object: compiling it apart would give top-level `await` two event loops.
"""

import ast
import asyncio
import builtins
import gc
import io
import keyword
import linecache
import os
import random
import sys
import traceback
import types
from collections.abc import Callable, Iterator

from tallystick_guest import (
    answer,
    describe,
    given,
    streams,
    text,
    threads,
    violations,
    wire,
)

_VALUE = "__tally_value__"
_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_COROUTINE = 0x80
_CodeRange = tuple[int | None, int | None, int | None, int | None]
_PLACE = ("lineno", "col_offset", "end_lineno", "end_col_offset")
_Expr, _Assign, _Name, _STORE = ast.Expr, ast.Assign, ast.Name, ast.Store()
_AugAssign = ast.AugAssign
_describe, _describe_line = describe.describe, describe.describe_line
_VALUE_CHARS_MAX = 65_536
_TRACEBACK_CHARS_MAX = 16_384
_BALLAST_BYTES = 1 << 20
_NAME_CHARS_MAX = 200
_OURS = __file__.rpartition("/tallystick_guest/")[0] + "/"  # where the build mounts this package

_compile, _eval, _exec_asyncio = compile, eval, asyncio.run
_TREE = ast.PyCF_ONLY_AST
_TracebackException = traceback.TracebackException
_repr, _str, _type = repr, str, type
_loads, _host_call = wire.loads, wire.host_call
_renew, _flush, _drain = streams.renew, streams.flush, threads.drain
_splitlines = str.splitlines
_collect = gc.collect
_line_cache = linecache.cache
_isinstance, _iskeyword = isinstance, keyword.iskeyword

_main = types.ModuleType("__main__")
_names = _main.__dict__
_injected: dict[str, object] = {}
_seen: dict[str, int] = {}
_programs: set[str] = set()
for _kind in (text.HostText, text.Lines, text.Match, text.Outputs):
    describe.add_type(_kind)
_answering = answer.Answering(_names, _injected)
_given = given.GivenData(_names, _injected)
_environ = os.environ
_ballast: bytearray | None = None


def _nothing_more() -> None:
    """Do nothing at the end of a program."""


_at_end: Callable[[], None] = _nothing_more


class _Input(io.TextIOWrapper):
    """Standard input, at its end."""

    name = "<stdin>"

    def __init__(self) -> None:
        super().__init__(io.BytesIO(b""), encoding="utf-8")

    def fileno(self) -> int:
        return 0


def call_at_end(function: Callable[[], None]) -> None:
    """Call this when a program has ended, before its result is made."""
    global _at_end
    _at_end = function


def settle() -> None:
    """Leave the image as every session shall find it."""
    global _ballast
    sys.modules["__main__"] = _main
    _names["__builtins__"] = builtins
    builtins.HostError = wire.HostError
    builtins.SandboxViolation = wire.SandboxViolation
    builtins.exit = builtins.quit = sys.exit
    sys.stdin = sys.__stdin__ = _Input()
    _ballast = bytearray(_BALLAST_BYTES)
    gc.collect()
    gc.freeze()


def boot(payload: bytes) -> dict[str, object]:
    """Begin a session: fresh randomness from the session's seed, then its names."""
    random.seed()
    sys.modules.pop("entry", None)  # The build still needed to find it by name.
    sys.argv = ["program"]
    bind(payload)
    return {"windows": streams.windows(), "python": sys.version.split()[0]}


def bind(payload: bytes) -> dict[str, object]:
    """Give the namespace the host functions and texts that the host lists."""
    names = _loads(str(payload, "utf-8"))
    for name in names.get("removed", ()):
        _injected.pop(name, None)
        _names.pop(name, None)
    for function in names.get("functions", ()):
        _place(function["name"], function.get("doc", ""))
    _injected.update(names.get("values", {}))
    for entry in names.get("texts", ()):
        held = text.HostText(entry["id"], entry["bytes"], entry["key"] or entry["name"])
        if entry["key"] is None:
            _injected[entry["name"]] = held
        else:
            _injected.setdefault(entry["name"], text.Corpus())[entry["key"]] = held
    if names.get("answering"):
        _injected.update(_answering.injected())
    _given.bind(names.get("views", ()), names.get("files", ()))
    violations.give(_given.opened)
    _names.update(_injected)
    return {}


def _place(name: str, doc: str) -> None:
    """Bind a host function: a name of its own, or an attribute of its group."""
    if name in _OUTPUTS:
        _injected.setdefault("outputs", _outputs)
        return
    group, dot, short = name.partition(".")
    if not dot:
        _injected[name] = _proxy(name, doc)
        return
    held = _injected.get(group)
    if not _isinstance(held, _Group):
        _injected[group] = held = _Group()
    held.__dict__[short] = _proxy(name, doc)


class _Group(types.SimpleNamespace):
    """Host functions under one name."""

    def __repr__(self) -> str:
        return f"<host functions: {', '.join(sorted(self.__dict__))}>"


_OUTPUTS = frozenset({"outputs.count", "outputs.get"})
_outputs = text.Outputs()


_ONE = "rlm_query"
_BATCHED = frozenset({"llm_query_batched", "rlm_query_batched", _ONE})


def _batch(reply: dict[str, list], name: str) -> object:
    """The answers of a batch, with an error that is not raised in the place of one that failed."""
    answers = reply["answers"]
    for item, kind, message in reply["errors"]:
        answers[item] = wire.HostError(message, kind)
    if reply.get("note"):
        sys.__stderr__.write(f"{name}: {reply['note']}\n")
    if name != _ONE:
        return answers
    if _isinstance(answers[0], wire.HostError):
        raise answers[0]
    return answers[0]


def _proxy(name: str, doc: str) -> object:
    def function(*args: object, **kwargs: object) -> object:
        answer = _host_call(name, args, kwargs)
        return _batch(answer, name) if name in _BATCHED else answer

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    function.__module__ = "host"
    return function


def run(payload: bytes) -> dict[str, object]:
    """Run one program. Everything it can do to itself ends here as a result."""
    header, _, source_bytes = payload.partition(b"\n")
    name, _, env = header.partition(b"\0")
    source = str(source_bytes, "utf-8-sig")
    _renew()
    if _environ or env:
        _environ.clear()
        _environ.update(_loads(str(env, "utf-8")) if env else {})
    _answering.renew()
    # What is empty is left out: a short program is no longer than its result.
    restored = _restore_names()
    result: dict[str, object] = {"restored": restored} if restored else {}
    try:
        result["value"] = _evaluate(source, _remember(str(name, "utf-8"), source), result)
        result["ok"] = True
    except BaseException as error:
        result.update(failure_of(error))
    for function in (_drain, _at_end):
        try:
            function()
        except BaseException as error:
            # An error of the program itself is told first: threads are often stuck because of it.
            result.update(failure_of(error) if result["ok"] else {})
    try:
        given = _answering.given()
        if given is not None:
            result["answer"] = given
    except BaseException as error:
        result.update(failure_of(error))
    _names.pop(_VALUE, None)
    _flush()
    return result


def _restore_names() -> list[str]:
    """Put injected names back that a program has rebound or deleted, and say which."""
    lost = [name for name, value in _injected.items() if _names.get(name) is not value]
    for name in lost:
        _names[name] = _injected[name]
    return lost


def _remember(name: str, source: str) -> str:
    """Keep the source for tracebacks under a name that no earlier program has."""
    _seen[name] = count = _seen.get(name, 0) + 1
    unique = name if count == 1 else f"{name}#{count}"
    _programs.add(unique)
    linecache.cache = _line_cache
    _line_cache[unique] = (len(source), None, _splitlines(source, True), unique)
    return unique


def _evaluate(source: str, name: str, result: dict[str, object]) -> str | None:
    if _is_expression(source) and not _given.any:
        try:
            code = _compile(source, name, "eval", flags=_FLAGS, dont_inherit=True)
        except SyntaxError:
            pass  # It is something else, or wrong: the whole way says which.
        else:
            value = _eval(code, _names)
            return _shown(_exec_asyncio(value) if code.co_flags & _COROUTINE else value)
    tree = _compile(source, name, "exec", flags=_TREE, dont_inherit=True)
    if _given.any:
        kept = _given.kept(tree)
        if kept:
            result["kept"] = kept
        _given.make_views(tree)
    body = tree.body
    named = _named_last(body) if _answering.bound else None
    if body and _type(body[-1]) is _Expr:
        last = body[-1]
        place = {name: getattr(last, name) for name in _PLACE}
        body[-1] = _Assign([_Name(_VALUE, _STORE, **place)], last.value, **place)
    code = _compile(tree, name, "exec", flags=_FLAGS, dont_inherit=True)
    outcome = _eval(code, _names)
    if code.co_flags & _COROUTINE:
        _exec_asyncio(outcome)
    if named is not None and named in _names:
        result["assigned"] = [named, _describe(_names[named])]
    return _shown(_names.get(_VALUE))


def _named_last(body: list[ast.stmt]) -> str | None:
    """The name that the last line assigns to: often what the program was for."""
    last = body[-1] if body else None
    if _isinstance(last, _Assign) and len(last.targets) == 1:
        target = last.targets[0]
    elif _isinstance(last, _AugAssign):
        target = last.target
    else:
        return None
    return target.id if _isinstance(target, _Name) else None


def _is_expression(source: str) -> bool:
    """Whether a program looks like one expression: those need no tree to find their last line."""
    if not source or "\n" in source or "=" in source or "#" in source or ";" in source:
        return False
    return not _iskeyword(source.lstrip().partition(" ")[0])


def _shown(value: object) -> str | None:
    if value is None:
        return None
    shown = _repr(value)
    if len(shown) > _VALUE_CHARS_MAX:
        shown = f"{shown[:_VALUE_CHARS_MAX]}... ({len(shown) - _VALUE_CHARS_MAX:,} more characters)"
    return shown


def failure_of(error: BaseException) -> dict[str, object]:
    """Describe what a program raised: kind, message, its own part of the traceback, exit code."""
    global _ballast
    if _isinstance(error, MemoryError):
        # Describing the failure needs memory too.
        _ballast = None
        _collect()
    if _isinstance(error, SystemExit):
        return _exit_of(error)
    try:
        message = _str(error) + text.hint_for(error)
    except BaseException:
        message = "<the error's own text could not be made>"
    try:
        shown = _traceback_of(error)
    except BaseException:
        shown = f"{_type(error).__name__}: {message}"
    failure: dict[str, object] = {
        "ok": False,
        "kind": str(_type(error).__name__)[:_NAME_CHARS_MAX],
        "message": _cut(message),
        "traceback": _cut(shown),
        "exit": 1,
    }
    try:
        line = _line_of(error)
    except BaseException:
        line = ""
    if line:
        failure["line"] = _cut(line)
    if _isinstance(error, wire.SandboxViolation):
        failure["capability"] = str(error.capability)[:_NAME_CHARS_MAX]
    return failure


def _line_of(error: BaseException) -> str:
    """The line of the program where it failed, and its values; "" if nothing is known of them."""
    trace, last = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename in _programs:
            last = trace
        trace = trace.tb_next
    if last is None:
        return ""
    frame, code = last.tb_frame, last.tb_frame.f_code
    lines = _line_cache[code.co_filename][2]
    if not 0 < last.tb_lineno <= len(lines):
        return ""
    line = lines[last.tb_lineno - 1]
    place = _nth(code.co_positions(), last.tb_lasti // 2)
    part = ""
    if place is not None and place[0] == place[1] == last.tb_lineno and place[3] is not None:
        part = str(line.encode()[place[2] : place[3]], "utf-8", "replace")
    return _describe_line(line, part, frame.f_locals, frame.f_globals)


def _nth(items: Iterator[_CodeRange], number: int) -> _CodeRange | None:
    for place, each in enumerate(items):
        if place == number:
            return each
    return None


def _traceback_of(error: BaseException) -> str:
    """The traceback from the program's first line on, without the frames of this package."""
    whole = _TracebackException.from_exception(error)
    frames = whole.stack
    while frames and frames[0].filename not in _programs:
        del frames[0]
    if not frames:
        return "".join(whole.format_exception_only())
    left, seen = [whole], set()
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        each.stack[:] = [frame for frame in each.stack if not frame.filename.startswith(_OURS)]
        left += [each.__cause__, each.__context__, *(each.exceptions or ())]
    return "".join(whole.format())


def _exit_of(error: SystemExit) -> dict[str, object]:
    code = error.code
    if code is None or code == 0:
        return {"ok": True, "value": None, "exit": 0}
    if not _isinstance(code, int):
        sys.__stderr__.write(f"{code}\n")
        code = 1
    message = f"the program ended itself with exit code {code & 0xFF}"
    return {
        "ok": False,
        "kind": "SystemExit",
        "message": message,
        "traceback": "",
        "exit": code & 0xFF,
    }


def _cut(shown: str) -> str:
    if len(shown) <= _TRACEBACK_CHARS_MAX:
        return shown
    half = _TRACEBACK_CHARS_MAX // 2
    return f"{shown[:half]}\n... {len(shown) - 2 * half:,} characters left out ...\n{shown[-half:]}"
