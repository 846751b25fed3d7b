"""Read what was named for a run: files, directories, patterns and standard input.

What is given without a name is `context`; `NAME=FILE` makes a variable of that name beside it. Text
that is not UTF-8 is decoded. Only what was named is read: links that lead out of a directory are
refused.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from tallystick.core.errors import UsageError
from tallystick.inputs.files import (
    DAMAGED,
    OpenedFile,
    expand_name,
    is_there,
    open_bytes,
    open_file,
)
from tallystick.runtime.context.inputs import UTF_8, Input
from tallystick.runtime.context.namespace import CONTEXT, check_variables

_FILES_MAX = 10_000
_STDIN = "-"
_TOLD_MAX = 3


def wants_stdin(named: Sequence[str]) -> bool:
    """Whether standard input is among what was named."""
    return any(_split(each)[1] == _STDIN for each in named)


def read_inputs(named: Sequence[str], *, stdin: bytes | None = None) -> list[Input]:
    """Open everything that was named, each `FILE`, `NAME=FILE` or `-` for standard input.

    For FILE there can be a directory or a pattern. The same file is taken once in a variable. What
    is not UTF-8 is decoded. Raises `UsageError` for what cannot be read, and if all of it is empty.
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


def encodings_told(inputs: Sequence[Input]) -> list[str]:
    """A line for each text that was not UTF-8; a single one if they are many."""
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
    """The variable and what goes into it. What exists under the whole name has no variable."""
    name, equals, what = named.partition("=")
    if not equals or is_there(named):
        return CONTEXT, named
    if not name.isidentifier() and not is_there(what):
        # Then it is no name at all, but a part of a path.
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
    """Refuse what holds nothing, and variables that would not be there."""
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
