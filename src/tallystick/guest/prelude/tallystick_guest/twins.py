"""Rewrite functions as generators, so that a thread can be paused where it waits.

The guest has one stack, so a function that has been called cannot be left and entered again. A
generator can. The *twin* of a function does the same work as a generator: each call in it may yield
to the scheduler, and `with` is written out because it calls `__enter__` and `__exit__`.

A twin is made from source: of a program and of a wheel when a thread first calls the function, of
the standard library while the image is built (its source is not in the image). A function without
source, a generator and a coroutine have no twin and are called as they are. A function that calls
nothing that could wait has none either, so computing costs what it costs elsewhere.

Bytecode was rejected as the thing to rewrite: it needs no source, but its calls, exception tables
and inline caches change with every version of Python.
"""

import abc
import ast
import builtins
import contextvars
import copy
import functools
import itertools
import linecache
import sys
import types

_FunctionType, _MethodType, _GeneratorType = (
    types.FunctionType,
    types.MethodType,
    types.GeneratorType,
)
_BuiltinType, _CellType, _Partial = types.BuiltinFunctionType, types.CellType, functools.partial
_type, _id, _isinstance, _len, _getattr = type, id, isinstance, len, getattr
_compile, _object_new, _next = compile, object.__new__, next
_Context, _ABCMeta = contextvars.Context, abc.ABCMeta
_getlines = linecache.getlines
_Load, _Store = ast.Load, ast.Store
_GENERATOR = 0x20
_ASYNC = 0x80 | 0x200  # coroutine, asynchronous generator
_FUNCTIONS = (ast.FunctionDef, ast.Lambda)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)

# Methods of built-in types that cannot wait and are too common to look up at each call. A program
# that defines a method of the same name has it looked up.
_QUICK_METHODS = frozenset(
    """append appendleft capitalize casefold count decode difference discard encode endswith extend
    find format group groups index insert intersection isalnum isalpha isdigit islower isspace
    issubset isupper items keys lower lstrip most_common partition popleft remove replace reverse
    rfind rpartition rstrip setdefault sort split splitlines startswith strip title total_seconds
    translate union upper values zfill""".split()
)
# Built-in callables that use up a generator at once: it can be a list for them.
_CONSUMERS = frozenset(["dict", "frozenset", "list", "max", "min", "set", "sorted", "sum", "tuple"])

# Built-in functions that take or make an iterator which may wait.
_REPLACED = {"iter": ".iter", "next": ".next"}

SPIN = object()
"""What a twin yields after many turns of a `while` loop: it waits for nothing."""
_SLICE = 1_000
_tick = itertools.cycle([False] * (_SLICE - 1) + [True]).__next__


class _Stopped:
    """A `StopIteration` on its way to the caller. A generator cannot raise it."""

    __slots__ = ("error",)

    def __init__(self, error: StopIteration) -> None:
        self.error = error


def value_of(result: object) -> object:
    """Return what a twin returned, or raise the `StopIteration` that it could not raise."""
    if _type(result) is _Stopped:
        raise result.error
    return result


class _Entry:
    """The twin of one code object: None if it has no twin, a code object, or a function of ours."""

    __slots__ = ("cells", "code", "is_generator", "of", "primitive")

    def __init__(
        self, of: object, code: object = None, cells: tuple = (), primitive: object = None
    ) -> None:
        self.of = of  # Held, so that its id is not given to another code object.
        self.code = code
        self.cells = cells
        self.primitive = primitive
        self.is_generator = False


_entries: dict[int, _Entry] = {}
_stored: dict[tuple[str, int, str], tuple[object, list]] = {}
_sources: dict[str, "_Source"] = {}
_twin_codes: set[int] = set()


def is_paused(result: object) -> bool:
    """Tell whether a call gave the generator of a twin, which has yet to be run."""
    return _type(result) is _GeneratorType and _id(result.gi_code) in _twin_codes


