"""Host functions for programs: decode a call, answer it, and encode the reply.

A reply is one tag byte and its body. The tags are 0 for JSON, 1 an error, 2 text, 3 bytes. Tag 4 is
a text that stays on the host, with the body [key, bytes, name]. If a function fails, or returns a
value that cannot be encoded, the reply is an error that the program can catch; the session
continues. Only errors of the record itself are raised (`_NOT_THE_PROGRAMS`). Replies are bytes from
here on, so a replay serves exactly what was recorded.
"""

from __future__ import annotations

import base64
import hashlib
import inspect
import keyword
import re
import types
import weakref
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from tallystick.core.errors import (
    CapabilityDenied,
    InvalidName,
    LedgerError,
    ReplayDiverged,
    TallystickError,
    UsageError,
)
from tallystick.core.resume_errors import NeedsPerson, ResumeRefused, RunInDoubt
from tallystick.sandbox.port import Host, HostCall, HostName, HostNames, HostTextName
from tallystick.sandbox.text import (
    CORPUS_FUNCTIONS,
    SCANNED_BYTES_MAX,
    SCANNING,
    TEXT_FUNCTIONS,
    HostText,
)
from tallystick.typed.encode import encode_other

_ERROR_CHARS_MAX = 2_000
_CONTAINERS_MAX = 50_000
_NAME_PARTS_MAX = 2
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_decode = msgspec.json.Decoder(tuple[str, list[Any], dict[str, Any]]).decode
_encode = msgspec.json.Encoder(enc_hook=encode_other).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFunction:
    """One function that a program may call, under `name`, if `needs` is granted or empty.

    A coroutine function runs on the event loop. A plain one runs in a thread of its own, so that a
    deadline or a cancel need not wait for it. With `local`, it runs in the program's own thread;
    that is for functions that are quick and wait for nothing. `handed` says that the first argument
    comes from the caller of `HostTable.serve`, not from the program.
    """

    name: str
    function: Callable[..., Any]
    local: bool = False
    needs: str = ""
    handed: bool = False
    awaited: bool = field(init=False)

    def __post_init__(self) -> None:
        # Computed once here: `inspect` takes longer than a call of a local function.
        object.__setattr__(self, "awaited", is_async(self.function))

    def described(self) -> HostName:
        """Return the name, the signature and the docstring, as the program sees them."""
        # Each run binds its methods anew, but the function behind a method stays the same object.
        # So its description is cached by that function.
        method = self.function.__func__ if inspect.ismethod(self.function) else None
        described = None if method is None else _of_methods.get(method)
        if described is None:
            described = _signature_and_doc(self.function, handed=self.handed)
            if isinstance(method, types.FunctionType):
                _of_methods[method] = described
        signature, doc = described
        return HostName(name=self.name, doc=f"{self.name}{signature}\n\n{doc}".rstrip())


# A cache, since `inspect.signature` takes longer than a short program.
_of_methods: weakref.WeakKeyDictionary[Callable[..., Any], tuple[str, str]] = (
    weakref.WeakKeyDictionary()
)


def _signature_and_doc(function: Callable[..., Any], *, handed: bool) -> tuple[str, str]:
    """Return the signature and the docstring of a function, as programs call it.

    With `handed`, the first parameter is left out. A signature that cannot be read is "(...)".
    """
    try:
        # The address in the repr of a default would differ in every process. The signature is
        # copied into the guest, so the guest's memory would differ too.
        signature = _ADDRESS.sub("", str(_with_plain_annotations(function, without_first=handed)))
    except (TypeError, ValueError):
        signature = "(...)"
    return signature, inspect.getdoc(function) or ""


def is_async(function: Callable[..., Any]) -> bool:
    """Return True if a call gives a coroutine, also for an object with an async `__call__`."""
    called = getattr(function, "__call__", None)  # noqa: B004 - its type decides, not whether
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


class _UnquotedAnnotation:
    """An annotation as its author wrote it, whose repr has no quotes."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _with_plain_annotations(
    function: Callable[..., Any], *, without_first: bool
) -> inspect.Signature:
    """Return the signature of a function with its annotations as the author wrote them.

    Under `from __future__ import annotations` they are strings, which would be shown in quotes.
    They are not evaluated: that can fail, and would show module names that mean nothing to a
    program. With `without_first`, the first parameter is left out. Raise `TypeError` or
    `ValueError` if the signature cannot be read.
    """
    found = inspect.signature(function)
    made = [
        each.replace(annotation=_plain_one(each.annotation)) for each in found.parameters.values()
    ][without_first:]
    return found.replace(parameters=made, return_annotation=_plain_one(found.return_annotation))


def _plain_one(annotation: object) -> object:
    return _UnquotedAnnotation(annotation) if isinstance(annotation, str) else annotation


class HeldText(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that stays on the host: the program gets a text to slice and to search.

    The table passes `key` to its `FindText` to get the text. `bytes` is its size.
    """

    key: str
    bytes: int
    name: str


