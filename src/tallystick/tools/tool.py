"""Make tools of plain functions: what each may do, what the model is told, what a call checks.

`tool` only marks a function, which stays as it is. The marked function becomes a tool when it is
given to an agent. So a method can be marked in its class, and be given bound to an object.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

from tallystick.core.errors import UsageError
from tallystick.runtime.calls.functions import Ask, RunFunction, check_functions
from tallystick.sandbox.host import is_async
from tallystick.tools.docstrings import described
from tallystick.typed.encode import encode_value
from tallystick.typed.outline import outline_of
from tallystick.typed.value_type import ValueType, type_name, value_type

Function = TypeVar("Function", bound=Callable[..., Any])
_MARK = "__tallystick_tool__"
# Types whose name says all that a model has to know.
_PLAIN = (bool, int, float, str, bytes, list, dict, None, type(None), Any, object)
_NAMES_TAKEN = frozenset(dir(builtins))


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOptions:
    """The options of a tool, and the names that its annotations may refer to."""

    reads: bool = False
    name: str | None = None
    ask: bool | Ask = False
    needs: str = ""
    idempotent: bool = False
    lookup: Callable[[str], Any] | None = None
    local_names: Mapping[str, Any] = field(default_factory=dict, compare=False)


_PLAIN_FUNCTION = ToolOptions()


@overload
def tool(function: Function, /) -> Function: ...
@overload
def tool(
    *,
    reads: bool = False,
    name: str | None = None,
    ask: bool | Ask = False,
    needs: str = "",
    idempotent: bool = False,
    lookup: Callable[[str], Any] | None = None,
) -> Callable[[Function], Function]: ...
def tool(
    function: Any = None,
    /,
    *,
    reads: bool = False,
    name: str | None = None,
    ask: bool | Ask = False,
    needs: str = "",
    idempotent: bool = False,
    lookup: Callable[[str], Any] | None = None,
) -> Any:
    """Mark a function as a tool, and return it. It may be a method, or async.

    Without `reads=True`, a call counts as an effect: it is on disk before it begins, and is not
    repeated by itself after a crash. With `reads`, it only looks something up. `name` is what
    programs call it; without it, that is the name of the function. With `ask`, a call needs a
    person's word: each one, or those for whose arguments it returns True. `needs` names the
    capability that a run must be granted.

    An `idempotent` effect may be repeated after a crash. For another one, `lookup` is called with
    the key that `effect_key()` returned inside it, and says what became of it.

    Raise `UsageError` for a function that cannot be a tool: arguments without types, with types
    that cannot be checked, `*args`, or a default that is no JSON value.
    """

    def marked(given: Any) -> Any:  # noqa: ANN401 (the function that was given)
        options = ToolOptions(
            reads=reads,
            name=name,
            ask=ask,
            needs=needs,
            idempotent=idempotent,
            lookup=lookup,
            local_names=_local_names(given, depth=2 if function is None else 3),
        )
        return _mark(given, options)

    return marked if function is None else marked(function)


def _local_names(function: object, *, depth: int) -> Mapping[str, Any]:
    """Return the names around a function that is defined inside another, else none.

    Its annotations may be text that names classes of that function.
    """
    if "<locals>" not in getattr(function, "__qualname__", ""):
        return {}
    return dict(sys._getframe(depth).f_locals)


def _mark(function: Any, options: ToolOptions) -> Any:  # noqa: ANN401 (any function)
    inner = getattr(function, "__func__", function)
    if getattr(inner, _MARK, options) != options or inspect.ismethod(function):
        # Another mark is on it already, or there is no place for one: mark a function around it.
        function = _around(function)
    if not _is_unbound_method(function):
        tool_of(function, options=options)
    try:
        setattr(function, _MARK, options)
    except AttributeError:
        function = _around(function)
        setattr(function, _MARK, options)
    return function


def _around(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def awaited(*args: object, **kwargs: object) -> object:
        return await function(*args, **kwargs)

    @functools.wraps(function)
    def returned(*args: object, **kwargs: object) -> object:
        return function(*args, **kwargs)

    return awaited if is_async(function) else returned


def _is_unbound_method(function: object) -> bool:
    """Return True for a function in the body of a class: what its first argument is comes later."""
    if isinstance(function, classmethod):
        return True
    if not inspect.isfunction(function):
        return False
    outer = function.__qualname__.rpartition(".")[0]
    first = next(iter(inspect.signature(function).parameters), None)
    return first in ("self", "cls") and bool(outer) and not outer.endswith("<locals>")


# -- from functions to tools --------------------------------------------------------------------


def tools_of(given: Iterable[object]) -> tuple[RunFunction, ...]:
    """Return the tools that functions stand for, plain ones and marked ones.

    Raise `UsageError` for one that cannot be a tool, for two of one name, for a name that is the
    group of another, and for what is no list.
    """
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise UsageError(f"tools: a list of functions is needed, not {type(given).__name__}")
    made = tuple(each if isinstance(each, RunFunction) else tool_of(each) for each in given)
    check_functions(made)
    return made


def tool_of(function: Any, *, options: ToolOptions | None = None) -> RunFunction:  # noqa: ANN401
    """Return the tool that a function stands for, with its own options if it is marked.

    Raise `UsageError` if it cannot be a tool.
    """
    if not callable(function) or isinstance(function, type):
        raise UsageError(f"tools: {type_name(function)!s:.80} is no function; give a function")
    chosen = options or getattr(function, _MARK, None) or _PLAIN_FUNCTION
    name = chosen.name or getattr(function, "__name__", None) or _name_of_part(function)
    if name.partition(".")[0] in _NAMES_TAKEN:
        raise UsageError(f"tool {name}: programs have Python's own {name}; use another name")
    if name == "<lambda>":
        raise UsageError("tools: a lambda has no name that programs can call; use def, or name=")
    return RunFunction(
        function=_checked(function, name, chosen),
        name=name,
        policy="read" if chosen.reads else "effect",
        needs=chosen.needs,
        local=False,
        idempotent=chosen.idempotent,
        lookup=chosen.lookup,
        ask=chosen.ask,
    )


def _name_of_part(function: object) -> str:
    """Return the name of a function inside a `partial`, or of the class of an object."""
    inner = getattr(function, "func", None)
    return getattr(inner, "__name__", None) or type(function).__name__.lower()


@dataclass(frozen=True, slots=True)
class _Arguments:
    """The arguments of one tool: its signature, and the type of each."""

    name: str
    signature: inspect.Signature
    types: Mapping[str, ValueType[Any]]

    def bind(self, args: Sequence[object], kwargs: Mapping[str, object]) -> inspect.BoundArguments:
        """Return the arguments of a call, converted to their types.

        Raise `ArgumentError`, which the program sees, for arguments that do not fit.
        """
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(f"{self.name}: {error}") from None
        for name, value in bound.arguments.items():
            try:
                bound.arguments[name] = self.types[name].decode(value)
            except ValueError as error:
                said = str(error)
                joint = "" if said.startswith(("[", ".")) else ": "
                raise ArgumentError(f"{self.name}: argument {name}{joint}{said}") from None
        return bound


class ArgumentError(UsageError):
    """An argument of a tool that does not fit its type. A program sees a TypeError."""

    told_as = "TypeError"


def _checked(function: Callable[..., Any], name: str, options: ToolOptions) -> Callable[..., Any]:
    """Return a function that checks and converts its arguments, described for the model.

    Raise `UsageError` if the arguments cannot be read, or have no types that can be checked.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        raise UsageError(f"tool {name}: its arguments cannot be read; use a def") from None
    hints = _hints_of(function, name, options.local_names)
    types = {each.name: _type_of(each, hints, name) for each in signature.parameters.values()}
    arguments = _Arguments(name, signature, types)

    async def awaited(*args: object, **kwargs: object) -> object:
        bound = arguments.bind(args, kwargs)
        return await function(*bound.args, **bound.kwargs)

    def returned(*args: object, **kwargs: object) -> object:
        bound = arguments.bind(args, kwargs)
        return function(*bound.args, **bound.kwargs)

    called: Callable[..., Any] = awaited if is_async(function) else returned
    called.__name__ = called.__qualname__ = name
    called.__doc__ = _doc_of(function, types, hints)
    # So that tests find the function itself, with the types that it was written with.
    setattr(called, "__wrapped__", function)  # noqa: B010 (unknown to types)
    setattr(called, "__signature__", _shown(signature, hints))  # noqa: B010 (unknown to types)
    return called