def twin(function: object) -> object:
    """Return what to call in the place of `function` from within a twin; itself if it has none."""
    kind = _type(function)
    if kind is _BuiltinType:
        if _type(function.__self__) is _Context and function.__name__ == "run":
            return _Partial(_run_in_context, function.__self__)
        return function
    if kind is _MethodType:
        found = twin(function.__func__)
        return function if found is function.__func__ else _MethodType(found, function.__self__)
    if kind is _FunctionType:
        entry = _entries.get(_id(function.__code__)) or _make(function)
        if entry.code is None:
            return entry.primitive or function
        bound = _bind(function, entry)
        return _Partial(_start_generator, bound) if entry.is_generator else bound
    if kind is _Partial:
        found = twin(function.func)
        if found is function.func:
            return function
        return _Partial(found, *function.args, **function.keywords)
    if kind is type or kind is _ABCMeta:
        return _constructor(function)
    call = _getattr(kind, "__call__", None)
    if _type(call) is _FunctionType:
        found = twin(call)
        return function if found is call else _MethodType(found, function)
    return function


def _constructor(cls: type) -> object:
    """Return a twin of calling a class if its `__init__` has one."""
    init = cls.__init__
    if _type(init) is not _FunctionType or cls.__new__ is not _object_new:
        return cls
    return cls if twin(init) is init else _Partial(_construct, cls)


def _construct(cls: type, /, *args: object, **kwargs: object) -> object:
    made = _object_new(cls)
    result = twin(cls.__init__)(made, *args, **kwargs)
    if is_paused(result):
        value_of((yield from result))
    return made


def _bind(function: types.FunctionType, entry: _Entry) -> types.FunctionType:
    cells = entry.cells
    closure = function.__closure__
    if closure is not None:
        cells = tuple([closure[each] if _type(each) is int else each for each in cells])
    made = _FunctionType(
        entry.code, function.__globals__, function.__name__, function.__defaults__, cells
    )
    if function.__kwdefaults__ is not None:
        made.__kwdefaults__ = function.__kwdefaults__
    return made


def set_primitive(function: types.FunctionType, generator: types.FunctionType) -> None:
    """Make a generator function of ours the twin of `function`."""
    code = function.__code__
    _entries[_id(code)] = _Entry(code, primitive=generator)
    _twin_codes.add(_id(generator.__code__))


# -- what else is called -----------------------------------------------------------------------


def _run_in_context(
    context: contextvars.Context, function: object, /, *args: object, **kwargs: object
) -> object:
    """Do what `Context.run` does, and leave the context whenever the thread is paused."""
    result = context.run(twin(function), *args, **kwargs)
    if not is_paused(result):
        return result
    while True:
        try:
            given = context.run(result.send, None)
        except StopIteration as end:
            return end.value
        yield given