# Finds a text by the key of a `HeldText`. What it raises becomes the error that the program sees.
# The second argument is the `handed` of `HostTable.serve`.
FindText = Callable[[str, Any], HostText]


def _no_texts(key: str, handed: object) -> HostText:
    raise CapabilityDenied(capability="host.text", what="this text")


class HostTable:
    """A fixed set of functions, texts and values for programs.

    A function whose `needs` is not among the `granted` capabilities is left out. A function named
    `group.name` is an attribute of `group` in the program. `texts`, `values` and `answering` are as
    in `HostNames`. `find_text` finds the text of a `HeldText`; by default, all are refused. Raises
    `InvalidName` for a name that a program cannot write.
    """

    def __init__(
        self,
        functions: Sequence[HostFunction] = (),
        *,
        texts: Mapping[str, HostText | Mapping[str, HostText]] | None = None,
        values: Mapping[str, object] | None = None,
        granted: frozenset[str] = frozenset(),
        answering: bool = False,
        find_text: FindText = _no_texts,
    ) -> None:
        texts, values = texts or {}, values or {}
        self._find_text = find_text
        for name in [*texts, *values]:
            _check_name(name, [name])
        for function in functions:
            check_host_name(function.name)
        self._functions = {
            function.name: function
            for function in functions
            if not function.needs or function.needs in granted
        }
        self._texts, self._placed = _number_texts(texts)
        self._values = values
        self._answering = answering

    @cached_property
    def names(self) -> HostNames:
        """The names as the program sees them. Computed at the first use, since that takes long.

        Raises `TypeError` or another error of the encoder if a value is not a JSON value.
        """
        named = HostNames(
            functions=tuple(function.described() for function in self._functions.values()),
            texts=self._placed,
            values=self._values,
            answering=self._answering,
        )
        key = hashlib.sha256(msgspec.json.encode(named)).hexdigest()
        return msgspec.structs.replace(named, key=key)

    def has(self, name: str) -> bool:
        """Return True if there is a function of this name, and it is granted."""
        return name in self._functions

    def serve(self, call: HostCall, handed: object = None) -> bytes | Awaitable[bytes]:
        """Answer one call with an encoded reply, or with an awaitable of one.

        Mistakes of the program, and failures of a function, are error replies. So is a request with
        over 50,000 lists and dictionaries. Raise only errors of the record itself
        (`_NOT_THE_PROGRAMS`), also from the awaitable. `handed` is passed as the first argument to
        functions that ask for it.
        """
        # A container takes two bytes, but costs the decoder far more, and it holds the interpreter
        # lock meanwhile. So their number is limited before anything is decoded.
        if call.request.count(b"[") + call.request.count(b"{") > _CONTAINERS_MAX:
            return error_reply(UsageError(f"a request of over {_CONTAINERS_MAX:,} containers"))
        try:
            name, args, kwargs = _decode(call.request)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return error_reply(UsageError("a host call is a JSON array [name, args, kwargs]"))
        if name != call.name:
            # Records hold the name as it was sent; an escaped one would be recorded wrongly.
            return error_reply(UsageError("the name of a host call is written without escapes"))
        function = self._functions.get(name)
        if function is None:
            return self._serve_text(name, args, handed)
        try:
            args = [_plain(each) for each in args]
            kwargs = {key: _plain(each) for key, each in kwargs.items()}
        except ValueError:
            return error_reply(UsageError("a host call has bytes that cannot be read"))
        if function.handed:
            args.insert(0, handed)
        if function.awaited:
            return _DeferredCall(function.function, args, kwargs)
        if function.local:
            return _call_function(function.function, args, kwargs)
        return Blocking(lambda: _call_function(function.function, args, kwargs))

    def _serve_text(self, name: str, args: list[Any], handed: object) -> bytes | Awaitable[bytes]:
        if name in CORPUS_FUNCTIONS:
            return self._serve_corpus(CORPUS_FUNCTIONS[name], args)
        method = TEXT_FUNCTIONS.get(name)
        if method is None or not args or type(args[0]) not in (int, str):
            return error_reply(CapabilityDenied(capability=f"host.{name[:80]}", what="this call"))
        if type(args[0]) is str:
            return Blocking(lambda: self._call_on_held(method, args, handed))
        if not 0 <= args[0] < len(self._texts):
            return error_reply(CapabilityDenied(capability="host.text", what=name))
        text = self._texts[args[0]]
        if name in SCANNING and len(text) > SCANNED_BYTES_MAX:
            # Long work gets its own thread, so that a time limit need not wait for its end.
            return Blocking(lambda: _call_function(method, [text, *args[1:]], {}))
        return _call_function(method, [text, *args[1:]], {})

    def _serve_corpus(self, function: Callable[..., Any], args: list[Any]) -> bytes | Blocking:
        ids = args[0] if args else None
        if type(ids) is not list or len(ids) > len(self._texts):
            return error_reply(CapabilityDenied(capability="host.text", what="these texts"))
        if not all(type(each) is int and 0 <= each < len(self._texts) for each in ids):
            return error_reply(CapabilityDenied(capability="host.text", what="these texts"))
        return Blocking(
            lambda: _call_function(function, [[self._texts[id] for id in ids], *args[1:]], {})
        )

    def _call_on_held(self, method: Callable[..., Any], args: list[Any], handed: object) -> bytes:
        try:
            text = self._find_text(args[0], handed)
        except Exception as error:
            return error_reply(error)
        return _call_function(method, [text, *args[1:]], {})


