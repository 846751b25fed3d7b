"""What a run is given to read: files, directories and patterns, as texts a program finds.

One file is `context`; several are a dictionary of texts under their names. Up to 4 MB in all they
are real `str`, beyond that they stay on the host. Pictures are not for programs: the model sees
them beside the task. Nothing outside what was named is read: links that lead out of a directory
are refused.
"""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tallystick.attachments.media import HEAD_BYTES, image_size, sniffed
from tallystick.core.errors import UsageError
from tallystick.core.records import ContextRef, ViewRef
from tallystick.runtime.first_program import first_program
from tallystick.runtime.shapes import Shape, described, shape_of
from tallystick.sandbox.text import HostText

__all__ = [
    "CONTEXT",
    "STR_BYTES_MAX",
    "Input",
    "Layout",
    "given_text",
    "layout_of",
    "read_inputs",
]

CONTEXT = "context"
STR_BYTES_MAX = 4_000_000
_FILES_MAX = 10_000
_SAMPLE_CHARS = 300
_WHOLE_CHARS_MAX = 1_500
_WHOLE_OF_SEVERAL_CHARS_MAX = 400
_FILES_SHOWN = 4
_NAMES_SHOWN = 20
_HASH_BYTES = 1024 * 1024
_READ_BYTES_MAX = 1024 * 1024
_PICTURE_BYTES_MAX = 20_000_000
_PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One text, or picture, and the name it came under. A text has no `media_type`.

    A long one has a `path`: its text is that file, which others may change.
    """

    name: str
    text: HostText
    media_type: str | None = None
    path: Path | None = None

    @property
    def is_picture(self) -> bool:
        return self.media_type in _PICTURES


def given_text(text: str, *, name: str = CONTEXT) -> Input:
    """A text that is there already."""
    return Input(name=name, text=HostText.of(text))


def read_inputs(named: Sequence[str], *, stdin: bytes | None = None) -> list[Input]:
    """Open everything that was named. The same file is taken once."""
    inputs: list[Input] = []
    seen: set[str] = set()
    for each in named:
        if each == "-":
            inputs.append(_checked(HostText(stdin or b""), "stdin"))
            continue
        for path in _expanded(each):
            real = os.path.realpath(path)
            if real not in seen:
                seen.add(real)
                inputs.append(_opened(path))
        if len(inputs) > _FILES_MAX:
            raise UsageError(f"{each}: more than {_FILES_MAX:,} files")
    return inputs


def _expanded(named: str) -> Iterator[Path]:
    if not named:
        raise UsageError("-f: an empty name; a variable in it may not be set")
    path = Path(named)
    if path.is_dir():
        found = list(_files_below(path))
        if not found:
            raise UsageError(f"{named}: no files in this directory")
        yield from found
    elif path.exists() or path.is_symlink():
        yield path
    elif glob.has_magic(named):
        matches = sorted(Path(match) for match in glob.glob(named, recursive=True))
        files = [match for match in matches if match.is_file()]
        if not files:
            raise UsageError(f"{named}: no file matches")
        yield from files
    else:
        raise UsageError(f"{named}: no such file")


def _files_below(folder: Path) -> Iterator[Path]:
    """Files below a folder, in order. Hidden ones are passed over, links that lead out refused."""
    root = os.path.realpath(folder)
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(where) / name
            if name.startswith("."):
                continue
            if path.is_symlink() and not os.path.realpath(path).startswith(root + os.sep):
                raise UsageError(f"{path}: a link that leads out of {folder}; name the file itself")
            if path.is_file():
                yield path


def _opened(path: Path) -> Input:
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            raise UsageError(f"{path}: not a regular file")
        # Short files are read at once; long ones are only copied, and read from the copy.
        if found.st_size <= _READ_BYTES_MAX:
            return _checked(HostText(path.read_bytes()), str(path))
        return dataclasses.replace(_checked(HostText.open(path), str(path)), path=path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error


def _checked(text: HostText, name: str) -> Input:
    if len(text) == 0:
        raise UsageError(f"{name}: empty; there is nothing to read in it")
    head = text.read_raw(0, HEAD_BYTES)
    media_type = sniffed(head, whole=len(head) == len(text))
    if media_type in _PICTURES:
        if len(text) > _PICTURE_BYTES_MAX:
            raise UsageError(
                f"{name}: a picture of {len(text):,} bytes; at most {_PICTURE_BYTES_MAX:,}"
            )
        if image_size(head) is None:
            raise UsageError(f"{name}: a picture that is cut off, or larger than any can be")
        return Input(name=name, text=text, media_type=media_type)
    if b"\0" in head[:8_192]:
        raise UsageError(f"{name}: neither text nor a picture; only those can be read")
    return Input(name=name, text=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the inputs of a run lie in its programs' namespace, and what the model is told of them.

    Up to 4 MB in all they are `values`, with views of what they are made of; beyond that `texts`.
    """

    contexts: tuple[ContextRef, ...] = ()
    values: dict[str, object] = field(default_factory=dict)
    texts: dict[str, HostText | dict[str, HostText]] = field(default_factory=dict)
    views: tuple[ViewRef, ...] = ()
    files: tuple[tuple[str, str, str | None], ...] = ()