class _Item:
    """A value that a generator yields, in between what it waits for."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


_END = object()


class _Iterator:
    """An iterator whose next item can be waited for, by a twin or on the stack."""

    def __iter__(self) -> "_Iterator":
        return self

    def __next__(self) -> object:
        return self.finish(self.paused_next())

    def finish(self, work: object) -> object:
        """Run a generator of this class to its end, waiting on the stack."""
        while True:
            try:
                given = work.send(None)
            except StopIteration as end:
                return value_of(end.value)
            if given is not SPIN:
                block(given)

    def paused_next(self) -> object:
        """Return the next item, or a `StopIteration` that is on its way."""
        raise NotImplementedError


class _CallIterator(_Iterator):
    """`iter(function, sentinel)`."""

    def __init__(self, function: object, sentinel: object) -> None:
        if not callable(function):
            raise TypeError("iter(v, w): v must be callable")
        self._function, self._sentinel = function, sentinel

    def paused_next(self) -> object:
        if self._function is None:
            return _Stopped(StopIteration())
        result = twin(self._function)()
        if is_paused(result):
            result = yield from result
        if _type(result) is _Stopped or result == self._sentinel:
            self._function = None
            return _Stopped(StopIteration())
        return result


class _Generator(_Iterator):
    """A generator of a program. It has the methods of one; `inspect` does not take it for one."""

    def __init__(self, work: types.GeneratorType) -> None:
        self._work = work
        self.__name__, self.__qualname__ = work.__name__, work.__qualname__

    gi_frame = property(lambda self: self._work.gi_frame)
    gi_code = property(lambda self: self._work.gi_code)
    gi_running = property(lambda self: self._work.gi_running)

    def paused_next(self) -> object:
        return self._advance(self._work.send, None)

    def _advance(self, step: object, given: object) -> object:
        while True:
            try:
                got = step(given)
            except StopIteration as end:
                return _Stopped(end)
            if _type(got) is _Item:
                return got.value
            yield got
            step, given = self._work.send, None

    def send(self, value: object) -> object:
        return self.finish(self._advance(self._work.send, value))

    def throw(self, error: object, value: object = None, trace: object = None) -> object:
        if _isinstance(error, type):
            error = error() if value is None else value
        return self.finish(self._advance(self._work.throw, error))

    def close(self) -> object:
        return self._work.close()


def _paused_send(self: _Generator, value: object) -> object:
    return (yield from self._advance(self._work.send, value))


def _start_generator(function: object, /, *args: object, **kwargs: object) -> _Generator:
    return _Generator(function(*args, **kwargs))


def _delegate(iterable: object) -> object:
    """Do what `yield from` does in a generator that is a twin."""
    if _type(iterable) is _Generator:
        return (yield from iterable._work)
    iterator, step, given = iter(iterable), _next, None
    while True:
        try:
            if _isinstance(iterator, _Iterator):
                item = value_of((yield from iterator.paused_next()))
            else:
                item = step(iterator) if step is _next else step(given)
        except StopIteration as end:
            return end.value
        try:
            given = yield _Item(item)
            step = _next if given is None else iterator.send
        except GeneratorExit:
            if hasattr(iterator, "close"):
                iterator.close()
            raise
        except BaseException as error:
            if not hasattr(iterator, "throw"):
                raise
            step, given = iterator.throw, error


class _Steps:
    """Gives a `for` loop a step to run for each item, until the iterator has ended."""

    __slots__ = ("_iterator", "_running")

    def __init__(self, iterator: _Iterator) -> None:
        self._iterator = iterator
        self._running = True

    def __iter__(self) -> "_Steps":
        return self

    def __next__(self) -> "_Steps":
        if self._running:
            return self
        raise StopIteration

    def run(self) -> object:
        result = yield from self._iterator.paused_next()
        if _type(result) is _Stopped:
            self._running = False
            return _END
        return result


def _steps_of(iterable: object) -> object:
    return _Steps(iterable) if _isinstance(iterable, _Iterator) else iterable


def _iter(*args: object) -> object:
    return _CallIterator(*args) if _len(args) == 2 else iter(*args)


def _paused_next(iterator: object, *default: object) -> object:
    """Do what `next` does."""
    if not _isinstance(iterator, _Iterator):
        try:
            return _next(iterator, *default)
        except StopIteration as end:
            return _Stopped(end)
    result = yield from iterator.paused_next()
    return default[0] if default and _type(result) is _Stopped else result


def _wait_on_stack(wait: object) -> None:
    raise RuntimeError("nothing can wait before the threads are installed")


block = _wait_on_stack


# -- finding the source ------------------------------------------------------------------------


class _Source:
    """The functions of one file, by name and first line."""

    def __init__(self, tree: ast.Module) -> None:
        self.names: set[str] = set()
        self._found: dict[tuple[str, int], list] = {}
        waiting: list = [(tree, None)]
        while waiting:
            node, owner = waiting.pop()
            if _isinstance(node, _FUNCTIONS):
                name = _name_of(node)
                self.names.add(name)
                lines = [each.lineno for each in _getattr(node, "decorator_list", ())]
                first = min([node.lineno, *lines])
                self._found.setdefault((name, first), []).append((node, owner))
            if _isinstance(node, ast.ClassDef):
                owner = node.name
            waiting += [(child, owner) for child in ast.iter_child_nodes(node)]

    def find(self, code: types.CodeType) -> tuple[ast.AST, str | None] | None:
        """Return the definition of a code object and the class that it stands in."""
        found = self._found.get((code.co_name, code.co_firstlineno), ())
        fitting = [each for each in found if _fits(code, each[0])]
        return fitting[0] if _len(fitting) == 1 else None

    def all(self) -> list:
        return [(key, *each) for key, found in self._found.items() for each in found]


def _name_of(node: ast.AST) -> str:
    return "<lambda>" if _isinstance(node, ast.Lambda) else node.name


def _fits(code: types.CodeType, node: ast.AST) -> bool:
    """Tell two lambdas of one line apart: by their arguments and by where their code stands."""
    given = node.args
    names = [each.arg for each in [*given.posonlyargs, *given.args, *given.kwonlyargs]]
    if names != list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]):
        return False
    if not _isinstance(node, ast.Lambda):
        return True
    body = node.body
    whole = (body.lineno, body.end_lineno, body.col_offset, body.end_col_offset)
    return whole in code.co_positions()


def _source_of(function: types.FunctionType) -> _Source | None:
    name = function.__code__.co_filename
    if name not in _sources:
        try:
            lines = _getlines(name, function.__globals__)
            tree = ast.parse("".join(lines)) if lines else None
        except Exception:
            tree = None
        _sources[name] = _Source(tree) if tree is not None else None
    return _sources[name]


# -- making a twin -----------------------------------------------------------------------------


def _make(function: types.FunctionType) -> _Entry:
    code = function.__code__
    # Until it is known: a function that calls itself and nothing else need not be paused.
    entry = _entries[_id(code)] = _Entry(code)
    if code.co_flags & _ASYNC:
        return entry
    entry.is_generator = bool(code.co_flags & _GENERATOR)
    try:
        stored = _stored.get((code.co_filename, code.co_firstlineno, code.co_name))
        if stored is not None:
            made, quick = stored
            if not all(_is_quick(function, name) for name in quick):
                _finish(entry, made)
            return entry
        source = _source_of(function)
        found = source.find(code) if source is not None else None
        if found is None:
            return entry
        made, names = _rewrite(*found, code.co_filename, code.co_freevars, source.names)
        if made is not None and not all(_is_quick(function, name) for name in names):
            _finish(entry, made)
    except (SyntaxError, ValueError, TypeError, RecursionError, AttributeError):
        entry.code = None
    return entry


def _finish(entry: _Entry, made: types.CodeType) -> None:
    code = entry.of
    if made.co_varnames[: made.co_argcount] != code.co_varnames[: code.co_argcount]:
        return
    entry.cells = tuple(
        _CELLS[name] if name in _CELLS else code.co_freevars.index(name)
        for name in made.co_freevars
    )
    entry.code = made.replace(co_qualname=code.co_qualname, co_name=code.co_name)
    if not entry.is_generator:
        _twin_codes.add(_id(entry.code))


def _is_quick(function: types.FunctionType, name: str | None) -> bool:
    """Tell whether calling this global name cannot wait; None stands for any other call."""
    if name is None:
        return False
    code = function.__code__
    if name in code.co_freevars or name in code.co_varnames or name in code.co_cellvars:
        return False
    names = function.__globals__
    if name not in names:
        return hasattr(builtins, name)
    found = names[name]
    return twin(found) is found


def _rewrite(
    node: ast.AST, owner: str | None, file: str, free: tuple, defined: set[str] | None
) -> tuple[types.CodeType | None, list]:
    """Compile the twin of a definition; also return the names it calls, None for other calls."""
    node = copy.deepcopy(node)
    is_generator = _yields(node)
    if _isinstance(node, ast.Lambda):
        body: list = [ast.copy_location(ast.Return(node.body), node.body)]
    else:
        body = node.body
    rewriter = _Rewriter(defined)
    body = rewriter.rewrite(body)
    if not rewriter.calls:
        return None, []
    if not is_generator:
        # A function whose only yields stand in comprehensions must be a generator as well.
        never = ast.If(ast.Constant(False), [ast.Expr(ast.Yield(None))], [])
        body = [never, ast.Try(body, [_stop_handler()], [], [])]
    arguments = node.args
    arguments.defaults = []
    arguments.kw_defaults = [None] * _len(arguments.kwonlyargs)
    for each in ast.walk(arguments):
        if _isinstance(each, ast.arg):
            each.annotation = None
    made = ast.FunctionDef(".twin function", arguments, body, [], None, None, [])
    ast.copy_location(made, node)
    inner: list = [made]
    if owner is not None:  # Private names are spelled with the name of their class.
        inner = [ast.ClassDef(owner, [], [], inner, [], [])]
    outer = ast.FunctionDef(
        ".outer",
        ast.arguments([], [ast.arg(name) for name in (*free, *_CELLS)], None, [], [], None, []),
        inner,
        [],
        None,
        None,
        [],
    )
    tree = ast.fix_missing_locations(ast.Module([ast.copy_location(outer, node)], []))
    code = _find_code(_compile(tree, file, "exec", dont_inherit=True))
    if code is not None:
        first = min([node.lineno, *(each.lineno for each in _getattr(node, "decorator_list", ()))])
        code = code.replace(co_name=_name_of(node), co_firstlineno=first)
    return code, rewriter.calls


def _find_code(code: types.CodeType) -> types.CodeType | None:
    for each in code.co_consts:
        if _isinstance(each, types.CodeType):
            found = each if each.co_name == ".twin function" else _find_code(each)
            if found is not None:
                return found
    return None


def _yields(node: ast.AST) -> bool:
    """Tell whether a definition is that of a generator."""
    waiting = [*ast.iter_child_nodes(node)]
    while waiting:
        each = waiting.pop()
        if _isinstance(each, (ast.Yield, ast.YieldFrom)):
            return True
        if not _isinstance(each, _SCOPES):
            waiting += ast.iter_child_nodes(each)
    return False


def _name(name: str, store: bool = False) -> ast.Name:
    return ast.Name(name, _Store() if store else _Load())


def _stop_handler() -> ast.ExceptHandler:
    """Return `StopIteration` instead of raising it, which a generator cannot do."""
    stopped = ast.Call(_name(".Stopped"), [_name(".stop")], [])
    return ast.ExceptHandler(_name(".StopIteration"), ".stop", [ast.Return(stopped)])


class _Rewritten(ast.Call):
    """A call that stands for a comprehension and has been visited."""


class _Rewriter(ast.NodeTransformer):
    """Rewrites the body of one function."""

    def __init__(
        self,
        defined: set[str] | None,
        numbers: object = None,
    ) -> None:
        # None for a module of the library, whose loops end without being interrupted.
        self._in_library = defined is None
        self._defined = defined or set()
        self._numbers = numbers or itertools.count()
        self._hoisted: list = []
        self.calls: list = []

    def rewrite(self, body: list) -> list:
        tree = ast.Module(body, [])
        self.generic_visit(tree)
        return [*self._hoisted, *tree.body]

    def _leave(self, node: ast.AST) -> ast.AST:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = visit_ClassDef = _leave
    visit_GeneratorExp = _leave

    def visit__Rewritten(self, node: ast.AST) -> ast.AST:
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        function = node.func
        if _isinstance(function, ast.Name) and function.id in _CONSUMERS and node.args:
            first = node.args[0]
            if _isinstance(first, ast.GeneratorExp):
                listed = ast.ListComp(copy.deepcopy(first.elt), copy.deepcopy(first.generators))
                listed = self._comprehension(ast.copy_location(listed, first))
                if _isinstance(listed, _Rewritten):
                    node.args[0] = listed
        self.generic_visit(node)
        if _isinstance(function, ast.Name) and function.id in _REPLACED:
            node.func = ast.copy_location(_name(_REPLACED[function.id]), function)
            if function.id == "iter":
                self.calls += [None] * (_len(node.args) == 2)
                return node
        elif self._is_quick(function):
            return node
        plain = _isinstance(function, ast.Name) and function.id not in _REPLACED
        self.calls.append(function.id if plain else None)
        call = ast.Call(ast.Call(_name(".twin"), [node.func], []), node.args, node.keywords)
        return ast.copy_location(_paused(call), node)

    def _is_quick(self, function: ast.AST) -> bool:
        if _isinstance(function, ast.Attribute):
            return function.attr in _QUICK_METHODS and function.attr not in self._defined
        if not _isinstance(function, ast.Name):
            return False
        return function.id not in self._defined and hasattr(builtins, function.id)

    def visit_Yield(self, node: ast.Yield) -> ast.AST:
        self.generic_visit(node)
        value = node.value or ast.Constant(None)
        node.value = ast.Call(_name(".Item"), [value], [])
        return node

    def visit_YieldFrom(self, node: ast.YieldFrom) -> ast.AST:
        self.generic_visit(node)
        self.calls.append(None)
        node.value = ast.Call(_name(".delegate"), [node.value], [])
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        called = node.iter.func if _isinstance(node.iter, ast.Call) else None
        plain = called is not None and self._is_quick(called)
        self.generic_visit(node)
        if plain and _getattr(called, "id", None) not in _REPLACED:
            return node
        item = f".item {next(self._numbers)}"
        run = ast.Call(ast.Attribute(_name(item), "run", _Load()), [], [])
        is_step = ast.Compare(
            ast.Call(_name(".type"), [_name(item)], []), [ast.Is()], [_name(".Steps")]
        )
        is_end = ast.Compare(_name(item), [ast.Is()], [_name(".END")])
        step = ast.If(
            is_step,
            [
                ast.Assign([_name(item, store=True)], ast.YieldFrom(run)),
                ast.If(is_end, [ast.Continue()], []),
            ],
            [],
        )
        begin = [step, ast.Assign([node.target], _name(item))]
        node.body = [*(ast.copy_location(each, node) for each in begin), *node.body]
        node.target = _name(item, store=True)
        node.iter = ast.copy_location(ast.Call(_name(".steps_of"), [node.iter], []), node.iter)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        self.generic_visit(node)
        if self._in_library:
            return node
        self.calls.append(None)
        turn = ast.If(ast.Call(_name(".tick"), [], []), [ast.Expr(ast.Yield(_name(".SPIN")))], [])
        node.body.insert(0, ast.copy_location(turn, node))
        return node

    def visit_With(self, node: ast.With) -> list:
        self.generic_visit(node)
        self.calls.append(None)
        body = node.body
        for item in reversed(node.items):
            body = [ast.copy_location(each, node) for each in self._with(item, body)]
        return body

    def _with(self, item: ast.withitem, body: list) -> list:
        """Write out a `with` as the language reference does."""
        number = next(self._numbers)
        enter, leave, fine = f".enter {number}", f".exit {number}", f".fine {number}"
        names = ast.Tuple([_name(enter, store=True), _name(leave, store=True)], _Store())
        entered = _paused(ast.Call(_name(enter), [], []))
        value = f".value {number}"
        if item.optional_vars is not None:
            body = [ast.Assign([item.optional_vars], _name(value)), *body]
        raised = ast.Starred(ast.Call(_name(".exc_info"), [], []), _Load())
        swallowed = _paused(ast.Call(_name(leave), [raised], []))
        nothing = [ast.Constant(None) for _ in range(3)]
        left = _paused(ast.Call(_name(leave), nothing, []))
        handler = ast.ExceptHandler(
            _name(".BaseException"),
            None,
            [
                ast.Assign([_name(fine, store=True)], ast.Constant(False)),
                ast.If(ast.UnaryOp(ast.Not(), swallowed), [ast.Raise(None, None)], []),
            ],
        )
        return [
            ast.Assign([names], ast.Call(_name(".manager"), [item.context_expr], [])),
            ast.Assign([_name(value, store=True)], entered),
            ast.Assign([_name(fine, store=True)], ast.Constant(True)),
            ast.Try(
                [ast.Try(body, [handler], [], [])],
                [],
                [],
                [ast.If(_name(fine), [ast.Expr(left)], [])],
            ),
        ]

    def _comprehension(self, node: ast.AST) -> ast.AST:
        """Write out a comprehension as a loop in a function, if something in it may wait."""
        if any(each.is_async for each in node.generators) or any(
            _isinstance(each, (ast.NamedExpr, ast.Await)) for each in ast.walk(node)
        ):
            return node
        before = _len(self.calls)
        inner = _Rewriter(None if self._in_library else self._defined, self._numbers)
        rewritten = copy.deepcopy(node)
        rewritten.generators[0].iter = _name(".0")
        result = _name(".result")
        if _isinstance(node, ast.DictComp):
            made: ast.AST = ast.Dict([], [])
            method, values = "__setitem__", [rewritten.key, rewritten.value]
        elif _isinstance(node, ast.SetComp):
            made, method, values = ast.Call(_name(".set"), [], []), "add", [rewritten.elt]
        else:
            made, method, values = ast.List([], _Load()), "append", [rewritten.elt]
        values = [inner.visit(each) for each in values]
        body: list = [ast.Expr(ast.Call(ast.Attribute(result, method, _Load()), values, []))]
        for each in reversed(rewritten.generators):
            for condition in reversed(each.ifs):
                body = [ast.If(inner.visit(condition), body, [])]
            loop = ast.copy_location(ast.For(each.target, each.iter, [], [], None), node)
            loop = inner.visit(loop)
            loop.body += body
            body = [loop]
        first = self.visit(copy.deepcopy(node.generators[0].iter))
        if not inner.calls and _len(self.calls) == before:
            return node
        self.calls += inner.calls
        name = f".comprehension {next(self._numbers)}"
        never = ast.If(ast.Constant(False), [ast.Expr(ast.Yield(None))], [])
        begin = ast.Assign([_name(".result", store=True)], made)
        arguments = ast.arguments([], [ast.arg(".0")], None, [], [], None, [])
        work = ast.Try([begin, *body, ast.Return(_name(".result"))], [_stop_handler()], [], [])
        whole = [*inner._hoisted, never, work]
        function = ast.FunctionDef(name, arguments, whole, [], None, None, [])
        self._hoisted.append(ast.copy_location(function, node))
        run = ast.YieldFrom(ast.Call(_name(name), [first], []))
        return ast.copy_location(_Rewritten(_name(".value_of"), [run], []), node)

    visit_ListComp = visit_SetComp = visit_DictComp = _comprehension


def _paused(call: ast.Call) -> ast.AST:
    """Write an expression that calls, and runs what it gets if that is the generator of a twin."""
    kept = ast.NamedExpr(_name(".got", store=True), call)
    is_generator = ast.Compare(
        ast.Call(_name(".type"), [kept], []), [ast.Is()], [_name(".Generator")]
    )
    code = ast.Attribute(_name(".got"), "gi_code", _Load())
    is_ours = ast.Compare(ast.Call(_name(".id"), [code], []), [ast.In()], [_name(".twin codes")])
    run = ast.Call(_name(".value_of"), [ast.YieldFrom(_name(".got"))], [])
    return ast.IfExp(ast.BoolOp(ast.And(), [is_generator, is_ours]), run, _name(".got"))


def _manager(manager: object) -> tuple[object, object]:
    """Return what enters and leaves a context manager, or raise as `with` does."""
    kind = _type(manager)
    try:
        enter, leave = kind.__enter__, kind.__exit__
    except AttributeError:
        raise TypeError(
            f"'{kind.__name__}' object does not support the context manager protocol"
        ) from None
    return twin(enter.__get__(manager, kind)), twin(leave.__get__(manager, kind))


_CELLS = {
    name: _CellType(value)
    for name, value in {
        ".twin": twin,
        ".twin codes": _twin_codes,
        ".Generator": _GeneratorType,
        ".type": type,
        ".id": id,
        ".value_of": value_of,
        ".StopIteration": StopIteration,
        ".Stopped": _Stopped,
        ".BaseException": BaseException,
        ".exc_info": sys.exc_info,
        ".manager": _manager,
        ".set": set,
        ".Item": _Item,
        ".Steps": _Steps,
        ".END": _END,
        ".steps_of": _steps_of,
        ".delegate": _delegate,
        ".iter": _iter,
        ".next": _paused_next,
        ".tick": _tick,
        ".SPIN": SPIN,
    }.items()
}


def store_module(module: types.ModuleType, names: frozenset[str] | None = None) -> None:
    """Make the twins of the functions of a module, while its source can still be read.

    With `names`, only those (as in `Queue.get`) get one; the others are called as they are.
    """
    with open(module.__file__, encoding="utf-8") as file:
        source = _Source(ast.parse(file.read()))
    codes = {(code.co_name, code.co_firstlineno): code for code in _codes_of(module)}
    for key, node, owner in source.all():
        code = codes.get(key)
        if code is None or _isinstance(node, ast.Lambda):
            continue
        if names is not None and code.co_qualname not in names:
            _entries[_id(code)] = _Entry(code)
            continue
        made, calls = _rewrite(node, owner, code.co_filename, code.co_freevars, None)
        if made is not None:
            _stored[(code.co_filename, key[1], key[0])] = (made, calls)


def _codes_of(module: types.ModuleType) -> list[types.CodeType]:
    """List the code of the functions of a module, of its classes, and of functions in them."""
    holders = [module]
    holders += [
        each
        for each in vars(module).values()
        if _isinstance(each, type) and each.__module__ == module.__name__
    ]
    functions = [each for holder in holders for each in vars(holder).values()]
    waiting = [_getattr(_getattr(each, "__func__", each), "__code__", None) for each in functions]
    found = []
    while waiting:
        code = waiting.pop()
        if _isinstance(code, types.CodeType) and code.co_filename == module.__file__:
            found.append(code)
            waiting += code.co_consts
    return found


for _function in (_construct, _run_in_context, _paused_next):
    set_primitive(_function, _function)
set_primitive(_Generator.send, _paused_send)