def _plain(value: object) -> object:
    """Return an argument as the function gets it. Bytes cross as {"$bytes": base64 text}.

    Raise `ValueError` if that text is not base64.
    """
    if type(value) is dict and value.keys() == {"$bytes"} and type(value["$bytes"]) is str:
        return base64.b64decode(value["$bytes"], validate=True)
    return value


def check_host_name(name: str) -> None:
    """Raise `InvalidName` unless a program can call a function as `name` or `group.name`.

    Both are identifiers, no keywords, and do not begin with `__`. The group `text` is taken.
    """
    if not isinstance(name, str):
        raise InvalidName(what="host name", given=repr(name), why="a Python identifier is needed")
    _check_name(name, name.split("."))


def _check_name(name: str, parts: list[str]) -> None:
    """Raise `InvalidName` unless each part is an identifier that a program can write.

    That excludes keywords and what begins with `__`. Raise it too for over two parts, or if the
    first of two is the group `text`.
    """
    if len(parts) > _NAME_PARTS_MAX or not all(
        part.isidentifier() and not keyword.iskeyword(part) and not part.startswith("__")
        for part in parts
    ):
        raise InvalidName(what="host name", given=name, why="a Python identifier is needed")
    if len(parts) > 1 and parts[0] in _OUR_GROUPS:
        raise InvalidName(what="host name", given=name, why=f"{parts[0]} is taken")


# Groups of our own: the guest calls `text.slice` and others by these names.
_OUR_GROUPS = frozenset({"text"})


def _number_texts(
    texts: Mapping[str, HostText | Mapping[str, HostText]],
) -> tuple[list[HostText], tuple[HostTextName, ...]]:
    """Give each text a number, those in dictionaries too. Return the texts and their names."""
    held: list[HostText] = []
    names = []
    for name, text in texts.items():
        entries = [(None, text)] if isinstance(text, HostText) else list(text.items())
        for key, each in entries:
            names.append(HostTextName(name=name, key=key, id=len(held), bytes=len(each)))
            held.append(each)
    return held, tuple(names)