def _hints_of(function: Any, name: str, local_names: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: ANN401
    """Return the annotations of a function, none if it cannot have any.

    Raise `UsageError` if one names what is not there.
    """
    called = function
    while isinstance(called, functools.partial):
        called = called.func
    if not inspect.isroutine(called):
        # An object that is called: its method has the annotations.
        called = type(called).__call__
    called = inspect.unwrap(called)
    inner = getattr(called, "__func__", called)
    try:
        closure = inspect.getclosurevars(inner).nonlocals if inspect.isfunction(inner) else {}
        return typing.get_type_hints(inner, localns={**local_names, **closure}, include_extras=True)
    except NameError as error:
        raise UsageError(
            f"tool {name}: its types cannot be read: {error}; define them at the top of the module"
        ) from None
    except TypeError:
        return {}


_KINDS = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


def _type_of(parameter: inspect.Parameter, hints: Mapping[str, Any], tool: str) -> ValueType[Any]:
    """Return the type of a parameter. Raise `UsageError` if no call could be checked."""
    name = parameter.name
    if parameter.kind in _KINDS:
        raise UsageError(
            f"tool {tool}: {_KINDS[parameter.kind]}{name} could be anything; name each argument"
        )
    if name not in hints:
        raise UsageError(f"tool {tool}: argument {name} has no type; write it, as in {name}: str")
    if parameter.default is not inspect.Parameter.empty:
        try:
            encode_value(parameter.default)
        except (TypeError, ValueError):
            kind = type(parameter.default).__name__
            raise UsageError(
                f"tool {tool}: the default of {name} is a {kind}, which has no form in JSON; "
                "use None, and set it inside"
            ) from None
    return value_type(hints[name], where=f"tool {tool}: argument {name}")


def _doc_of(
    function: Callable[..., Any], types: Mapping[str, ValueType[Any]], hints: Mapping[str, Any]
) -> str:
    """Return the docstring for programs, whose first line has all that a prompt shows.

    That is the summary, what the docstring says of each argument, and the form of the arguments
    whose types a model cannot know.
    """
    doc = inspect.getdoc(function) or ""
    said = described(doc)
    first = [_sentence(said.summary)] if said.summary else []
    for name, each in types.items():
        shape = "" if _is_plain(hints[name]) else outline_of(each.schema)
        words = [part for part in (said.arguments.get(name, "").rstrip("."), shape) if part]
        if words:
            first.append(_sentence(f"{name}: {'; '.join(words)}"))
    head = " ".join(first)
    return head if doc in (head, said.summary) else f"{head}\n\n{doc}".strip()


def _sentence(said: str) -> str:
    return said if said.endswith((".", "!", "?")) else f"{said}."


def _is_plain(hint: Any) -> bool:  # noqa: ANN401 (any annotation)
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Annotated:
        return False
    if typing.get_origin(hint) is typing.Literal:
        return True
    if parts:
        return all(each is ... or _is_plain(each) for each in parts)
    return any(hint is each for each in (*_PLAIN, tuple, set, frozenset))


class _Shown:
    """An annotation or a default as the model is shown it."""

    def __init__(self, said: str) -> None:
        self._said = said

    def __repr__(self) -> str:
        return self._said


def _shown(signature: inspect.Signature, hints: Mapping[str, Any]) -> inspect.Signature:
    """Return a signature without the modules of its types, and with defaults as JSON has them."""
    made = []
    for each in signature.parameters.values():
        default = each.default
        if default is not inspect.Parameter.empty:
            default = _Shown(repr(encode_value(default)))
        made.append(each.replace(annotation=_Shown(type_name(hints[each.name])), default=default))
    result = hints.get("return", inspect.Signature.empty)
    if result is not inspect.Signature.empty:
        result = _Shown(type_name(result))
    return signature.replace(parameters=made, return_annotation=result)
