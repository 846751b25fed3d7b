"""Read the inputs that are named for a run: files, directories, patterns and standard input.

A file without a name is in the variable `context`; `NAME=FILE` makes a variable of that name. Text
that is not UTF-8 is decoded. Only named files are read: a link that leads out of a named directory
is refused.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tallystick.core.errors import UsageError
from tallystick.inputs.files import (
    DAMAGED,
    OpenedFile,
    expand_name,
    is_there,
    open_bytes,
    open_file,
)
from tallystick.runtime.context.inputs import UTF_8, Input, given_text
from tallystick.runtime.context.namespace import CONTEXT, check_variables

_FILES_MAX = 10_000
_STDIN = "-"
_TOLD_MAX = 3


def wants_stdin(named: Sequence[str]) -> bool:
    """Return True if one of the names is standard input.

    Raise `UsageError` for a malformed name before that, as `read_inputs` does.
    """
    return any(_split(each)[1] == _STDIN for each in named)


def read_inputs(named: Sequence[str], *, stdin: bytes | None = None) -> list[Input]:
    """Open the named files. Each name is `FILE` or `NAME=FILE`.

    FILE may be a directory or a pattern, or `-` for standard input. A file that is named twice is
    once in a variable. Text that is not UTF-8 is decoded. `stdin` is what standard input has, None
    for nothing. Raise `UsageError` if a file cannot be read, if all are empty, or if there are more
    than 10,000. Raise it too if NAME cannot be a variable, or is given to a picture alone.
    """
    inputs: list[Input] = []
    seen: set[tuple[str, str]] = set()
    for each in named:
        variable, what = _split(each)
        if what == _STDIN:
            if (variable, _STDIN) not in seen:
                seen.add((variable, _STDIN))
                inputs.append(_input("stdin", variable, open_bytes(stdin or b"", name="stdin")))
            continue
        for path in expand_name(what):
            real = os.path.realpath(path)
            if (variable, real) not in seen:
                seen.add((variable, real))
                inputs.append(_input(str(path), variable, open_file(path)))
        if len(inputs) > _FILES_MAX:
            raise UsageError(f"{each}: more than {_FILES_MAX:,} files")
    _check_texts(inputs)
    return inputs


# Text, or bytes or a file with text or a picture; an `Input` keeps its own name.
InputValue = str | bytes | os.PathLike[str] | Input


def named_inputs(given: Mapping[str, InputValue] | InputValue) -> list[Input]:
    """Return inputs from values by the name of their variable; a value alone is in `context`.

    A `str` is the text itself, and a path is read. A directory or a pattern makes a dictionary of
    its files. Pictures are shown to the model and are in no variable. Raise `UsageError` as
    `read_inputs` does, and for a value of another kind.
    """
    values = given if isinstance(given, Mapping) else {CONTEXT: given}
    inputs = [each for name, value in values.items() for each in _named(name, value)]
    _check_texts(inputs)
    return inputs


def _named(name: object, value: object) -> Iterator[Input]:
    if not isinstance(name, str):
        raise UsageError(f"inputs: the name {name!r:.80} is {type(name).__name__}; a name is text")
    if isinstance(value, Input):
        yield dataclasses.replace(value, variable=name)
    elif isinstance(value, str):
        yield given_text(value, variable=name)
    elif isinstance(value, bytes):
        yield _input_of(name, name, open_bytes(value, name=name))
    elif isinstance(value, os.PathLike):
        for path in expand_name(os.fspath(value)):
            yield _input_of(str(path), name, open_file(path))
    else:
        raise UsageError(
            f"inputs: {name} is {type(value).__name__}; give text, bytes or a path (pathlib.Path)"
        )


def _input_of(called: str, variable: str, found: OpenedFile) -> Input:
    # A picture is in no variable, so it needs no name for one.
    return _input(called, variable if found.media_type is None else CONTEXT, found)


def describe_encodings(inputs: Sequence[Input]) -> list[str]:
    """Return a line for each text that was not UTF-8; a single line for more than three.

    UTF-8 with a byte order mark has none.
    """
    found = [each for each in inputs if each.encoding not in (UTF_8, "utf-8-sig")]
    if len(found) > _TOLD_MAX:
        kinds = Counter(each.encoding for each in found).most_common()
        listed = ", ".join(f"{count:,} {encoding}" for encoding, count in kinds)
        return [f"{len(found):,} files are not UTF-8 and were decoded: {listed}"]
    return [
        f"{each.name}: has bytes that are not UTF-8; they are read as U+FFFD"
        if each.encoding == DAMAGED
        else f"{each.name}: not UTF-8; read as {each.encoding}"
        for each in found
    ]


def _split(named: str) -> tuple[str, str]:
    """Return the variable of a name, and its file. If the whole name exists, it is the file.

    If NAME is no identifier, the whole name is the file, unless what follows `=` exists. Raise
    `UsageError` if programs cannot have the variable, or the file is empty, as in `a=`.
    """
    name, equals, what = named.partition("=")
    if not equals or is_there(named):
        return CONTEXT, named
    if not name.isidentifier() and not is_there(what):
        # The part before `=` is then a part of a path, not a variable.
        return CONTEXT, named
    check_variables([name])
    if not what:
        raise UsageError(f"-f {name}=: an empty name; a variable in it may not be set")
    return name, what


def _input(name: str, variable: str, found: OpenedFile) -> Input:
    return Input(
        name=name,
        text=found.text,
        media_type=found.media_type,
        path=found.path,
        variable=variable,
        encoding=found.encoding,
    )


def _check_texts(inputs: Sequence[Input]) -> None:
    """Raise `UsageError` if all inputs are empty, or a variable is wrong or has only pictures."""
    check_variables(each.variable for each in inputs)
    with_text = {CONTEXT, *(each.variable for each in inputs if not each.is_picture)}
    for each in inputs:
        if each.variable not in with_text:
            raise UsageError(
                f"{each.name}: a picture, which is in no variable; leave `{each.variable}=` away"
            )
    if inputs and not any(len(each.text) for each in inputs):
        if len(inputs) == 1:
            raise UsageError(f"{inputs[0].name}: empty; there is nothing to read in it")
        raise UsageError(f"all {len(inputs):,} files are empty; there is nothing to read in them")