class Answer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A recorded answer, with the digest and the fuel of the call that it answered."""

    request_sha256: str
    fuel: int
    reply: bytes


class RecordedHost:
    """Serve recorded answers by position; after the last one, pass calls on to the host `then`."""

    def __init__(self, answers: Sequence[Answer], *, then: Host) -> None:
        self._answers = answers
        self._then = then

    @property
    def names(self) -> HostNames:
        return self._then.names

    def serve(self, call: HostCall) -> bytes | Awaitable[bytes]:
        """Answer a call. Raise `ReplayDiverged` if its request or its fuel is not as recorded.

        After the last recorded answer, return or raise what the host `then` does.
        """
        if call.index >= len(self._answers):
            return self._then.serve(call)
        answer = self._answers[call.index]
        now = call_digest(call.request)
        if now != answer.request_sha256:
            raise ReplayDiverged(
                index=call.index, field="request", recorded=answer.request_sha256, now=now
            )
        if call.fuel != answer.fuel:
            raise ReplayDiverged(
                index=call.index, field="fuel", recorded=answer.fuel, now=call.fuel
            )
        return answer.reply


class Blocking:
    """An answer that blocks while it is computed; the session calls it in a thread of its own.

    It is awaitable only by type, so that every host returns bytes or an awaitable. Awaiting it
    raises `UsageError`.
    """

    def __init__(self, work: Callable[[], bytes]) -> None:
        self._work = work

    def __call__(self) -> bytes:
        return self._work()

    def __await__(self) -> Generator[None, None, bytes]:
        raise UsageError("a blocking host function is called in a thread, not awaited")


# The record itself failed, or does not match. A program must not catch these, so they are raised.
_NOT_THE_PROGRAMS = (LedgerError, NeedsPerson, ReplayDiverged, ResumeRefused, RunInDoubt)
# Failures of a host function. `SystemExit` is one of them, because argument parsers and scripts
# raise it. In a thread or a task it would leave the waiting program without an answer. Ctrl-C does
# not arrive in such a thread or task, so `KeyboardInterrupt` here was raised by the function.
_FAILED = (Exception, SystemExit, KeyboardInterrupt)


def _call_function(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> bytes:
    try:
        return encode_reply(function(*args, **kwargs))
    except _NOT_THE_PROGRAMS:
        raise
    except _FAILED as error:
        return error_reply(error)


class _DeferredCall:
    """A call that starts when it is awaited; if that never happens, there is nothing to clean up.

    A coroutine that is never awaited would warn.
    """

    def __init__(
        self, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
    ) -> None:
        self._call = function, args, kwargs

    def __await__(self) -> Generator[Any, None, bytes]:
        return _await_call(*self._call).__await__()


async def _await_call(
    function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
) -> bytes:
    try:
        return encode_reply(await function(*args, **kwargs))
    except _NOT_THE_PROGRAMS:
        raise
    except _FAILED as error:
        return error_reply(error)


def encode_reply(value: object) -> bytes:
    """Encode the result of a host function: bytes, a `HeldText`, a text, or another JSON value.

    If it cannot be encoded, that is an error reply. Texts of over 1,000 characters are not quoted.
    """
    if type(value) is bytes:
        return b"3" + value
    if type(value) is HeldText:
        return b"4" + _encode([value.key, value.bytes, value.name])
    # Quoting a long text as JSON costs time. A short one the guest decodes faster as JSON.
    if type(value) is str and len(value) > 1_000:
        return text_reply(value)
    try:
        return json_reply(value)
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        kind = type(value).__name__
        return error_reply(
            UsageError(f"the host function returned {kind}, which cannot be encoded: {error}")
        )


def json_reply(value: object) -> bytes:
    """Encode a JSON value as a reply.

    Raise `TypeError`, `ValueError`, `RecursionError` or an error of msgspec for any other value.
    """
    return b"0" + _encode(value)


def text_reply(value: str) -> bytes:
    """Encode text as a reply without quoting it."""
    return b"2" + value.encode("utf-8", "surrogatepass")


# An absolute path, or one below a home directory. Inside quotes it may contain blanks. The path of
# a URL does not match, because of the colon, letter or slash before it.
_ROOT = r"(?:file://+|~\w*[/\\]|/|[A-Za-z]:[/\\]|\\\\)"
_PATH = re.compile(
    rf"(?P<quote>['\"`])(?P<quoted>{_ROOT}[^'\"`\n]*)(?P=quote)"
    rf"|(?<![\w:/\\.~<-])(?P<bare>{_ROOT}[^\s'\"`,;:()<>\[\]|]+)"
)


def shorten_paths(message: str) -> str:
    """Return a message in which each absolute path is cut to its last part."""
    return _PATH.sub(_last_name, message)


def _last_name(found: re.Match[str]) -> str:
    quote, path = found["quote"] or "", found["quoted"] or found["bare"]
    name = re.split(r"[/\\]", path.rstrip("/\\"))[-1]
    return f"{quote}{name}{quote}"


def _text_of(error: BaseException) -> str:
    """Return the message of an error; "" if its `__str__` fails, which must not end the run."""
    try:
        return str(error)
    except Exception:
        return ""


def error_reply(error: BaseException) -> bytes:
    """Encode a failure as a reply: its kind, and its message of at most 2,000 characters.

    The kind is the error's `told_as`, or else its class name. Messages of foreign errors begin with
    the kind, and absolute paths in them are cut to the last part. An empty message is replaced by
    the kind. Half of a surrogate pair in it becomes "?". A `CapabilityDenied` also gives its
    capability.
    """
    kind = getattr(error, "told_as", None) or type(error).__name__
    message = _text_of(error)
    if not isinstance(error, TallystickError):
        # The message was not written for the model, and may contain paths of this machine.
        message = f"{kind}: {shorten_paths(message)}" if message else kind
    # A tool's message may have half of a pair, which has no bytes.
    message = (message[:_ERROR_CHARS_MAX] or kind).encode("utf-8", "replace").decode()
    body = {"kind": kind, "message": message}
    if isinstance(error, CapabilityDenied):
        body["capability"] = error.capability
    return b"1" + _encode(body)


def call_digest(request: bytes) -> str:
    """Return the SHA-256 (hex) by which replay compares a request."""
    return hashlib.sha256(request).hexdigest()