def layout_of(inputs: Sequence[Input], *, question: str = "") -> Layout:
    """Lay out the inputs: one is `context` itself, several are a dictionary by name.

    What the model is told of them depends a little on the question.
    """
    inputs = [each for each in inputs if not each.is_picture]
    if not inputs:
        return Layout()
    if sum(len(each.text) for each in inputs) > STR_BYTES_MAX:
        return _on_the_host(inputs)
    single = len(inputs) == 1
    whole = {each.name: each.text.slice(0, each.text.length()) for each in inputs}
    shapes = {name: shape_of(text) for name, text in whole.items()}
    views: list[ViewRef] = []
    said: list[str] = []
    for name, text in whole.items():
        key = None if single else name
        shape = shapes[name]
        views.extend(shape.views(of=CONTEXT, key=key))
        if len(said) < _FILES_SHOWN:
            said.append(_told(text, shape, key, question))
    said.append(f"A block can begin like this:\n```python\n{first_program(shapes)}\n```")
    return Layout(
        contexts=(
            _ref(
                inputs,
                "\n\n".join([*_headed(inputs), *said]),
                whole=single and len(whole[inputs[0].name]) <= _WHOLE_CHARS_MAX,
            ),
        ),
        values={CONTEXT: whole[inputs[0].name] if single else whole},
        views=tuple(views),
        files=tuple((name, CONTEXT, None if single else name) for name in whole),
    )


def _on_the_host(inputs: Sequence[Input]) -> Layout:
    held = {each.name: each.text for each in inputs}
    single = len(inputs) == 1
    said = [_told_of_long(each, None if single else each.name) for each in inputs[:_FILES_SHOWN]]
    return Layout(
        contexts=(_ref(inputs, "\n\n".join([*_headed(inputs), *said])),),
        texts={CONTEXT: inputs[0].text if single else held},
    )


def _ref(inputs: Sequence[Input], sample: str, *, whole: bool = False) -> ContextRef:
    if len(inputs) == 1:
        (only,) = inputs
        return ContextRef(
            name=CONTEXT,
            sha256=_sha256(only.text),
            bytes=len(only.text),
            chars=only.text.length(),
            sample=sample,
            whole=whole,
        )
    digest = hashlib.sha256()
    for each in inputs:
        digest.update(_sha256(each.text).encode() + each.name.encode("utf-8", "replace"))
    return ContextRef(
        name=CONTEXT,
        sha256=digest.hexdigest(),
        bytes=sum(len(each.text) for each in inputs),
        chars=-1,
        sample=sample,
    )


def _headed(inputs: Sequence[Input]) -> list[str]:
    """For several files: that they are a dictionary, and its keys."""
    if len(inputs) == 1:
        return []
    names = ", ".join(repr(each.name) for each in inputs[:_NAMES_SHOWN])
    more = f" and {len(inputs) - _NAMES_SHOWN:,} more" if len(inputs) > _NAMES_SHOWN else ""
    return [f"`{CONTEXT}` is a dict of texts by file name: {names}{more}."]


def _told(text: str, shape: Shape, key: str | None, question: str) -> str:
    name = CONTEXT if key is None else f"{CONTEXT}[{key!r}]"
    if len(text) <= (_WHOLE_CHARS_MAX if key is None else _WHOLE_OF_SEVERAL_CHARS_MAX):
        told = described(shape, key=key, question=question)
        return f"`{name}` is this text (str), whole:\n{text}\n{told}"
    if shape.prose:
        lines = shape.name if key is None else f"{shape.name}[{key!r}]"
        parts = _sample(HostText.of(text))
        return f"`{name}` is a long text (str), `{lines}` the list of its lines. Parts:\n{parts}"
    # Of a text that was taken apart, the whole is not named: weak models would parse it again.
    return described(shape, key=key, question=question)


def _told_of_long(given: Input, key: str | None) -> str:
    name = CONTEXT if key is None else f"{CONTEXT}[{key!r}]"
    return (
        f"`{name}` is a long text that stays outside: slice it ({name}[0:500]), or find in it with "
        f"{name}.search(pattern), which gives (start, end, text) of each match. Parts of it:\n"
        f"{_sample(given.text)}"
    )


def _sha256(text: HostText) -> str:
    digest = hashlib.sha256()
    for start in range(0, len(text), _HASH_BYTES):
        digest.update(text.read_raw(start, start + _HASH_BYTES))
    return digest.hexdigest()


def _sample(text: HostText) -> str:
    """Head, middle and tail of a long text."""
    chars = text.length()
    middle = chars // 2
    parts = [
        text.slice(0, _SAMPLE_CHARS),
        text.slice(middle - _SAMPLE_CHARS // 2, middle + _SAMPLE_CHARS // 2),
        text.slice(chars - _SAMPLE_CHARS, chars),
    ]
    return "\n[...]\n".join(parts)
